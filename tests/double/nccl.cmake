# The stand-in for NCCL.
find_path(DTR_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(NOT DTR_NCCL_INCLUDE)
  message(STATUS "nccl.h not found: no stand-in for NCCL")
  return()
endif()
dtr_add_double(fake_nccl SONAME libnccl.so.2 MAP "${CMAKE_CURRENT_SOURCE_DIR}/nccl/nccl.map" LIBS fake_cudart m rt SOURCES
  nccl/nccl_comm.c
  nccl/nccl_fault.c
  nccl/nccl_group.c
  nccl/nccl_run.c
  nccl/nccl_shared.c
  SEEN nccl/nccl_reduce.c)
target_include_directories(fake_nccl SYSTEM PRIVATE ${DTR_NCCL_INCLUDE})
dtr_add_double_mpi_test(double_nccl NPROCS 1 2 4 SOURCES nccl_raw.c LIBS fake_nccl fake_cudart)
target_include_directories(test_double_nccl SYSTEM PRIVATE ${DTR_NCCL_INCLUDE})
