/* Ranks that share a communicator do something at NCCL together: each tells the first of them how
 * it went there, and that one tells all, so that all come to the same end. */
#ifndef DTR_NCCL_MEETING_H
#define DTR_NCCL_MEETING_H

#include "exchange.h"
#include "nccl/nccl_internal.h"

/* How it went on a rank, or on all of them; the higher, the worse. */
typedef struct dtr__nccl_outcome {
    int32_t refused; /* 0: well */
    char text[180];
} dtr__nccl_outcome;

typedef struct dtr__nccl_meeting {
    dtr__nccl_comm *comm;
    dtr_group *group;
    char prefix[DTR__KEY_SIZE / 2]; /* of its keys in the group's exchange */
    int32_t worst;                  /* an outcome that ends it at once */
    double began, limit_s;
    dtr__backoff backoff;
    dtr_status (*expired)(const struct dtr__nccl_meeting *m); /* the error of its time-out */
} dtr__nccl_meeting;

int dtr__nccl_meeting_rank(const dtr__nccl_comm *c, int rank); /* in the group */
dtr_status dtr__nccl_meeting_tell(const dtr__nccl_meeting *m, int rank, const char *what, int about,
                                  const void *value, size_t nbytes);
dtr_status dtr__nccl_meeting_tell_all(const dtr__nccl_meeting *m, const char *what,
                                      const void *value, size_t nbytes);
dtr_status dtr__nccl_meeting_look(const dtr__nccl_meeting *m, const char *what, int about,
                                  void *value, size_t nbytes, bool *found);
dtr_status dtr__nccl_meeting_await(dtr__nccl_meeting *m, const char *what, int about, void *value,
                                   size_t nbytes);
/* Between two looks; fails at the limit, or when the group is broken. */
dtr_status dtr__nccl_meeting_rest(dtr__nccl_meeting *m);
/* One look, while NCCL keeps this rank waiting: whether another rank has had the worst outcome. */
dtr_status dtr__nccl_meeting_seen(const dtr__nccl_meeting *m, dtr__nccl_outcome *o);
/* This rank's outcome becomes that of all. */
dtr_status dtr__nccl_meeting_agree(dtr__nccl_meeting *m, dtr__nccl_outcome *o);

#endif /* DTR_NCCL_MEETING_H */
