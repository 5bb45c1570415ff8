#!/usr/bin/env bash
# Public NFS clients against a freshly started stagd: libnfs's commands and a program on libnfs, showmount, rpcinfo.
#
#   ci/clients.sh [--inside]
#
# A line for each check, `ok`, `FAILED` or `SKIPPED`, and `N passed, N failed, N skipped` at the end. It needs root: to fetch
# packages with apt-get, and for namespaces of its own, in which port 111 and /run are free for an rpcbind. If something is
# missing it says so: SKIPPED, status 77. STAGD names the program to test, else it is built. stagd's log is in target/ci/clients.
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
case ${1:-} in --inside) ;; -*) usage ;; esac

skipped() { echo "SKIPPED: $*"; exit 77; }
target=${CARGO_TARGET_DIR:-target}
out=$(realpath -m "$target/ci/clients")
profile=${STAG_PROFILE:-dev}
stagd_program=${STAGD:-$(realpath -m "$target/${profile/dev/debug}/stagd")}

prepare() {
    [ "$(id -u)" = 0 ] || skipped "it needs root, for packages and for namespaces of its own"
    need clients || skipped "$lacking"
    unshare -n -m true || skipped "no namespaces can be made"
    mkdir -p "$out"
    cc -O1 -Wall -o "$out/libnfs" ci/clients/libnfs.c -lnfs || exit 1
    [ -n "${STAGD:-}" ] || build_programs "$profile" || exit 1
}
if [ "${1:-}" != --inside ]; then
    prepare
    exec unshare -n -m "$0" --inside
fi

mount -t tmpfs none /run
ip link set lo up
work=$(mktemp -d "$out/work.XXXXXX")
mkdir "$work/dir"
stagd='' rpcbind='' as=()
trap 'kill $stagd $rpcbind 2>/dev/null; rm -rf "$work"' EXIT

passed=0 failed=0 skipped=0
# skip NAME: REASON
skip() { skipped=$((skipped + 1)); echo "SKIPPED $*"; }
# run COMMAND... : for a minute at most (STAG_SLOWNESS of them); functions run theirs so.
run() {
    local limit=$((60 * STAG_SLOWNESS)) status=0
    if [ "$(type -t "$1")" = function ]; then "$@"; return; fi
    timeout $limit "$@" || status=$?
    [ $status -ne 124 ] || { echo "TIMED OUT after $limit s: $*" | tee -a "$work/timeouts"; }
    return $status
}
# check NAME COMMAND... : the command succeeds
check() {
    local name=$1
    shift
    if run "$@" >"$work/output" 2>&1; then
        passed=$((passed + 1))
        echo "ok $name"
    else
        failed=$((failed + 1))
        echo "FAILED $name: $*"
        tail -n 5 "$work/output" | sed 's/^/    /'
    fi
}
not() { ! run "$@"; }
shows() { # shows PATTERN COMMAND...: its output has a line like that
    local pattern=$1
    shift
    local output
    output=$(run "$@" 2>&1)
    echo "$output"
    grep -qE -- "$pattern" <<<"$output"
}

# stagd_start OPTION... : iWARP on 20049, RPC over TCP on 2049
stagd_start() {
    # Not the last one's "ready".
    : >"$out/stagd.log"
    "${as[@]}" "$stagd_program" --export mem:/data,root_squash=no --export mem:/more,ro --export "dir:$work/dir,name=/dir,root_squash=no" --memory 256M \
        --listen iwarp://0.0.0.0:20049 --listen tcp://0.0.0.0:2049 "$@" >"$out/stagd.log" 2>&1 &
    stagd=$!
    local n=0
    until grep -q 'ready: tcp' "$out/stagd.log" || [ $n -gt $((100 * STAG_SLOWNESS)) ]; do sleep 0.1; n=$((n + 1)); done
    grep -q 'ready: tcp' "$out/stagd.log"
}
stagd_stop() {
    kill -TERM $stagd && wait $stagd
}

same_file() { # same_file FILE URL: written and read back
    run nfs-cp "$1" "$2" && run nfs-cat "$2" | cmp - "$1"
}

# files PREFIX EXPORT OPTIONS : libnfs's commands and our program on libnfs
files() {
    local name=$1 options=$3 len
    local url=nfs://127.0.0.1$2
    check "$name: nfs-ls of an export" nfs-ls "$url?$options"
    for len in 0 1 4095 4096 65536 1048576 5000001; do
        head -c $len /dev/urandom >"$work/file"
        check "$name: nfs-cp and nfs-cat of $len octets" same_file "$work/file" "$url/$len-${name// /-}?$options"
    done
    check "$name: nfs-ls shows what was written" shows ' 5000001 5000001-' nfs-ls "$url?$options"
    check "$name: nfs-ls of what is no export" not nfs-ls "nfs://127.0.0.1/nothing?$options"
    check "$name: names, links, attributes, listings" "$out/libnfs" names "$url?$options" "dir-${name// /-}"
    check "$name: writes and reads at random, compared" "$out/libnfs" data "$url?$options" "data-${name// /-}"
    check "$name: many Calls at once" "$out/libnfs" parallel "$url?$options" "many-${name// /-}"
}

check "stagd starts" stagd_start
files "TCP port" /data 'nfsport=2049&mountport=2049&version=3'
files "iWARP port" /data 'nfsport=20049&mountport=20049&version=3'
files "a directory" /dir 'nfsport=2049&mountport=2049&version=3'
if fio --enghelp 2>/dev/null | grep -qw nfs; then
    check "fio: writes at random, verified" fio --name=verify --ioengine=nfs --nfs_url='nfs://127.0.0.1/data?nfsport=2049&mountport=2049&version=3' \
        --rw=randwrite --bsrange=4k-1m --size=32m --iodepth=16 --verify=crc32c --verify_fatal=1
else
    skip "fio: there is none, or it has no engine nfs"
fi
check "stagd stops, and no buffer leaked" stagd_stop

# One server on two cores. A connection that is held has the first core, so the clients are at the other one: Calls about /data
# are carried, and a directory is served there.
two=$(awk '/^Cpus_allowed_list/ {
    n = split($2, parts, ",")
    for (i = 1; i <= n; i++) {
        m = split(parts[i], range, "-")
        for (c = range[1]; c <= range[m] && k < 2; c++) printf "%s%s", k++ ? "," : "", c
    }
}' /proc/self/status)
if [[ $two = *,* ]]; then
    export STAG_RUNTIME_DIR="$work"
    check "stagd starts on two cores" stagd_start --cores "$two"
    files "two cores" /data 'nfsport=2049&mountport=2049&version=3'
    exec 9<>/dev/tcp/127.0.0.1/2049
    files "two cores, carried" /data 'nfsport=2049&mountport=2049&version=3'
    files "two cores, a directory" /dir 'nfsport=20049&mountport=20049&version=3'
    exec 9>&-
    check "stagd stops on two cores, and no buffer leaked" stagd_stop
    check "both cores had connections" shows '^core .* [1-9][0-9]* Calls .* [1-9][0-9]* executed for others' cat "$out/stagd.log"
    unset STAG_RUNTIME_DIR
else
    skip "two cores: this process may use one"
fi

# A server that is not root: every client is its user, handles are found by walks.
mkdir "$work/nobody" "$work/state" && chmod 711 "$work" && chown 65534:65534 "$work/nobody" "$work/state"
as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if "${as[@]}" test -x "$stagd_program" -a -w "$work/nobody" 2>/dev/null; then
    check "stagd starts as nobody" stagd_start --export "dir:$work/nobody,name=/nobody" --state-dir "$work/state"
    files "a directory, as nobody" /nobody 'nfsport=2049&mountport=2049&version=3'
    check "what it made is nobody's" test "$(stat -c %u "$work/nobody"/* | sort -u)" = 65534
    check "stagd stops, as nobody" stagd_stop
else
    skip "stagd as nobody: that user may not go to $stagd_program or $work, or there is no setpriv"
fi
as=()

check "stagd --rpcbind says that there is none" not stagd_start --rpcbind
wait $stagd 2>/dev/null
rpcbind -w 2>"$work/rpcbind.log" || rpcbind 2>"$work/rpcbind.log"
ours() { # the rpcbind of this namespace
    pidof rpcbind | tr ' ' '\n' | while read -r pid; do [ "$(readlink "/proc/$pid/ns/net")" = "$(readlink /proc/self/ns/net)" ] && echo "$pid"; done
}
for _ in $(seq $((50 * STAG_SLOWNESS))); do rpcbind=$(ours); [ -n "$rpcbind" ] && break; sleep 0.1; done
check "rpcbind runs" rpcinfo -T tcp 127.0.0.1 100000 4
check "stagd --rpcbind starts" stagd_start --rpcbind
check "rpcinfo -p shows NFS" shows '100003 +3 +tcp +2049' rpcinfo -p 127.0.0.1
check "rpcinfo -p shows MOUNT" shows '100005 +3 +tcp +2049' rpcinfo -p 127.0.0.1
check "rpcinfo shows NFS over RDMA" shows '100003 +3 +rdma +0.0.0.0.78.81' rpcinfo 127.0.0.1
check "rpcinfo calls NFS" rpcinfo -T tcp 127.0.0.1 100003 3
check "rpcinfo calls MOUNT" rpcinfo -T tcp 127.0.0.1 100005 3
check "rpcinfo calls NLM" rpcinfo -T tcp 127.0.0.1 100021 4
check "rpcinfo calls NSM" rpcinfo -T tcp 127.0.0.1 100024 1
check "rpcinfo calls NSM by UDP" rpcinfo -T udp 127.0.0.1 100024 1
check "rpcinfo -u calls NSM" rpcinfo -u 127.0.0.1 100024 1
check "rpcinfo -p shows NSM by UDP" shows '100024 +1 +udp +2049' rpcinfo -p 127.0.0.1
check "rpcinfo calls NFS by UDP, in vain" not rpcinfo -T udp 127.0.0.1 100003 3
check "rpcinfo calls our own rpcbind by UDP" rpcinfo -a 127.0.0.1.8.1 -T udp 100000 2
check "rpcinfo calls NFSACL" rpcinfo -T tcp 127.0.0.1 100227 3
check "rpcinfo calls NFS version 4" rpcinfo -T tcp 127.0.0.1 100003 4
check "rpcinfo calls a version that is not there" not rpcinfo -T tcp 127.0.0.1 100003 5
check "showmount -e" shows '^/data' showmount -e 127.0.0.1
check "showmount -e shows all" shows '^/more' showmount -e 127.0.0.1
files "found by rpcbind" /data 'version=3'
check "stagd stops" stagd_stop
check "rpcinfo -p shows NFS no more" not shows 100003 rpcinfo -p 127.0.0.1
check "stagd starts again where one died" stagd_start --rpcbind
kill -KILL $stagd
wait $stagd 2>/dev/null
check "and again" stagd_start --rpcbind
check "stagd stops again" stagd_stop

sort -u "$work/timeouts" 2>/dev/null
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
