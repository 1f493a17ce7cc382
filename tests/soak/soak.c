/* soak: random operations over random groups with random delays, every result checked.
 *
 *   soak --seed N [--seconds S] [--operations N] [--no-faults], whichever ends first
 *
 * All ranks draw the same plan from one generator, so each knows what every other one gives and
 * what must come out; a second generator, different on every rank, draws delays. Values are small
 * whole numbers, whose sums are exact in every type and order. */
#include <getopt.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "resident.h"
#include "soak.h"
#include "soak_values.h"

enum { GROUPS_MOST = 6, OPEN_MOST = 12, SCOPE_MOST = 6 };

static const char *const kind_name[KINDS] = { "broadcast",      "reduce",   "allreduce",
                                              "allgather",      "gather",   "scatter",
                                              "reduce_scatter", "alltoall", "barrier",
                                              "send and recv" };

dtr_world *world;
int rank, size;
uint64_t plan, mine;
static uint64_t seed = 1, n_done, n_groups, n_bytes, n_aborts, n_forks, n_stops;
static bool faults = true;
static member_group groups[GROUPS_MOST];
static operation open_list[OPEN_MOST]; /* oldest first */
static int n_open;

/* ---- small things ---- */

static uint64_t draw(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

unsigned below(uint64_t *state, unsigned n) {
    return (unsigned)(draw(state) % n);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void fail(const char *fmt, ...) {
    char text[1200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "soak: rank %d: seed %llu, operation %llu: %s\n", rank,
            (unsigned long long)seed, (unsigned long long)n_done, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

void must(dtr_status s, const char *what) {
    if (s != DTR_OK) {
        fail("%s gave %s: %s", what, dtr_status_name(s), dtr_last_error_message());
    }
}

/* Now and then, and long enough for the others to get ahead or into their deeper waits. */
void dawdle(void) {
    unsigned how = below(&mine, 64), us = 0;
    if (how < 8) {
        us = 1 + below(&mine, 200);
    } else if (how == 8) {
        us = 1000 + below(&mine, 4000);
    }
    if (us > 0) {
        struct timespec t = { 0, 1000L * us };
        nanosleep(&t, NULL);
    }
}

/* ---- one operation ---- */

/* How many elements this rank gives and gets. */
static void sizes(const operation *o, size_t *in, size_t *out) {
    size_t one = o->count, all = o->count * (size_t)o->size;
    bool root = o->me == o->root;
    bool wide_in = o->kind == REDUCE_SCATTER || o->kind == ALLTOALL || o->kind == SCATTER;
    bool wide_out = o->kind == ALLGATHER || o->kind == ALLTOALL || o->kind == GATHER;
    *in = wide_in ? all : one;
    *out = wide_out ? all : one;
    if (o->kind == SCATTER && !root) {
        *in = 0;
    }
    if ((o->kind == GATHER || o->kind == REDUCE) && !root) {
        *out = 0;
    }
    if (o->kind == BARRIER) {
        *in = *out = 0;
    }
}

/* A few elements as a rule, sometimes many: every algorithm gets its share. */
static size_t draw_count(void) {
    static const unsigned upto[] = { 4, 16, 64, 1024, 8192, 65536 };
    static const unsigned share[] = { 30, 55, 75, 90, 98, 100 };
    unsigned how = below(&plan, 100), i = 0;
    while (how >= share[i]) {
        i++;
    }
    return below(&plan, upto[i] + 1);
}

static operation draw_operation(const member_group *g) {
    static const dtr_dtype types[] = { DTR_F32, DTR_F64, DTR_I32, DTR_I64, DTR_BF16, DTR_U8 };
    static const dtr_op ops[] = { DTR_SUM, DTR_MAX, DTR_MIN };
    operation o = { .number = n_done };
    o.size = g->size;
    o.me = g->group != NULL ? dtr_group_rank(g->group) : -1;
    o.kind = (kind)below(&plan, KINDS);
    o.dtype = types[below(&plan, g->size <= 15 ? 6 : 4)]; /* sums of more ranks are not exact */
    o.op = ops[below(&plan, 3)];
    o.count = draw_count();
    o.root = (int)below(&plan, (unsigned)g->size);
    o.salt = below(&plan, 17);
    o.in_place = below(&plan, 3) == 0 && (o.kind == ALLREDUCE || o.kind == REDUCE);
    snprintf(o.title, sizeof o.title, "%s of %zu %s, root %d, %d members%s", kind_name[o.kind],
             o.count, dtr_dtype_name(o.dtype), o.root, o.size, o.in_place ? ", in place" : "");
    return o;
}

static void *take(size_t nbytes, bool shared) {
    void *p = NULL;
    dtr_device cpu = { DTR_CPU, 0 };
    must(dtr_alloc(world, cpu, shared ? DTR_MEM_SHARED : DTR_MEM_DEFAULT, nbytes + GUARD, &p),
         "dtr_alloc");
    memset(p, 0xa5, nbytes + GUARD);
    return p;
}

static void make_buffers(operation *o, bool shared) {
    size_t in = 0, out = 0, each = dtr_dtype_size(o->dtype);
    sizes(o, &in, &out);
    o->out = dtr_cpu(take((out > in ? out : in) * each, shared), out, o->dtype);
    o->in = dtr_cpu(o->in_place ? o->out.data : take(in * each, shared), in, o->dtype);
    if (o->kind == BROADCAST) {
        o->in_place = true;
        must(dtr_free(world, o->in.data), "dtr_free");
        o->in = o->out;
    }
    bool gives = o->kind != BROADCAST || o->me == o->root;
    for (size_t k = 0; gives && k < o->in.count; k++) {
        soak_put(o, o->in.data, k, soak_value(o, o->me, k));
    }
    n_bytes += (o->in.count + o->out.count) * each;
}

static void start(operation *o, dtr_group *g, bool blocking) {
    dtr_coll_options with = DTR_COLL_OPTIONS_INIT;
    dtr_work **w = blocking ? NULL : &o->work[0];
    dtr_status s = DTR_OK;
    with.label = "soak";
    switch (o->kind) {
    case BROADCAST:
        s = dtr_broadcast(g, o->out, o->root, &with, w);
        break;
    case REDUCE:
        s = dtr_reduce(g, o->in, o->out, o->op, o->root, &with, w);
        break;
    case ALLGATHER:
        s = dtr_allgather(g, o->in, o->out, &with, w);
        break;
    case GATHER:
        s = dtr_gather(g, o->in, o->out, o->root, &with, w);
        break;
    case SCATTER:
        s = dtr_scatter(g, o->in, o->out, o->root, &with, w);
        break;
    case REDUCE_SCATTER:
        s = dtr_reduce_scatter(g, o->in, o->out, o->op, &with, w);
        break;
    case ALLTOALL:
        s = dtr_alltoall(g, o->in, o->out, &with, w);
        break;
    case BARRIER:
        s = dtr_barrier(g, &with, w);
        break;
    case RING:
        s = dtr_send(g, o->in, (o->me + 1) % o->size, (int)o->salt, &with, &o->work[0]);
        must(s, "dtr_send");
        s = dtr_recv(g, o->out, (o->me + o->size - 1) % o->size, (int)o->salt, &with, &o->work[1]);
        break;
    default:
        s = dtr_allreduce(g, o->in, o->out, o->op, &with, w);
        break;
    }
    must(s, o->title);
}

static void check(operation *o) {
    size_t each = dtr_dtype_size(o->dtype);
    bool gets = o->out.count > 0;
    for (size_t k = 0; gets && k < o->out.count; k++) {
        double got = soak_get(o, o->out.data, k);
        int want = soak_expected(o, k);
        if (got != want) {
            fail("%s (number %llu): element %zu is %g, not %d", o->title,
                 (unsigned long long)o->number, k, got, want);
        }
    }
    size_t used = o->in_place && o->in.count > o->out.count ? o->in.count : o->out.count;
    const unsigned char *behind = (const unsigned char *)o->out.data + used * each;
    for (int i = 0; i < GUARD; i++) {
        if (behind[i] != 0xa5) {
            fail("%s (number %llu): byte %d behind the output was written", o->title,
                 (unsigned long long)o->number, i);
        }
    }
}

/* The oldest operation under way, if any. */
static void end_oldest(void) {
    if (n_open == 0) {
        return;
    }
    operation o = open_list[0];
    memmove(&open_list[0], &open_list[1], sizeof open_list[0] * (size_t)--n_open);
    for (int i = 0; i < 2; i++) {
        must(dtr_work_wait(o.work[i], -1), o.title);
        must(dtr_work_release(o.work[i]), "dtr_work_release");
    }
    check(&o);
    if (!o.in_place) {
        must(dtr_free(world, o.in.data), "dtr_free");
    }
    must(dtr_free(world, o.out.data), "dtr_free");
}

/* All ranks draw it; the members do it. */
static void one_collective(const member_group *g) {
    operation o = draw_operation(g);
    bool blocking = below(&plan, 3) == 0 && o.kind != RING, shared = below(&plan, 2) == 0;
    if (g->group == NULL) {
        return;
    }
    make_buffers(&o, shared);
    while (n_open == OPEN_MOST) {
        end_oldest();
    }
    start(&o, g->group, blocking);
    open_list[n_open++] = o;
    for (unsigned i = blocking ? OPEN_MOST : below(&mine, 3); i > 0; i--) {
        end_oldest();
    }
}

/* Several calls in a coalescing scope, which the first of them stands for when it is waited for. */
static void one_scope(const member_group *g) {
    operation o[SCOPE_MOST];
    const int n = (int)below(&plan, SCOPE_MOST);
    const bool alike = below(&plan, 2) == 0, shared = below(&plan, 2) == 0;
    dtr_work *work = NULL;
    for (int i = 0; i < n; i++) {
        do {
            o[i] = draw_operation(g);
        } while (o[i].kind == RING || (alike && i > 0 && o[i].kind != o[0].kind));
    }
    const bool blocking = below(&plan, 2) == 0;
    if (g->group == NULL) {
        return;
    }
    while (n_open + n > OPEN_MOST) {
        end_oldest();
    }
    must(dtr_coalesce_begin(g->group), "dtr_coalesce_begin");
    for (int i = 0; i < n; i++) {
        make_buffers(&o[i], shared);
        start(&o[i], g->group, true);
    }
    must(dtr_coalesce_end(g->group, blocking ? NULL : &work), "dtr_coalesce_end");
    for (int i = 0; i < n; i++) {
        o[i].work[0] = i == 0 ? work : NULL;
        open_list[n_open++] = o[i];
    }
    if (n == 0) {
        must(dtr_work_release(work), "dtr_work_release");
    }
}

static void one_fault(void) {
    if (below(&mine, 400) == 0) {
        soak_fork();
        n_forks++;
    }
    if (below(&mine, 400) == 0) {
        soak_stop();
        n_stops++;
    }
    if (below(&plan, 400) == 0) {
        soak_abort(n_done);
        n_aborts++;
    }
}

static void one_operation(void) {
    const member_group *g = &groups[0];
    do {
        g = &groups[below(&plan, GROUPS_MOST)];
    } while (!g->live);
    n_done++;
    dawdle();
    soak_look_at_resting(n_done);
    if (faults) {
        one_fault();
    }
    switch (below(&plan, 24)) {
    case 0:
    case 1:
        one_scope(g);
        break;
    case 2:
        soak_bytes(g);
        break;
    case 3:
        soak_batch(g);
        break;
    case 4:
        soak_tensors(g);
        break;
    case 5:
        soak_step(g);
        break;
    default:
        one_collective(g);
        break;
    }
}

/* ---- groups ---- */

static void end_all(void) {
    while (n_open > 0) {
        end_oldest();
    }
}

static void make_group(member_group *g) {
    static const char *const backends[] = { "cpu:auto", "cpu:auto", "cpu:mpi" };
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    g->size = 0;
    for (int r = 0; r < size && g->size < RANKS_MOST; r++) {
        if (below(&plan, 3) != 0) {
            g->ranks[g->size++] = r;
        }
    }
    if (g->size == 0) {
        g->ranks[g->size++] = (int)below(&plan, (unsigned)size);
    }
    if (below(&plan, 2) == 0) { /* the order of the list is the order of ranks */
        for (int i = 0; i < g->size / 2; i++) {
            int other = g->ranks[i];
            g->ranks[i] = g->ranks[g->size - 1 - i];
            g->ranks[g->size - 1 - i] = other;
        }
    }
    o.backend = backends[below(&plan, 3)];
    o.deterministic = below(&plan, 4) == 0;
    dawdle();
    must(dtr_group_create(world, g->ranks, g->size, &o, &g->group), "dtr_group_create");
    soak_module_open(g);
    g->live = true;
    n_groups++;
}

/* The first one is the world's and stays. */
static void change_groups(void) {
    member_group *g = &groups[1 + below(&plan, GROUPS_MOST - 1)];
    if (g->live) {
        end_all();
        soak_module_close(g);
        if (g->group != NULL) {
            must(dtr_group_destroy(g->group), "dtr_group_destroy");
        }
        g->live = false;
        g->group = NULL;
    } else {
        make_group(g);
    }
}

/* ---- the run ---- */

static double seconds = 1800, began;
static uint64_t operations;

static void say(const char *how) {
    if (rank == 0) {
        printf("soak: %.0f s: %llu operations, %llu groups, %llu aborted ones, %llu forks and "
               "%llu stops of rank 0, which moved %.1f MiB and holds %.1f; %s\n",
               now() - began, (unsigned long long)n_done, (unsigned long long)n_groups,
               (unsigned long long)n_aborts, (unsigned long long)n_forks,
               (unsigned long long)n_stops, (double)n_bytes / (1024 * 1024),
               (double)th_resident_kib() / 1024, how);
        fflush(stdout);
    }
}

/* Rank 0's clock decides for all, by an operation like any other. */
static bool is_over(void) {
    int32_t over = (operations > 0 && n_done >= operations) || now() - began >= seconds;
    must(dtr_broadcast(groups[0].group, dtr_cpu(&over, 1, DTR_I32), 0, NULL, NULL), "the end");
    return over != 0;
}

static void run(void) {
    const int each = 64;
    double next = 10;
    began = now();
    while (!is_over()) {
        for (int i = 0; i < each; i++) {
            one_operation();
            if (below(&plan, 40) == 0) {
                change_groups();
            }
        }
        if (now() - began >= next) {
            say("all right so far");
            next += seconds > 120 ? 60 : 10;
        }
    }
    end_all();
    if (faults) {
        soak_faults_end();
    }
    must(dtr_barrier(groups[0].group, NULL, NULL), "the last barrier");
    say("all results right");
}

static int usage(const char *why) {
    fprintf(stderr, "soak: %s\nsoak --seed N [--seconds S] [--operations N] [--no-faults]\n", why);
    return 2;
}

int main(int argc, char **argv) {
    static const struct option long_options[] = { { "seed", required_argument, NULL, 's' },
                                                  { "seconds", required_argument, NULL, 't' },
                                                  { "operations", required_argument, NULL, 'n' },
                                                  { "no-faults", no_argument, NULL, 'f' },
                                                  { NULL, 0, NULL, 0 } };
    for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        char *end = NULL;
        if (c == 's') {
            seed = strtoull(optarg, &end, 0);
        } else if (c == 't') {
            seconds = strtod(optarg, &end);
        } else if (c == 'n') {
            operations = strtoull(optarg, &end, 0);
        }
        if (c == 'f') {
            faults = false;
            continue;
        }
        if (end == NULL || *end != '\0' || end == optarg) {
            return usage("a value is no number, or an option is unknown");
        }
    }
    if (faults) {
        soak_start_stopper();
        setenv("DTR_LOG_FILE", "/dev/null", 0); /* each abort would say so on all ranks */
        setenv("DTR_DUMP", "0", 0);
    }
    if (dtr_world_create(NULL, &world) != DTR_OK) {
        fprintf(stderr, "soak: %s\n", dtr_last_error_message());
        return 1;
    }
    rank = dtr_world_rank(world);
    size = dtr_world_size(world);
    plan = seed;
    mine = seed ^ (UINT64_C(0x5851f42d4c957f2d) * (uint64_t)(rank + 1));
    groups[0] = (member_group){ .group = dtr_world_group(world), .live = true, .size = size };
    if (rank == 0) {
        printf("soak: %d ranks on %d nodes, seed %llu\n", size, dtr_world_node_count(world),
               (unsigned long long)seed);
        fflush(stdout);
    }
    run();
    for (int i = 1; i < GROUPS_MOST; i++) {
        soak_module_close(&groups[i]);
        if (groups[i].group != NULL) {
            must(dtr_group_destroy(groups[i].group), "dtr_group_destroy");
        }
    }
    must(dtr_world_destroy(world), "dtr_world_destroy");
    return 0;
}
