# shellcheck shell=bash
# Sourced before anything else: usage prints the comment that the script begins with, and ends it with status 2.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$usage_of" >&2; exit 2; }
usage_of=$(realpath "$0")
