/* The backends mpi and tcp: collectives and point to point as own schedules of point-to-point
 * messages, between any ranks: on the group's private communicator with any MPI library, or over
 * TCP in a world without MPI. Nothing here blocks. */
#include <stdlib.h>

#include "backends/mpi/mpi.h"
#include "core/backend.h"
#include "core/signature.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/fast_entry.h"
#include "kernels/user_ops.h"
#include "mpi_internal.h"

/* Cancelled transfers that do not end within this time, per group, are left behind. */
static const double CANCEL_PATIENCE_S = 0.05, CLOSE_PATIENCE_S = 0.25;
/* Works left behind are named one by one up to this many, then only counted. */
enum { WARNINGS_MAX = 4 };

static int mpi_score(const dtr_group *group, const dtr__call *call, const char **why) {
    (void)call;
    if (group->world->mpi.inbox != NULL) {
        if (why != NULL) {
            *why = DTR__WHY_NO_MPI;
        }
        return 0;
    }
    return 20;
}

static int tcp_score(const dtr_group *group, const dtr__call *call, const char **why) {
    const bool without_mpi = group->world->mpi.inbox != NULL;
    (void)call;
    if (group->world->mpi.tcp == NULL && why != NULL) {
        *why = without_mpi ? "the world is on one node" : "its ranks reach each other by MPI";
    }
    return group->world->mpi.tcp != NULL ? 20 : 0;
}

/* Several nodes with several ranks each, in node order: neighbours in the ring share a node. */
static bool wants_ring(const dtr_group *group) {
    int borders = 0;
    for (int i = 0; i < group->size; i++) {
        int next = (i + 1) % group->size;
        borders += group->world->node_of[group->world_ranks[i]] !=
                   group->world->node_of[group->world_ranks[next]];
    }
    return borders > 0 && 2 * borders <= group->size;
}

static dtr__mpi_tuning tuning_of(const dtr_world *world) {
    const uint64_t *value = world->tune.value;
    dtr__mpi_tuning t = dtr__mpi_tuning_default;
    t.doubling = value[DTR__TUNE_NODES_DOUBLING];
    t.ring = value[DTR__TUNE_NODES_RING];
    t.segment = value[DTR__TUNE_NODES_SEGMENT];
    t.message = 8 * t.segment; /* as in segments of up to 16 ranks */
    t.block = t.whole = value[DTR__TUNE_NODES_BLOCK];
    t.piece = value[DTR__TUNE_NODES_PIECE];
    t.inline_most = value[DTR__TUNE_NODES_INLINE];
    return t;
}

static dtr_status mpi_open(dtr_group *group, void **result) {
    dtr__mpi_state *state = calloc(1, sizeof *state);
    dtr__mpi_sched *sched = dtr__mpi_sched_new();
    if (state == NULL || sched == NULL) {
        free(state);
        dtr__mpi_sched_free(sched);
        return DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for the mpi backend of group '%s'",
                        group->name);
    }
    state->tuning = tuning_of(group->world);
    state->nodes = group->backends.nodes;
    state->ring = wants_ring(group);
    state->sched = sched;
    state->cancel_patience = CANCEL_PATIENCE_S;
    *result = state;
    return DTR_OK;
}

/* Memory that MPI may still read or write stays. */
static void mpi_close(dtr_group *group, void *opaque) {
    dtr__mpi_state *state = opaque;
    bool alive = dtr__ranks_reachable(group->world);
    state->cancel_patience = CLOSE_PATIENCE_S;
    for (dtr__mpi_sched *s = state->left, *next; s != NULL; s = next) {
        next = s->next;
        if (!alive || dtr__mpi_sched_cancel(group, s, state)) {
            dtr__mpi_sched_free(s);
        } else {
            dtr__mpi_sched_abandon(s);
        }
    }
    dtr__mpi_p2p_close(group, state, alive);
    dtr__mpi_sched_free(state->sched);
    if (state->warnings > WARNINGS_MAX) {
        DTR_WARN(group->world,
                 "group '%s': %u operations in all were given up with transfers that MPI did not "
                 "let go; their buffers must stay allocated until MPI_Finalize",
                 group->name, state->warnings);
    }
    free(state);
}

#define BUILDER(KIND, name) [DTR__K_##KIND] = dtr__mpi_build_##name,
static void (*const builders[DTR__K_COUNT])(const dtr__mpi_build *) = {
    DTR__MPI_COLLECTIVES(BUILDER)
};
#define OR_BIT(KIND, name) | DTR__KIND_BIT(KIND)
#define SERVED \
    (DTR__KIND_BIT(SEND) | DTR__KIND_BIT(RECV) | DTR__KIND_BIT(BATCH) DTR__MPI_COLLECTIVES(OR_BIT))

static void warn_left(const dtr_group *group, dtr__mpi_state *state, const dtr_work *w) {
    char title[160];
    if (state->warnings++ < WARNINGS_MAX) {
        DTR_WARN(group->world,
                 "%s was given up, but MPI did not let go of all its transfers: its buffers must "
                 "stay allocated until MPI_Finalize",
                 dtr__work_title(w, title, sizeof title));
    }
}

/* Ends the collective under way. What MPI still holds keeps its schedule and staging memory. */
static bool cancel_collective(const dtr_group *group, dtr__mpi_state *state, dtr_work *w) {
    dtr__mpi_sched *s = w->request;
    w->request = NULL;
    if (dtr__mpi_sched_cancel(group, s, state)) {
        return true;
    }
    s->next = state->left;
    state->left = s;
    state->sched = NULL;
    return false;
}

static void mpi_cancel(dtr_group *group, void *opaque, dtr_work *w) {
    dtr__mpi_state *state = opaque;
    if (w->request == NULL || !dtr__ranks_reachable(group->world)) {
        return;
    }
    bool p2p = dtr__kind_is_p2p(w->call.kind);
    if (!(p2p ? dtr__mpi_p2p_cancel(group, state, w) : cancel_collective(group, state, w))) {
        warn_left(group, state, w);
    }
}

/* Not where the group or the operator asks for the order of ranks, nor where a sum of a small type
 * is to be rounded once, at its end. */
static bool has_free_order(const dtr_group *group, const dtr__call *c) {
    const bool sums =
        c->op == DTR_SUM || c->op == DTR_AVG || c->op == DTR_PROD || c->op == DTR_PREMUL_SUM;
    const bool is_small = c->dtype == DTR_F16 || c->dtype == DTR_BF16 || c->dtype == DTR_F8E4M3 ||
                          c->dtype == DTR_F8E5M2;
    return dtr__kind_reduces(c->kind) && !dtr__keeps_rank_order(group, c) &&
           !dtr__is_reproducible(group, c) && !(sums && is_small);
}

static void build(const dtr_group *group, const dtr__mpi_state *state, const dtr__call *c) {
    const dtr__mpi_build b = { .state = state,
                               .call = c,
                               .s = state->sched,
                               .rank = group->rank,
                               .size = group->size,
                               .esize = c->kind != DTR__K_BARRIER ? dtr_dtype_size(c->dtype) : 1,
                               .free_order = has_free_order(group, c) };
    if (c->rows > 0) {
        dtr__mpi_build_ordered(&b);
    } else if (!dtr__mpi_build_tree(&b)) {
        builders[c->kind](&b);
    }
}

static dtr_status start_collective(dtr_group *group, dtr__mpi_state *state, dtr_work *w,
                                   bool *done) {
    if (state->sched == NULL) {
        state->sched = dtr__mpi_sched_new();
    }
    dtr__mpi_sched *s = state->sched;
    if (s != NULL) {
        dtr__mpi_sched_begin(s, group, &w->call, w->seq);
        if (dtr__at_detail(group->world)) {
            dtr__mpi_exchange_signatures(s, w);
        }
        build(group, state, &w->call);
    }
    if (s == NULL || s->no_memory) {
        dtr__error_context ctx = dtr__work_context(w);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for the message schedule");
    }
    w->request = s;
    return dtr__mpi_sched_run(s, group, w, done);
}

/* A failed work is given up at once. */
static dtr_status settle(dtr_group *group, dtr__mpi_state *state, dtr_work *w, dtr_status status,
                         bool done) {
    if (status < 0) {
        dtr__work_give_up(group, &dtr__backend_mpi, state, w, status);
    }
    if (status < 0 || done) {
        w->request = NULL;
    }
    return status;
}

static dtr_status mpi_start(dtr_group *group, void *opaque, dtr_work *w, bool *done) {
    dtr__mpi_state *state = opaque;
    *done = false;
    dtr_status status = dtr__kind_is_p2p(w->call.kind) ? dtr__mpi_p2p_start(group, state, w, done)
                                                       : start_collective(group, state, w, done);
    return settle(group, state, w, status, *done);
}

static dtr_status mpi_progress(dtr_group *group, void *opaque, dtr_work *w, bool *done) {
    dtr__mpi_state *state = opaque;
    *done = false;
    dtr_status status = dtr__kind_is_p2p(w->call.kind)
                            ? dtr__mpi_p2p_progress(group, state, w, done)
                            : dtr__mpi_sched_run(w->request, group, w, done);
    return settle(group, state, w, status, *done);
}

static const char *mpi_waits_for(dtr_group *group, void *opaque, dtr_work *w, char *text,
                                 size_t cap) {
    (void)opaque;
    text[0] = '\0';
    if (w->request == NULL) {
        return text;
    }
    if (dtr__kind_is_p2p(w->call.kind)) {
        dtr__messages_wait_for(group, w->request, text, cap);
    } else {
        dtr__mpi_sched_waits_for(w->request, group, text, cap);
    }
    return text;
}

/* ---- the fast path: small messages, and collectives of small messages ---- */

static bool fast_path_accept(dtr_group *group, void *opaque, const dtr__call *c, dtr__moves *m) {
    enum { SMALL = 32 << 10 }; /* bytes of a rank: more take longer than what is spared */
    *m = (dtr__moves){ .parts = m->parts };
    return dtr__kind_is_p2p(c->kind)
               ? dtr__mpi_p2p_fast_accept(opaque, c)
               : c->op != DTR_PREMUL_SUM && !dtr__at_detail(group->world) &&
                     (c->in_count + c->out_count) * dtr_dtype_size(c->dtype) <= SMALL;
}

/* Its memory is there since the call that was learnt from; a schedule left behind took it along. */
static bool fast_path_start(dtr_group *group, void *opaque, const dtr__fast_path *p) {
    dtr__mpi_state *state = opaque;
    if (p->p2p) {
        return dtr__mpi_p2p_fast_start(group, state, &p->call, dtr__p2p_all(&p->call));
    }
    dtr__mpi_sched *s = state->sched;
    if (s == NULL) {
        return false;
    }
    if (s->built_for == p->id && s->built_in == p->call.in && s->built_out == p->call.out) {
        dtr__mpi_sched_again(s, group, &p->call, p->record.seq);
        return true;
    }
    dtr__mpi_sched_begin(s, group, &p->call, p->record.seq);
    build(group, state, &p->call);
    s->built_for = s->no_memory ? 0 : p->id;
    s->built_in = p->call.in;
    s->built_out = p->call.out;
    return !s->no_memory;
}

static int fast_path_poll(dtr_group *group, void *opaque, const dtr__fast_path *p) {
    dtr__mpi_state *state = opaque;
    return p->p2p ? dtr__mpi_p2p_fast_poll(group, state) : dtr__mpi_sched_poll(state->sched, group);
}

static int fast_path_message(dtr_group *group, void *state, const dtr__fast_path *p) {
    return dtr__mpi_p2p_fast_message(group, state, &p->call);
}

static void fast_path_to_work(dtr_group *group, void *opaque, dtr_work *w) {
    dtr__mpi_state *state = opaque;
    (void)group;
    if (!dtr__kind_is_p2p(w->call.kind)) {
        w->request = state->sched;
        return;
    }
    w->request = state->repeating;
    state->repeating = NULL;
}

/* What does the work is the same for both. */
#define BACKEND(the_name, the_score, is_mpi)                                                    \
    {                                                                                           \
        .name = (the_name), .kinds = SERVED, .device = DTR_CPU, .ends_alone = true,             \
        .asks_mpi = (is_mpi), .without_mpi = !(is_mpi), .score = (the_score), .open = mpi_open, \
        .close = mpi_close, .start = mpi_start, .progress = mpi_progress, .cancel = mpi_cancel, \
        .waits_for = mpi_waits_for, .fast_path_accept = fast_path_accept,                       \
        .fast_path_start = fast_path_start, .fast_path_poll = fast_path_poll,                   \
        .fast_path_message = fast_path_message, .fast_path_to_work = fast_path_to_work,         \
    }
const dtr__backend dtr__backend_mpi = BACKEND("mpi", mpi_score, true);
const dtr__backend dtr__backend_tcp = BACKEND("tcp", tcp_score, false);
