#!/usr/bin/env bash
# Format, clippy and documentation, warnings denied, and what would be published. One of them: ci/lint.sh fmt|clippy|doc|package
# And, only if it is named: ci/lint.sh private, the documentation of what is private, whose links lead readers of the source.
set -euo pipefail
cd "$(dirname "$0")/.."

fmt() { cargo fmt --all --check; }
# Where the library hwloc is (ci/packages.sh hwloc), its feature is checked as well. The fuzzer's program is checked without
# libFuzzer, which takes a C++ compiler half a minute: nothing is linked.
clippy() {
    local features=(--features stag-fuzz/libfuzzer)
    [ ! -e /usr/include/hwloc.h ] || [ ! -e /usr/include/libudev.h ] || features+=(--features stag-runtime/hwloc)
    CUSTOM_LIBFUZZER_PATH=/not-linked/libfuzzer.a cargo clippy --locked --workspace --all-targets "${features[@]}" -- -D warnings
}
doc() { RUSTDOCFLAGS=-Dwarnings cargo doc --locked --no-deps --workspace; }
private() { RUSTDOCFLAGS=-Dwarnings cargo doc --locked --no-deps --workspace --document-private-items; }
# Each crate can be packaged: what it depends on has a version, and its files are there. `cargo publish --workspace --dry-run` also
# compiles what was packaged, which takes as long as all of a build.
package() {
    # All that the lock file names, for whatever machine: cargo looks at all of it.
    if ! cargo fetch --quiet --locked; then
        echo "SKIPPED: cargo fetch --locked fails, so there is no registry to package for"
        return 77
    fi
    cargo package --quiet --locked --offline --workspace --no-verify --allow-dirty
}

[ $# -gt 0 ] || set -- fmt clippy doc package
for check in "$@"; do
    case $check in
        fmt | clippy | doc | private | package) "$check" ;;
        *) echo "ci/lint.sh: no check $check; there are: fmt clippy doc private package" >&2; exit 2 ;;
    esac
done
