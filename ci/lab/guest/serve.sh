#!/usr/bin/env bash
# The guest's kernel NFS server on siw over eth0, for a client on the host (through -f HOSTPORT:20049).
#   serve.sh [seconds]
. /payload/lib.sh
net_eth0; rdma_modules; rdma_link siw eth0
nfsd_up
echo hello from the kernel server >$EXPORT/hello
[ -z "${LABV_DEBUG:-}" ] || { mount -t debugfs d /sys/kernel/debug; echo "module $LABV_DEBUG +p" >/sys/kernel/debug/dynamic_debug/control; }
echo "LAB: serving on rdma $PORT"
end=$((SECONDS + ${1:-60}))
while [ $SECONDS -lt $end ] && [ ! -e $EXPORT/stop ]; do sleep 1; done
nfsd_down
dmesg | grep -iE 'svcrdma|rpcrdma|siw' | tail -${LABV_LINES:-10}
