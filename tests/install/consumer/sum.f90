program consumer
  use dtr
  implicit none
  type(dtr_world) :: world
  real :: x(2)
  call dtr_world_create(world)
  x = [1, dtr_world_rank(world)]
  call dtr_allreduce(dtr_world_group(world), x)
  if (any(x /= [2, 1])) error stop "wrong sums"
  print "(a, i0, a, i0)", "consumer: rank ", dtr_world_rank(world), " of ", dtr_world_size(world)
  call dtr_world_destroy(world)
end program
