/* Creating and destroying a module. Everything that one rank can do or judge alone, memory
 * included, happens before the one exchange of verification, so that any failure is agreed. */
#include <stdlib.h>

#include "ddp_internal.h"
#include "declare.h"

/* ---- handles ---- */

dtr_status dtr__ddp_check(const dtr_ddp *ddp, const char *entry) {
    DTR_REQUIRE(ddp != NULL, NULL, DTR_ERR_ARG, "%s: ddp is NULL", entry);
    DTR_REQUIRE(ddp->magic == DTR__DDP_MAGIC, NULL, DTR_ERR_ARG,
                "%s: the pointer %p is no module, or a destroyed one", entry, (const void *)ddp);
    DTR_REQUIRE(ddp->world != NULL, NULL, DTR_ERR_STATE,
                "%s: the world of this module has been destroyed; only dtr_ddp_destroy is left",
                entry);
    if (atomic_load(&ddp->state) == DTR__DDP_FAILED) {
        return dtr__error_restore(ddp->failure, (dtr_status)ddp->failure_status);
    }
    return DTR_OK;
}

/* ---- making ---- */

static dtr_ddp *module_new(dtr_group *group) {
    dtr_ddp *ddp = calloc(1, sizeof *ddp);
    if (ddp != NULL) {
        ddp->world = group->world;
        ddp->rank = group->rank;
        ddp->size = group->size;
        ddp->sync = true;
        ddp->used_set_constant = true;
        ddp->mover = &dtr__ddp_host_mover;
        pthread_mutex_init(&ddp->lock, NULL);
        pthread_mutex_init(&ddp->gpu.lock, NULL);
        pthread_mutex_init(&ddp->verdict_lock, NULL);
        pthread_mutex_init(&ddp->launch_lock, NULL);
        pthread_mutex_init(&ddp->stats_lock, NULL);
        dtr__ddp_hook_init(ddp);
        dtr__ddp_step_init(ddp);
    }
    return ddp;
}

static void module_free(dtr_ddp *ddp) {
    dtr__error_copy_free(ddp->failure);
    dtr__error_copy_free(ddp->launch_error);
    free(ddp->backend);
    free(ddp->description);
    free(ddp->description_before);
    pthread_mutex_destroy(&ddp->lock);
    pthread_mutex_destroy(&ddp->gpu.lock);
    pthread_mutex_destroy(&ddp->verdict_lock);
    pthread_mutex_destroy(&ddp->launch_lock);
    pthread_mutex_destroy(&ddp->stats_lock);
    pthread_mutex_destroy(&ddp->hook.pump_lock);
    dtr__ddp_step_free(ddp);
    ddp->magic = 0;
    free(ddp);
}

/* What lives in the world's memory or holds the caller's tensors. No operation is left. */
static void drop_contents(dtr_ddp *ddp) {
    (void)dtr__ddp_device_synchronize(ddp);
    dtr__ddp_rows_close(ddp);
    dtr__ddp_cast_drop(ddp);
    dtr__ddp_layout_drop(ddp);
    dtr__ddp_delayed_drop(ddp);
    dtr_plan_free(ddp->plan);
    ddp->plan = NULL;
    dtr__ddp_params_free(ddp);
    free(ddp->set.limits);
    ddp->set.limits = NULL;
    free(ddp->saved);
    ddp->saved = NULL;
    free(ddp->order);
    ddp->order = NULL;
    free(ddp->sync_list);
    ddp->sync_list = NULL;
    dtr_tensor_release(ddp->map_memory);
    ddp->map_memory = NULL;
    dtr_tensor_release(ddp->gpu.staging);
    ddp->gpu.staging = NULL;
    dtr__ddp_device_close(ddp);
}

/* First plan: reverse registration order, so that the first iteration overlaps already (A0). */
static dtr_status first_layout(dtr_ddp *ddp) {
    size_t n = ddp->n_trainable;
    size_t *order = malloc((n + 1) * sizeof *order);
    DTR_REQUIRE(order != NULL, NULL, DTR_ERR_NOMEM, "no memory to plan %zu parameters", n);
    for (size_t k = 0; k < n; k++) {
        order[k] = ddp->trainable[n - 1 - k];
    }
    dtr_plan *plan = NULL;
    dtr_status s = dtr__ddp_plan_for(ddp, order, n, &plan);
    free(order);
    DTR_TRY(s);
    dtr__ddp_layout layout;
    DTR_TRY(dtr__ddp_layout_make(ddp, plan, &layout));
    dtr__ddp_layout_use(ddp, &layout);
    return DTR_OK;
}

static dtr_status make_map(dtr_ddp *ddp) {
    ddp->order = calloc(ddp->n_trainable + 1, sizeof ddp->order[0]);
    DTR_REQUIRE(ddp->order != NULL, NULL, DTR_ERR_NOMEM, "no memory for an order of %zu parameters",
                ddp->n_trainable);
    bool plain;
    DTR_TRY(dtr__ddp_host_mover.make(ddp->world, (dtr_device){ DTR_CPU, 0 }, DTR_I32,
                                     (int64_t)ddp->n_trainable, &ddp->map_memory, &plain));
    ddp->map = (int32_t *)ddp->map_memory->data;
    return DTR_OK;
}

/* Managed parameters once each, then buffers (K9). */
static dtr_status make_sync_list(dtr_ddp *ddp) {
    ddp->sync_list = malloc((ddp->n + ddp->n_sync_buffers + 1) * sizeof(dtr_tensor *));
    DTR_REQUIRE(ddp->sync_list != NULL, NULL, DTR_ERR_NOMEM, "no memory to list %zu parameters",
                ddp->n);
    for (size_t i = 0; i < ddp->n; i++) {
        if (ddp->params[i].value != NULL && ddp->params[i].same_as == i) {
            ddp->sync_list[ddp->n_sync++] = ddp->params[i].value;
        }
    }
    for (size_t k = 0; k < ddp->n_sync_buffers && !ddp->set.no_buffers; k++) {
        ddp->sync_list[ddp->n_sync++] = ddp->sync_buffers[k];
    }
    return DTR_OK;
}

static dtr_status copy_backend(dtr_ddp *ddp, const dtr_group *group) {
    ddp->backend = strdup(group->backend_chosen != NULL ? group->backend_chosen : "");
    DTR_REQUIRE(ddp->backend != NULL, NULL, DTR_ERR_NOMEM, "no memory to describe a module");
    return DTR_OK;
}

/* Local: no communication. */
static dtr_status prepare(dtr_ddp *ddp, const dtr_group *group, const dtr_param *params, size_t n,
                          const dtr_ddp_options *given, dtr_ddp **out) {
    dtr_ddp_options o;
    DTR_REQUIRE(out != NULL, NULL, DTR_ERR_ARG,
                "dtr_ddp_create: ddp is NULL, the result has no "
                "place");
    DTR_TRY(dtr__ddp_settings_read(given, &o, &ddp->set));
    DTR_TRY(dtr__ddp_params_read(ddp, params, n, &o));
    DTR_TRY(dtr__ddp_device_open(ddp));
    DTR_TRY(dtr__ddp_cast_prepare(ddp));
    DTR_TRY(first_layout(ddp));
    DTR_TRY(dtr__ddp_delayed_prepare(ddp));
    DTR_TRY(make_map(ddp));
    DTR_TRY(make_sync_list(ddp));
    DTR_TRY(copy_backend(ddp, group));
    ddp->check_writes = dtr__at_detail(ddp->world) && !dtr__ddp_on_device(ddp);
    ddp->rebuild_due = !ddp->set.find_unused && ddp->n_trainable > 0;
    return dtr__ddp_describe(ddp);
}

static dtr_status initial_sync(dtr_ddp *ddp) {
    if (ddp->size == 1) {
        return DTR_OK;
    }
    if (ddp->set.no_init_sync || ddp->n_sync == 0) {
        return dtr__ddp_on_device(ddp) ? dtr__ddp_device_connect(ddp) : DTR_OK;
    }
    return dtr__ddp_send_all(ddp, ddp->sync_list, ddp->n_sync, 0);
}

static void warn_of_options(dtr_ddp *ddp) {
    if (ddp->set.first_reduced) {
        dtr__ddp_warn(ddp, DTR__WARN_FIRST_LIMIT,
                      "first_bucket_bytes is above bucket_cap_bytes and was lowered to %zu",
                      ddp->set.limits[0]);
    }
    if (ddp->set.static_graph && ddp->set.unused_asked) {
        dtr__ddp_warn_static(ddp);
    }
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        const dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        if (p->grad_given && !p->same_layout) {
            dtr__ddp_warn(ddp, DTR__WARN_STRIDES,
                          "the gradient of '%s' has other strides than its value and is copied "
                          "element by element",
                          p->name);
        }
    }
}

/* The group side: duplicate, verify, synchronise. */
static dtr_status connect(dtr_ddp *ddp, dtr_group *group, dtr_status mine) {
    char name[64];
    snprintf(name, sizeof name, "%.55s.ddp", group->name);
    dtr__error_copy *cause = mine < 0 ? dtr__error_save() : NULL;
    dtr_status s = dtr__group_dup(group, name, &ddp->group);
    if (cause != NULL) {
        (void)dtr__error_restore(cause, mine);
        dtr__error_copy_free(cause);
    }
    DTR_TRY(s);
    ddp->id = (unsigned)(dtr__group_number(ddp->group) & 0xffff);
    dtr__ddp_label_buckets(ddp);
    DTR_TRY(dtr__ddp_verify(ddp, mine));
    dtr__ddp_group_adopt(ddp, group);
    DTR_TRY(dtr__ddp_delayed_connect(ddp, &ddp->delayed.group));
    DTR_TRY(initial_sync(ddp));
    return dtr__ddp_device_tell(ddp);
}

static void give_up(dtr_ddp *ddp) {
    dtr__error_copy *cause = dtr__error_save();
    (void)dtr_group_destroy(ddp->delayed.group);
    if (ddp->group != NULL) {
        (void)dtr_group_destroy(ddp->group);
    }
    drop_contents(ddp);
    module_free(ddp);
    (void)dtr__error_restore(cause, DTR_ERR_INTERNAL);
    dtr__error_copy_free(cause);
}

static void evict(dtr__tenant *tenant);

static dtr_status ddp_create(dtr_group *group, const dtr_param *params, size_t n,
                             const dtr_ddp_options *options, dtr_ddp **out) {
    dtr_status s = dtr__group_check(group, "dtr_ddp_create");
    if (s == DTR_NOT_MEMBER && out != NULL) {
        *out = NULL;
    }
    if (s != DTR_OK) {
        return s;
    }
    int64_t start = dtr__now_ns();
    dtr_ddp *ddp = module_new(group);
    DTR_REQUIRE(ddp != NULL, NULL, DTR_ERR_NOMEM, "no memory for a module");
    s = connect(ddp, group, prepare(ddp, group, params, n, options, out));
    if (s < 0) {
        give_up(ddp);
        return s;
    }
    s = dtr__ddp_cast_buffers(ddp);
    if (s < 0) {
        give_up(ddp);
        return s;
    }
    warn_of_options(ddp);
    dtr__ddp_rearm(ddp);
    ddp->magic = DTR__DDP_MAGIC;
    ddp->tenant.evict = evict;
    dtr__tenant_add(ddp->world, &ddp->tenant);
    dtr__ddp_span(ddp, "ddp_create", ddp->label, start, 0);
    *out = ddp;
    return DTR_OK;
}

dtr_status dtr_ddp_create(dtr_group *group, const dtr_param *params, size_t n,
                          const dtr_ddp_options *options, dtr_ddp **out) {
    DTR_HOLD_CALL_SITE;
    return DTR_TRACED(dtr__group_trace(group), "dtr_ddp_create", group->name,
                      ddp_create(group, params, n, options, out));
}

/* ---- unmaking ---- */

/* Buckets in flight are finished where the peers still take part; what they can no longer get ends
 * with an error on their side. */
static void end_backward(dtr_ddp *ddp) {
    static const char reason[] = "its module was destroyed in an open backward pass";
    for (int d = 0; d < DTR__HOOK_DEPTHS; d++) {
        if (ddp->hook.group[d] != NULL) {
            (void)dtr_group_abort(ddp->hook.group[d], reason);
        }
    }
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        if (ddp->buckets[b].work != NULL) {
            (void)dtr_work_synchronize(ddp->buckets[b].work, -1);
            (void)dtr_work_release(ddp->buckets[b].work);
            ddp->buckets[b].work = NULL;
        }
    }
    (void)dtr__ddp_delayed_wait(ddp);
    if (ddp->delayed.group != NULL) {
        (void)dtr_group_abort(ddp->delayed.group, reason);
    }
    dtr__backoff pause = { 0 };
    while (atomic_load(&ddp->hook.callbacks) > 0 || atomic_load(&ddp->step.callbacks) > 0) {
        dtr__backoff_pause(ddp->world, &pause);
    }
    (void)dtr_group_abort(ddp->group, reason);
}

static dtr_status let_go(dtr_ddp *ddp) {
    if (atomic_load(&ddp->state) == DTR__DDP_REDUCING) {
        end_backward(ddp);
    }
    dtr__zero_detach(ddp);
    dtr__ddp_join_drop(ddp);
    (void)dtr__ddp_buffers_wait(ddp);
    dtr__ddp_hook_groups_free(ddp);
    dtr__ddp_hook_free(ddp);
    (void)dtr__ddp_delayed_wait(ddp);
    (void)dtr_group_destroy(ddp->delayed.group);
    ddp->delayed.group = NULL;
    dtr_status s = dtr_group_destroy(ddp->group);
    dtr__error_copy *cause = s < 0 ? dtr__error_save() : NULL;
    ddp->group = NULL;
    drop_contents(ddp);
    ddp->world = NULL;
    if (cause != NULL) {
        s = dtr__error_restore(cause, s);
        dtr__error_copy_free(cause);
    }
    return s;
}

/* The world ends first: the handle stays, empty, until dtr_ddp_destroy. */
static void evict(dtr__tenant *tenant) {
    dtr_ddp *ddp = (dtr_ddp *)((char *)tenant - offsetof(dtr_ddp, tenant));
    DTR_WARN(ddp->world, "dtr_world_destroy: module ddp%u was not destroyed; it ends now", ddp->id);
    (void)let_go(ddp);
}

static dtr_status ddp_destroy(dtr_ddp *ddp) {
    if (ddp == NULL) {
        return DTR_OK;
    }
    DTR_REQUIRE(ddp->magic == DTR__DDP_MAGIC, NULL, DTR_ERR_ARG,
                "dtr_ddp_destroy: the pointer %p is no module, or a destroyed one", (void *)ddp);
    dtr_status s = DTR_OK;
    if (ddp->world != NULL) {
        dtr__tenant_remove(ddp->world, &ddp->tenant);
        s = let_go(ddp);
    }
    dtr__error_copy *cause = s < 0 ? dtr__error_save() : NULL;
    module_free(ddp);
    if (cause != NULL) {
        s = dtr__error_restore(cause, s);
        dtr__error_copy_free(cause);
    }
    return s;
}

dtr_status dtr_ddp_destroy(dtr_ddp *ddp) {
    return DTR_DDP_TRACED(ddp, "dtr_ddp_destroy", ddp_destroy(ddp));
}

/* ---- gradients ---- */

dtr_tensor *dtr_ddp_grad(dtr_ddp *ddp, size_t i) {
    static const char entry[] = "dtr_ddp_grad";
    dtr_tensor *grad = NULL;
    if (dtr__ddp_check(ddp, entry) < 0 || dtr__ddp_grad_index(ddp, entry, &i) < 0) {
        return NULL;
    }
    dtr_status s =
        ddp->params[i].sparse
            ? DTR_FAIL(NULL, DTR_ERR_ARG,
                       "%s: parameter '%s' (%zu) is sparse; use dtr_ddp_set_sparse_grad and "
                       "dtr_ddp_sparse_grad",
                       entry, ddp->params[i].name, i)
            : dtr__ddp_grad_get(ddp, i, &grad);
    if (s < 0) {
        (void)dtr__ddp_failed(ddp, s);
        return NULL;
    }
    return grad;
}

bool dtr_ddp_grad_defined(const dtr_ddp *ddp, size_t i) {
    return ddp != NULL && ddp->magic == DTR__DDP_MAGIC && ddp->world != NULL && i < ddp->n &&
           atomic_load(&ddp->params[ddp->params[i].same_as].defined);
}

dtr_status dtr_ddp_grad_clear(dtr_ddp *ddp, size_t i) {
    static const char entry[] = "dtr_ddp_grad_clear";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    int state = atomic_load(&ddp->state);
    if (state == DTR__DDP_REDUCING || state == DTR__DDP_BUSY) {
        return dtr__ddp_refuse(ddp, entry, "the gradients are the library's until it has ended");
    }
    if (i != SIZE_MAX) {
        DTR_TRY(dtr__ddp_grad_index(ddp, entry, &i));
        atomic_store(&ddp->params[i].defined, false);
        return DTR_OK;
    }
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        atomic_store(&ddp->params[ddp->trainable[k]].defined, false);
    }
    for (size_t k = 0; k < ddp->delayed.n; k++) {
        atomic_store(&ddp->params[ddp->delayed.list[k]].defined, false);
    }
    return DTR_OK;
}
