/* The same module twice, in host memory and on the device, which are to do the same. */
#ifndef DTR_DDP_PAIR_H
#define DTR_DDP_PAIR_H

#include <stdio.h>
#include <string.h>

#include "device_tensors.h"

enum { PARAMS = 4, HOST = 0, DEVICE = 1 };
static const int64_t pair_numel[PARAMS] = { 900, 5, 4100, 2049 };
static const char *const pair_names[PARAMS] = { "a", "b", "c", "d" };

typedef struct pair {
    dtr_ddp *ddp[2];
    dtr_tensor *value[2][PARAMS];
    cudaStream_t stream;
    int step;
} pair;

/* Whole numbers, few enough for bf16 and for exact averages over 1, 2 and 4 ranks. */
static inline float pattern(int rank, int step, int param, size_t k) {
    return (float)(((int)(k % 5) + param + step % 3) * (rank + 1) * 4 - 16);
}

/* The pattern of rank `rank` comes into a tensor of either side. */
static inline void write_pattern(const pair *m, dtr_tensor *t, int rank, int param) {
    int64_t n = (int64_t)dtr_tensor_numel(t);
    dtr_tensor *wide = on_host(DTR_F32, n, DTR_MEM_DEFAULT);
    dtr_tensor *same = on_host(dtr_tensor_dtype(t), n, DTR_MEM_PINNED);
    float *v = dtr_tensor_data(wide);
    for (size_t k = 0; k < (size_t)n; k++) {
        v[k] = pattern(rank, m->step, param, k);
    }
    TH_IS(dtr_tensor_copy(same, wide, NULL), DTR_OK);
    TH_IS(dtr_tensor_copy(t, same, m->stream), DTR_OK);
    TH_CHECK(cudaStreamSynchronize(m->stream) == cudaSuccess, "synchronize");
    dtr_tensor_release(wide);
    dtr_tensor_release(same);
}

/* Every byte of the device's tensor is that of the host's. */
static inline void same_bytes(const dtr_tensor *host, const dtr_tensor *device, const char *what) {
    static const size_t sizes[] = { [DTR_F16] = 2, [DTR_BF16] = 2, [DTR_F32] = 4, [DTR_F64] = 8 };
    dtr_dtype type = dtr_tensor_dtype(host);
    TH_CHECK(type == dtr_tensor_dtype(device), "%s: types differ", what);
    dtr_tensor *here = fetched(device, type);
    const char *a = dtr_tensor_data(here), *b = dtr_tensor_data(host);
    const size_t n = dtr_tensor_numel(host) * sizes[type];
    const bool same = memcmp(a, b, n) == 0;
    for (size_t k = 0; k < n && !same; k++) {
        TH_CHECK(a[k] == b[k], "%s: byte %zu is %d, on the host %d", what, k, a[k], b[k]);
    }
    dtr_tensor_release(here);
}

static inline void pair_open_with(pair *m, const dtr_ddp_options *given, dtr_dtype type,
                                  dtr_tensor *const *buffer) {
    *m = (pair){ .step = 0 };
    TH_CHECK(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    for (int side = 0; side < 2; side++) {
        dtr_param params[PARAMS], one = { "buffer", NULL, NULL, 0 };
        dtr_ddp_options o = *given;
        o.bucket_cap_bytes = o.first_bucket_bytes = 9000;
        for (int i = 0; i < PARAMS; i++) {
            m->value[side][i] = side == DEVICE ? on_gpu(type, pair_numel[i], 0, m->stream)
                                               : on_host(type, pair_numel[i], DTR_MEM_DEFAULT);
            write_pattern(m, m->value[side][i], th_rank(), i);
            params[i] = (dtr_param){ pair_names[i], m->value[side][i], NULL, 0 };
        }
        if (buffer != NULL) {
            one.value = buffer[side];
            o.buffers = &one;
            o.n_buffers = 1;
        }
        TH_IS(dtr_ddp_create(th_group(), params, PARAMS, &o, &m->ddp[side]), DTR_OK);
    }
}

static inline void pair_open(pair *m, const dtr_ddp_options *o, dtr_dtype type) {
    pair_open_with(m, o, type, NULL);
}

static inline void pair_close(pair *m) {
    close_both_sides(m->ddp, &m->value[0][0], PARAMS, m->stream);
}

static inline void *stream_of(const pair *m, int side) {
    return side == DEVICE ? m->stream : NULL;
}

/* Gradients by the pattern; the status of backward_end. */
static inline dtr_status backward_of(pair *m, int side) {
    for (int i = PARAMS; i-- > 0;) {
        write_pattern(m, dtr_ddp_grad(m->ddp[side], (size_t)i), th_rank(), i);
        TH_IS(dtr_ddp_grad_ready(m->ddp[side], (size_t)i, stream_of(m, side)), DTR_OK);
    }
    return dtr_ddp_backward_end(m->ddp[side], stream_of(m, side));
}

static inline void same_gradients(const pair *m, const char *what) {
    for (size_t i = 0; i < PARAMS; i++) {
        same_bytes(dtr_ddp_grad(m->ddp[HOST], i), dtr_ddp_grad(m->ddp[DEVICE], i), what);
    }
}

/* One step on both sides, whose averages are the same. */
static inline void step_both(pair *m, const char *what) {
    for (int side = 0; side < 2; side++) {
        TH_IS(backward_of(m, side), DTR_OK);
    }
    same_gradients(m, what);
    m->step++;
}

/* ---- a hook that averages in two steps: a sum, and behind it the division ---- */

static inline dtr_status pair_divide(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)state, (void)work;
    for (size_t k = 0; k < dtr_ddp_bucket_param_count(b); k++) {
        dtr_status s =
            dtr_tensor_scale(dtr_ddp_bucket_grad(b, k), 1.0 / th_size(), dtr_ddp_bucket_stream(b));
        if (s < 0) {
            return s;
        }
    }
    return DTR_OK;
}

static inline dtr_status pair_sum_then_divide(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_buffer buffer = dtr_ddp_bucket_buffer(b);
    o.stream = dtr_ddp_bucket_stream(b);
    dtr_status s = dtr_allreduce(dtr_ddp_bucket_group(b), buffer, buffer, DTR_SUM, &o, work);
    return s < 0 ? s : dtr_ddp_bucket_then(b, pair_divide, state);
}

#endif /* DTR_DDP_PAIR_H */
