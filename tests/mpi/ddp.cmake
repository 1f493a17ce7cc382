# Tests of the DDP layer.
foreach(test basic plan verify precision)
  dtr_add_mpi_test(ddp_${test} SOURCES mpi/ddp_${test}.c mpi/ddp_models.c NPROCS 1 2 3 4 7)
endforeach()
foreach(test unused misc hooks builtin step join mixed group zero optim checkpoint checkpoint_whole loss_scale)
  dtr_add_mpi_test(ddp_${test} SOURCES mpi/ddp_${test}.c mpi/ddp_models.c NPROCS 1 2 3 4)
endforeach()
target_sources(test_ddp_basic PRIVATE mpi/ddp_basic_states.c)
target_sources(test_ddp_misc PRIVATE mpi/ddp_misc_statistics.c)
target_sources(test_ddp_unused PRIVATE mpi/ddp_unused_alone.c)
dtr_add_mpi_test(deprecated SOURCES mpi/deprecated.c mpi/ddp_models.c NPROCS 1 2)
dtr_add_mpi_test(ddp_clip SOURCES mpi/ddp_clip.c mpi/ddp_clip_model.c mpi/ddp_models.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(ddp_sparse SOURCES mpi/ddp_sparse.c mpi/ddp_models.c NPROCS 1 2 3 4)
dtr_add_mpi_test(ddp_delayed SOURCES mpi/ddp_delayed.c mpi/ddp_models.c NPROCS 1 2 3 4)
dtr_add_mpi_test(ddp_exact SOURCES mpi/ddp_exact.c mpi/ddp_models.c NPROCS 1 2 3 4)
# Without the kernel's help plain memory has to be staged, which tells the ways apart.
set_property(TEST ddp_exact_np1 ddp_exact_np2 ddp_exact_np3 ddp_exact_np4 APPEND PROPERTY ENVIRONMENT DTR_CMA=off)
foreach(call dtr__shm_zero_pull dtr__shm_stage_chunk)
  target_link_options(test_ddp_exact PRIVATE -Wl,--wrap=${call})
endforeach()
dtr_add_mpi_test(ddp_debug SOURCES mpi/ddp_debug.c mpi/ddp_models.c NPROCS 1 2 3 ENVIRONMENT DTR_DEBUG=detail)
# L3, CF2, T128: without a progress thread every call polls but that for statistics.
foreach(test basic plan verify precision unused misc hooks builtin step join mixed group zero optim checkpoint checkpoint_whole clip loss_scale
    sparse
    delayed)
  dtr_add_mpi_run(ddp_${test}_funneled TARGET test_ddp_${test} NPROCS 3 ENVIRONMENT DTR_TEST_THREAD_LEVEL=funneled)
  dtr_add_mpi_run(ddp_${test}_serialized TARGET test_ddp_${test} NPROCS 2 ENVIRONMENT DTR_TEST_THREAD_LEVEL=serialized)
endforeach()
# ENV15: nothing is different when calls are traced.
foreach(test engine_check engine_work ddp_hooks)
  dtr_add_mpi_run(${test}_traced TARGET test_${test} NPROCS 2 ENVIRONMENT DTR_TRACE=/dev/null)
endforeach()
