list(APPEND DTR_COLL_SOURCES self/self.c)
