/* Tensors and text of the program in checkpoints of whole and sharded optimizers. */
#include <dtr/safetensors.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data.h"
#include "ddp_trainee.h"

/* ---- what the program keeps ---- */

enum { TENSORS = 5, PAIRS = 3 };
static const struct {
    const char *name;
    dtr_dtype dtype;
    int ndim;
    int64_t shape[3];
    bool turned; /* its last two dimensions, in memory */
} kept[TENSORS] = {
    { "ema/layer.0@1", DTR_F32, 2, { 3, 5 }, false }, /* looks like a stretch of a parameter */
    { "queue", DTR_F64, 3, { 2, 4, 3 }, true },
    { "position", DTR_I64, 0, { 0 }, false },
    { "nothing", DTR_BF16, 2, { 0, 4 }, false },
    { "\xc3\xa4hnlich", DTR_BOOL, 1, { 7 }, false },
};
static const dtr_text_pair pairs[PAIRS] = { { "z", "the first" },
                                            { "a", "" },
                                            { "\xc3\xbc \"x\"", "\xe2\x82\xac\n{}" } };

typedef struct keep {
    dtr_named_tensor tensors[TENSORS];
    dtr_optim_extra extra;
} keep;

/* What a tensor holds element by element in row-major order, as bytes; freed by the caller. */
static char *bytes_of(dtr_tensor *t, size_t *nbytes) {
    dtr_tensor *rows = NULL;
    TH_IS(dtr_tensor_clone(t, &rows), DTR_OK);
    *nbytes = dtr_tensor_numel(rows) * dtr_dtype_size(dtr_tensor_dtype(rows));
    char *copy = malloc(*nbytes + 1);
    memcpy(copy, dtr_tensor_data(rows), *nbytes);
    for (size_t k = 0; dtr_tensor_dtype(t) == DTR_BOOL && k < *nbytes; k++) {
        copy[k] = copy[k] != 0; /* any other byte is true as well */
    }
    dtr_tensor_release(rows);
    return copy;
}

/* turned: its last two dimensions, in memory. The elements are the same. */
static dtr_tensor *tensor_of(dtr_dtype d, int ndim, const int64_t *shape, bool turned, int from) {
    const dtr_device cpu = { DTR_CPU, 0 };
    int64_t lies[3];
    dtr_tensor *t = NULL, *base = NULL, *view = NULL;
    TH_IS(dtr_tensor_empty(th_world(), d, cpu, DTR_MEM_DEFAULT, ndim, shape, &t), DTR_OK);
    for (size_t k = 0; k < dtr_tensor_numel(t); k++) {
        th_set(dtr_tensor_data(t), d, k, (double)((k * 3 + (size_t)from) % 7), 0);
    }
    if (!turned) {
        return t;
    }
    memcpy(lies, shape, sizeof lies[0] * (size_t)ndim);
    lies[ndim - 1] = shape[ndim - 2];
    lies[ndim - 2] = shape[ndim - 1];
    TH_IS(dtr_tensor_empty(th_world(), d, cpu, DTR_MEM_DEFAULT, ndim, lies, &base), DTR_OK);
    TH_IS(dtr_tensor_transpose(base, ndim - 2, ndim - 1, &view), DTR_OK);
    TH_IS(dtr_tensor_copy(view, t, NULL), DTR_OK);
    dtr_tensor_release(base);
    dtr_tensor_release(t);
    return view;
}

/* `otherwise`: those that were turned are not, and the reverse. */
static void keep_make(keep *k, int from, bool otherwise) {
    *k = (keep){ .extra = DTR_OPTIM_EXTRA_INIT };
    for (int i = 0; i < TENSORS; i++) {
        const bool turned = kept[i].ndim > 1 && kept[i].turned != otherwise;
        k->tensors[i] =
            (dtr_named_tensor){ kept[i].name, tensor_of(kept[i].dtype, kept[i].ndim, kept[i].shape,
                                                        turned, from + i) };
    }
    k->extra.tensors = k->tensors;
    k->extra.n_tensors = TENSORS;
    k->extra.metadata = pairs;
    k->extra.n_metadata = PAIRS;
}

static void keep_free(keep *k) {
    for (int i = 0; i < TENSORS; i++) {
        dtr_tensor_release(k->tensors[i].tensor);
    }
}

static void same_tensor(const dtr_named_tensor *a, const dtr_named_tensor *b, const char *what) {
    size_t na, nb;
    char *x = bytes_of(a->tensor, &na), *y = bytes_of(b->tensor, &nb);
    TH_CHECK(na == nb && memcmp(x, y, na) == 0, "%s: '%s' differs", what, a->name);
    free(x);
    free(y);
}

static void same_tensors(const keep *a, const keep *b, const char *what) {
    for (int i = 0; i < TENSORS; i++) {
        same_tensor(&a->tensors[i], &b->tensors[i], what);
    }
}

static void expect_metadata(const dtr_optim *o, size_t n, const char *what) {
    for (size_t k = 0; k < PAIRS; k++) {
        const char *key = dtr_optim_metadata_key(o, k),
                   *value = dtr_optim_metadata(o, pairs[k].key);
        TH_CHECK(k < n ? key != NULL && strcmp(key, pairs[k].key) == 0 : key == NULL,
                 "%s: key %zu is %s", what, k, key != NULL ? key : "NULL");
        TH_CHECK(k < n ? value != NULL && strcmp(value, pairs[k].value) == 0 : value == NULL,
                 "%s: value %zu is %s", what, k, value != NULL ? value : "NULL");
    }
    TH_CHECK(dtr_optim_metadata_key(o, PAIRS) == NULL && dtr_optim_metadata(o, "no") == NULL &&
                 dtr_optim_metadata(o, NULL) == NULL && dtr_optim_metadata(NULL, "z") == NULL &&
                 dtr_optim_metadata_key(NULL, 0) == NULL,
             "%s: metadata that is not there", what);
}

static void save_extra(const trainee *t, const char *path, const keep *k, char *own) {
    dtr_optim_extra extra = k->extra;
    dtr_bytes bytes = { own, strlen(own) };
    extra.own = &bytes;
    TH_IS(dtr_optim_save_extra(t->optim, path, &extra), DTR_OK);
}

static void start(char *path, size_t cap, const char *what) {
    trainee_path(path, cap, what);
    (void)trainee_files(path, true);
}

/* ---- to disk and back ---- */

static void round_trip(bool from_sharded, bool sharded) {
    char path[80], own[20];
    keep k, into;
    dtr_bytes got = { NULL, 0 };
    start(path, sizeof path, "extra.a");
    trainee t = trainee_new(th_group(), DTR_F32, from_sharded, 4096, 0);
    trainee u = trainee_new(th_group(), DTR_F32, sharded, 1 << 20, 5);
    keep_make(&k, 1, false);
    keep_make(&into, 4, true);
    expect_metadata(u.optim, 0, "before");
    trainee_train(&t, 0, 2);
    snprintf(own, sizeof own, "rank %d", th_rank());
    for (int round = 0; round < 2; round++) { /* the second replaces the first */
        save_extra(&t, path, &k, own);
    }
    TH_CHECK(trainee_files(path, false) == (size_t)th_size() + 1, "other files than that");
    into.extra.own = &got;
    TH_OK(dtr_optim_load_extra(u.optim, path, &into.extra));
    trainee_compare(&t, &u, "loaded");
    same_tensors(&k, &into, "loaded");
    expect_metadata(u.optim, PAIRS, "loaded");
    TH_CHECK(got.nbytes == strlen(own) && memcmp(got.data, own, got.nbytes) == 0, "own bytes");
    dtr_bytes_free(&got, 1);
    TH_AGREE();
    /* Not all of them, by a call that does not know tensors, and where there are none. */
    keep few;
    keep_make(&few, 4, false);
    few.extra.tensors = &few.tensors[1];
    few.extra.n_tensors = 1;
    TH_OK(dtr_optim_load_extra(u.optim, path, &few.extra));
    same_tensor(&k.tensors[1], &few.tensors[1], "one alone");
    TH_OK(dtr_optim_load_extra(u.optim, path, NULL));
    TH_OK(dtr_optim_load_with(u.optim, path, &got));
    dtr_bytes_free(&got, 1);
    expect_metadata(u.optim, PAIRS, "loaded by another call");
    TH_OK(dtr_optim_save(t.optim, path));
    TH_OK(dtr_optim_load(u.optim, path));
    expect_metadata(u.optim, 0, "a checkpoint without");
    TH_STATUS(dtr_optim_load_extra(u.optim, path, &few.extra), DTR_ERR_MISMATCH);
    TH_MESSAGE("has no tensor 'queue'");
    keep_free(&few);
    keep_free(&k);
    keep_free(&into);
    trainee_free(&t);
    trainee_free(&u);
    (void)trainee_files(path, true);
}

START_TEST(tensors_and_text_come_back) {
    for (int way = 0; way < 4; way++) {
        round_trip(way / 2, way % 2);
    }
}
END_TEST

/* Written by all, read by groups of two, and by each rank alone. */
START_TEST(other_numbers_of_ranks) {
    char path[80];
    keep k;
    keep_make(&k, 1, false);
    for (int way = 0; way < 4; way++) {
        start(path, sizeof path, "extra.b");
        trainee t = trainee_new(th_group(), DTR_F32, way / 2, 4096, 0);
        trainee_train(&t, 0, 2);
        save_extra(&t, path, &k, "x");
        for (int ranks = 1; ranks <= 2; ranks++) {
            dtr_group *g = NULL;
            keep into;
            TH_OK(dtr_group_split(th_group(), th_rank() / ranks, 0, NULL, &g));
            trainee u = trainee_new(g, DTR_F32, way % 2, 4096, 5);
            keep_make(&into, 4, true);
            TH_IS(dtr_optim_load_extra(u.optim, path, &into.extra), DTR_OK);
            trainee_compare(&t, &u, "in a smaller group");
            same_tensors(&k, &into, "in a smaller group");
            expect_metadata(u.optim, PAIRS, "in a smaller group");
            keep_free(&into);
            trainee_free(&u);
            TH_OK(dtr_group_destroy(g));
        }
        trainee_free(&t);
        (void)trainee_files(path, true);
    }
    keep_free(&k);
}
END_TEST

/* The file of rank 0 is one that others can read. */
START_TEST(other_readers_find_the_tensors) {
    char path[80], pattern[120], name[100];
    keep k;
    keep_make(&k, 1, false);
    start(path, sizeof path, "extra.c");
    trainee t = trainee_new(th_group(), DTR_F32, false, 4096, 0);
    save_extra(&t, path, &k, "x");
    glob_t found = { 0 };
    dtr_safetensors *file = NULL;
    snprintf(pattern, sizeof pattern, "%s.*.0-of-*.safetensors", path);
    TH_ALL(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc == 1, "no file %s", pattern);
    TH_OK(dtr_safetensors_open(found.gl_pathv[0], &file));
    for (int i = 0; i < TENSORS; i++) {
        dtr_named_tensor there = { kept[i].name, NULL };
        snprintf(name, sizeof name, "program/%s", kept[i].name);
        TH_OK(dtr_safetensors_load(file, name, &there.tensor));
        TH_CHECK(dtr_tensor_ndim(there.tensor) == kept[i].ndim, "%s has another shape", name);
        same_tensor(&k.tensors[i], &there, "in the file");
        dtr_tensor_release(there.tensor);
    }
    TH_AGREE();
    dtr_safetensors_close(file);
    globfree(&found);
    trainee_free(&t);
    keep_free(&k);
    (void)trainee_files(path, true);
}
END_TEST

/* ---- what is refused ---- */

/* One rank's mistake is every rank's error, and the checkpoint from before is as it was. */
static void refuse_save(const trainee *t, const char *path, const dtr_optim_extra *good,
                        const dtr_optim_extra *bad, dtr_status want, const char *text) {
    const bool mine = th_rank() == th_size() - 1;
    TH_STATUS(dtr_optim_save_extra(t->optim, path, mine ? bad : good), want);
    TH_MESSAGE(text);
    TH_AGREE();
}

START_TEST(saves_that_are_refused) {
    char path[80], longest[420];
    keep k, into;
    const dtr_bytes bad_own = { NULL, 5 };
    keep_make(&k, 1, false);
    keep_make(&into, 4, false);
    start(path, sizeof path, "extra.d");
    memset(longest, 'x', sizeof longest);
    longest[400] = '\0';
    dtr_tensor *wide = tensor_of(DTR_C128, 1, (int64_t[]){ 2 }, false, 0);
    const struct {
        dtr_named_tensor last; /* in place of the last one, where it has a name or a tensor */
        dtr_text_pair pair;    /* the same of text, where it has a value or a key */
        const char *message;
        dtr_status status;
    } bad[] = {
        { { NULL, wide }, { 0 }, "extra.tensors[4].name is NULL", DTR_ERR_ARG },
        { { "", k.tensors[4].tensor }, { 0 }, "extra.tensors[4].name has 0 bytes", DTR_ERR_ARG },
        { { longest, wide },
          { 0 },
          "extra.tensors[4].name has 400 bytes; give 1 to 399",
          DTR_ERR_ARG },
        { { "\xff", wide }, { 0 }, "extra.tensors[4].name is no valid UTF-8", DTR_ERR_ARG },
        { { "queue", wide },
          { 0 },
          "extra.tensors[1] and [4] have the same name 'queue'",
          DTR_ERR_ARG },
        { { "gone", NULL }, { 0 }, "extra.tensors[4] ('gone')", DTR_ERR_ARG },
        { { "wide", wide }, { 0 }, "extra.tensors[4] ('wide') is c128", DTR_ERR_DTYPE },
        { { 0 }, { NULL, "x" }, "extra.metadata[2].key is NULL", DTR_ERR_ARG },
        { { 0 }, { "x", NULL }, "extra.metadata[2].value is NULL", DTR_ERR_ARG },
        { { 0 }, { "", "x" }, "extra.metadata[2].key has 0 bytes", DTR_ERR_ARG },
        { { 0 }, { "x", "\xff" }, "extra.metadata[2].value is no valid UTF-8", DTR_ERR_ARG },
        { { 0 }, { "z", "x" }, "extra.metadata[0] and [2] have the same key 'z'", DTR_ERR_ARG },
    };
    for (int sharded = 0; sharded < 2; sharded++) {
        trainee t = trainee_new(th_group(), DTR_F32, sharded, 4096, 0);
        trainee_train(&t, 0, 1);
        save_extra(&t, path, &k, "x");
        trainee_train(&t, 1, 1);
        for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
            dtr_named_tensor tensors[TENSORS];
            dtr_text_pair texts[PAIRS];
            dtr_optim_extra x = k.extra;
            memcpy(tensors, k.tensors, sizeof tensors);
            memcpy(texts, pairs, sizeof texts);
            x.tensors = tensors;
            x.metadata = texts;
            if (bad[b].last.name != NULL || bad[b].last.tensor != NULL) {
                tensors[TENSORS - 1] = bad[b].last;
            } else {
                texts[PAIRS - 1] = bad[b].pair;
            }
            refuse_save(&t, path, &k.extra, &x, bad[b].status, bad[b].message);
        }
        dtr_optim_extra x = k.extra;
        x.tensors = NULL;
        refuse_save(&t, path, &k.extra, &x, DTR_ERR_ARG,
                    "extra.tensors is NULL, and extra.n_tensors is 5");
        x = k.extra;
        x.metadata = NULL;
        refuse_save(&t, path, &k.extra, &x, DTR_ERR_ARG,
                    "extra.metadata is NULL, and extra.n_metadata is 3");
        x = k.extra;
        x.own = (dtr_bytes *)(uintptr_t)&bad_own;
        refuse_save(&t, path, &k.extra, &x, DTR_ERR_ARG, "the program's data is NULL");
        x = k.extra;
        x.struct_size = 3;
        refuse_save(&t, path, &k.extra, &x, DTR_ERR_ARG, "dtr_optim_extra.struct_size is 3");
        TH_OK(dtr_optim_load_extra(t.optim, path, &into.extra));
        TH_CHECK(dtr_optim_steps(t.optim) == 1, "another checkpoint than before");
        same_tensors(&k, &into, "after refusals");
        trainee_free(&t);
        (void)trainee_files(path, true);
    }
    dtr_tensor_release(wide);
    keep_free(&k);
    keep_free(&into);
}
END_TEST

/* What is one rank's alone is no tensor of the checkpoint. */
START_TEST(ranks_that_differ) {
    char path[80];
    keep k, other;
    const dtr_text_pair changed = { "z", "another" };
    const bool mine = th_rank() == th_size() - 1;
    keep_make(&k, 1, false);
    keep_make(&other, 1, true);
    start(path, sizeof path, "extra.e");
    trainee t = trainee_new(th_group(), DTR_F32, false, 4096, 0);
    trainee_train(&t, 0, 1);
    save_extra(&t, path, mine ? &k : &other, "x"); /* they may lie in memory as they like */
    if (th_size() > 1) {
        th_set(dtr_tensor_data(other.tensors[1].tensor), DTR_F64, 23, 99, 0);
        TH_STATUS(dtr_optim_save_extra(t.optim, path, mine ? &other.extra : &k.extra),
                  DTR_ERR_MISMATCH);
        TH_MESSAGE("tensor 'queue' has other contents on rank");
        dtr_optim_extra x = k.extra;
        x.n_tensors = TENSORS - 1;
        TH_STATUS(dtr_optim_save_extra(t.optim, path, mine ? &x : &k.extra), DTR_ERR_MISMATCH);
        TH_MESSAGE("the list of tensors is another on rank");
        x = k.extra;
        x.metadata = &changed;
        x.n_metadata = 1;
        TH_STATUS(dtr_optim_save_extra(t.optim, path, mine ? &x : &k.extra), DTR_ERR_MISMATCH);
        TH_MESSAGE("metadata is another on rank");
        TH_CHECK(trainee_files(path, false) == (size_t)th_size() + 1, "files were left behind");
    }
    trainee_free(&t);
    keep_free(&k);
    keep_free(&other);
    (void)trainee_files(path, true);
}
END_TEST

/* A load that is refused on one rank, and changes nothing anywhere. */
static void refuse_load(const char *path, dtr_named_tensor bad, dtr_status want, const char *text) {
    keep into, before;
    keep_make(&into, 4, false);
    keep_make(&before, 4, false);
    trainee t = trainee_new(th_group(), DTR_F32, false, 4096, 5);
    trainee same = trainee_new(th_group(), DTR_F32, false, 4096, 5);
    dtr_tensor *last = into.tensors[TENSORS - 1].tensor;
    if (bad.name != NULL && th_rank() == th_size() - 1) {
        into.tensors[TENSORS - 1] = bad;
    }
    TH_STATUS(dtr_optim_load_extra(t.optim, path, &into.extra), want);
    TH_MESSAGE(text);
    into.tensors[TENSORS - 1] = (dtr_named_tensor){ kept[TENSORS - 1].name, last };
    same_tensors(&before, &into, "after a refusal");
    trainee_compare(&same, &t, "after a refusal");
    expect_metadata(t.optim, 0, "after a refusal");
    TH_AGREE();
    keep_free(&into);
    keep_free(&before);
    trainee_free(&t);
    trainee_free(&same);
}

/* Rank 0 puts `to` where `from` is in the only file of this pattern; both are as long. */
static void damage(const char *pattern, const char *from, const char *to) {
    glob_t found = { 0 };
    if (th_rank() == 0 && glob(pattern, 0, NULL, &found) == 0) {
        static char text[200000];
        FILE *f = fopen(found.gl_pathv[0], "r+b");
        const size_t n = f != NULL ? fread(text, 1, sizeof text, f) : 0;
        char *at = n > 0 ? memmem(text, n, from, strlen(from)) : NULL;
        TH_CHECK(found.gl_pathc == 1 && at != NULL && strlen(from) == strlen(to) &&
                     fseek(f, at - text, SEEK_SET) == 0 && fputs(to, f) >= 0,
                 "cannot damage %s", pattern);
        fclose(f);
    }
    globfree(&found);
    th_barrier();
    TH_AGREE();
}

START_TEST(loads_that_are_refused) {
    char path[80], pattern[120];
    keep k;
    keep_make(&k, 1, false);
    dtr_tensor *type = tensor_of(DTR_U8, 1, (int64_t[]){ 7 }, false, 0);
    dtr_tensor *shape = tensor_of(DTR_BOOL, 1, (int64_t[]){ 8 }, false, 0), *one = NULL;
    const int64_t seven = 7, stride = 0;
    TH_OK(dtr_tensor_from_buffer(dtr_cpu(dtr_tensor_data(shape), 1, DTR_BOOL), 1, &seven, &stride,
                                 NULL, NULL, &one));
    const char *name = kept[TENSORS - 1].name;
    start(path, sizeof path, "extra.f");
    snprintf(pattern, sizeof pattern, "%s.*.0-of-*.safetensors", path);
    trainee t = trainee_new(th_group(), DTR_F32, true, 4096, 0);
    trainee_train(&t, 0, 2);
    save_extra(&t, path, &k, "x");
    refuse_load(path, (dtr_named_tensor){ name, type }, DTR_ERR_MISMATCH, "{\"dtype\":\"bool\",");
    refuse_load(path, (dtr_named_tensor){ name, shape }, DTR_ERR_MISMATCH, "\"shape\":[8]}");
    refuse_load(path, (dtr_named_tensor){ "unknown", shape }, DTR_ERR_MISMATCH,
                "has no tensor 'unknown'");
    refuse_load(path, (dtr_named_tensor){ name, one }, DTR_ERR_LAYOUT, "extra.tensors[4]");
    refuse_load(path, (dtr_named_tensor){ "queue", type }, DTR_ERR_ARG,
                "extra.tensors[1] and [4] have the same name 'queue'");
    /* A value that is no text; then the file: another shape, no hash, no tensor. */
    damage(path, "\"the first\"", "[\"a\",  \"b\"]");
    refuse_load(path, (dtr_named_tensor){ 0 }, DTR_ERR_IO, "the value of 'z' in its metadata");
    damage(path, "[\"a\",  \"b\"]", "\"the first\"");
    damage(pattern, "\"shape\":[3,5]", "\"shape\":[5,3]");
    refuse_load(path, (dtr_named_tensor){ 0 }, DTR_ERR_IO, "is not what the index says");
    damage(pattern, "\"shape\":[5,3]", "\"shape\":[3,5]");
    damage(pattern, "hash:program/queue", "hash:program/queen");
    refuse_load(path, (dtr_named_tensor){ 0 }, DTR_ERR_IO,
                "'program/queue' do not match their hash");
    damage(pattern, "hash:program/queen", "hash:program/queue");
    damage(pattern, "\"program/queue\"", "\"program/queen\"");
    refuse_load(path, (dtr_named_tensor){ 0 }, DTR_ERR_IO, "it has no 'program/queue'");
    trainee_free(&t);
    keep_free(&k);
    dtr_tensor_release(type);
    dtr_tensor_release(shape);
    dtr_tensor_release(one);
    (void)trainee_files(path, true);
}
END_TEST

/* An index as it was before it had these lists. */
START_TEST(an_older_checkpoint) {
    char path[80];
    keep k;
    keep_make(&k, 1, false);
    start(path, sizeof path, "extra.g");
    trainee t = trainee_new(th_group(), DTR_F32, true, 4096, 0);
    save_extra(&t, path, &k, "x");
    damage(path, "\"metadata\"", "\"unknown0\"");
    damage(path, "\"tensors\"", "\"unknown\"");
    TH_OK(dtr_optim_load_extra(t.optim, path, NULL));
    expect_metadata(t.optim, 0, "older");
    TH_STATUS(dtr_optim_load_extra(t.optim, path, &k.extra), DTR_ERR_MISMATCH);
    TH_MESSAGE("has no tensor");
    trainee_free(&t);
    keep_free(&k);
    (void)trainee_files(path, true);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp checkpoint extra", 200);
    th_add(tc, tensors_and_text_come_back, 1, 0);
    th_add(tc, other_numbers_of_ranks, 1, 0);
    th_add(tc, other_readers_find_the_tensors, 1, 0);
    th_add(tc, saves_that_are_refused, 1, 0);
    th_add(tc, ranks_that_differ, 1, 0);
    th_add(tc, loads_that_are_refused, 1, 0);
    th_add(tc, an_older_checkpoint, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp checkpoint extra", make);
}
