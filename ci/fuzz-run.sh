#!/usr/bin/env bash
# Runs the fuzz targets beside it: run.sh SECONDS [JOBS [TARGET...]]. ci/fuzz.sh --build-only puts it there; see its comment.
#
# Exit status 1 if a target crashed, hung, or was ended; its output and the input's path are shown.
set -euo pipefail
if ! [[ ${1:-} =~ ^[0-9]+$ && $1 -ge 1 && ${2:-1} =~ ^[0-9]+$ && ${2:-1} -ge 1 ]]; then
    sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cd "$(dirname "$0")"
export seconds=$1
jobs=${2:-$(nproc)}
shift $(($# < 2 ? $# : 2))
[[ $# -gt 0 ]] || set -- corpus/*
mkdir -p logs

run() {
    local target log input
    target=$(basename "$1") log=logs/$(basename "$1")
    mkdir -p "finds/$target" "crashes/$target"
    if STAG_FUZZ_TARGET=$target ./stag-fuzz -max_total_time="$seconds" -max_len=4096 -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 \
        -artifact_prefix="crashes/$target/" "finds/$target" "corpus/$target" >"$log" 2>&1; then
        coverage() { grep -E "$1" "$log" | tail -n 1 | sed -n 's/.* cov: \([0-9]*\) .*/\1/p'; }
        echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs," \
            "coverage $(coverage INITED) -> $(coverage '^#[0-9].* cov: '), ok"
    else
        input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        tail -n 40 "$log"
        echo "$target: FAILED, input: ${input:-none kept, see $log}"
        return 1
    fi
}
export -f run
# shellcheck disable=SC2016  # $0 is that of each bash.
printf '%s\0' "$@" | xargs -0 -n 1 -P "$jobs" bash -c 'run "$0"'
