#!/bin/bash
# Calls over one of the guest's RDMA devices while the device, its link or the other end is taken away.
#   faults.sh siw|rxe [all|ROW...]
# Every row is a server and a client of its own (engine/stag/examples/endure.rs), which keep 16 Calls under way, half of them
# moved by RDMA Read and Write. Then something breaks, and comes back. The row is ok if Calls go on, each Call that was begun
# has one outcome, both ends get all their buffers back, and the kernel has as many objects of the device as before.
. /payload/lib.sh
kind=$1
shift
device=$kind-dummy0
where=$ADDR:7300
net_eth0; net_dummy; rdma_modules
rdma_link "$kind" dummy0
ulimit -l unlimited                # siw counts registered memory

# up serve|call: starts one; it ends when what it reads does.
declare -A pid feed
up() {
    local fd
    rm -f "/tmp/$1.feed"
    mkfifo "/tmp/$1.feed"
    exec {fd}<>"/tmp/$1.feed"
    feed[$1]=$fd
    # Only this shell holds the feeds open.
    (
        for fd in "${feed[@]}"; do exec {fd}>&-; done
        exec /payload/endure "$1" "$where" <"/tmp/$1.feed" >>"/tmp/$1.log" 2>&1
    ) &
    pid[$1]=$!
}
# down serve|call: ends it, and waits for its word that all is well.
down() {
    local fd=${feed[$1]} n=0
    exec {fd}>&-
    while kill -0 "${pid[$1]}" 2>/dev/null && [ $n -lt $((450 * SLOWNESS)) ]; do sleep 0.2; n=$((n + 1)); done
    if [ $n -eq $((450 * SLOWNESS)) ]; then
        cat "/proc/${pid[$1]}"/task/*/stack >>"/tmp/$1.log"
        kill -9 "${pid[$1]}"
        problem="$1 does not end"
        return 1
    fi
    wait "${pid[$1]}" || { problem="$1: $(tail -n 1 "/tmp/$1.log")"; return 1; }
}
killed() {
    local fd=${feed[$1]}
    exec {fd}>&-
    kill -9 "${pid[$1]}"
    wait "${pid[$1]}" 2>/dev/null
}

# status NAME LOG: the latest number behind NAME.
status() { grep -o "$1\"*[=:] *[0-9]*" "/tmp/$2.log" | tail -n 1 | grep -o '[0-9]*$' || echo 0; }
# until_ SECONDS COMMAND...
until_() {
    local end=$((SECONDS + $1 * SLOWNESS))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.2
    done
}
more() { [ "$(status ok call)" -gt "$1" ]; }
# going WHEN: Calls are being answered.
going() { until_ 40 more $(($(status ok call) + 40)) || { problem="no Calls are answered $1"; return 1; }; }
no_connection() { tail -n 1 /tmp/serve.log | grep -q 'connections=0 '; }
gone() { ! tail -n 1 "/tmp/$1.log" | grep -q "device=$device"; }

# It waits until no process has the device open.
delete() {
    local deleter n=0
    rdma link delete "$device" &
    deleter=$!
    while [ -d /proc/$deleter ] && [ $n -lt $((100 * SLOWNESS)) ]; do sleep 0.2; n=$((n + 1)); done
    [ $n -lt $((100 * SLOWNESS)) ] || { problem="rdma link delete waits for somebody"; cat /proc/$deleter/stack; return 1; }
    wait $deleter || { problem="rdma link delete"; return 1; }
}
add() { rdma link add "$device" type "$kind" netdev dummy0 || { problem="rdma link add"; return 1; }; }
device_deleted() {
    delete || return 1
    until_ 10 gone serve && until_ 10 gone call || { problem="the device is gone and an end does not say so"; return 1; }
    sleep 3
    add
}
device_reset() { delete && add; }
# While a client connects.
device_deleted_early() {
    killed call
    : >/tmp/call.log
    up call
    until_ 10 grep -q begun= /tmp/call.log && delete && add
}
# When the connection manager sends a message over rxe that finds no route, the queue pair of its messages fails for good
# (rxe_qp_error; ib_mad brings only the sending half back): no connection over that device succeeds any more. So it is
# made anew.
revived() {
    [ "$kind" = rxe ] || return 0
    sleep 5 # Calls may go on for a moment.
    ! until_ 10 more $(($(status ok call) + 40)) || return 0
    note="; rxe's connection manager did not survive it: the device was made anew"
    delete && add
}
link_down() { ip link set dummy0 down; sleep 3; ip link set dummy0 up; revived; }
port_reset() { ip link set dummy0 down; ip link set dummy0 up; revived; }
address_removed() { ip addr del $ADDR/24 dev dummy0; sleep 3; ip addr add $ADDR/24 dev dummy0; revived; }
server_killed() { killed serve; sleep 2; up serve; }
client_killed() { killed call; until_ 30 no_connection || { problem="the server keeps a dead client"; return 1; }; up call; }
server_stopped() { kill -STOP "${pid[serve]}"; sleep 6; kill -CONT "${pid[serve]}"; }

objects() { rdma resource show "$device" | sed 's/^[0-9]*: //'; }
as_before() { [ "$(objects)" = "$before" ]; }

passed=0 failed=0
rows=(server_killed client_killed server_stopped port_reset link_down address_removed device_reset device_deleted device_deleted_early)
[ "${*:-all}" = all ] || rows=("$@")
for row in "${rows[@]}"; do
    problem='' note='' began=$EPOCHREALTIME lines=$(dmesg | wc -l)
    rm -f /tmp/serve.log /tmp/call.log
    # What a row broke is not the next one's.
    rdma link delete "$device"
    rdma link add "$device" type "$kind" netdev dummy0 || die "rdma link add"
    before=$(objects)
    up serve
    sleep 1
    up call
    going "at first" && "$row" && going "afterwards"
    down call
    down serve
    until_ 10 as_before || problem=${problem:-"objects before: $before; after: $(objects)"}
    oops=$(dmesg | tail -n +$((lines + 1)) | grep -E 'BUG|Oops|WARNING|refcount|general protection|page fault|Call Trace|RIP')
    took=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }')
    outcomes=$(grep '^end: begun' /tmp/call.log | tail -n 1 | sed 's/.*begun=\([0-9]*\) restored=\([0-9]*\).*outcomes=/\1 Calls, made anew \2 times: /')
    if [ -z "$problem$oops" ]; then
        passed=$((passed + 1))
        echo "ok   $row ($took): $outcomes$note"
    else
        failed=$((failed + 1))
        echo "FAIL $row ($took): $problem"
        for log in serve call; do tail -n 12 /tmp/$log.log | cut -c1-400 | sed "s/^/     $log: /"; done
        [ -z "$oops" ] || sed 's/^/     kernel: /' <<<"$oops"
    fi
done
echo "$kind, kernel $(uname -r), faults: $passed passed, $failed failed"
[ $failed -eq 0 ]
