/* What the CUDA runtime promises and the library relies on (DB10): runs on the stand-in and, linked
 * alike, on the real library with a GPU. Ends with 77 where there is no device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "unit.h"

enum { N = 1 << 18 };

static void *on_device(size_t nbytes) {
    void *p = NULL;
    ck_assert_int_eq(cudaMalloc(&p, nbytes), cudaSuccess);
    return p;
}

static unsigned char *pinned(size_t nbytes) {
    void *p = NULL;
    ck_assert_int_eq(cudaHostAlloc(&p, nbytes, cudaHostAllocDefault), cudaSuccess);
    return p;
}

static cudaStream_t stream_new(void) {
    cudaStream_t s = NULL;
    ck_assert_int_eq(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, 0), cudaSuccess);
    return s;
}

static cudaEvent_t event_new(unsigned flags) {
    cudaEvent_t e = NULL;
    ck_assert_int_eq(cudaEventCreateWithFlags(&e, flags), cudaSuccess);
    return e;
}

static void drop(void *device, void *host, cudaStream_t a, cudaStream_t b, cudaEvent_t e) {
    ck_assert_int_eq(cudaFree(device), cudaSuccess);
    ck_assert_int_eq(cudaFreeHost(host), cudaSuccess);
    if (a != NULL) {
        ck_assert_int_eq(cudaStreamDestroy(a), cudaSuccess);
    }
    if (b != NULL) {
        ck_assert_int_eq(cudaStreamDestroy(b), cudaSuccess);
    }
    if (e != NULL) {
        ck_assert_int_eq(cudaEventDestroy(e), cudaSuccess);
    }
}

START_TEST(DB10_versions_and_attributes) {
    int runtime = 0, driver = 0, value = 0, least = 0, greatest = 0;
    ck_assert_int_eq(cudaRuntimeGetVersion(&runtime), cudaSuccess);
    ck_assert_int_eq(cudaDriverGetVersion(&driver), cudaSuccess);
    ck_assert_int_ge(runtime, 13000);
    ck_assert_int_ge(driver, 12000);
    ck_assert_int_eq(cudaDeviceGetAttribute(&value, cudaDevAttrMaxThreadsPerBlock, 0), cudaSuccess);
    ck_assert_int_eq(value, 1024);
    ck_assert_int_eq(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
    ck_assert_int_lt(greatest, least);
}
END_TEST

START_TEST(DB10_priorities_are_kept) {
    int least = 0, greatest = 0, priority = 1;
    cudaStream_t s = NULL;
    ck_assert_int_eq(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
    ck_assert_int_eq(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, greatest),
                     cudaSuccess);
    ck_assert_int_eq(cudaStreamGetPriority(s, &priority), cudaSuccess);
    ck_assert_int_eq(priority, greatest);
    ck_assert_int_eq(cudaStreamDestroy(s), cudaSuccess);
}
END_TEST

START_TEST(DB10_no_memory_is_null) {
    void *p = (void *)&p;
    ck_assert_int_eq(cudaMalloc(&p, (size_t)1 << 50), cudaErrorMemoryAllocation);
    ck_assert_ptr_null(p);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
}
END_TEST

START_TEST(DB10_last_error_is_peeked_and_cleared) {
    ck_assert_int_eq(cudaSetDevice(4711), cudaErrorInvalidDevice);
    ck_assert_int_eq(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    int device = -1;
    ck_assert_int_eq(cudaGetDevice(&device), cudaSuccess); /* a good call does not clear it */
    ck_assert_int_eq(device, 0);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidDevice);
    ck_assert_int_eq(cudaPeekAtLastError(), cudaSuccess);
}
END_TEST

START_TEST(DB10_null_is_freed) {
    ck_assert_int_eq(cudaFree(NULL), cudaSuccess);
    ck_assert_int_eq(cudaFreeHost(NULL), cudaSuccess);
}
END_TEST

START_TEST(DB10_pointers_are_told_apart) {
    void *d = on_device(100), *h = pinned(100), *plain = malloc(100);
    ck_assert_ptr_nonnull(plain);
    struct cudaPointerAttributes a;
    ck_assert_int_eq(cudaPointerGetAttributes(&a, d), cudaSuccess);
    ck_assert_int_eq(a.type, cudaMemoryTypeDevice);
    ck_assert_int_eq(a.device, 0);
    ck_assert_int_eq(cudaPointerGetAttributes(&a, h), cudaSuccess);
    ck_assert_int_eq(a.type, cudaMemoryTypeHost);
    ck_assert_int_eq(cudaPointerGetAttributes(&a, plain), cudaSuccess);
    ck_assert_int_eq(a.type, cudaMemoryTypeUnregistered);
    free(plain);
    drop(d, h, NULL, NULL, NULL);
}
END_TEST

START_TEST(DB10_streams_run_in_order) {
    unsigned char *h = pinned(N);
    void *d = on_device(N);
    cudaStream_t s = stream_new();
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(cudaMemsetAsync(d, i, N, s), cudaSuccess);
    }
    ck_assert_int_eq(cudaMemcpyAsync(h, d, N, cudaMemcpyDeviceToHost, s), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
    ck_assert_int_eq(cudaStreamQuery(s), cudaSuccess);
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        wrong += h[i] != 19 ? 1 : 0;
    }
    ck_assert_int_eq(wrong, 0);
    drop(d, h, s, NULL, NULL);
}
END_TEST

START_TEST(DB10_an_event_orders_two_streams) {
    unsigned char *h = pinned(N);
    void *d = on_device(N);
    cudaStream_t a = stream_new(), b = stream_new();
    cudaEvent_t e = event_new(cudaEventDisableTiming);
    for (int i = 1; i < 20; i++) {
        ck_assert_int_eq(cudaMemsetAsync(d, i, N, a), cudaSuccess);
        ck_assert_int_eq(cudaEventRecord(e, a), cudaSuccess);
        ck_assert_int_eq(cudaStreamWaitEvent(b, e, 0), cudaSuccess);
        ck_assert_int_eq(cudaMemcpyAsync(h, d, N, cudaMemcpyDeviceToHost, b), cudaSuccess);
        ck_assert_int_eq(cudaStreamSynchronize(b), cudaSuccess);
        ck_assert_uint_eq(h[0], i);
        ck_assert_uint_eq(h[N - 1], i);
    }
    drop(d, h, a, b, e);
}
END_TEST

START_TEST(DB10_events_never_recorded_are_complete) {
    cudaStream_t s = stream_new();
    cudaEvent_t e = event_new(cudaEventDisableTiming);
    ck_assert_int_eq(cudaEventQuery(e), cudaSuccess);
    ck_assert_int_eq(cudaStreamWaitEvent(s, e, 0), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
    ck_assert_int_eq(cudaEventSynchronize(e), cudaSuccess);
    drop(NULL, NULL, s, NULL, e);
}
END_TEST

START_TEST(DB10_elapsed_time) {
    cudaStream_t s = stream_new();
    cudaEvent_t a = event_new(cudaEventDefault), b = event_new(cudaEventDefault);
    cudaEvent_t untimed = event_new(cudaEventDisableTiming);
    float ms = -1;
    ck_assert_int_eq(cudaEventRecord(a, s), cudaSuccess);
    ck_assert_int_eq(cudaEventRecord(untimed, s), cudaSuccess);
    ck_assert_int_eq(cudaEventRecord(b, s), cudaSuccess);
    ck_assert_int_eq(cudaEventSynchronize(b), cudaSuccess);
    ck_assert_int_eq(cudaEventElapsedTime(&ms, a, b), cudaSuccess);
    ck_assert(ms >= 0);
    ck_assert_int_eq(cudaEventElapsedTime(&ms, a, untimed), cudaErrorInvalidResourceHandle);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    ck_assert_int_eq(cudaEventDestroy(a), cudaSuccess);
    ck_assert_int_eq(cudaEventDestroy(untimed), cudaSuccess);
    drop(NULL, NULL, s, NULL, b);
}
END_TEST

START_TEST(DB10_a_destroyed_stream_finishes_its_work) {
    unsigned char *h = pinned(N);
    void *d = on_device(N);
    cudaStream_t s = stream_new();
    cudaEvent_t e = event_new(cudaEventDisableTiming);
    ck_assert_int_eq(cudaMemsetAsync(d, 5, N, s), cudaSuccess);
    ck_assert_int_eq(cudaMemcpyAsync(h, d, N, cudaMemcpyDeviceToHost, s), cudaSuccess);
    ck_assert_int_eq(cudaEventRecord(e, s), cudaSuccess);
    ck_assert_int_eq(cudaStreamDestroy(s), cudaSuccess);
    ck_assert_int_eq(cudaEventSynchronize(e), cudaSuccess);
    ck_assert_uint_eq(h[N - 1], 5);
    drop(d, h, NULL, NULL, e);
}
END_TEST

/* nccl:DB9. */
START_TEST(DB10_a_capture_is_replayed) {
    unsigned char *h = pinned(N);
    void *d = on_device(N);
    cudaStream_t a = stream_new(), b = stream_new();
    cudaEvent_t fork = event_new(cudaEventDisableTiming), join = event_new(cudaEventDisableTiming);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    ck_assert_int_eq(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal), cudaSuccess);
    ck_assert_int_eq(cudaEventRecord(fork, a), cudaSuccess);
    ck_assert_int_eq(cudaStreamWaitEvent(b, fork, 0), cudaSuccess);
    ck_assert_int_eq(cudaStreamIsCapturing(b, &status), cudaSuccess);
    ck_assert_int_eq(status, cudaStreamCaptureStatusActive);
    ck_assert_int_eq(cudaMemcpyAsync(d, h, N, cudaMemcpyHostToDevice, b), cudaSuccess);
    ck_assert_int_eq(cudaMemcpyAsync(h + N / 2, d, N / 2, cudaMemcpyDeviceToHost, b), cudaSuccess);
    ck_assert_int_eq(cudaEventRecord(join, b), cudaSuccess);
    ck_assert_int_eq(cudaStreamWaitEvent(a, join, 0), cudaSuccess);
    ck_assert_int_eq(cudaStreamEndCapture(a, &graph), cudaSuccess);
    ck_assert_int_eq(cudaStreamIsCapturing(b, &status), cudaSuccess);
    ck_assert_int_eq(status, cudaStreamCaptureStatusNone);
    ck_assert_int_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
    for (int i = 1; i < 3; i++) {
        memset(h, i, N / 2);
        ck_assert_int_eq(cudaGraphLaunch(exec, a), cudaSuccess);
        ck_assert_int_eq(cudaStreamSynchronize(a), cudaSuccess);
        ck_assert_uint_eq(h[N - 1], (unsigned)i);
    }
    ck_assert_int_eq(cudaGraphExecDestroy(exec), cudaSuccess);
    ck_assert_int_eq(cudaEventDestroy(fork), cudaSuccess);
    drop(d, h, a, b, join);
}
END_TEST

/* nccl:DB9. A thread is asked whether it knows of captures by its mode. */
START_TEST(DB10_what_ruins_a_capture) {
    cudaStream_t a = stream_new(), b = stream_new();
    cudaEvent_t e = event_new(cudaEventDisableTiming), other = event_new(cudaEventDisableTiming);
    cudaGraph_t graph = NULL;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    ck_assert_int_eq(cudaEventRecord(other, b), cudaSuccess);
    ck_assert_int_eq(cudaEventSynchronize(other), cudaSuccess);
    ck_assert_int_eq(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal), cudaSuccess);
    ck_assert_int_eq(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    ck_assert_int_eq(mode, cudaStreamCaptureModeGlobal);
    ck_assert_int_eq(cudaEventQuery(other), cudaSuccess);
    ck_assert_int_eq(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    ck_assert_int_eq(cudaStreamIsCapturing(a, &status), cudaSuccess);
    ck_assert_int_eq(status, cudaStreamCaptureStatusActive);
    ck_assert_int_ne(cudaEventQuery(other), cudaSuccess);
    ck_assert_int_eq(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    ck_assert_ptr_null(graph);
    ck_assert_int_eq(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed), cudaSuccess);
    ck_assert_int_eq(cudaEventRecord(e, a), cudaSuccess);
    ck_assert_int_eq(cudaStreamWaitEvent(b, e, 0), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(a), cudaErrorStreamCaptureUnsupported);
    ck_assert_int_ne(cudaStreamEndCapture(a, &graph), cudaSuccess);
    (void)cudaGetLastError();
    ck_assert_int_eq(cudaEventDestroy(other), cudaSuccess);
    drop(NULL, NULL, a, b, e);
}
END_TEST

/* nccl:DB9. What another stream did for the graph must be waited for before the capture ends. */
START_TEST(DB10_an_unjoined_stream_ends_a_capture) {
    void *d = on_device(N);
    cudaStream_t a = stream_new(), b = stream_new();
    cudaEvent_t e = event_new(cudaEventDisableTiming);
    cudaGraph_t graph = NULL;
    ck_assert_int_eq(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal), cudaSuccess);
    ck_assert_int_eq(cudaEventRecord(e, a), cudaSuccess);
    ck_assert_int_eq(cudaStreamWaitEvent(b, e, 0), cudaSuccess);
    ck_assert_int_eq(cudaMemsetAsync(d, 1, N, b), cudaSuccess);
    ck_assert_int_eq(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureUnjoined);
    ck_assert_ptr_null(graph);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorStreamCaptureUnjoined);
    drop(d, NULL, a, b, e);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("conformance");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, DB10_versions_and_attributes);
    tcase_add_test(tc, DB10_priorities_are_kept);
    tcase_add_test(tc, DB10_no_memory_is_null);
    tcase_add_test(tc, DB10_last_error_is_peeked_and_cleared);
    tcase_add_test(tc, DB10_null_is_freed);
    tcase_add_test(tc, DB10_pointers_are_told_apart);
    tcase_add_test(tc, DB10_streams_run_in_order);
    tcase_add_test(tc, DB10_an_event_orders_two_streams);
    tcase_add_test(tc, DB10_events_never_recorded_are_complete);
    tcase_add_test(tc, DB10_elapsed_time);
    tcase_add_test(tc, DB10_a_destroyed_stream_finishes_its_work);
    tcase_add_test(tc, DB10_a_capture_is_replayed);
    tcase_add_test(tc, DB10_what_ruins_a_capture);
    tcase_add_test(tc, DB10_an_unjoined_stream_ends_a_capture);
    suite_add_tcase(s, tc);
}

int main(void) {
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        printf("skipped: no CUDA device: %s\n", cudaGetErrorString(e));
        return 77;
    }
    return th_unit_main("cuda_conformance", make);
}
