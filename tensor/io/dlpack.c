/* Tensors to and from other libraries through DLPack. */
#include <dtr/dlpack.h>

#include "core/tensor_internal.h"

#ifdef DTR_HAVE_DLPACK

#include <dlpack/dlpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef DLPACK_MAJOR_VERSION
#define VERSION_AT_LEAST(major, minor) \
    (DLPACK_MAJOR_VERSION > (major) || \
     (DLPACK_MAJOR_VERSION == (major) && DLPACK_MINOR_VERSION >= (minor)))
#define HAVE_BOOL 1
#define HAVE_F8 VERSION_AT_LEAST(1, 1)
#else /* before 1.0: one number, 80 for 0.8 */
#define HAVE_BOOL (DLPACK_VERSION >= 80)
#define HAVE_F8 0
#endif

/* ---- element types ---- */

static const struct {
    dtr_dtype dtype;
    uint8_t code, bits;
} types[] = {
    { DTR_U8, kDLUInt, 8 },
    { DTR_U16, kDLUInt, 16 },
    { DTR_U32, kDLUInt, 32 },
    { DTR_U64, kDLUInt, 64 },
    { DTR_I8, kDLInt, 8 },
    { DTR_I16, kDLInt, 16 },
    { DTR_I32, kDLInt, 32 },
    { DTR_I64, kDLInt, 64 },
    { DTR_F16, kDLFloat, 16 },
    { DTR_BF16, kDLBfloat, 16 },
    { DTR_F32, kDLFloat, 32 },
    { DTR_F64, kDLFloat, 64 },
    { DTR_C64, kDLComplex, 64 },
    { DTR_C128, kDLComplex, 128 },
#if HAVE_BOOL
    { DTR_BOOL, kDLBool, 8 },
#endif
#if HAVE_F8
    { DTR_F8E4M3, kDLFloat8_e4m3fn, 8 },
    { DTR_F8E5M2, kDLFloat8_e5m2, 8 },
#endif
};
enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

static dtr_status type_to(dtr_dtype d, DLDataType *type) {
    for (size_t i = 0; i < N_TYPES; i++) {
        if (types[i].dtype == d) {
            *type = (DLDataType){ types[i].code, types[i].bits, 1 };
            return DTR_OK;
        }
    }
    return DTR_FAIL(NULL, DTR_ERR_DTYPE,
                    "the DLPack that this libdtr was built with has no type for %s",
                    dtr_dtype_name(d));
}

/* Names of the type codes by number, whatever the header knows. */
static const char *code_name(uint8_t code) {
    static const char *const names[] = { "int",           "uint",
                                         "float",         "opaque",
                                         "bfloat",        "complex",
                                         "bool",          "float8_e3m4",
                                         "float8_e4m3",   "float8_e4m3b11fnuz",
                                         "float8_e4m3fn", "float8_e4m3fnuz",
                                         "float8_e5m2",   "float8_e5m2fnuz",
                                         "float8_e8m0fnu" };
    return code < sizeof(names) / sizeof(names[0]) ? names[code] : "unknown";
}

static dtr_status type_from(DLDataType type, dtr_dtype *d) {
    for (size_t i = 0; i < N_TYPES && type.lanes == 1; i++) {
        if (types[i].code == type.code && types[i].bits == type.bits) {
            *d = types[i].dtype;
            return DTR_OK;
        }
    }
    return DTR_FAIL(
        NULL, DTR_ERR_DTYPE,
        "elements of DLPack type %s (code %d) with %d bits and %d lanes have no dtype here",
        code_name(type.code), type.code, type.bits, type.lanes);
}

/* ---- export ---- */

/* An exported struct and what it points to. */
typedef struct exported {
    dtr_tensor *tensor;
    int64_t shape[DTR_MAX_NDIM], strides[DTR_MAX_NDIM];
    union {
        DLManagedTensor plain;
#ifdef DLPACK_MAJOR_VERSION
        struct DLManagedTensorVersioned versioned;
#endif
    } m;
} exported;

/* A new one with a reference on the tensor, and the tensor as DLPack describes it. */
static dtr_status export(dtr_tensor *t, const void *managed, exported **made, DLTensor *dl) {
    DLDataType type = { 0 };
    DTR_TRY(dtr__tensor_check(t, "tensor"));
    DTR_REQUIRE_RESULT(managed);
    DTR_TRY(type_to(t->dtype, &type));
    exported *e = calloc(1, sizeof(*e));
    DTR_REQUIRE(e != NULL, NULL, DTR_ERR_NOMEM, "out of memory for a DLPack handle");
    memcpy(e->shape, t->shape, sizeof(e->shape));
    memcpy(e->strides, t->strides, sizeof(e->strides));
    e->tensor = dtr_tensor_retain(t);
    *dl = (DLTensor){ .data = t->numel > 0 ? t->data : NULL,
                      .device = { t->device.type == DTR_CPU ? kDLCPU : kDLCUDA, t->device.index },
                      .ndim = t->ndim,
                      .dtype = type,
                      .shape = e->shape,
                      .strides = e->strides,
                      .byte_offset = 0 };
    *made = e;
    return DTR_OK;
}

static void free_exported(exported *e) {
    dtr_tensor_release(e->tensor);
    free(e);
}

static void delete_exported(DLManagedTensor *m) {
    free_exported(m->manager_ctx);
}

dtr_status dtr_tensor_to_dlpack(dtr_tensor *t, DLManagedTensor **managed) {
    exported *e = NULL;
    DLTensor dl;
    DTR_TRY(export(t, managed, &e, &dl));
    e->m.plain = (DLManagedTensor){ dl, e, delete_exported };
    *managed = &e->m.plain;
    return DTR_OK;
}

/* ---- import ---- */

static dtr_status device_from(DLDevice from, dtr_device *d) {
    switch (from.device_type) {
    case kDLCPU:
    case kDLCUDAHost: /* page-locked host memory */
        *d = (dtr_device){ DTR_CPU, 0 };
        return DTR_OK;
    case kDLCUDA:
        *d = (dtr_device){ DTR_CUDA, from.device_id };
        DTR_REQUIRE(from.device_id >= 0 && from.device_id < dtr_device_count(DTR_CUDA), NULL,
                    DTR_ERR_DEVICE, "the memory is on CUDA device %d, but %d can be used here",
                    from.device_id, dtr_device_count(DTR_CUDA));
        return DTR_OK;
    default:
        return DTR_FAIL(
            NULL, DTR_ERR_DEVICE,
            "the memory is on a device of DLPack type %d; only the host (1, 3) and CUDA (2) "
            "are known here",
            (int)from.device_type);
    }
}

/* Complex numbers are aligned like their parts. */
static size_t alignment(dtr_dtype d) {
    return dtr_dtype_size(dtr__real_of(d));
}

static dtr_status import(const DLTensor *dl, void (*deleter)(void *data, void *arg), void *arg,
                         dtr_tensor **tensor) {
    dtr_dtype dtype = DTR_U8;
    dtr_device device = { DTR_CPU, 0 };
    size_t numel = 0;
    DTR_TRY(type_from(dl->dtype, &dtype));
    DTR_TRY(device_from(dl->device, &device));
    DTR_TRY(dtr__shape_numel(dl->ndim, dl->shape, dtype, &numel));
    DTR_REQUIRE(numel == 0 || dl->data != NULL, NULL, DTR_ERR_ARG,
                "managed has %zu elements, but its data is NULL", numel);
    char *data = dl->data;
    if (data != NULL && numel > 0) {
        data += dl->byte_offset;
    }
    DTR_REQUIRE(numel == 0 || (uintptr_t)data % alignment(dtype) == 0, NULL, DTR_ERR_LAYOUT,
                "the data at %p is not aligned for elements of %s; copy it to aligned memory first",
                (void *)data, dtr_dtype_name(dtype));
    const int64_t *strides = numel > 0 ? dl->strides : NULL;
    if (strides != NULL) {
        int64_t lo = 0, hi = 0;
        DTR_TRY(dtr__element_range(dl->ndim, dl->shape, strides, dtype, &lo, &hi));
    }
    return dtr__tensor_wrap(data, dtype, device, dl->ndim, dl->shape, strides, deleter, arg,
                            tensor);
}

static dtr_status check_import(const void *managed, dtr_tensor **tensor) {
    DTR_REQUIRE(managed != NULL, NULL, DTR_ERR_ARG, "managed is NULL; a DLPack tensor is needed");
    DTR_REQUIRE_RESULT(tensor);
    return DTR_OK;
}

static void delete_managed(void *data, void *arg) {
    DLManagedTensor *m = arg;
    (void)data;
    if (m->deleter != NULL) {
        m->deleter(m);
    }
}

dtr_status dtr_tensor_from_dlpack(DLManagedTensor *managed, dtr_tensor **tensor) {
    DTR_TRY(check_import(managed, tensor));
    return import(&managed->dl_tensor, delete_managed, managed, tensor);
}

#else

static dtr_status not_built(void) {
    return DTR_FAIL(
        NULL, DTR_ERR_UNSUPPORTED,
        "this libdtr was built without dlpack/dlpack.h; install libdlpack-dev and build "
        "again");
}

#pragma GCC diagnostic ignored "-Wunused-parameter"

dtr_status dtr_tensor_to_dlpack(dtr_tensor *t, struct DLManagedTensor **managed) {
    return not_built();
}

dtr_status dtr_tensor_from_dlpack(struct DLManagedTensor *managed, dtr_tensor **tensor) {
    return not_built();
}

#endif

/* ---- the struct with a version ---- */

#if defined(DTR_HAVE_DLPACK) && defined(DLPACK_MAJOR_VERSION)

static void delete_exported_versioned(struct DLManagedTensorVersioned *m) {
    free_exported(m->manager_ctx);
}

dtr_status dtr_tensor_to_dlpack_versioned(dtr_tensor *t,
                                          struct DLManagedTensorVersioned **managed) {
    exported *e = NULL;
    DLTensor dl;
    DTR_TRY(export(t, managed, &e, &dl));
    e->m.versioned = (struct DLManagedTensorVersioned){
        .version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
        .manager_ctx = e,
        .deleter = delete_exported_versioned,
        .dl_tensor = dl,
    };
    *managed = &e->m.versioned;
    return DTR_OK;
}

static void delete_managed_versioned(void *data, void *arg) {
    struct DLManagedTensorVersioned *m = arg;
    (void)data;
    if (m->deleter != NULL) {
        m->deleter(m);
    }
}

dtr_status dtr_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned *managed,
                                            dtr_tensor **tensor) {
    DTR_TRY(check_import(managed, tensor));
    DTR_REQUIRE(managed->version.major == DLPACK_MAJOR_VERSION, NULL, DTR_ERR_UNSUPPORTED,
                "managed has DLPack version %u.%u; this libdtr knows %d.%d", managed->version.major,
                managed->version.minor, DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
    DTR_REQUIRE((managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) == 0, NULL, DTR_ERR_UNSUPPORTED,
                "managed is read-only, and tensors here can be written; copy it first");
    return import(&managed->dl_tensor, delete_managed_versioned, managed, tensor);
}

#else

#pragma GCC diagnostic ignored "-Wunused-parameter"

static dtr_status not_versioned(void) {
    return DTR_FAIL(NULL, DTR_ERR_UNSUPPORTED,
                    "this libdtr was built with a dlpack.h older than 1.0, or none, which has no "
                    "versioned struct; use dtr_tensor_to_dlpack and dtr_tensor_from_dlpack");
}

dtr_status dtr_tensor_to_dlpack_versioned(dtr_tensor *t,
                                          struct DLManagedTensorVersioned **managed) {
    return not_versioned();
}

dtr_status dtr_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned *managed,
                                            dtr_tensor **tensor) {
    return not_versioned();
}

#endif
