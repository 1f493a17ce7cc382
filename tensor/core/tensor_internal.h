/* What a tensor is inside, and what the files of this layer and DDP share. */
#ifndef DTR_TENSOR_INTERNAL_H
#define DTR_TENSOR_INTERNAL_H

#include <stdatomic.h>

#define DTR_NO_CALL_SITE
#include <dtr/tensor.h>

#include "base/error.h"

/* A block of memory shared by the tensors that look into it. */
typedef struct dtr__storage {
    _Atomic int refs;
    void *data;
    dtr_mem kind;
    bool retained; /* a block of dtr_alloc, which outlives its world; else the deleter's */
    void (*deleter)(void *data, void *arg); /* NULL: nothing to do */
    void *arg;
} dtr__storage;

/* Fields are constant after creation, except that dtr__tensor_rebind changes dtype, strides, data
 * and storage. */
struct dtr_tensor {
    uint64_t magic; /* DTR__TENSOR_MAGIC while live */
    _Atomic int refs;
    dtr_dtype dtype;
    dtr_device device;
    int ndim;
    bool contiguous;
    size_t numel;
    char *data; /* element with all indices 0 */
    dtr__storage *storage;
    int64_t shape[DTR_MAX_NDIM], strides[DTR_MAX_NDIM];
};

#define DTR__TENSOR_MAGIC UINT64_C(0x6474725f74656e73)

/* A complex element is two reals: the type of one, and how many an element of any type has. */
static inline bool dtr__is_complex(dtr_dtype d) {
    return d == DTR_C64 || d == DTR_C128;
}
static inline dtr_dtype dtr__real_of(dtr_dtype d) {
    return d == DTR_C64 ? DTR_F32 : d == DTR_C128 ? DTR_F64 : d;
}
static inline size_t dtr__reals_in(dtr_dtype d) {
    return dtr__is_complex(d) ? 2 : 1;
}

/* DTR_OK, or DTR_ERR_ARG naming the parameter for NULL and released handles. */
dtr_status dtr__tensor_check(const dtr_tensor *t, const char *name);
/* DTR_ERR_ARG where a call was given no place for its result. */
#define DTR_REQUIRE_RESULT(out) \
    DTR_REQUIRE((out) != NULL, NULL, DTR_ERR_ARG, #out " is NULL; it says where to put the result")
/* The same plus "in host memory": DTR_ERR_UNSUPPORTED for tensors on a device. */
dtr_status dtr__tensor_check_cpu(const dtr_tensor *t, const char *name);

/* DTR_ERR_DTYPE for pairs, saying what they cannot be. */
dtr_status dtr__tensor_check_numbers(const dtr_tensor *t, const char *name, const char *what);

/* Number of elements of a shape. DTR_ERR_ARG (ndim, NULL), DTR_ERR_SHAPE (negative size) or
 * DTR_ERR_OVERFLOW when sizes of 0 counted as 1 exceed what memory can hold. */
dtr_status dtr__shape_numel(int ndim, const int64_t *shape, dtr_dtype dtype, size_t *numel);
/* Row-major strides, sizes of 0 counted as 1. */
void dtr__shape_strides(int ndim, const int64_t *shape, int64_t *strides);
/* Where the elements lie relative to the first, in elements: [*lo, *hi]; DTR_ERR_OVERFLOW when that
 * is beyond what an address can hold. The shape is not empty. */
dtr_status dtr__element_range(int ndim, const int64_t *shape, const int64_t *strides,
                              dtr_dtype dtype, int64_t *lo, int64_t *hi);
/* "[2, 3]" into `text`, cut with "..."; returns text. */
enum { DTR__SHAPE_TEXT = 96 };
const char *dtr__shape_text(int ndim, const int64_t *shape, char text[DTR__SHAPE_TEXT]);
bool dtr__same_shape(const dtr_tensor *a, const dtr_tensor *b);

/* Bytes that the elements cover, [lo, hi) relative to data; both 0 when empty. */
void dtr__tensor_span(const dtr_tensor *t, ptrdiff_t *lo, ptrdiff_t *hi);
/* Whether they are the same elements in the same order. */
bool dtr__tensor_same_place(const dtr_tensor *a, const dtr_tensor *b);
bool dtr__tensor_overlap(const dtr_tensor *a, const dtr_tensor *b); /* of the spans */
/* Whether two indices may mean one element: such tensors are read only. */
bool dtr__tensor_self_overlap(const dtr_tensor *t);
/* Both together: what every function that writes asks first. */
dtr_status dtr__tensor_check_writable(const dtr_tensor *t, const char *name);

/* A contiguous CPU tensor with plain memory of its own, no world needed. */
dtr_status dtr__tensor_new(dtr_dtype dtype, int ndim, const int64_t *shape, dtr_tensor **tensor);
/* Contiguous with the memory kind (and world) of `like`. */
dtr_status dtr__tensor_new_like(const dtr_tensor *like, dtr_tensor **tensor);
/* A tensor over memory; any strides. Takes over `deleter` on success only. The caller has checked
 * dtype, shape, overflow and that the memory holds the elements. */
dtr_status dtr__tensor_wrap(void *data, dtr_dtype dtype, dtr_device device, int ndim,
                            const int64_t *shape, const int64_t *strides,
                            void (*deleter)(void *data, void *arg), void *arg, dtr_tensor **tensor);
/* A view into the memory of `base`, `offset` elements behind its first one. Shape and strides are
 * checked. */
dtr_status dtr__tensor_view(const dtr_tensor *base, ptrdiff_t offset, int ndim,
                            const int64_t *shape, const int64_t *strides, dtr_tensor **view);
/* Let a live handle look at the memory of `source`, which has the same device and shape: the handle
 * stays, data pointer, dtype and strides change, the old memory loses one reference. No other
 * thread may use the handle meanwhile. */
void dtr__tensor_rebind(dtr_tensor *handle, const dtr_tensor *source);

dtr_status dtr__tensor_check_same_shape(const dtr_tensor *a, const char *a_name,
                                        const dtr_tensor *b, const char *b_name);
/* What to read instead of `src` while dst is written element by element: src itself, or `*copy` of
 * it (which the caller releases, NULL: none) when the two overlap in different layouts. */
dtr_status dtr__tensor_unalias(const dtr_tensor *dst, const dtr_tensor *src, dtr_tensor **copy,
                               const dtr_tensor **use);

/* A handle's facts without its reference count: owns nothing, valid while the memory is. */
void dtr__tensor_shallow_copy(dtr_tensor *copy, const dtr_tensor *t);

/* Copy with conversion between checked CPU tensors of one shape that do not overlap. */
void dtr__tensor_copy_raw(const dtr_tensor *dst, const dtr_tensor *src);
/* Between a tensor and packed row-major elements of its own type. */
void dtr__tensor_pack(void *packed, const dtr_tensor *t);
void dtr__tensor_unpack(const dtr_tensor *t, const void *packed);

#endif /* DTR_TENSOR_INTERNAL_H */
