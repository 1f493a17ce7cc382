# Single rows of the specification, by theme.
dtr_add_mpi_test(rows_trace SOURCES mpi/rows_trace.c NPROCS 1 2 3)
dtr_add_mpi_test(metrics SOURCES mpi/metrics.c NPROCS 1 2 3)
dtr_add_mpi_test(rows_coll SOURCES mpi/rows_coll.c NPROCS 1 2 3 4 7)
# INI25, T128: the same values where the caller's MPI has a lower thread level.
foreach(level single funneled serialized)
  dtr_add_mpi_run(rows_coll_${level} TARGET test_rows_coll NPROCS 2 ENVIRONMENT DTR_TEST_THREAD_LEVEL=${level})
endforeach()
dtr_add_mpi_test(rows_rules SOURCES mpi/rows_rules.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(rows_ddp SOURCES mpi/rows_ddp.c mpi/ddp_models.c NPROCS 1 2 3 4)
target_link_options(test_rows_ddp PRIVATE -Wl,--wrap=dtr__ddp_layout_make)
