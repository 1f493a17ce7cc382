/* Creating and destroying a module. Everything that one rank can do or judge alone, memory
 * included, happens before the one exchange of verification, so that any failure is agreed. */
#include <stdlib.h>

#include "core/call_site.h"
#include "core/signature.h"
#include "core/team.h"
#include "module.h"

/* ---- making ---- */

static dtr_ddp *module_new(dtr_group *group) {
    dtr_ddp *ddp = calloc(1, sizeof *ddp);
    dtr__ddp_reducer *r = calloc(1, sizeof *r);
    if (ddp == NULL || r == NULL) {
        free(ddp);
        free(r);
        return NULL;
    }
    ddp->world = group->world;
    ddp->rank = group->rank;
    ddp->size = group->size;
    ddp->mover = &dtr__ddp_host_mover;
    ddp->reducer = r;
    r->sync = true;
    r->used_set_constant = true;
    pthread_mutex_init(&ddp->lock, NULL);
    pthread_mutex_init(&ddp->errors.lock, NULL);
    pthread_mutex_init(&ddp->stats.lock, NULL);
    pthread_mutex_init(&r->launch_lock, NULL);
    pthread_mutex_init(&r->step.lock, NULL);
    return ddp;
}

static void module_free(dtr_ddp *ddp) {
    dtr__ddp_reducer *r = ddp->reducer;
    dtr__error_copy_free(ddp->errors.failure);
    dtr__error_copy_free(r->launch_error);
    free(ddp->stats.backend);
    free(ddp->stats.description);
    free(ddp->stats.description_before);
    pthread_mutex_destroy(&ddp->lock);
    pthread_mutex_destroy(&ddp->errors.lock);
    pthread_mutex_destroy(&ddp->stats.lock);
    pthread_mutex_destroy(&r->launch_lock);
    pthread_mutex_destroy(&r->step.lock);
    dtr__ddp_hook_free(ddp);
    dtr__ddp_device_free(ddp);
    free(r);
    ddp->magic = 0;
    free(ddp);
}

/* What lives in the world's memory or holds the caller's tensors. No operation is left. */
static void drop_contents(dtr_ddp *ddp) {
    dtr__ddp_reducer *r = ddp->reducer;
    dtr__ddp_device_finish(ddp);
    dtr__ddp_rows_close(ddp);
    dtr__ddp_cast_drop(ddp);
    dtr__ddp_layout_drop(ddp);
    dtr__ddp_delayed_drop(ddp);
    (void)dtr_plan_destroy(ddp->plan);
    ddp->plan = NULL;
    dtr__ddp_params_free(ddp);
    free(ddp->set.limits);
    free(r->saved);
    free(r->order);
    free(r->sync_list);
    dtr_tensor_release(r->map_memory);
    dtr__ddp_device_close(ddp);
}

/* First plan: reverse registration order, so that the first iteration overlaps already. */
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
    ddp->reducer->order = calloc(ddp->n_trainable + 1, sizeof ddp->reducer->order[0]);
    DTR_REQUIRE(ddp->reducer->order != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for an order of %zu parameters", ddp->n_trainable);
    bool plain;
    DTR_TRY(dtr__ddp_host_mover.make(ddp->world, (dtr_device){ DTR_CPU, 0 }, DTR_I32,
                                     (int64_t)ddp->n_trainable, &ddp->reducer->map_memory, &plain));
    ddp->reducer->map = (int32_t *)ddp->reducer->map_memory->data;
    return DTR_OK;
}

/* Managed parameters once each, then buffers. */
static dtr_status make_sync_list(dtr_ddp *ddp) {
    ddp->reducer->sync_list =
        malloc((ddp->n + ddp->reducer->buffers.n_sync + 1) * sizeof(dtr_tensor *));
    DTR_REQUIRE(ddp->reducer->sync_list != NULL, NULL, DTR_ERR_NOMEM,
                "no memory to list %zu parameters", ddp->n);
    for (size_t i = 0; i < ddp->n; i++) {
        if (ddp->params[i].value != NULL && ddp->params[i].same_as == i) {
            ddp->reducer->sync_list[ddp->reducer->n_sync++] = ddp->params[i].value;
        }
    }
    for (size_t k = 0; k < ddp->reducer->buffers.n_sync && !ddp->set.no_buffers; k++) {
        ddp->reducer->sync_list[ddp->reducer->n_sync++] = ddp->reducer->buffers.sync[k];
    }
    return DTR_OK;
}

/* Local: no communication. */
static dtr_status prepare(dtr_ddp *ddp, const dtr_group *group, const dtr_param *params, size_t n,
                          const dtr_ddp_options *given, dtr_ddp **out) {
    dtr_ddp_options o;
    DTR_REQUIRE(out != NULL, NULL, DTR_ERR_ARG,
                "dtr_ddp_create: ddp is NULL, the result has no place");
    DTR_TRY(dtr__ddp_settings_read(given, &o, &ddp->set));
    DTR_TRY(dtr__ddp_params_read(ddp, params, n, &o));
    DTR_TRY(dtr__ddp_device_open(ddp));
    DTR_TRY(dtr__ddp_params_check_served(ddp));
    DTR_TRY(dtr__ddp_cast_prepare(ddp));
    DTR_TRY(first_layout(ddp));
    DTR_TRY(dtr__ddp_delayed_prepare(ddp));
    DTR_TRY(make_map(ddp));
    DTR_TRY(make_sync_list(ddp));
    dtr__ddp_choose_strategy(ddp);
    ddp->stats.backend = dtr__ddp_backend_of(group);
    DTR_REQUIRE(ddp->stats.backend != NULL, NULL, DTR_ERR_NOMEM, "no memory to describe a module");
    ddp->reducer->check_writes = dtr__at_detail(ddp->world) && !dtr__ddp_on_device(ddp);
    ddp->reducer->rebuild_due = !ddp->set.find_unused && ddp->n_trainable > 0;
    return dtr__ddp_describe(ddp);
}

static dtr_status initial_sync(dtr_ddp *ddp) {
    if (ddp->size == 1) {
        return DTR_OK;
    }
    if (ddp->set.no_init_sync || ddp->reducer->n_sync == 0) {
        return dtr__ddp_on_device(ddp) ? dtr__ddp_device_connect(ddp) : DTR_OK;
    }
    return dtr__ddp_send_all(ddp, ddp->reducer->sync_list, ddp->reducer->n_sync, 0);
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
    dtr_status s = DTR_OK;
    DTR_CLEAN_UP(mine, s = dtr__ddp_group_dup(group, &ddp->group));
    DTR_TRY(s);
    ddp->id = (unsigned)(dtr__group_number(ddp->group) & 0xffff);
    dtr__ddp_label_buckets(ddp);
    DTR_TRY(dtr__ddp_verify(ddp, mine));
    dtr__ddp_group_adopt(ddp, group);
    DTR_TRY(dtr__ddp_delayed_connect(ddp, &ddp->reducer->delayed.group));
    DTR_TRY(initial_sync(ddp));
    return dtr__ddp_device_register(ddp);
}

static void give_up(dtr_ddp *ddp) {
    dtr__error_copy *cause = dtr__error_save();
    (void)dtr_group_destroy(ddp->reducer->delayed.group);
    if (ddp->group != NULL) {
        (void)dtr_group_destroy(ddp->group);
    }
    drop_contents(ddp);
    module_free(ddp);
    (void)dtr__error_put_back(cause, DTR_ERR_INTERNAL);
}

static void world_ends(dtr__destroy_listener *self);

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
    s = s == DTR_OK ? dtr__ddp_cast_buffers(ddp) : s;
    if (s < 0) {
        give_up(ddp);
        return s;
    }
    warn_of_options(ddp);
    dtr__ddp_rearm(ddp);
    ddp->magic = DTR__DDP_MAGIC;
    ddp->listener.on_destroy = world_ends;
    dtr__on_destroy_add(ddp->world, &ddp->listener);
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
    dtr__ddp_hook_abort(ddp, reason);
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        if (ddp->buckets[b].work != NULL) {
            (void)dtr_work_synchronize(ddp->buckets[b].work, -1);
            (void)dtr_work_release(ddp->buckets[b].work);
            ddp->buckets[b].work = NULL;
        }
    }
    (void)dtr__ddp_delayed_wait(ddp);
    if (ddp->reducer->delayed.group != NULL) {
        (void)dtr_group_abort(ddp->reducer->delayed.group, reason);
    }
    dtr__backoff pause = { 0 };
    while (dtr__ddp_hook_is_called(ddp) || atomic_load(&ddp->reducer->step.callbacks) > 0) {
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
    (void)dtr__ddp_buffers_finish(ddp);
    dtr__ddp_hook_groups_free(ddp);
    dtr__ddp_hook_drop(ddp);
    (void)dtr__ddp_delayed_wait(ddp);
    (void)dtr_group_destroy(ddp->reducer->delayed.group);
    ddp->reducer->delayed.group = NULL;
    dtr_status s = dtr_group_destroy(ddp->group);
    dtr__error_copy *cause = s < 0 ? dtr__error_save() : NULL;
    ddp->group = NULL;
    drop_contents(ddp);
    ddp->world = NULL;
    return dtr__error_put_back(cause, s);
}

/* The world ends first: the handle stays, empty, until dtr_ddp_destroy. */
static void world_ends(dtr__destroy_listener *self) {
    dtr_ddp *ddp = (dtr_ddp *)((char *)self - offsetof(dtr_ddp, listener));
    DTR_WARN(ddp->world, "dtr_world_destroy: module ddp%u was not destroyed; it ends now", ddp->id);
    (void)let_go(ddp);
}

static dtr_status ddp_destroy(dtr_ddp *ddp) {
    if (ddp == NULL) {
        return DTR_OK;
    }
    DTR_TRY(dtr__fork_check("dtr_ddp_destroy"));
    DTR_REQUIRE(ddp->magic == DTR__DDP_MAGIC, NULL, DTR_ERR_ARG,
                "dtr_ddp_destroy: the pointer %p is no module, or a destroyed one", (void *)ddp);
    dtr_status s = DTR_OK;
    if (ddp->world != NULL) {
        dtr__on_destroy_remove(ddp->world, &ddp->listener);
        s = let_go(ddp);
    }
    DTR_CLEAN_UP(s, module_free(ddp));
    return s;
}

dtr_status dtr_ddp_destroy(dtr_ddp *ddp) {
    return DTR_DDP_TRACED(ddp, "dtr_ddp_destroy", ddp_destroy(ddp));
}
