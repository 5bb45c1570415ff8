#!/usr/bin/env bash
# A second client for ci/interop.sh: mounts EXPORT of stagd at HOST, over siw or TCP, with locks, and does there what twin.py is
# told to, until the host says `end`.
#   twin.sh rdma|tcp EXPORT
. /payload/lib.sh
# The name by which the lock manager knows it.
hostname labtwin
net_eth0
if [ "$1" = rdma ]; then rdma_modules; rdma_link siw eth0; modprobe rpcrdma; fi
mkdir -p $MNT /var/lib/nfs/rpc_pipefs
rpcbind_up
stty -F /dev/ttyS1 raw -echo
# Held open from here on: input is lost while no process has it open.
exec 3<>/dev/ttyS1
timeout -k 5 $((60 * SLOWNESS)) mount -t nfs -o "$1,port=$PORT,mountport=$PORT,vers=3,lock,mountproto=tcp" "$HOST_ADDR:$2" $MNT || die mount
echo "LAB: serving"
python3 /payload/twin.py $MNT
umount $MNT
