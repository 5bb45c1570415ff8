#!/usr/bin/env bash
# The fabric's conformance suite over libibverbs and librdmacm on Linux's software devices, in the guest.
#
#   ci/verbs.sh [--long] [-k 6.1|6.12]... [siw|rxe]... [CASES...]
#
# A line for each case, `ok`, `skip` with the reason or `FAIL`, and `N passed, N failed, N skipped` for each device and kernel.
# --long    every case, on kernels 6.1 and 6.12 (six minutes for each device and kernel); else a few of each kind, on 6.1
# CASES     regular expressions: these cases instead
#
# It needs the guest of ci/lab (ci/lab/build.sh, once for each kernel); without it: SKIPPED, status 77. The same suite runs without
# any of that on a device of nothing, in `cargo test -p stag-fabric`; this is the proof that real ones do as that one does.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

long='' kernels=() kinds=() cases=()
while [ $# -gt 0 ]; do
    case $1 in
        --long) long=yes ;;
        -k) kernels+=("$2"); shift ;;
        siw | rxe) kinds+=("$1") ;;
        -*) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
        *) cases+=("$1") ;;
    esac
    shift
done
if [ ${#kernels[@]} -eq 0 ]; then
    kernels=(6.1)
    [ -z "$long" ] || kernels+=(6.12)
fi
[ ${#kinds[@]} -gt 0 ] || kinds=(siw rxe)
if [ ${#cases[@]} -eq 0 ] && [ -n "$long" ]; then
    cases=(.)
elif [ ${#cases[@]} -eq 0 ]; then
    # What software devices are known to stumble over, and one of every kind.
    cases=(
        messages::{both_directions,message_longer,many_queue_pairs} transfers::{a_read_gathers,completions_come,requests_around}
        exposures::{a_fenced_handle,a_fence_against_writes} capacity::sends_beyond setup::{private_data,nobody_listens}
        teardown::{with_everything,the_other_side_dies}
    )
fi

# shellcheck source=ci/lab/cache.sh
. ci/lab/cache.sh
for kernel in "${kernels[@]}"; do
    if [ ! -e "$LAB_CACHE/kernel-$kernel/version" ]; then
        echo "SKIPPED: there is no guest with kernel $kernel: run ci/lab/build.sh $kernel first"
        exit 77
    fi
done

suite=$(cargo test --package stag-fabric --test conformance --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*conformance-[^"]*\)".*/\1/p' | tail -n 1)
[ -n "$suite" ] || exit 1
payload=$(mktemp -d)
trap 'rm -rf "$payload"' EXIT
strip --strip-debug "$suite" -o "$payload/conformance"
status=0
for kernel in "${kernels[@]}"; do
    for kind in "${kinds[@]}"; do
        echo "== $kind, kernel $kernel"
        # A kernel that oopsed is no kernel for another device: each has a guest of its own.
        ci/lab/boot.sh -k "$kernel" -t 2400 -p "$payload" conformance.sh "$kind" "${cases[@]}" || status=1
    done
done
exit $status
