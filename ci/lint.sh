#!/usr/bin/env bash
# Format, clippy and documentation, warnings denied. One of them: ci/lint.sh fmt|clippy|doc
set -euo pipefail
cd "$(dirname "$0")/.."

# engine/fuzz is a workspace of its own.
fuzz="--manifest-path engine/fuzz/Cargo.toml"

fmt() { cargo fmt --all --check && cargo fmt $fuzz --check; }
clippy() {
    cargo clippy --locked --workspace --all-targets -- -D warnings
    cargo clippy --locked $fuzz --all-targets -- -D warnings
}
# What users see; and what is private, whose links lead readers of the source.
doc() {
    RUSTDOCFLAGS=-Dwarnings cargo doc --locked --no-deps --workspace
    RUSTDOCFLAGS=-Dwarnings cargo doc --locked --no-deps --workspace --document-private-items
}

[ $# -gt 0 ] || set -- fmt clippy doc
for check in "$@"; do
    case $check in
        fmt | clippy | doc) "$check" ;;
        *) echo "ci/lint.sh: no check $check; there are: fmt clippy doc" >&2; exit 2 ;;
    esac
done
