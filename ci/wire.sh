#!/usr/bin/env bash
# Our own wire, looked at by others: captures a stagd and stag over iWARP on a loopback of its own, and checks the capture.
#
#   ci/wire.sh [--inside]
#
# The server records the session too (stagd --record), and what `stag admin record` writes is checked in the same way.
#
# tshark must decode all of it: as many messages as `stag dump` finds, every CRC good, nothing malformed but READ Replies, whose
# data went by Write chunk (tshark 4.0 does not put it back). And `stag dump` must find no broken rule. A line for each check,
# `ok` or `FAILED`, and `N passed, N failed, N skipped` at the end. It needs root, for packages and a network namespace; if
# something is missing it says so: SKIPPED, status 77. STAG and STAGD name the programs to test, else they are built. The captures
# stay in target/ci/wire.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
# shellcheck source=ci/packages.sh
. "$(dirname "$0")/packages.sh"
# shellcheck source=ci/programs.sh
. "$(dirname "$0")/programs.sh"
# shellcheck source=ci/slowness.sh
. "$(dirname "$0")/slowness.sh"
cd "$(dirname "$0")/.." || exit 1
case ${1:-} in --inside) ;; -*) usage ;; esac

skipped() { echo "SKIPPED: $*"; exit 77; }
target=${CARGO_TARGET_DIR:-target}
out=$(realpath -m "$target/ci/wire")
profile=${STAG_PROFILE:-dev}
programs=$(realpath -m "$target/${profile/dev/debug}")
stag=${STAG:-$programs/stag}
stagd=${STAGD:-$programs/stagd}

prepare() {
    [ "$(id -u)" = 0 ] || skipped "it needs root, for packages and a network namespace of its own"
    need wire || skipped "$lacking"
    unshare -n true 2>/dev/null || skipped "no network namespace can be made"
    unshare -n sh -c 'ip link set lo up && timeout $((5 * STAG_SLOWNESS)) dumpcap -q -i lo -a duration:1 -w /dev/null' >/dev/null 2>&1 ||
        skipped "dumpcap cannot capture in a namespace"
    mkdir -p "$out"
    if [ -z "${STAG:-}" ] || [ -z "${STAGD:-}" ]; then
        build_programs "$profile" || exit 1
    fi
}
if [ "${1:-}" != --inside ]; then
    prepare
    exec unshare -n "$0" --inside
fi

ip link set lo up
work=$(mktemp -d "$out/work.XXXXXX")
server='' capture=''
trap 'kill $server $capture 2>/dev/null; rm -rf "$work"' EXIT

passed=0 failed=0 skipped=0
# check NAME WHAT COMMAND... : the command succeeds; WHAT is said behind the name
check() {
    local name=$1 what=$2
    shift 2
    if "$@" >"$work/output" 2>&1; then
        passed=$((passed + 1))
        echo "ok $name${what:+: $what}"
    else
        failed=$((failed + 1))
        echo "FAILED $name${what:+: $what}: $*"
        tail -n 20 "$work/output" | sed 's/^/    /'
    fi
}
same() { [ "$1" = "$2" ] || { echo "$1 is not $2"; return 1; }; }

# One session: every kind of Call that stag makes, with small and large data. tshark 4.0 loses its place when TCP cuts an FPDU in two
# and the second part shares a segment with other FPDUs. So no file is larger than 32 KiB, half of the first TCP window, which
# the kernel sends in one piece; and one file goes at a time. Longer messages, in several FPDUs, are checked against Linux (ci/interop.sh).
session() {
    local url=iwarp://127.0.0.1:20049/data tree=$work/tree
    mkdir -p "$tree/some/where"
    for size in 0 1 500 4096 5000 28001; do head -c "$size" /dev/urandom >"$tree/f$size"; done
    ln -sf "$(printf 'l%.0s' {1..900})" "$tree/some/link"
    cp "$tree/f5000" "$tree/some/where/f"
    "$stag" ping -c 3 "$url" && "$stag" df "$url" &&
        "$stag" mkdir "$url/there" && "$stag" put "$tree/f1" "$url/there/" && "$stag" put "$tree/f28001" "$url/there/" &&
        "$stag" cp -r -j 1 "$tree" "$url/tree" && "$stag" ls -l "$url/tree" && "$stag" stat "$url/tree/f5000" &&
        "$stag" mv "$url/there/f1" "$url/there/moved" && "$stag" cat "$url/there/f28001" | cmp - "$tree/f28001" &&
        "$stag" cp -r -j 1 "$url/tree" "$work/back" && diff -r --no-dereference "$tree" "$work/back" &&
        "$stag" rm -r "$url/tree" && ! "$stag" cat "$url/tree/f1" 2>/dev/null
}

for crc in true false; do
    file=$out/crc-$crc.pcapng
    # An old file would look like a capture that has begun.
    rm -rf "$work/tree" "$work/back" "$file"
    # A large buffer, so that nothing is lost while the other processes have the cores.
    dumpcap -q -i lo -B 256 -s 0 -w "$file" -f 'tcp port 20049' 2>"$work/dumpcap" &
    capture=$!
    until [ -s "$file" ]; do sleep 0.1; kill -0 $capture 2>/dev/null || break; done
    # Not the last one's "ready".
    : >"$work/stagd"
    # tshark knows version 1.
    "$stagd" --export mem:/data,root_squash=no --listen iwarp://127.0.0.1:20049 --crc "$crc" --memory 128M --poll adaptive --protocol 1 \
        --record 16384 --control "$work/control" >"$work/stagd" 2>&1 &
    server=$!
    for _ in $(seq $((100 * STAG_SLOWNESS))); do grep -q '^ready' "$work/stagd" && break; sleep 0.1; done

    echo "session with crc=$crc"
    if session >"$work/session" 2>&1; then
        passed=$((passed + 1)); echo "ok session"
    else
        failed=$((failed + 1)); echo "FAILED session"; tail -n 20 "$work/session" "$work/stagd" | sed 's/^/    /'
    fi
    recording=$out/recording-$crc.pcapng
    "$stag" admin --socket "$work/control" record >"$recording" 2>"$work/record"
    kill -TERM $server; wait $server; server=''
    sleep 1
    kill -INT $capture; wait $capture; capture=''

    ours=$("$stag" dump --json -q "$file" | tail -n 1)
    count() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" <<<"$ours"; }
    theirs=$(tshark -r "$file" -Y rpcordma -T fields -e rpcordma.xid 2>/dev/null | tr ',' '\n' | grep -c 0x)
    check "tshark finds as many messages as stag dump" "$theirs" same "$theirs" "$(count messages)"
    check "there are messages" "" test "$theirs" -gt 100

    # What is malformed to tshark, but for READ Replies.
    malformed=$(tshark -r "$file" -Y '_ws.malformed && !(rpc.msgtyp == 1 && nfs.procedure_v3 == 6)' 2>/dev/null | tee "$work/malformed" | wc -l)
    reads=$(tshark -r "$file" -Y '_ws.malformed && rpc.msgtyp == 1 && nfs.procedure_v3 == 6' 2>/dev/null | wc -l)
    check "nothing is malformed but READ Replies" "$reads of these" same "$malformed" 0
    [ "$malformed" = 0 ] || head -n 5 "$work/malformed" | sed 's/^/    /'

    tshark -r "$file" -V -Y iwarp_mpa 2>/dev/null | grep -oiE '(good|bad) crc32' | sort | uniq -c >"$work/crc"
    good=$(sed -nE 's/ *([0-9]+) good.*/\1/Ip' "$work/crc") bad=$(sed -nE 's/ *([0-9]+) bad.*/\1/Ip' "$work/crc")
    if [ "$crc" = true ]; then
        check "every CRC is good to stag dump" "$(count crc_good)" same "$(count crc_good)" "$(count segments)"
        check "and to tshark" "${good:-0} good, ${bad:-0} bad" same "${good:-0} ${bad:-0}" "$(count segments) 0"
    fi
    check "no rule is broken" "" "$stag" dump -q "$file"
    check "every Call has its Reply" "$(count paired)" same "$(count calls)" "$(count paired)"

    # The server's own recording. Frames of which it has only the start end in the midst of a value: malformed to tshark.
    ours=$("$stag" dump --json -q "$recording" | tail -n 1)
    theirs=$(tshark -r "$recording" -Y rpcordma -T fields -e rpcordma.xid 2>/dev/null | grep -c 0x)
    check "tshark finds as many messages in the recording as stag dump" "$theirs" same "$theirs" "$(count messages)"
    check "there are messages in the recording" "" test "$theirs" -gt 100
    malformed=$(tshark -r "$recording" -Y '_ws.malformed && frame.cap_len == frame.len && !(rpc.msgtyp == 1 && nfs.procedure_v3 == 6)' 2>/dev/null |
        tee "$work/malformed" | wc -l)
    check "nothing in it is malformed but READ Replies and what is cut" "" same "$malformed" 0
    [ "$malformed" = 0 ] || head -n 5 "$work/malformed" | sed 's/^/    /'
    replies=$(tshark -r "$recording" -Y 'nfs && rpc.msgtyp == 1' 2>/dev/null | wc -l)
    check "tshark knows what the Replies answer" "$replies" test "$replies" -gt 40
    check "no rule is broken in the recording" "" "$stag" dump -q "$recording"
done

echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
