/* One program for all faults: fault CASE FOLDER [WAY]. Every rank that gets to judge writes what it
 * saw to FOLDER/rankN: a line per call, "NAME STATUS MESSAGE". tests/fault/run.py starts it and
 * judges. WAY is how the operation is called that meets the fault: small, large, async, scope or
 * backward. */
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <dtr/coll.h>
#include <dtr/ddp.h>
#include <dtr/group.h>
#include <dtr/work.h>
#include <dtr/world.h>

#include "rt_internal.h"
#include "rt_peers.h"

#include "fault.h" /* its names would be shadowed */

enum { WARM = 20 };
#define LIMIT_S 1.0 /* of those who wait for one that does not come */

dtr_world *world;
dtr_group *group;
int rank, size, victim;
const char *folder;
FILE *out;
float data[N];

void note(const char *name, dtr_status s) {
    fprintf(out, "%s %s %s\n", name, dtr_status_name(s), s < 0 ? dtr_last_error_message() : "");
    fflush(out);
}

void nap(double seconds) {
    struct timespec t = { (time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds)) };
    while (nanosleep(&t, &t) != 0) {
    }
}

dtr_status allreduce(const char *label, double limit_s) {
    dtr_coll_options o = { .struct_size = sizeof o, .label = label, .timeout_s = limit_s };
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    return dtr_allreduce(group, b, b, DTR_MAX, &o, NULL);
}

/* Until `name` exists in the folder: how ranks outside the library wait for others. */
void await_file(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    while (access(path, F_OK) != 0) {
        nap(0.02);
    }
}

void put_file(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (f != NULL) {
        fclose(f);
    }
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

static dtr_status wait_and_release(dtr_status s, dtr_work *w, double limit_s) {
    s = s == DTR_OK ? dtr_work_wait(w, limit_s) : s;
    (void)dtr_work_release(w);
    return s;
}

typedef enum way { ASYNC, SCOPE, BACKWARD, LARGE, SMALL } way;
static const char *const way_names[] = { "async", "scope", "backward", "large", "small" };
static way asked_way = SMALL;
static dtr_ddp *asked_module; /* of BACKWARD */

static dtr_status call_as(dtr_group *g, dtr_ddp *ddp, way as, double limit_s) {
    enum { MANY = 300000 };
    static float large[MANY];
    dtr_coll_options o = { .struct_size = sizeof o, .label = "grad.3", .timeout_s = limit_s };
    dtr_buffer b = dtr_cpu(data, N, DTR_F32), l = dtr_cpu(large, MANY, DTR_F32);
    dtr_work *w = NULL;
    dtr_status s;
    switch (as) {
    case ASYNC:
        s = dtr_allreduce(g, l, l, DTR_MAX, &o, &w);
        return wait_and_release(s, w, -1);
    case SCOPE:
        s = dtr_coalesce_begin(g);
        s = s == DTR_OK ? dtr_allreduce(g, b, b, DTR_MAX, &o, NULL) : s;
        s = s == DTR_OK ? dtr_coalesce_end(g, &w) : s;
        return wait_and_release(s, w, limit_s > 0 ? limit_s : -1);
    case BACKWARD:
        s = dtr_ddp_grad_ready(ddp, 0, NULL);
        return s == DTR_OK ? dtr_ddp_backward_end(ddp, NULL) : s;
    case LARGE:
        return dtr_allreduce(g, l, l, DTR_MAX, &o, NULL);
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
    note("module", dtr_ddp_create(g, &p, 1, &o, &ddp));
    dtr_tensor_release(value); /* the module has its own reference */
    note("step", call_as(g, ddp, BACKWARD, 0));
    return ddp;
}

/* What meets the fault. */
dtr_status call_asked(double limit_s) {
    return call_as(group, asked_module, asked_way, limit_s);
}

/* ---- the faults; a case returns when its rank may end in order ---- */

static void healthy(void) {
    note("modules", dtr_ddp_destroy(new_module(group, 0)));
    note("allreduce", allreduce("last", 0));
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
    note("allreduce", DTR_OK);
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
    note("allreduce", wait_and_release(DTR_OK, w, -1));
    note("later", wait_and_release(DTR_OK, later, -1));
}

/* FI1: the victim computes until the others have given up. */
static void absent(void) {
    if (rank == victim) {
        await_file(victim == 0 ? "done1" : "done0");
        return;
    }
    char name[32];
    note("allreduce", call_asked(LIMIT_S));
    snprintf(name, sizeof name, "done%d", rank);
    put_file(name);
}

/* FI9; the odd one may be the first. */
static void kind(void) {
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    note("call", rank == (size > 3 ? 0 : victim) ? dtr_broadcast(group, b, 0, NULL, NULL)
                                                 : allreduce("grad.3", 0));
}

/* The others say that they are about to call; the victim gives them a moment to get inside. */
void go_ahead(void) {
    char name[32];
    snprintf(name, sizeof name, "in%d", rank);
    put_file(name);
    for (int i = 0; i < size && rank == victim; i++) {
        snprintf(name, sizeof name, "in%d", i);
        await_file(name);
    }
    nap(rank == victim ? 0.1 : 0);
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
}

static void killed(void);

static void abort_absent(void) {
    expect_abort();
    absent();
}

static void abort_kind(void) {
    expect_abort();
    kind();
}

static void abort_killed(void) {
    expect_abort();
    killed();
}

/* FI5, FT1, CP1, EA10, M8, N4, N18: the victim is killed while the others wait. */
static void killed(void) {
    go_ahead();
    if (rank == victim) {
        raise(SIGKILL);
    }
    note("allreduce", call_asked(0));
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
        note("split", dtr_group_split(group, rank < k ? 0 : DTR_COLOR_NONE, 0, NULL, &g[k]));
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
            raise(SIGKILL);
        }
        snprintf(name, sizeof name, "kill%d", k);
        note(name, call_as(g[k], ddp[k], (way)((size - k) % SMALL), 0));
    }
    for (int k = 2; k <= size; k++) {
        note("modules", dtr_ddp_destroy(ddp[k]));
    }
}

/* FI6: between operations; the others learn of it at their next call at the latest. */
static void crashed(void) {
    if (rank == victim) {
        signal(SIGABRT, SIG_DFL);
        abort();
    }
    nap(0.2);
    note("allreduce", call_asked(0));
}

/* FI7, T09: the victim leaves without dtr_world_destroy; its exit code is its own. */
static void left(void) {
    go_ahead();
    if (rank == victim) {
        exit(0);
    }
    note("allreduce", call_asked(0));
}

/* EA3, EA6, EA8, M5, M9: works under way, a waiter in another thread's place, and one that had
 * finished. */
static void killed_async(void) {
    enum { WORKS = 50 };
    dtr_work *done = NULL, *w[WORKS] = { NULL };
    static float own[WORKS][8];
    dtr_coll_options o = { .struct_size = sizeof o, .label = "grad.3" };
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    (void)dtr_allreduce(group, b, b, DTR_MAX, &o, &done);
    (void)dtr_work_wait(done, -1);
    go_ahead();
    if (rank == victim) {
        raise(SIGKILL);
    }
    dtr_status issued = DTR_OK;
    for (int i = 0; i < WORKS && issued == DTR_OK; i++) {
        dtr_buffer x = dtr_cpu(own[i], 8, DTR_F32);
        issued = dtr_allreduce(group, x, x, DTR_SUM, &o, &w[i]);
    }
    note("issued", issued);
    for (int i = 0; i < WORKS && w[i] != NULL; i++) {
        char name[32];
        snprintf(name, sizeof name, "work%d", i);
        note(name, dtr_work_wait(w[i], -1));
        (void)dtr_work_release(w[i]);
    }
    note("before", dtr_work_wait(done, -1));
    (void)dtr_work_release(done);
    note("after", allreduce("late", 0));
    note("group", dtr_group_status(group));
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
        raise(SIGKILL);
    }
    note("blocking", dtr_recv(group, dtr_cpu(&got[2], 1, DTR_F32), victim, 4, NULL, NULL));
    for (int i = 0; i < WORKS && w[i] != NULL; i++) {
        dtr_status s = dtr_work_wait(w[i], -1);
        if (i < 3 || i == WORKS - 1) {
            note(i < 3 ? names[i] : "last", s);
        }
        (void)dtr_work_release(w[i]);
    }
}

/* FI23, EA5: the ranks without the victim have a group of their own, which goes on. */
static void other_group(void) {
    dtr_group *half = NULL;
    note("split", dtr_group_split(group, rank == victim, 0, NULL, &half));
    go_ahead();
    if (rank == victim) {
        raise(SIGKILL);
    }
    note("world", allreduce("grad.3", 0));
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    for (int i = 0; i < 10; i++) {
        note("half", dtr_allreduce(half, b, b, DTR_MAX, NULL, NULL));
    }
    note("destroy_half", dtr_group_destroy(half));
}

/* FI22 */
static void creation(void) {
    dtr_group *half = NULL;
    go_ahead();
    if (rank == victim) {
        raise(SIGKILL);
    }
    note("split", dtr_group_split(group, 0, 0, NULL, &half));
    fprintf(out, "half %s\n", half == NULL ? "none" : "some");
}

void wake_victim(void) {
    char path[512];
    int pid = 0;
    snprintf(path, sizeof path, "%s/pid", folder);
    FILE *f = fopen(path, "r");
    if (f != NULL && fscanf(f, "%d", &pid) == 1 && pid > 0) {
        kill((pid_t)pid, SIGCONT);
    }
    if (f != NULL) {
        fclose(f);
    }
}

/* Rank 0 goes on when all but the victim have come here. */
void await_others(void) {
    char name[32];
    snprintf(name, sizeof name, "done%d", rank);
    put_file(name);
    for (int r = 0; r < size && rank == 0; r++) {
        snprintf(name, sizeof name, "done%d", r);
        if (r != victim) {
            await_file(name);
        }
    }
}

/* FI3, FT2, CP1, N4, N19: stopped until the others have given up. */
static void stopped(void) {
    go_ahead();
    if (rank == victim) {
        raise(SIGSTOP);
        note("allreduce", call_asked(LIMIT_S));
        return;
    }
    note("allreduce", call_asked(LIMIT_S));
    await_others();
    if (rank == 0) {
        await_file("looked"); /* the judge has asked dtr-doctor */
        wake_victim();
    }
}

/* BAR17: ends at once, and lists who died. */
static void barrier(void) {
    int missing[64], n = -1;
    go_ahead();
    if (rank == victim) {
        raise(SIGKILL);
    }
    note("barrier", dtr_monitored_barrier(group, 600, true, missing, &n));
    fprintf(out, "missing %d %d\n", n, n > 0 ? missing[0] : -1);
    n = -1;
    note("again", dtr_monitored_barrier(group, 600, false, missing, &n));
    fprintf(out, "then %d %d\n", n, n > 0 ? missing[0] : -1);
}

/* FI21, CP8: the victim does not come to the creation of a group. */
static void no_creation(void) {
    dtr_group *half = NULL;
    char name[32];
    if (rank == victim) {
        for (int r = 0; r < size; r++) {
            snprintf(name, sizeof name, "done%d", r);
            if (r != victim) {
                await_file(name);
            }
        }
        return;
    }
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.timeout_s = 1.0;
    note("split", dtr_group_split(group, 0, 0, &o, &half));
    fprintf(out, "half %s\n", half == NULL ? "none" : "some");
    snprintf(name, sizeof name, "done%d", rank);
    put_file(name);
}

/* INI26, CP8: the victim does not come to the creation of a world; later it does, and is not left
 * alone for ever either. */
static void no_world(void) {
    char name[32];
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    for (int r = 0; rank == victim && r < size; r++) {
        snprintf(name, sizeof name, "done%d", r);
        if (r != victim) {
            await_file(name);
        }
    }
    note("meet", dtr__mpi_meet(comm, 1.0));
    snprintf(name, sizeof name, "done%d", rank);
    put_file(name);
    snprintf(name, sizeof name, "done%d", victim);
    await_file(name);
}

/* FI17 */
static void aborted(void) {
    go_ahead();
    if (rank == victim) {
        note("abort", dtr_group_abort(group, "the loss is not a number"));
    }
    note("allreduce", call_asked(0));
}

/* FI14: a receive that nobody sends to, or a send, too big to be buffered, that nobody takes. */
static void no_partner(void) {
    enum { MANY = 300000 };
    static float large[MANY];
    const char *backend = getenv("DTR_BACKEND");
    if (rank == 0) {
        dtr_coll_options o = { .struct_size = sizeof o, .label = "halo", .timeout_s = LIMIT_S };
        dtr_buffer b = dtr_cpu(large, MANY, DTR_F32);
        bool send = backend != NULL && strcmp(backend, "cpu:mpi") == 0;
        dtr_work *w = NULL;
        dtr_status s = send ? dtr_send(group, b, victim, 7, &o, &w)
                            : dtr_recv(group, dtr_cpu(data, N, DTR_F32), victim, 7, &o, NULL);
        note("partner", wait_and_release(s, w, -1));
        put_file("done0");
        return;
    }
    await_file("done0");
}

/* FI16, EA1: the victim's call is refused, and it does not try again. */
static void refused(void) {
    if (rank == victim) {
        dtr_buffer bad = dtr_cpu(NULL, N, DTR_F32);
        note("bad", dtr_allreduce(group, bad, bad, DTR_SUM, NULL, NULL));
        put_file("bad");
    }
    await_file("bad");
    absent();
}

/* FI12: two groups of the same two ranks in opposite order. */
static void opposite(void) {
    dtr_group *a = NULL, *b = NULL;
    dtr_coll_options o = { .struct_size = sizeof o, .timeout_s = 1.0 };
    dtr_group_options na = DTR_GROUP_OPTIONS_INIT, nb = DTR_GROUP_OPTIONS_INIT;
    na.name = "rows";
    nb.name = "columns";
    (void)dtr_group_split(group, 0, 0, &na, &a);
    (void)dtr_group_split(group, 0, 0, &nb, &b);
    dtr_buffer x = dtr_cpu(data, N, DTR_F32);
    note("first", dtr_allreduce(rank == 0 ? a : b, x, x, DTR_MAX, &o, NULL));
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
              { "cascade", cascade },
              { "abort_absent", abort_absent },
              { "abort_kind", abort_kind },
              { "abort_killed", abort_killed },
              { "killed_p2p", killed_p2p },
              { "crashed", crashed },
              { "left", left },
              { "killed_async", killed_async },
              { "other_group", other_group },
              { "creation", creation },
              { "stopped", stopped },
              { "far_absent", far_absent },
              { "far_stopped", far_stopped },
              { "killed_node", killed_node },
              { "word_killed", word_killed },
              { "word_stopped", word_stopped },
              { "barrier", barrier },
              { "no_creation", no_creation },
              { "no_world", no_world },
              { "aborted", aborted },
              { "no_partner", no_partner },
              { "refused", refused },
              { "opposite", opposite },
              { "hung", hung },
              { "cut", cut },
              { "far_dump", far_dump },
              { "muted", muted },
              { "flipped", flipped },
              { "busy", busy },
              { "asked", asked } };

int main(int argc, char **argv) {
    char path[512];
    if (argc < 3 || argc > 4 || dtr_world_create(NULL, &world) != DTR_OK) {
        return 2;
    }
    group = dtr_world_group(world);
    rank = dtr_world_rank(world);
    size = dtr_world_size(world);
    victim = size > 2 ? 2 : 1;
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
    note("destroy", dtr_world_destroy(world));
    fclose(out);
    return 0;
}
