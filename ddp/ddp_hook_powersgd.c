/* PowerSGD: a gradient matrix travels as two thin factors, one step of the power method per
 * iteration; what is lost is added to the next gradient. Vectors and matrices that would not gain
 * travel as they are, in one flat buffer. */
#include <math.h>
#include <stdlib.h>

#include "ddp_hook_builtin.h"

typedef struct matrix {
    size_t slot, n, m; /* n x m: the first dimension by the rest */
    size_t rank;
    float *value;       /* gradient plus error; in low->value */
    float *p, *q;       /* rank columns of n, rank columns of m */
    dtr_tensor *tensor; /* value with the parameter's shape */
} matrix;

/* One bucket. */
typedef struct low_rank {
    size_t n_matrices, n_plain;
    matrix *matrix;
    size_t *plain_slot;
    float **plain;
    dtr_tensor **plain_tensor;
    size_t values, p_size, q_size, plain_size; /* elements */
    float *value, *error;                      /* of all matrices */
    float *p, *q, *flat;
    bool warm;
} low_rank;

typedef struct power {
    size_t rank;
    uint64_t start, generator;
    double min_rate, epsilon;
    bool feedback, warm;
    uint64_t offset; /* iterations before the state was restored */
    size_t n;
    low_rank *bucket;
} power;

/* ---- memory ---- */

static void free_bucket(low_rank *l) {
    for (size_t k = 0; k < l->n_matrices; k++) {
        dtr_tensor_release(l->matrix[k].tensor);
    }
    for (size_t k = 0; k < l->n_plain; k++) {
        dtr_tensor_release(l->plain_tensor[k]);
    }
    free(l->matrix);
    free(l->plain_slot);
    free(l->plain);
    free(l->plain_tensor);
    free(l->value);
    free(l->error);
    free(l->p);
    free(l->q);
    free(l->flat);
    *l = (low_rank){ 0 };
}

static void forget(void *state) {
    power *w = state;
    for (size_t b = 0; b < w->n; b++) {
        free_bucket(&w->bucket[b]);
    }
    free(w->bucket);
    w->bucket = NULL;
    w->n = 0;
}

static void drop(void *state) {
    forget(state);
    free(state);
}

static size_t least(size_t a, size_t b, size_t c) {
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

static bool compresses(const power *w, size_t n, size_t m) {
    return (double)(n + m) * (double)w->rank * w->min_rate < (double)n * (double)m;
}

/* Which slots are matrices, and how large everything is. */
static bool measure(const power *w, dtr_ddp_bucket *b, low_rank *l) {
    size_t slots = b->plan->n_slots;
    l->matrix = calloc(slots + 1, sizeof *l->matrix);
    l->plain_slot = calloc(slots + 1, sizeof *l->plain_slot);
    l->plain = calloc(slots + 1, sizeof *l->plain);
    l->plain_tensor = calloc(slots + 1, sizeof(dtr_tensor *));
    if (l->matrix == NULL || l->plain_slot == NULL || l->plain == NULL || l->plain_tensor == NULL) {
        return false;
    }
    for (size_t k = 0; k < slots; k++) {
        const dtr_tensor *t = dtr_ddp_bucket_grad(b, k);
        size_t n = t->ndim > 0 ? (size_t)t->shape[0] : 1, m = n > 0 ? t->numel / n : 0;
        if (compresses(w, n, m)) {
            matrix *x = &l->matrix[l->n_matrices++];
            *x = (matrix){ .slot = k, .n = n, .m = m, .rank = least(n, m, w->rank) };
            l->values += n * m;
            l->p_size += n * x->rank;
            l->q_size += m * x->rank;
        } else {
            l->plain_slot[l->n_plain++] = k;
            l->plain_size += t->numel;
        }
    }
    return true;
}

static dtr_status shaped(dtr_ddp_bucket *b, size_t slot, float *data, dtr_tensor **t) {
    const dtr_tensor *like = dtr_ddp_bucket_grad(b, slot);
    return dtr__tensor_wrap(data, DTR_F32, like->device, like->ndim, like->shape, NULL, NULL, NULL,
                            t);
}

static bool place(dtr_ddp_bucket *b, low_rank *l) {
    l->value = malloc((l->values + 1) * sizeof(float));
    l->error = calloc(l->values + 1, sizeof(float));
    l->p = malloc((l->p_size + 1) * sizeof(float));
    l->q = malloc((l->q_size + 1) * sizeof(float));
    l->flat = malloc((l->plain_size + 1) * sizeof(float));
    if (l->value == NULL || l->error == NULL || l->p == NULL || l->q == NULL || l->flat == NULL) {
        return false;
    }
    float *value = l->value, *p = l->p, *q = l->q, *flat = l->flat;
    for (size_t k = 0; k < l->n_matrices; k++) {
        matrix *x = &l->matrix[k];
        x->value = value;
        x->p = p;
        x->q = q;
        value += x->n * x->m;
        p += x->n * x->rank;
        q += x->m * x->rank;
        if (shaped(b, x->slot, x->value, &x->tensor) < 0) {
            return false;
        }
    }
    for (size_t k = 0; k < l->n_plain; k++) {
        l->plain[k] = flat;
        flat += dtr_ddp_bucket_grad(b, l->plain_slot[k])->numel;
        if (shaped(b, l->plain_slot[k], l->plain[k], &l->plain_tensor[k]) < 0) {
            return false;
        }
    }
    return true;
}

static dtr_status reserve(power *w, dtr_ddp_bucket *b) {
    if (w->bucket == NULL) {
        w->bucket = calloc(b->ddp->n_buckets, sizeof *w->bucket);
        w->n = w->bucket != NULL ? b->ddp->n_buckets : 0;
    }
    low_rank *l = w->bucket != NULL ? &w->bucket[b->index] : NULL;
    if (l != NULL && l->value == NULL && (!measure(w, b, l) || !place(b, l))) {
        free_bucket(l);
        l = NULL;
    }
    DTR_REQUIRE(l != NULL, NULL, DTR_ERR_NOMEM, "no memory for the factors of bucket %zu",
                b->index);
    return DTR_OK;
}

/* ---- arithmetic: the same operations in the same order on every rank ---- */

static float dot(const float *a, const float *b, size_t n) {
    enum { LANES = 8 };
    float part[LANES] = { 0 };
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        for (size_t i = 0; i < LANES; i++) {
            part[i] += a[k + i] * b[k + i];
        }
    }
    float sum = 0;
    for (; k < n; k++) {
        sum += a[k] * b[k];
    }
    for (size_t i = 0; i < LANES; i++) {
        sum += part[i];
    }
    return sum;
}

static void axpy(float *y, float alpha, const float *x, size_t n) {
    for (size_t k = 0; k < n; k++) {
        y[k] += alpha * x[k];
    }
}

static double norm(const float *x, size_t n) {
    double sum = 0;
    for (size_t k = 0; k < n; k++) {
        sum += (double)x[k] * x[k];
    }
    return sqrt(sum);
}

/* Gram-Schmidt on columns, twice, because what is left of a nearly dependent column is rounding
 * noise and not orthogonal after one pass. A dependent column becomes zero, a zero one stays. */
static void orthogonalise(float *columns, size_t n, size_t rank, double epsilon) {
    static const double noise = 1e-5;
    for (size_t c = 0; c < rank; c++) {
        float *x = columns + c * n;
        double before = norm(x, n), after = before;
        for (int pass = 0; pass < 2; pass++) {
            for (size_t k = 0; k < c; k++) {
                const float *y = columns + k * n;
                axpy(x, -dot(y, x, n), y, n);
            }
            after = norm(x, n);
        }
        if (after <= noise * before) {
            memset(x, 0, n * sizeof *x);
            continue;
        }
        for (size_t k = 0; k < n; k++) {
            x[k] = (float)(x[k] / (after + epsilon));
        }
    }
}

static uint64_t next_random(uint64_t *s) {
    uint64_t z = *s += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Equal on all ranks (PS4): fills every column, or only those that were lost. */
static void random_factor(const power *w, low_rank *l, uint64_t iteration, size_t bucket,
                          bool all) {
    uint64_t s = w->generator;
    s = next_random(&s) ^ iteration;
    s = next_random(&s) ^ bucket;
    for (size_t k = 0; k < l->n_matrices; k++) {
        const matrix *x = &l->matrix[k];
        for (size_t c = 0; c < x->rank; c++) {
            float *column = x->q + c * x->m;
            if (!all && norm(column, x->m) > 0) {
                continue;
            }
            for (size_t i = 0; i < x->m; i++) {
                column[i] = (float)((double)(next_random(&s) >> 11) * 0x1p-52 - 1);
            }
        }
    }
}

/* p = value q */
static void left_factor(const matrix *x) {
    for (size_t c = 0; c < x->rank; c++) {
        for (size_t i = 0; i < x->n; i++) {
            x->p[c * x->n + i] = dot(x->value + i * x->m, x->q + c * x->m, x->m);
        }
    }
}

/* q = value^T p */
static void right_factor(const matrix *x) {
    memset(x->q, 0, x->m * x->rank * sizeof(float));
    for (size_t c = 0; c < x->rank; c++) {
        for (size_t i = 0; i < x->n; i++) {
            axpy(x->q + c * x->m, x->p[c * x->n + i], x->value + i * x->m, x->m);
        }
    }
}

/* value becomes p q^T, error what it was before minus that. */
static void product(const matrix *x, float *error) {
    for (size_t i = 0; i < x->n; i++) {
        float *row = x->value + i * x->m, *lost = error + i * x->m;
        memcpy(lost, row, x->m * sizeof(float));
        memset(row, 0, x->m * sizeof(float));
        for (size_t c = 0; c < x->rank; c++) {
            axpy(row, x->p[c * x->n + i], x->q + c * x->m, x->m);
        }
        for (size_t k = 0; k < x->m; k++) {
            lost[k] -= row[k];
        }
    }
}

/* ---- the three steps ---- */

static dtr_coll_options labelled(const dtr_ddp_bucket *b) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.label = b->label;
    return o;
}

static dtr_status give_result(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    power *w = state;
    low_rank *l = &w->bucket[b->index];
    (void)work;
    for (size_t k = 0; k < l->n_matrices; k++) {
        matrix *x = &l->matrix[k];
        product(x, l->error + (x->value - l->value));
        dtr__tensor_copy_raw(dtr_ddp_bucket_grad(b, x->slot), x->tensor);
    }
    for (size_t k = 0; k < l->n_plain; k++) {
        dtr__tensor_copy_raw(dtr_ddp_bucket_grad(b, l->plain_slot[k]), l->plain_tensor[k]);
    }
    l->warm = true;
    return DTR_OK;
}

static dtr_status second_factor(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    power *w = state;
    low_rank *l = &w->bucket[b->index];
    for (size_t k = 0; k < l->n_matrices; k++) {
        matrix *x = &l->matrix[k];
        orthogonalise(x->p, x->n, x->rank, w->epsilon);
        right_factor(x);
    }
    dtr_coll_options o = labelled(b);
    dtr_buffer q = dtr_cpu(l->q, l->q_size, DTR_F32);
    DTR_TRY(dtr_allreduce(dtr_ddp_bucket_group(b), q, q, DTR_AVG, &o, work));
    return dtr__ddp_bucket_then_local(b, give_result, w);
}

static void load(const power *w, dtr_ddp_bucket *b, low_rank *l) {
    for (size_t k = 0; k < l->n_matrices; k++) {
        dtr__tensor_copy_raw(l->matrix[k].tensor, dtr_ddp_bucket_grad(b, l->matrix[k].slot));
    }
    for (size_t k = 0; k < l->n_plain; k++) {
        dtr__tensor_copy_raw(l->plain_tensor[k], dtr_ddp_bucket_grad(b, l->plain_slot[k]));
    }
    if (w->feedback) {
        axpy(l->value, 1, l->error, l->values);
    }
}

static dtr_status hook(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    power *w = state;
    uint64_t iteration = dtr_ddp_bucket_iteration(b) + w->offset;
    if (iteration < w->start) {
        return dtr__hook_average(NULL, b, work);
    }
    DTR_TRY(reserve(w, b));
    low_rank *l = &w->bucket[b->index];
    load(w, b, l);
    random_factor(w, l, iteration, b->index, !w->warm || !l->warm);
    for (size_t k = 0; k < l->n_matrices; k++) {
        orthogonalise(l->matrix[k].q, l->matrix[k].m, l->matrix[k].rank, w->epsilon);
        left_factor(&l->matrix[k]);
    }
    dtr_coll_options o = labelled(b);
    dtr_group *g = dtr_ddp_bucket_group(b);
    if (l->n_plain > 0) {
        dtr_buffer flat = dtr_cpu(l->flat, l->plain_size, DTR_F32);
        DTR_TRY(dtr_allreduce(g, flat, flat, DTR_AVG, &o, work));
    }
    if (l->n_matrices == 0) {
        return dtr__ddp_bucket_then_local(b, give_result, w);
    }
    (void)dtr_work_release(*work); /* it ends before the next of its group */
    *work = NULL;
    dtr_buffer p = dtr_cpu(l->p, l->p_size, DTR_F32);
    DTR_TRY(dtr_allreduce(g, p, p, DTR_AVG, &o, work));
    return dtr_ddp_bucket_then(b, second_factor, w);
}

/* ---- registration ---- */

dtr_status dtr__hook_powersgd_make(const dtr_hook_options *o, dtr__ddp_hook *h) {
    DTR_REQUIRE(o->rank >= 0 && o->min_rate >= 0 && o->epsilon >= 0, NULL, DTR_ERR_ARG,
                "PowerSGD: rank %d, min_rate %g, epsilon %g: none may be negative", o->rank,
                o->min_rate, o->epsilon);
    uint64_t start = o->start_iteration != 0 ? o->start_iteration : 1000;
    DTR_REQUIRE(start >= 2 || (o->no_error_feedback && o->no_warm_start), NULL, DTR_ERR_ARG,
                "PowerSGD: start_iteration is %llu; error feedback and warm start need 2 or more, "
                "because the buckets change after the first iteration",
                (unsigned long long)start);
    power *w = calloc(1, sizeof *w);
    DTR_REQUIRE(w != NULL, NULL, DTR_ERR_NOMEM, "no memory for a hook");
    *w = (power){
        .rank = o->rank > 0 ? (size_t)o->rank : 1,
        .start = start,
        .generator = o->generator_start,
        .min_rate = o->min_rate > 0 ? o->min_rate : 2,
        .epsilon = o->epsilon,
        .feedback = !o->no_error_feedback,
        .warm = !o->no_warm_start,
    };
    h->fn = hook;
    h->state = w;
    h->forget = forget;
    h->drop = drop;
    h->save = dtr__hook_powersgd_save;
    h->restore = dtr__hook_powersgd_restore;
    return DTR_OK;
}

/* ---- state as bytes (PS9): iteration, then per bucket error and right factors ---- */

typedef struct saved_head {
    uint64_t magic, plan, iteration, buckets;
} saved_head;
#define SAVED_MAGIC UINT64_C(0x6474725053474431)

/* Sizes of what a bucket has, 0 where it has not run yet. */
typedef struct saved_bucket {
    uint64_t values, q_size, warm;
} saved_bucket;

dtr_status dtr__hook_powersgd_save(dtr_ddp *ddp, void *state, dtr_bytes *out) {
    power *w = state;
    size_t size = sizeof(saved_head) + ddp->n_buckets * sizeof(saved_bucket);
    for (size_t b = 0; b < w->n; b++) {
        size += (w->bucket[b].values + w->bucket[b].q_size) * sizeof(float);
    }
    char *data = malloc(size);
    DTR_REQUIRE(data != NULL, NULL, DTR_ERR_NOMEM, "no memory for %zu bytes of hook state", size);
    saved_head head = { SAVED_MAGIC, dtr_plan_hash(ddp->plan), ddp->iteration + w->offset,
                        ddp->n_buckets };
    char *at = mempcpy(data, &head, sizeof head);
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        static const low_rank none;
        const low_rank *l = b < w->n ? &w->bucket[b] : &none;
        saved_bucket s = { l->values, l->q_size, l->warm };
        at = mempcpy(at, &s, sizeof s);
        if (l->values + l->q_size > 0) {
            at = mempcpy(at, l->error, l->values * sizeof(float));
            at = mempcpy(at, l->q, l->q_size * sizeof(float));
        }
    }
    *out = (dtr_bytes){ data, size };
    return DTR_OK;
}

static dtr_status restore_bucket(power *w, dtr_ddp_bucket *b, const char **at, const char *end) {
    saved_bucket s;
    DTR_REQUIRE((size_t)(end - *at) >= sizeof s, NULL, DTR_ERR_ARG, "the hook state is cut short");
    memcpy(&s, *at, sizeof s);
    *at += sizeof s;
    if (s.values + s.q_size == 0 && s.warm == 0) {
        return DTR_OK;
    }
    DTR_TRY(reserve(w, b));
    low_rank *l = &w->bucket[b->index];
    DTR_REQUIRE(s.values == l->values && s.q_size == l->q_size, NULL, DTR_ERR_MISMATCH,
                "the hook state of bucket %zu is of another rank or another model", b->index);
    size_t nbytes = (l->values + l->q_size) * sizeof(float);
    DTR_REQUIRE((size_t)(end - *at) >= nbytes, NULL, DTR_ERR_ARG, "the hook state is cut short");
    memcpy(l->error, *at, l->values * sizeof(float));
    memcpy(l->q, *at + l->values * sizeof(float), l->q_size * sizeof(float));
    l->warm = s.warm != 0;
    *at += nbytes;
    return DTR_OK;
}

dtr_status dtr__hook_powersgd_restore(dtr_ddp *ddp, void *state, dtr_bytes in) {
    power *w = state;
    saved_head head;
    DTR_REQUIRE(in.data != NULL && in.nbytes >= sizeof head, NULL, DTR_ERR_ARG,
                "the hook state of %zu bytes is cut short", in.nbytes);
    memcpy(&head, in.data, sizeof head);
    DTR_REQUIRE(head.magic == SAVED_MAGIC, NULL, DTR_ERR_ARG, "these bytes are no PowerSGD state");
    DTR_REQUIRE(head.plan == dtr_plan_hash(ddp->plan) && head.buckets == ddp->n_buckets, NULL,
                DTR_ERR_MISMATCH,
                "the hook state belongs to another bucket plan; restore it when the module has its "
                "final plan");
    forget(w);
    const char *at = (const char *)in.data + sizeof head, *end = (const char *)in.data + in.nbytes;
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        dtr_status s = restore_bucket(w, &ddp->buckets[b], &at, end);
        if (s < 0) {
            forget(w);
            return s;
        }
    }
    w->offset = head.iteration - ddp->iteration;
    return DTR_OK;
}
