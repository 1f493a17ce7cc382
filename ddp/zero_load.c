/* Reading a checkpoint at any number of ranks: every rank looks through all files for stretches of
 * its own slices. State and parameters change once all ranks have theirs. */
#include <dtr/safetensors.h>
#include <inttypes.h>
#include <stdlib.h>

#include "zero_file.h"

typedef struct named {
    const char *name;
    size_t param;
} named;

/* Contents of one rank's slices, array 0 the parameters, then the states. */
typedef struct intake {
    dtr_zero *z;
    const dtr_zero_state *states;
    size_t n_states;
    named *names; /* of the parameters in buckets, sorted */
    size_t n_names;
    char **memory;    /* [n_states + 1] as long as the array */
    size_t *filled;   /* elements, padding not counted */
    size_t *value_at; /* [n_buckets] bytes in memory[0] */
} intake;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

static void intake_free(intake *in) {
    for (size_t k = 0; in->memory != NULL && k <= in->n_states; k++) {
        free(in->memory[k]);
    }
    free(in->memory);
    free(in->filled);
    free(in->value_at);
    free(in->names);
}

static dtr_status make_memory(intake *in) {
    const dtr_zero *z = in->z;
    size_t values = 0;
    for (size_t b = 0; b < z->n_buckets; b++) {
        in->value_at[b] = values;
        values += z->buckets[b].slice * dtr_dtype_size(z->buckets[b].dtype);
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
    const dtr_ddp *ddp = in->z->ddp;
    in->names = calloc(ddp->n_trainable + 1, sizeof *in->names);
    in->memory = calloc(in->n_states + 1, sizeof *in->memory);
    in->filled = calloc(in->n_states + 1, sizeof *in->filled);
    in->value_at = calloc(in->z->n_buckets + 1, sizeof *in->value_at);
    DTR_REQUIRE(
        in->names != NULL && in->memory != NULL && in->filled != NULL && in->value_at != NULL, NULL,
        DTR_ERR_NOMEM, "no memory to read a checkpoint of %zu parameters", ddp->n_trainable);
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        size_t i = ddp->trainable[k];
        if (ddp->params[i].bucket != DTR__NONE) {
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

/* The part of it that lies in this rank's slice; count 0: none. */
static dtr__zero_piece own_part(const intake *in, const stretch *st) {
    const dtr_zero *z = in->z;
    dtr__zero_piece p = { 0 };
    size_t b = z->ddp->params[st->param].bucket;
    for (size_t s = 0; dtr__zero_next(z, b, z->ddp->rank, &s, &p);) {
        if (p.param == st->param) {
            size_t from = p.from > st->from ? p.from : st->from, mine = p.from + p.count,
                   theirs = st->from + st->count, to = mine < theirs ? mine : theirs;
            p.at += from - p.from;
            p.from = from;
            p.count = from < to ? to - from : 0;
            return p;
        }
    }
    return (dtr__zero_piece){ 0 };
}

static dtr_status take(intake *in, const char *path, const char *name, const stretch *st,
                       const dtr__zero_piece *p, const dtr_tensor *t, const char *hash) {
    const dtr_zero *z = in->z;
    size_t b = z->ddp->params[st->param].bucket, size = dtr_dtype_size(st->dtype);
    char want[24];
    snprintf(want, sizeof want, "%016" PRIx64, dtr__zero_piece_hash(t->data, t->numel * size));
    DTR_REQUIRE(hash != NULL && strcmp(hash, want) == 0, NULL, DTR_ERR_IO,
                "%s is damaged: the contents of '%.100s' do not match their hash", path, name);
    size_t at =
        st->array == 0 ? in->value_at[b] + p->at * size : (z->buckets[b].first + p->at) * size;
    memcpy(in->memory[st->array] + at, t->data + (p->from - st->from) * size, p->count * size);
    in->filled[st->array] += p->count;
    return DTR_OK;
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
    dtr_dtype want = st.array == 0 ? in->z->ddp->params[st.param].value->dtype
                                   : in->states[st.array - 1].data.dtype;
    DTR_REQUIRE(ndim == 1 && st.dtype == want && st.from <= SIZE_MAX / 2, NULL, DTR_ERR_IO,
                "%s is damaged: '%.100s' is no list of %s", path, name, dtr_dtype_name(want));
    st.count = (size_t)shape[0];
    dtr__zero_piece p = own_part(in, &st);
    if (p.count == 0) {
        return DTR_OK;
    }
    char key[DTR__ZERO_NAME + 8];
    snprintf(key, sizeof key, "hash:%s", name);
    dtr_tensor *t = NULL;
    DTR_TRY(dtr_safetensors_load(file, name, &t));
    dtr_status s = take(in, path, name, &st, &p, t, dtr_safetensors_metadata(file, key));
    dtr_tensor_release(t);
    return s;
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
    dtr_safetensors_close(file);
    free(path);
    return s;
}

/* Every element of every array has come, once. */
static dtr_status check_whole(const intake *in, const dtr__zero_index *x) {
    const dtr_zero *z = in->z;
    for (size_t k = 0; k <= in->n_states; k++) {
        size_t want = 0;
        for (size_t b = 0; b < z->n_buckets; b++) {
            dtr__zero_piece p;
            bool counts = k == 0 || in->states[k - 1].param_dtype == z->buckets[b].dtype;
            for (size_t s = 0; counts && dtr__zero_next(z, b, z->ddp->rank, &s, &p);) {
                want += p.count;
            }
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
    dtr_status s = dtr__zero_index_check(&x, in->z, in->states, in->n_states);
    if (s == DTR_OK) {
        s = intake_make(in);
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

static dtr_status commit(intake *in) {
    dtr_zero *z = in->z;
    dtr_status s = DTR_OK;
    for (size_t k = 0; k < in->n_states; k++) {
        const dtr_buffer *data = &in->states[k].data;
        if (data->count > 0) {
            memcpy(data->data, in->memory[k + 1], data->count * dtr_dtype_size(data->dtype));
        }
    }
    for (size_t b = 0; b < z->n_buckets && s == DTR_OK; b++) {
        size_t nbytes = z->buckets[b].slice * dtr_dtype_size(z->buckets[b].dtype);
        memcpy(z->buckets[b].data + nbytes * (size_t)z->ddp->rank, in->memory[0] + in->value_at[b],
               nbytes);
        s = dtr__zero_gather(z, b);
    }
    dtr_status last = dtr__zero_take_all(z, s < 0);
    dtr__zero_used_up(z);
    return s < 0 ? s : last;
}

static dtr_status agree(dtr_zero *z, dtr_status mine) {
    char text[440] = "";
    if (mine < 0) {
        snprintf(text, sizeof text, "dtr_zero_load: rank %d: %.400s", z->ddp->rank,
                 dtr_last_error_message());
    }
    return dtr__zero_agree(z->ddp, mine, text, false);
}

static dtr_status zero_load(dtr_zero *z, const char *path, const dtr_zero_state *states, size_t n,
                            uint64_t *step) {
    static const char entry[] = "dtr_zero_load";
    DTR_TRY(dtr__zero_check(z, entry));
    DTR_TRY(dtr__zero_begin(z, entry));
    intake in = { .z = z, .states = states, .n_states = n };
    uint64_t found = 0;
    dtr_status s = dtr__zero_take_all(z, false);
    if (s == DTR_OK) {
        s = dtr__zero_check_states(z, entry, path, states, n);
        if (s == DTR_OK) {
            s = read_all(&in, path, &found);
        }
        s = agree(z, s);
    }
    if (s == DTR_OK) {
        s = commit(&in);
    }
    intake_free(&in);
    s = dtr__zero_end(z, s);
    if (s == DTR_OK && step != NULL) {
        *step = found;
    }
    return s;
}

dtr_status dtr_zero_load(dtr_zero *z, const char *path, const dtr_zero_state *states, size_t n,
                         uint64_t *step) {
    DTR_HOLD_CALL_SITE;
    return DTR_ZERO_TRACED(z, "dtr_zero_load", zero_load(z, path, states, n, step));
}
