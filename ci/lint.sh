#!/usr/bin/env bash
# Format, clippy and documentation, warnings denied. One of them: ci/lint.sh fmt|clippy|doc
# And, only if it is named: ci/lint.sh private, the documentation of what is private, whose links lead readers of the source.
set -euo pipefail
cd "$(dirname "$0")/.."

fmt() { cargo fmt --all --check; }
# Where the library hwloc is (ci/packages.sh hwloc), its feature is checked as well. The fuzzer's program is checked without
# libFuzzer, which takes a C++ compiler half a minute: nothing is linked.
clippy() {
    local features=(--features stag-one-thread/version4,stag-fuzz/libfuzzer)
    [ ! -e /usr/include/hwloc.h ] || [ ! -e /usr/include/libudev.h ] || features+=(--features stag-runtime/hwloc)
    CUSTOM_LIBFUZZER_PATH=/not-linked/libfuzzer.a cargo clippy --locked --workspace --all-targets "${features[@]}" -- -D warnings
}
doc() { RUSTDOCFLAGS=-Dwarnings cargo doc --locked --no-deps --workspace; }
private() { RUSTDOCFLAGS=-Dwarnings cargo doc --locked --no-deps --workspace --document-private-items; }

[ $# -gt 0 ] || set -- fmt clippy doc
for check in "$@"; do
    case $check in
        fmt | clippy | doc | private) "$check" ;;
        *) echo "ci/lint.sh: no check $check; there are: fmt clippy doc private" >&2; exit 2 ;;
    esac
done
