#!/usr/bin/env bash
# talk_with PID PIPE : calls `told WORD...` for each line that a guest writes to the open descriptor 4, the far end of PIPE, until PID,
# the guest's boot.sh, has ended. It reads without a time limit: when `read -t` runs out, bash loses an octet now and then, and the
# space at the end of a half line always.
talk_with() {
    local words
    # It begins a line of its own: a guest that died may have left half a one.
    (tail --pid="$1" -f /dev/null; printf '\nended\n' >"$2") &
    while read -ra words <&4; do
        [ "${words[0]:-}" != ended ] || break
        [ ${#words[@]} -eq 0 ] || told "${words[@]}"
    done
}
