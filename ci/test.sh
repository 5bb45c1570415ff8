#!/usr/bin/env bash
# Runs every test of the workspace and ends with one line: N passed, N failed.
# Arguments go to cargo test: ci/test.sh -p stag-wire
set -uo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- --workspace
log=$(mktemp)
trap 'rm -f "$log"' EXIT

cargo test --locked --no-fail-fast "$@" 2>&1 | tee "$log"
status=$?

# Each test binary ends with: test result: ok. 12 passed; 0 failed; 0 ignored; ...
read -r passed failed < <(awk '
    /^test result: / { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1) } }
    END { print p + 0, f + 0 }' "$log")

# What does not compile, or dies before its result line, fails as one.
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
# And no test at all is no success.
[ "$passed" -gt 0 ] || [ "$failed" -gt 0 ] || failed=1

echo
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
