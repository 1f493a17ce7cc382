! A Fortran code with an MPI of its own that adopts the library: the heat equation of 03_heat.c in
! two dimensions, a plate cut into one strip of columns per rank. A neighbour on the same node is
! read where it lies, by a pointer to its columns; messages carry the halo only between nodes, and
! where a node cannot share memory. The start sin(pi x) sin(pi y) decays as exp(-2 pi^2 t).
! Run: mpirun -n 4 ./heat_fortran
program heat
  use, intrinsic :: iso_fortran_env, only: real64
  use mpi
  use dtr
  implicit none
  integer, parameter :: cells = 60, steps = 600, report = 200
  real(real64), parameter :: pi = acos(-1._real64), dx = 1._real64/(cells + 1), a = 0.2_real64

  type plate ! points at the present or the next temperatures, with a column of halo at each side
    real(real64), pointer :: u(:, :) => null()
  end type
  type(dtr_world) :: world
  type(dtr_group) :: all
  type(plate) :: own(2), left(2), right(2) ! the neighbours' own; null: by messages
  integer :: rank, ranks, first, columns, now, step, i, ierror
  real(real64) :: change, worst

  call MPI_Init(ierror)
  call dtr_world_create_from_fcomm(MPI_COMM_WORLD, world)
  all = dtr_world_group(world)
  rank = dtr_world_rank(world)
  ranks = dtr_world_size(world)
  first = begin_of(rank)
  columns = begin_of(rank + 1) - first
  call make_plates
  now = 1
  do step = 1, steps
    call exchange_halo(own(now)%u)
    change = advance(own(now)%u, own(3 - now)%u)
    now = 3 - now
    if (modulo(step, report) == 0) then
      call dtr_allreduce(all, change, label="residual")
      if (rank == 0) print "(a, i4, a, es10.3)", "step ", step, "  residual", sqrt(change)
    end if
  end do
  worst = maxval(abs(own(now)%u(:, 1:columns) - exp(-2*pi**2*steps*a*dx**2)*start()))
  call dtr_allreduce(all, worst, op=DTR_MAX)
  if (rank == 0) print "(a, es9.2, a, i0, a)", "largest error", worst, " on ", ranks, " ranks"
  call dtr_node_barrier(world) ! nobody reads any more
  do i = 1, 2
    call dtr_free(world, own(i)%u)
  end do
  call dtr_world_destroy(world)
  call MPI_Finalize(ierror)
  if (worst > 2e-4_real64) error stop "wrong result"

contains

  pure integer function begin_of(r)
    integer, intent(in) :: r
    begin_of = cells*r/ranks
  end function

  ! All ranks allocate arrays of one size, the first first: only then the library knows which belong
  ! together. Who is a neighbour, and where, is asked once.
  subroutine make_plates
    integer :: k, mine(2), places(2, 0:ranks - 1)
    mine = [dtr_world_node(world), dtr_world_local_rank(world)]
    call dtr_allgather(all, mine, places)
    do k = 1, 2
      call dtr_alloc(world, own(k)%u, [cells, cells/ranks + 3])
      own(k)%u = 0
      own(k)%u(:, 1 + 1:columns + 1) = start()
      own(k)%u(1:, 0:) => own(k)%u ! columns 0 and columns + 1 are the halo
    end do
    call dtr_node_barrier(world) ! now all neighbours have theirs
    do k = 1, 2
      if (rank > 0) call find(own(k), places(:, rank - 1), left(k))
      if (rank < ranks - 1) call find(own(k), places(:, rank + 1), right(k))
    end do
  end subroutine

  subroutine find(mine, place, theirs)
    type(plate), intent(in) :: mine
    integer, intent(in) :: place(2)
    type(plate), intent(inout) :: theirs
    integer :: stat
    if (place(1) /= dtr_world_node(world)) return
    call dtr_peer_pointer(world, mine%u, place(2), theirs%u, stat=stat)
    if (stat == DTR_OK) theirs%u(1:, 0:) => theirs%u
  end subroutine

  ! The barrier lets this rank read what its neighbours have computed. They overwrite it only in the
  ! step after the next barrier, which this rank enters when it has read.
  subroutine exchange_halo(u)
    real(real64), intent(inout), contiguous :: u(:, 0:)
    integer :: to, from, last
    call dtr_node_barrier(world)
    last = begin_of(rank) - begin_of(rank - 1) ! columns of the left neighbour
    if (associated(left(now)%u)) u(:, 0) = left(now)%u(:, last)
    if (associated(right(now)%u)) u(:, columns + 1) = right(now)%u(:, 1)
    to = merge(DTR_PEER_NONE, rank - 1, rank == 0 .or. associated(left(now)%u))
    from = merge(DTR_PEER_NONE, rank + 1, rank == ranks - 1 .or. associated(right(now)%u))
    call dtr_sendrecv(all, u(:, 1), to, u(:, columns + 1), from, tag=1)
    call dtr_sendrecv(all, u(:, columns), from, u(:, 0), to, tag=2)
  end subroutine

  ! One step; the squared change is summed for the residual. The edges of the plate stay at zero.
  real(real64) function advance(u, next) result(change)
    real(real64), intent(in), contiguous :: u(:, 0:)
    real(real64), intent(inout), contiguous :: next(:, 0:)
    real(real64) :: above, below, d
    integer :: row, column
    change = 0
    do column = 1, columns
      do row = 1, cells
        above = 0
        below = 0
        if (row > 1) above = u(row - 1, column)
        if (row < cells) below = u(row + 1, column)
        d = a*(above + below + u(row, column - 1) + u(row, column + 1) - 4*u(row, column))
        next(row, column) = u(row, column) + d
        change = change + d**2
      end do
    end do
  end function

  function start() result(u)
    real(real64) :: u(cells, columns)
    integer :: row, column
    do column = 1, columns
      u(:, column) = [(sin(pi*row*dx)*sin(pi*(first + column)*dx), row=1, cells)]
    end do
  end function
end program
