/* MPI receives nothing into memory that a program has back: once a work has ended with an error,
 * what its peer sends late does not arrive in its buffer (reliability:EA3). */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "backends/mpi/mpi_internal.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "harness.h"
#include "tell.h"

enum { NBYTES = 1024, /* sent at once */ TAG = 4, FILL = 0x5a };

static size_t changed(const char *p, size_t n) {
    size_t differ = 0;
    for (size_t i = 0; i < n; i++) {
        differ += p[i] != FILL;
    }
    return differ;
}

static struct {
    dtr_group *g;
    _Atomic int holds;
} holder;

/* Has the lock, and lets MPI receive what it will, as a thread that is late on its way out. */
static void *hold_progress(void *unused) {
    dtr__progress_lock_acquire(holder.g->world, holder.g->engine->progress);
    atomic_store(&holder.holds, 1);
    for (double end = th_now() + 0.1; th_now() < end;) {
        int there;
        MPI_Iprobe(MPI_ANY_SOURCE, TAG, MPI_COMM_SELF, &there, MPI_STATUS_IGNORE);
        sched_yield();
    }
    dtr__progress_lock_release(holder.g->engine->progress);
    return unused;
}

static void note_end(dtr_work *work, dtr_status s, void *out) {
    (void)work;
    (void)s;
    memset(out, FILL, NBYTES);
    tell(0);
}

typedef enum way { WAITED, TESTED, ALL, ANY, CALLED_BACK } way;

static void end_work(dtr_work *work, way by) {
    bool done = false;
    size_t index;
    dtr_status s = by == WAITED ? dtr_work_wait(work, -1)
                   : by == ALL  ? dtr_work_wait_all(&work, 1, -1)
                   : by == ANY  ? dtr_work_wait_any(&work, 1, -1, &index)
                                : DTR_OK;
    while (s == DTR_OK && !done) {
        s = dtr_work_test(work, &done);
    }
    TH_CHECK(s == DTR_ERR_ABORTED, "ended with %s", dtr_status_name(s));
}

/* Rank 1 gives up while one of its threads cannot cancel what it has posted. */
static void give_up(dtr_group *g, dtr__mpi_state *state, way by, char *out) {
    const dtr__mpi_transfer *t;
    dtr_work *work = NULL;
    pthread_t thread;
    memset(out, 0, NBYTES);
    TH_IS(dtr_broadcast(g, dtr_cpu(out, NBYTES, DTR_U8), 0, NULL, &work), DTR_OK);
    bool done = false;
    for (double end = th_now() + 0.05; th_now() < end;) { /* posted */
        TH_IS(dtr_work_test(work, &done), DTR_OK);
    }
    t = &state->sched->transfers[0];
    TH_CHECK(state->sched->n_transfers == 1 && t->nbytes == NBYTES && !t->is_send, "not posted");
    int tag = t->tag;
    MPI_Send(&tag, 1, MPI_INT, 0, TELL_TAG, MPI_COMM_WORLD);
    if (by == CALLED_BACK) {
        TH_IS(dtr_work_on_complete(work, note_end, out), DTR_OK);
    }
    holder.g = g;
    atomic_store(&holder.holds, 0);
    TH_CHECK(pthread_create(&thread, NULL, hold_progress, NULL) == 0, "no thread");
    while (atomic_load(&holder.holds) == 0) {
        sched_yield();
    }
    TH_IS(dtr_group_abort(g, "rank 1 has given up"), DTR_OK);
    end_work(work, by);
    if (by != CALLED_BACK) {
        memset(out, FILL, NBYTES);
        tell(0);
    }
    hear(0); /* it has been sent */
    pthread_join(thread, NULL);
    for (double end = th_now() + 0.05; th_now() < end;) {
        int there;
        MPI_Iprobe(MPI_ANY_SOURCE, TAG, MPI_COMM_SELF, &there, MPI_STATUS_IGNORE);
    }
    const size_t differ = changed(out, NBYTES);
    TH_CHECK(differ == 0, "%d: %zu bytes were received after the work had ended", (int)by, differ);
    TH_IS(dtr_work_release(work), DTR_OK);
}

/* What a peer sends late does not arrive in memory that the program has back. */
static void sent_late(way by) {
    dtr_world *w = th_world();
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    static char out[NBYTES], late[NBYTES];
    o.backend = "mpi";
    TH_OK(dtr_group_split(dtr_world_group(w), th_rank() < 2 ? 0 : DTR_COLOR_NONE, 0, &o, &g));
    if (th_rank() == 1) {
        give_up(g, g->backends.state[0], by, out);
    } else if (th_rank() == 0) {
        int tag = 0;
        MPI_Recv(&tag, 1, MPI_INT, 1, TELL_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        hear(1);
        MPI_Send(late, NBYTES, MPI_BYTE, 1, tag, g->comm);
        tell(1);
    }
    th_barrier();
    (void)dtr_group_abort(g, "the test is over");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}

START_TEST(received) {
    int level;
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE) {
        th_skip("received", "another thread calls MPI, below thread level multiple");
        return;
    }
    for (way by = WAITED; by <= CALLED_BACK; by++) {
        sent_late(by);
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "sent_late", 120);
    th_add(tc, received, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "sent_late", make);
}
