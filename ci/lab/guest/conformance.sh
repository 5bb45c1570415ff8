#!/bin/bash
# The fabric's conformance suite on one of the guest's RDMA devices, the provider being the one on libibverbs.
#   conformance.sh siw|rxe PATTERN...
# A case runs in a process of its own that has $LABV_CASE seconds (120: siw takes half a minute to give up a request), so one that
# hangs is one that failed. A process that not even a kill ends is stuck in the kernel: its stack there is shown, and what follows
# goes on beside it. All cases are run $LABV_TIMES times (1).
. /payload/lib.sh
kind=$1
shift
net_eth0; net_dummy; rdma_modules
rdma_link "$kind" dummy0
ulimit -l unlimited                # siw counts registered memory
export STAG_VERBS_HOST=$ADDR
[ -z "${LABV_WITH:-}" ] || export "STAG_VERBS_${LABV_WITH^^}=1"

cases=$(/payload/conformance --list | sed -n 's/^on_verbs::\(.*\): test$/\1/p' | grep -E "$(IFS='|'; echo "$*")")
[ -n "$cases" ] || die "no case matches: $*"

# run CASE LOG: its status; 124 when it was too slow, 125 when it is stuck.
run() {
    local pid until=$((SECONDS + ${LABV_CASE:-120} * SLOWNESS))
    /payload/conformance --exact "on_verbs::$1" --nocapture >"$2" 2>&1 &
    pid=$!
    while [ -d /proc/$pid ] && [ "$(cut -d' ' -f3 /proc/$pid/stat 2>/dev/null)" != Z ]; do
        if [ $SECONDS -ge $until ]; then
            echo "TIMED OUT after $SECONDS s; its threads in the kernel:" >>"$2"
            cat /proc/$pid/task/*/stack >>"$2"
            kill -9 $pid
            sleep 3
            [ -d /proc/$pid/fd ] && [ "$(cut -d' ' -f3 /proc/$pid/stat)" = D ] && { disown $pid; return 125; }
            wait $pid 2>/dev/null
            return 124
        fi
        sleep 0.1
    done
    wait $pid
}

passed=0 failed=0 skipped=0
for case in $(yes "$cases" | head -n $(($(wc -l <<<"$cases") * ${LABV_TIMES:-1}))); do
    log=/tmp/case
    lines=$(dmesg | wc -l)
    began=$EPOCHREALTIME
    run "$case" $log
    status=$?
    oops=$(dmesg | tail -n +$((lines + 1)) | grep -E 'BUG|Oops|WARNING|refcount|general protection|page fault|Call Trace|RIP')
    reason=$(sed -n 's/^.*SKIPPED: //p' $log | sort -u)
    took=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }')
    if [ $status -ne 0 ] || [ -n "$oops" ]; then
        failed=$((failed + 1))
        echo "FAIL $case ($took, status $status)"
        tail -n 40 $log | sed 's/^/     /'
        [ -z "$oops" ] || sed 's/^/     kernel: /' <<<"$oops"
    elif [ -n "$reason" ]; then
        skipped=$((skipped + 1))
        echo "skip $case ($took): $reason"
    else
        passed=$((passed + 1))
        echo "ok   $case ($took)"
    fi
done
echo "$kind, kernel $(uname -r): $passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
