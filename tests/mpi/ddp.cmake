# Tests of the DDP layer.
foreach(test basic plan verify precision)
  dtr_add_mpi_test(ddp_${test} SOURCES mpi/ddp_${test}.c mpi/ddp_models.c NPROCS 1 2 3 4 7)
endforeach()
foreach(test unused misc hooks builtin step join mixed group zero optim checkpoint)
  dtr_add_mpi_test(ddp_${test} SOURCES mpi/ddp_${test}.c mpi/ddp_models.c NPROCS 1 2 3 4)
endforeach()
dtr_add_mpi_test(ddp_sparse SOURCES mpi/ddp_sparse.c mpi/ddp_models.c NPROCS 1 2 3 4)
dtr_add_mpi_test(ddp_delayed SOURCES mpi/ddp_delayed.c mpi/ddp_models.c NPROCS 1 2 3 4)
