#!/usr/bin/env bash
# A cluster that has ended leaves no daemon and no host behind.
#   ends.sh PATH-OF-TESTBED-SLURM
set -euo pipefail
"$1" --check || exit $?
name=$("$1" --hosts 2 -- sinfo --noheader --Node --format=%N | head -n 1)
[[ $name =~ ^dtr[0-9]+h1$ ]] || {
    printf 'ends: the first host is "%s"\n' "$name" >&2
    exit 1
}
bed=${name%h1}
for ((i = 0; i < 100; i++)); do # the kernel takes a namespace apart a moment later
    left=$(pgrep -af "slurmd -D -N ${bed}h" || true; ip netns list | grep "^$bed" || true)
    [ -n "$left" ] || exit 0
    sleep 0.1
done
printf 'ends: left behind:\n%s\n' "$left" >&2
exit 1
