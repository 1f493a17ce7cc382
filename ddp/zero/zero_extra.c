/* What of the program goes into a checkpoint beside its bytes: tensors and text. */
#include <inttypes.h>
#include <stdlib.h>

#include "zero_file.h"

void dtr__texts_free(dtr__texts *texts) {
    for (size_t k = 0; k < texts->n; k++) {
        free((char *)(uintptr_t)texts->pairs[k].key);
        free((char *)(uintptr_t)texts->pairs[k].value);
    }
    free(texts->pairs);
    *texts = (dtr__texts){ NULL, 0 };
}

/* ---- arguments ---- */

static dtr_status check_text(const char *entry, const char *what, size_t k, const char *field,
                             const char *text) {
    DTR_REQUIRE(text != NULL, NULL, DTR_ERR_ARG, "%s: extra.%s[%zu].%s is NULL", entry, what, k,
                field);
    DTR_REQUIRE(dtr__zero_is_utf8(text), NULL, DTR_ERR_ARG,
                "%s: extra.%s[%zu].%s is no valid UTF-8", entry, what, k, field);
    return DTR_OK;
}

static dtr_status check_name(const char *entry, const char *what, size_t k, const char *field,
                             const char *text) {
    const size_t most = DTR__ZERO_NAME - 200;
    DTR_TRY(check_text(entry, what, k, field, text));
    const size_t length = strlen(text);
    DTR_REQUIRE(length > 0 && length < most, NULL, DTR_ERR_ARG,
                "%s: extra.%s[%zu].%s has %zu bytes; give 1 to %zu", entry, what, k, field, length,
                most - 1);
    return DTR_OK;
}

static dtr_status check_tensor(const char *entry, const dtr_optim_extra *x, size_t k, bool write) {
    const dtr_named_tensor *e = &x->tensors[k];
    char what[128];
    DTR_TRY(check_name(entry, "tensors", k, "name", e->name));
    for (size_t j = 0; j < k; j++) {
        DTR_REQUIRE(strcmp(x->tensors[j].name, e->name) != 0, NULL, DTR_ERR_ARG,
                    "%s: extra.tensors[%zu] and [%zu] have the same name '%.80s'", entry, j, k,
                    e->name);
    }
    snprintf(what, sizeof what, "extra.tensors[%zu] ('%.80s')", k, e->name);
    DTR_TRY(dtr__tensor_check_cpu(e->tensor, what));
    DTR_REQUIRE(e->tensor->dtype != DTR_C128 && !dtr__is_pair(e->tensor->dtype), NULL,
                DTR_ERR_DTYPE, "%s: %s is %s, for which files have no type", entry, what,
                dtr_dtype_name(e->tensor->dtype));
    return write ? DTR_OK : dtr__tensor_check_writable(e->tensor, what);
}

static dtr_status check_pair(const char *entry, const dtr_optim_extra *x, size_t k) {
    const dtr_text_pair *e = &x->metadata[k];
    DTR_TRY(check_name(entry, "metadata", k, "key", e->key));
    for (size_t j = 0; j < k; j++) {
        DTR_REQUIRE(strcmp(x->metadata[j].key, e->key) != 0, NULL, DTR_ERR_ARG,
                    "%s: extra.metadata[%zu] and [%zu] have the same key '%.80s'", entry, j, k,
                    e->key);
    }
    return check_text(entry, "metadata", k, "value", e->value);
}

static dtr_status check_list(const char *entry, const char *what, const void *list, size_t n) {
    DTR_REQUIRE(list != NULL || n == 0, NULL, DTR_ERR_ARG,
                "%s: extra.%s is NULL, and extra.n_%s is %zu", entry, what, what, n);
    return DTR_OK;
}

dtr_status dtr__extra_check(const char *entry, const dtr_optim_extra *given, bool write,
                            dtr_optim_extra *x) {
    DTR_TRY(dtr__options_copy(given, x, sizeof *x, "dtr_optim_extra"));
    x->n_metadata = write ? x->n_metadata : 0;
    DTR_TRY(check_list(entry, "tensors", x->tensors, x->n_tensors));
    DTR_TRY(check_list(entry, "metadata", x->metadata, x->n_metadata));
    for (size_t k = 0; k < x->n_tensors; k++) {
        DTR_TRY(check_tensor(entry, x, k, write));
    }
    for (size_t k = 0; k < x->n_metadata; k++) {
        DTR_TRY(check_pair(entry, x, k));
    }
    DTR_REQUIRE(!write || x->own == NULL || x->own->data != NULL || x->own->nbytes == 0, NULL,
                DTR_ERR_ARG, "%s: the program's data is NULL and has %zu bytes", entry,
                x->own->nbytes);
    return DTR_OK;
}

/* ---- what ranks compare ---- */

static uint64_t hash_string(uint64_t h, const char *text) {
    return dtr__hash_bytes(h, text, strlen(text) + 1); /* where it ends, too */
}

uint64_t dtr__extra_tensors_hash(const dtr_optim_extra *x) {
    uint64_t h = dtr__hash_u64(DTR__HASH_START, x->n_tensors);
    for (size_t k = 0; k < x->n_tensors; k++) {
        const dtr_tensor *t = x->tensors[k].tensor;
        h = hash_string(h, x->tensors[k].name);
        h = dtr__hash_u64(h, (uint64_t)t->ndim << 8 | t->dtype);
        h = dtr__hash_bytes(h, t->shape, (size_t)t->ndim * sizeof t->shape[0]);
    }
    return h;
}

uint64_t dtr__extra_metadata_hash(const dtr_optim_extra *x) {
    uint64_t h = dtr__hash_u64(DTR__HASH_START, x->n_metadata);
    for (size_t k = 0; k < x->n_metadata; k++) {
        h = hash_string(hash_string(h, x->metadata[k].key), x->metadata[k].value);
    }
    return h;
}

void dtr__packed_free(dtr__packed *p) {
    for (size_t k = 0; k < p->n; k++) {
        dtr_tensor_release(p->tensors[k]);
    }
    free(p->tensors);
    free(p->hashes);
    *p = (dtr__packed){ 0 };
}

/* Truth is written as 0 and 1, which is what readers make of it. */
static dtr_status pack(dtr_tensor *from, dtr_tensor **to) {
    if (from->dtype != DTR_BOOL) {
        return dtr_tensor_contiguous(from, to);
    }
    DTR_TRY(dtr_tensor_clone(from, to));
    for (size_t k = 0; k < (*to)->numel; k++) {
        (*to)->data[k] = (*to)->data[k] != 0;
    }
    return DTR_OK;
}

dtr_status dtr__packed_make(const dtr_optim_extra *x, dtr__packed *p) {
    p->tensors = calloc(x->n_tensors + 1, sizeof(dtr_tensor *));
    p->hashes = calloc(x->n_tensors + 1, sizeof *p->hashes);
    DTR_REQUIRE(p->tensors != NULL && p->hashes != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for a list of %zu tensors", x->n_tensors);
    for (; p->n < x->n_tensors; p->n++) {
        dtr_tensor *t = NULL;
        DTR_TRY(pack(x->tensors[p->n].tensor, &t));
        p->tensors[p->n] = t;
        p->hashes[p->n] = dtr__zero_piece_hash(t->data, t->numel * dtr_dtype_size(t->dtype));
    }
    return DTR_OK;
}
