/* Operations on tensors in device memory, by kernels on the stream that the caller names. */
#include "tensor_device.h"

#include <math.h>
#include <string.h>

#include "cuda/device_nan.h"
#include "kernels/kernels.h"
#include "rt_device.h"
#include "rt_world.h"

/* Threads of the two kernels that leave one number each; others take what the data asks for. */
enum { NORM_BLOCKS = 64, NORM_THREADS = NORM_BLOCKS * DTR__KERNEL_THREADS, MOST_BLOCKS = 1056 };

static const dtr__device_ops *ops(void) {
    return dtr__cuda_get()->ops; /* there is a tensor on a device, so there is one */
}

static dtr_status check_contiguous(const dtr_tensor *t, const char *name) {
    DTR_REQUIRE(t->contiguous, NULL, DTR_ERR_UNSUPPORTED,
                "%s is in device memory and not contiguous; device operations take contiguous "
                "tensors, so copy the whole to the host and take the part there",
                name);
    return DTR_OK;
}

/* ---- which kernel ---- */

typedef struct real_type {
    dtr_dtype real;
    size_t parts; /* reals per element */
    int index;    /* among the types of the kernels; -1: none */
} real_type;

static real_type real_of(dtr_dtype d) {
    switch (d) {
    case DTR_F16:
        return (real_type){ d, 1, 0 };
    case DTR_BF16:
        return (real_type){ d, 1, 1 };
    case DTR_F32:
        return (real_type){ d, 1, 2 };
    case DTR_F64:
        return (real_type){ d, 1, 3 };
    case DTR_C64:
        return (real_type){ DTR_F32, 2, 2 };
    case DTR_C128:
        return (real_type){ DTR_F64, 2, 3 };
    default:
        return (real_type){ d, 1, -1 };
    }
}

static dtr_status check_real(const dtr_tensor *t, const char *name, real_type *r) {
    *r = real_of(t->dtype);
    DTR_REQUIRE(r->index >= 0, NULL, DTR_ERR_UNSUPPORTED,
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

static unsigned blocks_for(uint64_t items) {
    uint64_t blocks = (items + DTR__KERNEL_THREADS - 1) / DTR__KERNEL_THREADS;
    return blocks == 0 ? 1 : blocks < MOST_BLOCKS ? (unsigned)blocks : MOST_BLOCKS;
}

static dtr_status launch(int device, int kernel, const dtr__kernel_args *args, void *stream) {
    uint64_t items = args->groups > 0 ? args->groups : args->n;
    DTR_CUDA_TRY(ops()->launch(device, kernel, args, blocks_for(items), stream), DTR_ERR_CUDA);
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
    real_type r;
    DTR_TRY(check_contiguous(t, "tensor"));
    DTR_TRY(check_real(t, "tensor", &r));
    if (t->numel == 0) {
        return DTR_OK;
    }
    dtr__kernel_args args = { .y = t->data, .n = t->numel * r.parts, .alpha = alpha };
    args.groups = groups_of(args.y, args.y, args.n);
    return launch(t->device.index, kernels[r.index], &args, stream);
}

static dtr_status check_same_device(const dtr_tensor *a, const char *a_name, const dtr_tensor *b,
                                    const char *b_name) {
    DTR_REQUIRE(a->device.type == b->device.type && a->device.index == b->device.index, NULL,
                DTR_ERR_DEVICE, "%s is on %s:%d and %s on %s:%d; both must be on one device",
                a_name, a->device.type == DTR_CPU ? "cpu" : "cuda", a->device.index, b_name,
                b->device.type == DTR_CPU ? "cpu" : "cuda", b->device.index);
    return DTR_OK;
}

/* Kernels read and write in any order, so two tensors are one place or apart. */
static dtr_status check_apart(const dtr_tensor *dst, const char *dst_name, const dtr_tensor *src,
                              const char *src_name) {
    bool same = dst->data == src->data && dst->dtype == src->dtype;
    DTR_REQUIRE(same || !dtr__tensor_overlap(dst, src), NULL, DTR_ERR_UNSUPPORTED,
                "%s and %s overlap in device memory without being the same elements", dst_name,
                src_name);
    return DTR_OK;
}

dtr_status dtr__device_tensor_axpy(dtr_tensor *y, double alpha, const dtr_tensor *x, void *stream) {
    static const int kernels[] = { DTR__KERNEL_axpy_f16, DTR__KERNEL_axpy_bf16,
                                   DTR__KERNEL_axpy_f32, DTR__KERNEL_axpy_f64 };
    real_type r;
    DTR_TRY(check_same_device(y, "y", x, "x"));
    DTR_TRY(check_contiguous(y, "y"));
    DTR_TRY(check_contiguous(x, "x"));
    DTR_TRY(check_real(y, "y", &r));
    DTR_REQUIRE(x->dtype == y->dtype, NULL, DTR_ERR_UNSUPPORTED,
                "x is %s and y %s; in device memory both must have one type: convert x with "
                "dtr_tensor_copy",
                dtr_dtype_name(x->dtype), dtr_dtype_name(y->dtype));
    DTR_TRY(check_apart(y, "y", x, "x"));
    if (y->numel == 0) {
        return DTR_OK;
    }
    dtr__kernel_args args = { .y = y->data, .x = x->data, .alpha = alpha };
    args.n = y->numel * r.parts;
    args.groups = groups_of(args.y, args.x, args.n);
    return launch(y->device.index, kernels[r.index], &args, stream);
}

/* ---- copies ---- */

/* -1: no kernel converts these. */
static int cast_kernel(dtr_dtype to, dtr_dtype from) {
    static const struct {
        dtr_dtype to, from;
        int kernel;
    } casts[] = {
        { DTR_F16, DTR_BF16, DTR__KERNEL_f16_from_bf16 },
        { DTR_F16, DTR_F32, DTR__KERNEL_f16_from_f32 },
        { DTR_F16, DTR_F64, DTR__KERNEL_f16_from_f64 },
        { DTR_BF16, DTR_F16, DTR__KERNEL_bf16_from_f16 },
        { DTR_BF16, DTR_F32, DTR__KERNEL_bf16_from_f32 },
        { DTR_BF16, DTR_F64, DTR__KERNEL_bf16_from_f64 },
        { DTR_F32, DTR_F16, DTR__KERNEL_f32_from_f16 },
        { DTR_F32, DTR_BF16, DTR__KERNEL_f32_from_bf16 },
        { DTR_F32, DTR_F64, DTR__KERNEL_f32_from_f64 },
        { DTR_F64, DTR_F16, DTR__KERNEL_f64_from_f16 },
        { DTR_F64, DTR_BF16, DTR__KERNEL_f64_from_bf16 },
        { DTR_F64, DTR_F32, DTR__KERNEL_f64_from_f32 },
    };
    for (size_t i = 0; i < sizeof casts / sizeof casts[0]; i++) {
        if (casts[i].to == to && casts[i].from == from) {
            return casts[i].kernel;
        }
    }
    return -1;
}

static dtr_status convert_there(dtr_tensor *dst, const dtr_tensor *src, void *stream) {
    int kernel = cast_kernel(dst->dtype, src->dtype);
    DTR_REQUIRE(kernel >= 0, NULL, DTR_ERR_UNSUPPORTED,
                "no conversion of %s (src) to %s (dst) in device memory; there is one among f16, "
                "bf16, f32 and f64",
                dtr_dtype_name(src->dtype), dtr_dtype_name(dst->dtype));
    dtr__kernel_args args = { .y = dst->data, .x = src->data, .n = dst->numel };
    args.groups = groups_of(args.y, args.x, args.n);
    return launch(dst->device.index, kernel, &args, stream);
}

dtr_status dtr__device_tensor_copy(dtr_tensor *dst, const dtr_tensor *src, void *stream) {
    bool to = dtr__tensor_on_device(dst), from = dtr__tensor_on_device(src);
    DTR_TRY(check_contiguous(dst, "dst"));
    DTR_TRY(check_contiguous(src, "src"));
    if (to && from) {
        DTR_TRY(check_same_device(dst, "dst", src, "src"));
        DTR_TRY(check_apart(dst, "dst", src, "src"));
    }
    if (dst->numel == 0 || dst->data == src->data) {
        return DTR_OK;
    }
    if (dst->dtype != src->dtype && to && from) {
        return convert_there(dst, src, stream);
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

/* ---- NaN ---- */

dtr_status dtr__device_find_nan(int device, const void *data, size_t count, dtr_dtype dtype,
                                uint64_t *first, void *stream) {
    if (count == 0 || dtr__nan_formats[dtype].per == 0) {
        return DTR_OK;
    }
    dtr__kernel_args args = dtr__nan_args(data, count, dtype, first);
    unsigned blocks = blocks_for(args.groups > 0 ? args.groups : args.n);
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
    dtr__kernel_args args;
    double *there, *here; /* a number of each thread: device and pinned memory */
} norm;

/* Runs the kernel over the tensor and brings the numbers of its threads here. */
static dtr_status norm_pass(norm *s, int kernel, double scale) {
    s->args.alpha = scale;
    DTR_CUDA_TRY(ops()->launch(s->device, kernel, &s->args, NORM_BLOCKS, NULL), DTR_ERR_CUDA);
    DTR_CUDA_TRY(ops()->copy(s->device, s->here, s->there, NORM_THREADS * sizeof *s->here,
                             DTR__COPY_TO_HOST, NULL),
                 DTR_ERR_CUDA);
    DTR_CUDA_TRY(ops()->stream_synchronize(s->device, NULL), DTR_ERR_CUDA);
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

/* As on the host: scaled by the largest where squares leave the range of a double. */
static dtr_status norm_of(norm *s, int index, double *out) {
    static const int squares[] = { DTR__KERNEL_squares_f16, DTR__KERNEL_squares_bf16,
                                   DTR__KERNEL_squares_f32, DTR__KERNEL_squares_f64 };
    static const int largest[] = { DTR__KERNEL_largest_f16, DTR__KERNEL_largest_bf16,
                                   DTR__KERNEL_largest_f32, DTR__KERNEL_largest_f64 };
    DTR_TRY(norm_pass(s, squares[index], 1));
    double total = sum_of(s->here);
    if (total >= 0x1p-900 && total <= 0x1p1000) {
        *out = sqrt(total);
        return DTR_OK;
    }
    DTR_TRY(norm_pass(s, largest[index], 1));
    double most = largest_of(s->here);
    if (isnan(most) || most == 0 || isinf(most)) {
        *out = most;
        return DTR_OK;
    }
    int exponent = 0;
    (void)frexp(most, &exponent);
    exponent = exponent < -1000 ? -1000 : exponent; /* 2^-exponent must be finite */
    DTR_TRY(norm_pass(s, squares[index], ldexp(1.0, -exponent)));
    *out = ldexp(sqrt(sum_of(s->here)), exponent);
    return DTR_OK;
}

dtr_status dtr__device_tensor_norm2(const dtr_tensor *t, double *out) {
    real_type r;
    void *there = NULL, *here = NULL;
    double result = 0;
    DTR_TRY(check_contiguous(t, "tensor"));
    DTR_TRY(check_real(t, "tensor", &r));
    int device = t->device.index;
    DTR_CUDA_TRY(ops()->alloc(device, NORM_THREADS * sizeof(double), &there), DTR_ERR_NOMEM);
    int code = ops()->pinned_alloc(NORM_THREADS * sizeof(double), &here);
    dtr_status s = dtr__cuda_status(code, DTR_ERR_NOMEM, "pinned_alloc", __FILE__, __LINE__);
    if (s == DTR_OK) {
        norm n = { .device = device, .there = there, .here = here };
        n.args = (dtr__kernel_args){ .y = there, .x = t->data, .n = t->numel * r.parts };
        n.args.groups = groups_of(t->data, there, n.args.n);
        s = norm_of(&n, r.index, &result);
        (void)ops()->pinned_free(here);
    }
    (void)ops()->free(device, there);
    if (s == DTR_OK) {
        *out = result;
    }
    return s;
}
