#!/usr/bin/env bash
# Sweeps the simulator: whole clients and servers on virtual time, with faults, one seed after another.
#   ci/sim.sh [SEEDS]              how many seeds (default 2000)
#   STAG_SEED=N ci/sim.sh 1    replays the seed that a failure printed
# The sweep is the test target `sim` of whichever crate has it. Status 77: there is none.
set -uo pipefail
cd "$(dirname "$0")/.."

found=0
for test in engine/*/tests/sim.rs; do
    [ -e "$test" ] || continue
    found=1
    crate=stag-$(basename "$(dirname "$(dirname "$test")")")
    [ "$crate" != stag-stag ] || crate=stag
    STAG_SEEDS="${1:-2000}" cargo test --locked -p "$crate" --test sim -- --nocapture || exit 1
done
[ $found -eq 1 ] || { echo "SKIPPED: no crate has a test target sim (engine/*/tests/sim.rs)"; exit 77; }
