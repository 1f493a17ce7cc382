/* The few calls of cuBLAS that the examples use, on the stand-in for the CUDA runtime. The kernels
 * of those examples come with it: nothing else of the tests loads this library. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cublas_v2.h>

#include "fake_cuda.h"

#define API __attribute__((visibility("default")))

struct cublasContext {
    cudaStream_t stream;
};

API cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    *handle = calloc(1, sizeof **handle);
    return *handle != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

API cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

API const char *cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "no error" : "an error of the stand-in for cuBLAS";
}

/* Column by column: element (r, c) of a matrix is at c * ld + r. Of `count` matrices each is its
 * stride behind the one before. */
typedef struct product {
    int ta, tb, m, n, k, count;
    float alpha, beta;
    const float *a, *b;
    float *c;
    int lda, ldb, ldc;
    long long stride_a, stride_b, stride_c;
} product;

static void multiply(const product *p, const float *a, const float *b, float *c) {
    for (int col = 0; col < p->n; col++) {
        for (int row = 0; row < p->m; row++) {
            float sum = 0, *to = &c[(size_t)col * (size_t)p->ldc + (size_t)row];
            for (int i = 0; i < p->k; i++) {
                size_t x = p->ta ? (size_t)row * (size_t)p->lda + (size_t)i
                                 : (size_t)i * (size_t)p->lda + (size_t)row;
                size_t y = p->tb ? (size_t)i * (size_t)p->ldb + (size_t)col
                                 : (size_t)col * (size_t)p->ldb + (size_t)i;
                sum += a[x] * b[y];
            }
            *to = p->alpha * sum + (p->beta != 0 ? p->beta * *to : 0); /* fresh memory is NaN */
        }
    }
}

static void run_product(void *arg) {
    product *p = arg;
    const float *a = dtr_fake_cuda_host(p->a, sizeof *a);
    const float *b = dtr_fake_cuda_host(p->b, sizeof *b);
    float *c = dtr_fake_cuda_host(p->c, sizeof *c);
    if (a == NULL || b == NULL || c == NULL) {
        dtr_fake_cuda_log("cublasSgemm", "an address is no device memory");
        abort();
    }
    for (int i = 0; i < p->count; i++) {
        multiply(p, a + i * p->stride_a, b + i * p->stride_b, c + i * p->stride_c);
    }
    free(p);
}

API cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta,
                                             cublasOperation_t tb, int m, int n, int k,
                                             const float *alpha, const float *a, int lda,
                                             long long stride_a, const float *b, int ldb,
                                             long long stride_b, const float *beta, float *c,
                                             int ldc, long long stride_c, int count) {
    bool fits = m >= 0 && n >= 0 && k >= 0 && count >= 0 && lda >= (ta == CUBLAS_OP_N ? m : k) &&
                ldb >= (tb == CUBLAS_OP_N ? k : n) && ldc >= m;
    product *p = fits ? malloc(sizeof *p) : NULL;
    if (p == NULL) {
        return fits ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_INVALID_VALUE;
    }
    *p = (product){ ta != CUBLAS_OP_N,
                    tb != CUBLAS_OP_N,
                    m,
                    n,
                    k,
                    count,
                    *alpha,
                    *beta,
                    a,
                    b,
                    c,
                    lda,
                    ldb,
                    ldc,
                    stride_a,
                    stride_b,
                    stride_c };
    int code = dtr_fake_cuda_enqueue(handle->stream, "cublasSgemm", run_product, p, sizeof *p);
    return code == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* ---- kernels of the example ---- */

#define GPT_AT(p) dtr_fake_cuda_host((p), 1)
#include "05_train_gpt_gpu/kernels.h"

#define BODY(name)                                                                   \
    static void run_##name(const void *argument, unsigned tid, unsigned n_threads) { \
        gpt_##name(argument, tid, n_threads);                                        \
    }
GPT_KERNELS(BODY)
#undef BODY

__attribute__((constructor)) static void add_kernels(void) {
#define ADD(name) dtr_fake_cuda_kernel("gpt_kernel_" #name, sizeof(gpt_args), run_##name);
    GPT_KERNELS(ADD)
#undef ADD
}
