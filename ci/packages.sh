#!/usr/bin/env bash
# Debian's packages that the scripts of this folder need.
#   ci/packages.sh [SCRIPT...]      installs what is missing for these (default: for all), as root, with apt-get
# Sourced, it gives them `need SCRIPT`: it installs what is missing, or fails, and $lacking says why. Status 77: it cannot.

lacking=''

# What there has to be (a command, or a file) and the package that has it.
packages() {
    case $1 in
        test) echo mkfs.xfs:xfsprogs mkfs.ext4:e2fsprogs ;;
        captures) echo tshark:tshark ;;
        wire) echo tshark:tshark dumpcap:wireshark-common ip:iproute2 unshare:util-linux ;;
        clients)
            echo nfs-ls:libnfs-utils showmount:nfs-common rpcbind:rpcbind rpcinfo:rpcbind cc:gcc ip:iproute2 unshare:util-linux
            echo /usr/include/nfsc/libnfs.h:libnfs-dev
            ;;
        interop)
            echo debootstrap:debootstrap busybox:busybox-static cpio:cpio mkfs.ext4:e2fsprogs xz:xz-utils gcc-12:gcc-12
            echo make:make strip:binutils qemu-system-x86_64:qemu-system-x86 tcpdump:tcpdump ip:iproute2 unshare:util-linux
            ;;
        hwloc) echo /usr/include/hwloc.h:libhwloc-dev /usr/include/libudev.h:libudev-dev pkg-config:pkg-config cc:gcc ;;
        fuzz) echo c++:g++ ;;
        deb) echo debootstrap:debootstrap dpkg-deb:dpkg objdump:binutils ;;
        budgets) echo valgrind:valgrind ;;
        *) return 1 ;;
    esac
}

# need SCRIPT... : all of its packages are there, or are installed now.
need() {
    local script pair missing=()
    for script; do
        for pair in $(packages "$script"); do
            command -v "${pair%%:*}" >/dev/null || [ -e "${pair%%:*}" ] || missing+=("${pair##*:}")
        done
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    lacking="not root, and lacking: ${missing[*]}"
    [ "$(id -u)" = 0 ] || return
    lacking="not a Debian, and lacking: ${missing[*]}"
    command -v apt-get >/dev/null || return
    lacking="apt-get cannot install: ${missing[*]}"
    # Another apt-get is waited for.
    local apt=(apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3)
    "${apt[@]}" update >/dev/null 2>&1
    DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || return
    lacking=''
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -uo pipefail
    # shellcheck source=ci/usage.sh
    . "$(dirname "$0")/usage.sh"
    [ $# -gt 0 ] || set -- test captures wire clients interop hwloc fuzz budgets
    for script; do packages "$script" >/dev/null || usage; done
    need "$@" || { echo "SKIPPED: $lacking"; exit 77; }
fi
