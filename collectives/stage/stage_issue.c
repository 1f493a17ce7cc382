/* Issuing an operation on device buffers: everything that can be refused, pinned memory included,
 * comes before the operation has its number. */
#include <stdlib.h>
#include <string.h>

#include "stage/stage.h"
#include "stage/stage_internal.h"

enum { FACTOR = 64 }; /* bytes kept for a factor that lies on the device, a cache line */

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
void dtr__stage_op_free(dtr__composite *self) {
    dtr__stage_op *op = (dtr__stage_op *)self;
    give_slots(op, op->next_load == 0);
    free(op->batch);
    free(op);
}

static dtr_status end_late(dtr__finish *finish, dtr_status status) {
    dtr__stage_op *op = (dtr__stage_op *)((char *)finish - offsetof(dtr__stage_op, finish));
    dtr__stage_op_free(&op->composite);
    return status;
}

static void keep_late(dtr_group *g, dtr_work *whole) {
    dtr__stage_op *op = (dtr__stage_op *)whole->composite;
    if (op->complete) {
        return;
    }
    op->finish = (dtr__finish){ .fn = end_late, .next = g->late };
    g->late = &op->finish;
    whole->composite = NULL;
}

/* What this rank's part moves, and whether it can be cut: elements that do not depend on others. */
static void describe(dtr__stage_op *op, const dtr_group *g, const dtr__call *c, size_t chunk) {
    bool root = c->root == g->rank;
    op->esize = c->kind == DTR__K_BATCH ? 1 : dtr_dtype_size(c->dtype);
    op->reads = c->in != NULL && c->kind != DTR__K_RECV && (c->kind != DTR__K_BROADCAST || root);
    op->writes = c->out != NULL && c->kind != DTR__K_SEND && (c->kind != DTR__K_BROADCAST || !root);
    op->cut =
        c->kind == DTR__K_ALLREDUCE || c->kind == DTR__K_REDUCE || c->kind == DTR__K_BROADCAST;
    op->chunk = chunk / op->esize > 0 ? chunk / op->esize : 1;
    op->chunks = op->cut && c->in_count > 0 ? (c->in_count - 1) / op->chunk + 1 : 1;
    if (!op->cut) {
        op->chunk = c->in_count;
    }
}

static dtr_status take_memory(dtr__stage_op *op, const dtr__call *c) {
    size_t n = op->cut && op->chunk < c->in_count ? op->chunk : c->in_count;
    size_t in = dtr__stage_in_bytes(op, c, n), out = dtr__stage_out_bytes(op, c, n);
    size_t room = (in + FACTOR - 1) / FACTOR * FACTOR;
    int wanted = op->chunks < DTR__STAGE_SLOTS ? (int)op->chunks : DTR__STAGE_SLOTS;
    if (c->n_batch > 0) {
        op->batch = malloc(c->n_batch * sizeof *op->batch);
        DTR_REQUIRE(op->batch != NULL, NULL, DTR_ERR_NOMEM, "out of memory for %zu messages",
                    c->n_batch);
    }
    for (op->n_slots = 0; op->n_slots < wanted; op->n_slots++) {
        dtr__slot *s;
        DTR_TRY(dtr__stage_take(op->stage, room + FACTOR + out, &s));
        s->factor = s->memory;
        s->in = s->memory + FACTOR;
        s->out = is_one_way(c) ? s->in : s->in + room;
        op->slot[op->n_slots] = s;
    }
    return DTR_OK;
}

/* What the caller's stream holds by now comes first, whatever becomes of that stream. */
static dtr_status fence(dtr__stage_op *op, const dtr__call *c) {
    dtr__stage *s = op->stage;
    void *event = op->slot[0]->fence;
    DTR_CUDA_TRY(s->ops->event_record(s->device, event, c->stream), DTR_ERR_CUDA);
    DTR_CUDA_TRY(s->ops->stream_wait(s->device, s->load, event), DTR_ERR_CUDA);
    DTR_CUDA_TRY(s->ops->stream_wait(s->device, s->store, event), DTR_ERR_CUDA);
    return DTR_OK;
}

static dtr_status make_op(dtr_group *g, const dtr__call *c, dtr__stage_op **made) {
    dtr__stage_op *op = calloc(1, sizeof *op);
    DTR_REQUIRE(op != NULL, NULL, DTR_ERR_NOMEM, "out of memory for an operation of group '%s'",
                g->name);
    op->composite = (dtr__composite){ NULL, keep_late, dtr__stage_op_free };
    op->group = g;
    op->factor = c->premul_device;
    dtr_status s = dtr__stage_of(g, c->device.index, &op->stage);
    if (s == DTR_OK) {
        describe(op, g, c, (size_t)dtr__opt_number(&g->world->options, DTR__OPT_STAGE_CHUNK));
        s = take_memory(op, c);
    }
    s = s == DTR_OK ? fence(op, c) : s;
    if (s < 0) {
        dtr__stage_op_free(&op->composite);
        return s;
    }
    *made = op;
    return DTR_OK;
}

dtr_status dtr__stage_part(dtr_group *g, dtr_work *w) {
    dtr__stage_op *op = NULL;
    DTR_TRY(make_op(g, &w->call, &op));
    w->backend = &dtr__backend_stage;
    w->backend_state = NULL;
    w->composite = &op->composite;
    return DTR_OK;
}

dtr_status dtr__stage_issue(dtr_group *g, const dtr__call *c, const dtr__request *r,
                            const char *site, dtr_work **work) {
    dtr__stage_op *op = NULL;
    dtr_work *w = NULL;
    DTR_TRY(make_op(g, c, &op));
    dtr__call unseen = *c;
    unseen.in_count = 0; /* the host cannot look at the input */
    dtr_status s = dtr__work_make(g, 2, &w);
    s = s == DTR_OK ? dtr__work_describe(w, g, &unseen, r, 0, false) : s;
    if (s == DTR_OK) {
        w->call.in_count = c->in_count;
        w->backend = &dtr__backend_stage;
        w->backend_state = NULL;
        w->composite = &op->composite;
        s = dtr__work_admit(g, w, site, false) ? DTR_OK : dtr__group_broken(g);
    }
    if (s < 0) {
        dtr__stage_op_free(&op->composite);
        if (w != NULL) {
            w->composite = NULL;
            dtr__work_drop(w);
        }
        return s;
    }
    *work = w;
    dtr__work_hand_over(g, w);
    return DTR_OK;
}
