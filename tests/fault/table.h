/* The table of faults on one group after another: every fault meets every way of calling, small and
 * large messages and every transport. The programs of this folder that need no dead process are on
 * the harness; fault.c has the others. */
#ifndef FAULT_TABLE_H
#define FAULT_TABLE_H

#include <dtr/ddp.h>

#include "harness.h"

/* From where an operation is called. */
typedef enum way { BLOCKING, ASYNC, SCOPE, BACKWARD, WAYS } way;

typedef enum kind { ALLREDUCE, BROADCAST, REDUCE } kind;

typedef struct call {
    kind kind;
    size_t count;
    dtr_dtype dtype;
    dtr_op op;
    int root;
    double limit_s; /* 0: the group's, which is far away */
} call;

/* One combination, and what it runs on. */
typedef struct spot {
    const char *backend;
    way way;
    size_t count;
    dtr_world *world;
    dtr_group *group;
    dtr_ddp *ddp;      /* of BACKWARD, on a duplicate of the group */
    dtr_tensor *value; /* its parameter */
    const call *now;   /* what its hook starts */
    /* Where set, the hook starts this in place of the call. */
    dtr_status (*inside)(struct spot *s, dtr_group *g, dtr_work **work);
    unsigned char *spare; /* [count + 16] 8-byte elements: memory of the other ways */
    char what[96];        /* in words */
} spot;

/* A world of this rank's own with that DTR_DEBUG, over all ranks, and its end. */
dtr_world *table_world(const char *debug);
void table_end(dtr_world *w);

/* Runs `fault` on a fresh group for each transport and each way up to `last`, with small messages
 * on the one transport and large ones on the other. After each fault the rest of the world must
 * work. */
void table_each(dtr_world *w, way last, void (*fault)(spot *s));

/* A fresh group, with its module where the way asks for one, and its end. */
void table_open(spot *s);
void table_close(spot *s);

/* The good call of this spot; the operation of any call, as the spot's way asks for it. */
call table_call(const spot *s);
dtr_status table_do(spot *s, const call *c);
dtr_status table_issue(dtr_group *g, const call *c, void *mem, dtr_work **work);

/* Notes a failure where a call that began then is late: limits of 600 s are far away, and what ends
 * earlier ends within three seconds of its limit, or of the fault. */
void table_in_time(const spot *s, th_start since, double limit_s);
/* Notes a failure unless the last error's text has all of the words. */
void table_words(const spot *s, const char *const *words);
#define TABLE_WORDS(s, ...) table_words((s), (const char *const[]){ __VA_ARGS__, NULL })
#define TABLE_IS(s, call, want)                                                           \
    do {                                                                                  \
        dtr_status got_ = (call);                                                         \
        TH_CHECK(got_ == (want), "%s: %s gave %s, want %s: %s", (s)->what, #call,         \
                 dtr_status_name(got_), dtr_status_name(want), dtr_last_error_message()); \
    } while (0)

#endif /* FAULT_TABLE_H */
