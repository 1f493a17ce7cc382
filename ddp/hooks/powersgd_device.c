/* The arithmetic of PowerSGD on a CUDA device, by kernels on the module's stream. The host waits
 * only where memory is made and where the state is saved or restored. */
#include <stdlib.h>

#include "cuda/device_kernels.h"
#include "powersgd.h"

enum { MOST_BLOCKS = 1056, WARP = 32 };

/* ---- to and from the host ---- */

static dtr_status transfer(const dtr_ddp *ddp, void *to, const void *from, size_t nbytes,
                           dtr__copy_kind kind) {
    const dtr__ddp_gpu *g = ddp->gpu;
    int code = g->ops->copy(g->index, to, from, nbytes, kind, g->stream);
    DTR_CUDA_TRY(code == 0 ? g->ops->stream_synchronize(g->index, g->stream) : code, DTR_ERR_CUDA);
    return DTR_OK;
}

/* Through pinned memory, as for every copy that is queued. */
static dtr_status upload(const dtr_ddp *ddp, void *there, const void *here, size_t nbytes) {
    const dtr__device_ops *ops = ddp->gpu->ops;
    void *pinned = NULL;
    if (nbytes == 0) {
        return DTR_OK;
    }
    DTR_CUDA_TRY(ops->pinned_alloc(ddp->gpu->index, nbytes, &pinned), DTR_ERR_NOMEM);
    memcpy(pinned, here, nbytes);
    dtr_status s = transfer(ddp, there, pinned, nbytes, DTR__COPY_TO_DEVICE);
    (void)ops->pinned_free(ddp->gpu->index, pinned);
    return s;
}

static dtr_status download(const dtr_ddp *ddp, void *here, const float *there, size_t count) {
    const dtr__device_ops *ops = ddp->gpu->ops;
    size_t nbytes = count * sizeof *there;
    void *pinned = NULL;
    if (nbytes == 0) {
        return DTR_OK;
    }
    DTR_CUDA_TRY(ops->pinned_alloc(ddp->gpu->index, nbytes, &pinned), DTR_ERR_NOMEM);
    dtr_status s = transfer(ddp, pinned, there, nbytes, DTR__COPY_TO_HOST);
    if (s == DTR_OK) {
        memcpy(here, pinned, nbytes);
    }
    (void)ops->pinned_free(ddp->gpu->index, pinned);
    return s;
}

static dtr_status write_numbers(const dtr_ddp *ddp, float *there, const void *here, size_t count) {
    return upload(ddp, there, here, count * sizeof *there);
}

/* ---- the table ---- */

static bool on_16(const float *p) {
    return (uintptr_t)p % 16 == 0;
}

static size_t chunks_of(const dtr__power_matrix *x) {
    return (x->n + DTR__FACTOR_ROWS - 1) / DTR__FACTOR_ROWS;
}

/* One matrix; the shares of the ones before it are in `l`, and become those up to it. */
static dtr__factor describe(dtr__low_rank *l, const dtr__power_matrix *x, float *part) {
    size_t quads = (x->m + 3) / 4;
    l->shares[DTR__SHARE_ROWS] += x->n;
    l->shares[DTR__SHARE_PARTS] += chunks_of(x) * quads;
    l->shares[DTR__SHARE_SUMS] += x->rank * quads;
    l->shares[DTR__SHARE_CELLS] += x->n * quads;
    dtr__factor f = { .value = x->value,
                      .error = l->error + (x->value - l->value),
                      .p = x->p,
                      .q = x->q,
                      .part = part,
                      .n = x->n,
                      .m = x->m,
                      .first = (uint64_t)(x->q - l->q),
                      .rank = (uint32_t)x->rank };
    f.wide = x->m % 4 == 0 && on_16(f.value) && on_16(f.error) && on_16(f.q) && on_16(f.part);
    memcpy(f.end, l->shares, sizeof f.end);
    return f;
}

static dtr_status prepare(dtr_ddp_bucket *b, dtr__low_rank *l) {
    size_t nbytes = l->n_matrices * sizeof(dtr__factor), part = 0;
    if (l->n_matrices == 0) {
        return DTR_OK;
    }
    for (size_t k = 0; k < l->n_matrices; k++) {
        part += chunks_of(&l->matrix[k]) * l->matrix[k].rank * l->matrix[k].m;
    }
    dtr__factor *table = malloc(nbytes);
    DTR_REQUIRE(table != NULL, NULL, DTR_ERR_NOMEM, "no memory for a table of %zu matrices",
                l->n_matrices);
    dtr_status s = dtr__hook_memory(b->ddp, DTR_U8, nbytes, &l->table);
    s = s == DTR_OK ? dtr__hook_memory(b->ddp, DTR_F32, part, &l->part) : s;
    float *at = s == DTR_OK ? (float *)(void *)l->part->data : NULL;
    for (size_t k = 0; s == DTR_OK && k < l->n_matrices; k++) {
        table[k] = describe(l, &l->matrix[k], at);
        at += chunks_of(&l->matrix[k]) * l->matrix[k].rank * l->matrix[k].m;
    }
    s = s == DTR_OK ? upload(b->ddp, l->table->data, table, nbytes) : s;
    free(table);
    return s;
}

/* ---- kernels ---- */

static dtr_status launch(const dtr_ddp_bucket *b, const dtr__low_rank *l, int kernel,
                         dtr__factor_args a, uint64_t threads) {
    const dtr__ddp_gpu *g = b->ddp->gpu;
    uint64_t blocks = (threads + DTR__KERNEL_THREADS - 1) / DTR__KERNEL_THREADS;
    if (l->n_matrices == 0) {
        return DTR_OK;
    }
    a.of = (const dtr__factor *)(const void *)l->table->data;
    a.n = l->n_matrices;
    blocks = blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS;
    DTR_CUDA_TRY(g->ops->launch(g->index, kernel, &a, (unsigned)blocks, g->stream), DTR_ERR_CUDA);
    return DTR_OK;
}

static dtr_status orthogonal(const dtr_ddp_bucket *b, const dtr__low_rank *l, dtr__factor_args a) {
    return launch(b, l, DTR__KERNEL_factor_orthogonal, a, l->n_matrices * DTR__KERNEL_THREADS);
}

static dtr_status left(dtr_ddp_bucket *b, dtr__low_rank *l, uint64_t seed, bool all,
                       double epsilon) {
    const dtr__factor_args a = {
        .seed = seed, .epsilon = epsilon, .right = 1, .fill = all ? DTR__FILL_ALL : DTR__FILL_LOST
    };
    DTR_TRY(orthogonal(b, l, a));
    return launch(b, l, DTR__KERNEL_factor_left, a, l->shares[DTR__SHARE_ROWS] * WARP);
}

static dtr_status right(dtr_ddp_bucket *b, dtr__low_rank *l, double epsilon) {
    const dtr__factor_args a = { .epsilon = epsilon, .fill = DTR__FILL_NONE };
    DTR_TRY(orthogonal(b, l, a));
    DTR_TRY(launch(b, l, DTR__KERNEL_factor_right, a, l->shares[DTR__SHARE_PARTS]));
    return launch(b, l, DTR__KERNEL_factor_sum, a, l->shares[DTR__SHARE_SUMS]);
}

static dtr_status product(dtr_ddp_bucket *b, dtr__low_rank *l) {
    const dtr__factor_args a = { .fill = DTR__FILL_NONE };
    return launch(b, l, DTR__KERNEL_factor_product, a, l->shares[DTR__SHARE_CELLS]);
}

static dtr_status add_error(dtr_ddp_bucket *b, dtr__low_rank *l) {
    return l->values > 0 ? dtr_tensor_axpy(l->memory[0], 1, l->memory[1], b->ddp->at.stream)
                         : DTR_OK;
}

/* ---- gradients ---- */

/* All of a bucket in one launch; gradients lie without gaps, matrices row by row. */
static dtr_status move(dtr_ddp_bucket *b, const dtr__low_rank *l, bool in) {
    const dtr__ddp_at at = { b->ddp->at.device, b->ddp->at.stream };
    for (size_t k = 0; k < l->n_slots; k++) {
        const dtr_tensor *grad = dtr_ddp_bucket_grad(b, k), *own = l->tensor[k];
        const dtr_tensor *to = in ? own : grad, *from = in ? grad : own;
        b->pieces[k] =
            (dtr__ddp_piece){ to->data, from->data, grad->numel, to->dtype, from->dtype };
    }
    return b->ddp->mover->move(b->pieces, l->n_slots, 1, &at);
}

static dtr_status load(dtr_ddp_bucket *b, dtr__low_rank *l) {
    return move(b, l, true);
}

static dtr_status store(dtr_ddp_bucket *b, dtr__low_rank *l) {
    return move(b, l, false);
}

const dtr__power_math dtr__power_device = {
    .prepare = prepare,
    .load = load,
    .store = store,
    .add_error = add_error,
    .left = left,
    .right = right,
    .product = product,
    .read = download,
    .write = write_numbers,
};
