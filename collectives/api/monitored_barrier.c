/* The monitored barrier. Group rank 0 collects arrivals and alone decides; everybody else waits for
 * its decision. What ranks have for each other goes through the key-value exchange, under keys with
 * the number of the call, so that what comes late never counts for another call; the group's
 * sequence and state stay as they were.
 *
 *   arrived.R   to rank 0: rank R is in the call
 *   present     from rank 0: it is in the call too, so its decision will come
 *   expired     to all: the limit of a rank has passed
 *   missing     from rank 0 to all: who was missing, nobody if it is empty
 *
 * A rank whose limit has passed waits a moment longer for rank 0's decision. When rank 0 has not
 * come, this rank and all that it notifies report rank 0 as missing. When rank 0 comes later, it
 * finds the expired limit and decides accordingly. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agreement/key_value.h"
#include "api_internal.h"
#include "control/peers.h"
#include "core/call.h"
#include "core/call_site.h"
#include "core/team.h"
#include "engine/engine.h"
#include "failure/failure.h"
#include "failure/notify.h"

/* How long after a limit rank 0's decision is awaited; longer where rank 0 is in the call. */
static const double GRACE_S = 0.2, GRACE_PRESENT_S = 5;
static const double SEND_S = 0.2; /* for messages to leave, at the end */

/* One call on this rank. */
typedef struct call {
    dtr_group *g;
    uint64_t number, record;
    double limit_s, deadline;
    bool wait_all;
    int32_t *missing; /* [group size] group ranks, ascending */
    int n_missing;    /* -1: not decided yet */
} call;

/* ---- keys ---- */

/* What is under way elsewhere goes on meanwhile. */
static void pause_a_little(const call *c, dtr__backoff *backoff) {
    dtr__notifier_visit(c->g->world);
    if (!dtr__group_try_pass(c->g) && !dtr__progress_has_thread(c->g->world)) {
        dtr__progress_poll_all(c->g->world);
    }
    dtr__backoff_pause(c->g->world, backoff);
}

static const char *key_of(uint64_t number, const char *what, int rank, char *key) {
    int n = snprintf(key, DTR__KEY_SIZE, "barrier.%llu.%s", (unsigned long long)number, what);
    if (rank >= 0) {
        snprintf(key + n, DTR__KEY_SIZE - (size_t)n, ".%d", rank);
    }
    return key;
}

/* For rank `to`, or with -1 for all. */
static void put(const call *c, const char *what, int rank, int to) {
    char key[DTR__KEY_SIZE];
    dtr__backoff backoff = { 0 };
    size_t nbytes = c->n_missing > 0 ? sizeof *c->missing * (size_t)c->n_missing : 0;
    key_of(c->number, what, rank, key);
    while (!dtr__key_value_try_put(c->g, to, key, c->missing, nbytes)) {
        pause_a_little(c, &backoff);
    }
}

/* Whether a key has come; where that cannot be read just now, `surely` waits until it can. */
static bool has_come(const call *c, const char *what, int rank, bool surely) {
    char key[DTR__KEY_SIZE];
    dtr__backoff backoff = { 0 };
    size_t nbytes;
    bool found;
    key_of(c->number, what, rank, key);
    while (!dtr__key_value_try_poll(c->g, key, NULL, 0, &nbytes, &found) && surely) {
        pause_a_little(c, &backoff);
    }
    return found;
}

/* Whether rank 0's decision is here, which becomes the call's. */
static bool is_decided(call *c) {
    char key[DTR__KEY_SIZE];
    size_t nbytes = 0, cap = sizeof *c->missing * (size_t)c->g->size;
    bool found = false;
    key_of(c->number, "missing", -1, key);
    if (c->n_missing < 0 && dtr__key_value_try_poll(c->g, key, c->missing, cap, &nbytes, &found) &&
        found) {
        c->n_missing = (int)(nbytes / sizeof *c->missing);
    }
    return c->n_missing >= 0;
}

/* ---- the call ---- */

static bool is_broken(const dtr_group *g) {
    return atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK;
}

/* Rank 0: `next` is the lowest rank that has not arrived. */
static bool all_arrived(const call *c, int *next) {
    while (*next < c->g->size && has_come(c, "arrived", *next, false)) {
        (*next)++;
    }
    return *next == c->g->size;
}

/* Rank 0's decision, kept here as the others get it. */
static void decide(call *c, bool overdue) {
    int n = 0;
    for (int i = 0; i < c->g->size; i++) {
        if (i == 0 ? overdue : !has_come(c, "arrived", i, true)) {
            c->missing[n++] = i;
        }
    }
    c->n_missing = n;
    put(c, "missing", -1, -1);
}

static void collect(call *c) {
    dtr__backoff backoff = { 0 };
    int next = 1;
    bool overdue = has_come(c, "expired", -1, true); /* somebody has given up before */
    if (!overdue && !all_arrived(c, &next)) {
        put(c, "present", -1, -1);
    }
    while (c->n_missing < 0 && !is_broken(c->g)) {
        bool over = overdue || dtr__now() >= c->deadline || has_come(c, "expired", -1, false);
        if (over || all_arrived(c, &next)) {
            decide(c, overdue);
        } else {
            pause_a_little(c, &backoff);
        }
    }
}

static void await_decision(call *c) {
    dtr__backoff backoff = { 0 };
    double end = INFINITY;
    (void)has_come(c, "missing", -1, true);
    if (!is_decided(c)) { /* else this rank is late, and finds what was decided */
        put(c, "arrived", c->g->rank, 0);
    }
    while (!is_decided(c) && !is_broken(c->g)) {
        double now = dtr__now();
        bool expired = has_come(c, "expired", -1, false);
        if (isinf(end) && (expired || now >= c->deadline)) {
            if (!expired) {
                put(c, "expired", -1, -1);
            }
            end = now;
        }
        if (now >= end + GRACE_S &&
            (now >= end + GRACE_PRESENT_S || !has_come(c, "present", -1, false))) {
            (void)is_decided(c); /* a last look */
            break;
        }
        pause_a_little(c, &backoff);
    }
    if (c->n_missing < 0) { /* rank 0 itself */
        c->missing[0] = 0;
        c->n_missing = 1;
    }
}

/* What a rank that is about to leave the library has put should be on its way. */
static void flush_messages(const call *c) {
    double end = dtr__now() + SEND_S;
    dtr__backoff backoff = { 0 };
    while (!dtr__key_value_sent(c->g) && dtr__now() < end) {
        pause_a_little(c, &backoff);
    }
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
    const dtr_group *g = c->g;
    dtr__error_context ctx = { g->world, "monitored_barrier", g->name };
    int n = c->n_missing > 1 && !c->wait_all ? 1 : c->n_missing;
    if (n_missing != NULL) {
        *n_missing = n;
    }
    if (n == 0) {
        return DTR_OK;
    }
    char names[512] = "";
    for (int i = 0; i < n; i++) {
        if (missing != NULL) {
            missing[i] = c->missing[i];
        }
        add_rank(names, sizeof names, g, c->missing[i]);
    }
    return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                    "monitored_barrier #%llu on group '%s': rank%s %s did not come within the "
                    "earliest limit of those who did (%g s here); the group is unharmed",
                    (unsigned long long)c->number, g->name, n == 1 ? "" : "s", names, c->limit_s);
}

/* The group is broken, because a member has failed perhaps: then that one is missing. */
static dtr_status report_broken(dtr_group *g, bool wait_all, int *missing, int *n_missing) {
    int n = 0;
    for (int i = 0; i < g->size; i++) {
        bool dead = dtr__rank_failed(g->world, g->world_ranks[i]) ||
                    atomic_load(&g->failure->failed_peer) == g->world_ranks[i] + 1;
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
    char before[DTR__KEY_SIZE];
    if (g->size == 1) {
        c->n_missing = 0;
    } else {
        dtr__key_value_forget(g, key_of(c->number - 1, "", -1, before));
        (g->rank == 0 ? collect : await_decision)(c);
        flush_messages(c);
    }
    return is_broken(g) ? report_broken(g, c->wait_all, missing, n_missing)
                        : report(c, missing, n_missing);
}

static void begin_record(call *c, const dtr__call *site) {
    dtr__record r = { .group = c->g->id,
                      .op_id = c->number,
                      .kind = DTR__K_MONITORED_BARRIER,
                      .flags = DTR__REC_BLOCKING,
                      .root_or_peer = 0,
                      .tag = -1,
                      .deadline = c->deadline < 1e9 ? dtr__monotonic_at(c->deadline) : 0 };
    memcpy(r.site, dtr__call_site_cached(site), sizeof r.site);
    c->record = dtr__rec_begin(c->g->world, &r);
}

static dtr_status monitored_barrier(dtr_group *g, double timeout_s, bool wait_all, int *missing,
                                    int *n_missing, void *return_address) {
    dtr__call site;
    dtr__call_site_take(&site, return_address);
    dtr_status s = dtr__may_block(g, DTR__K_MONITORED_BARRIER);
    if (s != DTR_OK) {
        bool broken = g != NULL && g->magic == DTR__GROUP_MAGIC && is_broken(g);
        return broken ? report_broken(g, wait_all, missing, n_missing) : s;
    }
    dtr__error_context ctx = { g->world, "monitored_barrier", g->name };
    DTR_TRY(dtr__limit_check(&ctx, "dtr_monitored_barrier", timeout_s));
    call c = { .g = g, .wait_all = wait_all, .n_missing = -1 };
    c.missing = calloc((size_t)g->size, sizeof *c.missing);
    DTR_REQUIRE(c.missing != NULL, &ctx, DTR_ERR_NOMEM,
                "no memory for a monitored barrier of %d ranks", g->size);
    c.limit_s = timeout_s >= 0 ? timeout_s : g->timeout_s;
    c.deadline = dtr__now() + c.limit_s;
    c.number = atomic_fetch_add_explicit(&g->count.monitored, 1, memory_order_relaxed) + 1;
    begin_record(&c, &site);
    s = run(&c, missing, n_missing);
    dtr__rec_mark(g->world, c.record, s == DTR_OK ? DTR__REC_FINISHED : DTR__REC_FAILED, s);
    free(c.missing);
    return s;
}

dtr_status dtr_monitored_barrier(dtr_group *g, double timeout_s, bool wait_all, int *missing,
                                 int *n_missing) {
    return DTR_TRACED(
        dtr__group_trace(g), "dtr_monitored_barrier", g->name,
        monitored_barrier(g, timeout_s, wait_all, missing, n_missing, __builtin_return_address(0)));
}
