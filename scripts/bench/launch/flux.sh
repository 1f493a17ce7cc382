#!/usr/bin/env bash
# Flux: flux batch -N 2 -n 8 -c 2 scripts/bench/launch/flux.sh PROGRAM [ARGS...]
# One rank per task on two cores each: its own and one for the progress thread.
#flux: --job-name=dtr
#flux: --time-limit=30m
#flux: --output=dtr-{{id}}.out
set -euo pipefail
[ $# -gt 0 ] || { echo "which program?" >&2; exit 2; }
tasks=${DTR_TASKS:-$(flux resource list -n -o '{ncores}' | awk '{ n += $1 } END { print (n >= 2 ? int(n / 2) : 1) }')}
exec flux run -n "$tasks" -c 2 -o cpu-affinity=per-task -o pmi=pmix "$@"
