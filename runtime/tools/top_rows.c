/* What dtr-top says of each rank, from one reading of the recordings. */
#include <stdlib.h>
#include <string.h>

#include "top.h"

static const char *const key_names[TOP_KEYS] = { "held", "rank",    "state", "steps", "ops",
                                                 "gb",   "exposed", "last",  "lag" };

const char *top_key_name(top_key k) {
    return key_names[k];
}

bool top_key_find(const char *name, top_key *k) {
    for (int i = 0; name != NULL && i < TOP_KEYS; i++) {
        if (strcmp(name, key_names[i]) == 0) {
            *k = (top_key)i;
            return true;
        }
    }
    return false;
}

/* ---- rates ---- */

/* Numbers of a group's collectives or messages, from the newest record backwards. */
typedef struct series {
    uint32_t group;
    bool message;
    uint64_t next;
} series;

enum { SERIES = 64 };

/* How many calls behind `rec` have no record: they followed it closely, and readers make records of
 * the newest of those only. */
static uint64_t followers(series *all, size_t *n, const dtr__record *rec) {
    const bool message = rec->seq == 0;
    const uint64_t seq = dtr__record_seq(rec);
    size_t i = 0;
    while (i < *n && (all[i].group != rec->group || all[i].message != message)) {
        i++;
    }
    if (i == SERIES) {
        return 0;
    }
    if (i == *n) {
        all[(*n)++] = (series){ rec->group, message, seq };
        return 0;
    }
    const uint64_t next = all[i].next;
    all[i].next = seq;
    return next > seq && next - seq <= DTR__REC_RUN_MOST ? next - seq - 1 : 0;
}

static void find_rates(const doctor_job *job, double window_s, top_row *row) {
    const dtr__recording *r = row->rec;
    series all[SERIES];
    size_t n = 0;
    uint64_t operations = 0, bytes = 0;
    int64_t from = job->now - (int64_t)(1e9 * window_s);
    if (r->n_records > 0 && r->records[0].number > 1) { /* what was before is not known */
        const int64_t oldest = doctor_time(r, r->records[0].t_issued);
        from = oldest > from ? oldest : from;
    }
    for (size_t i = r->n_records; i > 0; i--) {
        const dtr__record *rec = &r->records[i - 1];
        const bool part = (rec->flags & DTR__REC_MEMBER) != 0;
        const bool own = part || dtr__record_collective(r, rec) || rec->seq == 0;
        const uint64_t calls = 1 + (own && !part ? followers(all, &n, rec) : 0);
        if (own && dtr__record_over(rec) && doctor_time(r, rec->t_finished) > from) {
            operations += part ? 0 : calls;
            bytes += calls * rec->nbytes;
        }
    }
    const double over_s = (double)(job->now - from) * 1e-9;
    row->operations_per_s = over_s > 1e-6 ? (double)operations / over_s : 0;
    row->gb_per_s = over_s > 1e-6 ? (double)bytes * 1e-9 / over_s : 0;
}

/* Of the newest steps, those of ten seconds, at least two. One that takes much longer than those
 * before it means that there are none now. */
static void find_steps(const doctor_job *job, double window_s, top_row *row) {
    const dtr__rec_step *step[DTR__RECORDING_STEPS];
    const size_t n = dtr__recording_steps(row->rec, step);
    const int64_t most = INT64_C(10000000000); /* ns */
    int64_t newest = 0, oldest = 0;
    double comm = 0, exposed = 0;
    uint64_t steps = 0;
    for (size_t i = n; i > 0; i--) {
        const dtr__rec_step *s = step[i - 1];
        const int64_t t = atomic_load(&s->t);
        newest = i == n ? t : newest;
        if (steps >= 2 && newest - t > most) {
            break;
        }
        if (atomic_load(&s->steps) > 0) {
            steps++;
            oldest = t;
        }
        comm += (double)atomic_load(&s->comm_ns);
        exposed += (double)atomic_load(&s->exposed_ns);
    }
    row->steps_per_s = row->exposed = -1;
    if (steps < 2 || newest <= oldest) {
        return;
    }
    const double each_s = (double)(newest - oldest) * 1e-9 / (double)(steps - 1);
    const double quiet_s = (double)(job->now - doctor_time(row->rec, newest)) * 1e-9;
    row->steps_per_s = quiet_s > 2 * each_s + window_s ? 0 : 1 / each_s;
    if (comm > 0) {
        row->exposed = exposed < comm ? exposed / comm : 1;
    }
}

/* ---- rows ---- */

static void find_operation(const doctor_job *job, const dtr__record *open, top_row *row) {
    const dtr__record *rec = open != NULL ? open : dtr__recording_last(row->rec, true);
    row->open = open != NULL;
    row->site = rec != NULL ? doctor_site(rec) : "";
    row->since_s = -1;
    if (rec != NULL) {
        const int64_t t = open != NULL ? rec->t_issued : rec->t_finished;
        row->since_s = (double)(job->now - doctor_time(row->rec, t)) * 1e-9;
        row->since_s = row->since_s > 0 ? row->since_s : 0;
        dtr__recording_title(row->rec, rec, row->operation, sizeof row->operation);
    }
}

static void write_waits(const doctor_job *job, top_row *row) {
    size_t at = 0;
    snprintf(row->waits_for, sizeof row->waits_for, "-");
    for (int i = 0; i < job->size && at + 16 < sizeof row->waits_for; i++) {
        if (row->waits[i]) {
            at += (size_t)snprintf(row->waits_for + at, sizeof row->waits_for - at,
                                   at == 0 ? "%d" : ",%d", i);
        }
    }
}

static void make_row(const doctor_job *job, int rank, const doctor_group *groups, size_t n,
                     double window_s, top_row *row) {
    const doctor_rank *k = &job->rank[rank];
    row->rank = rank;
    row->rec = k->rec;
    row->state = doctor_state(k);
    row->last_share = k->last_share;
    row->lag_s = k->lag_s;
    find_operation(job, doctor_waits(job, rank, groups, n, row->waits), row);
    find_rates(job, window_s, row);
    find_steps(job, window_s, row);
    write_waits(job, row);
}

/* The other way round: for whom others wait. */
static void find_held(top_table *t) {
    for (size_t i = 0; i < t->n; i++) {
        for (size_t k = 0; k < t->n; k++) {
            if (t->row[k].waits[t->row[i].rank]) {
                t->row[i].held++;
                t->row[i].held_s += t->row[k].since_s;
            }
        }
    }
}

/* ---- order ---- */

/* Waits that are that short are a part of any operation. */
static double holds_up(const top_row *r) {
    const double died = strcmp(r->state, "died") == 0 ? 1e12 : 0;
    return died + (r->held_s > 0.05 ? r->held_s : 0);
}

/* 0 of what is named by a text. */
static double value_of(const top_row *r, top_key key) {
    switch (key) {
    case TOP_HELD:
        return holds_up(r);
    case TOP_RANK:
        return -r->rank;
    case TOP_STEPS:
        return r->steps_per_s;
    case TOP_OPERATIONS:
        return r->operations_per_s;
    case TOP_GB:
        return r->gb_per_s;
    case TOP_EXPOSED:
        return r->exposed;
    case TOP_LAST:
        return r->last_share;
    case TOP_LAG:
        return r->last_share > 0 ? r->lag_s : -1;
    case TOP_STATE:
    case TOP_KEYS:
        break;
    }
    return 0;
}

static int before(const top_row *a, const top_row *b, top_key key) {
    const double x = value_of(a, key), y = value_of(b, key);
    return key == TOP_STATE ? strcmp(a->state, b->state) : (x < y) - (x > y);
}

static int compare(const void *a, const void *b, void *of) {
    const top_row *x = a, *y = b;
    const top_table *t = of;
    int way = before(x, y, t->key);
    if (way == 0 && t->key == TOP_HELD) {
        way = before(x, y, TOP_LAST);
    }
    way = t->reversed ? -way : way;
    return way != 0 ? way : x->rank - y->rank;
}

void top_sort(top_table *t) {
    for (size_t i = 1; i < t->n; i++) { /* few, and mostly in order already */
        const top_row one = t->row[i];
        size_t k = i;
        for (; k > 0 && compare(&t->row[k - 1], &one, t) > 0; k--) {
            t->row[k] = t->row[k - 1];
        }
        t->row[k] = one;
    }
}

bool top_rows(top_table *t) {
    doctor_job *job = &t->job;
    const size_t size = (size_t)job->size;
    size_t n = 0;
    doctor_group *groups = doctor_groups(job, &n);
    t->row = calloc((size_t)job->n_read + 1, sizeof *t->row);
    t->waits = calloc((size_t)job->n_read * size + 1, sizeof *t->waits);
    const bool fine = groups != NULL && t->row != NULL && t->waits != NULL;
    t->n = 0;
    doctor_find_slow(job);
    for (int i = 0; fine && i < job->size; i++) {
        if (job->rank[i].rec != NULL) {
            t->row[t->n].waits = &t->waits[t->n * size];
            make_row(job, i, groups, n, t->window_s, &t->row[t->n++]);
        }
    }
    doctor_groups_free(groups, n);
    find_held(t);
    top_sort(t);
    return fine;
}

void top_forget(top_table *t) {
    free(t->row);
    free(t->waits);
    t->row = NULL;
    t->waits = NULL;
    t->n = 0;
    doctor_forget(&t->job);
}
