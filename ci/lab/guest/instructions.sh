#!/bin/bash
# Instructions that a NULL Call takes at either end, over one of the guest's RDMA devices, beside those of ib_send_lat for the
# same two Sends.   instructions.sh siw|rxe [SENDS]
# Both ends of either pair run at once, and one of them is stepped (bench/examples/instructions.rs says how it is counted).
. /payload/lib.sh
kind=$1
sends=${2:-200}
net_eth0; net_dummy; rdma_modules
rdma_link "$kind" dummy0
ulimit -l unlimited                # siw counts registered memory

# count WHAT PID
count() {
    echo "$1, $kind:"
    /payload/instructions "$2" "$sends" | sed 's/^/  /' || bad=1
}
bad=0

mkdir -p /tmp/ex
/payload/stagd --listen "verbs://$ADDR:20049" --export mem:/ex >/tmp/stagd.log 2>&1 &
server=$!
sleep 3
/payload/stag perf null "verbs://$ADDR:20049/ex" --repeat 1 --duration 300s >/tmp/perf.log 2>&1 &
client=$!
sleep 6
count "NULL Call, stag perf (Requester)" $client
count "NULL Call, stagd (Responder)" $server
kill $client; wait $client 2>/dev/null
kill $server; wait $server 2>/dev/null
[ $bad = 0 ] || tail -n 5 /tmp/stagd.log /tmp/perf.log

# A NULL Call is 68 octets and its Reply 52, with the transport header.
size=68
/usr/bin/ib_send_lat -R -d "$kind-dummy0" -s $size -n 5000000 -p 7180 >/tmp/s.log 2>&1 &
server=$!
sleep 2
/usr/bin/ib_send_lat -R -d "$kind-dummy0" -s $size -n 5000000 -p 7180 $ADDR >/tmp/c.log 2>&1 &
client=$!
sleep 4
count "ib_send_lat, client" $client
count "ib_send_lat, server" $server
kill $client $server
[ $bad = 0 ] || tail -n 5 /tmp/s.log /tmp/c.log
exit $bad
