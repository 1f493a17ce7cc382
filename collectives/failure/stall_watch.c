/* The watchdog's checks of groups. It works on copies: it holds no lock of an issuing thread while
 * it reads recordings or writes to the log. The lock that it holds meanwhile only keeps groups from
 * being taken apart. */
#include "failure/stall_watch.h"
#include "core/call.h"
#include "core/call_site.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/peers.h"
#include "core/signature.h"
#include "engine/engine.h"
#include "failure/failure.h"
#include "failure/mismatch.h"
#include "failure/peer_failure.h"

#define MS INT64_C(1000000)
enum {
    SAYINGS = 4, /* of one round; the rest has its turn in the next */
    SAYING_BYTES = 2600,
    COMPARE_AFTER_MS = 150,
    COMPARE_PER_RANK_MS = 5,
    GRACE_MS = 500 /* for the ranks that have not come when two are seen to disagree */
};

typedef struct sayings {
    int n;
    struct {
        int level;
        char text[SAYING_BYTES];
    } of[SAYINGS];
} sayings;

/* ---- a copy of a work ---- */

static bool is_wanted(const dtr_work *w, bool collective) {
    return atomic_load_explicit(&w->scope.recording, memory_order_acquire) == 0 && w->seq != 0 &&
           !(collective && dtr__kind_is_p2p(w->call.kind));
}

/* Copy of the group's oldest operation, or collective, what messages need; the work itself may end
 * at any time. False: none, or the list is in use. */
static bool oldest(dtr_group *g, bool collective, dtr_work *like) {
    if (pthread_mutex_trylock(&g->engine->queue_lock) != 0) {
        return false;
    }
    const dtr_work *w = g->engine->works.head;
    while (w != NULL && !is_wanted(w, collective)) {
        w = w->next;
    }
    if (w != NULL) {
        like->call = *dtr__user_call(&w->call);
        like->call.fingerprint = w->call.fingerprint;
        like->call.issued_ns = w->call.issued_ns;
        like->call.user_call = NULL;
        like->group = g;
        like->world = g->world;
        like->backend = w->backend;
        like->seq = w->seq;
        like->issue = w->issue;
        atomic_init(&like->limit.seconds,
                    atomic_load_explicit(&w->limit.seconds, memory_order_relaxed));
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    return w != NULL;
}

/* ---- operations that take long ---- */

static void look_for_slow(dtr_group *g, int64_t now, sayings *s) {
    char title[256], site[128], who[1400], limit[48] = "no limit";
    dtr_work like = { 0 };
    double warn_s = dtr__opt_seconds(&g->world->options, DTR__OPT_STALL_WARN);
    if (warn_s <= 0 || s->n == SAYINGS || !oldest(g, false, &like) ||
        like.issue <= g->failure->watched.warned) {
        return;
    }
    const int64_t hidden_ns = dtr__hidden_since(like.call.issued_ns);
    if ((double)(now - like.call.issued_ns - hidden_ns) < warn_s * 1e9) {
        return;
    }
    if (!dtr__ask_missing(g, &like, like.call.issued_ns + hidden_ns + (int64_t)(warn_s * 1e9))) {
        return; /* the next round says it */
    }
    double limit_s = atomic_load(&like.limit.seconds);
    if (limit_s < 1e9) {
        snprintf(limit, sizeof limit, "its limit is %g s", limit_s);
    }
    g->failure->watched.warned = like.issue;
    s->of[s->n].level = DTR_LOG_WARN;
    snprintf(s->of[s->n++].text, SAYING_BYTES,
             "%s is unfinished since %.1f s (DTR_STALL_WARN; %s); called at %s%s",
             dtr__work_title(&like, title, sizeof title),
             (double)(now - like.call.issued_ns) * 1e-9, limit,
             dtr__call_site_text(&like.call, site, sizeof site),
             dtr__name_missing(g, &like, who, sizeof who));
}

/* ---- ranks that disagree ---- */

/* The ranks of the node are read one after another, so a large node compares less often. */
static int64_t compare_every(const dtr_group *g) {
    return (COMPARE_AFTER_MS + COMPARE_PER_RANK_MS * (int64_t)g->world->local_size) * MS;
}

static bool is_comparable(const dtr_group *g, const dtr_work *w, int64_t now) {
    bool compares = w->backend->compares_itself || dtr__at_detail(g->world);
    return !compares && dtr__is_compared(w->call.kind) && w->seq > g->failure->watched.agreed &&
           now - w->call.issued_ns >= COMPARE_AFTER_MS * MS;
}

/* Whether they disagree. `site`: of this rank's call, NULL: as `like` says. */
static bool compare(dtr_group *g, const dtr_work *like, const char *site, int64_t now,
                    dtr__queue *called) {
    int missing = 0;
    dtr__signature *all = calloc((size_t)g->size, sizeof *all);
    bool differ = all != NULL && dtr__compare(like, all, &missing);
    if (differ) {
        g->failure->watched.mismatch_ns =
            g->failure->watched.mismatch_ns == 0 ? now : g->failure->watched.mismatch_ns;
        if (site != NULL) {
            memcpy(all[g->rank].site, site, sizeof all->site);
        }
        if (missing == 0 || now - g->failure->watched.mismatch_ns >= GRACE_MS * MS) {
            dtr__group_report_failure(g, dtr__mismatch(like, all, true), called);
        }
    } else if (all != NULL && missing == 0) {
        g->failure->watched.agreed = like->seq;
    }
    free(all);
    return differ;
}

/* Compare what this rank has called before and what is not known to agree: no rank waits for it any
 * more, but ranks that agree again may have got each other's data. True: some disagree. */
static bool compare_before(dtr_group *g, uint64_t seq, int64_t now, dtr__queue *called) {
    uint64_t at = seq > DTR__LOOK_BACK ? seq - DTR__LOOK_BACK : 1;
    at = at > g->failure->watched.agreed ? at : g->failure->watched.agreed + 1;
    bool differ = false;
    for (; at < seq && !differ; at++) {
        dtr_work like = { 0 };
        char site[sizeof((dtr__signature *)NULL)->site] = "";
        differ = dtr__recall(g, at, &like, site) && compare(g, &like, site, now, called);
    }
    return differ;
}

/* In a small broadcast with two roots no rank may wait: each root has sent and is done. So the
 * watchdog compares the newest collectives once nothing follows them, and ever more rarely while
 * some ranks have not called the last one yet. */
static void look_back(dtr_group *g, int64_t now, dtr__queue *called) {
    dtr_work like = { 0 };
    char site[sizeof((dtr__signature *)NULL)->site] = "";
    bool ends_alone = g->backends.table[0]->ends_alone;
    for (int i = g->backends.n; i < g->backends.served; i++) {
        ends_alone = ends_alone || g->backends.table[i]->ends_alone;
    }
    uint64_t seq = atomic_load_explicit(&g->count.seq, memory_order_acquire);
    if (!ends_alone || dtr__at_detail(g->world) || seq <= g->failure->watched.agreed) {
        return;
    }
    if (seq != g->failure->watched.last) {
        g->failure->watched.last = seq;
        g->failure->watched.last_ns = now;
        g->failure->watched.look_ns = now + compare_every(g);
    } else if (now >= g->failure->watched.look_ns) {
        int64_t quiet_ns = now - g->failure->watched.last_ns;
        g->failure->watched.look_ns =
            now + (quiet_ns > compare_every(g) ? quiet_ns : compare_every(g));
        if (compare_before(g, seq, now, called)) {
            return;
        }
        if (dtr__recall(g, seq, &like, site)) {
            (void)compare(g, &like, site, now, called);
        } else {
            g->failure->watched.agreed = seq;
        }
    }
}

static void look_for_mismatch(dtr_group *g, int64_t now, dtr__queue *called) {
    dtr_work like = { 0 };
    if (!oldest(g, true, &like)) {
        look_back(g, now, called);
    } else if (now >= g->failure->watched.look_ns && is_comparable(g, &like, now)) {
        g->failure->watched.look_ns = now + compare_every(g);
        if (!compare_before(g, like.seq, now, called)) {
            (void)compare(g, &like, NULL, now, called);
        }
    }
}

/* ---- broken groups ---- */

static bool says_all(const dtr_group *g) {
    for (int i = 0; i < g->rank; i++) {
        int r = g->world_ranks[i];
        if (g->world->node_of[r] == g->world->node && !dtr__rank_failed(g->world, r)) {
            return false;
        }
    }
    return true;
}

/* In full on one rank of a node. */
static bool broken_text(dtr_group *g, char *text, size_t cap) {
    dtr_status s = (dtr_status)atomic_load_explicit(&g->status, memory_order_acquire);
    if (s == DTR_OK || g->failure->watched.logged) {
        return false;
    }
    g->failure->watched.logged = true;
    const char *why = dtr__error_copy_text(g->error);
    if (says_all(g)) {
        snprintf(text, cap, "group '%s' is broken by %s: %s", g->name, dtr_status_name(s), why);
    } else {
        snprintf(text, cap, "group '%s' is broken by %s: %.100s%s (in full on another rank)",
                 g->name, dtr_status_name(s), why, strlen(why) > 100 ? "..." : "");
    }
    return true;
}

void dtr__stall_watch_log_broken(dtr_group *g) {
    char text[SAYING_BYTES];
    if (broken_text(g, text, sizeof text)) {
        dtr__log_line(g->world, DTR_LOG_ERROR, "%s", text);
    }
}

static void look_for_broken(dtr_group *g, sayings *s) {
    if (s->n < SAYINGS && broken_text(g, s->of[s->n].text, SAYING_BYTES)) {
        s->of[s->n++].level = DTR_LOG_ERROR;
    }
}

/* ---- the status line ---- */

static const char *kind_of(const dtr__recording *r, const dtr__record *rec) {
    return rec->kind < DTR__RECORDING_KINDS ? r->head.kind[rec->kind] : "operation";
}

static int add_mark(const dtr__recording *r, const dtr__record *rec, const char *what, char *text,
                    size_t cap) {
    return rec == NULL ? snprintf(text, cap, ", none %s", what)
                       : snprintf(text, cap, ", last %s %s #%" PRIu64, what, kind_of(r, rec),
                                  dtr__record_seq(rec));
}

static size_t add_group(const dtr_group *g, const dtr__recording *r, char *text, size_t cap) {
    const dtr__record *issued = NULL, *finished = NULL;
    int n_open = 0;
    for (size_t i = 0; i < r->n_records; i++) {
        const dtr__record *rec = &r->records[i];
        if (rec->group == g->id && (rec->flags & DTR__REC_MEMBER) == 0 &&
            !dtr__record_captured(rec)) {
            issued = rec;
            finished = dtr__record_over(rec) ? rec : finished;
            n_open += !dtr__record_over(rec);
        }
    }
    int n = snprintf(text, cap, "; group '%s': %d open", g->name, n_open);
    n += (size_t)n < cap ? add_mark(r, issued, "begun", text + n, cap - (size_t)n) : 0;
    n += (size_t)n < cap ? add_mark(r, finished, "finished", text + n, cap - (size_t)n) : 0;
    return (size_t)n;
}

static void look_at_status(dtr_world *world, int64_t now, sayings *s) {
    dtr__groups *gs = world->groups;
    double every_s = dtr__opt_seconds(&world->options, DTR__OPT_STATUS_INTERVAL);
    if (every_s <= 0 || !dtr__log_on(world, DTR_LOG_INFO) || s->n == SAYINGS) {
        return;
    }
    bool due = gs->status_ns != 0 && now >= gs->status_ns;
    dtr__recording *r = due ? dtr__peer_look(world, world->rank) : NULL;
    if (gs->status_ns == 0 || due) {
        gs->status_ns = now + (int64_t)((every_s < 1e9 ? every_s : 1e9) * 1e9);
    }
    if (r != NULL) {
        char *text = s->of[s->n].text;
        size_t at = (size_t)snprintf(text, SAYING_BYTES, "status");
        for (const dtr_group *g = gs->first; g != NULL && at < SAYING_BYTES; g = g->next) {
            at += add_group(g, r, text + at, SAYING_BYTES - at);
        }
        s->of[s->n++].level = DTR_LOG_INFO;
    }
    dtr__recording_free(r);
}

/* ---- a round ---- */

static void look_at_backends(dtr_group *g, int64_t now, dtr__queue *called) {
    dtr_status s = dtr__backends_find_mismatch(g, now);
    if (s < 0) {
        dtr__group_report_failure(g, s, called);
    }
}

void dtr__stall_watch_round(dtr_world *world) {
    dtr__groups *gs = world->groups;
    dtr__queue called = { NULL, NULL };
    sayings s;
    s.n = 0;
    if (pthread_mutex_trylock(&gs->lock) != 0) {
        return;
    }
    int64_t now = dtr__now_ns();
    for (dtr_group *g = gs->first; g != NULL; g = g->next) {
        if (g->size > 1 && atomic_load(&g->status) == DTR_OK &&
            (dtr__failure_record_is_put(world, g->uid) ||
             atomic_load(&g->failure->reported_ns) != 0)) {
            dtr__group_settle_failure(g, &called);
        } else if (g->size > 1 && atomic_load(&g->status) == DTR_OK && !g->release.reported) {
            look_for_mismatch(g, now, &called);
            look_at_backends(g, now, &called);
            look_for_slow(g, now, &s);
        }
        look_for_broken(g, &s);
    }
    look_at_status(world, now, &s);
    pthread_mutex_unlock(&gs->lock);
    dtr__callbacks_run(&called);
    for (int i = 0; i < s.n; i++) {
        dtr__log_line(world, s.of[i].level, "%s", s.of[i].text);
    }
}
