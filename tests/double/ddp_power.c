/* PowerSGD (ddp:PS1-PS9) with parameters on the device, beside the same on the host, and what it
 * queues. Over nccl and over stage (DTR_TEST_STAGE=1). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "device_tensors.h"
#include "fake_cuda.h"

enum { PARAMS = 6, STEPS = 6, HOST = 0, DEVICE = 1 };
/* Rows that begin at multiples of 16 bytes and rows that do not, more rows than a thread adds up,
 * fewer than the rank, two that travel as they are. */
static const int64_t shapes[PARAMS][4] = {
    { 64, 64 }, { 300, 33 }, { 3, 100 }, { 50 }, { 16, 8, 3, 3 }, { 5, 7 },
};
static const int dimensions[PARAMS] = { 2, 2, 2, 1, 4, 2 };
static const char *const names[PARAMS] = { "square", "tall", "flat", "bias", "kernel", "small" };

typedef struct power {
    dtr_ddp *ddp[2];
    dtr_tensor *value[2][PARAMS];
    dtr_dtype type;
    cudaStream_t stream;
} power;

static dtr_hook_options options(int rank) {
    dtr_hook_options o = DTR_HOOK_OPTIONS_INIT;
    o.rank = rank;
    o.start_iteration = 2;
    o.generator_start = 5;
    return o;
}

static dtr_tensor *parameter(const power *m, int side, int i) {
    dtr_tensor *t = NULL;
    const dtr_device where = side == DEVICE ? gpu : (dtr_device){ DTR_CPU, 0 };
    TH_IS(
        dtr_tensor_empty(th_world(), m->type, where, DTR_MEM_DEFAULT, dimensions[i], shapes[i], &t),
        DTR_OK);
    TH_IS(dtr_tensor_fill(t, 1, side == DEVICE ? m->stream : NULL), DTR_OK);
    TH_CHECK(cudaStreamSynchronize(m->stream) == cudaSuccess, "synchronize"); /* create reads it */
    return t;
}

static void power_open(power *m, dtr_dtype type, bool view, const dtr_hook_options *h) {
    *m = (power){ .type = type };
    TH_CHECK(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    for (int side = 0; side < 2; side++) {
        dtr_param params[PARAMS];
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = o.first_bucket_bytes = 30000;
        o.grad_as_bucket_view = view;
        for (int i = 0; i < PARAMS; i++) {
            m->value[side][i] = parameter(m, side, i);
            params[i] = (dtr_param){ names[i], m->value[side][i], NULL, 0 };
        }
        TH_IS(dtr_ddp_create(th_group(), params, PARAMS, &o, &m->ddp[side]), DTR_OK);
        TH_IS(dtr_ddp_register_builtin_hook(m->ddp[side], DTR_HOOK_POWERSGD, h), DTR_OK);
    }
}

static void power_close(power *m) {
    close_both_sides(m->ddp, &m->value[0][0], PARAMS, m->stream);
}

/* Element k of parameter i: two large directions, smaller ones, and noise; `zero`: nothing. */
static float element(int i, size_t k, int step, bool zero) {
    size_t m = 1;
    for (int d = 1; d < dimensions[i]; d++) {
        m *= (size_t)shapes[i][d];
    }
    const float r = (float)(k / m), c = (float)(k % m), a = (float)(th_rank() + 1 + step % 2);
    const float noise = (float)(((k * 2654435761u + (size_t)(step * 77 + i)) >> 7) % 1000) / 1e4f;
    return zero ? 0
                : a * (sinf(r + 1) * cosf(c) + 0.3f * cosf(3 * r) * sinf(2 * c + (float)i)) + noise;
}

static void write_gradient(const power *m, int side, int i, int step, bool zero) {
    dtr_tensor *t = dtr_ddp_grad(m->ddp[side], (size_t)i);
    int64_t n = (int64_t)dtr_tensor_numel(t);
    dtr_tensor *wide = on_host(DTR_F32, n, DTR_MEM_DEFAULT);
    dtr_tensor *same = on_host(m->type, n, DTR_MEM_PINNED);
    for (size_t k = 0; k < (size_t)n; k++) {
        ((float *)dtr_tensor_data(wide))[k] = element(i, k, step, zero);
    }
    TH_IS(dtr_tensor_copy(same, wide, NULL), DTR_OK);
    if (side == DEVICE) {
        dtr_tensor *there = NULL; /* one row of all elements */
        TH_IS(dtr_tensor_reshape(t, 1, &n, &there), DTR_OK);
        TH_IS(dtr_tensor_copy(there, same, m->stream), DTR_OK);
        TH_CHECK(cudaStreamSynchronize(m->stream) == cudaSuccess, "synchronize");
        dtr_tensor_release(there);
    } else {
        memcpy(dtr_tensor_data(t), dtr_tensor_data(same),
               (size_t)n * (m->type == DTR_F64   ? 8
                            : m->type == DTR_F32 ? 4
                                                 : 2));
    }
    dtr_tensor_release(wide);
    dtr_tensor_release(same);
}

static void backward(power *m, int side, int step, bool zero) {
    void *stream = side == DEVICE ? m->stream : NULL;
    for (int i = 0; i < PARAMS; i++) {
        write_gradient(m, side, i, step, zero);
    }
    dtr_fake_cuda_log_start();
    for (int i = PARAMS; i-- > 0;) {
        TH_IS(dtr_ddp_grad_ready(m->ddp[side], (size_t)i, stream), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(m->ddp[side], stream), DTR_OK);
}

static dtr_tensor *result(const power *m, int side, int i) {
    dtr_tensor *t = dtr_ddp_grad(m->ddp[side], (size_t)i), *flat = NULL, *wide;
    int64_t n = (int64_t)dtr_tensor_numel(t);
    TH_IS(dtr_tensor_reshape(t, 1, &n, &flat), DTR_OK);
    if (side == DEVICE) {
        wide = fetched(flat, DTR_F32);
    } else {
        wide = on_host(DTR_F32, n, DTR_MEM_DEFAULT);
        TH_IS(dtr_tensor_copy(wide, flat, NULL), DTR_OK);
    }
    dtr_tensor_release(flat);
    return wide;
}

/* As on the host within `bound` of the gradient's size, and the same bits on every rank. */
static void compare(const power *m, int step, double bound) {
    for (int i = 0; i < PARAMS; i++) {
        dtr_tensor *want = result(m, HOST, i), *got = result(m, DEVICE, i);
        const float *w = dtr_tensor_data(want), *g = dtr_tensor_data(got);
        double worst = 0, largest = 1;
        uint64_t bits = 0, low = 0, high = 0;
        for (size_t k = 0; k < dtr_tensor_numel(want); k++) {
            uint32_t word;
            memcpy(&word, &g[k], sizeof word);
            bits = (bits ^ word) * UINT64_C(1099511628211) >> 1;
            worst = fabs((double)g[k] - w[k]) > worst || isnan(g[k]) ? fabs((double)g[k] - w[k])
                                                                     : worst;
            largest = fabs((double)w[k]) > largest ? fabs((double)w[k]) : largest;
        }
        TH_CHECK(worst <= bound * largest, "step %d, '%s': off by %g of %g", step, names[i], worst,
                 largest);
        MPI_Allreduce(&bits, &low, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
        MPI_Allreduce(&bits, &high, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
        TH_CHECK(low == high, "step %d, '%s': ranks differ", step, names[i]);
        dtr_tensor_release(want);
        dtr_tensor_release(got);
    }
}

static dtr_ddp_stats stats_of(const power *m, int side) {
    dtr_ddp_stats st = DTR_DDP_STATS_INIT;
    TH_IS(dtr_ddp_get_stats(m->ddp[side], &st), DTR_OK);
    return st;
}

/* PS1-PS5, GF2: the same steps on both sides, with the host waiting for no device and no memory
 * made once every bucket has been compressed; PS2: what travels is counted alike. */
START_TEST(PS3_as_on_the_host) {
    static const struct {
        dtr_dtype type;
        int rank;
        bool view, cold;
        double bound;
    } rows[] = {
        { DTR_F32, 2, false, false, 1e-4 },
        { DTR_F32, 8, true, true, 1e-4 },
        { DTR_BF16, 4, true, false, 0.02 },
        { DTR_F64, 1, false, false, 1e-4 },
    };
    const size_t n = TH_SANITIZED ? 2 : sizeof rows / sizeof rows[0];
    for (size_t r = 0; r < n; r++) {
        dtr_hook_options h = options(rows[r].rank);
        power m;
        h.no_warm_start = rows[r].cold;
        h.no_error_feedback = rows[r].cold;
        power_open(&m, rows[r].type, rows[r].view, &h);
        for (int step = 0; step < STEPS; step++) {
            backward(&m, HOST, step, false);
            backward(&m, DEVICE, step, false);
            if (step > 2 && !staged()) {
                TH_CHECK(dtr_fake_cuda_log_count("Synchronize") == 0 &&
                             dtr_fake_cuda_log_count("cudaMalloc") == 0,
                         "%s", dtr_fake_cuda_log_text());
            }
            int buckets = (int)stats_of(&m, DEVICE).last.buckets;
            TH_CHECK(dtr_fake_cuda_log_count("dtr_kernel_factor_left") == (step < 2 ? 0 : buckets),
                     "step %d: %s", step, dtr_fake_cuda_log_text());
            compare(&m, step, rows[r].bound);
        }
        const size_t want = stats_of(&m, HOST).last.collectives;
        TH_CHECK(stats_of(&m, DEVICE).last.collectives == want, "%zu collectives, on the host %zu",
                 (size_t)stats_of(&m, DEVICE).last.collectives, want);
        power_close(&m);
    }
}
END_TEST

/* PS3: gradients of nothing stay nothing, and what was lost that way comes back. */
START_TEST(PS3_zero_gradients) {
    dtr_hook_options h = options(3);
    power m;
    power_open(&m, DTR_F32, false, &h);
    for (int step = 0; step < STEPS; step++) {
        backward(&m, HOST, step, step < 4);
        backward(&m, DEVICE, step, step < 4);
        for (int i = 0; i < PARAMS && step < 4; i++) {
            dtr_tensor *got = result(&m, DEVICE, i);
            for (size_t k = 0; k < dtr_tensor_numel(got); k++) {
                TH_CHECK(((float *)dtr_tensor_data(got))[k] == 0, "step %d, '%s'[%zu]: %g", step,
                         names[i], k, ((float *)dtr_tensor_data(got))[k]);
            }
            dtr_tensor_release(got);
        }
        compare(&m, step, 1e-4);
    }
    power_close(&m);
}
END_TEST

/* PS9: a state saved on the device goes on there in another module; one of the host's module or cut
 * short is refused. */
START_TEST(PS9_state) {
    dtr_hook_options h = options(2);
    dtr_bytes state[2] = { { NULL, 0 }, { NULL, 0 } };
    power m, other;
    power_open(&m, DTR_F32, false, &h);
    power_open(&other, DTR_F32, true, &h);
    for (int step = 0; step < 4; step++) {
        for (int side = 0; side < 2; side++) {
            backward(&m, side, step, false);
            backward(&other, side, step + 1, false);
        }
    }
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_ddp_hook_state(m.ddp[side], &state[side]), DTR_OK);
    }
    TH_CHECK(state[HOST].nbytes == state[DEVICE].nbytes, "%zu bytes, on the host %zu",
             state[DEVICE].nbytes, state[HOST].nbytes);
    dtr_bytes cut = { state[DEVICE].data, state[DEVICE].nbytes - 1 };
    TH_IS(dtr_ddp_set_hook_state(other.ddp[DEVICE], cut), DTR_ERR_ARG);
    TH_IS(dtr_ddp_set_hook_state(other.ddp[DEVICE], state[HOST]), DTR_ERR_MISMATCH);
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_ddp_set_hook_state(other.ddp[side], state[side]), DTR_OK);
        dtr_bytes_free(&state[side], 1);
    }
    for (int step = 4; step < STEPS; step++) {
        backward(&m, HOST, step, false);
        backward(&other, HOST, step, false);
        backward(&other, DEVICE, step, false);
        compare(&other, step, 1e-4);
        const float *want = dtr_tensor_data(dtr_ddp_grad(m.ddp[HOST], 0));
        const float *got = dtr_tensor_data(dtr_ddp_grad(other.ddp[HOST], 0));
        for (int k = 0; k < 64 * 64; k++) {
            TH_CHECK(fabsf(want[k] - got[k]) <= 1e-3f, "element %d: %g, not %g", k, got[k],
                     want[k]);
        }
    }
    power_close(&m);
    power_close(&other);
}
END_TEST

/* No rank-one matrix, and with an average that is exact on 2 and 3 ranks. */
static float turned_element(size_t k, float factor) {
    return factor * (float)((int)(k * 37 % 101 + k / 7) % 23 - 11);
}

/* PS2 on a device: a gradient that does not lie row by row travels as it is: its average is exact.
 */
START_TEST(PS2_not_row_by_row) {
    enum { N = 64 * 48 };
    const int64_t shape[2] = { 64, 48 };
    const float mine = (float)th_rank() + 1, want = (float)(th_size() + 1) / 2;
    dtr_tensor *base = NULL, *turned = NULL;
    dtr_tensor *own = on_host(DTR_F32, N, DTR_MEM_PINNED);
    dtr_hook_options h = options(1);
    dtr_ddp *ddp = NULL;
    cudaStream_t stream;
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, gpu, DTR_MEM_DEFAULT, 2, shape, &base), DTR_OK);
    TH_IS(dtr_tensor_fill(base, 1, stream), DTR_OK);
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    for (size_t k = 0; k < N; k++) {
        ((float *)dtr_tensor_data(own))[k] = turned_element(k, mine);
    }
    TH_IS(dtr_tensor_transpose(base, 0, 1, &turned), DTR_OK);
    dtr_param p = { "turned", turned, NULL, 0 };
    TH_IS(dtr_ddp_create(th_group(), &p, 1, NULL, &ddp), DTR_OK);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_POWERSGD, &h), DTR_OK);
    for (int step = 0; step < 4; step++) {
        float *there = dtr_tensor_data(dtr_ddp_grad(ddp, 0)), got[N];
        TH_CHECK(cudaMemcpyAsync(there, dtr_tensor_data(own), sizeof got, cudaMemcpyHostToDevice,
                                 stream) == cudaSuccess,
                 "copy");
        TH_IS(dtr_ddp_grad_ready(ddp, 0, stream), DTR_OK);
        TH_IS(dtr_ddp_backward_end(ddp, stream), DTR_OK);
        TH_CHECK(cudaMemcpyAsync(got, there, sizeof got, cudaMemcpyDeviceToHost, stream) ==
                         cudaSuccess &&
                     cudaStreamSynchronize(stream) == cudaSuccess,
                 "copy");
        for (size_t k = 0; k < N; k++) {
            float exact = turned_element(k, want);
            TH_CHECK(got[k] == exact, "step %d: element %zu is %g, not %g", step, k, (double)got[k],
                     (double)exact);
        }
    }
    TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
    dtr_tensor_release(turned);
    dtr_tensor_release(base);
    dtr_tensor_release(own);
    cudaStreamDestroy(stream);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "ddp power", 110);
    th_add(tc, PS3_as_on_the_host, 1, 0);
    th_add(tc, PS3_zero_gradients, 1, 0);
    th_add(tc, PS9_state, 1, 0);
    th_add(tc, PS2_not_row_by_row, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_power", make);
}
