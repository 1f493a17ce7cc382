/* Issuing an operation: checks, backend, numbers and record, then either inline in a blocking
 * caller or handed to the queue. */
#include <string.h>

#include "engine.h"
#include "fence.h"
#include "kernels/kernels.h"
#include "nccl/nccl_calls.h"
#include "repeat.h"
#include "rt_hash.h"
#include "scope.h"

enum { PASSES_PER_NEWS = 64 }; /* between two looks for news of broken groups */

void dtr__work_fill_record(const dtr_work *w, const char *site, unsigned flags, dtr__record *r) {
    const dtr__call *c = &w->call;
    bool p2p = dtr__kind_is_p2p(c->kind);
    double deadline = atomic_load_explicit(&w->deadline, memory_order_relaxed);
    *r = (dtr__record){ .group = w->group->id,
                        .seq = p2p ? 0 : w->seq,
                        .p2p_seq = p2p ? w->seq : 0,
                        .op_id = w->issue,
                        .kind = (uint8_t)c->kind,
                        .flags = (uint16_t)(flags | (p2p ? DTR__REC_P2P : 0) |
                                            (w->paired && c->n_batch == 0 ? DTR__REC_PAIRED : 0) |
                                            (w->inline_call ? DTR__REC_BLOCKING : 0)),
                        .state = DTR__REC_ISSUED,
                        .dtype_op = (uint8_t)((unsigned)c->dtype | (unsigned)c->op << 4),
                        .root_or_peer = c->root,
                        .tag = c->n_batch > 0 ? (int32_t)c->n_batch : c->tag,
                        .count_in = c->in_count,
                        .count_out = c->out_count,
                        .nbytes = (c->in_count > c->out_count ? c->in_count : c->out_count) *
                                  dtr_dtype_size(c->dtype),
                        .fingerprint = c->fingerprint,
                        .hash_in = w->hash_in,
                        .t_issued = c->issued_ns,
                        .deadline = deadline < 1e9 ? (int64_t)(deadline * 1e9) : 0 };
    memcpy(r->label, c->label, sizeof r->label);
    memcpy(r->site, site, sizeof r->site);
    if (c->kind == DTR__K_COALESCED || c->kind == DTR__K_COALESCED_P2P) {
        dtr__scope_sizes(w, r);
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
        one.dtype_op = (uint8_t)op->buf.dtype;
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
    w->record = dtr__rec_begin(w->world, &r);
    dtr__rec_stack(w->world, w->record, w->call.return_address);
    if (w->call.kind == DTR__K_BATCH) {
        r.flags |= w->paired ? DTR__REC_PAIRED : 0;
        dtr__batch_write_records(w->world, &r, w->call.batch, w->call.n_batch,
                                 dtr__batch_records(w));
    }
}

void dtr__work_mark(const dtr_work *w, dtr__rec_state state, dtr_status status) {
    dtr__rec_mark(w->world, w->record, state, status);
    if (w->call.kind == DTR__K_BATCH && w->record != 0) {
        const uint64_t *numbers = dtr__batch_records(w);
        for (size_t i = 0; i < w->call.n_batch; i++) {
            dtr__rec_mark(w->world, numbers[i], state, status);
        }
    }
}

void dtr__work_write_nan_error(dtr_work *w, const dtr_work *culprit) {
    char title[256];
    dtr__error_context ctx = dtr__work_context(culprit);
    (void)DTR_FAIL(&ctx, DTR_ERR_NAN, "%s: element %zu of the input of rank %d is NaN",
                   dtr__work_title(culprit, title, sizeof title), culprit->nan_index,
                   w->group->rank);
    w->error = dtr__error_save();
    dtr__notice_nan(w->group);
}

static void list(dtr_group *g, dtr_work *w) {
    w->next = NULL;
    w->prev = g->works.tail;
    *(g->works.tail != NULL ? &g->works.tail->next : &g->works.head) = w;
    g->works.tail = w;
}

static void queue(dtr_group *g, dtr_work *w) {
    w->run_next = NULL;
    *(g->incoming.tail != NULL ? &g->incoming.tail->run_next : &g->incoming.head) = w;
    g->incoming.tail = w;
}

/* What is to be queued counts as active before it has its numbers: a repeated call (repeat.c),
 * which takes its own without the queue's lock, sees it there if it comes later, or is waited for
 * (latch.h). An inline call has the latch. */
static void number(dtr_group *g, dtr_work *w) {
    _Atomic uint64_t *counter = dtr__kind_is_p2p(w->call.kind) ? &g->p2p_seq : &g->seq;
    if (!w->inline_call) {
        atomic_fetch_add_explicit(&g->active, 1, memory_order_seq_cst);
        dtr__latch_wait_numbered(g->world, g->progress);
    }
    w->seq = atomic_fetch_add_explicit(counter, 1, memory_order_acq_rel) + 1;
    w->issue = atomic_fetch_add_explicit(&g->issued, 1, memory_order_acq_rel) + 1;
}

bool dtr__work_list(dtr_group *g, dtr_work *w) {
    pthread_mutex_lock(&g->queue_lock);
    bool open = atomic_load_explicit(&g->status, memory_order_relaxed) == DTR_OK;
    if (open) {
        list(g, w);
        atomic_fetch_add_explicit(&g->open_works, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&g->queue_lock);
    return open;
}

bool dtr__work_admit(dtr_group *g, dtr_work *w, const char *site, bool listed) {
    pthread_mutex_lock(&g->queue_lock);
    bool open = atomic_load_explicit(&g->status, memory_order_relaxed) == DTR_OK;
    if (open) {
        number(g, w);
        dtr__work_write_record(w, site, 0);
        if (!listed) {
            list(g, w);
            if (!w->inline_call) {
                atomic_fetch_add_explicit(&g->open_works, 1, memory_order_relaxed);
            }
        }
        if (w->finish != NULL) {
            w->finish->taken = true;
        }
        if (w->composite != NULL && w->composite->number != NULL) {
            w->composite->number(w);
        } else if (w->own_status != DTR_OK) {
            dtr__work_write_nan_error(w, w);
        }
        if (!w->inline_call) {
            queue(g, w);
        }
    }
    pthread_mutex_unlock(&g->queue_lock);
    return open;
}

bool dtr__work_admit_captured(dtr_group *g, dtr_work *w, const char *site) {
    pthread_mutex_lock(&g->queue_lock);
    bool open = atomic_load_explicit(&g->status, memory_order_relaxed) == DTR_OK;
    if (open) {
        w->inline_call = true; /* it does not become active */
        number(g, w);
        w->inline_call = false;
        dtr__work_write_record(w, site, DTR__REC_CAPTURED);
        dtr__work_mark(w, DTR__REC_ENQUEUED, DTR_OK);
        atomic_store_explicit(&w->recording, DTR__RECORDING_GRAPH, memory_order_release);
        atomic_store_explicit(&w->ended, 1, memory_order_relaxed);
        atomic_store_explicit(&w->done, 1, memory_order_release);
    }
    pthread_mutex_unlock(&g->queue_lock);
    return open;
}

dtr_status dtr__group_broken(const dtr_group *g) {
    return dtr__error_restore(g->error,
                              (dtr_status)atomic_load_explicit(&g->status, memory_order_acquire));
}

static bool root_gives(const dtr__call *c) {
    return c->kind == DTR__K_BROADCAST || c->kind == DTR__K_SCATTER || c->kind == DTR__K_SCATTERV;
}

bool dtr__wants_nan_check(const dtr_group *g, const dtr__call *c) {
    bool on = g->nan_check > 0 ||
              (g->nan_check == 0 && dtr__opt_number(&g->world->options, DTR__OPT_NAN_CHECK) != 0);
    return on && c->kind != DTR__K_RECV && (!root_gives(c) || c->root == g->rank);
}

/* ---- hashes of host memory, DTR_HASH=1 ---- */

static uint64_t hash_of(const dtr__call *c, const void *data, size_t count) {
    bool there = data != NULL && count > 0 && c->device.type == DTR_CPU;
    return there ? dtr__hash_bytes(data, count * dtr_dtype_size(c->dtype)) : 0;
}

/* Of the root's input only, where there is a root that gives. */
static uint64_t hash_in(const dtr_group *g, const dtr__call *c) {
    bool gives = c->kind != DTR__K_RECV && (!root_gives(c) || c->root == g->rank);
    return gives ? hash_of(c, c->in, c->in_count) : 0;
}

void dtr__work_hash_out(const dtr_work *w) {
    const dtr__call *c = &w->call;
    bool root_takes =
        c->kind == DTR__K_REDUCE || c->kind == DTR__K_GATHER || c->kind == DTR__K_GATHERV;
    bool takes = c->kind != DTR__K_SEND && (!root_takes || c->root == w->group->rank);
    uint64_t hash = w->world->hashes && takes ? hash_of(c, c->out, c->out_count) : 0;
    if (hash != 0) {
        dtr__rec_hash_out(w->world, w->record, hash);
    }
}

/* What is sent in a batch counts as one input, in the order of its list. */
static void look_for_nan(dtr_work *w, const dtr__call *c) {
    w->nan_index = dtr__find_nan(c->in, c->in_count, c->dtype);
    bool found = w->nan_index < c->in_count;
    size_t before = 0, on_host = c->device.type == DTR_CPU ? c->n_batch : 0;
    for (size_t i = 0; i < on_host && !found; i++) {
        const dtr_buffer *b = &c->batch[i].buf;
        size_t count = c->batch[i].is_send ? b->count : 0;
        size_t at = count > 0 ? dtr__find_nan(b->data, count, b->dtype) : 0;
        found = at < count;
        w->nan_index = before + at;
        before += count;
    }
    w->own_status = found ? DTR_ERR_NAN : DTR_OK;
}

dtr_status dtr__work_describe(dtr_work *w, dtr_group *g, const dtr__call *c, const dtr__request *r,
                              int backend, bool inlined) {
    w->finish = r->finish;
    w->group = g;
    w->world = g->world;
    if (c != &w->call) {
        w->call = *c;
    }
    w->backend = g->backend[backend];
    w->backend_state = g->backend_state[backend];
    w->status = DTR_OK;
    w->error = NULL;
    w->request = NULL;
    w->callbacks = NULL;
    w->started = w->linked = w->paired = false;
    w->own_status = DTR_OK;
    w->composite = NULL;
    w->part = w->parts = 0;
    atomic_store_explicit(&w->recording, DTR__RECORDING_NOT, memory_order_relaxed);
    w->inline_call = inlined;
    atomic_store_explicit(&w->ended, 0, memory_order_relaxed);
    atomic_store_explicit(&w->done, 0, memory_order_relaxed);
    atomic_store_explicit(&w->source, -1, memory_order_relaxed);
    atomic_store_explicit(&w->limit, c->timeout_s, memory_order_relaxed);
    if (w->call.issued_ns == 0) {
        w->call.issued_ns = dtr__stamp_ns();
    }
    atomic_store_explicit(&w->deadline, (double)w->call.issued_ns * 1e-9 + c->timeout_s,
                          memory_order_relaxed);
    w->hash_in = g->world->hashes ? hash_in(g, c) : 0;
    if (dtr__wants_nan_check(g, c)) {
        look_for_nan(w, c);
    }
    if (c->in_counts == NULL && c->out_counts == NULL && c->n_batch == 0) {
        return DTR_OK;
    }
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    DTR_REQUIRE(dtr__work_own_arrays(w, g->size), &ctx, DTR_ERR_NOMEM,
                "%s on group '%s': out of memory for the list of operations or counts",
                dtr__kind_name(c->kind), g->name);
    return DTR_OK;
}

dtr_status dtr__work_make(dtr_group *g, int refs, dtr_work **w) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    *w = dtr__work_new(g->pool, refs);
    DTR_REQUIRE(*w != NULL, &ctx, DTR_ERR_NOMEM,
                "out of memory for an operation of group '%s' (%zu bytes)", g->name,
                sizeof(dtr_work));
    return DTR_OK;
}

/* Progress lock held; it is given away for callbacks and, where this thread is the only one that
 * moves things, for other groups. False: another thread has taken it meanwhile, which may be stuck
 * with it, so that the work was waited for without. */
static bool finish_inline(dtr_group *g, dtr_work *w) {
    bool help = !dtr__progress_has_thread(g->world);
    dtr__backoff backoff = { 0 };
    for (unsigned n = 1; w->linked; n++) {
        dtr__queue called = { NULL, NULL };
        bool moved = dtr__group_pass(g, &called);
        if (n % PASSES_PER_NEWS == 0) {
            dtr__notices_poll(g->world, &called);
        }
        bool others = help && n % DTR__PASSES_PER_HELP == 0 && w->linked;
        if (called.head != NULL || others) {
            dtr__latch_drop(g->progress);
            dtr__callbacks_run(&called);
            if (others) {
                dtr__progress_poll_all(g->world);
            }
            if (!dtr__latch_try(g->progress)) {
                dtr__work_block(w);
                return false;
            }
        }
        if (moved) {
            backoff = (dtr__backoff){ 0 };
        } else if (w->linked) {
            dtr__backoff_pause(g->world, &backoff);
        }
    }
    return true;
}

/* A blocking call in a work that this thread alone has; progress lock held, and afterwards *held.
 */
static dtr_status run_inline(dtr_group *g, dtr_work *w, const dtr__request *r, int backend,
                             bool *held) {
    dtr_status s = dtr__work_describe(w, g, &w->call, r, backend, true);
    if (s < 0) {
        return s;
    }
    atomic_store_explicit(&w->refs, 2, memory_order_relaxed);
    if (!dtr__work_admit(g, w, dtr__call_site_cached(&w->call), false)) {
        atomic_store_explicit(&w->refs, 1, memory_order_relaxed);
        return dtr__group_broken(g);
    }
    dtr__group_enter(g, w);
    *held = finish_inline(g, w);
    if (*held && w->status == DTR_OK && !dtr__wants_nan_check(g, &w->call)) {
        dtr__repeat_learn(g, r, w, backend);
    }
    return dtr__work_result(w);
}

dtr_status dtr__work_run_numbered(dtr_group *g, dtr_work *w, bool *held) {
    *held = true;
    atomic_store_explicit(&w->refs, 2, memory_order_relaxed);
    pthread_mutex_lock(&g->queue_lock);
    bool open = atomic_load_explicit(&g->status, memory_order_relaxed) == DTR_OK;
    if (open) {
        list(g, w);
    }
    pthread_mutex_unlock(&g->queue_lock);
    if (!open) {
        if (w->started) {
            w->backend->cancel(g, w->backend_state, w);
        }
        dtr_status s = dtr__group_broken(g);
        dtr__work_mark(w, DTR__REC_FAILED, s);
        atomic_store_explicit(&w->refs, 1, memory_order_relaxed);
        return s;
    }
    if (w->started) {
        dtr__group_enter_started(g, w);
    } else {
        dtr__group_enter(g, w);
    }
    *held = finish_inline(g, w);
    return dtr__work_result(w);
}

void dtr__work_keep_spare(dtr_group *g, dtr_work *w, bool held) {
    if (held && g->spare == NULL && w->error == NULL) {
        g->spare = w;
    } else {
        dtr__work_unref(w);
    }
}

void dtr__work_hand_over(dtr_group *g, const dtr_work *w) {
    if (dtr__latch_try(g->progress)) {
        dtr__queue called = { NULL, NULL };
        dtr__group_start_new(g, &called);
        dtr__latch_drop(g->progress);
        dtr__callbacks_run(&called);
    }
    if (!atomic_load_explicit(&w->ended, memory_order_acquire)) {
        dtr__progress_wake(g->world);
    }
}

static dtr_status run_async(dtr_group *g, const dtr__call *c, const dtr__request *r, int backend,
                            const char *site, dtr_work **work) {
    dtr_work *w;
    DTR_TRY(dtr__work_make(g, 2, &w));
    dtr_status s = dtr__work_describe(w, g, c, r, backend, false);
    s = s == DTR_OK && dtr__fence_wanted(r) ? dtr__fence_make(g, w) : s;
    if (s == DTR_OK && !dtr__work_admit(g, w, site, false)) {
        s = dtr__group_broken(g);
    }
    if (s != DTR_OK) {
        atomic_store_explicit(&w->refs, 1, memory_order_relaxed);
        dtr__work_unref(w);
        return s;
    }
    *work = w;
    dtr__work_hand_over(g, w);
    return DTR_OK;
}

/* A batch without entries is finished before it begins, and takes no number. */
static dtr_status run_nothing(dtr_group *g, const dtr__call *c, const dtr__request *r,
                              dtr_work **work) {
    dtr_work *w;
    if (work == NULL) {
        return DTR_OK;
    }
    DTR_TRY(dtr__work_make(g, 1, &w));
    (void)dtr__work_describe(w, g, c, r, 0, true);
    w->seq = 0;
    atomic_store_explicit(&w->ended, 1, memory_order_relaxed);
    atomic_store_explicit(&w->done, 1, memory_order_release);
    *work = w;
    return DTR_OK;
}

/* The candidate with the highest score; the first of equals. */
dtr_status dtr__choose_backend(const dtr_group *g, const dtr__call *c, int *best) {
    int best_score = 0;
    const char *why = NULL, *reason = NULL;
    for (int i = 0; i < g->n_backends; i++) {
        int score = g->backend[i]->score != NULL ? g->backend[i]->score(g, c, &why) : 1;
        if (score > best_score) {
            best_score = score;
            *best = i;
        } else if (score == 0 && reason == NULL) {
            reason = why;
        }
    }
    if (best_score == 0) {
        dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
        return DTR_FAIL(&ctx, DTR_ERR_UNSUPPORTED,
                        "%s on group '%s': no backend of '%s' can serve it%s%s",
                        dtr__kind_name(c->kind), g->name, g->backend_chosen,
                        reason != NULL ? ": " : "", reason != NULL ? reason : "");
    }
    return DTR_OK;
}

static dtr_status refuse_in_callback(const dtr_group *g, const dtr__request *r) {
    const char *kind = dtr__kind_name(r->kind);
    dtr__error_context ctx = { g->world, kind, g->name };
    return DTR_FAIL(
        &ctx, DTR_ERR_STATE,
        "%s on group '%s' without a work blocks, and this thread is inside a completion "
        "callback of the same world; ask for a work",
        kind, g->name);
}

/* Everything that may refuse a call before it gets its number. */
static dtr_status examine(dtr_group *g, const dtr__request *r, bool blocking, int64_t now,
                          dtr__call *c, int *backend) {
    dtr_status s = blocking && dtr__in_callback(g->world) ? refuse_in_callback(g, r)
                                                          : dtr__coll_check(g, r, blocking, c);
    if (s == DTR_OK) {
        s = dtr__choose_backend(g, c, backend);
    }
    if (s != DTR_OK) {
        dtr__call_site_drop();
        dtr__rec_refused(g->world, s);
        return s;
    }
    c->issued_ns = now;
    dtr__call_site_take(c, r->return_address);
    return DTR_OK;
}

static bool is_empty_batch(const dtr__call *c) {
    return c->kind == DTR__K_BATCH && c->n_batch == 0;
}

/* The progress lock was free: the caller moves the group itself, in a work kept for that. Gives the
 * lock back. */
static dtr_status issue_inline(dtr_group *g, const dtr__request *r, int64_t now) {
    int backend = 0;
    bool held = true;
    dtr_work *w = g->spare;
    dtr_status s = w != NULL ? DTR_OK : dtr__work_make(g, 1, &w);
    g->spare = NULL;
    if (s == DTR_OK) {
        s = examine(g, r, true, now, &w->call, &backend);
        if (s == DTR_OK && !is_empty_batch(&w->call)) {
            s = run_inline(g, w, r, backend, &held);
        }
        dtr__work_keep_spare(g, w, held);
    }
    if (held) {
        dtr__latch_drop(g->progress);
    }
    if (s < 0 && atomic_load_explicit(&g->status, memory_order_relaxed) != DTR_OK) {
        dtr__notices_visit(g->world); /* others may wait for the news */
    }
    return s;
}

static dtr_status issue_queued(dtr_group *g, const dtr__request *r, int64_t now, dtr_work **work) {
    dtr__call c;
    dtr_work *w = NULL;
    int backend = 0;
    DTR_TRY(examine(g, r, work == NULL, now, &c, &backend));
    if (is_empty_batch(&c)) {
        return run_nothing(g, &c, r, work);
    }
    const char *site = dtr__call_site_cached(&c);
    DTR_TRY(c.device.type != DTR_CPU ? dtr__device_issue(g, &c, r, site, &w)
                                     : run_async(g, &c, r, backend, site, &w));
    if (work != NULL) {
        *work = w;
        return DTR_OK;
    }
    dtr_status s = dtr_work_wait(w, -1); /* on a device the stream waits */
    dtr__work_unref(w);
    return s;
}

static dtr_status refuse_handle(const dtr_group *g, const dtr__request *r, dtr_work **work) {
    dtr__call_site_drop();
    dtr_status s = dtr__group_check(g, dtr__kind_entry(r->kind));
    if (s == DTR_NOT_MEMBER && work != NULL) {
        *work = NULL;
    }
    return s;
}

dtr_status dtr__coll_issue(dtr_group *g, const dtr__request *r, dtr_work **work) {
    if (g == NULL || g->magic != DTR__GROUP_MAGIC) {
        return refuse_handle(g, r, work);
    }
    dtr_status s;
    if (work == NULL && dtr__repeat_call(g, r, &s)) {
        return s;
    }
    int64_t now = dtr__stamp_ns();
    dtr__notices_visit_at(g->world, now); /* a late rank learns what the others have agreed on */
    if (atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
        dtr__call_site_drop();
        return dtr__group_broken(g);
    }
    if (atomic_load_explicit(&g->ending, memory_order_acquire)) {
        dtr__call_site_drop();
        return dtr__group_ending(g, dtr__kind_entry(r->kind));
    }
    dtr__scope *scope = atomic_load_explicit(&g->scope, memory_order_acquire);
    if (scope != NULL) {
        return dtr__scope_record(g, scope, r, work);
    }
    if (work == NULL && !dtr__request_on_device(r) && !dtr__fence_wanted(r) &&
        dtr__latch_try(g->progress)) {
        return issue_inline(g, r, now);
    }
    return issue_queued(g, r, now, work);
}
