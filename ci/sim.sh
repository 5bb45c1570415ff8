#!/usr/bin/env bash
# Sweeps the simulator: tests that run one seed after another on virtual time, with faults.
#   ci/sim.sh [SEEDS [TEST...]]         SEEDS of each sweep (default 2000), of all or of those named
#   STAG_SEED=N ci/sim.sh 1 TEST        replays the seed that a failure printed
# A sweep is a test that calls sweep("its own name", ...) of stag_fabric::sim. Status 77: there is none.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."

seeds=${1:-2000}
[[ $seeds =~ ^[1-9][0-9]*$ ]] || usage
[ $# -eq 0 ] || shift
only=" $* "

# crate, test target, sweep: from engine/CRATE/tests/TARGET.rs, or any file below engine/CRATE/tests/TARGET/.
mapfile -t sweeps < <(
    grep -roE 'sweep\("[a-z0-9_]+"' engine/*/tests --include='*.rs' |
        sed -E 's|^engine/([^/]+)/tests/([^/:.]+)[^:]*:sweep\("([a-z0-9_]+)"|\1 \2 \3|' | sort -u
)

found=0 failed=0
for sweep in "${sweeps[@]}"; do
    read -r crate target name <<<"$sweep"
    [[ $only == "  " || $only == *" $name "* ]] || continue
    found=1
    crate=stag-$crate
    [ "$crate" != stag-stag ] || crate=stag
    began=$SECONDS
    # Not of this crate alone: it would be compiled once more, for other features of what it depends on (ci/programs.sh).
    STAG_SEEDS=$seeds cargo test --locked --quiet --workspace --test "$target" -- "$name" || failed=1
    echo "$crate $name: $seeds seeds, $((SECONDS - began)) s"
done
[ $found -eq 1 ] || { echo "SKIPPED: no test calls sweep(\"...\")${*:+ with the name $*}"; exit 77; }
exit $failed
