/* The hier backend: groups that span several nodes. A collective is a list of steps on two lanes:
 * on the intra-node lane the ranks of one node work together through their shared memory, on the
 * inter-node lane ranks of equal position on all nodes exchange their slice over the network. Each
 * step is a
 * collective of the shm (or self) and mpi backends on a smaller group. Large data goes in chunks,
 * so that one chunk travels while the next is prepared; every byte of a result leaves a node once,
 * however many ranks it has. All of it is guarded by the group's progress lock. */
#ifndef DTR_HIER_INTERNAL_H
#define DTR_HIER_INTERNAL_H

#include "backends/mpi/mpi_internal.h"
#include "core/backend.h"
#include "core/call.h"
#include "core/nodes.h"
#include "core/team.h"

typedef enum dtr__hier_lane_name {
    DTR__HIER_INTRA,
    DTR__HIER_INTER,
    DTR__HIER_LANES
} dtr__hier_name;

/* One step: a collective of the lane's group, or (HERE) a conversion of one element type into
 * another, scaled when `premul` is not 1, or a reduction of `in` and, scaled likewise, `with`. */
typedef struct dtr__hier_step {
    bool converts, reduces;
    dtr__kind kind;
    dtr_dtype dtype, from; /* from: CONVERT's source */
    dtr_op op;
    int root; /* rank of the lane's group */
    int rows; /* see dtr__call */
    double premul;
    const void *in, *with; /* with: NULL, or of what reduces */
    void *out;
    size_t in_count, out_count;
    size_t in_counts, out_counts; /* where in the numbers, plus one; 0: none */
    size_t after;                 /* so many steps of the other lane come first */
} dtr__hier_step;

typedef struct dtr__hier_lane {
    dtr_group group; /* facts only: it is in no list and has no engine */
    const dtr__backend *backend;
    void *state;
    bool open;
    dtr_work work; /* the step under way */
    bool under_way;
    dtr__hier_step *steps;
    size_t n, cap, at;
    size_t calls; /* steps so far that all ranks of the lane's group have */
} dtr__hier_lane;

typedef struct dtr__hier_state {
    const dtr__nodes *nodes; /* of the group: equal on all ranks */
    int home, local; /* the own node, and the place in it, which says which slice is its own */
    dtr__hier_lane lane[DTR__HIER_LANES];
    size_t least_slice; /* bytes: smaller data is left to fewer slices */
    size_t *numbers;    /* counts of the steps' v-forms */
    size_t n_numbers, cap_numbers;
    bool no_memory; /* a builder could not grow an array */
    char *scratch;  /* kept between operations; node-shared where there is shared memory */
    size_t cap_scratch;
    bool scratch_shared, scratch_lost; /* lost: a transfer given up may still use it */
    dtr__mpi_state *mpi;               /* on the whole group: what gains nothing from nodes */
    struct dtr__shm_state
        *node; /* channels to the ranks of the own node; NULL: all goes over MPI */
    struct dtr__hier_messages *idle;           /* for works to come */
    struct dtr__hier_turn *turns, *idle_turns; /* receives that wait for their turn, in order */
    unsigned polls;                            /* that moved nothing to its end */
} dtr__hier_state;

/* What a builder needs. */
typedef struct dtr__hier_build {
    dtr__hier_state *s;
    const dtr__call *call;
    int rank, size, intra; /* of the group; ranks of the own node */
    size_t esize;
    bool ordered; /* sums are made in rank order */
} dtr__hier_build;

/* Part of a range. */
typedef struct dtr__hier_range {
    size_t at, n; /* elements */
} dtr__hier_range;

enum {
    DTR__HIER_CHUNK = 2 << 20,          /* bytes of a chunk, all slices together */
    DTR__HIER_REGIONS_CHUNK = 64 << 20, /* most of one of all nodes' regions together */
    DTR__HIER_LEAST_SLICE = 8 << 10,    /* usually */
    DTR__HIER_LINE = 64                 /* slices begin on cache lines */
};

/* hier_schedule.c: building */
bool dtr__hier_has_inter(const dtr__hier_state *s);
dtr__hier_range dtr__hier_slice(const dtr__hier_state *s, size_t n, size_t esize, int i);
size_t dtr__hier_chunk(size_t esize); /* elements */
/* The same of each node's region, where a chunk has a part of all of them. It grows with the nodes,
 * so that no rank of a node is left without a slice, until all parts, with rows those of all ranks
 * of the own node, are too much memory; then the slices of this call get shorter. */
size_t dtr__hier_chunk_of_region(dtr__hier_state *s, size_t esize, bool rows);
/* `n` numbers to be filled in; NULL when there is no memory. The index goes into the step. */
size_t *dtr__hier_numbers(dtr__hier_state *s, size_t n, size_t *index);
/* Counts of the slices of n elements, for all ranks of the own node. */
size_t dtr__hier_slices(const dtr__hier_build *b, size_t n, size_t esize);
void dtr__hier_add(dtr__hier_state *s, dtr__hier_name lane, dtr__hier_step step);
/* Steps of the lane so far: what a step of the other lane may have to come after. */
size_t dtr__hier_mark(const dtr__hier_state *s, dtr__hier_name lane);
char *dtr__hier_scratch(const dtr__hier_build *b, size_t nbytes);

/* hier_schedule.c: running */
void dtr__hier_begin(dtr__hier_state *s);
dtr_status dtr__hier_run(dtr__hier_state *s, dtr_work *w, bool *done);
/* Of the collective under way: whether no lane has a step now that calls no MPI. A thread that only
 * helps runs those steps, and gives up those only. */
bool dtr__hier_steps_need_mpi(const dtr__hier_state *s);
/* What is under way is given up; `status` and this thread's last error say why. */
void dtr__hier_give_up(dtr__hier_state *s, dtr_status status);

/* hier_backend.c: is this done in two levels? */
bool dtr__hier_by_nodes(const dtr_group *g, const dtr__hier_state *s, const dtr__call *c);

/* hier_p2p.c: as in dtr__backend; open: once the lanes are, close: before they are closed. relieve:
 * take what has come over the node's channels, so that its senders can go on. */
dtr_status dtr__hier_p2p_open(dtr_group *g, dtr__hier_state *s);
void dtr__hier_p2p_close(dtr_group *g, dtr__hier_state *s);
dtr_status dtr__hier_p2p_start(dtr_group *g, dtr__hier_state *s, dtr_work *w, bool *done);
dtr_status dtr__hier_p2p_progress(dtr_group *g, dtr__hier_state *s, dtr_work *w, bool *done);
bool dtr__hier_p2p_needs_mpi(const dtr__hier_state *s, const dtr_work *w);
void dtr__hier_p2p_cancel(dtr_group *g, dtr__hier_state *s, dtr_work *w);
void dtr__hier_p2p_waits_for(dtr_group *g, dtr__hier_state *s, dtr_work *w, char *text, size_t cap);
void dtr__hier_p2p_relieve(const dtr_group *g, dtr__hier_state *s);
struct dtr__moves;
struct dtr__fast_path;
bool dtr__hier_fast_path_accept(dtr_group *g, void *state, const dtr__call *c,
                                struct dtr__moves *m);
bool dtr__hier_fast_path_start(dtr_group *g, void *state, const struct dtr__fast_path *p);
int dtr__hier_fast_path_poll(dtr_group *g, void *state, const struct dtr__fast_path *p);
int dtr__hier_fast_path_message(dtr_group *g, void *state, const struct dtr__fast_path *p);
void dtr__hier_fast_path_to_work(dtr_group *g, void *state, dtr_work *w);

/* hier_collectives.c, hier_collectives_reduce.c */
void dtr__hier_build_barrier(const dtr__hier_build *b);
void dtr__hier_build_broadcast(const dtr__hier_build *b);
void dtr__hier_build_allgather(const dtr__hier_build *b);
void dtr__hier_build_allreduce(const dtr__hier_build *b); /* and reduce */
void dtr__hier_build_reduce_scatter(const dtr__hier_build *b);
void dtr__hier_build_scan(const dtr__hier_build *b); /* and exscan */

/* The elements of node d's blocks, in the order of the group; contiguous groups only. */
dtr__hier_range dtr__hier_region(const dtr__hier_build *b, const dtr__blocks *blocks, int d);
dtr__hier_range dtr__hier_common(dtr__hier_range a, dtr__hier_range b);
/* The longest region in chunks, at least one. */
size_t dtr__hier_n_chunks(const dtr__hier_build *b, const dtr__blocks *blocks, size_t chunk);

#endif /* DTR_HIER_INTERNAL_H */
