/* Asking for a report instead of waiting for the next one, which with many nodes comes rarely. A
 * thread writes what it wants on its own board; whoever has a connection asks, and the other node
 * makes a report after that. Before anybody is named for not having come, nothing older than that
 * counts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "control_internal.h"

/* ---- any thread ---- */

/* The newest message of any connection of this host with that node. */
static int64_t received_ns(const dtr_world *world, int at) {
    const dtr__control *c = world->control.plane;
    int64_t newest = dtr__board_received(c->board, at);
    for (int i = 0; i < world->local_size; i++) {
        const int64_t ns = c->boards[i] != NULL ? dtr__board_received(c->boards[i], at) : 0;
        newest = ns > newest ? ns : newest;
    }
    return newest;
}

/* Known of neighbours only: whether others still speak shows when they are asked. */
static bool is_silent(const dtr_world *world, int world_rank) {
    const int at = world->node_of[world_rank];
    return dtr__ring_is_near(world->node_count, world->node, at) &&
           dtr__now_ns() - received_ns(world, at) >
               2 * dtr__control_silent_ns(world->control.plane);
}

/* What this rank last wanted of that one, or of another whose question has its place. */
static dtr__want wanted(const dtr_world *world, int world_rank) {
    const size_t n = dtr__board_n_wants(world->size);
    return dtr__board_wanted(world->control.plane->board, (size_t)world_rank % n);
}

/* Longer than a question may take, without the time in which this process was stopped. */
static bool is_in_vain(int64_t wanted_ns) {
    return dtr__now_ns() - wanted_ns - dtr__hidden_since(wanted_ns) > DTR__ANSWER_NS;
}

bool dtr__control_aged(const dtr_world *world, const dtr__rank_report *d) {
    return dtr__control_old(world, d) ||
           dtr__now_ns() - d->seen_ns > 2 * dtr__control_silent_ns(world->control.plane);
}

bool dtr__control_old(const dtr_world *world, const dtr__rank_report *d) {
    const dtr__want want = wanted(world, d->rank);
    const bool missed =
        want.rank == d->rank && want.ns > d->fresh_ns && d->seen_ns <= want.ns + DTR__ANSWER_NS;
    return is_silent(world, d->rank) || (missed && is_in_vain(want.ns));
}

/* It has been answered, or was in vain: its place may be taken. */
static bool is_over(const dtr_world *world, const dtr__want *want) {
    dtr__rank_report d;
    return want->ns == 0 || is_in_vain(want->ns) ||
           (dtr__control_report_of(world, (int)want->rank, &d) && d.fresh_ns >= want->ns);
}

/* Whether the newest question is in vain. One is put unless another rank's is in its place. */
static bool ask(const dtr_world *world, int world_rank, int64_t since_ns) {
    dtr__control *c = world->control.plane;
    pthread_mutex_lock(&c->lock);
    const dtr__want want = wanted(world, world_rank);
    const bool own = want.rank == world_rank && want.ns >= since_ns;
    const bool put = !own && (want.rank == world_rank || is_over(world, &want));
    if (put) {
        dtr__board_want(c->board, world_rank, dtr__now_ns());
    }
    pthread_mutex_unlock(&c->lock);
    if (put) {
        dtr__control_wake(world);
    }
    return own && is_in_vain(want.ns);
}

bool dtr__control_ask(const dtr_world *world, int world_rank, int64_t since_ns) {
    dtr__rank_report d;
    if (!dtr__control_serves(world) || world->node_of[world_rank] == world->node ||
        dtr__rank_failed(world, world_rank) || is_silent(world, world_rank) ||
        (dtr__control_report_of(world, world_rank, &d) && d.fresh_ns >= since_ns)) {
        return true;
    }
    return ask(world, world_rank, since_ns);
}

/* ---- the watchdog thread: asking ---- */

/* Some rank of this node has had it asked. */
static bool is_sent(const dtr_world *world, const dtr__control *c, size_t place,
                    const dtr__want *want) {
    const size_t n = dtr__board_n_wants(world->size);
    bool sent = false;
    for (int i = 0; i < world->local_size && !sent; i++) {
        const dtr__want *s = &c->sent[(size_t)i * n + place];
        sent = s->rank == want->rank && s->ns >= want->ns;
    }
    return sent;
}

/* What one board wants and has not been asked for. False: some has no connection to be asked over,
 * or only one that says nothing: a stopped process does not read it. */
static bool send_wanted(const dtr_world *world, dtr__control *c, int at, const dtr__board *b,
                        int64_t now) {
    const size_t n = dtr__board_n_wants(world->size);
    bool sent_all = true;
    for (size_t place = 0; place < n; place++) {
        const dtr__want want = dtr__board_wanted(b, place);
        if (want.ns == 0 || now - want.ns > DTR__ANSWER_NS || want.rank < 0 ||
            want.rank >= world->size || is_sent(world, c, place, &want)) {
            continue;
        }
        const int r = (int)want.rank;
        dtr__link *l = dtr__control_way(world, c, r, -1);
        if (l == NULL) {
            sent_all = false;
            continue;
        }
        const dtr__wire_ask ask = { .asked_ns = dtr__now_ns(),
                                    .rank = r,
                                    .from = world->rank,
                                    .hops = dtr__control_hops(world) };
        c->sent[(size_t)at * n + place] = (dtr__want){ .ns = ask.asked_ns, .rank = r };
        dtr__link_send(l, DTR__WIRE_ASK, &ask, sizeof ask);
    }
    return sent_all;
}

void dtr__control_send_asks(const dtr_world *world, dtr__control *c, int64_t now) {
    bool again = now < c->ask_until_ns, sent_all = true;
    for (int i = 0; i < world->local_size; i++) {
        const dtr__board *b = i == world->local_rank ? c->board : c->boards[i];
        const uint32_t wants = b != NULL && c->links != NULL ? dtr__board_wants(b) : c->asked[i];
        if (wants != c->asked[i] || (again && b != NULL)) {
            c->ask_until_ns = wants != c->asked[i] ? now + DTR__ANSWER_NS : c->ask_until_ns;
            c->asked[i] = wants;
            sent_all = send_wanted(world, c, i, b, now) && sent_all;
        }
    }
    c->ask_until_ns = sent_all ? 0 : c->ask_until_ns;
}

/* ---- the watchdog thread: answering ---- */

/* Kept until all that has come is read, so that one report, made after all of them, serves all who
 * ask for it. Without memory it is in vain. */
static void keep(dtr__control *c, const dtr__wire_ask *ask) {
    if (c->n_questions == c->cap_questions) {
        const size_t cap = c->cap_questions + 64;
        dtr__wire_ask *more = realloc(c->question, cap * sizeof *more);
        if (more == NULL) {
            return;
        }
        c->question = more;
        c->cap_questions = cap;
    }
    c->question[c->n_questions++] = *ask;
}

void dtr__control_take_ask(const dtr_world *world, const dtr__link *l, const void *data,
                           size_t nbytes) {
    dtr__wire_ask ask;
    if (nbytes != sizeof ask) {
        return;
    }
    memcpy(&ask, data, sizeof ask);
    if (ask.rank < 0 || ask.rank >= world->size || ask.from < 0 || ask.from >= world->size ||
        world->node_of[ask.from] == world->node) {
        return;
    }
    if (world->node_of[ask.rank] == world->node) {
        keep(world->control.plane, &ask);
        return;
    }
    dtr__control_pass_on(world, l, ask.rank, &ask.hops, DTR__WIRE_ASK, &ask, sizeof ask);
}

void dtr__control_answer(const dtr_world *world, dtr__control *c) {
    for (int i = 0; i < world->local_size && c->n_questions > 0; i++) {
        const int rank = world->local_world[i];
        dtr__wire_report d;
        bool made = false, seen = false;
        for (size_t k = 0; k < c->n_questions; k++) {
            const dtr__wire_ask *ask = &c->question[k];
            if (ask->rank != rank || (made && !seen)) {
                continue;
            }
            seen = made ? seen : dtr__rank_report_make(world, rank, &d.report);
            made = true;
            d.to = ask->from;
            d.hops = dtr__control_hops(world);
            d.report.fresh_ns = ask->asked_ns;
            dtr__link *l = seen ? dtr__control_way(world, c, ask->from, -1) : NULL;
            if (l != NULL) {
                dtr__link_send(l, DTR__WIRE_REPORT, &d, sizeof d);
            }
        }
    }
    c->n_questions = 0;
}
