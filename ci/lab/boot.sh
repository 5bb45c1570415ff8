#!/usr/bin/env bash
# Boots the guest, runs one script of guest/ in it as root, and ends with its status.
#
#   ci/lab/boot.sh [-k 6.1|6.12] [-m MiB] [-t seconds] [-o outdir] [-p payload-dir] [-f hostport:guestport]...
#                  [-n tap] [-a mac] [-c pipe] [-l console-log] [-q 'qemu options'] script [args...]
#
# script   a name in guest/ or in the payload folder; it finds guest/lib.sh beside it
# -o       what the script left in the guest's /out, unpacked here
# -p       a folder whose files join guest/ in the guest's /payload (binaries to test, say)
# -f       forwards a TCP port of the host's 127.0.0.1 to the guest (which is 10.0.2.15; from the guest,
#          the host's 127.0.0.1 is 10.0.2.2)
# -n       the guest's network card is this tap device instead of qemu's user network
# -a       the card's address, for a second guest on a wire
# -c       PIPE.in and PIPE.out, made by mkfifo, are the guest's second serial line: a talk with the script
# -l       the console goes to this file instead of the standard output
# -q       more options for qemu: a second network card, a filter-dump
#
# Variables LABV_* reach the script, and STAG_SLOWNESS as LABV_SLOWNESS. Status 124: past its limit; 143: somebody ended it.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=ci/usage.sh
. "$here/../usage.sh"
# shellcheck source=ci/lab/cache.sh
. "$here/cache.sh"

flavour=6.1 memory=1024 limit=300 out='' payload='' forwards='' tap='' mac=52:54:00:12:34:56 control='' log='' more=''
while getopts :k:m:t:o:p:f:n:a:c:l:q: option; do
    case $option in
        k) flavour=$OPTARG ;;
        m) memory=$OPTARG ;;
        t) limit=$OPTARG ;;
        o) out=$OPTARG ;;
        p) payload=$OPTARG ;;
        f) forwards+=,hostfwd=tcp:127.0.0.1:${OPTARG%%:*}-10.0.2.15:${OPTARG##*:} ;;
        n) tap=$OPTARG ;;
        a) mac=$OPTARG ;;
        c) control=$OPTARG ;;
        l) log=$OPTARG ;;
        q) more=$OPTARG ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage
kernel=$LAB_CACHE/kernel-$flavour
if [ ! -e "$kernel/version" ] || [ ! -e "$LAB_CACHE/root.ext4" ]; then
    echo "boot: there is no guest with kernel $flavour in $LAB_CACHE: run ci/lab/build.sh $flavour first" >&2
    exit 2
fi

work=$(mktemp -d "$LAB_CACHE/boot.XXXXXX")
pid=''
finish() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
trap 'echo "boot: somebody ended it" >&2; exit 143' INT TERM

# The payload goes in on one raw disk and the results come out on another, both tar: no network, no share.
mkdir "$work/in"
cp -r "$here/guest/." "$work/in/"
[ -z "$payload" ] || cp -rL "$payload/." "$work/in/"
export LABV_SLOWNESS=${STAG_SLOWNESS:-1}
printf '%q ' bash "/payload/$1" "${@:2}" >"$work/in/lab-run"
env | sed -n 's/^\(LABV_[A-Z0-9_]*\)=\(.*\)$/\1="\2"/p' >"$work/in/lab.env"
tar -cf "$work/in.tar" -C "$work/in" .
truncate -s %512 "$work/in.tar"
truncate -s 512M "$work/out.tar"

network=user,id=net0,ipv6=off$forwards
[ -z "$tap" ] || network=tap,id=net0,ifname=$tap,script=no,downscript=no

# Plain emulation, so that it works in any container or virtual machine. The clock says nothing of a kernel
# that is slow because its host is busy: no watchdog, no complaint of stalls.
# Without what costs emulation more than it gives the guest: copies octet by octet (erms, fsrm), a fifth level of page tables, and
# checks at each access to a program's memory.
append="console=ttyS0 quiet loglevel=4 panic=1 mitigations=off nokaslr random.trust_cpu=on net.ifnames=0"
append+=" nowatchdog rcupdate.rcu_cpu_stall_suppress=1 no_timer_check"
# Not by the name /dev/stdout: what is opened anew is written from its start, over what a caller's file has.
if [ -n "$log" ]; then exec {console}>"$log"; else exec {console}>&1; fi
began=$EPOCHREALTIME
# shellcheck disable=SC2086 # $more is options.
qemu-system-x86_64 -machine q35,i8042=off -nodefaults -no-reboot -display none \
    -accel "tcg,thread=multi,tb-size=256" -cpu max,-erms,-fsrm,-la57,-smap,-smep -smp 2 -m "$memory" \
    -kernel "$kernel/vmlinuz" -initrd "$kernel/initrd" -append "$append" \
    -serial stdio ${control:+-chardev "pipe,id=control,path=$control" -serial chardev:control} \
    -drive "file=$LAB_CACHE/root.ext4,format=raw,if=virtio,snapshot=on,cache=unsafe" \
    -drive "file=$work/in.tar,format=raw,if=virtio,readonly=on" \
    -drive "file=$work/out.tar,format=raw,if=virtio,cache=unsafe" \
    -device virtio-rng-pci \
    -netdev "$network" -device "virtio-net-pci,netdev=net0,mac=$mac" \
    $more </dev/null > >(sed -u 's,\r,,g' >&"$console") 2>&1 &
pid=$!
until=$((SECONDS + limit))
while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if [ $SECONDS -ge $until ]; then
        echo "boot: TIMED OUT after $limit s" >&2
        exit 124
    fi
done
status=0
wait "$pid" || status=$?
pid=''
case $status in
    0) ;;
    130 | 137 | 143) echo "boot: somebody ended qemu (status $status)" >&2; exit 143 ;;
    *) echo "boot: qemu ended with $status" >&2; exit 125 ;;
esac

mkdir "$work/out"
tar -xf "$work/out.tar" -C "$work/out" 2>/dev/null || true
status=$(cat "$work/out/.rc" 2>/dev/null || echo 126)
rm -f "$work/out/.rc"
[ -z "$out" ] || { mkdir -p "$out"; cp -r "$work/out/." "$out/"; }
awk -v a="$began" -v b="$EPOCHREALTIME" -v s="$status" 'BEGIN { printf "boot: %.1f s in all, status %s\n", b - a, s }' >&2
exit "$status"
