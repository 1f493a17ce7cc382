/* The stage backend's table, and making an operation: everything that can be refused, pinned memory
 * included, comes before the operation has its number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/stage/stage.h"
#include "core/check.h"
#include "core/team.h"
#include "core/work.h"
#include "kernels/user_ops.h"
#include "stage_internal.h"

static bool is_one_way(const dtr__call *c) {
    return c->kind == DTR__K_BROADCAST || c->kind == DTR__K_SEND || c->kind == DTR__K_RECV;
}

static size_t batch_bytes(const dtr__call *c, bool sent) {
    size_t nbytes = 0;
    for (size_t i = 0; i < c->n_batch; i++) {
        const dtr_p2p *p = &c->batch[i];
        nbytes += p->is_send == sent ? p->buf.count * dtr_dtype_size(p->buf.dtype) : 0;
    }
    return nbytes;
}

/* Of a chunk of n elements; of the whole operation where it is not cut. */
size_t dtr__stage_in_bytes(const dtr__stage_op *op, const dtr__call *c, size_t n) {
    if (c->kind == DTR__K_BATCH) {
        return batch_bytes(c, true);
    }
    return op->reads ? (op->cut ? n : c->in_count) * op->esize : 0;
}

size_t dtr__stage_out_bytes(const dtr__stage_op *op, const dtr__call *c, size_t n) {
    if (c->kind == DTR__K_BATCH) {
        return batch_bytes(c, false);
    }
    return op->writes ? (op->cut ? n : c->out_count) * op->esize : 0;
}

static void give_slots(dtr__stage_op *op, bool clean) {
    for (int i = 0; i < op->n_slots; i++) {
        if (op->slot[i]->part != NULL) {
            dtr__work_unref(op->slot[i]->part);
            op->slot[i]->part = NULL;
        }
        dtr__stage_give(op->stage, op->slot[i], clean);
    }
    op->n_slots = 0;
}

/* Of a completed operation, whose slots have been given back, or of one of which no copy has begun.
 */
static void op_free(dtr__composite *self) {
    dtr__stage_op *op = (dtr__stage_op *)self;
    give_slots(op, op->next_load == 0);
    free(op->batch);
    free(op);
}

/* A prefix over no rank, of an operator of the program, which has no identity. */
static bool keeps_output(const dtr_group *g, const dtr__call *c) {
    return dtr__kind_reduces(c->kind) && dtr__op_is_user(c->op) &&
           dtr__n_sources(c->kind, g->rank, g->size) == 0;
}

/* What this rank's part moves, and whether it can be cut: elements that do not depend on others. */
static void describe(dtr__stage_op *op, const dtr_group *g, const dtr__call *c, size_t chunk) {
    bool root = c->root == g->rank;
    op->esize = c->kind == DTR__K_BATCH ? 1 : dtr_dtype_size(c->dtype);
    op->reads = c->in != NULL && c->kind != DTR__K_RECV && (c->kind != DTR__K_BROADCAST || root);
    op->writes = c->out != NULL && c->kind != DTR__K_SEND &&
                 (c->kind != DTR__K_BROADCAST || !root) && !keeps_output(g, c);
    op->cut = dtr__has_no_blocks(c->kind);
    op->chunk = chunk / op->esize > 0 ? chunk / op->esize : 1;
    op->chunks = op->cut && c->in_count > 0 ? (c->in_count - 1) / op->chunk + 1 : 1;
    if (!op->cut) {
        op->chunk = c->in_count;
    }
}

static dtr_status take_memory(dtr__stage_op *op, const dtr__call *c) {
    size_t n = op->cut && op->chunk < c->in_count ? op->chunk : c->in_count;
    size_t in = dtr__stage_in_bytes(op, c, n), out = dtr__stage_out_bytes(op, c, n);
    size_t space = (in + DTR__STAGE_FACTOR - 1) / DTR__STAGE_FACTOR * DTR__STAGE_FACTOR;
    int wanted = op->chunks < DTR__STAGE_SLOTS ? (int)op->chunks : DTR__STAGE_SLOTS;
    if (c->n_batch > 0) {
        op->batch = malloc(c->n_batch * sizeof *op->batch);
        DTR_REQUIRE(op->batch != NULL, NULL, DTR_ERR_NOMEM, "out of memory for %zu messages",
                    c->n_batch);
    }
    for (op->n_slots = 0; op->n_slots < wanted; op->n_slots++) {
        dtr__slot *s;
        DTR_TRY(dtr__stage_take(op->stage, space + DTR__STAGE_FACTOR + out, &s));
        s->factor = s->memory;
        s->in = s->memory + DTR__STAGE_FACTOR;
        s->out = is_one_way(c) ? s->in : s->in + space;
        op->slot[op->n_slots] = s;
    }
    return DTR_OK;
}

/* What the caller's stream holds by now comes first, whatever becomes of that stream. */
static dtr_status follow_stream(dtr__stage_op *op, const dtr__call *c) {
    dtr__stage *s = op->stage;
    void *event = op->slot[0]->dependency;
    DTR_CUDA_TRY(s->ops->event_record(s->device, event, c->stream), DTR_ERR_CUDA);
    DTR_CUDA_TRY(s->ops->stream_wait(s->device, s->load, event), DTR_ERR_CUDA);
    DTR_CUDA_TRY(s->ops->stream_wait(s->device, s->store, event), DTR_ERR_CUDA);
    return DTR_OK;
}

static dtr_status make_op(dtr_group *g, dtr__stages *stages, const dtr__call *c,
                          dtr__stage_op **made) {
    dtr__stage_op *op = calloc(1, sizeof *op);
    DTR_REQUIRE(op != NULL, NULL, DTR_ERR_NOMEM, "out of memory for an operation of group '%s'",
                g->name);
    op->composite = (dtr__composite){ .defer_finish = dtr__composite_defer, .free = op_free };
    op->group = g;
    op->factor = c->premul_device;
    dtr_status s = dtr__stage_of(stages, c->device.index, &op->stage);
    if (s == DTR_OK) {
        describe(op, g, c, (size_t)dtr__opt_number(&g->world->options, DTR__OPT_STAGE_CHUNK));
        s = take_memory(op, c);
    }
    s = s == DTR_OK ? follow_stream(op, c) : s;
    if (s < 0) {
        op_free(&op->composite);
        return s;
    }
    *made = op;
    return DTR_OK;
}

static dtr_status stage_prepare(dtr_group *g, void *state, dtr_work *w, dtr_work *whole,
                                dtr_work *const *calls, size_t n) {
    dtr__stage_op *op = NULL;
    (void)whole;
    (void)calls;
    (void)n;
    DTR_TRY(make_op(g, state, &w->call, &op));
    w->composite = &op->composite;
    return DTR_OK;
}

/* ---- the engine's side ---- */

static void stage_cancel(dtr_group *g, void *state, dtr_work *whole) {
    dtr__stage_op *op = (dtr__stage_op *)whole->composite;
    (void)state;
    for (int i = 0; op != NULL && i < op->n_slots; i++) {
        if (op->slot[i]->part != NULL) {
            dtr__part_cancel(g, op->slot[i]->part);
        }
    }
}

static dtr_status stage_progress(dtr_group *g, void *state, dtr_work *whole, bool *done) {
    dtr__stage_op *op = (dtr__stage_op *)whole->composite;
    dtr_status s = dtr__stage_move(op, whole, done);
    if (s < 0) {
        dtr__work_give_up(g, &dtr__backend_stage, state, whole, s);
        *done = false;
    } else if (*done) {
        op->composite.complete = true;
        for (int i = 0; i < op->n_slots; i++) {
            dtr__stage_give(op->stage, op->slot[i], true);
        }
        op->n_slots = 0;
    }
    return s;
}

static dtr_status stage_start(dtr_group *g, void *state, dtr_work *whole, bool *done) {
    dtr__stage_op *op = (dtr__stage_op *)whole->composite;
    if (dtr__kind_is_p2p(whole->call.kind)) {
        op->ticket = op->stage->issued++;
    }
    return stage_progress(g, state, whole, done);
}

static const char *stage_waits_for(dtr_group *g, void *state, dtr_work *whole, char *text,
                                   size_t cap) {
    const dtr__stage_op *op = (const dtr__stage_op *)whole->composite;
    (void)state;
    if (op == NULL || op->n_slots == 0) {
        return "";
    }
    const dtr__slot *slot = op->slot[op->next_run % (size_t)op->n_slots];
    if (slot->part != NULL) {
        return dtr__part_waits_for(g, slot->part, false, text, cap);
    }
    snprintf(text, cap, "a copy %s cuda:%d has not ended, or what the stream held before it",
             op->next_run < op->next_load ? "from" : "to", op->stage->device);
    return text;
}

static int stage_score(const dtr_group *g, const dtr__call *c, const char **why) {
    (void)g;
    *why = "";
    return c == NULL || (dtr__backend_stage.kinds >> c->kind & 1) != 0 ? 1 : 0;
}

const dtr__backend dtr__backend_stage = { .name = "stage",
                                          .kinds = DTR__KINDS_BASIC,
                                          .device = DTR_CUDA,
                                          .score = stage_score,
                                          .open = dtr__stage_open,
                                          .close = dtr__stage_close,
                                          .start = stage_start,
                                          .progress = stage_progress,
                                          .cancel = stage_cancel,
                                          .prepare = stage_prepare,
                                          .waits_for = stage_waits_for };
