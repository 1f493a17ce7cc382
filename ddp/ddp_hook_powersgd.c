/* PowerSGD: a gradient matrix travels as two thin factors, one step of the power method per
 * iteration; what is lost is added to the next gradient. Vectors and matrices that would not gain
 * travel as they are, in one flat buffer. */
#include <stdlib.h>

#include "ddp_powersgd.h"

/* ---- memory ---- */

static void release(const dtr_ddp *ddp, void *room) {
    dtr__low_rank *l = room;
    (void)ddp;
    for (size_t k = 0; k < l->n_matrices && l->matrix != NULL; k++) {
        dtr_tensor_release(l->matrix[k].tensor);
    }
    for (size_t k = 0; k < l->n_plain && l->plain_tensor != NULL; k++) {
        dtr_tensor_release(l->plain_tensor[k]);
    }
    free(l->matrix);
    free(l->plain_slot);
    free(l->plain);
    free(l->plain_tensor);
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

static bool compresses(const dtr__power *w, size_t n, size_t m) {
    return (double)(n + m) * (double)w->rank * w->min_rate < (double)n * (double)m;
}

/* Which slots are matrices, and how large everything is. */
static bool measure(const dtr__power *w, dtr_ddp_bucket *b, dtr__low_rank *l) {
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
        bool row_by_row = t->contiguous || !dtr__ddp_on_device(b->ddp);
        if (row_by_row && compresses(w, n, m)) {
            dtr__power_matrix *x = &l->matrix[l->n_matrices++];
            *x = (dtr__power_matrix){ .slot = k, .n = n, .m = m, .rank = least(n, m, w->rank) };
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

static dtr_status numbers(const dtr_ddp *ddp, size_t n, dtr_tensor **t, float **at) {
    int64_t count = (int64_t)n + 1;
    DTR_TRY(dtr_tensor_empty(ddp->world, DTR_F32, ddp->device, DTR_MEM_DEFAULT, 1, &count, t));
    *at = (float *)(void *)(*t)->data;
    return DTR_OK;
}

static dtr_status place(dtr_ddp_bucket *b, dtr__low_rank *l) {
    const dtr_ddp *ddp = b->ddp;
    const dtr__ddp_at here = { ddp->gpu.index, ddp->gpu.stream };
    DTR_TRY(numbers(ddp, l->values, &l->memory[0], &l->value));
    DTR_TRY(numbers(ddp, l->values, &l->memory[1], &l->error));
    DTR_TRY(numbers(ddp, l->p_size, &l->memory[2], &l->p));
    DTR_TRY(numbers(ddp, l->q_size, &l->memory[3], &l->q));
    DTR_TRY(numbers(ddp, l->plain_size, &l->memory[4], &l->flat));
    DTR_TRY(ddp->mover->zero(l->error, (l->values + 1) * sizeof *l->error, &here));
    DTR_TRY(ddp->mover->zero(l->value, (l->values + 1) * sizeof *l->value, &here));
    float *value = l->value, *p = l->p, *q = l->q, *flat = l->flat;
    for (size_t k = 0; k < l->n_matrices; k++) {
        dtr__power_matrix *x = &l->matrix[k];
        x->value = value;
        x->p = p;
        x->q = q;
        value += x->n * x->m;
        p += x->n * x->rank;
        q += x->m * x->rank;
        DTR_TRY(shaped(b, x->slot, x->value, &x->tensor));
    }
    for (size_t k = 0; k < l->n_plain; k++) {
        l->plain[k] = flat;
        flat += dtr_ddp_bucket_grad(b, l->plain_slot[k])->numel;
        DTR_TRY(shaped(b, l->plain_slot[k], l->plain[k], &l->plain_tensor[k]));
    }
    return DTR_OK;
}

dtr_status dtr__power_reserve(dtr__power *w, dtr_ddp_bucket *b, dtr__low_rank **found) {
    dtr__low_rank *l = dtr__hook_room(&w->rooms, b->index);
    bool ready = l != NULL && l->value != NULL;
    dtr_status s = DTR_OK;
    if (l == NULL || (!ready && !measure(w, b, l))) {
        s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for the factors of bucket %zu", b->index);
    }
    s = ready || s < 0 ? s : place(b, l);
    s = ready || s < 0 ? s : w->math->prepare(b, l);
    if (s < 0 && l != NULL) {
        release(b->ddp, l);
    }
    *found = l;
    return s;
}

/* ---- the three steps ---- */

static dtr_status average(dtr_ddp_bucket *b, float *data, size_t count, dtr_work **work) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_buffer buffer = { data, count, DTR_F32, b->ddp->device };
    o.label = b->label;
    o.stream = dtr_ddp_bucket_stream(b);
    return dtr_allreduce(dtr_ddp_bucket_group(b), buffer, buffer, DTR_AVG, &o, work);
}

static dtr_status give_result(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    dtr__power *w = state;
    dtr__low_rank *l = dtr__hook_room(&w->rooms, b->index);
    (void)work;
    DTR_TRY(w->math->product(b, l));
    DTR_TRY(w->math->store(b, l));
    l->warm = true;
    return DTR_OK;
}

static dtr_status second_factor(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    dtr__power *w = state;
    dtr__low_rank *l = dtr__hook_room(&w->rooms, b->index);
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
    if (l->n_plain > 0) {
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
    dtr__power *w = dtr__hook_make(ddp, h, hook, sizeof *w, sizeof(dtr__low_rank), release);
    DTR_REQUIRE(w != NULL, NULL, DTR_ERR_NOMEM, "no memory for a hook");
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
