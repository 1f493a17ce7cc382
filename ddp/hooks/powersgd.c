/* PowerSGD: a gradient matrix travels as two thin factors, one step of the power method per
 * iteration; what is lost is added to the next gradient. Vectors and matrices that would not gain
 * travel as they are, in one flat buffer. */
#include <stdlib.h>

#include "kernels/kernels.h"
#include "powersgd.h"

/* ---- memory ---- */

static void release(const dtr_ddp *ddp, void *one) {
    dtr__low_rank *l = one;
    (void)ddp;
    for (size_t k = 0; k < l->n_slots && l->tensor != NULL; k++) {
        dtr_tensor_release(l->tensor[k]);
    }
    free(l->matrix);
    free(l->tensor);
    for (size_t k = 0; k < sizeof l->memory / sizeof l->memory[0]; k++) {
        dtr_tensor_release(l->memory[k]);
    }
    dtr_tensor_release(l->table);
    dtr_tensor_release(l->part);
    *l = (dtr__low_rank){ 0 };
}

static size_t least(size_t a, size_t b, size_t c) {
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* On all ranks alike. */
static bool compresses(const dtr__power *w, size_t n, size_t m) {
    const double factors = dtr__product((double)(n + m), (double)w->rank);
    return dtr__product(factors, w->min_rate) < dtr__product((double)n, (double)m);
}

/* Which slots are matrices, and how large everything is. */
static bool measure(const dtr__power *w, dtr_ddp_bucket *b, dtr__low_rank *l) {
    l->n_slots = b->plan->n_slots;
    l->matrix = calloc(l->n_slots + 1, sizeof *l->matrix);
    l->tensor = calloc(l->n_slots + 1, sizeof(dtr_tensor *));
    if (l->matrix == NULL || l->tensor == NULL) {
        return false;
    }
    for (size_t k = 0; k < l->n_slots; k++) {
        const dtr_tensor *t = dtr_ddp_bucket_grad(b, k);
        size_t n = t->ndim > 0 ? (size_t)t->shape[0] : 1, m = n > 0 ? t->numel / n : 0;
        bool row_by_row = t->contiguous || !dtr__ddp_on_device(b->ddp);
        if (row_by_row && compresses(w, n, m)) {
            dtr__power_matrix *x = &l->matrix[l->n_matrices++];
            *x = (dtr__power_matrix){ .slot = k, .n = n, .m = m, .rank = least(n, m, w->rank) };
            l->values += n * m;
            l->p_size += n * x->rank;
            l->q_size += m * x->rank;
        } else {
            l->plain_size += t->numel;
        }
    }
    return true;
}

static dtr_status numbers(const dtr_ddp *ddp, size_t n, dtr_tensor **t, float **at) {
    DTR_TRY(dtr__hook_memory(ddp, DTR_F32, n + 1, t));
    *at = (float *)(void *)(*t)->data;
    return DTR_OK;
}

static dtr_status place(dtr_ddp_bucket *b, dtr__low_rank *l) {
    const dtr_ddp *ddp = b->ddp;
    const dtr__ddp_at here = ddp->at;
    DTR_TRY(numbers(ddp, l->values, &l->memory[0], &l->value));
    DTR_TRY(numbers(ddp, l->values, &l->memory[1], &l->error));
    DTR_TRY(numbers(ddp, l->p_size, &l->memory[2], &l->p));
    DTR_TRY(numbers(ddp, l->q_size, &l->memory[3], &l->q));
    DTR_TRY(numbers(ddp, l->plain_size, &l->memory[4], &l->flat));
    DTR_TRY(ddp->mover->zero(l->error, (l->values + 1) * sizeof *l->error, &here));
    DTR_TRY(ddp->mover->zero(l->value, (l->values + 1) * sizeof *l->value, &here));
    float *value = l->value, *p = l->p, *q = l->q, *flat = l->flat;
    dtr__power_matrix *x = l->matrix;
    for (size_t k = 0; k < l->n_slots; k++) {
        const dtr_tensor *like = dtr_ddp_bucket_grad(b, k);
        bool is_matrix = x < l->matrix + l->n_matrices && x->slot == k;
        float **at = is_matrix ? &value : &flat;
        DTR_TRY(dtr__tensor_wrap(*at, DTR_F32, like->device, like->ndim, like->shape, NULL, NULL,
                                 NULL, &l->tensor[k]));
        if (is_matrix) {
            x->value = value;
            x->p = p;
            x->q = q;
            p += x->n * x->rank;
            q += x->m * x->rank;
            x++;
        }
        *at += like->numel;
    }
    return DTR_OK;
}

dtr_status dtr__power_reserve(dtr__power *w, dtr_ddp_bucket *b, dtr__low_rank **found) {
    dtr__low_rank *l = dtr__hook_bucket_state(&w->buckets, b->index);
    bool ready = l != NULL && l->value != NULL;
    dtr_status s = DTR_OK;
    if (l == NULL || (!ready && !measure(w, b, l))) {
        s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for the factors of bucket %zu", b->index);
    }
    s = ready || s < 0 ? s : place(b, l);
    s = ready || s < 0 || w->math->prepare == NULL ? s : w->math->prepare(b, l);
    if (s < 0 && l != NULL) {
        release(b->ddp, l);
    }
    *found = l;
    return s;
}

/* ---- the three steps ---- */

static dtr_status average(dtr_ddp_bucket *b, float *data, size_t count, dtr_work **work) {
    dtr_buffer buffer = { data, count, DTR_F32, b->ddp->device };
    return dtr__hook_average_of(b, dtr_ddp_bucket_group(b), buffer, work);
}

static dtr_status give_result(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    dtr__power *w = state;
    dtr__low_rank *l = dtr__hook_bucket_state(&w->buckets, b->index);
    (void)work;
    DTR_TRY(w->math->product(b, l));
    DTR_TRY(w->math->store(b, l));
    l->warm = true;
    return DTR_OK;
}

static dtr_status second_factor(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    dtr__power *w = state;
    dtr__low_rank *l = dtr__hook_bucket_state(&w->buckets, b->index);
    DTR_TRY(w->math->right(b, l, w->epsilon));
    DTR_TRY(average(b, l->q, l->q_size, work));
    return dtr__ddp_bucket_then_local(b, give_result, w);
}

/* Of the numbers that begin a factor; equal on all ranks. */
static uint64_t seed_of(const dtr__power *w, uint64_t iteration, size_t bucket) {
    uint64_t s = w->generator;
    s = dtr__power_random(&s) ^ iteration;
    return dtr__power_random(&s) ^ bucket;
}

static dtr_status hook(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    dtr__power *w = state;
    dtr__low_rank *l = NULL;
    uint64_t iteration = dtr_ddp_bucket_iteration(b) + w->offset;
    if (iteration < w->start) {
        return dtr__hook_average(NULL, b, work);
    }
    DTR_TRY(dtr__power_reserve(w, b, &l));
    DTR_TRY(w->math->load(b, l));
    if (w->feedback) {
        DTR_TRY(w->math->add_error(b, l));
    }
    DTR_TRY(w->math->left(b, l, seed_of(w, iteration, b->index), !w->warm || !l->warm, w->epsilon));
    if (l->plain_size > 0) {
        DTR_TRY(average(b, l->flat, l->plain_size, work));
    }
    if (l->n_matrices == 0) {
        return dtr__ddp_bucket_then_local(b, give_result, w);
    }
    (void)dtr_work_release(*work); /* it ends before the next of its group */
    *work = NULL;
    DTR_TRY(average(b, l->p, l->p_size, work));
    return dtr_ddp_bucket_then(b, second_factor, w);
}

/* ---- registration ---- */

dtr_status dtr__hook_powersgd_make(const dtr_ddp *ddp, const dtr_hook_options *o,
                                   dtr__ddp_hook *h) {
    DTR_REQUIRE(o->rank >= 0 && o->min_rate >= 0 && o->epsilon >= 0, NULL, DTR_ERR_ARG,
                "PowerSGD: rank %d, min_rate %g, epsilon %g: none may be negative", o->rank,
                o->min_rate, o->epsilon);
    uint64_t start = o->start_iteration != 0 ? o->start_iteration : 1000;
    DTR_REQUIRE(start >= 2 || (o->no_error_feedback && o->no_warm_start), NULL, DTR_ERR_ARG,
                "PowerSGD: start_iteration is %llu; error feedback and warm start need 2 or more, "
                "because the buckets change after the first iteration",
                (unsigned long long)start);
    DTR_TRY(dtr__hook_make(ddp, h, hook, sizeof(dtr__power), sizeof(dtr__low_rank), release));
    dtr__power *w = h->state;
    w->math = dtr__ddp_on_device(ddp) ? &dtr__power_device : &dtr__power_host;
    w->rank = o->rank > 0 ? (size_t)o->rank : 1;
    w->start = start;
    w->generator = o->generator_start;
    w->min_rate = o->min_rate > 0 ? o->min_rate : 2;
    w->epsilon = o->epsilon;
    w->feedback = !o->no_error_feedback;
    w->warm = !o->no_warm_start;
    h->save = dtr__power_save;
    h->restore = dtr__power_restore;
    return DTR_OK;
}
