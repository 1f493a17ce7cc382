/* The arithmetic on a CUDA device: libmlp_cuda, with cuBLAS for the products. */
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "arith.h"

#define KERNEL(name)                                                                              \
    extern "C" __global__ void mlp_kernel_##name(const mlp_args a) {                              \
        mlp_##name(&a, (long)blockIdx.x *blockDim.x + threadIdx.x, (long)gridDim.x * blockDim.x); \
    }
MLP_KERNELS(KERNEL)
#undef KERNEL

#define KERNEL(name) (const void *)mlp_kernel_##name,
static const void *const kernels[] = { MLP_KERNELS(KERNEL) };
#undef KERNEL

static const char *text(cudaError_t e) {
    return e == cudaSuccess ? NULL : cudaGetErrorString(e);
}

/* cuBLAS takes matrices column by column: what it reads as the transpose of ours is used as such,
 * and c' = b' * a'. */
static const char *multiply(mlp_arith *m, mlp_matrix a, mlp_matrix b, float *c) {
    const float one = 1, zero = 0;
    int rows = a.turned ? a.columns : a.rows, inner = a.turned ? a.rows : a.columns;
    int columns = b.turned ? b.rows : b.columns;
    cublasStatus_t s = cublasSgemm((cublasHandle_t)m->library, b.turned ? CUBLAS_OP_T : CUBLAS_OP_N,
                                   a.turned ? CUBLAS_OP_T : CUBLAS_OP_N, columns, rows, inner, &one,
                                   b.data, b.columns, a.data, a.columns, &zero, c, columns);
    return s == CUBLAS_STATUS_SUCCESS ? NULL : "cublasSgemm failed";
}

static const char *run(mlp_arith *m, mlp_kernel which, const mlp_args *args) {
    const int threads = 128, most = 1024;
    bool by_row = which == MLP_loss, by_column = which == MLP_column_sums;
    long items = by_row ? args->rows : by_column ? args->columns : args->rows * args->columns;
    long blocks = (items + threads - 1) / threads;
    mlp_args copy = *args;
    void *list[] = { &copy };
    blocks = blocks < 1 ? 1 : blocks < most ? blocks : most;
    return text(cudaLaunchKernel(kernels[which], dim3((unsigned)blocks), dim3(threads), list, 0,
                                 (cudaStream_t)m->stream));
}

static const char *wait(mlp_arith *m) {
    return text(cudaStreamSynchronize((cudaStream_t)m->stream));
}

static void close(mlp_arith *m) {
    cublasDestroy((cublasHandle_t)m->library);
    cudaStreamDestroy((cudaStream_t)m->stream);
}

const char *mlp_arith_cuda(mlp_arith *m, int device) {
    cudaStream_t stream = NULL;
    cublasHandle_t handle = NULL;
    cudaError_t e = cudaSetDevice(device);
    e = e == cudaSuccess ? cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) : e;
    if (e != cudaSuccess) {
        return text(e);
    }
    if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS ||
        cublasSetStream(handle, stream) != CUBLAS_STATUS_SUCCESS) {
        cudaStreamDestroy(stream);
        return "cuBLAS cannot be set up";
    }
    m->name = "cuda";
    m->stream = stream;
    m->library = handle;
    m->multiply = multiply;
    m->run = run;
    m->wait = wait;
    m->close = close;
    return NULL;
}
