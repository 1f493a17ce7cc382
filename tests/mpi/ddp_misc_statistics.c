/* DDP: statistics, every step on the CPU (T74: LG1, LG3, LG4, LG7). */
#include <math.h>
#include <string.h>

#include "ddp_models.h"
#include "parts.h"
#include "world/world.h"

/* A duration that covers from..to and is covered by first..last, to a microsecond. */
static bool lies(double from, double to, double duration, double first, double last) {
    return duration >= to - from - 1e-6 && duration <= last - first + 1e-6;
}

static bool is_mean(double got, double sum, int n) {
    return fabs(got - sum / n) <= 1e-9 + 1e-6 * fabs(sum);
}

/* The last rank comes late, so that the others' buckets are under way for a known time at least. */
START_TEST(statistics) {
    const bool late = th_rank() == th_size() - 1, others = th_size() > 1;
    int waited = 0;
    synth s = synth_equal(6, 20000);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 80000;
    dtr_ddp *ddp = ddp_new(&s, &o);
    dtr_ddp_stats st = stats_of(ddp);
    TH_CHECK(st.steps == 0 && !st.has_error && st.error[0] == '\0' && st.hook[0] == '\0' &&
                 st.buckets == 6 && strstr(st.description, "ranks: ") != NULL,
             "after create: %s", st.description);
    double forward = 0, backward = 0, comm = 0, exposed = 0, overlap = 0;
    double nap = 0.024; /* twice as long until all others have waited: ranks may lose their core */
    int steps = 0;
    for (int k = 0; k < 12; k++) {
        bool sync = k % 4 != 3;
        TH_IS(dtr_ddp_set_sync(ddp, sync), DTR_OK);
        double at[6] = { th_now() };
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        at[1] = th_now();
        th_sleep(0.003);
        at[2] = th_now();
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        at[3] = th_now();
        th_sleep(late ? nap : 0.004);
        double begun = th_now();
        synth_backward(ddp, &s, k);
        at[4] = th_now();
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        at[5] = th_now();
        double apart = others && !late ? -at[4] : 0; /* from there to the last rank's beginning */
        begun = th_latest(late ? begun : 0);
        apart += others && !late ? begun : 0;
        dtr_ddp_step last = stats_of(ddp).last;
        if (sync) {
            steps++;
            forward += last.forward_s;
            backward += last.backward_s;
            comm += last.comm_s;
            exposed += last.exposed_comm_s;
            overlap += last.overlap;
            /* Each lies within instants around it, which holds on the slowest machine. */
            TH_CHECK(lies(at[1], at[2], last.forward_s, at[0], at[3]), "forward %g",
                     last.forward_s);
            TH_CHECK(lies(at[3], at[4], last.backward_s, at[2], at[5]), "backward %g",
                     last.backward_s);
            TH_CHECK(lies(0, fmax(apart, 0), last.comm_s, at[3], at[5]),
                     "communication %g, alone for %g", last.comm_s, apart);
            TH_CHECK(lies(0, 0, last.exposed_comm_s, at[4], at[5]), "exposed %g",
                     last.exposed_comm_s);
            TH_CHECK(others || (last.comm_s == 0 && last.exposed_comm_s == 0 && last.overlap == 1),
                     "one rank communicates for %g s, exposed %g", last.comm_s,
                     last.exposed_comm_s);
            waited += apart > 0.005 && last.exposed_comm_s > apart / 2;
            uint64_t seen[64];
            th_gather_u64(waited > 0 || late, seen);
            bool all = true;
            for (int r = 0; r < th_size(); r++) {
                all = all && seen[r] != 0;
            }
            nap = all ? nap : fmin(2 * nap, 2);
            TH_CHECK(last.bytes == 480000 && last.buckets == 6, "%zu %zu", last.bytes,
                     last.buckets);
            double hidden = last.comm_s > 0 ? 1 - last.exposed_comm_s / last.comm_s : 1;
            TH_CHECK(fabs(last.overlap - fmax(hidden, 0)) < 1e-9, "exposed %g of %g, overlap %g",
                     last.exposed_comm_s, last.comm_s, last.overlap);
        }
    }
    TH_CHECK(!others || late || waited > 0, "no step shows that backward_end waited");
    st = stats_of(ddp);
    TH_CHECK(st.steps == 9 && st.local_steps == 3 && st.forwards == 12 && st.rebuilds == 1 &&
                 st.errors == 0,
             "counters");
    TH_CHECK(is_mean(st.average.forward_s, forward, steps) &&
                 is_mean(st.average.backward_s, backward, steps) &&
                 is_mean(st.average.comm_s, comm, steps) &&
                 is_mean(st.average.exposed_comm_s, exposed, steps) &&
                 is_mean(st.average.overlap, overlap, steps) && st.average.bytes == 480000,
             "means");
    dtr_ddp_stats small = { .struct_size = offsetof(dtr_ddp_stats, errors) };
    small.errors = 77;
    TH_IS(dtr_ddp_get_stats(ddp, &small), DTR_OK);
    TH_CHECK(small.forwards == 12 && small.errors == 77, "a short struct was overrun");
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* LG2: the ratio tells whether communication was hidden: with sleeps behind each gradient, and with
 * only the last rank late. Sleeps double until they outlast the rest of a step. */
START_TEST(overlap_ratio) {
    bool thread = dtr__progress_has_thread(th_world());
    for (int late = 0; late < 2 && th_size() > 1 && thread; late++) {
        synth s = synth_equal(20, 100000);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = 400000;
        dtr_ddp *ddp = ddp_new(&s, &o);
        uint64_t seen[64] = { 0 };
        double nap = 0.01;
        for (int step = 0; step < (late ? 12 : 6) && seen[0] == 0; step++, nap *= 2) {
            for (size_t i = 20; i-- > 0;) {
                synth_write(ddp, &s, i, step, false);
            }
            th_barrier();
            th_sleep(late && th_rank() == th_size() - 1 ? nap : 0);
            for (size_t i = 20; i-- > 0;) {
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
                if (!late) {
                    th_sleep(nap);
                }
            }
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            double ratio = stats_of(ddp).last.overlap;
            th_gather_u64(late ? ratio < 0.2 : ratio > 0.8, seen);
            TH_AGREE();
        }
        TH_CHECK(seen[0] != 0, "late %d: no step shows it", late);
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

void ddp_misc_statistics(TCase *tc) {
    th_add(tc, statistics, 0, 0);
    th_add(tc, overlap_ratio, 0, 0);
}
