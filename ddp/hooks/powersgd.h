/* What the parts of PowerSGD share: one works on the host, one on a device, by the same steps. */
#ifndef DTR_DDP_POWERSGD_H
#define DTR_DDP_POWERSGD_H

#include "hook_builtin.h"

typedef struct dtr__power_matrix {
    size_t slot, n, m; /* n x m: the first dimension by the rest */
    size_t rank;
    float *value; /* gradient plus error; in the bucket's value */
    float *p, *q; /* rank columns of n, rank columns of m */
} dtr__power_matrix;

/* One bucket; the memory is where the module is. */
typedef struct dtr__low_rank {
    size_t n_slots, n_matrices;
    dtr__power_matrix *matrix; /* in the order of their slots */
    dtr_tensor **tensor;       /* [n_slots] with the parameter's shape, in value or in flat */
    size_t values, p_size, q_size, plain_size; /* elements */
    float *value, *error;                      /* of all matrices */
    float *p, *q, *flat;
    dtr_tensor *memory[5]; /* of these */
    bool warm;
    dtr_tensor *table, *part; /* of a device's kernels */
    uint64_t shares[4];       /* of work of each of them, of all matrices */
} dtr__low_rank;

/* The arithmetic; the same operations in the same order on every rank. Of a device it is queued on
 * the module's stream. */
typedef struct dtr__power_math {
    /* What else it needs of memory (NULL: nothing); the bucket's is there. */
    dtr_status (*prepare)(dtr_ddp_bucket *b, dtr__low_rank *l);
    /* value and flat from the gradients, and back. */
    dtr_status (*load)(dtr_ddp_bucket *b, dtr__low_rank *l);
    dtr_status (*store)(dtr_ddp_bucket *b, dtr__low_rank *l);
    /* value += error */
    dtr_status (*add_error)(dtr_ddp_bucket *b, dtr__low_rank *l);
    /* New numbers in columns of q: all, or those that are zero; then orthogonal; p = value q. */
    dtr_status (*left)(dtr_ddp_bucket *b, dtr__low_rank *l, uint64_t seed, bool all,
                       double epsilon);
    /* p orthogonal; q = value^T p */
    dtr_status (*right)(dtr_ddp_bucket *b, dtr__low_rank *l, double epsilon);
    /* value = p q^T, error = what it was before minus that */
    dtr_status (*product)(dtr_ddp_bucket *b, dtr__low_rank *l);
    /* Between memory of the bucket and the host's; done on return. */
    dtr_status (*read)(const dtr_ddp *ddp, void *here, const float *there, size_t count);
    dtr_status (*write)(const dtr_ddp *ddp, float *there, const void *here, size_t count);
} dtr__power_math;
extern const dtr__power_math dtr__power_host, dtr__power_device;

typedef struct dtr__power {
    dtr__hook_buckets buckets; /* first; of dtr__low_rank */
    const dtr__power_math *math;
    size_t rank;
    uint64_t start, generator;
    double min_rate, epsilon;
    bool feedback, warm;
    uint64_t offset; /* iterations before the state was restored */
} dtr__power;

/* Step of a sequence of random numbers, and the next of them. */
#define DTR__POWER_STEP UINT64_C(0x9e3779b97f4a7c15)
static inline uint64_t dtr__power_random(uint64_t *s) {
    uint64_t z = *s += DTR__POWER_STEP;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* The bucket's memory, made when first asked for. */
dtr_status dtr__power_reserve(dtr__power *w, dtr_ddp_bucket *b, dtr__low_rank **found);

/* ---- hooks/powersgd_state.c ---- */
dtr_status dtr__power_save(dtr_ddp *ddp, void *state, dtr_bytes *out);
dtr_status dtr__power_restore(dtr_ddp *ddp, void *state, dtr_bytes in);

#endif /* DTR_DDP_POWERSGD_H */
