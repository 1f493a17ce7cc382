#!/usr/bin/env bash
# dtr-bench --tune between two hosts: what it measures there is in the file, once, beside what it measures on a node of several
# ranks, and is read again by a run over the same hosts.
#   tune.sh PROGRAM PATH-OF-TESTBED-RUN [OPTIONS]
set -euo pipefail
program=$1
shift
run=("$@")
"${run[@]}" --check || exit $?

fail() {
    printf 'tune: %s\n' "$*" >&2
    exit 1
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for ranks in 1 2; do
    file=$folder/$ranks.tune
    "${run[@]}" --hosts 2 --ranks "$ranks" -- "$program" --tune="$file" --max 1M --rounds 2 >"$folder/out" 2>&1 || {
        cat "$folder/out"
        fail "no thresholds of 2 hosts with $ranks ranks"
    }
    between=$(awk '$1 ~ /^nodes_/ { print $1 }' "$file" | tr '\n' ' ')
    [ "$between" = "nodes_doubling nodes_ring nodes_segment nodes_inline " ] || fail "between hosts with $ranks ranks: '$between'"
    [ "$(grep -c '^chunk ' "$file")" -eq $((ranks - 1)) ] || fail "thresholds of a node of $ranks ranks: $(cat "$file")"
    "${run[@]}" --hosts 2 --ranks "$ranks" -- env DTR_TUNE_FILE="$file" "$program" --sizes 8,1M --rounds 1 --no-gauge --no-peer \
        allreduce >"$folder/out" 2>&1 || {
        cat "$folder/out"
        fail "the file of 2 hosts with $ranks ranks is not read, or sums are wrong"
    }
done
