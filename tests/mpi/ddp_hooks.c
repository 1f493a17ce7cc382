/* The contract of communication hooks (T50-T53, Q1-Q4) and of buffer hooks (T67). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"

static dtr_ddp_options small_buckets(bool view) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 1500;
    o.grad_as_bucket_view = view;
    return o;
}

static void set_all(const dtr_ddp_bucket *b, float value, bool add) {
    for (size_t k = 0; k < dtr_ddp_bucket_param_count(b); k++) {
        dtr_tensor *g = dtr_ddp_bucket_grad(b, k);
        float *data = dtr_tensor_data(g);
        for (size_t i = 0; i < dtr_tensor_numel(g); i++) {
            data[i] = value + (add ? data[i] : 0);
        }
    }
}

/* ---- T50 ---- */

static dtr_status add_one(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)state;
    (void)work;
    set_all(b, 1, true);
    return DTR_OK;
}

static dtr_status write_one(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)work;
    set_all(b, 1, false);
    dtr_status s = dtr_ddp_bucket_set_result(b, dtr_ddp_bucket_buffer(b));
    return s < 0 || state == NULL ? s : dtr_ddp_bucket_then(b, add_one, NULL);
}

START_TEST(constants) {
    for (int k = 0; k < 4; k++) {
        synth s = synth_equal(5, 200);
        dtr_ddp_options o = small_buckets(k % 2 == 1);
        dtr_ddp *ddp = ddp_new(&s, &o);
        TH_IS(dtr_ddp_register_hook(ddp, write_one, k / 2 ? ddp : NULL, "ones"), DTR_OK);
        TH_CHECK(strcmp(stats_of(ddp).hook, "ones") == 0, "hook is '%s'", stats_of(ddp).hook);
        for (int step = 0; step < 3; step++) {
            synth_backward(ddp, &s, step);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            for (size_t i = 0; i < 5; i++) {
                TH_CHECK(grad_of(ddp, i)[199] == (k / 2 ? 2 : 1), "%g", grad_of(ddp, i)[199]);
            }
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* ---- what a hook sees (M6), and the order it is called in (M7) ---- */

typedef struct seen {
    size_t calls, next, n_buckets, wrong;
    float *foreign[8];
    const synth *s;
    int step;
} seen;

static dtr_status look(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    seen *w = state;
    dtr_buffer buffer = dtr_ddp_bucket_buffer(b);
    size_t at = dtr_ddp_bucket_index(b);
    w->calls++;
    w->wrong += at != w->next;
    w->next = (at + 1) % w->n_buckets;
    w->wrong += dtr_ddp_bucket_is_last(b) != (at + 1 == w->n_buckets);
    w->wrong += dtr_ddp_bucket_iteration(b) != (uint64_t)w->step;
    w->wrong += buffer.dtype != DTR_F32 || dtr_ddp_bucket_stream(b) != NULL;
    w->wrong += dtr_group_size(dtr_ddp_bucket_group(b)) != th_size();
    for (size_t k = 0; k < dtr_ddp_bucket_param_count(b); k++) {
        size_t offset, count, i = dtr_ddp_bucket_param(b, k, &offset, &count);
        float *g = dtr_tensor_data(dtr_ddp_bucket_grad(b, k));
        w->wrong += g != (float *)buffer.data + offset || count != 200;
        for (size_t e = 0; e < count; e++) { /* undivided and local */
            w->wrong += g[e] != (float)synth_input(i, e, th_rank(), w->step);
        }
    }
    w->wrong += dtr_ddp_bucket_param(b, 99, NULL, NULL) != SIZE_MAX;
    w->wrong += dtr_ddp_bucket_grad(b, 99) != NULL;
    free(w->foreign[at]);
    w->foreign[at] = calloc(buffer.count, sizeof(float));
    dtr_buffer result = dtr_cpu(w->foreign[at], buffer.count, DTR_F32);
    dtr_ddp_bucket_set_result(b, result);
    return dtr_allreduce(dtr_ddp_bucket_group(b), buffer, result, DTR_AVG, NULL, work);
}

START_TEST(view_of_a_hook) {
    for (int view = 0; view < 2; view++) {
        synth s = synth_equal(5, 200);
        dtr_ddp_options o = small_buckets(view == 1);
        dtr_ddp *ddp = ddp_new(&s, &o);
        seen w = { .s = &s, .n_buckets = stats_of(ddp).buckets };
        TH_IS(dtr_ddp_register_hook(ddp, look, &w, NULL), DTR_OK);
        TH_CHECK(strcmp(stats_of(ddp).hook, "user") == 0, "name");
        for (w.step = 0; w.step < 4; w.step++) {
            synth_good_step(ddp, &s, w.step);
            TH_AGREE();
        }
        TH_CHECK(w.calls == 4 * w.n_buckets && w.wrong == 0, "%zu calls, %zu things wrong", w.calls,
                 w.wrong);
        TH_CHECK(th_size() == 1 || stats_of(ddp).last.collectives == w.n_buckets, "%zu collectives",
                 stats_of(ddp).last.collectives);
        TH_OK(dtr_ddp_destroy(ddp));
        for (int k = 0; k < 8; k++) {
            free(w.foreign[k]);
        }
        synth_free(&s);
    }
}
END_TEST

/* ---- steps with collectives of their own (section 13: a group per depth) ---- */

START_TEST(chained_steps) {
    synth s = synth_equal(9, 200);
    dtr_ddp_options o = small_buckets(false);
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_IS(dtr_ddp_register_hook(ddp, hook_of_three_steps, NULL, "three"), DTR_OK);
    th_rng g = { (uint64_t)th_rank() + 1 };
    for (int step = 0; step < 30; step++) { /* scrambled times on every rank */
        for (size_t i = 9; i-- > 0;) {
            synth_write(ddp, &s, i, step, false);
            th_sleep(1e-4 * (double)(th_next(&g) % 5));
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        for (size_t i = 0; i < 9; i++) {
            float want =
                (float)th_size() * (float)synth_mean(i, 7, th_size(), step, th_size(), DTR_F32);
            TH_CHECK(grad_of(ddp, i)[7] == want, "step %d p%zu: %g, want %g", step, i,
                     grad_of(ddp, i)[7], want);
        }
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* ---- T51, T53, Q2, Q3, Q7: registration ---- */

START_TEST(registration) {
    synth s = synth_equal(2, 20);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    TH_IS(dtr_ddp_register_hook(ddp, NULL, NULL, "x"), DTR_ERR_ARG);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, (dtr_ddp_builtin)99, NULL), DTR_ERR_ARG);
    TH_CHECK(strstr(stats_of(ddp).error, "99") != NULL, "error: %s", stats_of(ddp).error);
    dtr_hook_options ho = { 0 };
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_NOOP, &ho), DTR_ERR_ARG);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_register_hook(ddp, write_one, NULL, "x"), DTR_ERR_STATE);
    TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_IS(dtr_ddp_register_hook(ddp, write_one, NULL, "first"), DTR_OK);
    TH_IS(dtr_ddp_register_hook(ddp, look, NULL, "x"), DTR_ERR_STATE);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_NOOP, NULL), DTR_ERR_STATE);
    TH_MESSAGE("first");
    synth_backward(ddp, &s, 0);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_CHECK(grad_of(ddp, 0)[0] == 1, "the first hook is gone");
    TH_OK(dtr_ddp_destroy(ddp));
    ddp = ddp_new(&s, NULL);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_ALLREDUCE, NULL), DTR_OK);
    TH_IS(dtr_ddp_register_hook(ddp, write_one, NULL, "x"), DTR_ERR_STATE);
    synth_good_step(ddp, &s, 0);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
    size_t size[] = { 10 };
    synth c = synth_new(1, size, DTR_C64);
    ddp = ddp_new(&c, NULL);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_FP16, NULL), DTR_ERR_UNSUPPORTED);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_Q8, NULL), DTR_ERR_UNSUPPORTED);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_ALLREDUCE, NULL), DTR_OK);
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.flags = DTR_DDP_PER_PARAM;
    ddp = ddp_new(&c, &o);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_ALLREDUCE, NULL), DTR_ERR_STATE);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&c);
}
END_TEST

/* Q16-Q18: hooks that differ are found in the first step. */
START_TEST(hooks_differ) {
    synth s = synth_equal(2, 20);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    TH_IS(dtr_ddp_register_hook(ddp, write_one, NULL, th_rank() == 1 ? "odd" : "even"), DTR_OK);
    synth_backward(ddp, &s, 0);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_MISMATCH);
    TH_MESSAGE("'odd'");
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_MISMATCH);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
    th_good_allreduce(th_group());
}
END_TEST

/* ---- T52, Q4, ER13: hooks that fail ---- */

enum { FAIL_NOTHING, FAIL_COUNT, FAIL_DTYPE, FAIL_STATUS, FAIL_LATE, FAILS };
typedef struct failing {
    int how;
    size_t bucket;
    bool now, communicate;
} failing;

static dtr_status late(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    failing *f = state;
    (void)work;
    if (f->now && f->how == FAIL_LATE && dtr_ddp_bucket_index(b) == f->bucket) {
        return DTR_ERR_IO;
    }
    return DTR_OK;
}

static dtr_status may_fail(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    failing *f = state;
    dtr_buffer buffer = dtr_ddp_bucket_buffer(b);
    if (f->now && f->how != FAIL_LATE && dtr_ddp_bucket_index(b) == f->bucket) {
        if (f->how == FAIL_STATUS) {
            return DTR_ERR_IO;
        }
        if (f->how != FAIL_NOTHING) {
            buffer.count -= f->how == FAIL_COUNT;
            buffer.dtype = f->how == FAIL_DTYPE ? DTR_I32 : buffer.dtype;
            dtr_ddp_bucket_set_result(b, buffer);
        }
        return DTR_OK;
    }
    dtr_status s = dtr_ddp_bucket_then(b, late, f);
    if (s < 0) {
        return s;
    }
    return f->communicate
               ? dtr_allreduce(dtr_ddp_bucket_group(b), buffer, buffer, DTR_AVG, NULL, work)
               : dtr_ddp_bucket_set_result(b, buffer);
}

START_TEST(failures) {
    for (int how = 0; how < FAILS; how++) {
        for (int k = 0; k < 6; k++) {
            bool all = k % 2 == 0;
            synth s = synth_equal(6, 200);
            dtr_ddp_options o = small_buckets(k % 3 == 1);
            dtr_ddp *ddp = ddp_new(&s, &o);
            failing f = { how, (size_t)(k / 2), false, k < 4 };
            TH_IS(dtr_ddp_register_hook(ddp, may_fail, &f, "breaks"), DTR_OK);
            for (int step = 0; step < 4; step++) {
                f.now = step % 2 == (k == 5 ? 0 : 1) && (all || th_rank() == th_size() - 1);
                bool bad = step % 2 == (k == 5 ? 0 : 1);
                synth_backward(ddp, &s, step);
                dtr_status got = dtr_ddp_backward_end(ddp, NULL);
                dtr_status want = !bad ? DTR_OK : how < FAIL_STATUS ? DTR_ERR_STATE : DTR_ERR_IO;
                TH_CHECK(got == want, "how %d k %d step %d: %s: %s", how, k, step,
                         dtr_status_name(got), dtr_last_error_message());
                if (bad) {
                    char word[96];
                    snprintf(word, sizeof word, "hook 'breaks' failed on bucket %zu on rank",
                             f.bucket);
                    TH_MESSAGE(word);
                    TH_CHECK(stats_of(ddp).has_error, "no error kept");
                } else if (f.communicate) {
                    synth_check_all(ddp, &s, step, th_size());
                }
                TH_AGREE();
            }
            TH_OK(dtr_ddp_destroy(ddp));
            synth_free(&s);
        }
    }
}
END_TEST

/* T58 under a hook: a missing parameter. */
START_TEST(missing_under_hook) {
    synth s = synth_equal(6, 200);
    dtr_ddp_options o = small_buckets(false);
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_ALLREDUCE, NULL), DTR_OK);
    for (int bad = 0; bad < th_size(); bad++) {
        for (size_t i = 6; i-- > 0;) {
            synth_write(ddp, &s, i, 0, false);
            if (th_rank() != bad || i != 3) {
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            }
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
        char word[64];
        snprintf(word, sizeof word, "'p3' (3) was not ready on rank %d", bad);
        TH_MESSAGE(word);
        TH_AGREE();
        synth_good_step(ddp, &s, bad);
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* ---- T67, P3, P4, P5: buffer hooks ---- */

typedef struct counter {
    dtr_group *group;
    int calls;
    bool fail;
} counter;

static dtr_status average(void *state, dtr_tensor *const *buffers, size_t n, dtr_work **work) {
    counter *c = state;
    c->calls++;
    if (c->fail) {
        return DTR_ERR_IO;
    }
    return n == 1 ? dtr_tensor_allreduce(c->group, buffers[0], DTR_AVG, NULL, work)
                  : DTR_ERR_INTERNAL;
}

START_TEST(buffer_hooks) {
    for (int k = 0; k < 2; k++) {
        synth s = synth_equal(2, 5);
        int64_t n = 3;
        dtr_param b = { "mean", NULL, NULL, 0 };
        dtr_tensor *other = NULL;
        dtr_device cpu = { DTR_CPU, 0 };
        TH_IS(dtr_tensor_empty(th_world(), DTR_F32, cpu, DTR_MEM_DEFAULT, 1, &n, &b.value), DTR_OK);
        TH_IS(dtr_tensor_empty(th_world(), DTR_F32, cpu, DTR_MEM_DEFAULT, 1, &n, &other), DTR_OK);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.buffers = &b;
        o.n_buffers = 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        counter c = { th_group(), 0, false };
        TH_IS(dtr_ddp_register_buffer_hook(ddp, NULL, &c, DTR_PRE_FORWARD), DTR_ERR_ARG);
        TH_IS(dtr_ddp_register_buffer_hook(ddp, average, &c, (dtr_ddp_when)7), DTR_ERR_ARG);
        TH_IS(
            dtr_ddp_register_buffer_hook(ddp, average, &c, k ? DTR_POST_FORWARD : DTR_PRE_FORWARD),
            DTR_OK);
        TH_IS(dtr_ddp_register_buffer_hook(ddp, average, &c, DTR_PRE_FORWARD), DTR_ERR_STATE);
        for (int step = 0; step < 4; step++) {
            bool sync = step != 1;
            TH_IS(dtr_ddp_set_sync(ddp, sync), DTR_OK);
            dtr_tensor_fill(step < 3 ? b.value : other, 10 * step + th_rank(), NULL);
            if (step == 3) {
                TH_IS(dtr_ddp_set_buffer(ddp, 0, other), DTR_OK);
            }
            TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
            TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
            synth_backward(ddp, &s, step);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            float want = 10 * (float)step + (sync ? (float)(th_size() - 1) / 2 : (float)th_rank());
            float got = ((float *)dtr_tensor_data(step < 3 ? b.value : other))[2];
            TH_CHECK(got == want, "step %d: %g, want %g", step, got, want);
            TH_AGREE();
        }
        TH_CHECK(c.calls == 3, "%d calls", c.calls);
        /* An error on one rank is everybody's at the end. */
        c.group = NULL; /* nobody communicates this time: the others are told NOT_MEMBER */
        c.fail = true;
        dtr_status at_once = k ? DTR_OK : DTR_ERR_IO;
        TH_IS(dtr_ddp_forward_begin(ddp), at_once);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), k ? DTR_ERR_IO : DTR_OK);
        synth_backward(ddp, &s, 5);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_IO);
        TH_MESSAGE("buffer hook failed on rank 0");
        TH_AGREE();
        c.fail = false;
        c.group = th_group();
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        synth_good_step(ddp, &s, 6);
        int64_t more = 4;
        dtr_tensor *wrong = NULL;
        TH_IS(dtr_tensor_empty(th_world(), DTR_F32, cpu, DTR_MEM_DEFAULT, 1, &more, &wrong),
              DTR_OK);
        TH_IS(dtr_ddp_set_buffer(ddp, 0, wrong), DTR_ERR_SHAPE);
        TH_IS(dtr_ddp_set_buffer(ddp, 1, other), DTR_ERR_ARG);
        TH_IS(dtr_ddp_set_buffer(ddp, 0, NULL), DTR_ERR_ARG);
        TH_OK(dtr_ddp_destroy(ddp));
        dtr_tensor_release(wrong);
        dtr_tensor_release(other);
        dtr_tensor_release(b.value);
        synth_free(&s);
    }
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp hooks", 100);
    th_add(tc, constants, 0, 0);
    th_add(tc, view_of_a_hook, 0, 0);
    th_add(tc, chained_steps, 0, 0);
    th_add(tc, registration, 0, 0);
    th_add(tc, hooks_differ, 2, 0);
    th_add(tc, failures, 0, 0);
    th_add(tc, missing_under_hook, 0, 0);
    th_add(tc, buffer_hooks, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_hooks", make);
}
