#!/usr/bin/env bash
# The verbs provider on Linux's software devices, in the guest: the fabric's conformance suite over libibverbs and librdmacm,
# and Calls that go on while the device, its link or the other end is taken away.
#
#   ci/verbs.sh [--long] [--with shared|standing|windows] [--fault ROW]... [--times N] [-k 6.1|6.12]... [siw|rxe]... [CASES...]
#
# A line for each case and each fault, `ok`, `skip` with the reason or `FAIL`; at the end `N passed, N failed, N skipped`.
# --long    every case and every fault, on kernels 6.1 and 6.12 (six minutes for each device and kernel); else a few of each
#           kind, on 6.1, in less than three minutes for both devices
# --with    the provider has a shared receive queue, or standing exposures, or memory windows: what it does not choose by itself;
#           no faults, whose programs leave it the choice
# --fault   this fault instead, `all` for each; no case but CASES
# --times   so often each case: for one that fails now and then
# CASES     regular expressions: these cases instead; no fault but --fault's
#
# It needs the guest of ci/lab (ci/lab/build.sh, once for each kernel); without it: SKIPPED, status 77. The same suite runs without
# any of that on a device of nothing, in `cargo test -p stag-fabric`; this is the proof that real ones do as that one does.
# Cases: engine/fabric/tests/conformance. Faults: ci/lab/guest/faults.sh.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
# shellcheck source=ci/programs.sh
. "$(dirname "$0")/programs.sh"
# shellcheck source=ci/slowness.sh
. "$(dirname "$0")/slowness.sh"
cd "$(dirname "$0")/.." || exit 1

long='' kernels=() kinds=() cases=() faults=()
while [ $# -gt 0 ]; do
    case $1 in
        --long) long=yes ;;
        --with) export LABV_WITH=$2; shift ;;
        --fault) faults+=("$2"); shift ;;
        --times) export LABV_TIMES=$2; shift ;;
        -k) kernels+=("$2"); shift ;;
        siw | rxe) kinds+=("$1") ;;
        -*) usage ;;
        *) cases+=("$1") ;;
    esac
    shift
done
if [ ${#kernels[@]} -eq 0 ]; then
    kernels=(6.1)
    [ -z "$long" ] || kernels+=(6.12)
fi
[ ${#kinds[@]} -gt 0 ] || kinds=(siw rxe)
if [ ${#cases[@]} -gt 0 ] || [ ${#faults[@]} -gt 0 ]; then
    :
elif [ -n "$long" ]; then
    cases=(.)
    [ -n "${LABV_WITH:-}" ] || faults=(all)
else
    [ -n "${LABV_WITH:-}" ] || faults=(server_killed device_reset)
    # What software devices are known to stumble over, and one of every kind.
    cases=(
        messages::{both_directions,message_longer,many_queue_pairs} scattered::a_long_message transfers::{a_read_gathers,completions_come,requests_around}
        exposures::{a_fenced_handle,a_fence_against_writes,exposures_are_limited} capacity::sends_beyond setup::{private_data,nobody_listens}
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

suite=$(executable conformance- cargo test --test conformance --no-run)
endure=$(executable endure cargo build --example endure)
[ -n "$suite" ] && [ -n "$endure" ] || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/payload"
strip --strip-debug "$suite" -o "$work/payload/conformance"
strip --strip-debug "$endure" -o "$work/payload/endure"

# A second try, in .ci/run, needs its time too.
limit=600
[ -z "$long" ] || limit=2400
# guest KERNEL SCRIPT ARGUMENT... : a guest of its own, because a kernel that oopsed is no kernel for what follows.
guest() {
    local kernel=$1
    shift
    ci/lab/boot.sh -k "$kernel" -t $((limit * STAG_SLOWNESS)) -p "$work/payload" "$@" 2>&1 | tee -a "$work/log"
    case ${PIPESTATUS[0]} in 0) ;; 124 | 143) status=1 disturbed=1 ;; *) status=1 ;; esac
}
status=0 disturbed=''
for kernel in "${kernels[@]}"; do
    for kind in "${kinds[@]}"; do
        echo "== $kind, kernel $kernel"
        [ ${#cases[@]} -eq 0 ] || guest "$kernel" conformance.sh "$kind" "${cases[@]}"
        [ ${#faults[@]} -eq 0 ] || guest "$kernel" faults.sh "$kind" "${faults[@]}"
    done
done
failed=$(grep -c '^FAIL' "$work/log")
# A guest that never came to its end is a failure, too.
[ $status -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
[ -z "$disturbed" ] || echo "DISTURBED: a guest did not come to its end by itself"
echo "$(grep -c '^ok ' "$work/log") passed, $failed failed, $(grep -c '^skip ' "$work/log") skipped"
exit $status
