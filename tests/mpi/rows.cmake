# Single rows of the specification, by theme.
dtr_add_mpi_test(rows_trace SOURCES mpi/rows_trace.c NPROCS 1 2 3)
