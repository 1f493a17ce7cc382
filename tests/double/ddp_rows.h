/* The same module with row-sparse gradients twice, in host memory and on the device, which are to
 * give the same bits. */
#ifndef DTR_DDP_ROWS_H
#define DTR_DDP_ROWS_H

#include <stdio.h>
#include <stdlib.h>

#include <dtr/dtr.h>

#include "data.h"
#include "device_tensors.h"
#include "fake_cuda.h"

enum { HOST, DEVICE, PARAMS = 4, MOST = 9, WIDE = 3 };
enum { DENSE_A, TABLE, DENSE_B, LIST }; /* TABLE is [12, 3], LIST [40] */
static const int64_t shapes[PARAMS][2] = { { 900, 0 }, { 12, WIDE }, { 2049, 0 }, { 40, 0 } };
static const char *const names[PARAMS] = { "a", "table", "b", "list" };
static const dtr_device cpu = { DTR_CPU, 0 };

typedef struct pair {
    dtr_dtype type;
    dtr_ddp *ddp[2];
    dtr_tensor *value[2][PARAMS];
    cudaStream_t stream[2]; /* gradients; averages on the first */
    int step;
} pair;

static inline bool is_sparse(int i) {
    return i == TABLE || i == LIST;
}

static inline dtr_tensor *tensor(dtr_dtype d, dtr_device where, dtr_mem kind, int ndim,
                                 const int64_t *shape) {
    dtr_tensor *t = NULL;
    TH_IS(dtr_tensor_empty(th_world(), d, where, kind, ndim, shape, &t), DTR_OK);
    return t;
}

static inline void release(dtr_tensor *t[2]) {
    dtr_tensor_release(t[0]);
    dtr_tensor_release(t[1]);
}

/* Released by pair_close: to free memory that a device knows waits for it, which would hide that
 * somebody else does not. */
enum { MOST_KEPT = 2000 };
static dtr_tensor *kept_until_close[MOST_KEPT][2];
static int n_kept_until_close;

static inline void release_later(dtr_tensor *const t[2]) {
    TH_CHECK(n_kept_until_close < MOST_KEPT, "too many");
    for (int k = 0; k < 2 && n_kept_until_close < MOST_KEPT; k++) {
        kept_until_close[n_kept_until_close][k] = t[k];
    }
    n_kept_until_close++;
}

static inline void pair_open(pair *m, const dtr_ddp_options *o, dtr_dtype type) {
    *m = (pair){ .type = type };
    for (int k = 0; k < 2; k++) {
        TH_CHECK(cudaStreamCreateWithFlags(&m->stream[k], cudaStreamNonBlocking) == cudaSuccess,
                 "stream");
    }
    for (int side = 0; side < 2; side++) {
        dtr_param params[PARAMS];
        for (int i = 0; i < PARAMS; i++) {
            dtr_tensor *t = tensor(type, side == HOST ? cpu : gpu, DTR_MEM_DEFAULT,
                                   i == TABLE ? 2 : 1, shapes[i]);
            TH_IS(dtr_tensor_fill(t, 1, m->stream[0]), DTR_OK);
            TH_CHECK(cudaStreamSynchronize(m->stream[0]) == cudaSuccess, "synchronize");
            m->value[side][i] = t;
            params[i] = (dtr_param){ names[i], t, NULL, is_sparse(i) ? DTR_PARAM_SPARSE : 0 };
        }
        TH_IS(dtr_ddp_create(th_group(), params, PARAMS, o, &m->ddp[side]), DTR_OK);
    }
}

static inline void pair_close(pair *m) {
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_ddp_destroy(m->ddp[side]), DTR_OK);
        for (int i = 0; i < PARAMS; i++) {
            dtr_tensor_release(m->value[side][i]);
        }
    }
    while (n_kept_until_close > 0) {
        release(kept_until_close[--n_kept_until_close]);
    }
    for (int k = 0; k < 2; k++) {
        cudaStreamDestroy(m->stream[k]);
    }
    TH_AGREE();
}

/* ---- gradients ---- */

/* How many rows a rank gives: another number on each, none on one of them, sometimes on all. */
static inline int n_rows(const pair *m, int i) {
    return m->step % 5 == 3 ? 0 : (3 * th_rank() + m->step + i) % (MOST + 1);
}

static inline int64_t row_of(const pair *m, int i, int k) {
    return k == 4 ? row_of(m, i, 0) : (7 * th_rank() + 5 * m->step + 4 * k + i) % shapes[i][0];
}

static inline double value_of(const pair *m, int k, int j) {
    return 1.0 / (3 + th_rank() + 2 * m->step + 5 * k + j) - 0.125;
}

/* Rows with their numbers in pinned memory. */
static inline void host_rows(const pair *m, int i, int n, dtr_dtype type, dtr_tensor *out[2]) {
    const int64_t shape[] = { n, WIDE };
    const int width = i == TABLE ? WIDE : 1;
    out[0] = tensor(DTR_I64, cpu, DTR_MEM_PINNED, 1, shape);
    out[1] = tensor(type, cpu, DTR_MEM_PINNED, i == TABLE ? 2 : 1, shape);
    for (int k = 0; k < n; k++) {
        ((int64_t *)dtr_tensor_data(out[0]))[k] = row_of(m, i, k);
        for (int j = 0; j < width; j++) {
            th_set(dtr_tensor_data(out[1]), type, (size_t)(k * width + j), value_of(m, k, j), 0);
        }
    }
}

/* The same on the device, behind what `stream` holds. */
static inline void copies(dtr_tensor *const from[2], dtr_tensor *to[2], cudaStream_t stream) {
    for (int k = 0; k < 2; k++) {
        to[k] = tensor(dtr_tensor_dtype(from[k]), gpu, DTR_MEM_DEFAULT, dtr_tensor_ndim(from[k]),
                       dtr_tensor_shape(from[k]));
        TH_IS(dtr_tensor_copy(to[k], from[k], stream), DTR_OK);
    }
}

static inline cudaStream_t stream_of(const pair *m, int i) {
    return m->stream[i == DENSE_B || i == LIST];
}

/* Rank's rows of parameter i, on one side. Copies may still be under way. */
static inline void give(const pair *m, int side, int i, dtr_tensor *const rows[2]) {
    dtr_tensor *there[2];
    if (side == HOST) {
        TH_IS(dtr_ddp_set_sparse_grad(m->ddp[side], (size_t)i, rows[0], rows[1]), DTR_OK);
        return;
    }
    copies(rows, there, stream_of(m, i));
    TH_IS(dtr_ddp_set_sparse_grad(m->ddp[side], (size_t)i, there[0], there[1]), DTR_OK);
    release_later(there);
}

static inline dtr_status ready(const pair *m, int side, int i) {
    return dtr_ddp_grad_ready(m->ddp[side], (size_t)i, side == DEVICE ? stream_of(m, i) : NULL);
}

/* A dense gradient whose average is whole on any number of ranks. */
static inline void dense(const pair *m, int side, int i) {
    dtr_tensor *g = dtr_ddp_grad(m->ddp[side], (size_t)i);
    TH_IS(dtr_tensor_fill(g, th_size() * (th_rank() + i), stream_of(m, i)), DTR_OK);
    TH_IS(ready(m, side, i), DTR_OK);
}

/* ---- results ---- */

/* Every byte is that of the host's, and both are where they belong. */
static inline void same_bits(const pair *m, const dtr_tensor *host, const dtr_tensor *there) {
    static const size_t sizes[] = {
        [DTR_F16] = 2, [DTR_BF16] = 2, [DTR_F32] = 4, [DTR_F64] = 8, [DTR_I64] = 8, [DTR_C64] = 8
    };
    const dtr_dtype type = dtr_tensor_dtype(host);
    const size_t n = dtr_tensor_numel(host);
    TH_CHECK(dtr_tensor_device(there).type == DTR_CUDA, "step %d: a result in host memory",
             m->step);
    TH_CHECK(type == dtr_tensor_dtype(there) && n == dtr_tensor_numel(there) &&
                 dtr_tensor_ndim(there) == dtr_tensor_ndim(host),
             "step %d: %zu elements, on the host %zu", m->step, dtr_tensor_numel(there), n);
    if (n == 0 || n != dtr_tensor_numel(there)) {
        return;
    }
    dtr_tensor *here =
        tensor(type, cpu, DTR_MEM_PINNED, dtr_tensor_ndim(there), dtr_tensor_shape(there));
    TH_IS(dtr_tensor_copy(here, there, m->stream[0]), DTR_OK); /* behind backward_end alone */
    TH_CHECK(cudaStreamSynchronize(m->stream[0]) == cudaSuccess, "synchronize");
    TH_CHECK(memcmp(dtr_tensor_data(here), dtr_tensor_data(host), n * sizes[type]) == 0,
             "step %d: other bits than on the host", m->step);
    dtr_tensor_release(here);
}

static inline void same_rows(const pair *m, int i) {
    dtr_tensor *rows[2] = { NULL, NULL }, *values[2] = { NULL, NULL };
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_ddp_sparse_grad(m->ddp[side], (size_t)i, &rows[side], &values[side]), DTR_OK);
        TH_CHECK(dtr_ddp_grad_defined(m->ddp[side], (size_t)i), "'%s' is not defined", names[i]);
    }
    if (rows[HOST] != NULL && rows[DEVICE] != NULL) {
        same_bits(m, rows[HOST], rows[DEVICE]);
        same_bits(m, values[HOST], values[DEVICE]);
    }
}

static inline void same_all(const pair *m, bool sum) {
    float all = 0;
    for (int r = 0; r < th_size(); r++) {
        all += (float)r;
    }
    for (int i = 0; i < PARAMS; i++) {
        if (is_sparse(i)) {
            same_rows(m, i);
            continue;
        }
        float want = (all + (float)(th_size() * i)) * (sum ? (float)th_size() : 1);
        check_each(dtr_ddp_grad(m->ddp[DEVICE], (size_t)i), want, "average", names[i]);
    }
    TH_AGREE();
}

/* ---- steps ---- */

/* Gradients of both sides, in an order that depends on step and rank. */
static inline void backward(const pair *m, int side, dtr_dtype type) {
    static const int orders[3][PARAMS] = { { 3, 2, 1, 0 }, { 1, 3, 0, 2 }, { 0, 1, 2, 3 } };
    dtr_tensor *rows[2];
    for (int k = 0; k < PARAMS; k++) {
        const int i = orders[(m->step + th_rank()) % 3][k];
        if (!is_sparse(i)) {
            dense(m, side, i);
            continue;
        }
        host_rows(m, i, n_rows(m, i), type, rows);
        give(m, side, i, rows);
        TH_IS(ready(m, side, i), DTR_OK);
        release_later(rows);
    }
}

static inline dtr_status end(const pair *m, int side) {
    cudaEvent_t e; /* gradients are used again behind the averages */
    if (side == HOST) {
        return dtr_ddp_backward_end(m->ddp[side], NULL);
    }
    dtr_status s = dtr_ddp_backward_end(m->ddp[side], m->stream[0]);
    TH_CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming) == cudaSuccess, "event");
    TH_CHECK(cudaEventRecord(e, m->stream[0]) == cudaSuccess, "record");
    TH_CHECK(cudaStreamWaitEvent(m->stream[1], e, 0) == cudaSuccess, "wait");
    cudaEventDestroy(e);
    return s;
}

static inline void step_both(pair *m, bool sum) {
    for (int side = 0; side < 2; side++) {
        backward(m, side, m->type);
        TH_IS(end(m, side), DTR_OK);
    }
    same_all(m, sum);
    m->step++;
}

#endif /* DTR_DDP_ROWS_H */
