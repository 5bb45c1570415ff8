#!/usr/bin/env bash
# Runs every test of the workspace and ends with one line: N passed, N failed, N skipped.
# Arguments go to cargo test: ci/test.sh -p stag-wire
#
# A test that says that it was skipped (stag_testing::skipped) counts as skipped, not as passed; the reasons stand before the
# last line. STAG_SLOWNESS=N multiplies the time limits of tests (ci/slowness.sh).
set -uo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- --workspace
log=$(mktemp)
STAG_SKIPPED=$(mktemp)
export STAG_SKIPPED
trap 'rm -f "$log" "$STAG_SKIPPED"' EXIT

cargo test --locked --no-fail-fast "$@" 2>&1 | tee "$log"
status=$?

# Each test binary ends with: test result: ok. 12 passed; 0 failed; 0 ignored; ...
read -r passed failed < <(awk '
    /^test result: / { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1) } }
    END { print p + 0, f + 0 }' "$log")

# PROGRAM TEST: REASON, a line each time. A test that also failed has failed.
skipped=$(awk '
    FNR == 1 { file++ }
    file == 1 && /^test .* FAILED$/ { bad[$2] = 1 }
    file == 2 { test = $2; sub(/:$/, "", test); if (!(test in bad) && !seen[$1 " " test]++) n++ }
    END { print n + 0 }' "$log" "$STAG_SKIPPED")
passed=$((passed - skipped))

# What does not compile, or dies before its result line, fails as one.
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
# And no test at all is no success.
[ "$passed" -gt 0 ] || [ "$failed" -gt 0 ] || failed=1

echo
# What a failed test said stands far above; the first 20 lines of each are said again, where a reader looks first.
awk '
    /^---- .* stdout ----$/ { left = 20 }
    /^failures:$/ || /^test result: / { left = 0 }
    left > 0 && NF { print "FAILED " $0; left-- }' "$log" | tail -n 80
sort -u "$STAG_SKIPPED" | sed 's/^/SKIPPED /'
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
