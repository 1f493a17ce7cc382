/* Row-sparse gradients of a module on the device: when the host waits, and what goes wrong. The
 * same program runs over nccl and over stage (DTR_TEST_STAGE=1). */
#include <math.h>

#include "ddp_rows.h"

/* ---- when the host waits ---- */

/* The largest lists, of TABLE and LIST, in both places. */
typedef struct lists {
    dtr_tensor *here[2][2], *there[2][2];
} lists;

static lists lists_make(const pair *m) {
    lists l;
    for (int s = 0; s < 2; s++) {
        host_rows(m, s == 0 ? TABLE : LIST, MOST, DTR_F32, l.here[s]);
        copies(l.here[s], l.there[s], m->stream[0]);
    }
    TH_CHECK(cudaStreamSynchronize(m->stream[0]) == cudaSuccess, "synchronize");
    return l;
}

static void lists_free(lists *l) {
    for (int s = 0; s < 2; s++) {
        release(l->here[s]);
        release(l->there[s]);
    }
}

/* Report them, without a copy or memory of this program. */
static void give_lists(const pair *m, int side, const lists *l, cudaStream_t stream) {
    for (int i = TABLE; i <= LIST; i += LIST - TABLE) {
        dtr_tensor *const *t = side == HOST ? l->here[i == LIST] : l->there[i == LIST];
        TH_IS(dtr_ddp_set_sparse_grad(m->ddp[side], (size_t)i, t[0], t[1]), DTR_OK);
        TH_IS(dtr_ddp_grad_ready(m->ddp[side], (size_t)i, stream), DTR_OK);
    }
}

static void lists_step(const pair *m, int side, const lists *l) {
    dense(m, side, DENSE_A);
    give_lists(m, side, l, side == DEVICE ? m->stream[1] : NULL);
    dense(m, side, DENSE_B);
    TH_IS(end(m, side), DTR_OK);
}

/* GF3: a step waits once for the rows of each sparse parameter, and no more; memory is made in the
 * first step only. */
START_TEST(GF3_one_wait_for_rows) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    pair m;
    pair_open(&m, &o, DTR_F32);
    lists l = lists_make(&m);
    for (int k = 0; k < 6; k++) {
        dtr_fake_cuda_log_start();
        lists_step(&m, DEVICE, &l);
        int waits = dtr_fake_cuda_log_count("Synchronize");
        TH_CHECK(k == 0 || staged() || waits == 2, "%d waits: %s", waits, dtr_fake_cuda_log_text());
        int made = dtr_fake_cuda_log_count("cudaMalloc") + dtr_fake_cuda_log_count("cudaFree") +
                   dtr_fake_cuda_log_count("cudaHostAlloc") +
                   dtr_fake_cuda_log_count("cudaHostRegister");
        TH_CHECK(k == 0 || staged() || made == 0, "memory: %s", dtr_fake_cuda_log_text());
        lists_step(&m, HOST, &l);
        same_all(&m, false);
    }
    pair_close(&m);
    lists_free(&l);
}
END_TEST

/* GF3, G1: rows are waited for, dense gradients are not: held up on their own stream they let
 * grad_ready and backward_end go on. */
START_TEST(GF3_dense_gradients_are_not_waited_for) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    cudaEvent_t open;
    cudaStream_t slow;
    pair m;
    if (staged()) {
        return; /* the host moves the data and waits for it */
    }
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    TH_CHECK(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking) == cudaSuccess, "stream");
    pair_open(&m, &o, DTR_F32);
    lists l = lists_make(&m);
    for (int side = 0; side < 2; side++) {
        lists_step(&m, side, &l); /* with the rebuild */
        lists_step(&m, side, &l);
    }
    TH_CHECK(cudaDeviceSynchronize() == cudaSuccess, "synchronize");
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, slow);
    cudaStreamWaitEvent(slow, open, 0);
    for (int i = 0; i < PARAMS; i++) { /* first, so that they travel first where they may */
        if (!is_sparse(i)) {
            dtr_tensor *g = dtr_ddp_grad(m.ddp[DEVICE], (size_t)i);
            TH_IS(dtr_tensor_fill(g, th_size() * (th_rank() + i), slow), DTR_OK);
            TH_IS(dtr_ddp_grad_ready(m.ddp[DEVICE], (size_t)i, slow), DTR_OK);
        }
    }
    give_lists(&m, DEVICE, &l, m.stream[1]);
    TH_IS(dtr_ddp_backward_end(m.ddp[DEVICE], m.stream[0]), DTR_OK);
    TH_CHECK(cudaStreamQuery(slow) == cudaErrorNotReady, "it has run");
    TH_CHECK(cudaStreamQuery(m.stream[0]) == cudaErrorNotReady, "the averages are there");
    dtr_fake_cuda_hold(open, 0);
    lists_step(&m, HOST, &l);
    same_all(&m, false);
    pair_close(&m);
    lists_free(&l);
    cudaEventDestroy(open);
    cudaStreamDestroy(slow);
}
END_TEST

/* GF4: what the program does not write again may be reported on a stream that knows nothing of the
 * step before, whose result is on its way then; so it is where a rank has nothing to report. */
START_TEST(GF4_results_on_their_way) {
    for (int unused = 0; unused < 2; unused++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        cudaStream_t apart;
        lists l[2];
        pair m;
        o.find_unused = unused;
        TH_CHECK(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking) == cudaSuccess, "stream");
        pair_open(&m, &o, DTR_F32);
        for (m.step = 0; m.step < 2; m.step++) {
            l[m.step] = lists_make(&m);
        }
        for (int k = 0; k < 8; k++) {
            for (int side = 0; side < 2; side++) {
                const bool out = unused && th_size() > 1 && k % th_size() == th_rank();
                TH_IS(dtr_ddp_grad_clear(m.ddp[side], SIZE_MAX), DTR_OK);
                dense(&m, side, DENSE_A);
                dense(&m, side, DENSE_B);
                if (!out) {
                    give_lists(&m, side, &l[k % 2], side == DEVICE ? apart : NULL);
                }
                TH_IS(end(&m, side), DTR_OK);
            }
            if (k % 3 == 2) { /* else nobody waits for the stream of results */
                same_all(&m, false);
            }
        }
        pair_close(&m);
        lists_free(&l[0]);
        lists_free(&l[1]);
        cudaStreamDestroy(apart);
    }
}
END_TEST

/* ---- errors ---- */

/* A step of the device's side in which one rank's list of 'table' has a bad number or NaN. */
static void bad_step(const pair *m, int bad, int64_t number, double value, dtr_status want) {
    dtr_tensor *rows[2];
    const bool me = th_rank() == bad;
    host_rows(m, TABLE, 5, DTR_F32, rows);
    int64_t *row = dtr_tensor_data(rows[0]);
    for (int k = 0; k < 5; k++) {
        row[k] %= 11;
    }
    if (me) {
        row[3] = number;
        th_set(dtr_tensor_data(rows[1]), DTR_F32, 7, value, 0);
    }
    give(m, DEVICE, TABLE, rows);
    TH_IS(ready(m, DEVICE, TABLE), me ? want : DTR_OK);
    release_later(rows);
    host_rows(m, LIST, 5, DTR_F32, rows);
    give(m, DEVICE, LIST, rows);
    TH_IS(ready(m, DEVICE, LIST), DTR_OK);
    release_later(rows);
    dense(m, DEVICE, DENSE_A);
    dense(m, DEVICE, DENSE_B);
    TH_IS(end(m, DEVICE), want);
}

/* ER10, ER14, SPA4: what is only seen when the rows have come is an agreed error; the next step is
 * right. */
START_TEST(ER10_bad_rows) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.flags = DTR_DDP_CHECK_NAN;
    pair m;
    pair_open(&m, &o, DTR_F32);
    for (int bad = 0; bad<th_size(); bad += th_size()> 4 ? 3 : 1) {
        char word[96];
        bad_step(&m, bad, 12, 1, DTR_ERR_ARG);
        snprintf(word, sizeof word, "'table' (1): indices[3] of rank %d is 12; its rows are 0..11",
                 bad);
        TH_MESSAGE(word);
        TH_AGREE();
        bad_step(&m, bad, -1, 1, DTR_ERR_ARG);
        TH_AGREE();
        bad_step(&m, bad, 0, NAN, DTR_ERR_NAN);
        snprintf(word, sizeof word, "'table' (1) has a NaN on rank %d (value 7", bad);
        TH_MESSAGE(word);
        TH_AGREE();
        step_both(&m, false);
    }
    pair_close(&m);
}
END_TEST

/* ER10, ER11: not reported, reported without rows, twice; tensors that are somewhere else. */
START_TEST(ER11_refused) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_tensor *rows[2], *there[2];
    const int64_t wide[] = { 2, WIDE + 1 };
    const bool last = th_rank() == th_size() - 1;
    pair m;
    pair_open(&m, &o, DTR_F32);
    host_rows(&m, TABLE, 2, DTR_F32, rows);
    copies(rows, there, m.stream[0]);
    TH_IS(dtr_ddp_set_sparse_grad(m.ddp[DEVICE], TABLE, rows[0], there[1]), DTR_ERR_DEVICE);
    TH_MESSAGE("indices must be on the module's CUDA device");
    TH_IS(dtr_ddp_set_sparse_grad(m.ddp[DEVICE], TABLE, there[0], rows[1]), DTR_ERR_DEVICE);
    TH_MESSAGE("values must be on the module's CUDA device");
    TH_IS(dtr_ddp_set_sparse_grad(m.ddp[HOST], TABLE, there[0], there[1]), DTR_ERR_DEVICE);
    TH_MESSAGE("indices must be in host memory");
    dtr_tensor *other = tensor(DTR_F32, gpu, DTR_MEM_DEFAULT, 2, wide);
    TH_IS(dtr_ddp_set_sparse_grad(m.ddp[DEVICE], TABLE, there[0], other), DTR_ERR_SHAPE);
    dtr_tensor_release(other);
    for (int how = 0; how < 3; how++) {
        if (!(last && how == 1)) {
            TH_IS(dtr_ddp_set_sparse_grad(m.ddp[DEVICE], TABLE, there[0], there[1]), DTR_OK);
        }
        if (!(last && how == 0)) {
            TH_IS(ready(&m, DEVICE, TABLE), last && how == 1 ? DTR_ERR_STATE : DTR_OK);
        }
        if (last && how == 2) {
            TH_IS(ready(&m, DEVICE, TABLE), DTR_ERR_STATE);
        }
        dense(&m, DEVICE, DENSE_A);
        dense(&m, DEVICE, DENSE_B);
        dtr_tensor *list[2];
        host_rows(&m, LIST, 5, DTR_F32, list);
        give(&m, DEVICE, LIST, list);
        TH_IS(ready(&m, DEVICE, LIST), DTR_OK);
        release_later(list);
        TH_IS(end(&m, DEVICE), DTR_ERR_STATE);
        TH_MESSAGE(how < 2 ? "'table' (1) was not ready" : "'table' (1) became ready twice");
        TH_AGREE();
        step_both(&m, false);
    }
    release_later(rows);
    release(there);
    pair_close(&m);
}
END_TEST

/* ER16, ER17: a copy that fails, or no memory for the result, on one rank ends the module on all.
 */
START_TEST(ER16_failing_device) {
    for (int how = 0; how < 2; how++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        const bool last = th_rank() == th_size() - 1;
        dtr_tensor *rows[2];
        pair m;
        pair_open(&m, &o, DTR_F32);
        for (int i = 0; i < PARAMS; i++) {
            if (!is_sparse(i)) {
                dense(&m, DEVICE, i);
                continue;
            }
            host_rows(&m, i, 6, DTR_F32, rows);
            give(&m, DEVICE, i, rows);
            if (last && i == LIST) { /* the wait for its rows; memory for results */
                setenv("DTR_FAKE_CUDA_ERR",
                       how == 0 ? "cudaStreamSynchronize:1:719" : "cudaMalloc:1:2", 1);
                dtr_fake_cuda_reload();
            }
            TH_IS(ready(&m, DEVICE, i), last && i == LIST && how == 0 ? DTR_ERR_CUDA : DTR_OK);
            release_later(rows);
        }
        dtr_status s = end(&m, DEVICE);
        if (last) {
            unsetenv("DTR_FAKE_CUDA_ERR");
            dtr_fake_cuda_reload();
            TH_IS(s, how == 0 ? DTR_ERR_CUDA : DTR_ERR_NOMEM);
        } else {
            TH_IS(s, DTR_ERR_REMOTE);
            TH_MESSAGE("rank");
        }
        if (how == 0) {
            TH_IS(dtr_ddp_backward_end(m.ddp[DEVICE], m.stream[0]), s);
        } else {
            step_both(&m, false);
        }
        pair_close(&m);
    }
}
END_TEST

/* ---- H9 ---- */

/* Rows named beforehand travel as a block; others are an agreed error. */
START_TEST(H9_agreed_rows) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    int64_t all[12];
    pair m;
    for (int k = 0; k < 12; k++) {
        all[k] = k;
    }
    pair_open(&m, &o, DTR_F32);
    for (int k = 0; k < 4; k++) {
        for (int side = 0; side < 2 && k % 2 == 0; side++) {
            TH_IS(dtr_ddp_set_sparse_rows(m.ddp[side], TABLE, all, 12), DTR_OK);
        }
        step_both(&m, false);
    }
    TH_IS(dtr_ddp_set_sparse_rows(m.ddp[DEVICE], TABLE, all, 11), DTR_OK);
    bad_step(&m, th_size() - 1, 11, 1, DTR_ERR_STATE);
    TH_MESSAGE("is not among the 11");
    step_both(&m, false);
    pair_close(&m);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "ddp rows ends", 110);
    th_add(tc, GF3_one_wait_for_rows, 1, 0);
    th_add(tc, GF3_dense_gradients_are_not_waited_for, 1, 0);
    th_add(tc, GF4_results_on_their_way, 1, 0);
    th_add(tc, ER10_bad_rows, 1, 0);
    th_add(tc, ER11_refused, 1, 0);
    th_add(tc, ER16_failing_device, 2, 0);
    th_add(tc, H9_agreed_rows, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_rows_ends", make);
}
