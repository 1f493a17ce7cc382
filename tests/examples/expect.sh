#!/usr/bin/env bash
# expect.sh PATTERN... -- COMMAND...: run a command; it must exit 0 and print a line for every pattern (grep -E).
set -u
patterns=()
while [ "$1" != -- ]; do
    patterns+=("$1")
    shift
done
shift
output=$("$@" 2>&1)
status=$?
printf '%s\n' "$output"
if [ "$status" -ne 0 ]; then
    echo "exit status $status, want 0"
    exit 1
fi
for pattern in "${patterns[@]}"; do
    if ! grep -Eq -- "$pattern" <<<"$output"; then
        echo "no line matches: $pattern"
        exit 1
    fi
done
