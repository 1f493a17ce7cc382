/* What is wrong with a job: one sentence per problem. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "doctor.h"
#include "recorder/hash.h"

enum { SENTENCES = DOCTOR_SENTENCES, SINGLE_RANKS = 8 };

void doctor_problem_add(doctor_job *job, int order, const char *fmt, ...) {
    if (job->n_problems == SENTENCES) {
        return;
    }
    if (job->problem == NULL) {
        job->problem = calloc(SENTENCES, sizeof *job->problem);
        if (job->problem == NULL) {
            return;
        }
    }
    doctor_problem *p = &job->problem[job->n_problems++];
    p->order = order * SENTENCES + (int)job->n_problems - 1;
    va_list args;
    va_start(args, fmt);
    vsnprintf(p->text, sizeof p->text, fmt, args);
    va_end(args);
}

/* ---- dead and stopped ---- */

static uint32_t phase_of(const dtr__recording *r) {
    return atomic_load(&r->head.phase);
}

static bool is_dead(const doctor_rank *k) {
    return k->rec != NULL && (k->lost || (k->here && !k->alive)) &&
           phase_of(k->rec) < DTR__PHASE_DESTROYING;
}

/* The process of another host cannot be looked at, but those that went on have noted its failure as
 * what broke their groups: "rank 2 (host b, pid 17) died ...". */
void doctor_find_lost(doctor_job *job) {
    for (int i = 0; i < job->size; i++) {
        const dtr__recording *r = job->rank[i].rec;
        int dead = -1, end = 0;
        if (r != NULL && atomic_load(&r->head.failure.version) != 0 &&
            r->head.failure.status == DTR_ERR_REMOTE &&
            sscanf(r->head.failure.text, "rank %d (host %*[^)]) %n", &dead, &end) == 1 && end > 0 &&
            dead >= 0 && dead < job->size && !job->rank[dead].alive) {
            const char *then = r->head.failure.text + end;
            job->rank[dead].lost |=
                strncmp(then, "died", 4) == 0 || strncmp(then, "ended without", 13) == 0;
        }
    }
}

/* ", last sign of life at 03:12:45 UTC" */
static const char *last_sign(const doctor_rank *k, char *text, size_t cap) {
    time_t t = (time_t)(k->last_sign / 1000000000);
    struct tm utc;
    if (gmtime_r(&t, &utc) == NULL ||
        strftime(text, cap, ", last sign of life at %H:%M:%S UTC", &utc) == 0) {
        text[0] = '\0';
    }
    return text;
}

/* Does somebody wait in an operation that this rank has not entered? */
static bool is_awaited(const doctor_group *groups, size_t n, int rank) {
    for (size_t i = 0; i < n; i++) {
        uint64_t highest = 0, own = 0;
        bool member = false;
        for (int m = 0; m < groups[i].size; m++) {
            const doctor_member *of = &groups[i].member[m];
            highest = of->highest > highest ? of->highest : highest;
            if (of->world_rank == rank && of->rec != NULL) {
                own = of->highest;
                member = true;
            }
        }
        if (member && own < highest) {
            return true;
        }
    }
    return false;
}

/* The one that died first. Signs of life come every tenth of a second, so that of those that ended
 * within half a second one that others wait for is the likelier cause. */
static int first_dead(const doctor_job *job, const doctor_group *groups, size_t n) {
    const int64_t close = 500000000;
    int first = -1;
    for (int i = 0; i < job->size; i++) {
        const doctor_rank *k = &job->rank[i];
        if (!is_dead(k)) {
            continue;
        }
        int64_t ahead = first < 0 ? 0 : k->last_sign - job->rank[first].last_sign;
        bool rather = first < 0 || ahead < -close ||
                      (ahead < close && is_awaited(groups, n, i) && !is_awaited(groups, n, first));
        bool similar = first >= 0 && is_awaited(groups, n, i) == is_awaited(groups, n, first);
        if (rather || (similar && ahead < 0)) {
            first = i;
        }
    }
    return first;
}

static void find_dead(doctor_job *job, const doctor_group *groups, size_t n) {
    char who[128], doing[640], others[256], when[64];
    int first = first_dead(job, groups, n), count = 0;
    bool *rest = first >= 0 ? calloc((size_t)job->size, sizeof *rest) : NULL;
    if (rest == NULL) {
        return;
    }
    for (int i = 0; i < job->size; i++) {
        rest[i] = i != first && is_dead(&job->rank[i]);
        count += rest[i];
    }
    doctor_problem_add(job, DOCTOR_DIED,
                       "%s died or ended without dtr_world_destroy%s%s: when it ended, %s",
                       doctor_who(job, first, who, sizeof who), count > 0 ? ", as the first" : "",
                       last_sign(&job->rank[first], when, sizeof when),
                       doctor_doing(job, first, doing, sizeof doing));
    if (count > 0) {
        doctor_problem_add(job, DOCTOR_ENDED,
                           "%s ended without dtr_world_destroy too; a launcher ends the others "
                           "when one rank dies",
                           doctor_ranks(rest, job->size, others, sizeof others));
    }
    free(rest);
}

static void find_stopped(doctor_job *job) {
    char who[128], doing[640];
    for (int i = 0; i < job->size; i++) {
        if (job->rank[i].alive && (job->rank[i].state == 'T' || job->rank[i].state == 't')) {
            doctor_problem_add(job, DOCTOR_STOPPED, "%s is stopped (SIGSTOP or a debugger); %s",
                               doctor_who(job, i, who, sizeof who),
                               doctor_doing(job, i, doing, sizeof doing));
        }
    }
}

/* The thread that moves what is under way does not come back from a call. */
static void find_stuck(doctor_job *job) {
    char who[128];
    for (int i = 0; i < job->size; i++) {
        const dtr__recording *r = job->rank[i].rec;
        const char *inside = "";
        const double s = r != NULL ? dtr__recording_stuck(r, &inside) : 0;
        const bool alive = job->rank[i].alive;
        if (s > 0 && inside[0] != '\0') {
            doctor_problem_add(job, DOCTOR_STUCK,
                               alive ? "%s: its progress thread is inside %s and has not come back "
                                       "for %.1f s; look at it with a debugger (thread "
                                       "dtr-progress)"
                                     : "%s: its progress thread was inside %s at the end and had "
                                       "not come back for %.1f s",
                               doctor_who(job, i, who, sizeof who), inside, s);
        } else if (s > 0) {
            doctor_problem_add(job, DOCTOR_STUCK,
                               "%s: its progress thread %s in one callback or reduction for %.1f "
                               "s, in no call of MPI or CUDA",
                               doctor_who(job, i, who, sizeof who), alive ? "has been" : "had been",
                               s);
        }
    }
}

/* ---- one group ---- */

static bool is_good(const dtr__record *r) {
    return r->state == DTR__REC_FINISHED;
}

/* The oldest operation that some member has entered and not finished well; 0: none. */
static uint64_t frontier(const doctor_group *g) {
    uint64_t seq = 0;
    for (int i = 0; i < g->size; i++) {
        const doctor_member *m = &g->member[i];
        for (size_t k = 0; m->rec != NULL && k < m->rec->n_records; k++) {
            const dtr__record *r = &m->rec->records[k];
            if (r->group == m->id && r->seq != 0 && !is_good(r) && (seq == 0 || r->seq < seq) &&
                doctor_record(m, r->seq) == r) {
                seq = r->seq;
            }
        }
    }
    return seq;
}

/* The members that agree with member `like` on operation `seq`; returns how many. */
static int agreeing(const doctor_job *job, const doctor_group *g, uint64_t seq, int like,
                    bool *in) {
    const dtr__record *mine = doctor_record(&g->member[like], seq);
    int count = 0;
    memset(in, 0, (size_t)job->size * sizeof *in);
    for (int i = 0; i < g->size; i++) {
        const dtr__record *r = doctor_record(&g->member[i], seq);
        if (r != NULL && r->fingerprint == mine->fingerprint) {
            in[g->member[i].world_rank] = true;
            count++;
        }
    }
    return count;
}

/* Sentence for members whose operation `seq` differs from that of the most. */
static bool find_mismatch(doctor_job *job, const doctor_group *g, uint64_t seq, bool *in) {
    char most_ranks[256], few_ranks[256], most_title[256], few_title[256];
    int most = -1, most_count = 0;
    bool found = false;
    for (int i = 0; i < g->size; i++) {
        int count = doctor_record(&g->member[i], seq) != NULL ? agreeing(job, g, seq, i, in) : 0;
        if (count > most_count) {
            most = i;
            most_count = count;
        }
    }
    if (most < 0) {
        return false;
    }
    const doctor_member *m = &g->member[most];
    const dtr__record *majority = doctor_record(m, seq);
    agreeing(job, g, seq, most, in);
    doctor_ranks(in, job->size, most_ranks, sizeof most_ranks);
    dtr__recording_title(m->rec, majority, most_title, sizeof most_title);
    for (int i = 0; i < g->size; i++) {
        const dtr__record *r = doctor_record(&g->member[i], seq);
        if (r == NULL || r->fingerprint == majority->fingerprint) {
            continue;
        }
        memset(in, 0, (size_t)job->size * sizeof *in);
        in[g->member[i].world_rank] = true;
        found = true;
        doctor_problem_add(
            job, DOCTOR_DISAGREE,
            "ranks disagree on operation #%llu of group '%s': %s called %s at %s, but %s called %s "
            "at %s",
            (unsigned long long)seq, g->name, most_ranks, most_title, doctor_site(majority),
            doctor_ranks(in, job->size, few_ranks, sizeof few_ranks),
            dtr__recording_title(g->member[i].rec, r, few_title, sizeof few_title), doctor_site(r));
    }
    return found;
}

/* A rank that never came although it was well: not one that gave up because another failed. */
static bool is_absent(const doctor_job *job, const doctor_member *m, uint64_t seq) {
    if (m->world_rank < 0 || m->rec == NULL || m->highest >= seq) {
        return false;
    }
    const dtr__rec_error *e = &m->rec->head.failure;
    return is_dead(&job->rank[m->world_rank]) || atomic_load(&e->version) == 0 ||
           e->status != DTR_ERR_REMOTE;
}

/* Sentences for members that have not entered operation `seq`, which others wait in. */
static void find_absent(doctor_job *job, const doctor_group *g, uint64_t seq, bool *in) {
    char title[256] = "", waiters[256], who[128], doing[640];
    const dtr__record *sample = NULL;
    int named = 0, absent = 0;
    memset(in, 0, (size_t)job->size * sizeof *in);
    for (int i = 0; i < g->size; i++) {
        const dtr__record *r = doctor_record(&g->member[i], seq);
        if (r != NULL && sample == NULL) {
            sample = r;
            dtr__recording_title(g->member[i].rec, r, title, sizeof title);
        }
        if (r != NULL) {
            in[g->member[i].world_rank] = true;
        }
    }
    if (sample == NULL) {
        return;
    }
    doctor_ranks(in, job->size, waiters, sizeof waiters);
    memset(in, 0, (size_t)job->size * sizeof *in);
    for (int i = 0; i < g->size; i++) {
        const doctor_member *m = &g->member[i];
        if (is_absent(job, m, seq) && named++ < SINGLE_RANKS) {
            doctor_problem_add(job, DOCTOR_ABSENT, "%s never entered %s, called at %s on %s; %s",
                               doctor_who(job, m->world_rank, who, sizeof who), title,
                               doctor_site(sample), waiters,
                               doctor_doing(job, m->world_rank, doing, sizeof doing));
        } else if (is_absent(job, m, seq)) {
            in[m->world_rank] = true;
            absent++;
        }
    }
    if (absent > 0) {
        doctor_problem_add(job, DOCTOR_ABSENT, "%s never entered %s either",
                           doctor_ranks(in, job->size, who, sizeof who), title);
    }
}

/* ---- two groups ---- */

static const doctor_member *member_of(const doctor_group *g, int world_rank) {
    for (int i = 0; i < g->size; i++) {
        if (g->member[i].world_rank == world_rank && g->member[i].rec != NULL) {
            return &g->member[i];
        }
    }
    return NULL;
}

static const dtr__record *unfinished(const doctor_member *m, uint64_t seq) {
    const dtr__record *r = m != NULL && seq != 0 ? doctor_record(m, seq) : NULL;
    return r != NULL && !is_good(r) ? r : NULL;
}

/* Rank a waits in group A for rank b, which waits in group B for a. */
static bool find_opposite(doctor_job *job, const doctor_group *ga, const doctor_group *gb) {
    uint64_t sa = frontier(ga), sb = frontier(gb);
    char ta[256], tb[256];
    for (int i = 0; i < ga->size; i++) {
        for (int k = 0; k < gb->size; k++) {
            int a = ga->member[i].world_rank, b = gb->member[k].world_rank;
            const dtr__record *ra = unfinished(&ga->member[i], sa);
            const dtr__record *rb = unfinished(&gb->member[k], sb);
            const doctor_member *a_in_b = member_of(gb, a), *b_in_a = member_of(ga, b);
            if (ra != NULL && rb != NULL && a != b && a_in_b != NULL && b_in_a != NULL &&
                a_in_b->highest < sb && b_in_a->highest < sa) {
                doctor_problem_add(
                    job, DOCTOR_OPPOSITE,
                    "groups are used in opposite order: rank %d waits in %s, called at %s, for "
                    "rank %d, which waits in %s, called at %s, for rank %d",
                    a, dtr__recording_title(ga->member[i].rec, ra, ta, sizeof ta), doctor_site(ra),
                    b, dtr__recording_title(gb->member[k].rec, rb, tb, sizeof tb), doctor_site(rb),
                    a);
                return true;
            }
        }
    }
    return false;
}

/* Recorded with DTR_HASH=1: ranks whose results went apart. */
static void find_difference(doctor_job *job, const doctor_group *g) {
    char text[1000];
    const dtr__recording **rec = calloc((size_t)g->size, sizeof *rec);
    for (int i = 0; rec != NULL && i < g->size; i++) {
        rec[i] = g->member[i].rec;
    }
    if (rec != NULL && dtr__hash_difference(rec, g->size, g->uid, text, sizeof text)[0] != '\0') {
        doctor_problem_add(job, DOCTOR_DIFFER, "%s", text);
    }
    free((void *)rec);
}

static void find_in_groups(doctor_job *job, const doctor_group *groups, size_t n) {
    bool *in = calloc((size_t)job->size, sizeof *in);
    for (size_t i = 0; in != NULL && i < n; i++) {
        uint64_t seq = frontier(&groups[i]);
        find_difference(job, &groups[i]);
        if (seq != 0 && !find_mismatch(job, &groups[i], seq, in)) {
            find_absent(job, &groups[i], seq, in);
        }
        for (size_t k = 0; seq != 0 && k < i; k++) {
            find_opposite(job, &groups[k], &groups[i]);
        }
    }
    free(in);
}

/* ---- point to point ---- */

static void find_partner(doctor_job *job, const doctor_group *g, int self) {
    char title[256], who[128], doing[640];
    const doctor_member *m = &g->member[self];
    for (size_t i = 0; m->rec != NULL && i < m->rec->n_records; i++) {
        const dtr__record *r = &m->rec->records[i];
        const int peer = r->root_or_peer;
        if (r->group == m->id && !is_good(r) && doctor_unmatched(g, self, r)) {
            const char *other = strcmp(m->rec->head.kind[r->kind], "send") == 0 ? "recv" : "send";
            doctor_problem_add(
                job, DOCTOR_PARTNER,
                "rank %d %s in %s, called at %s, but %s has not posted the matching %s; %s",
                m->world_rank, dtr__record_over(r) ? "waited" : "waits",
                dtr__recording_title(m->rec, r, title, sizeof title), doctor_site(r),
                doctor_who(job, g->member[peer].world_rank, who, sizeof who), other,
                doctor_doing(job, g->member[peer].world_rank, doing, sizeof doing));
            return;
        }
    }
}

/* ---- the rest ---- */

static void find_failures(doctor_job *job) {
    int first = -1;
    int64_t when = 0;
    for (int i = 0; i < job->size; i++) {
        const dtr__recording *r = job->rank[i].rec;
        if (r != NULL && atomic_load(&r->head.failure.version) != 0) {
            int64_t t = doctor_time(r, r->head.failure.t);
            if (first < 0 || t < when) {
                first = i;
                when = t;
            }
        }
    }
    if (first >= 0) {
        const dtr__rec_error *e = &job->rank[first].rec->head.failure;
        doctor_problem_add(job, DOCTOR_FAILED, "the first error was %s on rank %d: %.700s",
                           dtr_status_name((dtr_status)e->status), first, e->text);
    }
}

static void find_missing_files(doctor_job *job) {
    char ranks[256];
    bool *in = calloc((size_t)job->size, sizeof *in);
    int missing = 0;
    for (int i = 0; in != NULL && i < job->size; i++) {
        in[i] = job->rank[i].rec == NULL;
        missing += in[i];
    }
    if (missing > 0) {
        doctor_problem_add(job, DOCTOR_FILES,
                           "no readable recording of %s: give the folders of all hosts",
                           doctor_ranks(in, job->size, ranks, sizeof ranks));
    }
    free(in);
}

static int by_order(const void *a, const void *b) {
    const doctor_problem *x = a, *y = b;
    return x->order - y->order;
}

void doctor_find(doctor_job *job) {
    size_t n = 0;
    doctor_group *groups = doctor_groups(job, &n);
    find_dead(job, groups, n);
    find_in_groups(job, groups, n);
    find_stopped(job);
    find_stuck(job);
    for (size_t i = 0; groups != NULL && i < n; i++) {
        for (int m = 0; m < groups[i].size; m++) {
            find_partner(job, &groups[i], m);
        }
    }
    doctor_groups_free(groups, n);
    find_failures(job);
    doctor_find_slow(job);
    find_missing_files(job);
    if (job->problem != NULL) {
        qsort(job->problem, job->n_problems, sizeof *job->problem, by_order);
    }
}
