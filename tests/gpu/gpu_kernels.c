/* Bytes per second of the library's kernels against a copy of the same bytes by the CUDA runtime,
 * on buffers larger than the caches; those that pack gradients into a bucket and back also against
 * one copy for each gradient. Prints lines "key value"; status 77: no device. Argument "small":
 * 1 MiB, for a run that only shows that it works. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include <dtr/dtr.h>

#include "core/tensor_device.h"

enum { SKIPPED = 77, ROUNDS = 21 };
enum { SMALL = 16384, BIG = 4 << 20 }; /* elements of a gradient: 64 KiB and 16 MiB */

typedef struct bench {
    dtr_tensor *x, *y, *half; /* f32, f32, bf16 */
    size_t n;
    cudaStream_t stream;
    cudaEvent_t from, to;
    size_t one; /* elements of each gradient of the list that is packed */
    dtr__piece *pieces;
} bench;

typedef struct kernel {
    const char *name;
    size_t bytes; /* read and written for each element */
    dtr_status (*run)(bench *b);
    size_t one;   /* of lists */
    float leaves; /* in y, whose values are looked at; 0: they are not */
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

/* ---- lists of gradients ---- */

/* Gradients in another order than in the bucket; `one` divides n, both are powers of two. */
static dtr_status move(bench *b, dtr_tensor *to, dtr_tensor *from, double scale_by) {
    size_t n = b->n / b->one;
    size_t to_size = dtr_dtype_size(dtr_tensor_dtype(to));
    size_t from_size = dtr_dtype_size(dtr_tensor_dtype(from));
    for (size_t k = 0; k < n; k++) {
        size_t at = k * 0x9E3779B1U % n;
        b->pieces[k] =
            (dtr__piece){ .to = (char *)dtr_tensor_data(to) + k * b->one * to_size,
                          .from = (char *)dtr_tensor_data(from) + at * b->one * from_size,
                          .count = b->one,
                          .to_type = dtr_tensor_dtype(to),
                          .from_type = dtr_tensor_dtype(from) };
    }
    return dtr__device_move_many(0, b->pieces, n, scale_by, b->stream);
}

static dtr_status pack(bench *b) {
    return move(b, b->y, b->x, 1);
}

static dtr_status pack_scaled(bench *b) {
    return move(b, b->y, b->x, 0.5);
}

static dtr_status pack_narrow(bench *b) {
    return move(b, b->half, b->x, 0.5);
}

static dtr_status unpack_wide(bench *b) {
    return move(b, b->y, b->half, 2);
}

/* What packing is held against. */
static dtr_status copy_each(bench *b) {
    cudaError_t e = cudaSuccess;
    for (size_t k = 0; e == cudaSuccess && k < b->n / b->one; k++) {
        size_t at = k * 0x9E3779B1U % (b->n / b->one);
        e = cudaMemcpyAsync((float *)dtr_tensor_data(b->y) + k * b->one,
                            (float *)dtr_tensor_data(b->x) + at * b->one, b->one * sizeof(float),
                            cudaMemcpyDeviceToDevice, b->stream);
    }
    return e == cudaSuccess ? DTR_OK : DTR_ERR_CUDA;
}

static const kernel kernels[] = { { "copy", 8, copy, 0, 0 },
                                  { "fill", 4, fill, 0, 1 },
                                  { "copies_64k", 8, copy_each, SMALL, 3 },
                                  { "scale", 8, scale, 0, 3 },
                                  { "axpy", 12, axpy, 0, 0 },
                                  { "pack_64k", 8, pack, SMALL, 3 },
                                  { "pack_64k_scaled", 8, pack_scaled, SMALL, 1.5F },
                                  { "copies_16m", 8, copy_each, BIG, 3 },
                                  { "pack_16m_scaled", 8, pack_scaled, BIG, 1.5F },
                                  { "pack_16m", 8, pack, BIG, 3 },
                                  { "fill", 4, fill, 0, 1 },
                                  { "pack_64k_bf16", 6, pack_narrow, SMALL, 0 },
                                  { "unpack_64k_bf16", 6, unpack_wide, SMALL, 3 },
                                  { "fill", 4, fill, 0, 1 },
                                  { "pack_16m_bf16", 6, pack_narrow, BIG, 0 },
                                  { "unpack_16m_bf16", 6, unpack_wide, BIG, 3 },
                                  { "fill", 4, fill, 0, 1 },
                                  { "f32_to_bf16", 6, narrow, 0, 0 },
                                  { "bf16_to_f32", 6, widen, 0, 3 } };

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
    b->one = k->one < b->n ? k->one : b->n;
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

static bool right(bench *b, const kernel *k) {
    float *host = k->leaves != 0 ? malloc(b->n * sizeof *host) : NULL;
    size_t wrong = 0;
    if (k->leaves == 0) {
        return true;
    }
    cudaError_t e = host == NULL ? cudaErrorMemoryAllocation
                                 : cudaMemcpyAsync(host, dtr_tensor_data(b->y), b->n * sizeof *host,
                                                   cudaMemcpyDeviceToHost, b->stream);
    e = e == cudaSuccess ? cudaStreamSynchronize(b->stream) : e;
    for (size_t i = 0; e == cudaSuccess && i < b->n; i++) {
        wrong += host[i] != k->leaves;
    }
    free(host);
    if (e != cudaSuccess || wrong > 0) {
        printf("error %s: %zu wrong values, %s\n", k->name, wrong, cudaGetErrorString(e));
    }
    return e == cudaSuccess && wrong == 0;
}

static bool open(bench *b, dtr_world *w) {
    const dtr_device device = { DTR_CUDA, 0 };
    const int64_t shape[] = { (int64_t)b->n };
    bool good = cudaSetDevice(0) == cudaSuccess &&
                cudaStreamCreateWithPriority(&b->stream, cudaStreamNonBlocking, 0) == cudaSuccess &&
                cudaEventCreateWithFlags(&b->from, cudaEventDefault) == cudaSuccess &&
                cudaEventCreateWithFlags(&b->to, cudaEventDefault) == cudaSuccess;
    b->pieces = malloc(b->n / SMALL * sizeof *b->pieces);
    return good && b->pieces != NULL &&
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
        status = time_one(&b, &kernels[i]) && right(&b, &kernels[i]) ? 0 : 1;
    }
    free(b.pieces);
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
