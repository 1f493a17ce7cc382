/* Faults of whole nodes, of what is between them, and of single threads. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "control/control.h"
#include "control/peers.h"
#include "control/vote.h"
#include "core/team.h"
#include "flipping.h"
#include "world/world.h"

#include "fault.h" /* its names would be shadowed */

/* CP2, CP3, FI4: until another node has reported that the victim is stopped, or its only rank being
 * stopped can report no more. Ranks of its own node see it by themselves. */
static bool is_reported(bool stopped, int64_t since_ns) {
    dtr__rank_report d;
    if (world->node_of[victim] == world->node) {
        return true;
    }
    if (!dtr__control_report_of(world, victim, &d)) {
        return false;
    }
    return stopped ? strstr(d.doing, "stopped") != NULL || dtr__control_old(world, &d)
                   : d.seen_ns > since_ns;
}

/* FI5: the victim dies inside NCCL, by the stand-in, and the others find out. */
void killed_inside(void) {
    go_ahead();
    if (rank == victim) {
        mark_fault();
    }
    NOTE("allreduce", call_asked(0));
}

/* FI33: NCCL tells the others, and nobody else does: each rank is a node, and nodes do not report
 * to each other (the judge's settings). A world that does not know who is dead could not end. */
void killed_told(void) {
    char name[32];
    killed_inside();
    fflush(out);
    await_others();
    for (int r = 0; r < size; r++) { /* the launcher may end all with the first that leaves so */
        snprintf(name, sizeof name, "done%d", r);
        if (r != victim) {
            await_file(name);
        }
    }
    _exit(0);
}

/* FI5: the victim, on which all others build, is killed while they wait in a scan. */
void killed_scan(void) {
    dtr_group *g = NULL;
    int32_t x = rank;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_I32);
    NOTE("split", dtr_group_split(group, 0, rank == victim ? -1 : rank, NULL, &g));
    go_ahead();
    if (rank == victim) {
        die();
    }
    NOTE("scan", dtr_scan(g, b, b, DTR_SUM, NULL, NULL));
    NOTE("again", dtr_exscan(g, b, b, DTR_SUM, NULL, NULL));
    NOTE("group", dtr_group_destroy(g));
}

/* FI5: the victim is killed while the others wait in the barrier of the node. What it left in its
 * node-shared memory can be read all the same. */
void killed_node_barrier(void) {
    int *own = NULL;
    const int *left = NULL;
    NOTE("alloc",
         dtr_alloc(world, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, 4096, (void **)&own));
    own[1000] = rank;
    NOTE("first", dtr_node_barrier(world));
    left = dtr_peer_pointer(world, &own[1000], world->local_rank_of[victim]);
    go_ahead();
    if (rank == victim) {
        die();
    }
    NOTE("barrier", dtr_node_barrier(world));
    NOTE("again", dtr_node_barrier(world));
    NOTE("memory", left != NULL && *left == victim ? DTR_OK : DTR_ERR_SYSTEM);
    NOTE("free", dtr_free(world, own));
}

/* What the others say of a victim on another node, once it has been reported. */
static void await_far(bool stopped) {
    dtr_work *w = NULL;
    char name[32];
    dtr_coll_options o = { .struct_size = sizeof o, .label = "grad.3" };
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    (void)dtr_allreduce(group, b, b, DTR_MAX, &o, &w);
    const int64_t since_ns = dtr__now_ns();
    while (!is_reported(stopped, since_ns)) {
        nap(0.02);
    }
    snprintf(name, sizeof name, "told%d", rank);
    put_file(name);
    for (int r = 0; r < size; r++) { /* the first time-out ends it for all */
        snprintf(name, sizeof name, "told%d", r);
        if (r != victim) {
            await_file(name);
        }
    }
    NOTE("allreduce", dtr_work_wait(w, 0.2));
    (void)dtr_work_release(w);
    snprintf(name, sizeof name, "done%d", rank);
    put_file(name);
}

void far_absent(void) {
    if (rank == victim) {
        await_file("done0");
    } else {
        await_far(false);
    }
}

void far_stopped(void) {
    dtr__rank_report d;
    /* It stops after it has been reported to have ended its last operation. */
    while (world->node_of[victim] != world->node &&
           !(dtr__control_report_of(world, victim, &d) &&
             strstr(d.doing, "operation is allreduce #20"))) {
        nap(0.02);
    }
    go_ahead();
    if (rank == victim) {
        mark_fault();
        raise(SIGSTOP);
        NOTE("allreduce", call_asked(LIMIT_S));
        return;
    }
    await_far(true);
    for (int r = 0; r < size && rank == 0; r++) {
        char name[32];
        snprintf(name, sizeof name, "done%d", r);
        if (r != victim) {
            await_file(name);
        }
    }
    if (rank == 0) {
        wake_victim();
    }
}

/* FI4, FI25: all ranks of the victim's node at once. */
void killed_node(void) {
    go_ahead();
    if (world->node_of[rank] == world->node_of[victim]) {
        nap(0.1);
        die();
    }
    NOTE("allreduce", call_asked(0));
}

/* ---- CP10: votes ---- */

static dtr_status put_vote(uint64_t step, dtr_status s) {
    dtr__vote b = { .uid = group->uid, .step = step, .status = s, .order = rank };
    snprintf(b.text, sizeof b.text, "rank %d in step %d", rank, (int)step);
    return dtr__vote_put(world, group->world_ranks, size, &b);
}

static void get_vote(const char *name, uint64_t step) {
    dtr__vote all = { .uid = 0 };
    NOTE(name,
         dtr__vote_get(world, group->world_ranks, size, group->uid, step, 60, NULL, NULL, &all));
    fprintf(out, "%s_said %s %s\n", name, dtr_status_name((dtr_status)all.status), all.text);
}

/* The victim dies before it puts its second one. */
void vote_killed(void) {
    (void)put_vote(1, rank == size - 1 ? DTR_ERR_STATE : DTR_OK);
    get_vote("first", 1);
    go_ahead();
    if (rank == victim) {
        die();
    }
    (void)put_vote(2, DTR_ERR_STATE);
    get_vote("second", 2);
}

/* CP3: the leader of a node is stopped, and what the next rank of that node puts then reaches the
 * other node all the same. */
void vote_stopped(void) {
    while (rank == size - 1 && dtr__peer_runs(world, world->local_rank_of[victim])) {
        nap(0.02);
    }
    (void)put_vote(1, rank >= victim ? DTR_ERR_STATE : DTR_OK);
    if (rank == victim) {
        mark_fault();
        raise(SIGSTOP);
    }
    get_vote("vote", 1);
    await_others();
    if (rank == 0) {
        wake_victim();
    }
}

/* FI26, N4, O1, O3, T8: a call of MPI does not return to the victim's progress thread. */
static _Atomic bool hangs, is_hanging;

static void hang(void) {
    char name[16] = "";
    while (atomic_load(&hangs) && prctl(PR_GET_NAME, name) == 0 &&
           strcmp(name, "dtr-progress") == 0) {
        atomic_store(&is_hanging, true);
        nap(0.05);
    }
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
    hang();
    return PMPI_Test(request, flag, status);
}

int MPI_Improbe(int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message,
                MPI_Status *status) {
    hang();
    return PMPI_Improbe(source, tag, comm, flag, message, status);
}

/* The others have let go of a group in which an operation waits for the victim: it ends with the
 * victim's death. What they make next is not held up by what is left of that group. */
void released(void) {
    dtr_group *g = NULL, *half = NULL;
    dtr_work *w = NULL;
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    NOTE("split", dtr_group_split(group, 0, 0, NULL, &g));
    NOTE("split", dtr_group_split(group, rank == victim, 0, NULL, &half));
    if (rank != victim) {
        NOTE("issue", dtr_allreduce(g, b, b, DTR_SUM, NULL, &w));
        NOTE("release", dtr_group_release(g));
    }
    go_ahead();
    if (rank == victim) {
        die();
    }
    NOTE("world", wait_and_release(DTR_OK, &w, -1));
    NOTE("half", dtr_allreduce(half, b, b, DTR_MAX, NULL, NULL));
    NOTE("destroy_half", dtr_group_destroy(half));
}

void hung(void) {
    dtr_group *half = NULL;
    dtr_work *w = NULL;
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    NOTE("split", dtr_group_split(group, rank == victim, 0, NULL, &half));
    meet_by_files("split");
    if (rank == victim) {
        atomic_store(&hangs, true);
        (void)dtr_recv(group, b, 0, 7, NULL, &w);
        while (!atomic_load(&is_hanging)) {
            nap(0.01);
        }
        mark_fault();
        NOTE("recv", dtr_work_wait(w, -1));
        (void)dtr_work_release(w);
    }
    NOTE("allreduce", allreduce("grad.3", 0));
    NOTE("half", dtr_allreduce(half, b, b, DTR_MAX, NULL, NULL));
    NOTE("destroy_half", dtr_group_destroy(half));
    NOTE("destroy", dtr_world_destroy(world));
    fclose(out);
    meet_by_files("end"); /* a launcher may end the job once one has left without MPI_Finalize */
    exit(0);
}

/* FI25, N18, T28: the judge takes the link of the victim's node away. */
void cut(void) {
    char name[32];
    snprintf(name, sizeof name, "in%d", rank);
    put_file(name);
    await_file("cut");
    NOTE("allreduce", call_asked(0));
}

/* O6: a group breaks that is on one node only; all ranks dump, also those that are in none of its
 * calls. */
void far_dump(void) {
    dtr_group *half = NULL;
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    NOTE("split", dtr_group_split(group, world->node, 0, NULL, &half));
    if (world->node == world->node_of[victim]) {
        NOTE("call", rank == victim ? dtr_broadcast(half, b, 0, NULL, NULL)
                                    : dtr_allreduce(half, b, b, DTR_MAX, NULL, NULL));
    }
    while (atomic_load(&dtr__recorder_header(world)->dumps) == 0) {
        nap(0.02);
    }
    NOTE("allreduce", allreduce("last", 0));
}

/* ---- CP6, P7: a rank is killed at any moment of what it does ---- */

static void *kill_soon(void *arg) {
    struct timespec t = { 0, *(const unsigned *)arg % 30000000 };
    nanosleep(&t, NULL);
    die();
    return NULL;
}

/* Small calls again and again, large ones, several at once, messages. */
static dtr_status be_busy(dtr_group *g, int turn) {
    enum { LARGE = 200000 };
    static float large[LARGE], some[8];
    dtr_buffer b = dtr_cpu(some, 8, DTR_F32), l = dtr_cpu(large, LARGE, DTR_F32);
    dtr_work *w[2] = { NULL, NULL };
    dtr_status s = DTR_OK;
    if (turn % 32 == 0) {
        s = dtr_allreduce(g, l, l, DTR_MAX, NULL, &w[0]);
        s = s == DTR_OK ? dtr_broadcast(g, b, 0, NULL, &w[1]) : s;
    } else if (turn % 16 == 8) {
        s = dtr_group_rank(g) % 2 == 0
                ? dtr_send(g, b, (dtr_group_rank(g) + 1) % dtr_group_size(g), 0, NULL, &w[0])
                : dtr_recv(g, b, dtr_group_rank(g) - 1, 0, NULL, &w[0]);
    } else {
        return dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL);
    }
    for (int i = 0; i < 2; i++) {
        s = s == DTR_OK ? dtr_work_wait(w[i], -1) : s;
        (void)dtr_work_release(w[i]);
    }
    return s;
}

/* When this rank dies, as FAULT_ORDER lists ranks ("2,0,1"): 0 is first. Without it the highest is.
 */
static int turn_to_die(void) {
    const char *at = getenv("FAULT_ORDER");
    for (int i = 0; at != NULL && i < size; i++) {
        if (strtol(at, NULL, 10) == rank) {
            return i;
        }
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    return size - 1 - rank;
}

/* One rank after another, in ever smaller groups. */
void busy(void) {
    enum { MOST = 16, WARM_TURNS = 40 };
    dtr_group *g[MOST] = { NULL };
    unsigned when = 0;
    char name[32];
    const int mine = turn_to_die();
    for (int k = size; k >= 2; k--) {
        (void)dtr_group_split(group, mine >= size - k ? 0 : DTR_COLOR_NONE, 0, NULL, &g[k]);
    }
    for (int k = size; k >= 2 && mine >= size - k; k--) {
        dtr_status s = DTR_OK;
        double begun = now();
        for (int turn = 0; s == DTR_OK; turn++) {
            pthread_t killer;
            if (turn == WARM_TURNS && mine == size - k && /* all are in it */
                (getrandom(&when, sizeof when, 0) != (ssize_t)sizeof when ||
                 pthread_create(&killer, NULL, kill_soon, &when) != 0)) {
                die();
            }
            begun = now();
            s = be_busy(g[k], turn);
        }
        snprintf(name, sizeof name, "kill%d", k);
        note_since(name, begun, s);
    }
}

/* Q7 */
void flipped(void) {
    dtr_backend_ops ops = flipping_backend(rank == victim);
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    float given[N];
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    memcpy(given, data, sizeof given);
    o.name = "replicas";
    o.backend = "cpu:flip";
    NOTE("register", dtr_backend_register(world, "flip", &ops, DTR_BACKEND_CPU));
    NOTE("split", dtr_group_split(group, 0, 0, &o, &g));
    for (int i = 0; i < 4; i++) {
        NOTE("allreduce", dtr_allreduce(g, dtr_cpu(given, N, DTR_F32), b, DTR_SUM, NULL, NULL));
    }
    NOTE("destroy_group", dtr_group_destroy(g));
}

/* ---- N6: nobody reads what the ranks print ---- */

static int fill_stderr(int *reader) {
    int ends[2], kept = dup(STDERR_FILENO);
    static const char some[4096];
    if (pipe(ends) != 0 || kept < 0) {
        exit(2);
    }
    *reader = ends[0];
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (write(ends[1], some, sizeof some) > 0) {
    }
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    return kept;
}

static bool all_have_dumped(void) {
    bool all = true;
    for (int i = 0; i < world->local_size; i++) {
        const dtr__rec_header *h =
            i == world->local_rank ? dtr__recorder_header(world) : dtr__peer_header(world, i);
        all = all && atomic_load(&h->dumps) > 0;
    }
    return all;
}

/* That a dump was written is logged; the death after that is seen all the same. */
void muted(void) {
    int reader = -1, kept = fill_stderr(&reader);
    if (rank == victim) {
        (void)dtr_world_dump(world, "to be logged");
        while (!all_have_dumped()) {
            nap(0.02);
        }
        nap(0.3); /* the others' watchdogs are in what follows the dump */
        die();
    }
    NOTE("allreduce", allreduce("grad.3", 0));
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(reader);
}
