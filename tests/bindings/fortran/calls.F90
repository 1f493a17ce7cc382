! The module for Fortran: calls by type in matrix.F90.in, all else here. A rank that finds something wrong says so and ends
! with status 1.
program calls
  use, intrinsic :: iso_c_binding
  use dtr
  implicit none
  interface
    subroutine matrix_all(g, wrong)
      import :: dtr_group
      type(dtr_group), intent(in) :: g
      integer, intent(inout) :: wrong
    end subroutine
  end interface
  type(dtr_world) :: world
  type(dtr_group) :: group
  integer :: wrong = 0, n, r

  call dtr_world_create(world, timeout=300d0, keep_mpi=.false.)
  group = dtr_world_group(world)
  n = dtr_world_size(world)
  r = dtr_world_rank(world)
  call matrix_all(group, wrong)
  call operators
  call waits
  call extremes
  call sums
  call other_types
  call groups
  call memory
  call texts
  call refusals
  call dtr_world_destroy(world)
  call expect(.not. c_associated(world%handle), __LINE__)
  if (wrong > 0) error stop 1, quiet=.true.

contains

  subroutine operators
    integer :: x, bits
    real(c_double) :: mean
    x = r + 1
    call dtr_allreduce(group, x, op=DTR_MAX)
    call expect(x == n, __LINE__)
    x = r + 1
    call dtr_allreduce(group, x, op=DTR_MIN)
    call expect(x == 1, __LINE__)
    x = 2
    call dtr_allreduce(group, x, op=DTR_PROD)
    call expect(x == 2**n, __LINE__)
    bits = 2**r
    call dtr_allreduce(group, bits, op=DTR_BOR)
    call expect(bits == 2**n - 1, __LINE__)
    bits = ior(8192, 2**r)
    call dtr_allreduce(group, bits, op=DTR_BAND)
    call expect(bits == merge(8193, 8192, n == 1), __LINE__)
    bits = 1
    call dtr_allreduce(group, bits, op=DTR_BXOR)
    call expect(bits == modulo(n, 2), __LINE__)
    bits = merge(5, 0, r == 0)
    call dtr_allreduce(group, bits, op=DTR_LOR)
    call expect(bits == 1, __LINE__)
    bits = merge(0, 5, r == 0)
    call dtr_allreduce(group, bits, op=DTR_LAND)
    call expect(bits == 0, __LINE__)
    bits = 5
    call dtr_allreduce(group, bits, op=DTR_LXOR)
    call expect(bits == modulo(n, 2), __LINE__)
    mean = r
    call dtr_allreduce(group, mean, op=DTR_AVG)
    call expect(mean == (n - 1)/2d0, __LINE__)
  end subroutine

  ! Rank 0 waits for what has not been sent yet.
  subroutine waits
    type(dtr_work) :: work
    integer, asynchronous :: x
    integer :: stat
    logical :: done
    real(c_double) :: duration
    x = -1
    if (n > 1 .and. r == 0) then
      call dtr_recv(group, x, 1, tag=5, work=work)
      call dtr_work_wait(work, timeout=0d0, stat=stat)
      call dtr_work_test(work, done)
      call expect(stat == DTR_IN_PROGRESS .and. .not. done .and. c_associated(work%handle), __LINE__)
      call dtr_send(group, stat, 1, tag=6) ! now it may be sent
    else if (r == 1) then
      call dtr_recv(group, x, 0, tag=6)
      x = 42
      call dtr_send(group, x, 0, tag=5, work=work)
      call dtr_work_release(work)
      call expect(.not. c_associated(work%handle), __LINE__)
    end if
    duration = -1
    if (n > 1 .and. r == 0) then
      call dtr_work_wait(work, duration=duration)
      call expect(x == 42 .and. duration >= 0 .and. .not. c_associated(work%handle), __LINE__)
    end if
    call dtr_work_wait(work) ! of none
    call dtr_group_drain(group)
  end subroutine

  subroutine extremes
    real :: values(2, 2)
    real(c_double) :: one
    integer :: where_from(2, 2), whole(3)
    integer(c_int64_t) :: at, index(3)
    values = r
    where_from = 10*r
    call dtr_allreduce_loc(group, values(:, 1), where_from(:, 1), DTR_MAXLOC)
    call expect(all(values(:, 1) == n - 1) .and. all(where_from(:, 1) == 10*(n - 1)), __LINE__)
    call expect(all(values(:, 2) == r) .and. all(where_from(:, 2) == 10*r), __LINE__)
    one = -r
    at = r
    call dtr_allreduce_loc(group, one, at, op=DTR_MINLOC)
    call expect(one == 1 - n .and. at == n - 1, __LINE__)
    whole = [r, 5, -r]
    index = r
    call dtr_allreduce_loc(group, whole, index, op=DTR_MINLOC)
    call expect(all(whole == [0, 5, 1 - n]) .and. all(index == [0, 0, n - 1]), __LINE__)
  end subroutine

  subroutine sums
    real :: few(3)
    real(c_double) :: x(2, 3), s
    x = 1d16
    x(1, :) = [1d0, -1d0, 0.5d0]
    x(2, :) = [1d300, -1d300, 0d0]
    call dtr_exact_sum(group, x, s)
    call expect(s == 0.5d0*n, __LINE__)
    few = [1, 2, 2]
    call dtr_norm2(group, few, s, label="norm")
    call expect(abs(s - 3*sqrt(real(n, c_double))) < 1d-14, __LINE__)
    call dtr_dot(group, x(1, :), x(1, :), s)
    call expect(s == 2.25d0*n, __LINE__)
  end subroutine

  subroutine other_types
    character(len=5) :: words(2), one
    logical(c_bool) :: flags(3)
    integer :: stat
    logical :: plain
    character(len=300) :: message
    type :: own
      integer :: i(5)
    end type
    type(own) :: derived
    one = merge("hello", "     ", r == 0)
    call dtr_broadcast(group, one, 0)
    words = "x"
    if (r == n - 1) words = ["first", "secnd"]
    call dtr_broadcast(group, words, n - 1)
    call expect(one == "hello" .and. words(2) == "secnd", __LINE__)
    flags = [.true._c_bool, logical(r == 0, c_bool), .false._c_bool]
    call dtr_allreduce(group, flags, op=DTR_MAX)
    call expect(all(flags .eqv. [.true., .true., .false.]), __LINE__)
    call dtr_allreduce(group, words, stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_DTYPE, message, "allreduce: in is of type character, which can be moved", __LINE__)
    plain = .true.
    call dtr_broadcast(group, plain, 0, stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_DTYPE, message, "buf has a type that the library does not know (elements of 4 bytes)", __LINE__)
    derived%i = 1
    call dtr_broadcast(group, derived, 0, stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_DTYPE, message, "(elements of 20 bytes)", __LINE__)
  end subroutine

  subroutine groups
    type(dtr_group) :: pairs, listed, exact
    integer :: members, i, stat, color
    real(c_double) :: x
    members = 1
    call dtr_group_split(group, r/2, pairs, key=-r, name="pairs", timeout=200d0)
    call dtr_allreduce(pairs, members)
    call expect(members == min(2, n - r/2*2) .and. dtr_group_size(pairs) == members, __LINE__)
    call expect(dtr_group_name(pairs) == "pairs" .and. dtr_group_status(pairs) == DTR_OK, __LINE__)
    call expect(dtr_group_world_rank(pairs, 0) == r/2*2 + members - 1, __LINE__)
    call expect(dtr_group_rank_of(pairs, r) == dtr_group_rank(pairs), __LINE__)
    call dtr_group_set_timeout(pairs, 100d0)
    call dtr_group_drain(pairs)
    call dtr_group_destroy(pairs)
    call expect(.not. c_associated(pairs%handle), __LINE__)
    call dtr_group_create(world, [(int(n - i, c_int64_t), i=1, n)], listed, backend="cpu:mpi", deterministic=.true.)
    call expect(dtr_group_rank(listed) == n - 1 - r, __LINE__)
    call dtr_monitored_barrier(listed, timeout=60d0)
    call dtr_group_release(listed)
    color = merge(1, DTR_COLOR_NONE, r == 0)
    call dtr_group_split(group, color, listed)
    call dtr_barrier(listed, stat=stat)
    call expect(stat == merge(DTR_OK, DTR_NOT_MEMBER, r == 0) .and. dtr_group_rank(listed) == merge(0, -1, r == 0), __LINE__)
    call dtr_group_destroy(listed)
    call dtr_group_split(group, 0, exact, reproducible=.true.)
    x = merge(1d17, merge(-1d17, 1d0, r == 1), r == 0) ! 1 and then -1d17 would round
    call dtr_allreduce(exact, x)
    call expect(x == merge(1d17, real(n - 2, c_double), n == 1), __LINE__)
    call dtr_barrier(group) ! nobody is in an operation of the group that breaks
    call dtr_group_abort(exact, "enough  ")
    call dtr_barrier(exact, stat=stat)
    call expect(stat == DTR_ERR_ABORTED .and. index(dtr_last_error_message(), "enough") > 0, __LINE__)
    call dtr_group_destroy(exact, stat=stat)
    call dtr_world_progress(world)
  end subroutine

  subroutine memory
    real(c_double), pointer :: plane(:, :) => null(), theirs(:, :) => null()
    integer(c_int8_t), pointer :: bytes(:) => null()
    complex(c_float_complex), pointer :: cube(:, :, :) => null()
    integer :: i, stat, local, locals
    local = dtr_world_local_rank(world)
    locals = dtr_world_local_size(world)
    call expect(dtr_world_node(world) < dtr_world_node_count(world), __LINE__)
    call dtr_alloc(world, plane, [3, 4])
    call dtr_alloc(world, bytes, 10, kind=DTR_MEM_DEFAULT)
    call dtr_alloc(world, cube, [2_c_int64_t, 3_c_int64_t, 4_c_int64_t], kind=DTR_MEM_PINNED)
    call expect(all(shape(plane) == [3, 4]) .and. size(bytes) == 10 .and. all(shape(cube) == [2, 3, 4]), __LINE__)
    call expect(lbound(plane, 2) == 1, __LINE__)
    plane = r
    bytes = 1
    cube = (1., 2.)
    call dtr_allreduce(group, bytes)
    call expect(all(bytes == n), __LINE__)
    call dtr_allreduce(group, cube)
    call expect(all(cube == n*(1., 2.)), __LINE__)
    plane(2, 3) = 100 + r
    plane(3, 4) = 200 + r
    call dtr_node_barrier(world)
    do i = 0, locals - 1
      call dtr_peer_pointer(world, plane, i, theirs, stat=stat)
      call expect(stat == DTR_OK .or. stat == DTR_ERR_UNSUPPORTED .or. dtr_world_node_count(world) > 1, __LINE__)
      if (stat == DTR_OK) call expect(theirs(2, 3) == 100 + theirs(1, 1) .and. all(shape(theirs) == [3, 4]), __LINE__)
      if (stat == DTR_OK) call dtr_peer_pointer(world, plane(2:3, 3:4), i, theirs)
      if (stat == DTR_OK) call expect(theirs(1, 1) == theirs(2, 2) - 100 .and. all(shape(theirs) == 2), __LINE__)
    end do
    call dtr_peer_pointer(world, plane, local, theirs)
    call expect(associated(theirs, plane), __LINE__)
    call dtr_node_barrier(world)
    call dtr_free(world, plane)
    call dtr_free(world, bytes)
    call dtr_free(world, cube)
    call expect(.not. (associated(plane) .or. associated(bytes) .or. associated(cube)), __LINE__)
  end subroutine

  subroutine texts
    call expect(dtr_status_name(DTR_OK) == "DTR_OK" .and. dtr_status_name(DTR_NOT_MEMBER) == "DTR_NOT_MEMBER" .and. &
                dtr_status_name(DTR_IN_PROGRESS) == "DTR_IN_PROGRESS", __LINE__)
    call same(DTR_ERR_ARG, "ARG")
    call same(DTR_ERR_DTYPE, "DTYPE")
    call same(DTR_ERR_DEVICE, "DEVICE")
    call same(DTR_ERR_SHAPE, "SHAPE")
    call same(DTR_ERR_LAYOUT, "LAYOUT")
    call same(DTR_ERR_RANK, "RANK")
    call same(DTR_ERR_STATE, "STATE")
    call same(DTR_ERR_UNSUPPORTED, "UNSUPPORTED")
    call same(DTR_ERR_OVERFLOW, "OVERFLOW")
    call same(DTR_ERR_NOMEM, "NOMEM")
    call same(DTR_ERR_IO, "IO")
    call same(DTR_ERR_MISMATCH, "MISMATCH")
    call same(DTR_ERR_TIMEOUT, "TIMEOUT")
    call same(DTR_ERR_ABORTED, "ABORTED")
    call same(DTR_ERR_REMOTE, "REMOTE")
    call same(DTR_ERR_GRAPH, "GRAPH")
    call same(DTR_ERR_NAN, "NAN")
    call same(DTR_ERR_MPI, "MPI")
    call same(DTR_ERR_CUDA, "CUDA")
    call same(DTR_ERR_NCCL, "NCCL")
    call same(DTR_ERR_SYSTEM, "SYSTEM")
    call same(DTR_ERR_INTERNAL, "INTERNAL")
    call expect(index(dtr_status_text(DTR_ERR_TIMEOUT), " ") > 0, __LINE__)
    call expect(index(dtr_version_string(), "MPI") > 0, __LINE__)
  end subroutine

  subroutine same(status, name)
    integer(c_int), intent(in) :: status
    character(len=*), intent(in) :: name
    call expect(dtr_status_name(status) == "DTR_ERR_"//name, __LINE__)
  end subroutine

  ! What a program does wrong is told with the argument and its value, and nothing is changed.
  subroutine refusals
    integer :: x(4), stat, one
    character(len=300) :: message
    character(len=10) :: brief
    real(c_double), pointer :: p(:, :) => null()
    real :: y(4)
    x = r
    y = r
    call dtr_broadcast(group, x, 7, stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_RANK, message, "broadcast on group 'world': root is 7", __LINE__)
    call dtr_broadcast(group, x, 7, stat=stat, errmsg=brief)
    call expect(brief == "broadcast ", __LINE__)
    message = "kept"
    call dtr_barrier(group, stat=stat, errmsg=message)
    call expect(stat == DTR_OK .and. message == "kept", __LINE__)
    call dtr_allreduce(group, x, y, stat=stat)
    call refused(stat, DTR_ERR_DTYPE, dtr_last_error_message(), "i32", __LINE__)
    call dtr_allreduce(group, x, op=99, stat=stat)
    call refused(stat, DTR_ERR_ARG, dtr_last_error_message(), "99", __LINE__)
    call dtr_allgatherv(group, x, x, [1], stat=stat, errmsg=message)
    if (n > 1) call refused(stat, DTR_ERR_SHAPE, message, "allgatherv: counts has 1 elements, and the group", __LINE__)
    call dtr_allgatherv(group, x, x, spread(-3, 1, n), stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_ARG, message, "counts(1) is -3", __LINE__)
    call dtr_allgatherv(group, x, x, spread(1., 1, n), stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_ARG, message, "counts has to be a one-dimensional array of integers", __LINE__)
    call assumed(x)
    call dtr_alloc(world, p, [3], stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_SHAPE, message, "extents has 1 elements, and ptr 2 dimensions", __LINE__)
    call dtr_alloc(world, p, [3, -2], stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_ARG, message, "alloc: extents(2) is -2", __LINE__)
    call dtr_peer_pointer(world, x, 0, p, stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_SHAPE, message, "1 and 2 dimensions, elements of 4 and 8 bytes", __LINE__)
    call dtr_allreduce_loc(group, x, y, DTR_MINLOC, stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_DTYPE, message, "index is of type f32", __LINE__)
    one = 3
    call dtr_send(group, one, 99, stat=stat, errmsg=message)
    call refused(stat, DTR_ERR_RANK, message, "99", __LINE__)
    call expect(all(x == r) .and. all(y == r), __LINE__)
  end subroutine

  subroutine assumed(a)
    integer :: a(*), stat
    call dtr_broadcast(group, a, 0, stat=stat)
    call refused(stat, DTR_ERR_SHAPE, dtr_last_error_message(), "buf is an assumed-size array", __LINE__)
  end subroutine

  subroutine refused(stat, want, message, part, line)
    integer, intent(in) :: stat, line
    integer(c_int), intent(in) :: want
    character(len=*), intent(in) :: message, part
    call expect(stat == want .and. index(message, part) > 0, line)
    if (stat /= want .or. index(message, part) == 0) write (*, *) stat, trim(message)
  end subroutine

  subroutine expect(fine, line)
    logical, intent(in) :: fine
    integer, intent(in) :: line
    if (.not. fine) then
      write (*, "(a, i0, a, i0)") "rank ", r, ": wrong at line ", line
      wrong = wrong + 1
    end if
  end subroutine
end program
