list(APPEND DTR_COLL_SOURCES stage/stage_backend.c stage/stage_issue.c stage/stage_pool.c)
