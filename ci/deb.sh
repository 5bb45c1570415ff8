#!/usr/bin/env bash
# Debian packages of the programs.
#   ci/deb.sh            builds target/debian/stag_VERSION_ARCH.deb and stagd_VERSION_ARCH.deb
#   ci/deb.sh --check    also installs them into a clean Debian root, runs them there, upgrades and removes them (as root); if the guest of
#                        ci/lab was built, the kernel in it mounts what they serve, and the upgrade is under that mount
# PROFILE names cargo's profile (default: dist).
set -euo pipefail
cd "$(dirname "$0")/.."

. ci/programs.sh

profile=${PROFILE:-dist}
folder=target/debian
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)

# package NAME DESCRIPTION DEPENDS [FOLDER]: packs $folder/NAME, into another folder than that.
package() {
    local name=$1 description=$2 depends=$3 to=${4:-$folder} root=$folder/$1 size
    size=$(du -sk "$root" | cut -f1)
    mkdir -p "$root/DEBIAN"
    cat > "$root/DEBIAN/control" <<END
Package: $name
Version: $version
Architecture: $arch
Maintainer: The Stag developers <stag@localhost>
Installed-Size: $size
Depends: $depends
Section: net
Priority: optional
Description: $description
END
    dpkg-deb --build --root-owner-group "$root" "$to/${name}_${version}_$arch.deb" >/dev/null
    echo "$to/${name}_${version}_$arch.deb"
}

# package_both [FOLDER]
package_both() {
    package stag "tool for RPC over RDMA: copies files, measures, checks, explains" "libc6 (>= ${libc#GLIBC_})" "$@"
    package stagd "NFS server over RDMA and TCP, in user space" "libc6 (>= ${libc#GLIBC_}), stag (= $version)" "$@"
}

build() {
    build_programs "$profile"
    local programs=${CARGO_TARGET_DIR:-target}/$profile
    [ "$profile" != dev ] || programs=${CARGO_TARGET_DIR:-target}/debug
    rm -rf "$folder"
    mkdir -p "$folder"
    # The oldest C library that has the symbols which the programs use.
    libc=$(objdump -T "$programs/stagd" "$programs/stag" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
    "$programs/stag" generate "$folder/generated"

    local name section
    for name in stag stagd; do
        install -D -m 755 "$programs/$name" "$folder/$name/usr/bin/$name"
        install -D -m 644 -t "$folder/$name/usr/share/doc/$name" LICENSE-MIT LICENSE-APACHE
        install -D -m 644 "$folder/generated/$name.bash" "$folder/$name/usr/share/bash-completion/completions/$name"
        install -D -m 644 "$folder/generated/_$name" "$folder/$name/usr/share/zsh/vendor-completions/_$name"
        install -D -m 644 "$folder/generated/$name.fish" "$folder/$name/usr/share/fish/vendor_completions.d/$name.fish"
        section=$([ "$name" = stagd ] && echo 8 || echo 1)
        for page in "$folder/generated/$name"*".$section"; do
            install -D -m 644 "$page" "$folder/$name/usr/share/man/man$section/${page##*/}"
            gzip -9n "$folder/$name/usr/share/man/man$section/${page##*/}"
        done
    done
    install -D -m 644 -t "$folder/stagd/usr/lib/systemd/system" apps/package/stagd.service apps/package/stag-hugepages.service
    install -D -m 644 apps/package/stagd.toml "$folder/stagd/etc/stag/stagd.toml"
    mkdir -p "$folder/stagd/DEBIAN" "$folder/stagd/srv/stag"
    echo /etc/stag/stagd.toml > "$folder/stagd/DEBIAN/conffiles"
    install -m 755 apps/package/postinst apps/package/prerm "$folder/stagd/DEBIAN/"

    package_both
}

# The same programs as packages of an earlier version, in $folder/earlier: dpkg calls the scripts of an upgrade, and knows which version it was.
build_earlier() {
    mkdir -p "$folder/earlier"
    version="0~earlier" package_both "$folder/earlier" >/dev/null
}

# In the guest of ci/lab: a kernel that mounts.
check_mount() {
    # shellcheck source=ci/lab/cache.sh
    . ci/lab/cache.sh
    [ -e "$LAB_CACHE/root.ext4" ] || { echo "deb: not mounted: there is no guest; ci/lab/build.sh 6.1 makes it"; return; }
    local payload log=$folder/guest.log
    payload=$(mktemp -d)
    cp -r "$folder"/*.deb "$folder/earlier" "$payload/"
    ci/lab/boot.sh -l "$log" -p "$payload" deb.sh || { cat "$log"; rm -r "$payload"; exit 1; }
    grep '^deb: ' "$log"
    rm -r "$payload"
}

# A clean Debian in $1, of the release of this machine.
clean_root() {
    local release
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    debootstrap --variant=minbase "$release" "$1" >/dev/null
}

check() {
    . ci/packages.sh
    need deb || { echo "deb: SKIPPED: $lacking"; exit 77; }
    [ "$(id -u)" = 0 ] || { echo "deb: SKIPPED: not root"; exit 77; }
    root=$(mktemp -d)
    server=''
    trap '[ -z "$server" ] || kill "$server" 2>/dev/null; umount "$root/proc" "$root/sys" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
    clean_root "$root" || { echo "deb: SKIPPED: debootstrap could not make a clean root"; exit 77; }
    mount -t proc proc "$root/proc"
    # Which cores there are.
    mount -t sysfs -o ro sysfs "$root/sys"
    mkdir "$root/tmp/earlier"
    cp "$folder"/*.deb "$root/tmp/"
    cp "$folder"/earlier/*.deb "$root/tmp/earlier/"
    inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"; }

    inside sh -c 'dpkg -i /tmp/earlier/*.deb' >/dev/null
    inside stagd --version
    inside test -s /usr/share/man/man8/stagd.8.gz -a -s /usr/share/bash-completion/completions/stagd
    inside stagd --config /etc/stag/stagd.toml --check --memory 64M >/dev/null
    # Root of a client is nobody at this server, and is to write here.
    inside chown nobody:nogroup /srv/stag
    # It serves what the configuration says, until it is told to stop.
    inside stagd --config /etc/stag/stagd.toml --memory 64M --listen shm://deb-check-$$ --json >"$root/tmp/log" &
    server=$!
    until grep -q '"ready"' "$root/tmp/log"; do kill -0 "$server"; sleep 0.2; done
    inside sh -c "echo text > /tmp/file && stag put /tmp/file shm://deb-check-$$/data/file && stag ls shm://deb-check-$$/data" |
        grep -q file
    # An upgrade keeps the configuration, and the server that runs; a removal keeps the files.
    echo '# changed' >> "$root/etc/stag/stagd.toml"
    inside sh -c 'dpkg -i /tmp/stag_*.deb /tmp/stagd_*.deb' >/dev/null
    [ "$(inside dpkg-query -W -f '${Version}' stagd)" = "$version" ]
    grep -q '# changed' "$root/etc/stag/stagd.toml"
    inside stag admin exports | grep -q /data
    inside stag admin stop >/dev/null
    wait "$server"
    server=''
    inside test -s /srv/stag/file
    inside dpkg -r stagd stag >/dev/null
    inside test -e /srv/stag/file -a ! -e /usr/bin/stagd -a -e /etc/stag/stagd.toml
    inside dpkg -P stagd >/dev/null
    inside test ! -e /etc/stag/stagd.toml
    echo "deb: installed, served, upgraded and removed in a clean Debian root"
}

build
[ "${1:-}" != --check ] || { build_earlier; check; check_mount; }
