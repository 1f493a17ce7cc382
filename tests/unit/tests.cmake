# Tests without mpirun: dtr_add_unit_test(NAME SOURCES unit/FILE.c). Keep one entry per test.
dtr_add_unit_test(kernels SOURCES unit/kernels.c unit/kernels_convert.c)
dtr_add_unit_test(exact SOURCES unit/exact.c)
foreach(set scalar avx2) # where the CPU has a better one
  add_test(NAME exact_${set} COMMAND test_exact)
  set_tests_properties(exact_${set} PROPERTIES LABELS unit TIMEOUT 600 ENVIRONMENT "${DTR_TEST_ENVIRONMENT};DTR_KERNELS=${set}")
endforeach()
dtr_add_unit_test(shm_lent_model SOURCES unit/shm_lent_model.c)
dtr_add_unit_test(plan SOURCES unit/plan.c)
dtr_add_unit_test(sampler SOURCES unit/sampler.c)
dtr_add_unit_test(tensor_basic SOURCES unit/tensor_basic.c)
dtr_add_unit_test(tensor_copy SOURCES unit/tensor_copy.c)
dtr_add_unit_test(tensor_dlpack SOURCES unit/tensor_dlpack.c)
dtr_add_unit_test(tensor_npy SOURCES unit/tensor_npy.c)
dtr_add_unit_test(tensor_safetensors SOURCES unit/tensor_safetensors.c)
dtr_add_unit_test(runtime_errors SOURCES unit/runtime_errors.c)
dtr_add_unit_test(runtime_options SOURCES unit/runtime_options.c)
target_link_options(test_runtime_options PRIVATE -Wl,--wrap=secure_getenv)
dtr_add_unit_test(runtime_launcher SOURCES unit/runtime_launcher.c)
dtr_add_unit_test(runtime_tune SOURCES unit/runtime_tune.c)
dtr_add_unit_test(runtime_clock SOURCES unit/runtime_clock.c)
target_link_options(test_runtime_clock PRIVATE -Wl,--wrap=clock_gettime)
dtr_add_unit_test(runtime_proof SOURCES unit/runtime_proof.c)
dtr_add_unit_test(runtime_tcp SOURCES unit/runtime_tcp.c)
dtr_add_unit_test(runtime_reports SOURCES unit/runtime_reports.c)
dtr_add_unit_test(runtime_ring SOURCES unit/runtime_ring.c unit/nodes_unit.c)
foreach(call dtr__now_ns dtr__hidden_since epoll_wait dtr__link_dial dtr__link_connected dtr__link_send dtr__link_flush dtr__link_read
        dtr__link_close dtr__rank_report_make)
  target_link_options(test_runtime_ring PRIVATE -Wl,--wrap=${call})
endforeach()
dtr_add_unit_test(runtime_remote_ranks SOURCES unit/runtime_remote_ranks.c)
dtr_add_unit_test(runtime_cache SOURCES unit/runtime_cache.c)
if(TARGET PkgConfig::HWLOC)
  target_compile_definitions(test_runtime_cache PRIVATE DTR_HAVE_HWLOC)
endif()
dtr_add_unit_test(runtime_memory SOURCES unit/runtime_memory.c)
dtr_add_unit_test(runtime_progress SOURCES unit/runtime_progress.c)
dtr_add_unit_test(runtime_recording SOURCES unit/runtime_recording.c unit/recording_unit.c)
dtr_add_unit_test(runtime_followers SOURCES unit/runtime_followers.c unit/recording_unit.c)
dtr_add_unit_test(runtime_runs SOURCES unit/runtime_runs.c)

# The runtime's worlds under mpirun: the program or the library starts MPI.
add_executable(test_runtime_world unit/runtime_world.c)
target_link_libraries(test_runtime_world PRIVATE dtr_static dtr_flags MPI::MPI_C Threads::Threads)
target_include_directories(test_runtime_world PRIVATE harness $<TARGET_PROPERTY:dtr_runtime_internals,INTERFACE_INCLUDE_DIRECTORIES>)
dtr_add_mpi_run(runtime_world TARGET test_runtime_world NPROCS 1 2 3 4 7 ARGS caller multiple)
dtr_add_mpi_run(runtime_world_library TARGET test_runtime_world NPROCS 1 2 4 ARGS library)
foreach(level single funneled serialized)
  dtr_add_mpi_run(runtime_world_${level} TARGET test_runtime_world NPROCS 2 ARGS caller ${level})
endforeach()
add_test(NAME runtime_world_alone COMMAND test_runtime_world library)
set_tests_properties(runtime_world_alone PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT "${DTR_TEST_ENVIRONMENT}")

dtr_add_unit_test(harness_data SOURCES unit/harness_data.c)
dtr_add_unit_test(coll_blocks SOURCES unit/coll_blocks.c)
dtr_add_unit_test(pretended_schedules SOURCES unit/pretended_schedules.c)
dtr_add_unit_test(groups_select SOURCES unit/groups_select.c)
if(DTR_CUDA_ENABLED)
  target_compile_definitions(test_groups_select PRIVATE TEST_HAVE_CUDA=1)
  target_compile_definitions(test_groups_select PRIVATE TEST_HAVE_NCCL=$<BOOL:${DTR_NCCL_INCLUDE}>)
else()
  target_compile_definitions(test_groups_select PRIVATE TEST_HAVE_CUDA=0 TEST_HAVE_NCCL=0)
endif()
dtr_add_unit_test(shm_limits SOURCES unit/shm_limits.c)

# Files whose steps are counted: the program has them once more, with a call in each basic block.
function(dtr_add_counted_test name)
  cmake_parse_arguments(arg "" "" "FILES;WRAP" ${ARGN})
  list(TRANSFORM arg_FILES PREPEND ${PROJECT_SOURCE_DIR}/)
  set_source_files_properties(${arg_FILES} PROPERTIES COMPILE_OPTIONS -fsanitize-coverage=trace-pc)
  dtr_add_unit_test(${name} SOURCES unit/${name}.c ${arg_FILES})
  list(TRANSFORM arg_WRAP PREPEND -Wl,--wrap=)
  target_link_options(test_${name} PRIVATE ${arg_WRAP})
endfunction()
dtr_add_counted_test(many_ranks
  FILES runtime/world/nodes.c collectives/core/nodes.c collectives/group/gpu_choice.c
    runtime/control/control_dial.c runtime/control/directory.c)
dtr_add_counted_test(many_ranks_agree
  FILES collectives/agreement/agree.c collectives/agreement/coordinator.c collectives/agreement/decide.c
    collectives/agreement/tree.c
  WRAP dtr__mailbox_send dtr__mailbox_receive dtr__mailbox_reap dtr__now dtr__ranks_failed dtr__progress_has_thread
    dtr__backoff_pause dtr__peer_doing)
dtr_add_unit_test(agree_schedules SOURCES unit/agree_schedules.c)
foreach(function mailbox_send mailbox_receive mailbox_reap now ranks_failed progress_has_thread backoff_pause peer_doing)
  target_link_options(test_agree_schedules PRIVATE -Wl,--wrap=dtr__${function})
endforeach()

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
dtr_add_why_test(order "" "hier +10  can serve it, as mpi does: sums are made in rank order, and it is so small.*mpi is chosen"
  allreduce f32 512 --ranks 64 --nodes 8 --deterministic)
dtr_add_why_test(order_over_nodes "" "deterministic;.*hier +40  can serve it.*hier is chosen"
  reduce_scatter f32 1M --ranks 8 --nodes 2 --deterministic)
dtr_add_why_test(named cpu:mpi "shm +60.*names another.*mpi is chosen: it is named" alltoall u8 1G)
dtr_add_why_test(refused cpu:shm "none is chosen: the call would be refused" allgather f32 64 --ranks 4 --nodes 2)
dtr_add_why_test(nonsense "" "the call .allredude.: expected allreduce" allredude f32 64)
add_test(NAME dtr_info_bad_value COMMAND dtr-info --options)
set_tests_properties(dtr_info_bad_value PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT "DTR_DEBUG=on"
  PASS_REGULAR_EXPRESSION "DTR_DEBUG is .on.; accepted is one of off.info.detail")
dtr_add_unit_test(measure SOURCES unit/measure.c)
target_link_libraries(test_measure PRIVATE dtr_measure dtr_static)
foreach(program dtr-info dtr-doctor)
  add_test(NAME ${program}_version COMMAND ${program} --version)
  set_tests_properties(${program}_version PROPERTIES LABELS unit TIMEOUT 60 PASS_REGULAR_EXPRESSION "^dtr [0-9.]+; ")
endforeach()

# Worlds without MPI: ranks that no launcher has started. Whatever of MPI the library calls ends the process here.
add_custom_command(OUTPUT without_mpi.c DEPENDS dtr
  COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/unit/without_mpi.sh" "${CMAKE_NM}" $<TARGET_FILE:dtr> without_mpi.c VERBATIM)
add_executable(test_bootstrap unit/bootstrap.c unit/bootstrap_store.c without_mpi.c)
target_link_libraries(test_bootstrap PRIVATE dtr_static dtr_flags MPI::MPI_C Threads::Threads)
# CASE/RANKS, or CASE/RANKS/RANKS_OF_A_NODE for several nodes
foreach(run works/1 works/2 works/3 works/4 works/7 groups/1 groups/2 groups/3 groups/4 groups/7 worlds/4 averages/1 averages/3
    killed/3 killed/4 stopped/3 late/3 aborted/3 absent/3 mistakes/3 killed_early/3
    works/2/1 works/3/1 works/3/2 works/4/2 works/7/1 works/7/3 groups/2/1 groups/3/2 groups/4/2 groups/7/3 worlds/4/2 averages/2/1
    averages/3/2 averages/7/3 killed/3/2 killed/4/2 stopped/3/2 stopped/4/2 late/3/2 aborted/3/2 absent/3/2 mistakes/3/2 killed_early/3/2
    killed_early/4/2 spoilt/3/2)
  string(REPLACE "/" "_" name ${run})
  string(REPLACE "/" ";" run ${run})
  list(GET run 1 n)
  add_test(NAME bootstrap_${name} COMMAND test_bootstrap ${run})
  set_tests_properties(bootstrap_${name} PROPERTIES LABELS unit TIMEOUT 300 PROCESSORS ${n} ENVIRONMENT "${DTR_TEST_ENVIRONMENT}")
endforeach()
