/* Nothing grows with the number of operations: calls of all sorts, thousands of times.
 *
 *   FLAT_ROUNDS=130000 mpirun -n 2 test_flat_memory    more than a million operations */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"
#include "resident.h"
#include "world/world.h"

enum { KIB = 1024, WORDS = 2048, OPS = 8 }; /* OPS: of a round */

static int64_t in[WORDS], out[WORDS];

static dtr_buffer words(int64_t *p, size_t n) {
    return dtr_cpu(p, n, DTR_I64);
}

static dtr_status end(dtr_status s, dtr_work *w) {
    DTR_KEEP_FIRST(s, w != NULL ? dtr_work_wait(w, -1) : DTR_OK);
    DTR_KEEP_FIRST(s, w != NULL ? dtr_work_release(w) : DTR_OK);
    return s;
}

/* Every rank makes the same calls, also after one has failed. */
static dtr_status round_of_all(dtr_group *g, int i) {
    const int n = dtr_group_size(g), me = dtr_group_rank(g);
    const size_t share = (size_t)(WORDS / n);
    dtr_work *sent = NULL, *reduced = NULL, *got = NULL;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_bytes text = { in, 40 }, list[64] = { { NULL, 0 } };
    char label[32];
    snprintf(label, sizeof label, "round %d", i);
    o.label = label;
    dtr_status s = dtr_allreduce(g, words(in, 1), words(out, 1), DTR_SUM, NULL, NULL);
    dtr_status t = dtr_allreduce(g, words(in, WORDS), words(out, WORDS), DTR_MAX, &o, &reduced);
    DTR_KEEP_FIRST(s, end(t, reduced));
    t = dtr_recv(g, words(out, 9), (me + n - 1) % n, 3, NULL, &got);
    DTR_KEEP_FIRST(s, dtr_send(g, words(in, 9), (me + 1) % n, 3, NULL, &sent));
    DTR_KEEP_FIRST(s, end(DTR_OK, sent));
    DTR_KEEP_FIRST(s, end(t, got));
    DTR_KEEP_FIRST(s, dtr_alltoall(g, words(in, share * (size_t)n), words(out, share * (size_t)n),
                                   NULL, NULL));
    DTR_KEEP_FIRST(s, dtr_broadcast(g, words(out, 100), i % n, &o, NULL));
    DTR_KEEP_FIRST(s, dtr_allgather_bytes(g, text, NULL, list));
    dtr_bytes_free(list, (size_t)n);
    DTR_KEEP_FIRST(s, dtr_barrier(g, NULL, NULL));
    return s;
}

static void rounds(dtr_group *g, int from, int n) {
    dtr_status s = DTR_OK;
    for (int i = from; i < from + n; i++) {
        DTR_KEEP_FIRST(s, round_of_all(g, i));
    }
    TH_CHECK(s == DTR_OK, "%s: %s", dtr_status_name(s), dtr_last_error_message());
}

static long heap(void) {
    return (long)(mallinfo2().uordblks / KIB);
}

/* A leak of 32 bytes per operation comes to 750 KiB in the short form. */
static void stays_flat(dtr_group *g, const char *what) {
    const char *asked = getenv("FLAT_ROUNDS");
    const int n = asked != NULL ? atoi(asked) : 3000;
    rounds(g, 0, 1500);
    const long heap_before = heap(), before = th_resident_kib();
    const size_t shared_before = dtr__arena_used(th_world());
    rounds(g, 1500, n);
    const long heap_grown = heap() - heap_before, grown = th_resident_kib() - before;
    const size_t shared = dtr__arena_used(th_world()) - shared_before;
    if (th_rank() == 0 && asked != NULL) {
        printf("%s: %d operations: heap %+ld KiB, resident %+ld KiB, node-shared %+ld bytes\n",
               what, n * OPS, heap_grown, grown, (long)shared);
    }
    TH_CHECK(heap_grown < 300, "%s: the heap grew by %ld KiB", what, heap_grown);
    TH_CHECK(grown < 4 * KIB, "%s: resident memory grew by %ld KiB", what, grown);
    TH_CHECK(shared == 0, "%s: node-shared memory grew by %zu bytes", what, shared);
    TH_AGREE();
}

START_TEST(as_chosen) {
    stays_flat(th_group(), "auto");
}
END_TEST

START_TEST(over_mpi) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    o.backend = "cpu:mpi";
    TH_OK(dtr_group_split(th_group(), 0, 0, &o, &g));
    stays_flat(g, "mpi");
    TH_OK(dtr_group_destroy(g));
}
END_TEST

static void come_and_go(int n) {
    dtr_status s = DTR_OK;
    for (int i = 0; i < n; i++) {
        dtr_group *g = NULL;
        DTR_KEEP_FIRST(s, dtr_group_split(th_group(), 0, 0, NULL, &g));
        DTR_KEEP_FIRST(s, dtr_allreduce(g, words(in, 1), words(out, 1), DTR_SUM, NULL, NULL));
        DTR_KEEP_FIRST(s, dtr_group_destroy(g));
    }
    TH_CHECK(s == DTR_OK, "%s: %s", dtr_status_name(s), dtr_last_error_message());
}

/* Destroyed handles are kept, but not all of them: that would be 500 KiB here. */
START_TEST(groups) {
    come_and_go(1100);
    const long before = heap();
    come_and_go(700);
    TH_CHECK(heap() - before < 200, "the heap grew by %ld KiB", heap() - before);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "flat", 400);
    th_add_measured(tc, as_chosen, 2, 0);
    th_add_measured(tc, over_mpi, 2, 0);
    th_add_measured(tc, groups, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "flat_memory", make);
}
