/* What readers of a recording get of calls that have no record, or none of their end, of their
 * own: those that followed another one closely, and the entries of batches. What is read may be
 * damaged. */
#include <string.h>

#include "recorder/recording.h"

/* ---- calls that followed a record ---- */

/* Those of one record, and how many of them have ended. */
typedef struct followers {
    uint64_t n, ended; /* how many there are; of those before the last one all but: */
    uint64_t waiting;  /* bit number % 64 of each that is under way */
    uint64_t turns;    /* records that they follow in turn, up to this one */
    int64_t t;         /* issue of the last one */
} followers;

/* Messages that followed others, but have a record of their own. */
enum { APART_MOST = 256 };
typedef struct apart {
    size_t n;
    struct {
        uint32_t group;
        uint64_t p2p_seq;
    } of[APART_MOST];
} apart;

/* The newest ones. */
static void find_apart(const dtr__record *all, size_t n, apart *a) {
    a->n = 0;
    for (size_t i = n; i > 0 && a->n < APART_MOST; i--) {
        const dtr__record *rec = &all[i - 1];
        if ((rec->flags & DTR__REC_APART) != 0) {
            a->of[a->n].group = rec->group;
            a->of[a->n++].p2p_seq = rec->p2p_seq;
        }
    }
}

static bool is_apart(const apart *a, const dtr__record *rec) {
    size_t i = 0;
    while (i < a->n && (a->of[i].group != rec->group || a->of[i].p2p_seq != rec->p2p_seq)) {
        i++;
    }
    return i < a->n;
}

static followers followers_of(const dtr__recording *r, const dtr__record *rec) {
    const uint64_t first = dtr__record_seq(rec), n = (uint32_t)rec->follower;
    followers f = { n, n, 0, (rec->follower >> 32) + 1, rec->t_follower };
    const dtr__rec_group *g = dtr__recording_group(r, rec->group);
    if (g != NULL && atomic_load(&g->followers.record) == rec->number) {
        uint64_t begun = atomic_load(&g->followers.begun), ended = atomic_load(&g->followers.ended);
        f.n = begun - first;
        f.turns = atomic_load(&g->followers.turns);
        f.waiting = atomic_load(&g->followers.waiting);
        f.t = atomic_load(&g->followers.t_begun);
        f.ended = ended >= begun ? f.n : f.n - 1;
    }
    if (f.n >= DTR__REC_RUN_MOST || f.turns < 1 || f.turns > DTR__REC_RUN_TURNS || first == 0 ||
        first >= UINT64_C(1) << 62 || !dtr__rec_is_time(f.t)) {
        f.n = 0;
    }
    return f;
}

/* Whether the records before `rec`, of which there are `before`, are those of messages in turn. */
static bool have_turns(const dtr__record *rec, size_t before, uint64_t turns) {
    for (uint64_t i = 1; i < turns; i++) {
        const dtr__record *one = rec - i;
        if (before < i || one->group != rec->group || one->number != rec->number - i ||
            one->seq != 0 || rec->seq != 0 || one->p2p_seq != rec->p2p_seq - i) {
            return false;
        }
    }
    return true;
}

/* The k'th call behind `rec`, which is like `like`. Only the last one's time is known; the others
 * lie between. */
static dtr__record follower(const dtr__record *rec, const dtr__record *like, const followers *f,
                            uint64_t k) {
    dtr__record one = *like;
    int64_t limit = dtr__rec_is_time(like->deadline) ? like->deadline - like->t_issued : 0;
    int64_t from = rec->t_finished > rec->t_issued ? rec->t_finished : rec->t_issued;
    int64_t to = f->t > from ? f->t : from;
    const uint64_t seq = dtr__record_seq(rec) + k;
    const bool over = k <= f->ended && (f->waiting >> seq % DTR__REC_RUN_MOST & 1) == 0;
    one.follower = k;
    one.t_follower = 0;
    *(one.seq != 0 ? &one.seq : &one.p2p_seq) = seq;
    one.op_id = rec->op_id + k;
    one.number = rec->number;
    one.t_issued = to - (to - from) / (int64_t)f->n * (int64_t)(f->n - k);
    one.t_enqueued = 0;
    one.t_started = like->t_started != 0 ? one.t_issued : 0;
    one.t_finished = over ? one.t_issued : 0;
    one.state = over ? DTR__REC_FINISHED : one.t_started != 0 ? DTR__REC_STARTED : DTR__REC_ISSUED;
    one.status = DTR_OK;
    one.deadline = limit > 0 ? one.t_issued + limit : 0;
    return one;
}

/* An entry of a batch that follows one with such an entry. */
static dtr__record follower_entry(const dtr__record *first, const dtr__record *batch) {
    dtr__record one = *first;
    one.follower = batch->follower;
    one.p2p_seq = batch->p2p_seq;
    one.op_id = batch->op_id;
    one.state = batch->state;
    one.status = batch->status;
    one.t_issued = batch->t_issued;
    one.t_enqueued = one.t_started = 0;
    one.t_finished = batch->t_finished;
    one.deadline = batch->deadline;
    return one;
}

static bool is_inside(const dtr__record *one, const dtr__record *all) {
    return (all->flags & DTR__REC_MEMBER) == 0 && all->group == one->group &&
           all->op_id == one->op_id;
}

/* Copies the entries of a batch, which are the `n` records behind it or fewer; returns how many. */
static size_t entries_of(const dtr__record *batch, const dtr__record *behind, size_t n,
                         dtr__record *entry) {
    const unsigned both = DTR__REC_MEMBER | DTR__REC_TOGETHER;
    size_t m = 0;
    while (m < n && m < DTR__REC_RUN_ENTRIES && (behind[m].flags & both) == both &&
           is_inside(&behind[m], batch) && behind[m].number == batch->number + m + 1) {
        entry[m] = behind[m];
        m++;
    }
    return m;
}

/* ---- entries of a batch that end with it ---- */

/* In order. Where the batch's record is gone, or is being written, it has ended: one that takes
 * long has its entries' ends noted beside its own. */
static void end_together(dtr__record *all, size_t n) {
    enum { BETWEEN_MOST = 64 }; /* what other threads have recorded meanwhile, too */
    for (size_t i = 0; i < n; i++) {
        dtr__record *one = &all[i];
        const unsigned both = DTR__REC_MEMBER | DTR__REC_TOGETHER;
        if ((one->flags & both) != both || dtr__record_over(one)) {
            continue;
        }
        size_t batch = i, least = i > BETWEEN_MOST ? i - BETWEEN_MOST : 0;
        while (batch > least && !is_inside(one, &all[batch])) {
            batch--;
        }
        const bool there = is_inside(one, &all[batch]);
        if (!there || dtr__record_over(&all[batch])) {
            one->state = there ? all[batch].state : DTR__REC_FINISHED;
            one->status = there ? all[batch].status : DTR_OK;
            one->t_finished = there ? all[batch].t_finished : one->t_issued;
        }
    }
}

/* ---- all of it ---- */

size_t dtr__runs_expand(const dtr__recording *r, dtr__record *all, size_t n, size_t capacity) {
    dtr__record entry[DTR__REC_RUN_ENTRIES];
    apart own;
    size_t at = capacity;
    end_together(all, n);
    find_apart(all, n, &own);
    for (size_t i = n; i > 0; i--) {
        dtr__record rec = all[i - 1];
        followers f = followers_of(r, &rec);
        if (f.n > 0 && !have_turns(&all[i - 1], i - 1, f.turns)) {
            f.n = 0;
        }
        const size_t m = f.n == 0 ? 0 : entries_of(&rec, all + at, capacity - at, entry);
        at += m; /* they are written once more, in front of the followers */
        for (uint64_t k = f.n; k > 0 && at > i + 2 * m; k--) {
            const dtr__record *like = &all[i - f.turns + (k - 1) % f.turns];
            const dtr__record call = follower(&rec, like, &f, k);
            if (is_apart(&own, &call)) {
                continue;
            }
            for (size_t e = m; e > 0; e--) {
                all[--at] = follower_entry(&entry[e - 1], &call);
            }
            all[--at] = call;
        }
        at -= m;
        memcpy(all + at, entry, m * sizeof *entry);
        rec.follower = 0;
        rec.t_follower = 0;
        all[--at] = rec;
    }
    memmove(all, all + at, (capacity - at) * sizeof *all);
    return capacity - at;
}
