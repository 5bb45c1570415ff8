#!/usr/bin/env bash
# Runs fuzz targets: ci/fuzz.sh SECONDS [TARGET...]   (default: all targets, SECONDS each, one for each core at a time)
# Or packs them:     ci/fuzz.sh --build-only DIR [TARGET...]
#
# Prints `TARGET: N runs, ok` for each. On a crash or a hang: its output, the input's path and the command
# that replays it; exit status 1. Without a C++ compiler only the kept corpus is run: SKIPPED and why, status 77.
#
# Stable Rust suffices: the coverage instrumentation is asked of LLVM by flags, so neither nightly nor cargo-fuzz
# is needed. Finds go to TARGET_DIR/fuzz-corpus/TARGET and are used by the next run; what is worth keeping is copied
# by hand to engine/fuzz/corpus/TARGET, which this script only reads.
#
# --build-only puts into DIR what runs elsewhere, without Rust, this repository or a network: the program, the kept
# corpus (corpus/TARGET) and run.sh: DIR/run.sh SECONDS [JOBS [TARGET...]] runs JOBS targets at a time (default: one for
# each core), SECONDS each, prints `TARGET: N runs, coverage A -> B, ok` and leaves finds/, crashes/ and logs/ beside itself.
set -euo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
# shellcheck source=ci/slowness.sh
. "$(dirname "$0")/slowness.sh"
cd "$(dirname "$0")/.."

pack="" seconds=0
if [[ ${1:-} == --build-only && -n ${2:-} && ${2:-} != -* ]]; then
    mkdir -p "$2"
    pack=$(cd "$2" && pwd)
    shift 2
elif [[ ${1:-} =~ ^[0-9]+$ && $1 -ge 1 ]]; then
    seconds=$1
    shift
else
    usage
fi

fuzz=engine/fuzz
target_dir=${CARGO_TARGET_DIR:-target}
mkdir -p "$target_dir"
target_dir=$(cd "$target_dir" && pwd)
known=$(ls $fuzz/corpus)
targets=("$@")
[[ $# -gt 0 ]] || mapfile -t targets <<<"$known"
for target in "${targets[@]}"; do
    if ! grep -qx -- "$target" <<<"$known"; then
        echo "fuzz: no target $target; there are:" $known >&2
        exit 2
    fi
done

host=$(rustc -vV | sed -n 's/^host: //p')
skip=""
command -v "${CXX:-c++}" >/dev/null || skip="no C++ compiler (${CXX:-c++}): install one (g++ or clang), or name it in CXX"
[[ $host == *-linux-* || $host == *-apple-* ]] || skip="libFuzzer is not known to work on $host"
if [[ -n $skip ]]; then
    cargo test --quiet --locked --package stag-fuzz
    echo "SKIPPED: $skip; the kept corpus ran, ok"
    exit 77
fi

# --target keeps these flags away from build scripts.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares -Clink-dead-code --cfg fuzzing"
RUSTFLAGS="${RUSTFLAGS:-} $flags" cargo build --quiet --locked --profile fuzz --package stag-fuzz --features libfuzzer \
    --target-dir "$target_dir/fuzz" --target "$host"
program=$target_dir/fuzz/$host/fuzz/stag-fuzz

if [[ -n $pack ]]; then
    mkdir -p "$pack/corpus"
    # The symbols stay, for the stacks of crashes.
    strip --strip-debug -o "$pack/stag-fuzz" "$program"
    for target in "${targets[@]}"; do
        rm -rf "$pack/corpus/$target"
        cp -r "$fuzz/corpus/$target" "$pack/corpus/"
    done
    cp ci/fuzz-run.sh "$pack/run.sh"
    echo "packed ${#targets[@]} targets: $pack/run.sh SECONDS [JOBS [TARGET...]] runs them"
    exit 0
fi

# run TARGET : what it says comes whole, at its end.
run() {
    local target=$1 finds=$target_dir/fuzz-corpus/$1 crashes=$target_dir/fuzz-crashes/$1 log=$target_dir/fuzz-$1.log input
    mkdir -p "$finds" "$crashes"
    # A hang is a crash here: every target takes microseconds.
    if STAG_FUZZ_TARGET=$target "$program" -max_total_time="$seconds" -max_len=4096 -timeout=$((5 * STAG_SLOWNESS)) -rss_limit_mb=1024 -print_final_stats=1 \
        -artifact_prefix="$crashes/" "$finds" "$fuzz/corpus/$target" >"$log" 2>&1; then
        echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs, ok"
        return
    fi
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "$(tail -n 40 "$log")
$target: FAILED, input: ${input:-none kept, see $log}${input:+
  replay: STAG_FUZZ_TARGET=$target $program $input}"
    return 1
}
export -f run
export fuzz seconds target_dir program
# shellcheck disable=SC2016  # $0 is that of each bash.
printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'run "$0"' || exit 1
