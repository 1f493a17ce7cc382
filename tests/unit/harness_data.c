/* The test data against closed forms: a generator that is wrong would make every other test prove
 * nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "harness.h"
#include "unit.h"

START_TEST(encoder_round_trips_every_pattern) {
    static const struct {
        dtr_dtype d;
        unsigned n;
    } small[] = {
        { DTR_F16, 65536 }, { DTR_BF16, 65536 }, { DTR_F8E4M3, 256 }, { DTR_F8E5M2, 256 }
    };
    for (size_t i = 0; i < 4; i++) {
        for (unsigned bits = 0; bits < small[i].n; bits++) {
            uint16_t in = (uint16_t)bits, out = 0;
            double v = th_get(&in, small[i].d, 0, false);
            th_set(&out, small[i].d, 0, v, 0);
            ck_assert_msg(isnan(v) || in == out, "%s %#x -> %g -> %#x", dtr_dtype_name(small[i].d),
                          in, v, out);
        }
    }
}
END_TEST

START_TEST(known_values) {
    uint16_t h = 0;
    th_set(&h, DTR_F16, 0, 1.0, 0);
    ck_assert_uint_eq(h, 0x3c00);
    th_set(&h, DTR_F16, 0, 65520.0, 0); /* rounds up past the largest */
    ck_assert_uint_eq(h, 0x7c00);
    th_set(&h, DTR_BF16, 0, 1.00390625, 0); /* half way: to even */
    ck_assert_uint_eq(h, 0x3f80);
    uint8_t b = 0;
    th_set(&b, DTR_F8E4M3, 0, -448.0, 0);
    ck_assert_uint_eq(b, 0xfe);
    th_set(&b, DTR_F8E5M2, 0, 0x1p-16, 0);
    ck_assert_uint_eq(b, 0x01);
}
END_TEST

START_TEST(arrays_are_their_elements) {
    enum { N = 150, FIRST = 5, W = 3 };
    for (int d = 0; d < TH_DTYPES; d++) {
        for (int o = 0; o < TH_OPS; o++) {
            dtr_dtype type = th_all_dtypes[d];
            dtr_op op = th_all_ops[o];
            unsigned char in[N * 16], want[N * 16], one[16];
            if (!dtr_op_supports(op, type)) {
                continue;
            }
            th_fill(in, type, op, FIRST, N, 1, W);
            th_expect(want, type, op, FIRST, N, W);
            for (size_t k = 0; k < N; k++) {
                size_t size = dtr_dtype_size(type);
                th_fill(one, type, op, FIRST + k, 1, 1, W);
                ck_assert_mem_eq(in + k * size, one, size);
                th_expect(one, type, op, FIRST + k, 1, W);
                ck_assert_mem_eq(want + k * size, one, size);
            }
        }
    }
}
END_TEST

START_TEST(the_first_difference_is_named) {
    enum { N = 1000 };
    float a[N] = { 0 }, b[N] = { 0 };
    ck_assert_uint_eq(th_differs(a, b, DTR_F32, N), N);
    a[999] = 1;
    ck_assert_uint_eq(th_differs(a, b, DTR_F32, N), 999);
    b[3] = -0.0F;
    ck_assert_uint_eq(th_differs(a, b, DTR_F32, N), 3);
    ck_assert_uint_eq(th_differs(a, b, DTR_F32, 0), 0);
}
END_TEST

START_TEST(sums_are_exact_in_any_order) {
    for (int W = 1; W <= 7; W++) {
        float want[64], part[64], sum[64] = { 0 };
        th_expect(want, DTR_F32, DTR_SUM, 0, 64, W);
        for (int r = W - 1; r >= 0; r--) {
            th_fill(part, DTR_F32, DTR_SUM, 0, 64, r, W);
            for (int k = 0; k < 64; k++) {
                sum[k] += part[k];
            }
        }
        ck_assert_uint_eq(th_differs(sum, want, DTR_F32, 64), 64);
    }
}
END_TEST

START_TEST(integer_average_truncates_toward_zero) {
    for (int W = 2; W <= 7; W++) {
        int8_t in[32], want[32];
        int sum[32] = { 0 };
        th_expect(want, DTR_I8, DTR_AVG, 0, 32, W);
        for (int r = 0; r < W; r++) {
            th_fill(in, DTR_I8, DTR_AVG, 0, 32, r, W);
            for (int k = 0; k < 32; k++) {
                sum[k] += in[k];
            }
        }
        for (int k = 0; k < 32; k++) {
            ck_assert_int_eq(want[k], (int8_t)sum[k] / W);
        }
    }
}
END_TEST

/* Number v in the exact range of a type. */
static double folded(dtr_dtype d, uint64_t v) {
    switch (d) {
    case DTR_BOOL:
        return (double)((v >> 2 ^ v) & 1);
    case DTR_F16:
    case DTR_BF16:
        return (double)(v % 127);
    case DTR_F8E4M3:
    case DTR_F8E5M2:
        return (double)(v % 7);
    case DTR_I8:
        return (double)(int8_t)v;
    case DTR_U8:
        return (double)(uint8_t)v;
    case DTR_I16:
        return (double)(int16_t)v;
    case DTR_U16:
        return (double)(uint16_t)v;
    default:
        return (double)v;
    }
}

START_TEST(blocks_count_on) { /* longer than where any type begins again */
    enum { COUNT = 70000, RANK = 3, BLOCK = 2 };
    for (int i = 0; i < TH_NUMBERS; i++) {
        const dtr_dtype d = th_all_dtypes[i];
        void *block = malloc(COUNT * dtr_dtype_size(d));
        th_fill_block(block, d, COUNT, RANK, BLOCK);
        for (size_t k = 0; k < COUNT; k++) {
            const double want = folded(d, 10000 * RANK + 100 * BLOCK + k);
            const double got = th_get(block, d, k, false);
            if (got != want || (d == DTR_C64 && th_get(block, d, k, true) != -want - 1)) {
                ck_abort_msg("%s: element %zu is %g, not %g", dtr_dtype_name(d), k, got, want);
            }
        }
        free(block);
    }
}
END_TEST

START_TEST(guards_see_a_stray_byte) {
    th_buf b = th_buf_new(10, DTR_F32, DTR_MEM_DEFAULT, 4);
    ck_assert(th_buf_ok(&b, true));
    ((unsigned char *)b.data)[3] = 0;
    ck_assert(th_buf_ok(&b, false) && !th_buf_ok(&b, true));
    ((unsigned char *)b.data)[b.nbytes] = 0;
    ck_assert(!th_buf_ok(&b, false));
    th_buf_free(&b);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("data");
    tcase_add_test(tc, encoder_round_trips_every_pattern);
    tcase_add_test(tc, known_values);
    tcase_add_test(tc, arrays_are_their_elements);
    tcase_add_test(tc, the_first_difference_is_named);
    tcase_add_test(tc, sums_are_exact_in_any_order);
    tcase_add_test(tc, integer_average_truncates_toward_zero);
    tcase_add_test(tc, blocks_count_on);
    tcase_add_test(tc, guards_see_a_stray_byte);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("harness data", make);
}
