#!/usr/bin/env bash
# A world without MPI over two hosts of a bed: the launcher only starts its ranks, and their data cross the switch.
#   without_mpi.sh PROGRAM PATH-OF-TESTBED-RUN [OPTIONS]
set -euo pipefail
program=$1
shift
run=("$@")
"${run[@]}" --check || exit $?

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DTR_NODE_RANKS=2 DTR_CONTROL_INTERFACE=eth0 # the hosts are one machine, and loopback leads to none of the others
# shellcheck disable=SC2016 # expanded on the hosts
"${run[@]}" --hosts 2 --ranks 2,2 --bytes -- sh -c 'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE exec "$@"' sh \
    "$program" "$folder" >"$folder/out" 2>&1 || { cat "$folder/out"; exit 1; }
cat "$folder/out"
[ "$(grep -c 'of 4: the sum is 10$' "$folder/out")" -eq 4 ]
