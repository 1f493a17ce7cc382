/* Dialing: the acting rank of a node, the lowest whose watchdog beats, dials one rank of every
 * neighbour (ring.h) with a higher number, and of every node that stands in for a neighbour that is
 * dead. A rank that has lost a connection dials the other one again, which shows whether that rank
 * is still there. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "control_internal.h"

enum { ALL_TRIED = 1000 }; /* for node.address */

/* ---- what comes of it ---- */

/* This process's own want, which says nothing of the other one. */
static bool is_own_want(int code) {
    return code == EMFILE || code == ENFILE || code == ENOMEM || code == ENOBUFS;
}

/* The kernel of its host has taken the connection: a process has the port open. */
bool dtr__control_is_listening(const dtr__link *l) {
    return l != NULL && l->dialed && !l->connecting;
}

/* Another rank, or another address of this one, next time. Nobody listens there any more only where
 * the kernel of the host says so to the attempt to connect, at the address at which the rank has
 * been reached before; one of its other addresses may be that of another host. */
void dtr__control_dial_failed(dtr_world *world, const dtr__link *l, int code, int64_t now) {
    dtr__control *c = world->control.plane;
    node *n = &c->node[world->node_of[l->rank]];
    rank_notes *has = &c->notes[l->rank];
    const bool known = !IN6_IS_ADDR_UNSPECIFIED(&has->known);
    const bool refused = code == ECONNREFUSED && l->connecting;
    snprintf(n->why, sizeof n->why, "%.60s", code != 0 ? strerror(code) : "refused by a stranger");
    n->call = NULL;
    n->dial_ns = now + (has->suspect_ns != 0 ? 0 : 200 * MS);
    if (is_own_want(code)) {
        n->dial_ns = now + 200 * MS;
        has->suspect_ns = has->suspect_ns != 0 ? now : 0;
        return;
    }
    if (dtr__control_is_listening(l) && code == ETIME && has->suspect_ns != 0) {
        has->suspect_ns = now; /* it is there: stopped, or without descriptors */
    }
    n->n_tried++;
    n->n_refused += refused;
    n->refuses = known ? n->refuses || (refused && n->address == 0) : n->n_refused == n->n_tried;
    n->address = known && n->refuses ? ALL_TRIED : n->address + 1;
}

/* The next one is dialed from its first address on. */
void dtr__control_forget_tries(node *n) {
    n->address = n->n_tried = n->n_refused = 0;
    n->refuses = false;
}

/* ---- dialing ---- */

/* The lowest local rank whose watchdog beats. */
static bool is_acting(const dtr_world *world, const dtr__control *c, int64_t now) {
    for (int i = 0; i < world->local_rank && !c->alone; i++) {
        if (dtr__peer_beats(world, i, now - 2 * dtr__control_silent_ns(c))) {
            return false;
        }
    }
    return true;
}

/* The first is the one that has worked. */
static bool address_of(const dtr_world *world, int rank, int i, struct in6_addr *address,
                       uint16_t *port) {
    const offer *to = dtr__control_offer(world, rank);
    const location *at = dtr__control_place(world, rank);
    const rank_notes *has = &world->control.plane->notes[rank];
    const bool known = !IN6_IS_ADDR_UNSPECIFIED(&has->known);
    const bool here = dtr__control_same_machine(world, rank);
    *port = to->port[0];
    if (known && i == 0) {
        *address = has->known;
        for (int k = 0; k < at->n_addresses && k < ADDRESSES; k++) {
            *port = memcmp(address, &at->address[k], sizeof *address) == 0 ? to->port[k] : *port;
        }
        return true;
    }
    i -= known;
    if (here && i == 0) {
        *address = dtr__socket_ipv4(htonl(INADDR_LOOPBACK));
        return true;
    }
    i -= here;
    if (i >= at->n_addresses || i >= ADDRESSES) {
        return false;
    }
    *address = at->address[i];
    *port = to->port[i];
    return true;
}

/* World rank of a local rank of another node, -1: none. */
static int rank_at(const dtr_world *world, int n, int local_rank) {
    for (int r = dtr__control_members(world->control.plane, n)->lowest; r < world->size; r++) {
        if (world->node_of[r] == n && world->local_rank_of[r] == local_rank) {
            return r;
        }
    }
    return -1;
}

static void dial(dtr_world *world, dtr__control *c, int at, int64_t now) {
    node *n = &c->node[at];
    struct in6_addr address;
    uint16_t port = 0;
    int rank = rank_at(world, at, n->turn);
    rank_notes *has = rank >= 0 ? &c->notes[rank] : NULL;
    bool worth = has != NULL && !has->gone && !dtr__rank_failed(world, rank) && !has->refused;
    if (!worth || !address_of(world, rank, n->address, &address, &port)) {
        if (has != NULL) {
            has->refused |= worth && n->refuses;
        }
        dtr__control_forget_tries(n);
        n->turn = (n->turn + 1) % dtr__control_members(c, at)->n;
        if (n->turn == 0) { /* all have been tried */
            n->dial_ns = now + 500 * MS;
            for (int r = dtr__control_members(c, at)->lowest; r < world->size; r++) {
                c->notes[r].refused &= world->node_of[r] != at || c->notes[r].suspect_ns != 0;
            }
        }
        return;
    }
    int failure = 0;
    n->call =
        dtr__control_add_link(c, dtr__link_dial(&address, port, c->epoll, c->silence_s, &failure));
    if (n->call != NULL) {
        n->call->rank = rank;
    } else {
        const dtr__link failed = { .rank = rank, .connecting = true };
        dtr__control_dial_failed(world, &failed, failure, now);
    }
}

static bool has_suspect(const dtr_world *world, const dtr__control *c, int at) {
    for (int r = dtr__control_members(c, at)->lowest; c->node[at].n_suspects > 0 && r < world->size;
         r++) {
        if (world->node_of[r] == at && c->notes[r].suspect_ns != 0 && !c->notes[r].refused) {
            return true;
        }
    }
    return false;
}

static void warn_of_unmet(dtr_world *world, node *n, int at) {
    const location *o =
        dtr__control_place(world, dtr__control_members(world->control.plane, at)->lowest);
    n->warned = true;
    DTR_WARN(world,
             "node %d (host %s) cannot be reached over TCP (%s): what its ranks do and that they "
             "have died is not seen from here. Let ranks connect to each other's ports, or name "
             "the network in DTR_CONTROL_INTERFACE",
             at, o->host, n->why[0] != '\0' ? n->why : "no address");
}

static void dial_node(dtr_world *world, dtr__control *c, int at, bool mine, int64_t now) {
    node *n = &c->node[at];
    const bool silent = n->link == NULL || dtr__control_is_silent(c, n->link, now);
    mine = mine || has_suspect(world, c, at);
    if (!silent || !mine || n->call != NULL || now < n->dial_ns) {
        return;
    }
    n->first_ns = n->first_ns != 0 ? n->first_ns : now;
    if (n->link != NULL && n->turn == world->local_rank_of[n->link->rank]) {
        n->turn = (n->turn + 1) % dtr__control_members(c, at)->n;
    }
    if (n->link == NULL || dtr__control_members(c, at)->n > 1) {
        dial(world, c, at, now);
    }
    if (!n->met && !n->warned && dtr__ring_is_near(world->node_count, world->node, at) &&
        now - n->first_ns > NEVER_MET_NS) {
        warn_of_unmet(world, n, at);
    }
}

/* ---- whom ---- */

static bool is_out(const void *arg, int at) {
    const dtr__control *c = arg;
    return c->node[at].n_out >= dtr__control_members(c, at)->n;
}

typedef struct beyond {
    const dtr__control *c;
    int n, me;
} beyond;

static bool is_out_or_near(const void *arg, int at) {
    const beyond *b = arg;
    return is_out(b->c, at) || dtr__ring_is_near(b->n, b->me, at);
}

/* There is a connection that says something, or none that ought to. */
static bool hears(const dtr__control *c, int64_t now) {
    bool linked = c->cut;
    for (const dtr__link *l = c->links; l != NULL; l = l->next) {
        linked = linked || l->greeted;
    }
    return !linked || now - c->received_ns <= dtr__control_silent_ns(c);
}

/* All living neighbours; where none of them says anything any more, those beyond them too: either
 * they answer, or it is this node that is cut off (control_talk.c). */
static void choose_near(const dtr_world *world, dtr__control *c, int64_t now) {
    const int n = world->node_count, me = world->node;
    const bool deaf = !hears(c, now);
    const int chosen_for = 2 * c->n_out + deaf + 1;
    if (chosen_for == c->near_for) {
        return;
    }
    for (int i = 0; i < c->n_near; i++) {
        c->node[c->near[i]].near = false;
    }
    const beyond b = { c, n, me };
    int *more = c->near + dtr__ring_neighbours(n, me, is_out, c, c->near);
    int *end = more + (deaf ? dtr__ring_neighbours(n, me, is_out_or_near, &b, more) : 0);
    c->n_near = (int)(end - c->near);
    c->near_for = chosen_for;
    for (int i = 0; i < c->n_near; i++) {
        c->node[c->near[i]].near = true;
    }
}

void dtr__control_dial_nodes(dtr_world *world, dtr__control *c, int64_t now) {
    const bool acting = is_acting(world, c, now);
    choose_near(world, c, now);
    for (int i = 0; i < c->n_near && !atomic_load(&c->ended); i++) {
        const int at = c->near[i];
        const bool near = dtr__ring_is_near(world->node_count, world->node, at);
        dial_node(world, c, at, acting && (at > world->node || !near), now);
    }
    for (int at = 0; at < world->node_count && c->n_suspects > 0 && !atomic_load(&c->ended); at++) {
        if (at != world->node && !c->node[at].near) {
            dial_node(world, c, at, false, now);
        }
    }
}
