/* Life of a tensor: creation over own or foreign memory, reference counts, and what can be asked.
 */
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "core/tensor_internal.h"
#include "memory/device.h"
#include "world/world.h"

enum { TENSOR_ALIGN = 64 };

dtr_status dtr__tensor_check(const dtr_tensor *t, const char *name) {
    DTR_REQUIRE(t != NULL, NULL, DTR_ERR_ARG, "%s is NULL; a tensor is needed", name);
    DTR_REQUIRE(t->magic == DTR__TENSOR_MAGIC, NULL, DTR_ERR_ARG,
                "%s (%p) is no live tensor; was it released before?", name, (const void *)t);
    /* Other memory than the world's is the child's own copy, as everything else of the program. */
    return t->storage->retained ? dtr__fork_check(name) : DTR_OK;
}

dtr_status dtr__tensor_check_numbers(const dtr_tensor *t, const char *name, const char *what) {
    DTR_REQUIRE(!dtr__is_pair(t->dtype), NULL, DTR_ERR_DTYPE,
                "%s is %s: pairs of a value and its index are no numbers and cannot be %s", name,
                dtr_dtype_name(t->dtype), what);
    return DTR_OK;
}

dtr_status dtr__tensor_check_cpu(const dtr_tensor *t, const char *name) {
    DTR_TRY(dtr__tensor_check(t, name));
    DTR_REQUIRE(
        t->device.type == DTR_CPU, NULL, DTR_ERR_UNSUPPORTED,
        "%s is on CUDA device %d, and this call works on host memory only; copy the data to "
        "the host first",
        name, t->device.index);
    return DTR_OK;
}

/* ---- storage ---- */

static void storage_release(dtr__storage *s) {
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (s->retained) {
        (void)dtr_free(NULL, s->data);
    } else if (s->deleter != NULL) {
        s->deleter(s->data, s->arg);
    }
    free(s);
}

static void free_plain(void *data, void *arg) {
    (void)arg;
    free(data);
}

/* ---- handles ---- */

static bool row_major(int ndim, const int64_t *shape, const int64_t *strides) {
    int64_t expect = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        if (shape[d] != 1 && strides[d] != expect) {
            return false;
        }
        expect *= shape[d];
    }
    return true;
}

/* A handle on storage that already counts it. */
static dtr_tensor *handle_new(dtr__storage *storage, void *data, dtr_dtype dtype, dtr_device device,
                              int ndim, const int64_t *shape, const int64_t *strides) {
    dtr_tensor *t = calloc(1, sizeof(*t));
    if (t == NULL) {
        return NULL;
    }
    t->magic = DTR__TENSOR_MAGIC;
    atomic_init(&t->refs, 1);
    t->dtype = dtype;
    t->device = device;
    t->ndim = ndim;
    t->data = data;
    t->storage = storage;
    t->numel = 1;
    for (int d = 0; d < ndim; d++) {
        t->shape[d] = shape[d];
        t->numel *= (size_t)shape[d];
    }
    if (strides != NULL) {
        memcpy(t->strides, strides, (size_t)ndim * sizeof(strides[0]));
    } else {
        dtr__shape_strides(ndim, shape, t->strides);
    }
    t->contiguous = t->numel == 0 || row_major(ndim, t->shape, t->strides);
    return t;
}

static dtr_status no_memory(size_t nbytes, const char *what) {
    return DTR_FAIL(NULL, DTR_ERR_NOMEM, "out of memory: %s of %zu bytes", what, nbytes);
}

static dtr_status wrap_storage(dtr__storage proto, void *data, dtr_dtype dtype, dtr_device device,
                               int ndim, const int64_t *shape, const int64_t *strides,
                               dtr_tensor **tensor) {
    dtr__storage *s = malloc(sizeof(*s));
    dtr_tensor *t = s != NULL ? handle_new(s, data, dtype, device, ndim, shape, strides) : NULL;
    if (t == NULL) {
        free(s);
        return no_memory(sizeof(*s) + sizeof(*t), "handle of a tensor");
    }
    *s = proto;
    atomic_init(&s->refs, 1);
    *tensor = t;
    return DTR_OK;
}

dtr_status dtr__tensor_wrap(void *data, dtr_dtype dtype, dtr_device device, int ndim,
                            const int64_t *shape, const int64_t *strides,
                            void (*deleter)(void *data, void *arg), void *arg,
                            dtr_tensor **tensor) {
    dtr__storage proto = { .data = data, .deleter = deleter, .arg = arg };
    return wrap_storage(proto, data, dtype, device, ndim, shape, strides, tensor);
}

dtr_status dtr__tensor_view(const dtr_tensor *base, ptrdiff_t offset, int ndim,
                            const int64_t *shape, const int64_t *strides, dtr_tensor **view) {
    char *data = base->data;
    if (data != NULL) {
        data += offset * (ptrdiff_t)dtr_dtype_size(base->dtype);
    }
    dtr_tensor *t =
        handle_new(base->storage, data, base->dtype, base->device, ndim, shape, strides);
    if (t == NULL) {
        return no_memory(sizeof(*t), "handle of a view");
    }
    atomic_fetch_add_explicit(&base->storage->refs, 1, memory_order_relaxed);
    *view = t;
    return DTR_OK;
}

void dtr__tensor_rebind(dtr_tensor *handle, const dtr_tensor *source) {
    dtr__storage *old = handle->storage;
    atomic_fetch_add_explicit(&source->storage->refs, 1, memory_order_relaxed);
    handle->storage = source->storage;
    handle->data = source->data;
    handle->dtype = source->dtype;
    memcpy(handle->strides, source->strides, sizeof(handle->strides));
    handle->contiguous = source->contiguous;
    storage_release(old);
}

/* ---- creation ---- */

static dtr_status check_kind_and_device(dtr_dtype dtype, dtr_device device) {
    DTR_REQUIRE(dtr_dtype_size(dtype) != 0, NULL, DTR_ERR_DTYPE,
                "dtype %d is none; the element types are those of dtr/dtype.h", (int)dtype);
    DTR_REQUIRE(device.type == DTR_CPU || device.type == DTR_CUDA, NULL, DTR_ERR_DEVICE,
                "device type %d is neither DTR_CPU nor DTR_CUDA", (int)device.type);
    int count = dtr_device_count(device.type);
    DTR_REQUIRE(device.index >= 0 && device.index < count, NULL, DTR_ERR_DEVICE,
                "there is no device %s %d here: %d of that type can be used",
                device.type == DTR_CPU ? "cpu" : "cuda", device.index, count);
    return DTR_OK;
}

static void free_on_device(void *data, void *device) {
    (void)dtr__cuda_get()->ops->free((int)(intptr_t)device, data);
}

/* Of a tensor like one over memory of the program. */
static dtr_status device_alloc(int device, size_t nbytes, dtr__storage *s) {
    DTR_CUDA_TRY(dtr__cuda_get()->ops->alloc(device, nbytes == 0 ? TENSOR_ALIGN : nbytes, &s->data),
                 DTR_ERR_NOMEM);
    s->deleter = free_on_device;
    s->arg = (void *)(intptr_t)device;
    return DTR_OK;
}

/* Memory for a new contiguous tensor, which may outlive the world. */
static dtr_status storage_alloc(dtr_world *world, dtr_device device, dtr_mem kind, size_t nbytes,
                                dtr__storage *s) {
    *s = (dtr__storage){ .kind = kind };
    if (world == NULL && device.type != DTR_CPU) {
        return device_alloc(device.index, nbytes, s);
    }
    if (kind != DTR_MEM_DEFAULT || device.type != DTR_CPU) {
        DTR_TRY(dtr_alloc(world, device, kind, nbytes, &s->data));
        dtr_status status = dtr_retain(world, s->data);
        s->retained = status == DTR_OK;
        return s->retained ? DTR_OK : (dtr_free(world, s->data), status);
    }
    size_t rounded = nbytes == 0 ? TENSOR_ALIGN : nbytes + (-nbytes & (TENSOR_ALIGN - 1));
    s->data = aligned_alloc(TENSOR_ALIGN, rounded);
    if (s->data == NULL) {
        return no_memory(nbytes, "tensor");
    }
    s->deleter = free_plain;
    return DTR_OK;
}

static dtr_status tensor_alloc(dtr_world *world, dtr_dtype dtype, dtr_device device, dtr_mem kind,
                               int ndim, const int64_t *shape, dtr_tensor **tensor) {
    size_t numel = 0;
    DTR_TRY(dtr__shape_numel(ndim, shape, dtype, &numel));
    dtr__storage s;
    DTR_TRY(storage_alloc(world, device, kind, numel * dtr_dtype_size(dtype), &s));
    dtr_status status = wrap_storage(s, s.data, dtype, device, ndim, shape, NULL, tensor);
    if (status < 0) {
        if (s.retained) {
            (void)dtr_free(NULL, s.data);
        } else {
            s.deleter(s.data, s.arg);
        }
    }
    return status;
}

dtr_status dtr__tensor_new(dtr_dtype dtype, int ndim, const int64_t *shape, dtr_tensor **tensor) {
    dtr_device cpu = { DTR_CPU, 0 };
    return tensor_alloc(NULL, dtype, cpu, DTR_MEM_DEFAULT, ndim, shape, tensor);
}

dtr_status dtr__tensor_new_like(const dtr_tensor *like, dtr_tensor **tensor) {
    dtr_world *world = like->storage->retained ? dtr__memory_world(like->storage->data) : NULL;
    /* When the world has ended there is plain memory only. */
    return tensor_alloc(world, like->dtype, like->device,
                        world != NULL ? like->storage->kind : DTR_MEM_DEFAULT, like->ndim,
                        like->shape, tensor);
}

dtr_status dtr_tensor_empty(dtr_world *world, dtr_dtype dtype, dtr_device device, dtr_mem kind,
                            int ndim, const int64_t *shape, dtr_tensor **tensor) {
    DTR_TRY(dtr__world_check(world));
    DTR_REQUIRE_RESULT(tensor);
    DTR_REQUIRE(kind == DTR_MEM_DEFAULT || kind == DTR_MEM_PINNED || kind == DTR_MEM_SHARED, NULL,
                DTR_ERR_ARG, "memory kind %d is none of DTR_MEM_DEFAULT, _PINNED, _SHARED",
                (int)kind);
    DTR_TRY(check_kind_and_device(dtype, device));
    return tensor_alloc(world, dtype, device, kind, ndim, shape, tensor);
}

dtr_status dtr__element_range(int ndim, const int64_t *shape, const int64_t *strides,
                              dtr_dtype dtype, int64_t *lo, int64_t *hi) {
    int64_t size = (int64_t)dtr_dtype_size(dtype);
    *lo = 0;
    *hi = 0;
    for (int d = 0; d < ndim; d++) {
        int64_t reach = 0, nbytes = 0, *end = NULL;
        bool over = __builtin_mul_overflow(shape[d] - 1, strides[d], &reach);
        end = reach < 0 ? lo : hi;
        over = over || __builtin_add_overflow(*end, reach, end) ||
               __builtin_mul_overflow(*end, size, &nbytes);
        DTR_REQUIRE(
            !over, NULL, DTR_ERR_OVERFLOW,
            "stride %lld of dimension %d, size %lld, reaches beyond what an address can hold",
            (long long)strides[d], d, (long long)shape[d]);
    }
    return DTR_OK;
}

static dtr_status check_inside(dtr_buffer b, int ndim, const int64_t *shape,
                               const int64_t *strides) {
    char text[DTR__SHAPE_TEXT];
    int64_t lo = 0, hi = 0;
    DTR_TRY(dtr__element_range(ndim, shape, strides, b.dtype, &lo, &hi));
    DTR_REQUIRE(
        lo >= 0, NULL, DTR_ERR_SHAPE,
        "shape %s with the strides given reaches element %lld, which lies before the buffer",
        dtr__shape_text(ndim, shape, text), (long long)lo);
    DTR_REQUIRE(
        (uint64_t)hi < b.count, NULL, DTR_ERR_SHAPE,
        "shape %s with the strides given reaches element %lld, but the buffer has %zu elements",
        dtr__shape_text(ndim, shape, text), (long long)hi, b.count);
    return DTR_OK;
}

dtr_status dtr_tensor_from_buffer(dtr_buffer buffer, int ndim, const int64_t *shape,
                                  const int64_t *strides, void (*deleter)(void *data, void *arg),
                                  void *arg, dtr_tensor **tensor) {
    DTR_REQUIRE_RESULT(tensor);
    DTR_TRY(check_kind_and_device(buffer.dtype, buffer.device));
    size_t numel = 0, nbytes = 0;
    DTR_TRY(dtr__shape_numel(ndim, shape, buffer.dtype, &numel));
    DTR_REQUIRE(!__builtin_mul_overflow(buffer.count, dtr_dtype_size(buffer.dtype), &nbytes), NULL,
                DTR_ERR_OVERFLOW,
                "buffer.count %zu elements of %s are more bytes than size_t holds", buffer.count,
                dtr_dtype_name(buffer.dtype));
    DTR_REQUIRE(numel == 0 || buffer.data != NULL, NULL, DTR_ERR_ARG,
                "buffer.data is NULL, but the shape has %zu elements", numel);
    DTR_REQUIRE(buffer.access != DTR_READ_ONLY, NULL, DTR_ERR_ARG,
                "buffer.data %p may be written through a tensor, and dtr_cpu_in makes buffers to "
                "read only",
                buffer.data);
    int64_t own[DTR_MAX_NDIM];
    if (strides == NULL) {
        dtr__shape_strides(ndim, shape, own);
        strides = own;
    }
    if (numel > 0) {
        DTR_TRY(check_inside(buffer, ndim, shape, strides));
    }
    return dtr__tensor_wrap(buffer.data, buffer.dtype, buffer.device, ndim, shape, strides, deleter,
                            arg, tensor);
}

/* ---- references ---- */

dtr_tensor *dtr_tensor_retain(dtr_tensor *t) {
    if (t != NULL) {
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    }
    return t;
}

void dtr_tensor_release(dtr_tensor *t) {
    if (t == NULL || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    t->magic = 0;
    storage_release(t->storage);
    free(t);
}

/* ---- queries ---- */

void *dtr_tensor_data(const dtr_tensor *t) {
    return t != NULL ? t->data : NULL;
}

dtr_dtype dtr_tensor_dtype(const dtr_tensor *t) {
    return t != NULL ? t->dtype : (dtr_dtype)-1;
}

dtr_device dtr_tensor_device(const dtr_tensor *t) {
    return t != NULL ? t->device : (dtr_device){ DTR_CPU, 0 };
}

int dtr_tensor_ndim(const dtr_tensor *t) {
    return t != NULL ? t->ndim : -1;
}

const int64_t *dtr_tensor_shape(const dtr_tensor *t) {
    return t != NULL ? t->shape : NULL;
}

const int64_t *dtr_tensor_strides(const dtr_tensor *t) {
    return t != NULL ? t->strides : NULL;
}

size_t dtr_tensor_numel(const dtr_tensor *t) {
    return t != NULL ? t->numel : 0;
}

bool dtr_tensor_is_contiguous(const dtr_tensor *t) {
    return t != NULL && t->contiguous;
}

dtr_buffer dtr_tensor_buffer(const dtr_tensor *t) {
    dtr_buffer b = { NULL, dtr_tensor_numel(t), dtr_tensor_dtype(t), dtr_tensor_device(t) };
    if (dtr_tensor_is_contiguous(t)) {
        b.data = t->data;
    }
    return b;
}
