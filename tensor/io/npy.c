/* NumPy's file format: a magic, a version, a header that is a Python dictionary, raw data. */
#include <ctype.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dtr/npy.h>

#include "io/tensor_file.h"

enum { MAX_HEADER = 1 << 20, ALIGN = 64, PREFIX = 10 };
static const char magic[6] = "\x93NUMPY";

/* ---- element types: letter and size in bytes ---- */

static const struct {
    dtr_dtype dtype;
    char letter;
    int size;
} types[] = { { DTR_BOOL, 'b', 1 }, { DTR_U8, 'u', 1 },  { DTR_I8, 'i', 1 },    { DTR_I16, 'i', 2 },
              { DTR_I32, 'i', 4 },  { DTR_I64, 'i', 8 }, { DTR_F16, 'f', 2 },   { DTR_F32, 'f', 4 },
              { DTR_F64, 'f', 8 },  { DTR_C64, 'c', 8 }, { DTR_C128, 'c', 16 }, { DTR_U16, 'u', 2 },
              { DTR_U32, 'u', 4 },  { DTR_U64, 'u', 8 } };
enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

/* Pairs are records of two fields; NumPy spells out what lies between them. */
static const struct {
    dtr_dtype dtype;
    const char *fields[6]; /* names and types */
} records[] = {
    { DTR_F32_INDEX, { "value", "<f4", "", "|V4", "index", "<i8" } },
    { DTR_F64_INDEX, { "value", "<f8", "index", "<i8" } },
    { DTR_I64_INDEX, { "value", "<i8", "index", "<i8" } },
};
enum { N_RECORDS = sizeof(records) / sizeof(records[0]), RECORD_WORDS = 6 };

/* ---- writing ---- */

static size_t write_shape(const dtr_tensor *t, char *text, size_t cap) {
    size_t at = (size_t)snprintf(text, cap, "(");
    for (int d = 0; d < t->ndim; d++) {
        at += (size_t)snprintf(text + at, cap - at, "%lld,%s", (long long)t->shape[d],
                               d + 1 < t->ndim ? " " : "");
    }
    if (t->ndim > 1) {
        at--; /* only a tuple of one keeps its comma */
    }
    return at + (size_t)snprintf(text + at, cap - at, ")");
}

/* The element type as Python writes it; false: there is none. */
static bool write_descr(dtr_dtype d, char *text, size_t cap) {
    for (size_t k = 0; k < N_TYPES; k++) {
        if (types[k].dtype == d) {
            snprintf(text, cap, "'%c%c%d'", types[k].size == 1 ? '|' : '<', types[k].letter,
                     types[k].size);
            return true;
        }
    }
    for (size_t k = 0; k < N_RECORDS; k++) {
        size_t at = 0;
        for (int i = 0; records[k].dtype == d && i < RECORD_WORDS && records[k].fields[i] != NULL;
             i += 2) {
            at += (size_t)snprintf(text + at, cap - at, "%s('%s', '%s')", i == 0 ? "[" : ", ",
                                   records[k].fields[i], records[k].fields[i + 1]);
        }
        if (at > 0) {
            snprintf(text + at, cap - at, "]");
            return true;
        }
    }
    return false;
}

static dtr_status write_all(dtr__file_out *f, const dtr_tensor *t, const char *descr) {
    char header[1024];
    memcpy(header, magic, sizeof(magic));
    size_t at = PREFIX;
    at += (size_t)snprintf(header + at, sizeof(header) - at,
                           "{'descr': %s, 'fortran_order': False, 'shape': ", descr);
    at += write_shape(t, header + at, sizeof(header) - at);
    at += (size_t)snprintf(header + at, sizeof(header) - at, ", }");
    while ((at + 1) % ALIGN != 0) {
        header[at++] = ' ';
    }
    header[at++] = '\n';
    header[6] = 1; /* version 1.0: 16 bits of header length */
    header[7] = 0;
    header[8] = (char)((at - PREFIX) & 0xff);
    header[9] = (char)((at - PREFIX) >> 8);
    DTR_TRY(dtr__file_write(f, header, at));
    return dtr__file_write_tensor(f, t);
}

dtr_status dtr_tensor_save_npy(const dtr_tensor *t, const char *path) {
    DTR_TRY(dtr__tensor_check_cpu(t, "tensor"));
    char descr[80];
    DTR_REQUIRE(write_descr(t->dtype, descr, sizeof(descr)), NULL, DTR_ERR_DTYPE,
                "NumPy files have no type for %s; copy the tensor to f32 first, or use "
                "dtr_safetensors_save",
                dtr_dtype_name(t->dtype));
    DTR_REQUIRE(BYTE_ORDER == LITTLE_ENDIAN, NULL, DTR_ERR_UNSUPPORTED,
                "this host is big-endian, which saving does not support");
    dtr__file_out f;
    DTR_TRY(dtr__file_create(path, &f));
    return dtr__file_finish(&f, write_all(&f, t, descr));
}

/* ---- reading: the header ---- */

typedef struct npy {
    const char *path;
    dtr_dtype dtype;
    bool swap, fortran;
    bool has_descr, has_order, has_shape;
    int ndim;
    int64_t shape[DTR_MAX_NDIM];
} npy;

/* Position in the header's text, which ends with a 0 byte. */
typedef struct cursor {
    const char *start, *at;
} cursor;

#define DAMAGED(h, ...) DTR_DAMAGED((h)->path, "NumPy", __VA_ARGS__)
#define DAMAGED_IF(cond, h, ...) DTR_DAMAGED_IF(cond, (h)->path, "NumPy", __VA_ARGS__)

static dtr_status expect(const npy *h, const cursor *c, bool found, const char *wanted) {
    return found ? DTR_OK
                 : DAMAGED(h, "header, byte %zu: %s expected, but there is '%.12s'",
                           (size_t)(c->at - c->start), wanted, c->at);
}

static void skip_space(cursor *c) {
    while (isspace((unsigned char)*c->at)) {
        c->at++;
    }
}

static bool take(cursor *c, char ch) {
    skip_space(c);
    if (*c->at != ch) {
        return false;
    }
    c->at++;
    return true;
}

static bool take_word(cursor *c, const char *word) {
    skip_space(c);
    size_t n = strlen(word);
    if (strncmp(c->at, word, n) != 0) {
        return false;
    }
    c->at += n;
    return true;
}

/* A quoted text without escapes. */
static bool take_text(cursor *c, char *text, size_t cap) {
    char quote = take(c, '\'') ? '\'' : take(c, '"') ? '"' : '\0';
    if (quote == '\0') {
        return false;
    }
    size_t n = 0;
    while (*c->at != '\0' && *c->at != quote) {
        if (n + 1 >= cap || *c->at == '\\') {
            return false;
        }
        text[n++] = *c->at++;
    }
    text[n] = '\0';
    return *c->at == quote && c->at++ != NULL;
}

/* The fields of a record, behind the bracket: those of a pair, or it is refused. */
static dtr_status read_record(npy *h, cursor *c) {
    char word[RECORD_WORDS][16] = { { 0 } };
    int n = 0;
    bool fits = true;
    while (fits && n < RECORD_WORDS && take(c, '(')) {
        fits = take_text(c, word[n], sizeof(word[n])) && take(c, ',') &&
               take_text(c, word[n + 1], sizeof(word[n + 1])) && take(c, ')');
        n += 2;
        (void)take(c, ',');
    }
    fits = fits && take(c, ']');
    for (size_t k = 0; fits && k < N_RECORDS; k++) {
        int same = 0;
        while (same < n && records[k].fields[same] != NULL &&
               strcmp(records[k].fields[same], word[same]) == 0) {
            same++;
        }
        if (same == n && n > 0 && (n == RECORD_WORDS || records[k].fields[n] == NULL)) {
            h->dtype = records[k].dtype;
            h->swap = false;
            return DTR_OK;
        }
    }
    return DTR_FAIL(NULL, DTR_ERR_UNSUPPORTED,
                    "%s has records of several fields that are no value and index; a tensor has "
                    "one element type",
                    h->path);
}

static dtr_status read_descr(npy *h, cursor *c) {
    char text[32];
    if (take(c, '[')) {
        return read_record(h, c);
    }
    DTR_TRY(expect(h, c, take_text(c, text, sizeof(text)), "a quoted element type"));
    bool order = strchr("<>|=", text[0]) != NULL && text[0] != '\0';
    const char *type = order ? text + 1 : text;
    char *end = NULL;
    long size = type[0] == '?' ? 1 : type[0] != '\0' ? strtol(type + 1, &end, 10) : 0;
    char letter = type[0] == '?' ? 'b' : type[0];
    for (size_t k = 0; k < N_TYPES; k++) {
        if (types[k].letter == letter && types[k].size == size && (end == NULL || *end == '\0')) {
            h->dtype = types[k].dtype;
            h->swap = size > 1 && text[0] == (BYTE_ORDER == LITTLE_ENDIAN ? '>' : '<');
            return DTR_OK;
        }
    }
    return DTR_FAIL(NULL, DTR_ERR_UNSUPPORTED,
                    "%s has elements of type '%s', which there is no dtype for", h->path, text);
}

static dtr_status read_order(npy *h, cursor *c) {
    h->fortran = take_word(c, "True");
    return expect(h, c, h->fortran || take_word(c, "False"), "True or False");
}

static dtr_status read_size(npy *h, cursor *c) {
    skip_space(c);
    DTR_TRY(expect(h, c, isdigit((unsigned char)*c->at), "a size"));
    char *end = NULL;
    errno = 0;
    long long size = strtoll(c->at, &end, 10);
    DAMAGED_IF(errno != 0, h, "header: size %.24s is out of range", c->at);
    DTR_REQUIRE(h->ndim < DTR_MAX_NDIM, NULL, DTR_ERR_UNSUPPORTED, "%s has more than %d dimensions",
                h->path, DTR_MAX_NDIM);
    h->shape[h->ndim++] = size;
    c->at = *end == 'L' ? end + 1 : end; /* Python 2 wrote long integers so */
    return DTR_OK;
}

static dtr_status read_shape(npy *h, cursor *c) {
    DTR_TRY(expect(h, c, take(c, '('), "'('"));
    h->ndim = 0;
    while (!take(c, ')')) {
        DTR_TRY(read_size(h, c));
        if (!take(c, ',')) {
            DTR_TRY(expect(h, c, take(c, ')'), "',' or ')'"));
            break;
        }
    }
    return DTR_OK;
}

static dtr_status read_pair(npy *h, cursor *c) {
    char key[32];
    static const struct {
        const char *key;
        size_t seen;
        dtr_status (*read)(npy *h, cursor *c);
    } keys[] = { { "descr", offsetof(npy, has_descr), read_descr },
                 { "fortran_order", offsetof(npy, has_order), read_order },
                 { "shape", offsetof(npy, has_shape), read_shape } };
    DTR_TRY(expect(h, c, take_text(c, key, sizeof(key)) && take(c, ':'), "a quoted key and ':'"));
    for (size_t k = 0; k < 3; k++) {
        bool *seen = (bool *)((char *)h + keys[k].seen);
        if (strcmp(keys[k].key, key) == 0 && !*seen) {
            *seen = true;
            return keys[k].read(h, c);
        }
    }
    return DAMAGED(h, "header: key '%s' is unknown or there twice", key);
}

static dtr_status parse_header(npy *h, const char *text) {
    cursor c = { text, text };
    DTR_TRY(expect(h, &c, take(&c, '{'), "'{'"));
    while (!take(&c, '}')) {
        DTR_TRY(read_pair(h, &c));
        if (!take(&c, ',')) {
            DTR_TRY(expect(h, &c, take(&c, '}'), "',' or '}'"));
            break;
        }
    }
    DTR_TRY(expect(h, &c, take(&c, '\0'), "the end"));
    DAMAGED_IF(!h->has_descr || !h->has_order || !h->has_shape, h,
               "header: descr, fortran_order or shape is missing");
    return DTR_OK;
}

/* *data_at: where the data begins. */
static dtr_status read_header(npy *h, int fd, uint64_t file_bytes, uint64_t *data_at) {
    unsigned char prefix[12];
    DAMAGED_IF(file_bytes < sizeof(prefix), h, "%llu bytes are too few",
               (unsigned long long)file_bytes);
    DTR_TRY(dtr__file_read(fd, h->path, 0, prefix, sizeof(prefix)));
    DAMAGED_IF(memcmp(prefix, magic, sizeof(magic)) != 0, h, "it does not begin with \\x93NUMPY");
    int major = prefix[6], minor = prefix[7];
    DTR_REQUIRE(major >= 1 && major <= 3 && minor == 0, NULL, DTR_ERR_UNSUPPORTED,
                "%s has format version %d.%d; 1.0, 2.0 and 3.0 can be read", h->path, major, minor);
    uint64_t length = (uint64_t)prefix[8] | (uint64_t)prefix[9] << 8, begin = PREFIX;
    if (major > 1) {
        length |= (uint64_t)prefix[10] << 16 | (uint64_t)prefix[11] << 24;
        begin += 2;
    }
    DAMAGED_IF(length > MAX_HEADER || begin + length > file_bytes, h,
               "header length %llu, but the file has %llu bytes (and %d is the limit)",
               (unsigned long long)length, (unsigned long long)file_bytes, MAX_HEADER);
    char *text = malloc(length + 1);
    DTR_REQUIRE(text != NULL, NULL, DTR_ERR_NOMEM, "out of memory for the header of %s", h->path);
    dtr_status s = dtr__file_read(fd, h->path, begin, text, length);
    text[length] = '\0';
    if (s >= 0) {
        s = parse_header(h, text);
    }
    free(text);
    *data_at = begin + length;
    return s;
}

/* ---- reading: the data ---- */

/* Turn the bytes of every number; a complex element is two numbers. */
static void swap_bytes(void *data, dtr_dtype dtype, size_t numel) {
    size_t size = dtr_dtype_size(dtr__real_of(dtype)), n = numel * dtr__reals_in(dtype);
    unsigned char *at = data;
    for (size_t i = 0; i < n; i++, at += size) {
        for (size_t k = 0; k < size / 2; k++) {
            unsigned char keep = at[k];
            at[k] = at[size - 1 - k];
            at[size - 1 - k] = keep;
        }
    }
}

/* The data in the order of the file: of Fortran files a tensor with its dimensions reversed. */
static dtr_status read_data(const npy *h, int fd, uint64_t at, uint64_t file_bytes,
                            dtr_tensor **tensor) {
    int64_t shape[DTR_MAX_NDIM];
    char text[DTR__SHAPE_TEXT];
    size_t numel = 0;
    for (int d = 0; d < h->ndim; d++) {
        shape[d] = h->shape[h->fortran ? h->ndim - 1 - d : d];
    }
    dtr__shape_text(h->ndim, h->shape, text);
    DAMAGED_IF(dtr__shape_numel(h->ndim, shape, h->dtype, &numel) < 0, h,
               "shape %s is more than an address can hold", text);
    size_t nbytes = numel * dtr_dtype_size(h->dtype);
    DAMAGED_IF(nbytes > file_bytes - at, h,
               "shape %s of %s needs %zu bytes of data, but there are %llu", text,
               dtr_dtype_name(h->dtype), nbytes, (unsigned long long)(file_bytes - at));
    dtr_tensor *t = NULL;
    DTR_TRY(dtr__tensor_new(h->dtype, h->ndim, shape, &t));
    dtr_status s = dtr__file_read(fd, h->path, at, t->data, nbytes);
    if (s < 0) {
        dtr_tensor_release(t);
        return s;
    }
    if (h->swap) {
        swap_bytes(t->data, h->dtype, numel);
    }
    dtr__bool_clean(t->data, h->dtype, numel);
    *tensor = t;
    return DTR_OK;
}

/* Reverse the dimensions of `t` (a reference is used up) and make it contiguous. */
static dtr_status reverse(dtr_tensor *t, dtr_tensor **out) {
    int64_t shape[DTR_MAX_NDIM], strides[DTR_MAX_NDIM];
    for (int d = 0; d < t->ndim; d++) {
        shape[d] = t->shape[t->ndim - 1 - d];
        strides[d] = t->strides[t->ndim - 1 - d];
    }
    dtr_tensor *view = NULL;
    dtr_status s = dtr__tensor_view(t, 0, t->ndim, shape, strides, &view);
    dtr_tensor_release(t);
    if (s >= 0) {
        s = dtr_tensor_contiguous(view, out);
        dtr_tensor_release(view);
    }
    return s;
}

static dtr_status load(npy *h, int fd, uint64_t file_bytes, dtr_tensor **tensor) {
    uint64_t at = 0;
    dtr_tensor *t = NULL;
    DTR_TRY(read_header(h, fd, file_bytes, &at));
    DTR_TRY(read_data(h, fd, at, file_bytes, &t));
    if (h->fortran && h->ndim > 1) {
        return reverse(t, tensor);
    }
    *tensor = t;
    return DTR_OK;
}

dtr_status dtr_tensor_load_npy(const char *path, dtr_tensor **tensor) {
    DTR_REQUIRE_RESULT(tensor);
    npy h = { .path = path };
    int fd = -1;
    uint64_t file_bytes = 0;
    DTR_TRY(dtr__file_open(path, &fd, &file_bytes));
    dtr_status s = load(&h, fd, file_bytes, tensor);
    close(fd);
    return s;
}
