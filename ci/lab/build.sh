#!/usr/bin/env bash
# Builds the guest: a small Debian root image, and kernels with the modules that the lab needs.
#
#   ci/lab/build.sh [6.1|6.12 ...]        (default: 6.1)
#
# Installs nothing on the host. All of it is in $LAB_CACHE (cache.sh), and a second call reuses it: remove that folder to
# start over. Needs root (debootstrap, chroot), and debootstrap busybox-static cpio e2fsprogs xz-utils gcc-12 make.
#
# Debian ships rdma_rxe but not siw (CONFIG_RDMA_SIW is not set), so siw is built here, out of tree, from Debian's
# linux-source package of the same version: nine C files, five seconds.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=ci/usage.sh
. "$here/../usage.sh"
case ${1:-} in -*) usage ;; esac
# shellcheck source=ci/lab/cache.sh
. "$here/cache.sh"
suite=bookworm
# The mirror is the one that this machine's own apt uses for the suite.
# shellcheck disable=SC2016 # apt's own variables.
mirror=${LAB_MIRROR:-$(apt-get indextargets --format '$(SITE) $(CODENAME)' | awk -v s=$suite '$2 == s { print $1; exit }')}
root=$LAB_CACHE/root
flavours=("$@")
[ ${#flavours[@]} -gt 0 ] || flavours=(6.1)

# What the guest's userland holds on top of Debian's minbase: the kernel's NFS from both sides, RDMA tools, and programs
# that work on files.
packages=(
    kmod iproute2 procps strace tcpdump python3 acl attr rsync
    rpcbind nfs-common nfs-kernel-server nfs4-acl-tools
    libibverbs1 librdmacm1 ibverbs-providers ibverbs-utils rdmacm-utils perftest
    fio dbench git make tcc libc6-dev libnfs-utils
)
# Modules that the guest may load, whatever the kernel; their dependencies follow by themselves.
modules=(
    virtio_pci virtio_blk virtio_net virtio_rng virtio_console ext4 crc32c_intel crc32c_generic
    siw rdma_rxe libcrc32c crc32_generic crc32_pclmul ib_uverbs rdma_ucm rdma_cm ib_umad
    rpcrdma sunrpc nfsd nfs nfsv3 nfsv4 nfs_acl lockd nfs_layout_flexfiles blocklayoutdriver rpcsec_gss_krb5
    dummy veth overlay tcp_diag inet_diag af_packet ipv6 sch_netem
)
# What the initramfs loads to reach the root disk.
early=(virtio_pci virtio_blk crc32c_generic crc32c_intel ext4)

say() { echo "build: $*" >&2; }

# quietly LOG COMMAND... : shows the end of what it printed only when it fails.
quietly() {
    local log=$LAB_CACHE/$1.log
    shift
    "$@" >"$log" 2>&1 || { tail -n 30 "$log" >&2; say "failed: $1"; return 1; }
}

# The .deb of a package, downloaded once.
deb() {
    local found
    mkdir -p "$LAB_CACHE/debs"
    for found in "$LAB_CACHE/debs/$1_"*.deb; do
        [ ! -e "$found" ] || { echo "$found"; return; }
    done
    (cd "$LAB_CACHE/debs" && quietly apt apt-get -q download "$1") || return
    echo "$LAB_CACHE/debs/$1_"*.deb
}

# Other packages than last time: all of it anew.
userland() {
    [ "$(cat "$root/.lab-done" 2>/dev/null)" != "${packages[*]}" ] || return 0
    say "debootstrap $suite"
    rm -rf "$root" "$LAB_CACHE"/kernel-*
    quietly debootstrap debootstrap --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" $suite "$root" "$mirror"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale,info}
    echo "${packages[*]}" >"$root/.lab-done"
}

# module_files VERSION MODULE... : the files that loading each takes, in order.
module_files() {
    local version=$1 m
    shift
    for m; do
        chroot "$root" modprobe -S "$version" --show-depends "$m" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p' || true
    done | awk '!seen[$0]++'
}

# siw FLAVOUR VERSION FOLDER: siw.ko, siw-crc.ko and siw-p2p.ko in FOLDER.
siw() {
    local flavour=$1 version=$2 folder=$3 headers=$LAB_CACHE/headers-$1 source=$LAB_CACHE/siw-$1 base p v
    rm -rf "$headers" "$source"
    mkdir -p "$headers" "$source"
    # The headers name their own siblings: -common, and a kbuild that is versioned in two ways.
    base=$(apt-cache depends "linux-headers-$version" | sed -n 's/^[ |]*Depends: \(linux-\(headers-.*common\|kbuild-.*\)\)$/\1/p')
    for p in "linux-headers-$version" $base; do
        dpkg -x "$(deb "$p")" "$headers"
    done
    rm -f "$headers/usr/src/linux-headers-$version/vmlinux" # else kbuild wants pahole, for BTF
    sed -i "s|/usr/src/|$headers/usr/src/|g" "$headers/usr/src/linux-headers-$version/Makefile"
    dpkg --fsys-tarfile "$(deb "linux-source-$flavour")" |
        tar -xO "./usr/src/linux-source-$flavour.tar.xz" |
        tar -xJ -C "$source" --strip-components=5 "linux-source-$flavour/drivers/infiniband/sw/siw"
    # What siw negotiates is fixed when it is compiled: MPA revision 2, no CRC unless the peer asks, no peer-to-peer
    # mode. So there are two more of it: one that always asks for CRC, and one that asks for peer-to-peer mode with a
    # ready-to-receive frame, as hardware iWARP does.
    for v in '' crc p2p; do
        cp -r "$source" "$source.v"
        case $v in
            crc) sed -i 's/^const bool mpa_crc_required;/const bool mpa_crc_required = true;/' "$source.v/siw_main.c" ;;
            p2p) sed -i 's/^const bool peer_to_peer;/const bool peer_to_peer = true;/' "$source.v/siw_main.c" ;;
        esac
        [ -z "$v" ] || ! cmp -s "$source/siw_main.c" "$source.v/siw_main.c" || { say "siw's source is not as siw-$v wants it"; return 1; }
        quietly siw make -s -j"$(nproc)" -C "$headers/usr/src/linux-headers-$version" M="$source.v" CONFIG_RDMA_SIW=m modules
        strip --strip-debug "$source.v/siw.ko" -o "$folder/siw${v:+-$v}.ko"
        rm -rf "$source.v"
    done
    rm -rf "$headers" "$source"
}

# The initramfs: busybox, the early modules unpacked, and an init. initramfs FOLDER
initramfs() {
    local folder=$1 ird=$LAB_CACHE/initramfs n=10 file to
    rm -rf "$ird"
    mkdir -p "$ird"/{bin,dev,proc,sys,new,modules}
    cp "$(command -v busybox)" "$ird/bin/busybox"
    while read -r file; do
        n=$((n + 1))
        to=$ird/modules/$n.ko
        case $file in
            *.xz) xz -dc "$root$file" >"$to" ;;
            *) cp "$root$file" "$to" ;;
        esac
    done <"$folder/early"
    cat >"$ird/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
for m in /modules/*.ko; do /bin/busybox insmod $m 2>/dev/null; done
n=0
while [ ! -b /dev/vda ] && [ $n -lt 100 ]; do /bin/busybox sleep 0.1; n=$((n+1)); done
/bin/busybox mount -t ext4 /dev/vda /new || echo "LAB: no root disk"
/bin/busybox mount --move /dev /new/dev
/bin/busybox mount --move /proc /new/proc
/bin/busybox mount --move /sys /new/sys
exec /bin/busybox switch_root /new /sbin/lab-init
INIT
    chmod +x "$ird/init"
    (cd "$ird" && find . | cpio -o -H newc --quiet | gzip -1) >"$folder/initrd"
    rm -rf "$ird"
}

# kernel FLAVOUR: Debian's newest of it, its modules cut down to those above, and siw.
kernel() {
    local flavour=$1 meta=linux-image-$1-amd64 folder=$LAB_CACHE/kernel-$1 unpack=$LAB_CACHE/unpack real version from
    [ ! -e "$folder/version" ] || return 0
    [ "$flavour" != 6.1 ] || meta=linux-image-amd64
    real=$(apt-cache depends "$meta" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [ -n "$real" ] || { say "no package for kernel $flavour (apt-get update?)"; return 1; }
    say "kernel $flavour: $real"
    rm -rf "$folder" "$unpack"
    mkdir -p "$folder" "$unpack"
    dpkg -x "$(deb "$real")" "$unpack"
    version=$(basename "$unpack"/boot/vmlinuz-*)
    version=${version#vmlinuz-}
    cp "$unpack/boot/vmlinuz-$version" "$folder/vmlinuz"
    say "siw for $version"
    siw "$flavour" "$version" "$folder"

    # All modules first, for depmod's view of them; then only what is wanted stays.
    rm -rf "$root/lib/modules/$version"
    mkdir -p "$root/lib/modules"
    from=$unpack/lib/modules
    [ -d "$from" ] || from=$unpack/usr/lib/modules
    mv "$from/$version" "$root/lib/modules/$version"
    install -D -m 644 "$folder/siw.ko" "$root/lib/modules/$version/extra/siw.ko"
    chroot "$root" depmod "$version"
    module_files "$version" "${early[@]}" >"$folder/early"
    module_files "$version" "${modules[@]}" | sort >"$folder/modules"
    find "$root/lib/modules/$version" -name '*.ko*' | sed "s|^$root||" | sort | comm -23 - "$folder/modules" | sed "s|^|$root|" | xargs -r rm -f
    find "$root/lib/modules/$version" -type d -empty -delete
    mkdir -p "$root/usr/lib/lab/$version"
    cp "$folder"/siw-*.ko "$root/usr/lib/lab/$version/"
    chroot "$root" depmod "$version"
    initramfs "$folder"
    rm -rf "$unpack" "$LAB_CACHE/root.ext4"
    echo "$version" >"$folder/version" # last: it says that this kernel is whole
}

image() {
    if ! cmp -s "$here/guest/lab-init" "$root/sbin/lab-init"; then
        install -m 755 "$here/guest/lab-init" "$root/sbin/lab-init"
        rm -f "$LAB_CACHE/root.ext4"
    fi
    [ ! -e "$LAB_CACHE/root.ext4" ] || return 0
    say "root image"
    mkdir -p "$root"/{payload,out,srv/export,mnt/nfs}
    rm -f "$LAB_CACHE/root.ext4.part"
    truncate -s 2G "$LAB_CACHE/root.ext4.part"
    mkfs.ext4 -q -F -E lazy_itable_init=1 -d "$root" "$LAB_CACHE/root.ext4.part"
    mv "$LAB_CACHE/root.ext4.part" "$LAB_CACHE/root.ext4"
}

mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/lock"
flock 9 # two runs at a time: the second finds it done
userland
for f in "${flavours[@]}"; do kernel "$f"; done
image
say "ready: $(du -sh "$LAB_CACHE" | cut -f 1) in $LAB_CACHE; kernels: $(cat "$LAB_CACHE"/kernel-*/version | tr '\n' ' ')"
