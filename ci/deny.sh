#!/usr/bin/env bash
# Checks the licences, sources, bans and security advisories of all dependencies (.deny.toml).
#
# It needs cargo-deny (`cargo install cargo-deny --locked`); without it the check is SKIPPED (status 77). Advisories come
# from a database on the network, or from a local copy: STAG_ADVISORIES=DIR names the folder that holds it. Where neither can be
# had, the rest is checked and a line says that advisories were not.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
[ $# -eq 0 ] || usage

if ! command -v cargo-deny >/dev/null; then
    echo "SKIPPED: cargo-deny is not installed; cargo install cargo-deny --locked"
    exit 77
fi
failed=0
# deny CONFIG CHECK... ; $offline is empty, or --offline
offline=''
deny() { cargo deny --locked ${offline:+"$offline"} --config "$1" check --hide-inclusion-graph "${@:2}"; }

deny .deny.toml licenses bans sources || failed=1

if [ -n "${STAG_ADVISORIES:-}" ]; then
    config=$(mktemp)
    trap 'rm -f "$config"' EXIT
    sed "s|^\[advisories\]|&\ndb-path = \"$STAG_ADVISORIES\"|" .deny.toml >"$config"
    offline=--offline
    deny "$config" advisories || failed=1
elif ! output=$(deny .deny.toml advisories 2>&1); then
    # No network is no finding.
    if grep -qiE 'failed to (fetch|clone)|unable to (fetch|load)|error sending request' <<<"$output"; then
        echo "advisories: not checked, because their database could not be fetched"
    else
        printf '%s\n' "$output"
        failed=1
    fi
fi
[ "$failed" -eq 0 ]
