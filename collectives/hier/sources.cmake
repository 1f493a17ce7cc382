list(APPEND DTR_COLL_SOURCES hier/hier_backend.c hier/hier_move.c hier/hier_p2p.c hier/hier_reduce.c hier/hier_sched.c)
