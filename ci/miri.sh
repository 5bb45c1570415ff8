#!/usr/bin/env bash
# Runs under miri what it can run: the crates without system calls, and the plain data structures of the
# others. Finds undefined behaviour. Status 77: miri is not installed.
set -uo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "SKIPPED: miri is not installed; rustup toolchain install nightly --component miri --component rust-src"
    exit 77
fi

# Its own target directory, few cases (miri is some hundred times slower), and the files of the tests.
export CARGO_TARGET_DIR=target/miri PROPTEST_CASES=8
export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
miri() { cargo +nightly miri test --locked "$@" || exit 1; }

miri -p stag-wire
miri -p stag-proto
miri -p stag-runtime --lib -- timers:: cores:: poller:: statistics::
