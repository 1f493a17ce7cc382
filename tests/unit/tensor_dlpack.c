/* Exchange through DLPack: what is handed over, whose memory it is, and what is refused. Runs
 * against whatever dlpack.h the library was built with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/dlpack.h>

#include "data.h"
#include "tensor_unit.h"

#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>

static void count_call(void *data, void *arg) {
    (void)data;
    ++*(int *)arg;
}

static int deleted;
static void count_delete(DLManagedTensor *self) {
    (void)self;
    deleted++;
}

/* A tensor as another library would hand it over. */
static DLManagedTensor foreign(void *data, uint8_t code, uint8_t bits, int ndim, int64_t *shape,
                               int64_t *strides) {
    DLManagedTensor m = { .deleter = count_delete };
    m.dl_tensor = (DLTensor){ .data = data,
                              .device = { kDLCPU, 0 },
                              .ndim = ndim,
                              .dtype = { code, bits, 1 },
                              .shape = shape,
                              .strides = strides };
    deleted = 0;
    return m;
}

START_TEST(round_trip_of_every_type) {
    for (int i = 0; i < TH_NUMBERS; i++) {
        dtr_dtype d = th_all_dtypes[i];
        _Alignas(64) unsigned char data[6 * 16];
        int released = 0;
        dtr_tensor *t = NULL, *x = NULL, *u = NULL;
        DLManagedTensor *m = NULL;
        th_fill(data, d, DTR_SUM, 0, 6, 1, 3);
        IS(dtr_tensor_from_buffer(dtr_cpu(data, 6, d), 2, SHAPE(2, 3), NULL, count_call, &released,
                                  &t),
           DTR_OK);
        IS(dtr_tensor_transpose(t, 0, 1, &x), DTR_OK);
        dtr_tensor_release(t);
        dtr_status s = dtr_tensor_to_dlpack(x, &m);
        if (s < 0) { /* an old header */
            ck_assert(d == DTR_BOOL || d == DTR_F8E4M3 || d == DTR_F8E5M2);
            ck_assert_int_eq(s, DTR_ERR_DTYPE);
            MESSAGE(dtr_dtype_name(d));
            ck_assert_ptr_null(m);
            dtr_tensor_release(x);
            continue;
        }
        dtr_tensor_release(x);
        ck_assert_int_eq(released, 0);
        ck_assert_ptr_eq(m->dl_tensor.data, data);
        ck_assert_int_eq(m->dl_tensor.ndim, 2);
        ck_assert_int_eq(m->dl_tensor.shape[0], 3);
        ck_assert_int_eq(m->dl_tensor.strides[0], 1);
        ck_assert_int_eq(m->dl_tensor.strides[1], 3);
        ck_assert_uint_eq(m->dl_tensor.dtype.bits, 8 * dtr_dtype_size(d));
        ck_assert_uint_eq(m->dl_tensor.byte_offset, 0);
        IS(dtr_tensor_from_dlpack(m, &u), DTR_OK);
        ck_assert(dtr_tensor_dtype(u) == d && dtr_tensor_data(u) == data);
        ck_assert_int_eq(dtr_tensor_strides(u)[1], 3);
        dtr_tensor *row = NULL;
        IS(dtr_tensor_narrow(u, 0, 1, 1, &row), DTR_OK);
        dtr_tensor_release(u);
        ck_assert_int_eq(released, 0);
        dtr_tensor_release(row);
        ck_assert_int_eq(released, 1);
    }
}
END_TEST

START_TEST(foreign_layouts) {
    float data[12];
    for (int i = 0; i < 12; i++) {
        data[i] = (float)i;
    }
    dtr_tensor *t = NULL, *c = NULL;
    DLManagedTensor m = foreign(data, kDLFloat, 32, 2, SHAPE(2, 3), NULL); /* row-major */
    m.dl_tensor.byte_offset = 8;
    IS(dtr_tensor_from_dlpack(&m, &t), DTR_OK);
    ck_assert(dtr_tensor_is_contiguous(t) && dtr_tensor_data(t) == data + 2);
    dtr_tensor_release(t);
    ck_assert_int_eq(deleted, 1);
    m = foreign(data + 11, kDLFloat, 32, 2, SHAPE(2, 3), SHAPE(-6, -2)); /* backwards */
    IS(dtr_tensor_from_dlpack(&m, &t), DTR_OK);
    IS(dtr_tensor_clone(t, &c), DTR_OK);
    static const float want[6] = { 11, 9, 7, 5, 3, 1 };
    ck_assert_int_eq(memcmp(dtr_tensor_data(c), want, sizeof(want)), 0);
    IS(dtr_tensor_fill(t, 0, NULL), DTR_OK);
    ck_assert(data[1] == 0 && data[2] == 2 && data[11] == 0);
    dtr_tensor_release(c);
    dtr_tensor_release(t);
    m = foreign(data, kDLFloat, 32, 2, SHAPE(4, 3), SHAPE(0, 1)); /* one row, repeated */
    IS(dtr_tensor_from_dlpack(&m, &t), DTR_OK);
    IS(dtr_tensor_fill(t, 1, NULL), DTR_ERR_LAYOUT);
    dtr_tensor_release(t);
    m = foreign(NULL, kDLFloat, 32, 3, SHAPE(2, 0, 4), SHAPE(INT64_MAX, 7, 1)); /* empty */
    IS(dtr_tensor_from_dlpack(&m, &t), DTR_OK);
    ck_assert(dtr_tensor_numel(t) == 0 && dtr_tensor_strides(t)[0] == 4);
    dtr_tensor_release(t);
    m = foreign(data, kDLFloat, 32, 0, NULL, NULL);
    m.dl_tensor.device.device_type = kDLCUDAHost;
    m.deleter = NULL;
    IS(dtr_tensor_from_dlpack(&m, &t), DTR_OK);
    ck_assert(dtr_tensor_numel(t) == 1 && dtr_tensor_device(t).type == DTR_CPU);
    dtr_tensor_release(t);
}
END_TEST

START_TEST(refusals_leave_the_owner) {
    _Alignas(64) char data[64];
    dtr_tensor *t = NULL;
    struct {
        DLManagedTensor m;
        dtr_status status;
        const char *word;
    } cases[] = {
        { foreign(data, kDLUInt, 128, 1, SHAPE(2), NULL), DTR_ERR_DTYPE, "uint" },
        { foreign(data, kDLFloat, 128, 1, SHAPE(2), NULL), DTR_ERR_DTYPE, "128 bits" },
        { foreign(data, kDLOpaqueHandle, 64, 1, SHAPE(2), NULL), DTR_ERR_DTYPE, "opaque" },
        { foreign(data, 200, 8, 1, SHAPE(2), NULL), DTR_ERR_DTYPE, "200" },
        { foreign(data, 10, 4, 1, SHAPE(2), NULL), DTR_ERR_DTYPE, "float8_e4m3fn" },
        { foreign(data, kDLInt, 8, -1, SHAPE(2), NULL), DTR_ERR_ARG, "ndim" },
        { foreign(data, kDLInt, 8, 17, SHAPE(2), NULL), DTR_ERR_ARG, "ndim" },
        { foreign(data, kDLInt, 8, 1, NULL, NULL), DTR_ERR_ARG, "shape" },
        { foreign(data, kDLInt, 8, 1, SHAPE(-1), NULL), DTR_ERR_SHAPE, "negative" },
        { foreign(data, kDLInt, 8, 2, SHAPE(INT64_MAX, 2), NULL), DTR_ERR_OVERFLOW, "bytes" },
        { foreign(data, kDLInt, 32, 1, SHAPE(2), SHAPE(INT64_MAX / 2)), DTR_ERR_OVERFLOW,
          "stride" },
        { foreign(NULL, kDLInt, 8, 1, SHAPE(2), NULL), DTR_ERR_ARG, "NULL" },
        { foreign(data + 2, kDLFloat, 32, 1, SHAPE(2), NULL), DTR_ERR_LAYOUT, "aligned" },
        { foreign(data + 4, kDLComplex, 128, 1, SHAPE(1), NULL), DTR_ERR_LAYOUT, "aligned" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        IS(dtr_tensor_from_dlpack(&cases[i].m, &t), cases[i].status);
        MESSAGE(cases[i].word);
    }
    DLManagedTensor m = foreign(data, kDLInt, 8, 1, SHAPE(2), NULL);
    m.dl_tensor.dtype.lanes = 4;
    IS(dtr_tensor_from_dlpack(&m, &t), DTR_ERR_DTYPE);
    MESSAGE("4 lanes");
    m.dl_tensor.dtype.lanes = 1;
    m.dl_tensor.device.device_type = kDLMetal;
    IS(dtr_tensor_from_dlpack(&m, &t), DTR_ERR_DEVICE);
    m.dl_tensor.device.device_type = kDLCUDA;
    m.dl_tensor.device.device_id = 1000;
    IS(dtr_tensor_from_dlpack(&m, &t), DTR_ERR_DEVICE);
    MESSAGE("1000");
    m.dl_tensor.device.device_type = kDLCPU;
    IS(dtr_tensor_from_dlpack(NULL, &t), DTR_ERR_ARG);
    IS(dtr_tensor_from_dlpack(&m, NULL), DTR_ERR_ARG);
    IS(dtr_tensor_to_dlpack(NULL, NULL), DTR_ERR_ARG);
    IS(dtr_tensor_from_dlpack(&m, &t), DTR_OK);
    IS(dtr_tensor_to_dlpack(t, NULL), DTR_ERR_ARG);
    ck_assert_int_eq(deleted, 0);
    dtr_tensor_release(t);
    ck_assert_int_eq(deleted, 1);
}
END_TEST

#ifdef DLPACK_MAJOR_VERSION
static void count_delete_versioned(struct DLManagedTensorVersioned *self) {
    (void)self;
    deleted++;
}

START_TEST(versioned_struct) {
    float data[6] = { 0 };
    int released = 0;
    dtr_tensor *t = NULL, *u = NULL;
    struct DLManagedTensorVersioned *m = NULL;
    IS(dtr_tensor_from_buffer(dtr_cpu(data, 6, DTR_F32), 2, SHAPE(2, 3), NULL, count_call,
                              &released, &t),
       DTR_OK);
    IS(dtr_tensor_to_dlpack_versioned(t, &m), DTR_OK);
    dtr_tensor_release(t);
    ck_assert_uint_eq(m->version.major, DLPACK_MAJOR_VERSION);
    ck_assert_uint_eq(m->flags, 0);
    IS(dtr_tensor_from_dlpack_versioned(m, &u), DTR_OK);
    ck_assert_ptr_eq(dtr_tensor_data(u), data);
    ck_assert_int_eq(released, 0);
    dtr_tensor_release(u);
    ck_assert_int_eq(released, 1);
    struct DLManagedTensorVersioned other = { .version = { DLPACK_MAJOR_VERSION + 1, 0 } };
    other.dl_tensor = foreign(data, kDLFloat, 32, 1, SHAPE(6), NULL).dl_tensor;
    other.deleter = count_delete_versioned;
    IS(dtr_tensor_from_dlpack_versioned(&other, &t), DTR_ERR_UNSUPPORTED);
    MESSAGE("version");
    other.version.major = DLPACK_MAJOR_VERSION;
    other.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
    IS(dtr_tensor_from_dlpack_versioned(&other, &t), DTR_ERR_UNSUPPORTED);
    MESSAGE("read-only");
    other.flags = 0;
    IS(dtr_tensor_from_dlpack_versioned(&other, &t), DTR_OK);
    ck_assert_int_eq(deleted, 0);
    dtr_tensor_release(t);
    ck_assert_int_eq(deleted, 1);
}
END_TEST
#else
START_TEST(versioned_struct) {
    IS(dtr_tensor_to_dlpack_versioned(NULL, NULL), DTR_ERR_UNSUPPORTED);
    MESSAGE("older than 1.0");
    IS(dtr_tensor_from_dlpack_versioned(NULL, NULL), DTR_ERR_UNSUPPORTED);
}
END_TEST
#endif

static void make(Suite *s) {
    TCase *tc = tcase_create("dlpack");
    tcase_add_test(tc, round_trip_of_every_type);
    tcase_add_test(tc, foreign_layouts);
    tcase_add_test(tc, refusals_leave_the_owner);
    tcase_add_test(tc, versioned_struct);
    suite_add_tcase(s, tc);
}
#else
static void make(Suite *s) {
    (void)s;
}
#endif

int main(void) {
    if (dtr_tensor_to_dlpack(NULL, NULL) == DTR_ERR_UNSUPPORTED) {
        printf("skipped: %s\n", dtr_last_error_message());
        return 77;
    }
    return th_unit_main("tensor_dlpack", make);
}
