/* Running the chunks of an operation. The host looks at events and never waits: a copy from the
 * device has ended only when the host has seen its event. */
#include <stdio.h>
#include <string.h>

#include "core/backend.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "kernels/kernels_set.h"
#include "stage_internal.h"

/* ---- copies ---- */

static dtr_status copy(const dtr__stage *s, void *to, const void *from, size_t nbytes, bool load) {
    if (nbytes > 0) {
        DTR_CUDA_TRY(DTR_INSIDE_AS("cudaMemcpyAsync",
                                   s->ops->copy(s->device, to, from, nbytes,
                                                load ? DTR__COPY_TO_HOST : DTR__COPY_TO_DEVICE,
                                                load ? s->load : s->store)),
                     DTR_ERR_CUDA);
    }
    return DTR_OK;
}

/* The entries of a batch lie one after another, sends in `in`, receives in `out`. */
static dtr_status copy_batch(const dtr__stage_op *op, const dtr__call *c, const dtr__slot *slot,
                             bool load) {
    size_t at = 0;
    for (size_t i = 0; i < c->n_batch; i++) {
        const dtr_p2p *p = &c->batch[i];
        size_t nbytes = p->buf.count * dtr_dtype_size(p->buf.dtype);
        if (p->is_send != load) {
            continue;
        }
        char *host = (load ? slot->in : slot->out) + at;
        DTR_TRY(
            copy(op->stage, load ? host : p->buf.data, load ? p->buf.data : host, nbytes, load));
        at += nbytes;
    }
    return DTR_OK;
}

static dtr_status load(dtr__stage_op *op, const dtr__call *c, dtr__slot *slot) {
    const dtr__stage *s = op->stage;
    slot->first = op->cut ? op->next_load * op->chunk : 0;
    slot->n =
        op->cut && c->in_count - slot->first > op->chunk ? op->chunk : c->in_count - slot->first;
    if (c->kind == DTR__K_BATCH) {
        DTR_TRY(copy_batch(op, c, slot, true));
    } else if (op->reads) {
        DTR_TRY(copy(s, slot->in, (const char *)c->in + slot->first * op->esize,
                     dtr__stage_in_bytes(op, c, slot->n), true));
    }
    if (op->factor != NULL) {
        DTR_TRY(copy(s, slot->factor, op->factor, dtr_dtype_size(dtr__real_part(c->dtype)), true));
    }
    DTR_CUDA_TRY(s->ops->event_record(s->device, slot->loaded, s->load), DTR_ERR_CUDA);
    slot->asked_ns = 0;
    slot->state = DTR__SLOT_LOADING;
    op->next_load++;
    return DTR_OK;
}

static dtr_status store(const dtr__stage_op *op, const dtr__call *c, dtr__slot *slot) {
    const dtr__stage *s = op->stage;
    if (c->kind == DTR__K_BATCH) {
        DTR_TRY(copy_batch(op, c, slot, false));
    } else if (op->writes) {
        DTR_TRY(copy(s, (char *)c->out + slot->first * op->esize, slot->out,
                     dtr__stage_out_bytes(op, c, slot->n), false));
    }
    DTR_CUDA_TRY(s->ops->event_record(s->device, slot->stored, s->store), DTR_ERR_CUDA);
    slot->asked_ns = 0;
    slot->state = DTR__SLOT_STORING;
    return DTR_OK;
}

static dtr_status ask(const dtr__stage *s, dtr__slot *slot, void *event, const dtr_world *world,
                      bool *ended) {
    *ended = false;
    if (!dtr__event_due(world, &slot->asked_ns)) {
        return DTR_OK;
    }
    int code = DTR_INSIDE_AS("cudaEventQuery", s->ops->event_query(s->device, event));
    *ended = code == 0;
    DTR_CUDA_TRY(code == s->ops->not_ready ? 0 : code, DTR_ERR_CUDA);
    return DTR_OK;
}

/* ---- parts ---- */

/* What a batch sends counts as one input of `*n` elements. */
static size_t nan_in_batch(const dtr__call *c, const char *in, size_t *n) {
    for (size_t i = 0; i < c->n_batch; i++) {
        const dtr_buffer *b = &c->batch[i].buf;
        size_t count = c->batch[i].is_send ? b->count : 0;
        size_t at = count > 0 ? dtr__find_nan(in, count, b->dtype) : 0;
        *n += count;
        if (at < count) {
            return *n - count + at;
        }
        in += count * dtr_dtype_size(b->dtype);
    }
    return *n;
}

/* Only where the host has the data can it look for NaN. */
static void look_for_nan(const dtr__stage_op *op, dtr_work *whole, const dtr__slot *slot) {
    bool gives = op->reads || whole->call.kind == DTR__K_BATCH;
    if (!gives || whole->input.status != DTR_OK || !dtr__wants_nan_check(op->group, &whole->call)) {
        return;
    }
    size_t n = 0, at = 0;
    if (whole->call.kind == DTR__K_BATCH) {
        at = nan_in_batch(&whole->call, slot->in, &n);
    } else {
        n = op->cut ? slot->n : whole->call.in_count;
        at = dtr__find_nan(slot->in, n, whole->call.dtype);
    }
    if (at < n) {
        dtr__work_found_nan(whole, slot->first + at);
    }
}

static void place_batch(dtr__stage_op *op, const dtr__call *c, const dtr__slot *slot) {
    size_t in = 0, out = 0;
    for (size_t i = 0; i < c->n_batch; i++) {
        dtr_p2p *p = &op->batch[i];
        *p = c->batch[i];
        size_t *at = p->is_send ? &in : &out;
        p->buf.data = (p->is_send ? slot->in : slot->out) + *at;
        p->buf.device = (dtr_device){ DTR_CPU, 0 };
        *at += p->buf.count * dtr_dtype_size(p->buf.dtype);
    }
}

static dtr_status make_part(dtr__stage_op *op, dtr_work *whole, dtr__slot *slot) {
    dtr__call c = whole->call;
    c.user_call = &whole->call;
    c.device = (dtr_device){ DTR_CPU, 0 };
    c.stream = NULL;
    c.premul_device = NULL;
    if (op->factor != NULL) {
        dtr__convert(&c.premul, DTR_F64, slot->factor, dtr__real_part(c.dtype), 1);
    }
    if (c.kind == DTR__K_BATCH) {
        place_batch(op, &whole->call, slot);
        c.batch = op->batch;
    } else { /* with one buffer both are the same memory */
        c.in = c.in != NULL ? slot->in : NULL;
        c.out = c.out != NULL ? slot->out : NULL;
    }
    if (op->cut) {
        c.in_count = c.in_count > 0 ? slot->n : 0;
        c.out_count = c.out_count > 0 ? slot->n : 0;
        c.fingerprint = dtr__mix(c.fingerprint, slot->first);
    }
    DTR_TRY(dtr__part_make(op->group, &c, &slot->part));
    slot->part->seq = whole->seq;
    slot->part->issue = whole->issue;
    return DTR_OK;
}

/* The chunk whose turn it is: from the end of its load to the beginning of its store. */
static dtr_status run(dtr__stage_op *op, dtr_work *whole, dtr__slot *slot, bool *moved) {
    bool ended = false, p2p = dtr__kind_is_p2p(whole->call.kind);
    *moved = false;
    if (slot->state == DTR__SLOT_LOADING) {
        DTR_TRY(ask(op->stage, slot, slot->loaded, whole->world, &ended));
        if (!ended || (p2p && op->ticket != op->stage->turn)) { /* messages keep their order */
            return DTR_OK;
        }
        look_for_nan(op, whole, slot);
        DTR_TRY(make_part(op, whole, slot));
        slot->state = DTR__SLOT_RUNNING;
        *moved = true;
    }
    bool first = !slot->part->started;
    DTR_TRY(dtr__part_move(op->group, whole, slot->part, &ended));
    if (first && p2p) {
        op->stage->turn++;
    }
    if (!ended) {
        return DTR_OK;
    }
    atomic_store_explicit(&slot->part->ended, 1, memory_order_relaxed);
    int source = atomic_load_explicit(&slot->part->source, memory_order_relaxed);
    atomic_store_explicit(&whole->source, source, memory_order_relaxed);
    dtr__work_unref(slot->part);
    slot->part = NULL;
    op->next_run++;
    *moved = true;
    return store(op, &whole->call, slot);
}

dtr_status dtr__stage_move(dtr__stage_op *op, dtr_work *whole, bool *done) {
    size_t slots = (size_t)op->n_slots;
    for (bool again = true; again && op->next_end < op->chunks;) {
        bool moved = false;
        again = false;
        if (op->next_load < op->chunks && op->next_load < op->next_end + slots) {
            DTR_TRY(load(op, &whole->call, op->slot[op->next_load % slots]));
            again = true;
        }
        if (op->next_run < op->next_load) {
            DTR_TRY(run(op, whole, op->slot[op->next_run % slots], &moved));
            again = again || moved;
        }
        if (op->next_end < op->next_run) {
            dtr__slot *slot = op->slot[op->next_end % slots];
            DTR_TRY(ask(op->stage, slot, slot->stored, whole->world, &moved));
            op->next_end += moved;
            again = again || moved;
        }
        whole->moved = whole->moved || again;
    }
    *done = op->next_end == op->chunks;
    return DTR_OK;
}
