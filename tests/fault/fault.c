/* One program for all faults: fault CASE FOLDER [WAY]. Every rank that gets to judge writes what it
 * saw to FOLDER/rankN: a line per call, "NAME STATUS MESSAGE". tests/fault/run.py starts it and
 * judges. WAY is how the operation is called that meets the fault: small, large, async, scope,
 * backward, or ordered, by an operator that does not commute. */
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <dtr/coll.h>
#include <dtr/ddp.h>
#include <dtr/group.h>
#include <dtr/world.h>

#include "control/peers.h"
#include "world/world.h"

#include "fault.h" /* its names would be shadowed */

enum { WARM = 20 };

dtr_world *world;
dtr_group *group;
int rank, size, victim;
const char *folder;
FILE *out;
float data[N];

dtr_status allreduce(const char *label, double limit_s) {
    dtr_work *w = NULL;
    dtr_coll_options o = { .struct_size = sizeof o, .label = label, .timeout_s = limit_s };
    dtr_buffer b = buffer(data, N);
    return on_device() ? wait_and_release(dtr_allreduce(group, b, b, DTR_MAX, &o, &w), &w, -1)
                       : dtr_allreduce(group, b, b, DTR_MAX, &o, NULL);
}

static void put_pid(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/pid", folder);
    FILE *f = fopen(path, "w");
    if (f != NULL) {
        fprintf(f, "%d\n", (int)getpid());
        fclose(f);
    }
}

/* ---- one operation, called in every way ---- */

typedef enum way { ASYNC, SCOPE, BACKWARD, LARGE, ORDERED, SMALL } way;
static const char *const way_names[] = {
    "async", "scope", "backward", "large", "ordered", "small"
};
static way asked_way = SMALL;
static dtr_ddp *asked_module; /* of BACKWARD */
static dtr_op last_one;       /* of ORDERED */

/* It does not commute, so ranks take their turns. */
static void take_last(void *inout, const void *in, size_t count, dtr_dtype dtype, void *arg) {
    (void)arg;
    memcpy(inout, in, count * dtr_dtype_size(dtype));
}

static dtr_status call_as(dtr_group *g, dtr_ddp *ddp, way as, double limit_s) {
    static float large[BIG];
    dtr_coll_options o = { .struct_size = sizeof o, .label = "grad.3", .timeout_s = limit_s };
    dtr_buffer b = buffer(data, N), l = buffer(large, BIG);
    dtr_work *w = NULL;
    dtr_status s;
    if (on_device() && as != SCOPE && as != BACKWARD) {
        b = as == SMALL ? b : l;
        return wait_and_release(dtr_allreduce(g, b, b, DTR_MAX, &o, &w), &w, -1);
    }
    switch (as) {
    case ASYNC:
        s = dtr_allreduce(g, l, l, DTR_MAX, &o, &w);
        return wait_and_release(s, &w, -1);
    case SCOPE:
        s = dtr_coalesce_begin(g);
        s = s == DTR_OK ? dtr_allreduce(g, b, b, DTR_MAX, &o, NULL) : s;
        s = s == DTR_OK ? dtr_coalesce_end(g, &w) : s;
        return wait_and_release(s, &w, limit_s > 0 ? limit_s : -1);
    case BACKWARD:
        s = dtr_ddp_grad_ready(ddp, 0, NULL);
        return s == DTR_OK ? dtr_ddp_backward_end(ddp, NULL) : s;
    case LARGE:
        return dtr_allreduce(g, l, l, DTR_MAX, &o, NULL);
    case ORDERED:
        return dtr_allreduce(g, l, l, last_one, &o, NULL);
    default:
        return dtr_allreduce(g, b, b, DTR_MAX, &o, NULL);
    }
}

static dtr_ddp *new_module(dtr_group *g, double limit_s) {
    dtr_tensor *value = NULL;
    dtr_ddp *ddp = NULL;
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.timeout_s = limit_s;
    (void)dtr_tensor_empty(world, DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1,
                           (const int64_t[]){ N }, &value);
    dtr_param p = { .name = "w", .value = value };
    (void)dtr_tensor_fill(value, 0, NULL);
    NOTE("module", dtr_ddp_create(g, &p, 1, &o, &ddp));
    dtr_tensor_release(value); /* the module has its own reference */
    NOTE("step", call_as(g, ddp, BACKWARD, 0));
    return ddp;
}

/* What meets the fault. */
dtr_status call_asked(double limit_s) {
    return call_as(group, asked_module, asked_way, limit_s);
}

/* ---- the faults; a case returns when its rank may end in order ---- */

static void healthy(void) {
    NOTE("modules", dtr_ddp_destroy(new_module(group, 0)));
    NOTE("allreduce", allreduce("last", 0));
}

/* FI2, FT3: the victim is the last one every time. */
static void slow(void) {
    dtr_coll_options o = { .struct_size = sizeof o, .label = "slow" };
    dtr_buffer buf = dtr_cpu(data, N, DTR_F32);
    for (int i = 0; i < 60; i++) {
        dtr_work *w = NULL;
        if (rank != victim) {
            (void)dtr_allreduce(group, buf, buf, DTR_MAX, &o, &w);
        }
        MPI_Barrier(MPI_COMM_WORLD); /* the victim is last however the others are held up */
        if (rank == victim) {
            nap(0.01);
            (void)dtr_allreduce(group, buf, buf, DTR_MAX, &o, NULL);
        } else {
            (void)dtr_work_wait(w, -1);
            (void)dtr_work_release(w);
        }
    }
    NOTE("allreduce", DTR_OK);
}

/* O7, DR1: the victim is outside the library, and the others wait for it, while dtr-doctor looks
 * and asks for dumps; the job goes on. */
static void asked(void) {
    char name[32];
    dtr_work *w = NULL, *later = NULL;
    dtr_coll_options o = { .struct_size = sizeof o, .label = "grad.3" };
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    if (rank != victim) {
        (void)dtr_allreduce(group, b, b, DTR_MAX, &o, &w);
        (void)dtr_barrier(group, NULL, &later);
    }
    snprintf(name, sizeof name, "in%d", rank);
    put_file(name);
    await_file("go");
    if (rank == victim) {
        (void)dtr_allreduce(group, b, b, DTR_MAX, &o, &w);
        (void)dtr_barrier(group, NULL, &later);
    }
    NOTE("allreduce", wait_and_release(DTR_OK, &w, -1));
    NOTE("later", wait_and_release(DTR_OK, &later, -1));
}

/* FI1: the victim computes until the others have given up. */
static void absent(void) {
    if (rank == victim) {
        await_file(victim == 0 ? "done1" : "done0");
        return;
    }
    char name[32];
    NOTE("allreduce", call_asked(LIMIT_S));
    snprintf(name, sizeof name, "done%d", rank);
    put_file(name);
}

/* FI9; the odd one may be the first. */
static void kind(void) {
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    NOTE("call", rank == (size > 3 ? 0 : victim) ? dtr_broadcast(group, b, 0, NULL, NULL)
                                                 : allreduce("grad.3", 0));
}

/* FI27, O9: DTR_ON_ERROR=abort with FI1, FI5 and FI9. Who is ended by SIGABRT says so in a file. */
static char abort_path[512];

static void note_abort(int number) {
    (void)number;
    (void)close(open(abort_path, O_WRONLY | O_CREAT, 0600));
}

static void expect_abort(void) {
    snprintf(abort_path, sizeof abort_path, "%s/abort%d", folder, rank);
    signal(SIGABRT, note_abort);
    NOTE("entered", DTR_OK);
}

static void abort_absent(void) {
    expect_abort();
    absent();
}

static void abort_kind(void) {
    expect_abort();
    kind();
}

/* FI5, FT1, CP1, EA10, M8, N4, N18: the victim is killed while the others wait. */
static void killed(void) {
    go_ahead();
    if (rank == victim) {
        die();
    }
    NOTE("allreduce", call_asked(0));
}

static void abort_killed(void) {
    expect_abort();
    killed();
}

/* FI5, EA3: the victim is killed in the midst of storing its slice into the results of all. The
 * others have their memory back with the error, for whatever comes next. */
static void kill_here(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    (void)context;
    die();
}

static void killed_storing(void) {
    enum { COUNT = 1 << 18, PAGE = 4096 };
    const size_t nbytes = COUNT * sizeof(float);
    const dtr_device cpu = { DTR_CPU, 0 };
    dtr_group *g = NULL;
    void *in = NULL, *result = NULL;
    size_t changed = 0;
    NOTE("in", dtr_alloc(world, cpu, DTR_MEM_SHARED, nbytes, &in));
    NOTE("out", dtr_alloc(world, cpu, DTR_MEM_SHARED, nbytes, &result));
    memset(in, 0, nbytes);
    NOTE("split", dtr_group_split(group, 0, 0, NULL, &g));
    if (rank == victim) { /* at a page of its slice of its own result */
        char *at = (char *)result + nbytes / (size_t)size * (size_t)rank + 8 * PAGE;
        struct sigaction there = { .sa_sigaction = kill_here, .sa_flags = SA_SIGINFO };
        at -= (uintptr_t)at % PAGE;
        (void)sigaction(SIGSEGV, &there, NULL);
        (void)mprotect(at, PAGE, PROT_NONE);
    }
    NOTE("allreduce", dtr_allreduce(g, dtr_cpu(in, COUNT, DTR_F32), dtr_cpu(result, COUNT, DTR_F32),
                                    DTR_SUM, NULL, NULL));
    NOTE("group", dtr_group_destroy(g));
    memset(result, 0x5a, nbytes);
    NOTE("free", dtr_free(world, in));
    NOTE("new", dtr_alloc(world, cpu, DTR_MEM_SHARED, nbytes, &in));
    memset(in, 0x5a, nbytes);
    for (size_t i = 0; i < nbytes; i++) {
        changed += ((char *)in)[i] != 0x5a || ((char *)result)[i] != 0x5a;
    }
    NOTE("memory", changed == 0 ? DTR_OK : DTR_ERR_SYSTEM);
    NOTE("free", dtr_free(world, in));
    NOTE("free", dtr_free(world, result));
}

/* FI5 for every way of calling: the highest rank of ever smaller groups is killed. What waits for
 * it is a large asynchronous operation, a scope, a backward pass and a large blocking one in turn.
 */
static void cascade(void) {
    enum { MOST = 16 };
    dtr_group *g[MOST] = { NULL };
    dtr_ddp *ddp[MOST] = { NULL };
    char name[48];
    for (int k = size; k >= 2; k--) {
        NOTE("split", dtr_group_split(group, rank < k ? 0 : DTR_COLOR_NONE, 0, NULL, &g[k]));
        if ((size - k) % 4 == 2 && rank < k) {
            ddp[k] = new_module(g[k], 0);
        }
    }
    for (int k = size; k >= 2 && rank < k; k--) {
        snprintf(name, sizeof name, "in%d.%d", k, rank);
        put_file(name);
        for (int r = 0; r < k && rank == k - 1; r++) {
            snprintf(name, sizeof name, "in%d.%d", k, r);
            await_file(name);
        }
        uint64_t uid, seq; /* rank 0 is to wait for it, however slow the machine is */
        for (int i = 0; rank == k - 1 && i < 1000 && !dtr__peer_inside(world, 0, &uid, &seq); i++) {
            nap(0.01);
        }
        if (rank == k - 1) {
            nap(0.1);
            die();
        }
        snprintf(name, sizeof name, "kill%d", k);
        NOTE(name, call_as(g[k], ddp[k], (way)((size - k) % SMALL), 0));
    }
    for (int k = 2; k <= size; k++) {
        NOTE("modules", dtr_ddp_destroy(ddp[k]));
    }
}

/* FI6: between operations; the others learn of it at their next call at the latest. */
static void crashed(void) {
    if (rank == victim) {
        signal(SIGABRT, SIG_DFL);
        mark_fault();
        abort();
    }
    nap(0.2);
    NOTE("allreduce", call_asked(0));
}

/* FI7, T09: the victim leaves without dtr_world_destroy; its exit code is its own. */
static void left(void) {
    go_ahead();
    if (rank == victim) {
        mark_fault();
        exit(0);
    }
    NOTE("allreduce", call_asked(0));
}

/* EA3, EA6, EA8, M5, M9: works under way, a waiter in another thread's place, and one that had
 * finished. */
static void killed_async(void) {
    enum { WORKS = 50 };
    dtr_work *done = NULL, *w[WORKS] = { NULL };
    static float own[WORKS][8];
    dtr_coll_options o = { .struct_size = sizeof o, .label = "grad.3" };
    dtr_buffer b = buffer(data, N);
    (void)dtr_allreduce(group, b, b, DTR_MAX, &o, &done);
    (void)wait_for(done, -1);
    go_ahead();
    if (rank == victim) {
        die();
    }
    const double begun = now();
    dtr_status issued = DTR_OK;
    for (int i = 0; i < WORKS && issued == DTR_OK; i++) {
        dtr_buffer x = buffer(own[i], 8);
        issued = dtr_allreduce(group, x, x, DTR_SUM, &o, &w[i]);
    }
    note_since("issued", begun, issued);
    for (int i = 0; i < WORKS && w[i] != NULL; i++) {
        char name[32];
        snprintf(name, sizeof name, "work%d", i);
        NOTE(name, wait_for(w[i], -1));
        (void)dtr_work_release(w[i]);
    }
    NOTE("before", wait_for(done, -1));
    (void)dtr_work_release(done);
    NOTE("after", allreduce("late", 0));
    NOTE("group", dtr_group_status(group));
}

/* FI5, with messages: a long one, more short ones than have room, and receives wait for the victim.
 */
static void killed_p2p(void) {
    enum { SHORT = 50, MANY = 4000, LONG = 300000, WORKS = MANY + 3 };
    static float some[SHORT], many[LONG], got[3];
    static dtr_work *w[WORKS];
    static const char *const names[] = { "long", "receive", "any" };
    for (int i = 0; i < WORKS && rank != victim; i++) {
        (void)(i == 0   ? dtr_send(group, dtr_cpu(many, LONG, DTR_F32), victim, 0, NULL, &w[i])
               : i == 1 ? dtr_recv(group, dtr_cpu(&got[0], 1, DTR_F32), victim, 1, NULL, &w[i])
               : i == 2
                   ? dtr_recv(group, dtr_cpu(&got[1], 1, DTR_F32), DTR_ANY_SOURCE, 2, NULL, &w[i])
                   : dtr_send(group, dtr_cpu(some, SHORT, DTR_F32), victim, 3, NULL, &w[i]));
    }
    go_ahead();
    if (rank == victim) {
        die();
    }
    NOTE("blocking", dtr_recv(group, dtr_cpu(&got[2], 1, DTR_F32), victim, 4, NULL, NULL));
    for (int i = 0; i < WORKS && w[i] != NULL; i++) {
        const double begun = now();
        dtr_status s = dtr_work_wait(w[i], -1);
        if (i < 3 || i == WORKS - 1) {
            note_since(i < 3 ? names[i] : "last", begun, s);
        }
        (void)dtr_work_release(w[i]);
    }
}

/* FI23, EA5: the ranks without the victim have a group of their own, which goes on. */
static void other_group(void) {
    dtr_group *half = NULL;
    NOTE("split", dtr_group_split(group, rank == victim, 0, NULL, &half));
    go_ahead();
    if (rank == victim) {
        die();
    }
    NOTE("world", allreduce("grad.3", 0));
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    for (int i = 0; i < 10; i++) {
        NOTE("half", dtr_allreduce(half, b, b, DTR_MAX, NULL, NULL));
    }
    NOTE("destroy_half", dtr_group_destroy(half));
}

/* BAR17: ends at once, and lists who died. */
static void barrier(void) {
    int missing[64], n = -1;
    go_ahead();
    if (rank == victim) {
        die();
    }
    NOTE("barrier", dtr_monitored_barrier(group, 600, true, missing, &n));
    fprintf(out, "missing %d %d\n", n, n > 0 ? missing[0] : -1);
    n = -1;
    NOTE("again", dtr_monitored_barrier(group, 600, false, missing, &n));
    fprintf(out, "then %d %d\n", n, n > 0 ? missing[0] : -1);
}

/* FI17 */
static void aborted(void) {
    go_ahead();
    if (rank == victim) {
        mark_fault();
        NOTE("abort", dtr_group_abort(group, "the loss is not a number"));
    }
    NOTE("allreduce", call_asked(0));
}

/* FI14: a receive that nobody sends to, or a send, too big to be buffered, that nobody takes. */
static void no_partner(void) {
    static float large[BIG];
    const char *backend = getenv("DTR_BACKEND");
    const int tag = on_device() ? 0 : 7; /* NCCL has none */
    const bool send = backend != NULL && strcmp(backend, "cpu:mpi") == 0;
    dtr_work *w = NULL;
    if (rank == 0 || rank == victim) { /* NCCL sets the pair up */
        dtr_buffer b = buffer(data, N);
        (void)wait_and_release(send == (rank == 0)
                                   ? dtr_send(group, b, victim - rank, tag, NULL, &w)
                                   : dtr_recv(group, b, victim - rank, tag, NULL, &w),
                               &w, -1);
    }
    if (rank == 0) {
        dtr_coll_options o = { .struct_size = sizeof o, .label = "halo", .timeout_s = LIMIT_S };
        dtr_buffer b = buffer(large, BIG);
        const double begun = now();
        dtr_status s =
            send ? dtr_send(group, b, victim, tag, &o, &w)
                 : dtr_recv(group, buffer(data, N), victim, tag, &o, on_device() ? &w : NULL);
        note_since("partner", begun, wait_and_release(s, &w, -1));
        put_file("done0");
        return;
    }
    await_file("done0");
    NOTE("after", allreduce("late", 0)); /* EA4 */
}

/* FI16, EA1: the victim's call is refused, and it does not try again. */
static void refused(void) {
    if (rank == victim) {
        dtr_buffer bad = dtr_cpu(NULL, N, DTR_F32);
        NOTE("bad", dtr_allreduce(group, bad, bad, DTR_SUM, NULL, NULL));
        put_file("bad");
    }
    await_file("bad");
    absent();
}

/* FI12: two groups of the same ranks, of which the victim enters the second one first and waits for
 * longer than the others, who have given up by then. */
static void opposite(void) {
    dtr_group *a = NULL, *b = NULL;
    dtr_coll_options o = { .struct_size = sizeof o, .timeout_s = LIMIT_S };
    dtr_group_options na = DTR_GROUP_OPTIONS_INIT, nb = DTR_GROUP_OPTIONS_INIT;
    na.name = "rows";
    nb.name = "columns";
    (void)dtr_group_split(group, 0, 0, &na, &a);
    (void)dtr_group_split(group, 0, 0, &nb, &b);
    dtr_buffer x = buffer(data, N);
    dtr_work *w = NULL;
    (void)wait_and_release(dtr_allreduce(a, x, x, DTR_MAX, NULL, &w), &w, -1); /* sets NCCL up */
    (void)wait_and_release(dtr_allreduce(b, x, x, DTR_MAX, NULL, &w), &w, -1);
    o.timeout_s += rank == victim ? 0.5 : 0;
    NOTE("first",
         wait_and_release(dtr_allreduce(rank == victim ? b : a, x, x, DTR_MAX, &o, &w), &w, -1));
    meet_by_files("first"); /* to end the world would end the victim's wait as well */
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = { { "healthy", healthy },
              { "slow", slow },
              { "unwritable", healthy },
              { "absent", absent },
              { "kind", kind },
              { "killed", killed },
              { "killed_storing", killed_storing },
              { "cascade", cascade },
              { "killed_inside", killed_inside },
              { "killed_told", killed_told },
              { "abort_absent", abort_absent },
              { "abort_kind", abort_kind },
              { "abort_killed", abort_killed },
              { "killed_p2p", killed_p2p },
              { "crashed", crashed },
              { "left", left },
              { "killed_async", killed_async },
              { "other_group", other_group },
              { "creation", creation },
              { "killed_creation", killed_creation },
              { "stopped_creation", stopped_creation },
              { "released", released },
              { "stopped", stopped },
              { "stopped_again", stopped_again },
              { "far_absent", far_absent },
              { "far_stopped", far_stopped },
              { "killed_node", killed_node },
              { "killed_node_barrier", killed_node_barrier },
              { "killed_scan", killed_scan },
              { "vote_killed", vote_killed },
              { "vote_stopped", vote_stopped },
              { "barrier", barrier },
              { "no_creation", no_creation },
              { "no_world", no_world },
              { "aborted", aborted },
              { "no_partner", no_partner },
              { "refused", refused },
              { "opposite", opposite },
              { "hung", hung },
              { "hung_left", hung },
              { "cut", cut },
              { "cut_short", cut },
              { "far_dump", far_dump },
              { "muted", muted },
              { "flipped", flipped },
              { "busy", busy },
              { "asked", asked } };

/* The victim alone sees that its thread hangs, and may have left before the others hear of it. */
static void find_nothing_out(void) {
    const char *open_mpi = getenv("OMPI_COMM_WORLD_RANK"), *pmi = getenv("PMI_RANK");
    const char *own = open_mpi != NULL ? open_mpi : pmi;
    if (own == NULL || atoi(own) != 2) {
        setenv("DTR_HEARTBEAT_LIMIT", "600", 1);
    }
}

int main(int argc, char **argv) {
    char path[512];
    if (argc >= 3 && strcmp(argv[1], "hung_left") == 0) {
        find_nothing_out();
    }
    if (argc < 3 || argc > 4 || dtr_world_create(NULL, &world) != DTR_OK) {
        return 2;
    }
    group = dtr_world_group(world);
    rank = dtr_world_rank(world);
    size = dtr_world_size(world);
    victim = size > 2 ? 2 : 1;
    if (size > 4 && strstr(argv[1], "_creation") != NULL) {
        victim = 3; /* an inner rank of the tree by which groups are made */
    }
    folder = argv[2];
    snprintf(path, sizeof path, "%s/rank%d", folder, rank);
    out = fopen(path, "w");
    if (out == NULL) {
        return 2;
    }
    for (int i = 0; i < WARM; i++) {
        (void)allreduce("warm", 0);
    }
    for (int i = 0; argc == 4 && i <= SMALL; i++) {
        asked_way = strcmp(way_names[i], argv[3]) == 0 ? (way)i : asked_way;
    }
    if (asked_way == ORDERED && dtr_op_create(world, take_last, NULL, false, &last_one) != DTR_OK) {
        return 2;
    }
    if (asked_way == BACKWARD) {
        bool waits = strstr(argv[1], "absent") != NULL || strcmp(argv[1], "stopped") == 0 ||
                     strcmp(argv[1], "refused") == 0;
        asked_module = new_module(group, waits ? LIMIT_S : 0);
    }
    if (rank == victim) {
        put_pid();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
        }
    }
    (void)dtr_ddp_destroy(asked_module);
    free_blocks();
    NOTE("destroy", dtr_world_destroy(world));
    fclose(out);
    return 0;
}
