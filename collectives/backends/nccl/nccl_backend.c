/* The backend as the engine sees it: its table, what it can serve, a group's part of it, and the
 * way of an operation onto the device and off it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "core/team.h"
#include "engine/engine.h"
#include "kernels/operators.h"
#include "kernels/user_ops.h"
#include "nccl_internal.h"

#define ASK_NS INT64_C(5000000) /* between two polls of a communicator's state */

struct dtr__nccl *dtr__nccl_of(const dtr_group *g) {
    for (int i = g->backends.n; i < g->backends.served; i++) {
        if (g->backends.table[i] == &dtr__backend_nccl) {
            return g->backends.state[i];
        }
    }
    return NULL;
}

/* ---- what it can serve ---- */

static bool reduces(const dtr__nccl_ops *ops, int size, bool copies, const dtr__call *c,
                    const char **why) {
    if (c->op == DTR_PREMUL_SUM) {
        *why = size == 1 ? "a group of one rank multiplies there" : "";
        return !copies;
    }
    if (copies && (dtr__is_logical(c->op) || dtr__is_pair(c->dtype))) {
        *why = "a group of one rank makes truth 1, and clears what lies between parts of pairs";
        return false;
    }
    *why = "another divisor than the group size was asked for";
    if (copies) {
        return c->op != DTR_AVG || c->divisor == 1;
    }
    if (c->op == DTR_AVG && c->divisor != size && !dtr__nccl_divides(c)) {
        return false;
    }
    *why = dtr__op_is_user(c->op)   ? "NCCL has no operators of the program"
           : dtr__is_bitwise(c->op) ? "NCCL has no bit operations"
           : dtr__is_logical(c->op) ? "NCCL has no logical operations"
           : dtr__is_pair(c->dtype) ? "NCCL does not reduce pairs"
                                    : "NCCL does not reduce i16, u16 and fp8";
    return ops->op(c->op, c->dtype) >= 0;
}

/* A tag is never ignored, and NCCL has none. */
static bool has_tags(const dtr__call *c) {
    bool tags = c->kind != DTR__K_BATCH && c->tag != 0;
    for (size_t i = 0; i < c->n_batch; i++) {
        tags = tags || c->batch[i].tag != 0 || (!c->batch[i].is_send && c->batch[i].peer < 0);
    }
    return tags;
}

bool dtr__nccl_can(const dtr__nccl_ops *ops, int size, bool copies, const dtr__call *c,
                   const char **why) {
    if (ops == NULL && !copies) {
        return false;
    }
    if ((dtr__backend_nccl.kinds >> c->kind & 1) == 0) {
        *why = "NCCL's backend has no such operation";
        return false;
    }
    if (dtr__kind_is_p2p(c->kind)) {
        *why = copies ? "NCCL has no messages to oneself" : "NCCL has no tags";
        return !copies && !has_tags(c);
    }
    return !dtr__kind_reduces(c->kind) || reduces(ops, size, copies, c, why);
}

static int nccl_score(const dtr_group *g, const dtr__call *c, const char **why) {
    const struct dtr__nccl *n = dtr__nccl_of(g);
    if (atomic_load_explicit(&n->refused, memory_order_acquire) != 0) {
        *why = n->reason;
        return 0;
    }
    if (c != NULL && dtr__is_reproducible(g, c)) {
        *why = DTR__WHY_REPRODUCIBLE;
        return 0;
    }
    return c == NULL || dtr__nccl_can(n->ops, g->size, n->copies, c, why) ? 2 : 0;
}

static dtr_status nccl_check(const dtr_group *g, const dtr__call *c) {
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    bool lone = c->kind == DTR__K_SEND || c->kind == DTR__K_RECV;
    DTR_REQUIRE(!lone || c->root != DTR_ANY_SOURCE, &ctx, DTR_ERR_UNSUPPORTED,
                "recv on group '%s': NCCL cannot receive from any source; give a tag other than 0, "
                "or use cuda:stage",
                g->name);
    DTR_REQUIRE(!lone || c->root != g->rank, &ctx, DTR_ERR_RANK,
                "%s on group '%s': the peer %d is this rank itself, which NCCL serves in a batch "
                "only; use dtr_batch_p2p, or cuda:stage",
                dtr__kind_name(c->kind), g->name, c->root);
    return DTR_OK;
}

/* ---- a group ---- */

static void say_unknown(const dtr_group *g, const char *setting, bool asked, int since) {
    char built[16], found[16];
    const dtr__nccl_library *l = dtr__nccl_get();
    if (asked && g->rank == 0 && l->ops != NULL && (l->version < since || l->ops->built < since)) {
        DTR_INFO(g->world,
                 "group '%s': %s has no effect: it needs NCCL %d.%d when the library is built and "
                 "when it runs; built with %s, found %s",
                 g->name, setting, since / 10000, since / 100 % 100,
                 dtr__nccl_version_text(l->ops->built, built),
                 dtr__nccl_version_text(l->version, found));
    }
}

/* What the group's options ask of NCCL. */
static void configure(const dtr_group *g, struct dtr__nccl *n) {
    const dtr_group_options *o = g->asked.options;
    const bool normal = dtr__opt_number(&g->world->options, DTR__OPT_STREAM_PRIORITY) != 0;
    n->high_priority =
        o != NULL && o->nccl_stream_priority != 0 ? o->nccl_stream_priority > 0 : !normal;
    if (o == NULL) {
        return;
    }
    dtr__nccl_config *c = &n->config;
    c->min_ctas = o->nccl_min_ctas;
    c->max_ctas = o->nccl_max_ctas;
    c->cga_cluster = o->nccl_cga_cluster;
    c->cta_policy = o->nccl_cta_policy;
    c->nvls_ctas = o->nccl_nvls_ctas;
    c->traffic_class = o->nccl_traffic_class;
    c->split_share = o->nccl_split_share;
    snprintf(c->network, sizeof c->network, "%s", o->nccl_network != NULL ? o->nccl_network : "");
    n->stream_priority = o->nccl_stream_priority;
    say_unknown(g, "nccl_traffic_class", c->traffic_class != 0, DTR__NCCL_TRAFFIC);
    say_unknown(g, "nccl_cta_policy", c->cta_policy != 0, DTR__NCCL_POLICY);
    say_unknown(g, "nccl_nvls_ctas", c->nvls_ctas != 0, DTR__NCCL_POLICY);
}

static dtr_status nccl_open(dtr_group *g, void **state) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    struct dtr__nccl *n = calloc(1, sizeof *n);
    DTR_REQUIRE(n != NULL, &ctx, DTR_ERR_NOMEM, "no memory for the devices of group '%s'", g->name);
    n->group = g;
    n->ops = dtr__nccl_get()->ops;
    n->cuda = dtr__cuda_get()->ops;
    n->automatic = g->backends.device_named == NULL;
    n->copies = g->size == 1 && n->automatic;
    snprintf(n->config.name, sizeof n->config.name, "%s", g->name);
    /* Without a thread that sees limits pass nobody could end a call that blocks. */
    n->config.blocking = dtr__opt_number(&g->world->options, DTR__OPT_NCCL_BLOCKING) != 0 &&
                         dtr__progress_has_thread(g->world);
    configure(g, n);
    pthread_mutex_init(&n->turn, NULL);
    pthread_mutex_init(&n->lock, NULL);
    *state = n;
    return DTR_OK;
}

void dtr__nccl_limits(const dtr_group *g, dtr_group_options *o) {
    const struct dtr__nccl *n = dtr__nccl_of(g);
    if (n != NULL) {
        o->nccl_min_ctas = n->config.min_ctas;
        o->nccl_max_ctas = n->config.max_ctas;
        o->nccl_cga_cluster = n->config.cga_cluster;
        o->nccl_cta_policy = n->config.cta_policy;
        o->nccl_nvls_ctas = n->config.nvls_ctas;
        o->nccl_traffic_class = n->config.traffic_class;
        o->nccl_network = n->config.network[0] != '\0' ? n->config.network : NULL;
        o->nccl_stream_priority = n->stream_priority;
        o->nccl_split_share = n->config.split_share;
    }
}

/* ---- watching ---- */

/* An error that NCCL found by itself; only where nobody is in a native call. */
static dtr_status ask(dtr__nccl_comm *c, const dtr_work *w) {
    int64_t now = dtr__stamp_ns();
    if (c->local || now - c->asked_ns < ASK_NS || pthread_mutex_trylock(&c->lock) != 0) {
        return DTR_OK;
    }
    int state = 0, code = 0;
    if (c->handle != NULL && atomic_load(&c->aborted) == 0) {
        code = DTR_INSIDE_AS("ncclCommGetAsyncError", c->ops->state(c->handle, &state));
    }
    pthread_mutex_unlock(&c->lock);
    c->asked_ns = now;
    code = code != 0 ? code : state;
    return code == 0 || code == c->ops->in_progress ? DTR_OK
                                                    : dtr__nccl_failed(c, w, "on its own", code);
}

/* The time on the device, as the time before now; what the stream held before does not count. */
static void note_start(const dtr_group *g, const dtr__nccl_op *op) {
    float ms = 0;
    if (op->start != NULL &&
        op->comm->cuda->event_elapsed(op->start->event, op->end->event, &ms) == 0) {
        dtr__rec_began(g->world, op->record, dtr__stamp_ns() - (int64_t)((double)ms * 1e6));
    }
}

static dtr_status nccl_progress(dtr_group *g, void *state, dtr_work *w, bool *done) {
    dtr__nccl_op *op = (dtr__nccl_op *)w->composite;
    dtr__nccl_comm *c = op->comm;
    (void)state;
    if (atomic_load_explicit(&op->launched, memory_order_acquire) == 0 ||
        op->number != c->seen + 1 || /* they end in the order of their launch */
        !dtr__event_due(g->world, &c->event_asked_ns)) {
        return DTR_OK;
    }
    int code = DTR_INSIDE_AS("cudaEventQuery", c->cuda->event_query(c->device, op->end->event));
    if (code == 0) {
        c->seen = op->number;
        c->event_asked_ns = 0; /* the next one may have ended too */
        note_start(g, op);
        if (op->nan_checks != NULL) {
            dtr__nccl_nan_checks_report(op->nan_checks);
        }
        *done = true;
        return DTR_OK;
    }
    DTR_CUDA_TRY(code == c->cuda->not_ready ? 0 : code, DTR_ERR_CUDA);
    return ask(c, w);
}

static const char *nccl_waits_for(dtr_group *g, void *state, dtr_work *w, char *text, size_t cap) {
    const dtr__nccl_op *op = (const dtr__nccl_op *)w->composite;
    dtr__nccl_comm *c = op->comm;
    const char *inside = atomic_load_explicit(&c->inside, memory_order_acquire);
    (void)state;
    if (inside != NULL) {
        int64_t ns = dtr__now_ns() - atomic_load_explicit(&c->inside_ns, memory_order_relaxed);
        snprintf(text, cap, "a thread of rank %d is inside %s on cuda:%d since %.1f s", g->rank,
                 inside, c->device, (double)ns * 1e-9);
        return text;
    }
    snprintf(text, cap,
             atomic_load_explicit(&op->launched, memory_order_acquire) != 0
                 ? "its event on cuda:%d has not come: a member has not launched it, or what its "
                   "stream held before has not ended"
                 : "it has not been launched on cuda:%d",
             c->device);
    return text;
}

/* ---- onto the device ---- */

static void op_free(dtr__composite *self) {
    dtr__nccl_op *op = (dtr__nccl_op *)self;
    dtr__nccl_event *events[] = { op->dependency, op->start, op->end };
    for (int i = 0; i < 3; i++) {
        if (events[i] != NULL) {
            (op->captured ? dtr__nccl_event_keep : dtr__nccl_event_give)(op->comm, events[i]);
        }
    }
    if (op->nan_checks != NULL) {
        dtr__nccl_nan_checks_give(op->comm, op->nan_checks);
    }
    dtr__nccl_comm_unref(op->comm);
    free(op);
}

static dtr_status make_op(dtr__nccl_comm *c, dtr_work *w, dtr_work *whole, dtr_work *const *calls,
                          size_t n, dtr__nccl_op **made) {
    dtr__nccl_op *op = calloc(1, sizeof *op + n * sizeof op->ready[0]);
    DTR_REQUIRE(op != NULL, NULL, DTR_ERR_NOMEM, "out of memory for an operation on cuda:%d",
                c->device);
    op->composite.free = op_free; /* what it has is given back with its handle */
    op->comm = c;
    op->whole = whole;
    op->calls = calls;
    op->n = n;
    op->host_only = w->finish != NULL;
    op->captured = dtr__nccl_is_captured(w);
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    dtr_status s = dtr__nccl_event_take(c, &op->dependency);
    s = s == DTR_OK ? dtr__nccl_event_take(c, &op->end) : s;
    if (s == DTR_OK && c->group->world->recording.timing) {
        s = dtr__nccl_event_take(c, &op->start);
    }
    s = s == DTR_OK ? dtr__nccl_nan_checks_take(c->group, c, calls, n, &op->nan_checks) : s;
    if (s < 0) {
        op_free(&op->composite);
        return s;
    }
    *made = op;
    return DTR_OK;
}

/* Another thread of this rank may be inside NCCL and not come back. */
dtr_status dtr__nccl_take_turn(struct dtr__nccl *n) {
    dtr_group *g = n->group;
    dtr__backoff backoff = { 0 };
    while (pthread_mutex_trylock(&n->turn) != 0) {
        if (atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
            return dtr__group_broken(g);
        }
        dtr__backoff_pause(g->world, &backoff);
    }
    return DTR_OK;
}

/* Ranks of the communicator that serves a call; -1: all. */
static void ranks_of(const dtr_group *g, const dtr__call *c, int *low, int *high) {
    bool lone = c->kind == DTR__K_SEND || c->kind == DTR__K_RECV;
    *low = lone ? (c->root < g->rank ? c->root : g->rank) : -1;
    *high = lone ? (c->root < g->rank ? g->rank : c->root) : -1;
}

/* The other ranks are on their way into the operation: what a device fails with is theirs too. */
static dtr_status or_break(dtr_group *g, dtr_status s) {
    if (s != DTR_ERR_CUDA) {
        return s;
    }
    dtr__group_break(g, s);
    return dtr__group_broken(g);
}

static dtr_status nccl_issue_begin(dtr_group *g, void *state) {
    (void)g;
    return dtr__nccl_take_turn(state);
}

static void nccl_issue_end(dtr_group *g, void *state) {
    struct dtr__nccl *n = state;
    (void)g;
    pthread_mutex_unlock(&n->turn);
}

static dtr_status nccl_connect(dtr_group *g, void *state, const dtr__call *c, bool *served) {
    int low, high;
    dtr__nccl_comm *comm = NULL;
    ranks_of(g, c, &low, &high);
    DTR_TRY(or_break(g, dtr__nccl_comm_of(state, c->device.index, low, high, &comm)));
    if (!comm->ready) {
        dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
        DTR_REQUIRE(!dtr__in_callback(g->world), &ctx, DTR_ERR_STATE,
                    "%s on group '%s': the first operation on CUDA buffers waits for the other "
                    "ranks, which a completion callback must not; run one before",
                    dtr__kind_name(c->kind), g->name);
        DTR_TRY(dtr__nccl_connect_or_break(comm));
    }
    *served = comm->ready;
    return DTR_OK;
}

static dtr_status nccl_prepare(dtr_group *g, void *state, dtr_work *w, dtr_work *whole,
                               dtr_work *const *calls, size_t n) {
    int low, high;
    dtr__nccl_op *op = NULL;
    bool captured = dtr__nccl_is_captured(w);
    ranks_of(g, &w->call, &low, &high);
    dtr__nccl_comm *comm = dtr__nccl_comm_find(state, w->call.device.index, low, high);
    DTR_TRY(captured ? dtr__nccl_capture_check(w, comm) : dtr__nccl_capture_over(&w->call, comm));
    DTR_TRY(captured ? dtr__nccl_graph_begin(comm, w->call.stream) : DTR_OK);
    dtr_status s = make_op(comm, w, whole, calls, n, &op);
    if (s < 0) {
        return captured ? s : or_break(g, s);
    }
    w->composite = &op->composite;
    for (size_t i = 0; i < n && !captured; i++) {
        op->paired |= dtr__nccl_number(comm, calls[i]);
    }
    return DTR_OK;
}

/* Behind what the caller's stream holds now, with the end event behind it. */
static dtr_status nccl_launch(dtr_group *g, void *state, dtr_work *w) {
    dtr__nccl_op *op = (dtr__nccl_op *)w->composite;
    dtr__nccl_comm *c = op->comm;
    const dtr__device_ops *cuda = c->cuda;
    (void)g;
    c->captured = c->captured || op->captured;
    if (!op->captured) {
        DTR_TRY(dtr__nccl_compare(c, op->whole));
        op->number = ++c->launched;
    }
    if (op->paired) { /* the records are there */
        atomic_fetch_add_explicit(&((struct dtr__nccl *)state)->paired, 1, memory_order_release);
    }
    dtr__nccl_blocks_poll(c);
    DTR_CUDA_TRY(cuda->event_record(c->device, op->dependency->event, w->call.stream),
                 DTR_ERR_CUDA);
    DTR_CUDA_TRY(cuda->stream_wait(c->device, c->stream, op->dependency->event), DTR_ERR_CUDA);
    if (op->nan_checks != NULL) {
        DTR_TRY(dtr__nccl_nan_checks_launch(c, op->nan_checks));
    }
    op->record = op->whole->report.record;
    if (op->start != NULL) {
        DTR_CUDA_TRY(cuda->event_record(c->device, op->start->event, c->stream), DTR_ERR_CUDA);
    }
    DTR_TRY(dtr__nccl_run(op));
    DTR_CUDA_TRY(cuda->event_record(c->device, op->end->event, c->stream), DTR_ERR_CUDA);
    atomic_store_explicit(&op->launched, 1, memory_order_release);
    return DTR_OK;
}

static bool nccl_stream_wait(dtr_work *w, void *stream, dtr_status *s) {
    const dtr__nccl_op *op = (const dtr__nccl_op *)w->composite;
    if (op->host_only || atomic_load_explicit(&op->launched, memory_order_acquire) == 0) {
        return false;
    }
    int code = op->comm->cuda->stream_wait(op->comm->device, stream, op->end->event);
    *s = dtr__cuda_status(code, DTR_ERR_CUDA, "waiting on a stream", __FILE__, __LINE__);
    return true;
}

const dtr__backend dtr__backend_nccl = { .name = "nccl",
                                         .device = DTR_CUDA,
                                         .kinds = DTR__NCCL_KINDS,
                                         .overlaps = true,
                                         .ends_alone = true,
                                         .score = nccl_score,
                                         .open = nccl_open,
                                         .close = dtr__nccl_close,
                                         .start = nccl_progress,
                                         .progress = nccl_progress,
                                         .stop = dtr__nccl_stop,
                                         .await_stop = dtr__nccl_await_stop,
                                         .find_mismatch = dtr__nccl_find_mismatch,
                                         .check = nccl_check,
                                         .issue_begin = nccl_issue_begin,
                                         .issue_end = nccl_issue_end,
                                         .connect = nccl_connect,
                                         .prepare = nccl_prepare,
                                         .launch = nccl_launch,
                                         .stream_wait = nccl_stream_wait,
                                         .waits_for = nccl_waits_for };
