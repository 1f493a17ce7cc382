#!/bin/sh
# A C file that defines every function of MPI that a library needs as one that ends the process and says its name.
# Usage: without_mpi.sh NM LIBRARY FILE
set -eu
{
  printf '#include <stdio.h>\n#include <stdlib.h>\n\n'
  "$1" -D --undefined-only "$2" | sed -n 's/^ *[Uw] \(MPIX\{0,1\}_[A-Za-z_]*\)\(@.*\)\{0,1\}$/\1/p' | sort -u | while read -r name; do
    printf 'void %s(void);\nvoid %s(void) { fputs("%s was called\\n", stderr); abort(); }\n' "$name" "$name" "$name"
  done
} > "$3"
grep -q MPI_Initialized "$3"
