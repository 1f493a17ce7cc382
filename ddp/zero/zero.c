/* Creating and destroying a sharded optimizer, and what its calls have in common. */
#include "zero.h"
#include "core/call_site.h"
#include "core/team.h"
#include "engine/engine.h"

#include <stdlib.h>

/* ---- handles ---- */

dtr_status dtr__zero_fail(const dtr_zero *z, dtr_status s, const char *fmt, ...) {
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    dtr_ddp *ddp = z->ddp;
    dtr__error_context ctx = { .world = ddp->world,
                               .operation = "zero",
                               .group = ddp->group->name };
    return dtr__ddp_failed(ddp, DTR_FAIL(&ctx, s, "%s", text));
}

dtr_status dtr__zero_check(const dtr_zero *z, const char *entry) {
    DTR_TRY(dtr__fork_check(entry));
    DTR_REQUIRE(z != NULL, NULL, DTR_ERR_ARG, "%s: zero is NULL", entry);
    DTR_REQUIRE(z->magic == DTR__ZERO_MAGIC, NULL, DTR_ERR_ARG,
                "%s: the pointer %p is no sharded optimizer, or a destroyed one", entry,
                (const void *)z);
    DTR_REQUIRE(z->ddp != NULL, NULL, DTR_ERR_STATE,
                "%s: the module of this sharded optimizer has been destroyed; only "
                "dtr_zero_destroy is left",
                entry);
    return dtr__ddp_check(z->ddp, entry);
}

dtr_status dtr__zero_begin(dtr_zero *z, const char *entry) {
    return dtr__ddp_occupy(z->ddp, entry, "call it between iterations");
}

dtr_status dtr__zero_end(dtr_zero *z, dtr_status s) {
    return dtr__ddp_leave(z->ddp, s);
}

dtr_status dtr__zero_agree(dtr_ddp *ddp, dtr_status mine, const char *text, bool callers) {
    dtr__step_status v = {
        .status = mine, .rank = ddp->rank, .param = UINT64_MAX, .callers = callers
    };
    dtr__step_status agreed;
    bool bad = false;
    snprintf(v.text, sizeof v.text, "%s", mine < 0 ? text : "");
    DTR_TRY(dtr__ddp_any_bad(ddp, mine < 0, &bad));
    return bad ? dtr__ddp_agree(ddp, &v, &agreed) : DTR_OK;
}

dtr_status dtr__zero_agree_last(dtr_ddp *ddp, dtr_status mine, const char *entry) {
    char text[440];
    snprintf(text, sizeof text, "%s: rank %d: %.380s", entry, ddp->rank, dtr_last_error_message());
    return dtr__zero_agree(ddp, mine, text, false);
}

/* ---- making ---- */

/* What a sharded module cannot do. */
static dtr_status check_module(const dtr_ddp *ddp) {
    const char *what = ddp->set.find_unused                         ? "find_unused"
                       : ddp->set.flags & DTR_DDP_PER_PARAM         ? "DTR_DDP_PER_PARAM"
                       : ddp->hook != NULL                          ? "a communication hook"
                       : ddp->reducer->step.fn != NULL              ? "step callbacks"
                       : ddp->reducer->join.begun                   ? "a join"
                       : ddp->reducer->delayed.trigger != DTR__NONE ? "delayed parameters"
                       : ddp->reducer->delayed.n > 0                ? "delayed parameters"
                                                                    : NULL;
    DTR_REQUIRE(ddp->zero == NULL, NULL, DTR_ERR_STATE,
                "the module has a sharded optimizer already; destroy it first");
    DTR_REQUIRE(what == NULL, NULL, DTR_ERR_UNSUPPORTED,
                "the module has %s, which a sharded optimizer does not work with", what);
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        const dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        DTR_REQUIRE((p->flags & DTR_PARAM_SPARSE) == 0, NULL, DTR_ERR_UNSUPPORTED,
                    "parameter '%s' (%zu) is sparse, which a sharded optimizer does not work with",
                    p->name, ddp->trainable[k]);
    }
    return DTR_OK;
}

static dtr_status make_bucket(dtr_zero *z, size_t b) {
    const dtr_ddp *ddp = z->ddp;
    const dtr_plan_bucket *plan = ddp->buckets[b].plan;
    dtr__zero_bucket *zb = &z->buckets[b];
    size_t size = dtr_dtype_size(plan->dtype);
    zb->dtype = ddp->params[plan->slots[0].param].value->dtype;
    zb->slice = dtr__zero_slice_nbytes(plan->nbytes, ddp->size) / size;
    zb->first = z->count[zb->dtype];
    z->count[zb->dtype] += zb->slice;
    for (size_t k = 1; k < plan->n_slots; k++) {
        const dtr__ddp_param *p = &ddp->params[plan->slots[k].param];
        DTR_REQUIRE(p->value->dtype == zb->dtype, NULL, DTR_ERR_UNSUPPORTED,
                    "parameters '%s' (%s) and '%s' (%s) are in one bucket, and a slice has one "
                    "type; leave reduce_dtype unset",
                    ddp->params[plan->slots[0].param].name, dtr_dtype_name(zb->dtype), p->name,
                    dtr_dtype_name(p->value->dtype));
    }
    DTR_REQUIRE(ddp->buckets[b].memory->numel >= zb->slice * (size_t)ddp->size, NULL,
                DTR_ERR_UNSUPPORTED,
                "the module has moved to a larger group than it was made for; make a new one");
    zb->data = ddp->buckets[b].data;
    if (dtr_dtype_size(zb->dtype) > size) {
        const dtr_device cpu = { DTR_CPU, 0 };
        int64_t count = (int64_t)(zb->slice * (size_t)ddp->size);
        bool plain;
        if (dtr__ddp_on_device(ddp)) {
            DTR_TRY(
                ddp->mover->make(ddp->world, ddp->device, zb->dtype, count, &zb->memory, &plain));
        } else if (dtr_tensor_empty(ddp->world, zb->dtype, cpu, DTR_MEM_SHARED, 1, &count,
                                    &zb->memory) < 0) {
            DTR_TRY(dtr_tensor_empty(ddp->world, zb->dtype, cpu, DTR_MEM_DEFAULT, 1, &count,
                                     &zb->memory));
        }
        zb->data = zb->memory->data;
    }
    return DTR_OK;
}

static dtr_status make_on_device(dtr_zero *z, size_t nbytes) {
    const dtr_ddp *ddp = z->ddp;
    char **data[2] = { &z->param, &z->grad };
    bool plain;
    for (int k = 0; k < 2; k++) {
        DTR_TRY(ddp->mover->make(ddp->world, ddp->device, DTR_U8, (int64_t)nbytes + 1,
                                 &z->slices[k], &plain));
        *data[k] = z->slices[k]->data;
    }
    return DTR_OK;
}

static dtr_status fill(dtr_zero *z, const dtr_zero_options *given) {
    const dtr_ddp *ddp = z->ddp;
    size_t longest = 0;
    DTR_TRY(dtr__options_copy(given, &z->o, sizeof z->o, "dtr_zero_options"));
    DTR_REQUIRE((z->o.flags & ~(uint32_t)DTR_ZERO_OVERLAP) == 0, NULL, DTR_ERR_ARG,
                "dtr_zero_options.flags is 0x%x; only DTR_ZERO_OVERLAP (0x%x) is known",
                (unsigned)z->o.flags, (unsigned)DTR_ZERO_OVERLAP);
    DTR_TRY(dtr__options_limit(NULL, "dtr_zero_options", &z->o.timeout_s));
    DTR_TRY(check_module(ddp));
    DTR_REQUIRE((z->o.flags & DTR_ZERO_OVERLAP) == 0 || !ddp->set.has_param_dtype, NULL,
                DTR_ERR_UNSUPPORTED,
                "DTR_ZERO_OVERLAP does not go with param_dtype, whose casts need every parameter "
                "at dtr_ddp_forward_begin");
    z->n_buckets = ddp->n_buckets;
    z->buckets = calloc(z->n_buckets + 1, sizeof *z->buckets);
    DTR_REQUIRE(z->buckets != NULL, NULL, DTR_ERR_NOMEM, "no memory for %zu slices", z->n_buckets);
    for (size_t b = 0; b < z->n_buckets; b++) {
        DTR_TRY(make_bucket(z, b));
        size_t nbytes = z->buckets[b].slice * dtr_dtype_size(z->buckets[b].dtype);
        longest = nbytes > longest ? nbytes : longest;
    }
    if (dtr__ddp_on_device(ddp)) {
        return make_on_device(z, longest);
    }
    z->param = malloc(longest + 1);
    z->grad = malloc(longest + 1);
    DTR_REQUIRE(z->param != NULL && z->grad != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for two slices of %zu bytes", longest);
    return DTR_OK;
}

static void drop_memory(dtr_zero *z) {
    for (size_t b = 0; z->buckets != NULL && b < z->n_buckets; b++) {
        dtr_tensor_release(z->buckets[b].memory);
        z->buckets[b].memory = NULL;
    }
    for (int k = 0; k < 2; k++) {
        dtr_tensor_release(z->slices[k]);
    }
    free(z->slices[0] == NULL ? z->param : NULL);
    free(z->slices[1] == NULL ? z->grad : NULL);
    z->slices[0] = z->slices[1] = NULL;
    z->param = z->grad = NULL;
}

static void zero_free(dtr_zero *z) {
    drop_memory(z);
    free(z->buckets);
    pthread_mutex_destroy(&z->lock);
    z->magic = 0;
    free(z);
}

/* All ranks must go about steps alike. */
static dtr_status compare_options(dtr_ddp *ddp, const dtr_zero *z) {
    uint64_t mine = z != NULL ? z->o.flags : 0;
    uint64_t *all = calloc((size_t)ddp->size, sizeof *all);
    if (all == NULL) {
        dtr_status s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory to compare options");
        dtr__group_break(ddp->group, s);
        return s;
    }
    dtr_status s = dtr__ddp_gather(ddp, &mine, all, sizeof mine, "zero options", DTR__PART_ZERO);
    for (int k = 1; k < ddp->size && s == DTR_OK; k++) {
        if (all[k] != all[0]) {
            s = DTR_FAIL(NULL, DTR_ERR_MISMATCH,
                         "dtr_zero_create: option flags differs: 0x%llx on rank 0, 0x%llx on rank "
                         "%d; give all ranks the same options",
                         (unsigned long long)all[0], (unsigned long long)all[k], k);
        }
    }
    free(all);
    return s;
}

static void install(dtr_zero *z) {
    dtr_ddp *ddp = z->ddp;
    for (size_t b = 0; b < ddp->n_buckets; b++) { /* where the status of a step travelled */
        const dtr_ddp_bucket *bucket = &ddp->buckets[b];
        size_t used = bucket->plan->nbytes, size = dtr_dtype_size(bucket->plan->dtype),
               all = z->buckets[b].slice * (size_t)ddp->size * size;
        if (all > used) {
            dtr__ddp_zero(ddp, bucket->data + used, all - used);
        }
    }
    z->rebuild_due = ddp->reducer->rebuild_due;
    ddp->reducer->rebuild_due = false; /* the plan stays: slices lie in it */
    ddp->zero = z;
    ddp->strategy = ddp->size > 1 ? &dtr__zero_strategy : &dtr__zero_strategy_alone;
    z->used = ddp->it.number;
    z->magic = DTR__ZERO_MAGIC;
}

static dtr_status zero_create(dtr_ddp *ddp, const dtr_zero_options *options, dtr_zero **zero) {
    static const char entry[] = "dtr_zero_create";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    if (zero == NULL) {
        return dtr__ddp_failed(
            ddp, DTR_FAIL(NULL, DTR_ERR_ARG, "%s: zero is NULL, the result has no place", entry));
    }
    dtr_zero *z = calloc(1, sizeof *z);
    DTR_REQUIRE(z != NULL, NULL, DTR_ERR_NOMEM, "%s: no memory", entry);
    pthread_mutex_init(&z->lock, NULL);
    z->ddp = ddp;
    dtr_status s = dtr__zero_begin(z, entry);
    if (s < 0) {
        zero_free(z);
        return s;
    }
    s = dtr__zero_agree_last(ddp, fill(z, options), entry);
    if (s == DTR_OK) {
        s = compare_options(ddp, z);
    }
    if (s == DTR_OK) {
        install(z);
    }
    s = dtr__zero_end(z, s);
    if (s < 0) {
        DTR_CLEAN_UP(s, zero_free(z));
        return s;
    }
    *zero = z;
    return DTR_OK;
}

dtr_status dtr_zero_create(dtr_ddp *ddp, const dtr_zero_options *options, dtr_zero **zero) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_zero_create", zero_create(ddp, options, zero));
}

/* ---- unmaking ---- */

/* The module goes on without; its operations have ended. */
static void let_go(dtr_zero *z) {
    dtr_ddp *ddp = z->ddp;
    drop_memory(z);
    ddp->zero = NULL;
    dtr__ddp_choose_strategy(ddp);
    ddp->reducer->rebuild_due = z->rebuild_due;
    z->ddp = NULL;
}

void dtr__zero_detach(dtr_ddp *ddp) {
    if (ddp->zero != NULL) {
        (void)dtr__zero_take_all(ddp->zero, false);
        let_go(ddp->zero);
    }
}

static dtr_status zero_destroy(dtr_zero *z) {
    static const char entry[] = "dtr_zero_destroy";
    if (z == NULL) {
        return DTR_OK;
    }
    DTR_TRY(dtr__fork_check(entry));
    DTR_REQUIRE(z->magic == DTR__ZERO_MAGIC, NULL, DTR_ERR_ARG,
                "%s: the pointer %p is no sharded optimizer, or a destroyed one", entry, (void *)z);
    dtr_status s = DTR_OK;
    dtr_ddp *ddp = z->ddp;
    if (ddp != NULL && atomic_load(&ddp->state) != DTR__DDP_FAILED) {
        DTR_TRY(dtr__zero_begin(z, entry));
        s = dtr__zero_take_all(z, false);
        s = dtr__zero_end(z, s);
    } else if (ddp != NULL) {
        (void)dtr__zero_take_all(z, true);
    }
    dtr__error_copy *cause = s < 0 ? dtr__error_save() : NULL;
    if (ddp != NULL) {
        let_go(z);
    }
    zero_free(z);
    return dtr__error_put_back(cause, s);
}

dtr_status dtr_zero_destroy(dtr_zero *z) {
    return DTR_ZERO_TRACED(z, "dtr_zero_destroy", zero_destroy(z));
}

/* ---- questions ---- */

size_t dtr_zero_shard_count(const dtr_zero *z, dtr_dtype dtype) {
    return z != NULL && z->magic == DTR__ZERO_MAGIC && (unsigned)dtype < DTR__ZERO_TYPES
               ? z->count[dtype]
               : 0;
}
