/* Choice of the instruction set, legality of operators, and the calls of kernels.h in terms of one
 * set's loops. */
#include "kernels.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/float_mode.h"
#include "kernels_set.h"
#include "loops.h"
#include "operators.h"
#include "topology/cache.h"
#include "user_ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* ---- which set ---- */

#if defined(__x86_64__)
/* Not every compiler's __builtin_cpu_supports knows the name; it does tell whether the operating
 * system keeps the registers. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/* Whether this CPU runs the set. */
static bool runs(const dtr__kernel_set *set) {
#if defined(__x86_64__)
    if (set == &dtr__kernels_avx2) {
        return __builtin_cpu_supports("avx2") && has_f16c();
    }
    if (set == &dtr__kernels_avx512) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               has_f16c();
    }
#endif
    return set != NULL;
}

/* Best first. */
static const dtr__kernel_set *const sets[] = {
#if defined(__x86_64__)
    &dtr__kernels_avx512,
    &dtr__kernels_avx2,
#elif defined(__aarch64__)
    &dtr__kernels_neon,
#endif
    &dtr__kernels_scalar,
};
enum { N_SETS = sizeof sets / sizeof sets[0] };

const dtr__kernel_set *dtr__kernels_find(const char *name) {
    for (size_t i = 0; i < N_SETS; i++) {
        if (strcmp(sets[i]->name, name) == 0 && runs(sets[i])) {
            return sets[i];
        }
    }
    return NULL;
}

static const dtr__kernel_set *choose_set(void) {
    const char *wish = getenv("DTR_KERNELS");
    const dtr__kernel_set *set = wish != NULL ? dtr__kernels_find(wish) : NULL;
    for (size_t i = 0; set == NULL && i < N_SETS; i++) {
        set = runs(sets[i]) ? sets[i] : NULL;
    }
    return set != NULL ? set : &dtr__kernels_scalar;
}

/* Threads that come here at the same time choose the same. */
const dtr__kernel_set *dtr__kernels_current(void) {
    static _Atomic(const dtr__kernel_set *) chosen;
    const dtr__kernel_set *set = atomic_load_explicit(&chosen, memory_order_acquire);
    if (set == NULL) {
        set = choose_set();
        atomic_store_explicit(&chosen, set, memory_order_release);
    }
    return set;
}

const char *dtr__kernels_name(void) {
    return dtr__kernels_current()->name;
}

/* ---- reductions ---- */

bool dtr_op_supports(dtr_op op, dtr_dtype dtype) {
#define TYPES(OP, name, types, identity) [DTR_##OP] = (types),
    static const unsigned char on[DTR__N_OPS] = { DTR__OPERATORS(TYPES) };
    static const unsigned char kind[DTR__N_DTYPES] = {
        [DTR_BOOL] = DTR__ON_BOOL,      [DTR_U8] = DTR__ON_INT,
        [DTR_I8] = DTR__ON_INT,         [DTR_I16] = DTR__ON_INT,
        [DTR_I32] = DTR__ON_INT,        [DTR_I64] = DTR__ON_INT,
        [DTR_F8E4M3] = DTR__ON_F8,      [DTR_F8E5M2] = DTR__ON_F8,
        [DTR_F16] = DTR__ON_FLOAT,      [DTR_BF16] = DTR__ON_FLOAT,
        [DTR_F32] = DTR__ON_FLOAT,      [DTR_F64] = DTR__ON_FLOAT,
        [DTR_C64] = DTR__ON_COMPLEX,    [DTR_C128] = DTR__ON_COMPLEX,
        [DTR_U16] = DTR__ON_INT,        [DTR_U32] = DTR__ON_INT,
        [DTR_U64] = DTR__ON_INT,        [DTR_F32_INDEX] = DTR__ON_PAIR,
        [DTR_F64_INDEX] = DTR__ON_PAIR, [DTR_I64_INDEX] = DTR__ON_PAIR,
    };
    dtr__user_op is;
    if (dtr__op_is_user(op)) {
        return (unsigned)dtype < DTR__N_DTYPES && dtr__user_op_find(op, &is);
    }
    return (unsigned)op < DTR__N_OPS && (unsigned)dtype < DTR__N_DTYPES &&
           (on[op] & kind[dtype]) != 0;
}

bool dtr__op_identity(dtr_op op, dtr_dtype dtype, void *element) {
#define IDENTITY(OP, name, types, identity) [DTR_##OP] = DTR__##identity,
    static const dtr__identity identities[DTR__N_OPS] = { DTR__OPERATORS(IDENTITY) };
    static const double numbers[] = { [DTR__IS_ZERO] = 0,
                                      [DTR__IS_ONE] = 1,
                                      [DTR__IS_ONES] = 1,
                                      [DTR__IS_HIGHEST] = INFINITY,
                                      [DTR__IS_LOWEST] = -INFINITY };
    if (dtr__op_is_user(op) || !dtr_op_supports(op, dtype)) {
        return false;
    }
    const dtr__identity is = identities[op];
    if (is == DTR__IS_ONES && dtype != DTR_BOOL) {
        memset(element, 0xff, dtr_dtype_size(dtype));
        return true;
    }
    if (dtr__is_pair(dtype)) {
        const int64_t last = INT64_MAX;
        memset(element, 0, dtr_dtype_size(dtype));
        memcpy((char *)element + offsetof(dtr_f64_index, index), &last, sizeof last);
        dtype = dtype == DTR_F32_INDEX ? DTR_F32 : dtype == DTR_F64_INDEX ? DTR_F64 : DTR_I64;
    }
    const double most = dtype == DTR_F8E4M3 ? 448 : INFINITY; /* which has no infinity */
    double v = numbers[is] < -most ? -most : numbers[is] > most ? most : numbers[is];
    v = is == DTR__IS_LOWEST && dtype == DTR_BOOL ? 0 : v;
    dtr__convert(element, dtype, &v, DTR_F64, 1);
    return true;
}

enum { FILL_MOST = 16 * 1024 };

void dtr__fill_identity(void *dst, size_t count, size_t whole, dtr_dtype dtype, dtr_op op) {
    const size_t size = dtr_dtype_size(dtype), nbytes = count * size;
    if (count == 0 ||
        !dtr__op_identity((dtr_op)((unsigned)op & ~(unsigned)DTR__EXACT), dtype, dst)) {
        return;
    }
    /* Twice as much each time, until what is copied just fits into the first cache. */
    const size_t most = FILL_MOST / size * size;
    for (size_t done = size, n; done < nbytes; done += n) {
        n = done < most ? done : most;
        n = n < nbytes - done ? n : nbytes - done;
        const bool stream = done >= most && whole * size >= DTR__FILL_NONTEMPORAL;
        (stream ? dtr__copy_nontemporal : dtr__copy)((char *)dst + done, dst, n);
    }
}

/* A tile of every source in turn becomes float32 and is added to the sum, which is rounded at the
 * end: for the types that have no fused loop. */
static void reduce_through_f32(const dtr__kernel_set *set, const dtr__reduce_job *job, size_t count,
                               dtr_dtype dtype) {
    const size_t size = dtr_dtype_size(dtype);
    const bool scaled = job->op == DTR_PREMUL_SUM;
    const dtr_op op = scaled ? DTR_SUM : job->op;
    float sum[DTR__TILE], term[DTR__TILE];
    void *const into = sum;
    const void *const both[2] = { sum, term };
    dtr__reduce_job step = { &into, 1, both, 2, op, job->divisor, NULL, false, false };
    for (size_t at = 0; at < count; at += DTR__TILE) {
        const size_t m = count - at < DTR__TILE ? count - at : DTR__TILE;
        for (int i = 0; i < job->n; i++) {
            float *t = i == 0 ? sum : term;
            set->to_f32[dtype](t, (const char *)job->src[i] + at * size, m);
            if (scaled) {
                set->from_f32[DTR_F32](t, t, m, job->factors[i]);
            }
            const bool last = i == job->n - 1;
            step.n = i == 0 ? 1 : 2;
            step.op = op == DTR_AVG && !last ? DTR_SUM : op; /* divided once */
            set->reduce[DTR_F32](&step, m);
        }
        for (int j = 0; j < job->n_dst; j++) {
            set->from_f32[dtype]((char *)job->dst[j] + at * size, sum, m, 1);
        }
    }
}

static void reduce_cached(const dtr__kernel_set *set, const dtr__reduce_job *job, size_t count,
                          dtr_dtype dtype) {
    if (set->reduce[dtype] == NULL) {
        reduce_through_f32(set, job, count, dtype);
    } else {
        set->reduce[dtype](job, count);
    }
}

/* A store to memory that is in no cache reads it first. Where the results cannot stay in the cache
 * anyway they are made tile by tile in a small buffer and copied by non-temporal stores. */
static void reduce_streaming(const dtr__kernel_set *set, const dtr__reduce_job *job, size_t count,
                             dtr_dtype dtype) {
    _Alignas(64) char result[DTR__STREAM_TILE];
    const void *src[DTR__STREAM_SOURCES];
    void *const dst = result;
    dtr__reduce_job tile = *job;
    tile.dst = &dst;
    tile.n_dst = 1;
    tile.src = src;
    const size_t nbytes = count * dtr_dtype_size(dtype);
    for (size_t at = 0; at < nbytes; at += sizeof result) {
        const size_t m = nbytes - at < sizeof result ? nbytes - at : sizeof result;
        for (int i = 0; i < job->n; i++) {
            src[i] = (const char *)job->src[i] + at;
        }
        reduce_cached(set, &tile, m / dtr_dtype_size(dtype), dtype);
        for (int j = 0; j < job->n_dst; j++) {
            set->stream((char *)job->dst[j] + at, result, m);
        }
    }
}

/* What is reduced in place has been read anyway, so its store costs nothing more. */
static bool in_place(const dtr__reduce_job *job) {
    for (int j = 0; j < job->n_dst; j++) {
        for (int i = 0; i < job->n; i++) {
            if (job->dst[j] == job->src[i]) {
                return true;
            }
        }
    }
    return false;
}

/* Which type's loop serves, and on how many elements of it. */
static dtr_dtype loop_of(dtr_op op, dtr_dtype dtype, size_t *count) {
    if (dtr__real_part(dtype) != dtype) {
        *count *= 2;
        dtype = dtr__real_part(dtype);
    }
    const size_t size = dtr_dtype_size(dtype);
    if (dtr__is_bitwise(op) && dtype != DTR_BOOL) {
        *count *= size;
        dtype = DTR_U8;
    }
    if (dtr__is_logical(op)) {
        dtype = size == 1 ? DTR_BOOL : size == 2 ? DTR_U16 : size == 4 ? DTR_U32 : DTR_U64;
    }
    return dtype;
}

static bool others_aligned(const dtr__reduce_job *job) {
    for (int j = 1; j < job->n_dst; j++) {
        if ((uintptr_t)job->dst[j] % 64 != 0) {
            return false;
        }
    }
    return true;
}

/* What an operator with DTR__EXACT asks of this job. One or two are rounded once anyway, unless
 * they are scaled: short types are rounded after that too, as by those who scale before they send.
 */
static bool sums_exactly(const dtr__reduce_job *job, dtr_dtype dtype) {
    const bool sum = job->op == DTR_SUM || job->op == DTR_AVG || job->op == DTR_PREMUL_SUM;
    const bool is_float = dtype >= DTR_F8E4M3 && dtype <= DTR_F64;
    const bool scales = job->op == DTR_PREMUL_SUM && dtype < DTR_F32;
    return job->exact && sum && is_float && (job->n > 2 || scales);
}

static dtr__reduce_job job_of(void *const *dst, int n_dst, const void *const *src, int n, dtr_op op,
                              int divisor, const double *factors) {
    const bool exact = ((unsigned)op & DTR__EXACT) != 0;
    op = (dtr_op)((unsigned)op & ~(unsigned)DTR__EXACT);
    return (dtr__reduce_job){ dst, n_dst, src, n, op, divisor, factors, false, exact };
}

void dtr__reduce_with(const dtr__kernel_set *set, dtr__reduce_job job, size_t count,
                      dtr_dtype dtype, dtr__nontemporal nontemporal) {
    const bool can = set->stream != NULL && nontemporal != DTR__NONTEMPORAL_NONE;
    dtype = loop_of(job.op, dtype, &count);
    if (job.op == DTR_PREMUL_SUM && job.factors == NULL) {
        job.op = DTR_SUM;
    }
    job.nontemporal = can && nontemporal == DTR__NONTEMPORAL_OTHERS && others_aligned(&job);
    const dtr__float_mode mode = dtr__float_enter();
    if (sums_exactly(&job, dtype)) {
        dtr__exact_reduce(set, &job, count, dtype);
    } else if (can && nontemporal == DTR__NONTEMPORAL_ALL && job.n <= DTR__STREAM_SOURCES &&
               !in_place(&job)) {
        reduce_streaming(set, &job, count, dtype);
    } else {
        reduce_cached(set, &job, count, dtype);
    }
    dtr__float_leave(mode);
}

/* Sums of less than a vector: to set up a loop over vectors takes ten times longer than to add. */
#define DEFINE_FEW(name, C, SUM)                                                     \
    static void few_##name(void *dst, const void *const *src, int n, size_t count) { \
        for (size_t k = 0; k < count; k++) {                                         \
            SUM sum = (SUM)((const name##_t *)src[0])[k];                            \
            for (int i = 1; i < n; i++) {                                            \
                sum += (SUM)((const name##_t *)src[i])[k];                           \
            }                                                                        \
            ((name##_t *)dst)[k] = (C)sum;                                           \
        }                                                                            \
    }
DEFINE_FEW(i32, int32_t, uint32_t)
DEFINE_FEW(i64, int64_t, uint64_t)
DEFINE_FEW(f32, float, float)
DEFINE_FEW(f64, double, double)

bool dtr__reduce_keep(dtr__reducer *r, size_t count, dtr_dtype dtype, dtr_op op) {
    enum { FEW_BYTES = 32 };
    static void (*const few[DTR__N_DTYPES])(void *, const void *const *, int, size_t) = {
        [DTR_I32] = few_i32, [DTR_I64] = few_i64, [DTR_F32] = few_f32,
        [DTR_F64] = few_f64, [DTR_U32] = few_i32, [DTR_U64] = few_i64,
    };
    if (((unsigned)op & DTR__EXACT) != 0 || dtr__op_is_user(op)) {
        return false;
    }
    const dtr_dtype real = dtr__real_part(dtype);
    r->few = op == DTR_SUM && count * dtr_dtype_size(dtype) <= FEW_BYTES ? few[real] : NULL;
    r->count = count;
    r->op = op;
    r->loop = dtr__kernels_current()->reduce[loop_of(op, dtype, &r->count)];
    return r->loop != NULL && op != DTR_PREMUL_SUM;
}

void dtr__reduce_kept(const dtr__reducer *r, void *dst, const void *const *src, int n,
                      int divisor) {
    if (r->few != NULL) {
        r->few(dst, src, n, r->count);
        return;
    }
    void *const to = dst;
    const dtr__reduce_job job = { &to, 1, src, n, r->op, divisor, NULL, false, false };
    r->loop(&job, r->count);
}

/* Whether the job alone fills the cache. */
static bool is_large(const dtr__reduce_job *job, size_t nbytes) {
    const size_t arrays = (size_t)job->n + (size_t)job->n_dst, never = 1 << 20;
    return nbytes > never && nbytes > dtr__last_cache() / arrays;
}

void dtr__reduce(void *dst, const void *const *src, int n, size_t count, dtr_dtype dtype, dtr_op op,
                 int divisor, const double *factors) {
    if (dtr__op_is_user(op)) {
        dtr__user_reduce(&dst, 1, src, n, count, dtype, op);
        return;
    }
    const dtr__reduce_job job = job_of(&dst, 1, src, n, op, divisor, factors);
    const bool stream = is_large(&job, count * dtr_dtype_size(dtype));
    dtr__reduce_with(dtr__kernels_current(), job, count, dtype,
                     stream ? DTR__NONTEMPORAL_ALL : DTR__NONTEMPORAL_NONE);
}

void dtr__reduce_piece(void *const *dst, int n_dst, const void *const *src, int n, size_t count,
                       dtr_dtype dtype, dtr_op op, int divisor, const double *factors,
                       dtr__nontemporal nontemporal) {
    if (dtr__op_is_user(op)) {
        dtr__user_reduce(dst, n_dst, src, n, count, dtype, op);
        return;
    }
    const dtr__reduce_job job = job_of(dst, n_dst, src, n, op, divisor, factors);
    dtr__reduce_with(dtr__kernels_current(), job, count, dtype, nontemporal);
}

/* memcpy copies by string instructions, which on some processors are ten times slower where `dst`
 * begins a few bytes after `src` within a page. */
void dtr__copy(void *dst, const void *src, size_t nbytes) {
    const dtr__kernel_set *set = dtr__kernels_current();
    const size_t ahead = ((uintptr_t)dst - (uintptr_t)src) % 4096;
    if (ahead > 0 && ahead < 64 && set->copy != NULL) {
        set->copy(dst, src, nbytes);
    } else {
        memcpy(dst, src, nbytes);
    }
}

void dtr__copy_nontemporal(void *dst, const void *src, size_t nbytes) {
    const dtr__kernel_set *set = dtr__kernels_current();
    if (set->stream != NULL) {
        set->stream(dst, src, nbytes);
    } else {
        memcpy(dst, src, nbytes);
    }
}

/* ---- search ---- */

static size_t find_nan(bool (*has_nan)(const void *, size_t), const void *src, size_t count,
                       dtr_dtype dtype) {
    const dtr_dtype real = dtr__real_part(dtype);
    const size_t width = real == dtype ? 1 : 2, size = dtr_dtype_size(real);
    const size_t total = count * width;
    for (size_t at = 0; at < total; at += DTR__TILE) {
        const size_t m = total - at < DTR__TILE ? total - at : DTR__TILE;
        const char *tile = (const char *)src + at * size;
        if (!has_nan(tile, m)) {
            continue;
        }
        size_t k = 0;
        while (!has_nan(tile + k * size, 1)) {
            k++;
        }
        return (at + k) / width;
    }
    return count;
}

size_t dtr__find_nan(const void *src, size_t count, dtr_dtype dtype) {
    bool (*has_nan)(const void *, size_t) = dtr__kernels_current()->has_nan[dtr__real_part(dtype)];
    if (has_nan == NULL) {
        return count;
    }
    const dtr__float_mode mode = dtr__float_enter(); /* looking at one may trap */
    const size_t at = find_nan(has_nan, src, count, dtype);
    dtr__float_leave(mode);
    return at;
}
