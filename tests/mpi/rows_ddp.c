/* Rows of the module layer that no other test shows: ranks that disagree on a step, what is under
 * way before backward_end, foreign strides, the order of a forward pass, the description. */
#define DTR_NO_CALL_SITE /* lines are given by hand here */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/tensor_sparse.h"
#include "ddp_models.h"
#include "recorder/recording.h"
#include "reducer/reducer.h"

static dtr_ddp_options many_buckets(void) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 1;
    return o;
}

/* N6, Y8, ER15, ER16: rank 1 keeps step 1 to itself, then all are in sync: its first bucket is that
 * of step 2, which must not be taken for the others' of step 1. */
START_TEST(N6_Y8_ER15_sync_flags_differ) {
    synth s = synth_equal(4, 30);
    dtr_ddp_options o = many_buckets();
    dtr_ddp *ddp = ddp_new(&s, &o);
    synth_good_step(ddp, &s, 0);
    TH_IS(dtr_ddp_set_sync(ddp, th_rank() != 1), DTR_OK);
    for (size_t i = 0; i < 4 && th_rank() == 1; i++) {
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(th_rank() == 1 ? dtr_ddp_backward_end(ddp, NULL) : DTR_OK, DTR_OK);
    TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
    dtr_status s1 = DTR_OK;
    for (size_t i = 0; i < 4; i++) {
        synth_write(ddp, &s, i, 1, false);
        s1 = dtr_ddp_grad_ready(ddp, i, NULL);
        TH_CHECK(s1 == DTR_OK || s1 == DTR_ERR_MISMATCH, "grad_ready gave %s", dtr_status_name(s1));
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_MISMATCH);
    TH_AGREE();
    /* FAILED: other calls return the same status, and the parent group works. */
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_ERR_MISMATCH);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_MISMATCH);
    TH_IS(dtr_ddp_set_sync(ddp, true), DTR_ERR_MISMATCH);
    dtr_ddp_stats st = stats_of(ddp);
    TH_CHECK(st.has_error && st.error[0] != '\0', "no error is kept"); /* I12 */
    TH_AGREE();
    TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
    synth_free(&s);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* ---- what the recorder says ---- */

enum { MOST = 4096 };

/* Records of this world whose label begins with `label`, since record `after`; kinds go to `kinds`
 * where that is not NULL. */
static size_t recorded(uint64_t after, const char *label, uint8_t *kinds) {
    static dtr__record all[MOST];
    size_t n = dtr__rec_read(th_world(), all, MOST), found = 0;
    for (size_t i = 0; i < n; i++) {
        if (all[i].number > after && strncmp(all[i].label, label, strlen(label)) == 0) {
            if (kinds != NULL && found < 16) {
                kinds[found] = all[i].kind;
            }
            found++;
        }
    }
    return found;
}

/* How many records since `after` were called from that line of train.c; *others: operations of
 * modules from elsewhere. */
static size_t called_in(uint64_t after, int line, size_t *others) {
    static dtr__record all[MOST];
    char there[sizeof all[0].site];
    size_t n = dtr__rec_read(th_world(), all, MOST), found = 0;
    snprintf(there, sizeof there, "train.c:%d", line);
    *others = 0;
    for (size_t i = 0; i < n; i++) {
        bool same = strcmp(all[i].site, there) == 0;
        found += all[i].number > after && same;
        *others += all[i].number > after && !same && strncmp(all[i].label, "ddp", 3) == 0;
    }
    return found;
}

static uint64_t newest_record(void) {
    static dtr__record all[MOST];
    size_t n = dtr__rec_read(th_world(), all, MOST);
    return n > 0 ? all[n - 1].number : 0;
}

/* What a module starts was called from the program's line, not from inside the library (this file
 * has no macros: the line is given as they do). What comes after it has a place of its own again,
 * and so has a call without a line. */
START_TEST(reliability_P13_called_at_in_a_module) {
    synth s = synth_equal(2, 30);
    dtr_ddp *ddp = NULL;
    size_t others[4], at[4];
    uint64_t before = newest_record();
    dtr_call_site("src/train.c", 1);
    TH_IS(dtr_ddp_create(th_group(), s.params, s.n, NULL, &ddp), DTR_OK);
    at[0] = called_in(before, 1, &others[0]);
    for (int step = 1; step < 3; step++) {
        for (size_t i = s.n; i-- > 0;) {
            synth_write(ddp, &s, i, step, false);
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        before = newest_record();
        if (step == 1) {
            dtr_call_site("src/train.c", 2);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        at[step] = called_in(before, 2, &others[step]);
    }
    th_good_allreduce(th_group());
    at[3] = called_in(0, 2, &others[3]);
    TH_CHECK(at[0] > 0 && others[0] == 0, "create: %zu, %zu elsewhere", at[0], others[0]);
    TH_CHECK(at[1] > 0 && others[1] == 0, "end: %zu, %zu elsewhere", at[1], others[1]);
    TH_CHECK(at[2] == 0 && others[2] > 0, "without a line: %zu at that of another call", at[2]);
    TH_CHECK(at[3] == at[1], "%zu at the line of an earlier call", at[3] - at[1]);
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* Every gradient but that of parameter `unused`, in the order of the plan; buckets under way before
 * backward_end, by the number of the module's own group: a record may be under change. */
static size_t launched(dtr_ddp *ddp, const synth *s, int step, size_t unused) {
    uint64_t before = dtr_group_seq(ddp->group);
    for (size_t i = s->n; i-- > 0;) {
        if (i != unused) {
            synth_write(ddp, s, i, step, false);
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
    }
    uint64_t n = dtr_group_seq(ddp->group) - before;
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_AGREE();
    return (size_t)n;
}

/* A0, CF3: the first step launches as gradients come, all but the last bucket, which carries the
 * verdict. U11: a list keeps that; inference holds back
 * the bucket of what is unused and all later ones. S2: a static graph launches from step 2 on. */
START_TEST(A0_CF3_U11_S2_launches) {
    enum { N = 6 };
    dtr_ddp_options o = many_buckets();
    synth s = synth_equal(N, 30);
    dtr_ddp *ddp = ddp_new(&s, &o);
    size_t n = launched(ddp, &s, 0, N);
    TH_CHECK(n == N - 1, "%zu of %d buckets in the first step", n, N);
    TH_OK(dtr_ddp_destroy(ddp));
    o.find_unused = true;
    ddp = ddp_new(&s, &o);
    for (int step = 0; step < 4; step++) {
        const size_t unused = 2; /* its bucket is the fourth */
        bool listed = step % 2 == 1;
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, listed ? &unused : NULL, listed), DTR_OK);
        n = launched(ddp, &s, step, unused);
        TH_CHECK(n == (listed ? N - 1 : N - 3), "step %d: %zu buckets", step, n);
    }
    TH_OK(dtr_ddp_destroy(ddp));
    o.find_unused = false;
    o.static_graph = true;
    ddp = ddp_new(&s, &o);
    for (int step = 0; step < 3; step++) {
        n = launched(ddp, &s, step, N);
        TH_CHECK(n == (step == 0 ? 0 : N - 1), "static, step %d: %zu buckets", step, n);
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* F6, F9: forward_begin sends the join's header, then the buffers; forward_end nothing. */
START_TEST(F6_F9_order_of_a_forward_pass) {
    const int64_t shape[] = { 5 };
    synth s = synth_equal(2, 30);
    dtr_tensor *t = NULL;
    uint8_t kinds[16] = { 0 };
    TH_OK(dtr_tensor_empty(th_world(), DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1,
                           shape, &t));
    dtr_param buffer = { "running", t, NULL, 0 };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.buffers = &buffer;
    o.n_buffers = 1;
    dtr_ddp *ddp = ddp_new(&s, &o);
    for (int joined = 0; joined < 2; joined++) {
        TH_IS(joined ? dtr_ddp_join_begin(ddp, NULL) : DTR_OK, DTR_OK);
        TH_IS(dtr_tensor_fill(t, 7 + th_rank(), NULL), DTR_OK);
        uint64_t before = newest_record();
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        size_t n = recorded(before, "ddp", kinds);
        TH_CHECK(n == 1 + (size_t)joined && kinds[joined] == DTR__K_BROADCAST &&
                     (!joined || kinds[0] == DTR__K_ALLGATHER),
                 "%zu operations, the first two of kinds %d and %d", n, kinds[0], kinds[1]);
        float from = ((float *)dtr_tensor_data(t))[4];
        TH_CHECK(from == (float)(joined ? 7 + th_size() - 1 : 7), "the buffer is %g", from);
        before = newest_record();
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        TH_CHECK(newest_record() == before, "forward_end communicates");
        synth_backward(ddp, &s, joined);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        synth_check_all(ddp, &s, joined, th_size());
        TH_IS(joined ? dtr_ddp_join_end(ddp) : DTR_OK, DTR_OK);
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_tensor_release(t);
    synth_free(&s);
}
END_TEST

/* H6, H4: a gradient with other strides is copied element by element, with one warning; handles
 * stay, over the rebuild too. */
START_TEST(H6_H4_foreign_strides) {
    const int64_t shape[] = { 3, 4 }, turned[] = { 4, 3 };
    dtr_device cpu = { DTR_CPU, 0 };
    dtr_param p[2] = { { "a", NULL, NULL, 0 }, { "b", NULL, NULL, 0 } };
    dtr_tensor *base[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++) {
        TH_OK(dtr_tensor_empty(th_world(), DTR_F32, cpu, DTR_MEM_DEFAULT, 2, shape, &p[i].value));
        TH_OK(dtr_tensor_fill(p[i].value, 1, NULL));
        TH_OK(dtr_tensor_empty(th_world(), DTR_F32, cpu, DTR_MEM_DEFAULT, 2, turned, &base[i]));
        TH_OK(dtr_tensor_transpose(base[i], 0, 1, &p[i].grad));
    }
    dtr_ddp *ddp = NULL;
    th_log_clear();
    TH_OK(dtr_ddp_create(th_group(), p, 2, NULL, &ddp));
    TH_CHECK(th_log_count("strides") == 1, "%d warnings", th_log_count("strides"));
    dtr_tensor *handle = dtr_ddp_grad(ddp, 0);
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < 2; i++) {
            float *g = dtr_tensor_data(base[i]);
            for (int k = 0; k < 12; k++) {
                g[k] = (float)(k + th_rank() * 2 * (k % 3));
            }
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        for (int k = 0; k < 12; k++) {
            float want = (float)(k + (th_size() - 1) * (k % 3)),
                  got = ((float *)dtr_tensor_data(base[1]))[k];
            TH_CHECK(got == want, "step %d: element %d is %g, not %g", step, k, got, want);
        }
        TH_CHECK(dtr_ddp_grad(ddp, 0) == handle, "another handle in step %d", step);
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(ddp));
    for (int i = 0; i < 2; i++) {
        dtr_tensor_release(p[i].value);
        dtr_tensor_release(p[i].grad);
        dtr_tensor_release(base[i]);
    }
}
END_TEST

/* LG5: after create, and after the rebuild. */
START_TEST(LG5_description) {
    synth s = synth_equal(3, 16);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    char ranks[32];
    o.bucket_cap_bytes = 100;
    o.first_bucket_bytes = 50;
    o.grad_as_bucket_view = true;
    dtr_ddp *ddp = ddp_new(&s, &o);
    snprintf(ranks, sizeof ranks, "ranks: %d\n", th_size());
    const char *const first[] = { ranks,
                                  "device: cpu\n",
                                  "backend: ",
                                  "parameters: 3, trainable 3 with 192 bytes, dtypes f32\n",
                                  "limits: 50 100\n",
                                  "options: grad_as_bucket_view\n",
                                  "\nbucket bytes: " };
    for (size_t k = 0; k < sizeof first / sizeof first[0]; k++) {
        TH_CHECK(strstr(stats_of(ddp).description, first[k]) != NULL, "\"%s\" is not in: %s",
                 first[k], stats_of(ddp).description);
    }
    for (int step = 0; step < 2; step++) {
        for (size_t i = 0; i < 3; i++) {
            synth_write(ddp, &s, i, step, false);
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    }
    const char *text = stats_of(ddp).description;
    TH_CHECK(strstr(text, "bucket bytes before the rebuild: ") != NULL &&
                 strstr(text, "ready order: 0 1 2\n") != NULL,
             "after two steps: %s", text);
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* DBG1, ddp:Y8: a layer above tells its operations apart by a word; a rank that is at another one
 * would add unrelated rows. */
static dtr_tensor *one_element(dtr_dtype d) {
    const int64_t shape[] = { 1 };
    dtr_tensor *t = NULL;
    TH_OK(
        dtr_tensor_empty(th_world(), d, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1, shape, &t));
    return t;
}

START_TEST(DBG1_Y8_sparse_tag_words) {
    dtr_group *g = NULL;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.timeout_s = 50;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), &o, &g));
    dtr_tensor *idx = one_element(DTR_I64), *val = one_element(DTR_F32);
    dtr_tensor *a = NULL, *b = NULL;
    TH_OK(dtr_tensor_fill(idx, 0, NULL));
    TH_OK(dtr_tensor_fill(val, 1, NULL));
    TH_IS(dtr__sparse_allreduce(g, idx, val, 9, DTR_SUM, NULL, 0x71, &a, &b, NULL), DTR_OK);
    TH_CHECK(b != NULL && ((float *)dtr_tensor_data(b))[0] == (float)th_size(),
             "equal words: no sum");
    dtr_tensor_release(a);
    dtr_tensor_release(b);
    a = b = NULL;
    const uint64_t word = th_rank() == th_size() - 1 ? 0x72 : 0x71;
    TH_IS(dtr__sparse_allreduce(g, idx, val, 9, DTR_SUM, NULL, word, &a, &b, NULL),
          DTR_ERR_MISMATCH);
    TH_MESSAGE("internal tag 0x71");
    TH_MESSAGE("internal tag 0x72");
    TH_CHECK(a == NULL && b == NULL, "outputs written");
    dtr_group_destroy(g);
    dtr_tensor_release(idx);
    dtr_tensor_release(val);
    TH_AGREE();
}
END_TEST

/* ---- what the module records of itself ---- */

/* "forward backward wait ..." of spans since number `after`, and the newest number. */
static uint64_t spans_text(uint64_t after, char *text, size_t cap) {
    char why[160];
    uint64_t newest = after;
    const dtr__rec_memory *m = dtr__recorder_memory(th_world());
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    text[0] = '\0';
    TH_CHECK(r != NULL, "the recording: %s", why);
    for (size_t i = 0, at = 0; r != NULL && i < r->n_spans; i++) {
        const dtr__rec_span *s = &r->spans[i];
        if (s->number > after && strncmp(s->what, "ddp_", 4) == 0 && at < cap) {
            at += (size_t)snprintf(text + at, cap - at, "%s%s", at > 0 ? " " : "", s->what + 4);
        }
        newest = s->number;
    }
    dtr__recording_free(r);
    return newest;
}

static void one_step(dtr_ddp *ddp, const synth *s, int step) {
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    synth_backward(ddp, s, step);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    synth_check_all(ddp, s, step, th_size());
}

/* K12-K14, Y4, I14: what is recorded of create, of a step with a rebuild, of one in view mode with
 * a used map, and of a rank that has joined; the order is that of backward_end. */
START_TEST(K12_K14_Y4_I14_spans) {
    static const char copied[] = "forward copy_in launch copy_in launch copy_in backward launch "
                                 "wait copy_out wait copy_out wait copy_out rebuild bucket bucket "
                                 "bucket",
                      viewed[] = "forward launch launch backward launch wait wait wait wait "
                                 "bucket bucket bucket";
    char text[400];
    synth s = synth_equal(3, 5000);
    dtr_ddp_options o = many_buckets();
    uint64_t at = spans_text(0, text, sizeof text);
    dtr_ddp *ddp = ddp_new(&s, &o);
    at = spans_text(at, text, sizeof text);
    TH_CHECK(strcmp(text, "create") == 0, "of create: %s", text);
    dtr_ddp_stats st = stats_of(ddp);
    TH_CHECK(st.steps == 0 && st.buckets == 3 && st.last.bytes == 0 && !st.has_error &&
                 st.description[0] != '\0',
             "statistics after create");
    one_step(ddp, &s, 0);
    at = spans_text(at, text, sizeof text);
    TH_CHECK(strcmp(text, copied) == 0, "of a step: %s", text);
    TH_AGREE();
    TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_OK);
    if (th_rank() != 0) {
        synth zero = s;
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        synth_backward(ddp, &zero, 1);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
    (void)spans_text(at, text, sizeof text);
    TH_CHECK((strstr(text, "shadow") != NULL) == (th_rank() == 0), "of a join: %s", text);
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    o.grad_as_bucket_view = true;
    o.find_unused = true;
    ddp = ddp_new(&s, &o);
    at = spans_text(0, text, sizeof text);
    one_step(ddp, &s, 0);
    (void)spans_text(at, text, sizeof text);
    TH_CHECK(strcmp(text, viewed) == 0, "of a step in view mode: %s", text);
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* H3, M6: views copy nothing; without them each gradient is copied once each way, cast on the way
 * where the buckets have another type. */
START_TEST(H3_M6_bytes_copied) {
    static const size_t sizes[] = { 1, 63, 64, 65, 1000, 4097 };
    const size_t all = 1 + 63 + 64 + 65 + 1000 + 4097;
    for (int mode = 0; mode < 4; mode++) { /* copied, viewed, bf16 buckets, copied for sharding */
        synth s = synth_new(6, sizes, DTR_F32);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        dtr_zero *zero = NULL;
        o.bucket_cap_bytes = 4000;
        o.grad_as_bucket_view = mode == 1;
        o.has_reduce_dtype = mode == 2;
        o.reduce_dtype = DTR_BF16;
        dtr_ddp *ddp = ddp_new(&s, &o);
        TH_IS(mode == 3 ? dtr_zero_create(ddp, NULL, &zero) : DTR_OK, DTR_OK);
        for (int step = 0; step < 3; step++) {
            synth_backward(ddp, &s, step);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            dtr_ddp_stats st = stats_of(ddp);
            size_t want = mode == 1 ? 0 : all * (mode == 2 ? 2 : 4);
            TH_CHECK(mode == 3 || st.last.bytes == all * (mode == 2 ? 2 : 4), "%zu bytes reduced",
                     st.last.bytes);
            TH_CHECK(st.copied_in_bytes == want, "mode %d, step %d: %zu bytes in, not %zu", mode,
                     step, st.copied_in_bytes, want);
            uint64_t out[8], sum = 0; /* sharded: only a rank's own slice comes back */
            th_gather_u64(st.copied_out_bytes, out);
            for (int k = 0; k < th_size(); k++) {
                sum += out[k];
            }
            TH_CHECK(mode == 3 ? sum == want : st.copied_out_bytes == want,
                     "mode %d, step %d: %zu bytes out, not %zu", mode, step, st.copied_out_bytes,
                     want);
        }
        TH_AGREE();
        TH_OK(dtr_zero_destroy(zero));
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* ---- no memory for buckets on one rank ---- */

static bool no_memory;
dtr_status __real_dtr__ddp_layout_make(dtr_ddp *ddp, dtr_plan *plan, dtr__ddp_layout *layout);
dtr_status __wrap_dtr__ddp_layout_make(dtr_ddp *ddp, dtr_plan *plan, dtr__ddp_layout *layout);
dtr_status __wrap_dtr__ddp_layout_make(dtr_ddp *ddp, dtr_plan *plan, dtr__ddp_layout *layout) {
    if (no_memory) {
        dtr_plan_destroy(plan);
        return DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for buckets (by the test)");
    }
    return __real_dtr__ddp_layout_make(ddp, plan, layout);
}

/* ER17, FT7, FI20: at create nothing has happened; at the rebuild the module has failed, and the
 * gradients are the averages. In both cases one rank has the cause and all others are told. */
START_TEST(ER17_FT7_no_memory) {
    for (int bad = 0; bad < th_size(); bad++) {
        dtr_status want = th_rank() == bad ? DTR_ERR_NOMEM : DTR_ERR_REMOTE;
        char word[16];
        snprintf(word, sizeof word, "rank %d", bad);
        synth s = synth_equal(4, 30);
        dtr_ddp_options o = many_buckets();
        dtr_ddp *ddp = NULL;
        no_memory = th_rank() == bad;
        TH_IS(dtr_ddp_create(th_group(), s.params, s.n, &o, &ddp), want);
        TH_MESSAGE(word);
        TH_CHECK(ddp == NULL, "the result was written");
        no_memory = false;
        TH_AGREE();
        ddp = ddp_new(&s, &o);
        dtr_tensor *grad[4];
        for (size_t i = 0; i < 4; i++) { /* another order than the plan's */
            synth_write(ddp, &s, i, 0, false);
            grad[i] = dtr_tensor_retain(dtr_ddp_grad(ddp, i));
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        no_memory = th_rank() == bad;
        TH_IS(dtr_ddp_backward_end(ddp, NULL), want);
        TH_MESSAGE(word);
        TH_MESSAGE("not rebuilt");
        no_memory = false;
        TH_IS(dtr_ddp_forward_begin(ddp), want);
        for (size_t i = 0; i < 4; i++) {
            double mean = synth_mean(i, 7, th_size(), 0, th_size(), DTR_F32);
            float got = ((const float *)dtr_tensor_data(grad[i]))[7];
            TH_CHECK(got == (float)mean, "gradient %zu is %g, not %g", i, got, mean);
            dtr_tensor_release(grad[i]);
        }
        TH_AGREE();
        TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
        synth_free(&s);
        th_good_allreduce(th_group());
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "rows", 110);
    th_add(tc, N6_Y8_ER15_sync_flags_differ, 2, 0);
    th_add(tc, DBG1_Y8_sparse_tag_words, 2, 0);
    th_add(tc, reliability_P13_called_at_in_a_module, 2, 0);
    th_add(tc, A0_CF3_U11_S2_launches, 2, 0);
    th_add(tc, F6_F9_order_of_a_forward_pass, 2, 0);
    th_add(tc, H6_H4_foreign_strides, 0, 0);
    th_add(tc, LG5_description, 0, 0);
    th_add(tc, K12_K14_Y4_I14_spans, 2, 0);
    th_add(tc, H3_M6_bytes_copied, 2, 0);
    th_add(tc, ER17_FT7_no_memory, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "rows_ddp", make);
}
