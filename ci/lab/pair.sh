#!/usr/bin/env bash
# Two guests on one virtual Ethernet segment, the kernel's client in one and its server in the
# other, and qemu recording the segment from outside: the way to see RoCE, which over loopback
# never reaches a network device.
#   pair.sh siw|rxe VERS OUT.pcap [KERNEL]
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=ci/usage.sh
. "$here/../usage.sh"
[ $# -ge 3 ] || usage
kind=$1 vers=$2 out=$3 kernel=${4:-6.1}
port=${LAB_PAIR_PORT:-20999}
nic() { echo "-device virtio-net-pci,netdev=seg,mac=52:54:00:77:00:0$1,csum=off,gso=off,guest_csum=off,host_tso4=off,host_tso6=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,host_ufo=off"; }
LABV_PAIR=1 "$here/boot.sh" -k "$kernel" -t 200 -q "-netdev socket,id=seg,listen=127.0.0.1:$port $(nic 1)" pair.sh "$kind" server >"$out.server.log" 2>&1 &
server=$!
sleep 1
"$here/boot.sh" -k "$kernel" -t 200 -q "-netdev socket,id=seg,connect=127.0.0.1:$port $(nic 2) -object filter-dump,id=dump,netdev=seg,file=$out" pair.sh "$kind" client "$vers"
rc=$?
wait $server || { rc=1; tail -20 "$out.server.log"; }
rm -f "$out.server.log"
exit $rc
