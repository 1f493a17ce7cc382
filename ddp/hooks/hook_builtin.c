/* The built-in hooks that need little: plain average, casts around another hook, nothing at all,
 * and averaging over a subgroup from some iteration on. */
#include <stdlib.h>

#include "core/team.h"
#include "group/groups.h"
#include "hook_builtin.h"
#include "kernels/kernels.h"

/* ---- average ---- */

static dtr_coll_options options_of(const dtr_ddp_bucket *b) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.label = b->label;
    o.stream = dtr_ddp_bucket_stream(b);
    return o;
}

dtr_status dtr__hook_average_of(const dtr_ddp_bucket *b, dtr_group *group, dtr_buffer buffer,
                                dtr_work **work) {
    const dtr_coll_options o = options_of(b);
    return dtr_allreduce(group, buffer, buffer, DTR_AVG, &o, work);
}

dtr_status dtr__hook_average(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)state;
    if (b->sparse != NULL) {
        const dtr_coll_options o = options_of(b);
        return dtr_sparse_allreduce(dtr_ddp_bucket_group(b), b->in_rows, b->in_values,
                                    b->sparse->value->shape[0], DTR_AVG, &o, &b->out_rows,
                                    &b->out_values, work);
    }
    return dtr__hook_average_of(b, dtr_ddp_bucket_group(b), dtr_ddp_bucket_buffer(b), work);
}

/* ---- what a hook keeps of every bucket ---- */

void dtr__hook_forget(void *state) {
    dtr__hook_buckets *r = state;
    if (r->of != NULL && dtr__ddp_on_device(r->ddp)) { /* its stream may use it just now */
        const dtr__ddp_gpu *g = r->ddp->gpu;
        (void)g->ops->stream_synchronize(g->index, g->stream);
    }
    for (size_t b = 0; b < r->n; b++) {
        r->release(r->ddp, r->of + b * r->each);
    }
    free(r->of);
    r->of = NULL;
    r->n = 0;
}

static void drop(void *state) {
    dtr__hook_forget(state);
    free(state);
}

dtr_status dtr__hook_make(const dtr_ddp *ddp, dtr__ddp_hook *h, dtr_ddp_hook fn, size_t size,
                          size_t each, void (*release)(const dtr_ddp *ddp, void *one)) {
    dtr__hook_buckets *r = calloc(1, size);
    DTR_REQUIRE(r != NULL, NULL, DTR_ERR_NOMEM, "no memory for a hook");
    *r = (dtr__hook_buckets){ .ddp = ddp, .each = each, .release = release };
    h->fn = fn;
    h->state = r;
    h->forget = dtr__hook_forget;
    h->drop = drop;
    return DTR_OK;
}

void *dtr__hook_bucket_state_if(const dtr__hook_buckets *all, size_t bucket) {
    return bucket < all->n ? all->of + bucket * all->each : NULL;
}

void *dtr__hook_bucket_state(dtr__hook_buckets *all, size_t bucket) {
    if (all->of == NULL) {
        all->of = calloc(all->ddp->n_buckets, all->each);
        all->n = all->of != NULL ? all->ddp->n_buckets : 0;
    }
    return dtr__hook_bucket_state_if(all, bucket);
}

dtr_status dtr__hook_memory(const dtr_ddp *ddp, dtr_dtype dtype, size_t count, dtr_tensor **t) {
    return dtr_tensor_empty(ddp->world, dtype, ddp->device, DTR_MEM_DEFAULT, 1,
                            &(int64_t){ (int64_t)count }, t);
}

/* ---- nothing ---- */

static dtr_status noop(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)state;
    (void)work;
    return b->sparse != NULL ? dtr_ddp_bucket_set_sparse_result(b, b->in_rows, b->in_values)
                             : dtr_ddp_bucket_set_result(b, dtr_ddp_bucket_buffer(b));
}

/* ---- casts ---- */

typedef struct wrapper {
    dtr_dtype dtype;
    dtr_ddp_hook inner;
    void *inner_state;
} wrapper;

/* A copy of the bucket in the wrapper's type; made once per bucket, node-shared where possible. */
static dtr_status copy_memory(dtr_ddp_bucket *b, dtr_dtype dtype) {
    if (b->copy != NULL && b->copy->dtype == dtype) {
        return DTR_OK;
    }
    dtr_device where = b->ddp->device;
    int64_t count = (int64_t)b->shown.count;
    dtr_world *world = b->ddp->world;
    dtr__ddp_bucket_drop_copy(b);
    if (dtr__ddp_on_device(b->ddp) ||
        dtr_tensor_empty(world, dtype, where, DTR_MEM_SHARED, 1, &count, &b->copy) < 0) {
        DTR_TRY(dtr_tensor_empty(world, dtype, where, DTR_MEM_DEFAULT, 1, &count, &b->copy));
    }
    return DTR_OK;
}

static dtr_status cast_around(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    const wrapper *w = state;
    if (b->shown.dtype == w->dtype || b->sparse != NULL) {
        return w->inner(w->inner_state, b, work);
    }
    DTR_REQUIRE(b->shown.data == b->data, NULL, DTR_ERR_STATE,
                "hooks that cast may not be wrapped into each other");
    DTR_TRY(copy_memory(b, w->dtype));
    const dtr__ddp_piece piece = { b->copy->data, b->data, b->shown.count, w->dtype,
                                   b->plan->dtype };
    const dtr__ddp_at at = { b->ddp->at.device, b->ddp->at.stream };
    DTR_TRY(b->ddp->mover->move(&piece, 1, 1, &at));
    b->shown = dtr_tensor_buffer(b->copy);
    return w->inner(w->inner_state, b, work); /* the result is cast back when it is there */
}

dtr_status dtr_ddp_wrap_hook(dtr_dtype dtype, dtr_ddp_hook inner, void *inner_state,
                             dtr_ddp_hook *hook, void **state) {
    DTR_REQUIRE(dtype == DTR_F16 || dtype == DTR_BF16, NULL, DTR_ERR_ARG,
                "dtr_ddp_wrap_hook: dtype is %s; use DTR_F16 or DTR_BF16", dtr_dtype_name(dtype));
    DTR_REQUIRE(inner != NULL && hook != NULL && state != NULL, NULL, DTR_ERR_ARG,
                "dtr_ddp_wrap_hook: %s is NULL",
                inner == NULL  ? "inner"
                : hook == NULL ? "hook"
                               : "state");
    wrapper *w = malloc(sizeof *w);
    DTR_REQUIRE(w != NULL, NULL, DTR_ERR_NOMEM, "no memory for a hook");
    *w = (wrapper){ dtype, inner, inner_state };
    *hook = cast_around;
    *state = w;
    return DTR_OK;
}

void dtr__ddp_hook_of_wrapper(dtr_ddp_hook fn, void *state, dtr__ddp_hook *h) {
    (void)state;
    if (fn == cast_around) {
        h->drop = free;
    }
}

static dtr_status make_cast(dtr_dtype dtype, dtr__ddp_hook *h) {
    DTR_TRY(dtr_ddp_wrap_hook(dtype, dtr__hook_average, NULL, &h->fn, &h->state));
    h->drop = free;
    return DTR_OK;
}

/* ---- average over a subgroup from an iteration on ---- */

typedef struct local_sgd {
    dtr_group *asked; /* the caller's, until setup */
    dtr_group *own;   /* NULL: no communication */
    uint64_t start;
} local_sgd;

/* The hook's collectives start at other times than the caller's: it works on a duplicate. */
static dtr_status local_sgd_setup(dtr_ddp *ddp, void *state) {
    local_sgd *l = state;
    if (l->own != NULL) { /* the module was moved to another group: again */
        (void)dtr_group_destroy(l->own);
        l->own = NULL;
    }
    if (l->asked == NULL) {
        return DTR_OK;
    }
    char name[64];
    snprintf(name, sizeof name, "%.50s.local", dtr_group_name(l->asked));
    DTR_TRY(dtr__group_dup(l->asked, name, &l->own));
    l->own->asked.nan_check = -1;
    if (ddp->set.timeout_s > 0) {
        dtr__group_set_limits(l->own, ddp->set.timeout_s, l->own->timeout_cuda_s);
    }
    return DTR_OK;
}

static dtr_status local_sgd_hook(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    local_sgd *l = state;
    if (dtr_ddp_bucket_iteration(b) < l->start) {
        return dtr__hook_average(NULL, b, work);
    }
    if (l->own == NULL) {
        return noop(NULL, b, work);
    }
    return dtr__hook_average_of(b, l->own, dtr_ddp_bucket_buffer(b), work);
}

static void local_sgd_drop(void *state) {
    local_sgd *l = state;
    (void)dtr_group_destroy(l->own);
    free(l);
}

static dtr_status make_local_sgd(const dtr_hook_options *o, dtr__ddp_hook *h) {
    local_sgd *l = calloc(1, sizeof *l);
    DTR_REQUIRE(l != NULL, NULL, DTR_ERR_NOMEM, "no memory for a hook");
    l->asked = o->subgroup;
    l->start = o->start_iteration;
    h->fn = local_sgd_hook;
    h->state = l;
    h->setup = local_sgd_setup;
    h->drop = local_sgd_drop;
    return DTR_OK;
}

/* ---- registration ---- */

static const char *const names[] = { "allreduce", "fp16", "bf16",          "q8",
                                     "powersgd",  "noop", "post_local_sgd" };

/* Real types only, where values are cast or coded. */
static dtr_status check_types(const dtr_ddp *ddp, const char *name) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        dtr_dtype d = ddp->buckets[b].plan->dtype;
        DTR_REQUIRE(dtr__ddp_is_float(d), NULL, DTR_ERR_UNSUPPORTED,
                    "the hook '%s' does not serve gradients of type %s", name, dtr_dtype_name(d));
    }
    return DTR_OK;
}

static dtr_status check_sparse(const dtr_ddp *ddp, dtr_ddp_builtin which) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        DTR_REQUIRE(
            ddp->buckets[b].sparse == NULL || which == DTR_HOOK_ALLREDUCE || which == DTR_HOOK_NOOP,
            NULL, DTR_ERR_UNSUPPORTED, "the hook '%s' does not serve the sparse parameter '%s'",
            names[which], ddp->buckets[b].sparse->name);
    }
    return DTR_OK;
}

static dtr_status make_builtin(dtr_ddp *ddp, dtr_ddp_builtin which, const dtr_hook_options *o,
                               dtr__ddp_hook *h) {
    DTR_TRY(check_sparse(ddp, which));
    if (which == DTR_HOOK_FP16 || which == DTR_HOOK_BF16 || which == DTR_HOOK_Q8 ||
        which == DTR_HOOK_POWERSGD) {
        DTR_TRY(check_types(ddp, names[which]));
    }
    switch (which) {
    case DTR_HOOK_ALLREDUCE:
        h->fn = dtr__hook_average;
        return DTR_OK;
    case DTR_HOOK_FP16:
        return make_cast(DTR_F16, h);
    case DTR_HOOK_BF16:
        return make_cast(DTR_BF16, h);
    case DTR_HOOK_Q8:
        return dtr__ddp_on_device(ddp) ? dtr__hook_q8_make_device(ddp, h)
                                       : dtr__hook_q8_make(ddp, h);
    case DTR_HOOK_POWERSGD:
        return dtr__hook_powersgd_make(ddp, o, h);
    case DTR_HOOK_POST_LOCAL_SGD:
        return make_local_sgd(o, h);
    case DTR_HOOK_NOOP:
        break;
    }
    h->fn = noop;
    return DTR_OK;
}

dtr_status dtr_ddp_register_builtin_hook(dtr_ddp *ddp, dtr_ddp_builtin which,
                                         const dtr_hook_options *options) {
    static const char entry[] = "dtr_ddp_register_builtin_hook";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    dtr_hook_options o;
    dtr__ddp_hook h = { 0 };
    dtr_status s = dtr__options_copy(options, &o, sizeof o, "dtr_hook_options");
    if (s == DTR_OK && ((int)which < 0 || (size_t)which >= sizeof names / sizeof names[0])) {
        s = DTR_FAIL(NULL, DTR_ERR_ARG, "%s: %d is no built-in hook", entry, (int)which);
    }
    if (s == DTR_OK) {
        s = make_builtin(ddp, which, &o, &h);
    }
    if (s < 0) {
        return dtr__ddp_failed(ddp, s);
    }
    s = dtr__ddp_hook_set(ddp, entry, &h, names[which]);
    if (s < 0 && h.drop != NULL) {
        h.drop(h.state);
    }
    return s;
}
