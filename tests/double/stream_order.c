/* What a program must order itself: copy in on one stream, a kernel's work on another, copy out on
 * the first, the host at the end. With the thread sanitizer over the stand-in, the argument says
 * which of the three waits is left out, and each one must be found (DB8). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <dtr/dtr.h>

enum { N = 1 << 12, STEPS = 3 };

static void check(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, dtr_last_error_message());
        exit(1);
    }
}

/* wait for event on stream, unless it is the one left out. */
static void order(cudaEvent_t e, cudaStream_t from, cudaStream_t to, int skip) {
    check(cudaEventRecord(e, from) == cudaSuccess, "record");
    check(skip || cudaStreamWaitEvent(to, e, 0) == cudaSuccess, "wait");
}

int main(int argc, char **argv) {
    const char *missing = argc > 1 ? argv[1] : "none";
    dtr_device gpu = { DTR_CUDA, 0 };
    dtr_world *world = NULL;
    dtr_tensor *t = NULL;
    float *host = NULL, *device = NULL;
    cudaStream_t copies = NULL, work = NULL;
    cudaEvent_t in = NULL, done = NULL;
    check(dtr_world_create(NULL, &world) == DTR_OK, "world");
    check(cudaStreamCreateWithPriority(&copies, cudaStreamNonBlocking, 0) == cudaSuccess &&
              cudaStreamCreateWithPriority(&work, cudaStreamNonBlocking, 0) == cudaSuccess &&
              cudaEventCreateWithFlags(&in, cudaEventDisableTiming) == cudaSuccess &&
              cudaEventCreateWithFlags(&done, cudaEventDisableTiming) == cudaSuccess &&
              cudaMalloc((void **)&device, N * sizeof *device) == cudaSuccess &&
              cudaHostAlloc((void **)&host, N * sizeof *host, cudaHostAllocDefault) == cudaSuccess,
          "streams and memory");
    check(dtr_tensor_from_buffer((dtr_buffer){ device, N, DTR_F32, gpu }, 1, (int64_t[]){ N }, NULL,
                                 NULL, NULL, &t) == DTR_OK,
          "tensor");
    int wrong = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++) {
            host[i] = (float)(i + step);
        }
        check(cudaMemcpyAsync(device, host, N * sizeof *host, cudaMemcpyHostToDevice, copies) ==
                  cudaSuccess,
              "copy in");
        order(in, copies, work, strcmp(missing, "in") == 0);
        check(dtr_tensor_scale(t, 2, work) == DTR_OK, "scale");
        order(done, work, copies, strcmp(missing, "out") == 0);
        check(cudaMemcpyAsync(host, device, N * sizeof *host, cudaMemcpyDeviceToHost, copies) ==
                  cudaSuccess,
              "copy out");
        check(strcmp(missing, "host") == 0 || cudaStreamSynchronize(copies) == cudaSuccess, "wait");
        for (int i = 0; i < N; i++) {
            wrong += host[i] != (float)(2 * (i + step));
        }
    }
    check(cudaStreamSynchronize(copies) == cudaSuccess &&
              cudaStreamSynchronize(work) == cudaSuccess,
          "end");
    dtr_tensor_release(t);
    cudaFree(device);
    cudaFreeHost(host);
    cudaEventDestroy(in);
    cudaEventDestroy(done);
    cudaStreamDestroy(copies);
    cudaStreamDestroy(work);
    check(dtr_world_destroy(world) == DTR_OK, "world");
    return wrong != 0 && strcmp(missing, "none") == 0;
}
