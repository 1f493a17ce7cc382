/* Data of dtr-bench and its check: small whole numbers, so that results are exact in every type. */
#include <math.h>
#include <string.h>

#include "bench.h"

static bool tiny(dtr_dtype d) { /* types that hold few whole numbers exactly */
    return d == DTR_F8E4M3 || d == DTR_F8E5M2 || d == DTR_BOOL;
}

/* Pairs are counted as value and index in one number; their index is the rank. */
enum { INDEXES = 1 << 16 };

static bool is_pair(dtr_dtype d) {
    return d >= DTR_F32_INDEX;
}

/* Repeats every five elements, whatever it is made for. */
static int value(const bench_case *c, dtr_dtype d, int rank, size_t i, int round) {
    int v = (int)((i + (size_t)(rank * 3 + round)) % 5);
    bool product = bench_reduces(c->kind) && c->op == DTR_PROD;
    if (is_pair(d)) {
        return v * INDEXES + rank;
    }
    return product && d != DTR_BOOL ? 1 + v % 2 : product || tiny(d) ? v % 2 : v;
}

/* Elements are written and read as the bytes of a float, a double, or a whole number, lowest first.
 */
static void put(void *data, dtr_dtype d, size_t i, int v) {
    static const uint16_t f16[] = { 0, 0x3c00, 0x4000, 0x4200, 0x4400 },
                          bf16[] = { 0, 0x3f80, 0x4000, 0x4040, 0x4080 },
                          e4m3[] = { 0, 0x38, 0x40, 0x44, 0x48 },
                          e5m2[] = { 0, 0x3c, 0x40, 0x42, 0x44 };
    if (is_pair(d)) {
        const int64_t index = v % INDEXES, whole = v / INDEXES;
        const float f = (float)whole;
        const double f64 = (double)whole;
        char *to = (char *)data + i * sizeof(dtr_f64_index);
        memset(to, 0, sizeof(dtr_f64_index));
        memcpy(to,
               d == DTR_F32_INDEX   ? (const void *)&f
               : d == DTR_F64_INDEX ? (const void *)&f64
                                    : &whole,
               d == DTR_F32_INDEX ? sizeof f : sizeof f64);
        memcpy(to + offsetof(dtr_f64_index, index), &index, sizeof index);
        return;
    }
    const float single[2] = { (float)v, 0 };
    const double wide[2] = { v, 0 };
    const int64_t bits = d == DTR_F16      ? f16[v]
                         : d == DTR_BF16   ? bf16[v]
                         : d == DTR_F8E4M3 ? e4m3[v]
                         : d == DTR_F8E5M2 ? e5m2[v]
                                           : v;
    const void *from = d == DTR_F32 || d == DTR_C64    ? (const void *)single
                       : d == DTR_F64 || d == DTR_C128 ? (const void *)wide
                                                       : &bits;
    memcpy((char *)data + i * dtr_dtype_size(d), from, dtr_dtype_size(d));
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
    const char *at = (const char *)data + i * dtr_dtype_size(d);
    float single;
    double wide;
    uint64_t bits = 0;
    if (is_pair(d)) {
        const dtr_dtype value = d == DTR_F32_INDEX   ? DTR_F32
                                : d == DTR_F64_INDEX ? DTR_F64
                                                     : DTR_I64;
        int32_t index; /* MPI's */
        memcpy(&index, at + offsetof(dtr_f64_index, index), sizeof index);
        return get(at, value, 0) * INDEXES + index;
    }
    if (d == DTR_F32 || d == DTR_C64) {
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
    if (d == DTR_F64 || d == DTR_C128) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    memcpy(&bits, at, dtr_dtype_size(d));
    switch (d) {
    case DTR_F16:
        return decode((unsigned)bits, 5, 10);
    case DTR_BF16:
        return decode((unsigned)bits, 8, 7);
    case DTR_F8E4M3:
        return decode((unsigned)bits, 4, 3);
    case DTR_F8E5M2:
        return decode((unsigned)bits, 5, 2);
    case DTR_U8:
    case DTR_U16:
    case DTR_U32:
    case DTR_U64:
    case DTR_BOOL:
        return (double)bits;
    default: { /* signed: the top bit of the element counts negative */
        int shift = 64 - 8 * (int)dtr_dtype_size(d);
        return (double)((int64_t)(bits << shift) >> shift);
    }
    }
}

/* Largest whole number up to which all are exact. */
static double exact_up_to(dtr_dtype d) {
    static const int exact[BENCH_DTYPES] = {
        [DTR_F8E5M2] = 8, [DTR_F8E4M3] = 16, [DTR_I8] = 127,    [DTR_U8] = 255,
        [DTR_BF16] = 256, [DTR_F16] = 2048,  [DTR_I16] = 32767, [DTR_U16] = 65535
    };
    return exact[d] > 0 ? exact[d] : 1 << 24;
}

bool bench_checkable(const bench_case *c, dtr_dtype d) {
    double largest = c->op == DTR_PROD ? ldexp(1, c->size) : (tiny(d) ? 1.0 : 4.0) * c->size;
    bool small_enough = d == DTR_BOOL || is_pair(d) || largest <= exact_up_to(d);
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
    case DTR_MINLOC:
        return a < b ? a : b;
    case DTR_MAXLOC:
        return trunc(a / INDEXES) < trunc(b / INDEXES)            ? b
               : trunc(a / INDEXES) > trunc(b / INDEXES) || a < b ? a
                                                                  : b;
    case DTR_LAND:
        return a != 0 && b != 0;
    case DTR_LOR:
        return a != 0 || b != 0;
    case DTR_LXOR:
        return (a != 0) != (b != 0);
    default:
        return a + b;
    }
}

static bool is_float(dtr_dtype d) {
    return d >= DTR_F8E4M3 && d <= DTR_C128;
}

/* Stock MPI has no average: it sums. */
static double reduced(const bench_case *c, const contender *who, size_t i, int round) {
    dtr_dtype d = who->dtype;
    const int n = bench_sources(c);
    double all = value(c, d, 0, i, round);
    for (int r = 1; r < n; r++) {
        all = combine(c->op, all, value(c, d, r, i, round));
    }
    if (c->op == DTR_AVG && !who->mpi) {
        all = is_float(d) ? all / n : trunc(all / n);
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
    case BENCH_WAITALL:
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
    bool nothing = c->out_count == 0 || bench_sources(c) == 0; /* of exscan MPI leaves it open */
    int parts = nothing ? 0 : gathers(c->kind) ? c->size : 1;
    for (int i = 0; who->checked && i < parts; i++) {
        part p = part_of(c, i);
        wrong += check_part(c, who, p, at, round);
        at += p.length;
    }
    return wrong;
}
