/* Moving a module to another group (I7, R7). */
#include <stdio.h>
#include <string.h>

#include "ddp_models.h"

enum { N = 6, SIZE = 50 };

/* Averages are over the members of the group the module is on. */
static void step_on(dtr_group *g, dtr_ddp *ddp, const synth *s, int step) {
    synth_backward(ddp, s, step);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    for (size_t i = 0; i < s->n; i++) {
        for (size_t k = 0; k < SIZE; k += 7) {
            double sum = 0;
            for (int r = 0; r < dtr_group_size(g); r++) {
                sum += synth_input(i, k, dtr_group_world_rank(g, r), step);
            }
            float want = (float)sum / (float)dtr_group_size(g);
            TH_CHECK(grad_of(ddp, i)[k] == want, "p%zu[%zu] is %g, want %g", i, k,
                     (double)grad_of(ddp, i)[k], (double)want);
        }
    }
}

static dtr_group *lower_half(void) {
    dtr_group *g = NULL;
    int n = (th_size() + 1) / 2;
    TH_OK(dtr_group_split(th_group(), th_rank() < n ? 0 : -1, th_rank(), NULL, &g));
    return g;
}

static void left_out(dtr_ddp *ddp) {
    TH_IS(dtr_ddp_set_group(ddp, NULL), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_ERR_STATE);
    TH_MESSAGE("left the module");
    TH_IS(dtr_ddp_set_group(ddp, th_group()), DTR_ERR_STATE);
    dtr_ddp_stats st = stats_of(ddp);
    TH_CHECK(st.steps == 2, "%llu steps", (unsigned long long)st.steps);
}

/* W -> W/2 ranks: with views, static graph and a hook with memory. */
static void shrink(bool view, bool is_static, bool hook) {
    synth s = synth_equal(N, SIZE);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 500;
    o.grad_as_bucket_view = view;
    o.static_graph = is_static;
    dtr_ddp *ddp = ddp_new(&s, &o);
    if (hook) {
        TH_OK(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_ALLREDUCE, NULL));
    }
    for (int step = 0; step < 2; step++) {
        step_on(th_group(), ddp, &s, step);
    }
    TH_AGREE();
    dtr_group *half = lower_half();
    if (half == NULL) {
        left_out(ddp);
    } else {
        TH_IS(dtr_ddp_set_group(ddp, half), DTR_OK);
        for (int step = 0; step < 3; step++) {
            step_on(half, ddp, &s, step + 2);
        }
        dtr_ddp_stats st = stats_of(ddp);
        TH_CHECK(st.steps == 5 && st.rebuilds == 2, "%llu steps, %llu rebuilds",
                 (unsigned long long)st.steps, (unsigned long long)st.rebuilds);
        char ranks[32];
        snprintf(ranks, sizeof ranks, "ranks: %d\n", dtr_group_size(half));
        TH_CHECK(strstr(st.description, ranks) != NULL, "description: %s", st.description);
    }
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    th_good_allreduce(th_group());
    if (half != NULL) {
        TH_IS(dtr_group_destroy(half), DTR_OK);
    }
    TH_AGREE();
    synth_free(&s);
}

START_TEST(shrinking) {
    for (int form = 0; form < 8; form++) {
        shrink(form & 1, (form & 2) != 0, (form & 4) != 0);
    }
}
END_TEST

/* R7: the plan may change once more, from the ready order on the new group. */
START_TEST(new_order) {
    synth s = synth_equal(N, SIZE);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 1;
    dtr_ddp *ddp = ddp_new(&s, &o);
    char before[64], after[64];
    step_on(th_group(), ddp, &s, 0);
    plan_text(dtr_ddp_plan(ddp), before, sizeof before);
    TH_OK(dtr_ddp_set_group(ddp, th_group())); /* the same members are a new group too */
    for (size_t i = 0; i < N; i++) {
        synth_write(ddp, &s, i, 1, false);
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_OK(dtr_ddp_backward_end(ddp, NULL));
    plan_text(dtr_ddp_plan(ddp), after, sizeof after);
    TH_ALL(strcmp(before, "5|4|3|2|1|0") == 0 && strcmp(after, "0|1|2|3|4|5") == 0, "%s, then %s",
           before, after);
    synth_good_step(ddp, &s, 2);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* Refused calls change nothing. */
START_TEST(rules) {
    synth s = synth_equal(N, SIZE);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    TH_OK(dtr_ddp_grad_ready(ddp, 0, NULL));
    TH_STATUS(dtr_ddp_set_group(ddp, th_group()), DTR_ERR_STATE);
    for (size_t i = 1; i < N; i++) {
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_OK(dtr_ddp_backward_end(ddp, NULL));
    TH_OK(dtr_ddp_join_begin(ddp, NULL));
    TH_STATUS(dtr_ddp_set_group(ddp, th_group()), DTR_ERR_STATE);
    TH_OK(dtr_ddp_join_end(ddp));
    TH_STATUS(dtr_ddp_set_group(NULL, th_group()), DTR_ERR_ARG);
    synth_good_step(ddp, &s, 1);
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* Ranks whose modules differ cannot meet in a group: agreed, and each keeps the one it has. */
START_TEST(different_modules) {
    dtr_group *own = NULL;
    TH_OK(dtr_group_split(th_group(), th_rank(), 0, NULL, &own));
    synth s = synth_equal(th_rank() == 0 ? N : N + 1, SIZE);
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(own, s.params, s.n, NULL, &ddp));
    TH_IS(dtr_ddp_set_group(ddp, th_group()), DTR_ERR_MISMATCH);
    TH_MESSAGE("parameters");
    TH_AGREE();
    step_on(own, ddp, &s, 3);
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    TH_OK(dtr_group_destroy(own));
    synth_free(&s);
}
END_TEST

static void add_tests(Suite *s) {
    TCase *tc = th_case(s, "moving to another group", 100);
    th_add(tc, shrinking, 0, 0);
    th_add(tc, new_order, 0, 0);
    th_add(tc, rules, 0, 0);
    th_add(tc, different_modules, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_group", add_tests);
}
