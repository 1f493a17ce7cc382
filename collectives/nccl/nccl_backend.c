/* Issuing a call with device buffers, and what the engine sees of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/nccl_internal.h"
#include "scope.h"
#include "stage/stage.h"

#define ASK_NS INT64_C(5000000) /* between two looks at a communicator's state */

/* ---- the engine's side ---- */

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
    return code == 0 || code == c->ops->in_progress() ? DTR_OK
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

static dtr_status progress(dtr_group *g, void *state, dtr_work *w, bool *done) {
    dtr__nccl_op *op = (dtr__nccl_op *)w->composite;
    dtr__nccl_comm *c = op->comm;
    (void)state;
    if (atomic_load_explicit(&op->launched, memory_order_acquire) == 0 ||
        op->number != c->seen + 1) { /* they end in the order of their launch */
        return DTR_OK;
    }
    int code = DTR_INSIDE_AS("cudaEventQuery", c->cuda->event_query(c->device, op->end->event));
    if (code == 0) {
        c->seen = op->number;
        note_start(g, op);
        if (op->looks != NULL) {
            dtr__nccl_looks_tell(op->looks);
        }
        *done = true;
        return DTR_OK;
    }
    DTR_CUDA_TRY(code == c->cuda->not_ready() ? 0 : code, DTR_ERR_CUDA);
    return ask(c, w);
}

static const char *waits_for(dtr_group *g, void *state, dtr_work *w, char *text, size_t cap) {
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

/* dtr__device_issue makes its works. */
const dtr__backend dtr__backend_nccl = { .name = "nccl",
                                         .device = DTR_CUDA,
                                         .overlaps = true,
                                         .score = dtr__score_asked,
                                         .start = progress,
                                         .progress = progress,
                                         .waits_for = waits_for };

/* ---- works ---- */

static void keep_late(dtr_group *g, dtr_work *w) {
    (void)g;
    (void)w; /* what an operation has is given back with its handle */
}

static void op_free(dtr__composite *self) {
    dtr__nccl_op *op = (dtr__nccl_op *)self;
    dtr__nccl_event *events[] = { op->fence, op->start, op->end };
    for (int i = 0; i < 3; i++) {
        if (events[i] != NULL) {
            (op->captured ? dtr__nccl_event_keep : dtr__nccl_event_give)(op->comm, events[i]);
        }
    }
    if (op->looks != NULL) {
        dtr__nccl_looks_give(op->comm, op->looks);
    }
    dtr__nccl_comm_unref(op->comm);
    free(op->ready);
    free(op);
}

static dtr_status make_op(dtr__nccl_comm *c, bool host_only, dtr__nccl_op **made) {
    dtr__nccl_op *op = calloc(1, sizeof *op);
    DTR_REQUIRE(op != NULL, NULL, DTR_ERR_NOMEM, "out of memory for an operation on cuda:%d",
                c->device);
    op->composite = (dtr__composite){ NULL, keep_late, op_free };
    op->comm = c;
    op->host_only = host_only;
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    dtr_status s = dtr__nccl_event_take(c, &op->fence);
    s = s == DTR_OK ? dtr__nccl_event_take(c, &op->end) : s;
    if (s == DTR_OK && c->group->world->timing) {
        s = dtr__nccl_event_take(c, &op->start);
    }
    if (s < 0) {
        op_free(&op->composite);
        return s;
    }
    *made = op;
    return DTR_OK;
}

/* The host cannot look at its input. */
dtr_status dtr__nccl_make_work(dtr_group *g, dtr__nccl_comm *c, const dtr__call *call,
                               const dtr__request *r, dtr_work **work) {
    dtr__nccl_op *op = NULL;
    dtr_work *w = NULL;
    dtr__call unseen = *call;
    unseen.in_count = 0;
    if (r->options == NULL || r->options->timeout_s <= 0) {
        unseen.timeout_s = g->timeout_cuda_s;
    }
    DTR_TRY(make_op(c, r->finish != NULL, &op));
    dtr_status s = dtr__work_make(g, 2, &w);
    s = s == DTR_OK ? dtr__work_describe(w, g, &unseen, r, 0, false) : s;
    if (s < 0) {
        op_free(&op->composite);
        if (w != NULL) {
            dtr__work_drop(w);
        }
        return s;
    }
    w->call.in_count = call->in_count;
    w->backend = &dtr__backend_nccl;
    w->backend_state = NULL;
    w->composite = &op->composite;
    s = dtr__nccl_looks_for(g, c, &w, 1, &op->looks);
    if (s < 0) {
        dtr__work_drop(w);
        return s;
    }
    *work = w;
    return DTR_OK;
}

/* Behind what the caller's stream holds now, with the end event behind it. `calls`: NULL, or those
 * of a scope, which `w` is then. */
static dtr_status launch(dtr__nccl_op *op, dtr_work *w, dtr_work *const *calls, size_t n) {
    dtr__nccl_comm *c = op->comm;
    const dtr__device_ops *cuda = c->cuda;
    if (!op->captured) {
        DTR_TRY(dtr__nccl_meet(c, w));
    }
    op->number = op->captured ? 0 : ++c->launched;
    if (op->paired) { /* the records are there */
        atomic_fetch_add_explicit(&c->group->paired, 1, memory_order_release);
    }
    dtr__nccl_blocks_look(c);
    DTR_CUDA_TRY(cuda->event_record(c->device, op->fence->event, w->call.stream), DTR_ERR_CUDA);
    DTR_CUDA_TRY(cuda->stream_wait(c->device, c->stream, op->fence->event), DTR_ERR_CUDA);
    if (op->looks != NULL) {
        DTR_TRY(dtr__nccl_looks_launch(c, op->looks));
    }
    op->record = w->record;
    if (op->start != NULL) {
        DTR_CUDA_TRY(cuda->event_record(c->device, op->start->event, c->stream), DTR_ERR_CUDA);
    }
    DTR_TRY(calls != NULL ? dtr__nccl_run_all(c, w, calls, n, op->ready) : dtr__nccl_run(c, w));
    DTR_CUDA_TRY(cuda->event_record(c->device, op->end->event, c->stream), DTR_ERR_CUDA);
    atomic_store_explicit(&op->launched, 1, memory_order_release);
    return DTR_OK;
}

dtr_status dtr__nccl_launch(dtr__nccl_comm *c, dtr_work *w) {
    (void)c;
    return launch((dtr__nccl_op *)w->composite, w, NULL, 0);
}

/* Another thread of this rank may be inside NCCL and not come back. */
dtr_status dtr__nccl_take_turn(dtr_group *g) {
    dtr__backoff backoff = { 0 };
    while (pthread_mutex_trylock(&g->nccl->turn) != 0) {
        if (atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
            return dtr__group_broken(g);
        }
        dtr__backoff_pause(g->world, &backoff);
    }
    return DTR_OK;
}

void dtr__nccl_ranks_of(const dtr_group *g, const dtr__call *c, int *low, int *high) {
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

/* The communicator of a call, ready for use unless NCCL refused the devices; turn held. */
static dtr_status communicator(dtr_group *g, const dtr__call *c, dtr__nccl_comm **comm) {
    int low, high;
    dtr__nccl_ranks_of(g, c, &low, &high);
    DTR_TRY(or_break(g, dtr__nccl_comm_of(g->nccl, c->device.index, low, high, comm)));
    if ((*comm)->ready) {
        return DTR_OK;
    }
    if (dtr__in_callback(g->world)) {
        dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
        return DTR_FAIL(&ctx, DTR_ERR_STATE,
                        "%s on group '%s': the first operation on CUDA buffers waits for the other "
                        "ranks, which a completion callback must not; run one before",
                        dtr__kind_name(c->kind), g->name);
    }
    return dtr__nccl_connect_or_break(*comm);
}

/* turn held. `*work` stays NULL where NCCL has refused the devices. */
static dtr_status issue(dtr_group *g, const dtr__call *c, const dtr__request *r, const char *site,
                        dtr_work **work) {
    dtr__nccl_comm *comm = NULL;
    dtr_work *w = NULL;
    DTR_TRY(communicator(g, c, &comm));
    if (!comm->ready) {
        return DTR_OK;
    }
    DTR_TRY(dtr__nccl_capture_over(g, c, comm));
    DTR_TRY(or_break(g, dtr__nccl_make_work(g, comm, c, r, &w)));
    ((dtr__nccl_op *)w->composite)->paired = dtr__nccl_number(comm, w);
    if (!dtr__work_admit(g, w, site, false)) {
        dtr__work_drop(w);
        return dtr__group_broken(g);
    }
    dtr_status s = dtr__nccl_launch(comm, w);
    if (s < 0) { /* the others have launched it, or are about to */
        dtr__group_break(g, s);
        s = dtr__group_broken(g);
        dtr__work_unref(w);
        return s;
    }
    *work = w;
    return DTR_OK;
}

static dtr_status nccl_issue(dtr_group *g, const dtr__call *c, const dtr__request *r,
                             const char *site, dtr_work **work) {
    DTR_TRY(dtr__nccl_take_turn(g));
    dtr_status s = issue(g, c, r, site, work);
    pthread_mutex_unlock(&g->nccl->turn);
    if (s == DTR_OK && *work != NULL) {
        dtr__work_hand_over(g, *work);
    }
    return s;
}

/* ---- the choice ---- */

/* One warning for each group and reason, of its first rank. */
static void warn(dtr_group *g, const dtr__call *c, const char *why) {
    enum { MOST = sizeof g->nccl->warned / sizeof g->nccl->warned[0] };
    struct dtr__nccl *n = g->nccl;
    if (g->rank != 0 || n == NULL || why[0] == '\0') {
        return;
    }
    int i = 0;
    pthread_mutex_lock(&n->lock);
    while (i < MOST && n->warned[i] != NULL && n->warned[i] != why) {
        i++;
    }
    bool first = i < MOST && n->warned[i] == NULL;
    if (first) {
        n->warned[i] = why;
    }
    pthread_mutex_unlock(&n->lock);
    if (first) {
        DTR_WARN(g->world,
                 "group '%s': buffers of %s on cuda:%d travel through host memory, because %s; a "
                 "backend text with cuda:stage asks for that and ends this warning",
                 g->name, dtr__kind_name(c->kind), c->device.index, why);
    }
}

static dtr_status refuse(const dtr_group *g, const dtr__call *c, const char *why) {
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    return DTR_FAIL(&ctx, DTR_ERR_UNSUPPORTED,
                    "%s %s %s on group '%s': nccl was named and cannot serve it: %s; cuda:auto or "
                    "cuda:stage can",
                    dtr__kind_name(c->kind), dtr_dtype_name(c->dtype),
                    dtr__kind_reduces(c->kind) ? dtr__op_name(c->op) : "", g->name, why);
}

static dtr_status refuse_capture(const dtr_group *g, const dtr__call *c) {
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    return DTR_FAIL(&ctx, DTR_ERR_UNSUPPORTED,
                    "%s on group '%s': its stream captures a graph, and the operation would travel "
                    "through host memory, which no graph can hold; call it outside the capture",
                    dtr__kind_name(c->kind), g->name);
}

static dtr_status settle_for_stage(dtr_group *g, const dtr__call *c, const char *why) {
    if (g->cuda_use == 'n') {
        return refuse(g, c, why);
    }
    if (g->cuda_use == 'a') {
        warn(g, c, why);
    }
    return DTR_OK;
}

static dtr_status check_message(const dtr_group *g, const dtr__call *c) {
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

/* ---- scopes ---- */

dtr_status dtr__device_choose(dtr_group *g, dtr__call *c, const dtr__request *r,
                              const dtr__backend **backend) {
    const char *why = "";
    bool captured = false;
    DTR_TRY(dtr__nccl_capture_look(g, c, &captured));
    if (captured) {
        dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
        return DTR_FAIL(&ctx, DTR_ERR_UNSUPPORTED,
                        "%s on group '%s': its stream captures a graph, which takes calls one by "
                        "one and no coalescing scope",
                        dtr__kind_name(c->kind), g->name);
    }
    if (g->cuda_use != 's' && dtr__nccl_serves(g, c, &why)) {
        DTR_TRY(check_message(g, c));
        if (r->options == NULL || r->options->timeout_s <= 0) {
            c->timeout_s = g->timeout_cuda_s;
        }
        *backend = &dtr__backend_nccl;
        return DTR_OK;
    }
    *backend = &dtr__backend_stage;
    return settle_for_stage(g, c, why);
}

dtr_status dtr__native_begin(dtr_group *g) {
    return dtr__nccl_take_turn(g);
}

void dtr__native_end(dtr_group *g) {
    pthread_mutex_unlock(&g->nccl->turn);
}

dtr_status dtr__native_open(dtr_group *g, int device, void *stream, dtr_work *const *calls,
                            size_t n, dtr_work **part) {
    dtr__nccl_comm *comm = NULL;
    dtr__nccl_op *op = NULL;
    dtr__call whole = { .kind = DTR__K_BATCH, .device = { DTR_CUDA, device }, .stream = stream };
    dtr__request r = { .kind = DTR__K_BATCH };
    DTR_TRY(communicator(g, &whole, &comm));
    if (!comm->ready) {
        for (size_t i = 0; i < n; i++) {
            if (calls[i]->backend == &dtr__backend_nccl) {
                warn(g, &calls[i]->call, g->nccl->reason);
            }
        }
        return DTR_OK;
    }
    DTR_TRY(dtr__nccl_capture_over(g, &whole, comm));
    DTR_TRY(or_break(g, make_op(comm, false, &op)));
    dtr_status s = dtr__work_make(g, 1, part);
    op->ready = calloc(n, sizeof *op->ready);
    if (s == DTR_OK && op->ready == NULL) {
        s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "out of memory for a scope of %zu calls", n);
        dtr__work_unref(*part);
    } else if (s == DTR_OK) {
        s = dtr__nccl_looks_for(g, comm, calls, n, &op->looks);
        if (s < 0) {
            dtr__work_unref(*part);
        }
    }
    if (s < 0) {
        *part = NULL;
        op_free(&op->composite);
        return s;
    }
    (void)dtr__work_describe(*part, g, &whole, &r, 0, false);
    (*part)->backend = &dtr__backend_nccl;
    (*part)->backend_state = NULL;
    (*part)->composite = &op->composite;
    (*part)->seq = (*part)->issue = (*part)->record = 0;
    for (size_t i = 0; i < n; i++) {
        op->paired |= dtr__nccl_number(comm, calls[i]);
    }
    return DTR_OK;
}

dtr_status dtr__native_launch(dtr_work *part, dtr_work *whole, dtr_work *const *calls, size_t n) {
    return launch((dtr__nccl_op *)part->composite, whole, calls, n);
}

/* ---- one call ---- */

dtr_status dtr__device_issue(dtr_group *g, const dtr__call *c, const dtr__request *r,
                             const char *site, dtr_work **work) {
    const char *why = "";
    bool captured = false, nccl = g->cuda_use != 's' && dtr__nccl_serves(g, c, &why);
    DTR_TRY(dtr__nccl_capture_look(g, c, &captured));
    if (nccl) {
        DTR_TRY(check_message(g, c));
    }
    if (captured) {
        return nccl ? dtr__nccl_capture_issue(g, c, r, site, work) : refuse_capture(g, c);
    }
    if (nccl) {
        DTR_TRY(nccl_issue(g, c, r, site, work));
        if (*work != NULL) {
            return DTR_OK;
        }
        why = g->nccl->reason;
    }
    DTR_TRY(settle_for_stage(g, c, why));
    return dtr__stage_issue(g, c, r, site, work);
}

bool dtr__device_stream_wait(dtr_work *w, void *stream, dtr_status *s) {
    if (w->backend == &dtr__backend_scope_native) {
        return dtr__scope_stream_wait(w, stream, s);
    }
    if (w->backend != &dtr__backend_nccl) {
        return false;
    }
    dtr__nccl_op *op = (dtr__nccl_op *)w->composite;
    if (op->host_only || atomic_load_explicit(&op->launched, memory_order_acquire) == 0) {
        return false;
    }
    int code = op->comm->cuda->stream_wait(op->comm->device, stream, op->end->event);
    *s = dtr__cuda_status(code, DTR_ERR_CUDA, "waiting on a stream", __FILE__, __LINE__);
    return true;
}
