#!/usr/bin/env bash
# same_losses.sh FILE PATH CPU GPU LAUNCHER... -- OPTION...: train with the program CPU, and with GPU on the stand-ins in PATH.
# Their losses, which go to FILE.cpu and FILE.gpu, may differ by 1e-5 of their size, the ranks' parameters by no bit.
set -eu
file=$1 path=$2 cpu=$3 gpu=$4
shift 4
launcher=()
while [ "$1" != -- ]; do
    launcher+=("$1")
    shift
done
shift
rm -f "$file.cpu" "$file.gpu"
"${launcher[@]}" "$cpu" "$@" --curve "$file.cpu"
status=0
output=$(LD_LIBRARY_PATH=$path "${launcher[@]}" "$gpu" "$@" --curve "$file.gpu" 2>&1) || status=$?
printf '%s\n' "$output"
[ $status = 0 ]
grep -q ', cuBLAS on GPUs$' <<<"$output"
grep -q ' ranks: bitwise equal ' <<<"$output"
paste -d ' ' "$file.cpu" "$file.gpu" | awk '
    { d = $2 - $4; d = (d < 0 ? -d : d) / $2; most = d > most ? d : most; lines += NF == 4 && $1 == $3 && d <= 1e-5 }
    END { printf "%d of %d losses agree with those on the CPU, differences up to %.1e\n", lines, NR, most
          exit !(NR > 0 && lines == NR) }'
