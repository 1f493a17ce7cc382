/* Backends registered by the program: the table they give is called from the library's own backend
 * interface. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "custom.h"
#include "exchange.h"
#include "groups.h"
#include "latch.h"

struct dtr__custom {
    dtr__backend backend; /* first: what the engine sees */
    dtr_backend_ops ops;
    uint32_t mask;
    char name[DTR__BACKEND_NAME];
    dtr__custom *next;
};

/* Of one group. */
typedef struct state {
    const dtr_backend_ops *ops;
    void *own; /* the backend's */
} state;

/* ---- the operations ---- */

static dtr_backend_start slot_of(const dtr_backend_ops *o, const dtr__call *c) {
    switch (c->kind) {
    case DTR__K_BROADCAST:
        return o->broadcast;
    case DTR__K_REDUCE:
        return o->reduce;
    case DTR__K_ALLREDUCE:
        return o->allreduce;
    case DTR__K_ALLGATHER:
        return o->allgather;
    case DTR__K_ALLGATHERV:
        return o->allgatherv;
    case DTR__K_GATHER:
        return o->gather;
    case DTR__K_GATHERV:
        return o->gatherv;
    case DTR__K_SCATTER:
        return o->scatter;
    case DTR__K_SCATTERV:
        return o->scatterv;
    case DTR__K_REDUCE_SCATTER:
        return o->reduce_scatter;
    case DTR__K_REDUCE_SCATTERV:
        return o->reduce_scatterv;
    case DTR__K_ALLTOALL:
        return o->alltoall;
    case DTR__K_ALLTOALLV:
        return o->alltoallv;
    case DTR__K_BARRIER:
        return o->barrier;
    case DTR__K_SEND:
        return o->send;
    case DTR__K_RECV:
        return c->root == DTR_ANY_SOURCE ? o->recv_any : o->recv;
    case DTR__K_BATCH:
        return o->batch;
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
    const dtr__custom *c = (const dtr__custom *)g->backend[0];
    const state *st = g->backend_state[0];
    if (slot_of(&c->ops, call) == NULL) {
        *why = "it has no such operation"; /* why is given with every call */
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
                    dtr__work_title(w, title, sizeof(title)), w->group->backend[0]->name,
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
    return dtr__exchange_put(exchange, DTR_CPU, key, value, nbytes);
}

static dtr_status get(void *exchange, const char *key, void *value, size_t cap, size_t *nbytes,
                      double timeout_s) {
    return dtr__exchange_get(exchange, DTR_CPU, key, value, cap, nbytes, timeout_s);
}

/* From the parent's state, if it has one: its group stands still meanwhile. */
static dtr_status make_own(const dtr_group *g, const dtr__custom *c, const dtr_backend_args *args,
                           void **own) {
    const dtr_group *parent = g->parent;
    if (c->ops.split == NULL || parent == NULL || parent->backend[0] != &c->backend) {
        return c->ops.create(args, own);
    }
    const state *st = parent->backend_state[0];
    double limit_s = dtr__engine_patience(parent, g->timeout_s);
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    DTR_REQUIRE(dtr__latch_take_within(g->world, parent->progress, limit_s), &ctx, DTR_ERR_TIMEOUT,
                "group '%s': another thread has been inside backend %s of group '%s', from which "
                "it is split, for %g s",
                g->name, c->name, parent->name, limit_s);
    dtr_status s = c->ops.split(st->own, args, own);
    dtr__latch_drop(parent->progress);
    return s;
}

static dtr_status open_state(dtr_group *g, void **out) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    const dtr__custom *c = (const dtr__custom *)g->backend[0];
    dtr_group_options defaults = DTR_GROUP_OPTIONS_INIT;
    dtr_backend_args args = {
        .struct_size = sizeof(args),
        .group_name = g->name,
        .rank = g->rank,
        .size = g->size,
        .world_ranks = g->world_ranks,
        .timeout_s = g->timeout_s,
        .device = { DTR_CPU, 0 },
        .options = g->options != NULL ? g->options : &defaults,
        .exchange = g,
        .put = put,
        .get = get,
    };
    state *st = calloc(1, sizeof(*st));
    DTR_REQUIRE(st != NULL, &ctx, DTR_ERR_NOMEM, "no memory for backend %s", c->name);
    st->ops = &c->ops;
    dtr_status s = make_own(g, c, &args, &st->own);
    dtr__exchange_drop(g);
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

bool dtr__custom_is(const dtr__backend *backend) {
    return backend->open == open_state;
}

/* ---- registration ---- */

static dtr__custom *find(const dtr__groups *gs, const char *name) {
    dtr__custom *c = gs->customs;
    while (c != NULL && strcasecmp(c->name, name) != 0) {
        c = c->next;
    }
    return c;
}

const dtr__backend *dtr__custom_find(const dtr_world *world, const char *name, uint32_t *mask) {
    if (world == NULL || world->groups == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&world->groups->lock);
    const dtr__custom *c = find(world->groups, name);
    pthread_mutex_unlock(&world->groups->lock);
    if (c != NULL && mask != NULL) {
        *mask = c->mask;
    }
    return c != NULL ? &c->backend : NULL;
}

void dtr__custom_names(const dtr_world *world, char *text, size_t cap) {
    if (world == NULL || world->groups == NULL) {
        return;
    }
    pthread_mutex_lock(&world->groups->lock);
    for (const dtr__custom *c = world->groups->customs; c != NULL; c = c->next) {
        size_t at = strlen(text);
        snprintf(text + at, cap - at, "%s%s", at > 0 ? ", " : "", c->name);
    }
    pthread_mutex_unlock(&world->groups->lock);
}

void dtr__custom_free(dtr__custom *list) {
    while (list != NULL) {
        dtr__custom *next = list->next;
        free(list);
        list = next;
    }
}

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

dtr_status dtr_backend_register(dtr_world *world, const char *name, const dtr_backend_ops *ops,
                                uint32_t device_mask) {
    DTR_TRY(dtr__world_check(world));
    dtr__error_context ctx = { .world = world, .operation = "dtr_backend_register" };
    dtr_backend_ops own;
    DTR_REQUIRE(ops != NULL, &ctx, DTR_ERR_ARG, "dtr_backend_register: ops is NULL");
    DTR_TRY(dtr__options_copy(ops, &own, sizeof(own), "dtr_backend_ops"));
    DTR_TRY(check_registration(world, name, &own, device_mask));
    dtr__custom *c = calloc(1, sizeof(*c));
    DTR_REQUIRE(c != NULL, &ctx, DTR_ERR_NOMEM, "no memory for backend \"%s\"", name);
    for (size_t i = 0; name[i] != '\0'; i++) {
        c->name[i] = (char)tolower((unsigned char)name[i]);
    }
    c->ops = own;
    c->mask = device_mask;
    c->backend = (dtr__backend){ .name = c->name,
                                 .device = DTR_CPU,
                                 .score = score,
                                 .open = open_state,
                                 .close = close_state,
                                 .start = start,
                                 .progress = progress,
                                 .cancel = cancel };
    if (own.coalesce_begin != NULL) {
        c->backend.coalesce_begin = coalesce_begin;
        c->backend.coalesce_end = coalesce_end;
    }
    dtr__groups *gs = world->groups;
    pthread_mutex_lock(&gs->lock);
    bool exists = dtr__select_is_builtin(name) || find(gs, name) != NULL;
    if (!exists) {
        c->next = gs->customs;
        gs->customs = c;
    }
    pthread_mutex_unlock(&gs->lock);
    if (exists) {
        free(c);
        return DTR_FAIL(&ctx, DTR_ERR_STATE,
                        "dtr_backend_register: there is a backend \"%s\" already; names compare "
                        "without case",
                        name);
    }
    return DTR_OK;
}
