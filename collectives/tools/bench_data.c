/* Data of dtr-bench and its check: small whole numbers, so that results are exact in every type. */
#include <math.h>
#include <string.h>

#include "bench.h"

static bool tiny(dtr_dtype d) { /* types that hold few whole numbers exactly */
    return d == DTR_F8E4M3 || d == DTR_F8E5M2 || d == DTR_BOOL;
}

/* Repeats every five elements, whatever it is made for. */
static int value(const bench_case *c, dtr_dtype d, int rank, size_t i, int round) {
    int v = (int)((i + (size_t)(rank * 3 + round)) % 5);
    bool product = bench_reduces(c->kind) && c->op == DTR_PROD;
    return product && d != DTR_BOOL ? 1 + v % 2 : product || tiny(d) ? v % 2 : v;
}

static void put(void *data, dtr_dtype d, size_t i, int v) {
    static const uint16_t f16[] = { 0, 0x3c00, 0x4000, 0x4200, 0x4400 },
                          bf16[] = { 0, 0x3f80, 0x4000, 0x4040, 0x4080 };
    static const uint8_t e4m3[] = { 0, 0x38, 0x40, 0x44, 0x48 },
                         e5m2[] = { 0, 0x3c, 0x40, 0x42, 0x44 };
    switch (d) {
    case DTR_F16:
        ((uint16_t *)data)[i] = f16[v];
        break;
    case DTR_BF16:
        ((uint16_t *)data)[i] = bf16[v];
        break;
    case DTR_F8E4M3:
        ((uint8_t *)data)[i] = e4m3[v];
        break;
    case DTR_F8E5M2:
        ((uint8_t *)data)[i] = e5m2[v];
        break;
    case DTR_I16:
        ((int16_t *)data)[i] = (int16_t)v;
        break;
    case DTR_I32:
        ((int32_t *)data)[i] = v;
        break;
    case DTR_I64:
        ((int64_t *)data)[i] = v;
        break;
    case DTR_F32:
        ((float *)data)[i] = (float)v;
        break;
    case DTR_F64:
        ((double *)data)[i] = v;
        break;
    case DTR_C64:
        ((float *)data)[2 * i] = (float)v;
        ((float *)data)[2 * i + 1] = 0;
        break;
    case DTR_C128:
        ((double *)data)[2 * i] = v;
        ((double *)data)[2 * i + 1] = 0;
        break;
    default: /* one byte: whole numbers and truth values */
        ((uint8_t *)data)[i] = (uint8_t)v;
    }
}

/* Writes one stretch of the pattern, then copies it forward. */
void bench_fill(const bench_case *c, const contender *who, int round) {
    enum { HEAD = 640 }; /* a multiple of the pattern's length */
    size_t size = dtr_dtype_size(who->dtype), n = c->in_count, head = n < HEAD ? n : HEAD;
    for (size_t i = 0; i < head; i++) {
        put(who->fresh, who->dtype, i, value(c, who->dtype, c->rank, i, round));
    }
    for (size_t done = head; done < n; done += head) {
        memcpy((char *)who->fresh + done * size, who->fresh,
               (n - done < head ? n - done : head) * size);
    }
}

/* A positive finite number of a small float format. */
static double decode(unsigned bits, int exponent_bits, int mantissa_bits) {
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double fraction = (double)(bits & ((1U << mantissa_bits) - 1)) / (double)(1 << mantissa_bits);
    int bias = (1 << (exponent_bits - 1)) - 1;
    return exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, exponent - bias);
}

static double get(const void *data, dtr_dtype d, size_t i) {
    switch (d) {
    case DTR_F16:
        return decode(((const uint16_t *)data)[i], 5, 10);
    case DTR_BF16:
        return decode(((const uint16_t *)data)[i], 8, 7);
    case DTR_F8E4M3:
        return decode(((const uint8_t *)data)[i], 4, 3);
    case DTR_F8E5M2:
        return decode(((const uint8_t *)data)[i], 5, 2);
    case DTR_I8:
        return ((const int8_t *)data)[i];
    case DTR_I16:
        return ((const int16_t *)data)[i];
    case DTR_I32:
        return ((const int32_t *)data)[i];
    case DTR_I64:
        return (double)((const int64_t *)data)[i];
    case DTR_F32:
        return (double)((const float *)data)[i];
    case DTR_F64:
        return ((const double *)data)[i];
    case DTR_C64:
        return (double)((const float *)data)[2 * i];
    case DTR_C128:
        return ((const double *)data)[2 * i];
    default:
        return ((const uint8_t *)data)[i];
    }
}

/* Largest whole number up to which all are exact. */
static double exact_up_to(dtr_dtype d) {
    switch (d) {
    case DTR_F8E5M2:
        return 8;
    case DTR_F8E4M3:
        return 16;
    case DTR_I8:
        return 127;
    case DTR_U8:
        return 255;
    case DTR_BF16:
        return 256;
    case DTR_F16:
        return 2048;
    case DTR_I16:
        return 32767;
    default:
        return 1 << 24;
    }
}

bool bench_checkable(const bench_case *c, dtr_dtype d) {
    double largest = c->op == DTR_PROD ? ldexp(1, c->size) : (tiny(d) ? 1.0 : 4.0) * c->size;
    bool small_enough = d == DTR_BOOL || largest <= exact_up_to(d);
    return c->kind != BENCH_BARRIER && (!bench_reduces(c->kind) || small_enough);
}

static double combine(dtr_op op, double a, double b) {
    switch (op) {
    case DTR_PROD:
        return a * b;
    case DTR_MIN:
        return a < b ? a : b;
    case DTR_MAX:
        return a > b ? a : b;
    case DTR_BAND:
        return (double)((int)a & (int)b);
    case DTR_BOR:
        return (double)((int)a | (int)b);
    case DTR_BXOR:
        return (double)((int)a ^ (int)b);
    default:
        return a + b;
    }
}

static bool is_float(dtr_dtype d) {
    return d >= DTR_F8E4M3;
}

/* Stock MPI has no average: it sums. */
static double reduced(const bench_case *c, const contender *who, size_t i, int round) {
    dtr_dtype d = who->dtype;
    double all = value(c, d, 0, i, round);
    for (int r = 1; r < c->size; r++) {
        all = combine(c->op, all, value(c, d, r, i, round));
    }
    if (c->op == DTR_AVG && !who->mpi) {
        all = is_float(d) ? all / c->size : trunc(all / c->size);
    }
    return d == DTR_BOOL ? all != 0 : all;
}

/* Part p of a result came from rank `from`, where it began at element `base`. */
typedef struct part {
    int from;
    size_t base, length;
} part;

static bool gathers(bench_kind k) {
    return k == BENCH_ALLTOALL || k == BENCH_ALLTOALLV || k == BENCH_ALLGATHER ||
           k == BENCH_ALLGATHERV || k == BENCH_GATHER || k == BENCH_GATHERV;
}

static part part_of(const bench_case *c, int p) {
    part one = { c->root, 0, c->out_count };
    switch (c->kind) {
    case BENCH_REDUCE_SCATTER:
    case BENCH_REDUCE_SCATTERV:
    case BENCH_SCATTER:
    case BENCH_SCATTERV:
        one.base = bench_block_at(c, 0, c->rank);
        break;
    case BENCH_SENDRECV:
        one.from = (c->rank + c->size - 1) % c->size;
        break;
    case BENCH_PINGPONG:
        one.from = c->rank ^ 1;
        break;
    default:
        break;
    }
    if (gathers(c->kind)) {
        bool both = c->kind == BENCH_ALLTOALL || c->kind == BENCH_ALLTOALLV;
        one = (part){ p, both ? bench_block_at(c, p, c->rank) : 0, bench_block(c, c->rank, p) };
    }
    return one;
}

static size_t check_part(const bench_case *c, const contender *who, part p, size_t at, int round) {
    const void *got = c->kind == BENCH_BROADCAST || c->in_place ? who->in : who->out;
    double want[5],
        slack = is_float(who->dtype) && c->op == DTR_AVG ? 0.5 / exact_up_to(who->dtype) : 0;
    size_t wrong = 0;
    for (size_t k = 0; k < 5; k++) {
        want[k] = bench_reduces(c->kind) ? reduced(c, who, p.base + k, round)
                                         : value(c, who->dtype, p.from, p.base + k, round);
    }
    for (size_t i = 0; i < p.length; i++) {
        double off = get(got, who->dtype, at + i) - want[i % 5];
        wrong += !(fabs(off) <= 2 * slack * want[i % 5]);
    }
    return wrong;
}

size_t bench_check(const bench_case *c, const contender *who, int round) {
    size_t wrong = 0, at = 0;
    int parts = c->out_count == 0 ? 0 : gathers(c->kind) ? c->size : 1;
    for (int i = 0; who->checked && i < parts; i++) {
        part p = part_of(c, i);
        wrong += check_part(c, who, p, at, round);
        at += p.length;
    }
    return wrong;
}
