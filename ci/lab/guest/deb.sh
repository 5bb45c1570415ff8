#!/usr/bin/env bash
# The Debian packages on a machine with the kernel's client: installed, started, mounted, upgraded under the mount, removed. ci/deb.sh has them
# in the payload, those of the version before in payload/earlier.
. /payload/lib.sh

fail() { echo "deb: $*"; exit 1; }

server=''
# serve: starts what is installed, as its unit would, and waits until it serves.
serve() {
    : >/tmp/stagd.log
    stagd --config /etc/stag/stagd.toml --memory 64M --listen tcp://127.0.0.1:2049 --json >/tmp/stagd.log 2>&1 3<&- &
    server=$!
    until grep -q '"ready"' /tmp/stagd.log; do
        kill -0 "$server" || fail "stagd ended: $(tail -n 3 /tmp/stagd.log)"
        sleep 0.2
    done
}
installed() { dpkg-query -W -f '${Version}' stagd; }

ip link set lo up
dpkg -i /payload/earlier/*.deb || fail "the version before is not installed"
before=$(installed)
# Root of a client is nobody at this server, and is to write here.
chown nobody:nogroup /srv/stag
serve
mkdir -p /mnt
mount -t nfs -o "vers=4.2,proto=tcp,port=2049" 127.0.0.1:/data /mnt || fail "it is not mounted"
echo written before >/mnt/before
exec 3</mnt/before

# As the unit does: the new version is there, and the server starts again.
dpkg -i /payload/*.deb || fail "it is not upgraded"
after=$(installed)
dpkg --compare-versions "$before" lt "$after" || fail "$before is not before $after"
stag admin stop >/dev/null
wait "$server"
serve
[ "$(cat <&3)" = 'written before' ] || fail "a file that was open is not what it was"
echo written after >/mnt/after
[ "$(cat /srv/stag/before /srv/stag/after)" = "$(printf 'written before\nwritten after')" ] || fail "the files are not there"
exec 3<&-
umount /mnt || fail "it is not unmounted"
stag admin stop >/dev/null
wait "$server"

dpkg -r stagd stag >/dev/null || fail "it is not removed"
[ -e /srv/stag/before ] && [ ! -e /usr/bin/stagd ] || fail "a removal leaves the files, and no program"
echo "deb: installed $before, mounted, upgraded to $after under the mount, removed"
