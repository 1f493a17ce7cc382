# Registering tests: one CTest entry per number of ranks, root and oversubscription handled here, and a limit that the
# launcher enforces before CTest does, so that no rank is left behind.
# scripts/mpi.env is what scripts/mpirun uses too.
file(STRINGS "${PROJECT_SOURCE_DIR}/scripts/mpi.env" DTR_TEST_ENVIRONMENT REGEX "^[A-Z_a-z]+=")
list(APPEND DTR_TEST_ENVIRONMENT
  CK_FORK=no OMPI_MCA_orte_abort_on_non_zero_status=1
  # Tests break groups on purpose, and what they recorded would stay in /tmp.
  DTR_RECORDER_DIR=none
  # Unbuffered, Python writes the end of a line by itself, and lines of several ranks get mixed.
  PYTHONUNBUFFERED=
  # Tests ask for more memory than there is and expect a refusal; MPI's own leaks would drown ours (memcheck sees those).
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:allocator_may_return_null=1:history_size=7)

add_library(dtr_harness STATIC harness/harness.c harness/held.c harness/watchdog.c harness/data.c harness/unit.c)
target_include_directories(dtr_harness PUBLIC harness)
target_include_directories(dtr_harness PUBLIC $<TARGET_PROPERTY:dtr_ddp_internals,INTERFACE_INCLUDE_DIRECTORIES>)
target_link_libraries(dtr_harness PUBLIC dtr_static dtr_flags PkgConfig::CHECK MPI::MPI_C Threads::Threads m)

# dtr_add_unit_test(NAME SOURCES a.c ... [LABELS unit] [TIMEOUT s] [ENVIRONMENT A=b ...]): one process, no mpirun.
function(dtr_add_unit_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LABELS;ENVIRONMENT;ARGS" ${ARGN})
  add_executable(test_${name} ${arg_SOURCES})
  target_link_libraries(test_${name} PRIVATE dtr_harness)
  add_test(NAME ${name} COMMAND test_${name} ${arg_ARGS})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
    SKIP_RETURN_CODE 77 ENVIRONMENT "${DTR_TEST_ENVIRONMENT};${arg_ENVIRONMENT}")
endfunction()

# dtr_waits(TEST...): these wait most of their time, for limits or for processes that are stopped. Each counts as one rank however
# many it has, begins early, so that the others run beside it, and no more than four of them run at a time.
set_property(GLOBAL PROPERTY DTR_WAITING 0)
function(dtr_waits)
  foreach(test IN LISTS ARGN)
    get_property(n GLOBAL PROPERTY DTR_WAITING)
    math(EXPR lane "${n} % 4")
    math(EXPR n "${n} + 1")
    set_property(GLOBAL PROPERTY DTR_WAITING ${n})
    set_tests_properties(${test} PROPERTIES PROCESSORS 1 COST 100 RESOURCE_LOCK waits_${lane})
  endforeach()
endfunction()

# dtr_add_mpi_run(NAME TARGET t NPROCS 1 2 ... [WAITS] [ARGS ...] [LABELS mpi] [TIMEOUT s] [ENVIRONMENT ...] [PASS regex]):
# runs an existing program under the launcher. WAITS: see dtr_waits.
function(dtr_add_mpi_run name)
  cmake_parse_arguments(arg "WAITS" "TARGET;TIMEOUT;PASS" "NPROCS;LABELS;ENVIRONMENT;ARGS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS mpi)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  math(EXPR net "${arg_TIMEOUT} - 5")
  foreach(n IN LISTS arg_NPROCS)
    set(test ${name}_np${n})
    add_test(NAME ${test} COMMAND ${DTR_MPIEXEC} -n ${n} $<TARGET_FILE:${arg_TARGET}> ${arg_ARGS})
    set_tests_properties(${test} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} PROCESSORS ${n}
      SKIP_RETURN_CODE 77
      ENVIRONMENT "${DTR_TEST_ENVIRONMENT};MPIEXEC_TIMEOUT=${net};OMPI_MCA_orte_timeout=${net};${arg_ENVIRONMENT}")
    if(arg_PASS)
      set_tests_properties(${test} PROPERTIES PASS_REGULAR_EXPRESSION "${arg_PASS}")
    endif()
    if(arg_WAITS)
      dtr_waits(${test})
    endif()
  endforeach()
endfunction()

# dtr_add_mpi_test(NAME SOURCES a.c ... NPROCS 1 2 3 4 7 ...): builds test_NAME on the harness and runs it per size.
function(dtr_add_mpi_test name)
  cmake_parse_arguments(run "WAITS" "TIMEOUT;PASS" "SOURCES;NPROCS;LABELS;ENVIRONMENT;ARGS" ${ARGN})
  add_executable(test_${name} ${run_SOURCES})
  target_link_libraries(test_${name} PRIVATE dtr_harness)
  set(waits "")
  if(run_WAITS)
    set(waits WAITS)
  endif()
  dtr_add_mpi_run(${name} TARGET test_${name} ${waits} NPROCS ${run_NPROCS} ARGS ${run_ARGS} LABELS ${run_LABELS}
    TIMEOUT ${run_TIMEOUT} PASS ${run_PASS} ENVIRONMENT ${run_ENVIRONMENT})
  # T128: the whole suite where the caller's MPI has a lower thread level, and the library no progress thread; but for three
  # programs that make this thread stand still, or need it to go on while ranks wait for each other by MPI.
  if(DTR_SLOW_TESTS AND NOT run_LABELS AND NOT name MATCHES "^(groups_custom|lent|withdrawn)$")
    list(REMOVE_ITEM run_NPROCS 1 4 7 8)
    foreach(level funneled serialized)
      dtr_add_mpi_run(${name}_at_${level} TARGET test_${name} NPROCS ${run_NPROCS} ARGS ${run_ARGS}
        TIMEOUT ${run_TIMEOUT} PASS ${run_PASS} ENVIRONMENT ${run_ENVIRONMENT} DTR_TEST_THREAD_LEVEL=${level})
    endforeach()
  endif()
endfunction()
