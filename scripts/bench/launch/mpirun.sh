#!/usr/bin/env bash
# Plain mpirun on a list of hosts: scripts/bench/launch/mpirun.sh PROGRAM [ARGS...]
#   HOSTS=node1:2,node2:2  hosts with the ranks of each (this machine with 2 ranks)
#   NETWORK=10.0.0.0/24    network that MPI uses between hosts (MPI's choice)
# Open MPI and MPICH take different options; which one is asked of the launcher itself.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,4s/^# //p' "$0"; exit 2; }
hosts=${HOSTS:-$(hostname):2}
ranks=0
IFS=, read -ra list <<<"$hosts"
for host in "${list[@]}"; do
    ranks=$((ranks + ${host##*:}))
done
if mpiexec --version 2>&1 | grep 'Open MPI\|OpenRTE' >/dev/null; then
    options=(--host "$hosts" --map-by slot --bind-to core)
    [ -z "${NETWORK-}" ] || options+=(--mca btl_tcp_if_include "$NETWORK" --mca oob_tcp_if_include "$NETWORK")
else
    options=(-hosts "$hosts" -bind-to core)
fi
exec mpiexec -n "$ranks" "${options[@]}" "$@"
