#!/usr/bin/env bash
# Stag against the Linux kernel's NFS/RDMA, in a guest with siw and rxe: the kernel's client mounts our stagd, and our
# client talks to the kernel's server. Ours runs on this machine over iWARP in userspace, or in the guest over verbs.
#
#   ci/interop.sh [--long] [--stand-in] [--features] [--cores LIST] [-k 6.1|6.12]... [GROUP...]
#
# A line for each row, `ok`, `FAILED` or `SKIPPED` with its name and seconds, and `N passed, N failed, N skipped` at the end.
# --long      every group, on both kernels (two to three hours on two cores); else the ones that fit in some minutes, on 6.1
# --stand-in  the guest's own kernel server in place of stagd: what fails so is a fault of the test or of the kernel
# --features  ours, on either side, offer reliable reply and version 2: with a kernel, nothing changes
# --cores     our stagd on this machine is one server on these cores, as its option (else on one, but for rows with several
#             connections)
# GROUP       instead of all: as guest/rows.sh takes them (ci/lab), say client:off:/mem:all
#
# It needs root (for the guest's root image, a tap device and a network namespace of its own, in which all of it happens), and
# Debian's apt-get to fetch what is missing. If that fails it says so: SKIPPED, status 77. The first run builds the guest
# (ci/lab/build.sh), two to four minutes for each kernel; later ones reuse it. A group that fails leaves its console, capture,
# stagd's log and the rows' logs in target/ci/interop.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
# shellcheck source=ci/packages.sh
. "$(dirname "$0")/packages.sh"
# shellcheck source=ci/programs.sh
. "$(dirname "$0")/programs.sh"
# shellcheck source=ci/slowness.sh
. "$(dirname "$0")/slowness.sh"
cd "$(dirname "$0")/.." || exit 1

long='' stand_in='' inside='' kernels=() groups=() cores=()
arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --long) long=yes; export LABV_ROUNDS=6 LABV_ENTRIES=3000 ;;
        --stand-in) stand_in=yes ;;
        --features) export LABV_FEATURES='--reliable-reply --protocol auto' ;;
        --inside) inside=yes ;;
        --cores) cores=(--cores "$2"); shift ;;
        -k) kernels+=("$2"); shift ;;
        -*) usage ;;
        *) groups+=("$1") ;;
    esac
    shift
done
if [ ${#kernels[@]} -eq 0 ]; then
    kernels=(6.1)
    [ -z "$long" ] || kernels+=(6.12)
fi
if [ ${#groups[@]} -eq 0 ] && [ -n "$long" ]; then
    for over in off crc asked p2p tcp; do
        groups+=("client:$over:/mem:all" "client:$over:/dir:all" "locks:$over:/mem")
    done
    groups+=(locks:off:/dir kill:off:/dir:5 kill:crc:/dir:5 kill:tcp:/dir:5 kill:off:/mem:1 public:/mem)
    groups+=(server:off server:crc server:asked server:p2p)
    for over in verbs-siw verbs-rxe; do
        groups+=("client:$over:/mem:all" "client:$over:/dir:all" "client:$over:/mem:idle" "kill:$over:/dir:5" "kill:$over:/mem:1" "server:$over")
    done
    for over in wire-siw wire-rxe; do groups+=("client:$over:/mem:all" "locks:$over:/mem" "kill:$over:/dir:5"); done
    groups+=("client:off+4:/mem:all" "client:off+2:/dir:all" "client:tcp+4:/mem:all" "client:tcp+2:/dir:all" "client:verbs-siw+4:/mem:files")
    groups+=("client:verbs-rxe+2:/dir:files" locks:off+2:/mem locks:tcp+4:/dir kill:off+2:/dir:5 kill:tcp+2:/mem:1 kill:verbs-siw+2:/dir:1)
    groups+=(twins:off+2:/mem:tcp twins:tcp+2:/dir:rdma)
    for version in 4.1 4.2 auto; do
        # Over RDMA, Linux has one connection for a mount of version 4, whatever nconnect says.
        for over in off tcp verbs-rxe tcp+4; do
            groups+=("client:$over@$version:/mem:all" "client:$over@$version:/dir:all" "locks:$over@$version:/mem")
        done
        groups+=("kill:off@$version:/dir:5" "kill:tcp@$version:/dir:5" "kill:off@$version:/mem:1" "kill:tcp+2@$version:/dir:5")
    done
    groups+=(both:host-guest both:guest-host both:siw both:rxe fabrics)
elif [ ${#groups[@]} -eq 0 ]; then
    # What takes long and depends little on the version of NFS, or on the link, is in one group.
    groups=(client:off:/mem:files,names,acl,git client:p2p:/dir:links,fio locks:crc:/mem kill:off:/dir:2)
    groups+=(server:off server:asked:few public:/mem readme own-files client:verbs-siw:/mem:links client:verbs-rxe:/mem:links server:verbs-siw:few)
    groups+=("client:off@auto:/mem:files,directory,links,names,acl,holes,parallel" "client:tcp@4.1:/dir:few" locks:off@4.2:/dir)
    groups+=(client:tcp+4@4.2:/mem:parallel kill:off@4.2:/dir:2)
    groups+=(client:off+4:/mem:parallel twins:off+2:/mem:tcp both:host-guest:few both:guest-host:few fabrics)
fi

skipped() { echo "SKIPPED: $*"; exit 77; }
# shellcheck source=ci/lab/cache.sh
. ci/lab/cache.sh
target=${CARGO_TARGET_DIR:-target}
logs=$target/ci/interop
host=10.78.0.1
guest=10.78.0.2
peer=10.78.0.3
port=20049
profile=${STAG_PROFILE:-dev}
programs=$(realpath -m "$target/${profile/dev/debug}")
stag=$programs/stag
server=iwarp://$guest:$port
url=$server/srv/export
sample=engine/wire
# shellcheck source=ci/lab/guest/client_rows.sh
. ci/lab/guest/client_rows.sh
# shellcheck source=ci/lab/talk.sh
. ci/lab/talk.sh

# What is needed, from the outside: packages, the guest, our programs. Then all else in a namespace.
prepare() {
    [ "$(id -u)" = 0 ] || skipped "it needs root, for the guest's root image and a tap device"
    need interop || skipped "$lacking"
    unshare -n sh -c 'ip tuntap add lab0 mode tap && ip link add wire type bridge' || skipped "no tap device or bridge in a network namespace"
    ci/lab/build.sh "${kernels[@]}" || skipped "the guest could not be built"
    [ -n "$stand_in" ] || build_programs "$profile" || exit 1
}
if [ -z "$inside" ]; then
    prepare
    exec unshare -n ci/interop.sh --inside "${arguments[@]}"
fi

passed=0 failed=0 skipped=0 failed_logs=()
row() { # row ok|FAILED|SKIPPED NAME SECONDS
    case $1 in
        ok) passed=$((passed + 1)) ;;
        FAILED) failed=$((failed + 1)); failed_logs+=("$out/${group//[:\/]/-}/$2.log") ;;
        SKIPPED) skipped=$((skipped + 1)) ;;
    esac
    echo "$1 $kernel $group $2 ($3 s)"
}
# What the rows that failed have written: those of the guest come with its end.
why_failed() {
    local log
    for log in "${failed_logs[@]}"; do
        echo "--- ${log#"$logs"/}:"
        if [ -e "$log" ]; then tail -n 20 "$log"; else echo "(no such file)"; fi
    done
}
since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

tcpdump=''
# What goes over the tap in a group is captured, and kept if one of its rows fails.
capture_start() {
    failed_before=$failed
    pcap=$out/${group//[:\/]/-}.pcap
    tcpdump -n -s 0 -B 65536 -U -i lab0 -w "$pcap" 2>"$out/tcpdump.log" &
    tcpdump=$!
    until grep -q 'listening on' "$out/tcpdump.log" || ! kill -0 $tcpdump; do sleep 0.05; done
}
# The row `wire`: by `stag dump`, each CRC is good and neither end breaks a rule. The row `back-channel`, of version 4: the client was
# called back, and answered; with DELAY, if it is still busy with its new session.
capture_end() {
    local began=$EPOCHREALTIME said
    [ -n "$tcpdump" ] || return 0
    kill "$tcpdump"
    wait "$tcpdump"
    tcpdump=''
    # What `stag conform` sends is wrong on purpose.
    if [ -z "$stand_in" ] && [[ $group != conform:* ]]; then
        said=$("$stag" dump "$pcap" 2>&1 | tail -n 20)
        if grep -q ' 0 RDMA connections' <<<"$said"; then
            :
        elif ! grep -q '^0 packets dropped by kernel' "$out/tcpdump.log"; then
            row SKIPPED "wire: tcpdump lost packets" "$(since "$began")"
        elif grep -q '^no violations' <<<"$said" && grep -q 'CRC good [0-9]*, bad 0,' <<<"$said"; then
            row ok wire "$(since "$began")"
        else
            echo "$said" >"${pcap%.pcap}.wire.log"
            row FAILED wire "$(since "$began")"
        fi
        if [[ $group == client:*@[4a]* ]] && ! grep -q ' 0 RDMA connections' <<<"$said"; then
            began=$EPOCHREALTIME
            if "$stag" dump "$pcap" 2>/dev/null | grep ' NFS-CB ' >"${pcap%.pcap}.back-channel.log" &&
                grep -qE 'Reply NFS-CB v1 CB_COMPOUND NFS4(_OK|ERR_DELAY)' "${pcap%.pcap}.back-channel.log"; then
                row ok back-channel "$(since "$began")"
            else
                row FAILED back-channel "$(since "$began")"
            fi
        fi
    fi
    [ $failed -gt "$failed_before" ] || rm -f "$pcap"
}

# Whether a guest was ended from outside, or by its limit.
disturbed=''
stagd=''
stagd_crc=off
# What it has beside --cores: those of this machine that it may use, if a row wants two.
stagd_cores=()
two_cores() { taskset -pc $$ | sed 's/.*: //' | tr , '\n' | awk -F- '{ for (i = $1; i <= (NF > 1 ? $2 : $1); i++) print i }' | head -n 2 | paste -sd,; }
# A new stagd on the same folder; /mem is empty.
stagd_start() { # [GRACE]
    local n=0 exports=(--export "mem:/mem,root_squash=no") on=("${cores[@]}")
    [ ${#on[@]} -gt 0 ] || on=("${stagd_cores[@]}")
    mkdir -p "$work/dir" "$work/state"
    exports+=(--export "dir:$work/dir,name=/dir,root_squash=no")
    # A server outside of this namespace that has these cores, say another test's, is not in the way.
    export STAG_RUNTIME_DIR=$work/claims
    # Not the last one's "ready".
    : >"$work/stagd.log"
    # Also at rpcbind's port, where a mount with locks asks for the lock manager, and where a client of version 4 looks first.
    # shellcheck disable=SC2086 # its words
    "$programs/stagd" "${exports[@]}" "${on[@]}" ${LABV_FEATURES:-} --listen "iwarp://$host:$port" --listen "tcp://$host:111" \
        --listen "tcp://$host:2049" --crc "$stagd_crc" \
        --state-dir "$work/state" --grace "${1:-5}" >"$work/stagd.log" 2>&1 &
    stagd=$!
    until grep -q '^ready' "$work/stagd.log"; do
        n=$((n + 1))
        [ $n -lt $((100 * STAG_SLOWNESS)) ] && kill -0 $stagd || { cat "$work/stagd.log"; return 1; }
        sleep 0.1
    done
}
# It ends in order, and every buffer came back.
stagd_stop() {
    local status=0
    [ -n "$stagd" ] || return 0
    kill "$stagd"
    wait "$stagd" || status=$?
    stagd=''
    cat "$work/stagd.log" >>"$out/stagd.log"
    [ $status -eq 0 ]
}

own_files=''
# The example of a store of one's own, by TCP.
own_files_start() {
    local n=0
    # It has the port.
    stagd_stop
    "$programs/examples/own_files" "tcp://$host:2049" >"$work/own_files.log" 2>&1 &
    own_files=$!
    until grep -q '^ready' "$work/own_files.log"; do
        n=$((n + 1))
        [ $n -lt $((100 * STAG_SLOWNESS)) ] && kill -0 $own_files || { cat "$work/own_files.log"; return 1; }
        sleep 0.1
    done
}
own_files_stop() {
    local status=0
    kill "$own_files"
    wait "$own_files" || status=$?
    own_files=''
    return $status
}

# timed FUNCTION : in a process group of its own, stopped after two minutes (STAG_SLOWNESS times).
timed() {
    local pid dog status=0 limit=$((120 * STAG_SLOWNESS))
    set -m
    "$1" &
    pid=$!
    (sleep $limit && echo "TIMED OUT after $limit s" && kill -KILL -- "-$pid") 2>/dev/null &
    dog=$!
    set +m
    wait "$pid" || status=$?
    kill -- "-$dog" 2>/dev/null
    return $status
}

boot_peer=''
peer_start() { # SCRIPT ARGUMENT...
    local n=0
    rm -f "$work"/peer.* "$out/peer.log"
    mkfifo "$work/peer.in" "$work/peer.out"
    exec 5<>"$work/peer.in" 6<>"$work/peer.out"
    LABV_ADDR=$peer/24 LABV_HOST=$host ci/lab/boot.sh -k "$kernel" -t $((2400 * STAG_SLOWNESS)) -p "$work/payload" -n lab1 -a 52:54:00:12:34:57 -c "$work/peer" \
        -l "$out/peer.log" "$@" 2>>"$out/boot.log" &
    boot_peer=$!
    until grep -q '^LAB: serving' "$out/peer.log" 2>/dev/null; do
        n=$((n + 1))
        { [ $n -lt $((800 * STAG_SLOWNESS)) ] && kill -0 $boot_peer; } || return
        sleep 0.1
    done
}
# Its status is that of its script: whether stagd ended in order.
peer_stop() {
    local status=0
    echo end >&5
    wait "$boot_peer" || status=$?
    boot_peer=''
    exec 5>&- 6>&-
    return $status
}

# What the guest's script asks for (ci/lab/guest/rows.sh).
ask() {
    case $1 in
        # group NAME: what follows belongs to it.
        group)
            capture_end
            group=$2
            capture_start
            ;;
        # stagd CRC [two]: from here on with this answer to whether it asks for CRC, and on one core or two.
        stagd)
            stagd_crc=$2
            stagd_cores=()
            [ -z "${3:-}" ] || stagd_cores=(--cores "$(two_cores)")
            stagd_stop && stagd_start
            ;;
        # restart: the server dies as by a power cut, and comes back.
        restart)
            if [ -n "$boot_peer" ]; then
                local status=1
                echo restart >&5
                read -r -t $((60 * STAG_SLOWNESS)) status <&6
                return "$status"
            fi
            kill -KILL "$stagd"
            wait "$stagd"
            sleep 2
            # Longer than any row may take: it ends when all clients are back.
            stagd_start 900
            ;;
        # peer siw|rxe: a second guest on the same wire, with a stagd on verbs.
        peer) peer_start peer.sh "$2" ;;
        # twin-starts rdma|tcp EXPORT: or with a second client of our stagd. twin WORD...: that client does this (guest/twin.py).
        twin-starts) peer_start twin.sh "$2" "$3" ;;
        twin)
            local status=1
            echo "${*:2}" >&5
            read -r -t $((120 * STAG_SLOWNESS)) status <&6
            return "$status"
            ;;
        peer-ends) peer_stop ;;
        # own-files start|stop: the example.
        own-files) "own_files_$2" ;;
        # served WHAT: served_WHAT (client_rows.sh) in the folder that stagd exports.
        served) "served_$2" "$work/dir" ;;
        # spread: each core of stagd has served some of the connections.
        spread) spread "$stagd" "$work/stagd.log" 2 >&2 ;;
        # fabrics: without a device, `stag fabrics` says so.
        fabrics) [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ] || "$stag" fabrics | grep -E "^verbs +does not work" >&2 ;;
        # client NAME: a row of our client against the guest's server.
        client)
            local began=$EPOCHREALTIME outcome=ok
            mkdir -p "$out/${group//[:\/]/-}"
            case $group in *:asked*) crc=on ;; *) crc=off ;; esac
            timed "client_$2" >"$out/${group//[:\/]/-}/$2.log" 2>&1 || outcome=FAILED
            row $outcome "$2" "$(since "$began")"
            [ $outcome = ok ]
            ;;
        *) echo "unknown request: $*" >&2; false ;;
    esac
}

# Seconds that a guest with all groups may take: three times what it takes, so that a second try has time in .ci/run.
guest_limit() {
    local limit=$(((600 + 60 * ${#groups[@]}) * STAG_SLOWNESS))
    if [ -n "$long" ]; then
        limit=$(((600 + 1200 * ${#groups[@]}) * STAG_SLOWNESS))
    elif [ $limit -gt 3600 ]; then
        limit=3600
    fi
    echo $limit
}

# A line of the guest's.
told() {
    case $1 in
        row) row "${@:2}" ;;
        ask) ask "${@:2}" 2>>"$out/asked.log"; echo $? >&3 ;;
    esac
}

run_kernel() {
    kernel=$1 group=-
    out=$logs/$kernel
    work=$(mktemp -d) tree=$work/tree
    rm -rf "$out"
    mkdir -p "$out" "$work/payload"
    [ -n "$stand_in" ] || for p in stag stagd; do strip --strip-debug "$programs/$p" -o "$work/payload/$p"; done
    mkfifo "$work/pipe.in" "$work/pipe.out"
    LABV_ADDR=$guest/24 LABV_HOST=$host LABV_PEER=$peer LABV_STAND_IN=$stand_in ci/lab/boot.sh -k "$kernel" -t "$(guest_limit)" -p "$work/payload" \
        -n lab0 -c "$work/pipe" -l "$out/console.log" -o "$out" rows.sh "${groups[@]}" 2>"$out/boot.log" &
    local boot=$! status=0 before=$failed
    exec 3<>"$work/pipe.in" 4<>"$work/pipe.out"
    talk_with "$boot" "$work/pipe.out"
    wait "$boot" || status=$?
    # A guest that died, or was stopped, has told of no failure.
    case $status in
        0) ;;
        124 | 143) row FAILED "guest: $(tail -n 1 "$out/boot.log")" "$SECONDS"; disturbed=1 ;;
        *) [ $failed -gt "$before" ] || row FAILED "guest: status $status" "$SECONDS" ;;
    esac
    exec 3>&- 4>&-
    capture_end
    [ -z "$stagd" ] || stagd_stop || row FAILED "stagd ends" 0
    rm -rf "$work"
}

# Nothing outlives it, however it ends.
# shellcheck disable=SC2046 # pids.
trap 'kill $(jobs -p) 2>/dev/null' EXIT
trap "exit 143" INT TERM
ip link set lo up
ip link add wire type bridge
ip addr add $host/24 dev wire
ip link set wire up
for tap in lab0 lab1; do
    ip tuntap add $tap mode tap
    ip link set $tap master wire up
done
mkdir -p "$logs"
for kernel in "${kernels[@]}"; do run_kernel "$kernel"; done
grep -rh '^TIMED OUT' "${kernels[@]/#/$logs/}" 2>/dev/null | sort -u
[ -z "$disturbed" ] || echo "DISTURBED: a guest did not come to its end by itself"
why_failed
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
