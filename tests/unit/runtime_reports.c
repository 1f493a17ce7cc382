/* Reports between many nodes (reliability: CP2): what this rank believes of the others, and that it
 * asks before it believes what is old. The control plane is the library's, at the one end of 99
 * connections; at the other ends this program plays the nodes. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/control_internal.h"
#include "directory.h"
#include "failure/failure.h"
#include "failure/peer_failure.h"
#include "unit.h"

enum { NODES = 100, UID = 7, LATE = 68 /* a neighbour on the ring */ };
enum { RANKS_MOST = 5000, SEQ = 10 }; /* more than there are places for; round the nodes in turn */
static const int64_t PERIOD_NS = 20 * MS;

static struct {
    dtr_world world;
    dtr__control plane;
    node node[NODES];
    int node_of[RANKS_MOST], local_rank_of[RANKS_MOST], local_world[1];
    rank_notes notes[RANKS_MOST];
    dtr__want sent[DTR__BOARD_WANTS];
    uint32_t read[2];
    uint64_t sent_votes[DTR__VOTE_ENTRIES];
    dtr__board *boards[1];
    int far[NODES];       /* the other end, -1: none */
    bool mute[NODES];     /* it sends nothing */
    bool answers;         /* nodes do */
    int asks[RANKS_MOST]; /* questions for it that have come, the newest one: */
    dtr__wire_ask asked[RANKS_MOST];
    uint64_t seq[RANKS_MOST]; /* what it has entered */
    int64_t beat_ns;
} t;

static void no_failure(dtr_world *world, int rank, dtr_status s, const char *text) {
    (void)world;
    ck_abort_msg("rank %d counts as failed (%d): %s", rank, (int)s, text);
}

static void begin_with(int ranks) {
    memset(&t, 0, sizeof t);
    dtr__control *c = &t.plane;
    t.world = (dtr_world){ .size = ranks, .local_size = 1, .node_count = NODES };
    t.world.node_of = t.node_of;
    t.world.local_rank_of = t.local_rank_of;
    t.world.local_world = t.local_world;
    t.world.control.plane = c;
    c->node = t.node;
    c->notes = t.notes;
    c->sent = t.sent;
    pthread_mutex_init(&c->lock, NULL);
    c->read = t.read;
    c->asked = t.read + 1;
    c->sent_votes = t.sent_votes;
    c->boards = t.boards;
    c->period_ns = PERIOD_NS;
    c->silence_s = 60;
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->wake = -1;
    c->board = calloc(1, dtr__board_bytes(ranks, NODES));
    ck_assert(c->epoll >= 0 && c->board != NULL);
    dtr__board_init(c->board, ranks, NODES);
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
        t.node[i] = (node){ .link = l, .met = true };
        t.far[i] = ends[1];
    }
    for (int r = 0; r < ranks; r++) {
        t.node_of[r] = r % NODES;
        t.local_rank_of[r] = r / NODES;
    }
    t.far[0] = -1;
    c->directory = directory_new(&t.world, NULL);
}

static void begin(void) {
    begin_with(NODES);
}

static void begin_many(void) {
    begin_with(RANKS_MOST);
    t.plane.period_ns = 100 * PERIOD_NS; /* nobody is silent while all these are looked at */
}

static void end(void) {
    for (int i = 1; i < NODES; i++) {
        close(t.far[i]);
        close(t.node[i].link->fd);
        free(t.node[i].link->out);
        free(t.node[i].link);
    }
    pthread_mutex_destroy(&t.plane.lock);
    close(t.plane.epoll);
    free(t.plane.board);
    directory_free(&t.plane.directory);
    free(t.plane.question);
}

/* ---- the other nodes ---- */

static void say(int from, dtr__wire_kind kind, const void *data, size_t nbytes) {
    const dtr__wire_head head = { .nbytes = (uint32_t)nbytes, .kind = (uint32_t)kind };
    ck_assert_int_eq(send(t.far[from], &head, sizeof head, MSG_NOSIGNAL), (ssize_t)sizeof head);
    ck_assert(nbytes == 0 || send(t.far[from], data, nbytes, MSG_NOSIGNAL) == (ssize_t)nbytes);
}

static dtr__rank_report report(int rank, int64_t asked_ns) {
    dtr__rank_report d = { .rank = rank, .n_groups = 1, .fresh_ns = asked_ns };
    d.group[0].uid = UID;
    d.group[0].seq = t.seq[rank];
    snprintf(d.doing, sizeof d.doing, "it has entered %llu", (unsigned long long)t.seq[rank]);
    return d;
}

/* `asked_ns`: the question that it answers, 0: none. */
static void say_report(int from, int64_t asked_ns) {
    const dtr__wire_report m = { .to = 0, .report = report(from, asked_ns) };
    say(t.node_of[from], DTR__WIRE_REPORT, &m, sizeof m);
}

/* What the library has sent to a node: everything begins with a head and is read whole. */
static void hear(int at) {
    static char text[1 << 20];
    ssize_t n = recv(t.far[at], text, sizeof text, 0);
    for (ssize_t i = 0; i + (ssize_t)sizeof(dtr__wire_head) <= n;) {
        dtr__wire_head head;
        memcpy(&head, text + i, sizeof head);
        i += (ssize_t)sizeof head;
        if (head.kind == DTR__WIRE_ASK) {
            dtr__wire_ask ask;
            ck_assert_uint_eq(head.nbytes, sizeof ask);
            memcpy(&ask, text + i, sizeof ask);
            ck_assert(ask.rank > 0 && ask.rank < t.world.size && t.node_of[ask.rank] == at);
            t.asked[ask.rank] = ask;
            t.asks[ask.rank]++;
            if (t.answers) {
                say_report(ask.rank, ask.asked_ns);
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
    for (int i = 0; i < t.world.size; i++) {
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

/* ---- more ranks than places ---- */

static uint64_t seen(int rank) {
    dtr__rank_report d;
    return dtr__board_get(t.plane.board, rank, &d) ? d.group[0].seq : 0;
}

static void put(int rank, uint64_t seq, int64_t asked_ns) {
    t.seq[rank] = seq;
    const dtr__rank_report d = report(rank, asked_ns);
    dtr__board_put(t.plane.board, rank, &d);
}

/* Two ranks whose numbers differ by the places: the newest report has theirs, an answer for a
 * second. */
START_TEST(CP2_reports_share_places) {
    enum { ONE = 7, OTHER = ONE + DTR__BOARD_REPORTS, LONG_AGO_MS = 1100 };
    put(ONE, 4, 0);
    ck_assert(seen(ONE) == 4 && seen(OTHER) == 0);
    put(OTHER, 5, 0);
    ck_assert(seen(ONE) == 0 && seen(OTHER) == 5);
    put(ONE, 6, dtr__now_ns());
    put(OTHER, 7, 0);
    ck_assert(seen(ONE) == 6 && seen(OTHER) == 0);
    put(OTHER, 8, dtr__now_ns());
    ck_assert(seen(ONE) == 0 && seen(OTHER) == 8);
    put(OTHER, 9, dtr__now_ns() - LONG_AGO_MS * MS);
    put(ONE, 10, 0);
    ck_assert(seen(ONE) == 10 && seen(OTHER) == 0);
}
END_TEST

START_TEST(CP2_failures_are_many) {
    int rank;
    dtr_status status;
    for (int r = RANKS_MOST - 1; r >= 0; r--) {
        char text[40];
        snprintf(text, sizeof text, "rank %d is lost", r);
        dtr__board_put_failure(t.plane.board, r, r % 2 ? DTR_ERR_REMOTE : DTR_ERR_TIMEOUT, text);
    }
    ck_assert_uint_eq(dtr__board_failures(t.plane.board), RANKS_MOST);
    for (int i = 0; i < RANKS_MOST; i++) {
        char expected[40];
        const char *text = dtr__board_failure(t.plane.board, (uint32_t)i, &rank, &status);
        snprintf(expected, sizeof expected, "rank %d is lost", rank);
        ck_assert(rank == RANKS_MOST - 1 - i &&
                  status == (rank % 2 ? DTR_ERR_REMOTE : DTR_ERR_TIMEOUT));
        ck_assert(i < DTR__BOARD_TEXTS ? strcmp(text, expected) == 0 : text == NULL);
    }
}
END_TEST

/* A few rounds for what is on its way. */
static bool is_asked(int rank) {
    for (int i = 0; i < 50 && t.asks[rank] == 0; i++) {
        live(0);
    }
    return t.asks[rank] == 1;
}

/* Two whose questions share a place: the second is asked once the first has answered, at once. */
START_TEST(CP2_questions_share_places) {
    enum { ONE = 7, OTHER = ONE + DTR__BOARD_WANTS };
    live(0);
    const int64_t since_ns = dtr__now_ns();
    ck_assert(!dtr__control_ask(&t.world, ONE, since_ns));
    ck_assert(!dtr__control_ask(&t.world, OTHER, since_ns));
    ck_assert(is_asked(ONE) && t.asks[OTHER] == 0);
    say_report(ONE, t.asked[ONE].asked_ns);
    live(0);
    ck_assert(!dtr__control_ask(&t.world, OTHER, since_ns));
    ck_assert(is_asked(OTHER) && t.asks[ONE] == 1);
}
END_TEST

/* What a board takes does not grow with the ranks but for their failures, 8 bytes each. */
START_TEST(CP2_boards_do_not_grow) {
    const size_t most = dtr__board_bytes(DTR__BOARD_REPORTS, NODES);
    ck_assert_uint_le(most, 10 << 20);
    ck_assert_uint_eq(dtr__board_bytes(20 * DTR__BOARD_REPORTS, NODES) - most,
                      8 * 19 * DTR__BOARD_REPORTS);
}
END_TEST

/* Everybody at once, and two that have not come share a place: both are named, nobody else is, and
 * each has been asked once. */
START_TEST(CP2_who_has_not_come_of_many) {
    enum { ONE = 7, OTHER = ONE + DTR__BOARD_REPORTS };
    static int world_ranks[RANKS_MOST];
    static dtr__group_failure failure;
    dtr_group g = { .world = &t.world, .size = RANKS_MOST, .uid = UID, .failure = &failure };
    dtr_work w = { .world = &t.world, .group = &g, .seq = SEQ };
    char text[1400], name[2][64];
    w.call.kind = DTR__K_ALLREDUCE;
    g.world_ranks = world_ranks;
    t.answers = true;
    for (int r = 0; r < RANKS_MOST; r++) {
        world_ranks[r] = r;
        t.seq[r] = SEQ - (r == ONE || r == OTHER);
    }
    live(0);
    const int64_t since_ns = dtr__now_ns();
    while (!dtr__ask_missing(&g, &w, since_ns)) {
        ck_assert_int_lt(dtr__now_ns() - since_ns, 60000 * MS);
        live(0);
    }
    for (int r = 0; r < RANKS_MOST; r++) {
        ck_assert_int_eq(t.asks[r], r % NODES == 0 ? 0 : 1);
    }
    (void)dtr__name_missing(&g, &w, text, sizeof text);
    snprintf(name[0], sizeof name[0], "rank %d (host , pid 0) has not entered", ONE);
    snprintf(name[1], sizeof name[1], "rank %d (host , pid 0) has not entered", OTHER);
    const char *first = strstr(text, name[0]), *second = strstr(text, name[1]);
    ck_assert_msg(first != NULL && second != NULL, "%s", text);
    const char *rest = second + strlen(name[1]);
    ck_assert_msg(strstr(rest, "has not entered") == NULL && strstr(rest, "more") == NULL, "%s",
                  text);
    free(atomic_load(&failure.come));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("reports"), *many = tcase_create("many");
    tcase_set_timeout(tc, 120);
    tcase_set_timeout(many, 120);
    tcase_add_checked_fixture(many, begin_many, end);
    tcase_add_test(many, CP2_reports_share_places);
    tcase_add_test(many, CP2_failures_are_many);
    tcase_add_test(many, CP2_boards_do_not_grow);
    tcase_add_test(many, CP2_questions_share_places);
    tcase_add_test(many, CP2_who_has_not_come_of_many);
    suite_add_tcase(s, many);
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
