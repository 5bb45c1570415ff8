#!/usr/bin/env bash
# Checks that the crate `stag` compiles with each set of features that an embedder may choose, and leaves out what was not asked for.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
[ $# -eq 0 ] || usage

failed=0

# absent FEATURES CRATE... : none of these crates is built for these features.
absent() {
    local features=$1 crate tree
    shift
    tree=$(cargo tree --locked -p stag --no-default-features --features "$features" -e normal,build --prefix none) || { failed=1; return; }
    for crate in "$@"; do
        if grep -q "^$crate " <<<"$tree"; then
            echo "stag with the features \"$features\" builds $crate"
            failed=1
        fi
    done
}
nfs='stag-nfs stag-stores stag-state stag-vfs stag-disk io-uring'
verbs='stag-rdma-core-sys libloading'
# shellcheck disable=SC2086
{
    absent shm $nfs $verbs crc-fast
    absent iwarp $nfs $verbs
    absent shm,iwarp $nfs $verbs
    absent verbs $nfs crc-fast
    absent nfs $verbs crc-fast
}

# All of them together are built with the workspace. The flags are those of other gates, which leave compiled what is the same.
for features in nfs shm iwarp verbs tcp,version2,test-util; do
    echo "features: $features"
    said=$(cargo check --quiet --locked -p stag --no-default-features --features "$features" 2>&1) || failed=1
    # A warning is a failure, too.
    [ -z "$said" ] || { echo "$said"; failed=1; }
done
[ $failed -eq 0 ]
