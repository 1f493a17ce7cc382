/* Reports between many nodes (reliability: CP2): what this rank believes of the others, and that it
 * asks before it believes what is old. The control plane is the library's, at the one end of 99
 * connections; at the other ends this program plays the nodes. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/control_internal.h"
#include "unit.h"

enum { NODES = 100, UID = 7, LATE = 68, FAR = 70 }; /* a neighbour on the ring, and none */
static const int64_t PERIOD_NS = 20 * MS;

static struct {
    dtr_world world;
    dtr__control plane;
    node node[NODES];
    offer offer[NODES];
    location place;
    int node_of[NODES], local_rank_of[NODES], local_world[1];
    int64_t suspect_ns[NODES], asked_ns[NODES];
    struct in6_addr known[NODES];
    bool refused[2 * NODES];
    uint32_t read[2];
    uint64_t sent_votes[DTR__VOTE_ENTRIES];
    dtr__board *boards[1];
    int far[NODES];   /* the other end, -1: none */
    bool mute[NODES]; /* it sends nothing */
    bool answers;     /* nodes do */
    int asks[NODES];  /* questions that have come to it, the newest one: */
    dtr__wire_ask asked[NODES];
    uint64_t seq[NODES]; /* what its rank has entered */
    int64_t beat_ns;
} t;

static void no_failure(dtr_world *world, int rank, dtr_status s, const char *text) {
    (void)world;
    ck_abort_msg("rank %d counts as failed (%d): %s", rank, (int)s, text);
}

static void begin(void) {
    memset(&t, 0, sizeof t);
    dtr__control *c = &t.plane;
    t.world = (dtr_world){ .size = NODES, .local_size = 1, .node_count = NODES };
    t.world.node_of = t.node_of;
    t.world.local_rank_of = t.local_rank_of;
    t.world.local_world = t.local_world;
    t.world.control.plane = c;
    c->node = t.node;
    c->offer = t.offer;
    c->place = &t.place;
    c->suspect_ns = t.suspect_ns;
    c->asked_ns = t.asked_ns;
    c->known = t.known;
    c->refused = t.refused;
    c->gone = t.refused + NODES;
    c->read = t.read;
    c->asked = t.read + 1;
    c->sent_votes = t.sent_votes;
    c->boards = t.boards;
    c->period_ns = PERIOD_NS;
    c->silence_s = 60;
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->wake = -1;
    c->board = calloc(1, dtr__board_bytes(NODES, NODES));
    ck_assert(c->epoll >= 0 && c->board != NULL);
    dtr__board_init(c->board, NODES, NODES);
    for (int i = 1; i < NODES; i++) {
        int ends[2];
        dtr__link *l = calloc(1, sizeof *l);
        ck_assert(l != NULL &&
                  socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
        *l = (dtr__link){ .fd = ends[0], .epoll = c->epoll, .rank = i, .greeted = true };
        l->received_ns = l->since_ns = dtr__now_ns();
        struct epoll_event e = { .events = EPOLLIN, .data.ptr = l };
        ck_assert_int_eq(epoll_ctl(c->epoll, EPOLL_CTL_ADD, l->fd, &e), 0);
        (void)dtr__control_add_link(c, l);
        t.node_of[i] = i;
        t.node[i] = (node){ .link = l, .met = true, .n_ranks = 1, .lowest = i };
        t.far[i] = ends[1];
    }
    t.node[0] = (node){ .n_ranks = 1 };
    t.far[0] = -1;
}

static void end(void) {
    for (int i = 1; i < NODES; i++) {
        close(t.far[i]);
        close(t.node[i].link->fd);
        free(t.node[i].link->out);
        free(t.node[i].link);
    }
    close(t.plane.epoll);
    free(t.plane.board);
    free(t.plane.question);
}

/* ---- the other nodes ---- */

static void say(int from, dtr__wire_kind kind, const void *data, size_t nbytes) {
    const dtr__wire_head head = { .nbytes = (uint32_t)nbytes, .kind = (uint32_t)kind };
    ck_assert_int_eq(send(t.far[from], &head, sizeof head, MSG_NOSIGNAL), (ssize_t)sizeof head);
    ck_assert(nbytes == 0 || send(t.far[from], data, nbytes, MSG_NOSIGNAL) == (ssize_t)nbytes);
}

/* `asked_ns`: the question that it answers, 0: none. */
static void say_report(int from, int64_t asked_ns) {
    dtr__wire_report m = { .to = 0 };
    dtr__rank_report *d = &m.report;
    d->rank = from;
    d->n_groups = 1;
    d->fresh_ns = asked_ns;
    d->group[0].uid = UID;
    d->group[0].seq = t.seq[from];
    snprintf(d->doing, sizeof d->doing, "it has entered %llu", (unsigned long long)t.seq[from]);
    say(from, DTR__WIRE_REPORT, &m, sizeof m);
}

/* What the library has sent to a node: everything begins with a head and is read whole. */
static void hear(int at) {
    char text[1 << 16];
    ssize_t n = recv(t.far[at], text, sizeof text, 0);
    for (ssize_t i = 0; i + (ssize_t)sizeof(dtr__wire_head) <= n;) {
        dtr__wire_head head;
        memcpy(&head, text + i, sizeof head);
        i += (ssize_t)sizeof head;
        if (head.kind == DTR__WIRE_ASK) {
            ck_assert_uint_eq(head.nbytes, sizeof(dtr__wire_ask));
            memcpy(&t.asked[at], text + i, sizeof t.asked[at]);
            ck_assert_int_eq(t.asked[at].rank, at);
            t.asks[at]++;
            if (t.answers) {
                say_report(at, t.asked[at].asked_ns);
            }
        }
        i += (ssize_t)head.nbytes;
    }
}

/* Rounds of all: every node beats in each period and reports nothing by itself. */
static void live(int64_t ns) {
    const int64_t until_ns = dtr__now_ns() + ns;
    do {
        const bool beat = dtr__now_ns() >= t.beat_ns;
        t.beat_ns = beat ? dtr__now_ns() + PERIOD_NS : t.beat_ns;
        for (int i = 1; i < NODES; i++) {
            hear(i);
            if (beat && !t.mute[i]) {
                say(i, DTR__WIRE_BEAT, NULL, 0);
            }
        }
        for (int i = 0; i < NODES / 32 + 1; i++) { /* as many events as one round takes */
            dtr__control_round(&t.world, no_failure);
        }
        usleep(2000);
    } while (dtr__now_ns() < until_ns);
}

static int n_asks(void) {
    int n = 0;
    for (int i = 0; i < NODES; i++) {
        n += t.asks[i];
    }
    return n;
}

static bool entered(int rank, int64_t since_ns, uint64_t *seq) {
    return dtr__peer_entered(&t.world, rank, UID, since_ns, seq);
}

static const int64_t SILENT_NS = 2 * (2 * 20 * MS + 200 * MS); /* of dtr__control_old, and more: */
static const int64_t LONG_NS = 800 * MS;

/* ---- tests ---- */

/* Reports come rarely where there are many nodes. One that is old is no evidence for what its rank
 * does now as long as its node still speaks, and is once it has fallen silent. */
START_TEST(CP2_old_is_not_silent) {
    uint64_t seq = 0;
    t.seq[LATE] = 4;
    say_report(LATE, 0);
    live(0);
    ck_assert(entered(LATE, 0, &seq) && seq == 4);
    live(LONG_NS);
    const int64_t since_ns = dtr__now_ns() - (LONG_NS - SILENT_NS) / 2;
    ck_assert_msg(!entered(LATE, since_ns, &seq), "a report of %g s ago is believed",
                  (double)LONG_NS * 1e-9);
    t.mute[LATE] = true;
    live(LONG_NS);
    ck_assert_msg(entered(LATE, since_ns, &seq) && seq == 4, "the last of a silent node is not");
    ck_assert_int_eq(n_asks(), 0);
    ck_assert(dtr__control_ask(&t.world, LATE, dtr__now_ns())); /* it would not answer */
}
END_TEST

/* Of 99 nodes the one that matters is asked, once, and only its answer counts: not a report that
 * was on its way. */
START_TEST(CP2_asks_one) {
    uint64_t seq = 0;
    t.seq[LATE] = 4;
    say_report(LATE, 0);
    live(0);
    const int64_t since_ns = dtr__now_ns();
    ck_assert(!dtr__control_ask(&t.world, LATE, since_ns));
    say_report(LATE, 0);
    live(2 * PERIOD_NS);
    ck_assert(!dtr__control_ask(&t.world, LATE, since_ns));
    live(2 * PERIOD_NS);
    ck_assert_int_eq(n_asks(), 1);
    ck_assert_int_eq(t.asks[LATE], 1);
    ck_assert(t.asked[LATE].asked_ns > since_ns);
    t.seq[LATE] = 5; /* it has come since */
    say_report(LATE, t.asked[LATE].asked_ns);
    live(0);
    ck_assert(dtr__control_ask(&t.world, LATE, since_ns));
    ck_assert(entered(LATE, since_ns, &seq) && seq == 5);
    t.seq[LATE] = 6; /* what comes after the answer is newer than the question too */
    say_report(LATE, 0);
    live(0);
    ck_assert(dtr__control_ask(&t.world, LATE, since_ns));
    ck_assert(entered(LATE, since_ns, &seq) && seq == 6);
    ck_assert_int_eq(n_asks(), 1);
}
END_TEST

/* Everybody at once. */
START_TEST(CP2_asks_all) {
    bool known = false;
    uint64_t seq = 0;
    const int64_t since_ns = dtr__now_ns();
    t.answers = true;
    live(0);
    for (int i = 0; i < 500 && !known; i++) {
        known = true;
        for (int r = 0; r < NODES; r++) {
            t.seq[r] = 100 + (uint64_t)r;
            known = dtr__control_ask(&t.world, r, since_ns) && known;
        }
        live(0);
    }
    ck_assert(known);
    for (int r = 1; r < NODES; r++) {
        ck_assert(entered(r, since_ns, &seq) && seq == 100 + (uint64_t)r);
        ck_assert_int_eq(t.asks[r], 1);
    }
}
END_TEST

/* A node that beats and does not answer: after a second its last report counts, and the words say
 * how old it is. A later one counts for itself again. */
START_TEST(CP2_asked_in_vain) {
    char text[200];
    uint64_t seq = 0;
    t.seq[LATE] = 4;
    say_report(LATE, 0);
    live(0);
    const int64_t since_ns = dtr__now_ns();
    bool known = false;
    while (!known && dtr__now_ns() - since_ns < 60000 * MS) {
        known = dtr__control_ask(&t.world, LATE, since_ns);
        ck_assert(known || !entered(LATE, since_ns, &seq));
        live(0);
    }
    ck_assert(known && dtr__now_ns() - since_ns >= 1000 * MS && n_asks() == 1);
    ck_assert(entered(LATE, since_ns, &seq) && seq == 4);
    ck_assert_ptr_nonnull(strstr(dtr__peer_doing(&t.world, LATE, text, sizeof text),
                                 "no report of it has come since 1."));
    ck_assert_ptr_nonnull(strstr(text, "the last was: it has entered 4"));
    t.seq[LATE] = 5;
    say_report(LATE, 0);
    live(0);
    ck_assert_str_eq(dtr__peer_doing(&t.world, LATE, text, sizeof text), "it has entered 5");
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("reports");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_test(tc, CP2_old_is_not_silent);
    tcase_add_test(tc, CP2_asks_one);
    tcase_add_test(tc, CP2_asks_all);
    tcase_add_test(tc, CP2_asked_in_vain);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime reports", make);
}
