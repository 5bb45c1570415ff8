#!/usr/bin/env bash
# Measures the figures that the project is held to, one line each: the ratio found, and the target.
#   ci/bench.sh [ROUNDS]     rounds of each figure (default 5)
# A figure that is missed is said, but never fails the run: a busy machine is no bug. Status 1 is a run
# that could not be measured.
set -uo pipefail
cd "$(dirname "$0")/.."

repeat=${1:-5}
cargo build --quiet --locked --release -p stag-apps --bin stag || exit 1
stag=${CARGO_TARGET_DIR:-target}/release/stag
failed=0

# figure NAME REQUIREMENT ARGUMENT... : measures, and prints what was wanted and what was found.
figure() {
    local name=$1 wanted=$2 output
    shift 2
    output=$("$stag" perf "$@" --repeat "$repeat" --require "$wanted" 2>&1)
    # Status 1 is also a miss: what counts is whether there is a verdict.
    if ! grep -qE '^(met|MISSED) ' <<<"$output"; then
        echo "$name: $(tail -n 1 <<<"$output")"
        failed=1
        return
    fi
    printf '%-34s %s\n' "$name" "$(grep -E '^(met|MISSED) ' <<<"$output")"
}

figure "NULL, depth 1, to a bare echo" 'latency/echo<=2.0' null -q 1
figure "NULL, depth 32" 'rate>=5M' null -q 32
figure "READ 1 MiB, depth 2, untouched" 'copy-hot>=0.9' read -s 1M -q 2
figure "READ 1 MiB, depth 2, every line" 'copy-read>=0.9' read -s 1M -q 2 --touch
figure "READ 4 KiB, depth 32" 'rate>=2M' read -s 4K -q 32
figure "WRITE 4 KiB, depth 32" 'rate>=2M' write -s 4K -q 32
exit $failed
