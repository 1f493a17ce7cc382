/* Small blocking collectives called again and again: the short way through the engine gives the
 * same results, numbers and records as the ordinary one (WRK17, WRK18, reliability P3, P9, P13). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/team.h"
#include "engine_repeat.h"
#include "resident.h"

static void one_of_each(dtr_group *g, int i) {
    int n = th_size(), r = th_rank(), root = i % n;
    int32_t one = r + i, sum = -1, all[MOST_RANKS], mine[MOST_RANKS], got[MOST_RANKS];
    int32_t least = -1;
    for (int k = 0; k < n; k++) {
        mine[k] = 100 * r + k + i;
        all[k] = got[k] = -1;
    }
    TH_IS(dtr_allreduce(g, i32s(&one, 1), i32s(&sum, 1), DTR_SUM, NULL, NULL), DTR_OK);
    TH_CHECK(sum == triangle(n - 1) + n * i, "allreduce %d gave %d", i, sum);
    TH_IS(dtr_reduce(g, i32s(&one, 1), i32s(&least, r == root), DTR_MIN, root, NULL, NULL), DTR_OK);
    TH_CHECK(least == (r == root ? i : -1), "reduce %d gave %d", i, least);
    TH_IS(dtr_allgather(g, i32s(&one, 1), i32s(all, (size_t)n), NULL, NULL), DTR_OK);
    TH_IS(dtr_alltoall(g, i32s(mine, (size_t)n), i32s(got, (size_t)n), NULL, NULL), DTR_OK);
    for (int k = 0; k < n; k++) {
        TH_CHECK(all[k] == k + i, "allgather %d gave %d from %d", i, all[k], k);
        TH_CHECK(got[k] == 100 * k + r + i, "alltoall %d gave %d from %d", i, got[k], k);
    }
    TH_IS(dtr_reduce_scatter(g, i32s(mine, (size_t)n), i32s(&sum, 1), DTR_SUM, NULL, NULL), DTR_OK);
    TH_CHECK(sum == 100 * triangle(n - 1) + n * (r + i), "reduce_scatter %d gave %d", i, sum);
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
    TH_IS(dtr_gather(g, i32s(&one, 1), i32s(got, r == root ? (size_t)n : 0), root, NULL, NULL),
          DTR_OK);
    TH_CHECK(r != root || got[n - 1] == n - 1 + i, "gather %d gave %d", i, got[n - 1]);
    TH_IS(dtr_scatter(g, i32s(got, r == root ? (size_t)n : 0), i32s(&sum, 1), root, NULL, NULL),
          DTR_OK);
    TH_CHECK(sum == r + i, "scatter %d gave %d", i, sum);
    sum = r == root ? 7 * i : -1;
    TH_IS(dtr_broadcast(g, i32s(&sum, 1), root, NULL, NULL), DTR_OK);
    TH_CHECK(sum == 7 * i, "broadcast %d gave %d", i, sum);
}

/* Every kind in turn, roots changing; each call moves the sequence by one. */
START_TEST(alternating) {
    uint64_t seq = dtr_group_seq(th_group());
    for (int i = 0; i < TIMES; i++) {
        one_of_each(th_group(), i);
    }
    TH_ALL(dtr_group_seq(th_group()) == seq + 9 * TIMES, "the sequence moved by %d",
           (int)(dtr_group_seq(th_group()) - seq));
}
END_TEST

enum { BLOCKS_MOST = 2200, PATTERNS = 4 };

/* What rank `from` gives `to` in a pattern: the last one has more than travels with a post, the
 * third gives some nothing. */
static size_t block(int pattern, int from, int to) {
    static const size_t base[PATTERNS] = { 1, 3, 0, BLOCKS_MOST - 3 };
    return base[pattern] + (size_t)((from + 2 * to) % 3);
}

/* Blocks of `others` with this rank, one after the other, each filled with its number. */
static size_t lay_out(int32_t *x, size_t *counts, int pattern, bool gives, int root, int plus) {
    size_t total = 0;
    for (int k = 0; k < th_size(); k++) {
        int from = gives ? th_rank() : k, to = gives ? k : th_rank();
        counts[k] = root < 0 ? block(pattern, from, to) : block(pattern, k, root);
        for (size_t i = 0; x != NULL && i < counts[k]; i++) {
            x[total + i] = 100 * from + to + plus;
        }
        total += counts[k];
    }
    return total;
}

static void check_blocks(const char *what, int i, const int32_t *got, const size_t *counts,
                         int step, int plus) {
    size_t at = 0;
    for (int k = 0; k < th_size(); k++) {
        for (size_t j = 0; j < counts[k]; j++, at++) {
            TH_CHECK(got[at] == step * k + plus, "%s %d gave %d at %zu from %d", what, i, got[at],
                     at, k);
        }
    }
}

static void one_of_each_v(dtr_group *g, int i, int pattern) {
    static int32_t mine[MOST_RANKS * BLOCKS_MOST], got[MOST_RANKS * BLOCKS_MOST];
    size_t to[MOST_RANKS], from[MOST_RANKS], same[MOST_RANKS];
    int r = th_rank(), root = i % th_size();
    size_t n_to = lay_out(mine, to, pattern, true, -1, i);
    size_t n_from = lay_out(NULL, from, pattern, false, -1, 0);
    size_t n_same = lay_out(NULL, same, pattern, false, 0, 0);
    TH_IS(dtr_alltoallv(g, i32s(mine, n_to), to, i32s(got, n_from), from, NULL, NULL), DTR_OK);
    check_blocks("alltoallv", i, got, from, 100, r + i);
    TH_IS(dtr_scatterv(g, i32s(mine, r == root ? n_to : 0), r == root ? to : NULL,
                       i32s(got, block(pattern, root, r)), root, NULL, NULL),
          DTR_OK);
    for (size_t j = 0; j < block(pattern, root, r); j++) {
        TH_CHECK(got[j] == 100 * root + r + i, "scatterv %d gave %d", i, got[j]);
    }
    for (size_t j = 0; j < same[r]; j++) {
        mine[j] = r + i;
    }
    TH_IS(dtr_allgatherv(g, i32s(mine, same[r]), i32s(got, n_same), same, NULL, NULL), DTR_OK);
    check_blocks("allgatherv", i, got, same, 1, i);
    memset(got, 0, sizeof got);
    TH_IS(dtr_gatherv(g, i32s(mine, same[r]), i32s(got, r == root ? n_same : 0),
                      r == root ? same : NULL, root, NULL, NULL),
          DTR_OK);
    if (r == root) {
        check_blocks("gatherv", i, got, same, 1, i);
    }
    for (size_t j = 0; j < n_same; j++) {
        mine[j] = r + (int32_t)j;
    }
    TH_IS(dtr_reduce_scatterv(g, i32s(mine, n_same), same, i32s(got, same[r]), DTR_SUM, NULL, NULL),
          DTR_OK);
    int32_t at = 0;
    for (int k = 0; k < r; k++) {
        at += (int32_t)same[k];
    }
    for (size_t j = 0; j < same[r]; j++) {
        TH_CHECK(got[j] == triangle(th_size() - 1) + th_size() * (at + (int32_t)j),
                 "reduce_scatterv %d gave %d", i, got[j]);
    }
}

/* Blocks of different sizes, several times the same ones, then others; empty and long ones, too. */
START_TEST(changing_blocks) {
    for (int i = 0; i < TIMES / 2; i++) {
        one_of_each_v(th_group(), i, i / 6 % PATTERNS);
    }
    for (int i = 0; i < TIMES / 4; i++) {
        one_of_each_v(th_group(), i, i % PATTERNS);
    }
    TH_AGREE();
}
END_TEST

/* From one place: other counts, types, operators and memory, and each gives its own result. */
START_TEST(changing_arguments) {
    enum { MOST = 700 };
    static int32_t a[MOST], b[MOST];
    static double c[MOST], d[MOST];
    int n = th_size();
    for (int i = 0; i < 4 * TIMES; i++) {
        size_t count = (size_t)(1 + (i * 37) % MOST), last = count - 1;
        if (i % 3 == 0) {
            count = 2 + (size_t)i % 2; /* the same few again and again */
            last = count - 1;
        }
        for (size_t k = 0; k < count; k++) {
            a[k] = th_rank() + (int32_t)k;
            c[k] = th_rank() + (double)k;
        }
        int32_t sum = triangle(n - 1) + n * (int32_t)last, most = n - 1 + (int32_t)last;
        bool in_place = i % 2 == 1, highest = i % 5 == 0;
        TH_IS(reduce_here(th_group(), i32s(a, count), i32s(in_place ? a : b, count),
                          highest ? DTR_MAX : DTR_SUM, NULL),
              DTR_OK);
        int32_t got = in_place ? a[last] : b[last];
        TH_CHECK(got == (highest ? most : sum), "call %d of %zu gave %d", i, count, got);
        TH_IS(reduce_here(th_group(), dtr_cpu(c, count, DTR_F64), dtr_cpu(d, count, DTR_F64),
                          DTR_SUM, NULL),
              DTR_OK);
        TH_CHECK(d[last] == sum, "call %d of %zu f64 gave %g", i, count, d[last]);
    }
    TH_AGREE();
}
END_TEST

/* WRK17: the same call from one place, now with the same memory as the last time and now not. */
START_TEST(changing_memory) {
    int32_t x[2][2], sum[2][2], all[2][MOST_RANKS], n = th_size();
    for (int i = 0; i < TIMES; i++) {
        const int k = i / 3 % 2;
        memset(sum, -1, sizeof sum);
        memset(all, -1, sizeof all);
        x[k][0] = th_rank() + i;
        x[1 - k][0] = -1000;
        TH_IS(reduce_here(th_group(), i32s(x[k], 1), i32s(sum[k], 1), DTR_SUM, NULL), DTR_OK);
        TH_IS(dtr_gather(th_group(), i32s(x[k], 1), i32s(all[k], th_rank() == 0 ? (size_t)n : 0), 0,
                         NULL, NULL),
              DTR_OK);
        TH_CHECK(sum[k][0] == triangle(n - 1) + n * i && sum[1 - k][0] == -1,
                 "sums of call %d: %d %d", i, sum[0][0], sum[1][0]);
        TH_CHECK(all[1 - k][0] == -1 && (th_rank() != 0 || all[k][n - 1] == n - 1 + i),
                 "gather %d gave %d", i, all[k][n - 1]);
    }
    TH_AGREE();
}
END_TEST

/* CHK: bad arguments where good ones were given before are refused, and no number is used up. */
START_TEST(refused_between) {
    int32_t x[4] = { 1, 2, 3, 4 }, y[4] = { -1, -1, -1, -1 };
    warm_up(th_group());
    uint64_t seq = dtr_group_seq(th_group());
    TH_IS(reduce_here(th_group(), i32s(NULL, 1), i32s(y, 1), DTR_SUM, NULL), DTR_ERR_ARG);
    TH_IS(reduce_here(th_group(), i32s(x, 1), i32s(NULL, 1), DTR_SUM, NULL), DTR_ERR_ARG);
    TH_IS(reduce_here(th_group(), i32s(x, 1), i32s(y, 2), DTR_SUM, NULL), DTR_ERR_SHAPE);
    TH_IS(reduce_here(th_group(), i32s(x, 1), i32s(y, 1), (dtr_op)77, NULL), DTR_ERR_ARG);
    for (int i = 0; i < 3; i++) { /* the pair is good the first times */
        TH_IS(reduce_here(th_group(), i32s(x, 2), i32s(y, 2), DTR_SUM, NULL), DTR_OK);
    }
    TH_IS(reduce_here(th_group(), i32s(x, 2), i32s(x + 1, 2), DTR_SUM, NULL), DTR_ERR_ARG);
    TH_MESSAGE("overlap");
    TH_IS(reduce_here(NULL, i32s(x, 2), i32s(y, 2), DTR_SUM, NULL), DTR_NOT_MEMBER);
    TH_CHECK(dtr_group_seq(th_group()) == seq + 3, "the sequence moved by %d",
             (int)(dtr_group_seq(th_group()) - seq));
    TH_CHECK(y[0] == th_size() && y[2] == -1, "results %d, %d", y[0], y[2]);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* The newest `n` records are of allreduces called here, finished, in order, with this label. */
static void check_records(size_t n, uint64_t last_seq, const char *label) {
    dtr__record r[8];
    size_t found = dtr__rec_read(th_world(), r, n);
    TH_CHECK(found == n, "%zu records", found);
    for (size_t i = 0; i < found; i++) {
        TH_CHECK(r[i].kind == DTR__K_ALLREDUCE && r[i].state == DTR__REC_FINISHED &&
                     r[i].status == DTR_OK && r[i].seq == last_seq - (n - 1 - i),
                 "record %zu: kind %d, state %d, status %d, seq %d of %d", i, r[i].kind, r[i].state,
                 r[i].status, (int)r[i].seq, (int)last_seq);
        TH_CHECK(strncmp(r[i].site, "engine_repeat.h:", 16) == 0, "site \"%s\"", r[i].site);
        TH_CHECK(strcmp(r[i].label, label) == 0, "label \"%s\", not \"%s\"", r[i].label, label);
        TH_CHECK(r[i].t_issued > 0 && r[i].t_finished >= r[i].t_issued &&
                     r[i].deadline > r[i].t_issued && (r[i].flags & DTR__REC_BLOCKING) != 0,
                 "record %zu: issued %lld, finished %lld, deadline %lld, flags %d", i,
                 (long long)r[i].t_issued, (long long)r[i].t_finished, (long long)r[i].deadline,
                 r[i].flags);
        TH_CHECK(i == 0 || (r[i].t_issued >= r[i - 1].t_finished && r[i].op_id > r[i - 1].op_id),
                 "record %zu is out of order", i);
    }
}

/* P9, P13: one record per call, with its label, place, numbers and times. */
START_TEST(records) {
    int32_t x = 1, y = 0;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    warm_up(th_group());
    double before = th_now();
    for (int i = 0; i < 8; i++) {
        TH_IS(reduce_here(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL), DTR_OK);
    }
    double after = th_now();
    check_records(8, dtr_group_seq(th_group()), "");
    dtr__record r[8];
    TH_CHECK(dtr__rec_read(th_world(), r, 8) == 8, "fewer records");
    for (int i = 0; i < 8; i++) { /* the same clock, within what a thread may be stopped for */
        double at = 1e-9 * (double)r[i].t_issued;
        TH_CHECK(at > before - 1e-3 && at < after + 1e-3, "%g is not in %g..%g", at, before, after);
    }
    static const char *const labels[] = { "first", "second", "first" };
    for (int k = 0; k < 3; k++) {
        o.label = labels[k];
        for (int i = 0; i < 4; i++) {
            TH_IS(reduce_here(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, &o), DTR_OK);
        }
        check_records(4, dtr_group_seq(th_group()), labels[k]);
    }
    for (int i = 0; i < 4; i++) {
        TH_IS(reduce_here(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL), DTR_OK);
    }
    check_records(4, dtr_group_seq(th_group()), "");
    TH_AGREE();
}
END_TEST

/* WRK18: asynchronous calls in between keep their place. */
START_TEST(between_asynchronous_ones) {
    warm_up(th_group());
    for (int i = 0; i < TIMES; i++) {
        int32_t a = th_rank() + i, b = 2 * a, x = 0, y = 0, z = 0;
        dtr_work *w = NULL, *v = NULL;
        TH_IS(dtr_allreduce(th_group(), i32s(&a, 1), i32s(&x, 1), DTR_SUM, NULL, &w), DTR_OK);
        TH_IS(reduce_here(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_MAX, NULL), DTR_OK);
        TH_IS(dtr_allreduce(th_group(), i32s(&b, 1), i32s(&z, 1), DTR_SUM, NULL, &v), DTR_OK);
        TH_IS(dtr_work_wait(v, -1), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        int32_t want = triangle(th_size() - 1) + th_size() * i;
        TH_CHECK(x == want && y == want && z == 2 * want, "round %d gave %d, %d and %d", i, x, y,
                 z);
        TH_CHECK(dtr_work_seq(v) == dtr_work_seq(w) + 2, "numbers %d and %d", (int)dtr_work_seq(w),
                 (int)dtr_work_seq(v));
        TH_IS(dtr_work_release(w), DTR_OK);
        TH_IS(dtr_work_release(v), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

typedef struct job {
    dtr_group *group;
    int bad;
} job;

static void *sum_up(void *arg) {
    job *j = arg;
    for (int i = 0; i < 10 * TIMES; i++) {
        int32_t x = i, y = 0;
        j->bad += dtr_allreduce(j->group, i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL, NULL) != DTR_OK;
        j->bad += y != i * th_size();
    }
    return NULL;
}

static void *pass_on(void *arg) {
    job *j = arg;
    int n = th_size(), to = (th_rank() + 1) % n, from = (th_rank() + n - 1) % n;
    for (int i = 0; i < TIMES; i++) {
        int32_t x = i, y = -1;
        dtr_work *s = NULL, *r = NULL;
        j->bad += dtr_recv(j->group, i32s(&y, 1), from, 3, NULL, &r) != DTR_OK;
        j->bad += dtr_send(j->group, i32s(&x, 1), to, 3, NULL, &s) != DTR_OK;
        j->bad += dtr_work_wait(r, -1) != DTR_OK || dtr_work_wait(s, -1) != DTR_OK || y != i;
        dtr_work_release(r);
        dtr_work_release(s);
    }
    return NULL;
}

/* Two threads on two groups, and two on one: one with collectives, one with messages. */
START_TEST(two_threads) {
    dtr_group *other = NULL;
    pthread_t thread;
    if (strcmp(th_thread_level(), "multiple") != 0) {
        return;
    }
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &other));
    job mine = { th_group(), 0 }, its = { other, 0 }, same = { th_group(), 0 };
    pthread_create(&thread, NULL, sum_up, &its);
    sum_up(&mine);
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, pass_on, &same);
    sum_up(&mine);
    pthread_join(thread, NULL);
    TH_CHECK(mine.bad + its.bad + same.bad == 0, "%d, %d and %d calls went wrong", mine.bad,
             its.bad, same.bad);
    TH_AGREE();
    TH_IS(dtr_group_destroy(other), DTR_OK);
    th_good_allreduce(th_group());
}
END_TEST

enum { KINDS_WITH_ROOT = 6, ROW_MOST = 9000 }; /* elements of a rank, which no slot holds */

/* Call `i` of a row: `kind` with this root, `n` elements of every rank. */
static void call_of_row(dtr_group *g, int kind, int root, size_t n, int i) {
    static int32_t mine[MOST_RANKS * ROW_MOST], got[MOST_RANKS * ROW_MOST];
    static size_t counts[MOST_RANKS];
    const size_t size = (size_t)th_size(), all = size * n;
    const bool at_root = th_rank() == root;
    dtr_status s = DTR_OK;
    for (size_t k = 0; k < all; k++) {
        mine[k] = (kind == 0 || kind > 3 ? 1000 : th_rank()) + (int32_t)k + i;
        got[k] = -1;
    }
    for (size_t k = 0; k < size; k++) {
        counts[k] = n;
    }
    dtr_buffer part = i32s(got, n), whole = i32s(got, at_root ? all : 0);
    switch (kind) {
    case 0:
        memcpy(got, mine, at_root ? n * sizeof *got : 0);
        s = dtr_broadcast(g, part, root, NULL, NULL);
        break;
    case 1:
        s = dtr_reduce(g, i32s(mine, n), i32s(got, at_root ? n : 0), DTR_SUM, root, NULL, NULL);
        break;
    case 2:
        s = dtr_gather(g, i32s(mine, n), whole, root, NULL, NULL);
        break;
    case 3:
        s = dtr_gatherv(g, i32s(mine, n), whole, at_root ? counts : NULL, root, NULL, NULL);
        break;
    case 4:
        s = dtr_scatter(g, i32s(mine, at_root ? all : 0), part, root, NULL, NULL);
        break;
    default:
        s = dtr_scatterv(g, i32s(mine, at_root ? all : 0), at_root ? counts : NULL, part, root,
                         NULL, NULL);
    }
    TH_CHECK(s == DTR_OK, "kind %d, call %d: %s", kind, i, dtr_last_error_message());
    for (size_t k = 0; k < (at_root && (kind == 2 || kind == 3) ? all : n); k++) {
        const int32_t at = (int32_t)k, own = 1000 + i + at, rank = th_rank() * (int32_t)n;
        const int32_t sum = triangle(th_size() - 1) + th_size() * (at + i);
        const int32_t block = at / (int32_t)n + at % (int32_t)n + i;
        const int32_t want = kind == 0 ? own : kind > 3 ? own + rank : kind == 1 ? sum : block;
        TH_CHECK(got[k] == (kind == 0 || kind > 3 || at_root ? want : -1),
                 "kind %d, call %d gave %d at %d", kind, i, got[k], at);
    }
}

/* In a row of equal calls ranks run ahead of those they need not wait for: nothing that these have
 * not read is overwritten, and what comes after the row, of whatever kind, finds its place. */
START_TEST(rows_with_a_root) {
    static const size_t lengths[] = { 1, 2, 12, 100, 400, 700, ROW_MOST };
    const int n_lengths = (int)(sizeof lengths / sizeof lengths[0]);
    for (int what = 0; what < KINDS_WITH_ROOT * n_lengths; what++) {
        const int kind = what % KINDS_WITH_ROOT, root = what % th_size();
        for (int i = 0; i < ROW; i++) {
            if (i % 33 == 32 && th_rank() == (what + i) % th_size()) {
                th_sleep(0.001); /* the others get as far ahead as they may */
            }
            call_of_row(th_group(), kind, root, lengths[what / KINDS_WITH_ROOT], i);
        }
        if (what % 2 == 0) {
            th_good_allreduce(th_group());
        }
    }
    TH_AGREE();
}
END_TEST

/* In a row of small gathers one rank's block becomes long: the others, which do not know of it,
 * have ended those calls when the rank wants its staging buffers for something else. */
START_TEST(one_gives_more) {
    enum { LONG = 10000, WIDE = 9000 }; /* in chunks of different sizes */
    static int32_t mine[LONG], got[MOST_RANKS * 10 + LONG], wide[WIDE];
    size_t counts[MOST_RANKS];
    const int giver = th_size() - 1, n = th_size();
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < ROW; i++) {
            const size_t more = i < ROW - 1 - round % 3 ? 10 : LONG;
            for (int r = 0; r < n; r++) {
                counts[r] = r == giver ? more : 10;
            }
            for (size_t k = 0; k < LONG; k++) {
                mine[k] = th_rank() * 1000 + i + (int32_t)k;
            }
            dtr_buffer all = i32s(got, th_rank() == 0 ? (size_t)(n - 1) * 10 + more : 0);
            TH_IS(dtr_gatherv(th_group(), i32s(mine, counts[th_rank()]), all,
                              th_rank() == 0 ? counts : NULL, 0, NULL, NULL),
                  DTR_OK);
            const size_t last = (size_t)(n - 1) * 10 + more - 1;
            TH_CHECK(th_rank() != 0 || got[last] == giver * 1000 + i + (int32_t)more - 1,
                     "call %d gave %d", i, got[last]);
        }
        wide[WIDE - 1] = th_rank() == giver ? round : -1;
        TH_IS(dtr_broadcast(th_group(), i32s(wide, WIDE), giver, NULL, NULL), DTR_OK);
        TH_CHECK(wide[WIDE - 1] == round, "broadcast %d gave %d", round, wide[WIDE - 1]);
    }
    TH_AGREE();
}
END_TEST

/* Rows of v-forms with a root and long blocks, whose lengths change within the row; the last rank
 * has none, so nothing but the number of slots keeps it from running ahead. */
START_TEST(long_blocks_change) {
    static int32_t whole[MOST_RANKS * (ROW_MOST + ROW)], part[ROW_MOST + ROW];
    size_t counts[MOST_RANKS];
    const int n = th_size();
    for (int what = 0; what < 2 * ROW; what++) {
        const bool gathers = what < ROW, at_root = th_rank() == 0;
        const size_t length = 4000 + (size_t)(what / 32);
        size_t all = 0;
        for (int r = 0; r < n; r++) {
            /* Of ranks 1 and 2 it changes while the root's and the sum stay the same. */
            const int more = r == 1 || r == 2 ? (what / 16 % 2 ? 3 - r : r) : r;
            counts[r] = n > 1 && r == n - 1 ? 0 : length + (size_t)more;
            for (size_t k = 0; k < counts[r]; k++, all++) {
                whole[all] = at_root && !gathers ? r + what + (int32_t)k : -1;
            }
        }
        for (size_t k = 0; k < ROW_MOST + ROW; k++) {
            part[k] = gathers ? th_rank() + what + (int32_t)k : -1;
        }
        if (what % 33 == 32 && at_root) {
            th_sleep(0.001);
        }
        dtr_buffer own = i32s(part, counts[th_rank()]), every = i32s(whole, at_root ? all : 0);
        TH_IS(gathers
                  ? dtr_gatherv(th_group(), own, every, at_root ? counts : NULL, 0, NULL, NULL)
                  : dtr_scatterv(th_group(), every, at_root ? counts : NULL, own, 0, NULL, NULL),
              DTR_OK);
        size_t wrong = 0, at = 0;
        for (int r = 0; r < n; r++) {
            for (size_t k = 0; k < counts[r]; k++, at++) {
                wrong += gathers && at_root && whole[at] != r + what + (int32_t)k;
                wrong += !gathers && r == th_rank() && part[k] != r + what + (int32_t)k;
            }
        }
        TH_CHECK(wrong == 0, "call %d: %zu wrong", what, wrong);
    }
    TH_AGREE();
}
END_TEST

/* Calls take no memory. */
START_TEST(many_calls) {
    int32_t x = 1, y = 0;
    for (int i = 0; i < 10000; i++) { /* the recorder's ring is in use then */
        TH_IS(reduce_here(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL), DTR_OK);
    }
    long before = th_resident_kib();
    for (int i = 0; i < 200000; i++) {
        if (reduce_here(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL) != DTR_OK || y != 2) {
            TH_CHECK(false, "call %d: %s, result %d", i, dtr_last_error_message(), y);
            break;
        }
    }
    long grown = th_resident_kib() - before;
    TH_CHECK(grown < 1024, "grew by %ld KiB", grown);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "results", 60);
    th_add(tc, alternating, 0, 0);
    th_add(tc, changing_arguments, 0, 0);
    th_add(tc, changing_memory, 0, 0);
    th_add(tc, changing_blocks, 0, 0);
    th_add(tc, refused_between, 0, 0);
    th_add(tc, records, 0, 0);
    th_add(tc, between_asynchronous_ones, 0, 0);
    th_add(tc, two_threads, 2, 0);
    th_add(tc, rows_with_a_root, 0, 0);
    th_add(tc, one_gives_more, 0, 0);
    th_add(tc, long_blocks_change, 0, 0);
    th_add_measured(tc, many_calls, 2, 2);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_repeat", make);
}
