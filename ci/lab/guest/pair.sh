#!/usr/bin/env bash
# pair.sh siw|rxe server | pair.sh siw|rxe client VERS: see ../pair.sh
. /payload/lib.sh
kind=$1 role=$2 vers=${3:-}
modprobe virtio_net
case $role in server) me=10.78.0.1 ;; client) me=10.78.0.2 ;; esac
ip addr add $me/24 dev eth1; ip link set eth1 up
rdma_modules
rdma_link "$kind" eth1
if [ "$role" = server ]; then
  nfsd_up
  python3 -c "
import os
for n in (1, 5000, 20000): open('$EXPORT/f%d' % n, 'wb').write(bytes((131 * i + 17 * (i >> 8) + n) & 255 for i in range(n)))
os.mkdir('$EXPORT/many')
for i in range(120): open('$EXPORT/many/entry-%05d' % i, 'w').close()"
  touch $EXPORT/ready
  n=0; until [ -e $EXPORT/stop ] || [ $n -gt 150 ]; do sleep 1; n=$((n + 1)); done
  sleep 2; nfsd_down
  [ -e $EXPORT/stop ]
else
  modprobe rpcrdma; pgrep -x rpcbind >/dev/null || rpcbind -w
  mkdir -p /run/rpcbind /var/lib/nfs/rpc_pipefs
  export SERVER=10.78.0.1
  sleep 6
  n=0; until nfs_mount "$vers" "retry=0"; mountpoint -q $MNT || [ $n -gt 20 ]; do sleep 2; n=$((n + 1)); done
  mountpoint -q $MNT || die "no mount"
  for n in 1 5000 20000; do md5sum <$MNT/f$n; done
  for n in 100 4500 30000; do head -c $n /dev/zero | tr '\0' w >$MNT/w$n; done; sync
  ls $MNT/many | wc -l
  ln -s "$(printf '%1500s' '' | tr ' ' l)" $MNT/link; drop; readlink $MNT/link | wc -c
  touch $MNT/stop; nfs_umount
  dmesg | grep -E 'rxe|siw|rpcrdma' | tail -5
fi
