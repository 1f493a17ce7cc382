# Several ranks on the stand-ins.

# dtr_add_double_mpi_test(NAME NPROCS 1 2 ... SOURCES a.c ... [LIBS ...] [ENVIRONMENT A=b ...])
function(dtr_add_double_mpi_test name)
  cmake_parse_arguments(arg "" "" "NPROCS;SOURCES;LIBS;ENVIRONMENT" ${ARGN})
  dtr_add_mpi_test(${name} SOURCES ${arg_SOURCES} NPROCS ${arg_NPROCS} LABELS double TIMEOUT 300
    ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${arg_ENVIRONMENT})
  target_include_directories(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests/double")
  target_include_directories(test_${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(test_${name} PRIVATE ${arg_LIBS})
  target_link_options(test_${name} PRIVATE LINKER:--enable-new-dtags)
  add_dependencies(test_${name} stand_ins)
  add_dependencies(double test_${name})
endfunction()

# Every collective x dtype x operation on device buffers, with delays: through NCCL, and through stage, on four ranks in
# pieces so small that most calls need several.
# Values of nccl:A2, A6, A12, A16, A17, X1, X4, X6, X8, X9, X12, X13, X16, X17, X20, X22; of stage ST4, ST6, ST7, reliability:FI39;
# collectives:NCO1, NCO2, NCO3, NCO8, NCO11, NCO12, NCO15.
add_dependencies(double test_matrix stand_ins)
dtr_add_mpi_run(double_matrix TARGET test_matrix NPROCS 1 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_TEST_DEVICE=cuda DTR_FAKE_CUDA_DELAY_US=20 DTR_FAKE_CUDA_SEED=3)
dtr_add_mpi_run(double_matrix TARGET test_matrix NPROCS 4 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_TEST_DEVICE=cuda)
set(stage "DTR_BACKEND=cpu:auto,cuda:stage")
dtr_add_mpi_run(double_matrix_stage TARGET test_matrix NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${stage} DTR_TEST_DEVICE=cuda DTR_FAKE_CUDA_DELAY_US=20 DTR_FAKE_CUDA_SEED=3)
dtr_add_mpi_run(double_matrix_stage TARGET test_matrix NPROCS 4 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${stage} DTR_TEST_DEVICE=cuda DTR_STAGE_CHUNK=64)
dtr_add_double_mpi_test(double_stage NPROCS 1 2 4 SOURCES stage.c LIBS fake_cudart
  ENVIRONMENT ${stage} DTR_STAGE_CHUNK=1KiB)
# ST9: without a progress thread.
dtr_add_mpi_run(double_stage_funneled TARGET test_double_stage NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${stage} DTR_STAGE_CHUNK=1KiB DTR_TEST_THREAD_LEVEL=funneled)

# The device of a world that names none; a file stands for the machine's topology.
if(TARGET PkgConfig::HWLOC)
  dtr_add_double_mpi_test(double_nearest NPROCS 4 SOURCES nearest.c LIBS fake_cudart ENVIRONMENT DTR_FAKE_CUDA_NDEV=4
    DTR_FAKE_CUDA_UUID=one "DTR_TEST_TOPOLOGY=${CMAKE_CURRENT_SOURCE_DIR}/two_packages.xml")
  # Containers of one machine.
  dtr_add_mpi_run(double_nearest_nodes TARGET test_double_nearest NPROCS 4 LABELS double TIMEOUT 300 ENVIRONMENT
    ${DTR_DOUBLE_ENVIRONMENT} DTR_FAKE_CUDA_NDEV=4 DTR_FAKE_CUDA_UUID=one DTR_NODE_RANKS=2
    "DTR_TEST_TOPOLOGY=${CMAKE_CURRENT_SOURCE_DIR}/two_packages.xml")
endif()

# A library in the place of a profiler counts the ranges of DTR_NVTX.
if(DTR_NVTX_INCLUDE_DIR)
  add_library(nvtx_count MODULE nvtx_count.c)
  target_include_directories(nvtx_count SYSTEM PRIVATE ${DTR_NVTX_INCLUDE_DIR})
  target_link_libraries(nvtx_count PRIVATE dtr_flags Threads::Threads)
  dtr_add_double_mpi_test(double_nvtx NPROCS 2 SOURCES nvtx.c LIBS ${CMAKE_DL_LIBS}
    ENVIRONMENT NVTX_INJECTION64_PATH=$<TARGET_FILE:nvtx_count>)
  add_dependencies(test_double_nvtx nvtx_count)
endif()
