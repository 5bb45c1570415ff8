#!/usr/bin/env bash
# Builds with the feature `hwloc`, and tests that the library hwloc and /sys agree on this machine.
# It needs Debian's libhwloc-dev and libudev-dev, which it installs if this is root. Without it: SKIPPED, status 77.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
# shellcheck source=ci/packages.sh
. "$(dirname "$0")/packages.sh"
cd "$(dirname "$0")/.." || exit 1
case ${1:-} in -*) usage ;; esac

need hwloc || { echo "SKIPPED: $lacking"; exit 77; }
# The programs hand the feature on.
cargo tree --locked --quiet -p stag-apps --features hwloc -i hwlocality >/dev/null || exit 1
ci/test.sh -p stag-runtime --features hwloc --test hwloc --test machine
