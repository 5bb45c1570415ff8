#!/usr/bin/env bash
# The compiler for what .ci/run builds (RUSTC_WORKSPACE_WRAPPER): as cargo says, but a program of tests is not optimised, which
# compiles five times as fast, nor are examples.
# What is tested is optimised, and so are the programs of tests that compute for longer than that saves.
slow=' hostile linear '
name=' ' quick=''
for ((i = 1; i <= $#; i++)); do
    case ${!i} in
        --crate-name) n=$((i + 1)) name=" ${!n} " ;;
        --test | */examples/*) quick=yes ;;
    esac
done
[ -z "$quick" ] || [[ $slow == *"$name"* ]] || set -- "$@" -C opt-level=0
exec "$@"
