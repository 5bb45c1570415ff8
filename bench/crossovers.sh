#!/usr/bin/env bash
# Measures from which size on data is better moved by RDMA than in a message: a table, as Markdown, of each fabric.
#   bench/crossovers.sh [ROUNDS [FABRIC...]]      default: 3 rounds; shm iwarp
#   bench/crossovers.sh 5 "verbs --device NAME"   words behind a fabric's name are options of `stag perf`
#   bench/crossovers.sh --guest siw|rxe [ROUNDS]  over a software device of the guest (ci/lab/build.sh, once); default: 2 rounds
#
# WRITE and READ of each size, one at a time and 32 at once: by version 1 (chunks), and by version 2 with chunks (--placement rdma)
# and in the message (--placement send). The ways take turns; each figure is the median of the rounds, in thousands of Calls a
# second. `best` is the fastest way, and what stands behind it says by how much it is ahead of the next.
# It builds with cargo's profile `release`, or takes the program that STAG names. Measure on a quiet machine (bench/docs/running.md).
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in --guest) ;; -* | '') [ $# -eq 0 ] || { sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2; exit 2; } ;; esac
guest=''
if [ "${1:-}" = --guest ]; then
    guest=${2:?} rounds=${3:-2}
    set -- verbs
else
    rounds=${1:-3}
    [ $# -eq 0 ] || shift
    [ $# -gt 0 ] || set -- shm iwarp
fi

stag=${STAG:-}
if [ -z "$stag" ]; then
    cargo build --quiet --locked --release --bin stag
    stag=${CARGO_TARGET_DIR:-target}/release/stag
fi
if [ -n "$guest" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/payload"
    cp bench/crossovers.sh "$work/payload/table.sh"
    strip --strip-debug "$stag" -o "$work/payload/stag"
    ci/lab/boot.sh -t 1800 -l "$work/console" -p "$work/payload" -o "$work" crossovers.sh "$guest" "$rounds" 2>/dev/null ||
        { tail -n 40 "$work/console" >&2; exit 1; }
    sed "s/^### verbs$/### verbs, $guest in the guest/" "$work/table.md"
    exit
fi
# For iWARP a namespace with only `lo`, if there can be one: filters and other traffic are the host's business.
own_network=()
inside='ip link set lo up 2>/dev/null; exec "$@"'
if unshare --net true 2>/dev/null; then own_network=(unshare --net sh -c "$inside" sh); fi

# rate OPTION... : Calls a second
rate() {
    "${enter[@]}" "$stag" perf --json --repeat 1 -t 300ms "$@" 2>/dev/null |
        sed -n 's/.*"calls_per_second":{"median":\([0-9.]*\).*/\1/p'
}

for fabric in "$@"; do
    read -ra words <<<"$fabric"
    enter=()
    [ "${words[0]}" != iwarp ] || { words+=(--congestion-control reno); enter=("${own_network[@]}"); }
    printf '### %s\n\n| | version 1 | version 2, by RDMA | in the message | best |\n|---|---|---|---|---|\n' "${words[0]}"
    for call in write read; do
        for depth in 1 32; do
            for size in 1K 4K 8K 16K 64K; do
                for ((round = 0; round < rounds; round++)); do
                    for way in '' rdma send; do
                        # Nothing, if that way is not to be had.
                        echo "${way:-one} $(rate "$call" -s "$size" -q "$depth" --fabric "${words[@]}" ${way:+--placement "$way"} || true)"
                    done
                done | sort -k1,1 -k2,2g | awk -v row="${call^^} ${size%K} KiB, depth $depth" '
                    NF == 2 { values[$1, ++count[$1]] = $2 }
                    function median(way) { return count[way] ? values[way, int((count[way] + 1) / 2)] / 1000 : 0 }
                    END {
                        split("one rdma send", ways, " ")
                        split("version 1,RDMA,message", names, ",")
                        for (w = 1; w <= 3; w++) {
                            figures[w] = median(ways[w])
                            if (figures[w] > first) { second = first; first = figures[w]; best = names[w] }
                            else if (figures[w] > second) second = figures[w]
                        }
                        ahead = second > 0 ? sprintf(", %.2f", first / second) : ""
                        printf "| %s | %.1f | %.1f | %.1f | %s%s |\n", row, figures[1], figures[2], figures[3], best, ahead
                    }'
            done
        done
    done
    echo
done
