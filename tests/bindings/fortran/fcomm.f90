! A world over the program's communicator, with the ranks the other way round, and a communicator of one of its groups.
program fcomm
  use mpi
  use dtr
  implicit none
  type(dtr_world) :: world
  type(dtr_group) :: pairs
  integer :: backwards, rank, ranks, there, members, i, stat
  character(len=100) :: message
  call MPI_Init(i)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, i)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, i)
  call MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, backwards, i)
  call dtr_world_create_from_fcomm(backwards, world, timeout=100d0)
  call MPI_Comm_free(backwards, i)
  if (dtr_world_rank(world) /= ranks - 1 - rank .or. dtr_world_size(world) /= ranks) error stop "ranks"
  call dtr_group_split(dtr_world_group(world), dtr_world_rank(world)/2, pairs)
  call dtr_group_fcomm(pairs, there)
  members = 1
  call MPI_Allreduce(MPI_IN_PLACE, members, 1, MPI_INTEGER, MPI_SUM, there, i)
  if (members /= dtr_group_size(pairs)) error stop "members"
  call dtr_group_destroy(pairs)
  call dtr_world_destroy(world)
  call dtr_world_create_from_fcomm(MPI_COMM_NULL, world, stat=stat, errmsg=message)
  if (stat /= DTR_ERR_ARG .or. index(message, "MPI_COMM_NULL") == 0) error stop message
  call MPI_Finalize(i)
end program
