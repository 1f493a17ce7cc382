/* Staging buffers of the shm backend: calls of many sizes follow each other without a pause, so
 * that givers fill buffers of one size while slow readers still take from those of another. */
#include "data.h"
#include "harness.h"
#include "settings.h"

enum { CALLS = 600, MOST = 1 << 18 }; /* elements of one rank's block */

typedef struct call {
    int number, kind, root;
    size_t n; /* elements of a block */
} call;

/* What rank `from` gives to rank `to` at `k`. */
static int32_t given(const call *c, int from, int to, size_t k) {
    return (int32_t)((size_t)c->number * 7 + (size_t)from * 131 + (size_t)to * 17 + k % 1009);
}

static void fill(const call *c, int32_t *in, bool for_each) {
    for (int to = 0; to < (for_each ? th_size() : 1); to++) {
        for (size_t k = 0; k < c->n; k++) {
            in[(size_t)to * c->n + k] = given(c, th_rank(), to, k);
        }
    }
}

static size_t differing(const call *c, const int32_t *out, int from, int to) {
    size_t wrong = 0;
    for (size_t k = 0; k < c->n; k++) {
        wrong += out[k] != given(c, from, to, k);
    }
    return wrong;
}

static size_t broadcast(dtr_group *g, const call *c, int32_t *in, int32_t *out) {
    (void)in;
    if (th_rank() == c->root) {
        fill(c, out, false);
    }
    TH_IS(dtr_broadcast(g, dtr_cpu(out, c->n, DTR_I32), c->root, NULL, NULL), DTR_OK);
    return differing(c, out, c->root, 0);
}

static size_t gather(dtr_group *g, const call *c, int32_t *in, int32_t *out) {
    const bool root = th_rank() == c->root;
    size_t wrong = 0;
    fill(c, in, false);
    TH_IS(dtr_gather(g, dtr_cpu(in, c->n, DTR_I32),
                     dtr_cpu(out, root ? c->n * (size_t)th_size() : 0, DTR_I32), c->root, NULL,
                     NULL),
          DTR_OK);
    for (int r = 0; root && r < th_size(); r++) {
        wrong += differing(c, out + (size_t)r * c->n, r, 0);
    }
    return wrong;
}

static size_t scatter(dtr_group *g, const call *c, int32_t *in, int32_t *out) {
    const bool root = th_rank() == c->root;
    if (root) {
        fill(c, in, true);
    }
    TH_IS(dtr_scatter(g, dtr_cpu(in, root ? c->n * (size_t)th_size() : 0, DTR_I32),
                      dtr_cpu(out, c->n, DTR_I32), c->root, NULL, NULL),
          DTR_OK);
    return differing(c, out, c->root, th_rank());
}

static size_t allgather(dtr_group *g, const call *c, int32_t *in, int32_t *out) {
    size_t wrong = 0;
    fill(c, in, false);
    TH_IS(dtr_allgather(g, dtr_cpu(in, c->n, DTR_I32),
                        dtr_cpu(out, c->n * (size_t)th_size(), DTR_I32), NULL, NULL),
          DTR_OK);
    for (int r = 0; r < th_size(); r++) {
        wrong += differing(c, out + (size_t)r * c->n, r, 0);
    }
    return wrong;
}

static size_t alltoall(dtr_group *g, const call *c, int32_t *in, int32_t *out) {
    const size_t all = c->n * (size_t)th_size();
    size_t wrong = 0;
    fill(c, in, true);
    TH_IS(dtr_alltoall(g, dtr_cpu(in, all, DTR_I32), dtr_cpu(out, all, DTR_I32), NULL, NULL),
          DTR_OK);
    for (int r = 0; r < th_size(); r++) {
        wrong += differing(c, out + (size_t)r * c->n, r, th_rank());
    }
    return wrong;
}

/* Each giver cuts its data by its own length. */
static size_t alltoallv(dtr_group *g, const call *c, int32_t *in, int32_t *out) {
    size_t counts[16], all = 0, wrong = 0; /* the same to and from a rank */
    for (int r = 0; r < th_size(); r++) {
        counts[r] = c->n >> ((r + th_rank()) % 4);
        for (size_t k = 0; k < counts[r]; k++) {
            in[all + k] = given(c, th_rank(), r, k);
        }
        all += counts[r];
    }
    TH_IS(dtr_alltoallv(g, dtr_cpu(in, all, DTR_I32), counts, dtr_cpu(out, all, DTR_I32), counts,
                        NULL, NULL),
          DTR_OK);
    for (int r = 0; r < th_size(); r++) {
        call part = *c;
        part.n = counts[r];
        wrong += differing(&part, out, r, th_rank());
        out += part.n;
    }
    return wrong;
}

static size_t allreduce(dtr_group *g, const call *c, int32_t *in, int32_t *out) {
    size_t wrong = 0;
    fill(c, in, false);
    TH_IS(dtr_allreduce(g, dtr_cpu(in, c->n, DTR_I32), dtr_cpu(out, c->n, DTR_I32), DTR_SUM, NULL,
                        NULL),
          DTR_OK);
    for (size_t k = 0; k < c->n; k++) {
        int32_t sum = 0;
        for (int r = 0; r < th_size(); r++) {
            sum += given(c, r, 0, k);
        }
        wrong += out[k] != sum;
    }
    return wrong;
}

static size_t reduce_scatter(dtr_group *g, const call *c, int32_t *in, int32_t *out) {
    size_t wrong = 0;
    fill(c, in, true);
    TH_IS(dtr_reduce_scatter(g, dtr_cpu(in, c->n * (size_t)th_size(), DTR_I32),
                             dtr_cpu(out, c->n, DTR_I32), DTR_SUM, NULL, NULL),
          DTR_OK);
    for (size_t k = 0; k < c->n; k++) {
        int32_t sum = 0;
        for (int r = 0; r < th_size(); r++) {
            sum += given(c, r, th_rank(), k);
        }
        wrong += out[k] != sum;
    }
    return wrong;
}

static int32_t *memory(dtr_world *w, dtr_mem how) {
    void *p = NULL;
    TH_OK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, how, sizeof(int32_t) * MOST * (size_t)th_size(),
                    &p));
    return p;
}

/* Kinds, in rows of some, sizes and roots are the same on all ranks; now and then a rank comes
 * late. */
static void follow_each_other(const char *tune, const char *cma, dtr_mem how) {
    static size_t (*const kinds[])(dtr_group *, const call *, int32_t *,
                                   int32_t *) = { broadcast, gather,    scatter,   allgather,
                                                  alltoall,  alltoallv, allreduce, reduce_scatter };
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_TUNE", tune, "DTR_CMA", cma);
    int32_t *in = memory(w, how), *out = memory(w, how);
    th_rng ours = { 5 }, mine = { 9 + (uint64_t)th_rank() };
    int kind = 0;
    for (int i = 0; i < CALLS; i++) {
        const int bits = 11 + (int)(th_next(&ours) % (i % 50 == 0 ? 8 : 5));
        if (th_next(&ours) % 2 == 0) {
            kind = (int)(th_next(&ours) % (sizeof kinds / sizeof kinds[0]));
        }
        const call c = { .number = i,
                         .kind = kind,
                         .root = (int)(th_next(&ours) % (uint64_t)th_size()),
                         .n = 1 + th_next(&ours) % ((uint64_t)1 << bits) };
        if (th_uniform(&mine) < 0.1) {
            th_sleep(0.001 * th_uniform(&mine));
        }
        const size_t wrong = kinds[c.kind](dtr_world_group(w), &c, in, out);
        TH_CHECK(wrong == 0, "%s: call %d of kind %d, %zu elements: %zu are wrong", tune, i, c.kind,
                 c.n, wrong);
    }
    TH_AGREE();
    TH_OK(dtr_free(w, in));
    TH_OK(dtr_free(w, out));
    TH_OK(dtr_world_destroy(w));
}

START_TEST(sizes_follow_each_other) {
    follow_each_other("chunk=128K", "off", DTR_MEM_DEFAULT);
    follow_each_other("chunk=4K", "off", DTR_MEM_DEFAULT);
    follow_each_other("chunk=16K,slices=0,stage_nontemporal=1", "off", DTR_MEM_DEFAULT);
}
END_TEST

/* A giver is a call ahead of who reads its buffer where it lies, and of who reads a copy. */
START_TEST(shared_ones_follow_each_other) {
    follow_each_other("chunk=128K", "off", DTR_MEM_SHARED);
    follow_each_other("chunk=4K", "off", DTR_MEM_SHARED);
}
END_TEST

/* The kernel reads several chunks at once, of some calls and of all. */
START_TEST(read_ones_follow_each_other) {
    follow_each_other("chunk=16K,cma_deal=64K,cma_piece=128K", "auto", DTR_MEM_DEFAULT);
    follow_each_other("chunk=16K,cma_copy=1,cma_piece=100K", "auto", DTR_MEM_DEFAULT);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "shm_stages", 120);
    th_add(tc, sizes_follow_each_other, 2, 0);
    th_add(tc, shared_ones_follow_each_other, 2, 0);
    th_add(tc, read_ones_follow_each_other, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "shm_stages", make);
}
