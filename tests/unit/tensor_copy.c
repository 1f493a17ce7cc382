/* Copies between all types and any strides, and the elementwise operations, against slow oracles.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/tensor.h>

#include "core/tensor_internal.h"
#include "data.h"
#include "tensor_unit.h"

enum { MEMORY = 4096 }; /* elements of the memory under a random view */

/* A random strided view of guarded memory. */
typedef struct view {
    unsigned char *memory;
    dtr_tensor *t;
} view;

static int pick(th_rng *g, int n) {
    return (int)(th_next(g) >> 33) % n;
}

static void free_memory(void *data, void *arg) {
    (void)data;
    free(arg);
}

/* shape: 1 to 4 dimensions, at most 7 each; strides: a random order of the dimensions with gaps. */
static view random_view(th_rng *g, dtr_dtype d, int ndim, const int64_t *shape) {
    view v;
    int order[4] = { 0, 1, 2, 3 };
    int64_t strides[4] = { 0 }, step = 1 + pick(g, 2), last = 0;
    v.memory = malloc(MEMORY * dtr_dtype_size(d));
    memset(v.memory, 0xA5, MEMORY * dtr_dtype_size(d));
    for (int i = ndim - 1; i > 0; i--) {
        int j = pick(g, i + 1), k = order[i];
        order[i] = order[j];
        order[j] = k;
    }
    bool plain = pick(g, 4) == 0;
    for (int i = 0; i < ndim; i++) {
        int dim = plain ? ndim - 1 - i : order[i];
        strides[dim] = plain && i == 0 ? (step = 1) : step;
        last += strides[dim] * (shape[dim] - 1);
        step = step * shape[dim] + (plain ? 0 : pick(g, 2));
    }
    ck_assert(last < MEMORY);
    unsigned char *first = v.memory;
    for (int dim = 0; dim < ndim; dim++) {
        if (pick(g, 5) == 0) { /* backwards, which only imported tensors can be */
            first += strides[dim] * (shape[dim] - 1) * (int64_t)dtr_dtype_size(d);
            strides[dim] = -strides[dim];
        }
    }
    dtr_device cpu = { DTR_CPU, 0 };
    IS(dtr__tensor_wrap(first, d, cpu, ndim, shape, strides, free_memory, v.memory, &v.t), DTR_OK);
    return v;
}

/* Index in its memory of element k in row-major order. */
static size_t place(const view *v, size_t k) {
    const dtr_tensor *t = v->t;
    int64_t offset = ((unsigned char *)dtr_tensor_data(t) - v->memory) /
                     (int64_t)dtr_dtype_size(dtr_tensor_dtype(t));
    for (int d = dtr_tensor_ndim(t) - 1; d >= 0; d--) {
        size_t size = (size_t)dtr_tensor_shape(t)[d];
        offset += (int64_t)(k % size) * dtr_tensor_strides(t)[d];
        k /= size;
    }
    return (size_t)offset;
}

static int random_shape(th_rng *g, int64_t *shape) {
    int ndim = 1 + pick(g, 4);
    for (int d = 0; d < ndim; d++) {
        shape[d] = 1 + pick(g, ndim == 1 ? 700 : ndim == 2 ? 40 : 6);
    }
    return ndim;
}

static bool is_complex(dtr_dtype d) {
    return d == DTR_C64 || d == DTR_C128;
}

static bool is_integer(dtr_dtype d) {
    return (d >= DTR_U8 && d <= DTR_I64) || (d >= DTR_U16 && d <= DTR_U64);
}

/* What copying value (re, im) of type `from` into type `to` must store. */
static void store(void *array, dtr_dtype to, size_t k, dtr_dtype from, double re, double im) {
    static const double low[] = {
        [DTR_U8] = 0,  [DTR_I8] = -128, [DTR_I16] = -32768, [DTR_I32] = -2147483648.0,
        [DTR_U16] = 0, [DTR_U32] = 0,   [DTR_U64] = 0
    };
    static const double high[] = {
        [DTR_U8] = 255,    [DTR_I8] = 127,           [DTR_I16] = 32767, [DTR_I32] = 2147483647,
        [DTR_U16] = 65535, [DTR_U32] = 4294967295.0, [DTR_U64] = 0x1p63
    };
    if (to == DTR_BOOL) {
        ((uint8_t *)array)[k] = re != 0 || im != 0;
    } else if (is_integer(to) && (is_integer(from) || from == DTR_BOOL)) {
        int64_t v = (int64_t)re;
        memcpy((char *)array + k * dtr_dtype_size(to), &v, dtr_dtype_size(to));
    } else if (is_integer(to)) {
        double v = trunc(re);
        if (to != DTR_I64) {
            v = fmin(fmax(v, low[to]), high[to]);
        }
        th_set(array, to, k, v, 0);
    } else {
        th_set(array, to, k, re, im);
    }
}

static void set_random(const view *v, th_rng *g) {
    const dtr_tensor *t = v->t;
    static const double values[] = {
        0, 1, -1, 2, 3, -3, 0.5, -1.5, 2.75, 100, -100, 127, 200, 240
    };
    for (size_t k = 0; k < dtr_tensor_numel(t); k++) {
        double re = values[pick(g, 14)], im = values[pick(g, 14)];
        if (dtr_tensor_dtype(t) == DTR_BOOL) {
            re = re != 0;
        } else if (dtr_tensor_dtype(t) == DTR_U8 || dtr_tensor_dtype(t) >= DTR_U16) {
            re = fabs(trunc(re));
        } else if (dtr_tensor_dtype(t) == DTR_I8) {
            re = fmin(trunc(re), 127);
        } else if (is_integer(dtr_tensor_dtype(t))) {
            re = trunc(re) * (dtr_tensor_dtype(t) == DTR_I16 ? 100 : 1000);
        }
        th_set(v->memory, dtr_tensor_dtype(t), place(v, k), re, im);
    }
}

static void copy_and_compare(th_rng *g, dtr_dtype to, dtr_dtype from) {
    int64_t shape[4];
    int ndim = random_shape(g, shape);
    view src = random_view(g, from, ndim, shape), dst = random_view(g, to, ndim, shape);
    set_random(&src, g);
    size_t bytes = MEMORY * dtr_dtype_size(to);
    unsigned char *want = malloc(bytes);
    memcpy(want, dst.memory, bytes);
    for (size_t k = 0; k < dtr_tensor_numel(src.t); k++) {
        size_t p = place(&src, k);
        store(want, to, place(&dst, k), from, th_get(src.memory, from, p, false),
              is_complex(from) ? th_get(src.memory, from, p, true) : 0);
    }
    IS(dtr_tensor_copy(dst.t, src.t, NULL), DTR_OK);
    size_t bad = 0;
    while (bad < bytes && dst.memory[bad] == want[bad]) { /* elements right, gaps untouched */
        bad++;
    }
    ck_assert_msg(bad == bytes, "%s to %s, byte %zu: %02x, not %02x", dtr_dtype_name(from),
                  dtr_dtype_name(to), bad, dst.memory[bad], want[bad]);
    free(want);
    dtr_tensor_release(src.t);
    dtr_tensor_release(dst.t);
}

START_TEST(copies_between_all_types_and_strides) {
    th_rng g = { 7 };
    for (int i = 0; i < TH_NUMBERS; i++) {
        for (int j = 0; j < TH_NUMBERS; j++) {
            for (int round = 0; round < 12; round++) {
                copy_and_compare(&g, th_all_dtypes[i], th_all_dtypes[j]);
            }
        }
    }
}
END_TEST

START_TEST(large_transposed_copy) {
    enum { ROWS = 301, COLS = 517 };
    int32_t *data = malloc(sizeof(int32_t) * ROWS * COLS);
    for (int i = 0; i < ROWS * COLS; i++) {
        data[i] = i;
    }
    dtr_tensor *t = NULL, *x = NULL, *c = NULL;
    IS(dtr_tensor_from_buffer(dtr_cpu(data, ROWS * COLS, DTR_I32), 2, SHAPE(ROWS, COLS), NULL, NULL,
                              NULL, &t),
       DTR_OK);
    IS(dtr_tensor_transpose(t, 0, 1, &x), DTR_OK);
    IS(dtr_tensor_clone(x, &c), DTR_OK);
    const int32_t *out = dtr_tensor_data(c);
    int right = 0;
    for (int i = 0; i < ROWS * COLS; i++) {
        right += out[i] == (i % ROWS) * COLS + i / ROWS;
    }
    ck_assert_int_eq(right, ROWS * COLS);
    dtr_tensor_release(c);
    dtr_tensor_release(x);
    dtr_tensor_release(t);
    free(data);
}
END_TEST

START_TEST(copy_refuses_what_it_must) {
    float data[16] = { 0 };
    dtr_tensor *a = NULL, *b = NULL, *same = NULL;
    dtr_buffer buf = dtr_cpu(data, 16, DTR_F32);
    IS(dtr_tensor_from_buffer(buf, 2, SHAPE(2, 3), NULL, NULL, NULL, &a), DTR_OK);
    IS(dtr_tensor_from_buffer(buf, 2, SHAPE(3, 2), NULL, NULL, NULL, &b), DTR_OK);
    IS(dtr_tensor_copy(a, b, NULL), DTR_ERR_SHAPE);
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "[3, 2]"));
    IS(dtr_tensor_axpy(a, 1, b, NULL), DTR_ERR_SHAPE);
    dtr_tensor_release(b);
    IS(dtr_tensor_from_buffer(buf, 2, SHAPE(2, 3), SHAPE(0, 1), NULL, NULL, &same), DTR_OK);
    IS(dtr_tensor_copy(same, a, NULL), DTR_ERR_LAYOUT);
    IS(dtr_tensor_fill(same, 1, NULL), DTR_ERR_LAYOUT);
    IS(dtr_tensor_scale(same, 1, NULL), DTR_ERR_LAYOUT);
    IS(dtr_tensor_axpy(same, 1, a, NULL), DTR_ERR_LAYOUT);
    IS(dtr_tensor_axpy(same, 1, NULL, NULL), DTR_ERR_ARG); /* pointers before layout */
    data[1] = 5;
    IS(dtr_tensor_copy(a, same, NULL), DTR_OK); /* reading it is fine: a row, repeated */
    ck_assert(data[1] == 5 && data[4] == 5);
    dtr_tensor_release(same);
    dtr_tensor_release(a);
}
END_TEST

START_TEST(overlapping_copies_read_before_they_write) {
    float data[9];
    dtr_tensor *all = NULL, *x = NULL, *lo = NULL, *hi = NULL;
    for (int i = 0; i < 9; i++) {
        data[i] = (float)i;
    }
    IS(dtr_tensor_from_buffer(dtr_cpu(data, 9, DTR_F32), 2, SHAPE(3, 3), NULL, NULL, NULL, &all),
       DTR_OK);
    IS(dtr_tensor_transpose(all, 0, 1, &x), DTR_OK);
    IS(dtr_tensor_copy(all, x, NULL), DTR_OK);
    for (int i = 0; i < 9; i++) {
        ck_assert(data[i] == (float)(i % 3 * 3 + i / 3));
        data[i] = (float)i;
    }
    IS(dtr_tensor_narrow(all, 0, 0, 2, &lo), DTR_OK);
    IS(dtr_tensor_narrow(all, 0, 1, 2, &hi), DTR_OK);
    IS(dtr_tensor_copy(hi, lo, NULL), DTR_OK);
    for (int i = 0; i < 9; i++) {
        ck_assert(data[i] == (float)(i < 3 ? i : i - 3));
        data[i] = (float)i;
    }
    IS(dtr_tensor_axpy(hi, 1, lo, NULL), DTR_OK);
    for (int i = 3; i < 9; i++) {
        ck_assert(data[i] == (float)(i + i - 3));
    }
    IS(dtr_tensor_copy(all, all, NULL), DTR_OK);
    IS(dtr_tensor_axpy(all, -1, all, NULL), DTR_OK);
    ck_assert(data[0] == 0 && data[8] == 0);
    dtr_tensor_release(hi);
    dtr_tensor_release(lo);
    dtr_tensor_release(x);
    dtr_tensor_release(all);
}
END_TEST

/* fill, scale and axpy over every type and random strides; small integers are exact everywhere. */
static void arithmetic(th_rng *g, dtr_dtype d) {
    int64_t shape[4];
    int ndim = random_shape(g, shape);
    view y = random_view(g, d, ndim, shape), x = random_view(g, d, ndim, shape);
    size_t bytes = MEMORY * dtr_dtype_size(d), n = dtr_tensor_numel(y.t);
    unsigned char *want = malloc(bytes);
    memcpy(want, y.memory, bytes);
    IS(dtr_tensor_fill(y.t, 2, NULL), DTR_OK);
    IS(dtr_tensor_scale(y.t, 1.5, NULL), DTR_OK);
    for (size_t k = 0; k < n; k++) {
        th_set(x.memory, d, place(&x, k), (double)(k % 3), 1);
        th_set(want, d, place(&y, k), 3 + 2.0 * (double)(k % 3), 2);
    }
    IS(dtr_tensor_axpy(y.t, 2, x.t, NULL), DTR_OK);
    ck_assert_msg(memcmp(y.memory, want, bytes) == 0, "%s", dtr_dtype_name(d));
    double norm = 0, sum = 0;
    IS(dtr_tensor_norm(y.t, NULL, &norm), DTR_OK);
    for (size_t k = 0; k < n; k++) {
        double re = 3 + 2.0 * (double)(k % 3);
        sum += re * re + (is_complex(d) ? 4 : 0);
    }
    ck_assert_msg(fabs(norm - sqrt(sum)) <= 1e-14 * norm, "%s: %.17g", dtr_dtype_name(d), norm);
    free(want);
    dtr_tensor_release(y.t);
    dtr_tensor_release(x.t);
}

START_TEST(arithmetic_over_types_and_strides) {
    th_rng g = { 11 };
    for (int i = 0; i < TH_NUMBERS; i++) {
        for (int round = 0; round < 12 && th_all_dtypes[i] != DTR_BOOL; round++) {
            arithmetic(&g, th_all_dtypes[i]);
        }
    }
}
END_TEST

static dtr_tensor *vector(void *data, size_t n, dtr_dtype d) {
    dtr_tensor *t = NULL;
    IS(dtr_tensor_from_buffer(dtr_cpu(data, n, d), 1, SHAPE((int64_t)n), NULL, NULL, NULL, &t),
       DTR_OK);
    return t;
}

/* They move, and nothing is computed with them; messages name the type. */
START_TEST(pairs_are_no_numbers) {
    dtr_f64_index pairs[4] = { { 1, 5 }, { 2, 6 }, { 3, 7 }, { 4, 8 } }, copied[4] = { { 0, 0 } };
    double numbers[4] = { 0 }, norm = 7;
    dtr_tensor *p = vector(pairs, 4, DTR_F64_INDEX), *q = vector(copied, 4, DTR_F64_INDEX);
    dtr_tensor *x = vector(numbers, 4, DTR_F64), *part = NULL, *same = NULL;
    const struct {
        dtr_status is;
        const char *word;
    } refused[] = { { dtr_tensor_fill(p, 1, NULL), "filled" },
                    { dtr_tensor_scale(p, 2, NULL), "scaled" },
                    { dtr_tensor_axpy(p, 1, p, NULL), "added to" },
                    { dtr_tensor_axpy(x, 1, p, NULL), "added" },
                    { dtr_tensor_norm(p, NULL, &norm), "norm" },
                    { dtr_tensor_copy(x, p, NULL), "converted" },
                    { dtr_tensor_copy(p, x, NULL), "other elements" } };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        ck_assert_msg(refused[i].is == DTR_ERR_DTYPE, "%s: %s", refused[i].word,
                      dtr_status_name(refused[i].is));
    }
    MESSAGE("f64_index");
    ck_assert(norm == 7 && numbers[0] == 0 && pairs[0].value == 1 && pairs[0].index == 5);
    IS(dtr_tensor_copy(q, p, NULL), DTR_OK);
    ck_assert_int_eq(memcmp(copied, pairs, sizeof pairs), 0);
    IS(dtr_tensor_narrow(p, 0, 2, 1, &part), DTR_OK);
    IS(dtr_tensor_clone(part, &same), DTR_OK);
    ck_assert(((const dtr_f64_index *)dtr_tensor_data(same))->index == 7);
    dtr_tensor_release(same);
    dtr_tensor_release(part);
    dtr_tensor_release(x);
    dtr_tensor_release(q);
    dtr_tensor_release(p);
}
END_TEST

START_TEST(arithmetic_at_the_edges) {
    int64_t big[2] = { INT64_MAX - 1, INT64_MIN };
    dtr_tensor *t = vector(big, 2, DTR_I64);
    IS(dtr_tensor_scale(t, 1, NULL), DTR_OK);
    ck_assert(big[0] == INT64_MAX - 1 && big[1] == INT64_MIN);
    IS(dtr_tensor_axpy(t, 2, t, NULL), DTR_OK);
    ck_assert(big[0] == INT64_MAX && big[1] == INT64_MIN);
    dtr_tensor_release(t);
    uint64_t whole[2] = { UINT64_MAX - 1, INT64_MAX };
    t = vector(whole, 2, DTR_U64);
    IS(dtr_tensor_scale(t, 1, NULL), DTR_OK);
    ck_assert(whole[0] == UINT64_MAX - 1 && whole[1] == INT64_MAX);
    dtr_tensor *s = vector(big, 2, DTR_I64); /* INT64_MAX and INT64_MIN */
    IS(dtr_tensor_axpy(t, 1, s, NULL), DTR_OK);
    ck_assert(whole[0] == UINT64_MAX && whole[1] == 0);
    IS(dtr_tensor_axpy(s, -1, t, NULL), DTR_OK);
    ck_assert(big[0] == INT64_MIN && big[1] == INT64_MIN);
    dtr_tensor_release(s);
    dtr_tensor_release(t);
    uint8_t small[2] = { 200, 3 };
    t = vector(small, 2, DTR_U8);
    IS(dtr_tensor_scale(t, 2.5, NULL), DTR_OK);
    ck_assert(small[0] == 255 && small[1] == 7);
    IS(dtr_tensor_fill(t, -1, NULL), DTR_OK);
    ck_assert(small[0] == 0);
    dtr_tensor *b = vector(small, 2, DTR_BOOL);
    float f[2] = { 1, 2 };
    dtr_tensor *ft = vector(f, 2, DTR_F32);
    IS(dtr_tensor_scale(b, 2, NULL), DTR_ERR_DTYPE);
    IS(dtr_tensor_axpy(b, 2, b, NULL), DTR_ERR_DTYPE);
    IS(dtr_tensor_axpy(t, 2, ft, NULL), DTR_ERR_DTYPE);
    IS(dtr_tensor_fill(b, 0.25, NULL), DTR_OK);
    ck_assert(small[0] == 1 && small[1] == 1);
    double wide[2] = { 1, 1e-9 };
    dtr_tensor *dt = vector(wide, 2, DTR_F64);
    IS(dtr_tensor_axpy(dt, 0.1, ft, NULL), DTR_OK); /* computed in float64 */
    ck_assert(wide[0] == 1 + 0.1 && wide[1] == 1e-9 + 0.1 * 2);
    dtr_tensor_release(dt);
    dtr_tensor_release(ft);
    dtr_tensor_release(b);
    dtr_tensor_release(t);
}
END_TEST

START_TEST(norms_beyond_the_range_of_squares) {
    static const double cases[][3] = { /* two elements, norm */
                                       { 3e200, 4e200, 5e200 },
                                       { 3e-200, 4e-200, 5e-200 },
                                       { 3e-322, 4e-322, 5e-322 },
                                       { 1.2e308, 0.9e308, 1.5e308 },
                                       { 0, 0, 0 },
                                       { INFINITY, 1, INFINITY },
                                       { -INFINITY, 1, INFINITY }
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double data[2] = { cases[i][0], cases[i][1] }, norm = -1;
        dtr_tensor *t = vector(data, 2, DTR_F64);
        IS(dtr_tensor_norm(t, NULL, &norm), DTR_OK);
        ck_assert_msg(norm == cases[i][2] ||
                          fabs(norm - cases[i][2]) <= 1e-15 * cases[i][2] + 5e-324,
                      "case %zu: %.17g", i, norm);
        data[0] = NAN;
        IS(dtr_tensor_norm(t, NULL, &norm), DTR_OK);
        ck_assert(isnan(norm));
        dtr_tensor_release(t);
    }
    enum { N = 1 << 20 };
    float *ones = malloc(N * sizeof(float));
    dtr_tensor *t = vector(ones, N, DTR_F32);
    double norm = 0;
    IS(dtr_tensor_fill(t, 0.1, NULL), DTR_OK);
    IS(dtr_tensor_norm(t, NULL, &norm), DTR_OK);
    ck_assert(fabs(norm - 1024 * (double)0.1f) < 1e-12);
    dtr_tensor_release(t);
    free(ones);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("copy");
    tcase_add_test(tc, copies_between_all_types_and_strides);
    tcase_add_test(tc, large_transposed_copy);
    tcase_add_test(tc, copy_refuses_what_it_must);
    tcase_add_test(tc, overlapping_copies_read_before_they_write);
    tcase_add_test(tc, arithmetic_over_types_and_strides);
    tcase_add_test(tc, arithmetic_at_the_edges);
    tcase_add_test(tc, pairs_are_no_numbers);
    tcase_add_test(tc, norms_beyond_the_range_of_squares);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("tensor_copy", make);
}
