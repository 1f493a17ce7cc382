/* What the stand-in for the CUDA runtime adds to make mistakes visible: DB2, DB3, DB4, DB6, DB7,
 * and contexts (GP3). */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "cuda/device_kernels.h"
#include "fake_cuda.h"
#include "unit.h"

static void set(const char *name, const char *value) {
    ck_assert_int_eq(value != NULL ? setenv(name, value, 1) : unsetenv(name), 0);
    dtr_fake_cuda_reload();
}

static cudaStream_t stream_new(void) {
    cudaStream_t s = NULL;
    ck_assert_int_eq(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    return s;
}

static cudaEvent_t event_new(void) {
    cudaEvent_t e = NULL;
    ck_assert_int_eq(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), cudaSuccess);
    return e;
}

static char *on_device(size_t nbytes) {
    void *p = NULL;
    ck_assert_int_eq(cudaMalloc(&p, nbytes), cudaSuccess);
    return p;
}

/* Whether the process that does this ends badly. The child has no workers: only what dies in the
 * call itself can be tried. */
static bool dies(void (*act)(void *arg), void *arg) {
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        (void)close(STDERR_FILENO); /* the report of the death would look like a failure */
        act(arg);
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void touch(void *arg) {
    *(volatile char *)arg = 1;
}

static void nothing(void *arg) {
    (void)arg;
}

START_TEST(DB2_the_host_cannot_touch_device_memory) {
    char *d = on_device(5000);
    ck_assert(!dies(nothing, d));
    ck_assert(dies(touch, d));
    ck_assert(dies(touch, d + 4999));
    ck_assert_int_eq(cudaFree(d), cudaSuccess);
}
END_TEST

START_TEST(DB2_fresh_memory_is_nan) {
    float v[8] = { 0 };
    char *d = on_device(sizeof v);
    ck_assert_int_eq(cudaMemcpy(v, d, sizeof v, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 8; i++) {
        ck_assert(v[i] != v[i]);
    }
    ck_assert_int_eq(cudaFree(d), cudaSuccess);
}
END_TEST

START_TEST(DB2_ranges_outside_a_block_are_refused) {
    char h[200] = { 0 }, *d = on_device(100);
    ck_assert_int_eq(cudaMemcpy(d, h, 100, cudaMemcpyHostToDevice), cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(d, h, 101, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaMemcpy(d + 1, h, 100, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaMemcpy(d, h, 8, cudaMemcpyDeviceToHost), cudaErrorInvalidMemcpyDirection);
    ck_assert_int_eq(cudaMemcpy(h, h + 8, 8, cudaMemcpyDeviceToDevice),
                     cudaErrorInvalidMemcpyDirection);
    ck_assert_ptr_nonnull(dtr_fake_cuda_host(d, 100));
    ck_assert_ptr_null(dtr_fake_cuda_host(d, 101));
    ck_assert_ptr_null(dtr_fake_cuda_host(h, 1));
    ck_assert_int_eq(cudaFree(d), cudaSuccess);
    (void)cudaGetLastError();
}
END_TEST

START_TEST(DB2_memory_past_and_after_a_block_faults) {
    char *d = on_device(4096), *other = on_device(4096);
    char *alias = dtr_fake_cuda_host(d, 4096);
    ck_assert(!dies(touch, alias + 4095));
    ck_assert(dies(touch, alias + 4096));
    ck_assert_int_eq(cudaFree(d), cudaSuccess);
    ck_assert(dies(touch, alias));
    ck_assert_ptr_null(dtr_fake_cuda_host(d, 1));
    ck_assert_int_eq(cudaFree(d), cudaErrorInvalidValue);
    char *fresh = on_device(4096);
    ck_assert_ptr_ne(fresh, d);
    ck_assert_int_eq(cudaFree(fresh), cudaSuccess);
    ck_assert_int_eq(cudaFree(other), cudaSuccess);
    (void)cudaGetLastError();
}
END_TEST

/* Where kernels run as nvcc compiled them, which is when somebody asks. */
START_TEST(DB2_what_was_written_is_known) {
    const bool was_on = getenv("DTR_FAKE_CUDA_PTX") != NULL;
    char h[8] = { 0 }, expected[16] = { 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1 };
    set("DTR_FAKE_CUDA_PTX", NULL);
    char *other = on_device(16);
    ck_assert_ptr_null(dtr_fake_cuda_known(other, 16));
    set("DTR_FAKE_CUDA_PTX", "1");
    char *d = on_device(16), *copy = on_device(16);
    ck_assert_ptr_nonnull(dtr_fake_cuda_known(d, 16));
    ck_assert_ptr_null(dtr_fake_cuda_known(d, 17));
    ck_assert_ptr_null(dtr_fake_cuda_known(h, 1));
    ck_assert_int_eq(cudaMemcpy(d + 4, h, 4, cudaMemcpyHostToDevice), cudaSuccess);
    ck_assert_int_eq(cudaMemset(d + 14, 0, 2), cudaSuccess);
    ck_assert_mem_eq(dtr_fake_cuda_known(d, 16), expected, 16);
    ck_assert_int_eq(cudaMemset(copy, 0, 16), cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(copy, d, 16, cudaMemcpyDeviceToDevice), cudaSuccess);
    ck_assert_mem_eq(dtr_fake_cuda_known(copy, 16), expected, 16);
    ck_assert_int_eq(cudaMemcpy(copy, other, 16, cudaMemcpyDeviceToDevice), cudaSuccess);
    memset(expected, 1, 16);
    ck_assert_mem_eq(dtr_fake_cuda_known(copy, 16), expected, 16);
    set("DTR_FAKE_CUDA_PTX", was_on ? "1" : NULL);
    char *const all[] = { other, d, copy };
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(cudaFree(all[i]), cudaSuccess);
    }
}
END_TEST

START_TEST(DB2_leaks_are_counted) {
    size_t device = dtr_fake_cuda_live("device"), pinned = dtr_fake_cuda_live("pinned");
    size_t streams = dtr_fake_cuda_live("stream"), events = dtr_fake_cuda_live("event");
    void *h = NULL, *d = on_device(1);
    ck_assert_int_eq(cudaMallocHost(&h, 1), cudaSuccess);
    cudaStream_t s = stream_new();
    cudaEvent_t e = event_new();
    ck_assert_uint_eq(dtr_fake_cuda_live("device"), device + 1);
    ck_assert_uint_eq(dtr_fake_cuda_live("pinned"), pinned + 1);
    ck_assert_uint_eq(dtr_fake_cuda_live("stream"), streams + 1);
    ck_assert_uint_eq(dtr_fake_cuda_live("event"), events + 1);
    ck_assert_int_eq(cudaFree(d), cudaSuccess);
    ck_assert_int_eq(cudaFreeHost(h), cudaSuccess);
    ck_assert_int_eq(cudaStreamDestroy(s), cudaSuccess);
    ck_assert_int_eq(cudaEventDestroy(e), cudaSuccess);
    ck_assert_uint_eq(dtr_fake_cuda_live("device"), device);
    ck_assert_uint_eq(dtr_fake_cuda_live("pinned"), pinned);
    ck_assert_uint_eq(dtr_fake_cuda_live("stream"), streams);
    ck_assert_uint_eq(dtr_fake_cuda_live("event"), events);
    ck_assert_int_eq(cudaEventQuery(e), cudaErrorInvalidResourceHandle);
    ck_assert_int_eq(cudaStreamQuery(s), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
}
END_TEST

static void note(void *arg) {
    __atomic_add_fetch((int *)arg, 1, __ATOMIC_RELEASE);
}

static int seen(int *n) {
    return __atomic_load_n(n, __ATOMIC_ACQUIRE);
}

START_TEST(DB3_a_wait_takes_the_record_of_its_call) {
    cudaStream_t a = stream_new(), b = stream_new();
    cudaEvent_t e = event_new();
    int n = 0;
    ck_assert_int_eq(cudaEventRecord(e, a), cudaSuccess);
    ck_assert_int_eq(cudaEventSynchronize(e), cudaSuccess);
    ck_assert_int_eq(cudaStreamWaitEvent(b, e, 0), cudaSuccess); /* of the first record */
    ck_assert_int_eq(dtr_fake_cuda_hold(e, 1), 0);
    ck_assert_int_eq(cudaEventRecord(e, a), cudaSuccess);
    ck_assert_int_eq(dtr_fake_cuda_enqueue(b, "note", note, &n, 0), 0);
    ck_assert_int_eq(cudaStreamSynchronize(b), cudaSuccess);
    ck_assert_int_eq(seen(&n), 1);
    ck_assert_int_eq(cudaEventQuery(e), cudaErrorNotReady);
    ck_assert_int_eq(cudaStreamQuery(a), cudaErrorNotReady);
    ck_assert_int_eq(cudaStreamWaitEvent(b, e, 0), cudaSuccess); /* of the second */
    ck_assert_int_eq(dtr_fake_cuda_enqueue(b, "note", note, &n, 0), 0);
    ck_assert_int_eq(seen(&n), 1);
    ck_assert_int_eq(dtr_fake_cuda_hold(e, 0), 0);
    ck_assert_int_eq(cudaStreamSynchronize(b), cudaSuccess);
    ck_assert_int_eq(seen(&n), 2);
    ck_assert_int_eq(cudaStreamDestroy(a), cudaSuccess);
    ck_assert_int_eq(cudaStreamDestroy(b), cudaSuccess);
    ck_assert_int_eq(cudaEventDestroy(e), cudaSuccess);
    (void)cudaGetLastError();
}
END_TEST

START_TEST(DB3_a_later_record_ends_no_earlier_wait) {
    cudaStream_t a = stream_new(), b = stream_new(), c = stream_new();
    cudaEvent_t e = event_new(), gate = event_new();
    int n = 0;
    ck_assert_int_eq(dtr_fake_cuda_hold(gate, 1), 0);
    ck_assert_int_eq(cudaEventRecord(gate, a), cudaSuccess); /* the first stream stops here */
    ck_assert_int_eq(cudaEventRecord(e, a), cudaSuccess);
    ck_assert_int_eq(cudaStreamWaitEvent(c, e, 0), cudaSuccess);
    ck_assert_int_eq(dtr_fake_cuda_enqueue(c, "note", note, &n, 0), 0);
    ck_assert_int_eq(cudaEventRecord(e, b), cudaSuccess); /* on one that does not */
    ck_assert_int_eq(cudaEventSynchronize(e), cudaSuccess);
    ck_assert_int_eq(cudaStreamQuery(c), cudaErrorNotReady);
    ck_assert_int_eq(seen(&n), 0);
    ck_assert_int_eq(dtr_fake_cuda_hold(gate, 0), 0);
    ck_assert_int_eq(cudaStreamSynchronize(c), cudaSuccess);
    ck_assert_int_eq(seen(&n), 1);
    cudaStream_t all[] = { a, b, c };
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(cudaStreamDestroy(all[i]), cudaSuccess);
    }
    ck_assert_int_eq(cudaEventDestroy(e), cudaSuccess);
    ck_assert_int_eq(cudaEventDestroy(gate), cudaSuccess);
    (void)cudaGetLastError();
}
END_TEST

static void fill_default(void *arg) {
    (void)cudaMemsetAsync(arg, 0, 1, NULL);
}

START_TEST(DB3_strict_refuses_work_in_the_default_stream) {
    char *d = on_device(16);
    cudaEvent_t e = event_new();
    set("DTR_FAKE_CUDA_STRICT", "1");
    ck_assert(dies(fill_default, d));
    ck_assert_int_eq(cudaEventRecord(e, NULL), cudaSuccess);
    ck_assert_int_eq(cudaStreamWaitEvent(NULL, e, 0), cudaSuccess);
    set("DTR_FAKE_CUDA_STRICT", NULL);
    ck_assert_int_eq(cudaMemsetAsync(d, 0, 1, NULL), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(NULL), cudaSuccess);
    ck_assert_int_eq(cudaEventDestroy(e), cudaSuccess);
    ck_assert_int_eq(cudaFree(d), cudaSuccess);
}
END_TEST

START_TEST(DB4_calls_are_logged) {
    char h[32] = { 0 }, *d = on_device(32);
    cudaStream_t s = stream_new();
    size_t before = dtr_fake_cuda_hidden_syncs();
    dtr_fake_cuda_log_start();
    ck_assert_int_eq(cudaMemcpyAsync(d, h, 32, cudaMemcpyHostToDevice, s), cudaSuccess);
    dtr_fake_cuda_log("ncclAllReduce", "count=%d", 7);
    ck_assert_int_eq(dtr_fake_cuda_log_count("cudaMemcpyAsync"), 1);
    ck_assert_int_eq(dtr_fake_cuda_log_count("nbytes=32 kind=1"), 1);
    ck_assert_int_eq(dtr_fake_cuda_log_count("hidden-sync"), 1);
    ck_assert_int_eq(dtr_fake_cuda_log_count("ncclAllReduce count=7 thread="), 1);
    ck_assert_ptr_nonnull(strstr(dtr_fake_cuda_log_text(), "cudaMemcpyAsync to="));
    ck_assert_uint_eq(dtr_fake_cuda_hidden_syncs(), before + 1);
    dtr_fake_cuda_log_start();
    ck_assert_int_eq(dtr_fake_cuda_log_count(""), 0);
    ck_assert_int_eq(cudaStreamDestroy(s), cudaSuccess);
    ck_assert_int_eq(cudaFree(d), cudaSuccess);
}
END_TEST

START_TEST(DB6_devices_and_identities) {
    struct cudaDeviceProp a, b;
    int n = 0;
    set("DTR_FAKE_CUDA_NDEV", "2");
    set("DTR_FAKE_CUDA_UUID", "left");
    ck_assert_int_eq(cudaGetDeviceCount(&n), cudaSuccess);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(cudaGetDeviceProperties(&a, 0), cudaSuccess);
    ck_assert_int_eq(cudaGetDeviceProperties(&b, 1), cudaSuccess);
    ck_assert_mem_ne(a.uuid.bytes, b.uuid.bytes, 16);
    unsigned char uuid[16];
    dtr_fake_cuda_uuid(uuid);
    ck_assert_mem_eq(uuid, a.uuid.bytes, 16);
    set("DTR_FAKE_CUDA_UUID", "right");
    ck_assert_int_eq(cudaGetDeviceProperties(&b, 0), cudaSuccess);
    ck_assert_mem_ne(a.uuid.bytes, b.uuid.bytes, 16);
    set("DTR_FAKE_CUDA_UUID", NULL);
    set("DTR_FAKE_CUDA_NDEV", "0");
    n = 17;
    ck_assert_int_eq(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    ck_assert_int_eq(n, 17);
    set("DTR_FAKE_CUDA_NDEV", NULL);
    set("DTR_FAKE_CUDA_DRIVER", "0");
    ck_assert_int_eq(cudaDriverGetVersion(&n), cudaSuccess);
    ck_assert_int_eq(n, 0);
    ck_assert_int_eq(cudaFree(NULL), cudaErrorInsufficientDriver);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInsufficientDriver);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInsufficientDriver);
    set("DTR_FAKE_CUDA_DRIVER", NULL);
    (void)cudaGetLastError();
}
END_TEST

START_TEST(DB6_memory_is_limited) {
    void *p = NULL;
    set("DTR_FAKE_CUDA_MEM", "1000");
    ck_assert_int_eq(cudaMalloc(&p, 1001), cudaErrorMemoryAllocation);
    ck_assert_int_eq(cudaMalloc(&p, 600), cudaSuccess);
    void *q = NULL;
    ck_assert_int_eq(cudaMalloc(&q, 600), cudaErrorMemoryAllocation);
    ck_assert_int_eq(cudaFree(p), cudaSuccess);
    ck_assert_int_eq(cudaMalloc(&q, 600), cudaSuccess);
    ck_assert_int_eq(cudaFree(q), cudaSuccess);
    set("DTR_FAKE_CUDA_MEM", NULL);
    (void)cudaGetLastError();
}
END_TEST

START_TEST(DB7_the_nth_call_fails) {
    void *p[4] = { NULL };
    set("DTR_FAKE_CUDA_ERR", "cudaMalloc:2:2,cudaFree:1:719");
    ck_assert_int_eq(cudaMalloc(&p[0], 8), cudaSuccess);
    ck_assert_int_eq(cudaMalloc(&p[1], 8), cudaErrorMemoryAllocation);
    ck_assert_int_eq(cudaMalloc(&p[2], 8), cudaSuccess);
    ck_assert_ptr_null(p[1]);
    ck_assert_int_eq(cudaFree(p[0]), cudaErrorLaunchFailure);
    ck_assert_int_eq(cudaFree(p[0]), cudaSuccess);
    ck_assert_int_eq(cudaFree(p[2]), cudaSuccess);
    set("DTR_FAKE_CUDA_ERR", NULL);
    (void)cudaGetLastError();
}
END_TEST

/* ---- contexts ---- */

static void on_host(void) {
    void *p = NULL;
    (void)cudaHostAlloc(&p, 1, 0);
}

static void on_the_device(void) {
    void *p = NULL;
    (void)cudaMalloc(&p, 1);
}

static void a_stream(void) {
    cudaStream_t made;
    (void)cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
}

static void an_event(void) {
    cudaEvent_t made;
    (void)cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
}

static void free_nothing(void) {
    (void)cudaFree(NULL);
}

static void only_asks(void) {
    struct cudaPointerAttributes a;
    struct cudaDeviceProp facts;
    int n = 0;
    (void)cudaGetDeviceCount(&n);
    (void)cudaGetDevice(&n);
    (void)cudaGetDeviceProperties(&facts, 0);
    (void)cudaPointerGetAttributes(&a, &n);
}

/* A call, and the device whose context it alone is to make: -1: none. */
typedef struct first_call {
    void (*act)(void);
    int chosen, makes;
} first_call;

/* In a process of its own, in which nothing was called before. */
static void call_first(void *arg) {
    const first_call *c = arg;
    const bool before = dtr_fake_cuda_context(0) || dtr_fake_cuda_context(1);
    if (c->chosen >= 0) {
        (void)cudaSetDevice(c->chosen);
    }
    c->act();
    bool good = !before;
    for (int d = 0; d < 2; d++) {
        good = good && dtr_fake_cuda_context(d) == (d == c->makes);
    }
    _exit(good ? 0 : 1);
}

/* Who has not chosen a device makes the context of the first, with calls for the host's memory too.
 */
START_TEST(GP3_contexts_that_nobody_asked_for) {
    static void (*const makers[])(void) = { on_host, on_the_device, a_stream, an_event,
                                            free_nothing };
    set("DTR_FAKE_CUDA_NDEV", "2");
    for (size_t i = 0; i < sizeof makers / sizeof makers[0]; i++) {
        first_call lazy = { makers[i], -1, 0 }, chosen = { makers[i], 1, 1 };
        ck_assert_msg(!dies(call_first, &lazy), "call %zu without a choice", i);
        ck_assert_msg(!dies(call_first, &chosen), "call %zu with a choice", i);
    }
    first_call asks = { only_asks, -1, -1 };
    ck_assert(!dies(call_first, &asks));
    set("DTR_FAKE_CUDA_NDEV", NULL);
}
END_TEST

/* ---- kernels ---- */

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int threads, void *tid, void *bid, void *block, void *grid, int *warp);

/* Fills nothing. */
static cudaError_t launch(const void *kernel, cudaStream_t stream) {
    dtr__kernel_args none = { .n = 0 };
    void *args[] = { &none };
    const dim3 one = { 1, 1, 1 };
    return cudaLaunchKernel(kernel, one, one, args, 0, stream);
}

static char no_code_for; /* the address stands for a kernel, as nvcc's objects have it */

START_TEST(DB6_a_device_without_code) {
    struct cudaFuncAttributes a;
    cudaStream_t s = stream_new();
    __cudaRegisterFunction(NULL, &no_code_for, NULL, "dtr_kernel_fill", -1, NULL, NULL, NULL, NULL,
                           NULL);
    set("DTR_FAKE_CUDA_CAPABILITY", "61");
    ck_assert_int_eq(cudaFuncGetAttributes(&a, &no_code_for), cudaErrorNoKernelImageForDevice);
    ck_assert_int_eq(launch(&no_code_for, s), cudaErrorNoKernelImageForDevice);
    set("DTR_FAKE_CUDA_CAPABILITY", "75");
    ck_assert_int_eq(cudaFuncGetAttributes(&a, &no_code_for), cudaSuccess);
    ck_assert_int_eq(launch(&no_code_for, s), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
    set("DTR_FAKE_CUDA_CAPABILITY", NULL);
    ck_assert_int_eq(cudaStreamDestroy(s), cudaSuccess);
    (void)cudaGetLastError();
}
END_TEST

static char loaded_late;
static int released; /* atomic */

/* Once the kernel is being loaded, lets go what the device has to do before, after a time in which
 * a launch that waits for nothing would have returned. */
static void *release(void *event) {
    while (dtr_fake_cuda_log_count("loads-kernel") == 0) {
        (void)usleep(200);
    }
    (void)usleep(50000);
    note(&released);
    (void)dtr_fake_cuda_hold(event, 0);
    return NULL;
}

/* A kernel's first launch loads it and waits for all that the device does, in other streams too;
 * later ones do not. */
START_TEST(DB3_a_first_launch_waits) {
    cudaStream_t busy = stream_new(), s = stream_new();
    cudaEvent_t e = event_new();
    pthread_t thread;
    __cudaRegisterFunction(NULL, &loaded_late, NULL, "dtr_kernel_fill", -1, NULL, NULL, NULL, NULL,
                           NULL);
    ck_assert_int_eq(dtr_fake_cuda_hold(e, 1), 0);
    ck_assert_int_eq(cudaEventRecord(e, busy), cudaSuccess);
    dtr_fake_cuda_log_start();
    ck_assert_int_eq(pthread_create(&thread, NULL, release, e), 0);
    ck_assert_int_eq(launch(&loaded_late, s), cudaSuccess);
    ck_assert_int_eq(seen(&released), 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(dtr_fake_cuda_hold(e, 1), 0);
    ck_assert_int_eq(cudaEventRecord(e, busy), cudaSuccess);
    ck_assert_int_eq(launch(&loaded_late, s), cudaSuccess);
    ck_assert_int_eq(dtr_fake_cuda_log_count("loads-kernel dtr_kernel_fill device=0"), 1);
    ck_assert_int_eq(cudaStreamQuery(busy), cudaErrorNotReady);
    ck_assert_int_eq(dtr_fake_cuda_hold(e, 0), 0);
    ck_assert_int_eq(cudaStreamSynchronize(busy), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
    ck_assert_int_eq(cudaStreamDestroy(busy), cudaSuccess);
    ck_assert_int_eq(cudaStreamDestroy(s), cudaSuccess);
    ck_assert_int_eq(cudaEventDestroy(e), cudaSuccess);
    (void)cudaGetLastError();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("double");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, GP3_contexts_that_nobody_asked_for); /* first, before there is one */
    tcase_add_test(tc, DB2_the_host_cannot_touch_device_memory);
    tcase_add_test(tc, DB2_fresh_memory_is_nan);
    tcase_add_test(tc, DB2_ranges_outside_a_block_are_refused);
    tcase_add_test(tc, DB2_memory_past_and_after_a_block_faults);
    tcase_add_test(tc, DB2_what_was_written_is_known);
    tcase_add_test(tc, DB2_leaks_are_counted);
    tcase_add_test(tc, DB3_a_wait_takes_the_record_of_its_call);
    tcase_add_test(tc, DB3_a_later_record_ends_no_earlier_wait);
    tcase_add_test(tc, DB3_strict_refuses_work_in_the_default_stream);
    tcase_add_test(tc, DB4_calls_are_logged);
    tcase_add_test(tc, DB6_devices_and_identities);
    tcase_add_test(tc, DB6_memory_is_limited);
    tcase_add_test(tc, DB7_the_nth_call_fails);
    tcase_add_test(tc, DB6_a_device_without_code);
    tcase_add_test(tc, DB3_a_first_launch_waits);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("cuda_double", make);
}
