#!/usr/bin/env bash
# Ranks that a loop of the shell has started. Usage: without_mpirun.sh PROGRAM RANKS
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ranks=()
for ((r = 0; r < $2; r++)); do
    RANK=$r WORLD_SIZE=$2 "$1" "$folder" &
    ranks+=($!)
done
for pid in "${ranks[@]}"; do
    wait "$pid"
done
