list(APPEND DTR_COLL_SOURCES
  mpi/mpi_backend.c
  mpi/mpi_declare.c
  mpi/mpi_move.c
  mpi/mpi_p2p.c
  mpi/mpi_reduce.c
  mpi/mpi_sched.c
  mpi/mpi_tree.c)
