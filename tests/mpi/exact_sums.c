/* Sums over the elements of all ranks: one array, dealt to groups of any number of ranks in any
 * shares and orders, gives the same bits, which are those of the exact sum. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "exact_ref.h"
#include "groups_common.h"

enum { COUNT = TH_SANITIZED ? 60000 : 1000000, MOST = 16 };

/* The whole array, the same on all ranks. Its condition number, the sum of magnitudes over that of
 * the sum, is about 10^digits: what is added is taken away again, shuffled, but for a little. */
static double *whole_array(int digits) {
    double *x = malloc(COUNT * sizeof *x);
    th_rng g = { 40 + (uint64_t)digits };
    for (size_t i = 0; i + 1 < COUNT; i += 2) {
        x[i] = (1 + th_uniform(&g)) * pow(10, digits * th_uniform(&g));
        x[i + 1] = -x[i] + (digits == 0 ? 2 * x[i] : ldexp(th_uniform(&g), -10));
    }
    for (size_t i = COUNT; i > 1; i--) {
        const size_t j = th_next(&g) % i;
        const double keep = x[i - 1];
        x[i - 1] = x[j];
        x[j] = keep;
    }
    return x;
}

/* Group rank r's share: in equal shares, in ever larger ones, all but nothing on the last, or every
 * n-th element; backwards on ranks of an even number. */
static size_t deal(const double *x, int way, int r, int n, double *own) {
    size_t count = 0;
    for (size_t i = 0; i < COUNT; i++) {
        const double at = (double)i / COUNT;
        const int to = way == 0   ? (int)(at * n)
                       : way == 1 ? (int)(sqrt(at) * n)
                       : way == 2 ? (i < 5 ? (int)i % n : 0)
                                  : (int)(i % (size_t)n);
        if (to == r) {
            own[count++] = x[i];
        }
    }
    for (size_t i = 0; r % 2 == 0 && i < count / 2; i++) {
        const double keep = own[i];
        own[i] = own[count - 1 - i];
        own[count - 1 - i] = keep;
    }
    return count;
}

static bool same(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* The first n ranks, the others none; every backend that serves them. */
static dtr_group *first(int n, const char *backend) {
    dtr_group_options o = options(0, NULL);
    dtr_group *g = NULL;
    o.backend = backend;
    TH_IS(dtr_group_split(th_group(), th_rank() < n ? 0 : DTR_COLOR_NONE, -th_rank(), &o, &g),
          DTR_OK);
    return g;
}

static void check_dealt(const double *x, double *own, dtr_group *g, int way, const double want[3],
                        int digits) {
    const int n = dtr_group_size(g);
    const size_t count = deal(x, way, dtr_group_rank(g), n, own);
    const dtr_buffer b = dtr_cpu(own, count, DTR_F64);
    double got[3] = { 0 };
    TH_IS(dtr_sum(g, b, NULL, &got[0]), DTR_OK);
    TH_IS(dtr_dot(g, b, b, NULL, &got[1]), DTR_OK);
    TH_IS(dtr_norm2(g, b, NULL, &got[2]), DTR_OK);
    for (int i = 0; i < 3; i++) {
        TH_CHECK(same(got[i], want[i]), "%s of 10^%d on %d ranks, shares %d: %a, want %a",
                 i == 0   ? "sum"
                 : i == 1 ? "dot"
                          : "norm",
                 digits, n, way, got[i], want[i]);
    }
}

START_TEST(any_number_of_ranks) {
    double *own = malloc(COUNT * sizeof *own);
    for (int digits = 0; digits <= 16; digits += 8) {
        double *x = whole_array(digits), want[3];
        want[0] = th_exact_sum(x, COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            own[i] = x[i] * x[i];
        }
        want[1] = th_exact_sum(own, COUNT);
        want[2] = sqrt(want[1]);
        for (int n = 1; n <= th_size(); n++) {
            dtr_group *g = first(n, NULL);
            for (int way = 0; g != NULL && way < 4; way++) {
                check_dealt(x, own, g, way, want, digits);
            }
            TH_AGREE();
            TH_IS(g != NULL ? dtr_group_destroy(g) : DTR_OK, DTR_OK);
            TH_AGREE();
        }
        free(x);
    }
    free(own);
}
END_TEST

START_TEST(any_backend) {
    static const char *const backends[] = { "cpu:mpi", "cpu:shm", "cpu:hier" };
    const int nodes = dtr_world_node_count(th_world());
    const bool serves[] = { true, nodes == 1 && th_size() > 1, nodes > 1 && nodes < th_size() };
    double *own = malloc(COUNT * sizeof *own), *x = whole_array(16), want[3];
    want[0] = th_exact_sum(x, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        own[i] = x[i] * x[i];
    }
    want[1] = th_exact_sum(own, COUNT);
    want[2] = sqrt(want[1]);
    for (int i = 0; i < 3; i++) {
        if (serves[i]) {
            dtr_group *g = first(th_size(), backends[i]);
            TH_AGREE();
            check_dealt(x, own, g, i, want, 16);
            TH_AGREE();
            TH_OK(dtr_group_destroy(g));
        }
    }
    free(x);
    free(own);
}
END_TEST

/* Element i of all is on rank i % n. */
static void check_values(const double *x, size_t count, double sum, double norm) {
    double own[8] = { 0 }, got[2] = { 7, 7 };
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if ((int)(i % (size_t)th_size()) == th_rank()) {
            own[n++] = x[i];
        }
    }
    TH_IS(dtr_sum(th_group(), dtr_cpu(n > 0 ? own : NULL, n, DTR_F64), NULL, &got[0]), DTR_OK);
    TH_IS(dtr_norm2(th_group(), dtr_cpu(own, n, DTR_F64), NULL, &got[1]), DTR_OK);
    TH_CHECK(same(got[0], sum), "the sum of %zu from %a on is %a, want %a", count, x[0], got[0],
             sum);
    TH_CHECK(same(got[1], norm), "the norm of %zu from %a on is %a, want %a", count, x[0], got[1],
             norm);
    TH_AGREE();
}

START_TEST(values_at_the_ends) {
    const double huge = 0x1p1020, tiny = 0x1p-1070;
    check_values((double[]){ 0 }, 0, 0.0, 0.0);
    check_values((double[]){ -0.0, -0.0 }, 2, -0.0, 0.0);
    check_values((double[]){ 3 * huge, 4 * huge, -7 * huge }, 3, 0.0, sqrt(74) * huge);
    check_values((double[]){ 0x1p1023, 0x1p1023 }, 2, INFINITY, sqrt(2) * 0x1p1023);
    check_values((double[]){ 0x1p1023, 0x1p1023, 0x1p1023, -0x1p1023 }, 4, INFINITY, INFINITY);
    check_values((double[]){ 3 * tiny, 4 * tiny }, 2, 7 * tiny, 5 * tiny);
    check_values((double[]){ 0x3p-600, -0x4p-600 }, 2, -0x1p-600, 0x5p-600);
    check_values((double[]){ 0x3p600, 0x4p600, 1 }, 3, 0x7p600, 0x5p600);
    check_values((double[]){ 1, -INFINITY }, 2, -INFINITY, INFINITY);
    check_values((double[]){ INFINITY, 1, -INFINITY }, 3, NAN, INFINITY);
    check_values((double[]){ 1, NAN, huge }, 3, NAN, NAN);
    check_values((double[]){ INFINITY, NAN }, 2, NAN, NAN);
}
END_TEST

/* Other types are made doubles, exactly; ranks may have other types, and other counts. */
START_TEST(any_type) {
    static const dtr_dtype types[] = { DTR_F8E5M2, DTR_F16, DTR_BF16, DTR_F32, DTR_F64 };
    const size_t n = 1030;
    double x[1030 * 2], sum = 0, dot = 0;
    for (int r = 0; r < th_size(); r++) {
        for (size_t k = 0; k < n; k++) {
            const double v = ldexp((double)((int)(k % 7) - 2), r % 3);
            sum += v;
            dot += v * v;
            if (r == th_rank()) {
                th_set(x, types[r % 5], k, v, 0);
            }
        }
    }
    double got[3] = { 0 };
    const dtr_buffer b = dtr_cpu(x, n, types[th_rank() % 5]);
    TH_IS(dtr_sum(th_group(), b, NULL, &got[0]), DTR_OK);
    TH_IS(dtr_dot(th_group(), b, b, NULL, &got[1]), DTR_OK);
    TH_IS(dtr_norm2(th_group(), b, NULL, &got[2]), DTR_OK);
    TH_CHECK(got[0] == sum && got[1] == dot && got[2] == sqrt(dot), "%g %g %g, want %g %g", got[0],
             got[1], got[2], sum, dot);
    TH_AGREE();
    const float complex_numbers[4] = { 1, -2, 3, 4 };
    TH_IS(dtr_norm2(th_group(), dtr_cpu((void *)complex_numbers, 2, DTR_C64), NULL, &got[2]),
          DTR_OK);
    TH_CHECK(got[2] == sqrt(30.0 * th_size()), "complex: %a", got[2]);
    TH_AGREE();
}
END_TEST

/* What is refused leaves output and group as they are. */
START_TEST(refusals) {
    double x[3] = { 1, 2, 3 }, out = 77;
    int whole[2] = { 1, 2 };
    dtr_group *g = th_group();
    const dtr_buffer b = dtr_cpu(x, 3, DTR_F64);
    dtr_buffer device = b;
    const uint64_t seq = dtr_group_seq(g);
    device.device.type = DTR_CUDA;
    TH_IS(dtr_sum(g, dtr_cpu(NULL, 3, DTR_F64), NULL, &out), DTR_ERR_ARG);
    TH_MESSAGE("dtr_sum on group");
    TH_MESSAGE("in.data is NULL and in.count 3");
    TH_IS(dtr_sum(g, b, NULL, NULL), DTR_ERR_ARG);
    TH_MESSAGE("out is NULL");
    TH_IS(dtr_sum(g, dtr_cpu(whole, 2, DTR_I32), NULL, &out), DTR_ERR_DTYPE);
    TH_MESSAGE("in.dtype is i32");
    TH_IS(dtr_dot(g, b, dtr_cpu(x, 1, DTR_C128), NULL, &out), DTR_ERR_DTYPE);
    TH_MESSAGE("b.dtype is c128");
    TH_IS(dtr_dot(g, b, dtr_cpu(x, 2, DTR_F64), NULL, &out), DTR_ERR_SHAPE);
    TH_MESSAGE("a.count is 3 and b.count 2");
    TH_IS(dtr_norm2(g, device, NULL, &out), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("in is on a device");
    TH_IS(dtr_norm2(g, dtr_cpu(x, SIZE_MAX / 8, DTR_F64), NULL, &out), DTR_ERR_OVERFLOW);
    TH_IS(dtr_sum(NULL, b, NULL, &out), DTR_NOT_MEMBER);
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_sum(g, b, NULL, &out), DTR_ERR_STATE);
    TH_IS(dtr_coalesce_end(g, NULL), DTR_ERR_STATE);
    TH_CHECK(out == 77 && dtr_group_seq(g) == seq, "something was done");
    TH_AGREE();
    th_good_allreduce(g);
}
END_TEST

/* Ranks that call different sums learn of it. */
START_TEST(another_sum) {
    double x = 1, out = 77;
    const dtr_buffer b = dtr_cpu(&x, 1, DTR_F64);
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
    TH_IS(th_rank() == 0 ? dtr_sum(g, b, NULL, &out) : dtr_norm2(g, b, NULL, &out),
          DTR_ERR_MISMATCH);
    TH_CHECK(out == 77, "output written");
    TH_AGREE();
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "exact_sums", 240);
    th_add(tc, any_number_of_ranks, 1, MOST);
    th_add(tc, any_backend, 1, MOST);
    th_add(tc, values_at_the_ends, 1, MOST);
    th_add(tc, any_type, 1, MOST);
    th_add(tc, refusals, 1, MOST);
    th_add(tc, another_sum, 2, MOST);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "exact_sums", make);
}
