#!/usr/bin/env bash
# Counts the RPC-over-RDMA messages of the kept captures with tshark (fetched by apt-get if this is root on a Debian), and compares with the checked-in table, which the
# tests compare with ours: ci/captures.sh [--write]
#
# tshark's frames are not messages: one frame can hold several, so the xids are counted. Without tshark: SKIPPED, status 77.
set -euo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
# shellcheck source=ci/packages.sh
. "$(dirname "$0")/packages.sh"
cd "$(dirname "$0")/.."
case ${1:-} in --write) ;; -*) usage ;; esac

need captures || { echo "SKIPPED: $lacking"; exit 77; }
folder=engine/dump/tests/captures
table=$folder/messages.txt

count() {
    echo "# Messages of each capture, counted by ci/captures.sh with tshark: one for each rpcordma.xid."
    for file in "$folder"/*.pcap; do
        name=$(basename "$file" .pcap)
        messages=$(tshark -r "$file" -Y rpcordma -T fields -e rpcordma.xid 2>/dev/null | tr ',' '\n' | grep -c 0x)
        echo "$name $messages"
    done
}

if [ "${1:-}" = --write ]; then
    count >"$table.new" && mv "$table.new" "$table"
    echo "captures: wrote $table"
else
    diff <(count) "$table" && echo "captures: $(grep -vc '^#' "$table") captures, as many messages as tshark $(tshark --version 2>/dev/null | sed -n '1s/TShark (Wireshark) \([0-9.]*\).*/\1/p') finds"
fi
