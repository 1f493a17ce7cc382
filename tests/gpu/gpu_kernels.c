/* Bytes per second of the library's kernels against a copy of the same bytes by the CUDA runtime,
 * on buffers larger than the caches. Prints lines "key value"; status 77: no device. Argument
 * "small": 1 MiB, for a run that only shows that it works. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include <dtr/dtr.h>

enum { SKIPPED = 77, ROUNDS = 21 };

typedef struct bench {
    dtr_tensor *x, *y, *half; /* f32, f32, bf16 */
    size_t n;
    cudaStream_t stream;
    cudaEvent_t from, to;
} bench;

typedef struct kernel {
    const char *name;
    size_t bytes; /* read and written for each element */
    dtr_status (*run)(bench *b);
} kernel;

static dtr_status copy(bench *b) {
    cudaError_t e = cudaMemcpyAsync(dtr_tensor_data(b->y), dtr_tensor_data(b->x),
                                    b->n * sizeof(float), cudaMemcpyDeviceToDevice, b->stream);
    return e == cudaSuccess ? DTR_OK : DTR_ERR_CUDA;
}

static dtr_status fill(bench *b) {
    return dtr_tensor_fill(b->y, 1, b->stream);
}

static dtr_status scale(bench *b) {
    return dtr_tensor_scale(b->y, 1, b->stream);
}

static dtr_status axpy(bench *b) {
    return dtr_tensor_axpy(b->y, 1, b->x, b->stream);
}

static dtr_status narrow(bench *b) {
    return dtr_tensor_copy(b->half, b->x, b->stream);
}

static dtr_status widen(bench *b) {
    return dtr_tensor_copy(b->y, b->half, b->stream);
}

static const kernel kernels[] = { { "copy", 8, copy },          { "fill", 4, fill },
                                  { "scale", 8, scale },        { "axpy", 12, axpy },
                                  { "f32_to_bf16", 6, narrow }, { "bf16_to_f32", 6, widen } };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool well(dtr_status s, const char *what) {
    if (s != DTR_OK) {
        printf("error %s: %s: %s\n", what, dtr_status_name(s), dtr_last_error_message());
    }
    return s == DTR_OK;
}

/* Median over rounds after one to warm up. */
static bool time_one(bench *b, const kernel *k) {
    double took[ROUNDS];
    for (int i = -1; i < ROUNDS; i++) {
        float ms = 0;
        cudaError_t e = cudaEventRecord(b->from, b->stream);
        if (!well(k->run(b), k->name)) {
            return false;
        }
        e = e == cudaSuccess ? cudaEventRecord(b->to, b->stream) : e;
        e = e == cudaSuccess ? cudaStreamSynchronize(b->stream) : e;
        e = e == cudaSuccess ? cudaEventElapsedTime(&ms, b->from, b->to) : e;
        if (e != cudaSuccess) {
            printf("error %s: %s\n", k->name, cudaGetErrorString(e));
            return false;
        }
        took[i < 0 ? 0 : i] = 1e-3 * (double)ms;
    }
    qsort(took, ROUNDS, sizeof *took, ascending);
    double seconds = took[ROUNDS / 2];
    printf("kernel_%s_gb_per_s %.1f\n", k->name,
           seconds > 0 ? (double)(k->bytes * b->n) / seconds * 1e-9 : 0);
    return true;
}

/* What the kernels leave is known: y is what bf16 kept of x, and x is 3 everywhere. */
static bool right(bench *b) {
    float *host = malloc(b->n * sizeof *host);
    size_t wrong = host == NULL;
    cudaError_t e = host == NULL ? cudaErrorMemoryAllocation
                                 : cudaMemcpyAsync(host, dtr_tensor_data(b->y), b->n * sizeof *host,
                                                   cudaMemcpyDeviceToHost, b->stream);
    e = e == cudaSuccess ? cudaStreamSynchronize(b->stream) : e;
    for (size_t i = 0; e == cudaSuccess && i < b->n; i++) {
        wrong += host[i] != 3;
    }
    free(host);
    printf("wrong %zu\n", wrong);
    return e == cudaSuccess && wrong == 0;
}

static bool open(bench *b, dtr_world *w) {
    const dtr_device device = { DTR_CUDA, 0 };
    const int64_t shape[] = { (int64_t)b->n };
    bool good = cudaSetDevice(0) == cudaSuccess &&
                cudaStreamCreateWithPriority(&b->stream, cudaStreamNonBlocking, 0) == cudaSuccess &&
                cudaEventCreateWithFlags(&b->from, cudaEventDefault) == cudaSuccess &&
                cudaEventCreateWithFlags(&b->to, cudaEventDefault) == cudaSuccess;
    return good &&
           well(dtr_tensor_empty(w, DTR_F32, device, DTR_MEM_DEFAULT, 1, shape, &b->x), "x") &&
           well(dtr_tensor_empty(w, DTR_F32, device, DTR_MEM_DEFAULT, 1, shape, &b->y), "y") &&
           well(dtr_tensor_empty(w, DTR_BF16, device, DTR_MEM_DEFAULT, 1, shape, &b->half),
                "half") &&
           well(dtr_tensor_fill(b->x, 3, b->stream), "x");
}

int main(int argc, char **argv) {
    bench b = { .n = argc > 1 && strcmp(argv[1], "small") == 0 ? 1 << 18 : 1 << 28 };
    dtr_world *w = NULL;
    if (!well(dtr_world_create(NULL, &w), "dtr_world_create")) {
        return 1;
    }
    int status = dtr_device_count(DTR_CUDA) == 0 ? SKIPPED : open(&b, w) ? 0 : 1;
    for (size_t i = 0; status == 0 && i < sizeof kernels / sizeof kernels[0]; i++) {
        status = time_one(&b, &kernels[i]) ? 0 : 1;
    }
    status = status == 0 && !right(&b) ? 1 : status;
    dtr_tensor_release(b.x);
    dtr_tensor_release(b.y);
    dtr_tensor_release(b.half);
    if (b.stream != NULL) {
        cudaStreamDestroy(b.stream);
        cudaEventDestroy(b.from);
        cudaEventDestroy(b.to);
    }
    dtr_world_destroy(w);
    return status;
}
