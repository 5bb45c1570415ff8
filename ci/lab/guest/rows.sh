#!/usr/bin/env bash
# The guest's side of ci/interop.sh: runs groups of rows, and tells the host the outcome of each.
#
#   rows.sh GROUP...
#
# A group is VERB:ARGUMENTS, see the functions group_* below. The second serial line is the talk with the host, a line
# each way: the host prints `row ok|FAILED|SKIPPED NAME SECONDS`; it does what `ask VERB...` says (ci/interop.sh has the
# list) and answers with its status. What each row printed is in /out/GROUP/NAME.log.
. /payload/lib.sh
# shellcheck source=ci/lab/guest/client_rows.sh
. /payload/client_rows.sh

stty -F /dev/ttyS1 raw -echo
exec 3<>/dev/ttyS1

ask() { bash /payload/ask.sh "$@"; }

failed=0
# row SECONDS NAME COMMAND... : one row. Past SECONDS (SLOWNESS times) it is stopped and has failed.
row() {
    local limit=$(($1 * SLOWNESS)) name=$2 began=$EPOCHREALTIME outcome=ok status=0 log pid dog
    shift 2
    log=/out/$group/$name.log
    if [ -n "$skip" ]; then
        echo "$skip" >"$log"
        outcome=SKIPPED
    else
        # A process group of its own, so that all of it can be stopped.
        set -m
        ("$@") >"$log" 2>&1 </dev/null &
        pid=$!
        set +m
        (sleep "$limit" && echo "TIMED OUT after $limit s" >>"$log" && kill -KILL -- "-$pid") 2>/dev/null &
        dog=$!
        wait "$pid" || status=$?
        kill "$dog" 2>/dev/null
    fi
    if [ $status -ne 0 ]; then
        outcome=FAILED
        failed=1
        echo "status $status" >>"$log"
        echo "--- $group $name:" # for the console
        tail -n 20 "$log"
        dmesg | tail -n 10
    fi
    echo "row $outcome $name $(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')" >&3
    [ $status -eq 0 ]
}
skip=''

# What the kernel says at warning level or worse from quiet_from on is an error. But for what it says of a slow host, of a network
# card without a speed, and for one CRC error of siw, which misreads one that comes in two TCP segments (README.md): our sender avoids
# that as well as it can know. What our CRCs are worth is in the row `wire`.
quiet_from() { dmesg -c >>/out/dmesg-before.txt; }
is_quiet() {
    local known='loading out-of-tree module|module verification failed|hrtimer: interrupt took|clocksource: Long readout interval'
    known+='|speed is unknown, defaulting to|siw: crc error'
    dmesg --level=emerg,alert,crit,err,warn | grep -vE "$known" && return 1
    [ "$(dmesg | grep -c 'siw: crc error')" -le 1 ]
}

# stagd is a stranger: mounts say all that it needs, as apps/docs/mounting.md has it. The kernel's own server stands in for it with
# LABV_STAND_IN.
mount_rows() { # mount_rows EXPORT LOCKS
    local options=rdma path=$1
    [ "$over" != tcp ] || options=tcp
    options+=,port=$PORT${nconnect:+,nconnect=$nconnect}
    [ -z "${LABV_STAND_IN:-}" ] || path=$EXPORT
    case $version in
        3)
            options+=,vers=3,$2,mountproto=tcp
            [ -n "${LABV_STAND_IN:-}" ] || options+=,mountport=$MOUNT_PORT ;;
        auto) ;;
        *) options+=,vers=$version ;;
    esac
    # The kernel's server has its export at the root of version 4.
    case ${LABV_STAND_IN:+kernel}$version in kernel3 | [!k]*) ;; *) path=/ ;; esac
    echo "mount -t nfs -o $options $SERVER:$path $MNT"
    timeout -k 5 $((60 * SLOWNESS)) mount -t nfs -o "$options" "$SERVER:$path" $MNT && mountpoint -q $MNT && grep " $MNT " /proc/mounts || return
    # Without a version asked for, the newest is agreed on.
    local agreed=$version
    [ $version != auto ] || agreed=4.2
    grep -q " $MNT .*[,=]vers=$agreed," /proc/mounts
}
unmount() {
    local n=0
    until umount $MNT; do
        n=$((n + 1))
        [ $n -lt 5 ] || { umount -f $MNT; umount -l $MNT; return 1; }
        sleep 1
    done
}
# link_up OVER, link_down: what a group goes over.
#   off    siw as it is, without CRC
#   crc    a siw that asks for CRC
#   asked  siw as it is, and a server that asks for CRC
#   p2p    a siw that asks for peer-to-peer mode; with CRC, by the server
#   tcp    RPC over TCP
#   verbs-siw, verbs-rxe   the server is in the guest too, and drives that device through rdma-core
#   wire-siw, wire-rxe     likewise, in a second guest
# With +N behind it: a mount has N connections (nconnect), and the server two cores. With @VERSION behind that: it is by this version of
# NFS, 3 if none is said; auto is what client and server agree on.
# Sets DEV, the network device below the RDMA one, SERVER, its address, and MOUNT_PORT.
link_up() {
    local kind=siw siw='' crc=off
    local way=${1%@*}
    version=3
    [ "$way" = "$1" ] || version=${1#*@}
    over=${way%+*} nconnect=''
    [ "$over" = "$way" ] || nconnect=${way#*+}
    case $over in crc | p2p) siw=$over ;; esac
    case $over in asked | p2p) crc=on ;; esac
    case $over in
        verbs-*) kind=${over#*-} DEV=dummy0 SERVER=$ADDR MOUNT_PORT=$((PORT + 1)) ;;
        wire-*) kind=${over#*-} DEV=eth0 SERVER=$LABV_PEER MOUNT_PORT=$((PORT + 1)) ;;
        *) DEV=eth0 SERVER=$HOST_ADDR MOUNT_PORT=$PORT ;;
    esac
    [ -z "${LABV_STAND_IN:-}" ] || DEV=dummy0 SERVER=$ADDR
    [ "$DEV" != dummy0 ] || net_dummy
    [ "$over" = tcp ] || rdma_link "$kind" "$DEV" "$siw"
    if [ -n "${LABV_STAND_IN:-}" ]; then nfsd_up; else row 90 stagd start_stagd $crc || skip="stagd does not start"; fi
}
start_stagd() { # CRC
    case $over in
        verbs-*) stagd_up "$SERVER" ${nconnect:+--cores 0,1} ;;
        wire-*) ask peer "${over#*-}" ;;
        *) ask stagd "$1" ${nconnect:+two} ;;
    esac
}
link_down() {
    case ${LABV_STAND_IN:+kernel}$over in
        kernel*) nfsd_down ;;
        verbs-*) skip='' row 20 stagd-ends stagd_down ;;
        wire-*) skip='' row 40 stagd-ends ask peer-ends ;;
    esac
    case $over in
        tcp) ;;
        *-rxe) rdma_unlink rxe "$DEV" ;;
        *) siw_unload "$DEV" || echo "siw does not unload" ;;
    esac
    skip=''
}
# in_folder NAME COMMAND... : in a new folder of the mount, which is gone afterwards.
in_folder() (
    folder=$MNT/$1
    shift
    mkdir "$folder" && cd "$folder" && "$@" && cd / && rm -rf "$folder" && [ ! -e "$folder" ]
)

# A repository: committed, cloned, checked, compared.
git_rows() {
    export GIT_CONFIG_GLOBAL=/tmp/gitconfig GIT_PAGER=cat
    git config --global user.name lab && git config --global user.email lab@localhost &&
        git config --global init.defaultBranch main && git config --global gc.auto 0 &&
        git init -q one && cp -r /usr/lib/python3.11/json /usr/lib/python3.11/email one/ &&
        git -C one add . && git -C one commit -qm first && git -C one rm -rq json && git -C one commit -qm second &&
        git clone -q --no-local one two && git -C two fsck --full && [ -z "$(git -C two status --porcelain)" ] &&
        drop && diff -r one/email two/email && git -C two log --oneline
}

# The Connectathon suite's `general`: a small compile, a large one, four large ones at once, make.
compile_rows() {
    local i k
    for i in $(seq 40); do
        printf '#include <stdio.h>\n#include <stdlib.h>\nint f%d(int x) { return x + %d; }\n' "$i" "$i" >"part$i.c"
    done
    {
        for i in $(seq 40); do echo "int f$i(int);"; done
        printf '#include <stdio.h>\nint main(void) { int x = 0;\n'
        for i in $(seq 40); do echo "x = f$i(x);"; done
        printf 'printf("%%d\\n", x); return 0; }\n'
    } >main.c
    # shellcheck disable=SC2016 # make's variables.
    printf 'OBJECTS = main.o %s\nprogram: $(OBJECTS)\n\ttcc -o $@ $(OBJECTS)\n%%.o: %%.c\n\ttcc -c -o $@ $<\n' \
        "$(seq -f 'part%g.o' -s ' ' 40)" >Makefile
    tcc -o small main.c part*.c && drop && [ "$(./small)" = 820 ] || return
    for k in 1 2 3 4; do
        mkdir "copy$k" && cp ./*.c Makefile "copy$k" || return
        make -s -C "copy$k" &
    done
    wait
    drop
    for k in 1 2 3 4; do [ "$("copy$k/program")" = 820 ] || return; done
    make -s -C copy1 && touch copy1/part7.c && [ "$(make -C copy1 | grep -c 'tcc')" = 2 ] && [ "$(copy1/program)" = 820 ]
}

# Random writes of 4 KiB to 1 MiB, each block with its own checksum, and all of it read back.
fio_rows() {
    fio --output-format=terse --ioengine=libaio --iodepth=8 --direct=1 --rw=randwrite --bsrange=4k-1m --size="${1}m" --verify=crc32c \
        --verify_fatal=1 --randseed=17 --name=direct | cut -c 1-200 && [ "${PIPESTATUS[0]}" = 0 ] &&
        fio --output-format=terse --ioengine=psync --rw=randwrite --bsrange=4k-1m --size="${1}m" --numjobs=2 --verify=crc32c --verify_fatal=1 \
            --randseed=18 --fsync=16 --end_fsync=1 --name=buffered | cut -c 1-200 && [ "${PIPESTATUS[0]}" = 0 ] &&
        drop && fio --output-format=terse --ioengine=psync --rw=randread --bsrange=4k-1m --size="${1}m" --numjobs=2 --verify=crc32c \
            --verify_fatal=1 --randseed=18 --verify_only --name=buffered | cut -c 1-200 && [ "${PIPESTATUS[0]}" = 0 ]
}

# dbench's load: what a file server's clients do, as recorded from NetBench.
dbench_rows() { timeout -k 5 $((220 * SLOWNESS)) dbench -c /usr/share/dbench/client.txt -t 10 -D . 2; }

# Silence for long enough that stagd probes the client (it looks once a minute, and probes clients that were silent since the last
# look) does the connection no harm.
idle_rows() {
    local before after
    before=$(connects)
    sleep 130
    touch a && sync && drop && [ -e a ] && after=$(connects)
    echo "connected $before times, then $after"
    [ "${before:-0}" -gt 0 ] && [ "$before" = "$after" ]
}
# The mount has as many connections as it asked for, and each core of the server has served some of them.
spread_rows() {
    local count
    count=$(awk -v at=$MNT '$5 == at { here = 1 } here && $1 == "xprt:" { n++ } here && n && $1 != "xprt:" { exit } END { print n + 0 }' /proc/self/mountstats)
    echo "$count connections"
    [ "$count" = "$nconnect" ] || return
    case $over in
        verbs-*) spread "$(cat /run/stagd.pid)" /run/stagd.log 2 ;;
        *) ask spread ;;
    esac
}
# How often the mount's transport was connected.
connects() { awk -v at=$MNT '$5 == at { here = 1 } here && $1 == "xprt:" { print $5; exit }' /proc/self/mountstats; }

# client:OVER:EXPORT:ROWS  the kernel's client mounts EXPORT of stagd. OVER: see link_up. ROWS: all (but idle), few, or their names
# with commas.
group_client() {
    local export=$2 rows=$3 f names
    link_up "$1"
    quiet_from
    case $rows in
        all) names="files directory links names acl holes tree parallel basic special git compile fio dbench" ;;
        few) names="files links parallel fio" ;;
        *) names=${rows//,/ } ;;
    esac
    row 60 mount mount_rows "$export" nolock || skip="the mount failed"
    for f in $names; do
        case $f in
            basic | special) row 240 "cthon-$f" in_folder $f timeout -k 5 $((240 * SLOWNESS)) python3 /payload/cthon.py $f . ;;
            acl) case $version in
                # Version 4 has no lists of POSIX: the client is to hear that.
                [!3]*) row 60 no-acl in_folder acl bash -c 'touch f && ! setfacl -m u:1000:rw f 2>e && grep "not supported" e && getfacl -cnp f' ;;
                *) row 60 acl in_folder acl python3 /payload/files.py acl . ;;
            esac ;;
            git | compile | dbench | idle) row 240 $f in_folder $f ${f}_rows ;;
            fio) row 240 $f in_folder $f fio_rows 16 ;;
            *) row 420 $f in_folder $f python3 /payload/files.py $f . ;;
        esac
        [ -n "$skip" ] || timeout -s KILL $((20 * SLOWNESS)) stat -t $MNT >/dev/null || skip="the mount does not answer"
    done
    [ -z "$nconnect" ] || row 30 spread spread_rows
    row 60 umount unmount
    row 5 dmesg is_quiet
    link_down
    case $over:$names in
        verbs-*idle*) row 5 asked grep -E '; [1-9][0-9]* times a silent peer was asked' /run/stagd.log ;;
    esac
}

# locks:OVER:EXPORT  byte-range locks. By NLM, for version 3, the mount has to find the server's lock manager by its rpcbind.
group_locks() {
    link_up "$1"
    quiet_from
    rpcbind_up
    row 60 mount mount_rows "$2" lock || skip="the mount failed"
    row 120 cthon-lock in_folder lock timeout -k 5 $((120 * SLOWNESS)) python3 /payload/cthon.py lock .
    row 60 umount unmount
    row 5 dmesg is_quiet
    link_down
}

# twins:OVER:EXPORT:OTHER  two clients on one file: this guest's, and that of a second guest over OTHER, rdma or tcp.
group_twins() {
    local other=$3
    link_up "$1"
    quiet_from
    rpcbind_up
    row 60 mount mount_rows "$2" lock || skip="the mount failed"
    row 120 other ask twin-starts "$other" "$2" || skip="the other client does not start"
    row 120 files python3 /payload/twins.py files $MNT
    row 120 locks python3 /payload/twins.py locks $MNT
    [ -z "$nconnect" ] || row 30 spread spread_rows
    skip='' row 60 other-ends ask peer-ends
    row 60 umount unmount
    row 5 dmesg is_quiet
    link_down
}

# kill:OVER:EXPORT:ROUNDS  stagd dies by signal 9 under a write load, ROUNDS times, and comes back.
group_kill() {
    local restart="bash /payload/ask.sh restart"
    link_up "$1"
    case ${LABV_STAND_IN:+kernel}$over in
        kernel*) restart=". /payload/lib.sh; nfsd_down; sleep 2; nfsd_up" ;;
        verbs-*) restart=". /payload/lib.sh; stagd_down KILL; sleep 2; stagd_up $SERVER ${nconnect:+--cores 0,1}" ;;
    esac
    quiet_from
    row 60 mount mount_rows "$2" nolock || skip="the mount failed"
    case $2 in
        /mem) row 120 recover forgotten "$2" "$restart" ;;
        *) row $((60 + 120 * $3)) durable in_folder durable python3 /payload/durable.py records "$3" bash -c "$restart" ;;
    esac
    row 60 umount unmount
    row 5 dmesg is_quiet
    link_down
}
# A store in memory is empty after it: the mount says so, and a new one works.
forgotten() { # EXPORT RESTART
    echo there >$MNT/file && sync && bash -c "$2" || return
    drop
    ! cat $MNT/file || return
    unmount && mount_rows "$1" nolock && [ ! -e $MNT/file ] && echo back >$MNT/file && drop && [ "$(cat $MNT/file)" = back ]
}

# public:EXPORT  programs that are not of the kernel, over TCP: libnfs's, showmount, rpcinfo.
group_public() {
    link_up tcp
    local where="nfs://$SERVER$1" port="nfsport=$PORT&mountport=$PORT" f=/usr/lib/python3.11/argparse.py
    row 20 showmount showmount_rows "$1"
    row 20 rpcinfo rpcinfo_rows
    row 60 nfs-cp nfs-cp $f "$where/argparse.py?$port"
    row 60 nfs-cat bash -c "nfs-cat '$where/argparse.py?$port' | cmp - $f"
    row 60 nfs-ls bash -c "nfs-ls '$where?$port' | grep -w argparse.py"
    link_down
}
showmount_rows() { timeout $((15 * SLOWNESS)) showmount -e "$SERVER" | grep -w -- "$1"; }
rpcinfo_rows() {
    local p
    timeout $((15 * SLOWNESS)) rpcinfo -p "$SERVER" >/tmp/rpcinfo && cat /tmp/rpcinfo || return
    for p in "100003 +3 +tcp" "100005 +3 +tcp" "100021 +4 +tcp" "100024 +1 +tcp" "100227 +3 +tcp"; do
        grep -E "$p" /tmp/rpcinfo || { echo "not there: $p"; return 1; }
    done
    for p in "100003 3" "100005 3"; do
        # shellcheck disable=SC2086 # program and version
        timeout $((15 * SLOWNESS)) rpcinfo -T tcp "$SERVER" $p || return
    done
}

# readme  the mounts of README: no options but the transport, at the ports where clients look first.
group_readme() {
    link_up off
    quiet_from
    row 60 tcp readme_row
    row 60 rdma readme_row -o rdma
    row 5 dmesg is_quiet
    link_down
}
readme_row() { # OPTION...
    timeout -k 5 $((60 * SLOWNESS)) mount -t nfs "$@" "$SERVER:/mem" $MNT && grep " $MNT .*[,=]vers=4.2," /proc/mounts || return
    echo there >$MNT/readme && drop && [ "$(cat $MNT/readme)" = there ] && rm $MNT/readme && unmount
}

# own-files  the example of a store of one's own, mounted as its first lines say.
group_own-files() {
    local options=ro,vers=3,proto=tcp,port=2049,mountport=2049,nolock
    quiet_from
    row 20 starts ask own-files start || skip="it does not start"
    row 60 mount mount -t nfs -o $options "$HOST_ADDR:/files" $MNT || skip="it is not mounted"
    row 20 files own_files_rows
    row 60 umount unmount
    skip='' row 20 ends ask own-files stop
    row 5 dmesg is_quiet
}
own_files_rows() {
    [ "$(cd $MNT && find . | sort | xargs)" = ". ./notes ./notes/today.txt ./readme.txt" ] && drop &&
        [ "$(cat $MNT/notes/today.txt)" = "Nothing happened." ] && [ "$(stat -c '%a %s %Y' $MNT/readme.txt)" = "444 38 1767225600" ] &&
        ! touch $MNT/new && ! rm -f $MNT/readme.txt && ls -lR $MNT
}

# our_client WHERE FOLDER ROWS : the rows of our client (client_rows.sh), all, few or as in group_client. WHERE it runs, host or
# guest; FOLDER of the server's side: one of the guest, or `host`, who knows which.
our_client() {
    local f names
    case ${3:-all} in
        all) names=${client_rows[*]} ;;
        few) names="ping put digests get perf" ;;
        *) names=${3//,/ } ;;
    esac
    served fresh "$2"
    for f in $names; do
        if [ "$1" = host ]; then ask client "$f" || failed=1; else row 180 "$f" "client_$f"; fi
        [ "$f" != put ] || served sums "$2"
    done
}
served() { # WHAT FOLDER
    if [ "$2" = host ]; then ask served "$1"; else "served_$1" "$2"; fi
}
# For client_rows.sh, in the guest: our client reaches SERVER by verbs.
client_here() { # SERVER EXPORT
    stag=/payload/stag crc='' server=verbs://$1:$PORT url=verbs://$1:$PORT$2
    sample=/usr/lib/python3.11/json work=/tmp/client tree=/tmp/client/tree
    mkdir -p $work
    ulimit -l unlimited
}

# server:OVER[:ROWS]  the kernel's server, for our client: on the host, OVER off, crc, p2p as above or asked, where our client asks
# for CRC; in the guest, OVER verbs-siw or verbs-rxe.
group_server() {
    local kind=siw dev=eth0 siw='' where=host
    case $1 in
        verbs-*) kind=${1#verbs-} dev=dummy0 where=guest; net_dummy; client_here $ADDR $EXPORT ;;
        crc | p2p) siw=$1 ;;
    esac
    rdma_link $kind $dev "$siw"
    quiet_from
    nfsd_up
    our_client $where $EXPORT "${2:-}"
    row 5 dmesg is_quiet
    nfsd_down
    if [ $kind = siw ]; then siw_unload $dev; else rdma_unlink $kind $dev; fi
}

# conform:off  by name only: the kernel's server, which `stag conform` on the host checks, against the list of known deviations of that kernel. The last
# group of its guest: the server is left as it is, since rpc.nfsd may wait for its end for ever (some connection of those is never let go).
group_conform() {
    rdma_link siw eth0 ''
    nfsd_up
    ask client conform || failed=1
}

# both:WAY[:ROWS]  our client and our stagd, the guest's side of it on verbs:
#   host-guest, guest-host   client and server; the host's side is iwarp, the guest's device siw
#   siw, rxe                 both in the guest
group_both() {
    local kind=siw dev=dummy0 address=$ADDR
    case $1 in
        *host*) dev=eth0 address=${LABV_ADDR%/*} ;;
        *) kind=$1; net_dummy ;;
    esac
    rdma_link $kind $dev
    quiet_from
    case $1 in
        guest-host) row 40 stagd ask stagd off || skip="stagd does not start" ;;
        *) mountpoint -q $EXPORT || mount -t tmpfs -o size=400m,mode=777 export $EXPORT
            row 40 stagd stagd_up "$address" || skip="stagd does not start" ;;
    esac
    case $1 in
        host-guest) our_client host $EXPORT "${2:-}" ;;
        guest-host) client_here "$HOST_ADDR" /dir; our_client guest host "${2:-}" ;;
        *) client_here "$address" $EXPORT; our_client guest $EXPORT "${2:-}" ;;
    esac
    [ "$1" = guest-host ] || skip='' row 20 stagd-ends stagd_down
    skip=''
    row 5 dmesg is_quiet
    if [ $kind = siw ]; then siw_unload $dev; else rdma_unlink $kind $dev; fi
}

# fabrics  what `stag fabrics` and `stag doctor` say, where there are devices, where there are none, and on the host.
group_fabrics() {
    net_dummy
    rdma_link siw dummy0
    rdma_link rxe dummy0
    row 30 devices bash -c '/payload/stag fabrics >/tmp/fabrics; cat /tmp/fabrics; grep -w siw-dummy0 /tmp/fabrics && grep -w rxe-dummy0 /tmp/fabrics'
    row 30 doctor bash -c '/payload/stag doctor >/tmp/doctor; cat /tmp/doctor; grep -E "^ok +RDMA devices.*siw-dummy0" /tmp/doctor'
    rdma_unlink rxe dummy0
    siw_unload dummy0
    row 30 no-device bash -c '/payload/stag fabrics >/tmp/fabrics; cat /tmp/fabrics; grep -E "^verbs +does not work" /tmp/fabrics'
    row 30 host ask fabrics
}

modprobe rpcrdma
mkdir -p $MNT /var/lib/nfs/rpc_pipefs
rdma_modules
net_eth0
for g; do
    IFS=: read -r verb rest <<<"$g"
    group=${g//[:\/]/-}
    mkdir -p "/out/$group"
    ask group "$g"
    IFS=: read -ra arguments <<<"$rest"
    "group_$verb" "${arguments[@]}"
done
exit $failed
