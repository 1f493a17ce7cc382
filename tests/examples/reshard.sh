#!/usr/bin/env bash
# reshard.sh DIR LAUNCHER... -- PROGRAM OPTION...: a sharded checkpoint of 4 ranks goes on at 2 and at 3 ranks; one rank
# that lacks its file is named by all, and nothing hangs.
set -eu
[ -z "${DTR_TEST_SKIP-}" ] || { echo "skipped: $DTR_TEST_SKIP"; exit 77; }
file=$1/train_gpt_sharded.json
shift
launch=()
while [ "$1" != -- ]; do
    launch+=("$1")
    shift
done
shift
rm -f "$file"*
trap 'rm -f "$file"*' EXIT
hash_of() { grep -o 'hash [0-9a-f]*' <<<"$1"; }

"${launch[@]}" -n 4 "$@" --zero --checkpoint "$file" --stop-at 12
[ "$(find "$(dirname "$file")" -name "$(basename "$file").*.safetensors" | wc -l)" = 4 ]
for n in 3 2; do
    output=$("${launch[@]}" -n $n "$@" --zero --resume "$file" --stop-at 12)
    resumed=$(hash_of "$output")
    grep -q 'resumed from .* at step 12' <<<"$output"
    output=$("${launch[@]}" -n $n "$@" --zero --resume "$file")
    printf '%s\n' "$output"
    grep -q 'step 30/30' <<<"$output"
    [ "${first:=$resumed}" = "$resumed" ] || { echo "other parameters after loading at $n ranks"; exit 1; }
done

# The whole optimizer reads the same files, and writes some that the sharded one reads.
output=$("${launch[@]}" -n 2 "$@" --resume "$file" --stop-at 12 --checkpoint "$file.whole")
[ "$first" = "$(hash_of "$output")" ] || { echo "other parameters after loading without --zero"; exit 1; }
output=$("${launch[@]}" -n 3 "$@" --zero --resume "$file.whole" --stop-at 12)
[ "$first" = "$(hash_of "$output")" ] || { echo "other parameters after loading what was whole"; exit 1; }

rm "$file".[0-9a-f]*.2-of-4.safetensors
if output=$("${launch[@]}" -n 2 "$@" --zero --resume "$file" 2>&1); then
    echo "a checkpoint with a missing file was accepted"
    exit 1
fi
for rank in 0 1; do
    grep -q "rank $rank: .*2-of-4.safetensors" <<<"$output" || { printf '%s\n' "$output"; exit 1; }
done
