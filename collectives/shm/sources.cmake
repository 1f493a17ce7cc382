list(APPEND DTR_COLL_SOURCES shm/shm_attach.c shm/shm_backend.c shm/shm_move.c shm/shm_pull.c shm/shm_repeat.c shm/shm_stage.c shm/shm_zero.c shm/shm_error.c)
