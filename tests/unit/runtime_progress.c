/* Progress list and thread, wait policy, flight recorder, connections between nodes: parts of a
 * world, without MPI. */
#include <arpa/inet.h>
#include <dirent.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/private_fd.h"
#include "control/link.h"
#include "unit.h"
#include "world/world.h"

static dtr_world world;

/* A world with just the parts under test. */
static void open_parts(const char *thread, const char *entries) {
    memset(&world, 0, sizeof world);
    world.mpi.thread_level = MPI_THREAD_MULTIPLE;
    world.serial = 5;
    setenv("DTR_PROGRESS_THREAD", thread, 1);
    setenv("DTR_RECORDER_ENTRIES", entries, 1);
    ck_assert_int_eq(dtr__options_read(&world.options), DTR_OK);
    unsetenv("DTR_PROGRESS_THREAD");
    unsetenv("DTR_RECORDER_ENTRIES");
    ck_assert_int_eq(dtr__recorder_open(&world), DTR_OK);
    ck_assert_int_eq(dtr__progress_open(&world, NULL), DTR_OK);
}

static void close_parts(void) {
    dtr__progress_close(&world);
    dtr__recorder_close(&world);
    dtr__options_free(&world.options);
}

/* Work arrives as a count; each poll that finds some takes one. */
typedef struct counter {
    dtr__poller poller;
    _Atomic int work, done, polls, in_thread;
} counter;

static int poll_counter(dtr__poller *p) {
    counter *c = (counter *)p;
    atomic_fetch_add(&c->polls, 1);
    if (atomic_load(&c->work) == 0) {
        return DTR__POLL_IDLE;
    }
    atomic_fetch_sub(&c->work, 1);
    atomic_fetch_add(&c->in_thread, dtr__progress_in_thread(&world));
    atomic_fetch_add(&c->done, 1); /* last: who waits for it looks at the other */
    return DTR__POLL_MOVED;
}

static void await(_Atomic int *value, int wanted) {
    dtr__backoff b = { 0 };
    while (atomic_load(value) != wanted) {
        dtr__backoff_pause(&world, &b);
    }
}

/* The nap that is due after at least `ms`; `waited` is at least what was really waited. */
static int64_t nap_after(bool shared_cpus, int ms, int64_t *waited) {
    const dtr_world w = { .cpus.oversubscribed = shared_cpus };
    dtr__backoff b = { 0 };
    const int64_t begun = dtr__now_ns();
    while (!dtr__backoff_due(&w, &b)) { /* the first is due after a millisecond */
    }
    b.since_ns -= ms * INT64_C(1000000);
    ck_assert(dtr__backoff_due(&w, &b));
    *waited = dtr__now_ns() - begun + ms * INT64_C(1000000);
    return b.nap_ns;
}

/* Where ranks share CPUs who waits long looks seldom, and sleeps a small part of what it has
 * waited. */
START_TEST(naps) {
    int64_t waited;
    for (int ms = 0; ms <= 32; ms += 4) {
        const int64_t nap = nap_after(true, ms, &waited);
        ck_assert_int_ge(nap, ms < 15 ? (ms + 1) * 1000000 / 16 : 1000000);
        ck_assert_int_le(nap, ms < 15 ? waited / 16 : 1000000);
        ck_assert_int_eq(nap_after(false, ms, &waited), 50000);
    }
}
END_TEST

enum { GIVERS = 3, GIFTS = 2000 };

/* An idle thread takes a few naps before it sleeps until a wake-up. */
static const struct timespec until_it_sleeps = { 0, 5000000 };
static void (*wake_by)(dtr_world *);

static void *give(void *arg) {
    counter *c = arg;
    for (int i = 0; i < GIFTS; i++) {
        atomic_fetch_add(&c->work, 1);
        wake_by(&world);
        if (i % 64 == 0) {
            await(&c->work, 0); /* let it fall asleep again and again */
        }
        if (i % 256 == 0) {
            nanosleep(&until_it_sleeps, NULL);
        }
    }
    return NULL;
}

/* A lost wake-up would leave the last gift lying, and this test hanging. */
START_TEST(no_wake_is_lost) {
    wake_by = _i == 0 ? dtr__progress_wake : dtr__progress_wake_soon;
    open_parts("1", "64");
    ck_assert(dtr__progress_has_thread(&world));
    ck_assert(!dtr__progress_in_thread(&world));
    counter c = { .poller.poll = poll_counter };
    dtr__progress_add(&world, &c.poller);
    pthread_t giver[GIVERS];
    for (int i = 0; i < GIVERS; i++) {
        pthread_create(&giver[i], NULL, give, &c);
    }
    for (int i = 0; i < GIVERS; i++) {
        pthread_join(giver[i], NULL);
    }
    await(&c.done, GIVERS * GIFTS);
    ck_assert_int_eq(c.in_thread, GIVERS * GIFTS);
    dtr__progress_remove(&world, &c.poller, INFINITY);
    int polls = atomic_load(&c.polls);
    dtr__progress_wake(&world);
    dtr__progress_remove(&world, &c.poller, INFINITY); /* not listed: nothing happens */
    close_parts();
    ck_assert_int_eq(c.polls, polls);
}
END_TEST

/* Work handed out after this poller has been asked, before the thread sleeps. */
static int poll_too_early(dtr__poller *p) {
    enum { IDLE = 6 }; /* looks in vain, after the last of which it sleeps until a wake-up */
    counter *c = (counter *)p;
    int before = atomic_fetch_add(&c->polls, 1);
    if (before > 10 * (IDLE + 1)) {
        return DTR__POLL_IDLE;
    }
    if (before % (IDLE + 1) == 0) {
        atomic_fetch_add(&c->done, 1);
        return DTR__POLL_MOVED;
    }
    if (before % (IDLE + 1) == IDLE) {
        wake_by(&world);
    }
    return DTR__POLL_IDLE;
}

START_TEST(wake_between_poll_and_sleep) {
    wake_by = _i == 0 ? dtr__progress_wake : dtr__progress_wake_soon;
    open_parts("1", "64");
    counter c = { .poller.poll = poll_too_early };
    dtr__progress_add(&world, &c.poller);
    await(&c.done, 11);
    dtr__progress_remove(&world, &c.poller, INFINITY);
    close_parts();
}
END_TEST

/* Another thread moves it, and then no more. */
static int poll_left(dtr__poller *p) {
    enum { LEFT = 20 };
    counter *c = (counter *)p;
    if (atomic_fetch_add(&c->polls, 1) < LEFT) {
        return DTR__POLL_LEFT;
    }
    atomic_store(&c->done, 1);
    return DTR__POLL_IDLE;
}

/* Unlike one that is idle it is looked at again without a wake-up, with a core to spare and
 * without. */
START_TEST(what_is_left_to_others_is_not_forgotten) {
    open_parts("1", "64");
    world.cpus.spare_cores = _i == 1;
    counter c = { .poller.poll = poll_left };
    dtr__progress_add(&world, &c.poller);
    await(&c.done, 1);
    dtr__progress_remove(&world, &c.poller, INFINITY);
    close_parts();
}
END_TEST

START_TEST(without_thread_the_caller_polls) {
    open_parts("0", "64");
    ck_assert(!dtr__progress_has_thread(&world));
    counter a = { .poller.poll = poll_counter }, b = { .poller.poll = poll_counter };
    dtr__progress_add(&world, &a.poller);
    dtr__progress_add(&world, &b.poller);
    a.work = 2;
    b.work = 1;
    dtr__progress_wake(&world);
    dtr__progress_poll_all(&world);
    dtr__progress_poll_all(&world);
    ck_assert_int_eq(a.done, 2);
    ck_assert_int_eq(b.done, 1);
    dtr__progress_remove(&world, &a.poller, INFINITY);
    dtr__progress_poll_all(&world);
    ck_assert_int_eq(a.polls, 2);
    ck_assert_int_eq(b.polls, 3);
    dtr__progress_remove(&world, &b.poller, INFINITY);
    close_parts();
}
END_TEST

/* A poller that stays inside until told to leave. */
typedef struct slow {
    dtr__poller poller;
    _Atomic int inside, leave, gone;
} slow;

static int poll_slow(dtr__poller *p) {
    slow *s = (slow *)p;
    if (atomic_load(&s->gone)) {
        return DTR__POLL_IDLE;
    }
    atomic_store(&s->inside, 1);
    while (!atomic_load(&s->leave)) {
        sched_yield();
    }
    atomic_store(&s->inside, 0);
    atomic_store(&s->gone, 1);
    return DTR__POLL_IDLE;
}

static void *let_go(void *arg) {
    slow *s = arg;
    struct timespec a_moment = { 0, 20000000 };
    nanosleep(&a_moment, NULL);
    atomic_store(&s->leave, 1);
    return NULL;
}

START_TEST(remove_waits_for_those_inside) {
    open_parts("1", "64");
    slow s = { .poller.poll = poll_slow };
    counter other = { .poller.poll = poll_counter };
    dtr__progress_add(&world, &s.poller);
    dtr__progress_add(&world, &other.poller);
    await(&s.inside, 1);
    pthread_t helper;
    pthread_create(&helper, NULL, let_go, &s);
    dtr__progress_remove(&world, &s.poller, INFINITY);
    ck_assert_int_eq(s.inside, 0);
    pthread_join(helper, NULL);
    other.work = 1; /* the rest of the list is still reached */
    dtr__progress_wake(&world);
    await(&other.done, 1);
    dtr__progress_remove(&world, &other.poller, INFINITY);
    close_parts();
}
END_TEST

/* Name and blocked signals of the thread as the kernel shows them (S7). */
START_TEST(thread_is_named_and_takes_no_signals) {
    open_parts("1", "64");
    DIR *dir = opendir("/proc/self/task");
    int found = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[300], line[256] = "", name[64] = "";
        unsigned long long blocked = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = fopen(path, "r");
        while (f != NULL && fgets(line, sizeof line, f) != NULL) {
            sscanf(line, "Name: %63s", name);
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        if (f != NULL) {
            fclose(f);
        }
        if (strcmp(name, "dtr-progress") == 0) {
            found++;
            ck_assert_uint_ne(blocked >> (SIGTERM - 1) & 1, 0);
            ck_assert_uint_ne(blocked >> (SIGUSR1 - 1) & 1, 0);
        }
    }
    closedir(dir);
    ck_assert_int_eq(found, 1);
    close_parts();
}
END_TEST

START_TEST(many_lives) {
    for (int i = 0; i < 200; i++) {
        open_parts("1", "64");
        close_parts();
    }
}
END_TEST

/* P1, P3, P6, reliability:T11 */
START_TEST(recorder_wraps_and_ignores_the_overwritten) {
    open_parts("0", "100"); /* rounded up to 128 */
    static dtr__record got[200];
    ck_assert_uint_eq(dtr__rec_read(&world, got, 200), 0);
    dtr__record r = { .group = 3, .label = "grad.3", .root_or_peer = -1 };
    for (uint64_t i = 1; i <= 1000; i++) {
        r.seq = i;
        ck_assert_uint_eq(dtr__rec_begin(&world, &r), i);
        dtr__rec_mark(&world, i, DTR__REC_STARTED, DTR_OK);
    }
    for (uint64_t i = 1; i <= 1000; i++) {
        dtr__rec_mark(&world, i, i % 2 == 0 ? DTR__REC_FINISHED : DTR__REC_FAILED,
                      i % 2 == 0 ? DTR_OK : DTR_ERR_TIMEOUT);
    }
    dtr__rec_mark(&world, 0, DTR__REC_FAILED, DTR_ERR_IO);
    dtr__rec_mark(&world, 5000, DTR__REC_FAILED, DTR_ERR_IO);
    ck_assert_uint_eq(dtr__rec_read(&world, got, 200), 128);
    for (uint64_t i = 0; i < 128; i++) {
        const dtr__record *g = &got[i];
        ck_assert_uint_eq(g->number, 873 + i);
        ck_assert_uint_eq(g->seq, g->number);
        ck_assert_uint_eq(g->world_serial, 5);
        ck_assert_uint_eq(g->group, 3);
        ck_assert_int_eq(g->root_or_peer, -1);
        ck_assert_str_eq(g->label, "grad.3");
        ck_assert_int_eq(g->state, g->number % 2 == 0 ? DTR__REC_FINISHED : DTR__REC_FAILED);
        ck_assert_int_eq(g->status, g->number % 2 == 0 ? DTR_OK : DTR_ERR_TIMEOUT);
        ck_assert_int_ge(g->t_started, g->t_issued);
        ck_assert_int_ge(g->t_finished, g->t_started);
        ck_assert_int_eq(g->t_enqueued, 0);
        ck_assert_uint_ne(g->thread, 0);
    }
    ck_assert_uint_eq(dtr__rec_read(&world, got, 3), 3);
    ck_assert_uint_eq(got[2].number, 1000);
    close_parts();
}
END_TEST

static _Atomic int writing;

static void *write_records(void *arg) {
    dtr__record r = { .seq = (uint64_t)(uintptr_t)arg };
    for (int i = 0; i < 100000; i++) {
        r.count_in = r.count_out = r.nbytes = r.fingerprint = (uint64_t)i * r.seq;
        uint64_t n = dtr__rec_begin(&world, &r);
        dtr__rec_mark(&world, n, DTR__REC_FINISHED, DTR_OK);
    }
    atomic_fetch_sub(&writing, 1);
    return NULL;
}

/* P7, P16: a reader beside three writers in a small ring never sees two records mixed. */
START_TEST(recorder_records_never_mix) {
    open_parts("0", "64");
    static dtr__record got[64];
    pthread_t writer[3];
    writing = 3;
    for (uintptr_t i = 0; i < 3; i++) {
        pthread_create(&writer[i], NULL, write_records, (void *)(i + 1));
    }
    while (atomic_load(&writing) > 0) {
        size_t n = dtr__rec_read(&world, got, 64);
        for (size_t i = 0; i < n; i++) {
            ck_assert_uint_ne(got[i].number, UINT64_MAX);
            ck_assert_uint_gt(got[i].number, i > 0 ? got[i - 1].number : 0);
            ck_assert_uint_eq(got[i].count_in, got[i].fingerprint);
            ck_assert_uint_ne(got[i].seq, 0);
            ck_assert_uint_eq(got[i].count_in % got[i].seq, 0);
        }
        sched_yield();
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(writer[i], NULL);
    }
    close_parts();
}
END_TEST

/* ---- connections between nodes (control/link.h) ---- */

static int count_beats;

static void take(void *arg, dtr__link *l, dtr__wire_kind kind, const void *data, size_t nbytes) {
    (void)arg, (void)data, (void)nbytes;
    l->greeted = true;
    count_beats += kind == DTR__WIRE_BEAT;
}

/* Until there is something to read. */
static void await_link(const dtr__link *l) {
    struct pollfd look = { .fd = l->fd, .events = POLLIN };
    ck_assert_int_eq(poll(&look, 1, -1), 1);
}

/* Both ends of a connection to a listener on this host. */
static void connect_links(const struct in6_addr *to, int epoll, dtr__link **a, dtr__link **b) {
    uint16_t port = 0;
    int failure = 0, listener = dtr__socket_listen(NULL, &port);
    ck_assert_int_ge(listener, 0);
    ck_assert_uint_ne(port, 0);
    struct pollfd come = { .fd = listener, .events = POLLIN };
    *a = dtr__link_dial(to, port, epoll, 600, &failure);
    ck_assert_msg(*a != NULL, "dial: %s", strerror(failure));
    ck_assert_int_eq(poll(&come, 1, -1), 1);
    *b = dtr__link_accept(listener, epoll, 600);
    ck_assert_ptr_nonnull(*b);
    dtr__link_connected(*a);
    ck_assert_int_ge((*a)->fd, 0);
    dtr__private_fd_close(listener);
}

static bool has_ipv6(void) {
    const struct sockaddr_in6 own = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&own, sizeof own) == 0;
    close(fd);
    return has;
}

/* CP2: a node may have addresses of either family only. */
START_TEST(links_of_both_families) {
    const struct in6_addr to[] = { dtr__socket_ipv4(htonl(INADDR_LOOPBACK)),
                                   IN6ADDR_LOOPBACK_INIT };
    dtr__wire_hello hello = { .rank = 1 };
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < 1 + has_ipv6(); i++) {
        dtr__link *a, *b;
        connect_links(&to[i], epoll, &a, &b);
        count_beats = 0;
        dtr__link_send(a, DTR__WIRE_HELLO, &hello, sizeof hello);
        dtr__link_send(a, DTR__WIRE_BEAT, NULL, 0);
        while (count_beats == 0) {
            await_link(b);
            dtr__link_read(b, take, NULL);
        }
        dtr__link_free(a);
        dtr__link_free(b);
    }
    close(epoll);
}
END_TEST

/* A child of the program's that lives on must not keep the others from seeing this rank's end. */
START_TEST(forked_child_keeps_no_link) {
    const struct in6_addr to = dtr__socket_ipv4(htonl(INADDR_LOOPBACK));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    dtr__link *a, *b;
    connect_links(&to, epoll, &a, &b);
    pid_t child = fork();
    if (child == 0) {
        for (;;) {
            pause();
        }
    }
    ck_assert_int_gt(child, 0);
    dtr__link_close(a, 0);
    await_link(b); /* for ever, if the child had it too */
    dtr__link_read(b, take, NULL);
    ck_assert_int_eq(b->fd, -1);
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    dtr__link_free(a);
    dtr__link_free(b);
    close(epoll);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("progress");
    tcase_add_test(tc, naps);
    tcase_add_loop_test(tc, no_wake_is_lost, 0, 2);
    tcase_add_loop_test(tc, wake_between_poll_and_sleep, 0, 2);
    tcase_add_loop_test(tc, what_is_left_to_others_is_not_forgotten, 0, 2);
    tcase_add_test(tc, without_thread_the_caller_polls);
    tcase_add_test(tc, remove_waits_for_those_inside);
    tcase_add_test(tc, thread_is_named_and_takes_no_signals);
    tcase_add_test(tc, many_lives);
    tcase_add_test(tc, recorder_wraps_and_ignores_the_overwritten);
    tcase_add_test(tc, recorder_records_never_mix);
    tcase_add_test(tc, links_of_both_families);
    tcase_add_test(tc, forked_child_keeps_no_link);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime progress", make);
}
