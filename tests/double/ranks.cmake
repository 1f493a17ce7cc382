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
  add_dependencies(double test_${name} fake_cudart)
endfunction()

