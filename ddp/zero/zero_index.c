/* The index of a checkpoint. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/tensor_file.h"
#include "zero_file.h"

char *dtr__zero_shard_path(const char *path, uint64_t token, int rank, int ranks) {
    size_t cap = strlen(path) + 80;
    char *name = malloc(cap);
    if (name != NULL) {
        snprintf(name, cap, "%s.%016" PRIx64 ".%d-of-%d.safetensors", path, token, rank, ranks);
    }
    return name;
}

static bool skip_digits(const char **at) {
    const char *from = *at;
    *at += strspn(*at, "0123456789");
    return *at != from;
}

static bool skip_text(const char **at, const char *text) {
    bool same = strncmp(*at, text, strlen(text)) == 0;
    *at += same ? strlen(text) : 0;
    return same;
}

bool dtr__zero_is_shard(const char *name, const char *stem, uint64_t token) {
    char middle[24];
    snprintf(middle, sizeof middle, ".%016" PRIx64 ".", token);
    return skip_text(&name, stem) && skip_text(&name, middle) && skip_digits(&name) &&
           skip_text(&name, "-of-") && skip_digits(&name) && strcmp(name, ".safetensors") == 0;
}

uint64_t dtr__zero_piece_hash(const void *data, size_t nbytes) {
    return dtr__hash_bytes(DTR__HASH_START, data, nbytes);
}

dtr_status dtr__zero_check_states(const dtr__share *sh, const char *entry, const char *path,
                                  const dtr_zero_state *states, size_t n) {
    DTR_REQUIRE(path != NULL && path[0] != '\0', NULL, DTR_ERR_ARG,
                "%s: path is %s; the name of the index is needed", entry,
                path == NULL ? "NULL" : "empty");
    DTR_REQUIRE(states != NULL || n == 0, NULL, DTR_ERR_ARG, "%s: states is NULL, n is %zu", entry,
                n);
    for (size_t k = 0; k < n; k++) {
        const dtr_zero_state *st = &states[k];
        DTR_REQUIRE(st->name != NULL && st->name[0] != '\0' && strchr(st->name, '/') == NULL &&
                        strlen(st->name) < 100 && strcmp(st->name, DTR__ZERO_VALUES) != 0,
                    NULL, DTR_ERR_ARG,
                    "%s: states[%zu].name is %s%s%s; give a name of less than 100 characters, "
                    "without '/', other than '" DTR__ZERO_VALUES "'",
                    entry, k, st->name != NULL ? "'" : "", st->name != NULL ? st->name : "NULL",
                    st->name != NULL ? "'" : "");
        for (size_t j = 0; j < k; j++) {
            DTR_REQUIRE(strcmp(states[j].name, st->name) != 0, NULL, DTR_ERR_ARG,
                        "%s: states[%zu] and [%zu] have the same name '%s'", entry, j, k, st->name);
        }
        size_t want = dtr__share_count(sh, st->param_dtype);
        DTR_REQUIRE(st->data.count == want && (st->data.data != NULL || want == 0), NULL,
                    DTR_ERR_SHAPE,
                    "%s: state '%s' has %zu elements at %p, the shard of %s parameters %zu", entry,
                    st->name, st->data.count, st->data.data, dtr_dtype_name(st->param_dtype), want);
        DTR_REQUIRE(dtr_dtype_size(st->data.dtype) > 0 && st->data.device.type == DTR_CPU, NULL,
                    DTR_ERR_DTYPE, "%s: state '%s' has no known element type in host memory", entry,
                    st->name);
    }
    return DTR_OK;
}

dtr_status dtr__zero_check_writable(const char *entry, const dtr_zero_state *states, size_t n) {
    for (size_t k = 0; k < n; k++) {
        DTR_REQUIRE(states[k].data.access != DTR_READ_ONLY, NULL, DTR_ERR_ARG,
                    "%s: state '%s' is written, and dtr_cpu_in makes buffers to read only", entry,
                    states[k].name != NULL ? states[k].name : "");
    }
    return DTR_OK;
}

#ifdef DTR_HAVE_JANSSON

#include <jansson.h>

/* ---- writing ---- */

static json_t *numbers(const int64_t *list, int n) {
    json_t *array = json_array();
    for (int d = 0; d < n; d++) {
        if (json_array_append_new(array, json_integer(list[d])) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *describe_tensor(const dtr_tensor *t) {
    return json_pack("{s:s, s:o}", "dtype", dtr_dtype_name(t->dtype), "shape",
                     numbers(t->shape, t->ndim));
}

/* How the elements of a parameter lie decides which of them a stretch is. */
static json_t *describe_param(const dtr__ddp_param *p) {
    int64_t strides[DTR_MAX_NDIM];
    dtr__share_strides(p, strides);
    return json_pack("{s:s, s:o, s:o}", "dtype", dtr_dtype_name(p->value->dtype), "shape",
                     numbers(p->value->shape, p->value->ndim), "strides",
                     numbers(strides, p->value->ndim));
}

static json_t *describe_params(const dtr__share *sh) {
    json_t *map = json_object();
    for (size_t i = 0; i < sh->ddp->n; i++) {
        const dtr__ddp_param *p = &sh->ddp->params[i];
        if (dtr__share_has(sh, i) && json_object_set_new(map, p->name, describe_param(p)) != 0) {
            json_decref(map);
            return NULL;
        }
    }
    return map;
}

static json_t *describe_states(const dtr_zero_state *states, size_t n) {
    json_t *map = json_object();
    for (size_t k = 0; k < n; k++) {
        json_t *one = json_pack("{s:s, s:s}", "param_dtype", dtr_dtype_name(states[k].param_dtype),
                                "dtype", dtr_dtype_name(states[k].data.dtype));
        if (json_object_set_new(map, states[k].name, one) != 0) {
            json_decref(map);
            return NULL;
        }
    }
    return map;
}

static json_t *describe_tensors(const dtr_optim_extra *x) {
    json_t *map = json_object();
    for (size_t k = 0; k < x->n_tensors; k++) {
        if (json_object_set_new(map, x->tensors[k].name, describe_tensor(x->tensors[k].tensor)) !=
            0) {
            json_decref(map);
            return NULL;
        }
    }
    return map;
}

static json_t *describe_metadata(const dtr_optim_extra *x) {
    json_t *map = json_object();
    for (size_t k = 0; k < x->n_metadata; k++) {
        if (json_object_set_new(map, x->metadata[k].key, json_string(x->metadata[k].value)) != 0) {
            json_decref(map);
            return NULL;
        }
    }
    return map;
}

static json_t *hex(uint64_t x) {
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, x);
    return json_string(text);
}

static json_t *describe(const dtr__share *sh, uint64_t token, uint64_t step, int ranks,
                        const dtr_zero_state *states, size_t n, const dtr_optim_extra *extra) {
    return json_pack("{s:s, s:i, s:o, s:I, s:i, s:o, s:o, s:o, s:o, s:o}", "format", "dtr-zero",
                     "version", 1, "token", hex(token), "step", (json_int_t)step, "ranks", ranks,
                     "plan", hex(dtr_plan_hash(sh->ddp->plan)), "states",
                     describe_states(states, n), "parameters", describe_params(sh), "tensors",
                     describe_tensors(extra), "metadata", describe_metadata(extra));
}

dtr_status dtr__zero_index_write(const dtr__share *sh, const char *path, uint64_t token,
                                 uint64_t step, int ranks, const dtr_zero_state *states, size_t n,
                                 const dtr_optim_extra *extra) {
    json_t *json = describe(sh, token, step, ranks, states, n, extra);
    char *text = json != NULL ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    DTR_REQUIRE(text != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for the index %s, or the name of a parameter is no UTF-8", path);
    dtr__file_out out;
    dtr_status s = dtr__file_create(path, &out);
    if (s == DTR_OK) {
        s = dtr__file_finish(&out, dtr__file_write(&out, text, strlen(text)));
    }
    free(text);
    return s;
}

/* ---- reading ---- */

static dtr_status read_text(const char *path, char **text, size_t *nbytes) {
    const uint64_t most = UINT64_C(1) << 30;
    int fd = -1;
    uint64_t size = 0;
    DTR_TRY(dtr__file_open(path, &fd, &size));
    *text = size < most ? malloc((size_t)size + 1) : NULL;
    dtr_status s = *text != NULL ? dtr__file_read(fd, path, 0, *text, (size_t)size)
                                 : DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for %llu bytes of %s",
                                            (unsigned long long)size, path);
    (void)close(fd);
    *nbytes = (size_t)size;
    return s;
}

static dtr_status parse(dtr__zero_index *x, const char *text, size_t nbytes) {
    json_error_t error;
    const char *format = "", *token = "";
    json_int_t version = 0, step = -1, ranks = 0;
    x->json = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &error);
    DTR_REQUIRE(x->json != NULL, NULL, DTR_ERR_IO, "%s is damaged or no index: byte %d: %s",
                x->path, error.position, error.text);
    int bad = json_unpack_ex(x->json, &error, 0, "{s:s, s:I, s:s, s:I, s:I}", "format", &format,
                             "version", &version, "token", &token, "step", &step, "ranks", &ranks);
    char *end = NULL;
    x->token = strtoull(token, &end, 16);
    DTR_REQUIRE(bad == 0 && strcmp(format, "dtr-zero") == 0 && *end == '\0' && step >= 0 &&
                    ranks > 0 && ranks <= INT32_MAX &&
                    json_is_object(json_object_get(x->json, "parameters")) &&
                    json_is_object(json_object_get(x->json, "states")),
                NULL, DTR_ERR_IO, "%s is no index of a checkpoint, or a damaged one", x->path);
    DTR_REQUIRE(version == 1, NULL, DTR_ERR_UNSUPPORTED,
                "%s is of version %lld; this library reads version 1", x->path, (long long)version);
    x->step = (uint64_t)step;
    x->ranks = (int)ranks;
    return DTR_OK;
}

dtr_status dtr__zero_index_read(const char *path, dtr__zero_index *x) {
    char *text = NULL;
    size_t nbytes = 0;
    *x = (dtr__zero_index){ .path = strdup(path) };
    dtr_status s = x->path != NULL
                       ? read_text(path, &text, &nbytes)
                       : DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for the name of %s", path);
    if (s == DTR_OK) {
        s = parse(x, text, nbytes);
    }
    free(text);
    if (s < 0) {
        dtr__zero_index_free(x);
    }
    return s;
}

void dtr__zero_index_free(dtr__zero_index *x) {
    json_decref(x->json);
    free(x->path);
    *x = (dtr__zero_index){ 0 };
}

dtr_status dtr__zero_index_texts(const dtr__zero_index *x, dtr__texts *texts) {
    json_t *map = json_object_get(x->json, "metadata"), *value;
    const char *key;
    texts->pairs = calloc(json_object_size(map) + 1, sizeof *texts->pairs);
    DTR_REQUIRE(texts->pairs != NULL, NULL, DTR_ERR_NOMEM, "no memory for the metadata of %s",
                x->path);
    json_object_foreach(map, key, value) {
        DTR_REQUIRE(json_is_string(value), NULL, DTR_ERR_IO,
                    "%s is damaged: the value of '%.80s' in its metadata is no text", x->path, key);
        dtr_text_pair *pair = &texts->pairs[texts->n++];
        pair->key = strdup(key);
        pair->value = strdup(json_string_value(value));
        DTR_REQUIRE(pair->key != NULL && pair->value != NULL, NULL, DTR_ERR_NOMEM,
                    "no memory for the metadata of %s", x->path);
    }
    return DTR_OK;
}

bool dtr__zero_is_utf8(const char *text) {
    json_t *json = json_string(text);
    json_decref(json);
    return json != NULL;
}

/* ---- comparing ---- */

/* An entry of one of the index's lists with what this module has of that name, which is freed. */
static dtr_status check_entry(const dtr__zero_index *x, const char *list, const char *what,
                              const char *name, json_t *mine) {
    json_t *theirs = json_object_get(json_object_get(x->json, list), name);
    if (theirs == NULL) {
        json_decref(mine);
        return DTR_FAIL(NULL, DTR_ERR_MISMATCH, "%s has no %s '%s'", x->path, what, name);
    }
    char *a = json_dumps(theirs, JSON_COMPACT | JSON_SORT_KEYS);
    char *b = json_dumps(mine, JSON_COMPACT | JSON_SORT_KEYS);
    dtr_status s = DTR_OK;
    if (a == NULL || b == NULL) {
        s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory to compare %s '%s'", what, name);
    } else if (strcmp(a, b) != 0) {
        s = DTR_FAIL(NULL, DTR_ERR_MISMATCH, "%s '%s' differs: in %s it is %s, here %s", what, name,
                     x->path, a, b);
    }
    free(a);
    free(b);
    json_decref(mine);
    return s;
}

dtr_status dtr__zero_index_check(const dtr__zero_index *x, const dtr__share *sh,
                                 const dtr_zero_state *states, size_t n,
                                 const dtr_optim_extra *extra) {
    size_t here = 0;
    for (size_t i = 0; i < sh->ddp->n; i++) {
        if (dtr__share_has(sh, i)) {
            const dtr__ddp_param *p = &sh->ddp->params[i];
            DTR_TRY(check_entry(x, "parameters", "parameter", p->name, describe_param(p)));
            here++;
        }
    }
    size_t there = json_object_size(json_object_get(x->json, "parameters"));
    DTR_REQUIRE(here == there, NULL, DTR_ERR_MISMATCH,
                "%s has %zu parameters, the optimizer of this module %zu", x->path, there, here);
    for (size_t k = 0; k < n; k++) {
        const json_t *state = json_object_get(json_object_get(x->json, "states"), states[k].name);
        const char *dtype = json_string_value(json_object_get(state, "dtype"));
        DTR_REQUIRE(state != NULL, NULL, DTR_ERR_MISMATCH, "%s has no state '%s'", x->path,
                    states[k].name);
        DTR_REQUIRE(dtype != NULL && strcmp(dtype, dtr_dtype_name(states[k].data.dtype)) == 0, NULL,
                    DTR_ERR_MISMATCH, "state '%s' is %s in %s, here %s", states[k].name,
                    dtype != NULL ? dtype : "of no type", x->path,
                    dtr_dtype_name(states[k].data.dtype));
    }
    for (size_t k = 0; k < extra->n_tensors; k++) {
        const dtr_named_tensor *e = &extra->tensors[k];
        DTR_TRY(check_entry(x, "tensors", "tensor", e->name, describe_tensor(e->tensor)));
    }
    return DTR_OK;
}

#else /* built without jansson */

static dtr_status not_built(void) {
    return DTR_FAIL(NULL, DTR_ERR_UNSUPPORTED,
                    "this libdtr was built without jansson, which checkpoints need; install "
                    "libjansson-dev and build again");
}

dtr_status dtr__zero_index_write(const dtr__share *sh, const char *path, uint64_t token,
                                 uint64_t step, int ranks, const dtr_zero_state *states, size_t n,
                                 const dtr_optim_extra *extra) {
    (void)sh, (void)path, (void)token, (void)step, (void)ranks, (void)states, (void)n, (void)extra;
    return not_built();
}

dtr_status dtr__zero_index_read(const char *path, dtr__zero_index *x) {
    (void)path;
    *x = (dtr__zero_index){ 0 };
    return not_built();
}

void dtr__zero_index_free(dtr__zero_index *x) {
    (void)x;
}

dtr_status dtr__zero_index_check(const dtr__zero_index *x, const dtr__share *sh,
                                 const dtr_zero_state *states, size_t n,
                                 const dtr_optim_extra *extra) {
    (void)x, (void)sh, (void)states, (void)n, (void)extra;
    return not_built();
}

dtr_status dtr__zero_index_texts(const dtr__zero_index *x, dtr__texts *texts) {
    (void)x, (void)texts;
    return not_built();
}

bool dtr__zero_is_utf8(const char *text) {
    (void)text;
    return true; /* nothing is written */
}

#endif
