#!/usr/bin/env bash
# Runs under miri what it can run, which is what makes no system calls, and finds undefined behaviour.
# Status 77: miri is not installed.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
case ${1:-} in -*) usage ;; esac

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "SKIPPED: miri is not installed; rustup toolchain install nightly --component miri --component rust-src"
    exit 77
fi

# Its own target directory, few cases (miri is some hundred times slower), and the files of the tests.
export CARGO_TARGET_DIR=target/miri PROPTEST_CASES=8
export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
miri() { cargo +nightly miri test --locked "$@" || exit 1; }

# Where the unsafe code is.
miri -p stag-memory
# Queue pairs of shm need memory that is mapped twice, which miri has not: a test of `ring` takes their steps (`build_plain`,
# `build_exposing`, the copies of a harvest) on a ring on the heap.
miri -p stag-fabric --lib -- ring:: shm::scattered:: shm::copy::
# What it builds on, and lanes. The tests in the folders `tests` replay captures: safe code, and too slow here.
miri -p stag-runtime --lib -- lane:: timers:: cores:: poller:: statistics::
miri -p stag-wire --lib
miri -p stag-proto --lib
