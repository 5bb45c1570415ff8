#!/usr/bin/env bash
# Asks the host to do something (ci/interop.sh says what there is), and ends with its status.
#   ask.sh VERB...
exec 3<>/dev/ttyS1
echo "ask $*" >&3
read -r -t $((150 * ${LABV_SLOWNESS:-1})) answer <&3 || answer=silent
[ "$answer" = 0 ] || { echo "asked the host: $*: $answer"; exit 1; }
