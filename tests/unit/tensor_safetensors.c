/* Files of named tensors: round trips, what other programs write, and damaged files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dtr/safetensors.h>

#include "data.h"
#include "tensor_unit.h"

static char folder[] = "/tmp/dtr-safetensors-XXXXXX";
static char path[64], other[64];

static void setup(void) {
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/a", folder);
    snprintf(other, sizeof(other), "%s/b", folder);
}

static void teardown(void) {
    unlink(path);
    unlink(other);
    ck_assert_msg(rmdir(folder) == 0, "temporary files were left in %s", folder);
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
}

static dtr_tensor *wrap(void *data, size_t n, dtr_dtype d, int ndim, const int64_t *shape,
                        const int64_t *strides) {
    dtr_tensor *t = NULL;
    IS(dtr_tensor_from_buffer(dtr_cpu(data, n, d), ndim, shape, strides, NULL, NULL, &t), DTR_OK);
    return t;
}

static void write_file(const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    ck_assert_uint_eq(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* A file with this header and n bytes of data. */
static void write_header(const char *json, size_t n) {
    size_t length = strlen(json);
    unsigned char *all = calloc(1, 8 + length + n);
    for (int i = 0; i < 8; i++) {
        all[i] = (unsigned char)(length >> 8 * i);
    }
    memcpy(all + 8, json, length);
    write_file(all, 8 + length + n);
    free(all);
}

START_TEST(round_trip_of_every_type) {
    unsigned char data[TH_NUMBERS][96];
    dtr_named_tensor list[TH_NUMBERS];
    char names[TH_NUMBERS][16];
    size_t n = 0;
    for (int i = 0; i < TH_NUMBERS; i++) {
        dtr_dtype d = th_all_dtypes[i];
        if (d == DTR_C128) {
            continue;
        }
        th_fill(data[n], d, DTR_SUM, 0, 6, 1, 3);
        snprintf(names[n], sizeof(names[n]), "t.%s", dtr_dtype_name(d));
        list[n] = (dtr_named_tensor){ names[n], wrap(data[n], 6, d, 2, SHAPE(2, 3),
                                                     n % 2 ? SHAPE(1, 2) : NULL) };
        n++;
    }
    dtr_text_pair pairs[2] = { { "step", "17" }, { "Grüße", "\"quoted\"\n" } };
    IS(dtr_safetensors_save(path, list, n, pairs, 2), DTR_OK);
    dtr_safetensors *f = NULL;
    IS(dtr_safetensors_open(path, &f), DTR_OK);
    ck_assert_uint_eq(dtr_safetensors_count(f), n);
    ck_assert_str_eq(dtr_safetensors_name(f, 0), "t.i64"); /* data in order of alignment */
    ck_assert_ptr_null(dtr_safetensors_name(f, n));
    ck_assert_str_eq(dtr_safetensors_metadata(f, "step"), "17");
    ck_assert_str_eq(dtr_safetensors_metadata(f, "Grüße"), "\"quoted\"\n");
    ck_assert_ptr_null(dtr_safetensors_metadata(f, "no"));
    ck_assert_str_eq(dtr_safetensors_metadata_key(f, 0), "step");
    ck_assert_ptr_null(dtr_safetensors_metadata_key(f, 2));
    for (size_t i = 0; i < n; i++) {
        dtr_tensor *t = NULL, *want = NULL;
        int ndim = 0;
        dtr_dtype d;
        int64_t shape[DTR_MAX_NDIM];
        IS(dtr_safetensors_describe(f, names[i], &d, &ndim, shape), DTR_OK);
        ck_assert(ndim == 2 && shape[1] == 3 && d == dtr_tensor_dtype(list[i].tensor));
        IS(dtr_safetensors_load(f, names[i], &t), DTR_OK);
        IS(dtr_tensor_clone(list[i].tensor, &want), DTR_OK);
        ck_assert_uint_eq(th_differs(dtr_tensor_data(t), dtr_tensor_data(want), d, 6), 6);
        dtr_tensor_release(want);
        dtr_tensor_release(t);
        dtr_tensor_release(list[i].tensor);
    }
    IS(dtr_safetensors_close(f), DTR_OK);
}
END_TEST

START_TEST(load_into_converts_and_checks) {
    float data[6] = { 0, 1, 2, 3, 4, 5 };
    double into[8] = { -1, -1, -1, -1, -1, -1, -1, -1 };
    dtr_named_tensor one = { "w", wrap(data, 6, DTR_F32, 2, SHAPE(2, 3), NULL) };
    IS(dtr_safetensors_save(path, &one, 1, NULL, 0), DTR_OK);
    dtr_safetensors *f = NULL;
    IS(dtr_safetensors_open(path, &f), DTR_OK);
    dtr_tensor *t = wrap(into, 8, DTR_F64, 2, SHAPE(2, 3), SHAPE(4, 1)), *none = NULL;
    IS(dtr_safetensors_load_into(f, "w", t), DTR_OK);
    ck_assert(into[2] == 2 && into[3] == -1 && into[4] == 3 && into[6] == 5);
    dtr_tensor *wrong = wrap(into, 8, DTR_F64, 2, SHAPE(3, 2), NULL);
    IS(dtr_safetensors_load_into(f, "w", wrong), DTR_ERR_SHAPE);
    MESSAGE("[2, 3]");
    IS(dtr_safetensors_load(f, "v", &none), DTR_ERR_ARG);
    MESSAGE("no tensor 'v'");
    IS(dtr_safetensors_load(f, NULL, &none), DTR_ERR_ARG);
    IS(dtr_safetensors_load(f, "w", NULL), DTR_ERR_ARG);
    IS(dtr_safetensors_load(NULL, "w", &none), DTR_ERR_ARG);
    IS(truncate(path, 80) == 0 ? dtr_safetensors_load_into(f, "w", t) : DTR_OK, DTR_ERR_IO);
    ck_assert(into[6] == 5 && none == NULL);
    dtr_tensor_release(wrong);
    dtr_tensor_release(t);
    dtr_tensor_release(one.tensor);
    IS(dtr_safetensors_close(f), DTR_OK);
    IS(dtr_safetensors_close(NULL), DTR_OK);
}
END_TEST

START_TEST(save_refuses_and_leaves_nothing) {
    float data[2] = { 1, 2 };
    double wide[4] = { 0 };
    dtr_tensor *t = wrap(data, 2, DTR_F32, 1, SHAPE(2), NULL);
    dtr_tensor *c = wrap(wide, 2, DTR_C128, 1, SHAPE(2), NULL);
    dtr_named_tensor list[2] = { { "a", t }, { "a", t } };
    dtr_text_pair pair = { "k", NULL };
    write_file("old", 3);
    IS(dtr_safetensors_save(path, list, 2, NULL, 0), DTR_ERR_ARG);
    MESSAGE("same name");
    list[1] = (dtr_named_tensor){ NULL, t };
    IS(dtr_safetensors_save(path, list, 2, NULL, 0), DTR_ERR_ARG);
    list[1] = (dtr_named_tensor){ "b", NULL };
    IS(dtr_safetensors_save(path, list, 2, NULL, 0), DTR_ERR_ARG);
    MESSAGE("tensors[1]");
    list[1] = (dtr_named_tensor){ "b", c };
    IS(dtr_safetensors_save(path, list, 2, NULL, 0), DTR_ERR_DTYPE);
    MESSAGE("c128");
    list[1] = (dtr_named_tensor){ "__metadata__", t };
    IS(dtr_safetensors_save(path, list, 2, NULL, 0), DTR_ERR_ARG);
    list[1] = (dtr_named_tensor){ "\xff", t };
    IS(dtr_safetensors_save(path, list, 2, NULL, 0), DTR_ERR_ARG);
    IS(dtr_safetensors_save(path, list, 1, &pair, 1), DTR_ERR_ARG);
    IS(dtr_safetensors_save(path, NULL, 1, NULL, 0), DTR_ERR_ARG);
    IS(dtr_safetensors_save(NULL, list, 1, NULL, 0), DTR_ERR_ARG);
    IS(dtr_safetensors_save("/dev/null", list, 1, NULL, 0), DTR_ERR_IO);
    IS(dtr_safetensors_save("/no/such/folder/x", list, 1, NULL, 0), DTR_ERR_IO);
    MESSAGE("/no/such/folder/x");
    struct stat st;
    ck_assert(stat(path, &st) == 0 && st.st_size == 3);
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert_int_eq(symlink(path, other), 0);
    IS(dtr_safetensors_save(other, list, 1, NULL, 0), DTR_OK); /* the file behind the link */
    ck_assert(lstat(other, &st) == 0 && S_ISLNK(st.st_mode));
    ck_assert(stat(path, &st) == 0 && st.st_size > 3 && (st.st_mode & 0777) == 0640);
    dtr_safetensors *f = NULL;
    IS(dtr_safetensors_open(path, NULL), DTR_ERR_ARG);
    IS(dtr_safetensors_open(path, &f), DTR_OK);
    IS(dtr_safetensors_close(f), DTR_OK);
    IS(dtr_safetensors_save(path, NULL, 0, NULL, 0), DTR_OK);
    IS(dtr_safetensors_open(path, &f), DTR_OK);
    ck_assert_uint_eq(dtr_safetensors_count(f), 0);
    IS(dtr_safetensors_close(f), DTR_OK);
    dtr_tensor_release(c);
    dtr_tensor_release(t);
}
END_TEST

START_TEST(damaged_headers_are_errors) {
    static const struct {
        const char *json, *word;
    } cases[] = {
        { "[]", "begin" },
        { "{", "header, byte" },
        { "{\"a\":1}", "dtype" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}", "there are 8" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "8 to 0" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", "-8" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", "do not fill" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "no size" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1e3],\"data_offsets\":[0,8]}}", "no size" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4,2],\"data_offsets\":[0,8]}}",
          "multiply" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,2],\"data_offsets\":[0,8]}}",
          "do not fill" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}",
          "header, byte" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "begins at byte 4" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "end at byte 4" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
          "begins at byte 4" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
          "\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
          "duplicate" },
        { "{\"__metadata__\":{\"a\":1},\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]"
          "}}",
          "no text" },
        { "{\"__metadata__\":[],\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
          "no object" },
    };
    dtr_safetensors *f = NULL;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_header(cases[i].json, 8);
        IS(dtr_safetensors_open(path, &f), DTR_ERR_IO);
        MESSAGE(cases[i].word);
        MESSAGE(path);
    }
    ck_assert_ptr_null(f);
}
END_TEST

START_TEST(foreign_tensors_are_refused_one_by_one) {
    dtr_tensor *t = NULL;
    dtr_safetensors *f = NULL;
    write_header(
        "{\"odd\":{\"dtype\":\"F8_E8M0\",\"shape\":[8],\"data_offsets\":[0,8]},"
        "\"deep\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"
        "\"data_offsets\":[8,9]},\"flag\":{\"data_offsets\":[9,11],\"shape\":[2],\"dtype\":"
        "\"BOOL\"},\"none\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[11,11]}}   ",
        11);
    FILE *raw = fopen(path, "r+b");
    fseek(raw, -1, SEEK_END);
    fputc(7, raw);
    fclose(raw);
    IS(dtr_safetensors_open(path, &f), DTR_OK);
    ck_assert_uint_eq(dtr_safetensors_count(f), 4);
    IS(dtr_safetensors_load(f, "odd", &t), DTR_ERR_UNSUPPORTED);
    MESSAGE("F8_E8M0");
    IS(dtr_safetensors_load(f, "deep", &t), DTR_ERR_UNSUPPORTED);
    MESSAGE("17 dimensions");
    ck_assert_ptr_null(t);
    IS(dtr_safetensors_load(f, "flag", &t), DTR_OK);
    ck_assert(((unsigned char *)dtr_tensor_data(t))[1] == 1); /* any non-zero byte is true */
    dtr_tensor_release(t);
    IS(dtr_safetensors_load(f, "none", &t), DTR_OK);
    ck_assert(dtr_tensor_numel(t) == 0 && dtr_tensor_shape(t)[0] == 3);
    dtr_tensor_release(t);
    IS(dtr_safetensors_close(f), DTR_OK);
}
END_TEST

/* Every prefix of a good file, and the file with every byte changed: an error or a readable file,
 * never a crash. */
START_TEST(garbage_never_crashes) {
    float data[6] = { 0, 1, 2, 3, 4, 5 };
    dtr_named_tensor list[2] = { { "a", wrap(data, 6, DTR_F32, 2, SHAPE(2, 3), NULL) },
                                 { "b", wrap(data, 6, DTR_F32, 0, NULL, NULL) } };
    dtr_text_pair pair = { "k", "v" };
    IS(dtr_safetensors_save(path, list, 2, &pair, 1), DTR_OK);
    unsigned char good[1024], bad[1024];
    FILE *raw = fopen(path, "rb");
    size_t n = fread(good, 1, sizeof(good), raw);
    fclose(raw);
    int opened = 0;
    for (size_t cut = 0; cut < n; cut++) {
        dtr_safetensors *f = NULL;
        write_file(good, cut);
        IS(dtr_safetensors_open(path, &f), DTR_ERR_IO);
    }
    th_rng g = { 3 };
    for (size_t round = 0; round < 4 * n; round++) {
        dtr_safetensors *f = NULL;
        dtr_tensor *t = NULL;
        memcpy(bad, good, n);
        bad[round % n] = (unsigned char)th_next(&g);
        write_file(bad, n);
        if (dtr_safetensors_open(path, &f) == DTR_OK) {
            opened++;
            for (size_t i = 0; i < dtr_safetensors_count(f); i++) {
                if (dtr_safetensors_load(f, dtr_safetensors_name(f, i), &t) == DTR_OK) {
                    dtr_tensor_release(t);
                }
            }
            IS(dtr_safetensors_close(f), DTR_OK);
        }
    }
    ck_assert_int_gt(opened, 0);
    dtr_tensor_release(list[0].tensor);
    dtr_tensor_release(list[1].tensor);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("safetensors");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, round_trip_of_every_type);
    tcase_add_test(tc, load_into_converts_and_checks);
    tcase_add_test(tc, save_refuses_and_leaves_nothing);
    tcase_add_test(tc, damaged_headers_are_errors);
    tcase_add_test(tc, foreign_tensors_are_refused_one_by_one);
    tcase_add_test(tc, garbage_never_crashes);
    suite_add_tcase(s, tc);
}

int main(void) {
    if (dtr_safetensors_save(NULL, NULL, 0, NULL, 0) == DTR_ERR_UNSUPPORTED) {
        printf("skipped: %s\n", dtr_last_error_message());
        return 77;
    }
    return th_unit_main("tensor_safetensors", make);
}
