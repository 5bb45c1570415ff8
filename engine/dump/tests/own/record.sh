#!/usr/bin/env bash
# Records the captures of this folder, and what `stag dump` says of them: engine/dump/tests/own/record.sh FOLDER-WITH-STAG-AND-STAGD
#
# Our own programs, over iWARP on a loopback of their own with an MTU of 1500, without CRCs; it needs root, dumpcap and tcpdump. Their
# xids, times and ports are others each time, so the captures change with each recording.
set -euo pipefail
programs=$(realpath "$1")
cd "$(dirname "$0")"
if [ "${2:-}" != --inside ]; then
    exec unshare -n "./$(basename "$0")" "$programs" --inside
fi
ip link set lo up mtu 1500
work=$(mktemp -d)
server='' capture=''
trap 'kill $server $capture 2>/dev/null || true; rm -rf "$work"' EXIT
url=iwarp://127.0.0.1:20049/data

# begin NAME FLAG... : a server with these flags, and a capture
begin() {
    name=$1
    shift
    "$programs/stagd" --export mem:/data,root_squash=no --listen iwarp://127.0.0.1:20049 --memory 256M --credits 16 \
        --connections-max 4 --crc off --json "$@" >"$work/$name.server" 2>&1 &
    server=$!
    until grep -qs '"ready"' "$work/$name.server"; do sleep 0.1; done
    dumpcap -q -i lo -w "$work/$name.pcapng" 2>"$work/capture" &
    capture=$!
    until [ -s "$work/$name.pcapng" ]; do sleep 0.1; done
}
end() {
    sleep 1
    kill "$capture" && wait "$capture" || true
    kill "$server" && wait "$server" || true
    tcpdump -r "$work/$name.pcapng" -w - 2>/dev/null >"$name.pcap"
    "$programs/stag" dump "$name.pcap" >"$name.txt"
}

# WRITE and READ of 5000 octets in one Send each, and of 20000 octets in three.
head -c 5000 /dev/zero | tr '\0' a >"$work/f5000"
head -c 20000 /dev/zero | tr '\0' b >"$work/f20000"
begin version2 --protocol auto --placement send
for size in 5000 20000; do "$programs/stag" --crc off --protocol auto --placement send put "$work/f$size" "$url/"; done
for size in 5000 20000; do "$programs/stag" --crc off --protocol auto --placement send get "$url/f$size" "$work/back" && cmp "$work/back" "$work/f$size" && rm "$work/back"; done
end

# A link whose target does not fit inline: its Reply is exposed.
ln -s "$(printf 'l%.0s' {1..1500})" "$work/link"
begin reliable-reply --reliable-reply --inline-threshold 1K
"$programs/stag" --crc off --reliable-reply put -r "$work/link" "$url/link"
"$programs/stag" --crc off --reliable-reply get -r -T "$url/link" "$work/back"
[ "$(readlink "$work/back")" = "$(readlink "$work/link")" ]
end
