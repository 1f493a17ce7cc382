/* The kernels for device memory: their list and the one argument all of them take. Plain C, for the
 * code that launches them, for the kernels and for the stand-in that runs their bodies. */
#ifndef DTR_DEVICE_KERNELS_H
#define DTR_DEVICE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/optim_numbers.h"

/* X(name): y = pattern; T(type, compute type): y *= alpha, y += alpha * x, sums of squares and
 * largest magnitudes by thread, and the 8-bit code (q8); C(to, from): conversions; I(name, type,
 * type of computation): whole numbers divided, as C does; N(bits): the first NaN, among elements of
 * so many bits. */
/* clang-format off */
#define DTR__KERNEL_INTEGERS(I) \
    I(u8, uint8_t, int32_t) I(i8, int8_t, int32_t) I(i32, int32_t, int32_t) I(i64, int64_t, int64_t) \
    I(u32, uint32_t, uint32_t) I(u64, uint64_t, uint64_t)
#define DTR__KERNEL_WIDTHS(N) N(8) N(16) N(32) N(64)
#define DTR__KERNEL_TYPES(T) T(f16, float) T(bf16, float) T(f32, float) T(f64, double)
#define DTR__KERNEL_CASTS(C)                        \
    C(f16, bf16) C(f16, f32) C(f16, f64)            \
    C(bf16, f16) C(bf16, f32) C(bf16, f64)          \
    C(f32, f16) C(f32, bf16) C(f32, f64)            \
    C(f64, f16) C(f64, bf16) C(f64, f32)
#define DTR__KERNELS_OF_TYPE(t, c) \
    DTR__KERNEL(scale_##t) DTR__KERNEL(axpy_##t) DTR__KERNEL(squares_##t) DTR__KERNEL(largest_##t) \
    DTR__KERNEL(q8_range_##t) DTR__KERNEL(q8_encode_##t) DTR__KERNEL(q8_decode_##t)
/* clang-format on */
#define DTR__KERNEL_OF_CAST(to, from) DTR__KERNEL(to##_from_##from)
#define DTR__KERNEL_OF_INTEGER(t, c, wide) DTR__KERNEL(divide_##t)
#define DTR__KERNEL_OF_WIDTH(bits) DTR__KERNEL(nan_##bits)
/* Every kernel, in order; define DTR__KERNEL(name) first. */
#define DTR__ALL_KERNELS                         \
    DTR__KERNEL(fill)                            \
    DTR__KERNEL_TYPES(DTR__KERNELS_OF_TYPE)      \
    DTR__KERNEL_CASTS(DTR__KERNEL_OF_CAST)       \
    DTR__KERNEL_INTEGERS(DTR__KERNEL_OF_INTEGER) \
    DTR__KERNEL_WIDTHS(DTR__KERNEL_OF_WIDTH)

/* Kernels that move many stretches of memory in one launch: y = x, and y = alpha * x of every pair
 * of types; M(name). Each in two sizes, for a table of few stretches and of most. */
/* clang-format off */
#define DTR__MANY_OF(M, from) \
    M(f16_from_##from) M(bf16_from_##from) M(f32_from_##from) M(f64_from_##from)
#define DTR__MANY_CASTS(M) \
    DTR__MANY_OF(M, f16) DTR__MANY_OF(M, bf16) DTR__MANY_OF(M, f32) DTR__MANY_OF(M, f64)
#define DTR__MANY_KERNELS(M) M(bytes) DTR__MANY_CASTS(M)
/* clang-format on */

/* Kernels of low-rank factors, F(name). */
#define DTR__FACTOR_KERNELS(F) F(orthogonal) F(left) F(right) F(sum) F(product)

/* Kernels that go over elements with gaps between them, S(name): copies of cells of so many bits,
 * and conversions among floats. */
#define DTR__STRIDED_KERNELS(S) S(u8) S(u16) S(u32) S(u64) S(u128) S(cast)

/* Kernels over many stretches of parameters and gradients, P(name): steps of the optimizers, and
 * sums of squares without rounding. In two sizes too. */
#define DTR__STEP_OF(P, t) P(sgd_##t) P(adam_##t) P(exact_##t)
#define DTR__STEP_KERNELS(P) \
    DTR__STEP_OF(P, f16) DTR__STEP_OF(P, bf16) DTR__STEP_OF(P, f32) DTR__STEP_OF(P, f64)

#define DTR__KERNEL(name) DTR__KERNEL_##name,
#define DTR__MANY(name) DTR__KERNEL_few_##name, DTR__KERNEL_most_##name,
#define DTR__FACTOR(name) DTR__KERNEL_factor_##name,
#define DTR__STRIDED(name) DTR__KERNEL_strided_##name,
typedef enum dtr__kernel {
    DTR__ALL_KERNELS DTR__MANY_KERNELS(DTR__MANY) DTR__FACTOR_KERNELS(DTR__FACTOR)
        DTR__STRIDED_KERNELS(DTR__STRIDED) DTR__STEP_KERNELS(DTR__MANY) DTR__N_KERNELS
} dtr__kernel;
#undef DTR__KERNEL
#undef DTR__MANY
#undef DTR__FACTOR
#undef DTR__STRIDED

/* The types of DTR__KERNEL_TYPES by number. */
#define DTR__KERNEL_TYPE(t, c) DTR__KERNEL_TYPE_##t,
enum { DTR__KERNEL_TYPES(DTR__KERNEL_TYPE) DTR__KERNEL_N_TYPES };
#undef DTR__KERNEL_TYPE

/* Elements are handled in groups of 8, which are read and written 16 bytes at a time; `groups` of
 * them from the first on, 0 where an address is no multiple of 16, and then one by one up to n. */
enum { DTR__GROUP = 8, DTR__KERNEL_THREADS = 256 };
typedef struct dtr__kernel_args {
    void *y;
    const void *x;
    uint64_t n, groups;
    double alpha;
    /* fill: its elements are bytes and its groups 16 of them. divide: the divisor. nan: the number
     * of the first element, and the bits above which a number without its sign is NaN; *y, a
     * uint64_t, becomes the number of the first NaN if that is less. The groups of the last two are
     * 16 bytes too. */
    uint64_t pattern[2];
    uint64_t head; /* bytes of fill before the first multiple of 16 */
} dtr__kernel_args;

/* The 8-bit code: this, then a byte of each element; value = (byte - zero) * scale. range: y[0] and
 * y[1], uint64_t, become the order (device_bodies.h) of the least element and of the negated
 * largest, y[2] the number of the first without a code, where these are less. encode: y is a code,
 * pattern[0] the address of those three. decode: x has pattern[1] codes of pattern[0] bytes each, y
 * becomes their average. All go by 16 elements, and then one by one. */
typedef struct dtr__q8_head {
    float scale, zero;
    uint64_t unused;
} dtr__q8_head;

/* A stretch is cut into chunks, which are shared out among blocks: `end` counts the chunks of this
 * and all earlier stretches, `last` the elements of its last one. The table is part of the
 * argument, so no memory of it has to live until the kernel has run. */
enum { DTR__CHUNK = 4096, DTR__CHUNK_BYTES = 16384, DTR__FEW = 64, DTR__MOST = 1024 };
typedef struct dtr__stretch {
    void *to;
    const void *from;
    uint32_t end, last;
} dtr__stretch;
/* One more for a table of no more than `most`, cut into chunks of `chunk` elements, of which there
 * is at least one; false: it is full. */
static inline bool dtr__stretch_put(dtr__stretch *s, uint32_t *n, uint32_t most, uint32_t chunk,
                                    void *to, const void *from, uint64_t count) {
    const uint64_t before = *n > 0 ? s[*n - 1].end : 0, more = (count + chunk - 1) / chunk;
    if (*n == most || (*n > 0 && before + more > UINT32_MAX)) {
        return false;
    }
    s[*n].to = to;
    s[*n].from = from;
    s[*n].end = (uint32_t)(before + more);
    s[(*n)++].last = (uint32_t)(count - (more - 1) * chunk);
    return true;
}
typedef struct dtr__many_head {
    double alpha;
    uint32_t n, unused;
} dtr__many_head;
typedef struct dtr__few_args {
    dtr__many_head head;
    dtr__stretch stretch[DTR__FEW];
} dtr__few_args;
typedef struct dtr__most_args {
    dtr__many_head head;
    dtr__stretch stretch[DTR__MOST];
} dtr__most_args;

/* A matrix value[n][m] and its factors, columns one behind the other: p[rank][n], q[rank][m]. Each
 * kernel has its shares of work of all matrices of a table: `end` counts those of this and all
 * earlier ones. left, p = value q: rows. right, q = value^T p: sums of DTR__FACTOR_ROWS rows of
 * four columns, in part[][rank][m]; sum: these added up. product, value = p q^T, error = what it
 * was before minus that: four elements of a row. orthogonal: the columns of q (right) or p; those
 * of q begin as numbers of a sequence, all or those that are zero, the matrix's first is its
 * `first`. */
enum { DTR__SHARE_ROWS, DTR__SHARE_PARTS, DTR__SHARE_SUMS, DTR__SHARE_CELLS, DTR__N_SHARES };
enum { DTR__FACTOR_ROWS = 256 };
enum { DTR__FILL_NONE, DTR__FILL_LOST, DTR__FILL_ALL };
typedef struct dtr__factor {
    float *value, *error, *p, *q, *part;
    uint64_t n, m, first;
    uint32_t rank, wide; /* wide: every row and column begins at a multiple of 16 bytes */
    uint64_t end[DTR__N_SHARES];
} dtr__factor;
typedef struct dtr__factor_args {
    const dtr__factor *of; /* device memory */
    uint64_t n, seed;
    double epsilon;
    uint32_t right, fill;
} dtr__factor_args;

/* y = x, cell by cell of both: the first dimension goes round fastest, steps are in bytes. cast:
 * their types, by number. */
enum { DTR__STRIDED_DIMS = 17 };
typedef struct dtr__strided_args {
    void *y;
    const void *x;
    uint64_t n;
    uint32_t ndim, to, from, narrow; /* narrow: n is below 2^32 */
    uint64_t size[DTR__STRIDED_DIMS];
    int64_t y_step[DTR__STRIDED_DIMS], x_step[DTR__STRIDED_DIMS];
} dtr__strided_args;

/* Steps: `to` of a stretch is a parameter, `from` its gradient, which is multiplied by `factor`;
 * number[i] says where the state of its first element lies in the arrays, with a bit for those that
 * do not decay. exact: `from` are the numbers, `m` is
 * a dtr__exact_squares, and number[i] what `first` becomes where it is more, for a stretch that has
 * an element which is NaN or infinite. */
enum { DTR__STEP_MOST = 768, DTR__STEP_NESTEROV = 1, DTR__STEP_APART = 2 };
#define DTR__STEP_PLAIN (UINT64_C(1) << 63)
typedef struct dtr__step_head {
    uint32_t n, flags;
    double factor, decay;
    dtr__numbers_float with_float; /* both say the same, in the types of arithmetic */
    uint32_t unused;
    dtr__numbers_double with_double;
    void *m, *v, *master; /* NULL: none */
} dtr__step_head;
typedef struct dtr__few_step {
    dtr__step_head head;
    dtr__stretch stretch[DTR__FEW];
    uint64_t number[DTR__FEW];
} dtr__few_step;
typedef struct dtr__most_step {
    dtr__step_head head;
    dtr__stretch stretch[DTR__STEP_MOST];
    uint64_t number[DTR__STEP_MOST];
} dtr__most_step;

/* Squares as whole numbers of the smallest unit that a square of a double can have,
 * 2^DTR__SQUARES_LEAST, in digits of 32 bits that have room for carries. */
enum { DTR__SQUARES_DIGITS = 136, DTR__SQUARES_LEAST = -2148 };
typedef struct dtr__squares {
    uint64_t digit[DTR__SQUARES_DIGITS];
    uint64_t nan, infinite; /* elements that were not added */
} dtr__squares;
typedef struct dtr__exact_squares {
    dtr__squares sum;
    uint64_t first;
} dtr__exact_squares;

#endif /* DTR_DEVICE_KERNELS_H */
