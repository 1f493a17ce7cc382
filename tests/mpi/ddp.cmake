# Tests of the DDP layer.
foreach(test basic plan verify precision)
  dtr_add_mpi_test(ddp_${test} SOURCES mpi/ddp_${test}.c mpi/ddp_models.c NPROCS 1 2 3 4 7)
endforeach()
foreach(test unused misc hooks builtin step join mixed group zero optim checkpoint)
  dtr_add_mpi_test(ddp_${test} SOURCES mpi/ddp_${test}.c mpi/ddp_models.c NPROCS 1 2 3 4)
endforeach()
dtr_add_mpi_test(ddp_sparse SOURCES mpi/ddp_sparse.c mpi/ddp_models.c NPROCS 1 2 3 4)
dtr_add_mpi_test(ddp_delayed SOURCES mpi/ddp_delayed.c mpi/ddp_models.c NPROCS 1 2 3 4)
dtr_add_mpi_test(ddp_exact SOURCES mpi/ddp_exact.c mpi/ddp_models.c NPROCS 1 2 3 4)
dtr_add_mpi_test(ddp_debug SOURCES mpi/ddp_debug.c mpi/ddp_models.c NPROCS 1 2 3 ENVIRONMENT DTR_DEBUG=detail)
# L3, CF2: without a progress thread every call polls but that for statistics.
foreach(test basic sparse delayed)
  dtr_add_mpi_run(ddp_${test}_funneled TARGET test_ddp_${test} NPROCS 3 ENVIRONMENT DTR_TEST_THREAD_LEVEL=funneled)
endforeach()
# ENV15: nothing is different when calls are traced.
foreach(test engine_check engine_work ddp_hooks)
  dtr_add_mpi_run(${test}_traced TARGET test_${test} NPROCS 2 ENVIRONMENT DTR_TRACE=/dev/null)
endforeach()
