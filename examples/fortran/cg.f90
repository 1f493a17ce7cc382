! Conjugate gradients whose residuals are the same, bit for bit, on any number of ranks: the program
! of 06_cg.c, whose first lines explain it, in Fortran. It comes to the same bits as that one.
! Run: mpirun -n 4 ./cg_fortran
program cg
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use dtr
  implicit none
  integer, parameter :: side = 96, points = side*side, most = 2000, report = 50
  real(real64), parameter :: limit = 1e-10_real64 ! of the residual, as a part of the first one

  type(dtr_world) :: world
  type(dtr_group) :: all
  integer :: rank, ranks, first, last, steps, i
  integer, allocatable :: counts(:)
  integer(int64) :: hash = 0 ! of the bits of all residuals
  real(real64) :: whole(0:points - 1), worst
  real(real64), allocatable :: x(:), r(:), p(:), q(:) ! own part of each vector

  call dtr_world_create(world)
  all = dtr_world_group(world)
  rank = dtr_world_rank(world)
  ranks = dtr_world_size(world)
  first = points*rank/ranks
  last = points*(rank + 1)/ranks - 1
  counts = [(points*(i + 1)/ranks - points*i/ranks, i=0, ranks - 1)]
  allocate (x(first:last), q(first:last))

  whole = [(solution(i), i=0, points - 1)]
  x = 0
  r = [(row_times(i, whole), i=first, last)]
  p = r
  call solve

  worst = maxval([(abs(x(i) - solution(i)), i=first, last)])
  call dtr_allreduce(all, worst, op=DTR_MAX)
  if (rank == 0) then
    print "(i0, a, i0, a, es8.1)", steps, " iterations on ", ranks, " ranks, largest error", worst
    print "(a, z16.16)", "all residuals: ", hash
  end if
  call dtr_world_destroy(world)
  if (worst > 1e-6_real64) error stop "wrong solution"

contains

  ! The sum over all ranks is made without rounding, so it does not matter who has which elements.
  subroutine solve
    real(real64) :: square, before, curvature, along, enough
    integer :: k
    call dtr_dot(all, r, r, square)
    enough = limit*sqrt(square)
    do steps = 0, most - 1
      call note(sqrt(square))
      if (sqrt(square) <= enough) exit
      call dtr_allgatherv(all, p, whole, counts)
      q = [(row_times(k, whole), k=first, last)]
      call dtr_dot(all, p, q, curvature)
      along = square/curvature
      x = x + along*p
      r = r - along*q
      before = square
      call dtr_dot(all, r, r, square)
      p = r + square/before*p
    end do
  end subroutine

  pure real(real64) function solution(i)
    integer, intent(in) :: i
    solution = modulo(i, 11) - 5
  end function

  pure real(real64) function weight(a, b)
    integer, intent(in) :: a, b
    weight = 1 + modulo(7*min(a, b) + 13*max(a, b), 17)
  end function

  ! Row i of the matrix times a vector, in the order of the columns: above, left, the point itself,
  ! right, below.
  pure real(real64) function row_times(i, v) result(total)
    integer, intent(in) :: i
    real(real64), intent(in) :: v(0:)
    integer :: near(4), k
    logical :: there(4)
    real(real64) :: diagonal
    near = i + [-side, -1, 1, side]
    there = [i >= side, modulo(i, side) > 0, modulo(i, side) < side - 1, i < points - side]
    diagonal = 1/16._real64
    do k = 1, 4
      if (there(k)) diagonal = diagonal + weight(i, near(k))
    end do
    total = 0
    do k = 1, 4
      if (k == 3) total = total + diagonal*v(i)
      if (there(k)) total = total - weight(i, near(k))*v(near(k))
    end do
  end function

  subroutine note(residual)
    real(real64), intent(in) :: residual
    hash = ieor(hash, transfer(residual, hash))*1099511628211_int64
    hash = ieor(hash, ishft(hash, -29))
    if (rank == 0 .and. modulo(steps, report) == 0) then
      print "(a, i4, a, es22.16)", "iteration ", steps, "  residual ", residual
    end if
  end subroutine
end program
