/* Inputs made by dtr_cpu_in are only read: they lie on pages that the kernel lets nobody write. */
#include <string.h>
#include <sys/mman.h>

#include "harness.h"

_Static_assert(sizeof(dtr_buffer) == 32, "access lies where there was padding");
_Static_assert(offsetof(dtr_buffer, access) == 28, "access lies where there was padding");

enum { MOST = 300000, RANKS = 16 };

static float *pages; /* element i is i % 8 + rank, all of them MOST */
static float got[MOST];
static size_t counts[RANKS];

static const float *inputs(void) {
    pages = mmap(NULL, MOST * sizeof *pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                 -1, 0);
    for (size_t i = 0; i < MOST; i++) {
        pages[i] = (float)(i % 8) + (float)th_rank();
    }
    mprotect(pages, MOST * sizeof *pages, PROT_READ);
    return pages;
}

static dtr_buffer in(size_t count) {
    return dtr_cpu_in(pages, count, DTR_F32);
}

static dtr_buffer out(size_t count) {
    memset(got, 0, count * sizeof *got);
    return dtr_cpu(got, count, DTR_F32);
}

/* Element i of the own result, when it is the sum over all ranks of their elements `at`. */
static float sum_of(size_t at) {
    float n = (float)th_size();
    return n * (float)(at % 8) + n * (n - 1) / 2;
}

static void is(size_t i, float want, const char *call) {
    TH_CHECK(got[i] == want, "%s: element %zu is %g, not %g", call, i, got[i], want);
}

static void run(dtr_status s, dtr_work **w) {
    TH_IS(s, DTR_OK);
    TH_IS(dtr_work_wait(*w, -1), DTR_OK);
    TH_IS(dtr_work_release(*w), DTR_OK);
    *w = NULL;
}

/* c elements per rank, waited for in the call or by a work. */
static void reductions(size_t c, bool async) {
    dtr_group *g = th_group();
    dtr_work *w = NULL, **work = async ? &w : NULL;
    size_t n = (size_t)th_size(), r = (size_t)th_rank(), last = c - 1;
    run(dtr_allreduce(g, in(c), out(c), DTR_SUM, NULL, work), &w);
    is(last, sum_of(last), "allreduce");
    run(dtr_reduce(g, in(c), th_rank() == 0 ? out(c) : in(c), DTR_SUM, 0, NULL, work), &w);
    if (th_rank() == 0) {
        is(last, sum_of(last), "reduce");
    }
    run(dtr_reduce_scatter(g, in(n * c), out(c), DTR_SUM, NULL, work), &w);
    is(last, sum_of(r * c + last), "reduce_scatter");
    run(dtr_reduce_scatterv(g, in(n * c), counts, out(c), DTR_SUM, NULL, work), &w);
    is(last, sum_of(r * c + last), "reduce_scatterv");
}

static void gathers(size_t c, bool async) {
    dtr_group *g = th_group();
    dtr_work *w = NULL, **work = async ? &w : NULL;
    size_t n = (size_t)th_size(), end = n * c - 1, last = c - 1;
    float want = (float)(last % 8) + (float)(n - 1);
    dtr_buffer none = in(0);
    run(dtr_allgather(g, in(c), out(n * c), NULL, work), &w);
    is(end, want, "allgather");
    run(dtr_allgatherv(g, in(c), out(n * c), counts, NULL, work), &w);
    is(end, want, "allgatherv");
    run(dtr_gather(g, in(c), th_rank() == 0 ? out(n * c) : none, 0, NULL, work), &w);
    run(dtr_gatherv(g, in(c), th_rank() == 0 ? out(n * c) : none, counts, 0, NULL, work), &w);
    if (th_rank() == 0) {
        is(end, want, "gatherv");
    }
}

static void spreads(size_t c, bool async) {
    dtr_group *g = th_group();
    dtr_work *w = NULL, **work = async ? &w : NULL;
    size_t n = (size_t)th_size(), r = (size_t)th_rank(), last = c - 1;
    dtr_buffer whole = th_rank() == 0 ? in(n * c) : in(0);
    run(dtr_broadcast(g, th_rank() == 0 ? in(c) : out(c), 0, NULL, work), &w);
    if (th_rank() != 0) {
        is(last, (float)(last % 8), "broadcast");
    }
    run(dtr_scatter(g, whole, out(c), 0, NULL, work), &w);
    run(dtr_scatterv(g, whole, counts, out(c), 0, NULL, work), &w);
    is(last, (float)((r * c + last) % 8), "scatterv");
    run(dtr_alltoall(g, in(n * c), out(n * c), NULL, work), &w);
    run(dtr_alltoallv(g, in(n * c), counts, out(n * c), counts, NULL, work), &w);
    is(n * c - 1, (float)((r * c + last) % 8) + (float)(n - 1), "alltoallv");
}

static void messages(size_t c, bool async) {
    dtr_group *g = th_group();
    dtr_work *w = NULL, **work = async ? &w : NULL;
    int n = th_size(), to = (th_rank() + 1) % n, from = (th_rank() + n - 1) % n;
    float want = (float)((c - 1) % 8) + (float)from;
    dtr_p2p both[] = { { true, in(c), to, 1 }, { false, out(c), from, 1 } };
    run(dtr_batch_p2p(g, both, 2, NULL, work), &w);
    is(c - 1, want, "batch_p2p");
    if (n > 1 && th_rank() < 2) {
        run(th_rank() == 0 ? dtr_send(g, in(c), 1, 2, NULL, work)
                           : dtr_recv(g, out(c), 0, 2, NULL, work),
            &w);
    }
    both[1].buf = in(c);
    TH_IS(dtr_batch_p2p(g, both, 2, NULL, work), DTR_ERR_ARG);
    TH_MESSAGE("ops[1].buf.data");
}

START_TEST(inputs_are_only_read) {
    static const size_t sizes[] = { 1, 1000, MOST / RANKS };
    (void)inputs();
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < RANKS; k++) {
            counts[k] = sizes[i];
        }
        for (int again = 0; again < 4; again++) { /* small ones come by the fast path then */
            bool async = again == 3;
            reductions(sizes[i], async);
            gathers(sizes[i], async);
            spreads(sizes[i], async);
            messages(sizes[i], async);
            TH_AGREE();
        }
    }
    munmap(pages, MOST * sizeof *pages);
}
END_TEST

START_TEST(byte_strings_are_only_read) {
    static const char text[] = "const";
    dtr_bytes all[RANKS] = { { NULL, 0 } };
    TH_OK(dtr_allgather_bytes(th_group(), dtr_bytes_in(text, sizeof text), NULL, all));
    for (int i = 0; i < th_size(); i++) {
        TH_CHECK(all[i].nbytes == sizeof text && strcmp(all[i].data, text) == 0, "string %d", i);
    }
    dtr_bytes_free(all, (size_t)th_size());
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "inputs", 120);
    th_add(tc, inputs_are_only_read, 0, 0);
    th_add(tc, byte_strings_are_only_read, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "inputs", make);
}
