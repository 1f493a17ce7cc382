/* The fast path of small blocking calls that come again: finding what is known of a call, running
 * it without a work, and handing it to the engine when it takes long. */
#include <stdlib.h>
#include <string.h>

#include "api/fast_path.h"
#include "base/float_mode.h"
#include "control/vote.h"
#include "core/backend.h"
#include "core/call_site.h"
#include "core/check.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "failure/notify.h"
#include "kernels/user_ops.h"
#include "recorder/recording.h"

enum {
    ENTRIES = 16,             /* per group; a power of two */
    PLACES = 4,               /* one behind the other in which an entry may be */
    POLLS_ALONE = 64,         /* before other groups must move, where there is no progress thread */
    POLLS_AT_FIRST = 24,      /* without a pause: so long others take to see a slot */
    POLLS_AT_ONCE = 32,       /* fewer take less than it is worth to read the clock again */
    POLLS_OVERSUBSCRIBED = 2, /* the same where each may give the processor away */
    CALLS_PER_VISIT = 64,     /* between two visits to the notifier */
    MESSAGES_PER_VISIT = 256, /* the same of messages with a work, for which more is to come */
    BATCH_MOST = DTR__REC_RUN_ENTRIES,
};

struct dtr__fast_paths {
    uint64_t last_id;
    dtr_work *ready; /* works for messages that were something else; progress lock */
    dtr__fast_path of[ENTRIES];
};

/* ---- finding ---- */

/* Its first place. Two calls that lie apart by an unlucky distance have the same one in every run.
 */
static size_t slot_of(const dtr__request *r) {
    uint64_t h = (uint64_t)(uintptr_t)r->return_address + r->in.count * UINT64_C(0x9e3779b1) +
                 (uint64_t)r->kind;
    return (size_t)(h * UINT64_C(0x9e3779b97f4a7c15) >> 60) % ENTRIES;
}

static bool same_shape(const dtr_buffer *a, const dtr_buffer *b) {
    return a->count == b->count && a->dtype == b->dtype && a->device.type == b->device.type &&
           a->device.index == b->device.index;
}

/* Pointers may differ from call to call: there must be memory, and the two must be apart. */
static bool fine_pointers(const dtr__fast_path *p, const dtr__request *r) {
    uintptr_t a = (uintptr_t)r->in.data, b = (uintptr_t)r->out.data;
    if (r->in.data == p->asked.in.data && r->out.data == p->asked.out.data) {
        return true;
    }
    if ((p->in_bytes > 0 && a == 0) || (p->out_bytes > 0 && b == 0)) {
        return false;
    }
    return p->in_bytes == 0 || p->out_bytes == 0 || a >= b + p->out_bytes || b >= a + p->in_bytes ||
           (a == b && p->may_be_same);
}

static bool same_counts(const size_t *own, const size_t *asked, const size_t *now, int n) {
    return own != NULL ? now != NULL && memcmp(own, now, (size_t)n * sizeof *own) == 0
                       : (asked == NULL) == (now == NULL);
}

static bool same_batch(const dtr_group *g, const dtr__fast_path *p, const dtr__request *r) {
    const dtr_p2p *a = p->call.batch, *b = r->batch;
    if (r->n_batch != p->call.n_batch || b == NULL) {
        return false;
    }
    for (size_t i = 0; i < r->n_batch; i++, a++, b++) {
        if (a->is_send != b->is_send || a->peer != b->peer || a->tag != b->tag ||
            a->buf.data != b->buf.data || !same_shape(&a->buf, &b->buf)) {
            return false;
        }
    }
    return dtr__work_reserve_batch(g->engine->spare, r->n_batch);
}

/* The work that a long call becomes copies the arrays, which must not fail once data is shown. */
static bool same_arrays(const dtr_group *g, const dtr__fast_path *p, const dtr__request *r) {
    const dtr__call *c = &p->call;
    if (c->n_batch > 0) {
        return same_batch(g, p, r);
    }
    return same_counts(c->in_counts, p->asked.in_counts, r->in_counts, g->size) &&
           same_counts(c->out_counts, p->asked.out_counts, r->out_counts, g->size) &&
           dtr__work_reserve_counts(g->engine->spare, g->size);
}

/* Of messages with a work, which have one buffer and no operator. */
static bool same_message(const dtr__fast_path *p, const dtr__request *r) {
    const dtr__request *q = &p->asked;
    return p->async && r->kind == q->kind && r->root == q->root && r->tag == q->tag &&
           r->options == NULL && r->finish == NULL && r->tag_word == q->tag_word &&
           same_shape(&r->in, &q->in) && dtr__call_site_is(&p->call, r->return_address) &&
           (r->in.data != NULL || p->in_bytes == 0);
}

static bool same_request(const dtr__fast_path *p, const dtr__request *r) {
    const dtr__request *q = &p->asked;
    return p->id != 0 && !p->async && r->kind == q->kind && r->op == q->op && r->root == q->root &&
           r->tag == q->tag && r->options == NULL && r->finish == NULL &&
           r->tag_word == q->tag_word && r->divisor == q->divisor && same_shape(&r->in, &q->in) &&
           same_shape(&r->out, &q->out) && dtr__call_site_is(&p->call, r->return_address) &&
           fine_pointers(p, r);
}

static inline dtr__fast_path *place(const dtr_group *g, size_t slot, size_t k) {
    return &g->calls.fast_paths->of[(slot + k) % ENTRIES];
}

/* Others may have given up what this call would still end well. */
static inline bool others_may_have_failed(const dtr__fast_path *p) {
    return p->failures != NULL &&
           atomic_load_explicit(p->failures, memory_order_relaxed) != p->failures_seen;
}

/* What is known of the call, NULL: nothing. */
static dtr__fast_path *entry_of(const dtr_group *g, const dtr__request *r, bool message) {
    const size_t slot = slot_of(r);
    for (size_t k = 0; k < PLACES && g->calls.fast_paths != NULL; k++) {
        dtr__fast_path *p = place(g, slot, k);
        if (message ? same_message(p, r) : same_request(p, r)) {
            return others_may_have_failed(p) ? NULL : p;
        }
    }
    return NULL;
}

static bool same_site(const dtr__call *a, const dtr__call *b) {
    return a->file == b->file && a->line == b->line && a->return_address == b->return_address;
}

/* Where a call is to be kept: where it is out of date, else where nothing is, else by turns. */
static dtr__fast_path *entry_for(const dtr_group *g, const dtr__request *r, const dtr_work *w) {
    const size_t slot = slot_of(r);
    dtr__fast_path *empty = NULL;
    for (size_t k = PLACES; k-- > 0;) {
        dtr__fast_path *p = place(g, slot, k);
        if (p->id == 0) {
            empty = p;
        } else if (p->async == !w->inline_call && p->asked.kind == r->kind &&
                   p->asked.in.count == r->in.count && same_site(&p->call, &w->call)) {
            return p;
        }
    }
    return empty != NULL ? empty : place(g, slot, g->calls.fast_paths->last_id % PLACES);
}

static inline bool is_open(const dtr_group *g) {
    return atomic_load_explicit(&g->status, memory_order_acquire) == DTR_OK &&
           atomic_load_explicit(&g->aside, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&g->calls.scope, memory_order_acquire) == NULL;
}

static bool is_idle(const dtr_group *g) {
    return g->engine->collectives.head == NULL && g->engine->p2p.head == NULL &&
           g->engine->spare != NULL &&
           atomic_load_explicit(&g->engine->active, memory_order_seq_cst) == 0 && is_open(g);
}

/* Nothing that was issued before has still to begin, or to get its numbers. */
static bool all_have_begun(const dtr_group *g) {
    return g->engine->p2p_unstarted == NULL &&
           atomic_load_explicit(&g->engine->active, memory_order_seq_cst) == g->engine->running &&
           is_open(g);
}

/* ---- learning ---- */

/* False: a failure of this group has been reported. A message ends alone with any backend. */
static bool watch_failures(const dtr_group *g, const dtr_work *w, dtr__fast_path *p) {
    const bool ends_alone = w->backend->ends_alone || dtr__kind_is_p2p(w->call.kind);
    p->failures = ends_alone ? g->engine->failures : NULL;
    if (p->failures == NULL) {
        return true;
    }
    p->failures_seen = atomic_load(p->failures);
    if (dtr__failure_record_is_put(g->world, g->uid)) {
        p->id = 0;
        return false;
    }
    return true;
}

static bool reserve(const dtr_group *g, dtr__fast_path *p, dtr__kind kind, bool arrays) {
    size_t n = (size_t)g->size;
    if (kind == DTR__K_BATCH && p->batch == NULL) {
        p->batch = calloc(BATCH_MOST, sizeof *p->batch + sizeof(uint64_t));
    }
    if (dtr__kind_is_p2p(kind)) {
        return kind != DTR__K_BATCH || p->batch != NULL;
    }
    if (p->moves.parts == NULL) {
        p->moves.parts = calloc(n, sizeof *p->moves.parts);
    }
    if (arrays && p->counts == NULL) {
        p->counts = calloc(2 * n, sizeof *p->counts);
    }
    return p->moves.parts != NULL && (!arrays || p->counts != NULL);
}

static void keep_counts(size_t *own, size_t **counts, int n) {
    if (own != NULL && *counts != NULL) {
        *counts = memcpy(own, *counts, (size_t)n * sizeof *own);
    }
}

static void free_all(dtr_group *g) {
    for (int i = 0; g->calls.fast_paths != NULL && i < ENTRIES; i++) {
        free(g->calls.fast_paths->of[i].moves.parts);
        free(g->calls.fast_paths->of[i].counts);
        free(g->calls.fast_paths->of[i].batch);
        dtr__works_free(g->calls.fast_paths->of[i].ready);
    }
    if (g->calls.fast_paths != NULL) {
        dtr__works_free(g->calls.fast_paths->ready);
    }
    free(g->calls.fast_paths);
    g->calls.fast_paths = NULL;
}

void dtr__fast_path_learn(dtr_group *g, const dtr__request *r, const dtr_work *w, int backend) {
    const dtr__rule *rule = &dtr__rules[r->kind];
    const dtr__call *c = &w->call;
    size_t size = dtr_dtype_size(c->dtype);
    if (g->world->recording.each_in_full || w->backend->fast_path_accept == NULL ||
        c->user_call != NULL || r->options != NULL || r->finish != NULL ||
        dtr__kind_is_made(r->kind) || c->n_batch > BATCH_MOST) {
        return;
    }
    if (g->calls.fast_paths == NULL) {
        g->calls.fast_paths = calloc(1, sizeof *g->calls.fast_paths);
        if (g->calls.fast_paths == NULL) {
            return; /* the next call goes the ordinary way, too */
        }
        g->calls.free_fast_paths = free_all;
    }
    dtr__fast_path *p = entry_for(g, r, w);
    if (!watch_failures(g, w, p) || !reserve(g, p, r->kind, rule->arrays) ||
        !w->backend->fast_path_accept(g, w->backend_state, c, &p->moves)) {
        return;
    }
    p->id = ++g->calls.fast_paths->last_id;
    p->asked = *r;
    p->backend = backend;
    p->call = *c;
    p->arrays = rule->arrays || c->n_batch > 0;
    p->p2p = dtr__kind_is_p2p(r->kind);
    p->async = !w->inline_call;
    keep_counts(p->counts, &p->call.in_counts, g->size);
    keep_counts(p->counts != NULL ? p->counts + g->size : NULL, &p->call.out_counts, g->size);
    if (c->n_batch > 0) {
        p->call.batch = memcpy(p->batch, c->batch, c->n_batch * sizeof *c->batch);
    }
    p->one_buffer = rule->one_buffer;
    p->may_be_same = rule->overlap == SAME_BUFFER;
    p->in_bytes = c->in_count * size;
    p->out_bytes = rule->one_buffer ? 0 : c->out_count * size;
    dtr__work_fill_record(w, dtr__call_site_cached(c), c->n_batch > 0 ? DTR__REC_TOGETHER : 0,
                          &p->record);
}

/* ---- running; progress lock held ---- */

/* Whether the caller may go on polling by itself: no other work waits, the group is whole. */
static bool alone(const dtr_group *g, unsigned polls, bool has_thread, dtr__backoff *backoff) {
    if (atomic_load_explicit(&g->engine->active, memory_order_relaxed) != 0 ||
        atomic_load_explicit(&g->status, memory_order_relaxed) != DTR_OK ||
        (!has_thread && polls >= POLLS_ALONE)) {
        return false;
    }
    return !dtr__backoff_due(g->world, backoff);
}

static uint64_t *records_of(const dtr__fast_path *p) {
    return (uint64_t *)(p->call.batch + p->call.n_batch);
}

/* The record of a call under way. */
typedef struct noted {
    uint64_t number; /* 0: it has none */
    bool follows;    /* it is the last of the group's run instead */
} noted;

static noted own_record(dtr_group *g, dtr__fast_path *p) {
    noted n = { 0, false };
    if (p->p2p && p->call.n_batch == 0) {
        n.number = dtr__rec_run_message(g->world, &g->calls.run, p->id, &p->record);
    } else {
        n.number = dtr__rec_run_begin(g->world, &g->calls.run, p->id, &p->record, p->call.n_batch);
    }
    if (p->call.n_batch > 0) {
        dtr__batch_write_records(g->world, &p->record, p->call.batch, p->call.n_batch,
                                 records_of(p));
    }
    return n;
}

static void finish_record(dtr_group *g, const dtr__fast_path *p, noted n, bool at_once) {
    if (n.follows) {
        dtr__rec_follower_ended(&g->calls.run, dtr__record_seq(&p->record));
        return;
    }
    if (n.number == 0) {
        return;
    }
    int64_t now = at_once ? p->call.issued_ns : dtr__stamp_ns();
    dtr__rec_finish(g->world, n.number, now); /* and so those of its entries */
}

typedef enum progress { NOT_BEGUN, UNDER_WAY, FINISHED } progress;

/* Poll until all others have come. A call that takes long gets a record of its own. */
static progress look(dtr_group *g, dtr__fast_path *p, noted *n) {
    const dtr__backend *b = g->backends.table[p->backend];
    void *state = g->backends.state[p->backend];
    bool has_thread = dtr__progress_has_thread(g->world);
    unsigned at_once = g->world->cpus.oversubscribed ? POLLS_OVERSUBSCRIBED : POLLS_AT_ONCE;
    unsigned at_first = g->world->cpus.oversubscribed ? 0 : POLLS_AT_FIRST;
    /* To give the processor away twice takes twice as long. */
    dtr__backoff backoff = { .elsewhere = g->world->cpus.mpi_yields && b->asks_mpi && !p->p2p };
    for (unsigned polls = 1;; polls++) {
        int found = b->fast_path_poll(g, state, p);
        if (found > 0) {
            finish_record(g, p, *n, polls < at_once && !p->moves.zero && !p->moves.whole);
            return FINISHED;
        }
        bool over = found < 0 || (polls > at_first && !alone(g, polls, has_thread, &backoff));
        if (n->follows && (over || polls == at_once)) {
            *n = own_record(g, p);
        }
        if (over) {
            return UNDER_WAY;
        }
    }
}

/* Issue time and record come after the start: they are made while the data is on its way. */
static progress run(dtr_group *g, dtr__fast_path *p, uint64_t *record) {
    noted n = { 0, false };
    bool begun =
        g->backends.table[p->backend]->fast_path_start(g, g->backends.state[p->backend], p);
    const dtr__float_mode mode = dtr__float_enter(); /* here it costs nothing, too */
    p->call.issued_ns = dtr__stamp_ns();
    p->record.t_issued = p->call.issued_ns;
    const int64_t limit_ns = atomic_load_explicit(&g->limit_ns, memory_order_relaxed);
    p->record.deadline = limit_ns > 0 ? p->call.issued_ns + limit_ns : 0;
    if (!g->world->recording.unrecorded) {
        n.follows = begun && dtr__rec_follow(g->world, &g->calls.run, p->id,
                                             dtr__record_seq(&p->record), p->call.issued_ns);
        n = n.follows ? n : own_record(g, p);
    }
    progress how = begun ? look(g, p, &n) : NOT_BEGUN;
    dtr__float_leave(mode);
    *record = n.number;
    return how;
}

/* What has not ended at once becomes the work kept for blocking calls. */
static dtr_status go_on(dtr_group *g, dtr__fast_path *p, const dtr__request *r, uint64_t record,
                        bool started, bool *held) {
    dtr_work *w = g->engine->spare;
    g->engine->spare = NULL;
    p->call.timeout_s = g->timeout_s;                              /* such a call has no options */
    (void)dtr__work_describe(w, g, &p->call, r, p->backend, true); /* arrays are reserved */
    w->seq = p->p2p ? p->record.p2p_seq : p->record.seq;
    w->issue = p->record.op_id;
    w->report.record = record;
    if (record == 0) {
        dtr__work_write_record(w, dtr__call_site_cached(&w->call), 0);
    } else if (p->call.n_batch > 0) {
        memcpy(dtr__batch_records(w), records_of(p), p->call.n_batch * sizeof(uint64_t));
    }
    if (started) {
        w->started = true;
        w->backend->fast_path_to_work(g, w->backend_state, w);
    }
    dtr_status s = dtr__work_run_numbered(g, w, held);
    dtr__work_keep_spare(g, w, *held);
    return s;
}

/* Nobody else counts meanwhile, see engine/progress_lock.h. */
static uint64_t next(_Atomic uint64_t *counter) {
    uint64_t n = atomic_load_explicit(counter, memory_order_relaxed) + 1;
    atomic_store_explicit(counter, n, memory_order_release);
    return n;
}

/* The lock is held as NUMBERING, and afterwards as HELD. Returns its number. */
static uint64_t begin_again(dtr_group *g, dtr__fast_path *p, const dtr__request *r) {
    dtr__call_site_drop();
    p->call.in = p->in_bytes > 0 ? r->in.data : NULL;
    p->call.out = p->one_buffer ? r->in.data : p->out_bytes > 0 ? r->out.data : NULL;
    p->call.issued_ns = 0;
    const uint64_t seq = next(p->p2p ? &g->count.p2p_seq : &g->count.seq);
    *(p->p2p ? &p->record.p2p_seq : &p->record.seq) = seq;
    p->record.op_id = next(&g->engine->issued);
    dtr__progress_lock_numbered(g->engine->progress);
    return seq;
}

/* The same of a message with a work. */
static uint64_t begin_message(dtr_group *g, dtr__fast_path *p, const dtr__request *r) {
    dtr__call_site_drop();
    p->call.in = p->call.out = p->in_bytes > 0 ? r->in.data : NULL;
    p->record.p2p_seq = next(&g->count.p2p_seq);
    p->record.op_id = next(&g->engine->issued);
    dtr__progress_lock_numbered(g->engine->progress);
    return p->record.p2p_seq;
}

bool dtr__fast_path_call(dtr_group *g, const dtr__request *r, dtr_status *status) {
    uint64_t record = 0;
    bool held = true;
    if (!dtr__progress_lock_try_as(g->engine->progress, DTR__PROGRESS_LOCK_NUMBERING)) {
        return false;
    }
    dtr__fast_path *p = entry_of(g, r, false);
    const bool own_op = dtr__op_is_user(r->op);
    if (p == NULL || !is_idle(g) || dtr__in_callback(g->world) ||
        (p->arrays && !same_arrays(g, p, r)) || (own_op && !dtr__user_op_take(r->op))) {
        dtr__progress_lock_release(g->engine->progress);
        return false;
    }
    const uint64_t seq = begin_again(g, p, r);
    *status = DTR_OK;
    progress how = run(g, p, &record);
    if (how != FINISHED) {
        *status = go_on(g, p, r, record, how == UNDER_WAY, &held);
    }
    if (own_op) {
        dtr__user_op_give(r->op);
    }
    if (held && how == NOT_BEGUN && !p->p2p) {
        p->id = 0; /* other memory: the next call finds out anew */
    }
    if (held) {
        dtr__progress_lock_release(g->engine->progress);
    }
    if (seq % CALLS_PER_VISIT == 0 || *status < 0) {
        dtr__notifier_visit(g->world);
    }
    return true;
}

/* ---- messages with a work ---- */

void dtr__fast_path_learn_message(dtr_group *g, const dtr__request *r, const dtr_work *w,
                                  int backend) {
    if ((r->kind != DTR__K_SEND && r->kind != DTR__K_RECV) || r->options != NULL || r->root < 0 ||
        w->backend->fast_path_message == NULL || dtr__wants_nan_check(g, &w->call) ||
        !dtr__progress_lock_try(g->engine->progress)) {
        return;
    }
    if (w->started && is_open(g)) {
        dtr__fast_path_learn(g, r, w, backend);
    }
    dtr__progress_lock_release(g->engine->progress);
}

/* Notes in the recording that a message has begun, and is over or waits. Returns its record, 0: it
 * has none. */
static uint64_t note_message(dtr_group *g, dtr__fast_path *p, bool over, bool *follows) {
    dtr__record *rec = &p->record;
    dtr__rec_run *run = &g->calls.run;
    const int64_t now = p->call.issued_ns;
    const int64_t limit_ns = atomic_load_explicit(&g->limit_ns, memory_order_relaxed);
    const bool counted = g->world->recording.counters != NULL;
    *follows = false;
    if (g->world->recording.unrecorded) {
        return 0;
    }
    if (dtr__rec_follow_message(g->world, run, p->id, rec->p2p_seq, now, over)) {
        *follows = !over;
        return 0;
    }
    if (run->waiting != 0) {
        dtr__works_set_apart(g);
    }
    rec->t_issued = rec->t_started = now;
    rec->deadline = limit_ns > 0 ? now + limit_ns : 0;
    rec->t_finished = over && !counted ? now : 0;
    const uint8_t state = over && !counted ? DTR__REC_FINISHED : DTR__REC_STARTED;
    if (rec->state != state) { /* a byte just written would keep its word from being read */
        rec->state = state;
    }
    const uint64_t number = dtr__rec_run_message(g->world, run, p->id, rec);
    if (over && counted) {
        dtr__rec_finish(g->world, number, now);
    }
    return number;
}

static void is_over(dtr_work *w) {
    w->report.ended_ns = w->call.issued_ns;
    atomic_store_explicit(&w->source, w->call.root, memory_order_relaxed);
    atomic_store_explicit(&w->ended, 1, memory_order_relaxed);
    atomic_store_explicit(&w->done, 1, memory_order_release);
}

/* Each goes back to the entry that described it last. */
static void sort_idle(dtr_group *g) {
    for (dtr_work *w = dtr__works_take_idle(g->engine), *next; w != NULL; w = next) {
        dtr_work **list =
            w->memory.like != NULL ? &w->memory.like->ready : &g->calls.fast_paths->ready;
        next = w->next;
        w->next = *list;
        *list = w;
    }
}

static dtr_work *take_work(dtr_group *g, dtr__fast_path *p) {
    if (p->ready == NULL) {
        sort_idle(g);
    }
    dtr_work **list = p->ready != NULL ? &p->ready : &g->calls.fast_paths->ready;
    return dtr__work_take_from(g->engine, list);
}

/* What has ended well and was such a message before needs little. */
static void describe(dtr_group *g, dtr__fast_path *p, dtr_work *w, bool over) {
    p->call.timeout_s = atomic_load_explicit(&g->timeout_s, memory_order_relaxed);
    if (w->memory.like != p || w->memory.like_id != p->id || w->status != DTR_OK) {
        dtr__work_describe_again(w, g, &p->call, p->backend);
        w->memory.like = p;
        w->memory.like_id = p->id;
    } else {
        w->call.in = w->call.out = p->call.out;
        w->call.issued_ns = p->call.issued_ns;
        w->call.timeout_s = p->call.timeout_s;
        if (!over) {
            dtr__work_reopen(w);
        }
    }
}

bool dtr__fast_path_issue(dtr_group *g, const dtr__request *r, dtr_work **work,
                          dtr_status *status) {
    if (!dtr__kind_is_p2p(r->kind) ||
        !dtr__progress_lock_try_as(g->engine->progress, DTR__PROGRESS_LOCK_NUMBERING)) {
        return false;
    }
    dtr__fast_path *p = entry_of(g, r, true);
    dtr_work *w = p != NULL && all_have_begun(g) ? take_work(g, p) : NULL;
    if (w == NULL) {
        dtr__progress_lock_release(g->engine->progress);
        return false;
    }
    const dtr__backend *b = g->backends.table[p->backend];
    void *state = g->backends.state[p->backend];
    const uint64_t seq = begin_message(g, p, r);
    const int found = b->fast_path_message(g, state, p);
    p->call.issued_ns = dtr__stamp_ns();
    describe(g, p, w, found > 0);
    w->seq = seq;
    w->issue = p->record.op_id;
    w->report.record = note_message(g, p, found > 0, &w->report.follows);
    *status = DTR_OK;
    if (found > 0) {
        is_over(w);
        dtr__progress_lock_release(g->engine->progress);
    } else {
        w->started = found == 0;
        if (w->started) {
            b->fast_path_to_work(g, state, w);
        }
        *status = dtr__work_go_on(g, w);
    }
    if (*status == DTR_OK) {
        *work = w;
    }
    if (seq % MESSAGES_PER_VISIT == 0 || *status < 0) {
        dtr__notifier_visit(g->world);
    }
    return true;
}
