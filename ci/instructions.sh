#!/usr/bin/env bash
# Instructions that a NULL Call takes at the Requester and at the Responder over verbs, counted in the guest on Linux's software
# devices, beside those of ib_send_lat for the same two Sends.
#
#   ci/instructions.sh [-k 6.1|6.12] [siw|rxe]...
#
# What is counted and what is not: bench/examples/instructions.rs. It builds `stag` and `stagd` in release mode, and needs the
# guest (ci/lab/build.sh); without it: SKIPPED, status 77.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

kernel=6.1 kinds=()
while [ $# -gt 0 ]; do
    case $1 in
        -k) kernel=$2; shift ;;
        siw | rxe) kinds+=("$1") ;;
        *) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    esac
    shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=(siw rxe)
# shellcheck source=ci/lab/cache.sh
. ci/lab/cache.sh
if [ ! -e "$LAB_CACHE/kernel-$kernel/version" ]; then
    echo "SKIPPED: there is no guest with kernel $kernel: run ci/lab/build.sh $kernel first"
    exit 77
fi

cargo build --release --package stag-apps --bin stag --bin stagd && cargo build --package stag-bench --example instructions || exit 1
target=${CARGO_TARGET_DIR:-target}
payload=$(mktemp -d)
trap 'rm -rf "$payload"' EXIT
for program in release/stag release/stagd debug/examples/instructions; do
    strip --strip-debug "$target/$program" -o "$payload/${program##*/}"
done
status=0
for kind in "${kinds[@]}"; do
    ci/lab/boot.sh -k "$kernel" -t 600 -p "$payload" instructions.sh "$kind" || status=1
done
exit $status
