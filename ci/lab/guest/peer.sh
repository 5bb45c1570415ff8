#!/usr/bin/env bash
# A second guest for ci/interop.sh: our stagd on verbs, until the host says `end`. At its `restart` the server dies by signal 9 and
# comes back; the answer is a status. Also at rpcbind's port: a mount with locks asks there for the lock manager.
#   peer.sh siw|rxe
. /payload/lib.sh
address=${LABV_ADDR%/*}
net_eth0
rdma_modules
rdma_link "$1" eth0
up() { stagd_up "$address" --listen "tcp://$address:111"; }
stty -F /dev/ttyS1 raw -echo
exec 3<>/dev/ttyS1
up || die stagd
echo "LAB: serving"
while read -r word <&3 && [ "$word" = restart ]; do
    stagd_down KILL
    sleep 2
    up
    echo $? >&3
done
stagd_down
