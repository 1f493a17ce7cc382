/* The control plane at work: who talks to whom, and when a rank of another node is dead.
 *
 * The acting rank of a node, the lowest whose watchdog beats, dials one rank of every node with a
 * higher number; whoever has a connection reports all ranks of his node over it. What comes in is
 * put on the rank's own board, which the other ranks of its node read. A connection that ends
 * without LEAVE makes its rank suspect; it is dead if its port refuses another connection. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <dtr/version.h>

#include "rt_control_parts.h"
#include "rt_dump.h"

/* ---- deaths ---- */

static void lose(dtr_world *world, int rank, dtr_status status, const char *text) {
    dtr__control *c = world->control;
    if (!dtr__rank_dead(world, rank) && !atomic_load(&c->ended)) {
        dtr__board_put_death(c->board, rank, status, text);
        c->lost(world, rank, status, text);
    }
}

static void clear_suspicion(dtr__control *c, int rank) {
    c->n_suspects -= c->suspect_ns[rank] != 0;
    c->suspect_ns[rank] = 0;
    c->refused[rank] = false;
}

/* Its node has not said what became of it. */
static void lose_suspect(dtr_world *world, int rank, int64_t now) {
    const offer *o = &world->control->offer[rank];
    dtr__digest d;
    char text[DTR__DEATH_TEXT];
    if (dtr__control_look(world, rank, &d)) {
        snprintf(
            text, sizeof text,
            "rank %d (host %s, pid %u) died or ended without dtr_world_destroy: its connection "
            "has ended; %.1f s before it was reported: %s",
            rank, o->host, o->pid, (double)(now - d.seen_ns) * 1e-9, d.doing);
    } else {
        snprintf(
            text, sizeof text,
            "rank %d (host %s, pid %u) died or ended without dtr_world_destroy: its connection "
            "has ended",
            rank, o->host, o->pid);
    }
    lose(world, rank, DTR_ERR_REMOTE, text);
}

/* The kernel has given up waiting for its host. */
static void lose_node(dtr_world *world, int n, const char *why) {
    dtr__control *c = world->control;
    char text[DTR__DEATH_TEXT];
    for (int r = 0; r < world->size; r++) {
        if (world->node_of[r] == n && !c->gone[r]) {
            snprintf(text, sizeof text,
                     "rank %d (host %s, pid %u) is lost: node %d, host %s, has been silent for "
                     "%g s (%s)",
                     r, c->offer[r].host, c->offer[r].pid, n, c->offer[r].host, c->silence_s, why);
            lose(world, r, DTR_ERR_REMOTE, text);
        }
    }
}

static void send_death(dtr_world *world, dtr__link *l, int rank) {
    dtr__wire_death d = { .rank = rank, .status = (int32_t)dtr__rank_death_status(world, rank) };
    snprintf(d.text, sizeof d.text, "%s", dtr__rank_death(world, rank));
    dtr__link_send(l, DTR__WIRE_DEATH, &d, sizeof d);
}

void dtr__control_tell_death(dtr_world *world, int world_rank) {
    dtr__control *c = dtr__control_in_use(world);
    for (dtr__link *l = c != NULL ? c->links : NULL; l != NULL; l = l->next) {
        if (l->greeted) {
            send_death(world, l, world_rank);
        }
    }
}

void dtr__control_tell_dump(dtr_world *world, const char *cause) {
    dtr__control *c = dtr__control_in_use(world);
    char text[DTR__WIRE_DUMP_TEXT] = "";
    snprintf(text, sizeof text, "%s", cause);
    for (dtr__link *l = c != NULL ? c->links : NULL; l != NULL; l = l->next) {
        if (l->greeted) {
            dtr__link_send(l, DTR__WIRE_DUMP, text, sizeof text);
        }
    }
}

/* What other ranks of this node have heard. */
static void read_boards(dtr_world *world, dtr__control *c) {
    for (int i = 0; i < world->local_size; i++) {
        uint32_t deaths = c->boards[i] != NULL ? dtr__board_deaths(c->boards[i]) : 0;
        for (int r = 0; deaths != c->read[i] && r < world->size; r++) {
            dtr_status status;
            const char *text = dtr__board_death(c->boards[i], r, &status);
            if (text != NULL && world->node_of[r] != world->node) {
                lose(world, r, status, text);
            }
        }
        c->read[i] = deaths;
    }
}

/* ---- messages ---- */

static void send_hello(const dtr_world *world, dtr__link *l) {
    const dtr__control *c = world->control;
    dtr__wire_hello h = { .magic = DTR__WIRE_MAGIC,
                          .key = { c->key[0], c->key[1] },
                          .rank = world->rank,
                          .version = DTR_VERSION };
    dtr__link_send(l, DTR__WIRE_HELLO, &h, sizeof h);
}

static void say_leave(dtr__link *l, dtr__wire_leave how) {
    const uint64_t reason = how;
    dtr__link_send(l, DTR__WIRE_LEAVE, &reason, sizeof reason);
    l->left = true;
}

/* A new connection takes the place of one that has fallen silent. */
static void use_link(dtr__control *c, node *n, dtr__link *l) {
    if (n->link != NULL && n->link != l &&
        l->heard_ns - n->link->heard_ns > dtr__control_silent_ns(c)) {
        say_leave(n->link, DTR__LEAVE_SWITCH);
        dtr__link_close(n->link, 0);
    }
    n->call = n->call == l ? NULL : n->call;
    n->link = l;
    n->met = true;
    c->beat_ns = 0; /* a report at once */
}

static void take_hello(dtr_world *world, dtr__link *l, const void *data, size_t nbytes) {
    dtr__control *c = world->control;
    dtr__wire_hello h;
    if (nbytes != sizeof h || l->greeted) {
        dtr__link_close(l, EPROTO);
        return;
    }
    memcpy(&h, data, sizeof h);
    uint64_t differs =
        (h.magic ^ DTR__WIRE_MAGIC) | (h.key[0] ^ c->key[0]) | (h.key[1] ^ c->key[1]);
    bool known = differs == 0 && h.version == DTR_VERSION && h.rank >= 0 && h.rank < world->size &&
                 world->node_of[h.rank] != world->node && (!l->dialed || h.rank == l->rank);
    if (!known) {
        dtr__link_close(l, EPROTO); /* not one of us */
        return;
    }
    l->rank = h.rank;
    l->greeted = true;
    if (!l->dialed) {
        send_hello(world, l);
    }
    clear_suspicion(c, h.rank);
    memset(c->told, 0, sizeof c->told);
    memset(c->told_ballots, 0, (size_t)world->local_size * DTR__BALLOTS * sizeof *c->told_ballots);
    use_link(c, &c->node[world->node_of[h.rank]], l);
    for (int i = 0; i < world->local_size; i++) {
        if (dtr__rank_dead(world, world->local_world[i])) {
            send_death(world, l, world->local_world[i]);
        }
    }
}

static void take_digest(dtr_world *world, const dtr__link *l, const void *data, size_t nbytes) {
    dtr__digest d;
    if (nbytes != sizeof d) {
        return;
    }
    memcpy(&d, data, sizeof d);
    if (dtr__control_theirs(world, l, d.rank) && d.n_groups <= DTR__DIGEST_GROUPS) {
        d.seen_ns = l->heard_ns;
        d.doing[sizeof d.doing - 1] = '\0';
        dtr__board_put(world->control->board, d.rank, &d);
    }
}

static void take_death(dtr_world *world, const dtr__link *l, const void *data, size_t nbytes) {
    dtr__wire_death d;
    if (nbytes != sizeof d) {
        return;
    }
    memcpy(&d, data, sizeof d);
    if (dtr__control_theirs(world, l, d.rank)) {
        d.text[DTR__DEATH_TEXT - 1] = '\0';
        clear_suspicion(world->control, d.rank);
        lose(world, d.rank, d.status == DTR_ERR_TIMEOUT ? DTR_ERR_TIMEOUT : DTR_ERR_REMOTE, d.text);
    }
}

static void take_leave(dtr__control *c, dtr__link *l, const void *data, size_t nbytes) {
    uint64_t how = 0;
    if (nbytes == sizeof how) {
        memcpy(&how, data, sizeof how);
        l->left = true;
        c->gone[l->rank] |= how != DTR__LEAVE_SWITCH;
        if (how == DTR__LEAVE_WORLD) {
            atomic_store(&c->ended, true);
        }
    }
}

static void take(void *arg, dtr__link *l, dtr__wire_kind kind, const void *data, size_t nbytes) {
    dtr_world *world = arg;
    if (kind == DTR__WIRE_HELLO) {
        take_hello(world, l, data, nbytes);
    } else if (kind == DTR__WIRE_DIGEST) {
        take_digest(world, l, data, nbytes);
    } else if (kind == DTR__WIRE_DEATH) {
        take_death(world, l, data, nbytes);
    } else if (kind == DTR__WIRE_DUMP && nbytes == DTR__WIRE_DUMP_TEXT) {
        dtr__dump_far(world, data);
    } else if (kind == DTR__WIRE_VERDICT) {
        dtr__control_take_verdict(world, l, data, nbytes);
    } else if (kind == DTR__WIRE_BALLOT) {
        dtr__control_take_ballot(world, l, data, nbytes);
    } else if (kind == DTR__WIRE_LEAVE) {
        take_leave(world->control, l, data, nbytes);
    }
}

/* ---- connections ---- */

static bool host_is_silent(int code) {
    return code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH || code == EHOSTDOWN ||
           code == ENETDOWN;
}

/* Another rank, or another address of this one, next time. */
static void dial_failed(dtr_world *world, const dtr__link *l, int code, int64_t now) {
    dtr__control *c = world->control;
    node *n = &c->node[world->node_of[l->rank]];
    snprintf(n->why, sizeof n->why, "%.60s", code != 0 ? strerror(code) : "refused by a stranger");
    n->refuses |= code == ECONNREFUSED || code == ECONNRESET;
    n->call = NULL;
    n->dial_ns = now + (c->suspect_ns[l->rank] != 0 ? 0 : 200 * MS);
    n->address++;
}

static void link_ended(dtr_world *world, dtr__link *l, int64_t now) {
    dtr__control *c = world->control;
    if (l->rank < 0) {
        return; /* a stranger */
    }
    node *n = &c->node[world->node_of[l->rank]];
    if (!l->greeted) {
        if (n->call == l) {
            dial_failed(world, l, l->failure, now);
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
        n->address = 0;
        n->refuses = false;
    }
    if (l->left || atomic_load(&c->ended)) {
        return;
    }
    if (host_is_silent(l->failure)) {
        if (n->link == NULL) {
            lose_node(world, world->node_of[l->rank], strerror(l->failure));
        }
    } else if (c->suspect_ns[l->rank] == 0) {
        c->suspect_ns[l->rank] = now;
        c->n_suspects++;
    }
}

static dtr__link *add_link(dtr__control *c, dtr__link *l) {
    if (l != NULL) {
        l->next = c->links;
        c->links = l;
        c->n_links++;
    }
    return l;
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

/* Too many are closed at once, and without descriptors no more are taken: what waits would wake the
 * thread for ever. */
static void accept_all(const dtr_world *world, dtr__control *c) {
    int strangers = 0;
    for (const dtr__link *l = c->links; l != NULL; l = l->next) {
        strangers += l->fd >= 0 && !l->greeted && !l->dialed;
    }
    for (;;) {
        dtr__link *l = add_link(c, dtr__link_accept(c->listener, c->epoll, c->silence_s));
        if (l == NULL) {
            break;
        }
        if (strangers++ >= STRANGERS_MOST + world->node_count || c->n_links > LINKS_MOST) {
            dtr__link_close(l, EBUSY);
        }
    }
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        (void)epoll_ctl(c->epoll, EPOLL_CTL_DEL, c->listener, NULL);
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
            accept_all(world, c);
            continue;
        }
        if (l->connecting) {
            dtr__link_connected(l);
            if (l->fd >= 0) {
                send_hello(world, l);
            }
        }
        dtr__link_flush(l);
        dtr__link_read(l, take, world);
    }
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

/* Loopback leads to ranks of the same host and network namespace only. */
static bool address_of(const dtr_world *world, const offer *to, int i, struct in6_addr *address) {
    bool here = to->machine == world->control->offer[world->rank].machine;
    if (here && i == 0) {
        *address = dtr__link_ipv4(htonl(INADDR_LOOPBACK));
        return true;
    }
    i -= here;
    if (i >= to->n_addresses || i >= ADDRESSES) {
        return false;
    }
    *address = to->address[i];
    return true;
}

/* World rank of a local rank of another node, -1: none. */
static int rank_at(const dtr_world *world, int n, int local_rank) {
    for (int r = world->control->node[n].lowest; r < world->size; r++) {
        if (world->node_of[r] == n && world->local_rank_of[r] == local_rank) {
            return r;
        }
    }
    return -1;
}

static void dial(dtr_world *world, dtr__control *c, int at, int64_t now) {
    node *n = &c->node[at];
    struct in6_addr address;
    int rank = rank_at(world, at, n->turn);
    bool worth = rank >= 0 && !c->gone[rank] && !dtr__rank_dead(world, rank) && !c->refused[rank];
    if (!worth || !address_of(world, &c->offer[rank], n->address, &address)) {
        if (rank >= 0) { /* one of its addresses may be that of another host */
            c->refused[rank] |= worth && n->refuses;
        }
        n->address = 0;
        n->refuses = false;
        n->turn = (n->turn + 1) % n->n_ranks;
        if (n->turn == 0) { /* all have been tried */
            n->dial_ns = now + 500 * MS;
            for (int r = n->lowest; r < world->size; r++) {
                c->refused[r] &= world->node_of[r] != at || c->suspect_ns[r] != 0;
            }
        }
        return;
    }
    int failure = 0;
    n->call = add_link(
        c, dtr__link_dial(&address, c->offer[rank].port, c->epoll, c->silence_s, &failure));
    if (n->call != NULL) {
        n->call->rank = rank;
    } else {
        const dtr__link failed = { .rank = rank };
        dial_failed(world, &failed, failure, now);
    }
}

static bool has_suspect(const dtr_world *world, const dtr__control *c, int at) {
    for (int r = c->node[at].lowest; c->n_suspects > 0 && r < world->size; r++) {
        if (world->node_of[r] == at && c->suspect_ns[r] != 0 && !c->refused[r]) {
            return true;
        }
    }
    return false;
}

static void warn_of_unmet(dtr_world *world, node *n, int at) {
    const offer *o = &world->control->offer[n->lowest];
    n->warned = true;
    DTR_WARN(world,
             "node %d (host %s) cannot be reached over TCP (%s): what its ranks do and that they "
             "have died is not seen from here. Let ranks connect to each other's ports, or name "
             "the network in DTR_CONTROL_INTERFACE",
             at, o->host, n->why[0] != '\0' ? n->why : "no address");
}

static void dial_nodes(dtr_world *world, dtr__control *c, int64_t now) {
    bool acting = is_acting(world, c, now);
    for (int at = 0; at < world->node_count && !atomic_load(&c->ended); at++) {
        node *n = &c->node[at];
        bool silent = n->link == NULL || now - n->link->heard_ns > dtr__control_silent_ns(c);
        bool mine = (at > world->node && acting) || has_suspect(world, c, at);
        if (at == world->node || !silent || !mine || n->call != NULL || now < n->dial_ns) {
            continue;
        }
        n->first_ns = n->first_ns != 0 ? n->first_ns : now;
        if (n->link != NULL && n->turn == world->local_rank_of[n->link->rank]) {
            n->turn = (n->turn + 1) % n->n_ranks;
        }
        if (n->link == NULL || n->n_ranks > 1) {
            dial(world, c, at, now);
        }
        if (!n->met && !n->warned && now - n->first_ns > NEVER_MET_NS) {
            warn_of_unmet(world, n, at);
        }
    }
}

/* A suspect whose port refuses is dead: at once where nobody else could say more. */
static void judge_suspects(dtr_world *world, dtr__control *c, int64_t now) {
    for (int r = 0; r < world->size && c->n_suspects > 0; r++) {
        if (c->suspect_ns[r] == 0) {
            continue;
        }
        const node *n = &c->node[world->node_of[r]];
        bool waited = n->n_ranks == 1 || now - c->suspect_ns[r] > DETAILS_NS;
        if (dtr__rank_dead(world, r) || c->gone[r] || atomic_load(&c->ended)) {
            clear_suspicion(c, r);
        } else if ((c->refused[r] && waited) ||
                   (double)(now - c->suspect_ns[r]) * 1e-9 > c->silence_s) {
            lose_suspect(world, r, now);
            clear_suspicion(c, r);
        }
    }
}

/* ---- rounds ---- */

static dtr__digest *make_reports(const dtr_world *world, size_t *n) {
    dtr__digest *d = calloc((size_t)world->local_size, sizeof *d);
    *n = 0;
    for (int i = 0; d != NULL && i < world->local_size; i++) {
        int rank = world->local_world[i];
        if (!dtr__rank_dead(world, rank)) {
            *n += dtr__digest_make(world, rank, &d[*n]);
        }
    }
    return d;
}

/* To a link that says nothing, or takes nothing, only the beat goes, and rarely: what a stopped
 * process does not read must not fill its window, which would look like a host that is gone. */
static void report(dtr_world *world, dtr__control *c, int64_t now) {
    size_t n = 0;
    int i = 0;
    const int from = c->turn;
    dtr__digest *d = c->links != NULL ? make_reports(world, &n) : NULL;
    for (dtr__link *l = c->links; l != NULL; l = l->next) {
        bool silent = now - l->heard_ns > dtr__control_silent_ns(c);
        if (!l->greeted || l->n_out > 0 || (silent && now % (16 * c->period_ns) > c->period_ns)) {
            continue;
        }
        dtr__link_send(l, DTR__WIRE_BEAT, NULL, 0);
        i++;
        if (silent || i <= from || i > from + REPORTS_PER_ROUND) {
            continue;
        }
        for (size_t k = 0; k < n; k++) {
            dtr__link_send(l, DTR__WIRE_DIGEST, &d[k], sizeof d[k]);
        }
    }
    c->turn = i > from + REPORTS_PER_ROUND ? from + REPORTS_PER_ROUND : 0;
    free(d);
}

int dtr__control_fd(const dtr_world *world) {
    const dtr__control *c = dtr__control_in_use(world);
    return c != NULL ? c->epoll : -1;
}

void dtr__control_round(dtr_world *world, dtr__control_lost lost) {
    dtr__control *c = dtr__control_in_use(world);
    if (c == NULL) {
        return;
    }
    c->lost = lost;
    atomic_store(&c->serves, true);
    handle_events(world, c);
    int64_t now = dtr__now_ns();
    sweep(world, c, now);
    read_boards(world, c);
    dial_nodes(world, c, now);
    judge_suspects(world, c, now);
    dtr__control_tell_verdicts(world, c);
    dtr__control_tell_ballots(world, c);
    if (now >= c->beat_ns) {
        c->beat_ns = now + c->period_ns;
        dtr__control_take_early(world, c, now);
        report(world, c, now);
    }
}

void dtr__control_rest(dtr_world *world) {
    if (world->control != NULL) {
        atomic_store(&world->control->serves, false);
    }
}

void dtr__control_leave(dtr_world *world) {
    dtr__control *c = dtr__control_in_use(world);
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
