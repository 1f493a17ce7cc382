/* Which rank keeps the others waiting. */
#include <math.h>
#include <stdlib.h>

#include "diagnosis/stragglers.h"
#include "doctor.h"

/* Fewer operations say nothing. A rank is a problem when it is last into most of them, far more
 * often than by chance, and the others lose a good part of their time by it. */
enum { LEAST_OPERATIONS = 10, NEWEST = 256 };
static const double least_share = 0.6, by_chance = 1.8, least_lag_s = 2e-3, least_part = 0.2;

static void judge(doctor_job *job, const dtr__straggler *of, const dtr__stragglers *all) {
    char who[128];
    int slowest = 0;
    for (int i = 0; i < job->size; i++) {
        doctor_rank *k = &job->rank[i];
        k->last_share = of[i].operations > 0 ? (double)of[i].last / (double)of[i].operations : -1;
        k->lag_s = of[i].lag_s;
    }
    if (all->operations < LEAST_OPERATIONS) {
        return;
    }
    for (int i = 1; i < job->size; i++) {
        slowest = of[i].last > of[slowest].last ? i : slowest;
    }
    job->slowest = slowest;
    job->slowest_of = all->operations;
    job->slowest_share = (double)of[slowest].last / (double)all->operations;
    job->slowest_lag_s = of[slowest].lag_s;
    if (job->slowest_share >= fmax(least_share, by_chance / job->size) &&
        job->slowest_lag_s >= least_lag_s && job->slowest_lag_s >= least_part * all->each_s) {
        doctor_problem_add(job, DOCTOR_SLOW,
                           "%s is usually last: into %.0f %% of %llu operations, %.1f ms behind "
                           "the median rank; the others wait for it",
                           doctor_who(job, slowest, who, sizeof who), 100 * job->slowest_share,
                           (unsigned long long)all->operations, 1e3 * job->slowest_lag_s);
    }
}

void doctor_find_slow(doctor_job *job) {
    size_t n = (size_t)job->size;
    dtr__recording **rec = calloc(n, sizeof(dtr__recording *));
    dtr__straggler *of = calloc(n, sizeof *of);
    dtr__stragglers all = { 0 };
    job->slowest = -1;
    for (size_t i = 0; rec != NULL && i < n; i++) {
        rec[i] = job->rank[i].rec;
        job->rank[i].last_share = -1;
    }
    if (rec != NULL && of != NULL && job->size > 1 &&
        dtr__stragglers_find(rec, job->size, NEWEST, DTR__STRAGGLERS_ALL_MEMBERS, of, &all)) {
        judge(job, of, &all);
    }
    free((void *)rec);
    free(of);
}
