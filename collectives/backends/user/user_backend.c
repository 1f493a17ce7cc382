/* Backends registered by the program: the table they give is called from the library's own backend
 * interface. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agreement/key_value.h"
#include "core/call.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "kernels/user_ops.h"
#include "user_backend.h"

/* Of one group. */
typedef struct state {
    const dtr_backend_ops *ops;
    void *own; /* the backend's */
} state;

/* ---- the operations ---- */

static dtr_backend_start slot_of(const dtr_backend_ops *o, const dtr__call *c) {
    if (c->kind == DTR__K_RECV && c->root == DTR_ANY_SOURCE) {
        return o->recv_any;
    }
    switch (c->kind) {
#define DTR__OP(KIND, name, family, slot, ...) \
    case DTR__K_##KIND:                        \
        return o->slot;
#include "core/ops.def"
    default:
        return NULL;
    }
}

static dtr_backend_call describe(const dtr__call *c, uint64_t seq) {
    dtr_device cpu = { DTR_CPU, 0 };
    return (dtr_backend_call){
        .struct_size = sizeof(dtr_backend_call),
        .in = { (void *)(uintptr_t)c->in, c->in_count, c->dtype, cpu },
        .out = { c->out, c->out_count, c->dtype, cpu },
        .op = c->op,
        .root = c->root,
        .tag = c->tag,
        .in_counts = c->in_counts,
        .out_counts = c->out_counts,
        .batch = c->batch,
        .n_batch = c->n_batch,
        .premul = c->premul,
        .seq = seq,
        .label = c->label,
    };
}

/* A custom backend is only chosen by name, so it is the group's only candidate. */
static int score(const dtr_group *g, const dtr__call *call, const char **why) {
    if (call == NULL) {
        return 1;
    }
    const dtr__user_backend *c = (const dtr__user_backend *)g->backends.table[0];
    const state *st = g->backends.state[0];
    if (slot_of(&c->ops, call) == NULL) {
        *why = "it has no such operation"; /* why is given with every call */
        return 0;
    }
    if (dtr__is_reproducible(g, call)) {
        *why = DTR__WHY_REPRODUCIBLE ", and it adds in its own way";
        return 0;
    }
    if (dtr__kind_reduces(call->kind) && dtr__op_is_user(call->op)) {
        *why = "operators of the program are the library's to apply";
        return 0;
    }
    dtr_backend_call described = describe(call, 0);
    if (c->ops.can != NULL && c->ops.can(st->own, dtr__kind_name(call->kind), &described) <= 0) {
        *why = "it refuses the operation with these arguments";
        return 0;
    }
    return 1;
}

/* Where a backend gave no message of its own, the operation still gets one. */
static dtr_status failed(const dtr_work *w, dtr_status s, const char *where) {
    char title[256];
    dtr__error_context ctx = dtr__work_context(w);
    return DTR_FAIL(&ctx, s, "%s: backend %s failed with %s in %s",
                    dtr__work_title(w, title, sizeof(title)), w->group->backends.table[0]->name,
                    dtr_status_name(s), where);
}

static dtr_status start(dtr_group *g, void *state_, dtr_work *w, bool *done) {
    const state *st = state_;
    void *request = NULL;
    (void)g;
    dtr_backend_call call = describe(&w->call, w->seq);
    dtr__inside("the start function of a registered backend");
    dtr_status s = slot_of(st->ops, &w->call)(st->own, &call, &request);
    dtr__inside(NULL);
    if (s < 0) {
        return failed(w, s, "start");
    }
    *done = request == NULL;
    w->request = request;
    return DTR_OK;
}

static dtr_status progress(dtr_group *g, void *state_, dtr_work *w, bool *done) {
    const state *st = state_;
    int source = -1;
    (void)g;
    dtr_status s = st->ops->error != NULL ? st->ops->error(st->own) : DTR_OK;
    if (s >= 0 && st->ops->test != NULL) {
        dtr__inside("the test function of a registered backend");
        s = st->ops->test(st->own, w->request, done, &source);
        dtr__inside(NULL);
    } else if (s >= 0) {
        s = DTR_ERR_INTERNAL; /* a request, and nothing to ask after it */
    }
    if (s < 0) {
        w->request = NULL;
        return failed(w, s, "test");
    }
    if (*done) {
        w->request = NULL;
        atomic_store(&w->source, source);
    }
    return DTR_OK;
}

static void cancel(dtr_group *g, void *state_, dtr_work *w) {
    const state *st = state_;
    (void)g;
    if (w->request != NULL && st->ops->cancel != NULL) {
        dtr__inside("the cancel function of a registered backend");
        st->ops->cancel(st->own, w->request);
        dtr__inside(NULL);
    }
    w->request = NULL;
}

/* ---- coalescing scopes ---- */

static dtr_status coalesce_begin(dtr_group *g, void *state_, dtr_work *whole) {
    const state *st = state_;
    (void)g;
    dtr__inside("the coalesce_begin function of a registered backend");
    dtr_status s = st->ops->coalesce_begin(st->own);
    dtr__inside(NULL);
    return s < 0 ? failed(whole, s, "coalesce_begin") : DTR_OK;
}

static dtr_status coalesce_end(dtr_group *g, void *state_, dtr_work *whole) {
    const state *st = state_;
    void *request = NULL;
    (void)g;
    dtr__inside("the coalesce_end function of a registered backend");
    dtr_status s = st->ops->coalesce_end(st->own, &request);
    dtr__inside(NULL);
    if (s < 0) {
        return failed(whole, s, "coalesce_end");
    }
    whole->request = request;
    return DTR_OK;
}

/* ---- a group's state ---- */

static dtr_status put(void *exchange, const char *key, const void *value, size_t nbytes) {
    return dtr__key_value_put(exchange, DTR_CPU, key, value, nbytes);
}

static dtr_status get(void *exchange, const char *key, void *value, size_t cap, size_t *nbytes,
                      double timeout_s) {
    return dtr__key_value_get(exchange, DTR_CPU, key, value, cap, nbytes, timeout_s);
}

/* From the parent's state, if it has one: its group stands still meanwhile. */
static dtr_status make_own(const dtr_group *g, const dtr__user_backend *c,
                           const dtr_backend_args *args, void **own) {
    const dtr_group *parent = g->asked.parent;
    if (c->ops.split == NULL || parent == NULL || parent->backends.table[0] != &c->backend) {
        return c->ops.create(args, own);
    }
    const state *st = parent->backends.state[0];
    double limit_s = dtr__engine_patience(parent, g->timeout_s);
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    DTR_REQUIRE(dtr__progress_lock_acquire_within(g->world, parent->engine->progress, limit_s),
                &ctx, DTR_ERR_TIMEOUT,
                "group '%s': another thread has been inside backend %s of group '%s', from which "
                "it is split, for %g s",
                g->name, c->name, parent->name, limit_s);
    dtr_status s = c->ops.split(st->own, args, own);
    dtr__progress_lock_release(parent->engine->progress);
    return s;
}

static dtr_status open_state(dtr_group *g, void **out) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    const dtr__user_backend *c = (const dtr__user_backend *)g->backends.table[0];
    dtr_group_options defaults = DTR_GROUP_OPTIONS_INIT;
    dtr_backend_args args = {
        .struct_size = sizeof(args),
        .group_name = g->name,
        .rank = g->rank,
        .size = g->size,
        .world_ranks = g->world_ranks,
        .timeout_s = g->timeout_s,
        .device = { DTR_CPU, 0 },
        .options = g->asked.options != NULL ? g->asked.options : &defaults,
        .exchange = g,
        .put = put,
        .get = get,
    };
    state *st = calloc(1, sizeof(*st));
    DTR_REQUIRE(st != NULL, &ctx, DTR_ERR_NOMEM, "no memory for backend %s", c->name);
    st->ops = &c->ops;
    dtr_status s = make_own(g, c, &args, &st->own);
    dtr__key_value_drop(g);
    if (s < 0) {
        free(st);
        return DTR_FAIL(&ctx, s, "backend %s could not be set up for group \"%s\" on rank %d: %s",
                        c->name, g->name, g->rank, dtr_status_name(s));
    }
    *out = st;
    return DTR_OK;
}

static void close_state(dtr_group *g, void *state_) {
    state *st = state_;
    (void)g;
    if (st->ops->destroy != NULL) {
        st->ops->destroy(st->own);
    }
    free(st);
}

bool dtr__user_backend_is(const dtr__backend *backend) {
    return backend->open == open_state;
}

/* ---- registration ---- */

static bool good_name(const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)name[i]) && name[i] != '_' && name[i] != '-') {
            return false;
        }
    }
    return n > 0 && n < DTR__BACKEND_NAME && strcasecmp(name, "auto") != 0 &&
           strcasecmp(name, "undefined") != 0;
}

static dtr_status check_registration(const dtr_world *world, const char *name,
                                     const dtr_backend_ops *ops, uint32_t mask) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_backend_register" };
    DTR_REQUIRE(name != NULL && good_name(name), &ctx, DTR_ERR_ARG,
                "dtr_backend_register: \"%s\" is no name for a backend: 1 to %d letters, digits, "
                "'_' or '-', not \"auto\" or \"undefined\"",
                name != NULL ? name : "(null)", DTR__BACKEND_NAME - 1);
    DTR_REQUIRE(ops->create != NULL, &ctx, DTR_ERR_ARG,
                "dtr_backend_register: backend \"%s\" has no create function", name);
    DTR_REQUIRE((ops->coalesce_begin == NULL) == (ops->coalesce_end == NULL), &ctx, DTR_ERR_ARG,
                "dtr_backend_register: backend \"%s\" has coalesce_%s without coalesce_%s", name,
                ops->coalesce_begin != NULL ? "begin" : "end",
                ops->coalesce_begin != NULL ? "end" : "begin");
    DTR_REQUIRE(mask != 0, &ctx, DTR_ERR_ARG,
                "dtr_backend_register: the device mask of \"%s\" is empty; it needs "
                "DTR_BACKEND_CPU, DTR_BACKEND_CUDA or both",
                name);
    DTR_REQUIRE((mask & ~(uint32_t)(DTR_BACKEND_CPU | DTR_BACKEND_CUDA)) == 0, &ctx, DTR_ERR_ARG,
                "dtr_backend_register: the device mask 0x%x of \"%s\" has unknown bits",
                (unsigned)mask, name);
    return DTR_OK;
}

dtr_status dtr__user_backend_new(const dtr_world *world, const char *name,
                                 const dtr_backend_ops *ops, uint32_t mask,
                                 dtr__user_backend **result) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_backend_register" };
    dtr_backend_ops own;
    DTR_REQUIRE(ops != NULL, &ctx, DTR_ERR_ARG, "dtr_backend_register: ops is NULL");
    DTR_TRY(dtr__options_copy(ops, &own, sizeof(own), "dtr_backend_ops"));
    DTR_TRY(check_registration(world, name, &own, mask));
    dtr__user_backend *b = calloc(1, sizeof(*b));
    DTR_REQUIRE(b != NULL, &ctx, DTR_ERR_NOMEM, "no memory for backend \"%s\"", name);
    for (size_t i = 0; name[i] != '\0'; i++) {
        b->name[i] = (char)tolower((unsigned char)name[i]);
    }
    b->ops = own;
    b->mask = mask;
    b->backend = (dtr__backend){ .name = b->name,
                                 .kinds = ~UINT64_C(0), /* its slots say more */
                                 .device = DTR_CPU,
                                 .score = score,
                                 .open = open_state,
                                 .close = close_state,
                                 .start = start,
                                 .progress = progress,
                                 .cancel = cancel };
    if (own.coalesce_begin != NULL) {
        b->backend.coalesce_begin = coalesce_begin;
        b->backend.coalesce_end = coalesce_end;
    }
    *result = b;
    return DTR_OK;
}
