#!/bin/sh
# A C file with every function of MPI that a library needs, in front of MPI's own: below MPI_THREAD_MULTIPLE it ends the process,
# and says its name, where another thread than the one that initialised MPI calls it. The arguments are passed on as they came,
# all of them pointers and integers. Usage: mpi_threads.sh NM LIBRARY FILE
set -eu
{
  cat << 'EOF'
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void check(const char *name) {
    int there = 0, level = MPI_THREAD_MULTIPLE, is_main = 1;
    PMPI_Initialized(&there);
    if (there) {
        PMPI_Query_thread(&level);
        PMPI_Is_thread_main(&is_main);
    }
    if (level < MPI_THREAD_MULTIPLE && !is_main) {
        fprintf(stderr, "another thread called %s\n", name);
        abort();
    }
}

#define ARGUMENTS long a, long b, long c, long d, long e, long f, long g, long h
EOF
  # These any thread may call at any time.
  "$1" -D --undefined-only "$2" | sed -n 's/^ *[Uw] \(MPI_[A-Z][A-Za-z_]*\)\(@.*\)\{0,1\}$/\1/p' | sort -u |
    grep -v -x -e MPI_Initialized -e MPI_Finalized -e MPI_Is_thread_main -e MPI_Query_thread -e MPI_Wtime | while read -r name; do
    printf 'int checked_%s(ARGUMENTS) __asm__("%s");\nint own_%s(ARGUMENTS) __asm__("P%s");\n' "$name" "$name" "$name" "$name"
    printf 'int checked_%s(ARGUMENTS) {\n    check("%s");\n    return own_%s(a, b, c, d, e, f, g, h);\n}\n' "$name" "$name" "$name"
  done
} > "$3"
grep -q MPI_Isend "$3"
