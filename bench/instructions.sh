#!/usr/bin/env bash
# Counts the instructions of one NULL Call at the Requester and at the Responder: they do not jitter as times do.
#   bench/instructions.sh
# Client and server run in one thread (examples/one_thread.rs), by turns, so that no pass is idle. Over verbs the device is one of
# nothing, and what its library's functions execute is taken off: the rest is ours. Needs valgrind.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind >/dev/null || { echo "SKIPPED: valgrind is not there (Debian: apt-get install valgrind)"; exit 77; }
cargo build --quiet --locked --release --package stag-bench --example one_thread
program=$(realpath "${CARGO_TARGET_DIR:-target}/release/examples/one_thread")
counts=$(mktemp -d)
trap 'rm -rf "$counts"' EXIT

# executed FABRIC TURN CALLS: instructions of all, and of those the library's.
executed() {
    local out=$counts/$1.$2.$3
    valgrind --tool=callgrind --collect-atstart=no --toggle-collect="*$2*" --callgrind-out-file="$out" \
        "$program" "$1" "$3" 1 >/dev/null 2>"$out.log" || { cat "$out.log" >&2; return 1; }
    # The entries of the table: what they call in their turn is in their sum. From here, so that it does not shorten names.
    (cd "$counts" && callgrind_annotate --inclusive=yes --threshold=100 --auto=no "$out") 2>/dev/null | tr -d , | awk '
        /PROGRAM TOTALS/ { all = $1 }
        /one_thread::fake::verbs::(poll_cq|post_send|post_recv|post_srq_recv|req_notify_cq) \[/ { library += $1 }
        END { printf "%d %d\n", all, library }'
}

few=1000 many=3000
printf '%-6s %-10s %22s %22s\n' fabric end "instructions a Call" "and in the library"
for fabric in shm verbs; do
    for end in Requester:client_turn Responder:server_turn; do
        read -r all_few library_few <<<"$(executed $fabric "${end#*:}" $few)"
        read -r all_many library_many <<<"$(executed $fabric "${end#*:}" $many)"
        library=$(((library_many - library_few) / (many - few)))
        printf '%-6s %-10s %22d %22d\n' $fabric "${end%:*}" $(((all_many - all_few) / (many - few) - library)) $library
    done
done
