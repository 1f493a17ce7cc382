/* Tensors: creation, references, queries, views, and what bad arguments give. */
#include <stdlib.h>
#include <string.h>

#include <dtr/tensor.h>

#include "core/tensor_internal.h"
#include "tensor_unit.h"

static void count_call(void *data, void *arg) {
    (void)data;
    ++*(int *)arg;
}

static dtr_tensor *iota(float *data, size_t n, int ndim, const int64_t *shape) {
    dtr_tensor *t = NULL;
    for (size_t i = 0; i < n; i++) {
        data[i] = (float)i;
    }
    IS(dtr_tensor_from_buffer(dtr_cpu(data, n, DTR_F32), ndim, shape, NULL, NULL, NULL, &t),
       DTR_OK);
    return t;
}

static float at(const dtr_tensor *t, int64_t i, int64_t j) {
    const int64_t *s = dtr_tensor_strides(t);
    return ((const float *)dtr_tensor_data(t))[i * s[0] + j * s[1]];
}

START_TEST(queries_of_a_tensor) {
    float data[6];
    dtr_tensor *t = iota(data, 6, 2, SHAPE(2, 3));
    ck_assert_ptr_eq(dtr_tensor_data(t), data);
    ck_assert_int_eq(dtr_tensor_dtype(t), DTR_F32);
    ck_assert_int_eq(dtr_tensor_device(t).type, DTR_CPU);
    ck_assert_int_eq(dtr_tensor_ndim(t), 2);
    ck_assert_int_eq(dtr_tensor_shape(t)[1], 3);
    ck_assert_int_eq(dtr_tensor_strides(t)[0], 3);
    ck_assert_uint_eq(dtr_tensor_numel(t), 6);
    ck_assert(dtr_tensor_is_contiguous(t));
    dtr_buffer b = dtr_tensor_buffer(t);
    ck_assert(b.data == data && b.count == 6 && b.dtype == DTR_F32);
    dtr_tensor_release(t);
}
END_TEST

START_TEST(null_is_defined_everywhere) {
    dtr_tensor *out = (dtr_tensor *)16;
    ck_assert_ptr_null(dtr_tensor_data(NULL));
    ck_assert_uint_eq(dtr_dtype_size(dtr_tensor_dtype(NULL)), 0);
    ck_assert_int_eq(dtr_tensor_ndim(NULL), -1);
    ck_assert_ptr_null(dtr_tensor_shape(NULL));
    ck_assert_ptr_null(dtr_tensor_strides(NULL));
    ck_assert_uint_eq(dtr_tensor_numel(NULL), 0);
    ck_assert(!dtr_tensor_is_contiguous(NULL));
    ck_assert_ptr_null(dtr_tensor_retain(NULL));
    dtr_tensor_release(NULL);
    IS(dtr_tensor_reshape(NULL, 0, NULL, &out), DTR_ERR_ARG);
    IS(dtr_tensor_narrow(NULL, 0, 0, 0, &out), DTR_ERR_ARG);
    IS(dtr_tensor_transpose(NULL, 0, 0, &out), DTR_ERR_ARG);
    IS(dtr_tensor_contiguous(NULL, &out), DTR_ERR_ARG);
    IS(dtr_tensor_clone(NULL, &out), DTR_ERR_ARG);
    IS(dtr_tensor_copy(NULL, NULL, NULL), DTR_ERR_ARG);
    MESSAGE("dst is NULL");
    IS(dtr_tensor_fill(NULL, 0, NULL), DTR_ERR_ARG);
    IS(dtr_tensor_scale(NULL, 0, NULL), DTR_ERR_ARG);
    IS(dtr_tensor_axpy(NULL, 0, NULL, NULL), DTR_ERR_ARG);
    double norm = -5;
    IS(dtr_tensor_norm(NULL, NULL, &norm), DTR_ERR_ARG);
    dtr_device cpu = { DTR_CPU, 0 };
    IS(dtr_tensor_empty(NULL, DTR_F32, cpu, DTR_MEM_DEFAULT, 0, NULL, &out), DTR_ERR_ARG);
    ck_assert(out == (dtr_tensor *)16 && norm == -5);
    float data[2];
    dtr_tensor *t = iota(data, 2, 1, SHAPE(2));
    IS(dtr_tensor_reshape(t, 1, NULL, &out), DTR_ERR_ARG);
    IS(dtr_tensor_reshape(t, 1, SHAPE(2), NULL), DTR_ERR_ARG);
    IS(dtr_tensor_clone(t, NULL), DTR_ERR_ARG);
    IS(dtr_tensor_norm(t, NULL, NULL), DTR_ERR_ARG);
    IS(dtr_tensor_copy(t, NULL, NULL), DTR_ERR_ARG);
    MESSAGE("src is NULL");
    dtr_tensor_release(t);
}
END_TEST

START_TEST(bad_shapes_are_refused) {
    float data[8];
    dtr_buffer b = dtr_cpu(data, 8, DTR_F32);
    dtr_tensor *t = (dtr_tensor *)16;
    int64_t many[20] = { 0 };
    int calls = 0;
    IS(dtr_tensor_from_buffer(b, -1, many, NULL, count_call, &calls, &t), DTR_ERR_ARG);
    IS(dtr_tensor_from_buffer(b, 17, many, NULL, count_call, &calls, &t), DTR_ERR_ARG);
    MESSAGE("ndim 17");
    IS(dtr_tensor_from_buffer(dtr_cpu_in(data, 8, DTR_F32), 1, SHAPE(8), NULL, NULL, NULL, &t),
       DTR_ERR_ARG);
    MESSAGE("read only");
    IS(dtr_tensor_from_buffer(b, 1, NULL, NULL, count_call, &calls, &t), DTR_ERR_ARG);
    IS(dtr_tensor_from_buffer(b, 2, SHAPE(2, -3), NULL, NULL, NULL, &t), DTR_ERR_SHAPE);
    MESSAGE("-3");
    IS(dtr_tensor_from_buffer(b, 2, SHAPE(3, 3), NULL, NULL, NULL, &t), DTR_ERR_SHAPE);
    IS(dtr_tensor_from_buffer(b, 2, SHAPE(INT64_MAX, 2), NULL, NULL, NULL, &t), DTR_ERR_OVERFLOW);
    IS(dtr_tensor_from_buffer(b, 1, SHAPE(INT64_MAX / 2), NULL, NULL, NULL, &t), DTR_ERR_OVERFLOW);
    IS(dtr_tensor_from_buffer(b, 3, SHAPE(INT64_MAX, 0, 2), NULL, NULL, NULL, &t),
       DTR_ERR_OVERFLOW);
    IS(dtr_tensor_from_buffer(b, 1, SHAPE(2), SHAPE(8), NULL, NULL, &t), DTR_ERR_SHAPE);
    IS(dtr_tensor_from_buffer(b, 1, SHAPE(2), SHAPE(-1), NULL, NULL, &t), DTR_ERR_SHAPE);
    MESSAGE("before the buffer");
    IS(dtr_tensor_from_buffer(b, 1, SHAPE(3), SHAPE(INT64_MAX), NULL, NULL, &t), DTR_ERR_OVERFLOW);
    b.data = NULL;
    IS(dtr_tensor_from_buffer(b, 1, SHAPE(1), NULL, NULL, NULL, &t), DTR_ERR_ARG);
    b = dtr_cpu(data, 8, (dtr_dtype)99);
    IS(dtr_tensor_from_buffer(b, 1, SHAPE(1), NULL, NULL, NULL, &t), DTR_ERR_DTYPE);
    b = dtr_cpu(data, 8, DTR_F32);
    b.device.index = 1;
    IS(dtr_tensor_from_buffer(b, 1, SHAPE(1), NULL, NULL, NULL, &t), DTR_ERR_DEVICE);
    b.device.type = (dtr_device_type)7;
    IS(dtr_tensor_from_buffer(b, 1, SHAPE(1), NULL, NULL, NULL, &t), DTR_ERR_DEVICE);
    b = dtr_cpu(data, SIZE_MAX, DTR_F32);
    IS(dtr_tensor_from_buffer(b, 1, SHAPE(1), NULL, NULL, NULL, &t), DTR_ERR_OVERFLOW);
    ck_assert_ptr_eq(t, (dtr_tensor *)16);
    ck_assert_int_eq(calls, 0);
}
END_TEST

START_TEST(empty_and_scalar_tensors) {
    float one = 7;
    dtr_tensor *t = NULL, *v = NULL;
    IS(dtr_tensor_from_buffer(dtr_cpu(&one, 1, DTR_F32), 0, NULL, NULL, NULL, NULL, &t), DTR_OK);
    ck_assert_uint_eq(dtr_tensor_numel(t), 1);
    ck_assert(dtr_tensor_is_contiguous(t));
    IS(dtr_tensor_reshape(t, 3, SHAPE(1, 1, 1), &v), DTR_OK);
    dtr_tensor_release(v);
    IS(dtr_tensor_reshape(t, 1, SHAPE(0), &v), DTR_ERR_SHAPE);
    dtr_tensor_release(t);
    IS(dtr_tensor_from_buffer(dtr_cpu(NULL, 0, DTR_F32), 3, SHAPE(2, 0, 5), NULL, NULL, NULL, &t),
       DTR_OK);
    ck_assert_uint_eq(dtr_tensor_numel(t), 0);
    ck_assert(dtr_tensor_is_contiguous(t));
    IS(dtr_tensor_transpose(t, 0, 2, &v), DTR_OK);
    ck_assert(dtr_tensor_is_contiguous(v));
    dtr_tensor *w = NULL;
    IS(dtr_tensor_narrow(v, 0, 5, 0, &w), DTR_OK);
    IS(dtr_tensor_fill(w, 3, NULL), DTR_OK);
    double norm = 9;
    IS(dtr_tensor_norm(w, NULL, &norm), DTR_OK);
    ck_assert(norm == 0);
    dtr_tensor *c = NULL;
    IS(dtr_tensor_clone(v, &c), DTR_OK);
    ck_assert_int_eq(dtr_tensor_shape(c)[0], 5);
    IS(dtr_tensor_copy(v, c, NULL), DTR_OK);
    dtr_tensor_release(c);
    dtr_tensor_release(w);
    dtr_tensor_release(v);
    dtr_tensor_release(t);
}
END_TEST

START_TEST(views_keep_the_memory) {
    int calls = 0;
    float data[12];
    dtr_tensor *t = NULL, *row = NULL, *flat = NULL;
    IS(dtr_tensor_from_buffer(dtr_cpu(data, 12, DTR_F32), 2, SHAPE(3, 4), NULL, count_call, &calls,
                              &t),
       DTR_OK);
    IS(dtr_tensor_narrow(t, 0, 1, 1, &row), DTR_OK);
    IS(dtr_tensor_reshape(row, 1, SHAPE(4), &flat), DTR_OK);
    ck_assert_ptr_eq(dtr_tensor_data(flat), data + 4);
    ck_assert_ptr_eq(dtr_tensor_retain(t), t);
    dtr_tensor_release(t);
    dtr_tensor_release(t);
    dtr_tensor_release(row);
    ck_assert_int_eq(calls, 0);
    dtr_tensor_release(flat);
    ck_assert_int_eq(calls, 1);
}
END_TEST

START_TEST(narrow_and_transpose) {
    float data[12];
    dtr_tensor *t = iota(data, 12, 2, SHAPE(3, 4)), *n = NULL, *x = NULL, *none = NULL;
    IS(dtr_tensor_narrow(t, 1, 1, 2, &n), DTR_OK);
    ck_assert(!dtr_tensor_is_contiguous(n));
    ck_assert(at(n, 0, 0) == 1 && at(n, 2, 1) == 10);
    dtr_buffer b = dtr_tensor_buffer(n);
    ck_assert(b.data == NULL && b.count == 6);
    IS(dtr_tensor_transpose(n, 0, 1, &x), DTR_OK);
    ck_assert(at(x, 1, 2) == 10 && dtr_tensor_shape(x)[0] == 2);
    IS(dtr_tensor_narrow(t, 2, 0, 1, &none), DTR_ERR_ARG);
    IS(dtr_tensor_narrow(t, -1, 0, 1, &none), DTR_ERR_ARG);
    IS(dtr_tensor_narrow(t, 0, -1, 1, &none), DTR_ERR_ARG);
    IS(dtr_tensor_narrow(t, 0, 2, 2, &none), DTR_ERR_ARG);
    MESSAGE("start 2, length 2");
    IS(dtr_tensor_narrow(t, 0, 1, INT64_MAX, &none), DTR_ERR_ARG);
    IS(dtr_tensor_narrow(t, 0, 1, -1, &none), DTR_ERR_ARG);
    IS(dtr_tensor_transpose(t, 0, 2, &none), DTR_ERR_ARG);
    ck_assert_ptr_null(none);
    dtr_tensor_release(x);
    dtr_tensor_release(n);
    dtr_tensor_release(t);
}
END_TEST

START_TEST(reshape_makes_views_where_strides_allow) {
    float data[24];
    dtr_tensor *t = iota(data, 24, 3, SHAPE(2, 3, 4)), *v = NULL, *w = NULL;
    IS(dtr_tensor_transpose(t, 0, 1, &v), DTR_OK); /* [3, 2, 4], strides [4, 12, 1] */
    IS(dtr_tensor_reshape(v, 5, SHAPE(3, 1, 2, 2, 2), &w), DTR_OK);
    ck_assert_ptr_eq(dtr_tensor_data(w), data);
    ck_assert_int_eq(dtr_tensor_strides(w)[0], 4);
    ck_assert_int_eq(dtr_tensor_strides(w)[2], 12);
    ck_assert_int_eq(dtr_tensor_strides(w)[3], 2);
    dtr_tensor_release(w);
    w = NULL;
    IS(dtr_tensor_reshape(v, 2, SHAPE(6, 4), &w), DTR_ERR_LAYOUT);
    MESSAGE("dtr_tensor_contiguous");
    IS(dtr_tensor_reshape(v, 2, SHAPE(3, 9), &w), DTR_ERR_SHAPE);
    ck_assert_ptr_null(w);
    dtr_tensor_release(v);
    IS(dtr_tensor_narrow(t, 0, 1, 1, &v), DTR_OK);
    IS(dtr_tensor_reshape(v, 1, SHAPE(12), &w), DTR_OK);
    ck_assert_ptr_eq(dtr_tensor_data(w), data + 12);
    dtr_tensor_release(w);
    dtr_tensor_release(v);
    dtr_tensor_release(t);
}
END_TEST

/* Reshape against indices counted one by one, over random layouts; a refusal must be right, too. */
START_TEST(reshape_agrees_with_counting) {
    uint64_t seed = 12345;
    for (int round = 0; round < 3000; round++) {
        int64_t shape[4], strides[4], to[4];
        size_t numel = 1;
        int dims[4] = { 0, 1, 2, 3 };
        for (int d = 0; d < 4; d++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            shape[d] = 1 + (int64_t)(seed >> 60) % 3;
            numel *= (size_t)shape[d];
            int other = (int)((seed >> 40) % 4), keep = dims[d];
            dims[d] = dims[other];
            dims[other] = keep;
        }
        int64_t step = 1 + (int64_t)(seed >> 33) % 2;
        for (int i = 0; i < 4; i++) {
            strides[dims[i]] = step;
            step *= shape[dims[i]];
        }
        int64_t left = (int64_t)numel;
        for (int d = 0; d < 3; d++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            int64_t take = 1 + (int64_t)(seed >> 60) % 4;
            to[d] = left % take == 0 ? take : 1;
            left /= to[d];
        }
        to[3] = left;
        float data[256];
        dtr_tensor *t = NULL, *v = NULL;
        IS(dtr_tensor_from_buffer(dtr_cpu(data, 256, DTR_F32), 4, shape, strides, NULL, NULL, &t),
           DTR_OK);
        dtr_status s = dtr_tensor_reshape(t, 4, to, &v);
        ck_assert(s == DTR_OK || s == DTR_ERR_LAYOUT);
        for (size_t k = 0; k < numel && s == DTR_OK; k++) {
            int64_t a = 0, b = 0;
            size_t ra = k, rb = k;
            for (int d = 3; d >= 0; d--) {
                a += (int64_t)(ra % (size_t)shape[d]) * strides[d];
                ra /= (size_t)shape[d];
                b += (int64_t)(rb % (size_t)to[d]) * dtr_tensor_strides(v)[d];
                rb /= (size_t)to[d];
            }
            ck_assert_int_eq(a, b);
        }
        if (s == DTR_ERR_LAYOUT) {
            ck_assert(!dtr_tensor_is_contiguous(t));
        }
        dtr_tensor_release(v);
        dtr_tensor_release(t);
    }
}
END_TEST

START_TEST(contiguous_and_clone) {
    float data[6];
    dtr_tensor *t = iota(data, 6, 2, SHAPE(2, 3)), *x = NULL, *c = NULL;
    IS(dtr_tensor_contiguous(t, &c), DTR_OK);
    ck_assert_ptr_eq(c, t);
    dtr_tensor_release(c);
    IS(dtr_tensor_transpose(t, 0, 1, &x), DTR_OK);
    IS(dtr_tensor_contiguous(x, &c), DTR_OK);
    ck_assert(dtr_tensor_is_contiguous(c) && at(c, 2, 1) == 5 && at(c, 0, 1) == 3);
    dtr_tensor_release(c);
    IS(dtr_tensor_clone(t, &c), DTR_OK);
    ck_assert_ptr_ne(dtr_tensor_data(c), data);
    ck_assert(at(c, 1, 2) == 5);
    dtr_tensor_release(c);
    dtr_tensor_release(x);
    dtr_tensor_release(t);
}
END_TEST

START_TEST(a_handle_can_move_to_other_memory) {
    int calls = 0;
    float a[4] = { 1, 2, 3, 4 }, b[4] = { 5, 6, 7, 8 };
    dtr_tensor *t = NULL, *u = NULL;
    IS(dtr_tensor_from_buffer(dtr_cpu(a, 4, DTR_F32), 1, SHAPE(4), NULL, count_call, &calls, &t),
       DTR_OK);
    IS(dtr_tensor_from_buffer(dtr_cpu(b, 4, DTR_F32), 1, SHAPE(4), NULL, NULL, NULL, &u), DTR_OK);
    dtr__tensor_rebind(t, u);
    ck_assert_int_eq(calls, 1);
    dtr_tensor_release(u);
    ck_assert_ptr_eq(dtr_tensor_data(t), b);
    dtr_tensor_release(t);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("tensor");
    tcase_add_test(tc, queries_of_a_tensor);
    tcase_add_test(tc, null_is_defined_everywhere);
    tcase_add_test(tc, bad_shapes_are_refused);
    tcase_add_test(tc, empty_and_scalar_tensors);
    tcase_add_test(tc, views_keep_the_memory);
    tcase_add_test(tc, narrow_and_transpose);
    tcase_add_test(tc, reshape_makes_views_where_strides_allow);
    tcase_add_test(tc, reshape_agrees_with_counting);
    tcase_add_test(tc, contiguous_and_clone);
    tcase_add_test(tc, a_handle_can_move_to_other_memory);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("tensor_basic", make);
}
