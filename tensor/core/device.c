/* Operations on tensors in device memory, by kernels on the stream that the caller names. */
#include "core/tensor_device.h"

#include <math.h>
#include <string.h>

#include "base/float_mode.h"
#include "cuda/device_nan.h"
#include "kernels/kernels.h"
#include "memory/device.h"
#include "world/world.h"

/* Threads of the two kernels that leave one number each; others take what the data asks for. */
enum { NORM_BLOCKS = 64, NORM_THREADS = NORM_BLOCKS * DTR__KERNEL_THREADS };

static const dtr__device_ops *ops(void) {
    return dtr__cuda_get()->ops; /* there is a tensor on a device, so there is one */
}

static dtr_status check_contiguous(const dtr_tensor *t, const char *name) {
    DTR_REQUIRE(
        t->contiguous, NULL, DTR_ERR_UNSUPPORTED,
        "%s is in device memory and not contiguous; this call takes contiguous tensors there: "
        "make it one by dtr_tensor_contiguous, or by dtr_tensor_copy on the device",
        name);
    return DTR_OK;
}

/* ---- which kernel ---- */

static dtr_status check_real(const dtr_tensor *t, const char *name, int *type) {
    *type = dtr__kernel_type(t->dtype);
    DTR_REQUIRE(*type >= 0, NULL, DTR_ERR_UNSUPPORTED,
                "%s is a %s tensor in device memory; arithmetic there takes f16, bf16, f32, f64, "
                "c64 and c128",
                name, dtr_dtype_name(t->dtype));
    return DTR_OK;
}

static bool aligned(const void *p) {
    return ((uintptr_t)p & 15) == 0;
}

static uint64_t groups_of(const void *a, const void *b, uint64_t n) {
    return aligned(a) && aligned(b) ? n / DTR__GROUP : 0;
}

static dtr_status launch(int device, int kernel, const dtr__kernel_args *args, void *stream) {
    uint64_t items = args->groups > 0 ? args->groups : args->n;
    DTR_CUDA_TRY(ops()->launch(device, kernel, args, dtr__device_blocks(items), stream),
                 DTR_ERR_CUDA);
    return DTR_OK;
}

/* ---- operations ---- */

dtr_status dtr__device_tensor_fill(dtr_tensor *t, double value, void *stream) {
    DTR_TRY(check_contiguous(t, "tensor"));
    size_t size = dtr_dtype_size(t->dtype);
    unsigned char element[16], pattern[16];
    if (t->numel == 0) {
        return DTR_OK;
    }
    dtr__convert(element, t->dtype, &value, DTR_F64, 1);
    dtr__kernel_args args = { .y = t->data, .n = t->numel * size };
    args.head = -(uintptr_t)t->data & 15;
    args.head = args.head < args.n ? args.head : args.n;
    args.groups = (args.n - args.head) / 16;
    for (size_t i = 0; i < 16; i++) {
        pattern[i] = element[(args.head + i) % size];
    }
    memcpy(args.pattern, pattern, sizeof pattern);
    return launch(t->device.index, DTR__KERNEL_fill, &args, stream);
}

dtr_status dtr__device_tensor_scale(dtr_tensor *t, double alpha, void *stream) {
    static const int kernels[] = { DTR__KERNEL_scale_f16, DTR__KERNEL_scale_bf16,
                                   DTR__KERNEL_scale_f32, DTR__KERNEL_scale_f64 };
    int type;
    DTR_TRY(check_contiguous(t, "tensor"));
    DTR_TRY(check_real(t, "tensor", &type));
    if (t->numel == 0) {
        return DTR_OK;
    }
    dtr__kernel_args args = { .y = t->data,
                              .n = t->numel * dtr__reals_in(t->dtype),
                              .alpha = alpha };
    args.groups = groups_of(args.y, args.y, args.n);
    return launch(t->device.index, kernels[type], &args, stream);
}

static dtr_status check_same_device(const dtr_tensor *a, const char *a_name, const dtr_tensor *b,
                                    const char *b_name) {
    DTR_REQUIRE(a->device.type == b->device.type && a->device.index == b->device.index, NULL,
                DTR_ERR_DEVICE, "%s is on %s:%d and %s on %s:%d; both must be on one device",
                a_name, a->device.type == DTR_CPU ? "cpu" : "cuda", a->device.index, b_name,
                b->device.type == DTR_CPU ? "cpu" : "cuda", b->device.index);
    return DTR_OK;
}

static bool same_place(const dtr_tensor *a, const dtr_tensor *b) {
    return dtr__tensor_same_place(a, b) ||
           (a->data == b->data && a->dtype == b->dtype && a->contiguous && b->contiguous);
}

/* Kernels read and write in any order, so two tensors are one place or apart. */
static dtr_status check_apart(const dtr_tensor *dst, const char *dst_name, const dtr_tensor *src,
                              const char *src_name) {
    DTR_REQUIRE(same_place(dst, src) || !dtr__tensor_overlap(dst, src), NULL, DTR_ERR_UNSUPPORTED,
                "%s and %s overlap in device memory without being the same elements", dst_name,
                src_name);
    return DTR_OK;
}

dtr_status dtr__device_tensor_axpy(dtr_tensor *y, double alpha, const dtr_tensor *x, void *stream) {
    static const int kernels[] = { DTR__KERNEL_axpy_f16, DTR__KERNEL_axpy_bf16,
                                   DTR__KERNEL_axpy_f32, DTR__KERNEL_axpy_f64 };
    int type;
    DTR_TRY(check_same_device(y, "y", x, "x"));
    DTR_TRY(check_contiguous(y, "y"));
    DTR_TRY(check_contiguous(x, "x"));
    DTR_TRY(check_real(y, "y", &type));
    DTR_REQUIRE(x->dtype == y->dtype, NULL, DTR_ERR_UNSUPPORTED,
                "x is %s and y %s; in device memory both must have one type: convert x with "
                "dtr_tensor_copy",
                dtr_dtype_name(x->dtype), dtr_dtype_name(y->dtype));
    DTR_TRY(check_apart(y, "y", x, "x"));
    if (y->numel == 0) {
        return DTR_OK;
    }
    dtr__kernel_args args = { .y = y->data, .x = x->data, .alpha = alpha };
    args.n = y->numel * dtr__reals_in(y->dtype);
    args.groups = groups_of(args.y, args.x, args.n);
    return launch(y->device.index, kernels[type], &args, stream);
}

/* ---- copies ---- */

/* -1: no kernel converts these. */
static int cast_kernel(dtr_dtype to, dtr_dtype from) {
#define CAST(to, from) DTR__KERNEL_##to##_from_##from
    static const int casts[][DTR__KERNEL_N_TYPES] = {
        [DTR__KERNEL_TYPE_f16] = { -1, CAST(f16, bf16), CAST(f16, f32), CAST(f16, f64) },
        [DTR__KERNEL_TYPE_bf16] = { CAST(bf16, f16), -1, CAST(bf16, f32), CAST(bf16, f64) },
        [DTR__KERNEL_TYPE_f32] = { CAST(f32, f16), CAST(f32, bf16), -1, CAST(f32, f64) },
        [DTR__KERNEL_TYPE_f64] = { CAST(f64, f16), CAST(f64, bf16), CAST(f64, f32), -1 },
    };
    int t = dtr__kernel_type(to), f = dtr__kernel_type(from);
    bool real = !dtr__is_complex(to) && !dtr__is_complex(from);
    return real && t >= 0 && f >= 0 ? casts[t][f] : -1;
}

dtr_status dtr__device_check_cast(dtr_dtype to, dtr_dtype from) {
    DTR_REQUIRE(cast_kernel(to, from) >= 0, NULL, DTR_ERR_UNSUPPORTED,
                "no conversion of %s (src) to %s (dst) in device memory; there is one among f16, "
                "bf16, f32 and f64",
                dtr_dtype_name(from), dtr_dtype_name(to));
    return DTR_OK;
}

static dtr_status convert_on_device(dtr_tensor *dst, const dtr_tensor *src, void *stream) {
    int kernel = cast_kernel(dst->dtype, src->dtype);
    DTR_TRY(dtr__device_check_cast(dst->dtype, src->dtype));
    dtr__kernel_args args = { .y = dst->data, .x = src->data, .n = dst->numel };
    args.groups = groups_of(args.y, args.x, args.n);
    return launch(dst->device.index, kernel, &args, stream);
}

dtr_status dtr__device_tensor_copy(dtr_tensor *dst, const dtr_tensor *src, void *stream) {
    bool to = dtr__tensor_on_device(dst), from = dtr__tensor_on_device(src);
    if (to && from) {
        DTR_TRY(check_same_device(dst, "dst", src, "src"));
        DTR_TRY(check_apart(dst, "dst", src, "src"));
    } else {
        DTR_TRY(check_contiguous(dst, "dst"));
        DTR_TRY(check_contiguous(src, "src"));
    }
    if (dst->numel == 0 || same_place(dst, src)) {
        return DTR_OK;
    }
    if (to && from && !(dst->contiguous && src->contiguous)) {
        return dtr__device_strided_copy(dst, src, stream);
    }
    if (dst->dtype != src->dtype && to && from) {
        return convert_on_device(dst, src, stream);
    }
    DTR_REQUIRE(dst->dtype == src->dtype, NULL, DTR_ERR_UNSUPPORTED,
                "src is %s and dst %s: a copy between host and device converts nothing; convert on "
                "one side first",
                dtr_dtype_name(src->dtype), dtr_dtype_name(dst->dtype));
    dtr__copy_kind kind = to && from ? DTR__COPY_ON_DEVICE
                          : to       ? DTR__COPY_TO_DEVICE
                                     : DTR__COPY_TO_HOST;
    int device = to ? dst->device.index : src->device.index;
    size_t nbytes = dst->numel * dtr_dtype_size(dst->dtype);
    DTR_CUDA_TRY(ops()->copy(device, dst->data, src->data, nbytes, kind, stream), DTR_ERR_CUDA);
    return DTR_OK;
}

dtr_status dtr__device_tensor_clone(dtr_tensor *copy, const dtr_tensor *t) {
    DTR_TRY(dtr__device_tensor_copy(copy, t, NULL));
    DTR_CUDA_TRY(ops()->stream_synchronize(t->device.index, NULL), DTR_ERR_CUDA);
    return DTR_OK;
}

/* ---- NaN ---- */

dtr_status dtr__device_find_nan(int device, const void *data, size_t count, dtr_dtype dtype,
                                uint64_t *first, void *stream) {
    if (count == 0 || dtr__nan_formats[dtype].per == 0) {
        return DTR_OK;
    }
    dtr__kernel_args args = dtr__nan_args(data, count, dtype, first);
    unsigned blocks = dtr__device_blocks(args.groups > 0 ? args.groups : args.n);
    blocks = blocks < DTR__NAN_BLOCKS ? blocks : DTR__NAN_BLOCKS;
    DTR_CUDA_TRY(ops()->launch(device, dtr__nan_formats[dtype].kernel, &args, blocks, stream),
                 DTR_ERR_CUDA);
    return DTR_OK;
}

size_t dtr__device_nan_element(uint64_t number, dtr_dtype dtype) {
    return (size_t)(number / dtr__nan_formats[dtype].per);
}

/* ---- norm ---- */

typedef struct norm {
    int device;
    void *stream;
    dtr__kernel_args args;
    double *on_device, *pinned; /* a number of each thread */
} norm;

/* Runs the kernel over the tensor and brings the numbers of its threads to the host. */
static dtr_status norm_pass(norm *s, int kernel, double scale) {
    s->args.alpha = scale;
    DTR_CUDA_TRY(ops()->launch(s->device, kernel, &s->args, NORM_BLOCKS, s->stream), DTR_ERR_CUDA);
    DTR_CUDA_TRY(ops()->copy(s->device, s->pinned, s->on_device, NORM_THREADS * sizeof *s->pinned,
                             DTR__COPY_TO_HOST, s->stream),
                 DTR_ERR_CUDA);
    DTR_CUDA_TRY(ops()->stream_synchronize(s->device, s->stream), DTR_ERR_CUDA);
    return DTR_OK;
}

static double sum_of(const double *v) {
    double sum = 0;
    for (size_t i = 0; i < NORM_THREADS; i++) {
        sum += v[i];
    }
    return sum;
}

static double largest_of(const double *v) {
    double most = 0;
    for (size_t i = 0; i < NORM_THREADS; i++) {
        if (isnan(v[i])) {
            return v[i];
        }
        most = v[i] > most ? v[i] : most;
    }
    return most;
}

/* As on the host: scaled by the largest where squares leave the range of a double. In a function of
 * its own (base/float_mode.h): what the threads found is added up here. */
static __attribute__((noinline)) dtr_status norm_of(norm *s, int index, double *out) {
    static const int squares[] = { DTR__KERNEL_squares_f16, DTR__KERNEL_squares_bf16,
                                   DTR__KERNEL_squares_f32, DTR__KERNEL_squares_f64 };
    static const int largest[] = { DTR__KERNEL_largest_f16, DTR__KERNEL_largest_bf16,
                                   DTR__KERNEL_largest_f32, DTR__KERNEL_largest_f64 };
    DTR_TRY(norm_pass(s, squares[index], 1));
    double total = sum_of(s->pinned);
    if (total >= 0x1p-900 && total <= 0x1p1000) {
        *out = sqrt(total);
        return DTR_OK;
    }
    DTR_TRY(norm_pass(s, largest[index], 1));
    double most = largest_of(s->pinned);
    if (isnan(most) || most == 0 || isinf(most)) {
        *out = most;
        return DTR_OK;
    }
    int exponent = 0;
    (void)frexp(most, &exponent);
    exponent = exponent < -1000 ? -1000 : exponent; /* 2^-exponent must be finite */
    DTR_TRY(norm_pass(s, squares[index], ldexp(1.0, -exponent)));
    *out = ldexp(sqrt(sum_of(s->pinned)), exponent);
    return DTR_OK;
}

dtr_status dtr__device_tensor_norm(const dtr_tensor *t, void *stream, double *out) {
    int type;
    void *on_device = NULL, *pinned = NULL;
    double result = 0;
    DTR_TRY(check_contiguous(t, "tensor"));
    DTR_TRY(check_real(t, "tensor", &type));
    int device = t->device.index;
    dtr__capture capture = DTR__NO_CAPTURE;
    DTR_CUDA_TRY(ops()->stream_capturing(device, stream, &capture), DTR_ERR_CUDA);
    DTR_REQUIRE(capture == DTR__NO_CAPTURE, NULL, DTR_ERR_STATE,
                "dtr_tensor_norm: its stream captures a graph, and the host waits for a norm; call "
                "it outside the capture");
    DTR_CUDA_TRY(ops()->alloc(device, NORM_THREADS * sizeof(double), &on_device), DTR_ERR_NOMEM);
    int code = ops()->pinned_alloc(device, NORM_THREADS * sizeof(double), &pinned);
    dtr_status s = dtr__cuda_status(code, DTR_ERR_NOMEM, "pinned_alloc", __FILE__, __LINE__);
    if (s == DTR_OK) {
        norm n = { .device = device, .stream = stream, .on_device = on_device, .pinned = pinned };
        n.args = (dtr__kernel_args){ .y = on_device,
                                     .x = t->data,
                                     .n = t->numel * dtr__reals_in(t->dtype) };
        n.args.groups = groups_of(t->data, on_device, n.args.n);
        const dtr__float_mode mode = dtr__float_enter();
        s = norm_of(&n, type, &result);
        dtr__float_leave(mode);
        (void)ops()->pinned_free(device, pinned);
    }
    (void)ops()->free(device, on_device);
    if (s == DTR_OK) {
        *out = result;
    }
    return s;
}
