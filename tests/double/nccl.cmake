# The stand-in for NCCL.
if(NOT DTR_NCCL_INCLUDE)
  message(STATUS "nccl.h not found: no stand-in for NCCL")
  return()
endif()
dtr_add_double(fake_nccl SONAME libnccl.so.2 MAP "${CMAKE_CURRENT_SOURCE_DIR}/nccl/nccl.map" LIBS fake_cudart m rt SOURCES
  nccl/nccl_comm.c
  nccl/nccl_fault.c
  nccl/nccl_group.c
  nccl/nccl_memory.c
  nccl/nccl_run.c
  nccl/nccl_shared.c
  SEEN nccl/nccl_reduce.c)
target_include_directories(fake_nccl SYSTEM PRIVATE ${DTR_NCCL_INCLUDE})
add_dependencies(stand_ins fake_nccl)
dtr_add_double_mpi_test(double_nccl NPROCS 1 2 4 SOURCES nccl_raw.c LIBS fake_nccl fake_cudart)
target_include_directories(test_double_nccl SYSTEM PRIVATE ${DTR_NCCL_INCLUDE})
# Mistakes that it is to notice.
dtr_add_double_mpi_test(double_nccl_strict NPROCS 1 2 SOURCES nccl_strict.c LIBS fake_nccl fake_cudart)
target_include_directories(test_double_nccl_strict SYSTEM PRIVATE ${DTR_NCCL_INCLUDE})

dtr_add_double_mpi_test(double_nccl_handle NPROCS 1 2 4 SOURCES nccl_handle.c LIBS fake_nccl fake_cudart)
target_include_directories(test_double_nccl_handle SYSTEM PRIVATE ${DTR_NCCL_INCLUDE})

# The nccl backend: as the newest version, with the calls that only that one has, and as the oldest.
dtr_add_double_mpi_test(double_nccl_backend NPROCS 1 2 4 SOURCES nccl_backend.c LIBS fake_cudart)
dtr_add_double_mpi_test(double_nccl_failures NPROCS 1 2 4 SOURCES nccl_failures.c LIBS fake_cudart)
dtr_add_mpi_run(double_nccl_2_18 TARGET test_double_nccl_backend NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_FAKE_NCCL_VERSION=21801)
dtr_add_mpi_run(double_nccl_failures_2_18 TARGET test_double_nccl_failures NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_FAKE_NCCL_VERSION=21801)
# Kernels of the library beside NCCL's, what works hold and tell.
dtr_add_double_mpi_test(double_nccl_work NPROCS 1 2 3 SOURCES nccl_work.c LIBS fake_cudart)
# A thousand operations at once, through NCCL and through stage.
dtr_add_double_mpi_test(double_stress NPROCS 1 2 3 4 SOURCES stress.c LIBS fake_cudart)
dtr_add_mpi_run(double_stress_stage TARGET test_double_stress NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${stage})
# Limits, ends, and the way of each version.
dtr_add_double_mpi_test(double_nccl_rules NPROCS 3 SOURCES nccl_rules.c LIBS fake_cudart)
dtr_add_mpi_run(double_nccl_rules_2_22 TARGET test_double_nccl_rules NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_FAKE_NCCL_VERSION=22203)
# What every call hands to NCCL, and what handles and records say of it; two devices for each rank.
dtr_add_double_mpi_test(double_nccl_rows NPROCS 2 3 SOURCES nccl_rows.c LIBS fake_cudart ENVIRONMENT DTR_FAKE_CUDA_NDEV=2)
# How operations end, and many threads at once.
dtr_add_double_mpi_test(double_nccl_ends NPROCS 2 SOURCES nccl_ends.c LIBS fake_cudart)
# Both ends of a message, on one node and on two, which hear of the other end later than an error of NCCL's would come.
dtr_add_double_mpi_test(double_nccl_pairs NPROCS 2 3 SOURCES nccl_pairs.c LIBS fake_cudart)
dtr_add_mpi_run(double_nccl_pairs_nodes TARGET test_double_nccl_pairs NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_NODE_RANKS=1 DTR_CONTROL_MS=20 DTR_FAKE_NCCL_ODD_ENDS_HANG=1)
# DTR_DEBUG=detail; on two nodes too, which see each other by reports.
dtr_add_double_mpi_test(double_nccl_detail NPROCS 2 3 SOURCES nccl_detail.c LIBS fake_cudart)
dtr_add_mpi_run(double_nccl_detail_nodes TARGET test_double_nccl_detail NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_NODE_RANKS=1 DTR_CONTROL_MS=20)
# The order of what belongs to one call, with the oldest version, where most calls are a group.
dtr_add_double_mpi_test(double_nccl_order NPROCS 2 3 SOURCES nccl_order.c LIBS fake_cudart
  ENVIRONMENT DTR_FAKE_NCCL_VERSION=21805 DTR_NCCL_BLOCKING=0)
# How communicators begin, are polled and end, what fails, what is refused; the oldest way of giving up.
dtr_add_double_mpi_test(double_nccl_life NPROCS 2 3 SOURCES nccl_life.c LIBS fake_cudart ENVIRONMENT DTR_FAKE_CUDA_NDEV=2)
dtr_add_mpi_run(double_nccl_life_2_18 TARGET test_double_nccl_life NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_FAKE_CUDA_NDEV=2 DTR_FAKE_NCCL_VERSION=21805)
# Communicators whose calls do not block: a thread of NCCL's for each of them.
foreach(test backend failures rules ends pairs detail)
  dtr_add_mpi_run(double_nccl_${test}_threads TARGET test_double_nccl_${test} NPROCS 2 LABELS double TIMEOUT 300
    ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_NCCL_BLOCKING=0)
endforeach()
# A split that leaves a rank out, whose handle NCCL writes late.
dtr_add_mpi_run(double_nccl_rules_threads TARGET test_double_nccl_rules NPROCS 3 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_NCCL_BLOCKING=0)
# A context for each rank, on its own device.
dtr_add_double_mpi_test(double_contexts NPROCS 4 SOURCES contexts.c LIBS fake_cudart
  ENVIRONMENT DTR_FAKE_CUDA_NDEV=4 DTR_FAKE_CUDA_UUID=one)
# Memory that NCCL is told of, and a version that cannot be told.
dtr_add_double_mpi_test(double_nccl_register NPROCS 1 2 SOURCES nccl_register.c LIBS fake_cudart
  ENVIRONMENT DTR_NCCL_REGISTER=1 DTR_FAKE_CUDA_NDEV=2)
dtr_add_mpi_run(double_nccl_register_2_18 TARGET test_double_nccl_register NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_NCCL_REGISTER=1 DTR_FAKE_CUDA_NDEV=2 DTR_FAKE_NCCL_VERSION=21805)
# Buckets as windows, and a version that has none.
dtr_add_double_mpi_test(double_nccl_windows NPROCS 1 2 4 SOURCES nccl_windows.c LIBS fake_cudart ENVIRONMENT DTR_NCCL_REGISTER=1)
dtr_add_mpi_run(double_nccl_windows_2_26 TARGET test_double_nccl_windows NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_NCCL_REGISTER=1 DTR_FAKE_NCCL_VERSION=22602)
dtr_add_double_mpi_test(double_capture NPROCS 1 2 SOURCES capture.c LIBS fake_cudart)
dtr_add_double_mpi_test(double_nccl_faults NPROCS 2 3 SOURCES nccl_faults.c LIBS fake_cudart)
# Deaths, stops and waits in vain with the data on the device (reliability: FI1, FI3, FI5, FI6, FI7, FI12, FI14, FI33).
add_dependencies(double test_fault dtr-doctor)
add_dependencies(test_fault stand_ins)
function(dtr_add_double_fault_test case)
  dtr_add_fault_test(${case} ${ARGN} BACKENDS nccl ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT})
endfunction()
dtr_add_double_fault_test(absent NPROCS 2 3)
dtr_add_double_fault_test(stopped NPROCS 2 3 WAYS large async)
dtr_add_double_fault_test(killed NPROCS 2 3 WAYS small scope)
dtr_add_double_fault_test(killed_inside NPROCS 2 3 WAYS small async)
dtr_add_double_fault_test(killed_told NPROCS 2 3)
dtr_add_double_fault_test(killed_async NPROCS 2 3)
dtr_add_double_fault_test(crashed NPROCS 2 3 WAYS async small)
dtr_add_double_fault_test(left NPROCS 2 3 WAYS small async)
dtr_add_double_fault_test(opposite NPROCS 2 3)
dtr_add_double_fault_test(no_partner NPROCS 2 3)
# Groups of their own device, splits, what a group says of itself, and coalescing scopes.
dtr_add_double_mpi_test(double_nccl_groups NPROCS 1 2 4 SOURCES nccl_groups.c LIBS fake_cudart)
# What is decided when a world is made: by settings of each run.
dtr_add_double_mpi_test(double_nccl_shared NPROCS 2 4 SOURCES nccl_world.c LIBS fake_cudart
  ENVIRONMENT DTR_TEST_POSE=shared DTR_FAKE_CUDA_UUID=one)
foreach(pose wanted:DTR_FAKE_CUDA_UUID=one old:DTR_FAKE_NCCL_VERSION=21701 mixed:DTR_FAKE_CUDA_NDEV=1)
  string(REGEX MATCH "^([a-z]+):(.*)" all ${pose})
  dtr_add_mpi_run(double_nccl_${CMAKE_MATCH_1} TARGET test_double_nccl_shared NPROCS 2 LABELS double TIMEOUT 300
    ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_TEST_POSE=${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
endforeach()
# What only the last rank lacks, with its reason, reaches all, over nodes too.
foreach(pose last driver)
  dtr_add_mpi_run(double_nccl_${pose} TARGET test_double_nccl_shared NPROCS 2 4 LABELS double TIMEOUT 300
    ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_TEST_POSE=${pose} DTR_FAKE_CUDA_NDEV=1 DTR_NODE_RANKS=2)
endforeach()
dtr_add_mpi_run(double_nccl_old TARGET test_double_nccl_shared NPROCS 1 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_TEST_POSE=old DTR_FAKE_NCCL_VERSION=21701)
dtr_add_mpi_run(double_nccl_none TARGET test_double_nccl_shared NPROCS 1 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_TEST_POSE=none ${DTR_NO_NCCL})
# Threads that are left at the end count as a finding of the thread sanitizer.
if(NOT DTR_SANITIZE MATCHES "thread")
  dtr_add_double_test(double_nccl_exit SOURCES nccl_exit.c LIBS fake_cudart)
endif()

# dtr-bench on device memory, paired with NCCL itself, and dtr-ddp-bench. Not under the thread sanitizer, as the other tools'
# tests.
if(NOT DTR_SANITIZE MATCHES "thread")
  foreach(tool bench ddp_bench)
    string(REPLACE "_" "-" program dtr-${tool})
    add_dependencies(double ${program})
    add_test(NAME double_${tool} COMMAND ${Python3_EXECUTABLE} -B "${PROJECT_SOURCE_DIR}/tests/tools/${tool}_device.py"
      ${DTR_MPIEXEC} $<TARGET_FILE:${program}>)
    set_tests_properties(double_${tool} PROPERTIES LABELS double TIMEOUT 600 PROCESSORS 2 SKIP_RETURN_CODE 77
      ENVIRONMENT "${DTR_TEST_ENVIRONMENT};${DTR_DOUBLE_ENVIRONMENT}")
  endforeach()
endif()

# GP9, GP5, A13: which backend would serve device memory, and why, as dtr-info tells it.
function(dtr_add_device_why_test name backend pattern)
  add_test(NAME double_why_${name} COMMAND dtr-info --why ${ARGN} --memory cuda)
  set_tests_properties(double_why_${name} PROPERTIES LABELS double TIMEOUT 300 PASS_REGULAR_EXPRESSION "${pattern}"
    ENVIRONMENT "${DTR_DOUBLE_ENVIRONMENT};DTR_BACKEND=${backend}")
endfunction()
dtr_add_device_why_test(nccl "" "CUDA memory, 8 ranks on 2 nodes.*nccl is chosen" allreduce bf16 4MiB --ranks 8 --nodes 2)
dtr_add_device_why_test(windows "" "with DTR_NCCL_REGISTER=1: blocks are registered, buckets of DDP are windows" allreduce f32 1K)
dtr_add_device_why_test(op "" "nccl   cannot: NCCL has no bit operations.*stage is chosen: nccl cannot" allreduce i32 1K --op band)
dtr_add_device_why_test(shared cuda:nccl "cannot: NCCL puts no two ranks on one GPU.*refused with DTR_ERR_UNSUPPORTED"
  alltoall f32 1K --one-gpu)

# DDP on the device: over NCCL, with random delays too, over stage, and where the ranks share a GPU (of ddp:GF6 the
# results on two ranks; the one warning is nccl:GP5's).
dtr_add_double_mpi_test(double_ddp NPROCS 2 SOURCES ddp_gpu.c LIBS fake_cudart)
dtr_add_mpi_run(double_ddp_delays TARGET test_double_ddp NPROCS 1 4 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_FAKE_CUDA_DELAY_US=30 DTR_FAKE_CUDA_SEED=5)
dtr_add_mpi_run(double_ddp_stage TARGET test_double_ddp NPROCS 1 4 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${stage} DTR_TEST_STAGE=1 DTR_FAKE_CUDA_DELAY_US=30 DTR_FAKE_CUDA_SEED=5)
dtr_add_mpi_run(double_ddp_shared TARGET test_double_ddp NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_TEST_STAGE=1 DTR_FAKE_CUDA_UUID=one)
# What DDP does on the device beside the same on the host.
dtr_add_double_mpi_test(double_ddp_pairs NPROCS 1 2 SOURCES ddp_pairs.c LIBS fake_cudart ENVIRONMENT DTR_FAKE_CUDA_DELAY_US=30)
dtr_add_mpi_run(double_ddp_pairs_stage TARGET test_double_ddp_pairs NPROCS 2 4 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${stage} DTR_TEST_STAGE=1 DTR_DDP_STATS_EVERY=2)
# Buffer hooks (P4, P5), steps per bucket (Z1-Z6), delayed parameters (D1-D7), errors known one step later (ER10).
foreach(part buffer_hook step delayed late)
  dtr_add_double_mpi_test(double_ddp_${part} NPROCS 1 2 3 4 SOURCES ddp_${part}.c LIBS fake_cudart
    ENVIRONMENT DTR_FAKE_CUDA_DELAY_US=30)
  dtr_add_mpi_run(double_ddp_${part}_stage TARGET test_double_ddp_${part} NPROCS 2 3 LABELS double TIMEOUT 300
    ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${stage} DTR_TEST_STAGE=1 DTR_FAKE_CUDA_DELAY_US=30)
endforeach()
# Optimizers, whole and sharded.
dtr_add_double_mpi_test(double_ddp_optim NPROCS 1 2 SOURCES ddp_optim.c LIBS fake_cudart ENVIRONMENT DTR_FAKE_CUDA_DELAY_US=30)
dtr_add_mpi_run(double_ddp_optim_stage TARGET test_double_ddp_optim NPROCS 2 4 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${stage} DTR_TEST_STAGE=1)
dtr_add_double_mpi_test(double_ddp_zero NPROCS 2 3 SOURCES ddp_zero.c LIBS fake_cudart ENVIRONMENT DTR_FAKE_CUDA_DELAY_US=30)
dtr_add_double_mpi_test(double_ddp_power NPROCS 2 3 SOURCES ddp_power.c LIBS fake_cudart ENVIRONMENT DTR_FAKE_CUDA_DELAY_US=30)
dtr_add_mpi_run(double_ddp_power_stage TARGET test_double_ddp_power NPROCS 2 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${stage} DTR_TEST_STAGE=1)
# Row-sparse gradients: H8, H9, T49, T54.
foreach(part "" _ends)
  dtr_add_double_mpi_test(double_ddp_rows${part} NPROCS 1 2 3 7 SOURCES ddp_rows${part}.c LIBS fake_cudart
    ENVIRONMENT DTR_FAKE_CUDA_DELAY_US=30)
  dtr_add_mpi_run(double_ddp_rows${part}_stage TARGET test_double_ddp_rows${part} NPROCS 2 4 LABELS double TIMEOUT 300
    ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} ${stage} DTR_TEST_STAGE=1 DTR_FAKE_CUDA_DELAY_US=30 DTR_FAKE_CUDA_SEED=5)
endforeach()
# T42, GF6: one rank through NCCL, two that share the GPU through stage.
dtr_add_double_mpi_test(double_ddp_one_gpu NPROCS 2 SOURCES ddp_one_gpu.c ../mpi/ddp_models.c LIBS fake_cudart
  ENVIRONMENT DTR_FAKE_CUDA_UUID=one)
target_include_directories(test_double_ddp_one_gpu PRIVATE "${PROJECT_SOURCE_DIR}/tests/mpi")
dtr_add_mpi_run(double_ddp_one_gpu_nccl TARGET test_double_ddp_one_gpu NPROCS 1 LABELS double TIMEOUT 300
  ENVIRONMENT ${DTR_DOUBLE_ENVIRONMENT} DTR_BACKEND=cpu:auto,cuda:nccl)

# The example on the stand-ins, which has to make the same losses as its twin on the CPU; also where the ranks share a GPU.
if(TARGET train_gpt_gpu)
  dtr_add_double(fake_cublas SONAME libcublas.so.13 MAP "${CMAKE_CURRENT_SOURCE_DIR}/cublas/cublas.map" LIBS fake_cudart m
    SEEN cublas/fake_cublas.c)
  target_include_directories(fake_cublas PRIVATE "${PROJECT_SOURCE_DIR}/examples")
  add_dependencies(double train_gpt train_gpt_gpu fake_cublas)
  set(small --steps 20 --layers 2 --width 24 --heads 2 --context 16 --batch 4 --rate 0.1 --sample 20)
  function(dtr_check_gpt name ranks setting)
    set(test double_train_gpt${name}_np${ranks})
    add_test(NAME ${test} COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/same_losses.sh" "${CMAKE_CURRENT_BINARY_DIR}/${test}"
      "${DTR_DOUBLE_LIB}:${PROJECT_BINARY_DIR}" $<TARGET_FILE:train_gpt> $<TARGET_FILE:train_gpt_gpu>
      ${DTR_MPIEXEC} -n ${ranks} -- ${small} ${ARGN})
    set_tests_properties(${test} PROPERTIES LABELS double TIMEOUT 300 PROCESSORS ${ranks}
      ENVIRONMENT "${DTR_TEST_ENVIRONMENT};${setting}")
  endfunction()
  dtr_check_gpt("" 1 "" --verify)
  dtr_check_gpt("" 2 DTR_FAKE_CUDA_DELAY_US=30 --verify)
  dtr_check_gpt(_shared 2 DTR_FAKE_CUDA_UUID=one)
  dtr_check_gpt(_parts 2 "" --accumulate 2 --clip 0.3 --zero)
  add_test(NAME double_train_gpt_without COMMAND train_gpt_gpu --steps 1)
  set_tests_properties(double_train_gpt_without PROPERTIES LABELS double TIMEOUT 300
    PASS_REGULAR_EXPRESSION "no usable GPU .dtr-info says why.; train_gpt trains on the CPU"
    ENVIRONMENT "${DTR_DOUBLE_ENVIRONMENT};DTR_FAKE_CUDA_NDEV=0")
endif()
