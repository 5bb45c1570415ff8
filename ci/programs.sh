#!/usr/bin/env bash
# Builds what the scripts test, without compiling it twice. Sourced, it gives them the functions below.
#
# What cargo compiles depends on the features that all selected packages want of their dependencies. So these select what
# `cargo test --workspace` does: after ci/test.sh nothing is left to compile. An example among the targets makes cargo count
# the tests' dependencies, too.

# build_programs [PROFILE] : stag and stagd, in target/PROFILE, or target/debug for dev, which is the default
# Each bin by its name: bench/one_thread has the whole engine in it once more, and is for bench/instructions.sh alone.
build_programs() { cargo build --quiet --locked --profile "${1:-dev}" --workspace --bin stag --bin stagd --example endure --example own_files; }

# executable NAME CARGO... : the path of the executable that CARGO, a command of cargo's, builds, and whose name begins so
executable() {
    local name=$1
    shift
    "$@" --locked --workspace --message-format=json | sed -n 's/.*"executable":"\([^"]*\/'"$name"'[^"]*\)".*/\1/p' | tail -n 1
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    cd "$(dirname "$0")/.." && build_programs
fi
