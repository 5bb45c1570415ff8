#!/usr/bin/env bash
# Format, clippy and documentation, warnings denied. One of them: ci/lint.sh fmt|clippy|doc
# And, only if it is named: ci/lint.sh private, the documentation of what is private, whose links lead readers of the source.
set -euo pipefail
cd "$(dirname "$0")/.."

# engine/fuzz is a workspace of its own.
fuzz="--manifest-path engine/fuzz/Cargo.toml"

fmt() { cargo fmt --all --check && cargo fmt $fuzz --check; }
# Where the library hwloc is (ci/packages.sh hwloc), its feature is checked as well.
clippy() {
    local features=(--features stag-one-thread/version4)
    [ ! -e /usr/include/hwloc.h ] || [ ! -e /usr/include/libudev.h ] || features+=(--features stag-runtime/hwloc)
    cargo clippy --locked --workspace --all-targets "${features[@]}" -- -D warnings
    cargo clippy --locked $fuzz --all-targets -- -D warnings
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
