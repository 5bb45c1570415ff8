# shellcheck shell=bash
# Sourced: sets STAG_SLOWNESS, by which limits of time are multiplied, in scripts and in tests (stag_testing::patience). It is 1 on
# two quiet cores of today, and N where a fixed piece of work takes N times as long, because the machine is slow or busy: at
# most 20. Who sets it before has the say.
if [[ ! ${STAG_SLOWNESS:-} =~ ^[1-9][0-9]*$ ]]; then
    # On two cores at once, as a server and a client are. Quiet, it takes about half a second.
    slowness_work() { awk 'BEGIN { for (i = 0; i < 5000000; i++) s = (s * 31 + i) % 65521; print s }' >/dev/null; }
    slowness_began=$EPOCHREALTIME
    slowness_work & slowness_first=$!
    slowness_work
    wait $slowness_first
    # Up to one and a half times as slow is 1: limits have as much to spare.
    STAG_SLOWNESS=$(LC_ALL=C awk -v a="${slowness_began/,/.}" -v b="${EPOCHREALTIME/,/.}" 'BEGIN { n = int((b - a) / 0.5 + 0.5); print (n < 1 ? 1 : n > 20 ? 20 : n) }')
    unset -f slowness_work
    unset slowness_began slowness_first
fi
export STAG_SLOWNESS
