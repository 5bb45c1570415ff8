#!/usr/bin/env bash
# A second guest for ci/interop.sh: our stagd on verbs, until the host says a word. Also at rpcbind's port: a mount with locks asks
# there for the lock manager.
#   peer.sh siw|rxe
. /payload/lib.sh
address=${LABV_ADDR%/*}
net_eth0
rdma_modules
rdma_link "$1" eth0
stagd_up "$address" --listen "tcp://$address:111" || die stagd
echo "LAB: serving"
read -r _ </dev/ttyS1
stagd_down
