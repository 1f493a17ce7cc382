/* What the flight recorder gets of a work. */
#include <string.h>

#include "core/call_site.h"
#include "core/team.h"
#include "engine.h"

size_t dtr__work_nbytes(const dtr_work *w) {
    const dtr__call *c = &w->call;
    size_t nbytes = w->scope.nbytes;
    for (size_t i = 0; c->kind == DTR__K_BATCH && i < c->n_batch; i++) {
        nbytes += c->batch[i].buf.count * dtr_dtype_size(c->batch[i].buf.dtype);
    }
    return nbytes +
           (c->in_count > c->out_count ? c->in_count : c->out_count) * dtr_dtype_size(c->dtype);
}

void dtr__work_fill_record(const dtr_work *w, const char *site, unsigned flags, dtr__record *r) {
    const dtr__call *c = &w->call;
    bool p2p = dtr__kind_is_p2p(c->kind);
    double deadline = atomic_load_explicit(&w->limit.deadline, memory_order_relaxed);
    *r = (dtr__record){ .group = w->group->id,
                        .seq = p2p ? 0 : w->seq,
                        .p2p_seq = p2p ? w->seq : 0,
                        .op_id = w->issue,
                        .kind = (uint8_t)c->kind,
                        .flags = (uint8_t)(flags | (p2p ? DTR__REC_P2P : 0) |
                                           (w->paired && c->n_batch == 0 ? DTR__REC_PAIRED : 0) |
                                           (w->inline_call ? DTR__REC_BLOCKING : 0)),
                        .state = DTR__REC_ISSUED,
                        .dtype = (uint8_t)c->dtype,
                        .op = (uint8_t)dtr__op_code(c->op),
                        .root_or_peer = c->root,
                        .tag = c->n_batch > 0 ? (int32_t)c->n_batch : c->tag,
                        .count_in = c->in_count,
                        .count_out = c->out_count,
                        .nbytes = (c->in_count > c->out_count ? c->in_count : c->out_count) *
                                  dtr_dtype_size(c->dtype),
                        .fingerprint = c->fingerprint,
                        .hash_in = w->input.hash,
                        .t_issued = c->issued_ns,
                        .deadline = deadline < 1e9 ? dtr__monotonic_at(deadline) : 0 };
    memcpy(r->label, c->label, sizeof r->label);
    memcpy(r->site, site, sizeof r->site);
    if (w->composite != NULL && w->composite->sizes != NULL) {
        w->composite->sizes(w, r);
    }
}

/* One more record per entry of a batch; their numbers are behind the list. */
void dtr__batch_write_records(dtr_world *world, const dtr__record *r, const dtr_p2p *batch,
                              size_t n, uint64_t *numbers) {
    dtr__record one = *r;
    bool paired = (r->flags & DTR__REC_PAIRED) != 0;
    one.flags |= DTR__REC_MEMBER;
    for (size_t i = 0; i < n; i++) {
        const dtr_p2p *op = &batch[i];
        one.kind = op->is_send ? DTR__K_SEND : DTR__K_RECV;
        one.dtype = (uint8_t)op->buf.dtype;
        one.op = 0;
        one.root_or_peer = op->peer;
        one.tag = op->tag;
        one.count_in = one.count_out = op->buf.count;
        one.nbytes = op->buf.count * dtr_dtype_size(op->buf.dtype);
        one.fingerprint = paired ? numbers[i] : r->fingerprint;
        numbers[i] = dtr__rec_begin(world, &one);
    }
}

void dtr__work_write_record(dtr_work *w, const char *site, unsigned flags) {
    dtr__record r;
    dtr__work_fill_record(w, site, flags, &r);
    w->report.record = dtr__rec_begin(w->world, &r);
    dtr__rec_stack(w->world, w->report.record, w->call.return_address);
    if (w->call.kind == DTR__K_BATCH) {
        r.flags |= w->paired ? DTR__REC_PAIRED : 0;
        dtr__batch_write_records(w->world, &r, w->call.batch, w->call.n_batch,
                                 dtr__batch_records(w));
    }
}

void dtr__work_set_apart(dtr_work *w) {
    dtr__record r;
    if (!w->report.follows) {
        return;
    }
    w->report.follows = false;
    dtr__work_fill_record(w, dtr__call_site_cached(&w->call), DTR__REC_APART, &r);
    r.state = DTR__REC_STARTED;
    r.t_started = r.t_issued;
    w->report.record = dtr__rec_begin(w->world, &r);
}

void dtr__works_set_apart(dtr_group *g) {
    pthread_mutex_lock(&g->engine->queue_lock);
    for (dtr_work *w = g->engine->works.head; w != NULL; w = w->next) {
        dtr__work_set_apart(w);
    }
    g->calls.run.waiting = 0;
    pthread_mutex_unlock(&g->engine->queue_lock);
}

void dtr__work_mark_end(dtr_work *w, dtr_status s) {
    if (w->report.follows && s == DTR_OK) {
        w->report.follows = false;
        dtr__rec_message_came(&w->group->calls.run, w->seq);
        return;
    }
    dtr__work_set_apart(w);
    const bool simple = s == DTR_OK && !w->inline_call && w->call.kind != DTR__K_BATCH;
    if (simple && w->report.record != 0) {
        dtr__rec_finish(w->world, w->report.record, w->report.ended_ns);
    } else {
        dtr__work_mark(w, s == DTR_OK ? DTR__REC_FINISHED : DTR__REC_FAILED, s);
    }
}

void dtr__work_mark(const dtr_work *w, dtr__rec_state state, dtr_status status) {
    dtr__rec_mark(w->world, w->report.record, state, status);
    if (w->call.kind == DTR__K_BATCH && w->report.record != 0) {
        const uint64_t *numbers = dtr__batch_records(w);
        for (size_t i = 0; i < w->call.n_batch; i++) {
            dtr__rec_mark(w->world, numbers[i], state, status);
        }
    }
}
