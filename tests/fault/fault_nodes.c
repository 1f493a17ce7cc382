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

#include "coll_internal.h"
#include "flipping.h"
#include "rt_ballot.h"
#include "rt_control.h"
#include "rt_internal.h"
#include "rt_peers.h"

#include "fault.h" /* its names would be shadowed */

/* CP2, CP3, FI4: until another node has reported that the victim is stopped, or its only rank being
 * stopped can report no more. Ranks of its own node see it by themselves. */
static bool is_reported(bool stopped, int64_t since_ns) {
    dtr__digest d;
    if (world->node_of[victim] == world->node) {
        return true;
    }
    if (!dtr__control_look(world, victim, &d)) {
        return false;
    }
    return stopped ? strstr(d.doing, "stopped") != NULL || dtr__control_old(world, &d)
                   : d.seen_ns > since_ns;
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
    note("allreduce", dtr_work_wait(w, 0.2));
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
    dtr__digest d;
    /* It stops after it has been reported to have ended its last operation. */
    while (
        world->node_of[victim] != world->node &&
        !(dtr__control_look(world, victim, &d) && strstr(d.doing, "operation is allreduce #20"))) {
        nap(0.02);
    }
    go_ahead();
    if (rank == victim) {
        raise(SIGSTOP);
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
        raise(SIGKILL);
    }
    note("allreduce", call_asked(0));
}

/* ---- CP10: words that all agree on ---- */

static dtr_status put_word(uint64_t step, dtr_status s) {
    dtr__ballot b = { .uid = group->uid, .step = step, .status = s, .order = rank };
    snprintf(b.text, sizeof b.text, "rank %d in step %d", rank, (int)step);
    return dtr__ballot_put(world, group->world_ranks, size, &b);
}

static void get_word(const char *name, uint64_t step) {
    dtr__ballot all = { .uid = 0 };
    note(name,
         dtr__ballot_get(world, group->world_ranks, size, group->uid, step, 60, NULL, NULL, &all));
    fprintf(out, "%s_said %s %s\n", name, dtr_status_name((dtr_status)all.status), all.text);
}

/* The victim dies before it puts its second one. */
void word_killed(void) {
    (void)put_word(1, rank == size - 1 ? DTR_ERR_STATE : DTR_OK);
    get_word("first", 1);
    go_ahead();
    if (rank == victim) {
        raise(SIGKILL);
    }
    (void)put_word(2, DTR_ERR_STATE);
    get_word("second", 2);
}

/* CP3: the leader of a node is stopped, and what the next rank of that node puts then reaches the
 * other node all the same. */
void word_stopped(void) {
    while (rank == size - 1 && dtr__peer_runs(world, world->local_rank_of[victim])) {
        nap(0.02);
    }
    (void)put_word(1, rank >= victim ? DTR_ERR_STATE : DTR_OK);
    if (rank == victim) {
        raise(SIGSTOP);
    }
    get_word("word", 1);
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

/* Every rank does `name` before any goes on. */
static void meet_by_files(const char *name) {
    char path[64];
    snprintf(path, sizeof path, "%s%d", name, rank);
    put_file(path);
    for (int r = 0; r < size; r++) {
        snprintf(path, sizeof path, "%s%d", name, r);
        await_file(path);
    }
}

void hung(void) {
    dtr_group *half = NULL;
    dtr_work *w = NULL;
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    note("split", dtr_group_split(group, rank == victim, 0, NULL, &half));
    meet_by_files("split");
    if (rank == victim) {
        atomic_store(&hangs, true);
        (void)dtr_recv(group, b, 0, 7, NULL, &w);
        while (!atomic_load(&is_hanging)) {
            nap(0.01);
        }
        note("recv", dtr_work_wait(w, -1));
        (void)dtr_work_release(w);
    }
    note("allreduce", allreduce("grad.3", 0));
    note("half", dtr_allreduce(half, b, b, DTR_MAX, NULL, NULL));
    note("destroy_half", dtr_group_destroy(half));
    note("destroy", dtr_world_destroy(world));
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
    note("allreduce", call_asked(0));
}

/* O6: a group breaks that is on one node only; all ranks dump, also those that are in none of its
 * calls. */
void far_dump(void) {
    dtr_group *half = NULL;
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    note("split", dtr_group_split(group, world->node, 0, NULL, &half));
    if (world->node == world->node_of[victim]) {
        note("call", rank == victim ? dtr_broadcast(half, b, 0, NULL, NULL)
                                    : dtr_allreduce(half, b, b, DTR_MAX, NULL, NULL));
    }
    while (atomic_load(&dtr__recorder_header(world)->dumps) == 0) {
        nap(0.02);
    }
    note("allreduce", allreduce("last", 0));
}

/* ---- CP6, P7: a rank is killed at any moment of what it does ---- */

static void *kill_soon(void *arg) {
    struct timespec t = { 0, *(const unsigned *)arg % 30000000 };
    nanosleep(&t, NULL);
    raise(SIGKILL);
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
        for (int turn = 0; s == DTR_OK; turn++) {
            pthread_t killer;
            if (turn == WARM_TURNS && mine == size - k && /* all are in it */
                (getrandom(&when, sizeof when, 0) != (ssize_t)sizeof when ||
                 pthread_create(&killer, NULL, kill_soon, &when) != 0)) {
                raise(SIGKILL);
            }
            s = be_busy(g[k], turn);
        }
        snprintf(name, sizeof name, "kill%d", k);
        note(name, s);
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
    note("register", dtr_backend_register(world, "flip", &ops, DTR_BACKEND_CPU));
    note("split", dtr_group_split(group, 0, 0, &o, &g));
    for (int i = 0; i < 4; i++) {
        note("allreduce", dtr_allreduce(g, dtr_cpu(given, N, DTR_F32), b, DTR_SUM, NULL, NULL));
    }
    note("destroy_group", dtr_group_destroy(g));
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
        raise(SIGKILL);
    }
    note("allreduce", allreduce("grad.3", 0));
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(reader);
}
