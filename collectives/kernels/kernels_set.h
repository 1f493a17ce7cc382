/* What one instruction set provides: a table of loops over memory. kernels_body.h fills it once per
 * set; the rest of this folder cuts calls into pieces for it. */
#ifndef DTR_KERNELS_SET_H
#define DTR_KERNELS_SET_H

#include "kernels.h"

enum {
    DTR__N_DTYPES = DTR_C128 + 1,
    DTR__N_REAL = DTR_F64 + 1, /* complex elements are pairs of real ones */
    DTR__TILE = 512,           /* elements of a temporary that stays in the first-level cache */
    DTR__STREAM_TILE = 8192,   /* bytes of one */
    DTR__STREAM_SOURCES = 4    /* with more of them reading is the limit and nothing is gained */
};

typedef struct dtr__reduce_job {
    void *const *dst;
    int n_dst;
    const void *const *src;
    int n;
    dtr_op op;
    int divisor;           /* AVG */
    const double *factors; /* PREMUL_SUM */
    bool past; /* all destinations but the first, aligned to 64 bytes, past the caches */
} dtr__reduce_job;

/* Pointers need no alignment; NULL where a type has no such loop. */
typedef struct dtr__kernel_set {
    const char *name;
    /* Bitwise operators: U8 and BOOL only. Without a loop of its own a type goes through float32.
     */
    void (*reduce[DTR__N_REAL])(const dtr__reduce_job *job, size_t count);
    /* f8 to f32; to float32, and times alpha from it. */
    void (*to_f32[DTR__N_REAL])(void *f32, const void *src, size_t n);
    void (*from_f32[DTR__N_REAL])(void *dst, const void *f32, size_t n, double alpha);
    void (*copy)(void *dst, const void *src, size_t nbytes);
    void (*stream)(void *dst, const void *src, size_t nbytes); /* copies past the caches */
    bool (*has_nan[DTR__N_REAL])(const void *src, size_t n);
} dtr__kernel_set;

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

/* dtr__reduce_to and dtr__convert(_scale) with the set spelled out. past: where the set can. */
void dtr__reduce_with(const dtr__kernel_set *set, dtr__reduce_job job, size_t count,
                      dtr_dtype dtype, dtr__past past);
void dtr__convert_with(const dtr__kernel_set *set, void *dst, dtr_dtype to, const void *src,
                       dtr_dtype from, size_t count, double alpha, bool scale);

/* The type of a complex element's two parts; other types are themselves. */
static inline dtr_dtype dtr__real_part(dtr_dtype d) {
    return d == DTR_C64 ? DTR_F32 : d == DTR_C128 ? DTR_F64 : d;
}

#endif /* DTR_KERNELS_SET_H */
