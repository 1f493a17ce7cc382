# Tests of worlds and groups.
dtr_add_mpi_test(groups_query SOURCES mpi/groups_query.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(groups_create SOURCES mpi/groups_create.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(groups_split SOURCES mpi/groups_split.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(groups_agree SOURCES mpi/groups_agree.c NPROCS 2 3 4 7)
dtr_add_mpi_test(groups_local SOURCES mpi/groups_local.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(groups_destroy SOURCES mpi/groups_destroy.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(groups_custom SOURCES mpi/groups_custom.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(groups_slots SOURCES mpi/groups_slots.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(groups_exact SOURCES mpi/groups_exact.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(groups_world SOURCES mpi/groups_world.c NPROCS 1 2 3 4 7)
dtr_add_mpi_test(world_alike SOURCES mpi/world_alike.c NPROCS 2 3 4 7)
add_executable(test_groups_life mpi/groups_life.c)
target_link_libraries(test_groups_life PRIVATE dtr_static dtr_flags MPI::MPI_C)
foreach(case library keep too_late too_early debug)
  dtr_add_mpi_run(groups_life_${case} TARGET test_groups_life NPROCS 1 2 3 ARGS ${case})
endforeach()
# STO6: no server, port or file name is needed, and those of other launchers are not looked at.
dtr_add_mpi_run(groups_life_environment TARGET test_groups_life NPROCS 2 ARGS environment ENVIRONMENT
  DTR_TIMEOUT=250 DTR_BACKEND=CPU:mpi DTR_DEBGU=detail MASTER_ADDR=nowhere MASTER_PORT=x RANK=77 WORLD_SIZE=-3 LOCAL_RANK=9)
add_test(NAME groups_life_alone COMMAND test_groups_life library)
set_tests_properties(groups_life_alone PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT "${DTR_TEST_ENVIRONMENT}")
# Of reliability:CP7, within a node: limits, aborts and refusals reach all ranks at the lower thread levels of the caller's
# MPI too.
foreach(level single funneled serialized)
  dtr_add_mpi_run(groups_agree_${level} TARGET test_groups_agree NPROCS 3 ENVIRONMENT DTR_TEST_THREAD_LEVEL=${level})
  dtr_add_mpi_run(groups_destroy_${level} TARGET test_groups_destroy NPROCS 3 ENVIRONMENT DTR_TEST_THREAD_LEVEL=${level})
endforeach()
