/* Memory of CUDA devices through the library: GP2, GP3, GP10, dtr_alloc. On the stand-in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <dtr/dtr.h>

#include "cuda/device_kernels.h"
#include "fake_cuda.h"
#include "memory/device.h"
#include "unit.h"

enum { DEVICES = 2 };

static const dtr_device second = { DTR_CUDA, 1 };

static dtr_world *world_new(void) {
    dtr_world *w = NULL;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.keep_mpi = true; /* MPI cannot be started twice in a process */
    ck_assert_int_eq(dtr_world_create(&o, &w), DTR_OK);
    return w;
}

static bool said(const char *text) {
    return strstr(dtr_last_error_message(), text) != NULL;
}

START_TEST(GP2_order_of_the_probe) {
    const char *log = dtr_fake_cuda_log_text();
    const char *driver = strstr(log, "cudaDriverGetVersion"),
               *n = strstr(log, "cudaGetDeviceCount");
    ck_assert_ptr_nonnull(driver);
    ck_assert_ptr_nonnull(n);
    ck_assert(driver < n);
    ck_assert_int_eq(dtr_device_count(DTR_CUDA), DEVICES);
    ck_assert_int_eq(dtr_fake_cuda_log_count("cudaSetDevice"), 0); /* GP3: no context anywhere */
    ck_assert_int_eq(dtr__cuda_get()->state, DTR__CUDA_OK);
}
END_TEST

START_TEST(GP3_the_current_device_is_put_back) {
    dtr_world *w = world_new();
    void *p = NULL;
    int now = -1;
    struct cudaPointerAttributes a;
    ck_assert_int_eq(dtr_alloc(w, second, DTR_MEM_DEFAULT, 1000, &p), DTR_OK);
    ck_assert_int_eq(cudaGetDevice(&now), cudaSuccess);
    ck_assert_int_eq(now, 0);
    ck_assert_int_eq(cudaPointerGetAttributes(&a, p), cudaSuccess);
    ck_assert_int_eq(a.device, 1);
    dtr_fake_cuda_log_start();
    ck_assert_int_eq(dtr_free(w, p), DTR_OK);
    ck_assert_int_eq(dtr_fake_cuda_log_count("cudaFree"), 1);
    ck_assert_int_eq(cudaGetDevice(&now), cudaSuccess);
    ck_assert_int_eq(now, 0);
    ck_assert_int_eq(dtr_world_destroy(w), DTR_OK);
}
END_TEST

START_TEST(GP10_an_older_error_stays_the_programs) {
    dtr_world *w = world_new();
    void *p = NULL;
    char h[8] = { 0 };
    ck_assert_int_eq(cudaMemcpy(h, h, 8, cudaMemcpyDeviceToDevice),
                     cudaErrorInvalidMemcpyDirection);
    ck_assert_int_eq(dtr_alloc(w, second, DTR_MEM_DEFAULT, 16, &p), DTR_OK);
    ck_assert_int_eq(dtr_free(w, p), DTR_OK);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidMemcpyDirection);
    /* And ours is not left behind as the program's. */
    p = &p;
    ck_assert_int_eq(dtr_alloc(w, second, DTR_MEM_DEFAULT, (size_t)1 << 45, &p), DTR_ERR_NOMEM);
    ck_assert_ptr_eq(p, &p);
    ck_assert_msg(said("35184372088832 bytes of memory of {DTR_CUDA, 1}: CUDA error 2"), "%s",
                  dtr_last_error_message());
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    ck_assert_int_eq(dtr_world_destroy(w), DTR_OK);
}
END_TEST

START_TEST(ALLOC_kinds) {
    dtr_world *w = world_new();
    const dtr_device cpu = { DTR_CPU, 0 }, third = { DTR_CUDA, DEVICES };
    void *p = NULL;
    size_t before = dtr_fake_cuda_live("pinned");
    ck_assert_int_eq(dtr_alloc(w, cpu, DTR_MEM_PINNED, 1000, &p), DTR_OK);
    ck_assert_uint_eq(dtr_fake_cuda_live("pinned"), before + 1);
    memset(p, 1, 1000);
    ck_assert_int_eq(dtr_free(w, p), DTR_OK);
    ck_assert_uint_eq(dtr_fake_cuda_live("pinned"), before);
    ck_assert_int_eq(dtr_alloc(w, second, DTR_MEM_PINNED, 1, &p), DTR_ERR_UNSUPPORTED);
    ck_assert_int_eq(dtr_alloc(w, second, DTR_MEM_SHARED, 1, &p), DTR_ERR_UNSUPPORTED);
    ck_assert_int_eq(dtr_alloc(w, third, DTR_MEM_DEFAULT, 1, &p), DTR_ERR_DEVICE);
    ck_assert_msg(said("{DTR_CUDA, 2}, but this process sees 2 CUDA devices"), "%s",
                  dtr_last_error_message());
    ck_assert_int_eq(dtr_alloc(w, second, DTR_MEM_DEFAULT, 0, &p), DTR_OK);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(dtr_free(w, p), DTR_OK);
    ck_assert_int_eq(dtr_world_destroy(w), DTR_OK);
}
END_TEST

START_TEST(ALLOC_what_is_left_goes_with_the_world) {
    dtr_world *w = world_new();
    size_t before = dtr_fake_cuda_live("device");
    void *p = NULL, *q = NULL;
    ck_assert_int_eq(dtr_alloc(w, second, DTR_MEM_DEFAULT, 100, &p), DTR_OK);
    ck_assert_int_eq(dtr_alloc(w, (dtr_device){ DTR_CUDA, 0 }, DTR_MEM_DEFAULT, 100, &q), DTR_OK);
    ck_assert_uint_eq(dtr_fake_cuda_live("device"), before + 2);
    ck_assert_int_eq(dtr_world_destroy(w), DTR_OK);
    ck_assert_uint_eq(dtr_fake_cuda_live("device"), before);
}
END_TEST

START_TEST(OPS_copies_and_events) {
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    void *d = NULL, *h = NULL, *s = NULL, *e = NULL;
    int owner = -7, flags = 0;
    ck_assert_int_eq(ops->alloc(1, 64, &d), 0);
    ck_assert_int_eq(ops->pinned_alloc(1, 64, &h), 0);
    ck_assert_int_eq(ops->stream_new(1, true, &s), 0);
    ck_assert_int_eq(ops->event_new(1, false, &e), 0);
    ck_assert_int_eq(cudaStreamGetFlags(s, (unsigned *)&flags), cudaSuccess);
    ck_assert_int_eq(flags, cudaStreamNonBlocking);
    memset(h, 3, 64);
    ck_assert_int_eq(ops->copy(1, d, h, 64, DTR__COPY_TO_DEVICE, s), 0);
    ck_assert_int_eq(ops->fill(1, d, 9, 32, s), 0);
    ck_assert_int_eq(dtr_fake_cuda_hold(e, 1), 0);
    ck_assert_int_eq(ops->event_record(1, e, s), 0);
    ck_assert_int_eq(ops->copy(1, h, d, 64, DTR__COPY_TO_HOST, s), 0);
    ck_assert_int_eq(ops->event_query(1, e), ops->not_ready);
    ck_assert_int_eq(cudaPeekAtLastError(), cudaSuccess); /* GP10: "still running" is no error */
    ck_assert_int_eq(dtr_fake_cuda_hold(e, 0), 0);
    ck_assert_int_eq(ops->stream_synchronize(1, s), 0);
    ck_assert_int_eq(ops->event_query(1, e), 0);
    ck_assert_int_eq(((char *)h)[31], 9);
    ck_assert_int_eq(((char *)h)[32], 3);
    ck_assert_int_eq(ops->owner(d, &owner), 0);
    ck_assert_int_eq(owner, 1);
    ck_assert_int_eq(ops->owner(h, &owner), 0);
    ck_assert_int_eq(owner, -1);
    ck_assert_int_eq(ops->event_free(1, e), 0);
    ck_assert_int_eq(ops->stream_free(1, s), 0);
    ck_assert_int_eq(ops->pinned_free(1, h), 0);
    ck_assert_int_eq(ops->free(1, d), 0);
}
END_TEST

/* Kernels are there when a device is first used: to load one at its first launch would wait for
 * what the device is doing, such as a collective that waits for a peer. */
START_TEST(OPS_kernels_are_loaded) {
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    static const union { /* the longest arguments */
        dtr__most_args many;
        dtr__most_step step;
    } none;
    cudaGraph_t graph = NULL; /* is never run: not every kernel has a use for nothing */
    void *s = NULL;
    ck_assert_int_eq(ops->stream_new(1, false, &s), 0);
    ck_assert_int_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed), cudaSuccess);
    dtr_fake_cuda_log_start();
    for (int k = 0; k < DTR__N_KERNELS; k++) {
        ck_assert_int_eq(ops->launch(1, k, &none, 1, s), 0);
    }
    ck_assert_int_eq(dtr_fake_cuda_log_count("cudaLaunchKernel dtr_kernel_"), DTR__N_KERNELS);
    ck_assert_int_eq(dtr_fake_cuda_log_count("loads-kernel"), 0);
    ck_assert_int_eq(cudaStreamEndCapture(s, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
    ck_assert_int_eq(ops->stream_free(1, s), 0);
}
END_TEST

/* How often kernels ran as nvcc compiled them; -1: nobody asks for that. */
static int runs_of_ptx(void) {
    unsigned n = 0, all = 0, k = 0;
    while (dtr_fake_cuda_ptx_ran(k, &n) != NULL) {
        all += n;
        k++;
    }
    return k > 0 ? (int)all : -1;
}

/* Where DTR_FAKE_CUDA_PTX is set, what is launched is the PTX, and so it is in the other tests. */
START_TEST(DB2_launches_run_the_ptx) {
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    static const int kernels[] = { DTR__KERNEL_fill, DTR__KERNEL_scale_f32, DTR__KERNEL_axpy_bf16,
                                   DTR__KERNEL_f16_from_f32, DTR__KERNEL_divide_i32 };
    const dtr__kernel_args none = { .n = 0 };
    const bool asked = getenv("DTR_FAKE_CUDA_PTX") != NULL;
    const int before = runs_of_ptx();
    void *s = NULL;
    ck_assert_int_eq(before >= 0, asked);
    ck_assert_int_eq(ops->stream_new(1, false, &s), 0);
    for (size_t k = 0; k < sizeof kernels / sizeof kernels[0]; k++) {
        ck_assert_int_eq(ops->launch(1, kernels[k], &none, 1, s), 0);
    }
    ck_assert_int_eq(ops->stream_synchronize(1, s), 0);
    ck_assert_int_eq(runs_of_ptx(), asked ? before + 5 : -1);
    ck_assert_int_eq(ops->stream_free(1, s), 0);
}
END_TEST

/* A device that none of the library's code runs on is refused by name, and not at the first launch.
 */
START_TEST(GP2_no_code_for_a_device) {
    dtr_world *w = world_new();
    void *p = NULL;
    ck_assert_int_eq(dtr_alloc(w, second, DTR_MEM_DEFAULT, 16, &p), DTR_ERR_DEVICE);
    ck_assert_msg(said("{DTR_CUDA, 1}") && said("compute capability 6.1") && said("it has ") &&
                      said("CMAKE_CUDA_ARCHITECTURES=61"),
                  "%s", dtr_last_error_message());
    ck_assert_int_eq(dtr_fake_cuda_context(1), 0);
    ck_assert_int_eq(dtr_world_destroy(w), DTR_OK);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("device");
    tcase_set_timeout(tc, 0);
    suite_add_tcase(s, tc);
    if (getenv("DTR_FAKE_CUDA_CAPABILITY") != NULL) {
        tcase_add_test(tc, GP2_no_code_for_a_device);
        return;
    }
    tcase_add_test(tc, GP2_order_of_the_probe);
    tcase_add_test(tc, GP3_the_current_device_is_put_back);
    tcase_add_test(tc, GP10_an_older_error_stays_the_programs);
    tcase_add_test(tc, ALLOC_kinds);
    tcase_add_test(tc, ALLOC_what_is_left_goes_with_the_world);
    tcase_add_test(tc, OPS_copies_and_events);
    tcase_add_test(tc, OPS_kernels_are_loaded);
    tcase_add_test(tc, DB2_launches_run_the_ptx);
}

int main(void) {
    dtr_fake_cuda_log_start();
    (void)dtr_device_count(DTR_CUDA);
    return th_unit_main("device_memory", make);
}
