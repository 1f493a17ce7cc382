! An error without stat ends the program; with an argument, one that names the place of a call: ranks disagree on the length.
program stop
  use dtr
  implicit none
  type(dtr_world) :: world
  real :: x(4) = 1
  call dtr_world_create(world)
  if (command_argument_count() > 0) call dtr_allreduce(dtr_world_group(world), x(:3 + dtr_world_rank(world)))
  call dtr_broadcast(dtr_world_group(world), x, root=7)
  print *, "not reached"
end program
