#!/usr/bin/env bash
# Walks the ways of a newcomer, an embedder, a performance engineer and an operator in a clean Debian root, with the commands of
# the guides and nothing else. ci/deb.sh --check has more of an operator's way: the service, an upgrade, a removal.
#
#   ci/walk.sh [newcomer] [embedder] [engineer] [operator]      (default: all; 25 minutes on two cores)
#
# A command that a guide does not have any more, or that fails, is a failure. A line for each way, `ok` or `FAILED`, and
# `N passed, N failed, N skipped` at the end; what was said stands in target/ci/walk. The root has Debian's base and a C linker;
# Rust and the crates that Cargo.lock names come from this machine. It needs root, for chroot and for namespaces: if they are missing
# it says so, SKIPPED, status 77.
set -uo pipefail
# shellcheck source=ci/usage.sh
. "$(dirname "$0")/usage.sh"
# shellcheck source=ci/packages.sh
. "$(dirname "$0")/packages.sh"
cd "$(dirname "$0")/.." || exit 1

skipped() { echo "SKIPPED: $*"; exit 77; }
out=$(realpath -m "${CARGO_TARGET_DIR:-target}/ci/walk")
root=$out/root

# block FILE HEADING [NUMBER]: the first or a later block of shell commands below a heading of a guide
block() {
    awk -v heading="$2" -v wanted="${3:-1}" '
        /^```/ { if (inside) inside = 0; else if (below && /^```sh/ && ++n == wanted) inside = found = 1; next }
        inside { print; next }
        /^#+ / { title = $0; sub(/^#+ /, "", title); below = title == heading }
        END { exit !found }' "$1" || { echo "false # $1 has no block $* of commands"; return 1; }
}
# picked FILE HEADING NUMBER START... : of that block, the lines that begin so
picked() {
    local file=$1 heading=$2 number=$3 start
    shift 3
    for start; do
        block "$file" "$heading" "$number" | grep -m 1 -F -- "$start" || echo "false # $file has no line: $start"
    done
}
# program FILE NUMBER: the first or a later block of Rust of a guide, without what rustdoc hides
program() { awk -v wanted="$2" '/^```rust/ { n++; inside = n == wanted; next } /^```/ { inside = 0 } inside { sub(/^# /, ""); print }' "$1"; }

# The ways: the lines that a user types.
newcomer() {
    # A selection of tests, as the guide's comment says.
    block README.md 'Try it' | sed 's|^ci/test.sh .*: \(ci/test.sh .*\)|\1|'
    echo 'cargo build --release'
    block README.md 'Use it' | sed 's/HOST/127.0.0.1/'
}
embedder() {
    echo 'cargo new --quiet /walker/echo && cd /walker/echo'
    picked README.md 'Use it' 3 'cargo add' | sed 's|STAG|/src|'
    echo 'mkdir src/bin && cp /walk/server.rs /walk/client.rs src/bin/ && rm src/main.rs'
    echo 'cargo build --quiet'
    echo './target/debug/server &'
    echo './target/debug/client'
    echo 'kill %1 && wait %1'
}
engineer() {
    echo 'cargo build --release'
    picked bench/docs/running.md 'Rates and latencies' 1 'stag perf null -q 32 ' 'stag perf read --all'
    picked bench/docs/running.md 'Rates and latencies' 2 'stag perf read -s 4K --rate 200k' 'stag perf null -q 32 --histogram'
    picked bench/docs/running.md 'Sets of figures: `stag bench`' 1 'stag bench run'
    echo 'cp new.json old.json'
    picked bench/docs/running.md 'Sets of figures: `stag bench`' 1 'stag bench compare old.json' 'stag bench report'
}
# The packages are those that ci/deb.sh has built before; an operator has them from a release.
operator() {
    picked apps/docs/install.md 'Debian packages' 1 'apt install'
    block apps/docs/install.md 'Check the machine'
    block apps/docs/install.md 'First server' | grep -v '^kill'
    echo 'stag admin exports && stag admin clients && stag admin stats'
    echo 'stag admin exports add dir:/srv,name=/new && stag ls shm://box/new && stag admin exports remove /new'
    echo 'kill %1 && wait %1'
}

# Runs lines as somebody who types them: one that ends in & is waited for until its program says that it is ready.
typist() {
    cat <<'END'
set -m
cd /src
failed=0
while IFS= read -r line <&3; do
    case $line in '' | '#'*) continue ;; esac
    echo "\$ $line"
    command=$(sed -E 's/ +# .*//' <<<"$line")
    if [ "${command: -1}" = '&' ]; then
        : >/tmp/said
        eval "${command%&} >>/tmp/said 2>&1 &"
        # A program of one's own says nothing: then it has 5 s.
        for ((i = 0; i < 50; i++)); do
            grep -q '^ready' /tmp/said && break
            kill -0 $! || break
            sleep 0.1
        done
        kill -0 $! || { cat /tmp/said; failed=1; break; }
    else
        eval "$command" </dev/null || { echo "FAILED ($?): $line"; failed=1; break; }
    fi
done 3<"$1"
jobs -p | xargs -r kill 2>/dev/null
wait
exit $failed
END
}

# clean_root: Debian's base, with what a linker needs, in $root
clean_root() {
    local release
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    debootstrap --variant=minbase --include=gcc,libc6-dev,procps "$release" "$root" >"$out/debootstrap.log" 2>&1 ||
        skipped "debootstrap could not make a clean root: $out/debootstrap.log"
    echo 'walker:x:1000:1000::/walker:/bin/bash' >>"$root/etc/passwd"
    mkdir -p "$root/src" "$root/walk" "$root/walker" "$root/rust/toolchain" "$root/rust/cargo"
    git ls-files -z | xargs -0 cp --parents -a -t "$root/src"
    git rev-parse HEAD >/dev/null && cp -a .git "$root/src/"
    [ ! -e target/debian ] || { mkdir -p "$root/src/target" && cp -a target/debian "$root/src/target/"; }
    program README.md 1 >"$root/walk/server.rs"
    program README.md 2 >"$root/walk/client.rs"
    typist >"$root/walk/typist.sh"
    chown -R 1000:1000 "$root/src" "$root/walker"
}

# walk NAME: as the user walker, who is not root; an operator is
walk() {
    local user=1000:1000
    [ "$1" != operator ] || user=0:0
    "$1" >"$root/walk/$1"
    chroot --userspec=$user "$root" env -i HOME=/walker CARGO_NET_OFFLINE=true \
        CARGO_HOME=/rust/cargo CARGO_INCREMENTAL=0 GIT_CONFIG_COUNT=1 \
        GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' \
        PATH=/src/target/release:/rust/toolchain/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        bash /walk/typist.sh "/walk/$1" >"$out/$1.log" 2>&1
}

if [ "${1:-}" != --inside ]; then
    for way; do case $way in newcomer | embedder | engineer | operator) ;; *) usage ;; esac; done
    [ "$(id -u)" = 0 ] || skipped 'it needs root, for chroot and for namespaces of its own'
    need deb || skipped "$lacking"
    mkdir -p "$out"
    [[ " ${*:-operator} " != *' operator '* ]] || ci/deb.sh >"$out/deb.log" 2>&1 ||
        { echo "FAILED ci/deb.sh: $out/deb.log"; exit 1; }
    clean_root
    # Nothing outlives it: neither mounts nor programs.
    unshare -m -n -p -f --kill-child "$0" --inside "${@:-newcomer embedder engineer operator}"
    status=$?
    rm -rf --one-file-system "$root"
    exit $status
fi
shift
ip link set lo up
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
mount --bind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount --bind "$(rustc --print sysroot)" "$root/rust/toolchain"
mount --bind "${CARGO_HOME:-$HOME/.cargo}" "$root/rust/cargo"
passed=0 failed=0
for way in $*; do
    began=$SECONDS
    if walk "$way"; then
        passed=$((passed + 1))
        echo "ok $way ($((SECONDS - began)) s)"
    else
        failed=$((failed + 1))
        tail -n 20 "$out/$way.log" | sed 's/^/    /'
        echo "FAILED $way ($((SECONDS - began)) s): $out/$way.log"
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
