/* T61: the rebuild of the buckets (R1-R6) and the module's plan. */
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"

static void write_all(dtr_ddp *ddp, const synth *s, int step) {
    for (size_t i = 0; i < s->n; i++) {
        synth_write(ddp, s, i, step, false);
    }
}

/* Report in this rank's order: rank 0 upwards, the others rotated. */
static void ordered_step(dtr_ddp *ddp, const synth *s, int step, bool down) {
    write_all(ddp, s, step);
    for (size_t k = 0; k < s->n; k++) {
        size_t i = (k + (size_t)th_rank()) % s->n;
        TH_IS(dtr_ddp_grad_ready(ddp, down ? s->n - 1 - i : i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    synth_check_all(ddp, s, step, th_size());
}

static void same_hash(dtr_ddp *ddp) {
    uint64_t all[64];
    th_gather_u64(dtr_plan_hash(dtr_ddp_plan(ddp)), all);
    for (int r = 1; r < th_size(); r++) {
        TH_CHECK(all[r] == all[0], "plans differ");
    }
}

static void expect_plan(dtr_ddp *ddp, const char *want) {
    char text[128];
    plan_text(dtr_ddp_plan(ddp), text, sizeof text);
    TH_CHECK(strcmp(text, want) == 0, "plan is %s, want %s", text, want);
    same_hash(ddp);
    TH_AGREE();
}

static dtr_ddp_options small_options(bool view) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.first_bucket_bytes = 1024; /* g4 and g7 in 1/1024 of their size */
    o.bucket_cap_bytes = 25 * 1024;
    o.grad_as_bucket_view = view;
    return o;
}

/* R1, R3, R4: rank 0's order, once. */
START_TEST(ranks_differ) {
    for (int view = 0; view < 2; view++) {
        synth s = synth_equal(10, 6 * 1024 / 4);
        dtr_ddp_options o = small_options(view == 1);
        dtr_ddp *ddp = ddp_new(&s, &o);
        expect_plan(ddp, "9|8,7,6,5,4|3,2,1,0"); /* g7 */
        dtr_tensor *handle = dtr_ddp_grad(ddp, 3);
        for (int step = 0; step < 5; step++) {
            ordered_step(ddp, &s, step, false);
            expect_plan(ddp, "0|1,2,3,4,5|6,7,8,9"); /* g4 */
        }
        TH_CHECK(dtr_ddp_grad(ddp, 3) == handle, "another handle");
        TH_CHECK(stats_of(ddp).rebuilds == 1, "%d rebuilds", (int)stats_of(ddp).rebuilds);
        TH_CHECK(strstr(stats_of(ddp).description, "ready order: 0 1 2 3 4 5 6 7 8 9") != NULL,
                 "description: %s", stats_of(ddp).description);
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* R6: an equal plan moves nothing; H3: views lie in their buckets. */
START_TEST(equal_plan) {
    synth s = synth_equal(10, 6 * 1024 / 4);
    dtr_ddp_options o = small_options(true);
    dtr_ddp *ddp = ddp_new(&s, &o);
    float *before[10];
    for (size_t i = 0; i < 10; i++) {
        before[i] = grad_of(ddp, i);
    }
    TH_CHECK((char *)before[7] - (char *)before[8] == 6 * 1024, "no neighbours in one bucket");
    uint64_t hash = dtr_plan_hash(dtr_ddp_plan(ddp));
    synth_good_step(ddp, &s, 0);
    synth_good_step(ddp, &s, 1);
    TH_CHECK(dtr_plan_hash(dtr_ddp_plan(ddp)) == hash, "the plan changed");
    for (size_t i = 0; i < 10; i++) {
        TH_CHECK(grad_of(ddp, i) == before[i], "p%zu moved", i);
        TH_CHECK((uintptr_t)before[i] % 64 == 0, "p%zu is not aligned", i);
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* R2: local and evaluation iterations do not count; with and without forward calls. */
START_TEST(late_rebuild) {
    for (int forward = 0; forward < 2; forward++) {
        synth s = synth_equal(4, 100);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = 400;
        dtr_ddp *ddp = ddp_new(&s, &o);
        TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK);
        for (size_t i = 0; i < 4; i++) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
        TH_IS(dtr_ddp_set_eval(ddp, true), DTR_OK);
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        TH_IS(dtr_ddp_set_eval(ddp, false), DTR_OK);
        expect_plan(ddp, "3|2|1|0");
        if (forward) {
            TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
            TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        }
        ordered_step(ddp, &s, 2, false);
        expect_plan(ddp, "0|1|2|3");
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* An error in the first iteration puts the rebuild off. */
START_TEST(rebuild_after_error) {
    synth s = synth_equal(4, 100);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 400;
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
    expect_plan(ddp, "3|2|1|0");
    ordered_step(ddp, &s, 2, false);
    expect_plan(ddp, "0|1|2|3");
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* R1: never with find_unused alone. */
START_TEST(dynamic_keeps) {
    synth s = synth_equal(4, 100);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 400;
    o.find_unused = true;
    dtr_ddp *ddp = ddp_new(&s, &o);
    for (int step = 0; step < 5; step++) {
        ordered_step(ddp, &s, step, false);
        expect_plan(ddp, "3|2|1|0");
        dtr_ddp_step last = stats_of(ddp).last;
        TH_CHECK(th_size() == 1 || last.collectives == last.buckets + 1, "%zu collectives",
                 last.collectives); /* U4 */
    }
    TH_CHECK(stats_of(ddp).rebuilds == 0, "rebuilt");
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* R3 with a static graph: what rank 0 did not use comes last; O17: what nobody used goes. */
START_TEST(static_order) {
    for (int skip = 0; skip < 2; skip++) {
        synth s = synth_equal(5, 100);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = 400;
        o.static_graph = true;
        o.skip_unused = skip == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (int step = 0; step < 4; step++) {
            for (size_t i = 0; i < 4; i++) { /* p1 unused on rank 0, p4 everywhere */
                if (i != 1 || th_rank() > 0) {
                    synth_write(ddp, &s, i, step, false);
                    TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
                }
            }
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            bool keeps = !skip;
            expect_plan(ddp, keeps ? "0|2|3|4|1" : th_size() == 1 ? "0|2|3" : "0|2|3|1");
            synth_check(ddp, &s, 0, step, th_size());
            synth_check(ddp, &s, 3, step, th_size());
            TH_CHECK(!dtr_ddp_grad_defined(ddp, 4), "p4 is defined");
            TH_CHECK(dtr_ddp_grad_defined(ddp, 1) == (th_size() > 1), "p1");
        }
        TH_CHECK(stats_of(ddp).last.bytes == (size_t)(skip ? th_size() == 1 ? 1200 : 1600 : 2000),
                 "%zu bytes", stats_of(ddp).last.bytes);
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* R5: gradients kept over the rebuild stay bitwise; A12: padding stays zero. */
START_TEST(values_survive) {
    static const size_t sizes[] = { 3, 17, 0, 33, 5 };
    for (int view = 0; view < 2; view++) {
        synth s = synth_new(5, sizes, DTR_F32);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = 100;
        o.grad_as_bucket_view = view == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (int step = 0; step < 10; step++) {
            ordered_step(ddp, &s, step, false);
            const dtr_plan *plan = dtr_ddp_plan(ddp);
            for (size_t b = 0; view == 1 && b < dtr_plan_bucket_count(plan); b++) {
                const dtr_plan_bucket *k = dtr_plan_get_bucket(plan, b);
                const char *data = (char *)grad_of(ddp, k->slots[0].param) - k->slots[0].offset;
                for (size_t i = 0; i < k->n_slots; i++) {
                    size_t end = i + 1 < k->n_slots ? k->slots[i + 1].offset : k->nbytes;
                    for (size_t at = k->slots[i].offset + k->slots[i].nbytes; at < end; at++) {
                        TH_CHECK(data[at] == 0, "padding of bucket %zu is not zero", b);
                    }
                }
            }
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* O7, O18, A10 and the printed table. */
START_TEST(limits) {
    synth s = synth_equal(6, 100);
    static const size_t list[] = { 400, 800 };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.plan_limits = list;
    o.n_plan_limits = 2;
    dtr_ddp *ddp = ddp_new(&s, &o);
    expect_plan(ddp, "5|4,3|2,1|0");
    TH_OK(dtr_ddp_destroy(ddp));
    o.flags = DTR_DDP_SMALL_LAST;
    ddp = ddp_new(&s, &o);
    expect_plan(ddp, "5|3,4|1,2|0");
    char text[2048];
    size_t n = dtr_plan_print(dtr_ddp_plan(ddp), text, sizeof text);
    TH_CHECK(n == strlen(text) && strstr(text, "p3(0) p4(448)") != NULL, "%s", text);
    TH_OK(dtr_ddp_destroy(ddp));
    o = (dtr_ddp_options)DTR_DDP_OPTIONS_INIT;
    o.first_bucket_bytes = 4000;
    o.bucket_cap_bytes = 800;
    th_log_clear();
    ddp = ddp_new(&s, &o);
    TH_CHECK(th_log_count("first_bucket_bytes") == 1, "no warning");
    expect_plan(ddp, "5,4|3,2|1,0");
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp plan", 100);
    th_add(tc, ranks_differ, 0, 0);
    th_add(tc, equal_plan, 0, 0);
    th_add(tc, late_rebuild, 0, 0);
    th_add(tc, rebuild_after_error, 0, 0);
    th_add(tc, dynamic_keeps, 0, 0);
    th_add(tc, static_order, 0, 0);
    th_add(tc, values_survive, 0, 0);
    th_add(tc, limits, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_plan", make);
}
