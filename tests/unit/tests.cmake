# Tests without mpirun: dtr_add_unit_test(NAME SOURCES unit/FILE.c). Keep one entry per test.
dtr_add_unit_test(kernels SOURCES unit/kernels.c unit/kernels_convert.c)
dtr_add_unit_test(plan SOURCES unit/plan.c)
dtr_add_unit_test(tensor_basic SOURCES unit/tensor_basic.c)
dtr_add_unit_test(tensor_copy SOURCES unit/tensor_copy.c)
dtr_add_unit_test(tensor_dlpack SOURCES unit/tensor_dlpack.c)
dtr_add_unit_test(tensor_npy SOURCES unit/tensor_npy.c)
dtr_add_unit_test(tensor_safetensors SOURCES unit/tensor_safetensors.c)
dtr_add_unit_test(runtime_errors SOURCES unit/runtime_errors.c)
dtr_add_unit_test(runtime_options SOURCES unit/runtime_options.c)
dtr_add_unit_test(runtime_tune SOURCES unit/runtime_tune.c)
dtr_add_unit_test(runtime_cache SOURCES unit/runtime_cache.c)
if(TARGET PkgConfig::HWLOC)
  target_compile_definitions(test_runtime_cache PRIVATE DTR_HAVE_HWLOC)
endif()
dtr_add_unit_test(runtime_memory SOURCES unit/runtime_memory.c)
dtr_add_unit_test(runtime_progress SOURCES unit/runtime_progress.c)
dtr_add_unit_test(runtime_recording SOURCES unit/runtime_recording.c)
dtr_add_unit_test(runtime_runs SOURCES unit/runtime_runs.c)

# The runtime's worlds under mpirun: the program or the library starts MPI.
add_executable(test_runtime_world unit/runtime_world.c)
target_link_libraries(test_runtime_world PRIVATE dtr_static dtr_flags MPI::MPI_C Threads::Threads)
target_include_directories(test_runtime_world PRIVATE harness $<TARGET_PROPERTY:dtr_runtime,INTERFACE_INCLUDE_DIRECTORIES>)
dtr_add_mpi_run(runtime_world TARGET test_runtime_world NPROCS 1 2 3 4 7 ARGS caller multiple)
dtr_add_mpi_run(runtime_world_library TARGET test_runtime_world NPROCS 1 2 4 ARGS library)
foreach(level single funneled serialized)
  dtr_add_mpi_run(runtime_world_${level} TARGET test_runtime_world NPROCS 2 ARGS caller ${level})
endforeach()
add_test(NAME runtime_world_alone COMMAND test_runtime_world library)
set_tests_properties(runtime_world_alone PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT "${DTR_TEST_ENVIRONMENT}")

dtr_add_unit_test(harness_data SOURCES unit/harness_data.c)
dtr_add_unit_test(coll_blocks SOURCES unit/coll_blocks.c)
dtr_add_unit_test(groups_select SOURCES unit/groups_select.c)
dtr_add_unit_test(shm_limits SOURCES unit/shm_limits.c)

# dtr-info needs no MPI job: ENV16, ENV17.
foreach(case "facts;;^dtr [0-9.]+. MPI at run" "options;--options;DTR_TIMEOUT +seconds +1800 +2.5 +environment.*DTR_DEBGU.*DTR_DEBUG"
             "help;--help;usage: dtr-info" "unknown;--nonsense;cannot make sense of .--nonsense")
  list(GET case 0 name)
  list(GET case 1 argument)
  list(GET case 2 pattern)
  add_test(NAME dtr_info_${name} COMMAND dtr-info ${argument})
  set_tests_properties(dtr_info_${name} PROPERTIES LABELS unit TIMEOUT 300 PASS_REGULAR_EXPRESSION "${pattern}"
    ENVIRONMENT "DTR_TIMEOUT=2.5;DTR_DEBGU=1")
endforeach()
# CFG1, CFG15: what would be chosen, and why the others would not.
function(dtr_add_why_test name backend pattern)
  add_test(NAME dtr_info_why_${name} COMMAND dtr-info --why ${ARGN})
  set_tests_properties(dtr_info_why_${name} PROPERTIES LABELS unit TIMEOUT 20 ENVIRONMENT "DTR_BACKEND=${backend}"
    PASS_REGULAR_EXPRESSION "${pattern}")
endfunction()
dtr_add_why_test(node "" "1048576 elements.*on 1 node;.*hier +0  cannot: its ranks are on one node.*shm is chosen"
  allreduce f32 4MiB --ranks 4)
dtr_add_why_test(nodes "" "shm +0  cannot: its ranks are on several nodes.*hier +40  can serve it.*hier is chosen"
  allreduce bf16 4MiB --ranks 8 --nodes 2)
dtr_add_why_test(alone "" "self is chosen" broadcast i64 1K --ranks 1)
dtr_add_why_test(order "" "hier +10  can serve it, as mpi does: the group is deterministic.*mpi is chosen"
  reduce_scatter f32 1M --ranks 8 --nodes 2 --deterministic)
dtr_add_why_test(named cpu:mpi "shm +60.*names another.*mpi is chosen: it is named" alltoall u8 1G)
dtr_add_why_test(refused cpu:shm "none is chosen: the call would be refused" allgather f32 64 --ranks 4 --nodes 2)
dtr_add_why_test(nonsense "" "the call .allredude.: expected allreduce" allredude f32 64)
add_test(NAME dtr_info_bad_value COMMAND dtr-info --options)
set_tests_properties(dtr_info_bad_value PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT "DTR_DEBUG=on"
  PASS_REGULAR_EXPRESSION "DTR_DEBUG is .on.; accepted is one of off.info.detail")
