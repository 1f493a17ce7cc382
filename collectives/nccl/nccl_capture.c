/* Calls whose stream captures a graph of CUDA: they are put into the graph together with their
 * fences, get a number and a record once, and are never watched, because a launch of the graph is
 * the program's affair. */
#include <math.h>

#include "nccl/nccl_internal.h"

/* ---- looking ---- */

static dtr_status ask(const dtr_group *g, const dtr__call *c, void *stream, dtr__capture *capture) {
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    int code = ops->stream_capturing(c->device.index, stream, capture);
    ctx.native = DTR_NATIVE_CUDA;
    ctx.native_code = code;
    ctx.native_text = code != 0 ? ops->error_text(code) : "";
    DTR_REQUIRE(code == 0, &ctx, DTR_ERR_STATE,
                "%s on group '%s': CUDA does not say whether the stream captures a graph: CUDA "
                "error %d (%s); nothing was issued",
                dtr__kind_name(c->kind), g->name, code, ctx.native_text);
    return DTR_OK;
}

dtr_status dtr__nccl_capture_look(const dtr_group *g, const dtr__call *c, bool *captured) {
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

dtr_status dtr__nccl_capture_over(const dtr_group *g, const dtr__call *c, dtr__nccl_comm *comm) {
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

/* ---- issuing ---- */

/* What cannot be part of a graph is said before anything is put into it, so that it stays valid. */
static dtr_status check(const dtr_group *g, const dtr__call *c, const dtr__request *r,
                        const dtr__nccl_comm *comm) {
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
    DTR_REQUIRE(r->finish == NULL, &ctx, DTR_ERR_UNSUPPORTED,
                "%s on group '%s': its stream captures a graph, and the host has a part in this "
                "operation; call it outside the capture",
                kind, g->name);
    return DTR_OK;
}

/* turn held */
static dtr_status issue(dtr_group *g, const dtr__call *c, const dtr__request *r, const char *site,
                        dtr_work **work) {
    int low, high;
    dtr_work *w = NULL;
    dtr__nccl_ranks_of(g, c, &low, &high);
    dtr__nccl_comm *comm = dtr__nccl_comm_find(g->nccl, c->device.index, low, high);
    DTR_TRY(check(g, c, r, comm));
    DTR_TRY(dtr__nccl_make_work(g, comm, c, r, &w));
    atomic_store_explicit(&w->deadline, INFINITY, memory_order_relaxed);
    ((dtr__nccl_op *)w->composite)->captured = true;
    if (!dtr__work_admit_captured(g, w, site)) {
        dtr__work_drop(w);
        return dtr__group_broken(g);
    }
    comm->captured = true;
    dtr_status s = dtr__nccl_launch(comm, w);
    atomic_store_explicit(&w->refs, 1, memory_order_relaxed); /* the engine has none */
    if (s < 0) {
        dtr__work_mark(w, DTR__REC_FAILED, s);
        dtr__group_break(g, s);
        dtr__work_unref(w);
        return dtr__group_broken(g);
    }
    *work = w;
    return DTR_OK;
}

dtr_status dtr__nccl_capture_issue(dtr_group *g, const dtr__call *c, const dtr__request *r,
                                   const char *site, dtr_work **work) {
    DTR_TRY(dtr__nccl_take_turn(g));
    dtr_status s = issue(g, c, r, site, work);
    pthread_mutex_unlock(&g->nccl->turn);
    return s;
}
