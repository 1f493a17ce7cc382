#!/usr/bin/env bash
# PBS: qsub -l select=2:ncpus=8:mpiprocs=4 -v "PROGRAM=/path/dtr-bench --max 64M" scripts/bench/launch/pbs.sh
# The launcher reads the hosts from PBS, or from $PBS_NODEFILE where it was built without it.
#PBS -N dtr
#PBS -l select=1:ncpus=4:mpiprocs=2
#PBS -l walltime=00:30:00
#PBS -j oe
set -euo pipefail
: "${PROGRAM:?give the program and its arguments with -v PROGRAM=...}"
cd "${PBS_O_WORKDIR:-.}"
read -ra command <<<"$PROGRAM"
ranks=$(wc -l <"${PBS_NODEFILE:?this script runs inside a PBS job}")
exec mpiexec -n "$ranks" -hostfile "$PBS_NODEFILE" "${command[@]}"
