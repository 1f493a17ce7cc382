/* Collectives on tensors: values over layouts, roots and both forms of call, gaps untouched. */
#include <stdlib.h>
#include <string.h>

#include "tensor_views.h"

static int W, r;

static const dtr_dtype dtypes[] = { DTR_I64, DTR_F32, DTR_C128, DTR_BF16 };
enum { N_DTYPES = 4, SIDES = N_LAYOUTS * N_LAYOUTS * 2 };

/* Every pair of layouts (COL38), blocking and not; the dtype goes round. */
typedef struct variant {
    layout in, out;
    bool async;
    dtr_dtype dtype;
} variant;

static variant variant_of(int i) {
    return (variant){ (layout)(i % N_LAYOUTS), (layout)(i / N_LAYOUTS % N_LAYOUTS),
                      i / (N_LAYOUTS * N_LAYOUTS) == 1, dtypes[i % N_DTYPES] };
}

static void check_values(const view *v, size_t first, size_t n, double (*want)(int k), int base) {
    for (size_t k = 0; k < n; k++) {
        double got = view_get(v, first + k), expect = want(base + (int)k);
        TH_CHECK(got == expect, "element %zu: %g, not %g", first + k, got, expect);
    }
}

static double identity(int k) {
    return k;
}

/* ---- one tensor ---- */

START_TEST(broadcast_every_root) {
    for (int i = 0; i < SIDES; i++) {
        variant o = variant_of(i);
        for (int root = 0; root < W; root++) {
            view v = view_new(o.dtype, o.in, 2, SHAPE(3, 4));
            for (size_t k = 0; k < 12; k++) {
                view_set(&v, k, (double)k + 20 * r);
            }
            view before = v;
            before.memory = malloc(v.nbytes);
            memcpy(before.memory, v.memory, v.nbytes);
            RUN(o.async, DTR_OK, dtr_tensor_broadcast(th_group(), v.t, root, NULL, work));
            check_values(&v, 0, 12, identity, 20 * root);
            TH_CHECK(view_gaps_ok(&v, false), "gaps written");
            TH_CHECK(r != root || memcmp(before.memory, v.memory, v.nbytes) == 0, "root changed");
            free(before.memory);
            view_free(&v);
            TH_AGREE();
        }
    }
}
END_TEST

START_TEST(reduce_and_allreduce) {
    for (int i = 0; i < SIDES; i++) {
        variant o = variant_of(i);
        for (int root = -1; root < W; root++) { /* -1: allreduce */
            view v = view_new(o.dtype, o.in, 3, SHAPE(2, 3, 2));
            for (size_t k = 0; k < 12; k++) {
                view_set(&v, k, (double)k + r);
            }
            if (root < 0) {
                RUN(o.async, DTR_OK, dtr_tensor_allreduce(th_group(), v.t, DTR_SUM, NULL, work));
            } else {
                RUN(o.async, DTR_OK, dtr_tensor_reduce(th_group(), v.t, DTR_SUM, root, NULL, work));
            }
            bool reduced = root < 0 || root == r;
            for (size_t k = 0; k < 12; k++) {
                double want = reduced ? (double)(W * (int)k + W * (W - 1) / 2) : (double)k + r;
                TH_CHECK(view_get(&v, k) == want, "root %d: element %zu: %g, not %g", root, k,
                         view_get(&v, k), want);
            }
            TH_CHECK(view_gaps_ok(&v, false), "gaps written");
            view_free(&v);
            TH_AGREE();
        }
    }
}
END_TEST

START_TEST(send_and_receive_in_a_ring) {
    for (int i = 0; i < SIDES; i++) {
        variant o = variant_of(i);
        view in = view_new(o.dtype, o.in, 2, SHAPE(3, 2));
        view out = view_new(o.dtype, o.out, 2, SHAPE(2, 3));
        dtr_work *send = NULL, *recv = NULL;
        for (size_t k = 0; k < 6; k++) {
            view_set(&in, k, (double)k + 10 * r);
        }
        int from = (r + W - 1) % W;
        TH_IS(dtr_tensor_recv(th_group(), out.t, o.async ? DTR_ANY_SOURCE : from, 5, NULL, &recv),
              DTR_OK);
        TH_IS(dtr_tensor_send(th_group(), in.t, (r + 1) % W, 5, NULL, &send), DTR_OK);
        TH_IS(dtr_work_wait(send, -1), DTR_OK);
        TH_IS(dtr_work_wait(recv, -1), DTR_OK);
        TH_CHECK(dtr_work_source(recv) == from, "source %d", dtr_work_source(recv));
        dtr_work_release(send);
        dtr_work_release(recv);
        check_values(&out, 0, 6, identity, 10 * from);
        TH_CHECK(view_gaps_ok(&out, false), "gaps written");
        view_free(&in);
        view_free(&out);
        TH_AGREE();
    }
}
END_TEST

/* ---- blocks of one tensor ---- */

/* T22, T28: also with the tensors that are one column of a two-column array, n elements each. */
START_TEST(allgather_and_gather) {
    for (int i = 0; i < SIDES; i++) {
        variant o = variant_of(i);
        for (int root = -1; root < W; root++) {
            for (int n = 1; n <= 3; n++) {
                bool stacked = n == 2;
                view in = view_new(o.dtype, o.in, 2, SHAPE(n, 3));
                view out = stacked ? view_new(o.dtype, o.out, 3, SHAPE(W, n, 3))
                                   : view_new(o.dtype, o.out, 2, SHAPE(W * n, 3));
                for (int k = 0; k < 3 * n; k++) {
                    view_set(&in, (size_t)k, 3 * n * r + k);
                }
                if (root < 0) {
                    RUN(o.async, DTR_OK, dtr_tensor_allgather(th_group(), in.t, out.t, NULL, work));
                } else {
                    RUN(o.async, DTR_OK,
                        dtr_tensor_gather(th_group(), in.t, r == root ? out.t : NULL, root, NULL,
                                          work));
                }
                bool filled = root < 0 || root == r;
                check_values(&out, 0, filled ? (size_t)(3 * n * W) : 0, identity, 0);
                TH_CHECK(view_gaps_ok(&out, !filled), "gaps written");
                view_free(&in);
                view_free(&out);
                TH_AGREE();
            }
        }
    }
}
END_TEST

START_TEST(scatter_and_reduce_scatter) {
    for (int i = 0; i < SIDES; i++) {
        variant o = variant_of(i);
        for (int root = -1; root < W; root++) {
            view in = view_new(o.dtype, o.in, 2, SHAPE(2 * W, 2));
            view out = view_new(o.dtype, o.out, 2, SHAPE(2, 2));
            for (int k = 0; k < 4 * W; k++) {
                view_set(&in, (size_t)k, k + (root < 0 ? r : 0));
            }
            if (root < 0) {
                RUN(o.async, DTR_OK,
                    dtr_tensor_reduce_scatter(th_group(), in.t, out.t, DTR_SUM, NULL, work));
            } else {
                RUN(o.async, DTR_OK,
                    dtr_tensor_scatter(th_group(), r == root ? in.t : NULL, out.t, root, NULL,
                                       work));
            }
            for (int k = 0; k < 4; k++) {
                double want = root < 0 ? W * (4 * r + k) + W * (W - 1) / 2 : 4 * r + k;
                TH_CHECK(view_get(&out, (size_t)k) == want, "root %d, element %d: %g, not %g", root,
                         k, view_get(&out, (size_t)k), want);
            }
            TH_CHECK(view_gaps_ok(&out, false), "gaps written");
            view_free(&in);
            view_free(&out);
            TH_AGREE();
        }
    }
}
END_TEST

START_TEST(alltoall_equal_parts) {
    for (int i = 0; i < SIDES; i++) {
        variant o = variant_of(i);
        view in = view_new(o.dtype, o.in, 2, SHAPE(2 * W, 3));
        view out = view_new(o.dtype, o.out, 2, SHAPE(2 * W, 3));
        for (int k = 0; k < 6 * W; k++) {
            view_set(&in, (size_t)k, 6 * r + k % 6 + (k / 6 == r ? 50 : 0));
        }
        RUN(o.async, DTR_OK, dtr_tensor_alltoall(th_group(), in.t, out.t, NULL, work));
        for (int k = 0; k < 6 * W; k++) {
            double want = k + (k / 6 == r ? 50 : 0);
            TH_CHECK(view_get(&out, (size_t)k) == want, "element %d: %g, not %g", k,
                     view_get(&out, (size_t)k), want);
        }
        TH_CHECK(view_gaps_ok(&out, false), "gaps written");
        view_free(&in);
        view_free(&out);
        TH_AGREE();
    }
}
END_TEST

/* COL28: counts are rows of dimension 0. Rank i sends (i + 2 j) mod 4 rows of 3 to rank j; one run
 * in three splits the 8 rows of its input evenly instead (COL31). */
START_TEST(alltoallv_counts_rows) {
    size_t to[16], from[16], rows_in = 0, rows_out = 0;
    for (int j = 0; j < W; j++) {
        rows_in += to[j] = (size_t)((r + 2 * j) % 4);
        rows_out += from[j] = (size_t)((j + 2 * r) % 4);
    }
    for (int i = 0; i < SIDES; i++) {
        variant o = variant_of(i);
        bool even = i % 3 == 2 && 8 % W == 0;
        size_t eight[16];
        int64_t a = even ? 8 : (int64_t)rows_in, b = even ? 8 : (int64_t)rows_out;
        view in = view_new(o.dtype, o.in, 2, SHAPE(a, 3));
        view out = view_new(o.dtype, o.out, 2, SHAPE(b, 3));
        int at = 0;
        for (int j = 0; j < W; j++) {
            eight[j] = 8 / (size_t)W;
            int n = 3 * (int)(even ? eight[j] : to[j]);
            for (int k = 0; k < n; k++) {
                view_set(&in, (size_t)at++, 10 * r + 3 * j + k);
            }
        }
        RUN(o.async, DTR_OK,
            dtr_tensor_alltoallv(th_group(), in.t, even ? NULL : to, out.t, even ? eight : from,
                                 NULL, work));
        at = 0;
        for (int j = 0; j < W; j++) {
            size_t n = 3 * (even ? eight[j] : from[j]);
            check_values(&out, (size_t)at, n, identity, 10 * j + 3 * r);
            at += (int)n;
        }
        TH_CHECK(view_gaps_ok(&out, false), "gaps written");
        view_free(&in);
        view_free(&out);
        TH_AGREE();
    }
}
END_TEST

/* ---- lists ---- */

static int64_t list_rows(int j) {
    return (3 * j + 1) % 5;
}

/* COL11, COL24, COL34: sizes differ, some are empty; every entry has a layout of its own. */
static void lists_once(variant o, int root) {
    view big[16], small = view_new(o.dtype, o.in, 2, SHAPE(list_rows(r), 2));
    dtr_tensor *list[16];
    size_t mine = dtr_tensor_numel(small.t);
    for (int j = 0; j < W; j++) {
        big[j] = view_new(o.dtype, (layout)((o.out + j) % N_LAYOUTS), 2, SHAPE(list_rows(j), 2));
        list[j] = big[j].t;
    }
    for (size_t k = 0; k < mine; k++) {
        view_set(&small, k, (double)k + 3 * r);
    }
    if (root < 0) {
        RUN(o.async, DTR_OK, dtr_tensor_allgather_list(th_group(), small.t, list, NULL, work));
    } else {
        RUN(o.async, DTR_OK,
            dtr_tensor_gather_list(th_group(), small.t, r == root ? list : NULL, root, NULL, work));
    }
    bool filled = root < 0 || root == r;
    for (int j = 0; j < W; j++) {
        check_values(&big[j], 0, filled ? dtr_tensor_numel(list[j]) : 0, identity, 3 * j);
        TH_CHECK(view_gaps_ok(&big[j], !filled), "gaps of %d written", j);
        for (size_t k = 0; k < dtr_tensor_numel(list[j]); k++) {
            view_set(&big[j], k, (double)k + 3 * j);
        }
    }
    TH_AGREE();
    if (root < 0) {
        RUN(o.async, DTR_OK,
            dtr_tensor_reduce_scatter_list(th_group(), list, small.t, DTR_SUM, NULL, work));
    } else {
        RUN(o.async, DTR_OK,
            dtr_tensor_scatter_list(th_group(), r == root ? list : NULL, small.t, root, NULL,
                                    work));
    }
    for (size_t k = 0; k < mine; k++) {
        double want = ((double)k + 3 * r) * (root < 0 ? W : 1);
        TH_CHECK(view_get(&small, k) == want, "element %zu: %g, not %g", k, view_get(&small, k),
                 want);
    }
    TH_CHECK(view_gaps_ok(&small, false), "gaps written");
    for (int j = 0; j < W; j++) {
        view_free(&big[j]);
    }
    view_free(&small);
    TH_AGREE();
}

START_TEST(lists_of_different_sizes) {
    for (int i = 0; i < SIDES; i++) {
        for (int root = -1; root < W; root++) {
            lists_once(variant_of(i), root);
        }
    }
}
END_TEST

START_TEST(alltoall_of_lists) {
    for (int i = 0; i < SIDES; i++) {
        variant o = variant_of(i);
        view in[16], out[16];
        dtr_tensor *ins[16], *outs[16];
        for (int j = 0; j < W; j++) {
            in[j] = view_new(o.dtype, (layout)((o.in + j) % N_LAYOUTS), 1, SHAPE((r + 2 * j) % 4));
            out[j] =
                view_new(o.dtype, (layout)((o.out + j) % N_LAYOUTS), 2, SHAPE((j + 2 * r) % 4, 1));
            ins[j] = in[j].t;
            outs[j] = out[j].t;
            for (size_t k = 0; k < dtr_tensor_numel(ins[j]); k++) {
                view_set(&in[j], k, 10 * r + 3 * j + (double)k);
            }
        }
        RUN(o.async, DTR_OK, dtr_tensor_alltoall_list(th_group(), ins, outs, NULL, work));
        for (int j = 0; j < W; j++) {
            check_values(&out[j], 0, dtr_tensor_numel(outs[j]), identity, 10 * j + 3 * r);
            TH_CHECK(view_gaps_ok(&out[j], false), "gaps of %d written", j);
            view_free(&in[j]);
            view_free(&out[j]);
        }
        TH_AGREE();
    }
}
END_TEST

/* T21, second half: shapes 5x5, 10x10, 15x15 with random rank-dependent data. */
START_TEST(allgather_of_larger_shapes) {
    for (int n = 5; n <= 15; n += 5) {
        size_t each = (size_t)(n * n);
        float *in = malloc(each * 4), *out = malloc(each * 4 * (size_t)W), *want = malloc(each * 4);
        dtr_tensor *a = NULL, *b = NULL;
        th_rng g = { 40 + (uint64_t)r };
        th_random_floats(in, DTR_F32, each, &g, -10, 10);
        TH_IS(dtr_tensor_from_buffer(dtr_cpu(in, each, DTR_F32), 2, SHAPE(n, n), NULL, NULL, NULL,
                                     &a),
              DTR_OK);
        TH_IS(dtr_tensor_from_buffer(dtr_cpu(out, each * (size_t)W, DTR_F32), 2, SHAPE(n * W, n),
                                     NULL, NULL, NULL, &b),
              DTR_OK);
        RUN(n == 10, DTR_OK, dtr_tensor_allgather(th_group(), a, b, NULL, work));
        for (int j = 0; j < W; j++) {
            g = (th_rng){ 40 + (uint64_t)j };
            th_random_floats(want, DTR_F32, each, &g, -10, 10);
            TH_CHECK(memcmp(want, out + each * (size_t)j, each * 4) == 0, "block %d", j);
        }
        dtr_tensor_release(a);
        dtr_tensor_release(b);
        free(in);
        free(out);
        free(want);
        TH_AGREE();
    }
}
END_TEST

/* ---- many at once ---- */

START_TEST(many_strided_works_outstanding) {
    enum { N = 300 };
    view v[N];
    dtr_work *works[N];
    for (int i = 0; i < N; i++) {
        v[i] = view_new(DTR_I64, (layout)(i % N_LAYOUTS), 1, SHAPE(2));
        view_set(&v[i], 0, i + r);
        view_set(&v[i], 1, -i);
        TH_IS(dtr_tensor_allreduce(th_group(), v[i].t, DTR_SUM, NULL, &works[i]), DTR_OK);
    }
    for (int i = N - 1; i >= 0; i--) {
        TH_IS(dtr_work_wait(works[i], -1), DTR_OK);
        dtr_work_release(works[i]);
    }
    for (int i = 0; i < N; i++) {
        TH_CHECK(view_get(&v[i], 0) == W * i + W * (W - 1) / 2 && view_get(&v[i], 1) == -i * W,
                 "work %d", i);
        TH_CHECK(view_gaps_ok(&v[i], false), "gaps of %d written", i);
        view_free(&v[i]);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    W = th_size();
    r = th_rank();
    TCase *tc = th_case(s, "tensor_coll", 60);
    th_add(tc, broadcast_every_root, 1, 0);
    th_add(tc, reduce_and_allreduce, 1, 0);
    th_add(tc, send_and_receive_in_a_ring, 1, 0);
    th_add(tc, allgather_and_gather, 1, 0);
    th_add(tc, scatter_and_reduce_scatter, 1, 0);
    th_add(tc, alltoall_equal_parts, 1, 0);
    th_add(tc, alltoallv_counts_rows, 1, 0);
    th_add(tc, lists_of_different_sizes, 1, 0);
    th_add(tc, alltoall_of_lists, 1, 0);
    th_add(tc, allgather_of_larger_shapes, 1, 0);
    th_add(tc, many_strided_works_outstanding, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "tensor_coll", make);
}
