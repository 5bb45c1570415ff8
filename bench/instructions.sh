#!/usr/bin/env bash
# Counts the instructions of one NULL Call at the Requester and at the Responder: they do not jitter as times do.
#   bench/instructions.sh [--chunks] [--depth N] [--profile dist|release]...
#   bench/instructions.sh --device siw|rxe [-k 6.1|6.12]
# Client and server run in one thread (examples/one_thread.rs), by turns. Over shm and over `verbs`, whose device is one of nothing, no
# pass is idle; what the library's functions execute is taken off: the rest is ours. Needs valgrind.
#
# --chunks: also of one with a Write chunk of 4 KiB (get), and of one with a Read chunk (put). Over shm that has the copy in it.
#
# --depth: of N Calls outstanding at once (default: 1), which share a turn.
#
# --profile: with cargo's profile (default: dist). Of two, the second's figures are also said in percent of the first's; status 1 if
# one of them is more than 15 % worse: then a function that is called across crates lacks #[inline].
#
# --device: over a device of the guest (ci/lab/build.sh, once), and ib_send_lat's Send and Receive on the same, counted in the same
# way; see README.md. Without the guest: SKIPPED, status 77.
set -euo pipefail
cd "$(dirname "$0")/.."

device='' kernel=6.1 kinds=null depth=1 profiles=()
while [ $# -gt 0 ]; do
    case $1 in
        --device) device=$2; shift ;;
        -k) kernel=$2; shift ;;
        --chunks) kinds='null get put' ;;
        --depth) depth=$2; shift ;;
        --profile) profiles+=("$2"); shift ;;
        *) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    esac
    shift
done
command -v valgrind >/dev/null || { echo "SKIPPED: valgrind is not there (Debian: apt-get install valgrind)"; exit 77; }
# shellcheck source=ci/lab/cache.sh
. ci/lab/cache.sh
if [ -n "$device" ] && [ ! -e "$LAB_CACHE/kernel-$kernel/version" ]; then
    echo "SKIPPED: there is no guest with kernel $kernel: run ci/lab/build.sh $kernel first"
    exit 77
fi
[ ${#profiles[@]} -gt 0 ] || profiles=(dist)
# build PROFILE: sets program
build() {
    cargo build --quiet --locked --profile "$1" --package stag-bench --example one_thread
    program=$(realpath "${CARGO_TARGET_DIR:-target}/$1/examples/one_thread")
}
counts=$(mktemp -d)
trap 'rm -rf "$counts"' EXIT

# executed FABRIC TURN CALLS KIND: instructions of all, and of those the library's.
executed() {
    local out=$counts/$1.$2.$3.$4
    valgrind --tool=callgrind --collect-atstart=no --toggle-collect="*$2*" --callgrind-out-file="$out" \
        "$program" "$1" "$3" "$depth" "$4" >/dev/null 2>"$out.log" || { cat "$out.log" >&2; return 1; }
    # The entries of the table: what they call in their turn is in their sum. From here, so that it does not shorten names.
    (cd "$counts" && callgrind_annotate --inclusive=yes --threshold=100 --auto=no "$out") 2>/dev/null | tr -d , | awk '
        /PROGRAM TOTALS/ { all = $1 }
        /one_thread::fake::verbs::(poll_cq|post_send|post_recv|post_srq_recv|req_notify_cq) \[/ { library += $1 }
        END { printf "%d %d\n", all, library }'
}

# on_nothing PROFILE
on_nothing() {
    local kind fabric end all_few library_few all_many library_many library ours few=1000 many=3000
    printf '%-6s %-6s %-10s %22s %22s\n' Call fabric end "instructions a Call" "and in the library"
    for kind in $kinds; do
        for fabric in shm verbs; do
            for end in Requester:client_turn Responder:server_turn; do
                read -r all_few library_few <<<"$(executed $fabric "${end#*:}" $few "$kind")"
                read -r all_many library_many <<<"$(executed $fabric "${end#*:}" $many "$kind")"
                library=$(((library_many - library_few) / (many - few)))
                ours=$(((all_many - all_few) / (many - few) - library))
                printf '%-6s %-6s %-10s %22d %22d\n' "$kind" $fabric "${end%:*}" $ours $library
                echo "$kind $fabric ${end%:*} $ours" >>"$counts/of.$1"
            done
        done
    done
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
for profile in "${profiles[@]}"; do
    build "$profile"
    [ ${#profiles[@]} -eq 1 ] || echo "profile $profile"
    on_nothing "$profile"
done
[ ${#profiles[@]} -lt 2 ] || compare "${profiles[@]:0:2}"
