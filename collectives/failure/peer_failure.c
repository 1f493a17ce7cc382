/* What becomes of groups when a rank fails, and what the message of a timeout reports of the
 * missing ranks. All of it is read from the recordings of the node's ranks and from what other
 * nodes report: no rank is asked, as it may be stuck, but the watchdogs of its node are. */
#include "failure/peer_failure.h"
#include "core/op.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/peers.h"
#include "engine/engine.h"
#include "failure/failure.h"
#include "failure/released.h"

/* ---- failed ranks ---- */

static bool has_member(const dtr_group *g, int world_rank) {
    for (int i = 0; i < g->size; i++) {
        if (g->world_ranks[i] == world_rank) {
            return true;
        }
    }
    return false;
}

void dtr__peer_failed(dtr_world *world, int world_rank, dtr_status status, const char *text,
                      bool notify, dtr__queue *called) {
    if (!dtr__rank_set_failed(world, world_rank, status, text) || world->groups == NULL) {
        return;
    }
    const dtr_status kept = dtr__error_last();
    dtr__error_copy *copy = kept < 0 ? dtr__error_save() : NULL;
    dtr__groups *gs = world->groups;
    pthread_mutex_lock(&gs->lock);
    for (dtr_group *g = gs->first; g != NULL; g = g->next) {
        if (atomic_load(&g->status) == DTR_OK && has_member(g, world_rank)) {
            dtr__error_context ctx = { .world = world, .group = g->name };
            (void)DTR_FAIL(&ctx, status,
                           "%s. Group '%s' is broken: outputs of its unfinished operations are "
                           "undefined",
                           text, g->name);
            atomic_store(&g->failure->failed_peer, world_rank + 1);
            atomic_store(&g->failure->notified, !notify);
            dtr__group_report_failure(g, status, called);
        }
    }
    pthread_mutex_unlock(&gs->lock);
    (void)dtr__error_put_back(copy, kept);
    dtr__progress_wake(world);
}

void dtr__peer_ended(dtr_world *world, int world_rank) {
    char name[128], doing[900], text[1100];
    dtr__queue called = { NULL, NULL };
    dtr__recording *r = dtr__peer_look(world, world_rank);
    bool left = r != NULL && atomic_load(&r->head.phase) == DTR__PHASE_EXITED;
    dtr__recording_free(r);
    snprintf(text, sizeof text, "%s %s: %s", dtr__peer_name(world, world_rank, name, sizeof name),
             left ? "ended without dtr_world_destroy"
             : dtr__peer_execed(world, world_rank)
                 ? "runs another program (exec) and is no rank any more"
                 : "died",
             dtr__peer_doing(world, world_rank, doing, sizeof doing));
    dtr__peer_failed(world, world_rank, DTR_ERR_REMOTE, text, true, &called);
    dtr__callbacks_run(&called);
}

void dtr__peer_reported(dtr_world *world, int world_rank, dtr_status status, const char *text) {
    dtr__queue called = { NULL, NULL };
    /* Of ranks of other nodes, this node's other ranks read on the board, and other nodes know too.
     */
    dtr__peer_failed(world, world_rank, status, text, world->node_of[world_rank] == world->node,
                     &called);
    dtr__callbacks_run(&called);
}

/* ---- who is waited for ---- */

enum { NAMED = 4 }; /* members that a message describes; of the others it gives the number */

/* The rank waits, or has waited in vain, in a group of this rank's too, in an operation that this
 * one has not entered. */
static bool is_opposite(const dtr_world *world, int world_rank, const dtr_group *g) {
    uint64_t uid = 0, seq = 0, own = 0;
    return dtr__peer_waited(world, world_rank, &uid, &seq) && uid != g->uid &&
           dtr__peer_entered(world, world->rank, uid, 0, &own) && own < seq;
}

/* `entered`: what it has not entered, with a space in front; "" where nothing is known of that. */
static void add_doing(const dtr_group *g, int world_rank, const char *entered, char *text,
                      size_t cap) {
    size_t at = strlen(text);
    char name[128], doing[900];
    (void)dtr__peer_doing(g->world, world_rank, doing, sizeof doing);
    if (doing[0] == '\0' && entered[0] == '\0') {
        return;
    }
    snprintf(text + at, cap - at, ". %s%s%s%s%s",
             dtr__peer_name(g->world, world_rank, name, sizeof name), entered,
             doing[0] != '\0' ? ": " : "", doing,
             is_opposite(g->world, world_rank, g)
                 ? " (opposite order: this rank has not entered that one)"
                 : "");
}

/* How many operations of the group it would have to call to be where `w` is; 0: it is there, or
 * that is not known. */
static uint64_t behind(const dtr_group *g, int member, const dtr_work *w, int64_t issued_ns) {
    const dtr__come *all = atomic_load(&g->failure->come);
    uint64_t seq = 0;
    bool known = member != g->rank &&
                 dtr__peer_entered(g->world, g->world_ranks[member], g->uid, issued_ns, &seq);
    if (all != NULL && atomic_load(&all[member].known)) {
        const uint64_t before = atomic_load(&all[member].seq);
        seq = known && seq > before ? seq : before;
        known = true;
    }
    return known && seq < w->seq ? w->seq - seq : 0;
}

/* When this rank entered the operation: what others did before does not count. */
static int64_t issued(const dtr_group *g, const dtr_work *w) {
    dtr__recording *r = dtr__peer_look(g->world, g->world->rank);
    int64_t at = 0;
    for (size_t i = 0; r != NULL && i < r->n_records; i++) {
        const dtr__record *rec = &r->records[i];
        at = rec->group == g->id && rec->op_id == w->issue && (rec->flags & DTR__REC_MEMBER) == 0
                 ? rec->t_issued
                 : at;
    }
    dtr__recording_free(r);
    return at;
}

/* NULL: no memory; then reports serve as long as they have places. */
static dtr__come *come_of(const dtr_group *g, int member) {
    dtr__come *all = atomic_load(&g->failure->come), *none = NULL;
    if (all == NULL) {
        all = calloc((size_t)g->size, sizeof *all);
        if (all != NULL && !atomic_compare_exchange_strong(&g->failure->come, &none, all)) {
            free(all);
            all = none;
        }
    }
    return all != NULL ? &all[member] : NULL;
}

/* An old report that says it has come is enough. */
static bool ask(const dtr_group *g, int member, const dtr_work *w, int64_t since_ns) {
    const int r = g->world_ranks[member];
    if (g->world->node_of[r] == g->world->node) {
        return true;
    }
    dtr__come *its = dtr__kind_is_p2p(w->call.kind) ? NULL : come_of(g, member);
    if (its == NULL) {
        return dtr__control_ask(g->world, r, since_ns);
    }
    uint64_t seq = 0;
    if (dtr__peer_entered(g->world, r, g->uid, 0, &seq) && seq > atomic_load(&its->seq)) {
        atomic_store(&its->seq, seq);
    }
    if (atomic_load(&its->seq) >= w->seq || atomic_load(&its->asked_ns) >= since_ns) {
        return true;
    }
    if (!dtr__control_ask(g->world, r, since_ns)) {
        return false;
    }
    if (dtr__peer_entered(g->world, r, g->uid, since_ns, &seq)) {
        atomic_store(&its->seq, seq);
        atomic_store(&its->known, true);
    }
    atomic_store(&its->asked_ns, since_ns);
    return true;
}

bool dtr__ask_missing(const dtr_group *g, const dtr_work *w, int64_t since_ns) {
    enum { LOOK_EVERY_NS = 5000000 };
    const bool p2p = dtr__kind_is_p2p(w->call.kind);
    const int first = p2p ? w->call.root : 0, last = p2p ? w->call.root : g->size - 1;
    const int64_t now = dtr__now_ns();
    bool known = true;
    if (!dtr__control_serves(g->world)) {
        return true;
    }
    if (now < atomic_load(&g->failure->ask_ns)) {
        return false;
    }
    for (int i = first; i <= last && i >= 0 && i < g->size; i++) {
        known = ask(g, i, w, since_ns) && known;
    }
    atomic_store(&g->failure->ask_ns, known ? 0 : now + LOOK_EVERY_NS);
    return known;
}

const char *dtr__name_missing(const dtr_group *g, const dtr_work *w, char *text, size_t cap) {
    text[0] = '\0';
    if (dtr__kind_is_p2p(w->call.kind)) {
        int peer = w->call.root;
        if (peer >= 0 && peer < g->size && peer != g->rank) {
            const bool left = dtr__release_has(g, peer);
            snprintf(text, cap, "%s", left ? ". That rank has let go of the group" : "");
            add_doing(g, g->world_ranks[peer], "", text, cap);
        }
        return text;
    }
    int absent = 0;
    int64_t issued_ns = issued(g, w);
    for (int i = 0; i < g->size; i++) {
        uint64_t n = behind(g, i, w, issued_ns);
        if (n > 0 && absent++ < NAMED) {
            char entered[96];
            snprintf(entered, sizeof entered,
                     " has not entered %s #%" PRIu64 " (%" PRIu64 " behind)",
                     dtr__kind_name(w->call.kind), w->seq, n);
            add_doing(g, g->world_ranks[i], entered, text, cap);
        }
    }
    if (absent > NAMED) {
        size_t at = strlen(text);
        snprintf(text + at, cap - at, ". %d more ranks have not entered it", absent - NAMED);
    }
    return text;
}
