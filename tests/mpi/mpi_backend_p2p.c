/* Point to point of the mpi backend: header and payload protocol, order, any source, self,
 * mismatch on both sides, giving up. */
#include "mpi_backend_driver.h"

static driver d;

/* Below, at and above the limits of inline payload, single payload and first piece. */
static const size_t sizes[] = { 0, 1, 3900, 5000, 65536, 131072, 131073, (4 << 20) + 1, 9000001 };
enum { N_SIZES = 9 };

static void p2p_work(dtr_work *w, dtr__kind kind, void *data, size_t count, dtr_dtype dtype,
                     int peer, int tag) {
    driver_work(&d, w, kind);
    w->call.dtype = dtype;
    w->call.in = w->call.out = data;
    w->call.in_count = w->call.out_count = count;
    w->call.root = peer;
    w->call.tag = tag;
}

static int next_rank(void) {
    return (th_rank() + 1) % th_size();
}

static int last_rank(void) {
    return (th_rank() + th_size() - 1) % th_size();
}

static void fill(unsigned char *p, size_t n, int from, size_t index) {
    for (size_t i = 0; i < n; i++) {
        p[i] = (unsigned char)(i * 7 + (size_t)from * 31 + index * 13);
    }
}

static bool is_filled(const unsigned char *p, size_t n, int from, size_t index) {
    for (size_t i = 0; i < n; i++) {
        if (p[i] != (unsigned char)(i * 7 + (size_t)from * 31 + index * 13)) {
            return false;
        }
    }
    return true;
}

static void run_batch(const dtr_p2p *ops, size_t n) {
    dtr_work w;
    driver_work(&d, &w, DTR__K_BATCH);
    w.call.batch = (dtr_p2p *)ops;
    w.call.n_batch = n;
    TH_IS(driver_run(&d, &w), DTR_OK);
}

/* P2P2 P2P16 P2P22 P2P23: every size round the ring in one batch; with one rank, to itself. */
START_TEST(ring_batch) {
    driver_open(&d);
    unsigned char *out[N_SIZES], *in[N_SIZES];
    dtr_p2p ops[2 * N_SIZES];
    for (size_t i = 0; i < N_SIZES; i++) {
        out[i] = malloc(sizes[i] + 1);
        in[i] = calloc(1, sizes[i] + 1);
        fill(out[i], sizes[i], th_rank(), i);
        ops[2 * i] = (dtr_p2p){ true, dtr_cpu(out[i], sizes[i], DTR_U8), next_rank(), 5 };
        ops[2 * i + 1] = (dtr_p2p){ false, dtr_cpu(in[i], sizes[i], DTR_U8), last_rank(), 5 };
    }
    run_batch(ops, 2 * N_SIZES);
    for (size_t i = 0; i < N_SIZES; i++) {
        TH_CHECK(is_filled(in[i], sizes[i], last_rank(), i) && in[i][sizes[i]] == 0,
                 "message of %zu bytes", sizes[i]);
        free(out[i]);
        free(in[i]);
    }
    TH_CHECK(d.state->live == NULL, "operations left");
    TH_AGREE();
    driver_close(&d);
}
END_TEST

/* P2P11: many outstanding messages of one pair and tag, small and large mixed, keep their order. */
START_TEST(order) {
    enum { N = 1500, LARGE = 1200 };
    driver_open(&d);
    dtr_work *w = malloc(2 * N * sizeof *w);
    bool *done = calloc(2 * N, sizeof *done);
    int(*out)[LARGE] = calloc(N, sizeof *out), (*in)[LARGE] = calloc(N, sizeof *in);
    for (int i = 0; i < N; i++) {
        size_t n = i % 10 == 3 ? LARGE : 1;
        out[i][0] = out[i][n - 1] = 1000 * th_rank() + i;
        p2p_work(&w[i], DTR__K_RECV, in[i], n, DTR_I32, last_rank(), 0);
        TH_IS(driver_start(&d, &w[i], &done[i]), DTR_OK);
    }
    for (int i = 0; i < N; i++) {
        size_t n = i % 10 == 3 ? LARGE : 1;
        p2p_work(&w[N + i], DTR__K_SEND, out[i], n, DTR_I32, next_rank(), 0);
        TH_IS(driver_start(&d, &w[N + i], &done[N + i]), DTR_OK);
    }
    TH_IS(driver_finish(&d, w, done, 2 * N, 30), DTR_OK);
    for (int i = 0; i < N; i++) {
        size_t n = i % 10 == 3 ? LARGE : 1;
        TH_CHECK(in[i][0] == 1000 * last_rank() + i && in[i][n - 1] == in[i][0],
                 "message %d holds %d", i, in[i][0]);
    }
    free(w);
    free(done);
    free(out);
    free(in);
    TH_AGREE();
    driver_close(&d);
}
END_TEST

/* P2P8: tags, not arrival, pair the messages; both ends of the range. */
START_TEST(tags) {
    static const int tag[] = { 0, 32767, 12 };
    int out[3] = { 10, 11, 12 }, in[3] = { 0 };
    dtr_p2p ops[6];
    driver_open(&d);
    for (int i = 0; i < 3; i++) {
        ops[i] = (dtr_p2p){ true, dtr_cpu(&out[i], 1, DTR_I32), next_rank(), tag[i] };
        ops[3 + i] = (dtr_p2p){ false, dtr_cpu(&in[2 - i], 1, DTR_I32), last_rank(), tag[2 - i] };
    }
    run_batch(ops, 6);
    TH_ALL(memcmp(in, out, sizeof in) == 0, "got %d %d %d", in[0], in[1], in[2]);
    driver_close(&d);
}
END_TEST

/* P2P4 P2P5 WRK9: each message comes from the rank that its work names. */
START_TEST(any_source) {
    enum { ROUNDS = 20, LARGE = 3000 };
    static double out[LARGE], in[LARGE];
    driver_open(&d);
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = round % 2 ? LARGE : 2;
        bool seen[64] = { false };
        dtr_work w;
        for (int i = 1; i < th_size() && th_rank() == 0; i++) {
            p2p_work(&w, DTR__K_RECV, in, n, DTR_F64, DTR_ANY_SOURCE, 9);
            TH_IS(driver_run(&d, &w), DTR_OK);
            TH_CHECK(w.source > 0 && !seen[w.source] && in[0] == w.source && in[n - 1] == round,
                     "round %d: source %d, first %g", round, w.source, in[0]);
            seen[w.source > 0 ? w.source : 0] = true;
        }
        if (th_rank() != 0) {
            out[0] = th_rank();
            out[n - 1] = round;
            p2p_work(&w, DTR__K_SEND, out, n, DTR_F64, 0, 9);
            TH_IS(driver_run(&d, &w), DTR_OK);
            TH_CHECK(w.source == -1, "a send has source %d", w.source);
        }
        th_barrier();
    }
    TH_AGREE();
    driver_close(&d);
}
END_TEST

/* P2P9 P2P10: unequal pairs end with both sides' terms at the receiver, whose buffer is untouched,
 * and at the sender unless its message was complete before. */
static void unequal(size_t n_out, dtr_dtype as, size_t n_in, dtr_dtype want, bool sender_learns) {
    driver_open(&d);
    size_t nbytes = n_out * 16 > n_in * 16 ? n_out * 16 : n_in * 16;
    unsigned char *data = malloc(nbytes);
    memset(data, 0x5a, nbytes);
    dtr_work w;
    dtr_status status = DTR_OK;
    if (th_rank() == 0) {
        p2p_work(&w, DTR__K_SEND, data, n_out, as, 1, 3);
        w.call.file = "sender.c";
        status = driver_run(&d, &w);
        TH_CHECK(status == DTR_ERR_MISMATCH || (!sender_learns && status == DTR_OK),
                 "the sender of %zu %s got %s", n_out, dtr_dtype_name(as), dtr_status_name(status));
    } else if (th_rank() == 1) {
        p2p_work(&w, DTR__K_RECV, data, n_in, want, 0, 3);
        w.call.file = "receiver.c";
        status = driver_run(&d, &w);
        TH_CHECK(status == DTR_ERR_MISMATCH, "the receiver of %zu %s got %s", n_in,
                 dtr_dtype_name(want), dtr_status_name(status));
        for (size_t i = 0; i < nbytes; i++) {
            TH_CHECK(data[i] == 0x5a, "byte %zu of the receive buffer was written", i);
        }
    }
    if (status == DTR_ERR_MISMATCH) {
        TH_MESSAGE("sender.c:");
        TH_MESSAGE("receiver.c:");
        TH_MESSAGE(dtr_dtype_name(as));
        TH_MESSAGE(dtr_dtype_name(want));
    }
    TH_CHECK(d.state->live == NULL, "operations left");
    TH_AGREE();
    driver_close(&d);
    free(data);
}

START_TEST(mismatch) {
    unequal(4, DTR_F32, 5, DTR_F32, false);
    unequal(5, DTR_F32, 4, DTR_F32, false);
    unequal(4, DTR_F32, 4, DTR_I32, false);
    unequal(3, DTR_C64, 6, DTR_F32, false);
    unequal(0, DTR_F32, 1, DTR_F32, false);
    unequal(100000, DTR_F32, 3, DTR_F32, true);
    unequal(3, DTR_F32, 100000, DTR_F32, false);
    unequal(2000000, DTR_F32, 2000000, DTR_I32, true);
}
END_TEST

/* EA9: a receive that is given up leaves its buffer alone when the message comes after all. */
START_TEST(give_up) {
    int value = 7;
    char text[200] = "";
    dtr_work w;
    bool done = false;
    driver_open(&d);
    if (th_rank() == 0) {
        p2p_work(&w, DTR__K_RECV, &value, 1, DTR_I32, 1, 2);
        TH_IS(driver_start(&d, &w, &done), DTR_OK);
        dtr__backend_mpi.waits_for(&d.group, d.state, &w, text, sizeof text);
        TH_CHECK(!done && strstr(text, "rank 1 (world 1) has not sent the message") != NULL, "'%s'",
                 text);
        dtr__backend_mpi.cancel(&d.group, d.state, &w);
        TH_CHECK(w.request == NULL && d.state->live == NULL && d.state->warnings == 0,
                 "the receive was not given up cleanly");
    }
    th_barrier();
    if (th_rank() == 1) {
        int late = 8;
        p2p_work(&w, DTR__K_SEND, &late, 1, DTR_I32, 0, 2);
        TH_IS(driver_run(&d, &w), DTR_OK);
    }
    th_barrier();
    TH_ALL(value == 7, "a cancelled receive wrote %d", value);
    driver_close(&d);
}
END_TEST

/* A message of another group that had the same communicator before is dropped, not delivered. */
START_TEST(stale_message) {
    int out[2] = { 66, 77 }, in = 0;
    dtr_work w;
    driver_open(&d);
    uint64_t uid = d.group.uid;
    for (int i = 0; i < 2 && th_rank() == 1; i++) {
        d.group.uid = i == 0 ? uid + 1000 : uid;
        p2p_work(&w, DTR__K_SEND, &out[i], 1, DTR_I32, 0, 4);
        TH_IS(driver_run(&d, &w), DTR_OK);
    }
    if (th_rank() == 0) {
        p2p_work(&w, DTR__K_RECV, &in, 1, DTR_I32, 1, 4);
        TH_IS(driver_run(&d, &w), DTR_OK);
        TH_CHECK(in == 77, "received %d", in);
    }
    TH_AGREE();
    driver_close(&d);
}
END_TEST

/* Repeated operations reuse the memory of the first. */
START_TEST(no_allocation) {
    int out = 1, in = 0;
    driver_open(&d);
    for (int i = 0; i < 5; i++) {
        dtr_p2p ops[2] = { { true, dtr_cpu(&out, 1, DTR_I32), next_rank(), 0 },
                           { false, dtr_cpu(&in, 1, DTR_I32), last_rank(), 0 } };
        run_batch(ops, 2);
        TH_CHECK(d.state->pool.n_idle == 2, "%zu operations kept after call %d",
                 d.state->pool.n_idle, i);
    }
    TH_AGREE();
    driver_close(&d);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "p2p", 60);
    th_add(tc, ring_batch, 1, 0);
    th_add(tc, order, 1, 0);
    th_add(tc, tags, 1, 0);
    th_add(tc, any_source, 1, 0);
    th_add(tc, no_allocation, 1, 0);
    th_add(tc, stale_message, 2, 0);
    th_add(tc, give_up, 2, 0);
    th_add(tc, mismatch, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "mpi_backend_p2p", make);
}
