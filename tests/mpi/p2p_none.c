/* DTR_PEER_NONE, a message that is nothing, and numbers of MPI that are no peers here (P2P4, P2P9,
 * P2P17, P2P24, P2P25; P1-P3 of the tests' table of bad calls). */
#include <stdlib.h>
#include <string.h>

#include "recorder/recorder.h"
#include "tensor_views.h"

static dtr_buffer i32s(int32_t *x, size_t n) {
    return dtr_cpu(x, n, DTR_I32);
}

static size_t records(void) {
    static dtr__record r[4096];
    return dtr__rec_read(th_world(), r, 4096);
}

/* A receive of nothing: over at once, and known by its source. */
static void received_nothing(dtr_work *w) {
    bool done = false;
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(done, "nothing is under way");
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(dtr_work_source(w) == DTR_PEER_NONE, "source %d", dtr_work_source(w));
    TH_CHECK(dtr_work_seq(w) == 0, "it has a number");
    TH_IS(dtr_work_release(w), DTR_OK);
}

/* Nothing is sent, received, numbered, recorded or looked at; arguments are checked. */
START_TEST(nothing) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    int32_t x = 1, y = 5;
    dtr_work *w = NULL;
    bool done = false;
    uint64_t seq = dtr_group_seq(th_group());
    size_t before = records();
    o.timeout_s = 1e-6;
    for (int i = 0; i < 40; i++) { /* as often as what is repeated */
        TH_IS(dtr_send(th_group(), i32s(&x, 1), DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
        TH_IS(dtr_recv(th_group(), i32s(&y, 1), DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
    }
    TH_IS(dtr_send(th_group(), i32s(&x, 1), DTR_PEER_NONE, 0, &o, &w), DTR_OK);
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(done && dtr_work_source(w) == -1, "done %d, source %d", done, dtr_work_source(w));
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_recv(th_group(), i32s(&y, 1), DTR_PEER_NONE, 32767, &o, &w), DTR_OK);
    received_nothing(w);
    TH_CHECK(y == 5, "a receive of nothing gave %d", y);
    TH_CHECK(records() == before, "%zu records of nothing", records() - before);
    TH_CHECK(dtr_group_seq(th_group()) == seq, "nothing moved the sequence");
    /* The first message there is has the first number. */
    TH_IS(dtr_recv(th_group(), i32s(&y, 1), th_rank(), 3, NULL, &w), DTR_OK);
    TH_CHECK(dtr_work_seq(w) == 1, "number %d", (int)dtr_work_seq(w));
    dtr_work *s = NULL;
    TH_IS(dtr_send(th_group(), i32s(&x, 1), th_rank(), 3, NULL, &s), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_wait(s, -1), DTR_OK);
    TH_CHECK(y == 1 && dtr_work_source(w) == th_rank(), "%d from %d", y, dtr_work_source(w));
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_work_release(s), DTR_OK);
    w = NULL;
    TH_IS(dtr_send(th_group(), i32s(&x, 1), DTR_PEER_NONE, -1, NULL, &w), DTR_ERR_ARG);
    TH_IS(dtr_recv(th_group(), i32s(NULL, 1), DTR_PEER_NONE, 0, NULL, &w), DTR_ERR_ARG);
    TH_CHECK(w == NULL, "a refused call wrote a work");
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* In a line of ranks the ends have one neighbour, which MPI_Cart_shift gives as MPI_PROC_NULL. */
START_TEST(shifted_in_a_batch) {
    const int n = th_size();
    int dim = n, open_ends = 0, down, up;
    MPI_Comm line = MPI_COMM_NULL;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &dim, &open_ends, 0, &line);
    MPI_Cart_shift(line, 0, 1, &down, &up);
    MPI_Comm_free(&line);
    down = down == MPI_PROC_NULL ? DTR_PEER_NONE : down;
    up = up == MPI_PROC_NULL ? DTR_PEER_NONE : up;
    int32_t x = 10 + th_rank(), from_down, from_up;
    dtr_p2p ops[] = { { true, i32s(&x, 1), down, 1 },
                      { false, i32s(&from_down, 1), down, 2 },
                      { true, i32s(&x, 1), up, 2 },
                      { false, i32s(&from_up, 1), up, 1 } };
    for (int i = 0; i < 40; i++) {
        from_down = from_up = -1;
        dtr_work *w = NULL;
        TH_IS(dtr_batch_p2p(th_group(), ops, 4, NULL, i % 2 == 0 ? NULL : &w), DTR_OK);
        TH_IS(w != NULL ? dtr_work_wait(w, -1) : DTR_OK, DTR_OK);
        TH_CHECK(w == NULL || n == 1 || dtr_work_seq(w) == (uint64_t)i + 1, "batch %d has %d", i,
                 (int)dtr_work_seq(w));
        TH_IS(w != NULL ? dtr_work_release(w) : DTR_OK, DTR_OK);
        TH_CHECK(from_down == (th_rank() > 0 ? x - 1 : -1) &&
                     from_up == (th_rank() < n - 1 ? x + 1 : -1),
                 "batch %d gave %d and %d", i, from_down, from_up);
    }
    TH_CHECK(ops[1].peer == down && ops[3].peer == up, "the list was changed");
    /* Entries are named as the program numbers them. */
    dtr_p2p bad[] = { { true, i32s(&x, 1), DTR_PEER_NONE, 1 },
                      { false, i32s(&from_up, 1), DTR_PEER_NONE, 1 },
                      { true, i32s(&x, 1), n, 1 } };
    TH_IS(dtr_batch_p2p(th_group(), bad, 3, NULL, NULL), DTR_ERR_RANK);
    TH_MESSAGE("ops[2].peer");
    TH_IS(dtr_batch_p2p(th_group(), bad, 2, NULL, NULL), DTR_OK);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* Scopes: calls that are nothing are no part of them. */
START_TEST(in_a_scope) {
    int32_t x = 1, y = 7, z = 7;
    dtr_work *w = NULL;
    uint64_t seq = dtr_group_seq(th_group());
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_send(th_group(), i32s(&x, 1), DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_recv(th_group(), i32s(&x, 1), DTR_PEER_NONE, 0, NULL, &w), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    TH_CHECK(dtr_work_seq(w) == 0, "a scope of nothing has a number");
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(dtr_group_seq(th_group()) == seq, "a scope of nothing moved the sequence");
    TH_AGREE();
    dtr_p2p ops[] = { { false, i32s(&z, 1), DTR_PEER_NONE, 0 },
                      { true, i32s(&x, 1), th_rank(), 0 },
                      { false, i32s(&y, 1), th_rank(), 0 } };
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_recv(th_group(), i32s(&z, 1), DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_batch_p2p(th_group(), ops, 3, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    TH_CHECK(x == 1 && y == 1 && z == 7, "a scope gave %d, %d and %d", x, y, z);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

START_TEST(byte_strings) {
    dtr_bytes in = { "abc", 3 }, out[2] = { { &in, 1 }, { &in, 1 } };
    int source = 0;
    TH_IS(dtr_send_bytes(th_group(), &in, 1, DTR_PEER_NONE, 0, NULL), DTR_OK);
    TH_IS(dtr_recv_bytes(th_group(), 2, DTR_PEER_NONE, 0, NULL, out, &source), DTR_OK);
    TH_CHECK(source == DTR_PEER_NONE, "source %d", source);
    TH_CHECK(out[0].data == NULL && out[1].data == NULL && out[0].nbytes + out[1].nbytes == 0,
             "strings of nobody");
    dtr_bytes_free(out, 2);
    TH_IS(dtr_recv_bytes(th_group(), 2, DTR_PEER_NONE, 0, NULL, NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_send_bytes(th_group(), &in, 1, -1, 0, NULL), DTR_ERR_RANK);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* Strided tensors, which travel packed, are not written to either. */
START_TEST(tensors) {
    for (int l = 0; l < N_LAYOUTS; l++) {
        view v = view_new(DTR_F32, (layout)l, 2, SHAPE(3, 4));
        dtr_work *w = NULL;
        TH_IS(dtr_tensor_recv(th_group(), v.t, DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
        TH_IS(dtr_tensor_recv(th_group(), v.t, DTR_PEER_NONE, 0, NULL, &w), DTR_OK);
        received_nothing(w);
        TH_CHECK(view_gaps_ok(&v, true), "a receive of nothing wrote into layout %d", l);
        TH_IS(dtr_tensor_send(th_group(), v.t, DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
        TH_IS(dtr_tensor_send(th_group(), NULL, DTR_PEER_NONE, 0, NULL, NULL), DTR_ERR_ARG);
        view_free(&v);
    }
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* Z1: what is not sent is not looked at. */
START_TEST(nan_to_nobody) {
    float nan_ = __builtin_nanf("");
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.nan_check = 1;
    dtr_group *g = NULL;
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), &o, &g));
    dtr_p2p op = { true, dtr_cpu(&nan_, 1, DTR_F32), DTR_PEER_NONE, 0 };
    dtr_work *w = NULL;
    TH_IS(dtr_send(g, op.buf, DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_send(g, op.buf, DTR_PEER_NONE, 0, NULL, &w), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_batch_p2p(g, &op, 1, NULL, NULL), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* No value of ours is a constant of an MPI, and its constants are refused by their names. */
START_TEST(constants_of_mpi) {
    static const int of_any_mpi[] = { -1, -2, -3, -4, -5, -31, -101, -32766, -49767, 0x7fffffff };
    for (size_t i = 0; i < sizeof of_any_mpi / sizeof of_any_mpi[0]; i++) {
        ck_assert(of_any_mpi[i] != DTR_ANY_SOURCE && of_any_mpi[i] != DTR_PEER_NONE);
    }
    const struct {
        int peer;
        const char *name, *cure;
    } of[] = { { MPI_PROC_NULL, "MPI_PROC_NULL", "DTR_PEER_NONE" },
               { MPI_ANY_SOURCE, "MPI_ANY_SOURCE", "DTR_ANY_SOURCE" },
               { MPI_ROOT, "MPI_ROOT", "no peer" },
               { MPI_UNDEFINED, "MPI_UNDEFINED", "no peer" },
               { -1, "peer is -1", "dtr_group_rank_of" } };
    int32_t x = 1;
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        dtr_work *w = NULL;
        dtr_p2p op = { false, i32s(&x, 1), of[i].peer, 0 };
        for (int how = 0; how < 3; how++) {
            TH_IS(how == 0   ? dtr_send(th_group(), op.buf, op.peer, 0, NULL, NULL)
                  : how == 1 ? dtr_recv(th_group(), op.buf, op.peer, 0, NULL, &w)
                             : dtr_batch_p2p(th_group(), &op, 1, NULL, NULL),
                  DTR_ERR_RANK);
            TH_MESSAGE(of[i].name);
            TH_MESSAGE(of[i].cure);
        }
    }
    TH_IS(dtr_send(th_group(), i32s(&x, 1), DTR_ANY_SOURCE, 0, NULL, NULL), DTR_ERR_RANK);
    TH_MESSAGE("DTR_ANY_SOURCE");
    TH_IS(dtr_recv(th_group(), i32s(&x, 1), -77, 0, NULL, NULL), DTR_ERR_RANK);
    TH_MESSAGE("peer is -77; group ranks are 0..");
    TH_IS(dtr_broadcast(th_group(), i32s(&x, 1), DTR_PEER_NONE, NULL, NULL), DTR_ERR_RANK);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "p2p_none", 60);
    th_add(tc, nothing, 0, 0);
    th_add(tc, shifted_in_a_batch, 0, 0);
    th_add(tc, in_a_scope, 0, 0);
    th_add(tc, byte_strings, 0, 0);
    th_add(tc, tensors, 0, 0);
    th_add(tc, nan_to_nobody, 0, 0);
    th_add(tc, constants_of_mpi, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "p2p_none", make);
}
