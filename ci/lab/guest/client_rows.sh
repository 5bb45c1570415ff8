# shellcheck shell=bash disable=SC2154
# The rows of our client, sourced by ci/interop.sh on the host, and by rows.sh in the guest.
#
# Each client_NAME is a row: the program $stag against the export $url of $server, with $tree, a local tree to bring there,
# $sample, a folder of some files, and $work for results. $crc is `on` or `off` where the fabric has that to choose.
# served_NAME is for the server's side, in the folder FOLDER that it exports.

# shellcheck disable=SC2034 # used by the script that sources this
client_rows=(ping exports put digests get links many names errors parallel reuse perf remove)

served_fresh() { # FOLDER
    rm -rf "${1:?}"/*
    mkdir -m 777 "$1/many"
    (cd "$1/many" && seq -f 'entry-with-a-name-of-some-length-%06.0f' 3000 | xargs touch)
}

# What the server has after `put`, by its own account: the row `digests` compares.
served_sums() { # FOLDER
    (cd "$1" && find tree -type f | sort | xargs -d '\n' sha256sum >sums.new && mv sums.new sums)
}

# Whether each core of that stagd, which writes to LOG, had connections, by its own account.
spread() { # PID LOG CORES
    local n=0
    kill -USR1 "$1"
    until [ "$(grep -cE '^core +[0-9]+ +[0-9]+ Calls on ' "$2")" -ge "$3" ]; do
        n=$((n + 1))
        [ $n -lt 100 ] || { cat "$2"; return 1; }
        sleep 0.1
    done
    grep -E '^core .* Calls on ' "$2"
    ! grep -qE '^core .* on 0 RDMA and 0 TCP connections' "$2"
}

# Files of 0 B to 8 MB around the limits of pages, messages and rsize; links of every length; folders; 3000 entries.
make_tree() {
    local n
    # Of another group.
    rm -rf "$tree" "$work/back" "$work/one" "$work"/own?
    mkdir -p "$tree/sizes" "$tree/links" "$tree/deep/er/still"
    for n in 0 1 3 511 512 513 1000 3000 4095 4096 4097 5000 65535 65536 65537 100001 131071 131072 131073 262144 1048575 \
        1048576 1048577 5000003 8388608; do
        head -c $n /dev/urandom >"$tree/sizes/f$n"
    done
    for n in 1 8 255 1000 2000 4000; do
        ln -s "$(printf "%${n}s" '' | tr ' ' l)" "$tree/links/to$n"
    done
    cp -r "$sample" "$tree/deep/er/still/"
    echo small >"$tree/deep/er/a file with spaces in its name"
}

# shellcheck disable=SC2086 # the words of LABV_FEATURES
stag() { "$stag" ${crc:+--crc "$crc"} ${LABV_FEATURES:-} "$@"; }

client_ping() { stag ping "$url"; }

client_exports() {
    stag ls "$server" | grep -x -- "${url#"$server"}" && stag df "$url" && stag stat "$url"
}

client_put() {
    make_tree
    stag put -r "$tree" "$url/tree"
}

client_digests() {
    stag cat "$url/sums" >"$work/theirs" &&
        (cd "$work" && find tree -type f | sort | xargs -d '\n' sha256sum) >"$work/ours" &&
        [ -s "$work/ours" ] && diff "$work/ours" "$work/theirs"
}

client_get() {
    stag get -r "$url/tree" "$work/back" && diff -r --no-dereference "$tree" "$work/back" &&
        stag cat "$url/tree/sizes/f1048577" | cmp - "$tree/sizes/f1048577" && stag cp "$url/tree/sizes/f8388608" "$work/one" &&
        cmp "$work/one" "$tree/sizes/f8388608"
}

client_links() {
    local n
    for n in 1 8 255 1000 2000 4000; do
        [ "$(readlink "$work/back/links/to$n")" = "$(readlink "$tree/links/to$n")" ] || return
    done
    [ "$(stag ls -l "$url/tree/links" | grep -c '^l')" = 6 ]
}

client_many() {
    [ "$(stag ls "$url/many" | wc -l)" = 3000 ] && [ "$(stag ls "$url/many" | sort -u | wc -l)" = 3000 ] &&
        [ "$(stag ls --json -l "$url/many" | grep -c '"size":0')" = 3000 ]
}

client_names() {
    stag mkdir "$url/folder" && stag put "$tree/sizes/f5000" "$url/folder/a" && stag mv "$url/folder/a" "$url/folder/b" &&
        stag cat "$url/folder/b" | cmp - "$tree/sizes/f5000" && ! stag stat "$url/folder/a" &&
        stag cp -r "$url/folder" "$url/again" && stag cat "$url/again/b" | cmp - "$tree/sizes/f5000" &&
        stag rm "$url/folder/b" && stag rm -r "$url/again" && [ -z "$(stag ls "$url/folder")" ] && stag rm -r "$url/folder"
}

# What the server refuses is said, and the status is 1.
client_errors() {
    local c status
    for c in "cat $url/nothing" "rm $url/tree" "mkdir $url/tree" "ls $server/no/such/export" "cat $url/tree"; do
        # shellcheck disable=SC2086 # words.
        stag $c
        status=$?
        [ $status -eq 1 ] || { echo "stag $c: status $status"; return 1; }
    done
}

client_parallel() {
    local k pids=() bad=0
    for k in 1 2 3 4; do
        (
            rm -rf "$work/own$k"
            stag put -r "$tree/sizes" "$url/own$k" && stag get -r "$url/own$k" "$work/own$k" &&
                diff -r "$tree/sizes" "$work/own$k" && stag rm -r "$url/own$k"
        ) &
        pids+=($!)
    done
    for k in "${pids[@]}"; do wait "$k" || bad=1; done
    return $bad
}

# That again and again, LABV_ROUNDS times: memory that a server gives back too early holds something else by the time it is sent.
client_reuse() {
    local round
    for ((round = 1; round <= ${LABV_ROUNDS:-1}; round++)); do client_parallel || { echo "round $round"; return 1; }; done
}

# Calls in a row, under load, as perf makes them: a fixed number, however long they take. A round that is over by time fails
# if the machine had none for the guest meanwhile.
client_perf() {
    local count=(--repeat 1 -n)
    stag perf null -q 8 "${count[@]}" 300 "$server" && stag perf read -s 64K -q 4 "${count[@]}" 100 "$url" &&
        stag perf write -s 64K -q 4 "${count[@]}" 100 "$url"
}

client_remove() { stag rm -r "$url/tree" && ! stag stat "$url/tree"; }

# Not in the list: only a kernel's server has a list of deviations (group_conform of rows.sh).
# shellcheck disable=SC2154 # kernel, of ci/interop.sh.
client_conform() { stag conform "$server" --export "${url#"$server"}" --expect "ci/lab/guest/conform-linux-$kernel.txt"; }
