#!/usr/bin/env bash
# Takes the figures that the project is held to (bench/scenarios), and keeps them by commit.
#   ci/bench.sh [ROUNDS] [SCENARIO...]   rounds of each figure (default 5); scenarios: shm directory iwarp plots
# Without scenarios it takes shm, directory and iwarp. A figure that is missed, or not measured because other programs ran, is said,
# but never fails the run. Status 1 is a run that could not be measured.
#
# Results are kept as JSON in $STAG_BENCH_HISTORY/COMMIT/SCENARIO.json (default bench/history, which git ignores):
# `stag bench compare` compares two of these folders, `stag bench report` draws them.
#
# iWARP's figures are taken in a network namespace that has only `lo` where that is permitted (root, or user namespaces): filters
# and other traffic are the host's business. What TCP alone does is measured in the same rounds, in the same namespace, with the
# same congestion control.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
case ${1:-} in -*) usage ;; esac

rounds=5
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    rounds=$1
    shift
fi
scenarios=("$@")
[ $# -gt 0 ] || scenarios=(shm directory iwarp)
cargo build --quiet --locked --profile dist -p stag-apps --bin stag --bin stagd || exit 1
stag=${CARGO_TARGET_DIR:-target}/dist/stag
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit+=+
history=${STAG_BENCH_HISTORY:-bench/history}/$commit
mkdir -p "$history" || exit 1

# Sets `enter` to what runs a command in a namespace with only `lo`, if there can be one.
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

failed=0
for scenario in "${scenarios[@]}"; do
    enter=()
    [ "$scenario" != iwarp ] || choose_namespace
    "${enter[@]}" "$stag" bench run "bench/scenarios/$scenario.toml" --repeat "$rounds" -o "$history/$scenario.json" ||
        failed=1
done
exit $failed
