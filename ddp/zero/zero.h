/* What a sharded optimizer is inside. Its slices follow the module's bucket plan, which does not
 * change while it lives. */
#ifndef DTR_DDP_ZERO_H
#define DTR_DDP_ZERO_H

#include <dtr/optim.h>

#include "device/device.h"
#include "reducer/reducer.h"

enum { DTR__ZERO_TYPES = DTR__N_DTYPES };

typedef struct dtr__zero_bucket {
    dtr_dtype dtype;    /* of the parameters in it */
    size_t slice;       /* elements per rank */
    size_t first;       /* where this rank's slice begins in its shard */
    dtr_tensor *memory; /* where parameters are gathered when the bucket is too small, else NULL */
    char *data;         /* the memory they are gathered in: one slice per rank */
    dtr_work *work;     /* under way; lock */
    bool pending;       /* gathered or under way, not in the values yet; lock */
} dtr__zero_bucket;

struct dtr_zero {
    uint64_t magic;
    dtr_ddp *ddp; /* NULL once the module has gone */
    dtr_zero_options o;
    size_t n_buckets;
    dtr__zero_bucket *buckets;
    size_t count[DTR__ZERO_TYPES]; /* elements of the shard by type */
    char *param, *grad;            /* one slice each */
    dtr_tensor *slices[2];         /* on a device: whose memory these are */
    uint64_t used;                 /* the iteration whose averages have been stepped with */
    bool rebuild_due;              /* the module's, before */
    pthread_mutex_t lock;
    _Atomic size_t n_pending; /* buckets; written under lock */
};

#define DTR__ZERO_MAGIC UINT64_C(0x6474725f7a65726f)

/* For DTR_TRACED. */
static inline dtr_ddp *dtr__zero_module(const dtr_zero *z) {
    return z != NULL && z->magic == DTR__ZERO_MAGIC ? z->ddp : NULL;
}
#define DTR_ZERO_TRACED(z, call, expression) DTR_DDP_TRACED(dtr__zero_module(z), call, expression)

/* Bytes of one rank's slice of a bucket. */
size_t dtr__zero_slice_nbytes(size_t nbytes, int size);

/* A stretch of one parameter in one rank's slice of a bucket, in elements. */
typedef struct dtr__zero_piece {
    size_t param;
    size_t from, count; /* in the parameter, counted as its slot lies */
    size_t at;          /* in the slice */
} dtr__zero_piece;
/* The next one at or behind slot *s of the bucket's plan, which moves on; false at the end. */
bool dtr__zero_next(const dtr_zero *z, size_t b, int rank, size_t *s, dtr__zero_piece *piece);

/* Where a step runs: on a device behind the stream of the newest backward_end. */
static inline dtr__ddp_at dtr__zero_at(const dtr_ddp *ddp) {
    return (dtr__ddp_at){ ddp->at.device, ddp->out.stream };
}
/* Copies of stretches for one bucket: made at once on the host, on a device together by
 * dtr__zero_copies_end. */
typedef struct dtr__zero_copies {
    const dtr_ddp *ddp;
    dtr__ddp_piece *pieces; /* the bucket's */
    size_t n;
} dtr__zero_copies;
void dtr__zero_copy_to(dtr__zero_copies *c, const dtr_tensor *t, const dtr_tensor *slot,
                       size_t from, size_t count, void *to);
void dtr__zero_copy_from(dtr__zero_copies *c, const dtr_tensor *t, const dtr_tensor *slot,
                         size_t from, size_t count, const void *memory);
dtr_status dtr__zero_copies_end(const dtr__zero_copies *c);
/* Zero memory of a step. */
dtr_status dtr__zero_clear(const dtr_ddp *ddp, void *to, size_t nbytes);

/* Bytes of the module's device to host memory and back, behind the stream of the newest
 * backward_end; the host waits. */
dtr_status dtr__zero_fetch(const dtr_ddp *ddp, void *to, const void *from, size_t nbytes);
dtr_status dtr__zero_store(const dtr_ddp *ddp, void *to, const void *from, size_t nbytes);

/* Elements of a tensor to packed memory, counted as they lie in `slot` of the same shape. */
void dtr__zero_read(const dtr_tensor *t, const dtr_tensor *slot, size_t from, size_t count,
                    void *to);
void dtr__zero_write(const dtr_tensor *t, const dtr_tensor *slot, size_t from, size_t count,
                     const void *from_memory);
/* Where element `from` and those behind it lie; NULL: not one behind the other as in the slot. */
char *dtr__zero_stretch(const dtr_tensor *t, const dtr_tensor *slot, size_t from);

/* Whether a step sees parameter i's gradient: with static_graph one that no rank used has none. */
static inline bool dtr__zero_is_stepped(const dtr_ddp *ddp, size_t i) {
    return !ddp->set.static_graph || ddp->params[i].used_anywhere;
}

/* Whether the slices hold averages to step with: of the newest iteration, once. */
static inline bool dtr__zero_is_due(const dtr_zero *z) {
    return z->ddp->it.averaged && z->ddp->it.number != z->used;
}

/* Live handle with a module; the first line of every call. */
dtr_status dtr__zero_check(const dtr_zero *z, const char *entry);
/* As DTR_REQUIRE's failures in a call on `z`. */
dtr_status dtr__zero_fail(const dtr_zero *z, dtr_status s, const char *fmt, ...) DTR_PRINTF(3, 4);
/* The module between iterations becomes busy, or DTR_ERR_STATE. */
dtr_status dtr__zero_begin(dtr_zero *z, const char *entry);
/* And idle again; an error of the group ends it. Returns s. */
dtr_status dtr__zero_end(dtr_zero *z, dtr_status s);
/* One rank's status becomes every rank's: all return DTR_OK, or the lowest failing rank's error,
 * which `text` describes there. *broken: the error is the group's. */
dtr_status dtr__zero_agree(dtr_ddp *ddp, dtr_status mine, const char *text, bool callers);
/* The same with this thread's last error in the name of `entry`. */
dtr_status dtr__zero_agree_last(dtr_ddp *ddp, dtr_status mine, const char *entry);

/* ---- checkpoints ---- */
/* Whose arrays they have: this rank's shard, or with zero NULL whole ones. */
typedef struct dtr__share {
    dtr_ddp *ddp;
    dtr_zero *zero;
    /* Of whole arrays: [ddp->n] where the state of a parameter begins in those of its type, and
     * [DTR__ZERO_TYPES] how many elements they have. */
    const size_t *begin, *count;
} dtr__share;
/* Metadata of the program, all of it the owner's. */
typedef struct dtr__texts {
    dtr_text_pair *pairs;
    size_t n;
} dtr__texts;
void dtr__texts_free(dtr__texts *texts);
/* dtr_zero_save and dtr_zero_load in the name of `entry`, with what `extra` names (NULL: nothing).
 * `metadata` (may be NULL) is replaced by that of the checkpoint. */
dtr_status dtr__share_save(const dtr__share *sh, const char *entry, const char *path,
                           const dtr_zero_state *states, size_t n, uint64_t step,
                           const dtr_optim_extra *extra);
dtr_status dtr__share_load(const dtr__share *sh, const char *entry, const char *path,
                           const dtr_zero_state *states, size_t n, uint64_t *step,
                           const dtr_optim_extra *extra, dtr__texts *metadata);

/* The module ends. */
void dtr__zero_detach(dtr_ddp *ddp);

/* ---- zero_slice.c ---- */
void dtr__zero_copy_out(dtr_ddp *ddp, dtr_ddp_bucket *b);

/* ---- zero_step.c ---- */
/* Give the slices of a bucket to all ranks: this rank's is in its place in `data`. */
dtr_status dtr__zero_gather(dtr_zero *z, size_t b);
/* Wait for a bucket and write its parameters to their values; lock is held. With `drop` they are
 * left as they are. */
dtr_status dtr__zero_take(dtr_zero *z, size_t b, bool drop);
dtr_status dtr__zero_take_all(dtr_zero *z, bool drop);
/* Bucket memory was overwritten: there are no gradients. */
void dtr__zero_used_up(dtr_zero *z);
/* Own slice of a bucket's parameters into packed memory, padding zero. */
dtr_status dtr__zero_read_slice(const dtr_zero *z, size_t b, void *to);

extern const dtr__ddp_strategy dtr__zero_strategy, dtr__zero_strategy_alone;

#endif /* DTR_DDP_ZERO_H */
