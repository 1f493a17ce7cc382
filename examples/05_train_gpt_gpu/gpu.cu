/* Stream, products and kernels. */
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "gpu.h"

#define KERNEL(name)                                                                              \
    extern "C" __global__ void gpt_kernel_##name(const gpt_args g) {                              \
        gpt_##name(&g, (long)blockIdx.x *blockDim.x + threadIdx.x, (long)gridDim.x * blockDim.x); \
    }
GPT_KERNELS(KERNEL)
#undef KERNEL

#define KERNEL(name) (const void *)gpt_kernel_##name,
static const void *const kernels[] = { GPT_KERNELS(KERNEL) };
#undef KERNEL

/* Keeps the first failure. False: there was one, now or before. */
static bool cuda(gpu *g, cudaError_t e) {
    if (e != cudaSuccess && g->failed == NULL) {
        g->failed = cudaGetErrorString(e);
    }
    return g->failed == NULL;
}

static bool blas(gpu *g, cublasStatus_t s) {
    if (s != CUBLAS_STATUS_SUCCESS && g->failed == NULL) {
        g->failed = cublasGetStatusString(s);
    }
    return g->failed == NULL;
}

void gpu_open(gpu *g, int device) {
    cudaStream_t stream = NULL;
    cublasHandle_t handle = NULL;
    if (cuda(g, cudaSetDevice(device)) &&
        cuda(g, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))) {
        g->stream = stream;
    }
    for (int i = 0; i < GPU_N_MARKS && g->failed == NULL; i++) {
        cudaEvent_t event = NULL;
        cuda(g, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        g->event[i] = event;
    }
    for (int i = 0; i < GPT_N_KERNELS && g->failed == NULL; i++) {
        cudaFuncAttributes unused; /* loads the kernel, which would have to wait for others later */
        cuda(g, cudaFuncGetAttributes(&unused, kernels[i]));
    }
    if (g->failed == NULL && blas(g, cublasCreate(&handle))) {
        g->blas = handle;
        blas(g, cublasSetStream(handle, stream));
    }
}

void gpu_close(gpu *g) {
    if (g->blas != NULL) {
        cublasDestroy((cublasHandle_t)g->blas);
    }
    for (int i = 0; i < GPU_N_MARKS; i++) {
        if (g->event[i] != NULL) {
            cudaEventDestroy((cudaEvent_t)g->event[i]);
        }
    }
    if (g->stream != NULL) {
        cudaStreamDestroy((cudaStream_t)g->stream);
    }
}

/* cuBLAS takes matrices column by column: what it reads as the transpose of ours is used as such,
 * and c' = b' * a'. */
void gpu_multiply(gpu *g, int count, float scale, gpu_matrix a, gpu_matrix b, gpu_matrix c) {
    const float zero = 0;
    if (g->failed == NULL) {
        blas(g, cublasSgemmStridedBatched(
                    (cublasHandle_t)g->blas, b.turned ? CUBLAS_OP_T : CUBLAS_OP_N,
                    a.turned ? CUBLAS_OP_T : CUBLAS_OP_N, c.columns, c.rows,
                    a.turned ? a.rows : a.columns, &scale, b.data, b.stride, b.apart, a.data,
                    a.stride, a.apart, &zero, c.data, c.stride, c.apart, count));
    }
}

void gpu_run(gpu *g, gpt_kernel which, gpt_args args) {
    const long threads = 128, most = 1024;
    long blocks = (args.items + threads - 1) / threads;
    void *list[] = { &args };
    if (g->failed == NULL) {
        cuda(g, cudaLaunchKernel(kernels[which], dim3((unsigned)(blocks < most ? blocks : most)),
                                 dim3((unsigned)threads), list, 0, (cudaStream_t)g->stream));
    }
}

void gpu_set_mark(gpu *g, gpu_mark mark) {
    if (g->failed == NULL) {
        cuda(g, cudaEventRecord((cudaEvent_t)g->event[mark], (cudaStream_t)g->stream));
    }
}

void gpu_wait(gpu *g, gpu_mark mark) {
    if (g->failed == NULL) {
        cuda(g, cudaEventSynchronize((cudaEvent_t)g->event[mark]));
    }
}
