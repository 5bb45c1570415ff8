#!/usr/bin/env bash
# The compiler for what .ci/run builds (RUSTC_WORKSPACE_WRAPPER): as cargo says, but a program of tests is not optimised, which
# compiles five times as fast. What is tested is optimised, and so are the programs that compute for long themselves.
slow=' allocation calls captures conformance heap hostile lost model reconnect server sim store stream '
name=' ' tests=''
for ((i = 1; i <= $#; i++)); do
    case ${!i} in
        --crate-name) n=$((i + 1)) name=" ${!n} " ;;
        --test) tests=yes ;;
    esac
done
[ -z "$tests" ] || [[ $slow == *"$name"* ]] || set -- "$@" -C opt-level=0
exec "$@"
