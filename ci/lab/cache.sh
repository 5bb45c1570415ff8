# shellcheck shell=bash
# Where the guest is kept, for the scripts of this folder: it outlives `cargo clean` and serves every checkout.
LAB_CACHE=${LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var}/.cache}/stag-lab}
