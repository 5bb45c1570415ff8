#!/bin/bash
# What bench/instructions.sh --device has counted in the guest: callgrind's files in /out.
#   instructions.sh siw|rxe FEW MANY
# The end of ib_send_lat that connects twice: FEW messages and MANY, the other end not slowed down by being counted. Each end of our NULL Calls twice: FEW and
# MANY; the pause between turns is long enough for the device to have done its work, so that few turns are in vain.
. /payload/lib.sh
kind=$1 few=$2 many=$3
net_eth0; net_dummy; rdma_modules
rdma_link "$kind" dummy0
ulimit -l unlimited # siw counts registered memory
export VALGRIND_LIB=/payload/valgrind

# counted FILE COMMAND... : under callgrind, every name written out.
counted() {
    local file=/out/$1
    shift
    /payload/valgrind/valgrind --tool=callgrind --compress-strings=no --compress-pos=no --callgrind-out-file="$file" \
        "${toggle[@]}" "$@" >"$file.log" 2>&1
}
# plainly FILE COMMAND...
plainly() { "${@:2}" >"/out/$1.log" 2>&1; }

# latency SERVER CLIENT RUN COUNT: ib_send_lat, each end `counted` or `plainly`. Its Receives are few, so that it posts one for each
# message as it goes.
toggle=()
latency() {
    local attempt
    # It may fail to connect over siw, and then dies of it now and then, in librdmacm.
    for attempt in 1 2 3 4 5; do
        ! latency_once "$@" || return 0
        echo "ib_send_lat failed, attempt $attempt"
    done
    cat "/out/latency.responder.$3.log" "/out/latency.requester.$3.log"
    die "ib_send_lat"
}
latency_once() {
    local -a tool=(ib_send_lat -F -R -d "$kind-dummy0" -s 64 -n "$4" --rx-depth 16 -p 7180)
    local pid tries=0
    "$1" "latency.responder.$3" "${tool[@]}" &
    pid=$!
    # Until somebody listens: valgrind takes its time to start.
    until "$2" "latency.requester.$3" "${tool[@]}" "$ADDR"; do
        tries=$((tries + 1))
        if [ $tries -ge 60 ] || ! kill -0 $pid 2>/dev/null; then
            kill -KILL $pid 2>/dev/null
            wait $pid
            return 1
        fi
        sleep 1
    done
    wait $pid
}
# Not the other way round: ib_send_lat does not survive a requester that is much quicker than its responder.
latency plainly counted few "$few"
latency plainly counted many "$many"

# calls END TURN RUN COUNT
calls() {
    toggle=(--collect-atstart=no "--toggle-collect=*$2*")
    counted "call.$1.$3" /payload/one_thread device "$4" 1 "$ADDR:7400" 1000 || { cat "/out/call.$1.$3.log"; die "NULL Calls"; }
}
for end in requester:client_turn responder:server_turn; do
    calls "${end%:*}" "${end#*:}" few "$few"
    calls "${end%:*}" "${end#*:}" many "$many"
done
