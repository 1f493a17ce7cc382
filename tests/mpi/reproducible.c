/* Reproducible groups: sums have the same bits in any order of ranks, on every backend and node
 * layout, however they are called; and they are the exact sums, rounded once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "exact_ref.h"
#include "groups_common.h"
#include "kernels/exact.h"

enum { COUNT = 1003, MANY = 30000, MOST = 16 };

/* What the ranks of all orders add: rank r's element k, the same on every rank. */
static double number(size_t k, int r) {
    th_rng g = { 77 * (uint64_t)(r + 1) + 1000003 * (uint64_t)k };
    (void)th_next(&g);
    const int spread = k % 7 == 0 ? 100 : 12; /* some sums cancel, some have small parts */
    const double x = ldexp(2 * th_uniform(&g) - 1, (int)(th_next(&g) % (uint64_t)spread));
    return k % 11 == 0 && r > 0 && r == th_size() - 1 ? -number(k, 0) : x;
}

static double factor(int r) {
    return 0.3 + r;
}

/* Element k of the result, for the types that these tests take. */
static void expected(void *to, size_t at, dtr_dtype d, dtr_op op, size_t k) {
    double x[MOST];
    const int n = th_size();
    for (int r = 0; r < n; r++) {
        th_set(to, d, at, number(k, r), 0); /* rounded as the input is */
        x[r] = th_get(to, d, at, false);
        if (op == DTR_PREMUL_SUM) {
            const double scaled =
                d == DTR_F64 ? factor(r) * x[r] : (double)((float)factor(r) * (float)x[r]);
            th_set(to, d, at, scaled, 0);
            x[r] = th_get(to, d, at, false);
        }
    }
    if (d == DTR_F64) {
        const double sum = th_exact_sum(x, (size_t)n);
        th_set(to, d, at, op == DTR_AVG ? sum / n : sum, 0);
        return;
    }
    dtr__exact_sum sum = { { 0 }, 0, 0, 0, 0, 0, 0 };
    dtr__exact_add(&sum, x, (size_t)n);
    const double odd = dtr__exact_value_odd(&sum);
    th_set(to, d, at, op == DTR_AVG ? odd / n : odd, 0);
}

typedef struct data {
    th_buf in, out, want;
    size_t count;
    dtr_dtype d;
    dtr_op op;
} data;

static data make_data(size_t count, dtr_dtype d, dtr_op op, dtr_mem kind) {
    data x = { th_buf_new(count, d, kind, 0),
               th_buf_new(count, d, kind, 0),
               th_buf_new(count, d, DTR_MEM_DEFAULT, 0),
               count,
               d,
               op };
    for (size_t k = 0; k < count; k++) {
        th_set(x.in.data, d, k, number(k, th_rank()), 0);
        expected(x.want.data, k, d, op, k);
    }
    return x;
}

static void free_data(data *x) {
    th_buf_free(&x->in);
    th_buf_free(&x->out);
    th_buf_free(&x->want);
}

static void compare(const data *x, const void *got, size_t first, size_t count, const char *what) {
    const size_t size = dtr_dtype_size(x->d);
    const char *want = (const char *)x->want.data + first * size;
    const size_t at = th_differs(got, want, x->d, count);
    TH_CHECK(at == count, "%s of %zu %s, operator %d: element %zu is %a, the exact sum %a", what,
             x->count, dtr_dtype_name(x->d), x->op, first + at,
             at < count ? th_get(got, x->d, at, false) : 0,
             at < count ? th_get(want, x->d, at, false) : 0);
}

/* Every way to call for the sums of `x`. The group may have its ranks in another order than the
 * world. */
static void check(dtr_group *g, data *x, int repeats) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    const size_t size = dtr_dtype_size(x->d), block = x->count / (size_t)dtr_group_size(g);
    const size_t own = block * (size_t)dtr_group_rank(g);
    const int last = dtr_group_size(g) - 1;
    dtr_buffer in = dtr_cpu(x->in.data, x->count, x->d), out = dtr_cpu(x->out.data, x->count, x->d);
    o.premul = x->op == DTR_PREMUL_SUM ? factor(th_rank()) : 0;
    for (int i = 0; i < repeats; i++) {
        memset(x->out.data, 0, x->count * size);
        TH_IS(dtr_allreduce(g, in, out, x->op, &o, NULL), DTR_OK);
        compare(x, x->out.data, 0, x->count, "allreduce");
    }
    memset(x->out.data, 0, x->count * size);
    TH_IS(dtr_allreduce(g, in, out, x->op, &o, &w), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    compare(x, x->out.data, 0, x->count, "allreduce with a work");
    TH_IS(dtr_reduce(g, in, out, x->op, last, &o, NULL), DTR_OK);
    compare(x, x->out.data, 0, dtr_group_rank(g) == last ? x->count : 0, "reduce");
    in.count = block * (size_t)dtr_group_size(g);
    out.count = block;
    TH_IS(dtr_reduce_scatter(g, in, out, x->op, &o, NULL), DTR_OK);
    compare(x, x->out.data, own, block, "reduce_scatter");
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    dtr_buffer one = dtr_cpu(x->in.data, 1, x->d), two = dtr_cpu(x->out.data, 1, x->d);
    for (size_t k = 0; k < 3 && k < x->count; k++) {
        one.data = (char *)x->in.data + k * size;
        two.data = (char *)x->out.data + k * size;
        TH_IS(dtr_allreduce(g, one, two, x->op, &o, NULL), DTR_OK);
    }
    TH_IS(dtr_coalesce_end(g, NULL), DTR_OK);
    compare(x, x->out.data, 0, x->count < 3 ? x->count : 3, "allreduces of a scope");
}

static void check_all(dtr_group *g) {
    static const dtr_dtype types[] = { DTR_F64, DTR_F32, DTR_BF16 };
    static const dtr_op ops[] = { DTR_SUM, DTR_AVG, DTR_PREMUL_SUM };
    for (int i = 0; i < 9; i++) {
        data x = make_data(COUNT, types[i % 3], ops[i / 3], DTR_MEM_DEFAULT);
        check(g, &x, 2);
        free_data(&x);
        x = make_data((size_t)th_size(), types[i % 3], ops[i / 3], DTR_MEM_DEFAULT); /* fast path */
        check(g, &x, 6);
        free_data(&x);
    }
    const dtr_mem kinds[] = { DTR_MEM_DEFAULT, DTR_MEM_SHARED };
    for (int i = 0; i < 2; i++) {
        data x = make_data(MANY / (TH_SANITIZED ? 8 : 1), DTR_F32, DTR_SUM, kinds[i]);
        check(g, &x, 2);
        free_data(&x);
    }
}

/* Group rank i is world rank i, the last but i, or the i-th of the even ones and then the others.
 */
static int ordered(int order, int i) {
    const int n = th_size(), even = (n + 1) / 2;
    return order == 0 ? i : order == 1 ? n - 1 - i : i < even ? 2 * i : 2 * (i - even) + 1;
}

/* Several ranks of one node are for shm, nodes of several ranks for hier. */
static bool serves(const char *backend) {
    const int nodes = dtr_world_node_count(th_world());
    return strcmp(backend, "cpu:shm") == 0    ? nodes == 1 && th_size() > 1
           : strcmp(backend, "cpu:hier") == 0 ? nodes > 1 && nodes < th_size()
                                              : true;
}

START_TEST(any_order_of_ranks) {
    static const char *const backends[] = { "cpu:auto", "cpu:mpi", "cpu:shm", "cpu:hier" };
    for (int i = 0; i < 12; i++) {
        dtr_group_options o = options(0, NULL);
        dtr_group *g = NULL;
        int ranks[MOST];
        for (int r = 0; r < th_size(); r++) {
            ranks[r] = ordered(i % 3, r);
        }
        o.backend = backends[i / 3];
        o.reproducible = true;
        dtr_status s = dtr_group_create(th_world(), ranks, th_size(), &o, &g);
        TH_CHECK(s == (serves(o.backend) ? DTR_OK : DTR_ERR_UNSUPPORTED), "%s gave %s: %s",
                 o.backend, dtr_status_name(s), dtr_last_error_message());
        TH_AGREE();
        if (s == DTR_OK) {
            check_all(g);
        }
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

/* Of whole numbers, and what is no sum, as on any group. */
START_TEST(what_is_no_sum_of_floats) {
    dtr_group_options o = options(0, NULL);
    dtr_group *g = NULL;
    o.reproducible = true;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), &o, &g));
    th_good_allreduce(g);
    double x = th_rank() + 1, most = 0;
    TH_OK(
        dtr_allreduce(g, dtr_cpu(&x, 1, DTR_F64), dtr_cpu(&most, 1, DTR_F64), DTR_MAX, NULL, NULL));
    TH_ALL(most == th_size(), "the largest is %g", most);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "reproducible", 240);
    th_add(tc, any_order_of_ranks, 1, MOST);
    th_add(tc, what_is_no_sum_of_floats, 1, MOST);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "reproducible", make);
}
