/* Calls whose stream captures a graph of CUDA: they are put into the graph together with their
 * stream dependencies, get a number and a record once, and are never watched, because a launch of
 * the graph is the program's affair. */
#include <stdlib.h>

#include "core/team.h"
#include "engine/engine.h"
#include "nccl_internal.h"

enum { INVALID_RESOURCE_HANDLE = 400 }; /* of CUDA */

static dtr_status ask(const dtr_group *g, const dtr__call *c, void *stream, dtr__capture *capture) {
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    int code = ops->stream_capturing(c->device.index, stream, capture);
    ctx.native = DTR_NATIVE_CUDA;
    ctx.native_code = code;
    ctx.native_text = code != 0 ? ops->error_text(code) : "";
    DTR_REQUIRE(code != INVALID_RESOURCE_HANDLE, &ctx, DTR_ERR_ARG,
                "%s on group '%s': stream %p is of another device than the buffers, cuda:%d, or is "
                "none any more",
                dtr__kind_name(c->kind), g->name, stream, c->device.index);
    DTR_REQUIRE(code == 0, &ctx, DTR_ERR_STATE,
                "%s on group '%s': CUDA does not say whether the stream captures a graph: CUDA "
                "error %d (%s); nothing was issued",
                dtr__kind_name(c->kind), g->name, code, ctx.native_text);
    return DTR_OK;
}

dtr_status dtr__nccl_capture_poll(const dtr_group *g, const dtr__call *c, bool *captured) {
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    dtr__capture capture = DTR__NO_CAPTURE;
    DTR_TRY(ask(g, c, c->stream, &capture));
    DTR_REQUIRE(capture != DTR__CAPTURE_RUINED, &ctx, DTR_ERR_STATE,
                "%s on group '%s': the capture of its stream has become invalid; end it and begin "
                "again",
                dtr__kind_name(c->kind), g->name);
    *captured = capture == DTR__CAPTURING;
    return DTR_OK;
}

dtr_status dtr__nccl_capture_over(const dtr__call *c, dtr__nccl_comm *comm) {
    const dtr_group *g = comm->group;
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    dtr__capture capture = DTR__NO_CAPTURE;
    if (!comm->captured) {
        return DTR_OK;
    }
    DTR_TRY(ask(g, c, comm->stream, &capture));
    DTR_REQUIRE(capture == DTR__NO_CAPTURE, &ctx, DTR_ERR_STATE,
                "%s on group '%s': a graph that holds operations of this group is still being "
                "captured; end the capture first, or issue this one into it too",
                dtr__kind_name(c->kind), g->name);
    comm->captured = false;
    return DTR_OK;
}

/* Refuse what cannot be part of a graph before anything is put into it, so that it stays valid. */
dtr_status dtr__nccl_capture_check(const dtr_work *w, const dtr__nccl_comm *comm) {
    const dtr_group *g = w->group;
    const dtr__call *c = &w->call;
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    const char *kind = dtr__kind_name(c->kind);
    DTR_REQUIRE(!dtr__wants_nan_check(g, c), &ctx, DTR_ERR_UNSUPPORTED,
                "%s on group '%s': its stream captures a graph, from which no NaN can be reported; "
                "turn the check off for this group (nan_check -1)",
                kind, g->name);
    DTR_REQUIRE(comm != NULL && comm->ready, &ctx, DTR_ERR_STATE,
                "%s on group '%s': its stream captures a graph, and the communicator for cuda:%d "
                "has not been made; run one such operation before the capture",
                kind, g->name, c->device.index);
    bool in_place = c->in == c->out && c->in_count > 0;
    bool exchanges = c->kind == DTR__K_ALLTOALL || c->kind == DTR__K_ALLTOALLV;
    DTR_REQUIRE(!(exchanges && in_place), &ctx, DTR_ERR_UNSUPPORTED,
                "%s on group '%s': its stream captures a graph, which cannot have the memory that "
                "an exchange in place needs; give in and out buffers of their own",
                kind, g->name);
    DTR_REQUIRE(w->finish == NULL, &ctx, DTR_ERR_UNSUPPORTED,
                "%s on group '%s': its stream captures a graph, and the host has a part in this "
                "operation; call it outside the capture",
                kind, g->name);
    return DTR_OK;
}

/* ---- graphs ---- */

void dtr__nccl_graphs_unref(dtr__nccl_graphs *graphs) {
    if (graphs != NULL && atomic_fetch_sub_explicit(&graphs->refs, 1, memory_order_acq_rel) == 1) {
        free(graphs);
    }
}

static void graph_gone(void *arg) {
    dtr__nccl_graphs *graphs = arg;
    atomic_fetch_sub_explicit(&graphs->live, 1, memory_order_release);
    dtr__nccl_graphs_unref(graphs);
}

dtr_status dtr__nccl_graph_begin(const dtr__nccl_comm *comm, void *stream) {
    if (comm->graphs != NULL) {
        atomic_fetch_add_explicit(&comm->graphs->refs, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&comm->graphs->live, 1, memory_order_relaxed);
        DTR_CUDA_TRY(comm->cuda->capture_gone(comm->device, stream, graph_gone, comm->graphs),
                     DTR_ERR_CUDA);
    }
    return DTR_OK;
}

bool dtr__nccl_has_graphs(const dtr__nccl_comm *comm) {
    return comm->graphs != NULL &&
           atomic_load_explicit(&comm->graphs->live, memory_order_acquire) > 0;
}

static bool any_graphs(struct dtr__nccl *n) {
    bool any = false;
    pthread_mutex_lock(&n->lock);
    for (const dtr__nccl_comm *c = n->comms; c != NULL && !any; c = c->next) {
        any = dtr__nccl_has_graphs(c);
    }
    pthread_mutex_unlock(&n->lock);
    return any;
}

bool dtr__nccl_in_graphs(const dtr_group *g) {
    struct dtr__nccl *n = dtr__nccl_of(g);
    const double end = dtr__now() + 1;
    while (n != NULL && any_graphs(n)) {
        if (dtr__now() >= end) {
            return true;
        }
        dtr__nccl_nap_ms();
    }
    return false;
}
