/* Elementwise arithmetic and the norm. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/float_mode.h"
#include "core/tensor_device.h"
#include "core/walk.h"
#include "kernels/kernels.h"

/* ---- fill ---- */

typedef struct fill_value {
    char bytes[16];
    size_t size;
    bool uniform; /* all bytes equal: memset does it */
} fill_value;

static void fill_run(void *arg, char *a, ptrdiff_t a_step, char *b, ptrdiff_t b_step, size_t n) {
    const fill_value *v = arg;
    (void)b;
    (void)b_step;
    if (a_step == (ptrdiff_t)v->size && v->uniform) {
        memset(a, v->bytes[0], n * v->size);
        return;
    }
    if (a_step == (ptrdiff_t)v->size) {
        /* Doubling: each copy is as long as what has been written. */
        size_t total = n * v->size, have = v->size;
        memcpy(a, v->bytes, have);
        while (have < total) {
            size_t more = have < total - have ? have : total - have;
            memcpy(a + have, a, more);
            have += more;
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(a + (ptrdiff_t)i * a_step, v->bytes, v->size);
    }
}

dtr_status dtr_tensor_fill(dtr_tensor *t, double value, void *stream) {
    DTR_TRY(dtr__tensor_check(t, "tensor"));
    DTR_TRY(dtr__tensor_check_writable(t, "tensor"));
    DTR_TRY(dtr__tensor_check_numbers(t, "tensor", "filled"));
    if (dtr__tensor_on_device(t)) {
        return dtr__device_tensor_fill(t, value, stream);
    }
    fill_value v = { .size = dtr_dtype_size(t->dtype), .uniform = true };
    dtr__convert(v.bytes, t->dtype, &value, DTR_F64, 1);
    for (size_t i = 1; i < v.size; i++) {
        v.uniform = v.uniform && v.bytes[i] == v.bytes[0];
    }
    dtr__walk(t, NULL, fill_run, &v);
    return DTR_OK;
}

/* ---- scale and axpy ----
 * A complex number times a real factor is two real numbers: complex tensors compute as pairs. */

/* The type that arithmetic on a real type is done in; whole numbers of 64 bits stand for long
 * double on them. */
static dtr_dtype compute_type(dtr_dtype real) {
    if (real == DTR_I64 || real == DTR_U64) {
        return real;
    }
    return dtr__is_float(real) && real != DTR_F64 ? DTR_F32 : DTR_F64;
}

typedef struct combine {
    dtr_dtype compute, x_compute, y_real, x_real; /* x_compute: differs with 64 bits only */
    size_t y_size, x_size, parts;                 /* parts: reals per element */
    bool has_x;
    double alpha;
} combine;

static int64_t to_i64(long double v) {
    if (isnan(v)) {
        return 0;
    }
    if (v >= 0x1p63L) {
        return INT64_MAX;
    }
    return v <= -0x1p63L ? INT64_MIN : (int64_t)v;
}

static uint64_t to_u64(long double v) {
    if (isnan(v) || v <= 0) {
        return 0;
    }
    return v >= 0x1p64L ? UINT64_MAX : (uint64_t)v;
}

/* y = alpha * y, or y + alpha * x, in the computation type. */
#define COMBINE(name, type)                                          \
    static void name(type *y, const type *x, size_t n, type alpha) { \
        if (x == NULL) {                                             \
            for (size_t i = 0; i < n; i++) {                         \
                y[i] *= alpha;                                       \
            }                                                        \
            return;                                                  \
        }                                                            \
        for (size_t i = 0; i < n; i++) {                             \
            y[i] += alpha * x[i];                                    \
        }                                                            \
    }
COMBINE(combine_f32, float)
COMBINE(combine_f64, double)

static long double whole_at(const void *v, dtr_dtype d, size_t i) {
    return d == DTR_U64 ? (long double)((const uint64_t *)v)[i]
                        : (long double)((const int64_t *)v)[i];
}

static void combine_whole(const combine *c, void *y, const void *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const long double old = whole_at(y, c->compute, i);
        const long double factor = x != NULL ? whole_at(x, c->x_compute, i) : old;
        const long double v = (x != NULL ? old : 0) + (long double)c->alpha * factor;
        if (c->compute == DTR_U64) {
            ((uint64_t *)y)[i] = to_u64(v);
        } else {
            ((int64_t *)y)[i] = to_i64(v);
        }
    }
}

static void combine_packed(const combine *c, void *y, const void *x, size_t n) {
    if (c->compute == DTR_F32) {
        combine_f32(y, x, n, (float)c->alpha);
    } else if (c->compute == DTR_F64) {
        combine_f64(y, x, n, c->alpha);
    } else {
        combine_whole(c, y, x, n);
    }
}

/* A block in the computation type: the run itself where it is one, else gathered and converted. */
static void *load_block(dtr_dtype compute, size_t parts, dtr_dtype real, size_t size, char *at,
                        ptrdiff_t step, size_t n, char *packed, char *wide) {
    char *from = at;
    if (step != (ptrdiff_t)size) {
        dtr__gather_run(packed, at, step, n, size);
        from = packed;
    }
    if (real == compute) {
        return from;
    }
    dtr__convert(wide, compute, from, real, n * parts);
    return wide;
}

static void combine_run(void *arg, char *y, ptrdiff_t y_step, char *x, ptrdiff_t x_step, size_t n) {
    const combine *c = arg;
    char y_packed[DTR__WALK_BYTES], y_wide[DTR__WALK_BYTES];
    char x_packed[DTR__WALK_BYTES], x_wide[DTR__WALK_BYTES];
    for (size_t at = 0; at < n; at += DTR__WALK_BLOCK) {
        size_t m = n - at < DTR__WALK_BLOCK ? n - at : DTR__WALK_BLOCK;
        char *y_at = y + (ptrdiff_t)at * y_step;
        void *yv = load_block(c->compute, c->parts, c->y_real, c->y_size, y_at, y_step, m, y_packed,
                              y_wide);
        const void *xv = NULL;
        if (c->has_x) {
            xv = load_block(c->x_compute, c->parts, c->x_real, c->x_size,
                            x + (ptrdiff_t)at * x_step, x_step, m, x_packed, x_wide);
        }
        combine_packed(c, yv, xv, m * c->parts);
        bool dense = y_step == (ptrdiff_t)c->y_size;
        if (yv == y_wide) {
            yv = dense ? y_at : y_packed;
            dtr__convert(yv, c->y_real, y_wide, c->compute, m * c->parts);
        }
        if (!dense) {
            dtr__scatter_run(y_at, y_step, yv, m, c->y_size);
        }
    }
}

static void combine_all(const dtr_tensor *y, const dtr_tensor *x, combine *c) {
    const dtr__float_mode mode = dtr__float_enter();
    const uint16_t long_mode = dtr__float_enter_long();
    dtr__walk(y, x, combine_run, c);
    dtr__float_leave_long(long_mode);
    dtr__float_leave(mode);
}

dtr_status dtr_tensor_scale(dtr_tensor *t, double alpha, void *stream) {
    DTR_TRY(dtr__tensor_check(t, "tensor"));
    DTR_TRY(dtr__tensor_check_writable(t, "tensor"));
    DTR_TRY(dtr__tensor_check_numbers(t, "tensor", "scaled"));
    DTR_REQUIRE(t->dtype != DTR_BOOL, NULL, DTR_ERR_DTYPE,
                "a bool tensor cannot be scaled; numbers are needed");
    if (dtr__tensor_on_device(t)) {
        return dtr__device_tensor_scale(t, alpha, stream);
    }
    dtr_dtype real = dtr__real_of(t->dtype);
    combine c = { .compute = compute_type(real), .y_real = real, .alpha = alpha };
    c.y_size = dtr_dtype_size(t->dtype);
    c.parts = dtr__reals_in(t->dtype);
    combine_all(t, NULL, &c);
    return DTR_OK;
}

static int family(dtr_dtype d) {
    return dtr__is_complex(d) ? 2 : dtr__is_float(d) ? 1 : 0;
}

/* Of numbers of 64 bits both stay what they are, and others become signed ones. */
static dtr_dtype wider(dtr_dtype a, dtr_dtype b) {
    if (dtr__is_integer(a)) {
        return a;
    }
    if (dtr__is_integer(b)) {
        return DTR_I64;
    }
    return a == DTR_F64 || b == DTR_F64 ? DTR_F64 : DTR_F32;
}

dtr_status dtr_tensor_axpy(dtr_tensor *y, double alpha, const dtr_tensor *x, void *stream) {
    DTR_TRY(dtr__tensor_check(y, "y"));
    DTR_TRY(dtr__tensor_check(x, "x"));
    DTR_TRY(dtr__tensor_check_writable(y, "y"));
    DTR_TRY(dtr__tensor_check_numbers(y, "y", "added to"));
    DTR_TRY(dtr__tensor_check_numbers(x, "x", "added"));
    DTR_REQUIRE(family(x->dtype) == family(y->dtype) && x->dtype != DTR_BOOL &&
                    y->dtype != DTR_BOOL,
                NULL, DTR_ERR_DTYPE,
                "cannot add %s (x) to %s (y): both must be integers, both floats or both complex",
                dtr_dtype_name(x->dtype), dtr_dtype_name(y->dtype));
    DTR_TRY(dtr__tensor_check_same_shape(y, "y", x, "x"));
    if (dtr__tensor_on_device(y) || dtr__tensor_on_device(x)) {
        return dtr__device_tensor_axpy(y, alpha, x, stream);
    }
    dtr_tensor *copy = NULL;
    const dtr_tensor *from = NULL;
    DTR_TRY(dtr__tensor_unalias(y, x, &copy, &from));
    combine c = { .y_real = dtr__real_of(y->dtype),
                  .x_real = dtr__real_of(x->dtype),
                  .alpha = alpha };
    c.compute = wider(compute_type(c.y_real), compute_type(c.x_real));
    c.x_compute = wider(compute_type(c.x_real), compute_type(c.y_real));
    c.y_size = dtr_dtype_size(y->dtype);
    c.x_size = dtr_dtype_size(x->dtype);
    c.parts = dtr__reals_in(y->dtype);
    c.has_x = true;
    combine_all(y, from, &c);
    dtr_tensor_release(copy);
    return DTR_OK;
}

/* ---- norm ---- */

typedef struct norm {
    dtr_dtype real;
    size_t size, parts;
    double sum, rest; /* compensated sum of (scale * x)^2 */
    double scale, max;
    bool nan;
} norm;

static void add_square_sum(norm *s, double v) {
    double t = s->sum + v;
    s->rest += fabs(s->sum) >= fabs(v) ? (s->sum - t) + v : (v - t) + s->sum;
    s->sum = t;
}

static void squares(norm *s, const double *v, size_t n) {
    double lane[4] = { 0 };
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (size_t k = 0; k < 4; k++) {
            double x = v[i + k] * s->scale;
            lane[k] += x * x;
        }
    }
    for (; i < n; i++) {
        lane[0] += (v[i] * s->scale) * (v[i] * s->scale);
    }
    add_square_sum(s, (lane[0] + lane[1]) + (lane[2] + lane[3]));
}

static void largest(norm *s, const double *v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        s->nan = s->nan || isnan(v[i]);
        s->max = fabs(v[i]) > s->max ? fabs(v[i]) : s->max;
    }
}

typedef struct norm_pass {
    norm *s;
    void (*block)(norm *s, const double *v, size_t n);
} norm_pass;

static void norm_run(void *arg, char *a, ptrdiff_t a_step, char *b, ptrdiff_t b_step, size_t n) {
    const norm_pass *pass = arg;
    norm *s = pass->s;
    char packed[DTR__WALK_BYTES];
    double wide[2 * DTR__WALK_BLOCK];
    (void)b;
    (void)b_step;
    for (size_t at = 0; at < n; at += DTR__WALK_BLOCK) {
        size_t m = n - at < DTR__WALK_BLOCK ? n - at : DTR__WALK_BLOCK;
        char *from = a + (ptrdiff_t)at * a_step;
        if (a_step != (ptrdiff_t)s->size) {
            dtr__gather_run(packed, from, a_step, m, s->size);
            from = packed;
        }
        dtr__convert(wide, DTR_F64, from, s->real, m * s->parts);
        pass->block(s, wide, m * s->parts);
    }
}

static void norm_walk(const dtr_tensor *t, norm *s, void (*block)(norm *, const double *, size_t)) {
    norm_pass pass = { s, block };
    dtr__walk(t, NULL, norm_run, &pass);
}

static __attribute__((noinline)) void norm2(const dtr_tensor *t, double *out) {
    norm s = { .real = dtr__real_of(t->dtype), .scale = 1 };
    s.size = dtr_dtype_size(t->dtype);
    s.parts = dtr__reals_in(t->dtype);
    norm_walk(t, &s, squares);
    double total = s.sum + s.rest;
    if (total >= 0x1p-900 && total <= 0x1p1000) {
        *out = sqrt(total);
        return;
    }
    /* Empty, all zero, not finite, or squares out of range: look again, scaled by the largest. */
    norm_walk(t, &s, largest);
    if (s.nan || s.max == 0 || isinf(s.max)) {
        *out = s.nan ? (double)NAN : s.max;
        return;
    }
    int exponent = 0;
    (void)frexp(s.max, &exponent);
    exponent = exponent < -1000 ? -1000 : exponent; /* 2^-exponent must be finite */
    s.sum = 0;
    s.rest = 0;
    s.scale = ldexp(1.0, -exponent);
    norm_walk(t, &s, squares);
    *out = ldexp(sqrt(s.sum + s.rest), exponent);
}

dtr_status dtr_tensor_norm(const dtr_tensor *t, void *stream, double *out) {
    DTR_TRY(dtr__tensor_check(t, "tensor"));
    DTR_REQUIRE_RESULT(out);
    DTR_TRY(dtr__tensor_check_numbers(t, "tensor", "measured by a norm"));
    if (dtr__tensor_on_device(t)) {
        return dtr__device_tensor_norm(t, stream, out);
    }
    const dtr__float_mode mode = dtr__float_enter();
    norm2(t, out);
    dtr__float_leave(mode);
    return DTR_OK;
}
