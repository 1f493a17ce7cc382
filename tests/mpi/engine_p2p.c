/* Point to point and batches (P2P rows). */
#include <stdlib.h>
#include <string.h>

#include "core/op.h"
#include "harness.h"
#include "recorder/recorder.h"

static dtr_buffer i32s(int32_t *x, size_t n) {
    return dtr_cpu(x, n, DTR_I32);
}

static void finish(dtr_work *w) {
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
}

/* P2P1, P2P12: blocking to and from oneself is refused. */
START_TEST(blocking_to_oneself) {
    int32_t x = 1;
    TH_IS(dtr_send(th_group(), i32s(&x, 1), th_rank(), 0, NULL, NULL), DTR_ERR_RANK);
    TH_MESSAGE("itself");
    TH_IS(dtr_recv(th_group(), i32s(&x, 1), th_rank(), 0, NULL, NULL), DTR_ERR_RANK);
    TH_MESSAGE("itself");
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* P2P2: with works, in either order, and in a batch, a message to oneself meets its receive. */
START_TEST(works_to_oneself) {
    int32_t x = 10 + th_rank(), y = 0, z = 0;
    dtr_work *s, *r;
    TH_IS(dtr_send(th_group(), i32s(&x, 1), th_rank(), 5, NULL, &s), DTR_OK);
    TH_IS(dtr_recv(th_group(), i32s(&y, 1), th_rank(), 5, NULL, &r), DTR_OK);
    finish(r);
    finish(s);
    TH_CHECK(y == x, "received %d", y);
    TH_IS(dtr_recv(th_group(), i32s(&z, 1), th_rank(), 6, NULL, &r), DTR_OK);
    TH_IS(dtr_send(th_group(), i32s(&x, 1), th_rank(), 6, NULL, &s), DTR_OK);
    TH_IS(dtr_work_wait(r, -1), DTR_OK);
    TH_CHECK(dtr_work_source(r) == th_rank(), "source %d", dtr_work_source(r));
    TH_IS(dtr_work_release(r), DTR_OK);
    finish(s);
    TH_CHECK(z == x, "received %d", z);
    int32_t a = 1, b = 2, c = 0, d = 0;
    dtr_p2p ops[] = { { true, i32s(&a, 1), th_rank(), 0 },
                      { false, i32s(&c, 1), th_rank(), 0 },
                      { false, i32s(&d, 1), th_rank(), 0 },
                      { true, i32s(&b, 1), th_rank(), 0 } };
    TH_IS(dtr_batch_p2p(th_group(), ops, 4, NULL, NULL), DTR_OK);
    TH_CHECK(c == 1 && d == 2, "a batch gave %d and %d", c, d);
    TH_AGREE();
}
END_TEST

/* P2P4, P2P5, WRK9: any source; the work names the sender. */
START_TEST(any_source) {
    int n = th_size(), seen[64] = { 0 };
    int32_t x = 100 + th_rank();
    if (th_rank() != 0) {
        TH_IS(dtr_send(th_group(), i32s(&x, 1), 0, 1, NULL, NULL), DTR_OK);
    } else {
        for (int i = 1; i < n; i++) {
            int32_t y = 0;
            dtr_work *w;
            TH_IS(dtr_recv(th_group(), i32s(&y, 1), DTR_ANY_SOURCE, 1, NULL, &w), DTR_OK);
            TH_IS(dtr_work_wait(w, -1), DTR_OK);
            int from = dtr_work_source(w);
            TH_CHECK(from > 0 && from < n && y == 100 + from && !seen[from], "%d from %d", y, from);
            seen[from > 0 && from < n ? from : 0] = 1;
            TH_IS(dtr_work_release(w), DTR_OK);
        }
    }
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* P2P8: tags match, received in swapped order; limits of tags. */
START_TEST(tags) {
    int32_t a = 1, b = 2, x = 0, y = 0;
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    dtr_work *s[2], *r[2];
    TH_IS(dtr_send(th_group(), i32s(&a, 1), next, 0, NULL, &s[0]), DTR_OK);
    TH_IS(dtr_send(th_group(), i32s(&b, 1), next, 32767, NULL, &s[1]), DTR_OK);
    TH_IS(dtr_recv(th_group(), i32s(&y, 1), before, 32767, NULL, &r[1]), DTR_OK);
    TH_IS(dtr_recv(th_group(), i32s(&x, 1), before, 0, NULL, &r[0]), DTR_OK);
    for (int i = 0; i < 2; i++) {
        finish(r[i]);
        finish(s[i]);
    }
    TH_CHECK(x == 1 && y == 2, "received %d and %d", x, y);
    TH_IS(dtr_send(th_group(), i32s(&a, 1), next, -1, NULL, &s[0]), DTR_ERR_ARG);
    TH_MESSAGE("tag is -1");
    TH_IS(dtr_recv(th_group(), i32s(&a, 1), before, 32768, NULL, &s[0]), DTR_ERR_ARG);
    TH_AGREE();
}
END_TEST

/* P2P11: order within pair and tag, 1000 messages. */
START_TEST(order) {
    enum { N = 1000 };
    static int32_t out[N], in[N];
    static dtr_work *s[N], *r[N];
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    for (int i = 0; i < N; i++) {
        out[i] = i;
        in[i] = -1;
        TH_IS(dtr_send(th_group(), i32s(&out[i], 1), next, 4, NULL, &s[i]), DTR_OK);
    }
    for (int i = 0; i < N; i++) {
        TH_IS(dtr_recv(th_group(), i32s(&in[i], 1), before, 4, NULL, &r[i]), DTR_OK);
    }
    for (int i = 0; i < N; i++) {
        finish(r[i]);
        finish(s[i]);
        TH_CHECK(in[i] == i, "message %d is %d", i, in[i]);
    }
    TH_AGREE();
}
END_TEST

/* P2P10, P2P9, DBG8: dtype and count of a pair must be equal; the receive buffer stays as it was. A
 * small message may have been sent before its receive is there, a large one has not. */
static void pair(dtr_buffer send, dtr_buffer recv, const void *before, size_t nbytes) {
    if (th_rank() == 0) {
        dtr_work *w;
        const bool large = nbytes > 1 << 20;
        TH_IS(dtr_send(th_group(), send, 1, 2, NULL, &w), DTR_OK);
        dtr_status s = dtr_work_wait(w, -1);
        TH_CHECK(s == DTR_ERR_MISMATCH || (s == DTR_OK && !large), "the sender got %s: %s",
                 dtr_status_name(s), dtr_last_error_message());
        if (s < 0) {
            TH_MESSAGE(dtr_dtype_name(send.dtype));
            TH_MESSAGE(dtr_dtype_name(recv.dtype));
        }
        TH_IS(dtr_work_release(w), DTR_OK);
    } else if (th_rank() == 1) {
        TH_IS(dtr_recv(th_group(), recv, 0, 2, NULL, NULL), DTR_ERR_MISMATCH);
        TH_MESSAGE(dtr_dtype_name(send.dtype));
        TH_MESSAGE(dtr_dtype_name(recv.dtype));
        TH_CHECK(memcmp(recv.data, before, nbytes) == 0, "the receive buffer was written");
    }
    TH_AGREE();
    TH_IS(dtr_group_abort(th_group(), "the test is over"), DTR_OK);
    th_good_allreduce(dtr_world_group(th_world()));
}

static const char fives[64] = "5555555555555555555555555555555555555555555555555555555555555555";

static void unequal_pair(dtr_dtype st, size_t sn, dtr_dtype rt, size_t rn) {
    char x[64] = { 0 }, y[64];
    memcpy(y, fives, sizeof y);
    pair(dtr_cpu(x, sn, st), dtr_cpu(y, rn, rt), fives, sizeof y);
}

START_TEST(shorter_message) {
    unequal_pair(DTR_F32, 4, DTR_F32, 5);
}
END_TEST
START_TEST(longer_message) {
    unequal_pair(DTR_F32, 5, DTR_F32, 4);
}
END_TEST
START_TEST(other_dtype) {
    unequal_pair(DTR_F32, 4, DTR_I32, 4);
}
END_TEST
START_TEST(complex_is_no_pair) {
    unequal_pair(DTR_C64, 3, DTR_F32, 6);
}
END_TEST

static void large_pair(size_t sent, size_t received, dtr_dtype rt) {
    enum { LARGE = 8000000 };
    char *x = malloc(LARGE), *y = malloc(LARGE), *before = malloc(LARGE);
    memset(x, 0, LARGE);
    memset(y, 5, LARGE);
    memset(before, 5, LARGE);
    pair(dtr_cpu(x, sent, DTR_F32), dtr_cpu(y, received, rt), before, LARGE);
    free(x);
    free(y);
    free(before);
}

START_TEST(large_shorter_message) {
    large_pair(1999999, 2000000, DTR_F32);
}
END_TEST
START_TEST(large_longer_message) {
    large_pair(2000000, 1999999, DTR_F32);
}
END_TEST
START_TEST(large_other_dtype) {
    large_pair(2000000, 2000000, DTR_I32);
}
END_TEST

/* The same to oneself: the receive and the send end with the mismatch. One rank only: it breaks the
 * group on all, which another one could hear of before its own call. */
static void unequal_on_rank_0(void) {
    float x[5] = { 0 }, y[5] = { 5, 5, 5, 5, 5 };
    dtr_work *s = NULL, *r = NULL;
    TH_IS(dtr_send(th_group(), dtr_cpu(x, 4, DTR_F32), th_rank(), 0, NULL, &s), DTR_OK);
    TH_IS(dtr_recv(th_group(), dtr_cpu(y, 5, DTR_F32), th_rank(), 0, NULL, &r), DTR_OK);
    TH_IS(dtr_work_wait(r, -1), DTR_ERR_MISMATCH);
    TH_MESSAGE("f32 x 4");
    TH_MESSAGE("f32 x 5");
    TH_MESSAGE("engine_p2p.c:");
    TH_CHECK(y[0] == 5 && y[4] == 5, "the receive buffer was written");
    dtr_status sent = dtr_work_wait(s, -1);
    TH_CHECK(sent == DTR_ERR_MISMATCH || sent == DTR_OK, "the send got %s", dtr_status_name(sent));
    TH_IS(dtr_work_release(s), DTR_OK);
    TH_IS(dtr_work_release(r), DTR_OK);
}

START_TEST(unequal_to_oneself) {
    if (th_rank() == 0) {
        unequal_on_rank_0();
    }
    TH_AGREE();
    TH_IS(dtr_group_abort(th_group(), "the test is over"), DTR_OK);
}
END_TEST

/* P2P16, P2P18, T37: a ring in one batch, small and large, both list orders. */
static void ring(size_t count, bool send_first) {
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    int32_t *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);
    for (size_t k = 0; k < count; k++) {
        x[k] = th_rank() * 1000 + (int32_t)(k % 1000);
        y[k] = -1;
    }
    dtr_p2p ops[2];
    ops[send_first ? 0 : 1] = (dtr_p2p){ true, i32s(x, count), next, 3 };
    ops[send_first ? 1 : 0] = (dtr_p2p){ false, i32s(y, count), before, 3 };
    dtr_work *w;
    uint64_t seq = dtr_group_seq(th_group());
    TH_IS(dtr_batch_p2p(th_group(), ops, 2, NULL, &w), DTR_OK);
    memset(ops, 0, sizeof ops); /* the list is copied */
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(dtr_work_source(w) == -1, "a batch has source %d", dtr_work_source(w));
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(dtr_group_seq(th_group()) == seq, "a batch moved the sequence");
    for (size_t k = 0; k < count; k++) {
        int32_t want = before * 1000 + (int32_t)(k % 1000);
        if (y[k] != want) {
            TH_CHECK(false, "element %zu is %d, not %d", k, y[k], want);
            break;
        }
    }
    free(x);
    free(y);
    TH_AGREE();
}

START_TEST(batch_ring) {
    ring(1, true);
    ring(1, false);
    ring(1 << 18, true);
    ring(1 << 18, false);
    ring(0, true);
}
END_TEST

/* P2P22: large both ways in one batch, and blocking sends once both receives are posted. */
START_TEST(large_both_ways) {
    enum { N = 4 << 20 };
    if (th_rank() < 2) {
        int peer = 1 - th_rank();
        int32_t *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
        memset(x, th_rank() + 1, N * sizeof *x);
        dtr_work *w;
        TH_IS(dtr_recv(th_group(), i32s(y, N), peer, 0, NULL, &w), DTR_OK);
        TH_IS(dtr_send(th_group(), i32s(x, N), peer, 0, NULL, NULL), DTR_OK);
        finish(w);
        TH_CHECK(((char *)y)[0] == peer + 1 && ((char *)(y + N))[-1] == peer + 1, "wrong data");
        free(x);
        free(y);
    }
    TH_AGREE();
}
END_TEST

/* CHK7, P2P14, P2P24: n = 0 completes; a bad entry in the middle starts nothing and names itself.
 */
START_TEST(batch_checks) {
    int32_t x = 1, y = 0;
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    dtr_work *w = NULL;
    bool done = false;
    TH_IS(dtr_batch_p2p(th_group(), NULL, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_batch_p2p(th_group(), NULL, 0, NULL, &w), DTR_OK);
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(done, "an empty batch is not done");
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_batch_p2p(th_group(), NULL, 1, NULL, NULL), DTR_ERR_ARG);
    dtr_p2p ops[] = { { true, i32s(&x, 1), next, 0 },
                      { true, i32s(NULL, 1), next, 0 },
                      { false, i32s(&y, 1), before, 0 } };
    TH_IS(dtr_batch_p2p(th_group(), ops, 3, NULL, NULL), DTR_ERR_ARG);
    TH_MESSAGE("ops[1].buf");
    ops[1] = (dtr_p2p){ true, i32s(&x, 1), n, 0 };
    TH_IS(dtr_batch_p2p(th_group(), ops, 3, NULL, NULL), DTR_ERR_RANK);
    TH_MESSAGE("ops[1].peer");
    ops[1] = (dtr_p2p){ true, i32s(&x, 1), DTR_ANY_SOURCE, 0 };
    TH_IS(dtr_batch_p2p(th_group(), ops, 3, NULL, NULL), DTR_ERR_RANK);
    TH_CHECK(y == 0, "something was received");
    ops[1] = ops[2];
    TH_IS(dtr_batch_p2p(th_group(), ops, 2, NULL, NULL), DTR_OK);
    TH_ALL(y == 1, "received %d", y);
    th_good_allreduce(th_group());
}
END_TEST

/* P2P20: a lone pair as the very first operation of a group. P2P25: the sequence stays. */
START_TEST(lone_pair) {
    int32_t x = 42, y = 0;
    uint64_t seq = dtr_group_seq(th_group());
    if (th_rank() == 0) {
        TH_IS(dtr_send(th_group(), i32s(&x, 1), 1, 0, NULL, NULL), DTR_OK);
    } else if (th_rank() == 1) {
        TH_IS(dtr_recv(th_group(), i32s(&y, 1), 0, 0, NULL, NULL), DTR_OK);
        TH_CHECK(y == 42, "received %d", y);
    }
    TH_ALL(dtr_group_seq(th_group()) == seq, "point to point moved the sequence");
}
END_TEST

/* P2P3, WRK9, GRP6: in a group {3, 1} peers and sources are group ranks. */
START_TEST(group_ranks) {
    dtr_group *g = NULL;
    const int ranks[] = { 3, 1 };
    TH_OK(dtr_group_create(th_world(), ranks, 2, NULL, &g));
    if (g != NULL) {
        int32_t x = 30 + dtr_group_rank(g), y = 0;
        if (dtr_group_rank(g) == 0) {
            TH_IS(dtr_send(g, i32s(&x, 1), 1, 0, NULL, NULL), DTR_OK);
            TH_IS(dtr_send(g, i32s(&x, 1), 2, 0, NULL, NULL), DTR_ERR_RANK);
            TH_IS(dtr_send(g, i32s(&x, 1), 3, 0, NULL, NULL), DTR_ERR_RANK);
        } else {
            dtr_work *w;
            TH_IS(dtr_recv(g, i32s(&y, 1), DTR_ANY_SOURCE, 0, NULL, &w), DTR_OK);
            TH_IS(dtr_work_wait(w, -1), DTR_OK);
            TH_CHECK(y == 30 && dtr_work_source(w) == 0, "%d from %d", y, dtr_work_source(w));
            TH_IS(dtr_work_release(w), DTR_OK);
        }
    } else {
        int32_t x = 0;
        dtr_work *w = (dtr_work *)&x;
        TH_IS(dtr_send(g, i32s(&x, 1), 0, 0, NULL, &w), DTR_NOT_MEMBER);
        TH_CHECK(w == NULL, "*work is not NULL");
    }
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* P2P23: zero elements are sent and matched, in order. */
START_TEST(zero_elements) {
    int32_t x = 9, y = 0;
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    dtr_p2p ops[] = { { true, i32s(NULL, 0), next, 1 },
                      { true, i32s(&x, 1), next, 1 },
                      { false, i32s(NULL, 0), before, 1 },
                      { false, i32s(&y, 1), before, 1 } };
    TH_OK(dtr_batch_p2p(th_group(), ops, 4, NULL, NULL));
    TH_ALL(y == 9, "received %d", y);
}
END_TEST

/* ---- small blocking messages again and again: a shorter way through the engine ---- */

enum { TIMES = 300 };

static void give(int32_t *x, size_t n, int peer, int tag) {
    TH_IS(dtr_send(th_group(), i32s(x, n), peer, tag, NULL, NULL), DTR_OK);
}

static void take(int32_t *x, size_t n, int peer, int tag) {
    TH_IS(dtr_recv(th_group(), i32s(x, n), peer, tag, NULL, NULL), DTR_OK);
}

/* P2P8, P2P11, WRK17: between neighbours, with other memory, counts and tags, asynchronous ones and
 * collectives in between; each moves the rank's own count by one. */
START_TEST(again_and_again) {
    static int32_t x[2][1100], y[2][1100];
    int peer = th_rank() ^ 1;
    dtr_work *w = NULL;
    for (int i = 0; i < TIMES && peer < th_size(); i++) {
        size_t n = i % 7 == 6 ? 1100 : 1 + (size_t)(i % 3), last = n - 1;
        int32_t *out = x[i % 2], *in = y[i / 2 % 2];
        out[last] = 10 * i + th_rank();
        in[last] = -1;
        bool async = i % 5 == 4;
        if (async) { /* ahead of what follows on its tag */
            TH_IS(dtr_send(th_group(), i32s(&out[last], 1), peer, 7, NULL, &w), DTR_OK);
        }
        if (th_rank() < peer) {
            give(out, n, peer, i % 4);
            take(in, n, peer, i % 4);
        } else {
            take(in, n, peer, i % 4);
            give(out, n, peer, i % 4);
        }
        TH_CHECK(in[last] == 10 * i + peer, "message %d gave %d", i, in[last]);
        if (async) {
            take(in, 1, i % 2 == 0 ? DTR_ANY_SOURCE : peer, 7);
            TH_CHECK(in[0] == 10 * i + peer, "asynchronous message %d gave %d", i, in[0]);
            /* two each time and two more every fifth, of which this was the first */
            TH_CHECK(dtr_work_seq(w) == (uint64_t)(2 * i + 2 * (i / 5) + 1), "number %d",
                     (int)dtr_work_seq(w));
            finish(w);
        }
    }
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* P2P16, P2P18: the same batch again and again, then one with another entry. */
START_TEST(batch_again_and_again) {
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    int32_t x[2] = { 0 }, y[2] = { 0 };
    uint64_t seq = dtr_group_seq(th_group());
    for (int i = 0; i < TIMES; i++) {
        int tag = i % 50 == 49 ? 5 : 3;
        dtr_p2p ops[] = { { true, i32s(&x[0], 1), next, tag },
                          { true, i32s(&x[1], 1), next, tag },
                          { false, i32s(&y[0], 1), before, tag },
                          { false, i32s(&y[1], 1), before, tag } };
        x[0] = 100 * i + th_rank();
        x[1] = -x[0];
        TH_IS(dtr_batch_p2p(th_group(), ops, 4, NULL, NULL), DTR_OK);
        TH_CHECK(y[0] == 100 * i + before && y[1] == -y[0], "batch %d gave %d and %d", i, y[0],
                 y[1]);
    }
    TH_CHECK(dtr_group_seq(th_group()) == seq, "batches moved the sequence");
    TH_AGREE();
}
END_TEST

/* reliability P9: batches that come again and again are recorded with their entries, in order. */
START_TEST(records_of_batches) {
    enum { BATCHES = 6, EACH = 3 };
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    int32_t x = 1, y = 0;
    dtr__record r[BATCHES * EACH];
    dtr_p2p ops[] = { { true, i32s(&x, 1), next, 3 }, { false, i32s(&y, 1), before, 3 } };
    for (int i = 0; i < TIMES; i++) {
        TH_IS(dtr_batch_p2p(th_group(), ops, 2, NULL, NULL), DTR_OK);
        if (i < TIMES - 20 || i % 4 != 0) { /* in the midst of runs, too */
            continue;
        }
        size_t found = dtr__rec_read(th_world(), r, BATCHES * EACH);
        TH_CHECK(found == BATCHES * EACH, "%zu records", found);
        for (size_t k = 0; k < found; k++) {
            const dtr__record *own = &r[k], *all = &r[k / EACH * EACH];
            const int part = (int)(k % EACH);
            static const int kinds[] = { DTR__K_BATCH, DTR__K_SEND, DTR__K_RECV };
            TH_CHECK(own->kind == kinds[part] && own->state == DTR__REC_FINISHED && own->seq == 0 &&
                         own->p2p_seq == (uint64_t)(i + 2 - BATCHES) + k / EACH,
                     "batch %d, record %zu: kind %d, state %d, seq %d, p2p_seq %d", i, k, own->kind,
                     own->state, (int)own->seq, (int)own->p2p_seq);
            TH_CHECK(own->op_id == all->op_id && own->t_issued == all->t_issued &&
                         own->number == all->number + (uint64_t)part &&
                         ((own->flags & DTR__REC_MEMBER) != 0) == (part > 0),
                     "batch %d, record %zu is not of its batch", i, k);
            TH_CHECK(part == 0 || (own->tag == 3 && own->count_in == 1 &&
                                   own->root_or_peer == (part == 1 ? next : before)),
                     "batch %d, record %zu: tag %d, peer %d", i, k, own->tag, own->root_or_peer);
            TH_CHECK(k == 0 || (own->t_issued >= own[-1].t_issued && own->op_id >= own[-1].op_id),
                     "batch %d, record %zu is out of order", i, k);
        }
    }
    TH_AGREE();
}
END_TEST

/* P2P10: after many that fit, a message of another count; the buffer stays as it was. */
START_TEST(unequal_after_many) {
    int32_t x[2] = { 1, 2 }, y[2] = { 0 };
    for (int i = 0; i <= 20 && th_rank() < 2; i++) {
        size_t n = i == 20 && th_rank() == 0 ? 2 : 1;
        y[0] = 55;
        if (th_rank() == 0) {
            TH_IS(dtr_send(th_group(), i32s(x, n), 1, 2, NULL, NULL), DTR_OK);
        } else {
            TH_IS(dtr_recv(th_group(), i32s(y, n), 0, 2, NULL, NULL),
                  i == 20 ? DTR_ERR_MISMATCH : DTR_OK);
            TH_CHECK(y[0] == (i == 20 ? 55 : 1), "receive %d gave %d", i, y[0]);
        }
    }
    if (th_rank() == 1) {
        TH_MESSAGE("i32 x 2");
        TH_MESSAGE("engine_p2p.c:");
    }
    TH_AGREE();
    TH_IS(dtr_group_abort(th_group(), "the test is over"), DTR_OK);
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* One place for all of them. */
static dtr_status receive_here(dtr_group *g, int32_t *x) {
    return dtr_recv(g, i32s(x, 1), 0, 2, NULL, NULL);
}

/* WRK10: after many that came, rank 0 aborts instead of sending one more. */
START_TEST(aborted_after_many) {
    dtr_group *g = NULL;
    int32_t x = 1;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
    for (int i = 0; i < 20 && th_rank() < 2; i++) {
        if (th_rank() == 0) {
            TH_IS(dtr_send(g, i32s(&x, 1), 1, 2, NULL, NULL), DTR_OK);
        } else {
            TH_IS(receive_here(g, &x), DTR_OK);
        }
    }
    th_barrier();
    if (th_rank() == 0) {
        TH_IS(dtr_group_abort(g, "no more of this"), DTR_OK);
    } else if (th_rank() == 1) {
        TH_IS(receive_here(g, &x), DTR_ERR_ABORTED);
        TH_MESSAGE("no more of this");
    }
    TH_AGREE();
    TH_IS(dtr_group_abort(g, "the test is over"), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    th_good_allreduce(th_group());
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "p2p", 60);
    th_add(tc, blocking_to_oneself, 0, 0);
    th_add(tc, works_to_oneself, 0, 0);
    th_add(tc, any_source, 2, 0);
    th_add(tc, tags, 0, 0);
    th_add(tc, order, 0, 0);
    th_add(tc, shorter_message, 2, 0);
    th_add(tc, longer_message, 2, 0);
    th_add(tc, other_dtype, 2, 0);
    th_add(tc, complex_is_no_pair, 2, 0);
    th_add(tc, large_shorter_message, 2, 0);
    th_add(tc, large_longer_message, 2, 0);
    th_add(tc, large_other_dtype, 2, 0);
    th_add(tc, unequal_to_oneself, 0, 0);
    th_add(tc, batch_ring, 0, 0);
    th_add(tc, large_both_ways, 2, 0);
    th_add(tc, batch_checks, 0, 0);
    th_add(tc, lone_pair, 2, 0);
    th_add(tc, group_ranks, 4, 0);
    th_add(tc, zero_elements, 0, 0);
    th_add(tc, again_and_again, 2, 0);
    th_add(tc, records_of_batches, 0, 0);
    th_add(tc, batch_again_and_again, 0, 0);
    th_add(tc, unequal_after_many, 2, 0);
    th_add(tc, aborted_after_many, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_p2p", make);
}
