/* Messages for one node: reports, and in control_ask.c questions for them. Each goes to the
 * neighbour that is nearest to its end on the ring (ring.h), so about lg(nodes) / 2 times, and
 * round those that are dead or say nothing. What finds no way is lost: reports come again, who asks
 * waits a second. */
#include <stdlib.h>
#include <string.h>

#include "control_internal.h"

enum { PASSED_ON_MOST = 64 << 10 }; /* bytes that wait on a connection */

/* ---- the way ---- */

int dtr__control_hops(const dtr_world *world) {
    int lg = 0;
    while (lg < 30 && 1 << lg < world->node_count) {
        lg++;
    }
    return 2 * lg + 4;
}

dtr__link *dtr__control_way(const dtr_world *world, const dtr__control *c, int to, int from) {
    const int64_t now = dtr__now_ns();
    dtr__link *best = NULL;
    int best_d = world->node_count;
    bool direct = false;
    for (dtr__link *l = c->links; l != NULL; l = l->next) {
        if (l->fd < 0 || !l->greeted || l->left) {
            continue;
        }
        const int at = world->node_of[l->rank];
        const int d = dtr__ring_distance(world->node_count, at, world->node_of[to]);
        direct = direct || d == 0;
        if (at != from && !dtr__control_is_silent(c, l, now) &&
            (d < best_d || (d == 0 && l->rank == to))) {
            best = l;
            best_d = d;
        }
    }
    return direct && best_d > 0 ? NULL : best; /* nobody else reaches it if it says nothing */
}

void dtr__control_pass_on(const dtr_world *world, const dtr__link *l, int to, int32_t *hops,
                          dtr__wire_kind kind, const void *message, size_t nbytes) {
    const dtr__control *c = world->control.plane;
    dtr__link *next = *hops > 0 ? dtr__control_way(world, c, to, world->node_of[l->rank]) : NULL;
    if (next != NULL && next->n_out < PASSED_ON_MOST) {
        --*hops;
        dtr__link_send(next, kind, message, nbytes);
    }
}

/* ---- reports ---- */

static void take_own(const dtr_world *world, const dtr__link *l, dtr__rank_report *d) {
    dtr__control *c = world->control.plane;
    dtr__rank_report before;
    if (d->rank < 0 || d->rank >= world->size || world->node_of[d->rank] == world->node ||
        d->n_groups > DTR__REPORT_GROUPS) {
        return;
    }
    d->seen_ns = l->received_ns;
    d->doing[sizeof d->doing - 1] = '\0';
    if (dtr__board_get(c->board, d->rank, &before) && before.fresh_ns > d->fresh_ns) {
        d->fresh_ns = before.fresh_ns; /* of an answer, which this one is newer than */
    }
    dtr__board_put(c->board, d->rank, d);
    if (d->seen_ns > dtr__board_received(c->board, world->node_of[d->rank])) {
        dtr__board_put_received(c->board, world->node_of[d->rank], d->seen_ns);
    }
}

void dtr__control_take_report(const dtr_world *world, const dtr__link *l, const void *data,
                              size_t nbytes) {
    dtr__wire_report d;
    if (nbytes != sizeof d) {
        return;
    }
    memcpy(&d, data, sizeof d);
    if (d.to < 0 || d.to >= world->size) {
        return;
    }
    if (world->node_of[d.to] == world->node) {
        take_own(world, l, &d.report);
        return;
    }
    dtr__control_pass_on(world, l, d.to, &d.hops, DTR__WIRE_REPORT, &d, sizeof d);
}

/* ---- of this node ---- */

static dtr__wire_report *make_reports(const dtr_world *world, size_t *n) {
    dtr__wire_report *d = calloc((size_t)world->local_size, sizeof *d);
    *n = 0;
    for (int i = 0; d != NULL && i < world->local_size; i++) {
        int rank = world->local_world[i];
        if (!dtr__rank_failed(world, rank)) {
            *n += dtr__rank_report_make(world, rank, &d[*n].report);
        }
    }
    return d;
}

static void send_all(const dtr_world *world, dtr__link *l, int to, dtr__wire_report *d, size_t n) {
    for (size_t k = 0; k < n; k++) {
        d[k].to = to;
        d[k].hops = dtr__control_hops(world);
        dtr__link_send(l, DTR__WIRE_REPORT, &d[k], sizeof d[k]);
    }
}

/* Over each connection with that node, else towards it. */
static void send_to(const dtr_world *world, dtr__control *c, int at, dtr__wire_report *d, size_t n,
                    int64_t now) {
    if (c->node[at].link == NULL) {
        dtr__link *l = dtr__control_way(world, c, dtr__control_members(c, at)->lowest, -1);
        if (l != NULL && l->n_out < PASSED_ON_MOST) {
            send_all(world, l, dtr__control_members(c, at)->lowest, d, n);
        }
        return;
    }
    for (dtr__link *l = c->links; l != NULL; l = l->next) {
        if (l->greeted && l->fd >= 0 && world->node_of[l->rank] == at && l->n_out == 0 &&
            !dtr__control_is_silent(c, l, now)) {
            send_all(world, l, l->rank, d, n);
        }
    }
}

void dtr__control_send_reports(const dtr_world *world, dtr__control *c, int64_t now) {
    size_t n = 0;
    const int nodes = world->node_count;
    dtr__wire_report *d = c->links != NULL ? make_reports(world, &n) : NULL;
    for (int i = 0, sent = 0; n > 0 && i < nodes && sent < REPORTS_PER_ROUND; i++) {
        const int at = (c->turn + i) % nodes;
        if (at != world->node && c->node[at].n_out < dtr__control_members(c, at)->n) {
            send_to(world, c, at, d, n, now);
            sent++;
            c->turn = sent == REPORTS_PER_ROUND ? (at + 1) % nodes : c->turn;
        }
    }
    free(d);
}
