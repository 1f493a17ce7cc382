/* The hier backend: groups over several nodes of which some have several ranks. Operations that
 * gain nothing from knowing the nodes, and reductions of `deterministic` groups, take the schedules
 * of the mpi backend. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "declare.h"
#include "hier/hier_internal.h"
#include "mpi/mpi_internal.h"

enum { POLLS_PER_RELIEF = 16 }; /* of an operation that waits */

/* Nodes of the group, and the most ranks one of them has. */
static int count_nodes(const dtr_group *g, int *most) {
    const dtr_world *w = g->world;
    int nodes = 0;
    *most = 0;
    for (int i = 0; i < g->size; i++) {
        int before = 0, same = 1;
        for (int j = 0; j < i; j++) {
            before += w->node_of[g->world_ranks[j]] == w->node_of[g->world_ranks[i]];
        }
        same += before;
        nodes += before == 0;
        *most = same > *most ? same : *most;
    }
    return nodes;
}

static bool is_contiguous(const dtr_group *g, int nodes) {
    int borders = 0;
    for (int i = 1; i < g->size; i++) {
        borders += g->world->node_of[g->world_ranks[i]] != g->world->node_of[g->world_ranks[i - 1]];
    }
    return borders == nodes - 1;
}

/* Is this done in two levels? */
static bool by_nodes(const dtr_group *g, const dtr__call *c, bool contiguous, const char **why) {
    const char *reason = NULL;
    if (dtr__kind_is_p2p(c->kind)) {
        return true;
    }
    if (dtr__mpi_tree_fits(c, g->size)) {
        if (why != NULL) {
            *why = "it is so small that each node gets or gives one message";
        }
        return false;
    }
    bool detail = dtr__at_detail(g->world);
    switch (detail ? DTR__K_COUNT : c->kind) {
    case DTR__K_ALLREDUCE:
    case DTR__K_REDUCE:
        reason =
            g->deterministic ? "the group is deterministic: sums are made in rank order" : NULL;
        break;
    case DTR__K_REDUCE_SCATTER:
    case DTR__K_REDUCE_SCATTERV:
        reason = g->deterministic ? "the group is deterministic: sums are made in rank order"
                 : contiguous     ? NULL
                                  : "the ranks of a node do not follow each other in the group";
        break;
    case DTR__K_ALLGATHER:
    case DTR__K_ALLGATHERV:
        reason = contiguous ? NULL : "the ranks of a node do not follow each other in the group";
        break;
    case DTR__K_BROADCAST:
    case DTR__K_BARRIER:
        break;
    case DTR__K_COUNT:
        reason = "at DTR_DEBUG=detail all ranks compare their calls first";
        break;
    default:
        reason = "every byte goes to one rank only, so nodes gain nothing";
        break;
    }
    if (reason != NULL && why != NULL) {
        *why = reason;
    }
    return reason == NULL;
}

bool dtr__hier_by_nodes(const dtr_group *g, const dtr__hier_state *s, const dtr__call *c) {
    return by_nodes(g, c, s->contiguous, NULL);
}

static int hier_score(const dtr_group *g, const dtr__call *call, const char **why) {
    enum { BEST = 40, AS_MPI = 10 };
    if (call != NULL) { /* the group has been looked at */
        for (int i = 0; i < g->n_backends; i++) {
            const dtr__hier_state *s = g->backend_state[i];
            if (g->backend[i] == &dtr__backend_hier && s != NULL) {
                return by_nodes(g, call, s->contiguous, why) ? BEST : AS_MPI;
            }
        }
    }
    int most, nodes = count_nodes(g, &most);
    if (call != NULL) { /* dtr-info asks about a group that does not exist */
        return by_nodes(g, call, is_contiguous(g, nodes), why) ? BEST : AS_MPI;
    }
    if (nodes < 2 || most < 2) {
        if (why != NULL) {
            *why =
                nodes < 2 ? "its ranks are on one node" : "each of its ranks has a node to itself";
        }
        return 0;
    }
    return BEST;
}

/* ---- state ---- */

static bool take_memory(const dtr_group *g, dtr__hier_state *s, int nodes) {
    s->first = calloc((size_t)nodes, sizeof *s->first);
    s->count = calloc((size_t)nodes, sizeof *s->count);
    s->node_of = calloc((size_t)g->size, sizeof *s->node_of);
    bool all = s->first != NULL && s->count != NULL && s->node_of != NULL;
    for (int l = 0; l < DTR__HIER_LANES; l++) {
        dtr_group *sub = &s->lane[l].group;
        sub->comm = MPI_COMM_NULL;
        sub->world_ranks = calloc((size_t)g->size, sizeof *sub->world_ranks);
        sub->told_ranks = calloc((size_t)g->size, sizeof *sub->told_ranks);
        all = all && sub->world_ranks != NULL && sub->told_ranks != NULL;
    }
    return all;
}

/* Number the nodes by their lowest group ranks. */
static void learn_nodes(const dtr_group *g, dtr__hier_state *s) {
    for (int i = 0; i < g->size; i++) {
        int d = 0;
        while (d < s->n_nodes && g->world->node_of[g->world_ranks[s->first[d]]] !=
                                     g->world->node_of[g->world_ranks[i]]) {
            d++;
        }
        if (d == s->n_nodes) {
            s->first[s->n_nodes++] = i;
        }
        s->node_of[i] = d;
        if (i == g->rank) {
            s->home = d;
            s->local = s->count[d];
        }
        s->count[d]++;
    }
    s->width = s->count[0];
    for (int d = 1; d < s->n_nodes; d++) {
        s->width = s->count[d] < s->width ? s->count[d] : s->width;
    }
    s->contiguous = is_contiguous(g, s->n_nodes);
}

/* The facts of a lane's group: the members of `g` that `belongs` to. */
static void describe_lane(const dtr_group *g, dtr__hier_state *s, dtr__hier_name name) {
    dtr_group *sub = &s->lane[name].group;
    int places[DTR__HIER_LANES];
    sub->world = g->world;
    sub->id = g->id;
    sub->uid = g->uid;
    sub->timeout_s = g->timeout_s;
    memcpy(sub->name, g->name, sizeof sub->name);
    for (int i = 0; i < g->size; i++) {
        places[DTR__HIER_WIRE] = 0;
        for (int j = 0; j < i; j++) {
            places[DTR__HIER_WIRE] += s->node_of[j] == s->node_of[i];
        }
        bool in =
            name == DTR__HIER_HERE ? s->node_of[i] == s->home : places[DTR__HIER_WIRE] == s->local;
        if (in) {
            sub->rank = i == g->rank ? sub->size : sub->rank;
            sub->told_ranks[sub->size] = i;
            sub->world_ranks[sub->size++] = g->world_ranks[i];
        }
    }
}

/* Communicators of both lanes; the order of the group's ranks is that of the nodes' numbers on a
 * wire only when sorted by them. */
static dtr_status make_comms(const dtr_group *g, dtr__hier_state *s) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    MPI_Comm *here = &s->lane[DTR__HIER_HERE].group.comm;
    MPI_Comm *wire = &s->lane[DTR__HIER_WIRE].group.comm;
    int color = dtr__hier_has_wire(s) ? s->local : MPI_UNDEFINED;
    DTR_MPI(&ctx, MPI_Comm_split(g->comm, s->home, g->rank, here));
    DTR_MPI(&ctx, MPI_Comm_split(g->comm, color, s->home, wire));
    MPI_Comm_set_errhandler(*here, MPI_ERRORS_RETURN);
    if (*wire != MPI_COMM_NULL) {
        MPI_Comm_set_errhandler(*wire, MPI_ERRORS_RETURN);
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
    dtr__hier_lane *here = &s->lane[DTR__HIER_HERE];
    DTR_TRY(make_comms(g, s));
    bool shared = dtr__backend_shm.score(&here->group, NULL, NULL) > 0;
    DTR_TRY(open_lane(here, here->group.size == 1 ? &dtr__backend_self
                            : shared              ? &dtr__backend_shm
                                                  : &dtr__backend_mpi));
    if (dtr__hier_has_wire(s)) {
        DTR_TRY(open_lane(&s->lane[DTR__HIER_WIRE], &dtr__backend_mpi));
    }
    DTR_TRY(dtr__backend_mpi.open(g, &s->mpi));
    return dtr__hier_p2p_open(g, s);
}

/* What others of the node may still look at stays where the group is broken. */
static void close_lane(dtr__hier_lane *l, int status) {
    const bool broken = status != DTR_OK;
    atomic_store(&l->group.status, status);
    if (l->open && l->backend->close != NULL) {
        l->backend->close(&l->group, l->state);
    }
    if (l->group.comm != MPI_COMM_NULL && dtr__mpi_alive()) {
        if (broken) {
            dtr__mpi_keep(&l->group.comm);
        } else {
            MPI_Comm_free(&l->group.comm);
        }
    }
    free(l->group.world_ranks);
    free(l->group.told_ranks);
    free(l->steps);
}

static void hier_close(dtr_group *g, void *opaque) {
    dtr__hier_state *s = opaque;
    dtr__hier_p2p_close(g, s);
    if (s->mpi != NULL) {
        dtr__backend_mpi.close(g, s->mpi);
    }
    for (int l = 0; l < DTR__HIER_LANES; l++) {
        close_lane(&s->lane[l], atomic_load(&g->status));
    }
    if (s->scratch_shared && !s->scratch_lost) {
        dtr__arena_free(g->world, s->scratch);
    } else if (!s->scratch_lost) {
        free(s->scratch);
    }
    free(s->first);
    free(s->count);
    free(s->node_of);
    free(s->numbers);
    free(s);
}

static dtr_status hier_open(dtr_group *g, void **state) {
    int most;
    dtr__hier_state *s = calloc(1, sizeof *s);
    bool room = s != NULL && take_memory(g, s, count_nodes(g, &most));
    dtr_status status = room ? DTR_OK
                             : DTR_FAIL(NULL, DTR_ERR_NOMEM,
                                        "no memory for the hier backend of group '%s'", g->name);
    status = dtr__agree_status(g->world, g->comm, status, "opening backend hier");
    if (status < 0) {
        if (s != NULL) {
            hier_close(g, s);
        }
        return status;
    }
    learn_nodes(g, s);
    describe_lane(g, s, DTR__HIER_HERE);
    describe_lane(g, s, DTR__HIER_WIRE);
    status = open_lanes(g, s);
    if (status < 0) {
        hier_close(g, s);
        return status;
    }
    *state = s;
    return DTR_OK;
}

/* ---- operations ---- */

static void build(const dtr__hier_build *b) {
    switch (b->call->kind) {
    case DTR__K_BROADCAST:
        dtr__hier_build_broadcast(b);
        break;
    case DTR__K_ALLREDUCE:
    case DTR__K_REDUCE:
        dtr__hier_build_allreduce(b);
        break;
    case DTR__K_ALLGATHER:
    case DTR__K_ALLGATHERV:
        dtr__hier_build_allgather(b);
        break;
    case DTR__K_REDUCE_SCATTER:
    case DTR__K_REDUCE_SCATTERV:
        dtr__hier_build_reduce_scatter(b);
        break;
    default:
        dtr__hier_build_barrier(b);
        break;
    }
}

static dtr_status run(dtr__hier_state *s, dtr_work *w, bool *done) {
    dtr_status status = dtr__hier_run(s, w, done);
    if (status < 0) {
        dtr__hier_give_up(s, status);
    }
    return status;
}

static dtr_status hier_start(dtr_group *g, void *opaque, dtr_work *w, bool *done) {
    dtr__hier_state *s = opaque;
    if (dtr__kind_is_p2p(w->call.kind)) {
        return dtr__hier_p2p_start(g, s, w, done);
    }
    if (!by_nodes(g, &w->call, s->contiguous, NULL)) {
        return dtr__backend_mpi.start(g, s->mpi, w, done);
    }
    bool data = w->call.kind != DTR__K_BARRIER;
    dtr__hier_build b = { .s = s,
                          .call = &w->call,
                          .rank = g->rank,
                          .size = g->size,
                          .here = s->lane[DTR__HIER_HERE].group.size,
                          .esize = data ? dtr_dtype_size(w->call.dtype) : 1 };
    dtr__hier_begin(s);
    build(&b);
    if (s->no_memory) {
        dtr__error_context ctx = dtr__work_context(w);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for the steps over %d nodes", s->n_nodes);
    }
    return run(s, w, done);
}

static dtr_status hier_progress(dtr_group *g, void *opaque, dtr_work *w, bool *done) {
    dtr__hier_state *s = opaque;
    dtr_status status = dtr__kind_is_p2p(w->call.kind) ? dtr__hier_p2p_progress(g, s, w, done)
                        : by_nodes(g, &w->call, s->contiguous, NULL)
                            ? run(s, w, done)
                            : dtr__backend_mpi.progress(g, s->mpi, w, done);
    if (status == DTR_OK && !*done && ++s->polls % POLLS_PER_RELIEF == 0) {
        dtr__hier_p2p_relieve(g, s);
    }
    return status;
}

static void hier_cancel(dtr_group *g, void *opaque, dtr_work *w) {
    dtr__hier_state *s = opaque;
    if (dtr__kind_is_p2p(w->call.kind)) {
        dtr__hier_p2p_cancel(g, s, w);
        return;
    }
    if (!by_nodes(g, &w->call, s->contiguous, NULL)) {
        dtr__backend_mpi.cancel(g, s->mpi, w);
        return;
    }
    dtr_status status = (dtr_status)atomic_load(&g->status);
    dtr__error_restore(g->error, status);
    dtr__hier_give_up(s, status);
}

static void hier_withdraw(dtr_group *g, void *opaque) {
    dtr__hier_lane *here = &((dtr__hier_state *)opaque)->lane[DTR__HIER_HERE];
    (void)g;
    if (here->backend->withdraw != NULL) { /* for the steps and the messages of the node */
        here->backend->withdraw(&here->group, here->state);
    }
}

static const char *hier_waits_for(dtr_group *g, void *opaque, dtr_work *w, char *text, size_t cap) {
    dtr__hier_state *s = opaque;
    if (dtr__kind_is_p2p(w->call.kind)) {
        dtr__hier_p2p_waits_for(g, s, w, text, cap);
        return text;
    }
    if (!by_nodes(g, &w->call, s->contiguous, NULL)) {
        return dtr__backend_mpi.waits_for(g, s->mpi, w, text, cap);
    }
    dtr__hier_lane *here = &s->lane[DTR__HIER_HERE], *wire = &s->lane[DTR__HIER_WIRE];
    text[0] = '\0';
    if (here->under_way && here->backend->waits_for != NULL) {
        (void)here->backend->waits_for(&here->group, here->state, &here->work, text, cap);
    }
    if (text[0] == '\0' && wire->under_way) {
        (void)wire->backend->waits_for(&wire->group, wire->state, &wire->work, text, cap);
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
    .device = DTR_CPU,
    .asks_mpi = true,
    .score = hier_score,
    .open = hier_open,
    .close = hier_close,
    .start = hier_start,
    .progress = hier_progress,
    .cancel = hier_cancel,
    .withdraw = hier_withdraw,
    .waits_for = hier_waits_for,
    .repeat_accept = dtr__hier_repeat_accept,
    .repeat_post = dtr__hier_repeat_post,
    .repeat_look = dtr__hier_repeat_look,
    .repeat_go_on = dtr__hier_repeat_go_on,
};
