#!/usr/bin/env bash
# Rules about files that no compiler checks. Prints each offence; status 1 if there is one.
set -uo pipefail
cd "$(dirname "$0")/.."

offences=0

# offend RULE < offences, one a line
offend() {
    local line
    while IFS= read -r line; do
        echo "tidy: $1: $line"
        offences=$((offences + 1))
    done
}

# The project's own files; find rather than git, so that an unpacked archive can be checked too.
files() {
    find . \( -name target -o -name .git -o -name corpus -o -name node_modules \) -prune -o -type f "$@" -print
}
rust() { files -name '*.rs'; }

# One subject a file.
offend "longer than 800 lines" < <(
    rust | while IFS= read -r file; do
        lines=$(wc -l <"$file")
        [ "$lines" -le 800 ] || echo "$file ($lines)"
    done
)

# A file says first what it is.
offend "does not open with a doc comment (//!)" < <(
    rust | while IFS= read -r file; do
        [[ $(head -n 1 "$file") == '//!'* ]] || echo "$file"
    done
)

offend "unfinished" < <(rust | xargs grep -nE '\b(todo|unimplemented|dbg)!|\b(TODO|FIXME)\b')
offend "a test that is switched off" < <(rust | xargs grep -nE '#\[ignore')

# An exception from a lint says why: reason = "...", or a comment beside it or above it.
offend "a lint is allowed without a reason" < <(
    rust | xargs awk '
        FNR == 1 { above = "" }
        /^[[:space:]]*#!?\[(allow|expect)\(/ && !/reason *=/ && !/\/\// && above !~ /^[[:space:]]*\/\/([^\/]|$)/ {
            print FILENAME ":" FNR ": " $0
        }
        { above = $0 }'
)

offend "a path of somebody's machine" < <(files | xargs grep -nIE '(^|[^[:alnum:]_.~-])/(work|home|root|Users)/[[:alnum:]._-]')

# What must be free of unsafe code, of std and of I/O says so.
offend "lacks #![forbid(unsafe_code)]" < <(
    for crate in wire proto nfs; do
        grep -qE '^#!\[forbid\(unsafe_code\)\]' "engine/$crate/src/lib.rs" || echo "engine/$crate/src/lib.rs"
    done
)
grep -qE '^#!\[no_std\]|^#!\[cfg_attr\(not\(test\), no_std\)\]' engine/wire/src/lib.rs ||
    offend "lacks #![no_std]" <<<"engine/wire/src/lib.rs"

# Arrows point down only: crate, colon, what it may depend on (engine/README.md). Tests may use more.
layers='
engine/wire:
engine/proto:       wire
hugepages:
engine/memory:      hugepages
engine/disk:        memory
engine/fabric:      memory wire
engine/runtime:
engine/rpc:         wire proto memory fabric runtime
engine/nfs:         wire proto memory disk fabric runtime rpc
engine/dump:        wire
engine/stag:        wire proto memory disk fabric runtime rpc nfs hugepages
'
# The project's crates in the [dependencies] of a manifest, without their prefix.
dependencies() {
    awk '/^\[/ { on = /^\[(target\..*\.)?(build-)?dependencies(\]|\.)/
                 if (on && match($0, /\.stag(-[a-z0-9-]+)?\]/)) print substr($0, RSTART + 1, RLENGTH - 2) }
         on && match($0, /^stag(-[a-z0-9-]+)?/) { print substr($0, 1, RLENGTH) }' "$1" | sed 's/^stag-//' | sort -u
}
offend "an arrow that does not point down" < <(
    while IFS=: read -r crate allowed; do
        [ -n "$crate" ] || continue
        for dependency in $(dependencies "$crate/Cargo.toml"); do
            [[ " $allowed " == *" $dependency "* ]] || echo "$crate depends on $dependency"
        done
    done <<<"$layers"
)
offend "a crate of the engine that the layers of ci/tidy.sh do not name" < <(
    for manifest in engine/*/Cargo.toml; do
        crate=$(dirname "$manifest")
        [ "$crate" = engine/fuzz ] || grep -q "^$crate:" <<<"$layers" || echo "$crate"
    done
)

# What is cited can be looked up: a rule number in engine/spec, a link of a README where it points to.
offend "cites a rule that engine/spec does not have" < <(
    files \( -name '*.rs' -o -name rules.txt \) | xargs grep -noE '\b(5531|8166|8167|8267|8797|LX)-[0-9A-Z]+(\.[0-9]+)*-[a-z0-9]+\b' |
        while IFS=: read -r file line rule; do
            grep -qrF -- "$rule" engine/spec || echo "$file:$line: $rule"
        done
)
offend "a link to nowhere" < <(
    files -name '*.md' | while IFS= read -r file; do
        grep -oE '\]\([^)]+\)' "$file" | sed 's/^](//; s/)$//; s/#.*//' | grep -vE '^(https?:|$)' |
            while IFS= read -r link; do
                [ -e "$(dirname "$file")/$link" ] || echo "$file: $link"
            done
    done
)

[ $offences -eq 0 ] || { echo "tidy: $offences offences"; exit 1; }
