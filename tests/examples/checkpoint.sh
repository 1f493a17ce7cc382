#!/usr/bin/env bash
# checkpoint.sh FILE COMMAND... (T56): 30 steps at once, and 12 + 18 steps through a checkpoint, must have the same losses and end
# in the same parameters.
# The learning rate depends on the planned number of steps, so both runs plan 30; the first part is stopped by a save.
set -eu
[ -z "${DTR_TEST_SKIP-}" ] || { echo "skipped: $DTR_TEST_SKIP"; exit 77; }
file=$1
shift
rm -f "$file"*
trap 'rm -f "$file"*' EXIT
hash_of() { grep -o 'hash [0-9a-f]*' <<<"$1"; }

whole=$("$@" --curve "$file.whole")
first=$("$@" --checkpoint "$file" --stop-at 12 --curve "$file.first")
cp "$file" "$file.twelve"
second=$("$@" --checkpoint "$file" --curve "$file.second")
printf '%s\n' "$whole" "$first" "$second"
grep -q 'resumed from .* at step 12' <<<"$second"
[ "$(hash_of "$whole")" = "$(hash_of "$second")" ] || { echo "parameters differ after resuming"; exit 1; }

cat "$file.first" "$file.second" | cmp - "$file.whole" || { echo "losses differ after resuming"; exit 1; }

# Other seeds draw other samples: that would be another training.
if output=$("$@" --checkpoint "$file" --seed 7 2>&1); then
    echo "a checkpoint of another seed was accepted"
    exit 1
fi
grep -q "was made with --seed 1" <<<"$output"

# A damaged file is refused with its name, on every number of ranks, and nothing hangs.
head -c 300 "$file.twelve" >"$file"
if output=$("$@" --checkpoint "$file" 2>&1); then
    echo "a cut checkpoint was accepted"
    exit 1
fi
grep -q "$(basename "$file")" <<<"$output"
