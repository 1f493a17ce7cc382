/* Who is last into the operations that all have finished, and by how much. The times are those of
 * the flight recorders, so that nothing is measured for it while the job runs. */
#include "diagnosis/stragglers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/world.h"
#include "control/peers.h"
#include "recorder/recorder.h"

typedef struct arrival { /* of the last member into one operation */
    int rank;
    double lag_s;
} arrival;

typedef struct tally {
    dtr__recording *const *rec;
    int size;
    uint64_t newest;
    bool need_all, one_host; /* ranks of one host share the monotonic clock */
    arrival *list;
    size_t n, capacity;
    double begin_s, end_s; /* of the operations looked at */
    dtr__straggler *out;
} tally;

/* One group while it is counted: when each member entered each operation of the window. */
typedef struct window {
    const dtr__rec_group *of;
    int members, seen; /* of the group; of these with a recording */
    int *rank;         /* [seen] world rank */
    uint64_t first, n; /* operations first .. first + n - 1 */
    int64_t *at;       /* [seen * n], 0: not there */
    double *order;     /* [seen] scratch */
} window;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_rank_and_lag(const void *a, const void *b) {
    const arrival *x = a, *y = b;
    return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                              : by_value(&x->lag_s, &y->lag_s);
}

static bool reserve_one(tally *t) {
    if (t->n == t->capacity) {
        size_t capacity = t->capacity * 2 + 1024;
        arrival *more = realloc(t->list, capacity * sizeof *more);
        if (more == NULL) {
            return false;
        }
        t->list = more;
        t->capacity = capacity;
    }
    return true;
}

/* ---- one group ---- */

static void find_members(const tally *t, const dtr__recording *r, window *w) {
    w->members = w->of->size;
    for (int i = 0; i < w->members; i++) {
        int rank = dtr__recording_member(r, w->of, i);
        if (rank >= 0 && rank < t->size && t->rec[rank] != NULL &&
            dtr__recording_group_uid(t->rec[rank], w->of->uid) != NULL) {
            w->rank[w->seen++] = rank;
        }
    }
}

static uint64_t highest(const dtr__recording *r, uint32_t group) {
    uint64_t seq = 0;
    for (size_t i = 0; i < r->n_records; i++) {
        const dtr__record *rec = &r->records[i];
        seq = rec->group == group && dtr__record_collective(r, rec) && rec->seq > seq ? rec->seq
                                                                                      : seq;
    }
    return seq;
}

static void fill_times(const tally *t, window *w, int member) {
    const dtr__recording *r = t->rec[w->rank[member]];
    uint32_t id = atomic_load(&dtr__recording_group_uid(r, w->of->uid)->id);
    int64_t to_real = t->one_host ? 0 : r->head.real_ns - r->head.mono_ns;
    for (size_t i = 0; i < r->n_records; i++) {
        const dtr__record *rec = &r->records[i];
        if (rec->group == id && rec->state == DTR__REC_FINISHED && rec->follower == 0 &&
            rec->seq >= w->first && rec->seq - w->first < w->n && dtr__record_collective(r, rec)) {
            w->at[(uint64_t)member * w->n + (rec->seq - w->first)] = rec->t_issued + to_real;
        }
    }
}

/* One operation, if all members seen have finished it. */
static bool count_one(tally *t, window *w, uint64_t index) {
    int last = 0;
    for (int i = 0; i < w->seen; i++) {
        int64_t at = w->at[(uint64_t)i * w->n + index];
        if (at == 0) {
            return true;
        }
        w->order[i] = (double)at * 1e-9;
        last = w->order[i] > w->order[last] ? i : last;
    }
    if (!reserve_one(t)) {
        return false;
    }
    double latest = w->order[last];
    qsort(w->order, (size_t)w->seen, sizeof *w->order, by_value);
    t->list[t->n++] = (arrival){ w->rank[last], latest - w->order[(w->seen - 1) / 2] };
    t->begin_s = t->n == 1 || latest < t->begin_s ? latest : t->begin_s;
    t->end_s = t->n == 1 || latest > t->end_s ? latest : t->end_s;
    for (int i = 0; i < w->seen; i++) {
        t->out[w->rank[i]].operations++;
    }
    return true;
}

static bool count_members(tally *t, const dtr__recording *r, window *w) {
    find_members(t, r, w);
    if (w->seen < 2 || (t->need_all && w->seen < w->members)) {
        return true;
    }
    uint64_t newest = highest(r, atomic_load(&w->of->id));
    uint64_t most = t->newest < r->head.entries ? t->newest : r->head.entries;
    w->n = newest < most ? newest : most;
    w->first = newest - w->n + 1;
    w->at = calloc((size_t)w->seen * w->n + 1, sizeof *w->at);
    bool fine = w->at != NULL;
    for (int i = 0; fine && i < w->seen; i++) {
        fill_times(t, w, i);
    }
    for (uint64_t i = 0; fine && i < w->n; i++) {
        fine = count_one(t, w, i);
    }
    free(w->at);
    return fine;
}

static bool count_group(tally *t, const dtr__recording *r, const dtr__rec_group *g) {
    size_t n = (size_t)g->size;
    window w = { .of = g, .rank = calloc(n, sizeof *w.rank), .order = calloc(n, sizeof *w.order) };
    bool fine = w.rank != NULL && w.order != NULL && count_members(t, r, &w);
    free(w.rank);
    free(w.order);
    return fine;
}

/* ---- all of them ---- */

/* Whether a recording of a lower rank has the group too, which then counts it. */
static bool counted(const tally *t, int rank, uint64_t uid) {
    for (int i = 0; i < rank; i++) {
        if (t->rec[i] != NULL && dtr__recording_group_uid(t->rec[i], uid) != NULL) {
            return true;
        }
    }
    return false;
}

static bool on_one_host(dtr__recording *const *rec, int size) {
    const char *host = NULL;
    for (int i = 0; i < size; i++) {
        if (rec[i] != NULL && host != NULL && strcmp(rec[i]->head.host, host) != 0) {
            return false;
        }
        host = rec[i] != NULL ? rec[i]->head.host : host;
    }
    return true;
}

static void sum_up(tally *t) {
    if (t->n > 0) { /* the list may be NULL otherwise */
        qsort(t->list, t->n, sizeof *t->list, by_rank_and_lag);
    }
    for (size_t i = 0, next; i < t->n; i = next) {
        dtr__straggler *r = &t->out[t->list[i].rank];
        for (next = i; next < t->n && t->list[next].rank == t->list[i].rank; next++) {
        }
        r->last = next - i;
        r->lag_s = t->list[i + (next - i) / 2].lag_s;
        r->longest_s = t->list[next - 1].lag_s;
    }
}

bool dtr__stragglers_find(dtr__recording *const *rec, int size, uint64_t newest, unsigned flags,
                          dtr__straggler *out, dtr__stragglers *all) {
    tally t = { .rec = rec,
                .size = size,
                .newest = newest,
                .need_all = (flags & DTR__STRAGGLERS_ALL_MEMBERS) != 0,
                .one_host = on_one_host(rec, size),
                .out = out };
    bool fine = true;
    memset(out, 0, (size_t)size * sizeof *out);
    for (int i = 0; fine && i < size; i++) {
        for (size_t k = 0; fine && rec[i] != NULL && k < rec[i]->n_groups; k++) {
            const dtr__rec_group *g = &rec[i]->groups[k];
            fine = g->size < 2 || counted(&t, i, g->uid) || count_group(&t, rec[i], g);
        }
    }
    sum_up(&t);
    all->operations = t.n;
    all->each_s = t.n > 0 ? (t.end_s - t.begin_s) / (double)t.n : 0;
    free(t.list);
    return fine;
}

/* ---- at the end of a world ---- */

enum { NEWEST = 4096 }; /* collectives of a group */

static void say(const dtr_world *world, dtr__straggler *of, const dtr__stragglers *all) {
    enum { LINES = 8 };
    DTR_INFO(world,
             "arrivals: the recorders of this node hold %llu collectives that all have "
             "finished",
             (unsigned long long)all->operations);
    for (int line = 0; line < LINES; line++) {
        int most = 0;
        for (int i = 1; i < world->size; i++) {
            most = of[i].last > of[most].last ? i : most;
        }
        dtr__straggler *r = &of[most];
        if (r->last == 0) {
            return;
        }
        DTR_INFO(world,
                 "arrivals: rank %d was last into %llu of its %llu, median %.3f ms and at most "
                 "%.3f ms behind the median rank",
                 most, (unsigned long long)r->last, (unsigned long long)r->operations,
                 1e3 * r->lag_s, 1e3 * r->longest_s);
        r->last = 0;
    }
}

bool dtr__stragglers_read(const dtr_world *world, bool whole, dtr__straggler *out,
                          dtr__stragglers *all) {
    size_t n = (size_t)world->size;
    dtr__recording **rec = calloc(n, sizeof(dtr__recording *));
    for (int i = 0; rec != NULL && i < world->local_size; i++) {
        int rank = world->local_world[i];
        rec[rank] = whole ? dtr__peer_look(world, rank) : dtr__peer_glance(world, rank);
    }
    bool found = rec != NULL && dtr__stragglers_find(rec, world->size, NEWEST, 0, out, all) &&
                 all->operations > 0;
    for (size_t i = 0; rec != NULL && i < n; i++) {
        dtr__recording_free(rec[i]);
    }
    free((void *)rec);
    return found;
}

void dtr__stragglers_report(const dtr_world *world) {
    if (!dtr__log_on(world, DTR_LOG_INFO) || world->local_rank != 0 || world->local_size < 2) {
        return;
    }
    dtr__straggler *out = calloc((size_t)world->size, sizeof *out);
    dtr__stragglers all = { 0 };
    if (out != NULL && dtr__stragglers_read(world, true, out, &all)) {
        say(world, out, &all);
    }
    free(out);
}
