list(APPEND DTR_COLL_SOURCES
  nccl/nccl_backend.c
  nccl/nccl_capture.c
  nccl/nccl_choice.c
  nccl/nccl_comm.c
  nccl/nccl_connect.c
  nccl/nccl_detail.c
  nccl/nccl_kernel.c
  nccl/nccl_meeting.c
  nccl/nccl_move.c
  nccl/nccl_pairs.c
  nccl/nccl_register.c
  nccl/nccl_split.c
  nccl/nccl_use.c
  nccl/nccl_why.c
  nccl/nccl_window.c)
