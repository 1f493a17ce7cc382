/* Tensors in device memory: the operations give what they give on the host. On the stand-in, which
 * the loader takes for the library that this program was linked with (nccl:DB1). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <dtr/dtr.h>

#define DTR_FAKE_WEAK
#include "core/tensor_device.h"
#include "fake_cuda.h"
#include "kernels/kernels.h"
#include "unit.h"

enum { LONGEST = 70001 };
static const dtr_device gpu = { DTR_CUDA, 0 }, cpu = { DTR_CPU, 0 };
static const dtr_dtype reals[] = { DTR_F16, DTR_BF16, DTR_F32, DTR_F64 };
static const int64_t lengths[] = { 0, 1, 7, 8, 33, LONGEST };
static dtr_world *world;
static cudaStream_t stream;

#define OK(call) ck_assert_msg((call) == DTR_OK, "%s: %s", #call, dtr_last_error_message())
#define FAILS(call, status, text)                                                             \
    do {                                                                                      \
        ck_assert_int_eq((call), (status));                                                   \
        ck_assert_msg(strstr(dtr_last_error_message(), (text)) != NULL, "the message is: %s", \
                      dtr_last_error_message());                                              \
    } while (0)

static dtr_tensor *tensor(dtr_dtype type, dtr_device device, int64_t n) {
    dtr_tensor *t = NULL;
    OK(dtr_tensor_empty(world, type, device, DTR_MEM_DEFAULT, 1, &n, &t));
    return t;
}

/* Numbers of all sizes that rounding treats differently, the same ones for one seed. */
static dtr_tensor *numbers(dtr_dtype type, int64_t n, unsigned seed) {
    dtr_tensor *wide = tensor(DTR_F64, cpu, n), *t = tensor(type, cpu, n);
    double *v = dtr_tensor_data(wide);
    for (int64_t i = 0; i < n; i++) {
        v[i] = ((double)rand_r(&seed) / RAND_MAX - 0.5) * (i % 5 == 0 ? 1e-6 : 100);
    }
    OK(dtr_tensor_copy(t, wide, NULL));
    dtr_tensor_release(wide);
    return t;
}

static dtr_tensor *uploaded(const dtr_tensor *t) {
    dtr_tensor *there = tensor(dtr_tensor_dtype(t), gpu, (int64_t)dtr_tensor_numel(t));
    OK(dtr_tensor_copy(there, t, stream));
    return there;
}

static void check_same(const dtr_tensor *there, const dtr_tensor *expected, const char *what) {
    dtr_dtype type = dtr_tensor_dtype(expected);
    dtr_tensor *here = tensor(type, cpu, (int64_t)dtr_tensor_numel(expected)), *flat = NULL;
    OK(dtr_tensor_reshape((dtr_tensor *)(uintptr_t)there, 1, dtr_tensor_shape(here), &flat));
    OK(dtr_tensor_copy(here, flat, stream));
    dtr_tensor_release(flat);
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
    size_t nbytes = dtr_tensor_numel(here) * dtr_dtype_size(type);
    ck_assert_msg(memcmp(dtr_tensor_data(here), dtr_tensor_data(expected), nbytes) == 0,
                  "%s of %zu %s differs from the host", what, dtr_tensor_numel(here),
                  dtr_dtype_name(type));
    dtr_tensor_release(here);
}

START_TEST(FILL_every_type_and_offset) {
    for (dtr_dtype type = DTR_BOOL; type <= DTR_C128; type++) {
        for (int64_t from = 0; from < 5; from++) {
            dtr_tensor *t = tensor(type, cpu, 100), *view = NULL, *part = NULL;
            OK(dtr_tensor_fill(t, 1, NULL));
            dtr_tensor *there = uploaded(t);
            OK(dtr_tensor_narrow(t, 0, from, 90, &view));
            OK(dtr_tensor_narrow(there, 0, from, 90, &part));
            OK(dtr_tensor_fill(view, 0.7, NULL));
            OK(dtr_tensor_fill(part, 0.7, stream));
            check_same(there, t, "fill");
            dtr_tensor_release(view);
            dtr_tensor_release(part);
            dtr_tensor_release(there);
            dtr_tensor_release(t);
        }
    }
}
END_TEST

START_TEST(SCALE_and_axpy_are_those_of_the_host) {
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 6; i++) {
            dtr_tensor *y = numbers(reals[k], lengths[i], 3), *x = numbers(reals[k], lengths[i], 4);
            dtr_tensor *dy = uploaded(y), *dx = uploaded(x);
            OK(dtr_tensor_scale(y, 1.0 / 3, NULL));
            OK(dtr_tensor_scale(dy, 1.0 / 3, stream));
            check_same(dy, y, "scale");
            OK(dtr_tensor_axpy(y, -0.3, x, NULL));
            OK(dtr_tensor_axpy(dy, -0.3, dx, stream));
            check_same(dy, y, "axpy");
            dtr_tensor_release(x);
            dtr_tensor_release(y);
            dtr_tensor_release(dx);
            dtr_tensor_release(dy);
        }
    }
}
END_TEST

START_TEST(SCALE_complex_and_odd_addresses) {
    dtr_tensor *t = numbers(DTR_F32, 200, 5), *view = NULL, *part = NULL;
    dtr_tensor *there = uploaded(t);
    OK(dtr_tensor_narrow(t, 0, 1, 101, &view));
    OK(dtr_tensor_narrow(there, 0, 1, 101, &part));
    OK(dtr_tensor_scale(view, 7, NULL));
    OK(dtr_tensor_scale(part, 7, stream));
    check_same(there, t, "scale of a part");
    dtr_tensor_release(view);
    dtr_tensor_release(part);
    dtr_tensor_release(there);
    dtr_tensor_release(t);
    t = tensor(DTR_C64, cpu, 9);
    for (int i = 0; i < 18; i++) {
        ((float *)dtr_tensor_data(t))[i] = (float)i + 0.25F;
    }
    there = uploaded(t);
    OK(dtr_tensor_scale(t, 3, NULL));
    OK(dtr_tensor_scale(there, 3, stream));
    check_same(there, t, "scale");
    dtr_tensor_release(there);
    dtr_tensor_release(t);
}
END_TEST

START_TEST(CAST_rounds_as_the_host) {
    for (int to = 0; to < 4; to++) {
        for (int from = 0; from < 4; from++) {
            for (int i = 0; i < 6; i++) {
                dtr_tensor *x = numbers(reals[from], lengths[i], 6), *dx = uploaded(x);
                dtr_tensor *y = tensor(reals[to], cpu, lengths[i]);
                dtr_tensor *dy = tensor(reals[to], gpu, lengths[i]);
                OK(dtr_tensor_copy(y, x, NULL));
                OK(dtr_tensor_copy(dy, dx, stream));
                check_same(dy, y, "conversion");
                dtr_tensor_release(x);
                dtr_tensor_release(y);
                dtr_tensor_release(dx);
                dtr_tensor_release(dy);
            }
        }
    }
}
END_TEST

/* ---- strides ---- */

typedef dtr_tensor *(*view_of)(dtr_tensor *whole);

static dtr_tensor *shaped(dtr_tensor *whole, int64_t a, int64_t b, int64_t c) {
    dtr_tensor *flat = NULL, *t = NULL;
    const int64_t shape[] = { a, b, c };
    OK(dtr_tensor_narrow(whole, 0, 1, a * b * c, &flat));
    OK(dtr_tensor_reshape(flat, 3, shape, &t));
    dtr_tensor_release(flat);
    return t;
}

static dtr_tensor *turned(dtr_tensor *whole) { /* 6 x 8 x 16 */
    dtr_tensor *t = shaped(whole, 16, 8, 6), *view = NULL;
    OK(dtr_tensor_transpose(t, 0, 2, &view));
    dtr_tensor_release(t);
    return view;
}

static dtr_tensor *cut_inside(dtr_tensor *whole) { /* rows with a gap behind each */
    dtr_tensor *t = shaped(whole, 6, 8, 20), *view = NULL;
    OK(dtr_tensor_narrow(t, 2, 2, 16, &view));
    dtr_tensor_release(t);
    return view;
}

static dtr_tensor *cut_outside(dtr_tensor *whole) {
    dtr_tensor *t = shaped(whole, 6, 11, 16), *view = NULL;
    OK(dtr_tensor_narrow(t, 1, 3, 8, &view));
    dtr_tensor_release(t);
    return view;
}

static dtr_tensor *without_gaps(dtr_tensor *whole) {
    return shaped(whole, 6, 8, 16);
}

static dtr_tensor *backwards(dtr_tensor *whole) {
    const int64_t shape[] = { 6, 8, 16 }, strides[] = { -128, 16, 1 };
    dtr_tensor *view = NULL;
    OK(dtr__tensor_view(whole, 5 * 128, 3, shape, strides, &view));
    return view;
}

static dtr_tensor *same_again(dtr_tensor *whole) { /* one row, read eight times */
    const int64_t shape[] = { 6, 8, 16 }, strides[] = { 16, 0, 1 };
    dtr_tensor *view = NULL;
    OK(dtr__tensor_view(whole, 0, 3, shape, strides, &view));
    return view;
}

static const view_of views[] = { without_gaps, turned,    cut_inside,
                                 cut_outside,  backwards, same_again };
enum { VIEWS = sizeof views / sizeof views[0], WHOLE = 1100 };

static void check_strided(dtr_dtype to, dtr_dtype from, view_of to_view, view_of from_view) {
    dtr_tensor *x = numbers(from, WHOLE, 12), *dx = uploaded(x);
    dtr_tensor *y = numbers(to, WHOLE, 13), *dy = uploaded(y);
    dtr_tensor *view = to_view(y), *there = to_view(dy), *source = from_view(x);
    dtr_tensor *device_source = from_view(dx);
    OK(dtr_tensor_copy(view, source, NULL));
    OK(dtr_tensor_copy(there, device_source, stream));
    check_same(dy, y, "a copy with gaps");
    dtr_tensor *const all[] = { x, dx, y, dy, view, there, source, device_source };
    for (int k = 0; k < 8; k++) {
        dtr_tensor_release(all[k]);
    }
}

START_TEST(STRIDED_copies_are_those_of_the_host) {
    for (int to = 0; to + 1 < VIEWS; to++) {
        for (int from = 0; from < VIEWS; from++) {
            for (dtr_dtype type = DTR_BOOL; type <= DTR_C128; type++) {
                check_strided(type, type, views[to], views[from]);
            }
            for (int k = 0; k < 16; k++) {
                check_strided(reals[k / 4], reals[k % 4], views[to], views[from]);
            }
        }
    }
}
END_TEST

/* By the widest cells that addresses and strides allow. */
START_TEST(STRIDED_by_wide_cells) {
    dtr_tensor *x = tensor(DTR_F32, gpu, 1024), *y = tensor(DTR_F32, gpu, 1024), *a = NULL,
               *b = NULL;
    dtr_tensor *matrix[2], *part[2];
    const int64_t shape[] = { 8, 128 };
    OK(dtr_tensor_fill(y, 1, stream));
    OK(dtr_tensor_reshape(x, 2, shape, &matrix[0]));
    OK(dtr_tensor_reshape(y, 2, shape, &matrix[1]));
    dtr_fake_cuda_log_start();
    for (int from = 0; from < 3; from++) { /* multiples of 16, 8 and 4 bytes */
        for (int k = 0; k < 2; k++) {
            OK(dtr_tensor_narrow(matrix[k], 1,
                                 from == 0   ? 4
                                 : from == 1 ? 2
                                             : 1,
                                 64 >> from, &part[k]));
        }
        OK(dtr_tensor_copy(part[0], part[1], stream));
        dtr_tensor_release(part[0]);
        dtr_tensor_release(part[1]);
    }
    ck_assert_int_eq(dtr_fake_cuda_log_count("dtr_kernel_strided_u128"), 1);
    ck_assert_int_eq(dtr_fake_cuda_log_count("dtr_kernel_strided_u64"), 1);
    ck_assert_int_eq(dtr_fake_cuda_log_count("dtr_kernel_strided_u32"), 1);
    OK(dtr_tensor_narrow(matrix[0], 0, 2, 3, &a));
    OK(dtr_tensor_narrow(matrix[1], 0, 2, 3, &b));
    OK(dtr_tensor_copy(a, b, stream)); /* no kernel */
    ck_assert_int_eq(dtr_fake_cuda_log_count("dtr_kernel_strided_"), 3);
    dtr_tensor *const all[] = { a, b, matrix[0], matrix[1], x, y };
    for (int k = 0; k < 6; k++) {
        dtr_tensor_release(all[k]);
    }
}
END_TEST

START_TEST(CLONE_of_any_layout) {
    for (int k = 0; k < VIEWS; k++) {
        dtr_tensor *x = numbers(DTR_BF16, WHOLE, 14), *dx = uploaded(x);
        dtr_tensor *view = views[k](x), *there = views[k](dx), *copy = NULL, *clone = NULL;
        ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
        OK(dtr_tensor_clone(view, &copy));
        OK(dtr_tensor_clone(there, &clone));
        ck_assert(dtr_tensor_is_contiguous(clone) && dtr_tensor_device(clone).type == DTR_CUDA);
        ck_assert_ptr_ne(dtr_tensor_data(clone), dtr_tensor_data(there));
        check_same(clone, copy, "a clone");
        dtr_tensor_release(clone);
        OK(dtr_tensor_contiguous(there, &clone));
        ck_assert_int_eq(clone == there, k == 0);
        check_same(clone, copy, "what is contiguous");
        dtr_tensor *const all[] = { x, dx, view, there, copy, clone };
        for (int i = 0; i < 6; i++) {
            dtr_tensor_release(all[i]);
        }
    }
    dtr_tensor *t = tensor(DTR_F32, gpu, 0), *clone = NULL, *host = numbers(DTR_F32, 40, 15);
    OK(dtr_tensor_clone(t, &clone));
    dtr_tensor_release(clone);
    dtr_tensor_release(t);
    t = uploaded(host);
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
    dtr_tensor *own = NULL; /* over memory of the program */
    const int64_t n = 40;
    OK(dtr_tensor_from_buffer(dtr_cuda(dtr_tensor_data(t), 40, DTR_F32, 0), 1, &n, NULL, NULL, NULL,
                              &own));
    OK(dtr_tensor_clone(own, &clone));
    check_same(clone, host, "a clone of the program's memory");
    dtr_tensor_release(clone);
    dtr_tensor_release(own);
    dtr_tensor_release(t);
    dtr_tensor_release(host);
}
END_TEST

/* Cut into `n` pieces of other lengths, some at odd addresses, moved in reverse order of addresses.
 */
static void check_many(dtr_dtype to, dtr_dtype from, size_t n, double scale) {
    enum { STEP = 331 };
    dtr_tensor *x = numbers(from, STEP * (int64_t)n + 20000, 11), *dx = uploaded(x);
    dtr_tensor *y = tensor(to, cpu, STEP * (int64_t)n + 20000);
    OK(dtr_tensor_fill(y, 5, NULL));
    dtr_tensor *dy = uploaded(y);
    dtr__piece *p = calloc(n, sizeof *p);
    size_t some = 0; /* pieces of nothing take no room */
    ck_assert_ptr_nonnull(p);
    for (size_t k = 0; k < n; k++) {
        size_t at = k * STEP / 16 * 16 + (k % 3 == 1), count = k == n - 1 ? 19000 : k % 5 * 80;
        some += count > 0;
        size_t t = at * dtr_dtype_size(to), f = at * dtr_dtype_size(from);
        p[n - 1 - k] = (dtr__piece){ (char *)dtr_tensor_data(dy) + t,
                                     (char *)dtr_tensor_data(dx) + f, count, to, from };
        dtr__convert_scale((char *)dtr_tensor_data(y) + t, to, (char *)dtr_tensor_data(x) + f, from,
                           count, scale);
    }
    dtr_fake_cuda_log_start();
    OK(dtr__device_move_many(0, p, n, scale, stream));
    int launches = dtr_fake_cuda_log_count("cudaLaunchKernel dtr_kernel_");
    ck_assert_int_eq(launches, some > 1024 ? 2 : 1);
    ck_assert_int_eq(dtr_fake_cuda_log_count("cudaLaunchKernel dtr_kernel_few"),
                     some <= 64 || some > 1024);
    check_same(dy, y, "moving many");
    free(p);
    dtr_tensor_release(x);
    dtr_tensor_release(y);
    dtr_tensor_release(dx);
    dtr_tensor_release(dy);
}

/* Gathering and giving back of gradients: one launch for any number of pieces up to 1,024. */
START_TEST(MANY_pieces_in_one_launch) {
    static const size_t sizes[] = { 1, 5, 80, 82, 1280, 1290 };
    for (int to = 0; to < 4; to++) {
        for (int from = 0; from < 4; from++) {
            check_many(reals[to], reals[from], 7, 1);
            check_many(reals[to], reals[from], 7, 0.25);
        }
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_many(DTR_F32, DTR_F32, sizes[i], 1);
        check_many(DTR_BF16, DTR_F32, sizes[i], 1);
    }
    dtr_tensor *a = tensor(DTR_I32, gpu, 8), *b = tensor(DTR_F32, gpu, 8);
    dtr__piece p = { dtr_tensor_data(b), dtr_tensor_data(a), 8, DTR_F32, DTR_I32 };
    FAILS(dtr__device_move_many(0, &p, 1, 1, stream), DTR_ERR_UNSUPPORTED, "conversion of i32");
    dtr_tensor_release(a);
    dtr_tensor_release(b);
}
END_TEST

static double norm_there(const dtr_tensor *t) {
    double out = -1;
    dtr_tensor *there = uploaded(t); /* by the stream, which the norm comes behind */
    OK(dtr_tensor_norm(there, stream, &out));
    dtr_tensor_release(there);
    return out;
}

START_TEST(NORM_of_all_sizes) {
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 6; i++) {
            dtr_tensor *t = numbers(reals[k], lengths[i], 8);
            double here = -1, there = norm_there(t);
            OK(dtr_tensor_norm(t, NULL, &here));
            ck_assert_msg(fabs(here - there) <= 1e-12 * here, "%.17g on the host, %.17g", here,
                          there);
            dtr_tensor_release(t);
        }
    }
}
END_TEST

START_TEST(NORM_beyond_the_range_of_squares) {
    dtr_tensor *t = tensor(DTR_F64, cpu, 3);
    double *v = dtr_tensor_data(t);
    v[0] = 3e200, v[1] = 0, v[2] = -4e200;
    double got = norm_there(t);
    ck_assert(fabs(got - 5e200) <= 1e-12 * 5e200);
    v[0] = 3e-200, v[2] = 4e-200;
    got = norm_there(t);
    ck_assert(fabs(got - 5e-200) <= 1e-12 * 5e-200);
    v[1] = INFINITY;
    ck_assert(isinf(norm_there(t)));
    v[2] = NAN;
    ck_assert(isnan(norm_there(t)));
    dtr_tensor_release(t);
}
END_TEST

START_TEST(NORM_in_no_graph) {
    dtr_tensor *t = tensor(DTR_F32, gpu, 8);
    cudaGraph_t graph = NULL;
    double norm = -1;
    ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    FAILS(dtr_tensor_norm(t, stream, &norm), DTR_ERR_STATE, "captures a graph");
    OK(dtr_tensor_fill(t, 2, stream));
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess); /* and it is valid */
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
    ck_assert(norm == -1);
    dtr_tensor_release(t);
}
END_TEST

START_TEST(REFUSED_with_the_reason) {
    dtr_tensor *f = tensor(DTR_F32, gpu, 8), *i = tensor(DTR_I32, gpu, 8);
    dtr_tensor *h = tensor(DTR_F64, cpu, 8), *b = tensor(DTR_BF16, gpu, 8), *part = NULL;
    dtr_tensor *matrix = NULL, *turned = NULL;
    FAILS(dtr_tensor_scale(i, 2, stream), DTR_ERR_UNSUPPORTED, "is a i32 tensor in device memory");
    FAILS(dtr_tensor_copy(f, i, stream), DTR_ERR_UNSUPPORTED, "no conversion of i32 (src)");
    FAILS(dtr_tensor_copy(f, h, stream), DTR_ERR_UNSUPPORTED, "converts nothing");
    FAILS(dtr_tensor_axpy(f, 1, h, stream), DTR_ERR_DEVICE, "y is on cuda:0 and x on cpu:0");
    FAILS(dtr_tensor_axpy(f, 1, b, stream), DTR_ERR_UNSUPPORTED, "x is bf16 and y f32");
    int64_t shape[] = { 2, 4 };
    OK(dtr_tensor_reshape(f, 2, shape, &matrix));
    OK(dtr_tensor_transpose(matrix, 0, 1, &turned));
    FAILS(dtr_tensor_fill(turned, 0, stream), DTR_ERR_UNSUPPORTED, "not contiguous");
    dtr_tensor_release(turned);
    dtr_tensor_release(matrix);
    OK(dtr_tensor_narrow(f, 0, 1, 4, &part));
    dtr_tensor *first = NULL;
    OK(dtr_tensor_narrow(f, 0, 0, 4, &first));
    FAILS(dtr_tensor_copy(first, part, stream), DTR_ERR_UNSUPPORTED, "overlap in device memory");
    dtr_tensor_release(first);
    dtr_tensor_release(part);
    dtr_tensor_release(b);
    dtr_tensor_release(h);
    dtr_tensor_release(i);
    dtr_tensor_release(f);
}
END_TEST

/* One launch each, on the caller's stream, for which the norm alone waits; a failing launch is an
 * error with CUDA's code. */
START_TEST(LAUNCH_on_the_stream_of_the_caller) {
    dtr_tensor *t = tensor(DTR_F32, gpu, 1000);
    char on[64];
    snprintf(on, sizeof on, "stream=%p", (void *)stream);
    dtr_fake_cuda_log_start();
    OK(dtr_tensor_fill(t, 1, stream));
    OK(dtr_tensor_scale(t, 2, stream));
    ck_assert_int_eq(dtr_fake_cuda_log_count("cudaLaunchKernel dtr_kernel_"), 2);
    ck_assert_int_eq(dtr_fake_cuda_log_count(on), 2);
    ck_assert_int_eq(dtr_fake_cuda_log_count("Synchronize"), 0);
    double norm = -1;
    dtr_fake_cuda_log_start();
    OK(dtr_tensor_norm(t, stream, &norm));
    ck_assert(fabs(norm - 2 * sqrt(1000)) <= 1e-12 * norm);
    ck_assert_int_eq(dtr_fake_cuda_log_count(on), 5); /* two looks, kernel, copy, wait */
    ck_assert_int_eq(dtr_fake_cuda_log_count("stream="), 5);
    ck_assert_int_eq(setenv("DTR_FAKE_CUDA_ERR", "cudaLaunchKernel:1:719", 1), 0);
    dtr_fake_cuda_reload();
    FAILS(dtr_tensor_scale(t, 2, stream), DTR_ERR_CUDA, "CUDA error 719");
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    ck_assert_int_eq(unsetenv("DTR_FAKE_CUDA_ERR"), 0);
    dtr_fake_cuda_reload();
    dtr_tensor_release(t);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("tensor");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, FILL_every_type_and_offset);
    tcase_add_test(tc, SCALE_and_axpy_are_those_of_the_host);
    tcase_add_test(tc, SCALE_complex_and_odd_addresses);
    tcase_add_test(tc, CAST_rounds_as_the_host);
    tcase_add_test(tc, STRIDED_copies_are_those_of_the_host);
    tcase_add_test(tc, CLONE_of_any_layout);
    tcase_add_test(tc, NORM_of_all_sizes);
    tcase_add_test(tc, NORM_beyond_the_range_of_squares);
    tcase_add_test(tc, NORM_in_no_graph);
    tcase_add_test(tc, REFUSED_with_the_reason);
    if (dtr_fake_cuda_reload != NULL) {
        tcase_add_test(tc, STRIDED_by_wide_cells);
        tcase_add_test(tc, MANY_pieces_in_one_launch);
        tcase_add_test(tc, LAUNCH_on_the_stream_of_the_caller);
    }
    suite_add_tcase(s, tc);
}

int main(void) {
    if (dtr_world_create(NULL, &world) != DTR_OK ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
        return 1;
    }
    int status = th_unit_main("device_tensor", make);
    size_t left = dtr_fake_cuda_live != NULL
                      ? dtr_fake_cuda_live("device") + dtr_fake_cuda_live("pinned")
                      : 0;
    return dtr_world_destroy(world) == DTR_OK && left == 0 ? status : 1;
}
