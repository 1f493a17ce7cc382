/* The hier backend: groups over several nodes of which some have several ranks. Operations that
 * gain nothing from knowing the nodes take the schedules of the mpi backend. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/hier/hier.h"
#include "backends/mpi/mpi.h"
#include "backends/self/self.h"
#include "backends/shm/shm.h"
#include "core/signature.h"
#include "core/work.h"
#include "failure/failure.h"
#include "hier_internal.h"
#include "kernels/user_ops.h"

enum { POLLS_PER_RELIEF = 16 }; /* of an operation that waits */

/* What is done in two levels, and what builds its steps; all else is left to the mpi backend. */
static void (*const builders[DTR__K_COUNT])(const dtr__hier_build *) = {
    [DTR__K_BROADCAST] = dtr__hier_build_broadcast,
    [DTR__K_ALLREDUCE] = dtr__hier_build_allreduce,
    [DTR__K_REDUCE] = dtr__hier_build_allreduce,
    [DTR__K_ALLGATHER] = dtr__hier_build_allgather,
    [DTR__K_ALLGATHERV] = dtr__hier_build_allgather,
    [DTR__K_REDUCE_SCATTER] = dtr__hier_build_reduce_scatter,
    [DTR__K_REDUCE_SCATTERV] = dtr__hier_build_reduce_scatter,
    [DTR__K_BARRIER] = dtr__hier_build_barrier,
    [DTR__K_SCAN] = dtr__hier_build_scan,
    [DTR__K_EXSCAN] = dtr__hier_build_scan,
};

/* Of a reduction in rank order: NULL, or why it is left to the mpi backend, which moves the inputs
 * of all ranks. Those of a small one are there before a sum has gone from node to node. */
static const char *why_not_in_rows(const dtr_group *g, const dtr__call *c,
                                   const dtr__nodes *nodes) {
    enum { FEW = 4 };
    const size_t small = dtr__mpi_tuning_default.reduce_direct / 2 / (size_t)g->size;
    const char *reason = NULL;
    if (!nodes->contiguous) {
        reason = "sums are made in rank order, and the ranks of a node do not follow each other";
    } else if (dtr__mpi_prepares(c)) {
        reason = "sums are made in rank order, of inputs that are prepared first";
    } else if (nodes->n > FEW && c->in_count * dtr_dtype_size(c->dtype) <= small) {
        reason = "sums are made in rank order, and it is so small that all ranks get all inputs";
    }
    return reason;
}

/* Is this done in two levels? */
static bool by_nodes(const dtr_group *g, const dtr__call *c, const dtr__nodes *nodes,
                     const char **why) {
    const char *reason = NULL;
    if (dtr__kind_is_p2p(c->kind)) {
        return true;
    }
    if (dtr__mpi_tree_fits(&dtr__mpi_tuning_default, c, g->size)) {
        reason = "it is so small that each node gets or gives one message";
    } else if (dtr__at_detail(g->world)) {
        reason = "at DTR_DEBUG=detail all ranks compare their calls first";
    } else if (builders[c->kind] == NULL) {
        reason = "every byte goes to one rank only, so nodes gain nothing";
    } else if (dtr__is_reproducible(g, c)) {
        reason = DTR__WHY_REPRODUCIBLE;
    } else if (dtr__kind_reduces(c->kind) && dtr__keeps_rank_order(g, c)) {
        reason = why_not_in_rows(g, c, nodes);
    } else if (!nodes->contiguous && (builders[c->kind] == dtr__hier_build_allgather ||
                                      builders[c->kind] == dtr__hier_build_reduce_scatter ||
                                      builders[c->kind] == dtr__hier_build_scan)) {
        reason = "the ranks of a node do not follow each other in the group";
    }
    if (reason != NULL && why != NULL) {
        *why = reason;
    }
    return reason == NULL;
}

bool dtr__hier_by_nodes(const dtr_group *g, const dtr__hier_state *s, const dtr__call *c) {
    return by_nodes(g, c, s->nodes, NULL);
}

static int hier_score(const dtr_group *g, const dtr__call *call, const char **why) {
    enum { BEST = 40, AS_MPI = 10 };
    if (g->backends.nodes == NULL) {
        const int *node_of = g->world->node_of, last = g->world_ranks[g->size - 1];
        if (why != NULL) {
            *why = node_of[g->world_ranks[0]] == node_of[last]
                       ? "its ranks are on one node"
                       : "each of its ranks has a node to itself";
        }
        return 0;
    }
    return call == NULL || by_nodes(g, call, g->backends.nodes, why) ? BEST : AS_MPI;
}

/* ---- state ---- */

static bool take_memory(const dtr_group *g, dtr__hier_state *s) {
    s->nodes = g->backends.nodes;
    s->home = dtr__nodes_of(s->nodes, g->rank);
    s->local = dtr__nodes_place(s->nodes, g->rank);
    bool all = true;
    for (int l = 0; l < DTR__HIER_LANES; l++) {
        dtr_group *sub = &s->lane[l].group;
        sub->size = l == DTR__HIER_INTRA ? dtr__nodes_count(s->nodes, s->home) : s->nodes->n;
        sub->world_ranks = calloc((size_t)sub->size, sizeof *sub->world_ranks);
        sub->reported_ranks = calloc((size_t)sub->size, sizeof *sub->reported_ranks);
        all = all && sub->world_ranks != NULL && sub->reported_ranks != NULL;
    }
    return all;
}

/* The facts of a lane's group: the ranks of the own node, or those of the own place in the order of
 * their nodes. */
static void describe_lane(const dtr_group *g, dtr__hier_state *s, dtr__hier_name name) {
    dtr_group *sub = &s->lane[name].group;
    const bool intra = name == DTR__HIER_INTRA;
    sub->world = g->world;
    sub->id = g->id;
    sub->uid = g->uid;
    sub->backends.channel = g->uid ^ (uint64_t)(1 + name) << 62;
    sub->rank = intra ? s->local : s->home;
    memcpy(sub->name, g->name, sizeof sub->name);
    for (int i = 0; i < sub->size && (intra || dtr__hier_has_inter(s)); i++) {
        const int member = dtr__nodes_member(s->nodes, intra ? s->home : i, intra ? i : s->local);
        sub->reported_ranks[i] = member;
        sub->world_ranks[i] = g->world_ranks[member];
    }
}

/* Communicators of both lanes, in the order that describe_lane gives. */
static dtr_status make_comms(const dtr_group *g, dtr__hier_state *s) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    if (g->world->mpi.tcp != NULL) {
        return DTR_OK; /* it has channels, which need not be made */
    }
    MPI_Comm *intra = &s->lane[DTR__HIER_INTRA].group.comm;
    MPI_Comm *inter = &s->lane[DTR__HIER_INTER].group.comm;
    int color = dtr__hier_has_inter(s) ? s->local : MPI_UNDEFINED;
    DTR_MPI(&ctx, MPI_Comm_split(g->comm, s->home, g->rank, intra));
    DTR_MPI(&ctx, MPI_Comm_split(g->comm, color, s->home, inter));
    MPI_Comm_set_errhandler(*intra, MPI_ERRORS_RETURN);
    if (*inter != MPI_COMM_NULL) {
        MPI_Comm_set_errhandler(*inter, MPI_ERRORS_RETURN);
    }
    return DTR_OK;
}

static dtr_status open_lane(dtr__hier_lane *l, const dtr__backend *backend) {
    l->backend = backend;
    if (backend->open != NULL) {
        DTR_TRY(backend->open(&l->group, &l->state));
    }
    l->open = true;
    return DTR_OK;
}

static dtr_status open_lanes(dtr_group *g, dtr__hier_state *s) {
    dtr__hier_lane *intra = &s->lane[DTR__HIER_INTRA];
    DTR_TRY(make_comms(g, s));
    bool shared = dtr__backend_shm.score(&intra->group, NULL, NULL) > 0;
    DTR_TRY(open_lane(intra, intra->group.size == 1 ? &dtr__backend_self
                             : shared               ? &dtr__backend_shm
                                                    : &dtr__backend_mpi));
    if (dtr__hier_has_inter(s)) {
        DTR_TRY(open_lane(&s->lane[DTR__HIER_INTER], &dtr__backend_mpi));
    }
    return dtr__hier_p2p_open(g, s);
}

/* What others of the node may still look at stays where the group is broken. */
static void close_lane(dtr__hier_lane *l, dtr_group *g) {
    const bool broken = atomic_load(&g->status) != DTR_OK;
    atomic_store(&l->group.status, atomic_load(&g->status));
    l->group.left_alone = g->left_alone;
    if (l->open && l->backend->close != NULL) {
        l->backend->close(&l->group, l->state);
    }
    if (l->group.comm != MPI_COMM_NULL && dtr__mpi_alive()) {
        if (broken) {
            dtr__mpi_keep(g->world, &l->group.comm);
        } else if (!dtr__group_retire_comm(g, &l->group.comm)) {
            dtr__mpi_free(&l->group.comm);
        }
    }
    free(l->group.world_ranks);
    free(l->group.reported_ranks);
    free(l->steps);
}

static void hier_close(dtr_group *g, void *opaque) {
    dtr__hier_state *s = opaque;
    dtr__hier_p2p_close(g, s);
    if (s->mpi != NULL) {
        dtr__backend_mpi.close(g, s->mpi);
    }
    for (int l = 0; l < DTR__HIER_LANES; l++) {
        close_lane(&s->lane[l], g);
    }
    if (s->scratch_shared && !s->scratch_lost) {
        dtr__arena_free(g->world, s->scratch);
    } else if (!s->scratch_lost) {
        free(s->scratch);
    }
    free(s->numbers);
    free(s);
}

static dtr__hier_state *new_state(void) {
    dtr__hier_state *s = calloc(1, sizeof *s);
    for (int l = 0; s != NULL && l < DTR__HIER_LANES; l++) {
        s->lane[l].group.comm = MPI_COMM_NULL;
    }
    return s;
}

static dtr_status hier_open(dtr_group *g, void **state) {
    dtr__hier_state *s = new_state();
    void *mpi = NULL;
    bool all_there = s != NULL && dtr__backend_mpi.open(g, &mpi) == DTR_OK;
    if (all_there) {
        s->mpi = mpi;
        all_there = take_memory(g, s);
    }
    dtr_status status = all_there
                            ? DTR_OK
                            : DTR_FAIL(NULL, DTR_ERR_NOMEM,
                                       "no memory for the hier backend of group '%s'", g->name);
    status = dtr__agree_status(dtr__members_of_group(g), status, "opening backend hier");
    if (status < 0) {
        if (s != NULL) {
            hier_close(g, s);
        }
        return status;
    }
    describe_lane(g, s, DTR__HIER_INTRA);
    describe_lane(g, s, DTR__HIER_INTER);
    status = open_lanes(g, s);
    if (status < 0) {
        hier_close(g, s);
        return status;
    }
    *state = s;
    return DTR_OK;
}

/* ---- operations ---- */

static dtr_status run(dtr__hier_state *s, dtr_work *w, bool *done) {
    dtr_status status = dtr__hier_run(s, w, done);
    if (status < 0) {
        dtr__group_record_failure(w->group, status);
        dtr__hier_give_up(s, status);
    }
    return status;
}

static dtr_status hier_start(dtr_group *g, void *opaque, dtr_work *w, bool *done) {
    dtr__hier_state *s = opaque;
    if (dtr__kind_is_p2p(w->call.kind)) {
        return dtr__hier_p2p_start(g, s, w, done);
    }
    if (!by_nodes(g, &w->call, s->nodes, NULL)) {
        return dtr__backend_mpi.start(g, s->mpi, w, done);
    }
    bool data = w->call.kind != DTR__K_BARRIER;
    dtr__hier_build b = { .s = s,
                          .call = &w->call,
                          .rank = g->rank,
                          .size = g->size,
                          .intra = s->lane[DTR__HIER_INTRA].group.size,
                          .ordered =
                              dtr__kind_reduces(w->call.kind) && dtr__keeps_rank_order(g, &w->call),
                          .esize = data ? dtr_dtype_size(w->call.dtype) : 1 };
    dtr__hier_begin(s);
    builders[w->call.kind](&b);
    if (s->no_memory) {
        dtr__error_context ctx = dtr__work_context(w);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for the steps over %d nodes", s->nodes->n);
    }
    return run(s, w, done);
}

static dtr_status hier_progress(dtr_group *g, void *opaque, dtr_work *w, bool *done) {
    dtr__hier_state *s = opaque;
    dtr_status status = dtr__kind_is_p2p(w->call.kind) ? dtr__hier_p2p_progress(g, s, w, done)
                        : by_nodes(g, &w->call, s->nodes, NULL)
                            ? run(s, w, done)
                            : dtr__backend_mpi.progress(g, s->mpi, w, done);
    if (status == DTR_OK && !*done && ++s->polls % POLLS_PER_RELIEF == 0) {
        dtr__hier_p2p_relieve(g, s);
    }
    return status;
}

/* One that has not begun has its steps built first. */
static bool hier_needs_mpi(dtr_group *g, void *opaque, const dtr_work *w) {
    const dtr__hier_state *s = opaque;
    return dtr__kind_is_p2p(w->call.kind)
               ? dtr__hier_p2p_needs_mpi(s, w)
               : !dtr__hier_by_nodes(g, s, &w->call) || (w->started && dtr__hier_steps_need_mpi(s));
}

static void hier_cancel(dtr_group *g, void *opaque, dtr_work *w) {
    dtr__hier_state *s = opaque;
    if (dtr__kind_is_p2p(w->call.kind)) {
        dtr__hier_p2p_cancel(g, s, w);
        return;
    }
    if (!by_nodes(g, &w->call, s->nodes, NULL)) {
        dtr__backend_mpi.cancel(g, s->mpi, w);
        return;
    }
    dtr_status status = (dtr_status)atomic_load(&g->status);
    dtr__error_restore(g->error, status);
    dtr__hier_give_up(s, status);
}

static void hier_withdraw(dtr_group *g, void *opaque) {
    dtr__hier_lane *intra = &((dtr__hier_state *)opaque)->lane[DTR__HIER_INTRA];
    (void)g;
    if (intra->backend->withdraw != NULL) { /* for the steps and the messages of the node */
        intra->backend->withdraw(&intra->group, intra->state);
    }
}

static const char *hier_waits_for(dtr_group *g, void *opaque, dtr_work *w, char *text, size_t cap) {
    dtr__hier_state *s = opaque;
    if (dtr__kind_is_p2p(w->call.kind)) {
        dtr__hier_p2p_waits_for(g, s, w, text, cap);
        return text;
    }
    if (!by_nodes(g, &w->call, s->nodes, NULL)) {
        return dtr__backend_mpi.waits_for(g, s->mpi, w, text, cap);
    }
    dtr__hier_lane *intra = &s->lane[DTR__HIER_INTRA], *inter = &s->lane[DTR__HIER_INTER];
    text[0] = '\0';
    if (intra->under_way && intra->backend->waits_for != NULL) {
        (void)intra->backend->waits_for(&intra->group, intra->state, &intra->work, text, cap);
    }
    if (text[0] == '\0' && inter->under_way) {
        (void)inter->backend->waits_for(&inter->group, inter->state, &inter->work, text, cap);
        size_t used = strlen(text);
        if (used != 0) {
            snprintf(text + used, cap - used,
                     "; it stands for its node, so another rank there may be the one that is late");
        }
    }
    return text;
}

const dtr__backend dtr__backend_hier = {
    .name = "hier",
    .kinds = DTR__KINDS_BASIC,
    .device = DTR_CPU,
    .ends_alone = true,
    .asks_mpi = true,
    .score = hier_score,
    .open = hier_open,
    .close = hier_close,
    .start = hier_start,
    .progress = hier_progress,
    .cancel = hier_cancel,
    .needs_mpi = hier_needs_mpi,
    .withdraw = hier_withdraw,
    .waits_for = hier_waits_for,
    .fast_path_accept = dtr__hier_fast_path_accept,
    .fast_path_start = dtr__hier_fast_path_start,
    .fast_path_poll = dtr__hier_fast_path_poll,
    .fast_path_message = dtr__hier_fast_path_message,
    .fast_path_to_work = dtr__hier_fast_path_to_work,
};
