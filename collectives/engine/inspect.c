/* Looking at the data of a call: NaN in inputs, and hashes. */
#include "core/check.h"
#include "core/team.h"
#include "engine.h"
#include "kernels/kernels.h"
#include "recorder/hash.h"

static bool gives(const dtr_group *g, const dtr__call *c) {
    return c->kind != DTR__K_RECV && (!dtr__root_gives(c->kind) || c->root == g->rank);
}

bool dtr__wants_nan_check(const dtr_group *g, const dtr__call *c) {
    bool on =
        g->asked.nan_check > 0 ||
        (g->asked.nan_check == 0 && dtr__opt_number(&g->world->options, DTR__OPT_NAN_CHECK) != 0);
    return on && gives(g, c);
}

/* ---- hashes of host memory, DTR_HASH=1 ---- */

static uint64_t hash_of(const dtr__call *c, const void *data, size_t count) {
    bool there = data != NULL && count > 0 && c->device.type == DTR_CPU;
    return there ? dtr__hash_bytes(data, count * dtr_dtype_size(c->dtype)) : 0;
}

/* Of the root's input only, where there is a root that gives. */
uint64_t dtr__work_hash_in(const dtr_group *g, const dtr__call *c) {
    return gives(g, c) ? hash_of(c, c->in, c->in_count) : 0;
}

void dtr__work_hash_out(const dtr_work *w) {
    const dtr__call *c = &w->call;
    bool takes = c->kind != DTR__K_SEND && (!dtr__root_takes(c->kind) || c->root == w->group->rank);
    uint64_t hash = w->world->recording.hashes && takes ? hash_of(c, c->out, c->out_count) : 0;
    if (hash != 0) {
        dtr__rec_hash_out(w->world, w->report.record, hash);
    }
}

/* What is sent in a batch counts as one input, in the order of its list. */
void dtr__work_look_for_nan(dtr_work *w, const dtr__call *c) {
    w->input.nan_index = dtr__find_nan(c->in, c->in_count, c->dtype);
    bool found = w->input.nan_index < c->in_count;
    size_t before = 0;
    for (size_t i = 0; i < c->n_batch && !found; i++) {
        const dtr_buffer *b = &c->batch[i].buf;
        size_t count = c->batch[i].is_send ? b->count : 0;
        size_t at = count > 0 ? dtr__find_nan(b->data, count, b->dtype) : 0;
        found = at < count;
        w->input.nan_index = before + at;
        before += count;
    }
    w->input.status = found ? DTR_ERR_NAN : DTR_OK;
}

void dtr__work_write_nan_error(dtr_work *w, const dtr_work *culprit) {
    char title[256];
    dtr__error_context ctx = dtr__work_context(culprit);
    (void)DTR_FAIL(&ctx, DTR_ERR_NAN, "%s: element %zu of the input of rank %d is NaN",
                   dtr__work_title(culprit, title, sizeof title), culprit->input.nan_index,
                   w->group->rank);
    w->error = dtr__error_save();
    dtr__failure_of(w->world)->notify_nan(w->group);
}

void dtr__work_found_nan(dtr_work *w, size_t at) {
    pthread_mutex_lock(&w->group->engine->queue_lock);
    if (!atomic_load_explicit(&w->ended, memory_order_relaxed) && w->input.status == DTR_OK) {
        w->input.nan_index = at;
        w->input.status = DTR_ERR_NAN;
        dtr__work_write_nan_error(w, w);
    }
    pthread_mutex_unlock(&w->group->engine->queue_lock);
}
