# shellcheck shell=bash
# Shell functions for the scripts that run in the guest: `. /payload/lib.sh`.

# shellcheck disable=SC2034 # for who sources this
ADDR=10.77.0.1 # the guest's own address, on dummy0, for a kernel client of a kernel server
# shellcheck disable=SC2034 # likewise
HOST_ADDR=${LABV_HOST:-10.0.2.2} # the host, as the guest sees it
# Limits of time are multiplied by it (ci/slowness.sh).
SLOWNESS=${LABV_SLOWNESS:-1}
PORT=20049
EXPORT=/srv/export
MNT=/mnt/nfs

say() { echo "== $*"; }
die() {
    echo "FAIL: $*"
    dmesg | tail -25
    exit 1
}

# eth0: the address that boot.sh's caller gave it, or the one of qemu's user network. No default route:
# nothing else is reachable.
net_eth0() {
    modprobe virtio_net
    ip addr add "${LABV_ADDR:-10.0.2.15/24}" dev eth0 2>/dev/null
    ip link set eth0 up
}

net_dummy() {
    modprobe dummy numdummies=0
    ip link add dummy0 type dummy 2>/dev/null
    ip link set dummy0 up
    ip addr add $ADDR/24 dev dummy0 2>/dev/null
}

rdma_modules() {
    local m
    for m in ib_uverbs ib_umad rdma_cm rdma_ucm; do modprobe $m || die "modprobe $m"; done
}

# siw_load [crc|p2p]: Debian's siw, or one that asks for CRC, or for peer-to-peer mode (build.sh).
siw_load() {
    [ -n "${1:-}" ] || { modprobe siw; return; }
    modprobe -a libcrc32c ib_core iw_cm ib_uverbs || return 1
    insmod "/usr/lib/lab/$(uname -r)/siw-$1.ko"
}
# rdma_link siw|rxe DEV [crc|p2p]: one RDMA device over a network device.
rdma_link() {
    case $1 in siw) siw_load "${3:-${LABV_SIW:-}}" ;; rxe) modprobe rdma_rxe ;; esac || die "no module for $1"
    rdma link add "$1-$2" type "$1" netdev "$2" || die "rdma link add $1-$2"
}
rdma_unlink() { rdma link delete "$1-$2"; }
# Another siw may be loaded afterwards; a connection that is going away holds the old one for a moment.
siw_unload() {
    local n=0
    rdma_unlink siw "$1"
    until rmmod siw 2>/dev/null || [ $n -gt $((50 * SLOWNESS)) ]; do sleep 0.2; n=$((n + 1)); done
    [ ! -d /sys/module/siw ]
}

rpcbind_up() {
    mkdir -p /run/rpcbind
    pgrep -x rpcbind >/dev/null || rpcbind -w || die rpcbind
}

# The kernel's NFS server, on RDMA and (for mountd's sake) TCP; no grace period.
nfsd_up() {
    modprobe nfsd || die "modprobe nfsd"
    modprobe rpcrdma || die "modprobe rpcrdma"
    mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
    mountpoint -q /var/lib/nfs/rpc_pipefs || { mkdir -p /var/lib/nfs/rpc_pipefs; mount -t rpc_pipefs sunrpc /var/lib/nfs/rpc_pipefs; }
    mkdir -p $EXPORT $MNT /var/lib/nfs/v4recovery
    mountpoint -q $EXPORT || mount -t tmpfs -o size=400m,mode=777 export $EXPORT
    echo "$EXPORT *(rw,async,no_root_squash,no_subtree_check,insecure,fsid=0)" >/etc/exports
    rpcbind_up
    exportfs -ra || die exportfs
    echo 10 >/proc/fs/nfsd/nfsv4leasetime 2>/dev/null
    echo 10 >/proc/fs/nfsd/nfsv4gracetime 2>/dev/null
    rpc.nfsd --rdma=$PORT 4 || { rpc.nfsd 4; echo "rdma $PORT" >/proc/fs/nfsd/portlist; } || die nfsd
    echo Y >/proc/fs/nfsd/v4_end_grace 2>/dev/null
    pgrep -x rpc.mountd >/dev/null || rpc.mountd || die mountd
    grep -q rdma /proc/fs/nfsd/portlist || die "nfsd does not listen on rdma"
}
nfsd_down() { rpc.nfsd 0; }

# Our stagd in the guest, on verbs at ADDRESS, with /mem, /dir, and the folder that the kernel's server would export. What MOUNT
# needs, RPC over TCP, has the next port: siw's own is taken for TCP too.
stagd_up() { # ADDRESS [OPTION...]
    local n=0 address=$1
    shift
    ulimit -l unlimited # siw counts registered memory
    mkdir -p /srv/dir /srv/state $EXPORT /out
    # Not the last one's "ready".
    : >/run/stagd.log
    # shellcheck disable=SC2086 # its words
    /payload/stagd ${LABV_FEATURES:-} --export mem:/mem,root_squash=no --export dir:/srv/dir,name=/dir,root_squash=no \
        --export "dir:$EXPORT,name=$EXPORT,root_squash=no" --listen "verbs://$address:$PORT" --listen "tcp://$address:$((PORT + 1))" \
        --state-dir /srv/state --grace 5 "$@" >/run/stagd.log 2>&1 </dev/null &
    echo $! >/run/stagd.pid
    until grep -q '^ready' /run/stagd.log; do
        n=$((n + 1))
        [ $n -lt $((300 * SLOWNESS)) ] && kill -0 "$(cat /run/stagd.pid)" || { cat /run/stagd.log; return 1; }
        sleep 0.1
    done
}
# stagd_down [SIGNAL]
stagd_down() {
    local n=0 pid
    pid=$(cat /run/stagd.pid 2>/dev/null) || return 0
    kill "-${1:-TERM}" "$pid"
    while kill -0 "$pid" 2>/dev/null; do
        n=$((n + 1))
        [ $n -lt $((100 * SLOWNESS)) ] || { echo "stagd does not end"; kill -KILL "$pid"; break; }
        sleep 0.1
    done
    cat /run/stagd.log >>/out/stagd.log
    rm -f /run/stagd.pid
    [ $n -lt $((100 * SLOWNESS)) ]
}

# nfs_mount VERS [more options]
nfs_mount() {
    local v=$1 o path
    shift
    case $v in
        3) o="vers=3,nolock,mountproto=tcp"; path=$EXPORT ;;
        *) o="vers=$v"; path=/ ;;
    esac
    mount -t nfs -o "rdma,port=$PORT,$o${1:+,$1}" "${SERVER:-$ADDR}:$path" $MNT
}
nfs_umount() { umount $MNT || umount -l $MNT; }

echo 4 >/proc/sys/vm/drop_caches # be silent about the ones that follow
drop() { sync; echo 3 >/proc/sys/vm/drop_caches; }
