/* Tensor collectives: bad arguments are refused locally before anything moves, failed operations
 * leave outputs alone; and the broadcast of many tensors. */
#include <stdlib.h>
#include <string.h>

#include "tensor_views.h"

static int W, r;

/* ---- bad arguments ---- */

typedef struct fixture {
    view f32[2], f64, i32, big, wide, odd; /* [2, 2] each; big [2 W, 2]; wide [2, 3]; odd [W + 1] */
    dtr_tensor *same;                      /* [2, 2] with stride 0 */
    dtr_tensor *list[16], *twice[16], *mixed[16], *hole[16];
} fixture;

static fixture fixture_new(void) {
    fixture x;
    x.f32[0] = view_new(DTR_F32, DENSE, 2, SHAPE(2, 2));
    x.f32[1] = view_new(DTR_F32, COLUMN, 2, SHAPE(2, 2));
    x.f64 = view_new(DTR_F64, DENSE, 2, SHAPE(2, 2));
    x.i32 = view_new(DTR_I32, DENSE, 2, SHAPE(2, 2));
    x.big = view_new(DTR_F32, DENSE, 2, SHAPE(2 * W, 2));
    x.wide = view_new(DTR_F32, DENSE, 2, SHAPE(2, 3));
    x.odd = view_new(DTR_F32, COLUMN, 1, SHAPE(W + 1));
    TH_IS(dtr_tensor_from_buffer(dtr_cpu(x.big.memory, 4, DTR_F32), 2, SHAPE(2, 2), SHAPE(0, 1),
                                 NULL, NULL, &x.same),
          DTR_OK);
    for (int j = 0; j < W; j++) {
        TH_IS(dtr_tensor_narrow(x.big.t, 0, 2 * j, 2, &x.list[j]), DTR_OK);
        x.twice[j] = x.list[W == 1 ? 0 : j / 2];
        x.mixed[j] = j == W - 1 ? x.f64.t : x.list[j];
        x.hole[j] = j == W - 1 ? NULL : x.list[j];
    }
    return x;
}

static void fixture_free(fixture *x) {
    for (int j = 0; j < W; j++) {
        dtr_tensor_release(x->list[j]);
    }
    dtr_tensor_release(x->same);
    view_free(&x->f32[0]);
    view_free(&x->f32[1]);
    view_free(&x->f64);
    view_free(&x->i32);
    view_free(&x->big);
    view_free(&x->wide);
    view_free(&x->odd);
}

static bool untouched(const fixture *x) {
    return view_gaps_ok(&x->f32[0], true) && view_gaps_ok(&x->f32[1], true) &&
           view_gaps_ok(&x->f64, true) && view_gaps_ok(&x->i32, true) &&
           view_gaps_ok(&x->big, true) && view_gaps_ok(&x->wide, true) &&
           view_gaps_ok(&x->odd, true);
}

static const dtr_coll_options no_size = { 0 };
static const dtr_coll_options flags = { sizeof(dtr_coll_options), 0, NULL, 0, NULL, NULL, 8 };

/* B5, COL38: every row is one bad call; `me` names this rank the root where there is one. */
#define ROWS                                                                                  \
    ROW(ARG, "tensor is NULL", dtr_tensor_allreduce(g, NULL, DTR_SUM, NULL, w))               \
    ROW(ARG, "op is 99", dtr_tensor_allreduce(g, a, (dtr_op)99, NULL, w))                     \
    ROW(ARG, "struct_size", dtr_tensor_allreduce(g, a, DTR_SUM, &no_size, w))                 \
    ROW(ARG, "flags", dtr_tensor_allreduce(g, a, DTR_SUM, &flags, w))                         \
    ROW(ARG, "flags", dtr_tensor_allreduce(g, NULL, (dtr_op)99, &flags, w))                   \
    ROW(ARG, "op is 99", dtr_tensor_reduce(g, NULL, (dtr_op)99, -1, NULL, w))                 \
    ROW(RANK, "root", dtr_tensor_reduce(g, NULL, DTR_SUM, -1, NULL, w))                       \
    ROW(RANK, "root", dtr_tensor_broadcast(g, a, W, NULL, w))                                 \
    ROW(LAYOUT, "share memory", dtr_tensor_allreduce(g, x->same, DTR_BAND, NULL, w))          \
    ROW(LAYOUT, "share memory", dtr_tensor_allgather(g, x->f64.t, x->same, NULL, w))          \
    ROW(LAYOUT, "share memory", dtr_tensor_recv(g, x->same, DTR_ANY_SOURCE, 0, NULL, w))      \
    ROW(DTYPE, "band", dtr_tensor_allreduce(g, a, DTR_BAND, NULL, w))                         \
    ROW(DTYPE, "f64", dtr_tensor_allgather(g, x->f64.t, x->big.t, NULL, w))                   \
    ROW(DTYPE, "i32", dtr_tensor_alltoall(g, a, x->i32.t, NULL, w))                           \
    ROW(DTYPE, "band", dtr_tensor_reduce_scatter(g, x->wide.t, a, DTR_BAND, NULL, w))         \
    ROW(SHAPE, "[2, 3]", dtr_tensor_allgather(g, a, x->wide.t, NULL, w))                      \
    ROW(SHAPE, "stacked", dtr_tensor_reduce_scatter(g, x->wide.t, a, DTR_SUM, NULL, w))       \
    ROW(SHAPE, "[2, 3]", dtr_tensor_scatter(g, x->wide.t, a, me, NULL, w))                    \
    ROW(SHAPE, "[2, 3]", dtr_tensor_gather(g, a, x->wide.t, me, NULL, w))                     \
    ROW(SHAPE, "out has", dtr_tensor_alltoall(g, x->big.t, x->wide.t, NULL, w))               \
    ROW2(SHAPE, "evenly", dtr_tensor_alltoall(g, x->odd.t, x->odd.t, NULL, w))                \
    ROW2(ARG, "not the root", dtr_tensor_gather(g, a, x->big.t, next, NULL, w))               \
    ROW2(ARG, "not the root", dtr_tensor_scatter(g, x->big.t, a, next, NULL, w))              \
    ROW2(ARG, "not the root", dtr_tensor_gather_list(g, a, x->list, next, NULL, w))           \
    ROW2(ARG, "not the root", dtr_tensor_scatter_list(g, x->list, a, next, NULL, w))          \
    ROW2(ARG, "overlap", dtr_tensor_allgather_list(g, a, x->twice, NULL, w))                  \
    ROW2(ARG, "overlap", dtr_tensor_alltoall_list(g, x->list, x->twice, NULL, w))             \
    ROW(DTYPE, "f64", dtr_tensor_allgather_list(g, a, x->mixed, NULL, w))                     \
    ROW(ARG, "out is NULL", dtr_tensor_gather(g, a, NULL, me, NULL, w))                       \
    ROW(ARG, "in is NULL", dtr_tensor_scatter(g, NULL, a, me, NULL, w))                       \
    ROW(ARG, "outs is NULL", dtr_tensor_allgather_list(g, a, NULL, NULL, w))                  \
    ROW(ARG, "outs is NULL", dtr_tensor_gather_list(g, a, NULL, me, NULL, w))                 \
    ROW(ARG, "ins is NULL", dtr_tensor_scatter_list(g, NULL, a, me, NULL, w))                 \
    ROW(ARG, "ins[", dtr_tensor_reduce_scatter_list(g, x->hole, a, DTR_SUM, NULL, w))         \
    ROW(ARG, "outs[", dtr_tensor_alltoall_list(g, x->list, x->hole, NULL, w))                 \
    ROW(SHAPE, "entry", dtr_tensor_allgather_list(g, x->wide.t, x->list, NULL, w))            \
    ROW(SHAPE, "entry", dtr_tensor_scatter_list(g, x->list, x->wide.t, me, NULL, w))          \
    ROW(SHAPE, "in_rows", dtr_tensor_alltoallv(g, a, rows, x->f32[1].t, NULL, NULL, w))       \
    ROW2(OVERFLOW, "overflows", dtr_tensor_alltoallv(g, a, huge, x->f32[1].t, huge, NULL, w)) \
    ROW(SHAPE, "same sizes", dtr_tensor_alltoallv(g, a, rows, x->wide.t, rows, NULL, w))      \
    ROW(ARG, "n is 0", dtr_broadcast_coalesced(g, x->list, 0, me, 0))                         \
    ROW(ARG, "tensors is NULL", dtr_broadcast_coalesced(g, NULL, 3, me, 0))                   \
    ROW(RANK, "root", dtr_broadcast_coalesced(g, x->list, 0, W, 0))                           \
    ROW(ARG, "tensors[", dtr_broadcast_coalesced(g, x->hole, (size_t)W, me, 0))               \
    ROW(RANK, "peer", dtr_tensor_send(g, a, -1, 0, NULL, w))                                  \
    ROW(RANK, "ANY_SOURCE", dtr_tensor_send(g, a, DTR_ANY_SOURCE, 0, NULL, w))                \
    ROW(ARG, "tag", dtr_tensor_recv(g, a, DTR_ANY_SOURCE, -1, NULL, w))
/* ROW2 makes sense with two ranks or more. */
#define ROW(status, word, call) +1
#define ROW2 ROW
enum { N_ROWS = 0 ROWS };
#undef ROW
#undef ROW2

/* Make bad call k; false when it did not behave. Outputs and *work are looked at by the caller. */
static void bad_call(const fixture *x, int k, dtr_work **w) {
    dtr_group *g = th_group();
    dtr_tensor *a = x->f32[0].t;
    const size_t rows[16] = { 5 }, huge[16] = { SIZE_MAX, 2 };
    int me = r, next = (r + 1) % W, row = 0;
#define ROW(status, word, call)                                         \
    if (k == row++) {                                                   \
        th_status(__FILE__, __LINE__, #call, (call), DTR_ERR_##status); \
        TH_MESSAGE(word);                                               \
        return;                                                         \
    }
#define ROW2(status, word, call)                                            \
    if (k == row++) {                                                       \
        if (W > 1) {                                                        \
            th_status(__FILE__, __LINE__, #call, (call), DTR_ERR_##status); \
            TH_MESSAGE(word);                                               \
        }                                                                   \
        return;                                                             \
    }
    ROWS
#undef ROW
#undef ROW2
}

START_TEST(bad_arguments_stay_here) {
    fixture x = fixture_new();
    for (int k = 0; k < N_ROWS; k++) {
        uint64_t seq = dtr_group_seq(th_group());
        dtr_work *work = (dtr_work *)16;
        bad_call(&x, k, NULL);
        bad_call(&x, k, &work);
        TH_CHECK(work == (dtr_work *)16, "row %d wrote the work", k);
        TH_CHECK(dtr_group_seq(th_group()) == seq, "row %d moved the sequence", k);
        TH_CHECK(untouched(&x), "row %d wrote to a tensor", k);
        TH_AGREE();
        th_good_allreduce(th_group());
        if (r == k % W) { /* on one rank alone */
            bad_call(&x, k, &work);
        }
        th_good_allreduce(th_group());
    }
    fixture_free(&x);
}
END_TEST

/* An outsider gets DTR_NOT_MEMBER from every call, whatever the arguments. */
START_TEST(calls_on_a_null_group) {
    dtr_tensor *none[1] = { NULL };
    view v = view_new(DTR_F32, DENSE, 1, SHAPE(2));
    dtr_work *works[2] = { (dtr_work *)16, (dtr_work *)16 };
    TH_IS(dtr_tensor_allreduce(NULL, v.t, DTR_SUM, NULL, &works[0]), DTR_NOT_MEMBER);
    TH_IS(dtr_tensor_gather_list(NULL, NULL, none, -3, NULL, &works[1]), DTR_NOT_MEMBER);
    TH_IS(dtr_tensor_send(NULL, v.t, 99, -1, &no_size, NULL), DTR_NOT_MEMBER);
    TH_IS(dtr_broadcast_coalesced(NULL, NULL, 0, -1, 0), DTR_NOT_MEMBER);
    TH_CHECK(works[0] == NULL && works[1] == NULL, "works not set to NULL");
    TH_CHECK(view_gaps_ok(&v, true), "tensor written");
    view_free(&v);
    TH_AGREE();
}
END_TEST

/* Tensors without elements, also NULL where the rules let them be, take their number like others.
 */
START_TEST(empty_tensors_are_legal) {
    view none = view_new(DTR_F32, DENSE, 2, SHAPE(0, 3)),
         rows = view_new(DTR_F32, COLUMN, 2, SHAPE(3, 0));
    dtr_tensor *list[16];
    uint64_t seq = dtr_group_seq(th_group());
    for (int j = 0; j < W; j++) {
        list[j] = none.t;
    }
    RUN(false, DTR_OK, dtr_tensor_allreduce(th_group(), none.t, DTR_SUM, NULL, work));
    RUN(true, DTR_OK, dtr_tensor_allgather(th_group(), none.t, none.t, NULL, work));
    RUN(false, DTR_OK, dtr_tensor_allgather_list(th_group(), none.t, list, NULL, work));
    RUN(true, DTR_OK, dtr_tensor_alltoall_list(th_group(), list, list, NULL, work));
    RUN(true, DTR_OK, dtr_tensor_broadcast(th_group(), rows.t, W - 1, NULL, work));
    RUN(false, DTR_OK,
        dtr_tensor_gather(th_group(), none.t, r == 0 ? none.t : NULL, 0, NULL, work));
    TH_CHECK(dtr_group_seq(th_group()) == seq + 6, "sequence moved by %d",
             (int)(dtr_group_seq(th_group()) - seq));
    view_free(&none);
    view_free(&rows);
    TH_AGREE();
}
END_TEST

/* ---- failed operations ---- */

START_TEST(a_failed_operation_fills_nothing) {
    dtr_group *g = NULL;
    TH_IS(dtr_group_split(th_group(), 0, r, NULL, &g), DTR_OK);
    view v = view_new(DTR_F32, COLUMN, 2, SHAPE(2, 2)),
         u = view_new(DTR_F32, REVERSED, 1, SHAPE(3));
    dtr_work *work = NULL;
    TH_IS(dtr_tensor_recv(g, v.t, (r + 1) % W, 3, NULL, &work), DTR_OK); /* nobody sends */
    th_barrier(); /* the first limit ends the group for all */
    TH_IS(dtr_work_wait(work, 0.3), DTR_ERR_TIMEOUT);
    TH_IS(dtr_tensor_allreduce(g, u.t, DTR_SUM, NULL, NULL), DTR_ERR_TIMEOUT); /* broken */
    dtr_tensor *list[1] = { u.t };
    TH_IS(dtr_broadcast_coalesced(g, list, 1, 0, 0), DTR_ERR_TIMEOUT);
    dtr_work_release(work);
    TH_CHECK(view_gaps_ok(&v, true) && view_gaps_ok(&u, true), "a tensor was written");
    th_barrier();
    dtr_group_destroy(g);
    view_free(&v);
    view_free(&u);
    TH_AGREE();
}
END_TEST

/* ---- broadcast of many tensors ---- */

/* T90, ddp V6: six sequences 0..59 in 5 chunks of 12, types h f32 h f64 h f32 where h is f32 (7
 * pieces) or f16 (6 pieces), pieces of 256 bytes. */
static void coalesced_once(dtr_dtype h, int root, int pieces, bool strided) {
    const dtr_dtype types[6] = { h, DTR_F32, h, DTR_F64, h, DTR_F32 };
    view v[31];
    dtr_tensor *list[31];
    for (int i = 0; i < 30; i++) {
        /* chunk by chunk: the types alternate in the list */
        v[i] = view_new(types[i % 6], strided && i % 3 == r % 3 ? COLUMN : DENSE, 1, SHAPE(12));
        list[i] = v[i].t;
        for (size_t k = 0; k < 12; k++) {
            view_set(&v[i], k, r == root ? (double)(i / 6 * 12) + (double)k : 0);
        }
    }
    v[30] = view_new(DTR_F32, DENSE, 2, SHAPE(0, 4));
    list[30] = list[7];
    list[7] = v[30].t; /* an empty one in the middle is skipped */
    uint64_t seq = dtr_group_seq(th_group());
    TH_IS(dtr_broadcast_coalesced(th_group(), list, 31, root, 256), DTR_OK);
    TH_CHECK(dtr_group_seq(th_group()) - seq == (uint64_t)pieces, "%d pieces, not %d",
             (int)(dtr_group_seq(th_group()) - seq), pieces);
    for (int i = 0; i < 30; i++) {
        for (size_t k = 0; k < 12; k++) {
            TH_CHECK(view_get(&v[i], k) == i / 6 * 12 + (double)k, "tensor %d element %zu: %g", i,
                     k, view_get(&v[i], k));
        }
        TH_CHECK(view_gaps_ok(&v[i], false), "gaps of %d written", i);
        view_free(&v[i]);
    }
    view_free(&v[30]);
    TH_AGREE();
}

START_TEST(broadcast_coalesced_every_root) {
    for (int root = 0; root < W; root++) {
        coalesced_once(DTR_F32, root, 7, root % 2 == 1);
        coalesced_once(DTR_F16, root, 6, root % 2 == 0);
    }
    view v = view_new(DTR_I64, DENSE, 1, SHAPE(1000));
    for (size_t k = 0; k < 1000; k++) {
        view_set(&v, k, r == 0 ? (double)k : -1);
    }
    TH_IS(dtr_broadcast_coalesced(th_group(), &v.t, 1, 0, 0), DTR_OK);
    for (size_t k = 0; k < 1000; k++) {
        TH_CHECK(view_get(&v, k) == (double)k, "element %zu", k);
    }
    view_free(&v);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    W = th_size();
    r = th_rank();
    TCase *tc = th_case(s, "tensor_errors", 60);
    th_add(tc, bad_arguments_stay_here, 1, 0);
    th_add(tc, calls_on_a_null_group, 1, 0);
    th_add(tc, empty_tensors_are_legal, 1, 0);
    th_add(tc, a_failed_operation_fills_nothing, 1, 0);
    th_add(tc, broadcast_coalesced_every_root, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "tensor_errors", make);
}
