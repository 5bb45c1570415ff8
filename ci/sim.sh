#!/usr/bin/env bash
# Sweeps the simulator: tests that run one seed after another on virtual time, with faults.
#   ci/sim.sh [SEEDS [TEST...]]         SEEDS of each sweep (default 2000), of all or of those named, one for each core at a time
#   STAG_SEED=N ci/sim.sh 1 TEST        replays the seed that a failure printed; more than 1: those that follow it, too
# A sweep is a test that calls sweep("its own name", ...) of stag_fabric::sim. Status 77: there is none.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."

seeds=${1:-2000}
[[ $seeds =~ ^[1-9][0-9]*$ ]] || usage
[ $# -eq 0 ] || shift
only=" $* "

# The longest begins first, so that no core waits for it at the end.
longest=honest_calls_end_in_a_storm

# crate, test target, sweep: from engine/CRATE/tests/TARGET.rs, or any file below engine/CRATE/tests/TARGET/.
mapfile -t sweeps < <(
    grep -roE 'sweep\("[a-z0-9_]+"' engine/*/tests --include='*.rs' |
        sed -E 's|^engine/([^/]+)/tests/([^/:.]+)[^:]*:sweep\("([a-z0-9_]+)"|\1 \2 \3|' | sort -u |
        awk -v first=$longest '$3 == first { print; next } { rest = rest $0 "\n" } END { printf "%s", rest }'
)

# run "CRATE TARGET NAME" : what it says comes whole, at its end.
run() {
    local crate target name began=$SECONDS status=0 said
    read -r crate target name <<<"$1"
    crate=stag-$crate
    [ "$crate" != stag-stag ] || crate=stag
    # Not of this crate alone: it would be compiled once more, for other features of what it depends on (ci/programs.sh).
    # Where the same tests run in several settings, the usual one, and the one with stores that answer late.
    said=$(STAG_SEEDS=$seeds cargo test --locked --quiet --workspace --test "$target" -- "$name" \
        --skip carried:: --skip version2:: 2>&1) || status=1
    echo "$said
$crate $name: $seeds seeds, $((SECONDS - began)) s"
    return $status
}
export -f run
export seeds

wanted=()
for sweep in "${sweeps[@]}"; do
    [[ $only != "  " && $only != *" ${sweep##* } "* ]] || wanted+=("$sweep")
done
[ ${#wanted[@]} -gt 0 ] || { echo "SKIPPED: no test calls sweep(\"...\")${*:+ with the name $*}"; exit 77; }
# shellcheck disable=SC2016  # $0 is that of each bash.
printf '%s\0' "${wanted[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'run "$0"' || exit 1
