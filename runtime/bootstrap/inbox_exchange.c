/* What members exchange while something is made, over messages: each sends to the first one, which
 * sends to all what has come of it. A rank that has ended is not waited for. */
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "bootstrap/inbox.h"

static int world_rank_of(const dtr__members *m, int i) {
    return m->world_ranks != NULL ? m->world_ranks[i] : i;
}

/* DTR_OK: all members live, as far as can be seen. */
static dtr_status look_for_ended(const dtr__members *m) {
    const dtr__error_context ctx = { .world = m->world };
    for (int i = 0; i < m->size; i++) {
        const int r = world_rank_of(m, i);
        DTR_REQUIRE(!dtr__inbox_has_ended(m->inbox, r), &ctx, DTR_ERR_REMOTE,
                    "the process of rank %d (pid %d) has ended while the ranks were making a world "
                    "or a group",
                    r, dtr__inbox_pid(m->inbox, r));
    }
    return DTR_OK;
}

/* A message of member `from`, of exactly nbytes, into `to`. */
static dtr_status await(const dtr__members *m, int from, void *to, size_t nbytes) {
    const dtr__error_context ctx = { .world = m->world };
    const double limit_s = dtr__inbox_limit(m->inbox), start = dtr__now(), LOOK_S = 0.1;
    double next_look = start + LOOK_S;
    dtr__backoff pause = { 0 };
    dtr_status s = DTR_OK;
    for (;;) {
        void *message;
        size_t n = 0;
        int source;
        DTR_TRY(dtr__inbox_receive(m->inbox, DTR__TAG_EXCHANGE, m->uid, world_rank_of(m, from),
                                   &message, &n, &source));
        if (message != NULL) {
            const bool fits = n == nbytes;
            memcpy(to, message, fits ? n : 0);
            free(message);
            DTR_REQUIRE(fits, &ctx, DTR_ERR_INTERNAL,
                        "rank %d has sent %zu bytes where %zu are expected", source, n, nbytes);
            return DTR_OK;
        }
        DTR_TRY(s); /* what it sent before it ended has been looked for once more */
        const double now = dtr__now();
        if (now >= next_look) {
            next_look = now + LOOK_S;
            s = look_for_ended(m);
        }
        DTR_REQUIRE(now - start < limit_s, &ctx, DTR_ERR_TIMEOUT,
                    "rank %d has not come within %g s to where the ranks make a world or a group",
                    world_rank_of(m, from), limit_s);
        dtr__backoff_pause(NULL, &pause);
    }
}

static dtr_status give(const dtr__members *m, int to, const void *data, size_t nbytes) {
    return dtr__inbox_send(m->inbox, world_rank_of(m, to), DTR__TAG_EXCHANGE, m->uid, data, nbytes,
                           NULL, 0);
}

static dtr_status broadcast(const dtr__members *m, void *data, size_t nbytes, int root) {
    if (m->rank != root) {
        return await(m, root, data, nbytes);
    }
    for (int i = 0; i < m->size; i++) {
        if (i != root) {
            DTR_TRY(give(m, i, data, nbytes));
        }
    }
    return DTR_OK;
}

static dtr_status allgather(const dtr__members *m, const void *mine, void *all, size_t nbytes) {
    memcpy((char *)all + (size_t)m->rank * nbytes, mine, nbytes);
    if (m->rank != 0) {
        DTR_TRY(give(m, 0, mine, nbytes));
    }
    for (int i = 1; i < m->size && m->rank == 0; i++) {
        DTR_TRY(await(m, i, (char *)all + (size_t)i * nbytes, nbytes));
    }
    return broadcast(m, all, (size_t)m->size * nbytes, 0);
}

static dtr_status least(const dtr__members *m, const uint64_t *mine, uint64_t *all, int n) {
    enum { MOST = 256 };
    uint64_t other[MOST];
    const size_t nbytes = (size_t)n * sizeof *mine;
    DTR_REQUIRE(n <= MOST, NULL, DTR_ERR_INTERNAL, "%d numbers at once, %d are the most", n, MOST);
    memcpy(all, mine, nbytes);
    if (m->rank != 0) {
        DTR_TRY(give(m, 0, mine, nbytes));
    }
    for (int i = 1; i < m->size && m->rank == 0; i++) {
        DTR_TRY(await(m, i, other, nbytes));
        for (int k = 0; k < n; k++) {
            all[k] = other[k] < all[k] ? other[k] : all[k];
        }
    }
    return broadcast(m, all, nbytes, 0);
}

const dtr__exchange_ops dtr__exchange_over_inbox = { allgather, broadcast, least };
