/* Messages with a work from the same place again and again: the short way through the engine gives
 * the same results, order, numbers and records as the ordinary one, and what goes wrong ends as
 * there (WRK5, WRK10, WRK18, P9). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/team.h"
#include "engine_repeat.h"

enum { MANY = 40, MOST = 32769, FLOOD = 600, LONG = 250, EARLIER = 150 };

/* One place for all sends of a test, and one for all receives. */
static dtr_work *send_here(dtr_group *g, int32_t *x, size_t n, int peer, int tag) {
    dtr_work *w = NULL;
    TH_IS(dtr_send(g, i32s(x, n), peer, tag, NULL, &w), DTR_OK);
    return w;
}

static dtr_status may_receive_here(dtr_group *g, int32_t *x, size_t n, int peer, int tag,
                                   dtr_work **w) {
    return dtr_recv(g, i32s(x, n), peer, tag, NULL, w);
}

static dtr_work *receive_here(dtr_group *g, int32_t *x, size_t n, int peer, int tag) {
    dtr_work *w = NULL;
    TH_IS(may_receive_here(g, x, n, peer, tag, &w), DTR_OK);
    return w;
}

static int next_rank(void) {
    return (th_rank() + 1) % th_size();
}

static int last_rank(void) {
    return (th_rank() + th_size() - 1) % th_size();
}

static void release_all(dtr_work **works, size_t n) {
    for (size_t i = 0; i < n; i++) {
        TH_IS(dtr_work_release(works[i]), DTR_OK);
    }
}

static void finish_all(dtr_work **works, size_t n) {
    TH_IS(dtr_work_wait_all(works, n, -1), DTR_OK);
    release_all(works, n);
}

/* Which of the two comes first in a round, or whether they take turns. */
typedef enum order { RECEIVES_FIRST, SENDS_FIRST, IN_TURN } order;

static void go_round(int round, size_t count, order how) {
    static int32_t in[MANY * MOST], out[MANY * MOST];
    dtr_work *works[2 * MANY];
    size_t n = 0;
    for (size_t i = 0; i < MANY * count; i++) {
        in[i] = 1000 * th_rank() + round + (int32_t)i;
        out[i] = -1;
    }
    for (int step = 0; step < (how == IN_TURN ? MANY : 2 * MANY); step++) {
        const size_t at = (size_t)(step % MANY) * count;
        if (how == IN_TURN || (how == RECEIVES_FIRST) == (step < MANY)) {
            works[n++] = receive_here(th_group(), out + at, count, last_rank(), 5);
        }
        if (how == IN_TURN || (how == SENDS_FIRST) == (step < MANY)) {
            works[n++] = send_here(th_group(), in + at, count, next_rank(), 5);
        }
    }
    finish_all(works, n);
    for (size_t i = 0; i < MANY * count; i++) {
        TH_CHECK(out[i] == 1000 * last_rank() + round + (int32_t)i, "round %d: %zu is %d", round, i,
                 out[i]);
    }
}

/* Of no bytes, what fits beside a head, what does not, what is not sent unasked, and the most that
 * goes with a head between nodes and more than that; in order. */
START_TEST(rings) {
    enum { COUNTS = 8 };
    static const size_t counts[COUNTS] = { 1, 0, 10, 11, 500, 6000, MOST - 1, MOST };
    for (int round = 0; round < 5 * COUNTS; round++) {
        go_round(round, counts[round % COUNTS], (order)(round / COUNTS % 3));
    }
    TH_AGREE();
}
END_TEST

static void check_flood(const int32_t *out, int from, int until, int plus) {
    for (int i = from; i < until; i++) {
        TH_CHECK(out[i * LONG] == 7 * i + plus && out[i * LONG + LONG - 1] == i,
                 "message %d begins with %d and ends with %d", i, out[i * LONG],
                 out[i * LONG + LONG - 1]);
    }
}

/* More than the ring holds before anybody receives; what is sent when there is room again must not
 * overtake those that wait for it. */
START_TEST(flood) {
    static int32_t in[FLOOD * LONG], out[FLOOD * LONG];
    dtr_work *sent[FLOOD], *received[FLOOD];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < FLOOD; i++) {
            if (i == FLOOD - 8) {
                th_barrier();
                for (int k = 0; k < EARLIER; k++) {
                    received[k] = receive_here(th_group(), &out[k * LONG], LONG, last_rank(), 0);
                    TH_IS(dtr_work_wait(received[k], -1), DTR_OK);
                }
                th_barrier();
            }
            in[i * LONG] = 7 * i + th_rank() + round;
            in[i * LONG + LONG - 1] = i;
            sent[i] = send_here(th_group(), &in[i * LONG], LONG, next_rank(), 0);
        }
        for (int i = EARLIER; i < FLOOD; i++) {
            received[i] = receive_here(th_group(), &out[i * LONG], LONG, last_rank(), 0);
        }
        finish_all(received, FLOOD);
        finish_all(sent, FLOOD);
        check_flood(out, 0, FLOOD, last_rank() + round);
        th_barrier(); /* the next round begins with empty rings: without a thread nobody fills them
                         from inside a barrier */
    }
    TH_AGREE();
}
END_TEST

/* Tags that are asked for in another order than they come, and any source beside them. */
START_TEST(tags) {
    for (int round = 0; round < 50; round++) {
        int32_t in[4], out[4];
        dtr_work *works[8];
        for (int t = 0; t < 4; t++) {
            in[t] = 10 * round + t;
            works[t] = send_here(th_group(), &in[t], 1, next_rank(), t);
        }
        for (int t = 3; t >= 0; t--) {
            works[4 + t] =
                receive_here(th_group(), &out[t], 1, t == 2 ? DTR_ANY_SOURCE : last_rank(), t);
        }
        TH_IS(dtr_work_wait_all(works, 8, -1), DTR_OK);
        for (int t = 0; t < 4; t++) {
            TH_CHECK(out[t] == in[t], "tag %d gave %d", t, out[t]);
            TH_CHECK(dtr_work_source(works[4 + t]) == last_rank(), "from %d",
                     dtr_work_source(works[4 + t]));
            TH_CHECK(dtr_work_source(works[t]) == -1, "a send is from somebody");
            TH_CHECK(dtr_work_duration(works[t]) >= 0, "a negative time");
            TH_CHECK(dtr_work_seq(works[4]) > dtr_work_seq(works[t]), "numbers");
        }
        release_all(works, 8);
    }
    TH_AGREE();
}
END_TEST

/* P2P11: what waits for anybody's gets the first, and who asks the same rank later the next. */
START_TEST(behind_anybody) {
    for (int round = 0; round < 60; round++) {
        int32_t in[4], out[4];
        dtr_work *works[8];
        for (int i = 0; i < 4; i++) {
            in[i] = 10 * round + i;
            out[i] = -1;
            works[i] = receive_here(th_group(), &out[i], 1,
                                    i == 1 && round >= 20 ? DTR_ANY_SOURCE : last_rank(), 7);
        }
        if (round % 2 == 0) {
            th_barrier();
        }
        for (int i = 0; i < 4; i++) {
            works[4 + i] = send_here(th_group(), &in[i], 1, next_rank(), 7);
        }
        TH_IS(dtr_work_wait_all(works, 8, -1), DTR_OK);
        for (int i = 0; i < 4; i++) {
            TH_CHECK(out[i] == in[i], "round %d: receive %d got %d", round, i, out[i]);
        }
        release_all(works, 8);
    }
    TH_AGREE();
}
END_TEST

/* Blocking ones from the same place, and a barrier, which waits for what is under way. */
START_TEST(with_others) {
    int32_t x = th_rank(), y = -1, z = -1;
    for (int round = 0; round < 60 && th_size() > 1; round++) {
        dtr_work *w = NULL, *v = receive_here(th_group(), &y, 1, last_rank(), 1);
        dtr_work **mode = round % 2 == 0 ? &w : NULL;
        x = th_rank() + round;
        TH_IS(dtr_send(th_group(), i32s(&x, 1), next_rank(), 1, NULL, mode), DTR_OK);
        if (round % 3 == 0) {
            TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
            bool done = false;
            TH_IS(dtr_work_test(v, &done), DTR_OK);
            TH_CHECK(done, "a message is under way after the barrier");
        }
        TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&z, 1), DTR_MAX, NULL, NULL), DTR_OK);
        TH_IS(dtr_work_wait(v, -1), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_CHECK(y == last_rank() + round && z == th_size() - 1 + round, "%d and %d", y, z);
        TH_IS(dtr_work_release(v), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

static void count_call(dtr_work *w, dtr_status s, void *arg) {
    (void)w;
    *(int *)arg += s == DTR_OK;
}

START_TEST(callbacks) {
    for (int round = 0; round < 40; round++) {
        int32_t x = round, y = -1;
        int calls[2] = { 0, 0 };
        dtr_work *works[2];
        works[0] = receive_here(th_group(), &y, 1, last_rank(), 2);
        TH_IS(dtr_work_on_complete(works[0], count_call, &calls[0]), DTR_OK);
        works[1] = send_here(th_group(), &x, 1, next_rank(), 2);
        TH_IS(dtr_work_on_complete(works[1], count_call, &calls[1]), DTR_OK);
        finish_all(works, 2);
        TH_CHECK(calls[0] == 1 && calls[1] == 1 && y == round, "%d and %d calls", calls[0],
                 calls[1]);
    }
    TH_AGREE();
}
END_TEST

/* The newest records. One that a thread is writing at this moment is not told: look again. */
enum { NEWEST = 64 };
static size_t look(dtr_work *const *works, size_t n, dtr__record r[NEWEST]) {
    enum { TRIES = 1000 };
    size_t all = 0, found = 0;
    for (int i = 0; i < TRIES && found < n; i++) {
        all = dtr__rec_read(th_world(), r, NEWEST);
        found = 0;
        for (size_t k = 0; k < all; k++) {
            for (size_t w = 0; w < n && r[k].group == th_group()->id; w++) {
                found += r[k].p2p_seq == dtr_work_seq(works[w]);
            }
        }
    }
    return all;
}

static void told_once(const dtr__record *r, dtr__rec_state state, const char *when) {
    const bool over = state > DTR__REC_STARTED;
    TH_CHECK((over ? r->state == state : r->state <= state) && (r->t_finished != 0) == over,
             "%s: message %d in state %d", when, (int)r->p2p_seq, r->state);
    TH_CHECK((r->t_started == 0 || r->t_started >= r->t_issued) && r->deadline > r->t_issued,
             "%s: times of message %d", when, (int)r->p2p_seq);
}

/* The recording tells of each work once, in that state or on the way there; returns how many of
 * them follow. */
static int told(dtr_work *const *works, size_t n, dtr__rec_state state, const char *when) {
    dtr__record r[NEWEST];
    int follow = 0;
    const size_t all = look(works, n, r);
    for (size_t i = 0; i < n; i++) {
        const uint64_t seq = dtr_work_seq(works[i]);
        int times = 0;
        for (size_t k = 0; k < all; k++) {
            if (r[k].group == th_group()->id && r[k].p2p_seq == seq) {
                times++;
                follow += r[k].follower > 0;
                told_once(&r[k], state, when);
            }
        }
        TH_CHECK(times == 1, "%s: message %d told %d times", when, (int)seq, times);
    }
    return follow;
}

/* Each has a record, or follows one: it says where it was called and that it has ended. */
START_TEST(records) {
    enum { N = 6 };
    int32_t x[N] = { 0 }, y[N];
    dtr_work *works[2 * N];
    dtr__record r[NEWEST];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            works[2 * i] = receive_here(th_group(), &y[i], 1, last_rank(), 3);
            works[2 * i + 1] = send_here(th_group(), &x[i], 1, next_rank(), 3);
        }
        TH_IS(dtr_work_wait_all(works, 2 * N, -1), DTR_OK);
        (void)told(works, 2 * N, DTR__REC_FINISHED, "over");
        const size_t n = look(works, 2 * N, r);
        for (size_t i = n - 2 * N; i < n; i++) {
            const int kind = r[i].p2p_seq % 2 == 1 ? DTR__K_RECV : DTR__K_SEND;
            TH_CHECK(r[i].kind == kind && r[i].status == DTR_OK && r[i].tag == 3 &&
                         r[i].nbytes == 4 && (r[i].flags & DTR__REC_P2P) != 0 &&
                         (r[i].flags & DTR__REC_BLOCKING) == 0,
                     "message %d: kind %d, flags %d", (int)r[i].p2p_seq, r[i].kind, r[i].flags);
            TH_CHECK(strncmp(r[i].site, "engine_messages.c:", 18) == 0, "site \"%s\"", r[i].site);
            TH_CHECK(r[i].t_issued > 0 && r[i].t_started >= r[i].t_issued &&
                         r[i].t_finished >= r[i].t_started,
                     "times of message %d", (int)r[i].p2p_seq);
        }
        release_all(works, 2 * N);
    }
    TH_AGREE();
}
END_TEST

/* Receives follow each other while they are under way. What ends their run, as a message of
 * another kind does, gives each a record of its own; on a busy machine they may have them anyway.
 */
START_TEST(records_under_way) {
    enum { N = 8, TRIES = 40 };
    int follow = 0, x[2] = { 1, 2 }, other[2], y[N];
    for (int i = 0; i < TRIES; i++) {
        dtr_work *works[2 * N], *more[2];
        for (int k = 0; k < N; k++) {
            works[k] = receive_here(th_group(), &y[k], 1, last_rank(), 3);
        }
        follow += told(works, N, DTR__REC_STARTED, "under way");
        more[0] = receive_here(th_group(), other, 2, last_rank(), 4);
        more[1] = send_here(th_group(), x, 2, next_rank(), 4);
        (void)told(works, N, DTR__REC_STARTED, "set apart");
        th_barrier();
        for (int k = 0; k < N; k++) {
            works[N + k] = send_here(th_group(), x, 1, next_rank(), 3);
        }
        TH_IS(dtr_work_wait_all(works, 2 * N, -1), DTR_OK);
        (void)told(works, 2 * N, DTR__REC_FINISHED, "over");
        release_all(works, 2 * N);
        finish_all(more, 2);
    }
    TH_ALL(follow > 0 || TH_SANITIZED || dtr_world_node_count(th_world()) > 1,
           "no message under way follows another");
}
END_TEST

/* Whether messages of two sizes in turn share records, which those of the short way alone do. */
static bool share_records(size_t a, size_t b) {
    enum { ROUNDS = 20, LONGER = 16 };
    int32_t x[LONGER] = { 0 }, y[LONGER];
    dtr_work *works[4 * ROUNDS];
    dtr__record r[2 * ROUNDS];
    bool shared = false;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        works[i] = send_here(th_group(), x, i % 2 == 0 ? a : b, next_rank(), 3);
    }
    const size_t n = dtr__rec_read(th_world(), r, 2 * ROUNDS);
    for (size_t i = 0; i < n; i++) {
        shared = shared || r[i].follower > 0;
    }
    for (int i = 0; i < 2 * ROUNDS; i++) {
        works[2 * ROUNDS + i] = receive_here(th_group(), y, i % 2 == 0 ? a : b, last_rank(), 3);
    }
    finish_all(works, 4 * ROUNDS);
    return shared;
}

/* The short way knows them both, wherever its table has a place for each; a pause between two
 * messages shares nothing, so a busy machine gets more tries. */
START_TEST(sizes_in_turn) {
    enum { SIZES = 16, TRIES = 20 };
    bool any = false;
    for (int i = 0; i < TRIES; i++) {
        any = share_records(1, 1) || any;
    }
    for (size_t a = 1; a <= SIZES; a++) {
        for (size_t b = a + 1; b <= SIZES; b++) {
            bool shared = false;
            for (int i = 0; i < TRIES; i++) {
                shared = share_records(a, b) || shared;
            }
            TH_CHECK(shared || !any, "messages of %zu and %zu elements in turn", a, b);
        }
    }
    TH_AGREE();
}
END_TEST

/* Handles may outlive the group. */
START_TEST(handles) {
    dtr_group *g = NULL;
    int32_t x = 1, y = 0;
    dtr_work *works[2];
    TH_IS(dtr_group_split(th_group(), 0, th_rank(), NULL, &g), DTR_OK);
    for (int round = 0; round < 5; round++) {
        works[0] = receive_here(g, &y, 1, last_rank(), 0);
        works[1] = send_here(g, &x, 1, next_rank(), 0);
        TH_IS(dtr_work_wait_all(works, 2, -1), DTR_OK);
        if (round < 4) {
            release_all(works, 2);
        }
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_work_wait_all(works, 2, -1), DTR_OK);
    release_all(works, 2);
    TH_AGREE();
}
END_TEST

static void warm_messages(dtr_group *g, int32_t *x, int32_t *y) {
    dtr_work *works[2];
    for (int round = 0; round < 20; round++) {
        works[0] = receive_here(g, y, 1, last_rank(), 0);
        works[1] = send_here(g, x, 1, next_rank(), 0);
        finish_all(works, 2);
    }
    th_barrier();
}

/* What comes has another count than what is asked for, as so often before. Whoever looks first
 * breaks the group. */
START_TEST(other_count) {
    int32_t x[2] = { 1, 2 }, y[2] = { -1, -1 };
    dtr_work *w[2] = { NULL, NULL };
    warm_messages(th_group(), x, y);
    y[0] = -1;
    w[0] = send_here(th_group(), x, 2, next_rank(), 0);
    th_barrier();
    if (may_receive_here(th_group(), y, 1, last_rank(), 0, &w[1]) == DTR_OK) {
        TH_IS(dtr_work_wait(w[1], -1), DTR_ERR_MISMATCH);
    }
    TH_MESSAGE("both sides of a message must give the same dtype and count");
    TH_MESSAGE("engine_messages.c:");
    TH_CHECK(y[0] == -1 && y[1] == -1, "%d was written", y[0]);
    release_all(w, 2);
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* One look finds both messages: the one that fits ends well before the other breaks the group. */
START_TEST(good_before_bad) {
    int32_t x[2] = { 1, 2 }, y[2] = { -1, -1 };
    dtr_work *w[2] = { NULL, NULL };
    warm_messages(th_group(), x, y);
    for (int i = 0; i < 2 && th_rank() == 0; i++) {
        w[i] = receive_here(th_group(), &y[i], 1, 1, 0);
    }
    th_barrier();
    for (int i = 0; i < 2 && th_rank() == 1; i++) {
        w[i] = send_here(th_group(), x, (size_t)i + 1, 0, 0);
    }
    th_barrier();
    if (th_rank() == 0) {
        TH_IS(dtr_work_wait_all(w, 2, -1), DTR_ERR_MISMATCH);
        TH_IS(dtr_work_wait(w[0], -1), DTR_OK);
        TH_IS(dtr_work_wait(w[1], -1), DTR_ERR_MISMATCH);
        TH_CHECK(y[0] == 1, "the good one is %d", y[0]);
    }
    th_barrier();
    release_all(w, 2);
    for (double end = th_now() + 30; dtr_group_status(th_group()) == DTR_OK && th_now() < end;) {
        TH_IS(dtr_world_progress(th_world()), DTR_OK); /* until the others know of it too */
        th_sleep(0.001);
    }
    TH_CHECK(dtr_group_status(th_group()) == DTR_ERR_MISMATCH, "not broken on this rank");
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

START_TEST(aborted) {
    enum { N = 8 };
    int32_t x = 1, y = -1, late = -1;
    dtr_work *w = NULL, *all[N];
    warm_messages(th_group(), &x, &y);
    for (int i = 0; i < N; i++) {
        all[i] = receive_here(th_group(), &y, 1, last_rank(), 0);
    }
    th_barrier();
    if (th_rank() == 0) {
        TH_IS(dtr_group_abort(th_group(), "no more of this"), DTR_OK);
    }
    TH_IS(dtr_work_wait_all(all, N, -1), DTR_ERR_ABORTED);
    TH_MESSAGE("no more of this");
    (void)told(all, N, DTR__REC_FAILED, "aborted");
    release_all(all, N);
    TH_IS(may_receive_here(th_group(), &late, 1, last_rank(), 0, &w), DTR_ERR_ABORTED);
    TH_CHECK(w == NULL, "a refused call gave a work");
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* Nobody waits for it: the limit of a message that does not come passes all the same. */
static void wait_in_vain(double limit) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    int32_t x = 1, y = -1;
    o.timeout_s = limit;
    TH_IS(dtr_group_split(th_group(), 0, th_rank(), &o, &g), DTR_OK);
    warm_messages(g, &x, &y);
    dtr_work *w = receive_here(g, &y, 1, last_rank(), 0);
    const bool alone = getenv("DTR_PROGRESS_THREAD") != NULL;
    const double end = th_now() + 30 * limit;
    while (!alone && dtr_group_status(g) == DTR_OK && th_now() < end) {
        th_sleep(0.001);
    }
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_TIMEOUT);
    TH_MESSAGE("has not sent the message");
    TH_MESSAGE("engine_messages.c:");
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
}

START_TEST(out_of_time) {
    double limit = 1;
    do {
        wait_in_vain(limit);
    } while (th_patience(&limit));
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "messages", 60);
    th_add(tc, rings, 1, 0);
    th_add(tc, flood, 1, 0);
    th_add(tc, tags, 1, 0);
    th_add(tc, behind_anybody, 1, 0);
    th_add(tc, with_others, 1, 0);
    th_add(tc, callbacks, 1, 0);
    th_add(tc, records, 1, 0);
    th_add(tc, records_under_way, 2, 0);
    th_add(tc, sizes_in_turn, 2, 0);
    th_add(tc, handles, 1, 0);
    tc = th_case(s, "errors", 60);
    th_add(tc, other_count, 2, 0);
    th_add(tc, good_before_bad, 2, 0);
    th_add(tc, aborted, 2, 0);
    th_add(tc, out_of_time, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_messages", make);
}
