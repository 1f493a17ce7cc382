/* Repeats of small blocking operations: finding what is known of a call, running it without a
 * work, and handing it to the engine when it takes long. */
#include <stdlib.h>
#include <string.h>

#include "coll_check.h"
#include "repeat.h"
#include "rt_recording.h"

enum {
    REPEATS = 16,        /* per group; a power of two */
    LOOKS_ALONE = 64,    /* before other groups must move, where there is no progress thread */
    LOOKS_AT_FIRST = 24, /* without a pause, which is as long as a post takes to be seen */
    LOOKS_AT_ONCE = 32,  /* fewer take less than it is worth to look at the time again */
    LOOKS_CROWDED = 2,   /* the same where each may give the processor away */
    CALLS_PER_NEWS = 64, /* between two looks for news of broken groups */
    BATCH_MOST = DTR__REC_RUN_ENTRIES,
};

struct dtr__repeats {
    uint64_t last_id;
    uint64_t noted; /* id of the messages that have a record of their own last */
    dtr__repeat of[REPEATS];
};

/* ---- finding ---- */

static size_t slot_of(const dtr__request *r) {
    uint64_t h = (uint64_t)(uintptr_t)r->return_address + r->in.count * UINT64_C(0x9e3779b1) +
                 (uint64_t)r->kind;
    return (size_t)(h * UINT64_C(0x9e3779b97f4a7c15) >> 60) % REPEATS;
}

static bool same_shape(const dtr_buffer *a, const dtr_buffer *b) {
    return a->count == b->count && a->dtype == b->dtype && a->device.type == b->device.type &&
           a->device.index == b->device.index;
}

/* Pointers may differ from call to call: there must be memory, and the two must be apart. */
static bool fine_pointers(const dtr__repeat *p, const dtr__request *r) {
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

static bool same_batch(const dtr_group *g, const dtr__repeat *p, const dtr__request *r) {
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
    return dtr__work_reserve_batch(g->spare, r->n_batch);
}

/* The work that a long call becomes copies the arrays, which must not fail once data is shown. */
static bool same_arrays(const dtr_group *g, const dtr__repeat *p, const dtr__request *r) {
    const dtr__call *c = &p->call;
    if (c->n_batch > 0) {
        return same_batch(g, p, r);
    }
    return same_counts(c->in_counts, p->asked.in_counts, r->in_counts, g->size) &&
           same_counts(c->out_counts, p->asked.out_counts, r->out_counts, g->size) &&
           dtr__work_reserve_counts(g->spare, g->size);
}

static bool same_request(const dtr__repeat *p, const dtr__request *r) {
    const dtr__request *q = &p->asked;
    return p->id != 0 && r->kind == q->kind && r->op == q->op && r->root == q->root &&
           r->tag == q->tag && r->options == NULL && r->finish == NULL &&
           r->tag_word == q->tag_word && r->divisor == q->divisor && same_shape(&r->in, &q->in) &&
           same_shape(&r->out, &q->out) && dtr__call_site_is(&p->call, r->return_address) &&
           fine_pointers(p, r);
}

static bool is_idle(const dtr_group *g) {
    return g->collectives.head == NULL && g->p2p.head == NULL && g->spare != NULL &&
           atomic_load_explicit(&g->active, memory_order_seq_cst) == 0 &&
           atomic_load_explicit(&g->status, memory_order_acquire) == DTR_OK &&
           !atomic_load_explicit(&g->ending, memory_order_relaxed) &&
           atomic_load_explicit(&g->scope, memory_order_acquire) == NULL;
}

/* ---- learning ---- */

static bool need_room(const dtr_group *g, dtr__repeat *p, dtr__kind kind, bool arrays) {
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

void dtr__repeat_learn(dtr_group *g, const dtr__request *r, const dtr_work *w, int backend) {
    const dtr__rule *rule = &dtr__rules[r->kind];
    const dtr__call *c = &w->call;
    size_t size = dtr_dtype_size(c->dtype);
    if (g->world->each_in_full || w->backend->repeat_accept == NULL || c->told != NULL ||
        r->options != NULL || r->finish != NULL || (unsigned)r->kind > DTR__K_BATCH ||
        c->n_batch > BATCH_MOST) {
        return;
    }
    if (g->repeats == NULL) {
        g->repeats = calloc(1, sizeof *g->repeats);
        if (g->repeats == NULL) {
            return; /* the next call goes the ordinary way, too */
        }
    }
    dtr__repeat *p = &g->repeats->of[slot_of(r)];
    if (!need_room(g, p, r->kind, rule->arrays) ||
        !w->backend->repeat_accept(g, w->backend_state, c, &p->moves)) {
        return;
    }
    p->id = ++g->repeats->last_id;
    p->asked = *r;
    p->backend = backend;
    p->call = *c;
    p->arrays = rule->arrays || c->n_batch > 0;
    p->p2p = dtr__kind_is_p2p(r->kind);
    keep_counts(p->counts, &p->call.in_counts, g->size);
    keep_counts(p->counts != NULL ? p->counts + g->size : NULL, &p->call.out_counts, g->size);
    if (c->n_batch > 0) {
        p->call.batch = memcpy(p->batch, c->batch, c->n_batch * sizeof *c->batch);
    }
    p->one_buffer = rule->one_buffer;
    p->may_be_same = rule->overlap == SAME_BUFFER;
    p->in_bytes = c->in_count * size;
    p->out_bytes = rule->one_buffer ? 0 : c->out_count * size;
    p->limit_ns = c->timeout_s < 1e9 ? (int64_t)(c->timeout_s * 1e9) : 0;
    dtr__work_fill_record(w, dtr__call_site_cached(c), c->n_batch > 0 ? DTR__REC_TOGETHER : 0,
                          &p->record);
}

void dtr__repeats_free(dtr_group *g) {
    for (int i = 0; g->repeats != NULL && i < REPEATS; i++) {
        free(g->repeats->of[i].moves.parts);
        free(g->repeats->of[i].counts);
        free(g->repeats->of[i].batch);
    }
    free(g->repeats);
    g->repeats = NULL;
}

/* ---- running; progress lock held ---- */

/* Whether the caller may go on looking by itself: nobody waits to be moved, the group is whole. */
static bool alone(const dtr_group *g, unsigned looks, bool has_thread, dtr__backoff *backoff) {
    if (atomic_load_explicit(&g->active, memory_order_relaxed) != 0 ||
        atomic_load_explicit(&g->status, memory_order_relaxed) != DTR_OK ||
        (!has_thread && looks >= LOOKS_ALONE)) {
        return false;
    }
    return !dtr__backoff_due(g->world, backoff);
}

static uint64_t *records_of(const dtr__repeat *p) {
    return (uint64_t *)(p->call.batch + p->call.n_batch);
}

/* The record of a call under way. */
typedef struct noted {
    uint64_t number; /* 0: it has none */
    bool follows;    /* it is the last of the group's run instead */
} noted;

/* Sends and receives in turn, which nothing would follow, do not begin runs. */
static noted own_record(dtr_group *g, const dtr__repeat *p) {
    noted n = { 0, false };
    if (p->p2p && g->repeats->noted != p->id) {
        g->repeats->noted = p->id;
        n.number = dtr__rec_begin(g->world, &p->record);
    } else {
        n.number = dtr__rec_lead(g->world, &g->run, p->id, &p->record, p->call.n_batch);
    }
    if (p->call.n_batch > 0) {
        dtr__batch_write_records(g->world, &p->record, p->call.batch, p->call.n_batch,
                                 records_of(p));
    }
    return n;
}

static void finish_record(dtr_group *g, const dtr__repeat *p, noted n, bool at_once) {
    if (n.follows) {
        dtr__rec_follower_ended(&g->run, dtr__record_seq(&p->record));
        return;
    }
    if (n.number == 0) {
        return;
    }
    int64_t now = at_once ? p->call.issued_ns : dtr__stamp_ns();
    dtr__rec_finish(g->world, n.number, now); /* and so those of its entries */
}

typedef enum progress { NOT_BEGUN, UNDER_WAY, FINISHED } progress;

/* Look for the others' posts. A call that takes long gets a record of its own. */
static progress look(dtr_group *g, dtr__repeat *p, noted *n) {
    const dtr__backend *b = g->backend[p->backend];
    void *state = g->backend_state[p->backend];
    bool has_thread = dtr__progress_has_thread(g->world);
    unsigned at_once = g->world->crowded ? LOOKS_CROWDED : LOOKS_AT_ONCE;
    unsigned at_first = g->world->crowded ? 0 : LOOKS_AT_FIRST;
    /* To give the processor away twice takes twice as long. */
    dtr__backoff backoff = { .elsewhere = g->world->mpi_yields && b->asks_mpi && !p->p2p };
    for (unsigned looks = 1;; looks++) {
        int found = b->repeat_look(g, state, p);
        if (found > 0) {
            finish_record(g, p, *n, looks < at_once && !p->moves.zero);
            return FINISHED;
        }
        bool over = found < 0 || (looks > at_first && !alone(g, looks, has_thread, &backoff));
        if (n->follows && (over || looks == at_once)) {
            *n = own_record(g, p);
        }
        if (over) {
            return UNDER_WAY;
        }
    }
}

/* Issue time and record come after the post: they are made while it is on its way. */
static progress run(dtr_group *g, dtr__repeat *p, uint64_t *record) {
    noted n = { 0, false };
    bool begun = g->backend[p->backend]->repeat_post(g, g->backend_state[p->backend], p);
    p->call.issued_ns = dtr__stamp_ns();
    p->record.t_issued = p->call.issued_ns;
    p->record.deadline = p->limit_ns > 0 ? p->call.issued_ns + p->limit_ns : 0;
    if (!g->world->unrecorded) {
        n.follows = begun && dtr__rec_follow(g->world, &g->run, p->id, dtr__record_seq(&p->record),
                                             p->call.issued_ns);
        n = n.follows ? n : own_record(g, p);
    }
    progress how = begun ? look(g, p, &n) : NOT_BEGUN;
    *record = n.number;
    return how;
}

/* What has not ended at once becomes the work kept for blocking calls. */
static dtr_status go_on(dtr_group *g, dtr__repeat *p, const dtr__request *r, uint64_t record,
                        bool started, bool *held) {
    dtr_work *w = g->spare;
    g->spare = NULL;
    (void)dtr__work_describe(w, g, &p->call, r, p->backend, true); /* room for arrays is there */
    w->seq = p->p2p ? p->record.p2p_seq : p->record.seq;
    w->issue = p->record.op_id;
    w->record = record;
    if (record == 0) {
        dtr__work_write_record(w, dtr__call_site_cached(&w->call), 0);
    } else if (p->call.n_batch > 0) {
        memcpy(dtr__batch_records(w), records_of(p), p->call.n_batch * sizeof(uint64_t));
    }
    if (started) {
        w->started = true;
        w->backend->repeat_go_on(g, w->backend_state, w);
    }
    dtr_status s = dtr__work_run_numbered(g, w, held);
    dtr__work_keep_spare(g, w, *held);
    return s;
}

/* Nobody else counts meanwhile, see latch.h. */
static uint64_t next(_Atomic uint64_t *counter) {
    uint64_t n = atomic_load_explicit(counter, memory_order_relaxed) + 1;
    atomic_store_explicit(counter, n, memory_order_release);
    return n;
}

bool dtr__repeat_call(dtr_group *g, const dtr__request *r, dtr_status *status) {
    uint64_t record = 0;
    bool held = true;
    if (!dtr__latch_try_as(g->progress, DTR__LATCH_NUMBERING)) {
        return false;
    }
    dtr__repeat *p = g->repeats != NULL ? &g->repeats->of[slot_of(r)] : NULL;
    if (p == NULL || !same_request(p, r) || !is_idle(g) || dtr__in_callback(g->world) ||
        (p->arrays && !same_arrays(g, p, r))) {
        dtr__latch_drop(g->progress);
        return false;
    }
    dtr__call_site_drop();
    p->call.in = p->in_bytes > 0 ? r->in.data : NULL;
    p->call.out = p->one_buffer ? r->in.data : p->out_bytes > 0 ? r->out.data : NULL;
    p->call.issued_ns = 0;
    uint64_t seq = next(p->p2p ? &g->p2p_seq : &g->seq);
    *(p->p2p ? &p->record.p2p_seq : &p->record.seq) = seq;
    p->record.op_id = next(&g->issued);
    dtr__latch_numbered(g->progress);
    *status = DTR_OK;
    progress how = run(g, p, &record);
    if (how != FINISHED) {
        *status = go_on(g, p, r, record, how == UNDER_WAY, &held);
    }
    if (held && how == NOT_BEGUN && !p->p2p) {
        p->id = 0; /* other memory: the next call finds out anew */
    }
    if (held) {
        dtr__latch_drop(g->progress);
    }
    if (seq % CALLS_PER_NEWS == 0 || *status < 0) {
        dtr__notices_visit(g->world);
    }
    return true;
}
