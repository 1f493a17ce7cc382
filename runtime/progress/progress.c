/* The progress thread of a world: runs the pollers that have unfinished operations, and sleeps when
 * none has.
 *
 * Sleep cannot miss a wake-up: the thread notes the wake count, polls everybody, and goes to sleep
 * only if the count is still the same; dtr__progress_wake counts first and then looks whether
 * somebody sleeps (both sequentially consistent). */
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/thread.h"
#include "base/world.h"
#include "progress/progress.h"
#include "topology/bind.h"

enum {
    DOZES = 5,        /* naps of an idle thread before it sleeps until a wake-up, */
    DOZE_NS = 100000, /* ... the first, and each twice as long as the one before */
    LEFTS = 5         /* while another thread does the work a nap is up to DOZE_NS << LEFTS */
};
enum { AWAKE, NAPPING, ASLEEP };

struct dtr__progress {
    pthread_mutex_t lock; /* list, inside, leaving */
    pthread_cond_t left;  /* somebody came out of a poller that is leaving */
    dtr__poller *head, *tail;
    _Atomic uint32_t wakes;
    _Atomic uint32_t asleep;
    _Atomic bool stop;
    bool has_thread; /* constant after open, as the next */
    bool only_helps; /* the thread may not call MPI */
    pthread_t thread;
    /* The thread's, for those who see whether it moves. */
    _Atomic(const char *) inside;    /* of a native call; NULL: none */
    _Atomic uint64_t *beat, no_beat; /* of whoever opened it */
    _Atomic bool stuck;              /* it is not waited for any more */
    _Atomic bool for_good;           /* nor is it looked whether it has ended */
    bool joined;                     /* lock; all the same it has ended */
    const dtr__poller *at;           /* lock; where the thread is */
};

static _Thread_local const dtr__progress *thread_of; /* set in a progress thread */

/* ---- one pass ---- */

/* The list lock is not held while a poller runs; a poller that is leaving stays linked until nobody
 * is inside, so that `next` can be followed. */
static int poll_list(dtr__progress *p, uint64_t *beats) {
    int most = DTR__POLL_IDLE;
    pthread_mutex_lock(&p->lock);
    for (dtr__poller *at = p->head; at != NULL; at = at->next) {
        if (at->leaving || (beats != NULL && p->only_helps && !at->without_mpi)) {
            continue;
        }
        at->inside++;
        if (beats != NULL) {
            atomic_store_explicit(p->beat, ++*beats, memory_order_relaxed);
            p->at = at;
        }
        pthread_mutex_unlock(&p->lock);
        int moved = at->poll(at);
        most = moved > most ? moved : most;
        pthread_mutex_lock(&p->lock);
        at->inside--;
        p->at = beats != NULL ? NULL : p->at;
        if (at->leaving) {
            pthread_cond_broadcast(&p->left);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return most;
}

void dtr__progress_poll_all(dtr_world *world) {
    poll_list(world->progress, NULL);
}

/* ---- the list ---- */

void dtr__progress_add(dtr_world *world, dtr__poller *poller) {
    dtr__progress *p = world->progress;
    pthread_mutex_lock(&p->lock);
    poller->inside = 0;
    poller->leaving = false;
    poller->listed = true;
    poller->next = NULL;
    poller->prev = p->tail;
    *(p->tail != NULL ? &p->tail->next : &p->head) = poller;
    p->tail = poller;
    pthread_mutex_unlock(&p->lock);
    dtr__progress_wake(world);
}

/* A moment for who waits to look at its limit. progress->lock held. */
static void wait_for_leaving(dtr__progress *p) {
    enum { LOOK_NS = 20000000, SECOND_NS = 1000000000 };
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += LOOK_NS;
    end.tv_sec += end.tv_nsec / SECOND_NS;
    end.tv_nsec %= SECOND_NS;
    (void)pthread_cond_timedwait(&p->left, &p->lock, &end);
}

bool dtr__progress_remove(dtr_world *world, dtr__poller *poller, double limit_s) {
    dtr__progress *p = world->progress;
    const double end = dtr__now() + limit_s;
    pthread_mutex_lock(&p->lock);
    poller->leaving = true;
    while (poller->listed && poller->inside > 0 && dtr__now() < end) {
        wait_for_leaving(p);
    }
    bool out = poller->inside == 0;
    if (out && poller->listed) {
        *(poller->prev != NULL ? &poller->prev->next : &p->head) = poller->next;
        *(poller->next != NULL ? &poller->next->prev : &p->tail) = poller->prev;
        poller->next = poller->prev = NULL;
        poller->listed = false;
    }
    pthread_mutex_unlock(&p->lock);
    return out;
}

bool dtr__progress_is_at(dtr_world *world, const dtr__poller *poller) {
    dtr__progress *p = world->progress;
    pthread_mutex_lock(&p->lock);
    bool is_at = p->at == poller;
    pthread_mutex_unlock(&p->lock);
    return is_at;
}

/* ---- the thread ---- */

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, const struct timespec *limit) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, limit, NULL, 0);
}

/* Sleep until a wake-up later than `seen`; `limit` NULL: without end. */
static void sleep_until_wake(dtr__progress *p, uint32_t seen, const struct timespec *limit) {
    atomic_store(&p->asleep, limit == NULL ? ASLEEP : NAPPING);
    if (atomic_load(&p->wakes) == seen && !atomic_load(&p->stop)) {
        if (limit == NULL) {
            atomic_store_explicit(p->beat, 0, memory_order_relaxed); /* idle is not stuck */
        }
        futex_wait(&p->wakes, seen, limit);
    }
    atomic_store(&p->asleep, AWAKE);
}

static void wake(dtr__progress *p, uint32_t from) {
    atomic_fetch_add(&p->wakes, 1);
    if (atomic_load(&p->asleep) >= from) {
        syscall(SYS_futex, &p->wakes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

void dtr__progress_wake(dtr_world *world) {
    if (world->progress->has_thread) {
        wake(world->progress, NAPPING);
    }
}

void dtr__progress_wake_soon(dtr_world *world) {
    if (world->progress->has_thread) {
        wake(world->progress, ASLEEP);
    }
}

static void *thread_main(void *arg) {
    dtr_world *world = arg;
    dtr__progress *p = world->progress;
    dtr__backoff backoff = { 0 };
    uint64_t beats = 0;
    int dozes = 0, lefts = 0;
    thread_of = p;
    dtr__inside_at = &p->inside;
    while (!atomic_load(&p->stop)) {
        uint32_t seen = atomic_load(&p->wakes);
        int moved = poll_list(p, &beats);
        if (moved == DTR__POLL_IDLE) {
            const struct timespec doze = { 0, DOZE_NS << dozes };
            sleep_until_wake(p, seen, dozes < DOZES ? &doze : NULL);
        }
        dozes = moved != DTR__POLL_IDLE ? 0 : dozes + (dozes < DOZES);
        const bool left = moved == DTR__POLL_LEFT;
        lefts = !left ? 0 : lefts + (lefts < LEFTS);
        if (left && !world->cpus.spare_cores) {
            sleep_until_wake(p, seen, &(struct timespec){ 0, DOZE_NS << lefts });
        } else if (moved != DTR__POLL_WAITING && !left) {
            backoff = (dtr__backoff){ 0 };
        } else if (dtr__backoff_due(world->cpus.spare_cores ? world : NULL, &backoff)) {
            const struct timespec nap = { 0, backoff.nap_ns };
            sleep_until_wake(p, seen, &nap);
        }
    }
    return NULL;
}

bool dtr__progress_has_thread(const dtr_world *world) {
    return world->progress->has_thread && !world->progress->only_helps;
}

bool dtr__progress_only_helps(const dtr_world *world) {
    return thread_of == world->progress && thread_of->only_helps;
}

const char *dtr__progress_inside(const dtr_world *world) {
    return atomic_load_explicit(&world->progress->inside, memory_order_relaxed);
}

void dtr__progress_give_up(dtr_world *world) {
    atomic_store(&world->progress->stop, true); /* should it come back after all */
    atomic_store(&world->progress->stuck, true);
}

void dtr__progress_give_up_for_good(dtr_world *world) {
    atomic_store(&world->progress->for_good, true);
    dtr__progress_give_up(world);
}

/* It may have come back, and then ends. */
bool dtr__progress_stuck(dtr_world *world) {
    dtr__progress *p = world->progress;
    if (!atomic_load(&p->stuck) || atomic_load(&p->for_good)) {
        return atomic_load(&p->stuck);
    }
    pthread_mutex_lock(&p->lock);
    p->joined = p->joined || pthread_tryjoin_np(p->thread, NULL) == 0;
    bool stuck = !p->joined;
    pthread_mutex_unlock(&p->lock);
    return stuck;
}

void dtr__progress_forget(dtr_world *world) {
    dtr__progress *p = world->progress;
    pthread_mutex_lock(&p->lock);
    if (p->has_thread && !p->joined) {
        pthread_detach(p->thread);
        p->joined = true;
    }
    pthread_mutex_unlock(&p->lock);
}

void dtr__progress_rest(dtr_world *world) {
    if (dtr__progress_in_thread(world)) {
        atomic_store_explicit(world->progress->beat, 0, memory_order_relaxed);
    }
}

bool dtr__progress_in_thread(const dtr_world *world) {
    return thread_of == world->progress;
}

/* ---- life ---- */

static dtr_status start_thread(dtr_world *world) {
    dtr__progress *p = world->progress;
    p->has_thread = true;
    errno = dtr__thread_start(&p->thread, "dtr-progress", false, thread_main, world);
    if (errno != 0) {
        p->has_thread = false;
        return DTR_FAIL_ERRNO(
            NULL, DTR_ERR_SYSTEM,
            "cannot start the progress thread (DTR_PROGRESS_THREAD=0 does without)");
    }
    dtr__bind_thread(world, p->thread);
    return DTR_OK;
}

dtr_status dtr__progress_open(dtr_world *world, _Atomic uint64_t *beat) {
    dtr__progress *p = calloc(1, sizeof *p);
    DTR_REQUIRE(p != NULL, NULL, DTR_ERR_NOMEM, "no memory for the progress list");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->left, &monotonic);
    pthread_condattr_destroy(&monotonic);
    world->progress = p;
    p->beat = beat != NULL ? beat : &p->no_beat;
    p->only_helps = world->mpi.thread_level < MPI_THREAD_MULTIPLE;
    if (dtr__opt_number(&world->options, DTR__OPT_PROGRESS_THREAD) == 0) {
        return DTR_OK;
    }
    return start_thread(world);
}

void dtr__progress_close(dtr_world *world) {
    dtr__progress *p = world->progress;
    if (p == NULL) {
        return;
    }
    if (p->has_thread) {
        atomic_store(&p->stop, true);
        wake(p, NAPPING);
        if (!p->joined) {
            pthread_join(p->thread, NULL);
        }
    }
    pthread_cond_destroy(&p->left);
    pthread_mutex_destroy(&p->lock);
    free(p);
    world->progress = NULL;
}
