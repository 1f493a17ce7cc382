/* Quiet time is counted in rounds of the watching watchdog, and only while the watched process
 * runs: neither a stopped job nor one that a debugger holds is taken for one that hangs. */
#include "heartbeat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/world.h"
#include "control/peers.h"
#include "progress/progress.h"
#include "recorder/recorder.h"

#define SECOND_NS INT64_C(1000000000)
#define OFF INT64_MAX

typedef struct quiet {
    uint64_t seen; /* the beat, 0: it need not move */
    int64_t ns;    /* unchanged for so long */
} quiet;

struct dtr__heartbeats {
    int64_t limit_ns; /* OFF: nothing is reported */
    int64_t round_ns; /* of the last look */
    int64_t most_ns;  /* that counts of the time between two rounds: this process may be stopped */
    struct {
        quiet progress, watchdog;
        bool reported;
    } rank[]; /* [local size] */
};

dtr__heartbeats *dtr__heartbeats_new(const dtr_world *world) {
    size_t n = (size_t)world->local_size;
    dtr__heartbeats *hs = calloc(1, sizeof *hs + n * sizeof hs->rank[0]);
    if (hs != NULL) {
        double limit_s = dtr__opt_seconds(&world->options, DTR__OPT_HEARTBEAT_LIMIT);
        int64_t nap_ms = (int64_t)dtr__opt_number(&world->options, DTR__OPT_WATCHDOG_MS);
        hs->limit_ns = limit_s > 0 && limit_s < 1e9 ? (int64_t)(limit_s * 1e9) : OFF;
        hs->most_ns = 2 * nap_ms * 1000000 > SECOND_NS ? 2 * nap_ms * 1000000 : SECOND_NS;
    }
    return hs;
}

void dtr__heartbeats_free(dtr__heartbeats *hs) {
    free(hs);
}

/* Whether the limit has passed. */
static bool count(quiet *q, uint64_t beat, int64_t passed_ns, int64_t limit_ns) {
    q->ns = beat != 0 && beat == q->seen ? q->ns + passed_ns : 0;
    q->seen = beat;
    return q->ns >= limit_ns;
}

/* For the others, who cannot ask this process; taken back once the thread moves again. */
static void publish_still(const dtr_world *world, dtr__rec_header *h, int64_t since_ns) {
    const char *name = since_ns != 0 ? dtr__progress_inside(world) : NULL;
    uint64_t words[DTR__RECORDING_INSIDE] = { 0 };
    if (since_ns == 0 && atomic_load_explicit(&h->progress_still_ns, memory_order_relaxed) == 0) {
        return;
    }
    if (name != NULL) {
        snprintf((char *)words, sizeof words, "%.*s", (int)strcspn(name, "("), name);
    }
    for (int i = 0; i < DTR__RECORDING_INSIDE; i++) {
        atomic_store_explicit(&h->progress_inside[i], words[i], memory_order_relaxed);
    }
    atomic_store_explicit(&h->progress_still_ns, since_ns, memory_order_release);
}

/* s: seconds of silence; INFINITY: it has left since. */
static void report(dtr_world *world, int rank, const dtr__rec_header *h, bool progress, double s,
                   dtr__control_rank_failed rank_failed) {
    char name[128], text[400];
    uint64_t words[DTR__RECORDING_INSIDE + 1] = { 0 };
    for (int i = 0; i < DTR__RECORDING_INSIDE; i++) {
        words[i] = atomic_load_explicit(&h->progress_inside[i], memory_order_relaxed);
    }
    dtr__peer_name(world, rank, name, sizeof name);
    if (isinf(s)) {
        snprintf(text, sizeof text,
                 "%s has left its world with its progress thread still inside %s", name,
                 words[0] != 0 ? (const char *)words : "an unknown call");
    } else if (progress && words[0] != 0) {
        snprintf(text, sizeof text,
                 "%s: its progress thread has been inside %s for more than %g s "
                 "(DTR_HEARTBEAT_LIMIT)",
                 name, (const char *)words, s);
    } else {
        snprintf(text, sizeof text,
                 "%s: its %s thread has not moved for more than %g s (DTR_HEARTBEAT_LIMIT)", name,
                 progress ? "progress" : "watchdog", s);
    }
    rank_failed(world, rank, DTR_ERR_TIMEOUT, text);
    dtr__control_report_failure(world, rank);
}

static void look(dtr_world *world, dtr__heartbeats *hs, int i, int64_t passed_ns,
                 dtr__control_rank_failed rank_failed) {
    const bool own = i == world->local_rank;
    const dtr__rec_header *h = own ? dtr__recorder_header(world) : dtr__peer_header(world, i);
    if (h == NULL || hs->rank[i].reported) {
        return;
    }
    const uint32_t phase = atomic_load(&h->phase);
    if (!own && phase == DTR__PHASE_ABANDONED) {
        hs->rank[i].reported = true;
        report(world, world->local_world[i], h, true, INFINITY, rank_failed);
    }
    if ((!own && hs->limit_ns == OFF) || phase != DTR__PHASE_RUNNING) {
        return;
    }
    quiet *p = &hs->rank[i].progress, *w = &hs->rank[i].watchdog;
    uint64_t beat = atomic_load_explicit(&h->progress_beat, memory_order_relaxed);
    bool progress = count(p, beat, passed_ns, hs->limit_ns);
    bool watchdog = count(w, own ? 0 : (uint64_t)atomic_load(&h->beat_ns), passed_ns, hs->limit_ns);
    if (own) {
        publish_still(world, dtr__recorder_header(world), p->ns > 0 ? hs->round_ns - p->ns : 0);
    }
    /* Not to be asked in every round. */
    if (!own && (progress || watchdog || p->ns >= SECOND_NS || w->ns >= SECOND_NS) &&
        !dtr__peer_runs(world, i)) {
        p->ns = w->ns = 0;
        return;
    }
    if (progress || watchdog) {
        hs->rank[i].reported = true;
        if (own) {
            dtr__progress_give_up(world);
        }
        report(world, world->local_world[i], h, progress, (double)hs->limit_ns * 1e-9, rank_failed);
    }
}

void dtr__heartbeats_round(dtr_world *world, dtr__heartbeats *hs,
                           dtr__control_rank_failed rank_failed) {
    int64_t now = dtr__now_ns(), passed_ns = hs->round_ns != 0 ? now - hs->round_ns : 0;
    hs->round_ns = now;
    for (int i = 0; i < world->local_size; i++) {
        look(world, hs, i, passed_ns < hs->most_ns ? passed_ns : hs->most_ns, rank_failed);
    }
}
