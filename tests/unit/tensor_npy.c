/* NumPy files: round trips, headers as NumPy and others write them, and damaged files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dtr/npy.h>

#include "data.h"
#include "kernels/kernels.h"
#include "tensor_unit.h"

static char path[] = "/tmp/dtr-npy-XXXXXX";

static void setup(void) {
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static void teardown(void) {
    unlink(path);
    strcpy(path + strlen(path) - 6, "XXXXXX");
}

static dtr_tensor *wrap(void *data, size_t n, dtr_dtype d, int ndim, const int64_t *shape,
                        const int64_t *strides) {
    dtr_tensor *t = NULL;
    IS(dtr_tensor_from_buffer(dtr_cpu(data, n, d), ndim, shape, strides, NULL, NULL, &t), DTR_OK);
    return t;
}

/* A file of format version `major` with this header text and data. */
static void write_file(int major, const char *header, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    size_t length = strlen(header);
    fwrite("\x93NUMPY", 1, 6, f);
    fputc(major, f);
    fputc(0, f);
    for (int i = 0; i < (major == 1 ? 2 : 4); i++) {
        fputc((int)(length >> 8 * i & 0xff), f);
    }
    fwrite(header, 1, length, f);
    fwrite(data, 1, n, f);
    fclose(f);
}

START_TEST(round_trip_of_every_type) {
    for (int i = 0; i < TH_DTYPES; i++) {
        dtr_dtype d = th_all_dtypes[i];
        unsigned char data[16 * 24];
        th_fill(data, d, DTR_SUM, 0, 24, 1, 3);
        bool refused = d == DTR_BF16 || d == DTR_F8E4M3 || d == DTR_F8E5M2;
        static const int64_t shapes[][3] = { { 2, 3, 4 }, { 24, 1, 1 }, { 0, 5, 1 } };
        for (int k = 0; k < 5; k++) {
            int ndim = k == 4 ? 0 : k == 1 ? 1 : 3;
            const int64_t *strides = k == 3 ? SHAPE(1, 2, 6) : NULL;
            dtr_tensor *t = wrap(data, 24, d, ndim, shapes[k % 3], strides), *u = NULL, *c = NULL;
            IS(dtr_tensor_save_npy(t, path), refused ? DTR_ERR_DTYPE : DTR_OK);
            if (!refused) {
                size_t n = dtr_tensor_numel(t);
                IS(dtr_tensor_load_npy(path, &u), DTR_OK);
                ck_assert(dtr_tensor_ndim(u) == ndim && dtr_tensor_dtype(u) == d);
                ck_assert(ndim == 0 || memcmp(dtr_tensor_shape(u), dtr_tensor_shape(t),
                                              (size_t)ndim * sizeof(int64_t)) == 0);
                IS(dtr_tensor_clone(t, &c), DTR_OK);
                dtr__copy_clean(dtr_tensor_data(c), dtr_tensor_data(c), n, d);
                ck_assert_uint_eq(th_differs(dtr_tensor_data(u), dtr_tensor_data(c), d, n), n);
                struct stat st;
                ck_assert(stat(path, &st) == 0);
                ck_assert_uint_eq(((size_t)st.st_size - n * dtr_dtype_size(d)) % 64, 0);
            }
            dtr_tensor_release(c);
            dtr_tensor_release(u);
            dtr_tensor_release(t);
        }
    }
}
END_TEST

START_TEST(headers_that_others_write) {
    static const struct {
        int major;
        const char *header;
        dtr_dtype dtype;
        int ndim;
        int64_t shape[3];
    } cases[] = {
        { 1,
          "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }  \n",
          DTR_I32,
          2,
          { 2, 3 } },
        { 2, "{\"shape\":(6L,),\"descr\":\"<i4\",\"fortran_order\":False}", DTR_I32, 1, { 6 } },
        { 3,
          " { 'fortran_order' : True , 'shape' : ( 6 , ) , 'descr' : '=i4' } ",
          DTR_I32,
          1,
          { 6 } },
        { 1, "{'descr': '|b1', 'fortran_order': False, 'shape': ()}", DTR_BOOL, 0, { 0 } },
        { 1, "{'descr': '|?', 'fortran_order': False, 'shape': (24)}", DTR_BOOL, 1, { 24 } },
        { 1, "{'descr': '<u2', 'fortran_order': False, 'shape': (12,)}", DTR_U16, 1, { 12 } },
        { 1, "{'descr': '<u4', 'fortran_order': False, 'shape': (6,)}", DTR_U32, 1, { 6 } },
        { 1, "{'descr': '<u8', 'fortran_order': False, 'shape': (3,)}", DTR_U64, 1, { 3 } },
        { 1,
          "{'descr': [ (\"value\",'<f8'), ('index', '<i8'),], 'fortran_order': False, 'shape': "
          "(1,)}",
          DTR_F64_INDEX,
          1,
          { 1 } },
        { 1, "{'descr': 'f8', 'fortran_order': False, 'shape': (0, 7)}", DTR_F64, 2, { 0, 7 } },
    };
    int32_t data[6] = { 0, 1, 2, 3, 4, 5 };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        dtr_tensor *t = NULL;
        write_file(cases[i].major, cases[i].header, data, sizeof(data));
        IS(dtr_tensor_load_npy(path, &t), DTR_OK);
        ck_assert(dtr_tensor_dtype(t) == cases[i].dtype && dtr_tensor_ndim(t) == cases[i].ndim);
        for (int d = 0; d < cases[i].ndim; d++) {
            ck_assert_int_eq(dtr_tensor_shape(t)[d], cases[i].shape[d]);
        }
        dtr_tensor_release(t);
    }
}
END_TEST

START_TEST(fortran_order_and_big_endian) {
    unsigned char data[12], pair[8] = { 0x3f, 0x80, 0, 0, 0x40, 0, 0, 0 };
    for (int i = 0; i < 6; i++) {
        data[2 * i] = 0;
        data[2 * i + 1] = (unsigned char)i;
    }
    dtr_tensor *t = NULL;
    write_file(1, "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3)}", data, 12);
    IS(dtr_tensor_load_npy(path, &t), DTR_OK);
    ck_assert(dtr_tensor_is_contiguous(t));
    static const int16_t want[6] = { 0, 2, 4, 1, 3, 5 };
    ck_assert_int_eq(memcmp(dtr_tensor_data(t), want, 12), 0);
    dtr_tensor_release(t);
    write_file(1, "{'descr': '>c8', 'fortran_order': False, 'shape': (1,)}", pair, 8);
    IS(dtr_tensor_load_npy(path, &t), DTR_OK);
    const float *c = dtr_tensor_data(t);
    ck_assert(c[0] == 1 && c[1] == 2);
    dtr_tensor_release(t);
}
END_TEST

START_TEST(bad_files_are_errors) {
    static const struct {
        const char *header;
        dtr_status status;
        const char *word;
    } cases[] = {
        { "", DTR_ERR_IO, "'{' expected" },
        { "{", DTR_ERR_IO, "quoted key" },
        { "{'descr': '<i4'}", DTR_ERR_IO, "missing" },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': (2,}", DTR_ERR_IO, "a size" },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': (2 3)}", DTR_ERR_IO, "',' or ')'" },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': (-2,)}", DTR_ERR_IO, "a size" },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,)}", DTR_ERR_IO,
          "out of range" },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", DTR_ERR_IO,
          "address" },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': (1000000000000,)}", DTR_ERR_IO,
          "needs 4000000000000 bytes" },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': (7,)}", DTR_ERR_IO, "there are 24" },
        { "{'descr': '<i4', 'fortran_order': Maybe, 'shape': (2,)}", DTR_ERR_IO, "True or False" },
        { "{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (2,)}", DTR_ERR_IO,
          "twice" },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), 'x': 1}", DTR_ERR_IO, "'x'" },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': (2,)} x", DTR_ERR_IO, "the end" },
        { "{'descr': '<i4\\x00', 'fortran_order': False, 'shape': (2,)}", DTR_ERR_IO, "quoted" },
        { "{'descr': '<i4", DTR_ERR_IO, "quoted" },
        { "{'descr': '<u16', 'fortran_order': False, 'shape': (2,)}", DTR_ERR_UNSUPPORTED, "<u16" },
        { "{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", DTR_ERR_UNSUPPORTED, "|O" },
        { "{'descr': '<i4x', 'fortran_order': False, 'shape': (2,)}", DTR_ERR_UNSUPPORTED, "<i4x" },
        { "{'descr': '', 'fortran_order': False, 'shape': (2,)}", DTR_ERR_UNSUPPORTED, "''" },
        { "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,)}", DTR_ERR_UNSUPPORTED,
          "fields" },
        { "{'descr': [('value', '<f4'), ('index', '<i8')], 'fortran_order': False, 'shape': (2,)}",
          DTR_ERR_UNSUPPORTED, "fields" },
        { "{'descr': [('value', '<f8'", DTR_ERR_UNSUPPORTED, "fields" },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': "
          "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)}",
          DTR_ERR_UNSUPPORTED, "16 dimensions" },
    };
    dtr_tensor *t = NULL;
    char data[24] = { 0 };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file(1, cases[i].header, data, sizeof(data));
        IS(dtr_tensor_load_npy(path, &t), cases[i].status);
        MESSAGE(cases[i].word);
        MESSAGE(path);
    }
    write_file(4, "{}", data, 24);
    IS(dtr_tensor_load_npy(path, &t), DTR_ERR_UNSUPPORTED);
    MESSAGE("4.0");
    IS(dtr_tensor_load_npy("/no/such/file", &t), DTR_ERR_IO);
    MESSAGE("No such file");
    IS(dtr_tensor_load_npy("/tmp", &t), DTR_ERR_IO);
    IS(dtr_tensor_load_npy("/dev/null", &t), DTR_ERR_IO);
    IS(dtr_tensor_load_npy(NULL, &t), DTR_ERR_ARG);
    IS(dtr_tensor_load_npy(path, NULL), DTR_ERR_ARG);
    ck_assert_ptr_null(t);
    t = wrap(data, 24, DTR_I8, 1, SHAPE(24), NULL);
    IS(dtr_tensor_save_npy(NULL, path), DTR_ERR_ARG);
    IS(dtr_tensor_save_npy(t, NULL), DTR_ERR_ARG);
    IS(dtr_tensor_save_npy(t, "/no/such/folder/x"), DTR_ERR_IO);
    dtr_tensor_release(t);
}
END_TEST

/* Every prefix, and random bytes in random places: an error or a tensor, never a crash. */
START_TEST(garbage_never_crashes) {
    int32_t data[6] = { 0, 1, 2, 3, 4, 5 };
    unsigned char good[256], bad[256];
    write_file(1, "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }", data, 24);
    FILE *f = fopen(path, "rb");
    size_t n = fread(good, 1, sizeof(good), f);
    fclose(f);
    th_rng g = { 5 };
    for (size_t round = 0; round < 5 * n; round++) {
        dtr_tensor *t = NULL;
        memcpy(bad, good, n);
        if (round >= n) {
            bad[th_next(&g) % n] = (unsigned char)th_next(&g);
        }
        f = fopen(path, "wb");
        fwrite(bad, 1, round < n ? round : n, f);
        fclose(f);
        dtr_status s = dtr_tensor_load_npy(path, &t);
        ck_assert(round >= n || s == DTR_ERR_IO);
        dtr_tensor_release(t);
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("npy");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, round_trip_of_every_type);
    tcase_add_test(tc, headers_that_others_write);
    tcase_add_test(tc, fortran_order_and_big_endian);
    tcase_add_test(tc, bad_files_are_errors);
    tcase_add_test(tc, garbage_never_crashes);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("tensor_npy", make);
}
