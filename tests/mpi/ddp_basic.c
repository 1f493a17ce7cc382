/* DDP: training equals one process, views, dropped forwards, repeated and missing gradients, the
 * table of states, overlap, ready orders. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"
#include "parts.h"
#include "world/world.h"

/* ---- T40, T41: the plain model on the whole batch ---- */

typedef struct run {
    dtr_ddp *ddp;
} run;

static void report(void *arg, int layer) {
    TH_IS(dtr_ddp_grad_ready(((run *)arg)->ddp, (size_t)layer, NULL), DTR_OK);
}

static void ddp_step(net *n, dtr_ddp *ddp, const float *x, const float *y) {
    run r = { ddp };
    float *grad[NET_PARAMS];
    for (int l = 0; l < NET_PARAMS; l++) {
        grad[l] = grad_of(ddp, (size_t)l);
        memset(grad[l], 0, net_numel(l) * sizeof(float));
    }
    TH_IS(dtr_ddp_grad_clear(ddp, SIZE_MAX), DTR_OK);
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    net_backward(n, x + NET_IN * th_rank(), y + NET_OUT * th_rank(), 1, grad, report, &r);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    for (int l = 0; l < NET_PARAMS; l++) {
        grad[l] = grad_of(ddp, (size_t)l);
    }
    net_descend(n, grad);
}

static void check_plan(dtr_ddp *ddp) {
    char text[64];
    plan_text(dtr_ddp_plan(ddp), text, sizeof text);
    TH_CHECK(strcmp(text, "2,1|0") == 0, "plan is %s", text);
}

static void train(bool view, bool own_grads) {
    int W = th_size();
    net plain = net_new(5), n = net_new(th_rank() == 0 ? 5 : 77);
    dtr_tensor *own[NET_PARAMS] = { NULL };
    for (int l = 0; l < NET_PARAMS && own_grads; l++) {
        TH_IS(dtr_tensor_clone(n.value[l], &own[l]), DTR_OK);
        n.params[l].grad = own[l];
    }
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 1048;
    o.grad_as_bucket_view = view;
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(th_group(), n.params, NET_PARAMS, &o, &ddp));
    check_plan(ddp);
    for (int l = 0; l < NET_PARAMS; l++) {
        TH_CHECK(!own_grads || dtr_ddp_grad(ddp, (size_t)l) == own[l], "another gradient handle");
    }
    float x[7 * NET_IN], y[7 * NET_OUT];
    for (int i = 0; i < 3; i++) {
        net_batch(W, i, x, y);
        net_plain_step(&plain, W, x, y);
        ddp_step(&n, ddp, x, y);
        for (int l = 0; l < NET_PARAMS; l++) {
            for (size_t k = 0; k < net_numel(l); k++) {
                TH_CHECK(net_near(n.weight[l][k], plain.weight[l][k]), "fc%d[%zu] is %g, want %g",
                         l + 1, k, n.weight[l][k], plain.weight[l][k]);
            }
        }
        TH_AGREE();
    }
    check_plan(ddp);
    dtr_ddp_stats s = stats_of(ddp);
    TH_CHECK(s.last.bytes == 2880 && s.last.buckets == 2, "bytes %zu in %zu buckets", s.last.bytes,
             s.last.buckets);
    TH_CHECK(W == 1 || s.last.collectives == 2, "%zu collectives", s.last.collectives);
    TH_IS(dtr_ddp_check_equal(ddp), DTR_OK);
    float last = grad_of(ddp, 1)[7];
    TH_OK(dtr_ddp_destroy(ddp));
    for (int l = 0; l < NET_PARAMS && own_grads; l++) { /* I5 */
        TH_CHECK(l != 1 || ((float *)dtr_tensor_data(own[l]))[7] == last, "gradient lost");
        dtr_tensor_release(own[l]);
    }
    net_free(&plain);
    net_free(&n);
    TH_AGREE();
}

START_TEST(plain_model) {
    train(false, false);
    train(false, true);
}
END_TEST

START_TEST(plain_model_view) {
    train(true, false);
    train(true, true);
}
END_TEST

/* T46, ST2: outputs may be dropped. */
START_TEST(dropped_outputs) {
    synth s = synth_equal(4, 100);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    for (int i = 0; i < 4; i++) {
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    }
    for (int i = 0; i < 4; i++) {
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK); /* a dropped forward */
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        synth_good_step(ddp, &s, i);
        TH_AGREE();
    }
    dtr_ddp_stats st = stats_of(ddp);
    TH_CHECK(st.forwards == 12 && st.steps == 4 && st.local_steps == 0, "%d forwards, %d steps",
             (int)st.forwards, (int)st.steps);
    TH_CHECK(th_size() == 1 || st.last.collectives == st.last.buckets, "%zu collectives",
             st.last.collectives);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* T55: reported more than once. */
static void several_times(bool alias) {
    synth s = synth_equal(3, 10);
    dtr_param params[4];
    memcpy(params, s.params, 3 * sizeof params[0]);
    params[3] = (dtr_param){ "again", s.params[1].value, NULL, 0 };
    size_t twice = alias ? 3 : 1;
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(th_group(), params, 4, NULL, &ddp));
    synth_backward(ddp, &s, 0);
    TH_IS(dtr_ddp_grad_ready(ddp, twice, NULL), DTR_ERR_STATE);
    TH_MESSAGE("'p1' (1)");
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
    TH_MESSAGE("'p1' (1) became ready twice on rank 0");
    TH_AGREE();
    synth_good_step(ddp, &s, 1);
    TH_OK(dtr_ddp_destroy(ddp));

    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.static_graph = true;
    TH_OK(dtr_ddp_create(th_group(), params, 4, &o, &ddp));
    for (int step = 0; step < 5; step++) {
        synth_write(ddp, &s, 1, 100, false); /* a first contribution, overwritten by the second */
        TH_IS(dtr_ddp_grad_ready(ddp, twice, NULL), DTR_OK);
        synth_good_step(ddp, &s, step);
        TH_AGREE();
    }
    synth_backward(ddp, &s, 5); /* now only once */
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_GRAPH);
    TH_MESSAGE("'p1' (1) was reported 1 times on rank 0");
    TH_AGREE();
    synth_backward(ddp, &s, 5); /* three times */
    TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_ERR_GRAPH);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_GRAPH);
    TH_MESSAGE("'p1' (1) was reported 3 times on rank 0");
    TH_AGREE();
    TH_IS(dtr_ddp_grad_ready(ddp, twice, NULL), DTR_OK);
    synth_good_step(ddp, &s, 6);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}

/* T55, G3, G7, S3, S5, M2. */
START_TEST(repeated_ready) {
    several_times(false);
    several_times(true);
}
END_TEST

/* ---- T58: ER10, ER11 (M2, Y2) with each rank as the bad one ---- */

typedef struct fault {
    size_t param;
    int rank;
    bool twice, forward;
} fault;

static void bad_step(dtr_ddp *ddp, const synth *s, fault f) {
    char word[128];
    if (f.forward) {
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    }
    for (size_t i = s->n; i-- > 0;) {
        synth_write(ddp, s, i, 0, false);
        if (th_rank() != f.rank || i != f.param || f.twice) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
    }
    if (th_rank() == f.rank && f.twice) {
        TH_IS(dtr_ddp_grad_ready(ddp, f.param, NULL), DTR_ERR_STATE);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
    snprintf(word, sizeof word, "parameter 'p%zu' (%zu) %s on rank %d", f.param, f.param,
             f.twice ? "became ready twice" : "was not ready", f.rank);
    TH_MESSAGE(word);
    TH_AGREE();
}

static void all_faults(const dtr_ddp_options *o) {
    synth s = synth_equal(5, 30);
    dtr_ddp *ddp = ddp_new(&s, o);
    for (int r = 0; r < th_size(); r++) {
        for (int k = 0; k < 12; k++) {
            fault f = { (size_t[]){ 0, 2, 4 }[k % 3], r, k / 3 % 2 == 1, k / 6 == 1 };
            uint64_t before = stats_of(ddp).errors;
            bad_step(ddp, &s, f);
            TH_CHECK(stats_of(ddp).errors > before, "the error was not counted");
        }
        synth_good_step(ddp, &s, r);
        TH_AGREE();
    }
    TH_CHECK(stats_of(ddp).has_error && strstr(stats_of(ddp).error, "rank") != NULL,
             "error text: %s", stats_of(ddp).error);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}

START_TEST(missing_and_double) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 200; /* several buckets */
    all_faults(&o);
    all_faults(NULL); /* one */
    o.grad_as_bucket_view = true;
    all_faults(&o);
    o.grad_as_bucket_view = false;
    o.has_reduce_dtype = true;
    o.reduce_dtype = DTR_F64;
    all_faults(&o);
    o.has_reduce_dtype = false;
    o.flags = DTR_DDP_PER_PARAM;
    all_faults(&o);
}
END_TEST

/* Y3, Y7, I6: two bad ranks; the collectives are those of a good step. */
START_TEST(two_bad_ranks) {
    synth s = synth_equal(5, 30);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 200;
    dtr_ddp *ddp = ddp_new(&s, &o);
    synth_good_step(ddp, &s, 0);
    synth_good_step(ddp, &s, 1);
    for (size_t i = 0; i < 5; i++) {
        synth_write(ddp, &s, i, 2, false);
        if (!(th_rank() == 1 && i >= 2) && !(th_rank() == 2 && i == 0)) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
    }
    TH_IS(dtr_ddp_check_finalized(ddp), th_rank() == 1 || th_rank() == 2 ? DTR_ERR_STATE : DTR_OK);
    if (th_rank() == 1) {
        TH_MESSAGE("'p2' (2), 'p3' (3), 'p4' (4)");
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
    TH_MESSAGE("'p2' (2) was not ready on rank 1 (2 more)");
    TH_MESSAGE("on 1 more of");
    TH_IS(dtr_ddp_check_finalized(ddp), DTR_OK);
    TH_AGREE();
    synth_good_step(ddp, &s, 3);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* M1, ER7: indices. */
START_TEST(bad_indices) {
    synth s = synth_equal(3, 4);
    s.params[0].flags = DTR_PARAM_FROZEN;
    s.params[1].flags = DTR_PARAM_IGNORED;
    dtr_ddp *ddp = ddp_new(&s, NULL);
    for (size_t i = 0; i < 4; i++) {
        if (i != 2) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_ERR_ARG);
            TH_MESSAGE(i == 0 ? "frozen" : i == 1 ? "ignored" : "no parameter 3");
            TH_CHECK(dtr_ddp_grad(ddp, i) == NULL, "a gradient for %zu", i);
            TH_CHECK(!dtr_ddp_grad_defined(ddp, i), "a defined gradient for %zu", i);
            TH_IS(dtr_ddp_grad_clear(ddp, i), DTR_ERR_ARG);
        }
    }
    TH_IS(dtr_ddp_grad_ready(NULL, 0, NULL), DTR_ERR_ARG);
    TH_IS(dtr_ddp_backward_end(NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_ddp_forward_begin(NULL), DTR_ERR_ARG);
    TH_IS(dtr_ddp_get_stats(ddp, NULL), DTR_ERR_ARG);
    dtr_ddp_stats st = { 0 };
    TH_IS(dtr_ddp_get_stats(ddp, &st), DTR_ERR_ARG);
    TH_CHECK(dtr_ddp_plan(NULL) == NULL && dtr_plan_print(dtr_ddp_plan(NULL), NULL, 0) == 0 &&
                 !dtr_ddp_sync(NULL) && dtr_ddp_destroy(NULL) == DTR_OK,
             "NULL is not passed over");
    synth_write(ddp, &s, 2, 0, false);
    TH_IS(dtr_ddp_grad_ready(ddp, 2, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    synth_check(ddp, &s, 2, 0, th_size());
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* ---- T59: overlap in the first step; T60: any order, any thread ---- */

/* One backward pass in which the last rank begins when the others have reported everything: what is
 * under way there stays so until then. Whether that was longer than all the time since before the
 * last grad_ready, which means that the first bucket left before it. */
static bool leaves_before_last(dtr_ddp *ddp, const synth *s, bool up, int step) {
    const bool late = th_size() > 1 && th_rank() == th_size() - 1;
    double before_last = 0;
    if (late) {
        th_barrier();
    }
    for (size_t k = 0; k < s->n; k++) {
        size_t i = up ? k : s->n - 1 - k;
        synth_write(ddp, s, i, step, false);
        th_sleep(late ? 0 : 0.002);
        before_last = th_now();
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    if (!late) {
        th_barrier();
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    double after = th_now(), comm = stats_of(ddp).last.comm_s;
    synth_check_all(ddp, s, step, th_size());
    return comm > after - before_last + 1e-6;
}

/* T59, CF3, A0, M7: 20 parameters of 1 MiB. In the order of the plan the first bucket leaves before
 * the last grad_ready of iteration 1. In the opposite order it cannot, for buckets leave in index
 * order and the first one is complete last (the row has this wrong); after the rebuild, from
 * iteration 2 on, it does there too. */
START_TEST(overlap_first_step) {
    const bool looks = th_rank() < th_size() - 1; /* the last rank and one alone see nothing */
    for (int up = 0; up < 2; up++) {
        synth s = synth_equal(20, TH_SANITIZED ? 16384 : 262144);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.first_bucket_bytes = s.n > 0 ? dtr_tensor_numel(s.params[0].value) * sizeof(float) : 0;
        o.bucket_cap_bytes = 3 * o.first_bucket_bytes;
        dtr_ddp *ddp = ddp_new(&s, &o);
        TH_CHECK(stats_of(ddp).steps == 0, "not the first iteration");
        for (int step = 1; step <= 2; step++) {
            bool early = leaves_before_last(ddp, &s, up, step);
            TH_CHECK(stats_of(ddp).last.buckets == 8, "%zu buckets", stats_of(ddp).last.buckets);
            TH_CHECK(!looks || early == (!up || step == 2),
                     "%s, iteration %d: the first bucket leaves %s the last grad_ready",
                     up ? "upwards" : "downwards", step, early ? "before" : "after");
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

enum { THREADS = 8 };
typedef struct worker {
    dtr_ddp *ddp;
    const size_t *order;
    size_t n;
    int which;
    _Atomic int failures;
} worker;

static void *work(void *arg) {
    worker *w = arg;
    for (size_t k = (size_t)w->which; k < w->n; k += THREADS) {
        w->failures += dtr_ddp_grad_ready(w->ddp, w->order[k], NULL) != DTR_OK;
    }
    return NULL;
}

static void in_threads(dtr_ddp *ddp, const size_t *order, size_t n) {
    pthread_t thread[THREADS];
    worker w[THREADS];
    for (int t = 0; t < THREADS; t++) {
        w[t] = (worker){ ddp, order, n, t, 0 };
        pthread_create(&thread[t], NULL, work, &w[t]);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
        TH_CHECK(w[t].failures == 0, "%d calls failed in thread %d", w[t].failures, t);
    }
}

/* G1, A5, A14, M7; IV1 to IV8 are looked at in every test of modules under sanitizers. */
START_TEST(ready_orders) {
    enum { N = 40 };
    th_rng g = { 1000 + (uint64_t)th_rank() }; /* other orders on other ranks */
    size_t sizes[N], order[N];
    for (size_t i = 0; i < N; i++) {
        sizes[i] = i * 7 % 50; /* empty ones too */
        order[i] = i;
    }
    synth s = synth_new(N, sizes, DTR_F32);
    for (int view = 0; view < 2; view++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = 400;
        o.grad_as_bucket_view = view == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        bool threads = strcmp(th_thread_level(), "multiple") == 0;
        for (int step = 0; step < 50; step++) {
            for (size_t i = N; i > 1; i--) {
                size_t j = th_next(&g) % i, t = order[i - 1];
                order[i - 1] = order[j];
                order[j] = t;
            }
            for (size_t i = 0; i < N; i++) {
                synth_write(ddp, &s, i, step, false);
            }
            if (threads) {
                in_threads(ddp, order, N);
            } else {
                for (size_t k = 0; k < N; k++) {
                    TH_IS(dtr_ddp_grad_ready(ddp, order[k], NULL), DTR_OK);
                }
            }
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            synth_check_all(ddp, &s, step, th_size());
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
    }
    synth_free(&s);
}
END_TEST

/* Counts the passes over unfinished operations that the test's own thread makes. */
static pthread_t own_thread;
static _Atomic int own_passes;

static int count_pass(dtr__poller *self) {
    (void)self;
    if (pthread_equal(pthread_self(), own_thread)) {
        atomic_fetch_add(&own_passes, 1);
    }
    return DTR__POLL_IDLE;
}

/* CF2: works move in the progress thread, else in grad_ready and backward_end; asking for
 * statistics moves nothing. */
START_TEST(stats_move_nothing) {
    enum { N = 6, ASKED = 50 };
    const bool thread = dtr__progress_has_thread(th_world());
    synth s = synth_equal(N, 1000);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr__poller poller = { .poll = count_pass };
    o.bucket_cap_bytes = o.first_bucket_bytes = 1000; /* a bucket each */
    dtr_ddp *ddp = ddp_new(&s, &o);
    own_thread = pthread_self();
    dtr__progress_add(th_world(), &poller);
    for (int step = 0; step < 3; step++) {
        for (size_t i = N; i-- > 0;) {
            synth_write(ddp, &s, i, step, false);
            int before = atomic_load(&own_passes);
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            int ready = atomic_load(&own_passes);
            TH_CHECK(thread || ready > before, "grad_ready moved nothing");
            for (int k = 0; k < ASKED; k++) {
                TH_CHECK(stats_of(ddp).steps == (uint64_t)step, "counted before its end");
            }
            TH_CHECK(atomic_load(&own_passes) == ready, "%d passes while statistics were asked for",
                     atomic_load(&own_passes) - ready);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        synth_check_all(ddp, &s, step, th_size());
    }
    dtr__progress_remove(th_world(), &poller, INFINITY);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp basic", 100);
    th_add(tc, plain_model, 0, 0);
    th_add(tc, plain_model_view, 0, 0);
    th_add(tc, dropped_outputs, 0, 0);
    th_add(tc, repeated_ready, 0, 0);
    th_add(tc, missing_and_double, 0, 0);
    th_add(tc, two_bad_ranks, 3, 0);
    th_add(tc, bad_indices, 0, 0);
    ddp_basic_states(tc);
    th_add(tc, overlap_first_step, 0, 0);
    th_add(tc, ready_orders, 0, 0);
    th_add(tc, stats_move_nothing, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_basic", make);
}
