/* The watchdog of a world: a thread that beats and sees peers end. It calls no MPI and takes no
 * lock that an issuing thread holds for long, so that it survives what it watches. */
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/world.h"
#include "bootstrap/inbox.h"
#include "control/control.h"
#include "control/peers.h"
#include "diagnosis/dump.h"
#include "diagnosis/metrics.h"
#include "diagnosis/remote_ranks.h"
#include "diagnosis/watchdog.h"
#include "heartbeat.h"

struct dtr__watchdog {
    pthread_t thread;
    int wake; /* eventfd: readable once the watchdog has to stop */
    _Atomic bool stop;
    int n;             /* entries of fd */
    struct pollfd *fd; /* [0] wake, one per local rank, the control plane; -1: none; the thread's */
    bool *reported;    /* [local size]; the thread's */
    dtr__heartbeats *heartbeats; /* the thread's */
    void (*died)(dtr_world *world, int world_rank);
    dtr__control_rank_failed rank_failed;
    void (*round)(dtr_world *world);
};

static void look_at_peers(dtr_world *world, struct dtr__watchdog *d) {
    for (int i = 0; i < world->local_size; i++) {
        struct pollfd *p = &d->fd[1 + i];
        if (d->reported[i] || i == world->local_rank) {
            continue;
        }
        if (dtr__peer_gone(world, i)) {
            d->reported[i] = true;
            p->fd = -1;
            d->died(world, world->local_world[i]);
            dtr__control_report_failure(world, world->local_world[i]);
        } else if (p->revents != 0) {
            p->fd = -1; /* ended in order: would wake us for ever */
        }
    }
}

static void *thread_main(void *arg) {
    dtr_world *world = arg;
    struct dtr__watchdog *d = world->diagnosis.watchdog;
    dtr__rec_header *h = dtr__recorder_header(world);
    const int nap_ms = (int)dtr__opt_number(&world->options, DTR__OPT_WATCHDOG_MS);
    int64_t broken_ns = 0;
    uint32_t answered = 0;
    dtr__log_never_wait(); /* what it watches comes first */
    dtr__clock_watched((int64_t)nap_ms * 1000000);
    while (!atomic_load(&d->stop)) {
        (void)dtr__now();
        atomic_store_explicit(&h->beat_ns, dtr__now_ns(), memory_order_release);
        look_at_peers(world, d);
        dtr__heartbeats_round(world, d->heartbeats, d->rank_failed);
        dtr__control_round(world, d->rank_failed);
        dtr__inbox_poll(world->mpi.inbox); /* for ranks that call nothing just now */
        d->round(world);
        dtr__dump_round(world);
        dtr__abort_round(world, &broken_ns, false);
        dtr__metrics_round(world);
        dtr__remote_ranks_round(world, &answered);
        (void)poll(d->fd, (nfds_t)d->n, nap_ms);
    }
    dtr__control_rest(world);
    dtr__dump_last_round(world); /* what broke just before the end has its dump too */
    dtr__abort_round(world, &broken_ns, true);
    return NULL;
}

static void destroy(struct dtr__watchdog *d) {
    if (d != NULL) {
        if (d->wake >= 0) {
            close(d->wake);
        }
        free(d->fd);
        free(d->reported);
        dtr__heartbeats_free(d->heartbeats);
        free(d);
    }
}

static struct dtr__watchdog *prepare(const dtr_world *world) {
    size_t n = (size_t)world->local_size;
    struct dtr__watchdog *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return NULL;
    }
    d->wake = eventfd(0, EFD_CLOEXEC);
    d->n = world->local_size + 2;
    d->fd = calloc(n + 2, sizeof *d->fd);
    d->reported = calloc(n, sizeof *d->reported);
    d->heartbeats = dtr__heartbeats_new(world);
    if (d->wake < 0 || d->fd == NULL || d->reported == NULL || d->heartbeats == NULL) {
        destroy(d);
        return NULL;
    }
    d->fd[0] = (struct pollfd){ .fd = d->wake, .events = POLLIN };
    for (int i = 0; i < world->local_size; i++) {
        d->fd[1 + i] = (struct pollfd){ .fd = dtr__peer_fd(world, i), .events = POLLIN };
    }
    d->fd[1 + n] = (struct pollfd){ .fd = dtr__control_fd(world), .events = POLLIN };
    return d;
}

dtr_status dtr__watchdog_start(dtr_world *world, void (*died)(dtr_world *, int),
                               dtr__control_rank_failed rank_failed, void (*round)(dtr_world *)) {
    dtr__error_context ctx = { .world = world };
    struct dtr__watchdog *d = prepare(world);
    DTR_REQUIRE(d != NULL, &ctx, DTR_ERR_NOMEM, "no memory or descriptor for the watchdog");
    d->died = died;
    d->rank_failed = rank_failed;
    d->round = round;
    world->diagnosis.watchdog = d;
    int code = dtr__thread_start(&d->thread, "dtr-watchdog", false, thread_main, world);
    if (code != 0) {
        destroy(d);
        world->diagnosis.watchdog = NULL;
        errno = code;
        return DTR_FAIL_ERRNO(&ctx, DTR_ERR_SYSTEM, "cannot start the watchdog thread");
    }
    /* A rank that runs another program before its thread has had any time is missed as well. */
    int64_t none = 0;
    (void)atomic_compare_exchange_strong(&dtr__recorder_header(world)->beat_ns, &none,
                                         dtr__now_ns());
    return DTR_OK;
}

void dtr__watchdog_stop(dtr_world *world) {
    struct dtr__watchdog *d = world->diagnosis.watchdog;
    if (d != NULL) {
        const uint64_t one = 1;
        atomic_store(&d->stop, true);
        while (write(d->wake, &one, sizeof one) < 0 && errno == EINTR) {
        }
        pthread_join(d->thread, NULL);
        dtr__control_leave(world);
        destroy(d);
        world->diagnosis.watchdog = NULL;
    }
}
