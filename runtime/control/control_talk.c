/* The control plane at work: what comes over connections (control_dial.c makes them), and when a
 * rank of another node is dead.
 *
 * What comes in is put on the rank's own board, which the other ranks of its node read. A
 * connection that ends without LEAVE makes its rank suspect; it is dead if its port refuses another
 * connection. Only the neighbours of a node have connections to it: who finds out tells all
 * (facts.c). */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "control_internal.h"

/* ---- ranks that fail ---- */

static void count_out(const dtr_world *world, int rank, bool first) {
    dtr__control *c = world->control.plane;
    c->node[world->node_of[rank]].n_out += first;
    c->n_out += first;
}

/* `own`: its node has said so. This process may know it already, by the end of a group, and has not
 * passed it on then. */
static void lose(dtr_world *world, int rank, dtr_status status, const char *text, bool own) {
    dtr__control *c = world->control.plane;
    rank_notes *has = &c->notes[rank];
    if (has->lost != 0 || atomic_load(&c->ended)) {
        return;
    }
    dtr__board_put_failure(c->board, rank, status, text);
    has->lost = dtr__board_failures(c->board);
    dtr__facts_add_failure(c, rank, own);
    count_out(world, rank, !has->gone);
    if (!dtr__rank_failed(world, rank)) {
        c->rank_failed(world, rank, status, text);
    }
}

static void clear_suspicion(const dtr_world *world, int rank) {
    dtr__control *c = world->control.plane;
    rank_notes *has = &c->notes[rank];
    c->n_suspects -= has->suspect_ns != 0;
    c->node[world->node_of[rank]].n_suspects -= has->suspect_ns != 0;
    has->suspect_ns = 0;
    has->refused = false;
}

/* Its node has not reported what became of it. */
static void lose_suspect(dtr_world *world, int rank, int64_t now) {
    const char *host = dtr__control_place(world, rank)->host;
    const uint32_t pid = dtr__control_offer(world, rank)->pid;
    dtr__rank_report d;
    char text[DTR__RANK_FAILURE_TEXT];
    if (dtr__control_report_of(world, rank, &d)) {
        snprintf(
            text, sizeof text,
            "rank %d (host %s, pid %u) died or ended without dtr_world_destroy: its connection "
            "has ended; %.1f s before it was reported: %s",
            rank, host, pid, (double)(now - d.seen_ns) * 1e-9, d.doing);
    } else {
        snprintf(
            text, sizeof text,
            "rank %d (host %s, pid %u) died or ended without dtr_world_destroy: its connection "
            "has ended",
            rank, host, pid);
    }
    lose(world, rank, DTR_ERR_REMOTE, text, false);
}

/* The kernel has given up waiting for its host. */
static void lose_node(dtr_world *world, int n, const char *why) {
    dtr__control *c = world->control.plane;
    char text[DTR__RANK_FAILURE_TEXT];
    for (int r = 0; r < world->size; r++) {
        const char *host = dtr__control_place(world, r)->host;
        if (world->node_of[r] == n && !c->notes[r].gone) {
            snprintf(text, sizeof text,
                     "rank %d (host %s, pid %u) is lost: node %d, host %s, has been silent for "
                     "%g s (%s)",
                     r, host, dtr__control_offer(world, r)->pid, n, host, c->silence_s, why);
            lose(world, r, DTR_ERR_REMOTE, text, false);
        }
    }
}

/* Where all neighbours have fallen silent and nobody else can be reached instead, it is this node
 * that has been cut off: those that are no neighbours are lost as well. */
static void judge_cut(dtr_world *world, dtr__control *c, int64_t now) {
    bool reached = !c->cut || (double)(now - c->received_ns - CUT_OFF_NS) * 1e-9 < c->silence_s;
    for (const dtr__link *l = c->links; l != NULL && !reached; l = l->next) {
        reached = l->greeted || dtr__control_is_listening(l);
    }
    for (int at = 0; at < world->node_count && !reached; at++) {
        if (at != world->node && !dtr__ring_is_near(world->node_count, world->node, at)) {
            lose_node(world, at, "no node has answered this one");
        }
    }
    c->cut = c->cut && reached;
}

void dtr__control_report_failure(dtr_world *world, int world_rank) {
    dtr__control *c = dtr__control_in_use(world);
    if (c != NULL) {
        dtr__facts_add_failure(c, world_rank, true);
        dtr__facts_spread(world, c);
    }
}

void dtr__control_report_dump(dtr_world *world, const char *cause) {
    dtr__control *c = dtr__control_in_use(world);
    if (c != NULL && dtr__facts_add_dump(c, cause)) {
        dtr__facts_spread(world, c);
    }
}

/* As another rank of this node has noted it. */
static void lose_as_noted(dtr_world *world, const dtr__board *b, uint32_t i) {
    char text[DTR__RANK_FAILURE_TEXT], name[128];
    dtr_status status;
    int r;
    const char *noted = dtr__board_failure(b, i, &r, &status);
    if (r < 0 || r >= world->size || world->node_of[r] == world->node) {
        return;
    }
    if (noted == NULL) {
        snprintf(text, sizeof text, "%s has failed, as %u ranks before it",
                 dtr__peer_name(world, r, name, sizeof name), i);
    }
    lose(world, r, status, noted != NULL ? noted : text, false);
}

/* What other ranks of this node have received. */
static void read_boards(dtr_world *world, dtr__control *c) {
    for (int i = 0; i < world->local_size; i++) {
        uint32_t failures = c->boards[i] != NULL ? dtr__board_failures(c->boards[i]) : 0;
        for (; c->read[i] < failures; c->read[i]++) {
            lose_as_noted(world, c->boards[i], c->read[i]);
        }
    }
}

/* For the other ranks of this node, and for this one's other threads. */
static void note_received(const dtr_world *world, dtr__control *c) {
    for (const dtr__link *l = c->links; l != NULL; l = l->next) {
        const int at = l->rank >= 0 ? world->node_of[l->rank] : -1;
        if (l->greeted && l->received_ns > dtr__board_received(c->board, at)) {
            dtr__board_put_received(c->board, at, l->received_ns);
        }
        if (l->greeted && l->received_ns > c->received_ns) {
            c->received_ns = l->received_ns;
            c->cut = false;
        }
    }
}

/* ---- messages ---- */

static void say_leave(dtr__link *l, dtr__wire_leave how) {
    const uint64_t reason = how;
    dtr__link_send(l, DTR__WIRE_LEAVE, &reason, sizeof reason);
    l->left = true;
}

static bool is_loopback(const struct in6_addr *a) {
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

/* A new connection takes the place of one that has fallen silent. */
static void use_link(dtr__control *c, node *n, dtr__link *l) {
    if (n->link != NULL && n->link != l &&
        l->received_ns - n->link->received_ns > dtr__control_silent_ns(c)) {
        say_leave(n->link, DTR__LEAVE_SWITCH);
        dtr__link_close(n->link, 0);
    }
    n->call = n->call == l ? NULL : n->call;
    n->link = l;
    n->met = true;
    c->beat_ns = 0; /* a report at once */
}

/* Where its port can be reached: what this rank has dialed, or an address of its own offer. */
static void note_address(const dtr_world *world, dtr__control *c, const dtr__link *l) {
    const location *o = dtr__control_place(world, l->rank);
    bool offered =
        l->dialed || (dtr__control_same_machine(world, l->rank) && is_loopback(&l->address));
    for (int i = 0; i < o->n_addresses && i < ADDRESSES && !offered; i++) {
        offered = memcmp(&o->address[i], &l->address, sizeof l->address) == 0;
    }
    if (offered) {
        c->notes[l->rank].known = l->address;
    }
}

/* It has proved who it is. */
static void welcome(dtr_world *world, dtr__link *l) {
    dtr__control *c = world->control.plane;
    note_address(world, c, l);
    clear_suspicion(world, l->rank);
    use_link(c, &c->node[world->node_of[l->rank]], l);
}

/* Who hears from a node itself does not believe others that it is silent: it may be the way between
 * those two that is cut. */
static bool is_believed(const dtr_world *world, const dtr__control *c, const dtr__link *l,
                        const dtr__wire_rank_failure *d) {
    const node *n = &c->node[world->node_of[d->rank]];
    return d->own != 0 || dtr__control_theirs(world, l, d->rank) || n->link == NULL ||
           n->link->fd < 0 || dtr__control_is_silent(c, n->link, dtr__now_ns());
}

static void take_failure(dtr_world *world, const dtr__link *l, const void *data, size_t nbytes) {
    dtr__wire_rank_failure d;
    if (nbytes != sizeof d) {
        return;
    }
    memcpy(&d, data, sizeof d);
    if (d.rank >= 0 && d.rank < world->size && world->node_of[d.rank] != world->node &&
        is_believed(world, world->control.plane, l, &d)) {
        d.text[DTR__RANK_FAILURE_TEXT - 1] = '\0';
        clear_suspicion(world, d.rank);
        lose(world, d.rank, d.status == DTR_ERR_TIMEOUT ? DTR_ERR_TIMEOUT : DTR_ERR_REMOTE, d.text,
             d.own != 0 || dtr__control_theirs(world, l, d.rank));
    }
}

static void take_dump(dtr_world *world, const char *data, size_t nbytes) {
    char cause[DTR__WIRE_DUMP_TEXT];
    if (nbytes == sizeof cause) {
        memcpy(cause, data, sizeof cause);
        cause[sizeof cause - 1] = '\0';
        if (dtr__facts_add_dump(world->control.plane, cause)) {
            dtr__rec_remote_failure(world, cause);
        }
    }
}

static void take_leave(const dtr_world *world, dtr__link *l, const void *data, size_t nbytes) {
    dtr__control *c = world->control.plane;
    uint64_t how = 0;
    if (nbytes == sizeof how) {
        memcpy(&how, data, sizeof how);
        l->left = true;
        rank_notes *has = &c->notes[l->rank];
        if (how != DTR__LEAVE_SWITCH && !has->gone) {
            has->gone = true;
            count_out(world, l->rank, has->lost == 0);
        }
        if (how == DTR__LEAVE_WORLD) {
            atomic_store(&c->ended, true);
        }
    }
}

static void take(void *arg, dtr__link *l, dtr__wire_kind kind, const void *data, size_t nbytes) {
    dtr_world *world = arg;
    if (!l->greeted) {
        if (dtr__control_greet(world, l, kind, data, nbytes)) {
            welcome(world, l);
        }
    } else if (kind == DTR__WIRE_REPORT) {
        dtr__control_take_report(world, l, data, nbytes);
    } else if (kind == DTR__WIRE_RANK_FAILURE) {
        take_failure(world, l, data, nbytes);
    } else if (kind == DTR__WIRE_DUMP) {
        take_dump(world, data, nbytes);
    } else if (kind == DTR__WIRE_VOTE) {
        dtr__control_receive_vote(world, l, data, nbytes);
    } else if (kind == DTR__WIRE_ASK) {
        dtr__control_take_ask(world, l, data, nbytes);
    } else if (kind == DTR__WIRE_LEAVE) {
        take_leave(world, l, data, nbytes);
    }
}

/* ---- connections ---- */

static bool host_is_silent(int code) {
    return code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH || code == EHOSTDOWN ||
           code == ENETDOWN;
}

static void link_ended(dtr_world *world, dtr__link *l, int64_t now) {
    dtr__control *c = world->control.plane;
    if (l->rank < 0) {
        return; /* a stranger */
    }
    node *n = &c->node[world->node_of[l->rank]];
    if (!l->greeted) {
        if (n->call == l) {
            dtr__control_dial_failed(world, l, l->failure, now);
        }
        return;
    }
    if (n->link == l) {
        n->link = NULL;
        for (dtr__link *other = c->links; other != NULL; other = other->next) {
            bool same = other->fd >= 0 && other->greeted &&
                        world->node_of[other->rank] == world->node_of[l->rank];
            n->link = same ? other : n->link;
        }
        n->dial_ns = 0;
        n->turn = world->local_rank_of[l->rank]; /* the same one first: it may be alive */
        dtr__control_forget_tries(n);
    }
    if (l->left || atomic_load(&c->ended)) {
        return;
    }
    if (host_is_silent(l->failure)) {
        c->cut = true;
        if (n->link == NULL) {
            lose_node(world, world->node_of[l->rank], strerror(l->failure));
        }
        return;
    }
    rank_notes *has = &c->notes[l->rank];
    if (has->suspect_ns == 0) {
        has->suspect_ns = now;
        c->n_suspects++;
        n->n_suspects++;
    }
}

/* Forget the closed ones; strangers that say nothing are closed first. */
static void sweep(dtr_world *world, dtr__control *c, int64_t now) {
    for (dtr__link *l = c->links; l != NULL; l = l->next) {
        if (l->fd >= 0 && !l->greeted && now - l->since_ns > STRANGER_NS) {
            dtr__link_close(l, ETIME);
        }
    }
    for (dtr__link **at = &c->links; *at != NULL;) {
        dtr__link *l = *at;
        if (l->fd >= 0) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        c->n_links--;
        link_ended(world, l, now);
        dtr__link_free(l);
    }
}

static void handle_events(dtr_world *world, dtr__control *c) {
    struct epoll_event event[32];
    int n = epoll_wait(c->epoll, event, 32, 0);
    for (int i = 0; i < n; i++) {
        dtr__link *l = event[i].data.ptr;
        if (event[i].data.ptr == c) {
            uint64_t times;
            (void)!read(c->wake, &times, sizeof times);
            continue;
        }
        if (l == NULL) {
            dtr__control_accept(world, c, dtr__now_ns());
            continue;
        }
        if (l->connecting) {
            dtr__link_connected(l);
            if (l->fd >= 0) {
                dtr__control_send_hello(world, l);
            }
        }
        dtr__link_flush(l);
        dtr__link_read(l, take, world);
    }
}

/* ---- suspects ---- */

/* A suspect whose port refuses is dead: at once where nobody else could say more. */
static void judge_suspects(dtr_world *world, dtr__control *c, int64_t now) {
    for (int r = 0; r < world->size && c->n_suspects > 0; r++) {
        const rank_notes *has = &c->notes[r];
        if (has->suspect_ns == 0) {
            continue;
        }
        const dtr__link *call = c->node[world->node_of[r]].call;
        bool waited = dtr__control_members(c, world->node_of[r])->n == 1 ||
                      now - has->suspect_ns > DETAILS_NS;
        if (dtr__rank_failed(world, r) || has->gone || atomic_load(&c->ended)) {
            if (dtr__rank_failed(world, r)) {
                lose(world, r, dtr__rank_failure_status(world, r), dtr__rank_failure(world, r),
                     false);
            }
            clear_suspicion(world, r);
        } else if ((has->refused && waited) ||
                   ((double)(now - has->suspect_ns) * 1e-9 > c->silence_s &&
                    !(dtr__control_is_listening(call) && call->rank == r))) {
            lose_suspect(world, r, now);
            clear_suspicion(world, r);
        }
    }
}

/* ---- rounds ---- */

/* To a link that says nothing, or takes nothing, only the beat goes, and rarely: what a stopped
 * process does not read must not fill its window, which would look like a host that is gone. */
static void beat(const dtr__control *c, int64_t now) {
    for (dtr__link *l = c->links; l != NULL; l = l->next) {
        const bool silent = dtr__control_is_silent(c, l, now);
        if (l->greeted && l->n_out == 0 && !(silent && now % (16 * c->period_ns) > c->period_ns)) {
            dtr__link_send(l, DTR__WIRE_BEAT, NULL, 0);
        }
    }
}

/* A process that was stopped puts off what it would have done by now: nobody has become silent for
 * it, or is dead because he could not be reached. */
static void leave_out_stop(const dtr_world *world, dtr__control *c, int64_t now) {
    const int64_t ns = c->round_ns != 0 ? dtr__hidden_since(c->round_ns) : 0;
    c->round_ns = now;
    if (ns == 0) {
        return;
    }
    for (int r = 0; c->n_suspects > 0 && r < world->size; r++) {
        c->notes[r].suspect_ns += c->notes[r].suspect_ns != 0 ? ns : 0;
    }
    for (int at = 0; at < world->node_count; at++) {
        c->node[at].first_ns += c->node[at].first_ns != 0 ? ns : 0;
    }
    for (dtr__link *l = c->links; l != NULL; l = l->next) {
        l->since_ns += ns;
        l->received_ns += ns;
    }
    c->received_ns += c->received_ns != 0 ? ns : 0;
}

int dtr__control_fd(const dtr_world *world) {
    const dtr__control *c = dtr__control_in_use(world);
    return c != NULL ? c->epoll : -1;
}

void dtr__control_round(dtr_world *world, dtr__control_rank_failed rank_failed) {
    dtr__control *c = dtr__control_in_use(world);
    if (c == NULL) {
        return;
    }
    c->rank_failed = rank_failed;
    atomic_store(&c->serves, true);
    leave_out_stop(world, c, dtr__now_ns());
    handle_events(world, c);
    dtr__control_answer(world, c);
    int64_t now = dtr__now_ns();
    sweep(world, c, now);
    dtr__control_end_rest(c, now);
    read_boards(world, c);
    note_received(world, c);
    dtr__control_send_asks(world, c, now);
    dtr__control_dial_nodes(world, c, now);
    judge_suspects(world, c, now);
    judge_cut(world, c, now);
    dtr__control_propagate_votes(world, c);
    const bool due = now >= c->beat_ns;
    if (due) {
        c->beat_ns = now + c->period_ns;
        dtr__control_propagate_waiting(world, c, now);
    }
    dtr__facts_spread(world, c);
    if (due) {
        beat(c, now);
        dtr__control_send_reports(world, c, now);
    }
}

void dtr__control_rest(dtr_world *world) {
    if (world->control.plane != NULL) {
        atomic_store(&world->control.plane->serves, false);
    }
}

void dtr__control_leave(dtr_world *world) {
    dtr__control *c = dtr__control_in_use(world);
    if (c != NULL) {
        dtr__facts_spread(world, c);
    }
    for (dtr__link *l = c != NULL ? c->links : NULL; l != NULL; l = l->next) {
        if (l->greeted) {
            say_leave(l, atomic_load(&c->ended) ? DTR__LEAVE_WORLD : DTR__LEAVE_RANK);
        }
    }
    if (c != NULL) {
        dtr__control_free_links(c);
        dtr__control_close_sockets(c);
    }
}
