/* Ranks that share a communicator make an NCCL call together: each reports its result to the first
 * of them, and that one sends the common result to all, so that all end alike. */
#ifndef DTR_NCCL_AGREE_H
#define DTR_NCCL_AGREE_H

#include "agreement/key_value.h"
#include "nccl_internal.h"

/* How it went on a rank, or on all of them; the higher, the worse. */
typedef struct dtr__nccl_outcome {
    int32_t refused; /* 0: well */
    char text[180];
} dtr__nccl_outcome;

typedef struct dtr__nccl_agreement {
    dtr__nccl_comm *comm;
    dtr_group *group;
    char prefix[DTR__KEY_SIZE / 2]; /* of its keys in the group's exchange */
    int32_t worst;                  /* an outcome that ends it at once */
    double began, limit_s;
    dtr__backoff backoff;
    dtr_status (*expired)(const struct dtr__nccl_agreement *m); /* the error of its time-out */
} dtr__nccl_agreement;

int dtr__nccl_agreement_rank(const dtr__nccl_comm *c, int rank); /* in the group */
dtr_status dtr__nccl_agreement_send(const dtr__nccl_agreement *m, int rank, const char *what,
                                    int about, const void *value, size_t nbytes);
dtr_status dtr__nccl_agreement_send_all(const dtr__nccl_agreement *m, const char *what,
                                        const void *value, size_t nbytes);
dtr_status dtr__nccl_agreement_poll(const dtr__nccl_agreement *m, const char *what, int about,
                                    void *value, size_t nbytes, bool *found);
dtr_status dtr__nccl_agreement_await(dtr__nccl_agreement *m, const char *what, int about,
                                     void *value, size_t nbytes);
/* Until NCCL has done what it was asked for, whose answer `code` becomes, or another rank is known
 * to have had the worst outcome, which `o` becomes. */
dtr_status dtr__nccl_agreement_settle(dtr__nccl_agreement *m, int *code, dtr__nccl_outcome *o);
/* This rank's outcome becomes that of all. */
dtr_status dtr__nccl_agreement_conclude(dtr__nccl_agreement *m, dtr__nccl_outcome *o);

#endif /* DTR_NCCL_AGREE_H */
