#!/usr/bin/env bash
# The fabric's conformance suite over libibverbs and librdmacm on Linux's software devices, in the guest.
#
#   ci/verbs.sh [-k 6.1|6.12] [siw|rxe]... [-- what cargo test takes]
#
# It needs the guest of ci/lab (ci/lab/build.sh, once) and takes about ten minutes a device. The same suite runs without any of
# that on a device of nothing, in `cargo test -p stag-fabric`; this is the proof that real ones do as that one does.
set -euo pipefail
cd "$(dirname "$0")/.."

flavour=6.1 kinds=()
while [ $# -gt 0 ]; do
    case $1 in
        -k) flavour=$2; shift ;;
        --) shift; break ;;
        siw | rxe) kinds+=("$1") ;;
        *) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    esac
    shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=(siw rxe)
[ $# -gt 0 ] || set -- on_verbs

# shellcheck source=ci/lab/cache.sh
. ci/lab/cache.sh
if [ ! -e "$LAB_CACHE/kernel-$flavour/version" ]; then
    echo "SKIPPED: there is no guest with kernel $flavour: run ci/lab/build.sh $flavour first"
    exit 77
fi

suite=$(cargo test --package stag-fabric --test conformance --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*conformance-[^"]*\)".*/\1/p' | tail -n 1)
payload=$(mktemp -d)
trap 'rm -rf "$payload"' EXIT
strip --strip-debug "$suite" -o "$payload/conformance"
status=0
for kind in "${kinds[@]}"; do
    echo "== $kind, kernel $flavour"
    ci/lab/boot.sh -k "$flavour" -t 1800 -p "$payload" conformance.sh "$kind" "$@" || status=1
done
exit $status
