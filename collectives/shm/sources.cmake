list(APPEND DTR_COLL_SOURCES shm/shm_attach.c shm/shm_backend.c shm/shm_channel.c shm/shm_error.c shm/shm_match.c shm/shm_move.c
  shm/shm_p2p.c shm/shm_pull.c shm/shm_repeat.c shm/shm_slices.c shm/shm_stage.c shm/shm_zero.c)
