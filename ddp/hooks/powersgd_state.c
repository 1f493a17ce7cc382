/* The state of PowerSGD as bytes: iteration, then per bucket error and right factors. */
#include <stdlib.h>

#include "powersgd.h"

typedef struct saved_head {
    uint64_t magic, plan, iteration, buckets;
} saved_head;
#define SAVED_MAGIC UINT64_C(0x6474725053474431)

/* Sizes of what a bucket has, 0 where it has not run yet. */
typedef struct saved_bucket {
    uint64_t values, q_size, warm;
} saved_bucket;

dtr_status dtr__power_save(dtr_ddp *ddp, void *state, dtr_bytes *out) {
    dtr__power *w = state;
    size_t size = sizeof(saved_head) + ddp->n_buckets * sizeof(saved_bucket);
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        const dtr__low_rank *l = dtr__hook_bucket_state_if(&w->buckets, b);
        size += l != NULL ? (l->values + l->q_size) * sizeof(float) : 0;
    }
    char *data = malloc(size);
    DTR_REQUIRE(data != NULL, NULL, DTR_ERR_NOMEM, "no memory for %zu bytes of hook state", size);
    saved_head head = { SAVED_MAGIC, dtr_plan_hash(ddp->plan), ddp->it.number + w->offset,
                        ddp->n_buckets };
    char *at = mempcpy(data, &head, sizeof head);
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        static const dtr__low_rank none;
        const dtr__low_rank *l = dtr__hook_bucket_state_if(&w->buckets, b);
        l = l != NULL ? l : &none;
        saved_bucket s = { l->values, l->q_size, l->warm };
        at = mempcpy(at, &s, sizeof s);
        if (l->values + l->q_size > 0) {
            dtr_status done = w->math->read(ddp, at, l->error, l->values);
            at += l->values * sizeof(float);
            done = done < 0 ? done : w->math->read(ddp, at, l->q, l->q_size);
            at += l->q_size * sizeof(float);
            if (done < 0) {
                free(data);
                return done;
            }
        }
    }
    *out = (dtr_bytes){ data, size };
    return DTR_OK;
}

static dtr_status restore_bucket(dtr__power *w, dtr_ddp_bucket *b, const char **at,
                                 const char *end) {
    saved_bucket s;
    DTR_REQUIRE((size_t)(end - *at) >= sizeof s, NULL, DTR_ERR_ARG, "the hook state is cut short");
    memcpy(&s, *at, sizeof s);
    *at += sizeof s;
    if (s.values + s.q_size == 0 && s.warm == 0) {
        return DTR_OK;
    }
    dtr__low_rank *l = NULL;
    DTR_TRY(dtr__power_reserve(w, b, &l));
    DTR_REQUIRE(s.values == l->values && s.q_size == l->q_size, NULL, DTR_ERR_MISMATCH,
                "the hook state of bucket %zu is of another rank or another model", b->index);
    size_t nbytes = (l->values + l->q_size) * sizeof(float);
    DTR_REQUIRE((size_t)(end - *at) >= nbytes, NULL, DTR_ERR_ARG, "the hook state is cut short");
    DTR_TRY(w->math->write(b->ddp, l->error, *at, l->values));
    DTR_TRY(w->math->write(b->ddp, l->q, *at + l->values * sizeof(float), l->q_size));
    l->warm = s.warm != 0;
    *at += nbytes;
    return DTR_OK;
}

dtr_status dtr__power_restore(dtr_ddp *ddp, void *state, dtr_bytes in) {
    dtr__power *w = state;
    saved_head head;
    DTR_REQUIRE(in.data != NULL && in.nbytes >= sizeof head, NULL, DTR_ERR_ARG,
                "the hook state of %zu bytes is cut short", in.nbytes);
    memcpy(&head, in.data, sizeof head);
    DTR_REQUIRE(head.magic == SAVED_MAGIC, NULL, DTR_ERR_ARG, "these bytes are no PowerSGD state");
    DTR_REQUIRE(head.plan == dtr_plan_hash(ddp->plan) && head.buckets == ddp->n_buckets, NULL,
                DTR_ERR_MISMATCH,
                "the hook state belongs to another bucket plan; restore it when the module has its "
                "final plan");
    dtr__hook_forget(w);
    const char *at = (const char *)in.data + sizeof head, *end = (const char *)in.data + in.nbytes;
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        dtr_status s = restore_bucket(w, &ddp->buckets[b], &at, end);
        if (s < 0) {
            dtr__hook_forget(w);
            return s;
        }
    }
    w->offset = head.iteration - ddp->it.number;
    return DTR_OK;
}
