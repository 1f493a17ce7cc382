/* Operations of groups over several nodes that were begun and left alone: what goes on inside a
 * node ends while the program calls nothing, at every thread level of MPI (INI25, WRK1), and so do
 * limits and mismatches that are found there. What goes between nodes moves in the program's calls
 * below MPI_THREAD_MULTIPLE: a call of MPI by another thread ends the process (mpi_threads.sh).
 * Runs where DTR_NODE_RANKS makes nodes of two ranks. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "left_alone.h"

/* SMALL: more than what the mpi backend takes over, and in one slice, which the first rank of each
 * node takes to the other nodes. LARGE: several chunks, with slices of all ranks. */
enum { SMALL = 1000, LARGE = 3 << 19 };

static float in[LARGE], out[LARGE];

/* It has no part in what goes between nodes. */
static bool stays_in_node(void) {
    return dtr_world_local_rank(th_world()) > 0;
}

static dtr_buffer given(size_t n) {
    return dtr_cpu_in(in, n, DTR_F32);
}

static dtr_buffer taken(size_t n) {
    return dtr_cpu(out, n, DTR_F32);
}

static void fill(void) {
    for (int i = 0; i < LARGE; i++) {
        in[i] = (float)(th_rank() + i % 7);
        out[i] = -1;
    }
}

/* The sum over ranks [0, n). */
static float sum_at(int n, int i) {
    return (float)(n * (n - 1) / 2 + n * (i % 7));
}

static void check(const char *what, int count, int n_summed) {
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        wrong += out[i] != sum_at(n_summed, i);
    }
    TH_CHECK(wrong == 0, "%s: %d of %d sums are wrong", what, wrong, count);
}

/* ---- collectives whose other steps are of others ---- */

static dtr_status allreduce(dtr_work **w) {
    return dtr_allreduce(th_group(), given(SMALL), taken(SMALL), DTR_SUM, NULL, w);
}

static dtr_status reduce(dtr_work **w) {
    return dtr_reduce(th_group(), given(SMALL), taken(SMALL), DTR_SUM, 1, NULL, w);
}

static dtr_status scan(dtr_work **w) {
    return dtr_scan(th_group(), given(SMALL), taken(SMALL), DTR_SUM, NULL, w);
}

static dtr_status broadcast(dtr_work **w) {
    return dtr_broadcast(th_group(), taken(SMALL), 0, NULL, w);
}

static dtr_status allgather(dtr_work **w) {
    return dtr_allgather(th_group(), given(SMALL), taken(SMALL * (size_t)th_size()), NULL, w);
}

static dtr_status reduce_scatter(dtr_work **w) {
    return dtr_reduce_scatter(th_group(), given(SMALL * (size_t)th_size()), taken(SMALL), DTR_SUM,
                              NULL, w);
}

static dtr_status barrier(dtr_work **w) {
    return dtr_barrier(th_group(), NULL, w);
}

static void check_kind(const char *name, dtr_status (*call)(dtr_work **)) {
    const int p = th_size();
    if (call == allreduce || call == scan || (call == reduce && th_rank() == 1)) {
        check(name, SMALL, call == scan ? th_rank() + 1 : p);
    } else if (call == broadcast) {
        check(name, SMALL, 1); /* what rank 0 gave */
    }
    for (int i = 0; call == allgather && i < p * SMALL; i++) {
        TH_CHECK(out[i] == (float)(i / SMALL + i % SMALL % 7), "%s: element %d is %g", name, i,
                 (double)out[i]);
    }
    for (int i = 0; call == reduce_scatter && i < SMALL; i++) {
        TH_CHECK(out[i] == sum_at(p, th_rank() * SMALL + i), "%s: element %d is %g", name, i,
                 (double)out[i]);
    }
}

/* Two of them, of which the second begins when the first has ended. */
static void leave_alone(const char *name, dtr_status (*call)(dtr_work **)) {
    enum { WORKS = 2 };
    dtr_work *w[WORKS] = { NULL };
    fill();
    if (call == broadcast && th_rank() == 0) {
        memcpy(out, in, SMALL * sizeof *out);
    }
    for (int i = 0; i < WORKS && stays_in_node(); i++) {
        TH_IS(call(&w[i]), DTR_OK);
    }
    th_barrier();
    for (int i = 0; i < WORKS && !stays_in_node(); i++) {
        TH_IS(call(NULL), DTR_OK);
    }
    if (stays_in_node()) {
        TH_CHECK(end_by_themselves(WORKS), "%s: not over %d s after it was left alone", name,
                 LIMIT_S);
        TH_IS(dtr_work_wait_all(w, WORKS, 0), DTR_OK);
    }
    check_kind(name, call);
    for (int i = 0; i < WORKS; i++) {
        TH_IS(dtr_work_release(w[i]), DTR_OK);
    }
    TH_AGREE();
}

START_TEST(others_wait) {
    leave_alone("allreduce", allreduce);
    leave_alone("reduce", reduce);
    leave_alone("scan", scan);
    leave_alone("broadcast", broadcast);
    leave_alone("allgather", allgather);
    leave_alone("reduce_scatter", reduce_scatter);
    leave_alone("barrier", barrier);
}
END_TEST

/* Rank 0 has got the data of another node in its own calls, and its neighbour comes afterwards. */
START_TEST(last_steps) {
    dtr_work *w = NULL;
    const int root = th_size() - 1;
    fill();
    if (th_rank() == root) {
        for (int i = 0; i < SMALL; i++) {
            out[i] = sum_at(1, i);
        }
    }
    if (th_rank() != 1) {
        TH_IS(dtr_broadcast(th_group(), taken(SMALL), root, NULL, th_rank() == 0 ? &w : NULL),
              DTR_OK);
    }
    for (double end = th_now() + LIMIT_S;
         th_rank() == 0 && out[SMALL - 1] != sum_at(1, SMALL - 1) && th_now() < end;) {
        TH_IS(dtr_world_progress(th_world()), DTR_OK);
    }
    for (int i = 0; th_rank() == 0 && i < 2; i++) { /* what is there is found now at the latest */
        TH_IS(dtr_world_progress(th_world()), DTR_OK);
    }
    th_barrier();
    if (th_rank() == 1) {
        TH_IS(dtr_broadcast(th_group(), taken(SMALL), root, NULL, NULL), DTR_OK);
    } else if (th_rank() == 0) {
        TH_CHECK(end_by_themselves(1), "not over %d s after it was left alone", LIMIT_S);
        TH_IS(dtr_work_wait(w, 0), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    check("broadcast", SMALL, 1);
    TH_AGREE();
}
END_TEST

/* Steps of both kinds by turns, the ones between nodes in the program's calls. */
START_TEST(by_turns) {
    dtr_work *w = NULL;
    fill();
    TH_IS(dtr_allreduce(th_group(), given(LARGE), taken(LARGE), DTR_SUM, NULL, &w), DTR_OK);
    for (double end = th_now() + LIMIT_S; !have_ended(1) && th_now() < end;) {
        th_sleep(0.001);
        TH_IS(dtr_world_progress(th_world()), DTR_OK);
    }
    TH_IS(dtr_work_wait(w, 0), DTR_OK);
    check("allreduce", LARGE, th_size());
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- messages inside a node ---- */

/* From rank 1 to rank 0: the one begins, then the other, and neither calls anything. */
static void send_and_leave(int first, int from) {
    dtr_work *w = NULL;
    fill();
    for (int turn = 0; turn < 2; turn++) {
        if (th_rank() == (turn == 0 ? first : 1 - first)) {
            TH_IS(th_rank() == 1 ? dtr_send(th_group(), given(LARGE), 0, 3, NULL, &w)
                                 : dtr_recv(th_group(), taken(LARGE), from, 3, NULL, &w),
                  DTR_OK);
        }
        th_barrier();
    }
    if (th_rank() < 2) {
        TH_CHECK(end_by_themselves(1), "rank %d first, from %d: not over %d s after", first, from,
                 LIMIT_S);
        TH_IS(dtr_work_wait(w, 0), DTR_OK);
        TH_CHECK(th_rank() != 0 || dtr_work_source(w) == 1, "from %d", dtr_work_source(w));
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    for (int i = 0; th_rank() == 0 && i < LARGE; i++) {
        TH_CHECK(out[i] == (float)(1 + i % 7), "element %d is %g", i, (double)out[i]);
    }
    TH_AGREE();
}

START_TEST(messages) {
    for (int first = 0; first < 2; first++) {
        send_and_leave(first, 1);
        send_and_leave(first, DTR_ANY_SOURCE);
    }
}
END_TEST

/* ---- what goes wrong ---- */

/* Ranks of other nodes wait for the first one, where only rank 0 comes, for at most `limit_s`, or
 * rank 1 asks for less: the operation ends with `want` on all that have called, and none of them
 * calls anything meanwhile. */
static void fail_alone(bool comes, double limit_s, dtr_status want) {
    dtr_group *g = NULL;
    dtr_work *w = NULL;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    const size_t n = th_rank() == 1 ? SMALL - 1 : SMALL;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
    fill();
    if (th_rank() > 1) {
        TH_IS(dtr_allreduce(g, given(n), taken(n), DTR_SUM, NULL, &w), DTR_OK);
    }
    th_barrier();
    o.timeout_s = limit_s;
    if (th_rank() == 0 || (th_rank() == 1 && comes)) {
        TH_IS(dtr_allreduce(g, given(n), taken(n), DTR_SUM, &o, &w), DTR_OK);
    }
    if (th_rank() != 1 || comes) {
        TH_CHECK(end_by_themselves(1), "not over %d s after it was left alone", LIMIT_S);
        TH_IS(dtr_work_wait(w, 0), want);
        TH_MESSAGE("rank 1");
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_AGREE();
    (void)dtr_group_destroy(g);
    th_good_allreduce(th_group());
    TH_AGREE();
}

START_TEST(limit) {
    fail_alone(false, 1, DTR_ERR_TIMEOUT);
}
END_TEST

START_TEST(mismatch) {
    fail_alone(true, LIMIT_S / 2, DTR_ERR_MISMATCH);
}
END_TEST

/* The one half of a batch fails inside the node while the other one is with MPI. */
START_TEST(half_with_mpi) {
    dtr_group *g = NULL;
    dtr_work *w = NULL;
    const dtr_p2p both[] = { { false, taken(LARGE), 1, 3 },
                             { false, dtr_cpu(in, SMALL, DTR_F32), 2, 3 } };
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
    fill();
    if (th_rank() == 0) {
        TH_IS(dtr_batch_p2p(g, both, 2, NULL, &w), DTR_OK);
    }
    th_barrier();
    if (th_rank() == 1) {
        TH_IS(dtr_send(g, given(LARGE - 1), 0, 3, NULL, &w), DTR_OK);
    }
    if (th_rank() < 2) {
        TH_CHECK(end_by_themselves(1), "not over %d s after it was left alone", LIMIT_S);
        TH_IS(dtr_work_wait(w, 0), DTR_ERR_MISMATCH);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_AGREE();
    (void)dtr_group_destroy(g);
    th_good_allreduce(th_group());
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "left alone over nodes", 300);
    th_add(tc, others_wait, 3, 0);
    th_add(tc, last_steps, 3, 4);
    th_add(tc, by_turns, 3, 0);
    th_add(tc, messages, 3, 0);
    th_add(tc, limit, 3, 0);
    th_add(tc, mismatch, 3, 0);
    th_add(tc, half_with_mpi, 3, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "left alone over nodes", make);
}
