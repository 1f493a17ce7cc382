/* Reduction kernels: legality, meaning of every operator against plain loops, and every instruction
 * set of this CPU bit by bit against the scalar one. */
#include <stdlib.h>

#include "harness.h"
#include "kernels_ref.h"
#include "unit.h"

enum { MAX_N = 7, MAX_COUNT = 1025, MARGIN = 64, MAX_NBYTES = MAX_COUNT * 16 + 3 * MARGIN };

/* ---- legality ---- */

/* ENU8, COL42, COL44: + is legal; operators in the order of dtr_op. */
START_TEST(legal_pairs) {
    static const char *const table[TH_DTYPES] = {
        [DTR_BOOL] = "+-++++++-+++--",      [DTR_U8] = "++++++++-+++--",
        [DTR_I8] = "++++++++-+++--",        [DTR_I16] = "++++++++-+++--",
        [DTR_I32] = "++++++++-+++--",       [DTR_I64] = "++++++++-+++--",
        [DTR_F8E4M3] = "+++++---------",    [DTR_F8E5M2] = "+++++---------",
        [DTR_F16] = "+++++---+-----",       [DTR_BF16] = "+++++---+-----",
        [DTR_F32] = "+++++---+-----",       [DTR_F64] = "+++++---+-----",
        [DTR_C64] = "++------+-----",       [DTR_C128] = "++------+-----",
        [DTR_U16] = "++++++++-+++--",       [DTR_U32] = "++++++++-+++--",
        [DTR_U64] = "++++++++-+++--",       [DTR_F32_INDEX] = "------------++",
        [DTR_F64_INDEX] = "------------++", [DTR_I64_INDEX] = "------------++",
    };
    for (int d = 0; d < TH_DTYPES; d++) {
        for (int op = 0; op < TH_OPS; op++) {
            ck_assert_msg(dtr_op_supports((dtr_op)op, (dtr_dtype)d) == (table[d][op] == '+'),
                          "operator %d on %s", op, dtr_dtype_name((dtr_dtype)d));
        }
    }
    ck_assert(!dtr_op_supports((dtr_op)TH_OPS, DTR_F32) && !dtr_op_supports((dtr_op)-1, DTR_F32));
    ck_assert(!dtr_op_supports(DTR_SUM, (dtr_dtype)TH_DTYPES) &&
              !dtr_op_supports(DTR_SUM, (dtr_dtype)-1));
}
END_TEST

/* ---- meaning ---- */

/* One step of an integer operator in 64 bits, without signs if `whole`; the caller cuts the result
 * to the type. */
static int64_t int_step(dtr_op op, bool whole, int64_t a, int64_t b) {
    const bool below = whole ? (uint64_t)b < (uint64_t)a : b < a;
    switch (op) {
    case DTR_PROD:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case DTR_MIN:
        return below ? b : a;
    case DTR_MAX:
        return below ? a : b;
    case DTR_BAND:
        return a & b;
    case DTR_BOR:
        return a | b;
    case DTR_BXOR:
        return a ^ b;
    case DTR_LAND:
        return a != 0 && b != 0;
    case DTR_LOR:
        return a != 0 || b != 0;
    case DTR_LXOR:
        return (a != 0) != (b != 0);
    default:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    }
}

static int64_t cut(dtr_dtype d, int64_t v) {
    switch (d) {
    case DTR_BOOL:
        return v != 0;
    case DTR_U8:
        return (uint8_t)v;
    case DTR_I8:
        return (int8_t)v;
    case DTR_I16:
        return (int16_t)v;
    case DTR_I32:
        return (int32_t)v;
    case DTR_U16:
        return (uint16_t)v;
    case DTR_U32:
        return (uint32_t)v;
    default:
        return v;
    }
}

#define FLOAT_STEP(C)                                          \
    static C step_##C(dtr_op op, C a, C b) {                   \
        switch (op) {                                          \
        case DTR_PROD:                                         \
            return a * b;                                      \
        case DTR_MIN:                                          \
            return isnan(a) || isnan(b) ? NAN : b < a ? b : a; \
        case DTR_MAX:                                          \
            return isnan(a) || isnan(b) ? NAN : b > a ? b : a; \
        default:                                               \
            return a + b;                                      \
        }                                                      \
    }
FLOAT_STEP(float)
FLOAT_STEP(double)

/* COL43, COL44, COL45, COL49, ENU17: element k (part: imaginary or not) of the result, in rank
 * order, written at `out`. */
static void expect_part(char *out, const dtr__reduce_job *job, dtr_dtype d, size_t k, bool part) {
    const dtr_dtype real = dtr__real_part(d);
    const ref_format *f = ref_format_of(d);
    if (d == DTR_BOOL || dtr__is_integer(d)) {
        int64_t v = ref_int(job->src[0], d, k);
        v = dtr__is_logical(job->op) ? v != 0 : v;
        for (int i = 1; i < job->n; i++) {
            v = cut(d, int_step(job->op, dtr__is_unsigned(d), v, ref_int(job->src[i], d, k)));
        }
        if (job->op == DTR_AVG) {
            v = ref_divide(d, v, job->divisor);
        }
        memcpy(out, &v, dtr_dtype_size(d)); /* little endian */
    } else if (real == DTR_F64) {
        double v = 0;
        for (int i = 0; i < job->n; i++) {
            double x = ref_get(job->src[i], d, k, part);
            x = job->op == DTR_PREMUL_SUM ? job->factors[i] * x : x;
            v = i == 0 ? x : step_double(job->op, v, x);
        }
        v = job->op == DTR_AVG ? v / job->divisor : v;
        memcpy(out, &v, sizeof v);
    } else {
        float v = 0;
        for (int i = 0; i < job->n; i++) {
            float x = (float)ref_get(job->src[i], d, k, part);
            x = job->op == DTR_PREMUL_SUM ? (float)job->factors[i] * x : x;
            v = i == 0 ? x : step_float(job->op, v, x);
        }
        v = job->op == DTR_AVG ? v / (float)job->divisor : v;
        const unsigned code = f != NULL ? ref_encode(f, v) : 0;
        memcpy(out, f != NULL ? (const void *)&code : &v, dtr_dtype_size(real));
    }
}

typedef struct arena {
    char *src[MAX_N], *keep[MAX_N], *dst[3], *want;
} arena;

static void arena_make(arena *a) {
    for (int i = 0; i < MAX_N; i++) {
        a->src[i] = malloc(MAX_NBYTES);
        a->keep[i] = malloc(MAX_NBYTES);
    }
    for (int i = 0; i < 3; i++) {
        a->dst[i] = aligned_alloc(64, (MAX_NBYTES + 63) / 64 * 64); /* may be written past caches */
    }
    a->want = malloc(MAX_NBYTES);
}

static void arena_free(arena *a) {
    for (int i = 0; i < MAX_N; i++) {
        free(a->src[i]);
        free(a->keep[i]);
    }
    for (int i = 0; i < 3; i++) {
        free(a->dst[i]);
    }
    free(a->want);
}

static const double factors[MAX_N] = { 1, -0.5, 3.1, 1e-3, 0, 2, 7 };

/* One call, as every set does it against the plain loop. Addresses are `shift` bytes and more off;
 * `in_place` is the source that is the first destination too, or -1. */
static void compare(arena *a, dtr_dtype d, dtr_op op, int n, size_t count, size_t shift,
                    int in_place, int n_dst) {
    const void *src[MAX_N];
    void *dst[3];
    for (int i = 0; i < MAX_N; i++) {
        src[i] = a->src[i] + MARGIN + (shift * (size_t)(i + 1)) % 16;
    }
    for (int j = 0; j < 3; j++) {
        dst[j] = a->dst[j] + MARGIN + (shift * (size_t)(j + 3)) % 16;
    }
    if (in_place >= 0) {
        dst[0] = a->src[in_place] + MARGIN + (shift * (size_t)(in_place + 1)) % 16;
    }
    const dtr__reduce_job job = { dst, n_dst, src, n, op, n, factors, false };
    const size_t size = dtr_dtype_size(d), parts = dtr__real_part(d) == d ? 1 : 2;
    const dtr__kernel_set *sets[4];
    const int n_sets = ref_sets(sets);
    for (int run = 0; run < 3 * n_sets; run++) {
        const int s = run / 3;
        const dtr__nontemporal past = (dtr__nontemporal)(run % 3);
        const bool alike = past == DTR__NONTEMPORAL_ALL
                               ? in_place >= 0 || n > DTR__STREAM_SOURCES
                               : past == DTR__NONTEMPORAL_OTHERS && n_dst == 1;
        if (alike) {
            continue;
        }
        for (int i = 0; i < n; i++) {
            memcpy(a->src[i], a->keep[i], count * size + 3 * MARGIN);
        }
        for (size_t k = 0; run == 0 && k < count * parts; k++) {
            expect_part(a->want + k * (size / parts), &job, d, k / parts, k % parts == 1);
        }
        for (int j = 0; j < n_dst; j++) {
            memset((char *)dst[j] - MARGIN, 0x5a,
                   in_place >= 0 && j == 0 ? 0 : count * size + 2 * MARGIN);
        }
        dtr__reduce_with(sets[s], job, count, d, past);
        for (int j = 0; j < n_dst; j++) {
            size_t k = 0;
            while (k < count && ref_same(dst[j], a->want, d, k)) {
                k++;
            }
            ck_assert_msg(k == count,
                          "%s: operator %d on %s, n %d, count %zu, shift %zu, in place %d, "
                          "destination %d: element %zu differs",
                          sets[s]->name, op, dtr_dtype_name(d), n, count, shift, in_place, j, k);
            if (in_place < 0 || j > 0) {
                bool intact = true;
                for (size_t m = 0; m < MARGIN; m++) {
                    const char *before = (char *)dst[j] - MARGIN,
                               *after = (char *)dst[j] + count * size;
                    intact = intact && before[m] == 0x5a && after[m] == 0x5a;
                }
                ck_assert_msg(intact, "%s: operator %d wrote beside %zu %s", sets[s]->name, op,
                              count, dtr_dtype_name(d));
            }
        }
    }
}

/* Every operator of every type. */
static void sweep(bool any_bits) {
    static const int ns[] = { 1, 2, 3, 7 };
    static const size_t counts[] = { 0, 1, 7, 8, 9, 63, 64, 65, 1025 };
    th_rng g = { 20 };
    arena a;
    arena_make(&a);
    for (int pair = 0; pair < TH_NUMBERS * TH_OPS; pair++) {
        const dtr_dtype d = (dtr_dtype)(pair / TH_OPS);
        const dtr_op op = (dtr_op)(pair % TH_OPS);
        for (int i = 0; i < MAX_N; i++) {
            memset(a.keep[i], 0, MAX_NBYTES);
            ref_fill(a.keep[i] + MARGIN, d, MAX_COUNT, any_bits, &g);
        }
        for (int call = 0; dtr_op_supports(op, d) && call < 4 * 9; call += 1 + TH_SANITIZED) {
            const int n = ns[call / 9];
            const size_t count = counts[call % 9];
            const size_t odd = any_bits ? 1 : 0; /* such data may be read at any address */
            compare(&a, d, op, n, count, 0, -1, 1);
            compare(&a, d, op, n, count, 3 * odd, 0, 1);
            compare(&a, d, op, n, count, 5 * odd, n - 1, 2);
            compare(&a, d, op, n, count, 7 * odd, -1, 3);
        }
    }
    arena_free(&a);
}

START_TEST(any_bits_in_every_set) {
    sweep(true);
}
END_TEST

START_TEST(ordinary_numbers_in_every_set) {
    sweep(false);
}
END_TEST

/* ---- named cases ---- */

static dtr__reduce_job job_of(void *const *dst, const void *const *src, int n, dtr_op op) {
    return (dtr__reduce_job){ dst, 1, src, n, op, n, NULL, false };
}

/* ddp:H1: the sum lives in float32, is divided there and rounded once. */
START_TEST(f16_mean_beyond_its_range) {
    const dtr__kernel_set *sets[4];
    const int n_sets = ref_sets(sets);
    uint16_t x[100], out[100];
    const void *src[7] = { x, x, x, x, x, x, x };
    void *const dst = out;
    for (int k = 0; k < 100; k++) {
        x[k] = f16_encode(60000);
    }
    for (int s = 0; s < n_sets; s++) {
        dtr__reduce_with(sets[s], job_of(&dst, src, 7, DTR_AVG), 100, DTR_F16,
                         DTR__NONTEMPORAL_NONE);
        ck_assert(f16_decode(out[0]) == 60000 && f16_decode(out[99]) == 60000);
        dtr__reduce_with(sets[s], job_of(&dst, src, 7, DTR_SUM), 100, DTR_F16,
                         DTR__NONTEMPORAL_NONE);
        ck_assert(isinf(f16_decode(out[99])));
    }
}
END_TEST

/* COL43, COL49 */
START_TEST(integer_mean_and_wrap) {
    int8_t a[] = { -3, 100, -128 }, b[] = { 0, 100, -1 }, c[] = { 0, 100, 0 }, out[3];
    const void *src[] = { a, b, c };
    dtr__reduce(out, src, 2, 3, DTR_I8, DTR_AVG, 2, NULL);
    ck_assert(out[0] == -1 && out[1] == -28 && out[2] == 63);
    dtr__reduce(out, src, 3, 3, DTR_I8, DTR_AVG, 3, NULL);
    ck_assert(out[0] == -1 && out[1] == 14 && out[2] == 42);
    int64_t low = INT64_MIN, minus = -1, sum;
    const void *wide[] = { &low, &minus };
    dtr__reduce(&sum, wide, 2, 1, DTR_I64, DTR_SUM, 2, NULL);
    ck_assert(sum == INT64_MAX);
    dtr__reduce(&sum, wide, 2, 1, DTR_I64, DTR_PROD, 2, NULL);
    ck_assert(sum == INT64_MIN);
}
END_TEST

/* COL43: the division of every set against C's own, around multiples of the divisor and at the
 * limits of each type and of what is divided as floats. */
START_TEST(integer_mean_like_division) {
    static const int divisors[] = { 1, 2, 3, 5, 7, 100, 127, 1000, 65537, INT32_MAX };
    static const int64_t bases[] = { 0,
                                     40,
                                     127,
                                     128,
                                     255,
                                     32767,
                                     (1 << 24) - 1,
                                     1 << 24,
                                     INT32_MAX,
                                     INT64_C(1) << 50,
                                     (INT64_C(1) << 51) - 1,
                                     INT64_C(1) << 51,
                                     (INT64_C(1) << 53) + 1,
                                     INT64_MAX };
    enum { BASES = sizeof bases / sizeof bases[0], EACH = 12, N = BASES * EACH };
    const dtr__kernel_set *sets[4];
    const int n_sets = ref_sets(sets);
    int64_t out[N], sum[N];
    const void *src = sum;
    void *const dst = out;
    for (int pair = 0; pair < (5 + 3) * 10; pair++) {
        const dtr_dtype d = (dtr_dtype)(pair < 50 ? DTR_U8 + pair / 10 : DTR_U16 + pair / 10 - 5);
        const int by = divisors[pair % 10];
        /* Twice: all bases, and those alone that leave no element above 51 bits. */
        for (int part = 0; part < 2 * n_sets; part++) {
            const int n = part % 2 == 0 ? N : 10 * EACH + EACH / 2;
            for (int k = 0; k < n; k++) {
                const uint64_t near = (uint64_t)(bases[k / EACH] / by * by) + (uint64_t)(k % 3 - 1);
                const uint64_t v = k % 6 < 3 ? near : (uint64_t)bases[k / EACH] - (uint64_t)(k % 3);
                const int64_t value = (int64_t)(k % EACH < 6 ? v : 0 - v);
                memcpy((char *)sum + (size_t)k * dtr_dtype_size(d), &value, dtr_dtype_size(d));
            }
            const dtr__reduce_job job = { &dst, 1, &src, 1, DTR_AVG, by, NULL, false };
            dtr__reduce_with(sets[part / 2], job, (size_t)n, d, DTR__NONTEMPORAL_NONE);
            for (size_t k = 0; k < (size_t)n; k++) {
                const int64_t want = ref_divide(d, ref_int(sum, d, k), by);
                ck_assert_msg(ref_int(out, d, k) == want, "%s: %s %lld / %d gives %lld",
                              sets[part / 2]->name, dtr_dtype_name(d),
                              (long long)ref_int(sum, d, k), by, (long long)ref_int(out, d, k));
            }
        }
    }
}
END_TEST

/* Of equal values the first; any NaN wins, wherever it stands. */
START_TEST(order_of_zeros_and_nan) {
    float a[] = { -0.0F, 0.0F, NAN, 1, INFINITY }, b[] = { 0.0F, -0.0F, 1, NAN, NAN }, out[5];
    const void *src[] = { a, b };
    static const dtr_op both[] = { DTR_MIN, DTR_MAX };
    for (int i = 0; i < 2; i++) {
        dtr__reduce(out, src, 2, 5, DTR_F32, both[i], 2, NULL);
        ck_assert(signbit(out[0]) && !signbit(out[1]));
        ck_assert(isnan(out[2]) && isnan(out[3]) && isnan(out[4]));
    }
}
END_TEST

/* Bool elements other than 0 and 1 count as 1; results are 0 or 1. */
START_TEST(bool_results) {
    uint8_t a[] = { 0, 1, 2, 0x80 }, b[] = { 0, 1, 1, 0x40 }, out[4];
    const void *src[] = { a, b };
    for (int op = 0; op < TH_OPS; op++) {
        if (dtr_op_supports((dtr_op)op, DTR_BOOL)) {
            dtr__reduce(out, src, 2, 4, DTR_BOOL, (dtr_op)op, 2, NULL);
            const int one = op == DTR_BXOR || op == DTR_LXOR ? 0 : 1;
            ck_assert(out[0] == 0 && out[1] == one && out[2] == one && out[3] == one);
        }
    }
}
END_TEST

/* -0 plus 0 is 0. */
static bool same_number(const void *a, const void *b, dtr_dtype d) {
    return dtr__is_pair(d)
               ? memcmp(a, b, dtr_dtype_size(d)) == 0
               : ref_same(a, b, d, 0) ||
                     (ref_get(a, d, 0, false) == ref_get(b, d, 0, false) &&
                      (dtr__real_part(d) == d || ref_get(a, d, 0, true) == ref_get(b, d, 0, true)));
}

/* NaN first, then the value, then the smaller index; bytes between them, set in the inputs, are 0.
 * To one or several destinations, in place or not, at odd addresses. */
START_TEST(pairs_of_value_and_index) {
    enum { N = 300 };
    static const int ns[] = { 1, 2, 3, MAX_N };
    static char in[MAX_N][16 * N + 8], out[2][16 * N + 8], want[16 * N];
    for (int run = 0; run < 3 * 2 * 4 * 2; run++) {
        const dtr_dtype d = (dtr_dtype)(DTR_F32_INDEX + run % 3);
        const dtr_op op = run / 3 % 2 == 0 ? DTR_MINLOC : DTR_MAXLOC;
        const int n = ns[run / 6 % 4], in_place = run / 24;
        const void *src[MAX_N];
        for (int r = 0; r < n; r++) {
            th_fill(in[r] + 3, d, op, 5, N, r, n);
            src[r] = in[r] + 3;
        }
        th_expect(want, d, op, 5, N, n);
        void *const dst[2] = { in_place != 0 ? in[n - 1] + 3 : out[0] + 1, out[1] + 5 };
        for (int n_dst = 1; n_dst <= 2 - in_place; n_dst++) {
            dtr__reduce_piece(dst, n_dst, src, n, N, d, op, n, NULL, DTR__NONTEMPORAL_ALL);
            for (int j = 0; j < n_dst; j++) {
                const size_t at = th_differs(dst[j], want, d, N);
                ck_assert_msg(at == N, "%s, operator %d, %d sources: number %zu differs",
                              dtr_dtype_name(d), op, n, at);
            }
        }
    }
}
END_TEST

/* Combined with any element, on either side, the identity gives it back. */
START_TEST(identities) {
    th_rng g = { 30 };
    for (int pair = 0; pair < TH_DTYPES * TH_OPS; pair++) {
        const dtr_dtype d = (dtr_dtype)(pair / TH_OPS);
        const dtr_op op = (dtr_op)(pair % TH_OPS);
        enum { N = 40 };
        char x[N * 16], same[16], want[16], out[16];
        const bool legal = dtr_op_supports(op, d);
        const size_t size = dtr_dtype_size(d);
        ck_assert(dtr__op_identity(op, d, same) == legal);
        if (dtr__is_pair(d)) {
            th_fill(x, d, op, 0, N, 1, 2);
        } else {
            ref_fill(x, d, N, true, &g);
        }
        for (size_t k = 0; legal && k < N; k++) {
            const void *const one[] = { x + k * size }, *const both[] = { x + k * size, same },
                              *const turned[] = { same, x + k * size };
            dtr__reduce(want, one, 1, 1, d, op, 1, NULL);
            dtr__reduce(out, both, 2, 1, d, op, 1, NULL);
            ck_assert_msg(same_number(out, want, d), "%d on %s", op, dtr_dtype_name(d));
            dtr__reduce(out, turned, 2, 1, d, op, 1, NULL);
            ck_assert_msg(same_number(out, want, d), "%d before %s", op, dtr_dtype_name(d));
        }
    }
}
END_TEST

/* As a piece of a result that fits into the caches and of one that does not, wherever it begins. */
START_TEST(identities_in_a_row) {
    enum { N = 100001, WHOLE = 8 << 20 };
    int32_t *out = malloc((N + 2) * sizeof *out);
    ck_assert_ptr_nonnull(out);
    for (int large = 0; large < 2; large++) {
        memset(out, 0, (N + 2) * sizeof *out);
        dtr__fill_identity(out + 1, N, large ? WHOLE : N, DTR_I32, DTR_MIN);
        ck_assert(out[0] == 0 && out[N + 1] == 0);
        for (int i = 1; i <= N; i++) {
            ck_assert_msg(out[i] == INT32_MAX, "number %d is %d", i, out[i]);
        }
    }
    free(out);
}
END_TEST

/* Inputs that dtr__premul has scaled are summed as they are. */
START_TEST(premul_without_factors) {
    float a[] = { 1, 2 }, b[] = { 3, 4 }, out[2];
    const void *src[] = { a, b };
    dtr__premul(a, a, 2, DTR_F32, 0.5);
    dtr__reduce(out, src, 2, 2, DTR_F32, DTR_PREMUL_SUM, 2, NULL);
    ck_assert(out[0] == 3.5F && out[1] == 5);
}
END_TEST

/* A job larger than most caches, whose stores may go past them: nothing is lost or moved. */
START_TEST(large_job) {
    enum { LARGE = 4 << 20 };
    int32_t *a = malloc(LARGE * sizeof *a), *out = malloc((LARGE + 2) * sizeof *out);
    for (int k = 0; k < LARGE; k++) {
        a[k] = k;
    }
    const void *src[] = { a, a };
    out[0] = out[LARGE + 1] = -1;
    dtr__reduce(out + 1, src, 2, LARGE, DTR_I32, DTR_SUM, 2, NULL);
    bool right = out[0] == -1 && out[LARGE + 1] == -1;
    for (int k = 0; k < LARGE; k++) {
        right = right && out[k + 1] == 2 * k;
    }
    free(a);
    free(out);
    ck_assert(right);
}
END_TEST

/* Both copies, from anywhere to anywhere, write all of it and nothing beside it. */
START_TEST(copies) {
    enum { MOST = 700, ROOM = MOST + 4 * MARGIN };
    unsigned char from[ROOM], to[ROOM];
    const dtr__kernel_set *sets[4];
    const int n_sets = ref_sets(sets);
    for (size_t i = 0; i < ROOM; i++) {
        from[i] = (unsigned char)(i * 7 + 1);
    }
    for (int run = 0; run < 2 * n_sets; run++) {
        const dtr__kernel_set *set = sets[run / 2];
        void (*copy)(void *, const void *, size_t) = run % 2 == 0 ? set->copy : set->stream;
        for (size_t n = 0; copy != NULL && n <= MOST; n += n < 70 ? 1 : 63) {
            const size_t a = n * 5 % MARGIN, b = MARGIN + n * 11 % MARGIN;
            memset(to, 0x5a, sizeof to);
            copy(to + b, from + a, n);
            ck_assert_msg(memcmp(to + b, from + a, n) == 0, "%s: %zu bytes", set->name, n);
            for (size_t i = 0; i < ROOM; i++) {
                ck_assert_msg((i >= b && i < b + n) || to[i] == 0x5a, "%s: beside %zu bytes",
                              set->name, n);
            }
        }
    }
    dtr__copy(to, from, ROOM);
    ck_assert_mem_eq(to, from, ROOM);
}
END_TEST

START_TEST(the_set_in_use) {
    const char *wish = getenv("DTR_KERNELS");
    const bool there = wish != NULL && dtr__kernels_find(wish) != NULL;
    ck_assert_ptr_nonnull(dtr__kernels_find(dtr__kernels_name()));
    if (there) {
        ck_assert_str_eq(dtr__kernels_name(), wish);
    }
    ck_assert_ptr_null(dtr__kernels_find("mmx"));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("reduce");
    tcase_add_test(tc, legal_pairs);
    tcase_add_test(tc, any_bits_in_every_set);
    tcase_add_test(tc, ordinary_numbers_in_every_set);
    tcase_add_test(tc, f16_mean_beyond_its_range);
    tcase_add_test(tc, integer_mean_and_wrap);
    tcase_add_test(tc, integer_mean_like_division);
    tcase_add_test(tc, order_of_zeros_and_nan);
    tcase_add_test(tc, bool_results);
    tcase_add_test(tc, pairs_of_value_and_index);
    tcase_add_test(tc, identities);
    tcase_add_test(tc, identities_in_a_row);
    tcase_add_test(tc, premul_without_factors);
    tcase_add_test(tc, large_job);
    tcase_add_test(tc, copies);
    tcase_add_test(tc, the_set_in_use);
    suite_add_tcase(s, tc);
    add_convert_tests(s);
}

int main(void) {
    return th_unit_main("kernels", make);
}
