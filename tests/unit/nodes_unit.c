/* What the control plane calls is here: sockets, the clock, and what ranks do. */
#include "nodes_unit.h"
#include "directory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "control/vote_internal.h"
#include "unit.h"

pretended_net net;

/* ---- what the library calls ---- */

int64_t our_now_ns(void) __asm__("__wrap_dtr__now_ns");
int64_t our_hidden_since(int64_t ns) __asm__("__wrap_dtr__hidden_since");
int our_epoll_wait(int fd, struct epoll_event *event, int most,
                   int limit_ms) __asm__("__wrap_epoll_wait");
dtr__link *our_dial(const struct in6_addr *address, uint16_t port, int epoll, double silence_s,
                    int *failure) __asm__("__wrap_dtr__link_dial");
void our_connected(dtr__link *l) __asm__("__wrap_dtr__link_connected");
void our_send(dtr__link *l, dtr__wire_kind kind, const void *data,
              size_t nbytes) __asm__("__wrap_dtr__link_send");
void our_flush(dtr__link *l) __asm__("__wrap_dtr__link_flush");
void our_read(dtr__link *l, dtr__link_take take, void *arg) __asm__("__wrap_dtr__link_read");
void our_close(dtr__link *l, int failure) __asm__("__wrap_dtr__link_close");
bool our_make(const dtr_world *world, int rank,
              dtr__rank_report *d) __asm__("__wrap_dtr__rank_report_make");

int64_t our_now_ns(void) {
    return net.now_ns;
}

int64_t our_hidden_since(int64_t ns) {
    (void)ns;
    return 0;
}

static int64_t cut_ns(const end *e) {
    return net.node[e->node].cut_ns != 0 ? net.node[e->node].cut_ns : net.node[e->peer].cut_ns;
}

static bool is_cut(const end *e) {
    return cut_ns(e) != 0;
}

static bool is_given_up(const end *e) {
    return is_cut(e) && net.now_ns - cut_ns(e) > (int64_t)(net.at->plane.silence_s * 1e9);
}

static bool has_come(const end *e) {
    return e->first != NULL && e->first->round < net.round;
}

static bool is_connected(const end *e) {
    return net.now_ns - e->link.since_ns >= net.connect_ns;
}

/* Whether there is something to do on it. */
static bool is_ready(const end *e) {
    if (is_cut(e)) {
        return is_given_up(e);
    }
    return e->link.connecting ? is_connected(e) : has_come(e) || e->other == NULL;
}

int our_epoll_wait(int fd, struct epoll_event *event, int most, int limit_ms) {
    (void)fd, (void)limit_ms;
    int n = 0;
    for (dtr__link *l = net.at->plane.links; l != NULL && n < most; l = l->next) {
        if (l->fd >= 0 && is_ready((const end *)l)) {
            event[n++].data.ptr = l;
        }
    }
    return n;
}

static end *make_end(int at, int peer, const struct in6_addr *address) {
    end *e = calloc(1, sizeof *e);
    ck_assert_ptr_nonnull(e);
    e->node = at;
    e->peer = peer;
    e->link.fd = 1;
    e->link.rank = e->link.claimed = -1;
    e->link.address = *address;
    e->link.since_ns = e->link.received_ns = net.now_ns;
    return e;
}

/* A port is the number of a node from 1 on. */
dtr__link *our_dial(const struct in6_addr *address, uint16_t port, int epoll, double silence_s,
                    int *failure) {
    (void)epoll, (void)silence_s;
    pretended *to = &net.node[port - 1];
    if (to->dead) {
        *failure = ECONNREFUSED;
        return NULL;
    }
    end *mine = make_end(net.at->world.rank, port - 1, address);
    end *theirs = make_end(port - 1, net.at->world.rank, address);
    mine->other = theirs;
    theirs->other = mine;
    mine->link.dialed = mine->link.connecting = true;
    (void)dtr__control_add_link(&to->plane, &theirs->link);
    return &mine->link;
}

void our_connected(dtr__link *l) {
    if (is_given_up((const end *)l)) {
        our_close(l, ETIMEDOUT);
    } else {
        l->connecting = false;
    }
}

void our_send(dtr__link *l, dtr__wire_kind kind, const void *data, size_t nbytes) {
    end *to = ((end *)l)->other;
    net.at->n_sent++;
    net.at->n_votes += kind == DTR__WIRE_VOTE;
    if (l->fd < 0 || to == NULL || is_cut(to)) {
        return;
    }
    message *m = malloc(sizeof *m + nbytes);
    ck_assert_ptr_nonnull(m);
    *m = (message){ .round = net.round, .kind = kind, .nbytes = nbytes };
    if (nbytes > 0) {
        memcpy(m->data, data, nbytes);
    }
    *(to->first != NULL ? &to->last->next : &to->first) = m;
    to->last = m;
}

void our_flush(dtr__link *l) {
    (void)l;
}

void our_read(dtr__link *l, dtr__link_take take, void *arg) {
    end *e = (end *)l;
    while (l->fd >= 0 && !l->connecting && !is_cut(e) && has_come(e)) {
        message *m = e->first;
        e->first = m->next;
        l->received_ns = net.now_ns;
        take(arg, l, m->kind, m->data, m->nbytes);
        free(m);
    }
    if (l->fd >= 0 && is_given_up(e)) {
        our_close(l, ETIMEDOUT);
    } else if (l->fd >= 0 && e->first == NULL && e->other == NULL) {
        our_close(l, 0);
    }
}

void our_close(dtr__link *l, int failure) {
    end *e = (end *)l;
    if (l->fd < 0) {
        return;
    }
    l->fd = -1;
    l->failure = failure;
    if (e->other != NULL) {
        e->other->other = NULL;
    }
    while (e->first != NULL) {
        message *m = e->first;
        e->first = m->next;
        free(m);
    }
}

bool our_make(const dtr_world *world, int rank, dtr__rank_report *d) {
    memset(d, 0, sizeof *d);
    d->rank = rank;
    d->n_groups = 1;
    d->group[0].uid = NODES_UID;
    d->group[0].seq = NODES_SEQ + (uint64_t)rank;
    return rank == world->rank && net.reports; /* each touches memory of its reader */
}

/* ---- nodes ---- */

static void failed(dtr_world *world, int rank, dtr_status s, const char *text) {
    pretended *p = &net.node[world->rank];
    (void)s, (void)text;
    ck_assert_msg(rank != world->rank, "a rank is told of its own end");
    p->n_lost += !p->lost[rank];
    p->lost[rank] = true;
}

static void make_votes(pretended *p) {
    const int words = (net.n + 63) / 64;
    const size_t sum_words = sizeof(dtr__vote) / sizeof(uint64_t) + 2 * (size_t)words;
    dtr__votes *vs = calloc(1, sizeof *vs + sizeof vs->table[0]);
    ck_assert_ptr_nonnull(vs);
    vs->voter_words = words;
    vs->sum_words = sum_words;
    vs->steps = true;
    vs->scratch = calloc((DTR__VOTE_ENTRIES + 2 * (DTR__VOTES + 1)) * sum_words, sizeof(uint64_t));
    vs->table[0] =
        calloc(1, sizeof(table) + DTR__VOTE_ENTRIES * (1 + sum_words) * sizeof(uint64_t));
    ck_assert(vs->scratch != NULL && vs->table[0] != NULL);
    pthread_mutex_init(&vs->lock, NULL);
    for (int k = 0; k < DTR__VOTE_ENTRIES; k++) {
        vs->received[k] = (sum *)(vs->scratch + (size_t)k * sum_words);
    }
    atomic_init(&vs->patience_ns, INT64_MAX / 8);
    p->world.control.votes = vs;
}

static void make_node(int i) {
    pretended *p = &net.node[i];
    dtr__control *c = &p->plane;
    const size_t n = (size_t)net.n;
    p->local_world[0] = i;
    p->lost = calloc(n, sizeof *p->lost);
    p->world =
        (dtr_world){ .size = net.n, .rank = i, .local_size = 1, .node_count = net.n, .node = i };
    p->world.node_of = net.node_of;
    p->world.local_rank_of = net.local_rank_of;
    p->world.local_world = p->local_world;
    p->world.control.plane = c;
    c->node = calloc(n, sizeof *c->node);
    c->directory = net.directory;
    c->notes = calloc(n, sizeof *c->notes);
    c->sent = calloc(n, sizeof *c->sent);
    pthread_mutex_init(&c->lock, NULL);
    c->read = p->read;
    c->asked = p->read + 1;
    c->sent_votes = p->sent_votes;
    c->boards = p->boards;
    c->period_ns = 500 * MS;
    c->silence_s = 10;
    c->epoll = 1;
    c->wake = -1;
    /* Mapped, so that it takes the memory that is touched. */
    c->board = mmap(NULL, dtr__board_bytes(net.n, net.n), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert(p->lost && c->node && c->notes && c->sent && c->board != MAP_FAILED);
    dtr__board_init(c->board, net.n, net.n);
    make_votes(p);
}

static void free_node(pretended *p) {
    dtr__control *c = &p->plane;
    dtr__votes *vs = p->world.control.votes;
    while (c->links != NULL) {
        dtr__link *next = c->links->next;
        our_close(c->links, 0);
        free(c->links);
        c->links = next;
    }
    dtr__facts_free(c);
    pthread_mutex_destroy(&vs->lock);
    free(vs->scratch);
    free(vs->table[0]);
    free(vs);
    free(p->lost);
    free(c->node);
    free(c->notes);
    free(c->sent);
    pthread_mutex_destroy(&c->lock);
    munmap(c->board, dtr__board_bytes(net.n, net.n));
    free(c->question);
}

/* Every living node, once; the clock moves on. */
void rounds(int n, int64_t ns) {
    for (int k = 0; k < n; k++) {
        net.round++;
        net.now_ns += ns;
        for (int i = 0; i < net.n; i++) {
            net.at = &net.node[i];
            if (!net.at->dead) {
                dtr__control_round(&net.at->world, failed);
            }
        }
    }
}

void begin(int n) {
    memset(&net, 0, sizeof net);
    net.n = n;
    net.now_ns = 1000000 * MS;
    net.node = calloc((size_t)n, sizeof *net.node);
    net.node_of = calloc((size_t)n, sizeof *net.node_of);
    net.local_rank_of = calloc((size_t)n, sizeof *net.local_rank_of);
    net.all = calloc((size_t)n, sizeof *net.all);
    introduction *said = calloc((size_t)n, sizeof *said);
    ck_assert(net.node && net.node_of && net.local_rank_of && net.all && said);
    for (int i = 0; i < n; i++) {
        net.node_of[i] = net.all[i] = i;
        said[i].offer = (offer){ .takes_part = true, .port = { (uint16_t)(i + 1) } };
        said[i].place.n_addresses = 1;
        said[i].place.address[0] = dtr__socket_ipv4(htonl(INADDR_LOOPBACK));
    }
    const dtr_world world = { .size = n, .node_count = n, .node_of = net.node_of };
    net.directory = directory_new(&world, said);
    free(said);
    for (int i = 0; i < n; i++) {
        make_node(i);
    }
    rounds(8, MS); /* who has dialed, and proved who it is */
}

void finish(void) {
    for (int i = 0; i < net.n; i++) {
        free_node(&net.node[i]);
    }
    free(net.node);
    free(net.node_of);
    free(net.local_rank_of);
    free(net.all);
    directory_free(&net.directory);
}

/* Processes end: their connections are closed and their ports refuse. */
void kill_node(int i) {
    pretended *p = &net.node[i];
    p->dead = true;
    for (dtr__link *l = p->plane.links; l != NULL; l = l->next) {
        our_close(l, 0);
    }
}

void close_links(int i) {
    for (dtr__link *l = net.node[i].plane.links; l != NULL; l = l->next) {
        our_close(l, ECONNRESET);
    }
}

void cut_link(int a, int b) {
    for (dtr__link *l = net.node[a].plane.links; l != NULL; l = l->next) {
        if (l->rank == b) {
            our_close(l, ECONNRESET);
        }
    }
}
