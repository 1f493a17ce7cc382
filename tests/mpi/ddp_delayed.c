/* Parameters that are averaged apart from the buckets (T71, D1-D7). */
#include <stdint.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"
#include "delay.h"

enum { N = 6 };
static const size_t sizes[N] = { 5, 100, 1, 33, 8, 64 };
static const size_t three[] = { 1, 4, 2 };

static bool listed(const dtr_ddp_options *o, size_t i) {
    for (size_t k = 0; k < o->n_delayed; k++) {
        if (o->delayed[k] == i) {
            return true;
        }
    }
    return false;
}

/* Every gradient, last to first; the trigger at a time that depends on the rank (D3). */
static void backward(dtr_ddp *ddp, const synth *s, const dtr_ddp_options *o, int step) {
    size_t when = (size_t)(th_rank() + step) % N;
    for (size_t i = 0; i < N; i++) {
        if (listed(o, i)) {
            synth_write(ddp, s, i, step, false);
        }
    }
    if (!listed(o, o->delayed_trigger)) {
        synth_write(ddp, s, o->delayed_trigger, step, false);
    }
    for (size_t k = N; k-- > 0;) {
        if (k == when) {
            TH_IS(dtr_ddp_grad_ready(ddp, o->delayed_trigger, NULL), DTR_OK);
        }
        if (!listed(o, k) && k != o->delayed_trigger) {
            synth_write(ddp, s, k, step, false);
            TH_IS(dtr_ddp_grad_ready(ddp, k, NULL), DTR_OK);
        }
    }
}

static void steps(const dtr_ddp_options *o, const synth *s) {
    dtr_ddp *ddp = ddp_new(s, o);
    for (size_t b = 0; b < dtr_plan_bucket_count(dtr_ddp_plan(ddp)); b++) {
        const dtr_plan_bucket *k = dtr_plan_get_bucket(dtr_ddp_plan(ddp), b);
        for (size_t i = 0; i < k->n_slots; i++) {
            TH_CHECK(!listed(o, k->slots[i].param), "p%zu is in a bucket", k->slots[i].param);
        }
    }
    TH_AGREE();
    for (int step = 0; step < 4; step++) {
        backward(ddp, s, o, step);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        synth_check_all(ddp, s, step, th_size());
        TH_AGREE();
    }
    dtr_ddp_stats st = stats_of(ddp);
    size_t bytes = 0;
    for (size_t i = 0; i < N; i++) {
        bytes += sizes[i] * dtr_dtype_size(s->dtype);
    }
    TH_ALL(st.last.bytes == bytes && !st.has_error, "%zu bytes, want %zu", st.last.bytes, bytes);
    TH_OK(dtr_ddp_destroy(ddp));
}

/* Triggers among the delayed and among the others; views, types, dynamic and static graphs. */
START_TEST(averages) {
    for (int form = 0; form < 12; form++) {
        synth s = synth_new(N, sizes, form == 4 ? DTR_F64 : form == 5 ? DTR_BF16 : DTR_F32);
        dtr_ddp_options o = delay(three, 3, form & 1 ? 1 : 3);
        o.grad_as_bucket_view = form == 2 || form == 3;
        o.find_unused = form == 6 || form == 7;
        o.static_graph = form == 8 || form == 9;
        o.flags = form >= 10 ? DTR_DDP_PER_PARAM : 0;
        o.bucket_cap_bytes = 100;
        steps(&o, &s);
        synth_free(&s);
    }
}
END_TEST

/* D1, K6: one zeroed block, 64-byte offsets; a caller's gradient moves there and back. */
START_TEST(places) {
    synth s = synth_new(N, sizes, DTR_F32);
    int64_t n = (int64_t)sizes[4];
    dtr_tensor *own = NULL;
    TH_OK(dtr_tensor_empty(th_world(), DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1, &n,
                           &own));
    TH_OK(dtr_tensor_fill(own, 3, NULL));
    void *before = dtr_tensor_data(own);
    s.params[4].grad = own;
    dtr_ddp_options o = delay(three, 3, 1);
    dtr_ddp *ddp = ddp_new(&s, &o);
    char *first = dtr_tensor_data(dtr_ddp_grad(ddp, 1)), *second = (char *)grad_of(ddp, 4),
         *third = (char *)grad_of(ddp, 2);
    TH_CHECK((uintptr_t)first % 64 == 0 && second - first == 448 && third - second == 64,
             "places: %p, +%td, +%td", (void *)first, second - first, third - second);
    TH_CHECK(grad_of(ddp, 1)[99] == 0 && grad_of(ddp, 2)[0] == 0, "not zeroed");
    TH_CHECK(dtr_ddp_grad(ddp, 4) == own && grad_of(ddp, 4)[7] == 3, "the caller's");
    backward(ddp, &s, &o, 1);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    synth_check_all(ddp, &s, 1, th_size());
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    float want = (float)synth_mean(4, 0, th_size(), 1, th_size(), DTR_F32);
    TH_ALL(dtr_tensor_data(own) == before && *(float *)before == want, "not moved back");
    dtr_tensor_release(own);
    synth_free(&s);
}
END_TEST

/* D5: nothing but delayed parameters; and one bucketed parameter only. */
START_TEST(all_delayed) {
    static const size_t all[N] = { 0, 1, 2, 3, 4, 5 };
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = delay(all, N, 0);
    for (int form = 0; form < 4; form++) {
        o.find_unused = form == 1;
        o.static_graph = form == 2;
        o.flags = form == 3 ? DTR_DDP_PER_PARAM : 0;
        steps(&o, &s);
    }
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_ALL(dtr_plan_bucket_count(dtr_ddp_plan(ddp)) == 0, "there are buckets");
    TH_OK(dtr_ddp_forward_begin(ddp));
    TH_OK(dtr_ddp_forward_end(ddp, NULL, 0));
    backward(ddp, &s, &o, 2);
    TH_OK(dtr_ddp_backward_end(ddp, NULL));
    synth_check_all(ddp, &s, 2, th_size());
    TH_OK(dtr_ddp_check_equal(ddp));
    TH_OK(dtr_ddp_check_finalized(ddp));
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* D4: forward_end zeroes gradients that were cleared, the others go on; without sync they add up.
 */
START_TEST(cleared) {
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = delay(three, 3, 1);
    dtr_ddp *ddp = ddp_new(&s, &o);
    backward(ddp, &s, &o, 0);
    TH_OK(dtr_ddp_backward_end(ddp, NULL));
    TH_OK(dtr_ddp_grad_clear(ddp, 4));
    TH_OK(dtr_ddp_set_sync(ddp, false));
    for (int step = 0; step < 3; step++) {
        TH_IS(dtr_ddp_set_sync(ddp, step == 2), DTR_OK);
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        float mean = step == 0 ? 0 : (float)step;
        TH_CHECK(grad_of(ddp, 4)[3] == mean, "step %d: cleared one is %g", step,
                 (double)grad_of(ddp, 4)[3]);
        for (size_t i = 0; i < N; i++) {
            for (size_t k = 0; k < sizes[i]; k++) {
                grad_of(ddp, i)[k] += 1;
            }
        }
        for (size_t i = 0; i < N; i++) {
            if (i == 1 || !listed(&o, i)) {
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            }
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    }
    float kept = (float)synth_mean(2, 0, th_size(), 0, th_size(), DTR_F32) + 3;
    TH_CHECK(grad_of(ddp, 4)[3] == 3, "cleared one is %g", (double)grad_of(ddp, 4)[3]);
    TH_CHECK(grad_of(ddp, 2)[0] > kept - 1e-4f && grad_of(ddp, 2)[0] < kept + 1e-4f,
             "kept one is %g, want %g", (double)grad_of(ddp, 2)[0], (double)kept);
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* D7, M1, ER11: agreed, with each rank in turn. */
START_TEST(errors) {
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = delay(three, 3, 1);
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_IS(dtr_ddp_grad_ready(ddp, 4, NULL), DTR_ERR_ARG);
    TH_MESSAGE("'p4' (4) is delayed");
    TH_AGREE();
    for (int bad = 0; bad < th_size(); bad++) {
        for (int twice = 0; twice < 2; twice++) {
            bool me = bad == th_rank();
            for (size_t i = 0; i < N; i++) {
                synth_write(ddp, &s, i, 0, false);
            }
            for (size_t i = 0; i < N; i++) {
                if (i == 1 ? !(me && twice == 0) : !listed(&o, i)) {
                    TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
                }
            }
            if (me && twice) {
                TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_ERR_STATE);
            } else if (me) {
                TH_IS(dtr_ddp_check_finalized(ddp), DTR_ERR_STATE);
                TH_MESSAGE("'p1' (1)");
            }
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
            TH_MESSAGE("'p1' (1)");
            TH_MESSAGE(twice ? "twice" : "trigger");
            TH_AGREE();
            backward(ddp, &s, &o, 3);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            synth_check_all(ddp, &s, 3, th_size());
            TH_AGREE();
        }
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* J3, J4: ranks that have joined contribute zeros. */
START_TEST(uneven) {
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = delay(three, 3, 3);
    dtr_ddp *ddp = ddp_new(&s, &o);
    dtr_join_options j = DTR_JOIN_OPTIONS_INIT;
    j.divide_by_active = true;
    TH_OK(dtr_ddp_join_begin(ddp, &j));
    for (int step = 0; step < 2 + th_rank(); step++) {
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        for (size_t i = 0; i < N; i++) {
            TH_IS(dtr_tensor_fill(dtr_ddp_grad(ddp, i), 1 + (double)i, NULL), DTR_OK);
        }
        for (size_t i = 0; i < N; i++) {
            if (!listed(&o, i)) {
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            }
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        for (size_t i = 0; i < N; i++) {
            TH_CHECK(grad_of(ddp, i)[0] == 1 + (float)i, "step %d: p%zu is %g", step, i,
                     (double)grad_of(ddp, i)[0]);
        }
    }
    TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* With param_dtype, and on another group afterwards. */
START_TEST(together) {
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = delay(three, 3, 1);
    o.has_param_dtype = true;
    o.param_dtype = DTR_BF16;
    dtr_ddp *ddp = ddp_new(&s, &o);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < N; i++) {
            TH_IS(dtr_tensor_fill(dtr_ddp_grad(ddp, i), th_rank() + 1, NULL), DTR_OK);
        }
        for (size_t i = 0; i < N; i++) {
            if (i == 1 || !listed(&o, i)) {
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            }
        }
        TH_OK(dtr_ddp_backward_end(ddp, NULL));
        for (size_t i = 0; i < N; i++) {
            dtr_tensor *full = dtr_ddp_full_grad(ddp, i);
            float got = full != NULL ? *(float *)dtr_tensor_data(full) : 0;
            TH_CHECK(got == (float)(th_size() + 1) / 2, "p%zu is %g", i, (double)got);
        }
        TH_AGREE();
        TH_OK(dtr_ddp_set_group(ddp, th_group()));
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

static void add_tests(Suite *s) {
    TCase *tc = th_case(s, "delayed parameters", 100);
    th_add(tc, averages, 0, 0);
    th_add(tc, places, 0, 0);
    th_add(tc, all_delayed, 0, 0);
    th_add(tc, cleared, 0, 0);
    th_add(tc, errors, 0, 0);
    th_add(tc, uneven, 0, 0);
    th_add(tc, together, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_delayed", add_tests);
}
