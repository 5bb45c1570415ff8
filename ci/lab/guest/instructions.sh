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
    if timeout 60 /payload/instructions "$2" "$sends" >/tmp/count.log 2>&1; then
        sed 's/^/  /' /tmp/count.log
    else
        bad=1
        tail -n 3 /tmp/count.log /tmp/*.log
    fi
}
bad=0

# A NULL Call is 68 octets and its Reply 52, with the transport header.
size=68
/usr/bin/ib_send_lat -R -d "$kind-dummy0" -s $size -n 5000000 -p 7180 >/tmp/s.log 2>&1 &
server=$!
sleep 2
/usr/bin/ib_send_lat -R -d "$kind-dummy0" -s $size -n 5000000 -p 7180 "$ADDR" >/tmp/c.log 2>&1 &
client=$!
sleep 4
count "ib_send_lat, client" $client
count "ib_send_lat, server" $server
kill $client $server
wait 2>/dev/null

mkdir -p /tmp/ex
/payload/stagd --listen "verbs://$ADDR:20049" --export mem:/ex >/tmp/stagd.log 2>&1 &
server=$!
until grep -q ready /tmp/stagd.log || [ ! -d /proc/$server ]; do sleep 0.5; done
/payload/stag ping -c 100000000 "verbs://$ADDR:20049" >/tmp/ping.log 2>&1 &
client=$!
sleep 6
count "NULL Call, stag ping (Requester)" $client
count "NULL Call, stagd (Responder)" $server
kill $client; wait $client 2>/dev/null
kill $server; wait $server 2>/dev/null
exit $bad
