/* Checkpoints of the sharded optimizer: written at one number of ranks, read at others (SH12). */
#include <dtr/optim.h>
#include <dtr/safetensors.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data.h"
#include "ddp_models.h"

enum { N = 6, MAX_STATES = 4 };
static const size_t sizes[N] = { 1, 63, 64, 65, 1000, 4097 };

/* A model, its module and its optimizer on some group. */
typedef struct trainee {
    synth s;
    dtr_ddp *ddp;
    dtr_zero *zero;
    dtr_optim *optim;
} trainee;

static void path_of(char *path, size_t cap, const char *what) {
    snprintf(path, cap, "ddp_checkpoint.np%d.%s.json", th_size(), what);
}

/* Only the caller's group takes part: nothing is agreed here. */
static trainee trainee_new(dtr_group *g, dtr_dtype d, dtr_optim_rule rule, size_t cap) {
    trainee t = { .s = synth_new(N, sizes, d) };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_optim_options oo = DTR_OPTIM_OPTIONS_INIT;
    o.bucket_cap_bytes = cap;
    o.first_bucket_bytes = 256;
    oo.rule = rule;
    oo.rate = 0.01;
    oo.momentum = rule == DTR_OPTIM_SGD ? 0.9 : 0;
    TH_IS(dtr_ddp_create(g, t.s.params, N, &o, &t.ddp), DTR_OK);
    TH_IS(dtr_zero_create(t.ddp, NULL, &t.zero), DTR_OK);
    TH_IS(dtr_optim_create(t.ddp, t.zero, &oo, &t.optim), DTR_OK);
    return t;
}

static void trainee_free(trainee *t) {
    TH_IS(dtr_optim_destroy(t->optim), DTR_OK);
    TH_IS(dtr_zero_destroy(t->zero), DTR_OK);
    TH_IS(dtr_ddp_destroy(t->ddp), DTR_OK);
    synth_free(&t->s);
}

static void train(trainee *t, int steps) {
    for (int step = 0; step < steps; step++) {
        synth_backward(t->ddp, &t->s, step);
        TH_IS(dtr_ddp_backward_end(t->ddp, NULL), DTR_OK);
        TH_IS(dtr_optim_step(t->optim), DTR_OK);
    }
}

/* Everything there is to compare, whole. */
typedef struct picture {
    size_t n_states;
    dtr_tensor *values[N], *states[MAX_STATES][N];
} picture;

static picture picture_of(const trainee *t) {
    picture p = { .n_states = dtr_optim_state_count(t->optim) };
    for (size_t i = 0; i < N; i++) {
        TH_IS(dtr_tensor_clone(t->s.params[i].value, &p.values[i]), DTR_OK);
    }
    for (size_t k = 0; k < p.n_states; k++) {
        dtr_zero_state st;
        TH_IS(dtr_optim_state(t->optim, k, &st), DTR_OK);
        for (size_t i = 0; i < N; i++) {
            int64_t shape = (int64_t)sizes[i];
            TH_IS(dtr_tensor_empty(th_world(), st.data.dtype, (dtr_device){ DTR_CPU, 0 },
                                   DTR_MEM_DEFAULT, 1, &shape, &p.states[k][i]),
                  DTR_OK);
        }
        TH_IS(dtr_zero_gather(t->zero, &st, p.states[k], N), DTR_OK);
    }
    return p;
}

static void picture_free(picture *p) {
    for (size_t i = 0; i < N; i++) {
        dtr_tensor_release(p->values[i]);
        for (size_t k = 0; k < p->n_states; k++) {
            dtr_tensor_release(p->states[k][i]);
        }
    }
}

static bool equal(const dtr_tensor *a, const dtr_tensor *b) {
    return memcmp(dtr_tensor_data(a), dtr_tensor_data(b),
                  dtr_tensor_numel(a) * dtr_dtype_size(dtr_tensor_dtype(a))) == 0;
}

static void compare(const picture *a, const picture *b, const char *what) {
    TH_CHECK(a->n_states == b->n_states, "%s: %zu arrays", what, b->n_states);
    for (size_t i = 0; i < N; i++) {
        TH_CHECK(equal(a->values[i], b->values[i]), "%s: p%zu differs", what, i);
        for (size_t k = 0; k < a->n_states; k++) {
            TH_CHECK(equal(a->states[k][i], b->states[k][i]), "%s: array %zu of p%zu differs", what,
                     k, i);
        }
    }
}

static void check_loaded(const trainee *t, const picture *want, const char *what) {
    picture got = picture_of(t);
    compare(want, &got, what);
    TH_CHECK(dtr_optim_steps(t->optim) == 3, "%s: %llu steps", what,
             (unsigned long long)dtr_optim_steps(t->optim));
    picture_free(&got);
}

static size_t count_files(const char *path) {
    char pattern[200];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s*", path);
    size_t n = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return n;
}

static void remove_files(const char *path) {
    char pattern[200];
    glob_t found;
    th_barrier();
    snprintf(pattern, sizeof pattern, "%s*", path);
    if (th_rank() == 0 && glob(pattern, 0, NULL, &found) == 0) {
        for (size_t k = 0; k < found.gl_pathc; k++) {
            (void)unlink(found.gl_pathv[k]);
        }
        globfree(&found);
    }
    th_barrier();
}

/* Saved by all ranks, loaded by the first w with other buckets, saved by them, loaded by all. */
static void round_trip(dtr_dtype d) {
    char path[64], back[64];
    path_of(path, sizeof path, "a");
    path_of(back, sizeof back, "b");
    remove_files(path);
    remove_files(back);
    trainee all = trainee_new(th_group(), d, DTR_OPTIM_ADAMW, 4096);
    train(&all, 3);
    for (int k = 0; k < 2; k++) { /* the second replaces the first */
        TH_IS(dtr_optim_save(all.optim, path), DTR_OK);
    }
    th_barrier(); /* rank 0 has removed the first one's files */
    size_t files = count_files(path);
    TH_CHECK(files == (size_t)th_size() + 1, "%zu files", files);
    picture want = picture_of(&all);
    TH_AGREE();
    for (int w = 1; w <= th_size(); w++) {
        dtr_group *few = NULL;
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        o.backend = "cpu:auto"; /* the world's own may not serve fewer ranks */
        TH_IS(dtr_group_split(th_group(), th_rank() < w ? 0 : 1, 0, &o, &few), DTR_OK);
        TH_AGREE();
        if (th_rank() < w) {
            trainee t = trainee_new(few, d, DTR_OPTIM_ADAMW, 2048);
            TH_IS(dtr_optim_load(t.optim, path), DTR_OK);
            TH_IS(dtr_ddp_check_equal(t.ddp), DTR_OK);
            check_loaded(&t, &want, "fewer ranks");
            TH_IS(dtr_optim_save(t.optim, back), DTR_OK);
            trainee_free(&t);
        }
        TH_OK(dtr_group_destroy(few));
        trainee again = trainee_new(th_group(), d, DTR_OPTIM_ADAMW, 1 << 20);
        TH_IS(dtr_optim_load(again.optim, back), DTR_OK);
        check_loaded(&again, &want, "and back");
        if (w == th_size()) { /* training goes on as if nothing had been */
            train(&again, 1);
            train(&all, 1);
            for (size_t i = 0; i < N; i++) {
                TH_CHECK(equal(all.s.params[i].value, again.s.params[i].value), "p%zu differs", i);
            }
        }
        trainee_free(&again);
        TH_AGREE();
    }
    picture_free(&want);
    trainee_free(&all);
    remove_files(path);
    remove_files(back);
}

START_TEST(other_ranks) {
    round_trip(DTR_F32);
    round_trip(DTR_BF16);
}
END_TEST

/* The portable form: whole tensors and back. */
START_TEST(portable) {
    trainee a = trainee_new(th_group(), DTR_F32, DTR_OPTIM_ADAM, 4096);
    train(&a, 2);
    picture p = picture_of(&a);
    for (size_t k = 0; k < p.n_states; k++) {
        dtr_zero_state st;
        TH_IS(dtr_optim_state(a.optim, k, &st), DTR_OK);
        size_t nbytes = st.data.count * dtr_dtype_size(st.data.dtype);
        void *saved = malloc(nbytes + 1);
        memcpy(saved, st.data.data, nbytes);
        memset(st.data.data, 0, nbytes);
        TH_IS(dtr_zero_slice(a.zero, p.states[k], N, &st), DTR_OK);
        TH_CHECK(memcmp(saved, st.data.data, nbytes) == 0, "array %zu differs", k);
        TH_IS(dtr_zero_gather(a.zero, &st, p.states[k], N - 1), DTR_ERR_ARG);
        TH_IS(dtr_zero_gather(a.zero, NULL, p.states[k], N), DTR_ERR_ARG);
        st.data.count += th_rank() == th_size() - 1 ? 1 : 0;
        TH_IS(dtr_zero_gather(a.zero, &st, p.states[k], N), DTR_ERR_SHAPE);
        free(saved);
    }
    TH_AGREE();
    picture_free(&p);
    trainee_free(&a);
}
END_TEST

/* ---- T56: whole parameters in one file ---- */

typedef struct learner {
    net n;
    dtr_ddp *ddp;
    float *grad[NET_PARAMS];
} learner;

static learner learner_new(void) {
    learner l = { .n = net_new(5) };
    TH_OK(dtr_ddp_create(th_group(), l.n.params, NET_PARAMS, NULL, &l.ddp));
    return l;
}

static void learner_free(learner *l) {
    TH_OK(dtr_ddp_destroy(l->ddp));
    net_free(&l->n);
}

static void on_ready(void *arg, int layer) {
    TH_IS(dtr_ddp_grad_ready(((learner *)arg)->ddp, (size_t)layer, NULL), DTR_OK);
}

/* Iterations of SGD with rate 0.001, each rank with its row of the batch. */
static void learn(learner *l, int from, int to) {
    float x[NET_IN * 16], y[NET_OUT * 16];
    for (int k = from; k < to; k++) {
        net_batch(th_size(), k, x, y);
        for (size_t i = 0; i < NET_PARAMS; i++) {
            l->grad[i] = grad_of(l->ddp, i);
            memset(l->grad[i], 0, net_numel((int)i) * sizeof(float));
        }
        net_backward(&l->n, x + NET_IN * th_rank(), y + NET_OUT * th_rank(), 1, l->grad, on_ready,
                     l);
        TH_IS(dtr_ddp_backward_end(l->ddp, NULL), DTR_OK);
        for (size_t i = 0; i < NET_PARAMS; i++) {
            for (size_t w = 0; w < net_numel((int)i); w++) {
                l->n.weight[i][w] -= 0.001f * grad_of(l->ddp, i)[w];
            }
        }
    }
}

static void check_weights(const net *a, const net *b, bool same, const char *what) {
    bool equal = true;
    for (int i = 0; i < NET_PARAMS; i++) {
        equal = equal && memcmp(a->weight[i], b->weight[i], net_numel(i) * sizeof(float)) == 0;
    }
    TH_CHECK(equal == same, "%s: the parameters are %s", what, equal ? "the same" : "others");
}

static void load_into(const char *path, net *n) {
    dtr_safetensors *f = NULL;
    TH_IS(dtr_safetensors_open(path, &f), DTR_OK);
    for (int i = 0; i < NET_PARAMS; i++) {
        memset(n->weight[i], 0, net_numel(i) * sizeof(float));
        TH_IS(dtr_safetensors_load_into(f, n->params[i].name, n->value[i]), DTR_OK);
    }
    TH_IS(dtr_safetensors_close(f), DTR_OK);
}

/* T56: three iterations, rank 0 writes, all load, three more: as six without a stop. */
START_TEST(save_load) {
    char path[64];
    path_of(path, sizeof path, "whole");
    remove_files(path);
    learner a = learner_new(), b = learner_new();
    net plain = net_new(6), begin = net_new(5);
    learn(&a, 0, 6);
    learn(&b, 0, 3);
    check_weights(&a.n, &b.n, false, "after 3 of 6 iterations");
    if (th_rank() == 0) {
        dtr_named_tensor list[NET_PARAMS];
        for (int i = 0; i < NET_PARAMS; i++) {
            list[i] = (dtr_named_tensor){ b.n.params[i].name, b.n.value[i] };
        }
        TH_IS(dtr_safetensors_save(path, list, NET_PARAMS, NULL, 0), DTR_OK);
    }
    th_barrier();
    load_into(path, &plain); /* one without a module */
    check_weights(&plain, &b.n, true, "a plain model");
    check_weights(&plain, &begin, false, "three iterations");
    load_into(path, &b.n);
    check_weights(&plain, &b.n, true, "a module's model");
    learn(&b, 3, 6);
    check_weights(&a.n, &b.n, true, "3 and 3 iterations beside 6");
    TH_AGREE();
    learner_free(&a);
    learner_free(&b);
    net_free(&plain);
    net_free(&begin);
    remove_files(path);
}
END_TEST

/* ---- what is refused ---- */

typedef enum damage { REMOVED, CUT, FLIPPED, FOREIGN, INDEX_CUT, INDEX_GONE } damage;

/* The only file of rank r of a checkpoint; false: none. */
static bool shard_file(const char *path, int r, char *file, size_t cap) {
    char pattern[200];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s.*.%d-of-*", path, r);
    bool one = glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc == 1;
    if (one) {
        snprintf(file, cap, "%s", found.gl_pathv[0]);
    }
    globfree(&found);
    return one;
}

static void harm(const char *path, const char *other, damage what) {
    char file[200], foreign[200], command[500];
    TH_CHECK(shard_file(path, th_size() - 1, file, sizeof file) &&
                 shard_file(other, th_size() - 1, foreign, sizeof foreign),
             "no file of rank %d", th_size() - 1);
    const char *victim = what >= INDEX_CUT ? path : file;
    int fd = open(victim, O_RDWR | O_CLOEXEC);
    off_t end = lseek(fd, 0, SEEK_END);
    char last = 0;
    if (what == REMOVED || what == INDEX_GONE) {
        TH_CHECK(unlink(victim) == 0, "unlink");
    } else if (what == CUT || what == INDEX_CUT) {
        TH_CHECK(ftruncate(fd, end - 7) == 0, "truncate");
    } else if (what == FLIPPED) {
        TH_CHECK(pread(fd, &last, 1, end - 1) == 1, "read");
        last ^= 1;
        TH_CHECK(pwrite(fd, &last, 1, end - 1) == 1, "write");
    } else {
        snprintf(command, sizeof command, "cp %s %s", foreign, file);
        TH_CHECK(system(command) == 0, "%s", command);
    }
    close(fd);
}

START_TEST(damaged) {
    static const struct {
        damage what;
        const char *words[2];
    } all[] = {
        { REMOVED, { "cannot open ddp_checkpoint.np", ".safetensors" } },
        { CUT, { "damaged", ".safetensors" } },
        { FLIPPED, { "do not match their hash", ".safetensors" } },
        { FOREIGN, { "does not belong to the checkpoint", ".safetensors" } },
        { INDEX_CUT, { "damaged or no index", ".json" } },
        { INDEX_GONE, { "cannot open", ".json" } },
    };
    char path[64], other[64];
    path_of(path, sizeof path, "c");
    path_of(other, sizeof other, "d");
    trainee t = trainee_new(th_group(), DTR_F32, DTR_OPTIM_ADAM, 4096);
    train(&t, 3);
    TH_IS(dtr_optim_save(t.optim, other), DTR_OK);
    for (size_t c = 0; c < sizeof all / sizeof all[0]; c++) {
        remove_files(path);
        TH_IS(dtr_optim_save(t.optim, path), DTR_OK);
        picture want = picture_of(&t);
        if (th_rank() == 0) {
            harm(path, other, all[c].what);
        }
        th_barrier();
        TH_IS(dtr_optim_load(t.optim, path),
              all[c].what == FOREIGN ? DTR_ERR_MISMATCH : DTR_ERR_IO);
        TH_MESSAGE(all[c].words[0]);
        TH_MESSAGE(all[c].words[1]);
        check_loaded(&t, &want, "after a refused load");
        picture_free(&want);
        TH_AGREE();
    }
    train(&t, 1);
    trainee_free(&t);
    remove_files(path);
    remove_files(other);
}
END_TEST

/* In the index of a checkpoint: another number of ranks. */
static void claim_ranks(const char *path, const char *ranks) {
    char text[20000], *at = NULL;
    FILE *f = fopen(path, "r");
    size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = '\0';
    at = strstr(text, "\"ranks\": ");
    TH_CHECK(at != NULL && fclose(f) == 0, "%s has no ranks", path);
    f = fopen(path, "w");
    if (f != NULL && at != NULL) {
        at += strlen("\"ranks\": ");
        fprintf(f, "%.*s%s%s", (int)(at - text), text, ranks, at + strspn(at, "0123456789"));
        fclose(f);
    }
}

/* SH12: replacing a checkpoint removes its files and no others, whatever its index says of their
 * number: 2^31 names would take an hour. */
START_TEST(replaced) {
    static const char *const ranks[] = { "2147483647", "1", "99" };
    static const char *const others[] = { ".0123456789abcdef.0-of-2.safetensors", ".safetensors",
                                          ".bak" };
    char path[64], file[200], mine[400];
    path_of(path, sizeof path, "f");
    remove_files(path);
    trainee t = trainee_new(th_group(), DTR_F32, DTR_OPTIM_ADAM, 4096);
    TH_IS(dtr_optim_save(t.optim, path), DTR_OK);
    for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++) {
        th_barrier();
        if (th_rank() == 0) {
            TH_CHECK(shard_file(path, 0, file, sizeof file), "one file of rank 0");
            claim_ranks(path, ranks[k]);
            for (size_t o = 0; o < sizeof others / sizeof others[0]; o++) {
                /* of another checkpoint, and what begins like one of this one's */
                snprintf(mine, sizeof mine, "%s%s", o == 0 ? path : file, others[o]);
                FILE *f = fopen(mine, "w");
                TH_CHECK(f != NULL && fclose(f) == 0, "cannot write %s", mine);
            }
        }
        th_barrier();
        TH_IS(dtr_optim_save(t.optim, path), DTR_OK);
        th_barrier();
        for (size_t o = 0; th_rank() == 0 && o < sizeof others / sizeof others[0]; o++) {
            snprintf(mine, sizeof mine, "%s%s", o == 0 ? path : file, others[o]);
            TH_CHECK(unlink(mine) == 0, "%s ranks: %s was removed", ranks[k], mine);
        }
        th_barrier();
        size_t files = count_files(path);
        TH_CHECK(files == (size_t)th_size() + 1, "%s ranks: %zu files are left", ranks[k], files);
        TH_AGREE();
        TH_IS(dtr_optim_load(t.optim, path), DTR_OK);
    }
    trainee_free(&t);
    remove_files(path);
}
END_TEST

/* Another model, other states, arguments that differ, calls at the wrong time. */
START_TEST(refused) {
    char path[64];
    path_of(path, sizeof path, "e");
    remove_files(path);
    trainee adam = trainee_new(th_group(), DTR_F32, DTR_OPTIM_ADAM, 4096);
    trainee sgd = trainee_new(th_group(), DTR_F32, DTR_OPTIM_SGD, 4096);
    trainee wide = trainee_new(th_group(), DTR_F64, DTR_OPTIM_SGD, 4096);
    int last = th_size() - 1;
    TH_IS(dtr_optim_save(sgd.optim, path), DTR_OK);
    TH_IS(dtr_optim_load(adam.optim, path), DTR_ERR_MISMATCH);
    TH_MESSAGE("has no state 'v.f32'");
    TH_IS(dtr_optim_load(wide.optim, path), DTR_ERR_MISMATCH);
    TH_MESSAGE("parameter 'p0' differs");
    uint64_t step = 7;
    TH_IS(dtr_zero_save(adam.zero, path, NULL, 0, th_rank() == last ? 4 : 5),
          last == 0 ? DTR_OK : DTR_ERR_MISMATCH);
    TH_IS(dtr_zero_save(adam.zero, th_rank() == last ? NULL : path, NULL, 0, 5), DTR_ERR_ARG);
    TH_MESSAGE("path is NULL");
    TH_IS(dtr_zero_save(adam.zero, "no/such/folder/index.json", NULL, 0, 5), DTR_ERR_IO);
    TH_MESSAGE("no/such/folder/index.json");
    TH_IS(dtr_zero_save(adam.zero, path, NULL, 0, 5), DTR_OK);
    TH_IS(dtr_zero_load(adam.zero, path, NULL, 0, &step), DTR_OK);
    TH_CHECK(step == 5, "step %llu", (unsigned long long)step);
    dtr_zero_state st;
    TH_IS(dtr_optim_state(adam.optim, 0, &st), DTR_OK);
    dtr_zero_state constant = st;
    constant.data = dtr_cpu_in(st.data.data, st.data.count, st.data.dtype);
    TH_IS(dtr_zero_save(adam.zero, path, &constant, 1, 5), DTR_OK);
    TH_IS(dtr_zero_load(adam.zero, path, &constant, 1, NULL), DTR_ERR_ARG);
    TH_MESSAGE("is written");
    st.data.count += th_rank() == last ? 1 : 0;
    TH_IS(dtr_zero_save(adam.zero, path, &st, 1, 6), DTR_ERR_SHAPE);
    char word[32];
    snprintf(word, sizeof word, "rank %d", last);
    TH_MESSAGE(word);
    st.name = "a/b";
    TH_IS(dtr_zero_load(adam.zero, path, &st, 1, NULL), DTR_ERR_ARG);
    TH_AGREE();
    TH_IS(dtr_ddp_forward_begin(adam.ddp), DTR_OK);
    TH_IS(dtr_zero_save(adam.zero, path, NULL, 0, 8), DTR_ERR_STATE);
    TH_IS(dtr_zero_load(adam.zero, path, NULL, 0, NULL), DTR_ERR_STATE);
    TH_IS(dtr_ddp_forward_end(adam.ddp, NULL, 0), DTR_OK);
    train(&adam, 1);
    dtr_optim *whole = NULL;
    TH_OK(dtr_zero_destroy(wide.zero));
    wide.zero = NULL;
    TH_OK(dtr_optim_create(wide.ddp, NULL, NULL, &whole));
    TH_OK(dtr_zero_create(wide.ddp, NULL, &wide.zero)); /* it has no place any more */
    TH_IS(dtr_optim_save(whole, path), DTR_ERR_STATE);
    TH_IS(dtr_optim_load(whole, path), DTR_ERR_STATE);
    TH_OK(dtr_optim_destroy(whole));
    trainee_free(&adam);
    trainee_free(&sgd);
    trainee_free(&wide);
    TH_AGREE();
    remove_files(path);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp checkpoint", 100);
    th_add(tc, other_ranks, 0, 0);
    th_add(tc, portable, 0, 0);
    th_add(tc, save_load, 0, 0);
    th_add(tc, damaged, 0, 0);
    th_add(tc, replaced, 0, 0);
    th_add(tc, refused, 0, 0);
}

int main(int argc, char **argv) {
    if (dtr_safetensors_save(NULL, NULL, 0, NULL, 0) == DTR_ERR_UNSUPPORTED) {
        printf("skipped: %s\n", dtr_last_error_message());
        return 77;
    }
    return th_main(argc, argv, "ddp_checkpoint", make);
}
