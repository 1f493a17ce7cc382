#!/usr/bin/env bash
# proof.sh DIR LAUNCHER... -- PROGRAM: the same training at 1, 2 and 4 ranks with one global batch gives one loss curve;
# repeated, over another backend, or with a sharded optimizer it gives the same bits.
set -eu
dir=$1/proof
shift
launch=()
while [ "$1" != -- ]; do
    launch+=("$1")
    shift
done
program=$2
rm -rf "$dir"
mkdir -p "$dir"
trap 'rm -rf "$dir"' EXIT

# train NAME RANKS [OPTION...]: leaves the curve in NAME and the hash of the parameters in NAME.hash
train() {
    local name=$1 n=$2 output
    shift 2
    if ! output=$("${launch[@]}" -n "$n" "$program" --steps 200 --layers 1 --width 16 --heads 2 --context 16 \
        --batch $((8 / n)) --sample 0 --deterministic --curve "$dir/$name" "$@" 2>&1); then
        printf '%s\n' "$output"
        exit 1
    fi
    grep -o 'hash [0-9a-f]*' <<<"$output" >"$dir/$name.hash"
    [ "$(wc -l <"$dir/$name")" = 200 ] || { echo "$name has no curve of 200 steps"; exit 1; }
    printf '%s: %s, %s\n' "$name" "$(tail -1 "$dir/$name")" "$(cat "$dir/$name.hash")"
}

same() {
    if ! cmp "$dir/$1" "$dir/$2" || ! cmp "$dir/$1.hash" "$dir/$2.hash"; then
        echo "$1 and $2 differ"
        exit 1
    fi
}

# Sums in another order: the curves part slowly. The limit is far above what that does and far below a wrong divisor.
near() {
    paste "$dir/$1" "$dir/$2" | awk -v a="$1" -v b="$2" '
        { d = ($2 - $4) / $2; d = d < 0 ? -d : d; if (d > worst) worst = d }
        END { printf "%s and %s: largest relative difference %.1e\n", a, b, worst; exit !(worst < 5e-3) }' ||
        { echo "the curves of $1 and $2 differ"; exit 1; }
}

train one 1
train two 2
train four 4
near one two
near one four
[ "$(awk 'END { print ($2 < 3.6) }' "$dir/one")" = 1 ] || { echo "nothing was learned"; exit 1; }
train two_again 2
same two two_again
DTR_BACKEND=cpu:mpi train two_mpi 2
same two two_mpi
DTR_BACKEND=cpu:mpi train four_mpi 4
same four four_mpi
train two_zero 2 --zero
same two two_zero
train four_zero 4 --zero
same four four_zero
train two_parts 2 --batch 2 --accumulate 2
near one two_parts
