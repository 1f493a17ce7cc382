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
    row->age_s = -1;
    row->host = k->rec->head.host;
    row->pid = k->rec->head.pid;
    row->node = k->rec->head.node;
    row->state = doctor_state(k);
    row->last_share = k->last_share;
    row->lag_s = k->lag_s;
    find_operation(job, doctor_waits(job, rank, groups, n, row->waits), row);
    dtr__recording_rates(k->rec, doctor_own_time(k->rec, job->now), window_s, &row->rates);
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

/* Waits that are that short are a part of any operation. A rank that cannot go on comes before
 * those that wait themselves. */
double top_holds_up(const top_row *r) {
    const double died = strcmp(r->state, "died") == 0 ? 1e12 : 0;
    const bool still = strcmp(r->state, "stopped") == 0 || strcmp(r->state, "silent") == 0;
    return died + (r->held_s > 0.05 ? r->held_s + (still ? 1e9 : 0) : 0);
}

/* 0 of what is named by a text. */
static double value_of(const top_row *r, top_key key) {
    switch (key) {
    case TOP_HELD:
        return top_holds_up(r);
    case TOP_RANK:
        return -r->rank;
    case TOP_STEPS:
        return r->rates.steps_per_s;
    case TOP_OPERATIONS:
        return r->rates.operations_per_s;
    case TOP_GB:
        return r->rates.gb_per_s;
    case TOP_EXPOSED:
        return r->rates.exposed;
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

/* Of the ranks that have one. */
static void add_recordings(top_table *t, const doctor_group *groups, size_t n) {
    for (int i = 0; i < t->job.size; i++) {
        if (t->job.rank[i].rec != NULL) {
            make_row(&t->job, i, groups, n, t->window_s, &t->row[t->n++]);
        }
    }
}

/* Of the others that are known. */
static void add_remote(top_table *t) {
    for (uint32_t i = 0; t->remote != NULL && i < t->remote->n; i++) {
        const dtr__remote_rank *r = &t->remote->rank[i];
        if (t->job.rank[r->rank].rec == NULL && t->n < (size_t)t->job.size) {
            top_remote_row(t, r, &t->row[t->n++]);
        }
    }
}

bool top_rows(top_table *t) {
    doctor_job *job = &t->job;
    const size_t size = (size_t)job->size;
    const size_t rows = t->remote != NULL ? size : (size_t)job->n_read;
    size_t n = 0;
    doctor_group *groups = doctor_groups(job, &n);
    t->row = calloc(rows + 1, sizeof *t->row);
    t->waits = calloc(rows * size + 1, sizeof *t->waits);
    const bool fine = groups != NULL && t->row != NULL && t->waits != NULL;
    t->n = 0;
    doctor_find_slow(job);
    if (fine) {
        for (size_t i = 0; i < rows; i++) {
            t->row[i].waits = &t->waits[i * size];
        }
        add_recordings(t, groups, n);
        add_remote(t);
        top_remote_waits(t);
    }
    doctor_groups_free(groups, n);
    for (size_t i = 0; i < t->n; i++) {
        write_waits(job, &t->row[i]);
    }
    find_held(t);
    top_sort(t);
    return fine;
}

void top_forget(top_table *t) {
    free(t->row);
    free(t->waits);
    free(t->remote);
    t->row = NULL;
    t->waits = NULL;
    t->remote = NULL;
    t->n = 0;
    doctor_forget(&t->job);
}
