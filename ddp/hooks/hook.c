/* Communication hooks: registration, what a hook sees of its bucket, and the groups it works on. */
#include <stdlib.h>

#include "core/team.h"
#include "engine/engine.h"
#include "hooks.h"

/* ---- registration ---- */

static dtr_status install(dtr_ddp *ddp, const dtr__ddp_hook *h, const char *name) {
    dtr__ddp_hook *own = calloc(1, sizeof *own);
    DTR_REQUIRE(own != NULL, NULL, DTR_ERR_NOMEM, "no memory for the hook '%s'", name);
    *own = *h;
    snprintf(own->name, sizeof own->name, "%s", name);
    pthread_mutex_init(&own->pump_lock, NULL);
    ddp->hook = own;
    ddp->strategy = &dtr__ddp_hook_strategy;
    dtr__ddp_hook_rearm(ddp);
    return DTR_OK;
}

dtr_status dtr__ddp_hook_set(dtr_ddp *ddp, const char *entry, const dtr__ddp_hook *h,
                             const char *name) {
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    pthread_mutex_lock(&ddp->lock);
    dtr_status s = DTR_OK;
    if (ddp->hook != NULL) {
        s = DTR_FAIL(&ctx, DTR_ERR_STATE, "%s: the module already has the hook '%s', which stays",
                     entry, ddp->hook->name);
    } else if (atomic_load(&ddp->state) != DTR__DDP_IDLE) {
        s = DTR_FAIL(&ctx, DTR_ERR_STATE, "%s: %s; register hooks between iterations", entry,
                     dtr__ddp_state_name(atomic_load(&ddp->state)));
    } else if (dtr__ddp_per_param(ddp)) {
        s = DTR_FAIL(
            &ctx, DTR_ERR_STATE,
            "%s: the module was created with DTR_DDP_PER_PARAM, which has no buckets for a "
            "hook",
            entry);
    } else if ((s = dtr__ddp_refuse_sharded(ddp, entry)) == DTR_OK) {
        s = install(ddp, h, name);
    }
    pthread_mutex_unlock(&ddp->lock);
    return dtr__ddp_result(ddp, s);
}

dtr_status dtr_ddp_register_hook(dtr_ddp *ddp, dtr_ddp_hook fn, void *state, const char *name) {
    static const char entry[] = "dtr_ddp_register_hook";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    if (fn == NULL) {
        dtr__error_context ctx = { .world = ddp->world, .operation = entry };
        return dtr__ddp_failed(ddp, DTR_FAIL(&ctx, DTR_ERR_ARG, "%s: fn is NULL", entry));
    }
    if (ddp->set.has_param_dtype) {
        dtr__error_context ctx = { .world = ddp->world, .operation = entry };
        return dtr__ddp_failed(
            ddp, DTR_FAIL(&ctx, DTR_ERR_STATE,
                          "%s: the module was created with param_dtype %s, which goes with the "
                          "library's own hooks only",
                          entry, dtr_dtype_name(ddp->set.param_dtype)));
    }
    dtr__ddp_hook h = { .fn = fn, .state = state };
    dtr__ddp_hook_of_wrapper(fn, state, &h);
    return dtr__ddp_hook_set(ddp, entry, &h, name != NULL && name[0] != '\0' ? name : "user");
}

void dtr__ddp_hook_groups_free(dtr_ddp *ddp) {
    for (int d = DTR__HOOK_DEPTHS - 1; d >= 0 && ddp->hook != NULL; d--) {
        if (ddp->hook->group[d] != NULL) {
            (void)dtr_group_destroy(ddp->hook->group[d]);
            ddp->hook->group[d] = NULL;
        }
    }
}

void dtr__ddp_hook_groups_break(const dtr_ddp *ddp) {
    for (int d = 0; d < DTR__HOOK_DEPTHS && ddp->hook != NULL; d++) {
        if (ddp->hook->group[d] != NULL) {
            dtr__group_break(ddp->hook->group[d], DTR_ERR_ABORTED);
        }
    }
}

void dtr__ddp_hook_abort(dtr_ddp *ddp, const char *reason) {
    for (int d = 0; d < DTR__HOOK_DEPTHS && ddp->hook != NULL; d++) {
        if (ddp->hook->group[d] != NULL) {
            (void)dtr_group_abort(ddp->hook->group[d], reason);
        }
    }
}

bool dtr__ddp_hook_is_called(const dtr_ddp *ddp) {
    return ddp->hook != NULL && atomic_load(&ddp->hook->callbacks) > 0;
}

void dtr__ddp_hook_reset(dtr_ddp *ddp) {
    if (ddp->hook != NULL) {
        ddp->strategy->forget(ddp);
        ddp->hook->ready = false;
    }
}

void dtr__ddp_hook_drop(dtr_ddp *ddp) {
    if (ddp->hook != NULL && ddp->hook->drop != NULL) {
        ddp->hook->drop(ddp->hook->state);
        ddp->hook->drop = NULL;
    }
}

void dtr__ddp_hook_free(dtr_ddp *ddp) {
    if (ddp->hook != NULL) {
        pthread_mutex_destroy(&ddp->hook->pump_lock);
        free(ddp->hook);
    }
}

/* ---- groups ---- */

static dtr_status make_group(dtr_ddp *ddp, int depth) {
    char suffix[16];
    snprintf(suffix, sizeof suffix, "hook%d", depth);
    return dtr__ddp_dup(ddp, suffix, &ddp->hook->group[depth]);
}

/* Blocking and collective: all ranks are in backward_end of the same iteration. */
dtr_status dtr__ddp_hook_group_make(dtr_ddp *ddp, int depth) {
    return ddp->hook->group[depth] != NULL ? DTR_OK : make_group(ddp, depth);
}

enum { NAME = sizeof(((dtr__ddp_hook *)0)->name) };

static dtr_status compare_names(dtr_ddp *ddp) {
    char *all = malloc((size_t)ddp->size * NAME);
    if (all == NULL) {
        dtr_status s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory to compare hooks across ranks");
        dtr__group_break(ddp->group, s);
        return s;
    }
    dtr_status s = dtr__ddp_gather(ddp, ddp->hook->name, all, NAME, "ddp hook", DTR__PART_HOOK);
    for (int k = 1; k < ddp->size && s == DTR_OK; k++) {
        if (memcmp(all, all + (size_t)k * NAME, NAME) != 0) {
            s = DTR_FAIL(NULL, DTR_ERR_MISMATCH,
                         "rank 0 has the hook '%s', rank %d the hook '%s': register the same on "
                         "every rank",
                         all, k, all + (size_t)k * NAME);
        }
    }
    free(all);
    return s;
}

dtr_status dtr__ddp_hook_setup(dtr_ddp *ddp) {
    if (ddp->hook->ready) {
        return DTR_OK;
    }
    if (ddp->size > 1) {
        DTR_TRY(compare_names(ddp));
    }
    DTR_TRY(make_group(ddp, 0));
    if (ddp->hook->setup != NULL) {
        DTR_TRY(ddp->hook->setup(ddp, ddp->hook->state));
    }
    ddp->hook->ready = true;
    return DTR_OK;
}

dtr_status dtr__ddp_hook_renew(dtr_ddp *ddp) {
    bool had[DTR__HOOK_DEPTHS];
    for (int d = 0; d < DTR__HOOK_DEPTHS; d++) {
        had[d] = ddp->hook->group[d] != NULL;
    }
    dtr__ddp_hook_groups_break(ddp); /* the failure may not have shown here yet */
    dtr__ddp_hook_groups_free(ddp);
    for (int d = 0; d < DTR__HOOK_DEPTHS; d++) {
        DTR_TRY(had[d] ? make_group(ddp, d) : DTR_OK);
    }
    return DTR_OK;
}

/* ---- what a hook sees ---- */

size_t dtr_ddp_bucket_index(const dtr_ddp_bucket *bucket) {
    return bucket != NULL ? bucket->index : SIZE_MAX;
}

bool dtr_ddp_bucket_is_last(const dtr_ddp_bucket *bucket) {
    return bucket != NULL && bucket->index + 1 == bucket->ddp->n_buckets;
}

uint64_t dtr_ddp_bucket_iteration(const dtr_ddp_bucket *bucket) {
    return bucket != NULL ? bucket->ddp->it.number : 0;
}

dtr_buffer dtr_ddp_bucket_buffer(const dtr_ddp_bucket *bucket) {
    return bucket != NULL ? bucket->shown : dtr_cpu(NULL, 0, (dtr_dtype)-1);
}

void *dtr_ddp_bucket_stream(const dtr_ddp_bucket *bucket) {
    return bucket != NULL && dtr__ddp_on_device(bucket->ddp) ? bucket->ddp->at.stream : NULL;
}

size_t dtr_ddp_bucket_param_count(const dtr_ddp_bucket *bucket) {
    return bucket != NULL ? bucket->plan->n_slots : 0;
}

size_t dtr_ddp_bucket_param(const dtr_ddp_bucket *bucket, size_t k, size_t *offset, size_t *count) {
    if (bucket == NULL || k >= bucket->plan->n_slots) {
        return SIZE_MAX;
    }
    const dtr_plan_slot *slot = &bucket->plan->slots[k];
    size_t size = dtr_dtype_size(bucket->plan->dtype);
    if (offset != NULL) {
        *offset = slot->offset / size;
    }
    if (count != NULL) {
        *count = slot->nbytes / size;
    }
    return slot->param;
}

/* A view of a wrapper's copy, made once. */
static dtr_tensor *copy_view(dtr_ddp_bucket *b, size_t k) {
    const dtr_tensor *slot = b->ddp->params[b->plan->slots[k].param].slot;
    if (b->views == NULL) {
        b->views = calloc(b->plan->n_slots, sizeof(dtr_tensor *));
    }
    if (b->views != NULL && b->views[k] == NULL) {
        size_t at = b->plan->slots[k].offset / dtr_dtype_size(b->plan->dtype);
        (void)dtr__tensor_view(b->copy, (ptrdiff_t)at, slot->ndim, slot->shape, slot->strides,
                               &b->views[k]);
    }
    return b->views != NULL ? b->views[k] : NULL;
}

dtr_tensor *dtr_ddp_bucket_grad(const dtr_ddp_bucket *bucket, size_t k) {
    if (bucket == NULL || k >= bucket->plan->n_slots) {
        return NULL;
    }
    if (bucket->shown.data == bucket->data) {
        return bucket->ddp->params[bucket->plan->slots[k].param].slot;
    }
    return copy_view((dtr_ddp_bucket *)(uintptr_t)bucket, k);
}

dtr_group *dtr_ddp_bucket_group(const dtr_ddp_bucket *bucket) {
    return bucket != NULL ? bucket->ddp->hook->group[bucket->depth] : NULL;
}

/* ---- what a hook gives ---- */

static dtr_status check_running(const dtr_ddp_bucket *b, const char *entry) {
    DTR_REQUIRE(b != NULL, NULL, DTR_ERR_ARG, "%s: bucket is NULL", entry);
    DTR_REQUIRE(b->running, NULL, DTR_ERR_STATE,
                "%s: bucket %zu: only its hook, while it runs, may call this", entry, b->index);
    return DTR_OK;
}

dtr_status dtr_ddp_bucket_set_result(dtr_ddp_bucket *bucket, dtr_buffer result) {
    static const char entry[] = "dtr_ddp_bucket_set_result";
    DTR_TRY(check_running(bucket, entry));
    DTR_REQUIRE(bucket->sparse == NULL, NULL, DTR_ERR_STATE,
                "%s: bucket %zu is sparse, use dtr_ddp_bucket_set_sparse_result", entry,
                bucket->index);
    bucket->has_result = true; /* judged when the hook has returned */
    bucket->result = result;
    return DTR_OK;
}

static dtr_status set_then(dtr_ddp_bucket *b, const char *entry, dtr_ddp_hook fn, void *state,
                           bool local) {
    DTR_TRY(check_running(b, entry));
    DTR_REQUIRE(fn != NULL, NULL, DTR_ERR_ARG, "%s: fn is NULL", entry);
    DTR_REQUIRE(b->then == NULL, NULL, DTR_ERR_STATE,
                "%s: bucket %zu has its next step already; a step may add one", entry, b->index);
    DTR_REQUIRE(b->depth + 2 < DTR__HOOK_DEPTHS, NULL, DTR_ERR_UNSUPPORTED,
                "%s: bucket %zu: a hook may have %d steps", entry, b->index, DTR__HOOK_DEPTHS - 1);
    b->then = fn;
    b->then_state = state;
    b->then_local = local;
    return DTR_OK;
}

dtr_status dtr_ddp_bucket_then(dtr_ddp_bucket *bucket, dtr_ddp_hook fn, void *state) {
    return set_then(bucket, "dtr_ddp_bucket_then", fn, state, false);
}

dtr_status dtr__ddp_bucket_then_local(dtr_ddp_bucket *b, dtr_ddp_hook fn, void *state) {
    return set_then(b, "dtr_ddp_bucket_then", fn, state, true);
}

/* ---- the state of a built-in hook as bytes ---- */

static dtr_status state_call(dtr_ddp *ddp, const char *entry, dtr_bytes *out, dtr_bytes in) {
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    DTR_REQUIRE(ddp->hook != NULL, &ctx, DTR_ERR_STATE, "%s: the module has no hook", entry);
    DTR_REQUIRE(atomic_load(&ddp->state) == DTR__DDP_IDLE, &ctx, DTR_ERR_STATE,
                "%s: %s; call it between iterations", entry,
                dtr__ddp_state_name(atomic_load(&ddp->state)));
    if (out != NULL) {
        if (ddp->hook->save == NULL) {
            *out = (dtr_bytes){ NULL, 0 };
            return DTR_OK;
        }
        return ddp->hook->save(ddp, ddp->hook->state, out);
    }
    if (ddp->hook->restore == NULL) {
        DTR_REQUIRE(in.nbytes == 0, &ctx, DTR_ERR_ARG, "%s: the hook '%s' has no state", entry,
                    ddp->hook->name);
        return DTR_OK;
    }
    return ddp->hook->restore(ddp, ddp->hook->state, in);
}

dtr_status dtr_ddp_hook_state(dtr_ddp *ddp, dtr_bytes *out) {
    static const char entry[] = "dtr_ddp_hook_state";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    dtr_status s = out != NULL ? state_call(ddp, entry, out, (dtr_bytes){ NULL, 0 })
                               : DTR_FAIL(NULL, DTR_ERR_ARG, "%s: out is NULL", entry);
    return dtr__ddp_result(ddp, s);
}

dtr_status dtr_ddp_set_hook_state(dtr_ddp *ddp, dtr_bytes in) {
    static const char entry[] = "dtr_ddp_set_hook_state";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    dtr_status s = state_call(ddp, entry, NULL, in);
    return dtr__ddp_result(ddp, s);
}
