/* Agreements of pretended ranks: each is a thread of this process, one of which runs at a time,
 * with a clock and messages of the test's own. Ranks come late, or not at all, and give up;
 * messages of a pair keep their order and take their time. Whatever happened before, a creation
 * that all come to in time succeeds on all, and one that fails does so on all who came. Every seed
 * is another schedule, and the same one each time. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../collectives/agreement/tree.h"
#include "base/backoff.h"
#include "base/world.h"
#include "core/team.h"
#include "data.h"
#include "unit.h"

enum { MOST_RANKS = 9, ROUNDS = 5, SEEDS = 30 };

typedef struct message {
    struct message *next;
    double arrives;
    int from, tag;
    size_t nbytes;
    unsigned char data[];
} message;

typedef struct player {
    pthread_t thread;
    pthread_cond_t turn;
    dtr_world world;
    dtr__groups groups;
    message *inbox; /* in the order of sending */
    double wakes;   /* when it runs again */
    bool ended;
    bool comes[ROUNDS], differs[ROUNDS], ends[ROUNDS];
    bool fails; /* its end of the world has */
    double late_s[ROUNDS], limit_s[ROUNDS];
    dtr_status status[ROUNDS];
    bool told_of_failure;
    int counted[ROUNDS]; /* how many came, as the message says; 0: it does not */
} player;

typedef enum schedule {
    LATE,  /* some come late or not at all in all rounds but the last; barriers between them */
    HASTE, /* all come to all rounds, at once after the one before; in one they do not agree, and
              in one a group ends */
    FAILED_END /* all come, some late; in the last round the world ends, and has failed on some */
} schedule;

static struct {
    pthread_mutex_t lock;
    int n, running; /* ranks, and whose turn it is */
    schedule kind;
    int odd; /* a rank whose end of the world fails */
    double now;
    th_rng rng;
    player player[MOST_RANKS];
    double last[MOST_RANKS][MOST_RANKS]; /* when the newest message of a pair arrives */
    int n_waiting, generation;           /* of the barrier */
    int n_asked;                         /* to enter directly */
} play = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Thread_local int self;

/* ---- turns ---- */

static void await_turn(void) {
    while (play.running != self) {
        pthread_cond_wait(&play.player[self].turn, &play.lock);
    }
}

/* The calling rank runs again in `seconds`; who is due next runs now. */
static void pause_for(double seconds, bool ends) {
    player *me = &play.player[self];
    me->wakes = play.now + seconds;
    me->ended = ends;
    int next = -1;
    for (int i = 0; i < play.n; i++) {
        const player *p = &play.player[i];
        if (!p->ended && (next < 0 || p->wakes < play.player[next].wakes)) {
            next = i;
        }
    }
    if (next >= 0 && play.player[next].wakes > play.now) {
        play.now = play.player[next].wakes;
    }
    play.running = next;
    if (next >= 0 && next != self) {
        pthread_cond_signal(&play.player[next].turn);
    }
    if (!ends) {
        await_turn();
    }
}

/* Mostly a moment; now and then the rank is held up. */
static double some_time(void) {
    const double x = th_uniform(&play.rng);
    return th_uniform(&play.rng) < 0.03 ? 0.3 * x : 0.01 * x;
}

/* What was sent before it has arrived after it, as with MPI on one node. */
static void barrier(void) {
    const int generation = play.generation;
    if (++play.n_waiting == play.n) {
        play.n_waiting = 0;
        play.generation++;
    }
    while (play.generation == generation) {
        pause_for(0.005, false);
    }
    for (int from = 0; from < play.n; from++) {
        const double arrives = play.last[from][self];
        if (arrives > play.now) {
            pause_for(arrives - play.now, false);
        }
    }
}

/* ---- messages ---- */

__typeof__(dtr__mailbox_send) __wrap_dtr__mailbox_send;
dtr_status __wrap_dtr__mailbox_send(dtr_world *world, dtr__control_message **out, int to, int tag,
                                    const void *head, size_t head_nbytes, const void *tail,
                                    size_t tail_nbytes) {
    (void)out;
    play.n_asked += tag == DTR__TAG_AGREE_DOWN && ((const dtr__down *)head)->kind == DTR__DOWN_ASK;
    message *m = malloc(sizeof *m + head_nbytes + tail_nbytes), **at = &play.player[to].inbox;
    double *last = &play.last[world->rank][to];
    ck_assert_ptr_nonnull(m);
    *m = (message){ .arrives = play.now + some_time(), .from = world->rank, .tag = tag };
    m->arrives = m->arrives > *last ? m->arrives : *last;
    *last = m->arrives;
    m->nbytes = head_nbytes + tail_nbytes;
    memcpy(m->data, head, head_nbytes);
    if (tail_nbytes > 0) {
        memcpy(m->data + head_nbytes, tail, tail_nbytes);
    }
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = m;
    return DTR_OK;
}

__typeof__(dtr__mailbox_receive) __wrap_dtr__mailbox_receive;
dtr_status __wrap_dtr__mailbox_receive(dtr_world *world, dtr__arriving **in, int tag, void **data,
                                       size_t *nbytes, int *from) {
    (void)in;
    *data = NULL;
    for (message **at = &play.player[world->rank].inbox; *at != NULL; at = &(*at)->next) {
        message *m = *at;
        if (m->tag == tag && m->arrives <= play.now) {
            *at = m->next;
            *nbytes = m->nbytes;
            *from = m->from;
            *data = malloc(m->nbytes);
            ck_assert_ptr_nonnull(*data);
            memcpy(*data, m->data, m->nbytes);
            free(m);
            return DTR_OK;
        }
    }
    return DTR_OK;
}

/* ---- the world around ---- */

double __wrap_dtr__now(void);
double __wrap_dtr__now(void) {
    return play.now;
}

void __wrap_dtr__backoff_pause(const dtr_world *world, dtr__backoff *backoff);
void __wrap_dtr__backoff_pause(const dtr_world *world, dtr__backoff *backoff) {
    (void)world, (void)backoff;
    pause_for(some_time(), false);
}

int __wrap_dtr__ranks_failed(const dtr_world *world);
int __wrap_dtr__ranks_failed(const dtr_world *world) {
    (void)world;
    return 0;
}

void __wrap_dtr__mailbox_reap(dtr__control_message **out);
void __wrap_dtr__mailbox_reap(dtr__control_message **out) {
    (void)out;
}

bool __wrap_dtr__progress_has_thread(const dtr_world *world);
bool __wrap_dtr__progress_has_thread(const dtr_world *world) {
    (void)world;
    return true;
}

const char *__wrap_dtr__peer_doing(const dtr_world *world, int rank, char *text, size_t cap);
const char *__wrap_dtr__peer_doing(const dtr_world *world, int rank, char *text, size_t cap) {
    (void)world, (void)rank, (void)cap;
    text[0] = '\0';
    return text;
}

static void nothing(dtr_world *world) {
    (void)world;
}

/* ---- one schedule ---- */

static dtr_status agree(player *p, int round) {
    int ranks[MOST_RANKS];
    char name[16];
    dtr__outcome out;
    dtr__entry e = { .scope = 1, .limit_s = p->limit_s[round], .counter = 7, .index = 0 };
    for (int f = 0; f < DTR__FIELD_COUNT; f++) {
        dtr__field_set(&e.field[f], "same");
    }
    /* What is left of other rounds does not fit. */
    snprintf(name, sizeof name, "%s %d", p->differs[round] ? "another" : "round", round);
    dtr__field_set(&e.field[DTR__FIELD_NAME], name);
    if (p->ends[round]) {
        e.end = 1;
        e.ends = 100 + (uint64_t)round;
        e.index = -1;
    }
    if (p->fails && round == ROUNDS - 1) {
        e.status = DTR_ERR_STATE;
        snprintf(e.text, sizeof e.text, "as it was told to");
    }
    for (int i = 0; i < play.n; i++) {
        ranks[i] = i;
    }
    const dtr_status s = dtr__agree(&p->world, "a call", ranks, play.n, &e, NULL, &out);
    if (s < 0) {
        p->told_of_failure = strstr(dtr_last_error_message(), "as it was told to") != NULL;
        (void)sscanf(dtr_last_error_message(), "a call: %d of ", &p->counted[round]);
    }
    return s;
}

static void *run(void *rank) {
    self = *(int *)rank;
    player *p = &play.player[self];
    pthread_mutex_lock(&play.lock);
    await_turn();
    for (int round = 0; round < ROUNDS; round++) {
        if (play.kind == LATE) {
            barrier();
        }
        pause_for(p->late_s[round], false);
        p->status[round] = p->comes[round] ? agree(p, round) : DTR_OK;
    }
    pause_for(0, true);
    pthread_mutex_unlock(&play.lock);
    return NULL;
}

static void plan_of_late(player *p) {
    for (int round = 0; round < ROUNDS; round++) {
        const bool last = round == ROUNDS - 1;
        p->comes[round] = last || th_uniform(&play.rng) < 0.8;
        p->limit_s[round] = last                          ? 600
                            : th_uniform(&play.rng) < 0.5 ? 0.4
                                                          : 0.1 + th_uniform(&play.rng);
        p->late_s[round] = (th_uniform(&play.rng) < 0.3 ? 1.0 : 0.01) * th_uniform(&play.rng);
    }
}

enum { DISAGREEMENT = 1, END = 3 };

static void plan_of_haste(player *p) {
    for (int round = 0; round < ROUNDS; round++) {
        p->comes[round] = true;
        p->differs[round] = round == DISAGREEMENT && p->world.rank == play.n - 1;
        p->ends[round] = round == END;
        p->limit_s[round] = 600;
    }
}

static void plan_of_failed_end(player *p) {
    for (int round = 0; round < ROUNDS; round++) {
        p->comes[round] = true;
        p->ends[round] = round == ROUNDS - 1;
        p->late_s[round] = (p->ends[round] ? 2.0 : 0.01) * th_uniform(&play.rng);
        p->limit_s[round] = 600;
    }
    p->fails = p->world.rank == play.odd || th_uniform(&play.rng) < 0.2;
}

static void set_up(int n, uint64_t seed, schedule kind) {
    static void (*const plan[])(player * p) = { plan_of_late, plan_of_haste, plan_of_failed_end };
    static const dtr__failure_ops failure = { .visit = nothing, .check_early_destroy = nothing };
    memset(play.player, 0, sizeof play.player);
    memset(play.last, 0, sizeof play.last);
    play.n = n;
    play.kind = kind;
    play.odd = (int)(seed % (uint64_t)n);
    play.running = 0;
    play.now = 1;
    play.n_asked = 0;
    play.rng = (th_rng){ seed };
    for (int i = 0; i < n; i++) {
        player *p = &play.player[i];
        ck_assert_int_eq(pthread_cond_init(&p->turn, NULL), 0);
        p->groups.failure = &failure;
        p->world.size = n;
        p->world.rank = i;
        p->world.groups = &p->groups;
        p->world.mpi.thread_level = MPI_THREAD_MULTIPLE;
        p->groups.agreements = dtr__agreements_new(&p->world, 1);
        ck_assert_ptr_nonnull(p->groups.agreements);
        plan[kind](p);
    }
}

static void tear_down(void) {
    for (int i = 0; i < play.n; i++) {
        player *p = &play.player[i];
        dtr__agreements_free(p->groups.agreements, false);
        pthread_cond_destroy(&p->turn);
        while (p->inbox != NULL) {
            message *m = p->inbox;
            p->inbox = m->next;
            free(m);
        }
    }
}

static void check_late(int round, uint64_t seed) {
    int n_come = 0;
    bool any_ok = false;
    for (int i = 0; i < play.n; i++) {
        const player *p = &play.player[i];
        n_come += p->comes[round];
        any_ok = any_ok || (p->comes[round] && p->status[round] == DTR_OK);
    }
    for (int i = 0; i < play.n; i++) {
        const player *p = &play.player[i];
        const dtr_status want = any_ok || round == ROUNDS - 1 ? DTR_OK : DTR_ERR_TIMEOUT;
        ck_assert_msg(!p->comes[round] || p->status[round] == want,
                      "seed %llu, %d ranks, round %d: rank %d got %s", (unsigned long long)seed,
                      play.n, round, i, dtr_status_name(p->status[round]));
        ck_assert_msg(p->counted[round] <= n_come,
                      "seed %llu, %d ranks, round %d: rank %d was told of %d that came, %d did",
                      (unsigned long long)seed, play.n, round, i, p->counted[round], n_come);
    }
    ck_assert_msg(n_come == play.n || !any_ok,
                  "seed %llu, %d ranks: round %d succeeded without all", (unsigned long long)seed,
                  play.n, round);
}

static void check_haste(int round, uint64_t seed) {
    for (int i = 0; i < play.n; i++) {
        const dtr_status want = round == DISAGREEMENT ? DTR_ERR_MISMATCH : DTR_OK;
        ck_assert_msg(play.player[i].status[round] == want,
                      "seed %llu, %d ranks, round %d: rank %d got %s", (unsigned long long)seed,
                      play.n, round, i, dtr_status_name(play.player[i].status[round]));
    }
}

/* Whoever has not failed learns why, also who comes when the others have left. */
static void check_failed_end(int round, uint64_t seed) {
    for (int i = 0; i < play.n; i++) {
        const player *p = &play.player[i];
        const bool last = round == ROUNDS - 1;
        const dtr_status want = !last ? DTR_OK : p->fails ? DTR_ERR_STATE : DTR_ERR_REMOTE;
        ck_assert_msg(p->status[round] == want && (!last || p->fails || p->told_of_failure),
                      "seed %llu, %d ranks, round %d: rank %d got %s", (unsigned long long)seed,
                      play.n, round, i, dtr_status_name(p->status[round]));
    }
}

static void one_schedule(int n, uint64_t seed, schedule kind) {
    static void (*const check[])(int round, uint64_t seed) = { check_late, check_haste,
                                                               check_failed_end };
    int rank[MOST_RANKS];
    set_up(n, seed, kind);
    for (int i = 0; i < n; i++) {
        rank[i] = i;
        ck_assert_int_eq(pthread_create(&play.player[i].thread, NULL, run, &rank[i]), 0);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(play.player[i].thread, NULL);
    }
    for (int round = 0; round < ROUNDS; round++) {
        check[kind](round, seed);
    }
    ck_assert_msg(kind != HASTE || play.n_asked == 0, "seed %llu, %d ranks: %d were asked",
                  (unsigned long long)seed, n, play.n_asked);
    ck_assert_msg(play.now < 60, "seed %llu, %d ranks: it took %g s", (unsigned long long)seed, n,
                  play.now);
    tear_down();
}

static const int sizes[] = { 2, 3, 4, 7, 9 };

/* AGREE_SEED and AGREE_SEEDS: from which on, and how many. */
static void schedules(int n, schedule kind) {
    const char *first = getenv("AGREE_SEED"), *many = getenv("AGREE_SEEDS");
    const int from = first != NULL ? atoi(first) : 1, count = many != NULL ? atoi(many) : SEEDS;
    for (int seed = from; seed < from + count; seed++) {
        one_schedule(n, (uint64_t)seed, kind);
    }
}

START_TEST(what_came_before_does_not_count) {
    schedules(sizes[_i], LATE);
}
END_TEST

/* Nor does it delay or cost: nobody waits for half of its limit, which is long, or asks others. */
START_TEST(rounds_follow_each_other) {
    schedules(sizes[_i], HASTE);
}
END_TEST

START_TEST(the_end_of_a_world_fails) {
    schedules(sizes[_i], FAILED_END);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("agree schedules");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, what_came_before_does_not_count, 0, sizeof sizes / sizeof sizes[0]);
    tcase_add_loop_test(tc, rounds_follow_each_other, 0, sizeof sizes / sizeof sizes[0]);
    tcase_add_loop_test(tc, the_end_of_a_world_fails, 0, sizeof sizes / sizeof sizes[0]);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("agree schedules", make);
}
