#!/usr/bin/env bash
# Ranks that a loop of the shell has started, and what their recordings say. Usage: without_mpirun.sh PROGRAM RANKS DOCTOR
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DTR_RECORDER_DIR=$folder/recordings
mkdir "$DTR_RECORDER_DIR"
ranks=()
for ((r = 0; r < $2; r++)); do
    RANK=$r WORLD_SIZE=$2 "$1" "$folder" &
    ranks+=($!)
done
for pid in "${ranks[@]}"; do
    wait "$pid"
done
"$3" "$DTR_RECORDER_DIR"
