#!/usr/bin/env bash
# Counts the instructions of one Call at the Requester and at the Responder: they do not jitter as times do.
#   bench/instructions.sh [--chunks | --nfs] [--depth N] [--profile dist|release]...
#   bench/instructions.sh --check | --renew [--profile dist|release]...
#   bench/instructions.sh --device siw|rxe [-k 6.1|6.12]
# Client and server run in one thread (one_thread) and take turns. Over shm and over `verbs`, whose device does nothing, no
# pass is idle; what the library's functions execute is taken off: the rest is ours. Needs valgrind.
#
# Without more it counts NULL. --chunks: also a Call with a Write chunk of 4 KiB (get), and one with a Read chunk (put). Over shm
# that has the copy in it. --nfs: GETATTR, READ and WRITE of 4 KiB on a file of a mem: export.
#
# --depth: of N Calls outstanding at once (default: 1), which share a turn.
#
# --profile: with cargo's profile (default: dist). Of two, the second's figures are also said in percent of the first's; status 1 if
# one of them is more than 15 % worse: then a function that is called across crates lacks #[inline].
#
# --check: compares what is counted with bench/budgets.toml. More than 2 % above a budget is a failure; more than 5 % below it asks
# for a lower budget. --renew: writes what is counted to that file; the budgets of other profiles stay. Both also count iWARP, over the
# loopback: what is executed above the sockets, as a system call counts as the one instruction that makes it.
#
# --device: over a device of the guest (ci/lab/build.sh, once), and ib_send_lat's Send and Receive on the same, counted in the same
# way; see bench/docs/running.md.
#
# SKIPPED, status 77: without valgrind or the guest, or where counts cannot be compared with the budgets (another compiler or CPU).
set -euo pipefail
cd "$(dirname "$0")/.."

device='' kernel=6.1 kinds=null depth=1 profiles=() with_budgets=''
while [ $# -gt 0 ]; do
    case $1 in
        --device) device=$2; shift ;;
        -k) kernel=$2; shift ;;
        --chunks) kinds='null get put' ;;
        --nfs) kinds='getattr read write' ;;
        --check | --renew) with_budgets=${1#--} ;;
        --depth) depth=$2; shift ;;
        --profile) profiles+=("$2"); shift ;;
        *) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    esac
    shift
done
skipped() { echo "SKIPPED: $*"; exit 77; }
if [ -n "$with_budgets" ]; then
    # shellcheck source=ci/packages.sh
    . ci/packages.sh
    need budgets || skipped "$lacking"
fi
command -v valgrind >/dev/null || skipped "valgrind is not there (Debian: apt-get install valgrind)"
# shellcheck source=ci/lab/cache.sh
. ci/lab/cache.sh
if [ -n "$device" ] && [ ! -e "$LAB_CACHE/kernel-$kernel/version" ]; then
    skipped "there is no guest with kernel $kernel: run ci/lab/build.sh $kernel first"
fi
# build PROFILE: sets program
build() {
    # Without what .ci/run asks of the compiler. Incremental compilation would divide a crate in other units.
    CARGO_INCREMENTAL=0 env -u RUSTC_WORKSPACE_WRAPPER -u RUSTFLAGS \
        cargo build --quiet --locked --profile "$1" --package stag-one-thread
    program=$(realpath "${CARGO_TARGET_DIR:-target}/$1/one_thread")
}
counts=$(mktemp -d)
trap 'rm -rf "$counts"' EXIT

# executed FABRIC DEPTH KIND: for the Requester and then the Responder, instructions of one Call without the library's, and the
# library's. Where there is a library, one run counts one end, as what is executed in it cannot be told apart by its end.
executed() {
    if [ "$1" = verbs ]; then
        counted "$@" client_turn
        counted "$@" server_turn
    else
        counted "$@" client_turn server_turn
    fi
}

# counted FABRIC DEPTH KIND TURN... : in one run, a line for each turn
counted() {
    local out=$counts/$1.$2.$3.$4 calls=512 turn collect=()
    for turn in "${@:4}"; do collect+=(--toggle-collect="*$turn*"); done
    valgrind --tool=callgrind --collect-atstart=no --zero-before='*counted_from_here*' "${collect[@]}" \
        --callgrind-out-file="$out" "$program" "$1" $calls "$2" "$3" >"$out.log" 2>&1 || { cat "$out.log" >&2; return 1; }
    # The entries of the table: what they call in their turn is in their sum. From here, so that it does not shorten names.
    (cd "$counts" && callgrind_annotate --inclusive=yes --threshold=100 --auto=no "$out") 2>/dev/null | tr -d , |
        awk -v calls=$calls -v turns="${*:4}" '
        match($0, /one_thread::(client|server)_turn \[/) { all[substr($0, RSTART + 12, RLENGTH - 14)] += $1 }
        /one_thread::fake::verbs::(poll_cq|post_send|post_recv|post_srq_recv|req_notify_cq) \[/ { library += $1 }
        END {
            n = split(turns, turn, " ")
            for (i = 1; i <= n; i++) {
                if (!(turn[i] in all)) exit 1
                printf "%d %d\n", (all[turn[i]] - library) / calls, library / calls
            }
        }'
}

# on_nothing PROFILE
on_nothing() {
    local kind fabric end library ours
    printf '%-7s %-6s %-10s %22s %22s\n' Call fabric end "instructions a Call" "and in the library"
    for kind in $kinds; do
        for fabric in shm verbs; do
            while read -r end ours library; do
                printf '%-7s %-6s %-10s %22d %22d\n' "$kind" $fabric "$end" "$ours" "$library"
                echo "$kind $fabric $end $ours" >>"$counts/of.$1"
            done < <(executed $fabric "$depth" "$kind" | paste -d ' ' <(printf 'Requester\nResponder\n') -)
        done
    done
}

# Sections are PROFILE.FABRIC.
budgets=bench/budgets.toml
compiler() { rustc --version | cut -d ' ' -f 2; }

# count_budgets PROFILE: a line SECTION NAME REQUESTER RESPONDER of each row; NAME is the Call's, "_carried" if another reactor executes
# it or "_observed" if it is counted, and its depth if that is not 1
count_budgets() {
    local fabric rows row requester responder _
    for fabric in shm verbs iwarp; do
        rows=(null:1 null:32 getattr:1 get:1 put:1 read:1 write:1)
        [ $fabric = iwarp ] || rows+=(getattr:32 read:32 write:32 getattr+carried:32 read+carried:32 write+carried:32)
        [ $fabric != shm ] || rows+=(getattr+observed:32 getattr4:32 read4:32 write4:32)
        for row in "${rows[@]}"; do
            { read -r requester _ && read -r responder _; } < <(executed $fabric "${row#*:}" "${row%:*}") || return 1
            row=${row/:/_} row=${row/+/_}
            echo "$1.$fabric ${row%_1} ${requester:?} ${responder:?}"
        done
    done
}

# renew: writes the file from the lines of count_budgets; its comment, and the sections of profiles that were not counted, stay
renew() {
    sed '/^[^#]/,$d' $budgets
    printf 'rustc = "%s"\n' "$(compiler)"
    awk '
        # The new lines first.
        NR == FNR { lines[$1] = lines[$1] sprintf("%-18s = { requester = %5d, responder = %5d }\n", $2, $3, $4); next }
        /^\[/ { section = substr($1, 2, length($1) - 2); if (!(section in lines)) kept[section] = 1 }
        /requester/ && section in kept { lines[section] = lines[section] $0 "\n" }
        END {
            split("dist release", profiles, " "); split("shm verbs iwarp", fabrics, " ")
            for (p = 1; p <= 2; p++) for (f = 1; f <= 3; f++) {
                section = profiles[p] "." fabrics[f]
                if (section in lines) printf "\n[%s]\n%s", section, lines[section]
            }
        }' - $budgets
}

# check PROFILE...: a line for each figure; status 1 if one is too high, or has no budget, or a budget of these profiles no figure
check() {
    awk -v renew="bench/instructions.sh --renew" -v profiles=" $* " '
        function compare(end, is, budget,    name, depth, percent) {
            name = $2
            depth = match(name, /_[0-9]+$/) ? substr(name, RSTART + 1) : 1
            sub(/_[0-9]+$/, "", name)
            split($1, place, ".")
            name = sprintf("%s: %s %s %s depth %d", place[1], name, place[2], end, depth)
            percent = (is - budget) * 100 / budget
            if (percent > 2) {
                printf "FAILED %s: %d instructions, its budget is %d (%+.1f %%): make it cheaper, or say in the commit why it is worth it, and run %s\n", name, is, budget, percent, renew
                bad = 1
            } else if (percent < -5) {
                printf "%s: %d instructions, its budget is %d (%+.1f %%): lower the budget: run %s\n", name, is, budget, percent, renew
            } else {
                printf "ok %s: %d instructions, its budget is %d (%+.1f %%)\n", name, is, budget, percent
            }
        }
        NR == FNR && /^\[/ { section = substr($1, 2, length($1) - 2); split(section, place, "."); counts = index(profiles, " " place[1] " ") }
        NR == FNR && /requester/ && counts { gsub(/[^ a-z0-9_]/, ""); requester[section, $1] = $3; responder[section, $1] = $5 }
        NR == FNR { next }
        !(($1, $2) in requester) { printf "FAILED %s over %s has no budget: run %s\n", $2, $1, renew; bad = 1; next }
        { compare("Requester", $3, requester[$1, $2]); compare("Responder", $4, responder[$1, $2]) }
        { delete requester[$1, $2] }
        END {
            for (left in requester) { sub(SUBSEP, " ", left); printf "FAILED %s has a budget and is not counted: run %s\n", left, renew; bad = 1 }
            exit bad
        }' $budgets -
}

# polled PROGRAM FILE COUNT: of one run, the instructions of the loop that polls; of those, in the device's library, and what that calls; and
# how often it polled (of ours no word: callgrind counts calls of turns that are not collected too). The loop is the function of PROGRAM that calls the library most often, with what it calls at
# least every other message: ib_send_lat has no symbols, and prints and sorts beside its loop. Of ours only turns were collected: all
# of it.
polled() {
    awk -v program="/$1\$" -v library='/lib(siw|rxe)-rdmav[0-9]+\\.so$' -v least=$(($3 / 2)) -v all="$([ "$1" = one_thread ] && echo 1)" '
        /^ob=/ { object = substr($0, 4) }
        /^fn=/ { of = callee = object; name = substr($0, 4) }
        /^cob=/ { callee = substr($0, 5) }
        /^cfn=/ { to = substr($0, 5) }
        /^calls=/ {
            split($1, count, "=")
            getline
            edges++
            from[edges] = of " " name; times[edges] = count[2]; cost[edges] = $NF
            ours[edges] = of ~ program; into[edges] = callee ~ library ? to : ""
            if (ours[edges] && into[edges] != "") entered[from[edges]] += count[2]
            callee = object
            next
        }
        /^[0-9]/ { self[of " " name] += $NF; sum += $NF }
        END {
            for (f in entered) if (entered[f] > entered[loop]) loop = f
            total = all ? sum : self[loop]
            for (e = 1; e <= edges; e++) {
                if (!ours[e] || !all && (from[e] != loop || times[e] < least)) continue
                if (!all) total += cost[e]
                if (into[e] != "") { inside += cost[e]; polls[into[e]] += times[e] }
            }
            for (p in polls) if (polls[p] > most) most = polls[p]
            printf "%d %d %d\n", total, inside, most
        }' "$2"
}

# message FEW MANY: of ib_send_lat's two runs, the difference; and how many polls there were to a message. Each takes one at least,
# and hardly more where polls in vain do not hide it: else it is no measure, and fails.
message() {
    {
        polled ib_send_lat "$counts/latency.requester.few" "$1"
        polled ib_send_lat "$counts/latency.requester.many" "$2"
    } | awk -v messages=$(($2 - $1)) '
        { total[NR] = $1 / messages; inside[NR] = $2 / messages; polls[NR] = $3 / messages }
        END {
            all = total[2] - total[1]; library = inside[2] - inside[1]
            printf "%-12s %-10s %12.1f %12.1f %12.1f   %.2f polls a message\n",
                "ib_send_lat", "either", all, all - library, library, polls[2] - polls[1]
            exit polls[2] - polls[1] < 1 || polls[2] - polls[1] > 1.5
        }'
}

# call END FEW MANY: of our two runs, the difference; and how many turns there were to a Call, as one more than that was in vain.
call() {
    local -a fewer more
    local passes
    read -r -a fewer <<<"$(polled one_thread "$counts/call.$1.few" "$2")"
    read -r -a more <<<"$(polled one_thread "$counts/call.$1.many" "$3")"
    passes=$(sed -n 's/.* Calls in \([0-9]*\) passes/\1/p' "$counts/call.$1.many.log")
    awk -v end="$1" -v calls=$(($3 - $2)) -v all=$((more[0] - fewer[0])) -v library=$((more[1] - fewer[1])) -v turns="$passes" -v many="$3" 'BEGIN {
        printf "%-12s %-10s %12.1f %12.1f %12.1f   %.2f turns a Call\n", "NULL Call", end, all / calls, (all - library) / calls, library / calls, turns / many
    }'
}

on_device() {
    local few=50 many=150 place end message attempt
    mkdir -p "$counts/payload/valgrind"
    cp "$program" "$counts/one_thread"
    strip --strip-debug "$counts/one_thread" -o "$counts/payload/one_thread"
    # Debian has a script before the program, and puts the tools here or there by its release.
    for place in /usr/bin/valgrind.bin "$(command -v valgrind)"; do
        [ ! -e "$place" ] || { cp "$place" "$counts/payload/valgrind/valgrind"; break; }
    done
    for place in /usr/libexec/valgrind /usr/lib/valgrind /usr/lib/x86_64-linux-gnu/valgrind; do
        [ ! -e "$place/callgrind-amd64-linux" ] || cp "$place"/{callgrind-amd64-linux,vgpreload_core-amd64-linux.so,default.supp} "$counts/payload/valgrind/"
    done
    for attempt in 1 2 3 4 5; do
        ci/lab/boot.sh -k "$kernel" -t 1800 -l "$counts/console" -p "$counts/payload" -o "$counts" instructions.sh "$device" $few $many 2>/dev/null ||
            { grep -v "speed is unknown" "$counts/console" | tail -n 40 >&2; return 1; }
        message=$(message $few $many) && break
        echo "run $attempt polled too much in vain: $message" >&2
        message='ib_send_lat: not counted, each run polled too much in vain: run it when the machine has less to do'
    done
    printf '%s, kernel %s\n%-12s %-10s %12s %12s %12s\n' "$device" "$kernel" "" end instructions "its own" library
    echo "$message"
    for end in requester responder; do call $end $few $many; done
}

# compare FIRST SECOND: the second's figures in percent of the first's
compare() {
    paste "$counts/of.$1" "$counts/of.$2" | awk -v of="$1" -v with="$2" '
        { percent = $8 * 100 / $4; printf "%-6s %-6s %-10s %s has %d %% of the instructions of %s\n", $1, $2, $3, with, percent + 0.5, of }
        percent > 115 { bad = 1 }
        END { exit bad }'
}

if [ -n "$device" ]; then
    build dist
    on_device
    exit
fi
if [ -n "$with_budgets" ]; then
    # What valgrind shows to libc and to us as the CPU is the same on each machine that has these.
    grep -qw avx2 /proc/cpuinfo || skipped "the budgets are of a CPU with AVX2, for which libc and we have other code"
    of=$(sed -n 's/^rustc = "\(.*\)"$/\1/p' $budgets)
    # Both profiles, if none is named: the file is of one state of the source.
    [ "$with_budgets" = check ] || [ ${#profiles[@]} -gt 0 ] || profiles=(dist release)
    [ ${#profiles[@]} -gt 0 ] || profiles=(dist)
    [ "$with_budgets" = renew ] || [ "$(compiler)" = "$of" ] ||
        skipped "the budgets are of rustc $of, and this is $(compiler), which makes other code: bench/instructions.sh --renew"
    for profile in "${profiles[@]}"; do
        build "$profile"
        count_budgets "$profile" >>"$counts/budgets"
    done
    if [ "$with_budgets" = renew ]; then
        renew <"$counts/budgets" >"$counts/renewed"
        cp "$counts/renewed" $budgets
    else
        check "${profiles[@]}" <"$counts/budgets"
    fi
    exit
fi
[ ${#profiles[@]} -gt 0 ] || profiles=(dist)
for profile in "${profiles[@]}"; do
    build "$profile"
    [ ${#profiles[@]} -eq 1 ] || echo "profile $profile"
    on_nothing "$profile"
done
[ ${#profiles[@]} -lt 2 ] || compare "${profiles[@]:0:2}"
