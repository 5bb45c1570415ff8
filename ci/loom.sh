#!/usr/bin/env bash
# Runs the loom tests: every order of the atomics that cores share. They are the unit tests named `loom`.
# A crate of its own: ci/loom.sh stag-memory
set -euo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
case ${1:-} in -*) usage ;; esac

crates=("$@")
[ $# -gt 0 ] || crates=(stag-memory stag-fabric stag-runtime stag-stores stag-state stag-nfs)

# Its own target directory: the flag would rebuild everything of the usual one, and back.
export CARGO_TARGET_DIR=target/loom RUSTFLAGS="--cfg loom"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for crate in "${crates[@]}"; do
    # A crate whose loom tests were renamed away must not look as if they had passed.
    cargo test --release -p "$crate" --lib loom | tee "$log"
    grep -q '^test .* ok$' "$log" || { echo "ci/loom.sh: $crate has no loom test" >&2; exit 1; }
done
