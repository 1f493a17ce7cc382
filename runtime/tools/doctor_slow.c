/* Which rank keeps the others waiting: who is last into the operations that all have finished, and
 * by how much. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

/* Fewer operations say nothing. A rank is a problem when it is last into most of them, far more
 * often than by chance, and the others lose a good part of their time by it. */
enum { LEAST_OPERATIONS = 10 };
static const double least_share = 0.6, by_chance = 1.8, least_lag_s = 2e-3, least_part = 0.2;

typedef struct tally {
    uint64_t operations, *last; /* [size]: how often this rank was the last */
    double *lag;                /* of the last rank behind the median one, per operation */
    int *who;
    double begin, end; /* seconds since 1970 of the first and last operation */
} tally;

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times at which the members entered operation `seq`; false when not all have finished it. */
static bool entered(const doctor_group *g, uint64_t seq, double *at, int *last) {
    for (int i = 0; i < g->size; i++) {
        const dtr__record *r = doctor_record(&g->member[i], seq);
        if (r == NULL || r->state != DTR__REC_FINISHED) {
            return false;
        }
        at[i] = (double)doctor_time(g->member[i].rec, r->t_issued) * 1e-9;
        *last = i == 0 || at[i] > at[*last] ? i : *last;
    }
    return true;
}

static void count(const doctor_group *g, tally *t, size_t room) {
    enum { NEWEST = 256 }; /* operations of a group that are looked at */
    double *at = calloc((size_t)g->size, sizeof *at);
    uint64_t newest = g->member[0].highest;
    for (uint64_t seq = newest > NEWEST ? newest - NEWEST + 1 : 1; at != NULL && seq <= newest;
         seq++) {
        int last = 0;
        if (t->operations == room || !entered(g, seq, at, &last)) {
            continue;
        }
        double latest = at[last];
        qsort(at, (size_t)g->size, sizeof *at, by_time);
        t->lag[t->operations] = latest - at[(g->size - 1) / 2];
        t->who[t->operations++] = g->member[last].world_rank;
        t->last[g->member[last].world_rank]++;
        t->begin = t->begin == 0 || latest < t->begin ? latest : t->begin;
        t->end = latest > t->end ? latest : t->end;
    }
    free(at);
}

/* Median lag of the operations that `rank` was last into. */
static double median_lag(tally *t, int rank) {
    size_t n = 0;
    for (uint64_t i = 0; i < t->operations; i++) {
        if (t->who[i] == rank) {
            double lag = t->lag[i];
            t->lag[i] = t->lag[n];
            t->lag[n] = lag;
            t->who[i] = t->who[n];
            t->who[n++] = rank;
        }
    }
    qsort(t->lag, n, sizeof *t->lag, by_time);
    return n > 0 ? t->lag[n / 2] : 0;
}

static void judge(doctor_job *job, tally *t) {
    char who[128];
    int slowest = 0;
    if (t->operations < LEAST_OPERATIONS) {
        return;
    }
    for (int i = 1; i < job->size; i++) {
        slowest = t->last[i] > t->last[slowest] ? i : slowest;
    }
    double each = (t->end - t->begin) / (double)t->operations;
    job->slowest = slowest;
    job->slowest_of = t->operations;
    job->slowest_share = (double)t->last[slowest] / (double)t->operations;
    job->slowest_lag_s = median_lag(t, slowest);
    if (job->slowest_share >= fmax(least_share, by_chance / job->size) &&
        job->slowest_lag_s >= least_lag_s && job->slowest_lag_s >= least_part * each) {
        doctor_problem_add(job, DOCTOR_SLOW,
                           "%s is usually last: into %.0f %% of %llu operations, %.1f ms behind "
                           "the median rank; the others wait for it",
                           doctor_who(job, slowest, who, sizeof who), 100 * job->slowest_share,
                           (unsigned long long)t->operations, 1e3 * job->slowest_lag_s);
    }
}

void doctor_find_slow(doctor_job *job) {
    enum { ROOM = 8192 };
    size_t n = 0;
    doctor_group *groups = doctor_groups(job, &n);
    tally t = { .last = calloc((size_t)job->size, sizeof *t.last),
                .lag = calloc(ROOM, sizeof *t.lag),
                .who = calloc(ROOM, sizeof *t.who) };
    job->slowest = -1;
    bool able = groups != NULL && t.last != NULL && t.lag != NULL && t.who != NULL;
    for (size_t i = 0; able && i < n; i++) {
        if (groups[i].size > 1) {
            count(&groups[i], &t, ROOM);
        }
    }
    if (able && job->size > 1) {
        judge(job, &t);
    }
    free(t.last);
    free(t.lag);
    free(t.who);
    doctor_groups_free(groups, n);
}
