/* Schedules of all ranks, played in one process, where a message moves no sooner than both sides
 * have posted it and is read as late as its sender may still change it. So a wait for a message
 * that does not come, messages of one pair that meet the wrong receive, and memory that is written
 * while it is sent are all seen. */
#ifndef PRETENDED_PLAYERS_H
#define PRETENDED_PLAYERS_H

#include <check.h>
#include <string.h>

#include "backends/mpi/mpi_internal.h"
#include "core/team.h"
#include "kernels/kernels.h"

typedef struct player {
    dtr_group group;
    dtr__call call;
    dtr__mpi_sched *s;
    bool *posted, *over; /* of its transfers; over: data has moved */
    size_t sent, received;
    double *in, *out;
} player;

static player *players;
static int n_players;

/* ---- playing ---- */

static const dtr__mpi_step *step_of(const player *p, size_t transfer) {
    for (size_t i = 0; i < p->s->n_steps; i++) {
        const dtr__mpi_step *step = &p->s->steps[i];
        if ((step->kind == DTR__MPI_SEND || step->kind == DTR__MPI_RECV) &&
            step->first == transfer) {
            return step;
        }
    }
    ck_abort_msg("transfer %zu has no step", transfer);
}

/* The transfer at the other end: as many of that pair and direction are before it there as here. */
static size_t partner_of(int rank, size_t transfer) {
    const dtr__mpi_transfer *t = &players[rank].s->transfers[transfer];
    const dtr__mpi_sched *other = players[t->peer].s;
    size_t before = 0;
    for (size_t i = 0; i < transfer; i++) {
        before += players[rank].s->transfers[i].peer == t->peer &&
                  players[rank].s->transfers[i].is_send == t->is_send;
    }
    for (size_t i = 0; i < other->n_transfers; i++) {
        const dtr__mpi_transfer *o = &other->transfers[i];
        if (o->peer == rank && o->is_send != t->is_send && before-- == 0) {
            ck_assert_msg(o->nbytes == t->nbytes && o->tag == t->tag,
                          "rank %d's %d bytes to %d meet a receive of %d", rank, t->nbytes, t->peer,
                          o->nbytes);
            return i;
        }
    }
    ck_abort_msg("of rank %d and %d one sends what the other does not receive", rank, t->peer);
}

/* A message moves when its sender waits for it, or its receiver does: the last moment either may
 * still touch its memory. */
static bool move(int rank, size_t transfer) {
    const dtr__mpi_transfer *t = &players[rank].s->transfers[transfer];
    const int peer = t->peer;
    if (players[rank].over[transfer]) {
        return true;
    }
    const size_t there = partner_of(rank, transfer);
    if (!players[peer].posted[there]) {
        return false;
    }
    const dtr__mpi_step *mine = step_of(&players[rank], transfer);
    const dtr__mpi_step *theirs = step_of(&players[peer], there);
    if (t->nbytes > 0) { /* else there may be no memory */
        memcpy(t->is_send ? theirs->dst : mine->dst, t->is_send ? mine->dst : theirs->dst,
               (size_t)t->nbytes);
    }
    players[rank].over[transfer] = players[peer].over[there] = true;
    return true;
}

static void run_local(const player *p, const dtr__mpi_step *step) {
    if (step->kind == DTR__MPI_COPY) {
        memcpy(step->dst, step->src, step->n);
    } else if (step->kind == DTR__MPI_PACK || step->kind == DTR__MPI_UNPACK) {
        dtr__mpi_run_rows(step);
    } else if (step->kind == DTR__MPI_PREMUL) {
        dtr__premul(step->dst, step->src, step->n, p->s->dtype, p->s->premul);
    } else {
        ck_assert_int_eq(step->kind, DTR__MPI_REDUCE);
        dtr__reduce(step->dst, &p->s->sources[step->first], (int)(step->last - step->first),
                    step->n, p->s->dtype, p->s->op, step->divisor, NULL);
    }
}

/* Until its next wait that is not satisfied; true when it has moved on. */
static bool play(int rank) {
    player *p = &players[rank];
    const size_t from = p->s->at;
    for (; p->s->at < p->s->n_steps; p->s->at++) {
        const dtr__mpi_step *step = &p->s->steps[p->s->at];
        bool all = true;
        if (step->kind == DTR__MPI_WAIT) {
            for (size_t i = step->first; i < step->last; i++) {
                ck_assert(p->posted[i]);
                all = move(rank, i) && all;
            }
        } else if (step->kind == DTR__MPI_SEND || step->kind == DTR__MPI_RECV) {
            p->posted[step->first] = true;
            p->sent += step->kind == DTR__MPI_SEND;
            p->received += step->kind == DTR__MPI_RECV;
        } else {
            run_local(p, step);
        }
        if (!all) {
            break;
        }
    }
    return p->s->at != from;
}

/* One rank runs as far as it gets before the next does, from the first rank up or the last down. */
static void play_all(bool down, const char *what) {
    bool moved = true;
    while (moved) {
        moved = false;
        for (int i = 0; i < n_players; i++) {
            moved |= play(down ? n_players - 1 - i : i);
        }
    }
    for (int r = 0; r < n_players; r++) {
        const dtr__mpi_sched *s = players[r].s;
        ck_assert_msg(s->at == s->n_steps, "%s: rank %d of %d waits for ever", what, r, n_players);
        for (size_t i = 0; i < s->n_transfers; i++) {
            ck_assert_msg(players[r].over[i], "%s: rank %d leaves a message behind", what, r);
        }
    }
}

#endif /* PRETENDED_PLAYERS_H */
