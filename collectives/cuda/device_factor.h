/* The kernels of low-rank factors (PowerSGD): value is about p q^T, matrix by matrix of a table in
 * device memory. What a warp or a block adds up together is added up by its first thread on the
 * stand-in, which runs one thread after the other, in the same order. */
#ifndef DTR_DEVICE_FACTOR_H
#define DTR_DEVICE_FACTOR_H

#include "device_bodies.h"

enum { DTR__WARP = 32, DTR__WARPS = DTR__KERNEL_THREADS / DTR__WARP };

/* ---- sums ---- */

/* Lane's part of the product of row i of value and column c of q. */
DTR__BODY float dtr__row_part(const dtr__factor *f, uint64_t i, unsigned c, unsigned lane);
DTR__BODY double dtr__column_part(const float *a, const float *b, uint64_t n, unsigned lane) {
    double sum = 0;
    for (uint64_t k = lane; k < n; k += DTR__KERNEL_THREADS) {
        sum += (double)a[k] * (double)b[k];
    }
    return sum;
}

#ifdef __CUDACC__
#define DTR__FIRST_OF_TEAM(lane) true
#define DTR__EACH(k, n, lane) for (uint64_t k = (lane); k < (n); k += DTR__KERNEL_THREADS)
DTR__BODY float dtr__row_sum(const dtr__factor *f, uint64_t i, unsigned c, unsigned lane) {
    float sum = dtr__row_part(f, i, c, lane);
    for (int d = DTR__WARP / 2; d > 0; d /= 2) {
        sum += __shfl_xor_sync(~0u, sum, d);
    }
    return sum;
}
DTR__BODY double dtr__column_sum(const float *a, const float *b, uint64_t n, unsigned lane) {
    __shared__ double parts[DTR__WARPS];
    double sum = dtr__column_part(a, b, n, lane), total = 0;
    for (int d = DTR__WARP / 2; d > 0; d /= 2) {
        sum += __shfl_xor_sync(~0u, sum, d);
    }
    if (lane % DTR__WARP == 0) {
        parts[lane / DTR__WARP] = sum;
    }
    __syncthreads();
    for (int w = 0; w < DTR__WARPS; w++) {
        total += parts[w];
    }
    __syncthreads();
    return total;
}
#else
#define DTR__FIRST_OF_TEAM(lane) ((lane) == 0)
#define DTR__EACH(k, n, lane) for (uint64_t k = 0; k < (n); k++)
DTR__BODY float dtr__row_sum(const dtr__factor *f, uint64_t i, unsigned c, unsigned lane) {
    float part[DTR__WARP];
    (void)lane;
    for (unsigned l = 0; l < DTR__WARP; l++) {
        part[l] = dtr__row_part(f, i, c, l);
    }
    for (unsigned d = DTR__WARP / 2; d > 0; d /= 2) {
        for (unsigned l = 0; l < d; l++) {
            part[l] += part[l + d];
        }
    }
    return part[0];
}
DTR__BODY double dtr__column_sum(const float *a, const float *b, uint64_t n, unsigned lane) {
    double total = 0;
    (void)lane;
    for (unsigned w = 0; w < DTR__WARPS; w++) {
        double part[DTR__WARP];
        for (unsigned l = 0; l < DTR__WARP; l++) {
            part[l] = dtr__column_part(a, b, n, DTR__WARP * w + l);
        }
        for (unsigned d = DTR__WARP / 2; d > 0; d /= 2) {
            for (unsigned l = 0; l < d; l++) {
                part[l] += part[l + d];
            }
        }
        total += part[0];
    }
    return total;
}
#endif

/* ---- four neighbours of a row ---- */

typedef union dtr__quad {
    dtr__words words;
    float cell[4];
} dtr__quad;

#ifdef __CUDACC__ /* the compiler would split these to share code with the other kind */
DTR__BODY dtr__quad dtr__quad_get(const float *from) {
    dtr__quad v;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.cell[0]), "=f"(v.cell[1]), "=f"(v.cell[2]), "=f"(v.cell[3])
                 : "l"(__cvta_generic_to_global(from)));
    return v;
}
DTR__BODY void dtr__quad_put(float *to, const dtr__quad *v) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "f"(v->cell[0]), "f"(v->cell[1]), "f"(v->cell[2]), "f"(v->cell[3])
                 : "memory");
}
#else
DTR__BODY dtr__quad dtr__quad_get(const float *from) {
    dtr__quad v;
    v.words = *(const dtr__words *)from;
    return v;
}
DTR__BODY void dtr__quad_put(float *to, const dtr__quad *v) {
    *(dtr__words *)to = v->words;
}
#endif

DTR__BODY dtr__quad dtr__quad_load(const float *row, uint64_t at, uint64_t end, bool wide) {
    dtr__quad v;
    if (wide) {
        return dtr__quad_get(row + at);
    }
    for (unsigned i = 0; i < 4; i++) {
        v.cell[i] = at + i < end ? row[at + i] : 0;
    }
    return v;
}

DTR__BODY void dtr__quad_store(float *row, uint64_t at, uint64_t end, bool wide,
                               const dtr__quad *v) {
    if (wide) {
        dtr__quad_put(row + at, v);
        return;
    }
    for (unsigned i = 0; i < 4 && at + i < end; i++) {
        row[at + i] = v->cell[i];
    }
}

DTR__BODY uint64_t dtr__quads(uint64_t m) {
    return (m + 3) / 4;
}

/* ---- the table ---- */

DTR__BODY const dtr__factor *dtr__factors(const dtr__factor_args *a) {
    return (const dtr__factor *)DTR__TOUCH(a->of);
}

/* The matrix of a share of work, which becomes its number there. */
DTR__BODY const dtr__factor *dtr__factor_of(const dtr__factor *f, uint64_t n, int kind,
                                            uint64_t *share) {
    uint64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const uint64_t mid = (lo + hi) / 2;
        if (*share < f[mid].end[kind]) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    *share -= lo > 0 ? f[lo - 1].end[kind] : 0;
    return &f[lo];
}

/* ---- p = value q ---- */

DTR__BODY float dtr__row_quads(const dtr__factor *f, uint64_t i, unsigned c, unsigned lane,
                               bool wide) {
    const float *row = (const float *)DTR__TOUCH(f->value) + i * f->m;
    const float *q = (const float *)DTR__TOUCH(f->q) + c * f->m;
    float sum = 0;
    for (uint64_t j = 4 * (uint64_t)lane; j < f->m; j += 4 * DTR__WARP) {
        const dtr__quad v = dtr__quad_load(row, j, f->m, wide);
        const dtr__quad w = dtr__quad_load(q, j, f->m, wide);
        for (int k = 0; k < 4; k++) {
            sum += v.cell[k] * w.cell[k];
        }
    }
    return sum;
}
DTR__BODY float dtr__row_part(const dtr__factor *f, uint64_t i, unsigned c, unsigned lane) {
    return f->wide ? dtr__row_quads(f, i, c, lane, true) : dtr__row_quads(f, i, c, lane, false);
}

/* A warp takes a row at a time. */
DTR__BODY void dtr__body_factor_left(const dtr__factor_args *a, uint64_t tid, uint64_t threads) {
    const dtr__factor *table = dtr__factors(a);
    const unsigned lane = (unsigned)(tid % DTR__WARP);
    if (!DTR__FIRST_OF_TEAM(lane)) {
        return;
    }
    const uint64_t rows = table[a->n - 1].end[DTR__SHARE_ROWS];
    for (uint64_t row = tid / DTR__WARP; row < rows; row += threads / DTR__WARP) {
        uint64_t i = row;
        const dtr__factor *f = dtr__factor_of(table, a->n, DTR__SHARE_ROWS, &i);
        for (unsigned c = 0; c < f->rank; c++) {
            const float sum = dtr__row_sum(f, i, c, lane);
            if (lane == 0) {
                ((float *)DTR__TOUCH(f->p))[c * f->n + i] = sum;
            }
        }
    }
}

/* ---- shares of four columns ---- */

/* A thread takes a share at a time; each kind of matrix has its own code. */
#define DTR__DEFINE_SHARES(name, kind)                                                          \
    DTR__BODY void dtr__body_factor_##name(const dtr__factor_args *a, uint64_t tid,             \
                                           uint64_t threads) {                                  \
        const dtr__factor *table = dtr__factors(a);                                             \
        for (uint64_t k = tid; k < table[a->n - 1].end[kind]; k += threads) {                   \
            uint64_t share = k;                                                                 \
            const dtr__factor *f = dtr__factor_of(table, a->n, kind, &share);                   \
            const uint64_t row = share / dtr__quads(f->m), j = share % dtr__quads(f->m) * 4;    \
            f->wide ? dtr__share_##name(f, row, j, true) : dtr__share_##name(f, row, j, false); \
        }                                                                                       \
    }

/* q = value^T p: the sums over DTR__FACTOR_ROWS rows. */
DTR__BODY void dtr__share_right(const dtr__factor *f, uint64_t chunk, uint64_t j, bool wide) {
    const uint64_t first = chunk * DTR__FACTOR_ROWS, end = first + DTR__FACTOR_ROWS;
    const uint64_t last = end < f->n ? end : f->n;
    const float *value = (const float *)DTR__TOUCH(f->value);
    const float *p = (const float *)DTR__TOUCH(f->p);
    float *part = (float *)DTR__TOUCH(f->part) + chunk * f->rank * f->m;
    for (unsigned c = 0; c < f->rank; c++) {
        dtr__quad sum = { { 0, 0, 0, 0 } };
        DTR__UNROLL_4
        for (uint64_t i = first; i < last; i++) {
            const dtr__quad v = dtr__quad_load(value + i * f->m, j, f->m, wide);
            const float factor = p[c * f->n + i];
            for (int e = 0; e < 4; e++) {
                sum.cell[e] += factor * v.cell[e];
            }
        }
        dtr__quad_store(part + c * f->m, j, f->m, wide, &sum);
    }
}
DTR__DEFINE_SHARES(right, DTR__SHARE_PARTS)

/* The sums of all rows, of column c of q. */
DTR__BODY void dtr__share_sum(const dtr__factor *f, uint64_t c, uint64_t j, bool wide) {
    const uint64_t chunks = (f->n + DTR__FACTOR_ROWS - 1) / DTR__FACTOR_ROWS;
    const float *part = (const float *)DTR__TOUCH(f->part) + c * f->m;
    dtr__quad sum = { { 0, 0, 0, 0 } };
    DTR__UNROLL_4
    for (uint64_t h = 0; h < chunks; h++) {
        const dtr__quad v = dtr__quad_load(part + h * f->rank * f->m, j, f->m, wide);
        for (int e = 0; e < 4; e++) {
            sum.cell[e] += v.cell[e];
        }
    }
    dtr__quad_store((float *)DTR__TOUCH(f->q) + c * f->m, j, f->m, wide, &sum);
}
DTR__DEFINE_SHARES(sum, DTR__SHARE_SUMS)

/* value = p q^T of row i; error becomes what value was before, minus that. */
DTR__BODY void dtr__share_product(const dtr__factor *f, uint64_t i, uint64_t j, bool wide) {
    float *row = (float *)DTR__TOUCH(f->value) + i * f->m;
    float *lost = (float *)DTR__TOUCH(f->error) + i * f->m;
    const float *p = (const float *)DTR__TOUCH(f->p);
    const float *q = (const float *)DTR__TOUCH(f->q);
    dtr__quad before = dtr__quad_load(row, j, f->m, wide), sum = { { 0, 0, 0, 0 } };
    for (unsigned c = 0; c < f->rank; c++) {
        const dtr__quad w = dtr__quad_load(q + c * f->m, j, f->m, wide);
        const float factor = p[c * f->n + i];
        for (int e = 0; e < 4; e++) {
            sum.cell[e] += factor * w.cell[e];
        }
    }
    for (int e = 0; e < 4; e++) {
        before.cell[e] -= sum.cell[e];
    }
    dtr__quad_store(row, j, f->m, wide, &sum);
    dtr__quad_store(lost, j, f->m, wide, &before);
}
DTR__DEFINE_SHARES(product, DTR__SHARE_CELLS)

/* ---- orthogonal columns ---- */

/* The number at place `at` of a sequence, from -1 to 1; the same as on the host. */
DTR__BODY float dtr__factor_random(uint64_t seed, uint64_t at) {
    uint64_t z = seed + (at + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z = z ^ z >> 31;
    return (float)((double)(z >> 11) / 4503599627370496.0 - 1);
}

/* Gram-Schmidt, as on the host. A lane writes what it alone reads again, but for the sums. */
DTR__BODY void dtr__orthogonalise(const dtr__factor_args *a, const dtr__factor *f, unsigned lane) {
    const uint64_t n = a->right ? f->m : f->n;
    float *columns = (float *)DTR__TOUCH(a->right ? f->q : f->p);
    for (unsigned c = 0; c < f->rank; c++) {
        float *x = columns + c * n;
        double before = 0, after = 0;
        if (a->fill != DTR__FILL_ALL) { /* or nobody may have written the column */
            before = sqrt(dtr__column_sum(x, x, n, lane));
        }
        if (a->fill != DTR__FILL_NONE && !(before > 0)) {
            DTR__EACH(k, n, lane) {
                x[k] = dtr__factor_random(a->seed, f->first + c * n + k);
            }
            before = sqrt(dtr__column_sum(x, x, n, lane));
        }
        for (int pass = 0; pass < 2; pass++) {
            for (unsigned k = 0; k < c; k++) {
                const float *y = columns + k * n;
                const float dot = (float)dtr__column_sum(y, x, n, lane);
                DTR__EACH(e, n, lane) {
                    x[e] -= dot * y[e];
                }
            }
        }
        after = sqrt(dtr__column_sum(x, x, n, lane));
        const bool dependent = after <= 1e-5 * before;
        DTR__EACH(k, n, lane) {
            x[k] = dependent ? 0 : (float)(x[k] / (after + a->epsilon));
        }
    }
}

/* A block takes a matrix at a time. */
DTR__BODY void dtr__body_factor_orthogonal(const dtr__factor_args *a, uint64_t tid,
                                           uint64_t threads) {
    const dtr__factor *table = dtr__factors(a);
    const unsigned lane = (unsigned)(tid % DTR__KERNEL_THREADS);
    if (!DTR__FIRST_OF_TEAM(lane)) {
        return;
    }
    for (uint64_t k = tid / DTR__KERNEL_THREADS; k < a->n; k += threads / DTR__KERNEL_THREADS) {
        dtr__orthogonalise(a, &table[k], lane);
    }
}

#endif /* DTR_DEVICE_FACTOR_H */
