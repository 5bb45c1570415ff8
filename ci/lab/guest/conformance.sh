#!/bin/bash
# The fabric's conformance suite on the guest's RDMA devices, the provider being the one on libibverbs.
#   conformance.sh siw|rxe [what cargo test takes behind --]
. /payload/lib.sh
kind=$1
shift
net_eth0; net_dummy; rdma_modules
rdma_link "$kind" dummy0
ulimit -l unlimited                # siw counts registered memory
STAG_VERBS_HOST=$ADDR timeout "${LABV_LIMIT:-1500}" /payload/conformance --test-threads=1 "$@"
status=$?
dmesg | grep -E "$kind|BUG|Oops|WARNING|Call Trace" | tail -20
exit $status
