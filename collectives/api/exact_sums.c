/* Sums over the elements of all ranks, exact and rounded once: each rank adds up its own without
 * rounding, and the words of these sums are added up over the group, as whole numbers. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "api/issue.h"
#include "base/dtype.h"
#include "base/float_mode.h"
#include "core/call.h"
#include "core/call_site.h"
#include "core/team.h"
#include "kernels/exact.h"
#include "kernels/kernels.h"

typedef enum what { SUM, DOT, NORM2 } what;

typedef struct operation {
    dtr_group *group;
    what what;
    const char *entry; /* "dtr_sum" */
    dtr_buffer a, b;   /* b: DOT */
    const dtr_coll_options *options;
    void *return_address;
} operation;

static const char *name_of(const operation *o) {
    return o->entry + strlen("dtr_");
}

enum { PIECE = 1024, BIG = DTR__EXACT_WORDS, ORDINARY, WORDS };

/* Squares of numbers below neither overflow, nor vanish beside one of an ordinary number. */
#define BIG_NUMBER 0x1p480
#define ORDINARY_NUMBER 0x1p-400

/* a < b of numbers that are not negative: their bits are in the order of the numbers, whatever
 * floating-point mode the program has set. */
static bool below(double a, double b) {
    uint64_t bits[2];
    memcpy(&bits[0], &a, sizeof a);
    memcpy(&bits[1], &b, sizeof b);
    return bits[0] < bits[1];
}

/* ---- this rank's part ---- */

static bool is_complex(const dtr_buffer *b) {
    return b->dtype == DTR_C64 || b->dtype == DTR_C128;
}

static size_t count_of(const dtr_buffer *b) {
    return is_complex(b) ? 2 * b->count : b->count;
}

static dtr_dtype type_of(const dtr_buffer *b) {
    return b->dtype == DTR_C64 ? DTR_F32 : b->dtype == DTR_C128 ? DTR_F64 : b->dtype;
}

/* Elements at..at + n as doubles, in `to` unless they are that already. */
static const double *doubles(const dtr_buffer *b, size_t at, size_t n, double *to) {
    const dtr_dtype type = type_of(b);
    const char *from = (const char *)b->data + at * dtr_dtype_size(type);
    if (type == DTR_F64) {
        return (const double *)(const void *)from;
    }
    dtr__convert(to, DTR_F64, from, type, n);
    return to;
}

/* What this rank adds, settled; *top: the largest magnitude, of NORM2. */
static void add_own(const operation *o, double scale, dtr__exact_sum *sum, double *top) {
    double x[PIECE], y[PIECE], products[PIECE];
    const size_t count = count_of(&o->a);
    *sum = (dtr__exact_sum){ .unsettled = 0 };
    *top = 0;
    for (size_t at = 0, n; at < count; at += n) {
        n = count - at < PIECE ? count - at : PIECE;
        const double *a = doubles(&o->a, at, n, x);
        if (o->what == NORM2) {
            const double most = dtr__exact_top(a, n);
            *top = below(*top, most) ? most : *top;
        }
        if (o->what != SUM) {
            const double *b = o->what == DOT ? doubles(&o->b, at, n, y) : a;
            dtr__exact_products(products, a, b, scale, n);
            a = products;
        }
        dtr__exact_add(sum, a, n);
    }
    dtr__exact_settle(sum);
}

/* ---- together ---- */

static dtr_status allreduce(const operation *o, void *data, size_t n, dtr_dtype dtype, dtr_op op) {
    const uint64_t tag_word = UINT64_C(0x6578616374) + (uint64_t)o->what;
    dtr__request r = { .kind = DTR__K_ALLREDUCE,
                       .op = op,
                       .in = dtr_cpu(data, n, dtype),
                       .out = dtr_cpu(data, n, dtype),
                       .options = o->options,
                       .tag_word = tag_word,
                       .name = name_of(o),
                       .return_address = o->return_address };
    return dtr__coll_issue(o->group, &r, NULL);
}

/* The own elements, scaled, and all others: `words` gets the sum, and counts of ranks with a big
 * and with an ordinary number. */
static dtr_status add_all(const operation *o, double scale, int64_t words[WORDS],
                          dtr__exact_sum *sum, double *top) {
    add_own(o, scale, sum, top);
    memcpy(words, sum, DTR__EXACT_WORDS * sizeof *words);
    words[BIG] = !below(*top, BIG_NUMBER);
    words[ORDINARY] = !below(*top, ORDINARY_NUMBER);
    DTR_TRY(allreduce(o, words, WORDS, DTR_I64, DTR_SUM));
    memcpy(sum, words, DTR__EXACT_WORDS * sizeof *words);
    return DTR_OK;
}

/* In functions of their own (base/float_mode.h). */
static __attribute__((noinline)) double root(const dtr__exact_sum *sum, int exponent) {
    return ldexp(sqrt(dtr__exact_value(sum)), exponent);
}

static __attribute__((noinline)) void scale_by(const double *top, int *exponent, double *scale) {
    (void)frexp(*top, exponent);
    *exponent = *exponent < -1000 ? -1000 : *exponent > 1000 ? 1000 : *exponent;
    *scale = ldexp(1, -*exponent);
}

/* Squares that overflow, or are all tiny: scaled by a power of two that the largest number of all
 * ranks gives. */
static dtr_status norm_scaled(const operation *o, double top, double *out) {
    int64_t words[WORDS];
    dtr__exact_sum sum;
    DTR_TRY(allreduce(o, &top, 1, DTR_F64, DTR_MAX));
    if (!below(0, top) || below(DBL_MAX, top)) {
        *out = top;
        return DTR_OK;
    }
    int exponent;
    double scale;
    dtr__float_mode mode = dtr__float_enter();
    scale_by(&top, &exponent, &scale);
    dtr__float_leave(mode);
    DTR_TRY(add_all(o, scale, words, &sum, &top));
    mode = dtr__float_enter();
    *out = root(&sum, exponent);
    dtr__float_leave(mode);
    return DTR_OK;
}

static dtr_status run(const operation *o, double *out) {
    int64_t words[WORDS];
    dtr__exact_sum sum;
    double top, result;
    DTR_TRY(add_all(o, 1, words, &sum, &top));
    if (o->what == NORM2 && sum.nan == 0 && (words[BIG] > 0 || words[ORDINARY] == 0)) {
        return norm_scaled(o, top, out);
    }
    const dtr__float_mode mode = dtr__float_enter();
    result = o->what == NORM2 ? root(&sum, 0) : dtr__exact_value(&sum);
    dtr__float_leave(mode);
    *out = result;
    return DTR_OK;
}

/* ---- checks ---- */

static dtr_status check_buffer(const operation *o, const dtr_buffer *b, const char *name) {
    dtr__error_context ctx = { o->group->world, name_of(o), o->group->name };
    DTR_REQUIRE(b->data != NULL || b->count == 0, &ctx, DTR_ERR_ARG,
                "%s on group '%s': %s.data is NULL and %s.count %zu", o->entry, o->group->name,
                name, name, b->count);
    DTR_REQUIRE(b->device.type == DTR_CPU && b->device.index == 0, &ctx, DTR_ERR_UNSUPPORTED,
                "%s on group '%s': %s is on a device, and exact sums are made of host memory; copy "
                "it there first",
                o->entry, o->group->name, name);
    DTR_REQUIRE(dtr__is_float(b->dtype) || (is_complex(b) && o->what == NORM2), &ctx, DTR_ERR_DTYPE,
                "%s on group '%s': %s.dtype is %s; expected a float%s", o->entry, o->group->name,
                name, dtr_dtype_name(b->dtype), o->what == NORM2 ? " or a complex type" : "");
    DTR_REQUIRE(b->count <= SIZE_MAX / 16, &ctx, DTR_ERR_OVERFLOW,
                "%s on group '%s': %s.count is %zu, more than memory can hold", o->entry,
                o->group->name, name, b->count);
    return DTR_OK;
}

static dtr_status check(const operation *o, const double *out) {
    const dtr_group *g = o->group;
    dtr__error_context ctx = { g->world, name_of(o), g->name };
    DTR_TRY(dtr__scope_refuse(o->group, o->entry));
    DTR_TRY(check_buffer(o, &o->a, o->what == DOT ? "a" : "in"));
    if (o->what == DOT) {
        DTR_TRY(check_buffer(o, &o->b, "b"));
        DTR_REQUIRE(o->a.count == o->b.count, &ctx, DTR_ERR_SHAPE,
                    "%s on group '%s': a.count is %zu and b.count %zu; both must be equal",
                    o->entry, g->name, o->a.count, o->b.count);
    }
    DTR_REQUIRE(out != NULL, &ctx, DTR_ERR_ARG, "%s on group '%s': out is NULL", o->entry, g->name);
    return DTR_OK;
}

static dtr_status check_and_run(const operation *o, double *out) {
    dtr_status s = dtr__group_check(o->group, o->entry);
    if (s != DTR_OK) {
        return s;
    }
    DTR_TRY(check(o, out));
    return DTR_TRACED(dtr__group_trace(o->group), o->entry, o->group->name, run(o, out));
}

#define HERE __builtin_return_address(0)

dtr_status dtr_sum(dtr_group *group, dtr_buffer in, const dtr_coll_options *options, double *out) {
    DTR_HOLD_CALL_SITE;
    const operation o = { group, SUM, "dtr_sum", in, in, options, HERE };
    return check_and_run(&o, out);
}

dtr_status dtr_dot(dtr_group *group, dtr_buffer a, dtr_buffer b, const dtr_coll_options *options,
                   double *out) {
    DTR_HOLD_CALL_SITE;
    const operation o = { group, DOT, "dtr_dot", a, b, options, HERE };
    return check_and_run(&o, out);
}

dtr_status dtr_norm2(dtr_group *group, dtr_buffer in, const dtr_coll_options *options,
                     double *out) {
    DTR_HOLD_CALL_SITE;
    const operation o = { group, NORM2, "dtr_norm2", in, in, options, HERE };
    return check_and_run(&o, out);
}
