#!/bin/bash
# What bench/crossovers.sh --guest measures in the guest: its table, in /out/table.md.
#   crossovers.sh siw|rxe ROUNDS
. /payload/lib.sh
kind=$1 rounds=$2
net_eth0; net_dummy; rdma_modules
rdma_link "$kind" dummy0
ulimit -l unlimited # siw counts registered memory
STAG=/payload/stag bash /payload/table.sh "$rounds" "verbs --device $kind-dummy0" >/out/table.md || die "no table"
