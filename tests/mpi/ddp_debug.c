/* DTR_DEBUG=detail: gradients written after they were reported (H5). */
#include <stdio.h>

#include "ddp_models.h"

enum { N = 5, SIZE = 40 };

/* One element of parameter 2 changes on rank `bad` while the library owns it. */
static void write_late(dtr_ddp *ddp, const synth *s, int bad, bool all) {
    for (size_t i = 0; i < N; i++) {
        synth_write(ddp, s, i, 1, false);
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    if (th_rank() == bad || all) {
        grad_of(ddp, 2)[SIZE - 1] += 1;
    }
}

START_TEST(late_writes) {
    for (int form = 0; form < 3; form++) {
        synth s = synth_equal(N, SIZE);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT; /* one bucket, which travels in backward_end */
        o.grad_as_bucket_view = form == 1;
        o.has_reduce_dtype = form == 2;
        o.reduce_dtype = DTR_F64;
        dtr_ddp *ddp = ddp_new(&s, &o);
        synth_good_step(ddp, &s, 0);
        TH_AGREE();
        for (int bad = 0; bad < th_size(); bad++) {
            write_late(ddp, &s, bad, false);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
            TH_MESSAGE("'p2' (2)");
            TH_MESSAGE("written");
            char rank[24];
            snprintf(rank, sizeof rank, "rank %d", bad);
            TH_MESSAGE(rank);
            TH_AGREE();
            synth_good_step(ddp, &s, 2);
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* Nothing is found where nothing is wrong: used sets, iterations without sync, static graphs. */
START_TEST(no_false_alarm) {
    for (int form = 0; form < 3; form++) {
        synth s = synth_equal(N, SIZE);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = form == 2 ? 1 : 0;
        o.find_unused = form == 0;
        o.static_graph = form == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (int step = 0; step < 4; step++) {
            synth_good_step(ddp, &s, step);
        }
        TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK);
        write_late(ddp, &s, 0, true);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
        synth_good_step(ddp, &s, 4);
        TH_AGREE();
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

static void add_tests(Suite *s) {
    TCase *tc = th_case(s, "checks in detail", 100);
    th_add(tc, late_writes, 0, 0);
    th_add(tc, no_false_alarm, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_debug", add_tests);
}
