/* Writing a checkpoint: every rank its shard, at the same time; the index last, so that the
 * checkpoint before stays whole until the new one is. */
#include <dtr/safetensors.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "zero_file.h"

/* The tensors of one file, over the optimizer's memory and a copy of the parameters' slices. */
typedef struct shard {
    size_t n, cap;
    dtr_named_tensor *tensors;
    dtr_text_pair *pairs; /* [n] hashes, and four more */
    char *values;
} shard;

static void shard_free(shard *f) {
    for (size_t k = 0; k < f->n; k++) {
        dtr_tensor_release(f->tensors[k].tensor);
        free((char *)(uintptr_t)f->tensors[k].name);
        free((char *)(uintptr_t)f->pairs[k].key);
        free((char *)(uintptr_t)f->pairs[k].value);
    }
    free(f->tensors);
    free(f->pairs);
    free(f->values);
}

static dtr_status add(shard *f, const char *array, const char *param, size_t from, void *data,
                      size_t count, dtr_dtype dtype) {
    const dtr_device cpu = { DTR_CPU, 0 };
    int64_t shape = (int64_t)count, stride = 1;
    dtr_named_tensor *t = &f->tensors[f->n];
    dtr_text_pair *pair = &f->pairs[f->n];
    char key[DTR__ZERO_NAME], hash[24];
    DTR_REQUIRE(strlen(param) < DTR__ZERO_NAME - 200, NULL, DTR_ERR_UNSUPPORTED,
                "the name of parameter '%.80s...' is too long for a file", param);
    DTR_TRY(dtr__tensor_wrap(data, dtype, cpu, 1, &shape, &stride, NULL, NULL, &t->tensor));
    f->n++;
    snprintf(key, sizeof key, "hash:%s/%s@%zu", array, param, from);
    snprintf(hash, sizeof hash, "%016" PRIx64,
             dtr__zero_piece_hash(data, count * dtr_dtype_size(dtype)));
    t->name = strdup(key + strlen("hash:"));
    pair->key = strdup(key);
    pair->value = strdup(hash);
    DTR_REQUIRE(t->name != NULL && pair->key != NULL && pair->value != NULL, NULL, DTR_ERR_NOMEM,
                "no memory to name a stretch of '%s'", param);
    return DTR_OK;
}

static dtr_status add_bucket(shard *f, dtr_zero *z, size_t b, char *values,
                             const dtr_zero_state *states, size_t n) {
    const dtr__zero_bucket *zb = &z->buckets[b];
    size_t size = dtr_dtype_size(zb->dtype);
    dtr__zero_piece p;
    dtr__zero_read_slice(z, b, values);
    for (size_t s = 0; dtr__zero_next(z, b, z->ddp->rank, &s, &p);) {
        const char *name = z->ddp->params[p.param].name;
        DTR_TRY(add(f, DTR__ZERO_VALUES, name, p.from, values + p.at * size, p.count, zb->dtype));
        for (size_t k = 0; k < n; k++) {
            size_t width = dtr_dtype_size(states[k].data.dtype);
            if (states[k].param_dtype == zb->dtype) {
                DTR_TRY(add(f, states[k].name, name, p.from,
                            (char *)states[k].data.data + (zb->first + p.at) * width, p.count,
                            states[k].data.dtype));
            }
        }
    }
    return DTR_OK;
}

static dtr_status fill(shard *f, dtr_zero *z, const dtr_zero_state *states, size_t n) {
    size_t pieces = 0, nbytes = 0;
    dtr__zero_piece p;
    for (size_t b = 0; b < z->n_buckets; b++) {
        nbytes += z->buckets[b].slice * dtr_dtype_size(z->buckets[b].dtype);
        for (size_t s = 0; dtr__zero_next(z, b, z->ddp->rank, &s, &p);) {
            pieces++;
        }
    }
    f->cap = pieces * (n + 1);
    f->tensors = calloc(f->cap + 1, sizeof *f->tensors);
    f->pairs = calloc(f->cap + 5, sizeof *f->pairs);
    f->values = malloc(nbytes + 1);
    DTR_REQUIRE(f->tensors != NULL && f->pairs != NULL && f->values != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for a copy of %zu bytes of parameters", nbytes);
    char *values = f->values;
    for (size_t b = 0; b < z->n_buckets; b++) {
        DTR_TRY(add_bucket(f, z, b, values, states, n));
        values += z->buckets[b].slice * dtr_dtype_size(z->buckets[b].dtype);
    }
    return DTR_OK;
}

static dtr_status write_shard(dtr_zero *z, const char *path, uint64_t token,
                              const dtr_zero_state *states, size_t n) {
    const dtr_ddp *ddp = z->ddp;
    shard f = { 0 };
    char texts[3][24];
    dtr_status s = fill(&f, z, states, n);
    if (s == DTR_OK) {
        snprintf(texts[0], sizeof texts[0], "%016" PRIx64, token);
        snprintf(texts[1], sizeof texts[1], "%d of %d", ddp->rank, ddp->size);
        snprintf(texts[2], sizeof texts[2], "%016" PRIx64, dtr_plan_hash(ddp->plan));
        f.pairs[f.n] = (dtr_text_pair){ "format", "dtr-zero" };
        f.pairs[f.n + 1] = (dtr_text_pair){ "token", texts[0] };
        f.pairs[f.n + 2] = (dtr_text_pair){ "rank", texts[1] };
        f.pairs[f.n + 3] = (dtr_text_pair){ "plan", texts[2] };
        s = dtr_safetensors_save(path, f.tensors, f.n, f.pairs, f.n + 4);
    }
    shard_free(&f);
    return s;
}

/* ---- what the ranks must agree on ---- */

/* A number that no other checkpoint of this name has. */
static uint64_t new_token(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t h = dtr__hash_u64(DTR__HASH_START, (uint64_t)now.tv_sec);
    return dtr__hash_u64(dtr__hash_u64(h, (uint64_t)now.tv_nsec), (uint64_t)getpid());
}

static uint64_t states_hash(const dtr_zero_state *states, size_t n) {
    uint64_t h = dtr__hash_u64(DTR__HASH_START, n);
    for (size_t k = 0; k < n; k++) {
        h = dtr__hash_text(h, states[k].name);
        h = dtr__hash_u64(h, (uint64_t)states[k].param_dtype << 8 | states[k].data.dtype);
    }
    return h;
}

/* Path, step and states are the same on all ranks; rank 0's token is everybody's. */
static dtr_status meet(dtr_zero *z, const char *path, uint64_t step, const dtr_zero_state *states,
                       size_t n, uint64_t *token) {
    enum { PATH, STEP, STATES, TOKEN, FIELDS };
    static const char *const names[] = { "path", "step", "the list of states" };
    dtr_ddp *ddp = z->ddp;
    uint64_t mine[FIELDS] = { dtr__hash_text(DTR__HASH_START, path), step, states_hash(states, n),
                              *token };
    uint64_t *all = calloc((size_t)ddp->size, sizeof mine);
    if (all == NULL) {
        dtr_status s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory to compare arguments");
        dtr__group_break(ddp->group, s);
        return s;
    }
    dtr__request r = {
        .kind = DTR__K_ALLGATHER,
        .root = -1,
        .in = dtr_cpu(mine, FIELDS, DTR_I64),
        .out = dtr_cpu(all, (size_t)ddp->size * FIELDS, DTR_I64),
    };
    dtr_status s = dtr__ddp_issue(ddp, &r, "zero checkpoint", DTR__PART_ZERO, NULL);
    for (int k = 1; k < ddp->size && s == DTR_OK; k++) {
        for (int f = PATH; f <= STATES && s == DTR_OK; f++) {
            if (all[k * FIELDS + f] != all[f]) {
                s = DTR_FAIL(NULL, DTR_ERR_MISMATCH,
                             "dtr_zero_save: %s is another on rank %d than on rank 0; all ranks "
                             "write one checkpoint",
                             names[f], k);
            }
        }
    }
    *token = all[TOKEN];
    free(all);
    return s;
}

static dtr_status agree(dtr_zero *z, dtr_status mine) {
    char text[440] = "";
    if (mine < 0) {
        snprintf(text, sizeof text, "dtr_zero_save: rank %d: %.400s", z->ddp->rank,
                 dtr_last_error_message());
    }
    return dtr__zero_agree(z->ddp, mine, text, false);
}

/* ---- the call ---- */

/* Files of the checkpoint that had this name before. */
static void remove_old(const char *path, const dtr__zero_index *old) {
    for (int r = 0; r < old->ranks; r++) {
        char *file = dtr__zero_shard_path(path, old->token, r, old->ranks);
        if (file != NULL) {
            (void)unlink(file);
        }
        free(file);
    }
}

static dtr_status write_all(dtr_zero *z, const char *path, const dtr_zero_state *states, size_t n,
                            uint64_t step, uint64_t token) {
    dtr_ddp *ddp = z->ddp;
    dtr__zero_index old = { 0 };
    bool had =
        ddp->rank == 0 && access(path, F_OK) == 0 && dtr__zero_index_read(path, &old) == DTR_OK;
    char *file = dtr__zero_shard_path(path, token, ddp->rank, ddp->size);
    dtr_status s = file != NULL ? write_shard(z, file, token, states, n)
                                : DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for the name of a file");
    s = agree(z, s);
    if (s == DTR_OK) {
        s = ddp->rank == 0 ? dtr__zero_index_write(z, path, token, step, states, n) : DTR_OK;
        s = agree(z, s);
    }
    /* Where a rank was lost nobody knows whether the new index is there: its files stay. */
    if (s < 0 && file != NULL && dtr_group_status(ddp->group) == DTR_OK) {
        (void)unlink(file);
    } else if (s == DTR_OK && had) {
        remove_old(path, &old);
    }
    dtr__zero_index_free(&old);
    free(file);
    return s;
}

static dtr_status zero_save(dtr_zero *z, const char *path, const dtr_zero_state *states, size_t n,
                            uint64_t step) {
    static const char entry[] = "dtr_zero_save";
    DTR_TRY(dtr__zero_check(z, entry));
    DTR_TRY(dtr__zero_begin(z, entry));
    uint64_t token = new_token();
    dtr_status s = dtr__zero_take_all(z, false);
    if (s == DTR_OK) {
        s = dtr__zero_check_states(z, entry, path, states, n);
        if (s == DTR_OK && step > INT64_MAX) {
            s = DTR_FAIL(NULL, DTR_ERR_ARG, "%s: step is %" PRIu64 ", more than a file can hold",
                         entry, step);
        }
        s = agree(z, s);
    }
    if (s == DTR_OK) {
        s = meet(z, path, step, states, n, &token);
    }
    if (s == DTR_OK) {
        s = write_all(z, path, states, n, step, token);
    }
    return dtr__zero_end(z, s);
}

dtr_status dtr_zero_save(dtr_zero *z, const char *path, const dtr_zero_state *states, size_t n,
                         uint64_t step) {
    DTR_HOLD_CALL_SITE;
    return DTR_ZERO_TRACED(z, "dtr_zero_save", zero_save(z, path, states, n, step));
}
