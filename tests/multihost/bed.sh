#!/usr/bin/env bash
# The bed itself: hosts under names of their own, the program's status, and nothing left behind.
#   bed.sh PATH-OF-TESTBED-RUN [--mpiexec PATH]
set -euo pipefail
run=("$@")
"${run[@]}" --check || exit $?

fail() {
    printf 'bed: %s\n' "$*" >&2
    exit 1
}

left() { # left PID: what the bed of that process left
    ip netns list | grep "^dtr$1\(sw\|h\)" || true
}

out=$(mktemp)
trap 'rm -f "$out"' EXIT

"${run[@]}" --hosts 3 --ranks 1,2,1 --rate 1gbit --bytes -- hostname >"$out"
[ "$(grep -c '^dtr[0-9]*h[123]$' "$out")" -eq 4 ] || fail "four ranks did not give four host names: $(cat "$out")"
[ "$(grep '^dtr' "$out" | sort -u | wc -l)" -eq 3 ] || fail "three hosts did not give three names: $(cat "$out")"
[ "$(grep -c 'bytes sent' "$out")" -eq 3 ] || fail "no count for each host: $(cat "$out")"
[ -z "$(left "$(sed -n 's/^dtr\([0-9]*\)h1$/\1/p' "$out" | head -n 1)")" ] || fail "namespaces are left"

status=0
"${run[@]}" -- sh -c 'exit 3' >/dev/null 2>&1 || status=$?
[ "$status" -eq 3 ] || fail "a program that ends with 3 gave $status"
status=0
"${run[@]}" --hosts 2 --ranks 1,2,3 -- true 2>"$out" || status=$?
[ "$status" -eq 2 ] || fail "three numbers for two hosts gave $status: $(cat "$out")"

# A signal: the bed goes with its maker. What was started is named by the maker's number.
"${run[@]}" -- sh -c 'echo up; exec sleep 300' >"$out" 2>&1 &
maker=$!
while ! grep -q up "$out" && kill -0 "$maker" 2>/dev/null; do
    sleep 0.1
done
[ -n "$(left "$maker")" ] || fail "there is no bed while the program runs: $(cat "$out")"
kill -TERM "$maker"
status=0
wait "$maker" || status=$?
[ "$status" -eq 143 ] || fail "a terminated bed gave $status: $(cat "$out")"
[ -z "$(left "$maker")" ] || fail "a signal left namespaces: $(left "$maker")"
printf 'bed: all well\n'
