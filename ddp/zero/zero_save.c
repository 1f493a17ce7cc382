/* Writing a checkpoint: every rank its shard, at the same time, or rank 0 the whole; the index
 * last, so that the checkpoint before stays whole until the new one is. */
#include <dirent.h>
#include <dtr/safetensors.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "core/call.h"
#include "core/call_site.h"
#include "core/team.h"
#include "engine/engine.h"
#include "zero_file.h"

/* The tensors of one file, over the optimizer's memory and a copy of the parameters' slices. */
typedef struct shard {
    size_t n, cap;
    dtr_named_tensor *tensors;
    dtr_text_pair *pairs; /* [n] hashes, and four more */
    char *values;         /* the copies */
} shard;

/* What one rank was asked to write. */
typedef struct call {
    const char *path;
    const dtr_zero_state *states;
    size_t n;
    uint64_t step;
    dtr_optim_extra extra;
    dtr__packed packed; /* its tensors */
} call;

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

/* Takes over the tensor, also where it fails. */
static dtr_status add_tensor(shard *f, const char *name, dtr_tensor *tensor, uint64_t hash) {
    dtr_named_tensor *t = &f->tensors[f->n];
    dtr_text_pair *pair = &f->pairs[f->n++];
    char key[DTR__ZERO_NAME + 8], text[24];
    snprintf(key, sizeof key, "hash:%s", name);
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    t->tensor = tensor;
    t->name = strdup(name);
    pair->key = strdup(key);
    pair->value = strdup(text);
    DTR_REQUIRE(t->name != NULL && pair->key != NULL && pair->value != NULL, NULL, DTR_ERR_NOMEM,
                "no memory to name '%s'", name);
    return DTR_OK;
}

static dtr_status add(shard *f, const char *name, void *data, size_t count, dtr_dtype dtype) {
    const dtr_device cpu = { DTR_CPU, 0 };
    int64_t shape = (int64_t)count, stride = 1;
    dtr_tensor *t = NULL;
    DTR_TRY(dtr__tensor_wrap(data, dtype, cpu, 1, &shape, &stride, NULL, NULL, &t));
    return add_tensor(f, name, t, dtr__zero_piece_hash(data, count * dtr_dtype_size(dtype)));
}

static dtr_status add_stretch(shard *f, const char *array, const char *param,
                              const dtr__zero_piece *p, void *data, dtr_dtype dtype) {
    char name[DTR__ZERO_NAME];
    DTR_REQUIRE(strlen(param) < DTR__ZERO_NAME - 200, NULL, DTR_ERR_UNSUPPORTED,
                "the name of parameter '%.80s...' is too long for a file", param);
    snprintf(name, sizeof name, "%s/%s@%zu", array, param, p->from);
    return add(f, name, data, p->count, dtype);
}

/* A parameter's value and states, which stay where they are if that is how files have them. */
static dtr_status add_param(shard *f, const dtr__share *sh, const dtr__zero_piece *p,
                            const dtr__share_order *order, char **memory,
                            const dtr_zero_state *states, size_t n) {
    const dtr__ddp_param *param = &sh->ddp->params[p->param];
    const dtr_dtype dtype = param->value->dtype;
    if (dtr__ddp_on_device(sh->ddp)) { /* where values lie as files have them */
        const size_t size = dtr_dtype_size(dtype);
        DTR_TRY(dtr__zero_fetch(sh->ddp, *memory, param->value->data + p->from * size,
                                p->count * size));
    } else {
        dtr__zero_read(param->value, order->files, p->from, p->count, *memory);
    }
    DTR_TRY(add_stretch(f, DTR__ZERO_VALUES, param->name, p, *memory, dtype));
    *memory += p->count * dtr_dtype_size(dtype);
    for (size_t k = 0; k < n; k++) {
        const dtr_buffer *data = &states[k].data;
        const size_t width = dtr_dtype_size(data->dtype);
        char *from = (char *)data->data + p->at * width;
        if (states[k].param_dtype != dtype) {
            continue;
        }
        if (order->rows != NULL) {
            dtr__share_read_state(order, data, p, *memory);
            from = *memory;
            *memory += p->count * width;
        }
        DTR_TRY(add_stretch(f, states[k].name, param->name, p, from, data->dtype));
    }
    return DTR_OK;
}

/* Whole arrays are the same on all ranks. */
static bool has_arrays(const dtr__share *sh) {
    return sh->zero != NULL || sh->ddp->rank == 0;
}

static dtr_status make_shard(shard *f, const dtr__share *sh, const call *c) {
    const dtr_zero_state *states = c->states;
    const size_t n = c->n;
    size_t pieces = 0, nbytes = 0;
    dtr__zero_piece p;
    for (size_t i = 0; i < sh->ddp->n && has_arrays(sh); i++) {
        const dtr_tensor *value = sh->ddp->params[i].value;
        if (dtr__share_piece(sh, i, &p)) {
            pieces++;
            nbytes += p.count * dtr_dtype_size(value->dtype);
            for (size_t k = 0; k < n && !value->contiguous; k++) {
                nbytes += p.count * dtr_dtype_size(states[k].data.dtype);
            }
        }
    }
    f->cap = pieces * (n + 1) + 1 + c->packed.n;
    f->tensors = calloc(f->cap + 1, sizeof *f->tensors);
    f->pairs = calloc(f->cap + 5, sizeof *f->pairs);
    f->values = malloc(nbytes + 1);
    DTR_REQUIRE(f->tensors != NULL && f->pairs != NULL && f->values != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for a copy of %zu bytes of parameters", nbytes);
    return DTR_OK;
}

/* What the program keeps: tensors in rank 0's file, bytes in everybody's. */
static dtr_status add_program(shard *f, const dtr__share *sh, const call *c) {
    for (size_t k = 0; k < c->packed.n && sh->ddp->rank == 0; k++) {
        char name[DTR__ZERO_NAME];
        snprintf(name, sizeof name, DTR__ZERO_TENSOR, c->extra.tensors[k].name);
        DTR_TRY(add_tensor(f, name, dtr_tensor_retain(c->packed.tensors[k]), c->packed.hashes[k]));
    }
    const dtr_bytes *own = c->extra.own;
    return own != NULL && own->nbytes > 0 ? add(f, DTR__ZERO_OWN, own->data, own->nbytes, DTR_U8)
                                          : DTR_OK;
}

static dtr_status fill(shard *f, const dtr__share *sh, const call *c) {
    dtr__zero_piece p;
    DTR_TRY(make_shard(f, sh, c));
    char *memory = f->values;
    for (size_t i = 0; i < sh->ddp->n && has_arrays(sh); i++) {
        dtr__share_order order;
        if (!dtr__share_piece(sh, i, &p)) {
            continue;
        }
        DTR_TRY(dtr__share_order_make(sh, i, &order));
        dtr_status s = add_param(f, sh, &p, &order, &memory, c->states, c->n);
        dtr__share_order_free(&order);
        DTR_TRY(s);
    }
    return add_program(f, sh, c);
}

static dtr_status write_shard(const dtr__share *sh, const char *path, uint64_t token, int files,
                              const call *c) {
    const dtr_ddp *ddp = sh->ddp;
    shard f = { 0 };
    char texts[3][24];
    dtr_status s = fill(&f, sh, c);
    if (s == DTR_OK) {
        snprintf(texts[0], sizeof texts[0], "%016" PRIx64, token);
        snprintf(texts[1], sizeof texts[1], "%d of %d", ddp->rank, files);
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

/* Every rank's n numbers, which the caller frees; NULL after an error. */
static uint64_t *gather(dtr_ddp *ddp, uint64_t *mine, size_t n, dtr_status *s) {
    uint64_t *all = calloc((size_t)ddp->size * n, sizeof *mine);
    if (all == NULL) {
        *s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory to compare arguments");
        dtr__group_break(ddp->group, *s);
        return NULL;
    }
    dtr__request r = {
        .kind = DTR__K_ALLGATHER,
        .root = -1,
        .in = dtr_cpu(mine, n, DTR_I64),
        .out = dtr_cpu(all, (size_t)ddp->size * n, DTR_I64),
    };
    *s = dtr__ddp_issue(ddp, &r, "zero checkpoint", DTR__PART_ZERO, NULL);
    if (*s < 0) {
        free(all);
        return NULL;
    }
    return all;
}

/* Path, step and lists are the same on all ranks; rank 0's token is everybody's. *files: how many
 * ranks write one. */
static dtr_status compare_arguments(const dtr__share *sh, const char *entry, const call *c,
                                    uint64_t *token, int *files) {
    enum { PATH, STEP, STATES, TENSORS, METADATA, TOKEN, OWN, FIELDS };
    static const char *const names[] = { "path", "step", "the list of states",
                                         "the list of tensors", "metadata" };
    dtr_ddp *ddp = sh->ddp;
    uint64_t mine[FIELDS] = { dtr__hash_text(DTR__HASH_START, c->path),
                              c->step,
                              states_hash(c->states, c->n),
                              dtr__extra_tensors_hash(&c->extra),
                              dtr__extra_metadata_hash(&c->extra),
                              *token,
                              c->extra.own != NULL && c->extra.own->nbytes > 0 };
    dtr_status s = DTR_OK;
    uint64_t *all = gather(ddp, mine, FIELDS, &s);
    DTR_TRY(s);
    for (int k = 1; k < ddp->size && s == DTR_OK; k++) {
        for (int f = PATH; f <= METADATA && s == DTR_OK; f++) {
            if (all[k * FIELDS + f] != all[f]) {
                s = DTR_FAIL(NULL, DTR_ERR_MISMATCH,
                             "%s: %s is another on rank %d than on rank 0; all ranks write one "
                             "checkpoint",
                             entry, names[f], k);
            }
        }
    }
    *files = sh->zero != NULL ? ddp->size : 1;
    for (int k = 1; k < ddp->size && s == DTR_OK; k++) {
        *files = all[k * FIELDS + OWN] != 0 && k >= *files ? k + 1 : *files;
    }
    *token = all[TOKEN];
    free(all);
    return s;
}

/* Tensors of equal names have equal contents, for one rank's are written. */
static dtr_status compare_contents(dtr_ddp *ddp, const char *entry, const call *c) {
    const size_t n = c->packed.n;
    dtr_status s = DTR_OK;
    uint64_t *all = n > 0 ? gather(ddp, c->packed.hashes, n, &s) : NULL;
    for (size_t at = n; s == DTR_OK && at < n * (size_t)ddp->size; at++) {
        if (all[at] != all[at % n]) {
            s = DTR_FAIL(NULL, DTR_ERR_MISMATCH,
                         "%s: tensor '%s' has other contents on rank %zu than on rank 0; what is "
                         "this rank's alone goes into extra.own",
                         entry, c->extra.tensors[at % n].name, at / n);
        }
    }
    free(all);
    return s;
}

/* ---- the call ---- */

/* Files of the checkpoint that had this name before: those there are with its token. How many its
 * index says decides nothing, for that may be damaged. */
static void remove_old(const char *path, const dtr__zero_index *old) {
    const char *slash = strrchr(path, '/'), *stem = slash != NULL ? slash + 1 : path;
    char *folder = slash != NULL ? strndup(path, (size_t)(stem - path)) : strdup(".");
    DIR *dir = folder != NULL ? opendir(folder) : NULL;
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        if (dtr__zero_is_shard(e->d_name, stem, old->token)) {
            (void)unlinkat(dirfd(dir), e->d_name, 0);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    free(folder);
}

static dtr_status write_all(const dtr__share *sh, const char *entry, const call *c, uint64_t token,
                            int files) {
    dtr_ddp *ddp = sh->ddp;
    dtr__zero_index old = { 0 };
    bool had = ddp->rank == 0 && access(c->path, F_OK) == 0 &&
               dtr__zero_index_read(c->path, &old) == DTR_OK;
    char *file = dtr__zero_shard_path(c->path, token, ddp->rank, files);
    dtr_status s = DTR_OK;
    if (file == NULL) {
        s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for the name of a file");
    } else if (ddp->rank < files) {
        s = write_shard(sh, file, token, files, c);
    }
    s = dtr__zero_agree_last(ddp, s, entry);
    if (s == DTR_OK) {
        s = ddp->rank == 0 ? dtr__zero_index_write(sh, c->path, token, c->step, files, c->states,
                                                   c->n, &c->extra)
                           : DTR_OK;
        s = dtr__zero_agree_last(ddp, s, entry);
    }
    /* Where a rank was lost nobody knows whether the new index is there: its files stay. */
    if (s < 0 && file != NULL && dtr_group_status(ddp->group) == DTR_OK) {
        (void)unlink(file);
    } else if (s == DTR_OK && had && old.token != token) {
        remove_old(c->path, &old);
    }
    dtr__zero_index_free(&old);
    free(file);
    return s;
}

static dtr_status check_call(const dtr__share *sh, const char *entry, call *c,
                             const dtr_optim_extra *extra) {
    DTR_TRY(dtr__zero_check_states(sh, entry, c->path, c->states, c->n));
    DTR_REQUIRE(c->step <= INT64_MAX, NULL, DTR_ERR_ARG,
                "%s: step is %" PRIu64 ", more than a file can hold", entry, c->step);
    DTR_TRY(dtr__extra_check(entry, extra, true, &c->extra));
    return dtr__packed_make(&c->extra, &c->packed);
}

dtr_status dtr__share_save(const dtr__share *sh, const char *entry, const char *path,
                           const dtr_zero_state *states, size_t n, uint64_t step,
                           const dtr_optim_extra *extra) {
    call c = { .path = path, .states = states, .n = n, .step = step };
    uint64_t token = new_token();
    int files = 0;
    DTR_TRY(dtr__ddp_occupy(sh->ddp, entry, "call it between iterations"));
    dtr_status s = sh->zero != NULL ? dtr__zero_take_all(sh->zero, false) : DTR_OK;
    if (s == DTR_OK) {
        s = dtr__zero_agree_last(sh->ddp, check_call(sh, entry, &c, extra), entry);
    }
    if (s == DTR_OK) {
        s = compare_arguments(sh, entry, &c, &token, &files);
    }
    if (s == DTR_OK) {
        s = compare_contents(sh->ddp, entry, &c);
    }
    if (s == DTR_OK) {
        s = write_all(sh, entry, &c, token, files);
    }
    dtr__packed_free(&c.packed);
    return dtr__ddp_leave(sh->ddp, s);
}

static dtr_status zero_save(dtr_zero *z, const char *path, const dtr_zero_state *states, size_t n,
                            uint64_t step) {
    static const char entry[] = "dtr_zero_save";
    DTR_TRY(dtr__zero_check(z, entry));
    const dtr__share sh = { .ddp = z->ddp, .zero = z };
    return dtr__share_save(&sh, entry, path, states, n, step, NULL);
}

dtr_status dtr_zero_save(dtr_zero *z, const char *path, const dtr_zero_state *states, size_t n,
                         uint64_t step) {
    DTR_HOLD_CALL_SITE;
    return DTR_ZERO_TRACED(z, "dtr_zero_save", zero_save(z, path, states, n, step));
}
