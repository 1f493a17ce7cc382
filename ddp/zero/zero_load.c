/* Reading a checkpoint at any number of ranks: every rank looks through all files for stretches of
 * what it has. State and parameters change once all ranks have theirs. */
#include <dtr/safetensors.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/call_site.h"
#include "zero_file.h"

typedef struct named {
    const char *name;
    size_t param;
} named;

/* Contents of what this rank has, array 0 the parameters, then the states. */
typedef struct intake {
    const dtr__share *sh;
    const dtr_zero_state *states;
    size_t n_states;
    named *names; /* of the parameters in checkpoints, sorted */
    size_t n_names;
    char **memory;           /* [n_states + 1] as long as the array */
    size_t *filled;          /* elements, padding not counted */
    size_t *value_at;        /* [n params] bytes in memory[0] */
    dtr__share_order *order; /* [n params] */
    dtr_optim_extra extra;
    dtr_tensor **tensors; /* [extra.n_tensors] what becomes of the program's */
    dtr_bytes own;        /* of the program, as its metadata; the caller's once all is well */
    dtr__texts metadata;
} intake;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

static void intake_free(intake *in) {
    for (size_t k = 0; in->memory != NULL && k <= in->n_states; k++) {
        free(in->memory[k]);
    }
    for (size_t i = 0; in->order != NULL && i < in->sh->ddp->n; i++) {
        dtr__share_order_free(&in->order[i]);
    }
    for (size_t k = 0; in->tensors != NULL && k < in->extra.n_tensors; k++) {
        dtr_tensor_release(in->tensors[k]);
    }
    free(in->tensors);
    dtr__texts_free(&in->metadata);
    free(in->memory);
    free(in->filled);
    free(in->value_at);
    free(in->order);
    free(in->names);
    dtr_bytes_free(&in->own, 1);
}

static dtr_status make_memory(intake *in) {
    const dtr_ddp *ddp = in->sh->ddp;
    size_t values = 0;
    for (size_t i = 0; i < ddp->n; i++) {
        dtr__zero_piece p;
        in->value_at[i] = values;
        if (dtr__share_piece(in->sh, i, &p)) {
            values += p.count * dtr_dtype_size(ddp->params[i].value->dtype);
            DTR_TRY(dtr__share_order_make(in->sh, i, &in->order[i]));
        }
    }
    for (size_t k = 0; k <= in->n_states; k++) {
        const dtr_buffer *data = k > 0 ? &in->states[k - 1].data : NULL;
        size_t nbytes = k > 0 ? data->count * dtr_dtype_size(data->dtype) : values;
        in->memory[k] = calloc(nbytes + 1, 1);
        DTR_REQUIRE(in->memory[k] != NULL, NULL, DTR_ERR_NOMEM, "no memory to read %zu bytes",
                    nbytes);
    }
    return DTR_OK;
}

static dtr_status intake_make(intake *in) {
    const dtr_ddp *ddp = in->sh->ddp;
    in->names = calloc(ddp->n + 1, sizeof *in->names);
    in->memory = calloc(in->n_states + 1, sizeof *in->memory);
    in->filled = calloc(in->n_states + 1, sizeof *in->filled);
    in->value_at = calloc(ddp->n + 1, sizeof *in->value_at);
    in->order = calloc(ddp->n + 1, sizeof *in->order);
    in->tensors = calloc(in->extra.n_tensors + 1, sizeof(dtr_tensor *));
    DTR_REQUIRE(in->tensors != NULL && in->names != NULL && in->memory != NULL &&
                    in->filled != NULL && in->value_at != NULL && in->order != NULL,
                NULL, DTR_ERR_NOMEM, "no memory to read a checkpoint of %zu parameters", ddp->n);
    for (size_t i = 0; i < ddp->n; i++) {
        if (dtr__share_has(in->sh, i)) {
            in->names[in->n_names++] = (named){ ddp->params[i].name, i };
        }
    }
    qsort(in->names, in->n_names, sizeof *in->names, by_name);
    return make_memory(in);
}

/* ---- one stretch in a file ---- */

typedef struct stretch {
    size_t array; /* of the intake */
    size_t param, from, count;
    dtr_dtype dtype;
} stretch;

/* false: a name that means nothing here. */
static bool parse_name(const intake *in, const char *name, stretch *st) {
    char text[DTR__ZERO_NAME];
    if ((size_t)snprintf(text, sizeof text, "%s", name) >= sizeof text) {
        return false;
    }
    char *slash = strchr(text, '/'), *at = strrchr(text, '@'), *end = NULL;
    if (slash == NULL || at == NULL || at < slash || at[1] < '0' || at[1] > '9') {
        return false;
    }
    *slash = *at = '\0';
    st->from = (size_t)strtoull(at + 1, &end, 10);
    named key = { slash + 1, 0 };
    const named *found = bsearch(&key, in->names, in->n_names, sizeof *in->names, by_name);
    size_t k = 0;
    if (strcmp(text, DTR__ZERO_VALUES) != 0) {
        while (k < in->n_states && strcmp(in->states[k].name, text) != 0) {
            k++;
        }
        k++;
    }
    if (*end != '\0' || found == NULL || k > in->n_states) {
        return false;
    }
    st->array = k;
    st->param = found->param;
    return true;
}

/* The part of it that this rank has; count 0: none. */
static dtr__zero_piece own_part(const intake *in, const stretch *st) {
    dtr__zero_piece p = { 0 };
    if (!dtr__share_piece(in->sh, st->param, &p)) {
        return (dtr__zero_piece){ 0 };
    }
    size_t from = p.from > st->from ? p.from : st->from, mine = p.from + p.count,
           theirs = st->from + st->count, to = mine < theirs ? mine : theirs;
    p.at += from - p.from;
    p.from = from;
    p.count = from < to ? to - from : 0;
    return p;
}

static dtr_status check_hash(const dtr_safetensors *file, const char *path, const char *name,
                             const dtr_tensor *t) {
    char key[DTR__ZERO_NAME + 8], want[24];
    snprintf(key, sizeof key, "hash:%s", name);
    snprintf(want, sizeof want, "%016" PRIx64,
             dtr__zero_piece_hash(t->data, t->numel * dtr_dtype_size(t->dtype)));
    const char *hash = dtr_safetensors_metadata(file, key);
    DTR_REQUIRE(hash != NULL && strcmp(hash, want) == 0, NULL, DTR_ERR_IO,
                "%s is damaged: the contents of '%.100s' do not match their hash", path, name);
    return DTR_OK;
}

static void take(intake *in, const stretch *st, const dtr__zero_piece *p, const dtr_tensor *t) {
    dtr__zero_piece whole = { 0 };
    size_t at = p->at, size = dtr_dtype_size(st->dtype);
    if (st->array == 0) { /* one parameter behind the other, without padding */
        (void)dtr__share_piece(in->sh, st->param, &whole);
        at = p->at - whole.at;
    }
    memcpy(in->memory[st->array] + (st->array == 0 ? in->value_at[st->param] : 0) + at * size,
           t->data + (p->from - st->from) * size, p->count * size);
    in->filled[st->array] += p->count;
}

static dtr_status read_stretch(intake *in, const dtr_safetensors *file, const char *path,
                               const char *name) {
    stretch st = { 0 };
    int ndim = 0;
    int64_t shape[DTR_MAX_NDIM] = { 0 };
    if (!parse_name(in, name, &st)) {
        return DTR_OK; /* state that nobody asked for */
    }
    DTR_TRY(dtr_safetensors_describe(file, name, &st.dtype, &ndim, shape));
    dtr_dtype want = st.array == 0 ? in->sh->ddp->params[st.param].value->dtype
                                   : in->states[st.array - 1].data.dtype;
    DTR_REQUIRE(ndim == 1 && st.dtype == want && st.from <= SIZE_MAX / 2, NULL, DTR_ERR_IO,
                "%s is damaged: '%.100s' is no list of %s", path, name, dtr_dtype_name(want));
    st.count = (size_t)shape[0];
    dtr__zero_piece p = own_part(in, &st);
    if (p.count == 0) {
        return DTR_OK;
    }
    dtr_tensor *t = NULL;
    DTR_TRY(dtr_safetensors_load(file, name, &t));
    dtr_status s = check_hash(file, path, name, t);
    if (s == DTR_OK) {
        take(in, &st, &p, t);
    }
    dtr_tensor_release(t);
    return s;
}

/* Bytes of the program, where this file has some. */
static dtr_status read_own(intake *in, const dtr_safetensors *file, const char *path) {
    dtr_dtype dtype;
    dtr_tensor *t = NULL;
    if (dtr_safetensors_describe(file, DTR__ZERO_OWN, &dtype, NULL, NULL) < 0) {
        return DTR_OK;
    }
    DTR_TRY(dtr_safetensors_load(file, DTR__ZERO_OWN, &t));
    dtr_status s = check_hash(file, path, DTR__ZERO_OWN, t);
    in->own.data = s == DTR_OK ? malloc(t->numel + 1) : NULL;
    if (s == DTR_OK && (in->own.data == NULL || dtype != DTR_U8)) {
        s = DTR_FAIL(NULL, in->own.data == NULL ? DTR_ERR_NOMEM : DTR_ERR_IO,
                     "%s: no memory for the program's data, or it is damaged", path);
    }
    if (s == DTR_OK) {
        memcpy(in->own.data, t->data, t->numel);
        in->own.nbytes = t->numel;
    }
    dtr_tensor_release(t);
    return s;
}

static dtr_status read_tensors(intake *in, const dtr_safetensors *file, const char *path) {
    for (size_t k = 0; k < in->extra.n_tensors; k++) {
        const dtr_tensor *want = in->extra.tensors[k].tensor;
        char name[DTR__ZERO_NAME];
        dtr_dtype dtype;
        snprintf(name, sizeof name, DTR__ZERO_TENSOR, in->extra.tensors[k].name);
        DTR_REQUIRE(dtr_safetensors_describe(file, name, &dtype, NULL, NULL) == DTR_OK, NULL,
                    DTR_ERR_IO, "%s is damaged: it has no '%.100s', which the index names", path,
                    name);
        DTR_TRY(dtr_safetensors_load(file, name, &in->tensors[k]));
        DTR_REQUIRE(dtype == want->dtype && dtr__same_shape(in->tensors[k], want), NULL, DTR_ERR_IO,
                    "%s is damaged: '%.100s' is not what the index says", path, name);
        DTR_TRY(check_hash(file, path, name, in->tensors[k]));
    }
    return DTR_OK;
}

/* ---- files ---- */

static dtr_status read_file(intake *in, const dtr__zero_index *x, int rank) {
    char token[24];
    char *path = dtr__zero_shard_path(x->path, x->token, rank, x->ranks);
    DTR_REQUIRE(path != NULL, NULL, DTR_ERR_NOMEM, "no memory for the name of a file");
    dtr_safetensors *file = NULL;
    dtr_status s = dtr_safetensors_open(path, &file);
    snprintf(token, sizeof token, "%016" PRIx64, x->token);
    if (s == DTR_OK) {
        const char *theirs = dtr_safetensors_metadata(file, "token");
        if (theirs == NULL || strcmp(theirs, token) != 0) {
            s = DTR_FAIL(NULL, DTR_ERR_MISMATCH, "%s does not belong to the checkpoint %s", path,
                         x->path);
        }
    }
    for (size_t k = 0; s == DTR_OK && k < dtr_safetensors_count(file); k++) {
        s = read_stretch(in, file, path, dtr_safetensors_name(file, k));
    }
    if (s == DTR_OK && rank == 0) {
        s = read_tensors(in, file, path);
    }
    if (s == DTR_OK && rank == in->sh->ddp->rank % x->ranks) {
        s = read_own(in, file, path);
    }
    dtr_safetensors_close(file);
    free(path);
    return s;
}

/* Every element of every array has come, once. */
static dtr_status check_whole(const intake *in, const dtr__zero_index *x) {
    const dtr_ddp *ddp = in->sh->ddp;
    for (size_t k = 0; k <= in->n_states; k++) {
        size_t want = 0;
        for (size_t i = 0; i < ddp->n; i++) {
            dtr__zero_piece p;
            bool counts = k == 0 || in->states[k - 1].param_dtype == ddp->params[i].value->dtype;
            want += counts && dtr__share_piece(in->sh, i, &p) ? p.count : 0;
        }
        DTR_REQUIRE(in->filled[k] == want, NULL, DTR_ERR_IO,
                    "the files of %s are incomplete: %zu elements of '%s' for this rank, want %zu",
                    x->path, in->filled[k], k == 0 ? DTR__ZERO_VALUES : in->states[k - 1].name,
                    want);
    }
    return DTR_OK;
}

static dtr_status read_all(intake *in, const char *path, uint64_t *step) {
    dtr__zero_index x;
    DTR_TRY(dtr__zero_index_read(path, &x));
    dtr_status s = dtr__zero_index_check(&x, in->sh, in->states, in->n_states, &in->extra);
    if (s == DTR_OK) {
        s = intake_make(in);
    }
    if (s == DTR_OK) {
        s = dtr__zero_index_texts(&x, &in->metadata);
    }
    for (int r = 0; r < x.ranks && s == DTR_OK; r++) {
        s = read_file(in, &x, r);
    }
    if (s == DTR_OK) {
        s = check_whole(in, &x);
        *step = x.step;
    }
    dtr__zero_index_free(&x);
    return s;
}

/* ---- the call ---- */

static void commit_states(const intake *in) {
    for (size_t i = 0; i < in->sh->ddp->n; i++) {
        dtr__zero_piece p;
        for (size_t k = 0; dtr__share_piece(in->sh, i, &p) && k < in->n_states; k++) {
            const dtr_buffer *data = &in->states[k].data;
            if (in->states[k].param_dtype == in->sh->ddp->params[i].value->dtype) {
                dtr__share_write_state(&in->order[i], data, &p,
                                       in->memory[k + 1] + p.at * dtr_dtype_size(data->dtype));
            }
        }
    }
}

static void commit_tensors(const intake *in) {
    for (size_t k = 0; k < in->extra.n_tensors; k++) {
        dtr__tensor_copy_raw(in->extra.tensors[k].tensor, in->tensors[k]);
    }
}

/* Every rank has all there is. */
static dtr_status commit_whole(const intake *in) {
    dtr_ddp *ddp = in->sh->ddp;
    for (size_t i = 0; i < ddp->n; i++) {
        dtr__zero_piece p;
        dtr_tensor *value = ddp->params[i].value;
        const char *from = in->memory[0] + in->value_at[i];
        if (!dtr__share_piece(in->sh, i, &p)) {
            p.count = 0;
        } else if (dtr__ddp_on_device(ddp)) {
            DTR_TRY(
                dtr__zero_store(ddp, value->data, from, p.count * dtr_dtype_size(value->dtype)));
        } else {
            dtr__zero_write(value, in->order[i].files, 0, p.count, from);
        }
        if (dtr__share_has(in->sh, i)) {
            atomic_store(&ddp->params[i].defined, false);
        }
    }
    return DTR_OK;
}

/* This rank's slice of a bucket into its place for gathering. */
static dtr_status commit_slice(const intake *in, size_t b) {
    const dtr_zero *z = in->sh->zero;
    const size_t size = dtr_dtype_size(z->buckets[b].dtype);
    char *to = z->buckets[b].data + z->buckets[b].slice * size * (size_t)z->ddp->rank;
    dtr__zero_piece p;
    DTR_TRY(dtr__zero_clear(z->ddp, to, z->buckets[b].slice * size));
    for (size_t k = 0; dtr__zero_next(z, b, z->ddp->rank, &k, &p);) {
        const char *from = in->memory[0] + in->value_at[p.param];
        if (dtr__ddp_on_device(z->ddp)) {
            DTR_TRY(dtr__zero_store(z->ddp, to + p.at * size, from, p.count * size));
        } else {
            memcpy(to + p.at * size, from, p.count * size);
        }
    }
    return DTR_OK;
}

static dtr_status commit_slices(const intake *in) {
    dtr_zero *z = in->sh->zero;
    dtr_status s = DTR_OK;
    for (size_t b = 0; b < z->n_buckets && s == DTR_OK; b++) {
        s = commit_slice(in, b);
        s = s == DTR_OK ? dtr__zero_gather(z, b) : s;
    }
    dtr_status last = dtr__zero_take_all(z, s < 0);
    dtr__zero_used_up(z);
    return s < 0 ? s : last;
}

static dtr_status read_checked(intake *in, const char *entry, const char *path,
                               const dtr_optim_extra *extra, uint64_t *step) {
    DTR_TRY(dtr__zero_check_states(in->sh, entry, path, in->states, in->n_states));
    DTR_TRY(dtr__zero_check_writable(entry, in->states, in->n_states));
    DTR_TRY(dtr__extra_check(entry, extra, false, &in->extra));
    return read_all(in, path, step);
}

/* All is well: what the caller gets beside parameters and state. */
static void hand_over(intake *in, dtr__texts *metadata) {
    commit_tensors(in);
    if (in->extra.own != NULL) {
        *in->extra.own = in->own;
        in->own = (dtr_bytes){ NULL, 0 };
    }
    if (metadata != NULL) {
        const dtr__texts old = *metadata;
        *metadata = in->metadata;
        in->metadata = old;
    }
}

dtr_status dtr__share_load(const dtr__share *sh, const char *entry, const char *path,
                           const dtr_zero_state *states, size_t n, uint64_t *step,
                           const dtr_optim_extra *extra, dtr__texts *metadata) {
    intake in = { .sh = sh, .states = states, .n_states = n };
    uint64_t found = 0;
    DTR_TRY(dtr__ddp_occupy(sh->ddp, entry, "call it between iterations"));
    dtr_status s = sh->zero != NULL ? dtr__zero_take_all(sh->zero, false) : DTR_OK;
    if (s == DTR_OK) {
        dtr_status mine = read_checked(&in, entry, path, extra, &found);
        s = dtr__zero_agree_last(sh->ddp, mine, entry);
    }
    if (s == DTR_OK) {
        commit_states(&in);
        s = sh->zero != NULL ? commit_slices(&in) : commit_whole(&in);
    }
    s = dtr__ddp_leave(sh->ddp, s);
    if (s == DTR_OK) {
        hand_over(&in, metadata);
    }
    if (s == DTR_OK && step != NULL) {
        *step = found;
    }
    intake_free(&in);
    return s;
}

static dtr_status zero_load(dtr_zero *z, const char *path, const dtr_zero_state *states, size_t n,
                            uint64_t *step) {
    static const char entry[] = "dtr_zero_load";
    DTR_TRY(dtr__zero_check(z, entry));
    const dtr__share sh = { .ddp = z->ddp, .zero = z };
    return dtr__share_load(&sh, entry, path, states, n, step, NULL, NULL);
}

dtr_status dtr_zero_load(dtr_zero *z, const char *path, const dtr_zero_state *states, size_t n,
                         uint64_t *step) {
    DTR_HOLD_CALL_SITE;
    return DTR_ZERO_TRACED(z, "dtr_zero_load", zero_load(z, path, states, n, step));
}
