#!/usr/bin/env bash
# Measures the figures that the project is held to, one line each: what was wanted, and what was found.
#   ci/bench.sh [ROUNDS] [shm|iwarp]     rounds of each figure (default 5); one fabric only
# A figure that is missed, or not measured because other programs ran, is said, but never fails the run. Status 1 is a run
# that could not be measured.
#
# iWARP's figures are taken with reno, in a network namespace that has only `lo` where that is permitted (root, or user
# namespaces): filters and other traffic are the host's business. What TCP alone does is measured in the same rounds,
# in the same namespace, with the same congestion control.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
case ${1:-} in -*) usage ;; esac

repeat=${1:-5}
fabrics=${2:-shm iwarp}
cargo build --quiet --locked --profile dist -p stag-apps --bin stag --bin stagd || exit 1
stag=${CARGO_TARGET_DIR:-target}/dist/stag
failed=0
enter=()

# figure NAME REQUIREMENT ARGUMENT... : measures, and prints what was wanted and what was found.
figure() {
    local name=$1 wanted=$2 output
    shift 2
    output=$("${enter[@]}" "$stag" perf "$@" --repeat "$repeat" --require "$wanted" 2>&1)
    # Status 1 is also a miss: what counts is whether there is a verdict.
    if ! grep -qE '^(met|MISSED|not measured) ' <<<"$output"; then
        echo "$name: $(tail -n 1 <<<"$output")"
        failed=1
        return
    fi
    printf '%-40s %s\n' "$name" "$(grep -E '^(met|MISSED|not measured) ' <<<"$output")"
}

shm() {
    figure "NULL, depth 1, to a bare echo" 'latency/echo<=2.2' null -q 1
    figure "NULL, depth 32" 'rate>=5M' null -q 32
    figure "READ 1 MiB, depth 2, untouched" 'copy-hot>=0.9' read -s 1M -q 2
    figure "READ 1 MiB, depth 2, every line" 'copy-read>=0.75' read -s 1M -q 2 --touch
    figure "READ 1 MiB, depth 3, every line" 'copy-read>=0.95' read -s 1M -q 3 --touch
    figure "READ 4 KiB, depth 32" 'rate>=2M' read -s 4K -q 32
    figure "WRITE 4 KiB, depth 32" 'rate>=2M' write -s 4K -q 32
    names
}

# Loads on names and attributes, and the Calls a second that are wanted of mem: and of dir: on tmpfs.
readonly names='
getattr 800k 318k
setattr 500k 39k
lookup 450k 234k
create 250k 50k
remove 250k 47k
rename 250k 39k
readdirplus 11k 1.2k'

names() {
    local load memory directory work pid up=yes n=0 url=shm://stag-bench-$$
    while read -r load memory directory; do
        [ -z "$load" ] || figure "mem: $load, depth 32" "rate>=$memory" "$load" -q 32
    done <<<"$names"
    work=$(mktemp -d /dev/shm/stag-bench.XXXXXX) && mkdir "$work/data" "$work/state" || {
        echo "dir: FAILED: no folder could be made in /dev/shm"
        failed=1
        return
    }
    "${stag}d" --listen "$url" --export "dir:$work/data,name=/data,root_squash=no" --poll busy --memory 256M \
        --state-dir "$work/state" >"$work/log" 2>&1 &
    pid=$!
    until grep -q '^ready' "$work/log"; do
        n=$((n + 1))
        if [ $n -ge 100 ] || ! kill -0 $pid 2>/dev/null; then
            echo "dir: $(tail -n 1 "$work/log")"
            failed=1 up=''
            break
        fi
        sleep 0.1
    done
    while [ -n "$up" ] && read -r load memory directory; do
        [ -z "$load" ] || figure "dir: $load, depth 32" "rate>=$directory" "$load" "$url/data" -q 32
    done <<<"$names"
    kill $pid 2>/dev/null
    wait $pid 2>/dev/null
    rm -rf "$work"
}

# A namespace with only `lo`, if there can be one.
choose_namespace() {
    local inside='ip link set lo up 2>/dev/null || ifconfig lo up; exec "$@"'
    local way
    for way in "unshare --net" "unshare --user --map-root-user --net"; do
        # shellcheck disable=SC2086 # the words of the command
        if $way sh -c "$inside" sh true 2>/dev/null; then
            # shellcheck disable=SC2206
            enter=($way sh -c "$inside" sh)
            return
        fi
    done
    echo "no network namespace may be made here: measured among the host's other traffic"
}

iwarp() {
    choose_namespace
    local common=(--fabric iwarp --congestion-control reno)
    figure "iwarp NULL, depth 1, to TCP" 'latency/tcp<=1.1' null -q 1 "${common[@]}"
    figure "iwarp NULL, depth 32, to batched TCP" 'rate/tcp>=0.85' null -q 32 "${common[@]}"
    figure "iwarp READ 4 KiB, depth 32" 'rate/tcp>=0.85' read -s 4K -q 32 "${common[@]}"
    figure "iwarp WRITE 4 KiB, depth 32" 'rate/tcp>=0.8' write -s 4K -q 32 "${common[@]}"
    figure "iwarp READ 1 MiB, depth 4, CRC off" 'stream>=0.85' read -s 1M -q 4 --crc off "${common[@]}"
    figure "iwarp READ 1 MiB, depth 4, CRC on" 'stream>=0.85' read -s 1M -q 4 --crc on "${common[@]}"
    figure "iwarp WRITE 1 MiB, depth 4, CRC off" 'stream>=0.8' write -s 1M -q 4 --crc off "${common[@]}"
    figure "iwarp WRITE 1 MiB, depth 4, CRC on" 'stream>=0.7' write -s 1M -q 4 --crc on "${common[@]}"
    enter=()
}

for fabric in $fabrics; do
    "$fabric"
done
exit $failed
