/* Worlds without MPI: collectives, groups, faults and what is refused, by ranks that were forked
 * and find each other through files. Every function of MPI that the library names is one here that
 * ends the process (without_mpi.c, which the build writes), so none can have been called.
 *
 * Usage: bootstrap CASE RANKS [RANKS_OF_A_NODE], where the last one makes several nodes */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <dtr/dtr.h>
#include <dtr/mpi.h>

#include "bootstrap_store.h"

enum { COUNT = 3000 };
static int per_node; /* 0: all */

static int nodes_of(int n) {
    return per_node == 0 ? 1 : (n + per_node - 1) / per_node;
}

static dtr_world *make(store *s, const char *prefix, int rank, int n, double timeout_s) {
    const dtr_bootstrap b = store_bootstrap(s, prefix, rank, n);
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    o.bootstrap = &b;
    o.timeout_s = timeout_s;
    EXPECT_OK(dtr_world_create(&o, &w));
    EXPECT(dtr_world_rank(w) == rank && dtr_world_size(w) == n, "%d of %d", dtr_world_rank(w),
           dtr_world_size(w));
    return w;
}

/* ---- collectives ---- */

static int64_t value(int rank, int i) {
    return (int64_t)(rank + 1) * 1000 + i % 97;
}

static void fill(int64_t *a, int rank, int n) {
    for (int i = 0; i < n; i++) {
        a[i] = value(rank, i);
    }
}

static dtr_buffer of(int64_t *a, int n) {
    return dtr_cpu(a, (size_t)n, DTR_I64);
}

static void reductions(dtr_group *g, int rank, int n, int64_t *in, int64_t *out) {
    fill(in, rank, COUNT);
    int64_t all = 0, upto = 0;
    for (int r = 0; r < n; r++) {
        all += r + 1;
        upto += r <= rank ? r + 1 : 0;
    }
    EXPECT_OK(dtr_allreduce(g, of(in, COUNT), of(out, COUNT), DTR_SUM, NULL, NULL));
    for (int i = 0; i < COUNT; i++) {
        EXPECT(out[i] == all * 1000 + (int64_t)n * (i % 97), "allreduce at %d", i);
    }
    EXPECT_OK(dtr_reduce(g, of(in, COUNT), of(out, COUNT), DTR_MAX, n - 1, NULL, NULL));
    EXPECT(rank != n - 1 || out[5] == value(n - 1, 5), "reduce");
    EXPECT_OK(dtr_scan(g, of(in, COUNT), of(out, COUNT), DTR_SUM, NULL, NULL));
    EXPECT(out[5] == upto * 1000 + (rank + 1) * 5, "scan");
    EXPECT_OK(dtr_exscan(g, of(in, COUNT), of(out, COUNT), DTR_SUM, NULL, NULL));
    EXPECT(out[5] == (upto - rank - 1) * 1000 + rank * 5, "exscan");
    const int c = COUNT / n;
    EXPECT_OK(dtr_reduce_scatter(g, of(in, n * c), of(out, c), DTR_SUM, NULL, NULL));
    EXPECT(out[0] == all * 1000 + (int64_t)n * (rank * c % 97), "reduce_scatter");
}

static void thrice_and(void *inout, const void *in, size_t count, dtr_dtype dtype, void *arg) {
    int64_t *x = inout;
    const int64_t *y = in;
    (void)dtype;
    (void)arg;
    for (size_t k = 0; k < count; k++) {
        x[k] = 3 * x[k] + y[k];
    }
}

/* In the order of ranks, which over nodes pass sums on. */
static void ordered(dtr_world *w, dtr_group *g, int rank, int n, int64_t *in, int64_t *out) {
    dtr_op op;
    int64_t upto = 0, all = 0;
    for (int r = 0; r < n; r++) {
        all = 3 * all + value(r, 5);
        upto = r == rank ? all : upto;
    }
    fill(in, rank, COUNT);
    EXPECT_OK(dtr_op_create(w, thrice_and, NULL, false, &op));
    EXPECT_OK(dtr_allreduce(g, of(in, COUNT), of(out, COUNT), op, NULL, NULL));
    EXPECT(out[5] == all && out[5 + 97] == all, "allreduce in the order of ranks");
    EXPECT_OK(dtr_scan(g, of(in, COUNT), of(out, COUNT), op, NULL, NULL));
    EXPECT(out[5] == upto, "scan in the order of ranks");
    EXPECT_OK(dtr_op_free(w, op));
}

static void moves(dtr_group *g, int rank, int n, int64_t *in, int64_t *out) {
    const int c = 10;
    size_t counts[16], sum = 0;
    fill(in, rank, COUNT);
    for (int r = 0; r < n; r++) {
        counts[r] = (size_t)r + 1;
        sum += counts[r];
    }
    EXPECT_OK(dtr_allgather(g, of(in, c), of(out, n * c), NULL, NULL));
    EXPECT(out[(n - 1) * c + 3] == value(n - 1, 3), "allgather");
    EXPECT_OK(dtr_allgatherv(g, of(in, rank + 1), of(out, (int)sum), counts, NULL, NULL));
    EXPECT(out[sum - 1] == value(n - 1, n - 1), "allgatherv");
    EXPECT_OK(dtr_gather(g, of(in, c), of(out, rank == 0 ? n * c : 0), 0, NULL, NULL));
    EXPECT(rank != 0 || out[(n - 1) * c] == value(n - 1, 0), "gather");
    EXPECT_OK(
        dtr_gatherv(g, of(in, rank + 1), of(out, rank == 0 ? (int)sum : 0), counts, 0, NULL, NULL));
    EXPECT(rank != 0 || out[sum - 1] == value(n - 1, n - 1), "gatherv");
    EXPECT_OK(dtr_scatter(g, of(in, rank == 0 ? n * c : 0), of(out, c), 0, NULL, NULL));
    EXPECT(out[1] == value(0, rank * c + 1), "scatter");
    EXPECT_OK(dtr_scatterv(g, of(in, rank == 0 ? (int)sum : 0), counts, of(out, rank + 1), 0, NULL,
                           NULL));
    EXPECT(out[0] == value(0, rank * (rank + 1) / 2), "scatterv");
    EXPECT_OK(dtr_alltoall(g, of(in, n * c), of(out, n * c), NULL, NULL));
    EXPECT(out[(n - 1) * c] == value(n - 1, rank * c), "alltoall");
    fill(in, rank, COUNT);
    EXPECT_OK(dtr_broadcast(g, of(in, COUNT), n - 1, NULL, NULL));
    EXPECT(in[COUNT - 1] == value(n - 1, COUNT - 1), "broadcast");
    EXPECT_OK(dtr_barrier(g, NULL, NULL));
}

static void messages(dtr_world *w, dtr_group *g, int rank, int n, int64_t *in, int64_t *out) {
    const int next = (rank + 1) % n, before = (rank + n - 1) % n;
    int missing[16], n_missing = -1;
    fill(in, rank, COUNT);
    dtr_work *sent = NULL;
    EXPECT_OK(dtr_send(g, of(in, COUNT), next, 7, NULL, &sent));
    EXPECT_OK(dtr_recv(g, of(out, COUNT), n > 2 ? DTR_ANY_SOURCE : before, 7, NULL, NULL));
    EXPECT_OK(dtr_work_wait(sent, 60));
    dtr_work_release(sent);
    EXPECT(out[9] == value(before, 9), "recv");
    EXPECT_OK(dtr_monitored_barrier(g, 20, true, missing, &n_missing));
    EXPECT_OK(dtr_node_barrier(w));
    dtr_bytes mine = { in, (size_t)rank + 1 }, all[16];
    EXPECT_OK(dtr_allgather_bytes(g, mine, NULL, all));
    EXPECT(all[n - 1].nbytes == (size_t)n, "byte strings");
    dtr_bytes_free(all, (size_t)n);
}

static void use(dtr_world *w, dtr_group *g) {
    const int rank = dtr_group_rank(g), n = dtr_group_size(g);
    int64_t *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
    reductions(g, rank, n, in, out);
    ordered(w, g, rank, n, in, out);
    moves(g, rank, n, in, out);
    if (n > 1 && n == dtr_world_size(w)) {
        messages(w, g, rank, n, in, out);
    }
    free(in);
    free(out);
}

static void works(int rank, int n, void *arg) {
    dtr_world *w = make(arg, "one", rank, n, 60);
    dtr_group *g = dtr_world_group(w);
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    MPI_Comm comm;
    const int nodes = nodes_of(n), node = per_node == 0 ? 0 : rank / per_node;
    const int local = node == nodes - 1 ? n - node * per_node : per_node;
    EXPECT(dtr_world_node_count(w) == nodes && dtr_world_node(w) == node &&
               dtr_world_local_rank(w) == rank - node * per_node &&
               dtr_world_local_size(w) == local,
           "node %d of %d, local rank %d of %d", dtr_world_node(w), dtr_world_node_count(w),
           dtr_world_local_rank(w), dtr_world_local_size(w));
    EXPECT_OK(dtr_group_get_info(g, &info));
    EXPECT(strcmp(info.backend, n == 1       ? "cpu:self"
                                : nodes == 1 ? "cpu:shm"
                                : nodes == n ? "cpu:tcp"
                                             : "cpu:hier") == 0,
           "served by %s", info.backend);
    use(w, g);
    EXPECT(dtr_group_mpi_comm(g, &comm) == DTR_ERR_UNSUPPORTED, "a communicator");
    EXPECT_TEXT("without MPI");
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *none = NULL;
    o.backend = "cpu:mpi";
    EXPECT(dtr_group_create(w, NULL, n, &o, &none) == DTR_ERR_UNSUPPORTED, "backend mpi");
    EXPECT_TEXT("without MPI");
    o.backend = "cpu:tcp";
    if (nodes == 1) {
        EXPECT(dtr_group_create(w, NULL, n, &o, &none) == DTR_ERR_UNSUPPORTED, "backend tcp");
        EXPECT_TEXT("the world is on one node");
    } else {
        EXPECT_OK(dtr_group_create(w, NULL, n, &o, &none));
        use(w, none);
        EXPECT_OK(dtr_group_destroy(none));
    }
    EXPECT_OK(dtr_world_destroy(w));
}

/* ---- groups ---- */

static void groups(int rank, int n, void *arg) {
    dtr_world *w = make(arg, "one", rank, n, 60);
    for (int round = 0; round < 3; round++) {
        dtr_group *half = NULL, *all = NULL, *backwards = NULL;
        int ranks[16];
        EXPECT_OK(dtr_group_split(dtr_world_group(w), rank % 2, -rank, NULL, &half));
        EXPECT_OK(dtr_group_create(w, NULL, n, NULL, &all));
        for (int i = 0; i < n; i++) {
            ranks[i] = n - 1 - i;
        }
        EXPECT_OK(dtr_group_create(w, ranks, n, NULL, &backwards));
        EXPECT(dtr_group_rank(backwards) == n - 1 - rank, "its rank");
        use(w, half);
        use(w, all);
        use(w, backwards);
        EXPECT_OK(dtr_group_release(all));
        EXPECT_OK(dtr_group_destroy(half));
        EXPECT_OK(dtr_group_destroy(backwards));
    }
    EXPECT_OK(dtr_world_destroy(w));
}

/* Of some ranks without the others, twice, beside one of all. */
static void worlds(int rank, int n, void *arg) {
    dtr_world *all = make(arg, "all", rank, n, 60);
    for (int k = 0; k < 2; k++) {
        char prefix[16];
        snprintf(prefix, sizeof prefix, "half%d.%d", rank % 2, k);
        dtr_world *half = make(arg, prefix, rank / 2, (n + 1 - rank % 2) / 2, 60);
        use(half, dtr_world_group(half));
        use(all, dtr_world_group(all));
        EXPECT_OK(dtr_world_destroy(half));
    }
    EXPECT_OK(dtr_world_destroy(all));
}

/* ---- averaging ---- */

static void averages(int rank, int n, void *arg) {
    enum { SIZE = 5000 };
    dtr_world *w = make(arg, "one", rank, n, 60);
    const int64_t shape[1] = { SIZE };
    dtr_param p = { .name = "weight" };
    dtr_ddp *ddp = NULL;
    EXPECT_OK(dtr_tensor_empty(w, DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1, shape,
                               &p.value));
    float *value = dtr_tensor_data(p.value);
    for (int i = 0; i < SIZE; i++) {
        value[i] = (float)rank;
    }
    EXPECT_OK(dtr_ddp_create(dtr_world_group(w), &p, 1, NULL, &ddp));
    EXPECT(value[7] == 0, "the values of rank 0");
    for (int step = 0; step < 3; step++) {
        EXPECT_OK(dtr_ddp_forward_begin(ddp));
        EXPECT_OK(dtr_ddp_forward_end(ddp, NULL, 0));
        float *grad = dtr_tensor_data(dtr_ddp_grad(ddp, 0));
        for (int i = 0; i < SIZE; i++) {
            grad[i] = (float)(2 * rank);
        }
        EXPECT_OK(dtr_ddp_grad_ready(ddp, 0, NULL));
        EXPECT_OK(dtr_ddp_backward_end(ddp, NULL));
        grad = dtr_tensor_data(dtr_ddp_full_grad(ddp, 0));
        EXPECT(grad[SIZE - 1] == (float)(n - 1), "%g", (double)grad[SIZE - 1]);
    }
    EXPECT_OK(dtr_ddp_destroy(ddp));
    dtr_tensor_release(p.value);
    EXPECT_OK(dtr_world_destroy(w));
}

/* ---- faults ---- */

/* The last rank does something else; the others' allreduce ends so. */
static void fault(int rank, int n, store *s, int signal, double timeout_s, dtr_status expected) {
    char name[32];
    int64_t one = 1;
    snprintf(name, sizeof name, "rank %d", n - 1);
    dtr_world *w = make(s, "one", rank, n, timeout_s);
    if (rank == n - 1) { /* who stops has worked for so long that a report of it has come */
        const time_t end = time(NULL) + (signal == SIGSTOP ? 3 : 0);
        do {
            EXPECT_OK(
                dtr_allreduce(dtr_world_group(w), of(&one, 1), of(&one, 1), DTR_SUM, NULL, NULL));
        } while (time(NULL) < end);
        if (signal != 0) {
            raise(signal);
        }
        sleep(60);
        _exit(0);
    }
    dtr_status got = DTR_OK;
    while (got == DTR_OK) { /* those in which it takes part */
        got = dtr_allreduce(dtr_world_group(w), of(&one, 1), of(&one, 1), DTR_SUM, NULL, NULL);
    }
    EXPECT(got == expected, "%s", dtr_status_name(got));
    EXPECT_TEXT(name);
    if (signal == SIGSTOP) { /* another rank of its node has seen it, or nobody speaks for it */
        EXPECT_TEXT(per_node == 0 || (n - 1) % per_node > 0 ? "stopped"
                                                            : "no report of it has come");
    }
    (void)dtr_world_destroy(w);
}

static void killed(int rank, int n, void *arg) {
    fault(rank, n, arg, SIGKILL, 60, DTR_ERR_REMOTE);
}

static void stopped(int rank, int n, void *arg) {
    fault(rank, n, arg, SIGSTOP, 3, DTR_ERR_TIMEOUT);
}

static void late(int rank, int n, void *arg) {
    fault(rank, n, arg, 0, 2, DTR_ERR_TIMEOUT);
}

static void aborted(int rank, int n, void *arg) {
    dtr_world *w = make(arg, "one", rank, n, 60);
    int64_t one = 1;
    if (rank == n - 1) {
        EXPECT_OK(dtr_group_abort(dtr_world_group(w), "enough"));
    } else {
        const dtr_status got =
            dtr_allreduce(dtr_world_group(w), of(&one, 1), of(&one, 1), DTR_SUM, NULL, NULL);
        EXPECT(got == DTR_ERR_ABORTED, "%s", dtr_status_name(got));
        EXPECT_TEXT("enough");
    }
    (void)dtr_world_destroy(w);
}

/* ---- what fails in creation ---- */

static dtr_status attempt(dtr_bootstrap *b) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    o.bootstrap = b;
    return dtr_world_create(&o, &w);
}

#define EXPECT_FAILS(b, status, part)                              \
    do {                                                           \
        const dtr_status fails_ = attempt(b);                      \
        EXPECT(fails_ == (status), "%s", dtr_status_name(fails_)); \
        EXPECT_TEXT(part);                                         \
    } while (0)

static void absent(int rank, int n, void *arg) {
    char text[96];
    snprintf(text, sizeof text, "for rank %d, which has not put key 'one/rank.%d'", n - 1, n - 1);
    store *s = arg;
    s->patience_s = rank == 0 ? 1 : 60;
    dtr_bootstrap b = store_bootstrap(s, "one", rank, n);
    if (rank < n - 1) {
        EXPECT_FAILS(&b, DTR_ERR_TIMEOUT, text);
    }
}

/* Ends at the last value that it gets: all have mapped the memory by then. */
static void killed_early(int rank, int n, void *arg) {
    store *s = arg;
    s->die_at_key = rank == n - 1 ? (per_node == 0 ? "go0.0" : "all.0") : NULL;
    dtr_bootstrap b = store_bootstrap(s, "one", rank, n);
    EXPECT_FAILS(&b, DTR_ERR_REMOTE, "has ended while the ranks were making a world");
}

/* Several nodes: the list of a node's ranks is looked at before it is used. */
static void spoilt(int rank, int n, void *arg) {
    store *s = arg;
    s->spoil_key = rank == 1 ? "node.1" : NULL;
    s->patience_s = rank == 0 ? 2 : 0;
    dtr_bootstrap b = store_bootstrap(s, "one", rank, n);
    if (rank == 1) {
        EXPECT_FAILS(&b, DTR_ERR_MISMATCH, "key 'node.1' is none of this library");
    } else {
        const dtr_status got = attempt(&b);
        EXPECT(got < 0, "%s", dtr_status_name(got));
    }
}

static void mistakes(int rank, int n, void *arg) {
    dtr_bootstrap b = store_bootstrap(arg, "size", rank, n);
    b.size += rank == n - 1;
    EXPECT_FAILS(&b, DTR_ERR_MISMATCH, "dtr_bootstrap.size is");
    b = store_bootstrap(arg, "args", n, n);
    EXPECT_FAILS(&b, DTR_ERR_ARG, "ranks are 0 to size - 1");
    b = store_bootstrap(arg, "args", rank, n);
    b.get = NULL;
    EXPECT_FAILS(&b, DTR_ERR_ARG, "dtr_bootstrap.get is NULL");
    b = store_bootstrap(arg, "a prefix of many bytes, which no key has room for", rank, n);
    EXPECT_FAILS(&b, DTR_ERR_ARG, "40 is the most");
    b = store_bootstrap(arg, "args", rank, n);
    b.struct_size = 3;
    EXPECT_FAILS(&b, DTR_ERR_ARG, "DTR_BOOTSTRAP_INIT");
    works(rank, n, arg); /* and all is as before */
}

/* ---- main ---- */

static const struct {
    const char *name;
    void (*fn)(int rank, int n, void *arg);
    int least;    /* ranks */
    bool stopped; /* the last one stops itself */
} cases[] = {
    { "works", works, 1, false },   { "groups", groups, 1, false },
    { "worlds", worlds, 2, false }, { "averages", averages, 1, false },
    { "killed", killed, 2, false }, { "stopped", stopped, 2, true },
    { "late", late, 2, true },      { "aborted", aborted, 2, false },
    { "absent", absent, 2, false }, { "mistakes", mistakes, 2, false },
    { "spoilt", spoilt, 3, false }, { "killed_early", killed_early, 2, false },
};

int main(int argc, char **argv) {
    int bad = -1;
    if (argc == 4) {
        per_node = atoi(argv[3]);
        setenv("DTR_NODE_RANKS", argv[3], 1);
    }
    for (size_t i = 0; argc >= 3 && i < sizeof cases / sizeof cases[0]; i++) {
        const int n = atoi(argv[2]);
        if (strcmp(cases[i].name, argv[1]) == 0 && n >= cases[i].least) {
            store s;
            store_new(&s);
            bad = store_run(n, cases[i].stopped ? n - 1 : -1, cases[i].fn, &s);
            store_remove(&s);
        }
    }
    if (bad < 0) {
        fprintf(stderr, "usage: %s CASE RANKS [RANKS_OF_A_NODE]\n", argv[0]);
    }
    return bad != 0;
}
