/* The monitored barrier. Group rank 0 collects arrivals and alone decides; everybody else waits for
 * its verdict. Messages carry the number of the call, so late ones never count for another call,
 * and travel over the world's communicator: the group's sequence and state stay as they were.
 *
 *   ARRIVE   to rank 0: this rank is in call n
 *   HERE     from rank 0: it is in call n too, so its verdict will come
 *   EXPIRE   to all: this rank's limit for call n has passed
 *   VERDICT  from rank 0 to all: passed, or who was missing
 *
 * Whoever's limit has passed waits a moment longer for rank 0's verdict; when rank 0 has not come,
 * it and all who hear of it report rank 0 as missing. Rank 0, when it comes, finds the EXPIRE and
 * decides accordingly. */
#define DTR_NO_CALL_SITE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "groups.h"
#include "monitor.h"
#include "post.h"
#include "rt_peers.h"

/* How long after a limit rank 0's verdict is awaited. */
static const double GRACE_S = 0.2, GRACE_HERE_S = 5;
static const double SEND_S = 0.2; /* for letters to leave, at the end */

typedef enum news { ARRIVE, HERE, EXPIRE, VERDICT } news;

typedef struct note {
    uint64_t epoch, uid, number;
    int32_t news, from; /* group rank */
    int32_t n_missing, unused;
} note;

typedef struct mail {
    struct mail *next;
    note note;
    int32_t missing[];
} mail;

struct dtr__monitors {
    pthread_mutex_t lock; /* taken with the right to call MPI, after it */
    uint64_t epoch;
    mail *first;
    dtr__letter *letters;
};

/* One call on this rank. */
typedef struct call {
    dtr_group *g;
    dtr__monitors *box;
    uint64_t number, record;
    double limit_s, deadline;
    bool wait_all, late; /* an EXPIRE was here before this rank was */
    bool *arrived;       /* [size], at rank 0 */
    bool here, expired;  /* rank 0 has come; somebody's limit has passed */
    mail *verdict;
} call;

dtr__monitors *dtr__monitors_new(uint64_t epoch) {
    dtr__monitors *m = calloc(1, sizeof *m);
    if (m != NULL) {
        m->epoch = epoch;
        pthread_mutex_init(&m->lock, NULL);
    }
    return m;
}

void dtr__monitors_free(dtr__monitors *m, bool mpi_alive) {
    if (m == NULL) {
        return;
    }
    if (mpi_alive) {
        dtr__post_end(&m->letters);
    }
    while (m->first != NULL) {
        mail *next = m->first->next;
        free(m->first);
        m->first = next;
    }
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* ---- mail; the right to call MPI and the box are held ---- */

static void take_in(dtr__monitors *box, dtr_world *world) {
    for (;;) {
        void *data = NULL;
        size_t nbytes = 0;
        int from;
        if (dtr__receive(world, DTR__TAG_MONITOR, &data, &nbytes, &from) < 0 || data == NULL) {
            return;
        }
        mail *m = nbytes >= sizeof(note) ? malloc(offsetof(mail, note) + nbytes) : NULL;
        if (m != NULL) {
            memcpy(&m->note, data, nbytes);
            size_t listed = (nbytes - sizeof(note)) / sizeof(int32_t);
            if (m->note.epoch == box->epoch && (size_t)m->note.n_missing == listed) {
                m->next = box->first;
                box->first = m;
            } else {
                free(m);
            }
        }
        free(data);
    }
}

static void post(call *c, int to, news what, const int32_t *missing, int n) {
    note head = { c->box->epoch, c->g->uid, c->number, (int32_t)what, c->g->rank, n, 0 };
    (void)dtr__post(c->g->world, &c->box->letters, c->g->world_ranks[to], DTR__TAG_MONITOR, &head,
                    sizeof head, missing, sizeof *missing * (size_t)n);
}

static void post_all(call *c, news what, const int32_t *missing, int n) {
    for (int i = 0; i < c->g->size; i++) {
        if (i != c->g->rank) {
            post(c, i, what, missing, n);
        }
    }
}

/* What mail of this call says; true when it has served its purpose. */
static bool read_mail(call *c, mail *m) {
    switch ((news)m->note.news) {
    case ARRIVE:
        if (c->arrived != NULL && m->note.from >= 0 && m->note.from < c->g->size) {
            c->arrived[m->note.from] = true;
        }
        return true;
    case HERE:
        c->here = true;
        return true;
    case EXPIRE:
        c->expired = true;
        return true;
    case VERDICT:
        if (c->verdict != NULL) {
            return true;
        }
        c->verdict = m;
        return false;
    }
    return true;
}

/* Take this call's mail out of the box; what belongs to earlier calls of the group goes with it. */
static void sort_mail(call *c) {
    for (mail **at = &c->box->first; *at != NULL;) {
        mail *m = *at;
        if (m->note.uid != c->g->uid || m->note.number > c->number) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        if (m->note.number < c->number || read_mail(c, m)) {
            free(m);
        }
    }
}

/* ---- the call ---- */

typedef void (*action)(call *c);

/* Look at the mail, and do something with the right to send; false when MPI is not free just now.
 */
static bool visit(call *c, action act) {
    if (!dtr__mpi_trylock(c->g->world)) {
        return false;
    }
    pthread_mutex_lock(&c->box->lock);
    take_in(c->box, c->g->world);
    sort_mail(c);
    if (act != NULL) {
        act(c);
    }
    dtr__post_reap(&c->box->letters);
    pthread_mutex_unlock(&c->box->lock);
    dtr__mpi_unlock(c->g->world);
    return true;
}

/* What is under way elsewhere goes on meanwhile. */
static void pause_a_little(call *c, dtr__backoff *backoff) {
    dtr__notices_visit(c->g->world);
    if (!dtr__group_try_pass(c->g) && !dtr__progress_has_thread(c->g->world)) {
        dtr__progress_poll_all(c->g->world);
    }
    dtr__backoff_pause(c->g->world, backoff);
}

static void visit_surely(call *c, action act) {
    dtr__backoff backoff = { 0 };
    while (!visit(c, act)) {
        pause_a_little(c, &backoff);
    }
}

static bool broken(const call *c) {
    return atomic_load_explicit(&c->g->status, memory_order_acquire) != DTR_OK;
}

static void say_arrived(call *c) {
    post(c, 0, ARRIVE, NULL, 0);
}
static void say_here(call *c) {
    post_all(c, HERE, NULL, 0);
}
static void say_expired(call *c) {
    post_all(c, EXPIRE, NULL, 0);
}

/* Rank 0: who is missing now. */
static int32_t *list_missing(const call *c, int *n) {
    int32_t *list = calloc((size_t)c->g->size, sizeof *list);
    *n = 0;
    for (int i = 0; list != NULL && i < c->g->size; i++) {
        if (i == 0 ? c->late : !c->arrived[i]) {
            list[(*n)++] = i;
        }
    }
    return list;
}

/* Rank 0's verdict, kept here as the others get it. */
static void decide(call *c) {
    int n = 0;
    int32_t *list = list_missing(c, &n);
    mail *m = malloc(sizeof *m + sizeof *list * (size_t)c->g->size);
    if (list == NULL || m == NULL) {
        free(list);
        free(m);
        return; /* tried again; the others have their own limits */
    }
    m->note.n_missing = n;
    memcpy(m->missing, list, sizeof *list * (size_t)n);
    free(list);
    c->verdict = m;
    post_all(c, VERDICT, m->missing, n);
}

/* The letters of a rank that is about to leave the library should be on their way. */
static void see_letters_off(call *c) {
    double end = dtr__now() + SEND_S;
    dtr__backoff backoff = { 0 };
    while (c->box->letters != NULL && dtr__now() < end) {
        visit(c, NULL);
        pause_a_little(c, &backoff);
    }
}

static bool all_arrived(const call *c) {
    for (int i = 1; i < c->g->size; i++) {
        if (!c->arrived[i]) {
            return false;
        }
    }
    return true;
}

static void collect(call *c) {
    dtr__backoff backoff = { 0 };
    visit_surely(c, NULL);
    c->late = c->expired; /* somebody has given up before this rank came */
    if (!c->late && !all_arrived(c)) {
        visit_surely(c, say_here);
    }
    while (c->verdict == NULL && !broken(c)) {
        bool over = c->expired || dtr__now() >= c->deadline;
        visit(c, NULL); /* the last look, when it is over */
        if ((!c->late && all_arrived(c)) || over) {
            visit_surely(c, decide);
        } else {
            pause_a_little(c, &backoff);
        }
    }
    see_letters_off(c);
}

static void await_verdict(call *c) {
    dtr__backoff backoff = { 0 };
    double end = INFINITY;
    visit_surely(c, NULL);
    if (c->verdict == NULL) { /* else this rank is late, and finds what was decided */
        visit_surely(c, say_arrived);
    }
    while (c->verdict == NULL && !broken(c)) {
        double now = dtr__now();
        if (isinf(end) && (c->expired || now >= c->deadline)) {
            if (!c->expired) {
                visit_surely(c, say_expired);
            }
            end = now;
        }
        visit(c, NULL);
        if (c->verdict != NULL || now >= end + (c->here ? GRACE_HERE_S : GRACE_S)) {
            break;
        }
        pause_a_little(c, &backoff);
    }
    see_letters_off(c);
}

/* ---- result ---- */

static void add_rank(char *text, size_t cap, const dtr_group *g, int rank) {
    size_t at = strlen(text);
    int world_rank = g->world_ranks[rank];
    if (world_rank == rank) {
        snprintf(text + at, cap - at, "%s%d", at > 0 ? ", " : "", rank);
    } else {
        snprintf(text + at, cap - at, "%s%d (world rank %d)", at > 0 ? ", " : "", rank, world_rank);
    }
}

static dtr_status report(const call *c, int *missing, int *n_missing) {
    static const int32_t only_root[] = { 0 };
    const dtr_group *g = c->g;
    dtr__error_context ctx = { g->world, "monitored_barrier", g->name };
    const int32_t *list = c->verdict != NULL ? c->verdict->missing : only_root;
    int n = c->verdict != NULL ? c->verdict->note.n_missing : 1;
    n = n > 1 && !c->wait_all ? 1 : n;
    if (n_missing != NULL) {
        *n_missing = n;
    }
    if (n == 0) {
        return DTR_OK;
    }
    char names[512] = "";
    for (int i = 0; i < n; i++) {
        if (missing != NULL) {
            missing[i] = list[i];
        }
        add_rank(names, sizeof names, g, list[i]);
    }
    return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                    "monitored_barrier #%llu on group '%s': rank%s %s did not come within the "
                    "earliest limit of those who did (%g s here); the group is unharmed",
                    (unsigned long long)c->number, g->name, n == 1 ? "" : "s", names, c->limit_s);
}

/* The group is broken, by a death perhaps: then who died is missing. */
static dtr_status report_broken(dtr_group *g, bool wait_all, int *missing, int *n_missing) {
    int n = 0;
    for (int i = 0; i < g->size; i++) {
        bool dead = dtr__rank_dead(g->world, g->world_ranks[i]) ||
                    atomic_load(&g->lost) == g->world_ranks[i] + 1;
        if (dead && (n == 0 || wait_all)) {
            if (missing != NULL) {
                missing[n] = i;
            }
            n++;
        }
    }
    if (n > 0 && n_missing != NULL) {
        *n_missing = n;
    }
    return dtr__group_broken(g);
}

static dtr_status run(call *c, int *missing, int *n_missing) {
    dtr_group *g = c->g;
    if (g->size > 1) {
        (g->rank == 0 ? collect : await_verdict)(c);
    }
    if (broken(c)) {
        return report_broken(g, c->wait_all, missing, n_missing);
    }
    if (g->size == 1) {
        if (n_missing != NULL) {
            *n_missing = 0;
        }
        return DTR_OK;
    }
    return report(c, missing, n_missing);
}

static void begin_record(call *c, const dtr__call *site) {
    dtr__record r = { .group = c->g->id,
                      .op_id = c->number,
                      .kind = DTR__K_MONITORED_BARRIER,
                      .flags = DTR__REC_BLOCKING,
                      .root_or_peer = 0,
                      .tag = -1,
                      .deadline = c->deadline < 1e9 ? (int64_t)(c->deadline * 1e9) : 0 };
    memcpy(r.site, dtr__call_site_cached(site), sizeof r.site);
    c->record = dtr__rec_begin(c->g->world, &r);
}

static dtr_status check(dtr_group *g, double timeout_s) {
    dtr__error_context ctx = { g->world, "monitored_barrier", g->name };
    DTR_TRY(dtr__group_ending(g, "dtr_monitored_barrier"));
    DTR_TRY(dtr__scope_refuse(g, "dtr_monitored_barrier"));
    DTR_REQUIRE(
        !dtr__in_callback(g->world), &ctx, DTR_ERR_STATE,
        "dtr_monitored_barrier on group '%s' blocks, and this thread is inside a completion "
        "callback of the same world",
        g->name);
    DTR_REQUIRE(
        !isnan(timeout_s), &ctx, DTR_ERR_ARG,
        "monitored_barrier on group '%s': timeout_s is not a number; give seconds, or 0 for "
        "the group's limit",
        g->name);
    return DTR_OK;
}

static dtr_status monitored_barrier(dtr_group *g, double timeout_s, bool wait_all, int *missing,
                                    int *n_missing, void *return_address) {
    dtr__call site;
    dtr__call_site_take(&site, return_address);
    dtr_status s = dtr__group_check(g, "dtr_monitored_barrier");
    if (s != DTR_OK) {
        return s;
    }
    dtr__notices_visit(g->world);
    if (atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
        return report_broken(g, wait_all, missing, n_missing);
    }
    DTR_TRY(check(g, timeout_s));
    dtr__error_context ctx = { g->world, "monitored_barrier", g->name };
    call c = { .g = g, .box = g->world->groups->monitors, .wait_all = wait_all };
    c.arrived = calloc((size_t)g->size, sizeof *c.arrived);
    DTR_REQUIRE(c.arrived != NULL, &ctx, DTR_ERR_NOMEM,
                "no memory for a monitored barrier of %d ranks", g->size);
    c.limit_s = timeout_s > 0 ? timeout_s : g->timeout_s;
    c.deadline = dtr__now() + c.limit_s;
    c.number = atomic_fetch_add_explicit(&g->monitored, 1, memory_order_relaxed) + 1;
    begin_record(&c, &site);
    s = run(&c, missing, n_missing);
    dtr__rec_mark(g->world, c.record, s == DTR_OK ? DTR__REC_FINISHED : DTR__REC_FAILED, s);
    free(c.arrived);
    free(c.verdict);
    return s;
}

dtr_status dtr_monitored_barrier(dtr_group *g, double timeout_s, bool wait_all, int *missing,
                                 int *n_missing) {
    return DTR_TRACED(
        dtr__group_trace(g), "dtr_monitored_barrier", g->name,
        monitored_barrier(g, timeout_s, wait_all, missing, n_missing, __builtin_return_address(0)));
}
