/* Number formats and conversions: every pattern of the small formats, rounding against a slow
 * encoder, all pairs of types in every instruction set, scaling, the search for NaN. */
#include <stdlib.h>

#include "kernels_ref.h"

/* ---- the small formats ---- */

static float decode(dtr_dtype d, unsigned code) {
    switch (d) {
    case DTR_F8E4M3:
        return f8e4m3_decode((uint8_t)code);
    case DTR_F8E5M2:
        return f8e5m2_decode((uint8_t)code);
    case DTR_F16:
        return f16_decode((uint16_t)code);
    default:
        return bf16_decode((uint16_t)code);
    }
}

static unsigned encode(dtr_dtype d, float f) {
    switch (d) {
    case DTR_F8E4M3:
        return f8e4m3_encode(f);
    case DTR_F8E5M2:
        return f8e5m2_encode(f);
    case DTR_F16:
        return f16_encode(f);
    default:
        return bf16_encode(f);
    }
}

static bool same_code(const ref_format *f, unsigned a, unsigned b) {
    return a == b || (isnan(ref_decode(f, a)) && isnan(ref_decode(f, b)));
}

START_TEST(every_pattern) {
    for (int i = 0; i < REF_FORMATS; i++) {
        const ref_format *f = &ref_formats[i];
        for (unsigned code = 0; code < 2u << (f->E + f->M); code++) {
            const float got = decode(f->dtype, code);
            const double want = ref_decode(f, code);
            const bool sign = !signbit(got) == (code >> (f->E + f->M) == 0);
            ck_assert_msg((got == want && sign) || (isnan(got) && isnan(want)), "%s 0x%x: %g",
                          f->name, code, got);
            ck_assert_msg(same_code(f, encode(f->dtype, got), code), "%s 0x%x there and back",
                          f->name, code);
        }
    }
}
END_TEST

/* The same through the loops of every set. */
START_TEST(every_pattern_in_every_set) {
    static uint16_t codes[1 << 16], back[1 << 16];
    static float mid[1 << 16], wants[1 << 16];
    const dtr__kernel_set *sets[4];
    const int n_sets = ref_sets(sets);
    for (int i = 0; i < REF_FORMATS * n_sets; i++) {
        const ref_format *f = &ref_formats[i / n_sets];
        const dtr__kernel_set *set = sets[i % n_sets];
        const unsigned n = 2u << (f->E + f->M);
        for (unsigned code = 0; code < n; code++) {
            if (n == 256) {
                ((uint8_t *)codes)[code] = (uint8_t)code;
            } else {
                codes[code] = (uint16_t)code;
            }
        }
        dtr__convert_with(set, mid, DTR_F32, codes, f->dtype, n, 1, false);
        dtr__convert_with(set, back, f->dtype, mid, DTR_F32, n, 1, false);
        for (unsigned code = 0; code < n; code++) {
            wants[code] = decode(f->dtype, code);
            ck_assert_msg(ref_same(mid, wants, DTR_F32, code), "%s: %s 0x%x: %g", set->name,
                          f->name, code, mid[code]);
            ck_assert_msg(ref_same(back, codes, f->dtype, code), "%s: %s 0x%x there and back",
                          set->name, f->name, code);
        }
    }
}
END_TEST

/* Halfway between two neighbours of a format, exactly. */
static double midpoint(dtr_dtype d, unsigned random) {
    const ref_format *f = ref_format_of(d);
    const unsigned code = random % (f->top - 1);
    return ((double)decode(d, code) + (double)decode(d, code + 1)) / 2;
}

/* Numbers around every value and every tie of a format, and float32 patterns of all kinds. */
START_TEST(rounding_from_f32) {
    th_rng g = { 5 };
    for (int i = 0; i < REF_FORMATS; i++) {
        const ref_format *f = &ref_formats[i];
        for (unsigned n = 0; n < 100000; n++) {
            const uint32_t random = (uint32_t)(th_next(&g) >> 20);
            const float tie = (float)midpoint(f->dtype, random);
            uint32_t bits;
            memcpy(&bits, &tie, sizeof bits);
            bits = n % 2 == 0 ? random : bits + (random >> 16) % 3 - 1;
            float x;
            memcpy(&x, &bits, sizeof x);
            ck_assert_msg(same_code(f, encode(f->dtype, x), ref_encode(f, x)),
                          "%s of %a: 0x%x, not 0x%x", f->name, x, encode(f->dtype, x),
                          ref_encode(f, x));
        }
    }
}
END_TEST

/* The largest numbers and what lies above them. */
START_TEST(overflow) {
    ck_assert(f8e4m3_encode(464) == 0x7e && f8e4m3_encode(465) == 0x7f);
    ck_assert(f8e4m3_encode(-INFINITY) == 0xff && f8e4m3_encode(NAN) % 0x80 == 0x7f);
    ck_assert(f8e5m2_encode(61439) == 0x7b && f8e5m2_encode(61440) == 0x7c);
    ck_assert(f16_encode(65519) == 0x7bff && f16_encode(65520) == 0x7c00);
    ck_assert(bf16_encode(3.4e38F) == 0x7f80 && bf16_encode(-INFINITY) == 0xff80);
}
END_TEST

/* ---- all pairs ---- */

static int64_t truncated(double v, double low, double high) {
    v = isnan(v) ? 0 : v < low ? low : v > high ? high : trunc(v);
    return v >= 0x1p63 ? INT64_MAX : (int64_t)v;
}

/* One element that is no integer type's source; `re` has been scaled where it should be. */
static void store(char *out, dtr_dtype to, double re, double im) {
    const ref_format *f = ref_format_of(to);
    if (f != NULL) {
        const unsigned code = ref_encode(f, re);
        memcpy(out, &code, dtr_dtype_size(to)); /* little endian */
        return;
    }
    float single[2] = { (float)re, (float)im };
    double twice[2] = { re, im };
    int64_t v = 0;
    switch (to) {
    case DTR_BOOL:
        v = re != 0 || im != 0;
        break;
    case DTR_U8:
        v = truncated(re, 0, UINT8_MAX);
        break;
    case DTR_I8:
        v = truncated(re, INT8_MIN, INT8_MAX);
        break;
    case DTR_I16:
        v = truncated(re, INT16_MIN, INT16_MAX);
        break;
    case DTR_I32:
        v = truncated(re, INT32_MIN, INT32_MAX);
        break;
    case DTR_U16:
        v = truncated(re, 0, UINT16_MAX);
        break;
    case DTR_U32:
        v = truncated(re, 0, UINT32_MAX);
        break;
    case DTR_U64:
        v = (int64_t)(isnan(re) || re <= 0 ? 0 : re >= 0x1p64 ? UINT64_MAX : (uint64_t)re);
        break;
    case DTR_I64:
        v = truncated(re, -0x1p63, 0x1p63);
        break;
    case DTR_F32:
    case DTR_C64:
        memcpy(out, single, dtr_dtype_size(to));
        return;
    default:
        memcpy(out, twice, dtr_dtype_size(to));
        return;
    }
    memcpy(out, &v, dtr_dtype_size(to));
}

static bool is_whole(dtr_dtype d) {
    return d == DTR_BOOL || dtr__is_integer(d);
}

static bool at_most_f32(dtr_dtype d) {
    return d >= DTR_F8E4M3 && d <= DTR_F32;
}

/* `whole`: the bits are those of an unsigned number. */
static void store_int(char *out, dtr_dtype to, int64_t v, bool whole) {
    const ref_format *f = ref_format_of(to);
    const unsigned code = f != NULL ? ref_encode_int(f, v, whole) : 0;
    const float single[2] = { whole ? (float)(uint64_t)v : (float)v, 0 };
    const double twice[2] = { whole ? (double)(uint64_t)v : (double)v, 0 };
    v = to == DTR_BOOL ? v != 0 : v;
    const void *from = f != NULL                       ? (const void *)&code
                       : is_whole(to)                  ? (const void *)&v
                       : dtr__real_part(to) == DTR_F32 ? (const void *)single
                                                       : twice;
    memcpy(out, from, dtr_dtype_size(to)); /* little endian: integers wrap */
}

static void expect(char *out, dtr_dtype to, const char *src, dtr_dtype from, size_t k, bool scale,
                   double alpha) {
    double re = ref_get(src, from, k, false), im = 0;
    const bool complex = dtr__real_part(from) != from;
    if (complex && (to == DTR_BOOL || dtr__real_part(to) != to)) {
        im = ref_get(src, from, k, true);
    }
    if (scale && ((at_most_f32(from) && at_most_f32(to)) || (from == DTR_C64 && to == DTR_C64))) {
        re = (float)alpha * (float)re;
        im = (float)alpha * (float)im;
    } else if (scale) {
        re = alpha * re;
        im = complex ? alpha * im : 0;
    }
    if (!scale && from == to) {
        memcpy(out, src + k * dtr_dtype_size(from), dtr_dtype_size(from));
    } else if (!scale && is_whole(from)) {
        store_int(out, to, ref_int(src, from, k), from == DTR_U64);
    } else {
        store(out, to, re, im);
    }
}

/* Values that a conversion could get wrong, then random ones. */
static void fill_hard(void *dst, dtr_dtype d, size_t count, th_rng *g) {
    static const double hard[] = {
        0.0,    -0.0,   1,       -1,      0.5,     -0.75,    127.5,
        128,    255,    256,     -128.9,  -129,    32767.5,  32768,
        -32769, 0x1p31, -0x1p31, 0x1p63,  -0x1p63, 0x1.8p63, 1e300,
        -1e300, 1e-300, 0x1p-24, 0x1p-25, 464,     65520,    0x1.fffffep127
    };
    ref_fill(dst, d, count, true, g);
    const size_t n_hard = sizeof hard / sizeof hard[0];
    if (!is_whole(d)) {
        for (size_t k = 0; k < count && k < n_hard; k++) {
            store((char *)dst + k * dtr_dtype_size(d), d, hard[k], -hard[k]);
        }
    }
    for (size_t k = n_hard; d == DTR_F64 && k < count; k += 3) {
        /* A tie of a small format, moved by the last bit of a double: rounding twice would fail. */
        const double tie =
            midpoint(ref_formats[k % REF_FORMATS].dtype, (unsigned)(th_next(g) >> 40));
        const double moved = nextafter(tie, k % 4 < 2 ? INFINITY : -INFINITY);
        memcpy((char *)dst + k * sizeof moved, &moved, sizeof moved);
    }
    for (size_t k = 0; (d == DTR_I64 || d == DTR_U64) && k < count; k += 2) {
        const int64_t near_tie =
            (int64_t)(0x101ull << (8 + th_next(g) % 46)) + (int64_t)(th_next(g) % 3) - 1;
        memcpy((char *)dst + k * sizeof near_tie, &near_tie, sizeof near_tie);
    }
}

enum { COUNT = 1100 };

static void check_pair(dtr_dtype to, dtr_dtype from, bool scale, th_rng *g) {
    static char src[COUNT * 16 + 8], want[COUNT * 16], got[COUNT * 16 + 8];
    const double alpha = scale ? -0.3 : 1;
    const size_t from_size = dtr_dtype_size(from), to_size = dtr_dtype_size(to);
    const dtr__kernel_set *sets[4];
    const int n_sets = ref_sets(sets);
    fill_hard(src + 1, from, COUNT, g);
    for (size_t k = 0; k < COUNT; k++) {
        expect(want + k * to_size, to, src + 1, from, k, scale, alpha);
    }
    for (int s = 0; s < n_sets; s++) {
        for (size_t count = 0; count <= COUNT; count += count < 70 ? 1 : COUNT - 70) {
            for (int in_place = 0; in_place <= (from_size == to_size); in_place++) {
                memset(got, 0x5a, sizeof got);
                char *const dst = got + 3;
                memcpy(dst, src + 1, in_place ? count * from_size : 0);
                dtr__convert_with(sets[s], dst, to, in_place ? dst : src + 1, from, count, alpha,
                                  scale);
                size_t k = 0;
                while (k < count && ref_same(dst, want, to, k)) {
                    k++;
                }
                ck_assert_msg(k == count, "%s: %s to %s%s, count %zu: element %zu differs",
                              sets[s]->name, dtr_dtype_name(from), dtr_dtype_name(to),
                              scale ? ", scaled" : "", count, k);
                ck_assert_msg(got[2] == 0x5a && dst[count * to_size] == 0x5a,
                              "%s: %s to %s wrote beside %zu elements", sets[s]->name,
                              dtr_dtype_name(from), dtr_dtype_name(to), count);
            }
        }
    }
}

START_TEST(all_pairs) {
    th_rng g = { 9 };
    check_pair((dtr_dtype)(_i / TH_NUMBERS), (dtr_dtype)(_i % TH_NUMBERS), false, &g);
}
END_TEST

START_TEST(all_pairs_scaled) {
    th_rng g = { 10 };
    check_pair((dtr_dtype)(_i / TH_NUMBERS), (dtr_dtype)(_i % TH_NUMBERS), true, &g);
}
END_TEST

/* dtr__premul: the factor times the element, in place, both parts of a complex one. */
START_TEST(premul) {
    double pair[] = { 1, -2 };
    dtr__premul(pair, pair, 1, DTR_C128, 3);
    ck_assert(pair[0] == 3 && pair[1] == -6);
    uint16_t h = f16_encode(3);
    dtr__premul(&h, &h, 1, DTR_F16, 1.0 / 3);
    ck_assert(f16_decode(h) == 1);
}
END_TEST

/* ---- NaN ---- */

START_TEST(first_nan) {
    static char data[COUNT * 16];
    for (int t = 0; t < TH_NUMBERS; t++) {
        const dtr_dtype d = (dtr_dtype)t;
        const size_t size = dtr_dtype_size(d), parts = dtr__real_part(d) == d ? 1 : 2;
        memset(data, is_whole(d) ? 0xff : 0, sizeof data);
        store(data + 3 * size, d, INFINITY, -INFINITY);
        if (d == DTR_F8E4M3) {
            data[3] = 0x7e; /* its largest number: it has no infinity */
        }
        ck_assert_uint_eq(dtr__find_nan(data, COUNT, d), COUNT);
        for (size_t at = COUNT; !is_whole(d) && at > 0; at -= 550) {
            store(data + (at - 1) * size, d, parts == 2 ? 0 : NAN, -NAN);
            ck_assert_uint_eq(dtr__find_nan(data, COUNT, d), at - 1);
            ck_assert_uint_eq(dtr__find_nan(data, at - 1, d), at - 1);
        }
    }
}
END_TEST

void add_convert_tests(Suite *s) {
    TCase *tc = tcase_create("convert");
    tcase_add_test(tc, every_pattern);
    tcase_add_test(tc, every_pattern_in_every_set);
    tcase_add_test(tc, rounding_from_f32);
    tcase_add_test(tc, overflow);
    tcase_add_loop_test(tc, all_pairs, 0, TH_NUMBERS * TH_NUMBERS);
    tcase_add_loop_test(tc, all_pairs_scaled, 0, TH_NUMBERS * TH_NUMBERS);
    tcase_add_test(tc, premul);
    tcase_add_test(tc, first_nan);
    suite_add_tcase(s, tc);
}
