/* Point to point, whatever carries it: all sizes, messages that come before their receives, and
 * ends with errors (P2P rows). Run over the channels of shm, over MPI and over both. */
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "harness.h"
#include "world/world.h"

enum { KIB = 1024, LONG = 80 * KIB };

static int next(void) {
    return (th_rank() + 1) % th_size();
}

static int before(void) {
    return (th_rank() + th_size() - 1) % th_size();
}

static dtr_buffer bytes(void *p, size_t n) {
    return dtr_cpu(p, n, DTR_U8);
}

static void finish(dtr_work *w) {
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
}

enum { BLOCK = 256 };

/* The bytes of one block: i * 7 plus a number that differs from block to block, read out of a table
 * by its start, as 183 is the inverse of 7 modulo 256. Whole blocks are copied and compared: byte
 * by byte the thread sanitizer takes a minute for what the longest messages carry. */
static const unsigned char *block(size_t at, unsigned seed) {
    static unsigned char table[2 * BLOCK];
    const size_t i = at / BLOCK;
    for (unsigned k = 0; table[1] == 0 && k < sizeof table; k++) {
        table[k] = (unsigned char)(k * 7);
    }
    return table + (i + (i >> 8) * 13 + seed * 31) * 183 % BLOCK;
}

static size_t length_of_block(size_t at, size_t n) {
    return n - at < BLOCK ? n - at : BLOCK;
}

/* Repeats itself after 16 MiB only: pieces of a message must not look alike. */
static void fill(unsigned char *p, size_t n, unsigned seed) {
    for (size_t at = 0; at < n; at += BLOCK) {
        memcpy(p + at, block(at, seed), length_of_block(at, n));
    }
}

static bool is_filled(const unsigned char *p, size_t n, unsigned seed) {
    for (size_t at = 0; at < n; at += BLOCK) {
        if (memcmp(p + at, block(at, seed), length_of_block(at, n)) != 0) {
            return false;
        }
    }
    return true;
}

/* ---- sizes ---- */

/* Around a ring, from memory of one kind into memory of another. */
static void ring(size_t n, dtr_mem from, dtr_mem to) {
    th_buf in = th_buf_new(n, DTR_U8, from, 1), out = th_buf_new(n, DTR_U8, to, 3);
    dtr_work *s = NULL, *r = NULL;
    fill(in.data, n, (unsigned)th_rank());
    memset(out.data, 0, n);
    TH_IS(dtr_send(th_group(), bytes(in.data, n), next(), 3, NULL, &s), DTR_OK);
    TH_IS(dtr_recv(th_group(), bytes(out.data, n), before(), 3, NULL, &r), DTR_OK);
    finish(r);
    finish(s);
    TH_CHECK(is_filled(out.data, n, (unsigned)before()), "%zu bytes, from memory %d to %d", n,
             (int)from, (int)to);
    TH_CHECK(th_buf_ok(&in, false) && th_buf_ok(&out, false), "%zu bytes: guard words", n);
    th_buf_free(&in);
    th_buf_free(&out);
}

/* P2P2, P2P23: on both sides of every border between ways. */
START_TEST(sizes) {
    static const size_t all[] = { 0,      1,         40,        41,      4095,         4991,
                                  4992,   16 * KIB,  64 * KIB,  65537,   LONG,         255 * KIB,
                                  300001, 512 * KIB, 600 * KIB, 1 << 20, (5 << 20) + 3 };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ring(all[i], DTR_MEM_DEFAULT, DTR_MEM_DEFAULT);
        ring(all[i], DTR_MEM_SHARED, DTR_MEM_DEFAULT);
        ring(all[i], DTR_MEM_DEFAULT, DTR_MEM_SHARED);
    }
    TH_AGREE();
}
END_TEST

/* P2P16, P2P22: several of each size to the same rank and from the same rank in one batch. */
START_TEST(batches) {
    enum { N = 6 };
    static const size_t length[N] = { 8, LONG, 0, 700 * KIB, 100, LONG };
    unsigned char *out[N], *in[N];
    dtr_p2p ops[2 * N];
    for (int i = 0; i < N; i++) {
        out[i] = malloc(length[i] + 1);
        in[i] = calloc(1, length[i] + 1);
        fill(out[i], length[i], (unsigned)(th_rank() * N + i));
        ops[2 * i] = (dtr_p2p){ true, bytes(out[i], length[i]), next(), i % 2 };
        ops[2 * i + 1] = (dtr_p2p){ false, bytes(in[i], length[i]), before(), i % 2 };
    }
    for (int round = 0; round < 3; round++) {
        TH_IS(dtr_batch_p2p(th_group(), ops, 2 * N, NULL, NULL), DTR_OK);
        for (int i = 0; i < N; i++) {
            TH_CHECK(is_filled(in[i], length[i], (unsigned)(before() * N + i)), "ops[%d]", i);
            memset(in[i], 0, length[i]);
        }
    }
    for (int i = 0; i < N; i++) {
        free(out[i]);
        free(in[i]);
    }
    TH_AGREE();
}
END_TEST

/* ---- messages before their receives ---- */

/* P2P8, P2P11: far more than fits anywhere, to a rank that is in a barrier and has asked for none
 * of them; then received in another order of tags. */
START_TEST(many_before_their_receives) {
    enum { N = 1500, BYTES = 200 };
    static unsigned char out[N][BYTES], in[N][BYTES];
    static dtr_work *s[N];
    for (int i = 0; i < N; i++) {
        fill(out[i], BYTES, (unsigned)(i + th_rank()));
        memset(in[i], 0, BYTES);
        TH_IS(dtr_send(th_group(), bytes(out[i], BYTES), next(), i % 3, NULL, &s[i]), DTR_OK);
    }
    TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
    for (int tag = 2; tag >= 0; tag--) {
        for (int i = tag; i < N; i += 3) {
            dtr_work *r = NULL;
            TH_IS(dtr_recv(th_group(), bytes(in[i], BYTES), before(), tag, NULL, &r), DTR_OK);
            finish(r);
        }
    }
    int bad = 0;
    for (int i = 0; i < N; i++) {
        finish(s[i]);
        bad += !is_filled(in[i], BYTES, (unsigned)(i + before()));
    }
    TH_CHECK(bad == 0, "%d messages are wrong", bad);
    TH_AGREE();
}
END_TEST

/* P2P8: a short message is received first, and then the many long ones called before it. */
START_TEST(long_ones_wait) {
    enum { N = 100 };
    unsigned char *out = malloc(LONG + N), *in = calloc(N, LONG);
    dtr_work *s[N + 1], *r = NULL;
    unsigned char x = (unsigned char)th_rank(), y = 255;
    int bad = 0;
    fill(out, LONG + N, (unsigned)th_rank());
    for (int i = 0; i < N; i++) {
        TH_IS(dtr_send(th_group(), bytes(out + i, LONG), next(), 1, NULL, &s[i]), DTR_OK);
    }
    TH_IS(dtr_send(th_group(), bytes(&x, 1), next(), 2, NULL, &s[N]), DTR_OK);
    TH_IS(dtr_recv(th_group(), bytes(&y, 1), before(), 2, NULL, &r), DTR_OK);
    finish(r);
    TH_CHECK(y == before(), "the short one is %d", y);
    for (int i = 0; i < N; i++) {
        TH_IS(dtr_recv(th_group(), bytes(in + (size_t)i * LONG, LONG), before(), 1, NULL, &r),
              DTR_OK);
        finish(r);
    }
    for (int i = 0; i <= N; i++) {
        finish(s[i]);
    }
    fill(out, LONG + N, (unsigned)before());
    for (int i = 0; i < N; i++) {
        bad += memcmp(in + (size_t)i * LONG, out + i, LONG) != 0;
    }
    TH_CHECK(bad == 0, "%d of the long ones are wrong", bad);
    free(out);
    free(in);
    TH_AGREE();
}
END_TEST

/* P2P4, P2P5, WRK9: short and long ones of all ranks, taken as they come; the order of each is
 * kept. */
START_TEST(from_anybody) {
    enum { N = 30 };
    int count[64] = { 0 };
    unsigned char *x = malloc(LONG);
    for (int i = 0; i < N && th_rank() != 0; i++) {
        const size_t n = i % 2 == 0 ? 8 : LONG;
        fill(x, n, (unsigned)(th_rank() * N + i));
        TH_IS(dtr_send(th_group(), bytes(x, n), 0, i % 2, NULL, NULL), DTR_OK);
    }
    for (int i = 0; i < N * (th_size() - 1) && th_rank() == 0; i++) {
        const int tag = i % 2;
        const size_t n = tag == 0 ? 8 : LONG;
        dtr_work *r = NULL;
        memset(x, 0, n);
        TH_IS(dtr_recv(th_group(), bytes(x, n), DTR_ANY_SOURCE, tag, NULL, &r), DTR_OK);
        TH_IS(dtr_work_wait(r, -1), DTR_OK);
        int from = dtr_work_source(r);
        TH_IS(dtr_work_release(r), DTR_OK);
        TH_CHECK(from > 0 && from < th_size(), "from %d", from);
        int *k = &count[(from > 0 ? from : 0) * 2 % 64 + tag];
        TH_CHECK(is_filled(x, n, (unsigned)(from * N + 2 * *k + tag)), "message %d of rank %d", *k,
                 from);
        ++*k;
    }
    free(x);
    TH_AGREE();
}
END_TEST

/* P2P4, P2P11: receives from anybody around one from the last rank, all with one tag in a round.
 * Rank 1 sends one message and the last rank two, which must come in their order whoever takes
 * them. */
START_TEST(from_anybody_and_one) {
    enum { ROUNDS = 60, N = 3 };
    const int last = th_size() - 1, peer[N] = { DTR_ANY_SOURCE, last, DTR_ANY_SOURCE };
    unsigned char *x = malloc((size_t)N * LONG);
    for (int round = 0; round < ROUNDS; round++) {
        const size_t n = round % 2 == 0 ? 8 : LONG;
        dtr_work *w[N] = { NULL };
        int sends = th_rank() == last ? 2 : th_rank() == 1;
        for (int i = 0; i < N && th_rank() == 0; i++) {
            TH_IS(dtr_recv(th_group(), bytes(x + (size_t)i * LONG, n), peer[i], round, NULL, &w[i]),
                  DTR_OK);
        }
        if (round % 3 == 0) {
            th_barrier(); /* they are all there before the first message */
        }
        for (int i = 0; i < sends; i++) {
            fill(x + (size_t)i * LONG, n, (unsigned)(th_rank() * 2 + i));
            TH_IS(dtr_send(th_group(), bytes(x + (size_t)i * LONG, n), 0, round, NULL, &w[i]),
                  DTR_OK);
        }
        for (int i = 0, of_last = 0; i < N; i++) {
            TH_IS(dtr_work_wait(w[i], -1), DTR_OK);
            const int from = dtr_work_source(w[i]);
            TH_IS(dtr_work_release(w[i]), DTR_OK);
            if (th_rank() == 0) {
                unsigned seed = (unsigned)(from == last ? from * 2 + of_last++ : from * 2);
                TH_CHECK((from == 1 || from == last) && is_filled(x + (size_t)i * LONG, n, seed),
                         "round %d, receive %d: not what rank %d sent next", round, i, from);
            }
        }
    }
    free(x);
    TH_AGREE();
}
END_TEST

/* Blocking calls that come again, to and from changing ranks, with tags received the other way
 * round now and then. */
START_TEST(again_and_again) {
    const int peer = th_rank() ^ 1;
    unsigned bad = 0;
    for (unsigned i = 0; i < 300 && peer < th_size(); i++) {
        unsigned char out[2] = { (unsigned char)i, (unsigned char)(i + 1) }, in[2] = { 0, 0 };
        for (int k = 0; k < 2; k++) {
            const int tag = th_rank() % 2 == 1 && i % 7 == 0 ? 1 - k : k;
            const int from = i % 5 == 0 ? DTR_ANY_SOURCE : peer;
            TH_IS(th_rank() % 2 == 0
                      ? dtr_send(th_group(), bytes(&out[tag], 1), peer, tag, NULL, NULL)
                      : dtr_recv(th_group(), bytes(&in[tag], 1), from, tag, NULL, NULL),
                  DTR_OK);
        }
        bad += th_rank() % 2 == 1 && memcmp(in, out, 2) != 0;
        if (i % 3 == 0) {
            TH_IS(th_rank() % 2 == 1 ? dtr_send(th_group(), bytes(in, 2), peer, 0, NULL, NULL)
                                     : dtr_recv(th_group(), bytes(in, 2), peer, 0, NULL, NULL),
                  DTR_OK);
            bad += memcmp(in, out, 2) != 0;
        }
    }
    TH_CHECK(bad == 0, "%u rounds are wrong", bad);
    TH_AGREE();
}
END_TEST

/* One batch with both neighbours, of which over nodes one is on this node and one is not. */
static dtr_status both_ways(dtr_group *g, int32_t *given, int32_t *got) {
    const dtr_p2p ops[] = { { true, dtr_cpu(&given[0], 1, DTR_I32), next(), 0 },
                            { false, dtr_cpu(&got[0], 1, DTR_I32), before(), 0 },
                            { true, dtr_cpu(&given[1], 1, DTR_I32), before(), 1 },
                            { false, dtr_cpu(&got[1], 1, DTR_I32), next(), 1 } };
    return dtr_batch_p2p(g, ops, sizeof ops / sizeof ops[0], NULL, NULL);
}

/* P2P11, P2P16, WRK17: the same batch again and again, now and then between other messages. */
START_TEST(both_ways_again) {
    int32_t given[2], got[2], other = -1;
    unsigned bad = 0;
    for (int i = 0; i < 300; i++) {
        given[0] = 1000 * i + th_rank();
        given[1] = -given[0];
        got[0] = got[1] = -1;
        TH_IS(both_ways(th_group(), given, got), DTR_OK);
        bad += got[0] != 1000 * i + before() || got[1] != -(1000 * i + next());
        if (i % 40 == 39) {
            dtr_work *s = NULL, *r = NULL;
            TH_IS(dtr_send(th_group(), dtr_cpu(given, 1, DTR_I32), next(), 0, NULL, &s), DTR_OK);
            TH_IS(dtr_recv(th_group(), dtr_cpu(&other, 1, DTR_I32), before(), 0, NULL, &r), DTR_OK);
            finish(r);
            finish(s);
            bad += other != 1000 * i + before();
        }
    }
    TH_CHECK(bad == 0, "%u rounds are wrong", bad);
    TH_AGREE();
}
END_TEST

/* ---- errors ---- */

/* WRK10: rank 1 aborts instead of one more batch; what its neighbours' other ones wait for comes.
 */
START_TEST(both_ways_aborted) {
    int32_t given[2] = { 1, 2 }, got[2];
    dtr_group *g = NULL;
    dtr_status s = DTR_ERR_ABORTED;
    TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g));
    for (int i = 0; i < 21; i++) {
        if (i == 20) {
            th_barrier(); /* all have what the last batch brought */
        }
        if (i == 20 && th_rank() == 1) {
            TH_IS(dtr_group_abort(g, "no more batches"), DTR_OK);
        } else {
            s = both_ways(g, given, got);
            TH_CHECK(s == (i < 20 ? DTR_OK : DTR_ERR_ABORTED) ||
                         (s == DTR_OK && next() != 1 && before() != 1),
                     "batch %d: %s", i, dtr_status_name(s));
        }
    }
    if (next() == 1 || before() == 1) {
        TH_MESSAGE("no more batches");
    }
    th_barrier();
    TH_IS(dtr_group_abort(g, "the test is over"), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* P2P10: a long message is refused on both sides, with both sites, and nothing is written. */
static void refused(dtr_mem kind) {
    enum { N = 100000 };
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g));
    th_buf x = th_buf_new(N, DTR_I32, kind, 0);
    memset(x.data, 5, N * sizeof(int32_t));
    dtr_work *w = NULL;
    if (th_rank() == 0) {
        TH_IS(dtr_send(g, dtr_cpu(x.data, N, DTR_I32), 1, 2, NULL, &w), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_ERR_MISMATCH);
    } else if (th_rank() == 1) {
        TH_IS(dtr_recv(g, dtr_cpu(x.data, N - 1, DTR_F32), 0, 2, NULL, &w), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_ERR_MISMATCH);
        int32_t five;
        memset(&five, 5, sizeof five);
        int32_t *at = x.data;
        TH_CHECK(at[0] == five && at[N - 1] == five, "the receive buffer was written");
    }
    if (w != NULL) {
        TH_MESSAGE("i32 x 100000 (at p2p_ways.c:");
        TH_MESSAGE("f32 x 99999 (at p2p_ways.c:");
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    th_barrier(); /* nobody destroys it before both have found out */
    TH_IS(dtr_group_abort(g, "the test is over"), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    th_buf_free(&x);
    TH_AGREE();
    th_good_allreduce(th_group());
}

START_TEST(long_mismatch) {
    refused(DTR_MEM_DEFAULT);
    refused(DTR_MEM_SHARED);
}
END_TEST

/* EA1: rank 1 aborts while rank 0 waits in all ways there are, and so does the last rank. */
START_TEST(aborted) {
    enum { N = 2000, FIRST = 3 };
    static unsigned char x[200];
    static dtr_work *w[FIRST + N];
    unsigned char *data = calloc(2, 600 * KIB), y = 0, z = 0;
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g));
    if (th_rank() == 0) {
        TH_IS(dtr_send(g, bytes(data, 600 * KIB), 1, 1, NULL, &w[0]), DTR_OK);
        TH_IS(dtr_recv(g, bytes(&y, 1), 1, 2, NULL, &w[1]), DTR_OK);
        TH_IS(dtr_recv(g, bytes(&z, 1), DTR_ANY_SOURCE, 3, NULL, &w[2]), DTR_OK);
        for (int i = FIRST; i < FIRST + N; i++) {
            TH_IS(dtr_send(g, bytes(x, sizeof x), 1, 4, NULL, &w[i]), DTR_OK);
        }
    }
    th_barrier();
    if (th_rank() == 1) {
        TH_IS(dtr_group_abort(g, "enough of it"), DTR_OK);
    }
    for (int i = 0; i < FIRST && th_rank() == 0; i++) {
        TH_IS(dtr_work_wait(w[i], -1), DTR_ERR_ABORTED);
        TH_MESSAGE("enough of it");
    }
    for (int i = 0; i < FIRST + N && th_rank() == 0; i++) {
        dtr_status s = dtr_work_wait(w[i], -1);
        TH_CHECK(s == DTR_ERR_ABORTED || (s == DTR_OK && i >= FIRST), "work %d: %s", i,
                 dtr_status_name(s));
        TH_IS(dtr_work_release(w[i]), DTR_OK);
    }
    if (th_rank() > 1) {
        TH_IS(dtr_recv(g, bytes(&y, 1), 0, 5, NULL, NULL), DTR_ERR_ABORTED);
    }
    th_barrier();
    TH_IS(dtr_group_destroy(g), DTR_OK);
    free(data);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* ---- memory ---- */

/* A channel is made for who sends, when it sends, and is gone with its group. */
START_TEST(channels_come_and_go) {
    const size_t at_first = dtr__arena_used(th_world());
    dtr_group *g = NULL;
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    unsigned char x = 1;
    TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g));
    TH_IS(dtr_group_get_info(g, &info), DTR_OK);
    const size_t made = dtr__arena_used(th_world());
    if (th_rank() < 2) {
        TH_IS(th_rank() == 0 ? dtr_send(g, bytes(&x, 1), 1, 0, NULL, NULL)
                             : dtr_recv(g, bytes(&x, 1), 0, 0, NULL, NULL),
              DTR_OK);
    }
    const size_t grown = dtr__arena_used(th_world()) - made;
    const bool sends = th_rank() == 0 && strcmp(info.backend, "cpu:mpi") != 0;
    TH_CHECK(sends ? grown <= 516 * KIB : grown == 0, "%zu bytes for a message over %s", grown,
             info.backend);
    TH_OK(dtr_group_destroy(g));
    TH_CHECK(dtr__arena_used(th_world()) == at_first, "node-shared memory is left");
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "p2p_ways", 110);
    th_add(tc, sizes, 1, 0);
    th_add(tc, batches, 1, 0);
    th_add(tc, many_before_their_receives, 2, 0);
    th_add(tc, long_ones_wait, 1, 0);
    th_add(tc, from_anybody, 1, 32);
    th_add(tc, from_anybody_and_one, 3, 0);
    th_add(tc, again_and_again, 1, 0);
    th_add(tc, both_ways_again, 1, 0);
    th_add(tc, both_ways_aborted, 2, 0);
    th_add(tc, long_mismatch, 2, 0);
    th_add(tc, aborted, 2, 0);
    th_add(tc, channels_come_and_go, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "p2p_ways", make);
}
