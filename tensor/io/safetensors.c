/* Reading and writing files of named tensors (8-byte header length, JSON header, raw data). */
#include <dtr/safetensors.h>

#include "io/tensor_file.h"

#ifdef DTR_HAVE_JANSSON

#include <endian.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What other readers of the format accept as a header, too. */
enum { MAX_HEADER = 100 * 1000 * 1000, NAME_IN_TEXT = 80 };

static const struct {
    const char *name;
    dtr_dtype dtype;
} type_names[] = { { "BOOL", DTR_BOOL },      { "U8", DTR_U8 },          { "I8", DTR_I8 },
                   { "I16", DTR_I16 },        { "I32", DTR_I32 },        { "I64", DTR_I64 },
                   { "F8_E4M3", DTR_F8E4M3 }, { "F8_E5M2", DTR_F8E5M2 }, { "F16", DTR_F16 },
                   { "BF16", DTR_BF16 },      { "F32", DTR_F32 },        { "F64", DTR_F64 },
                   { "C64", DTR_C64 },        { "U16", DTR_U16 },        { "U32", DTR_U32 },
                   { "U64", DTR_U64 } };
enum { N_TYPES = sizeof(type_names) / sizeof(type_names[0]) };

static const char *type_name(dtr_dtype d) {
    for (size_t i = 0; i < N_TYPES; i++) {
        if (type_names[i].dtype == d) {
            return type_names[i].name;
        }
    }
    return NULL;
}

static bool type_of(const char *name, dtr_dtype *d) {
    for (size_t i = 0; i < N_TYPES; i++) {
        if (strcmp(type_names[i].name, name) == 0) {
            *d = type_names[i].dtype;
            return true;
        }
    }
    return false;
}

static dtr_status no_memory(const char *path) {
    return DTR_FAIL(NULL, DTR_ERR_NOMEM, "out of memory for the header of %s", path);
}

/* ---- writing ---- */

static dtr_status check_entry(const dtr_named_tensor *e, size_t i, const json_t *header) {
    DTR_REQUIRE(e->name != NULL, NULL, DTR_ERR_ARG, "tensors[%zu].name is NULL", i);
    char what[NAME_IN_TEXT];
    snprintf(what, sizeof(what), "tensors[%zu] ('%.40s')", i, e->name);
    DTR_TRY(dtr__tensor_check_cpu(e->tensor, what));
    DTR_REQUIRE(strcmp(e->name, "__metadata__") != 0, NULL, DTR_ERR_ARG,
                "%s: the format keeps the name __metadata__ for itself", what);
    DTR_REQUIRE(json_object_get(header, e->name) == NULL, NULL, DTR_ERR_ARG,
                "%s: an earlier tensor has the same name", what);
    DTR_REQUIRE(type_name(e->tensor->dtype) != NULL, NULL, DTR_ERR_DTYPE,
                "%s: the format has no type for %s", what, dtr_dtype_name(e->tensor->dtype));
    return DTR_OK;
}

/* {"dtype": .., "shape": [..], "data_offsets": [b, e]}, or NULL. */
static json_t *describe_entry(const dtr_tensor *t, uint64_t begin, uint64_t end) {
    json_t *shape = json_array();
    for (int d = 0; d < t->ndim; d++) {
        if (json_array_append_new(shape, json_integer(t->shape[d])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_name(t->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

static dtr_status add_entry(json_t *header, const dtr_named_tensor *e, size_t i, uint64_t *offset) {
    DTR_TRY(check_entry(e, i, header));
    uint64_t nbytes = e->tensor->numel * dtr_dtype_size(e->tensor->dtype), end = *offset + nbytes;
    DTR_REQUIRE(end <= INT64_MAX, NULL, DTR_ERR_OVERFLOW,
                "tensors[%zu] ('%.40s'): the file would be larger than 2^63 bytes", i, e->name);
    json_t *entry = describe_entry(e->tensor, *offset, end);
    DTR_REQUIRE(entry != NULL, NULL, DTR_ERR_NOMEM, "out of memory for the header");
    DTR_REQUIRE(json_object_set_new(header, e->name, entry) == 0, NULL, DTR_ERR_ARG,
                "tensors[%zu].name is no valid UTF-8", i);
    *offset = end;
    return DTR_OK;
}

static dtr_status add_metadata(json_t *header, const dtr_text_pair *pairs, size_t n) {
    if (n == 0) {
        return DTR_OK;
    }
    DTR_REQUIRE(pairs != NULL, NULL, DTR_ERR_ARG, "metadata is NULL, but n_metadata is %zu", n);
    json_t *map = json_object();
    DTR_REQUIRE(map != NULL && json_object_set_new(header, "__metadata__", map) == 0, NULL,
                DTR_ERR_NOMEM, "out of memory for the header");
    for (size_t i = 0; i < n; i++) {
        DTR_REQUIRE(pairs[i].key != NULL && pairs[i].value != NULL, NULL, DTR_ERR_ARG,
                    "metadata[%zu].%s is NULL", i, pairs[i].key == NULL ? "key" : "value");
        DTR_REQUIRE(json_object_get(map, pairs[i].key) == NULL, NULL, DTR_ERR_ARG,
                    "metadata[%zu].key '%.40s' is there twice", i, pairs[i].key);
        DTR_REQUIRE(json_object_set_new(map, pairs[i].key, json_string(pairs[i].value)) == 0, NULL,
                    DTR_ERR_ARG, "metadata[%zu] ('%.40s') is no valid UTF-8", i, pairs[i].key);
    }
    return DTR_OK;
}

/* The order of the data: larger element types first, so that all are aligned in the file. */
static const dtr_named_tensor **sorted_entries(const dtr_named_tensor *tensors, size_t n) {
    const dtr_named_tensor **order = malloc((n + 1) * sizeof(order[0]));
    size_t at = 0;
    for (size_t size = 16; order != NULL && size >= 1; size /= 2) {
        for (size_t i = 0; i < n; i++) {
            const dtr_tensor *t = tensors[i].tensor;
            size_t own = t != NULL ? dtr_dtype_size(dtr_tensor_dtype(t)) : 0;
            if (own == size || (own == 0 && size == 1)) {
                order[at++] = &tensors[i];
            }
        }
    }
    return order;
}

static dtr_status build_header(const dtr_named_tensor *base, const dtr_named_tensor *const *order,
                               size_t n, const dtr_text_pair *pairs, size_t n_pairs, char **text) {
    json_t *header = json_object();
    DTR_REQUIRE(header != NULL, NULL, DTR_ERR_NOMEM, "out of memory for the header");
    uint64_t offset = 0;
    dtr_status s = add_metadata(header, pairs, n_pairs);
    for (size_t i = 0; i < n && s >= 0; i++) {
        s = add_entry(header, order[i], (size_t)(order[i] - base), &offset);
    }
    if (s >= 0) {
        *text = json_dumps(header, JSON_COMPACT);
        s = *text != NULL ? DTR_OK : DTR_FAIL(NULL, DTR_ERR_NOMEM, "out of memory for the header");
    }
    json_decref(header);
    return s;
}

static dtr_status write_header(dtr__file_out *f, const char *text) {
    static const char spaces[8] = "       ";
    size_t n = strlen(text), pad = -n & 7;
    DTR_REQUIRE(n + pad <= MAX_HEADER, NULL, DTR_ERR_OVERFLOW,
                "the header has %zu bytes; the format ends at %d", n, MAX_HEADER);
    uint64_t length = htole64(n + pad);
    DTR_TRY(dtr__file_write(f, &length, sizeof(length)));
    DTR_TRY(dtr__file_write(f, text, n));
    return dtr__file_write(f, spaces, pad);
}

static dtr_status write_all(dtr__file_out *f, const char *text,
                            const dtr_named_tensor *const *order, size_t n) {
    DTR_TRY(write_header(f, text));
    for (size_t i = 0; i < n; i++) {
        DTR_TRY(dtr__file_write_tensor(f, order[i]->tensor));
    }
    return DTR_OK;
}

dtr_status dtr_safetensors_save(const char *path, const dtr_named_tensor *tensors, size_t n,
                                const dtr_text_pair *metadata, size_t n_metadata) {
    DTR_REQUIRE(n == 0 || tensors != NULL, NULL, DTR_ERR_ARG, "tensors is NULL, but n is %zu", n);
    const dtr_named_tensor **order = sorted_entries(tensors, n);
    DTR_REQUIRE(order != NULL, NULL, DTR_ERR_NOMEM, "out of memory for a list of %zu tensors", n);
    char *text = NULL;
    dtr__file_out f;
    dtr_status s = build_header(tensors, order, n, metadata, n_metadata, &text);
    if (s >= 0) {
        s = dtr__file_create(path, &f);
        if (s >= 0) {
            s = dtr__file_finish(&f, write_all(&f, text, order, n));
        }
    }
    free(text);
    free(order);
    return s;
}

/* ---- reading ---- */

typedef struct entry {
    const char *name; /* in the JSON tree */
    const char *type_text;
    dtr_dtype dtype;
    bool known_type;
    int ndim; /* may exceed DTR_MAX_NDIM; shape then holds the first sizes */
    int64_t shape[DTR_MAX_NDIM];
    uint64_t begin, end;
} entry;

/* Constant after open. */
struct dtr_safetensors {
    int fd;
    char *path;
    json_t *header;
    uint64_t data_at, data_bytes;
    entry *entries; /* in order of their data */
    size_t n;
};

#define DAMAGED_IF(cond, f, ...) DTR_DAMAGED_IF(cond, (f)->path, "safetensors", __VA_ARGS__)

static dtr_status read_shape(const dtr_safetensors *f, const json_t *shape, entry *e,
                             uint64_t *numel) {
    bool over = false, empty = false;
    uint64_t product = 1;
    e->ndim = (int)json_array_size(shape);
    for (int d = 0; d < e->ndim; d++) {
        const json_t *size = json_array_get(shape, (size_t)d);
        DAMAGED_IF(!json_is_integer(size) || json_integer_value(size) < 0, f,
                   "tensor '%.60s': shape has an entry that is no size", e->name);
        int64_t value = (int64_t)json_integer_value(size);
        if (d < DTR_MAX_NDIM) {
            e->shape[d] = value;
        }
        empty = empty || value == 0;
        over = over || __builtin_mul_overflow(product, value == 0 ? 1u : (uint64_t)value, &product);
    }
    DAMAGED_IF(over, f, "tensor '%.60s': the sizes multiply to more than 2^64", e->name);
    *numel = empty ? 0 : product;
    return DTR_OK;
}

static dtr_status read_entry(const dtr_safetensors *f, const char *name, const json_t *value,
                             entry *e) {
    e->name = name;
    const json_t *type = json_object_get(value, "dtype");
    const json_t *shape = json_object_get(value, "shape");
    const json_t *offsets = json_object_get(value, "data_offsets");
    DAMAGED_IF(!json_is_string(type) || !json_is_array(shape) || json_array_size(offsets) != 2 ||
                   json_array_size(shape) > INT32_MAX,
               f, "tensor '%.60s' needs a dtype, a shape and two data_offsets", name);
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    int64_t b = (int64_t)json_integer_value(begin), z = (int64_t)json_integer_value(end);
    DAMAGED_IF(!json_is_integer(begin) || !json_is_integer(end) || b < 0 || z < b ||
                   (uint64_t)z > f->data_bytes,
               f, "tensor '%.60s': data_offsets %lld to %lld, but there are %llu bytes", name,
               (long long)b, (long long)z, (unsigned long long)f->data_bytes);
    e->begin = (uint64_t)b;
    e->end = (uint64_t)z;
    e->type_text = json_string_value(type);
    e->known_type = type_of(e->type_text, &e->dtype);
    uint64_t numel = 0, nbytes = 0;
    DTR_TRY(read_shape(f, shape, e, &numel));
    DAMAGED_IF(e->known_type &&
                   (__builtin_mul_overflow(numel, (uint64_t)dtr_dtype_size(e->dtype), &nbytes) ||
                    nbytes != e->end - e->begin),
               f, "tensor '%.60s': %llu elements of %s do not fill data_offsets %lld to %lld", name,
               (unsigned long long)numel, e->type_text, (long long)b, (long long)z);
    return DTR_OK;
}

static dtr_status read_metadata(const dtr_safetensors *f, json_t *map) {
    const char *key;
    json_t *value;
    DAMAGED_IF(!json_is_object(map), f, "__metadata__ is no object");
    json_object_foreach(map, key, value) {
        DAMAGED_IF(!json_is_string(value), f, "__metadata__ '%.60s' is no text", key);
    }
    return DTR_OK;
}

static int by_offset(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static dtr_status read_entries(dtr_safetensors *f) {
    const char *name;
    json_t *value;
    f->entries = calloc(json_object_size(f->header) + 1, sizeof(f->entries[0]));
    if (f->entries == NULL) {
        return no_memory(f->path);
    }
    json_object_foreach(f->header, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            DTR_TRY(read_metadata(f, value));
        } else {
            DTR_TRY(read_entry(f, name, value, &f->entries[f->n]));
            f->n++;
        }
    }
    qsort(f->entries, f->n, sizeof(f->entries[0]), by_offset);
    uint64_t at = 0;
    for (size_t i = 0; i < f->n; i++) {
        DAMAGED_IF(f->entries[i].begin != at, f,
                   "tensor '%.60s' begins at byte %llu of the data, not at %llu",
                   f->entries[i].name, (unsigned long long)f->entries[i].begin,
                   (unsigned long long)at);
        at = f->entries[i].end;
    }
    DAMAGED_IF(at != f->data_bytes, f,
               "the tensors end at byte %llu of the data, but there are %llu",
               (unsigned long long)at, (unsigned long long)f->data_bytes);
    return DTR_OK;
}

static dtr_status parse_header(dtr_safetensors *f, const char *text, size_t n) {
    json_error_t error;
    DAMAGED_IF(text[0] != '{', f, "the header does not begin with '{'");
    f->header = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    DAMAGED_IF(f->header == NULL, f, "header, byte %d: %s", error.position, error.text);
    DAMAGED_IF(!json_is_object(f->header), f, "the header is no JSON object");
    return read_entries(f);
}

static dtr_status read_header(dtr_safetensors *f, uint64_t file_bytes) {
    uint64_t length = 0;
    DAMAGED_IF(file_bytes < 8, f, "%llu bytes are too few", (unsigned long long)file_bytes);
    DTR_TRY(dtr__file_read(f->fd, f->path, 0, &length, sizeof(length)));
    length = le64toh(length);
    DAMAGED_IF(length == 0 || length > MAX_HEADER || length > file_bytes - 8, f,
               "header length %llu, but the file has %llu bytes (and %d is the limit)",
               (unsigned long long)length, (unsigned long long)file_bytes, MAX_HEADER);
    f->data_at = 8 + length;
    f->data_bytes = file_bytes - f->data_at;
    char *text = malloc(length);
    if (text == NULL) {
        return no_memory(f->path);
    }
    dtr_status s = dtr__file_read(f->fd, f->path, 8, text, length);
    if (s >= 0) {
        s = parse_header(f, text, length);
    }
    free(text);
    return s;
}

dtr_status dtr_safetensors_open(const char *path, dtr_safetensors **file) {
    DTR_REQUIRE_RESULT(file);
    int fd = -1;
    uint64_t nbytes = 0;
    DTR_TRY(dtr__file_open(path, &fd, &nbytes));
    dtr_safetensors *f = calloc(1, sizeof(*f));
    char *name = strdup(path);
    if (f == NULL || name == NULL) {
        free(f);
        free(name);
        close(fd);
        return no_memory(path);
    }
    f->fd = fd;
    f->path = name;
    dtr_status s = read_header(f, nbytes);
    if (s < 0) {
        (void)dtr_safetensors_close(f);
        return s;
    }
    *file = f;
    return DTR_OK;
}

dtr_status dtr_safetensors_close(dtr_safetensors *f) {
    if (f != NULL) {
        close(f->fd);
        json_decref(f->header);
        free(f->entries);
        free(f->path);
        free(f);
    }
    return DTR_OK;
}

size_t dtr_safetensors_count(const dtr_safetensors *f) {
    return f != NULL ? f->n : 0;
}

const char *dtr_safetensors_name(const dtr_safetensors *f, size_t i) {
    return f != NULL && i < f->n ? f->entries[i].name : NULL;
}

static dtr_status find(const dtr_safetensors *f, const char *name, const entry **found) {
    DTR_REQUIRE(f != NULL, NULL, DTR_ERR_ARG, "file is NULL");
    DTR_REQUIRE(name != NULL, NULL, DTR_ERR_ARG, "name is NULL");
    const entry *e = f->entries;
    while (e < f->entries + f->n && strcmp(e->name, name) != 0) {
        e++;
    }
    DTR_REQUIRE(e < f->entries + f->n, NULL, DTR_ERR_ARG, "%s has no tensor '%.80s'", f->path,
                name);
    DTR_REQUIRE(e->known_type, NULL, DTR_ERR_UNSUPPORTED,
                "%s: tensor '%.60s' has elements of type '%.20s', which there is no dtype for",
                f->path, name, e->type_text);
    DTR_REQUIRE(e->ndim <= DTR_MAX_NDIM, NULL, DTR_ERR_UNSUPPORTED,
                "%s: tensor '%.60s' has %d dimensions; at most %d are possible", f->path, name,
                e->ndim, DTR_MAX_NDIM);
    *found = e;
    return DTR_OK;
}

dtr_status dtr_safetensors_describe(const dtr_safetensors *f, const char *name, dtr_dtype *dtype,
                                    int *ndim, int64_t *shape) {
    const entry *e = NULL;
    DTR_TRY(find(f, name, &e));
    if (dtype != NULL) {
        *dtype = e->dtype;
    }
    if (ndim != NULL) {
        *ndim = e->ndim;
    }
    if (shape != NULL) {
        memcpy(shape, e->shape, (size_t)e->ndim * sizeof(shape[0]));
    }
    return DTR_OK;
}

static dtr_status load(const dtr_safetensors *f, const entry *e, dtr_tensor **tensor) {
    dtr_tensor *t = NULL;
    DTR_TRY(dtr__tensor_new(e->dtype, e->ndim, e->shape, &t));
    dtr_status s =
        dtr__file_read(f->fd, f->path, f->data_at + e->begin, t->data, e->end - e->begin);
    if (s < 0) {
        dtr_tensor_release(t);
        return s;
    }
    dtr__bool_clean(t->data, t->dtype, t->numel);
    *tensor = t;
    return DTR_OK;
}

dtr_status dtr_safetensors_load(const dtr_safetensors *f, const char *name, dtr_tensor **tensor) {
    const entry *e = NULL;
    DTR_TRY(find(f, name, &e));
    DTR_REQUIRE_RESULT(tensor);
    return load(f, e, tensor);
}

dtr_status dtr_safetensors_load_into(const dtr_safetensors *f, const char *name, dtr_tensor *dst) {
    const entry *e = NULL;
    DTR_TRY(find(f, name, &e));
    DTR_TRY(dtr__tensor_check_cpu(dst, "tensor"));
    DTR_TRY(dtr__tensor_check_writable(dst, "tensor"));
    char own[DTR__SHAPE_TEXT], theirs[DTR__SHAPE_TEXT];
    DTR_REQUIRE(e->ndim == dst->ndim &&
                    memcmp(e->shape, dst->shape, (size_t)e->ndim * sizeof(e->shape[0])) == 0,
                NULL, DTR_ERR_SHAPE, "%s: tensor '%.60s' has shape %s, but it is to go into %s",
                f->path, name, dtr__shape_text(e->ndim, e->shape, theirs),
                dtr__shape_text(dst->ndim, dst->shape, own));
    /* Through a temporary, so that a read error leaves dst as it was. */
    dtr_tensor *t = NULL;
    DTR_TRY(load(f, e, &t));
    dtr__tensor_copy_raw(dst, t);
    dtr_tensor_release(t);
    return DTR_OK;
}

static json_t *metadata_of(const dtr_safetensors *f) {
    return f != NULL ? json_object_get(f->header, "__metadata__") : NULL;
}

const char *dtr_safetensors_metadata(const dtr_safetensors *f, const char *key) {
    return key != NULL ? json_string_value(json_object_get(metadata_of(f), key)) : NULL;
}

const char *dtr_safetensors_metadata_key(const dtr_safetensors *f, size_t i) {
    json_t *map = metadata_of(f);
    void *at = map != NULL ? json_object_iter(map) : NULL;
    for (; at != NULL && i > 0; i--) {
        at = json_object_iter_next(map, at);
    }
    return at != NULL ? json_object_iter_key(at) : NULL;
}

#else /* built without jansson: every call says so */

#pragma GCC diagnostic ignored "-Wunused-parameter"

static dtr_status not_built(void) {
    return DTR_FAIL(NULL, DTR_ERR_UNSUPPORTED,
                    "this libdtr was built without jansson, which the header of such files needs; "
                    "install libjansson-dev and build again");
}

dtr_status dtr_safetensors_save(const char *path, const dtr_named_tensor *tensors, size_t n,
                                const dtr_text_pair *metadata, size_t n_metadata) {
    return not_built();
}

dtr_status dtr_safetensors_open(const char *path, dtr_safetensors **file) {
    return not_built();
}

dtr_status dtr_safetensors_close(dtr_safetensors *f) {
    return f == NULL ? DTR_OK : not_built();
}

size_t dtr_safetensors_count(const dtr_safetensors *f) {
    return 0;
}

const char *dtr_safetensors_name(const dtr_safetensors *f, size_t i) {
    return NULL;
}

dtr_status dtr_safetensors_describe(const dtr_safetensors *f, const char *name, dtr_dtype *dtype,
                                    int *ndim, int64_t *shape) {
    return not_built();
}

dtr_status dtr_safetensors_load(const dtr_safetensors *f, const char *name, dtr_tensor **tensor) {
    return not_built();
}

dtr_status dtr_safetensors_load_into(const dtr_safetensors *f, const char *name, dtr_tensor *dst) {
    return not_built();
}

const char *dtr_safetensors_metadata(const dtr_safetensors *f, const char *key) {
    return NULL;
}

const char *dtr_safetensors_metadata_key(const dtr_safetensors *f, size_t i) {
    return NULL;
}

#endif
