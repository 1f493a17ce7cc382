/* Row-sparse gradients of a module on the device beside those of the same module in host memory:
 * the same bits with every option. The same program runs over nccl and over stage
 * (DTR_TEST_STAGE=1). */
#include <pthread.h>

#include "ddp_rows.h"

static void train(dtr_dtype type, const dtr_ddp_options *o, int steps) {
    dtr_ddp_stats st = DTR_DDP_STATS_INIT;
    pair m;
    pair_open(&m, o, type);
    for (int k = 0; k < steps; k++) {
        step_both(&m, (o->flags & DTR_DDP_SUM) != 0);
    }
    TH_IS(dtr_ddp_get_stats(m.ddp[DEVICE], &st), DTR_OK);
    TH_CHECK(st.steps == (uint64_t)steps && !st.has_error, "%d steps, %s", (int)st.steps, st.error);
    TH_CHECK(cudaDeviceSynchronize() == cudaSuccess, "synchronize");
    TH_IS(dtr_ddp_get_stats(m.ddp[DEVICE], &st), DTR_OK);
    TH_CHECK(st.timed_steps == (uint64_t)steps, "%d timed steps", (int)st.timed_steps);
    pair_close(&m);
}

/* H8, T49, SPA3: options and types; numbers of rows that differ between ranks, none on some or all.
 */
START_TEST(H8_options) {
    for (int form = 0; form<8; form += th_size()> 4 ? 2 : 1) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.grad_as_bucket_view = form == 1;
        o.find_unused = form == 2;
        o.static_graph = form == 3;
        o.bucket_cap_bytes = form == 4 ? 1 : 0;
        o.flags = form == 5   ? DTR_DDP_PER_PARAM
                  : form == 6 ? DTR_DDP_SUM
                  : form == 7 ? DTR_DDP_SMALL_LAST | DTR_DDP_CHECK_NAN
                              : 0;
        train(DTR_F32, &o, 5);
    }
}
END_TEST

START_TEST(H8_types) {
    static const dtr_dtype types[] = { DTR_F16, DTR_BF16, DTR_F64 };
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.has_reduce_dtype = k == 1;
        o.reduce_dtype = DTR_F32; /* for the dense ones */
        train(types[k], &o, 3);
    }
}
END_TEST

/* X5: rows in the type that backward computes in. */
START_TEST(X5_param_dtype) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    pair m;
    o.has_param_dtype = true;
    o.param_dtype = DTR_BF16;
    pair_open(&m, &o, DTR_F32);
    for (int k = 0; k < 3; k++, m.step++) {
        for (int side = 0; side < 2; side++) {
            TH_IS(dtr_ddp_forward_begin(m.ddp[side]), DTR_OK);
            TH_IS(dtr_ddp_forward_end(m.ddp[side], NULL, 0), DTR_OK);
            backward(&m, side, DTR_BF16);
            TH_IS(end(&m, side), DTR_OK);
        }
        same_rows(&m, TABLE);
        same_rows(&m, LIST);
        TH_AGREE();
    }
    pair_close(&m);
}
END_TEST

/* H8: rows are clipped with the rest, to the host's bits. */
START_TEST(H8_clipped) {
    for (int t = 0; t < 2; t++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        double norm[2] = { -1, -2 };
        pair m;
        pair_open(&m, &o, t == 0 ? DTR_F32 : DTR_BF16);
        for (; m.step < 5; m.step++) {
            for (int side = 0; side < 2; side++) {
                backward(&m, side, m.type);
                TH_IS(end(&m, side), DTR_OK);
                TH_IS(dtr_ddp_clip_grad_norm(m.ddp[side], NULL, 0.25, &norm[side]), DTR_OK);
            }
            TH_CHECK(norm[HOST] == norm[DEVICE] && norm[HOST] > 0.25,
                     "step %d: norm %.17g, on the host %.17g", m.step, norm[DEVICE], norm[HOST]);
            same_rows(&m, TABLE);
            same_rows(&m, LIST);
            TH_AGREE();
        }
        pair_close(&m);
    }
}
END_TEST

/* H8: results that the program keeps stay as they are. */
START_TEST(H8_kept_results) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_tensor *kept[4][2], *copy[4][2];
    pair m;
    pair_open(&m, &o, DTR_F32);
    for (int k = 0; k < 4; k++) {
        dtr_tensor *rows = NULL, *host_values = NULL;
        step_both(&m, false);
        TH_IS(dtr_ddp_sparse_grad(m.ddp[DEVICE], TABLE, &kept[k][0], &kept[k][1]), DTR_OK);
        TH_IS(dtr_ddp_sparse_grad(m.ddp[HOST], TABLE, &rows, &host_values), DTR_OK);
        dtr_tensor_retain(kept[k][0]);
        dtr_tensor_retain(kept[k][1]);
        copy[k][0] = rows;
        copy[k][1] = host_values;
        dtr_tensor_retain(rows);
        dtr_tensor_retain(host_values);
    }
    pair_close(&m);
    TH_CHECK(cudaStreamCreateWithFlags(&m.stream[0], cudaStreamNonBlocking) == cudaSuccess,
             "stream");
    for (int k = 0; k < 4; k++) {
        same_bits(&m, copy[k][0], kept[k][0]);
        same_bits(&m, copy[k][1], kept[k][1]);
        release(kept[k]);
        release(copy[k]);
    }
    cudaStreamDestroy(m.stream[0]);
    TH_AGREE();
}
END_TEST

/* ---- unused parameters, steps without sync ---- */

/* U3, U5, U6, N3: used on some ranks only, on none, and old gradients that take part; rows of steps
 * without sync stay the program's. */
START_TEST(U5_unused) {
    for (int list = 0; list < 2; list++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        const size_t unused[] = { TABLE };
        pair m;
        o.find_unused = true;
        pair_open(&m, &o, DTR_F32);
        for (m.step = 0; m.step < 6; m.step++) {
            /* 0: the last rank leaves it out; 1: nobody uses it; 2: nor now, but ranks that have
             * one give the old one; 3: without sync; 4: what 3 has left; 5: all use it */
            const bool use = m.step == 0 ? th_rank() < th_size() - 1 : m.step == 3 || m.step == 5;
            for (int side = 0; side < 2; side++) {
                dtr_tensor *rows[2];
                TH_IS(dtr_ddp_set_sync(m.ddp[side], m.step != 3), DTR_OK);
                if (m.step == 1 || m.step == 3) {
                    TH_IS(dtr_ddp_grad_clear(m.ddp[side], SIZE_MAX), DTR_OK);
                }
                TH_IS(dtr_ddp_forward_begin(m.ddp[side]), DTR_OK);
                TH_IS(dtr_ddp_forward_end(m.ddp[side], list ? unused : NULL, list && !use), DTR_OK);
                host_rows(&m, TABLE, 1 + th_rank(), DTR_F32, rows);
                if (use) {
                    give(&m, side, TABLE, rows);
                    TH_IS(ready(&m, side, TABLE), DTR_OK);
                }
                release_later(rows);
                dense(&m, side, DENSE_A);
                dense(&m, side, DENSE_B);
                host_rows(&m, LIST, 2, DTR_F32, rows);
                give(&m, side, LIST, rows);
                TH_IS(ready(&m, side, LIST), DTR_OK);
                release_later(rows);
                TH_IS(end(&m, side), DTR_OK);
            }
            if (m.step == 3) { /* behind which nobody waits */
                continue;
            }
            TH_CHECK(dtr_ddp_grad_defined(m.ddp[DEVICE], TABLE) ==
                         dtr_ddp_grad_defined(m.ddp[HOST], TABLE),
                     "step %d: defined", m.step);
            if (dtr_ddp_grad_defined(m.ddp[HOST], TABLE)) {
                same_rows(&m, TABLE);
            }
            same_rows(&m, LIST);
            TH_AGREE();
        }
        pair_close(&m);
    }
}
END_TEST

/* ---- hooks ---- */

typedef struct hooked {
    dtr_tensor *rows[2], *values[2]; /* of TABLE and LIST */
} hooked;

static int which(const dtr_ddp_bucket *b) {
    return dtr_ddp_bucket_param(b, 0, NULL, NULL) == LIST;
}

static dtr_status divide(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    hooked *h = state;
    const int at = which(b);
    (void)work;
    dtr_status s = dtr_tensor_scale(h->values[at], 1.0 / th_size(), dtr_ddp_bucket_stream(b));
    return s < 0 ? s : dtr_ddp_bucket_set_sparse_result(b, h->rows[at], h->values[at]);
}

static dtr_status sum_rows(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    hooked *h = state;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_tensor *rows = NULL, *values = NULL;
    o.stream = dtr_ddp_bucket_stream(b);
    if (dtr_ddp_bucket_sparse(b, &rows, &values) == DTR_ERR_ARG) {
        dtr_buffer all = dtr_ddp_bucket_buffer(b);
        return dtr_allreduce(dtr_ddp_bucket_group(b), all, all, DTR_AVG, &o, work);
    }
    const int at = which(b);
    dtr_tensor_release(h->rows[at]);
    dtr_tensor_release(h->values[at]);
    h->rows[at] = h->values[at] = NULL;
    dtr_status s =
        dtr_sparse_allreduce(dtr_ddp_bucket_group(b), rows, values, shapes[at ? LIST : TABLE][0],
                             DTR_SUM, &o, &h->rows[at], &h->values[at], work);
    return s < 0 ? s : dtr_ddp_bucket_then(b, divide, h);
}

/* T54, Q1, Q5, Q13: hooks get the rows on the device and give results there. */
START_TEST(T54_hooks) {
    for (int form = 0; form < 3; form++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        hooked h[2] = { { { NULL, NULL }, { NULL, NULL } }, { { NULL, NULL }, { NULL, NULL } } };
        pair m;
        o.find_unused = form == 0;
        pair_open(&m, &o, DTR_F32);
        for (int side = 0; side < 2; side++) {
            dtr_status s =
                form == 2 ? dtr_ddp_register_hook(m.ddp[side], sum_rows, &h[side], "rows")
                          : dtr_ddp_register_builtin_hook(
                                m.ddp[side], form == 0 ? DTR_HOOK_ALLREDUCE : DTR_HOOK_NOOP, NULL);
            TH_IS(s, DTR_OK);
        }
        for (int k = 0; k < 3; k++, m.step++) {
            for (int side = 0; side < 2; side++) {
                backward(&m, side, DTR_F32);
                TH_IS(end(&m, side), DTR_OK);
            }
            same_rows(&m, TABLE);
            same_rows(&m, LIST);
            TH_AGREE();
        }
        pair_close(&m);
        for (int k = 0; k < 4; k++) {
            dtr_tensor_release(h[k / 2].rows[k % 2]);
            dtr_tensor_release(h[k / 2].values[k % 2]);
        }
    }
}
END_TEST

/* ---- threads, joined ranks ---- */

typedef struct job {
    const pair *m;
    int i;
    dtr_status status;
} job;

static void *report(void *arg) {
    job *j = arg;
    j->status = ready(j->m, DEVICE, j->i);
    return NULL;
}

/* G1: each gradient by a thread of its own. */
START_TEST(G1_threads) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    pair m;
    pair_open(&m, &o, DTR_F32);
    for (int k = 0; k < 4; k++, m.step++) {
        job jobs[PARAMS];
        pthread_t threads[PARAMS];
        backward(&m, HOST, DTR_F32);
        TH_IS(end(&m, HOST), DTR_OK);
        for (int i = 0; i < PARAMS; i++) {
            dtr_tensor *rows[2];
            jobs[i] = (job){ &m, i, DTR_ERR_STATE };
            if (is_sparse(i)) {
                host_rows(&m, i, n_rows(&m, i), DTR_F32, rows);
                give(&m, DEVICE, i, rows);
                TH_CHECK(cudaStreamSynchronize(stream_of(&m, i)) == cudaSuccess, "synchronize");
                release_later(rows);
            } else {
                TH_IS(dtr_tensor_fill(dtr_ddp_grad(m.ddp[DEVICE], (size_t)i),
                                      th_size() * (th_rank() + i), stream_of(&m, i)),
                      DTR_OK);
            }
        }
        for (int i = 0; i < PARAMS; i++) {
            pthread_create(&threads[i], NULL, report, &jobs[i]);
        }
        for (int i = 0; i < PARAMS; i++) {
            pthread_join(threads[i], NULL);
            TH_IS(jobs[i].status, DTR_OK);
        }
        TH_IS(end(&m, DEVICE), DTR_OK);
        same_all(&m, false);
    }
    pair_close(&m);
}
END_TEST

/* J3, J4: ranks that have joined contribute no rows, with and without a hook. */
START_TEST(J3_uneven) {
    for (int form = 0; form < 3; form++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        dtr_join_options join = DTR_JOIN_OPTIONS_INIT;
        pair m;
        join.divide_by_active = form == 1;
        pair_open(&m, &o, DTR_F32);
        for (int side = 0; side < 2; side++) {
            if (form == 2) {
                TH_IS(dtr_ddp_register_builtin_hook(m.ddp[side], DTR_HOOK_ALLREDUCE, NULL), DTR_OK);
            }
            TH_IS(dtr_ddp_join_begin(m.ddp[side], &join), DTR_OK);
            for (m.step = 0; m.step <= th_rank() % 4; m.step++) {
                TH_IS(dtr_ddp_forward_begin(m.ddp[side]), DTR_OK);
                TH_IS(dtr_ddp_forward_end(m.ddp[side], NULL, 0), DTR_OK);
                backward(&m, side, DTR_F32);
                TH_IS(end(&m, side), DTR_OK);
            }
            TH_IS(dtr_ddp_join_end(m.ddp[side]), DTR_OK);
        }
        same_rows(&m, TABLE);
        same_rows(&m, LIST);
        pair_close(&m);
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "ddp rows", 110);
    th_add(tc, H8_options, 1, 0);
    th_add(tc, H8_types, 1, 0);
    th_add(tc, X5_param_dtype, 1, 0);
    th_add(tc, H8_clipped, 1, 0);
    th_add(tc, H8_kept_results, 1, 0);
    th_add(tc, U5_unused, 1, 0);
    th_add(tc, T54_hooks, 1, 0);
    th_add(tc, G1_threads, 1, 0);
    th_add(tc, J3_uneven, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_rows", make);
}
