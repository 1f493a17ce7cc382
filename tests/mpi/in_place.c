/* Calls whose input and output share memory: which may, and rows of small ones. Values of all kinds
 * and sizes are in matrix.c. */
#include "harness.h"

enum { RANKS = 16 };

static const size_t counts[RANKS] = { 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2 };

/* COL40, nccl:B12: each allowed form of overlap, and the same by one element off. */
static void overlap(dtr_status (*run)(float *base, int shift), int allowed_shift) {
    float base[64];
    for (int k = 0; k < 64; k++) {
        base[k] = (float)k;
    }
    TH_IS(run(base, allowed_shift), DTR_OK);
    TH_AGREE();
    for (int off = -1; off <= 1; off += 2) {
        TH_IS(run(base + 2, allowed_shift + off), DTR_ERR_ARG);
        TH_MESSAGE("overlap");
    }
    TH_AGREE();
}

static dtr_status run_allreduce(float *base, int shift) {
    return dtr_allreduce(th_group(), dtr_cpu(base, 4, DTR_F32), dtr_cpu(base + shift, 4, DTR_F32),
                         DTR_SUM, NULL, NULL);
}
static dtr_status run_alltoall(float *base, int shift) {
    size_t n = (size_t)(2 * th_size());
    return dtr_alltoall(th_group(), dtr_cpu(base, n, DTR_F32), dtr_cpu(base + shift, n, DTR_F32),
                        NULL, NULL);
}
static dtr_status run_alltoallv(float *base, int shift) {
    size_t n = (size_t)(2 * th_size());
    return dtr_alltoallv(th_group(), dtr_cpu(base, n, DTR_F32), counts,
                         dtr_cpu(base + shift, n, DTR_F32), counts, NULL, NULL);
}
static dtr_status run_allgather(float *base, int shift) {
    return dtr_allgather(th_group(), dtr_cpu(base + shift, 2, DTR_F32),
                         dtr_cpu(base, (size_t)(2 * th_size()), DTR_F32), NULL, NULL);
}
static dtr_status run_allgatherv(float *base, int shift) {
    return dtr_allgatherv(th_group(), dtr_cpu(base + shift, 2, DTR_F32),
                          dtr_cpu(base, (size_t)(2 * th_size()), DTR_F32), counts, NULL, NULL);
}
static dtr_status run_reduce_scatter(float *base, int shift) {
    return dtr_reduce_scatter(th_group(), dtr_cpu(base, (size_t)(2 * th_size()), DTR_F32),
                              dtr_cpu(base + shift, 2, DTR_F32), DTR_SUM, NULL, NULL);
}
/* Away from the root nothing can overlap: what is to be refused is called with every rank as root.
 */
static int root_for(int shift) {
    return shift == 2 * th_rank() ? 0 : th_rank();
}
static dtr_buffer at_root(float *base, int root) {
    return root == th_rank() ? dtr_cpu(base, (size_t)(2 * th_size()), DTR_F32)
                             : dtr_cpu(NULL, 0, DTR_F32);
}
static dtr_status run_gather(float *base, int shift) {
    int root = root_for(shift);
    return dtr_gather(th_group(), dtr_cpu(base + shift, 2, DTR_F32), at_root(base, root), root,
                      NULL, NULL);
}
static dtr_status run_gatherv(float *base, int shift) {
    int root = root_for(shift);
    return dtr_gatherv(th_group(), dtr_cpu(base + shift, 2, DTR_F32), at_root(base, root), counts,
                       root, NULL, NULL);
}
static dtr_status run_scatter(float *base, int shift) {
    int root = root_for(shift);
    return dtr_scatter(th_group(), at_root(base, root), dtr_cpu(base + shift, 2, DTR_F32), root,
                       NULL, NULL);
}
static dtr_status run_scatterv(float *base, int shift) {
    int root = root_for(shift);
    return dtr_scatterv(th_group(), at_root(base, root), counts, dtr_cpu(base + shift, 2, DTR_F32),
                        root, NULL, NULL);
}

START_TEST(overlaps) {
    int own = 2 * th_rank();
    overlap(run_allreduce, 0);
    overlap(run_alltoall, 0);
    overlap(run_alltoallv, 0);
    overlap(run_allgather, own);
    overlap(run_allgatherv, own);
    overlap(run_reduce_scatter, own);
    overlap(run_gather, own);
    overlap(run_gatherv, own);
    overlap(run_scatter, own);
    overlap(run_scatterv, own);
}
END_TEST

/* ---- rows of equal small calls, which take the fast path ---- */

enum { ROW = 40, EACH = 3 };

static dtr_buffer f32s(float *x, size_t n) {
    return dtr_cpu(n > 0 ? x : NULL, n, DTR_F32);
}

/* Every block of the root is there, whichever way its own one went. */
START_TEST(rows_with_a_root) {
    float x[RANKS * EACH], own[EACH];
    size_t n = (size_t)th_size(), blocks[RANKS];
    for (size_t j = 0; j < n; j++) {
        blocks[j] = EACH;
    }
    for (int i = 0; i < ROW; i++) {
        const int root = i / 20 % th_size(), r = th_rank();
        const bool v = i / 10 % 2 == 1;
        float *mine = r == root ? &x[r * EACH] : own;
        size_t all = r == root ? n * EACH : 0;
        for (int k = 0; k < EACH; k++) {
            mine[k] = (float)(100 * i + r);
        }
        TH_IS(v ? dtr_gatherv(th_group(), f32s(mine, EACH), f32s(x, all), blocks, root, NULL, NULL)
                : dtr_gather(th_group(), f32s(mine, EACH), f32s(x, all), root, NULL, NULL),
              DTR_OK);
        for (size_t k = 0; k < all; k++) {
            TH_CHECK(x[k] == (float)(100 * i + (int)k / EACH), "gather %d: %g at %zu", i, x[k], k);
            x[k] += 1000;
        }
        TH_IS(v ? dtr_scatterv(th_group(), f32s(x, all), blocks, f32s(mine, EACH), root, NULL, NULL)
                : dtr_scatter(th_group(), f32s(x, all), f32s(mine, EACH), root, NULL, NULL),
              DTR_OK);
        for (int k = 0; k < EACH; k++) {
            TH_CHECK(mine[k] == (float)(1000 + 100 * i + r), "scatter %d: %g", i, mine[k]);
        }
        for (size_t k = 0; k < all; k++) {
            TH_CHECK(x[k] == (float)(1000 + 100 * i + (int)k / EACH), "scatter %d wrote %g at %zu",
                     i, x[k], k);
        }
    }
    TH_AGREE();
}
END_TEST

/* Elements from rank `from` to rank `to`; few pairs have as many both ways, so the own block moves.
 */
static size_t dealt(int i, int from, int to) {
    return (size_t)((from + 2 * to + i / ROW) % 4) * (i < 2 * ROW ? 1 : 100);
}

static float number(int i, int from, int to, size_t k) {
    return (float)(i + 7 * from + 11 * to) + (float)k / 512;
}

/* Sides of unlike length and layout in one memory, with and without a work. */
START_TEST(rows_of_alltoallv) {
    enum { MOST = RANKS * 300 };
    static float x[MOST];
    for (int i = 0; i < 4 * ROW; i++) {
        size_t to[RANKS], from[RANKS], n_to = 0, n_from = 0;
        const int r = th_rank();
        for (int j = 0; j < th_size(); j++) {
            to[j] = dealt(i, r, j);
            from[j] = dealt(i, j, r);
            for (size_t k = 0; k < to[j]; k++) {
                x[n_to++] = number(i, r, j, k);
            }
            n_from += from[j];
        }
        dtr_work *w = NULL;
        TH_IS(dtr_alltoallv(th_group(), f32s(x, n_to), to, f32s(x, n_from), from, NULL,
                            i % ROW > ROW / 2 ? &w : NULL),
              DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
        for (int j = 0, at = 0; j < th_size(); j++) {
            for (size_t k = 0; k < from[j]; k++, at++) {
                TH_CHECK(x[at] == number(i, j, r, k), "%d: element %zu from %d is %g, not %g", i, k,
                         j, x[at], number(i, j, r, k));
            }
        }
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "in_place", 60);
    th_add(tc, overlaps, 0, 0);
    th_add(tc, rows_with_a_root, 0, 0);
    th_add(tc, rows_of_alltoallv, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "in_place", make);
}
