/* The arithmetic of PowerSGD in host memory. */
#include <math.h>

#include "base/float_mode.h"
#include "powersgd.h"

static float dot(const float *a, const float *b, size_t n) {
    enum { LANES = 8 };
    float part[LANES] = { 0 };
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        for (size_t i = 0; i < LANES; i++) {
            part[i] += a[k + i] * b[k + i];
        }
    }
    float sum = 0;
    for (; k < n; k++) {
        sum += a[k] * b[k];
    }
    for (size_t i = 0; i < LANES; i++) {
        sum += part[i];
    }
    return sum;
}

static void axpy(float *y, float alpha, const float *x, size_t n) {
    for (size_t k = 0; k < n; k++) {
        y[k] += alpha * x[k];
    }
}

static double norm(const float *x, size_t n) {
    double sum = 0;
    for (size_t k = 0; k < n; k++) {
        sum += (double)x[k] * x[k];
    }
    return sqrt(sum);
}

/* Gram-Schmidt on columns, twice, because what is left of a nearly dependent column is rounding
 * noise and not orthogonal after one pass. A dependent column becomes zero, a zero one stays. */
static void orthogonalise(float *columns, size_t n, size_t rank, double epsilon) {
    static const double noise = 1e-5;
    for (size_t c = 0; c < rank; c++) {
        float *x = columns + c * n;
        double before = norm(x, n), after = before;
        for (int pass = 0; pass < 2; pass++) {
            for (size_t k = 0; k < c; k++) {
                const float *y = columns + k * n;
                axpy(x, -dot(y, x, n), y, n);
            }
            after = norm(x, n);
        }
        if (after <= noise * before) {
            memset(x, 0, n * sizeof *x);
            continue;
        }
        for (size_t k = 0; k < n; k++) {
            x[k] = (float)(x[k] / (after + epsilon));
        }
    }
}

/* The number at place `at` of a sequence. */
static float random_at(uint64_t seed, uint64_t at) {
    uint64_t s = seed + at * DTR__POWER_STEP;
    return (float)((double)(dtr__power_random(&s) >> 11) * 0x1p-52 - 1);
}

/* The same numbers on all ranks: fills every column, or only those that were lost. */
static void random_factor(const dtr__low_rank *l, uint64_t seed, bool all) {
    for (size_t k = 0; k < l->n_matrices; k++) {
        const dtr__power_matrix *x = &l->matrix[k];
        for (size_t c = 0; c < x->rank; c++) {
            float *column = x->q + c * x->m;
            if (!all && norm(column, x->m) > 0) {
                continue;
            }
            for (size_t i = 0; i < x->m; i++) {
                column[i] = random_at(seed, (uint64_t)(column - l->q) + i);
            }
        }
    }
}

/* p = value q */
static void left_factor(const dtr__power_matrix *x) {
    for (size_t c = 0; c < x->rank; c++) {
        for (size_t i = 0; i < x->n; i++) {
            x->p[c * x->n + i] = dot(x->value + i * x->m, x->q + c * x->m, x->m);
        }
    }
}

/* q = value^T p */
static void right_factor(const dtr__power_matrix *x) {
    memset(x->q, 0, x->m * x->rank * sizeof(float));
    for (size_t c = 0; c < x->rank; c++) {
        for (size_t i = 0; i < x->n; i++) {
            axpy(x->q + c * x->m, x->p[c * x->n + i], x->value + i * x->m, x->m);
        }
    }
}

/* value becomes p q^T, error what it was before minus that. */
static void product(const dtr__power_matrix *x, float *error) {
    for (size_t i = 0; i < x->n; i++) {
        float *row = x->value + i * x->m, *lost = error + i * x->m;
        memcpy(lost, row, x->m * sizeof(float));
        memset(row, 0, x->m * sizeof(float));
        for (size_t c = 0; c < x->rank; c++) {
            axpy(row, x->p[c * x->n + i], x->q + c * x->m, x->m);
        }
        for (size_t k = 0; k < x->m; k++) {
            lost[k] -= row[k];
        }
    }
}

/* ---- the table ---- */

static dtr_status load(dtr_ddp_bucket *b, dtr__low_rank *l) {
    for (size_t k = 0; k < l->n_slots; k++) {
        dtr__tensor_copy_raw(l->tensor[k], dtr_ddp_bucket_grad(b, k));
    }
    return DTR_OK;
}

static dtr_status store(dtr_ddp_bucket *b, dtr__low_rank *l) {
    for (size_t k = 0; k < l->n_slots; k++) {
        dtr__tensor_copy_raw(dtr_ddp_bucket_grad(b, k), l->tensor[k]);
    }
    return DTR_OK;
}

static dtr_status add_error(dtr_ddp_bucket *b, dtr__low_rank *l) {
    const dtr__float_mode mode = dtr__float_enter();
    (void)b;
    axpy(l->value, 1, l->error, l->values);
    dtr__float_leave(mode);
    return DTR_OK;
}

static dtr_status left(dtr_ddp_bucket *b, dtr__low_rank *l, uint64_t seed, bool all,
                       double epsilon) {
    const dtr__float_mode mode = dtr__float_enter();
    (void)b;
    random_factor(l, seed, all);
    for (size_t k = 0; k < l->n_matrices; k++) {
        orthogonalise(l->matrix[k].q, l->matrix[k].m, l->matrix[k].rank, epsilon);
        left_factor(&l->matrix[k]);
    }
    dtr__float_leave(mode);
    return DTR_OK;
}

static dtr_status right(dtr_ddp_bucket *b, dtr__low_rank *l, double epsilon) {
    const dtr__float_mode mode = dtr__float_enter();
    (void)b;
    for (size_t k = 0; k < l->n_matrices; k++) {
        orthogonalise(l->matrix[k].p, l->matrix[k].n, l->matrix[k].rank, epsilon);
        right_factor(&l->matrix[k]);
    }
    dtr__float_leave(mode);
    return DTR_OK;
}

static dtr_status products(dtr_ddp_bucket *b, dtr__low_rank *l) {
    const dtr__float_mode mode = dtr__float_enter();
    (void)b;
    for (size_t k = 0; k < l->n_matrices; k++) {
        product(&l->matrix[k], l->error + (l->matrix[k].value - l->value));
    }
    dtr__float_leave(mode);
    return DTR_OK;
}

static dtr_status read(const dtr_ddp *ddp, void *here, const float *there, size_t count) {
    (void)ddp;
    memcpy(here, there, count * sizeof *there);
    return DTR_OK;
}

static dtr_status write(const dtr_ddp *ddp, float *there, const void *here, size_t count) {
    (void)ddp;
    memcpy(there, here, count * sizeof *there);
    return DTR_OK;
}

const dtr__power_math dtr__power_host = {
    .load = load,
    .store = store,
    .add_error = add_error,
    .left = left,
    .right = right,
    .product = products,
    .read = read,
    .write = write,
};
