/* Every kernel as nvcc compiled it (its PTX, run by the stand-in) writes what its body in C writes,
 * bit for bit but for which NaN it is, at sizes and addresses that are awkward. Each buffer is a
 * block of its own length, so that whatever lies outside is found; what a kernel only writes, and
 * what lies before or between the elements of its operands, counts as never written, so that a read
 * of it is found. Argument: the beginning of the names of the kernels to run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "cuda/device_kernels.h"
#include "fake_cuda.h"

typedef enum cell { BYTES, F16, BF16, F32, F64 } cell;
static const size_t sizes[] = { [BYTES] = 1, [F16] = 2, [BF16] = 2, [F32] = 4, [F64] = 8 };
enum { ARRAYS = 5, BUFFERS = ARRAYS * 7 + 2, STRETCHES = 6, ODD = 6, WIDE = 3 };

/* What a run may touch; the contents are the same before each. */
typedef struct buffer {
    char *device;
    unsigned char *before, *by_body, *by_ptx;
    unsigned char *known; /* not 0: the kernel may read this byte */
    size_t nbytes;
    cell cells;  /* of which each NaN is as good as another */
    size_t head; /* bytes before the first of them */
} buffer;

static buffer buffers[BUFFERS];
static int n_buffers;
static uint64_t state;
static unsigned runs, failures;
static const char *only;

static uint64_t next(void) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void need(cudaError_t e, const char *what) {
    if (e != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

static uint16_t half_bits(float v, cell c) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return c == BF16 ? (uint16_t)(bits >> 16)
                     : (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 13) - (112 << 10)) % 0x7c00);
}

/* Of all bits there are, NaN and infinity too, and between them numbers of one size. */
static void put_number(unsigned char *at, cell c, bool any) {
    const uint64_t bits = next();
    const double v = ((double)(bits >> 11) / 0x1p53 - 0.5) * (bits % 3 == 0 ? 1e-3 : 40);
    const float narrow = (float)v;
    const uint16_t half = half_bits(narrow, c);
    const void *number = c == F64 ? (const void *)&v : c == F32 ? (const void *)&narrow : &half;
    memcpy(at, any && bits % 4 == 0 ? (const void *)&bits : number, sizes[c]);
}

/* A block of n cells with `head` bytes before them. */
static buffer *add(cell c, size_t n, size_t head, bool any) {
    buffer *b = &buffers[n_buffers++];
    *b = (buffer){ .nbytes = head + n * sizes[c], .cells = c, .head = head };
    if (n_buffers == BUFFERS || b->nbytes == 0) {
        fprintf(stderr, "too many buffers, or an empty one\n");
        exit(1);
    }
    b->before = malloc(4 * b->nbytes);
    b->by_body = b->before + b->nbytes;
    b->by_ptx = b->by_body + b->nbytes;
    b->known = b->by_ptx + b->nbytes;
    memset(b->known, 0, head);
    memset(b->known + head, 1, b->nbytes - head);
    need(cudaMalloc((void **)&b->device, b->nbytes), "cudaMalloc");
    for (size_t i = 0; i < head || (c == BYTES && i < b->nbytes); i++) {
        b->before[i] = (unsigned char)next();
    }
    for (size_t i = 0; c != BYTES && i < n; i++) {
        put_number(b->before + head + i * sizes[c], c, any);
    }
    return b;
}

/* A block that the kernel only writes. */
static buffer *add_output(cell c, size_t n, size_t head) {
    buffer *b = add(c, n, head, true);
    memset(b->known, 0, b->nbytes);
    return b;
}

static void set(buffer *b, const void *bytes) {
    memcpy(b->before, bytes, b->nbytes);
}

/* ---- two runs ---- */

static bool is_nan(const unsigned char *at, cell c) {
    uint16_t half;
    float f;
    double d;
    memcpy(&half, at, sizeof half);
    if (c == F16 || c == BF16) {
        return (half & 0x7fff) > (c == F16 ? 0x7c00 : 0x7f80);
    }
    if (c == F32) {
        memcpy(&f, at, sizeof f);
        return isnan(f);
    }
    memcpy(&d, at, sizeof d);
    return isnan(d);
}

static void compare(const buffer *b, const char *kernel, const char *how) {
    for (size_t i = 0; i < b->nbytes; i++) {
        if (b->by_body[i] == b->by_ptx[i]) {
            continue;
        }
        const size_t element = i < b->head ? 0 : (i - b->head) / sizes[b->cells];
        const size_t at = b->head + element * sizes[b->cells];
        if (i >= b->head && b->cells != BYTES && is_nan(b->by_body + at, b->cells) &&
            is_nan(b->by_ptx + at, b->cells)) {
            continue;
        }
        failures++;
        printf("%s, %s: byte %zu (element %zu) of %zu is 0x%02x, not 0x%02x\n", kernel, how, i,
               element, b->nbytes, b->by_ptx[i], b->by_body[i]);
        return;
    }
}

static void one_run(const char *name, const void *argument, unsigned blocks, bool ptx) {
    for (int i = 0; i < n_buffers; i++) {
        const buffer *b = &buffers[i];
        need(cudaMemcpy(b->device, b->before, b->nbytes, cudaMemcpyHostToDevice), "copy in");
        need(cudaDeviceSynchronize(), "wait"); /* a copy from pageable memory may go on */
        memcpy(dtr_fake_cuda_known(b->device, b->nbytes), b->known, b->nbytes);
    }
    if (dtr_fake_cuda_run(name, argument, blocks, DTR__KERNEL_THREADS, ptx) != 0) {
        printf("no kernel %s%s\n", name, ptx ? ": DTR_FAKE_CUDA_PTX names no PTX" : "");
        exit(1);
    }
    for (int i = 0; i < n_buffers; i++) {
        const buffer *b = &buffers[i];
        need(cudaMemcpy(ptx ? b->by_ptx : b->by_body, b->device, b->nbytes, cudaMemcpyDeviceToHost),
             "copy out");
    }
}

static bool wanted(const char *kernel) {
    return only == NULL || strncmp(kernel, only, strlen(only)) == 0;
}

/* Runs the kernel both ways, and gives the buffers back. */
static void both(const char *kernel, const void *argument, unsigned blocks, const char *how) {
    char name[64];
    snprintf(name, sizeof name, "dtr_kernel_%s", kernel);
    one_run(name, argument, blocks, false);
    one_run(name, argument, blocks, true);
    runs++;
    for (int i = 0; i < n_buffers; i++) {
        compare(&buffers[i], kernel, how);
        need(cudaFree(buffers[i].device), "cudaFree");
        free(buffers[i].before);
    }
    n_buffers = 0;
}

/* ---- kernels over one or two arrays ---- */

typedef enum kind {
    FILL,
    SCALE,
    AXPY,
    PARTIAL, /* a double for each thread */
    CAST,
    DIVIDE,
    FIRST_NAN,
    RANGE,
    ENCODE,
    DECODE
} kind;

/* A kernel, the elements of y and x, and how many are read at a time. */
typedef struct row {
    const char *name;
    kind kind;
    cell y, x;
    unsigned group, width; /* width: bytes of an element that is a whole number */
} row;

#define UPPER_f16 F16
#define UPPER_bf16 BF16
#define UPPER_f32 F32
#define UPPER_f64 F64
#define OF_TYPE(t, c)                                         \
    { "scale_" #t, SCALE, UPPER_##t, BYTES, 8, 0 },           \
        { "axpy_" #t, AXPY, UPPER_##t, UPPER_##t, 8, 0 },     \
        { "squares_" #t, PARTIAL, F64, UPPER_##t, 8, 0 },     \
        { "largest_" #t, PARTIAL, F64, UPPER_##t, 8, 0 },     \
        { "q8_range_" #t, RANGE, BYTES, UPPER_##t, 16, 0 },   \
        { "q8_encode_" #t, ENCODE, BYTES, UPPER_##t, 16, 0 }, \
        { "q8_decode_" #t, DECODE, UPPER_##t, BYTES, 16, 0 },
#define OF_CAST(to, from) { #to "_from_" #from, CAST, UPPER_##to, UPPER_##from, 8, 0 },
#define OF_INTEGER(t, c, wide) { "divide_" #t, DIVIDE, BYTES, BYTES, 16 / sizeof(c), sizeof(c) },
#define OF_WIDTH(bits) { "nan_" #bits, FIRST_NAN, BYTES, BYTES, 128 / (bits), (bits) / 8 },
static const row rows[] = { { "fill", FILL, BYTES, BYTES, 16, 1 },
                            DTR__KERNEL_TYPES(OF_TYPE) DTR__KERNEL_CASTS(OF_CAST)
                                DTR__KERNEL_INTEGERS(OF_INTEGER) DTR__KERNEL_WIDTHS(OF_WIDTH) };

/* As dtr__q8_order of device_bodies.h. */
static uint64_t order(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (bits & 0x80000000u) != 0 ? (uint32_t)~bits : bits | 0x80000000u;
}

static const uint64_t nothing[3] = { UINT64_MAX, UINT64_MAX, UINT64_MAX };

static void args_of_fill(dtr__kernel_args *a, size_t n, size_t skew) {
    a->y = add_output(BYTES, n, skew)->device + skew;
    a->head = skew == 0 ? 0 : 16 - skew % 16;
    a->head = a->head < n ? a->head : n;
    a->groups = (n - a->head) / 16;
}

/* Codes of some ranks in one buffer, each with its scale and zero. */
static void args_of_decode(dtr__kernel_args *a, size_t n) {
    const size_t ranks = 1 + n % 6;
    const size_t stride = (sizeof(dtr__q8_head) + n + 15) / 16 * 16;
    buffer *b = add(BYTES, ranks * stride - (stride - sizeof(dtr__q8_head) - n), 0, false);
    for (size_t r = 0; r < ranks; r++) {
        const dtr__q8_head h = { .scale = 0.25F + (float)r / 3, .zero = (float)(7 * r) };
        memcpy(b->before + r * stride, &h, sizeof h);
    }
    a->x = b->device;
    a->pattern[0] = stride;
    a->pattern[1] = ranks;
}

static void args_of_encode(dtr__kernel_args *a, size_t n, size_t skew) {
    const uint64_t found[3] = { order(-20.5F), order(-19), UINT64_MAX };
    buffer *b = add(BYTES, sizeof found, 0, false);
    set(b, next() % 4 == 0 ? nothing : found);
    a->pattern[0] = (uint64_t)(uintptr_t)b->device;
    a->y = add_output(BYTES, sizeof(dtr__q8_head) + n, skew)->device + skew;
}

/* Every third number is small. */
static void args_of_divide(dtr__kernel_args *a, const row *r, size_t n, size_t skew) {
    buffer *y = add(BYTES, n * r->width, skew, false);
    for (size_t i = 0; i < n; i += 3) {
        memset(y->before + skew + i * r->width + (r->width + 1) / 2, 0, r->width / 2);
    }
    a->y = y->device + skew;
    a->pattern[0] = 3;
}

/* Few of the numbers are NaN; of bytes they are those of f8e4m3. */
static void args_of_nan(dtr__kernel_args *a, const row *r, size_t n, size_t skew) {
    static const uint64_t limits[] = {
        [1] = 0x7e, [2] = 0x7c00, [4] = 0x7f800000, [8] = UINT64_C(0x7ff0000000000000)
    };
    buffer *x = add(BYTES, n * r->width, skew, false), *y;
    for (size_t i = 0; i < n; i++) {
        x->before[skew + (i + 1) * r->width - 1] &=
            next() % (n < 300 ? 20 : 900) == 0 ? 0xff : 0xb7;
    }
    a->x = x->device + skew;
    y = add(BYTES, sizeof(uint64_t), 0, false);
    set(y, nothing);
    a->y = y->device;
    a->pattern[0] = 5;
    a->pattern[1] = limits[r->width];
}

static void run_row(const row *r, size_t n, size_t skew, unsigned blocks) {
    dtr__kernel_args a = { .n = n, .alpha = 1 / 3.0, .pattern = { next(), next() } };
    const bool finite = r->kind == ENCODE; /* which looks at numbers that have a range */
    char how[96];
    a.groups = skew % 16 == 0 ? n / r->group : 0;
    switch (r->kind) {
    case FILL:
        args_of_fill(&a, n, skew);
        break;
    case DIVIDE:
        args_of_divide(&a, r, n, skew);
        break;
    case FIRST_NAN:
        args_of_nan(&a, r, n, skew);
        break;
    case PARTIAL:
        a.y = add_output(F64, (size_t)blocks * DTR__KERNEL_THREADS, 0)->device;
        break;
    case RANGE: {
        buffer *y = add(BYTES, sizeof nothing, 0, false);
        set(y, nothing);
        a.y = y->device;
        break;
    }
    case ENCODE:
        args_of_encode(&a, n, 0);
        break;
    case DECODE:
        args_of_decode(&a, n);
        a.y = add_output(r->y, n, skew)->device + skew;
        break;
    case CAST:
        a.y = add_output(r->y, n, skew)->device + skew;
        break;
    default:
        a.y = add(r->y, n, skew, true)->device + skew;
        break;
    }
    if (r->x != BYTES) {
        a.x = add(r->x, n, skew, !finite)->device + skew;
    }
    snprintf(how, sizeof how, "%zu elements, %zu bytes from a multiple of 16, %u blocks", n, skew,
             blocks);
    both(r->name, &a, blocks, how);
}

static void run_rows(void) {
    static const size_t lengths[] = { 1,  7,   8,   9,    15,   16,   17,  31,
                                      33, 255, 257, 2047, 2049, 4111, 9001 };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const row *r = &rows[i];
        const size_t step = r->kind == FILL ? 1 : r->width > 0 ? r->width : 8;
        for (size_t k = 0; wanted(r->name) && k < sizeof lengths / sizeof lengths[0]; k++) {
            run_row(r, lengths[k], 0, 1);
            run_row(r, lengths[k], 0, 3);
            run_row(r, lengths[k], step % 16, 2);
        }
    }
}

/* ---- many stretches ---- */

/* Stretches of a few lengths, one pair with addresses that are no multiples of 16. */
static void run_stretches(const char *name, cell to, cell from) {
    static const size_t lengths[STRETCHES] = { 1, 4096, 17, 5000, 12300, 40000 };
    const size_t chunk = to == BYTES ? DTR__CHUNK_BYTES : DTR__CHUNK;
    static const struct {
        unsigned blocks, n; /* of the stretches the last n */
    } launches[] = { { 1, STRETCHES }, { 5, STRETCHES }, { 2, 1 } };
    for (size_t k = 0; wanted(name) && k < sizeof launches / sizeof launches[0]; k++) {
        dtr__most_args a = { .head = { .alpha = 1 / 3.0, .n = launches[k].n } };
        uint32_t end = 0;
        char how[64];
        for (unsigned i = 0; i < a.head.n; i++) {
            const size_t n = lengths[STRETCHES - a.head.n + i], skew = i == 3 ? sizes[to] : 0;
            end += (uint32_t)((n + chunk - 1) / chunk);
            a.stretch[i].to = add_output(to, n, skew)->device + skew;
            a.stretch[i].from = add(from, n, 0, true)->device;
            a.stretch[i].end = end;
            a.stretch[i].last = (uint32_t)((n - 1) % chunk + 1);
        }
        snprintf(how, sizeof how, "%u stretches, %u blocks", a.head.n, launches[k].blocks);
        both(name, &a, launches[k].blocks, how);
    }
}

#define PAIR(to, from) UPPER_##to, UPPER_##from
#define FROM_ALL(to) NAME_PAIR(to, f16) NAME_PAIR(to, bf16) NAME_PAIR(to, f32) NAME_PAIR(to, f64)
#define NAME_PAIR(to, from)                                   \
    run_stretches("few_" #to "_from_" #from, PAIR(to, from)); \
    run_stretches("most_" #to "_from_" #from, PAIR(to, from));
static void run_many(void) {
    run_stretches("few_bytes", BYTES, BYTES);
    run_stretches("most_bytes", BYTES, BYTES);
    FROM_ALL(f16) FROM_ALL(bf16) FROM_ALL(f32) FROM_ALL(f64)
}

/* ---- low-rank factors ---- */

/* Matrices of awkward shapes; of the last every row begins at a multiple of 16 bytes. */
static const unsigned shapes[ODD + WIDE][3] = { { 1, 1, 1 },    { 5, 7, 2 },    { 33, 65, 3 },
                                                { 2, 600, 1 },  { 300, 13, 4 }, { 1290, 3, 2 },
                                                { 36, 300, 3 }, { 520, 36, 4 }, { 1293, 8, 2 } };

/* The argument for them, each array a block of its own, ARRAYS of each matrix before the table. */
static dtr__factor_args factors(bool wide, bool alone, uint32_t right, uint32_t fill) {
    dtr__factor table[ODD];
    uint64_t shares[DTR__N_SHARES] = { 0 };
    const unsigned end = wide ? ODD + WIDE : ODD,
                   n = alone  ? 1
                       : wide ? WIDE
                              : ODD,
                   first = end - n;
    for (unsigned k = 0; k < n; k++) {
        const unsigned rows_ = shapes[first + k][0], m = shapes[first + k][1];
        const unsigned rank = shapes[first + k][2];
        const unsigned chunks = (rows_ + DTR__FACTOR_ROWS - 1) / DTR__FACTOR_ROWS;
        dtr__factor *f = &table[k];
        *f = (dtr__factor){ .n = rows_, .m = m, .rank = rank, .first = 11 * k, .wide = wide };
        f->value = (float *)(void *)add(F32, (size_t)rows_ * m, 0, false)->device;
        f->error = (float *)(void *)add(F32, (size_t)rows_ * m, 0, false)->device;
        f->p = (float *)(void *)add(F32, (size_t)rows_ * rank, 0, false)->device;
        f->q = (float *)(void *)add(F32, (size_t)m * rank, 0, false)->device;
        f->part = (float *)(void *)add(F32, (size_t)chunks * rank * m, 0, false)->device;
        shares[DTR__SHARE_ROWS] += rows_;
        shares[DTR__SHARE_PARTS] += (uint64_t)chunks * ((m + 3) / 4);
        shares[DTR__SHARE_SUMS] += (uint64_t)rank * ((m + 3) / 4);
        shares[DTR__SHARE_CELLS] += (uint64_t)rows_ * ((m + 3) / 4);
        memcpy(f->end, shares, sizeof shares);
        if (fill == DTR__FILL_LOST && k % 2 == 1) { /* a column of q that is zero */
            memset(buffers[n_buffers - 2].before, 0, m * sizeof(float));
        }
    }
    buffer *t = add(BYTES, n * sizeof *table, 0, false);
    set(t, table);
    return (dtr__factor_args){ .of = (const dtr__factor *)(void *)t->device,
                               .n = n,
                               .seed = 42,
                               .epsilon = 1e-8,
                               .right = right,
                               .fill = fill };
}

/* `output`: which of the arrays the kernel only writes; ARRAYS: none. */
static void run_factor(const char *name, int output, bool wide, uint32_t right, uint32_t fill) {
    for (unsigned k = 0; wanted(name) && k < 3; k++) {
        const unsigned blocks = k == 0 ? 1 : 4;
        const dtr__factor_args a = factors(wide, k == 2, right, fill);
        char how[96];
        for (int i = output; output < ARRAYS && i < n_buffers - 1; i += ARRAYS) {
            memset(buffers[i].known, 0, buffers[i].nbytes);
        }
        snprintf(how, sizeof how, "%u %s matrices, right %u, fill %u, %u blocks", (unsigned)a.n,
                 wide ? "wide" : "odd", right, fill, blocks);
        both(name, &a, blocks, how);
    }
}

static void run_factors(void) {
    for (int wide = 0; wide < 2; wide++) {
        run_factor("factor_left", 2, wide, 0, DTR__FILL_NONE);
        run_factor("factor_right", 4, wide, 0, DTR__FILL_NONE);
        run_factor("factor_sum", 3, wide, 0, DTR__FILL_NONE);
        run_factor("factor_product", 1, wide, 0, DTR__FILL_NONE);
        run_factor("factor_orthogonal", ARRAYS, wide, 0, DTR__FILL_NONE);
        run_factor("factor_orthogonal", ARRAYS, wide, 1, DTR__FILL_LOST);
        run_factor("factor_orthogonal", 3, wide, 1, DTR__FILL_ALL);
    }
}

/* ---- gaps between elements ---- */

/* Three dimensions, y as a matrix of columns with gaps, x as one of rows; of x nobody has written
 * the gaps, which are every eighth cell. */
static void run_strided(const char *name, cell y, cell x, size_t size, int64_t first) {
    const uint32_t to = y == BYTES ? 0 : (uint32_t)(y - F16),
                   from = x == BYTES ? 0 : (uint32_t)(x - F16);
    const int64_t y_size = (int64_t)(y == BYTES ? size : sizes[y]);
    const int64_t x_size = (int64_t)(x == BYTES ? size : sizes[x]);
    const int64_t n[3] = { first, 7, 5 };
    for (uint32_t narrow = 0; wanted(name) && narrow < 2; narrow++) {
        const uint32_t ndim = first == 1 ? 0 : 3;
        dtr__strided_args a = {
            .n = ndim == 0 ? 1 : (uint64_t)(n[0] * n[1] * n[2]),
            .ndim = ndim,
            .to = to,
            .from = from,
            .narrow = narrow,
            .size = { (uint64_t)n[0], 7, 5 },
            .y_step = { y_size, y_size * (n[0] + 1), y_size * (n[0] + 1) * 8 },
            .x_step = { x_size * 40, -x_size, x_size * 8 },
        };
        char how[64];
        const size_t y_cells = (size_t)(n[0] + 1) * 8 * 5, x_cells = (size_t)n[0] * 40;
        a.y = add_output(y, y == BYTES ? size * y_cells : y_cells, 0)->device;
        buffer *from_x = add(x, x == BYTES ? size * x_cells : x_cells, 0, true);
        for (size_t i = 7; i < x_cells; i += 8) {
            memset(from_x->known + i * (size_t)x_size, 0, (size_t)x_size);
        }
        a.x = from_x->device + 6 * x_size;
        snprintf(how, sizeof how, "%d x 7 x 5, narrow %u", (int)first, narrow);
        both(name, &a, 3, how);
    }
}

static void run_all_strided(void) {
    static const int64_t firsts[] = { 1, 2, 33, 100 };
    for (size_t k = 0; k < sizeof firsts / sizeof firsts[0]; k++) {
        run_strided("strided_u8", BYTES, BYTES, 1, firsts[k]);
        run_strided("strided_u16", BYTES, BYTES, 2, firsts[k]);
        run_strided("strided_u32", BYTES, BYTES, 4, firsts[k]);
        run_strided("strided_u64", BYTES, BYTES, 8, firsts[k]);
        run_strided("strided_u128", BYTES, BYTES, 16, firsts[k]);
        for (cell to = F16; to <= F64; to++) {
            for (cell from = F16; from <= F64; from++) {
                run_strided("strided_cast", to, from, 0, firsts[k]);
            }
        }
    }
}

/* ---- steps ---- */

/* Stretches of lengths and places that are awkward; the state lies in arrays of its own. */
static void run_step(const char *name, cell t, bool adam, bool exact, uint32_t flags, bool arrays) {
    static const size_t lengths[STRETCHES] = { 1, 4096, 17, 5000, 12300, 40000 };
    const cell wide = t == F64 ? F64 : F32;
    for (unsigned blocks = 1; wanted(name) && blocks < 6; blocks += 4) {
        dtr__most_step a = {
            .head = { .flags = flags,
                      .factor = 0.75,
                      .decay = 0.1,
                      .with_float = { .01F, .9F, .9F, .99F, .1F, .01F, .19F, .0199F, 1e-8F },
                      .with_double = { .01, .9, .9, .99, .1, .01, .19, .0199, 1e-8 } },
        };
        uint64_t at = 0;
        char how[64];
        for (size_t i = 0; i < STRETCHES; i++) {
            const size_t n = lengths[i], skew = i == 3 ? sizes[t] : 0;
            (void)dtr__stretch_put(a.stretch, &a.head.n, STRETCHES, DTR__CHUNK,
                                   exact ? NULL : add(t, n, skew, true)->device + skew,
                                   add(t, n, 0, i != 2)->device, n);
            a.number[i] = exact ? i + 3 : at | (i % 2 == 0 ? DTR__STEP_PLAIN : 0);
            at += n + (i == 1 ? 3 : 0);
        }
        if (exact) {
            buffer *sums = add(BYTES, sizeof(dtr__exact_squares), 0, false);
            memset(sums->before, 0, sizeof(dtr__exact_squares) - sizeof(uint64_t));
            a.head.m = sums->device;
        } else {
            a.head.m = arrays ? add(wide, at, 0, true)->device : NULL;
            a.head.v = adam ? add(wide, at, 0, true)->device : NULL;
            a.head.master = sizes[t] == 2 ? add(wide, at, 0, true)->device : NULL;
        }
        snprintf(how, sizeof how, "flags %u, %s, %u blocks", flags, arrays ? "state" : "no state",
                 blocks);
        dtr__few_step few = { .head = a.head };
        memcpy(few.stretch, a.stretch, sizeof few.stretch);
        memcpy(few.number, a.number, sizeof few.number);
        both(name, name[0] == 'f' ? &few : (const void *)&a, blocks, how);
    }
}

#define STEP(size, t)                                                              \
    run_step(#size "_sgd_" #t, UPPER_##t, false, false, 0, false);                 \
    run_step(#size "_sgd_" #t, UPPER_##t, false, false, 0, true);                  \
    run_step(#size "_sgd_" #t, UPPER_##t, false, false, DTR__STEP_NESTEROV, true); \
    run_step(#size "_adam_" #t, UPPER_##t, true, false, 0, true);                  \
    run_step(#size "_adam_" #t, UPPER_##t, true, false, DTR__STEP_APART, true);    \
    run_step(#size "_exact_" #t, UPPER_##t, false, true, 0, false);
static void run_steps(void) {
    STEP(most, f16)
    STEP(most, bf16)
    STEP(most, f32) STEP(most, f64) STEP(few, f16) STEP(few, bf16) STEP(few, f32) STEP(few, f64)
}

/* Kernels of the PTX that nothing here has run. */
static unsigned never_run(void) {
    unsigned n = 0, times = 0;
    const char *name;
    for (unsigned k = 0; (name = dtr_fake_cuda_ptx_ran(k, &times)) != NULL; k++) {
        if (times == 0) {
            printf("%s was never run\n", name);
            n++;
        }
    }
    return n;
}

int main(int argc, char **argv) {
    only = argc > 1 ? argv[1] : NULL;
    run_rows();
    run_many();
    run_factors();
    run_all_strided();
    run_steps();
    printf("%u runs of kernels, %u differ between their PTX and their bodies\n", runs, failures);
    return runs == 0 || failures > 0 || (only == NULL && never_run() > 0);
}
