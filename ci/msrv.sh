#!/usr/bin/env bash
# Checks that the workspace builds with the Rust version that Cargo.toml declares (rust-version).
#
# Every dependency must declare this version or an older one. The compiler check needs that toolchain (`rustup toolchain install
# VERSION`); without it, it is SKIPPED, and clippy's lint incompatible_msrv still finds uses of a newer standard library.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
[ $# -eq 0 ] || usage

version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
[ -n "$version" ] || { echo "Cargo.toml declares no rust-version"; exit 1; }

newer=$(cargo metadata --locked --format-version 1 |
    grep -oE '"name":"[^"]+","version":"[^"]+"|"rust_version":"[0-9.]+"' |
    awk -F'"' -v declared="$version" '
        function number(text, part) { split(text, part, "."); return part[1] * 1000 + part[2] }
        $2 == "name" { crate = $4 " " $8 }
        $2 == "rust_version" && number($4) > number(declared) { print crate " needs Rust " $4 }')
if [ -n "$newer" ]; then
    printf 'rust-version is %s, but:\n%s\n' "$version" "$newer"
    exit 1
fi
echo "no dependency declares a version above $version"

if ! rustup toolchain list 2>/dev/null | grep -q "^$version\b"; then
    echo "SKIPPED: the toolchain $version is not installed; rustup toolchain install $version"
    exit 77
fi
cargo "+$version" check --locked --workspace --all-targets
