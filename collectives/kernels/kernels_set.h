/* What one instruction set provides: a table of loops over memory. kernels_body.h fills it once per
 * set; the rest of this folder cuts calls into pieces for it. */
#ifndef DTR_KERNELS_SET_H
#define DTR_KERNELS_SET_H

#include "base/dtype.h"
#include "exact.h"
#include "kernels.h"

enum {
    DTR__TILE = 512,         /* elements of a temporary that stays in the first-level cache */
    DTR__STREAM_TILE = 8192, /* bytes of one */
    DTR__STREAM_SOURCES = 4  /* with more of them reading is the limit and nothing is gained */
};

typedef struct dtr__reduce_job {
    void *const *dst;
    int n_dst;
    const void *const *src;
    int n;
    dtr_op op;             /* without DTR__EXACT */
    int divisor;           /* AVG */
    const double *factors; /* PREMUL_SUM */
    bool nontemporal; /* all destinations but the first, aligned to 64 bytes, nontemporal the caches
                       */
    bool exact;       /* the operator came with DTR__EXACT */
} dtr__reduce_job;

enum { DTR__EXACT_STEP = 32, DTR__EXACT_TILE = 256 };

/* Exact sums of up to that many elements over all sources, in the making. */
typedef struct dtr__exact_tile {
    int64_t top[DTR__EXACT_TILE];   /* the largest magnitude, as bits */
    int64_t sign[DTR__EXACT_TILE];  /* negative where all are */
    int64_t at[2][DTR__EXACT_TILE]; /* cuts, bits of doubles */
    double sum[2][DTR__EXACT_TILE]; /* of what lies above them */
    int64_t rest[DTR__EXACT_TILE];  /* whether anything lies below both */
    double value[DTR__EXACT_TILE];
} dtr__exact_tile;

/* Exact sums (exact.h); blocks are multiples of DTR__EXACT_STEP. */
typedef struct dtr__exact_loops {
    double (*top)(const double *x, size_t n);
    bool (*cut)(const double *x, double *rest, size_t n, const double at[2], double sums[2]);
    void (*products)(double *to, const double *a, const double *b, double scale, size_t n);
    void (*look)(dtr__exact_tile *t, const double *x, size_t n);
    void (*place)(dtr__exact_tile *t, int width, size_t n);
    void (*collect)(dtr__exact_tile *t, const double *x, size_t n);
    void (*round)(dtr__exact_tile *t, bool odd, size_t n);
} dtr__exact_loops;

/* Pointers need no alignment; NULL where a type has no such loop, as complex types, whose elements
 * are pairs of real ones. */
typedef struct dtr__kernel_set {
    const char *name;
    /* Bitwise operators: u8 and bool only. Logical ones: bool, u16, u32 and u64. Without a loop of
     * its own a type goes through float32.
     */
    void (*reduce[DTR__N_DTYPES])(const dtr__reduce_job *job, size_t count);
    /* f8 to f32; to float32, and times alpha from it. */
    void (*to_f32[DTR__N_DTYPES])(void *f32, const void *src, size_t n);
    void (*from_f32[DTR__N_DTYPES])(void *dst, const void *f32, size_t n, double alpha);
    void (*copy)(void *dst, const void *src, size_t nbytes);
    void (*stream)(void *dst, const void *src, size_t nbytes); /* copies nontemporal the caches */
    bool (*has_nan[DTR__N_DTYPES])(const void *src, size_t n);
    dtr__exact_loops exact;
} dtr__kernel_set;

/* Of pairs, which are the same in every set. */
void dtr__reduce_f32_index(const dtr__reduce_job *job, size_t count);
void dtr__reduce_f64_index(const dtr__reduce_job *job, size_t count);
void dtr__reduce_i64_index(const dtr__reduce_job *job, size_t count);

extern const dtr__kernel_set dtr__kernels_scalar;
#if defined(__x86_64__)
extern const dtr__kernel_set dtr__kernels_avx2;
extern const dtr__kernel_set dtr__kernels_avx512;
#elif defined(__aarch64__)
extern const dtr__kernel_set dtr__kernels_neon;
#endif

/* The set of that name, NULL where this CPU or build has none. */
const dtr__kernel_set *dtr__kernels_find(const char *name);

/* The set in use. */
const dtr__kernel_set *dtr__kernels_current(void);

/* dtr__reduce_piece and dtr__convert(_scale) with the set spelled out. Non-temporal stores only
 * where the set has them. */
void dtr__reduce_with(const dtr__kernel_set *set, dtr__reduce_job job, size_t count,
                      dtr_dtype dtype, dtr__nontemporal nontemporal);
void dtr__convert_with(const dtr__kernel_set *set, void *dst, dtr_dtype to, const void *src,
                       dtr_dtype from, size_t count, double alpha, bool scale);

/* The same with exact sums (exact.h), of floats. */
void dtr__exact_reduce(const dtr__kernel_set *set, const dtr__reduce_job *job, size_t count,
                       dtr_dtype dtype);

/* The type of a complex element's two parts; other types are themselves. */
static inline dtr_dtype dtr__real_part(dtr_dtype d) {
    return d == DTR_C64 ? DTR_F32 : d == DTR_C128 ? DTR_F64 : d;
}

#endif /* DTR_KERNELS_SET_H */
