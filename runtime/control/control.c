/* The control plane of a world: its sockets, its boards and what everybody must know of everybody,
 * made at world creation; and what any thread may ask it. */
#include "control/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/exchange.h"
#include "base/private_fd.h"
#include "control_internal.h"
#include "memory/arena.h"

/* ---- opening ---- */

static bool listen_on(dtr__control *c, const char *interface, introduction *mine, char *why,
                      size_t cap) {
    const bool opened = dtr__ports_open(&c->ports, interface, why, cap);
    memcpy(mine->place.address, c->ports.address, sizeof mine->place.address);
    memcpy(mine->offer.port, c->ports.port, sizeof mine->offer.port);
    mine->place.any = c->ports.any;
    mine->place.n_addresses = (uint16_t)c->ports.n;
    return opened;
}

/* Local: the sockets and what this rank offers. Without sockets it takes no part, and `why` says
 * so. */
static void prepare(dtr_world *world, dtr__control *c, introduction *mine, char *why, size_t cap) {
    const char *interface = dtr__opt_text(&world->options, DTR__OPT_CONTROL_INTERFACE);
    memset(mine, 0, sizeof *mine); /* places are compared as they are */
    mine->offer.pid = (uint32_t)getpid();
    mine->offer.hmac = dtr__proof_has_hmac();
    mine->place.machine = dtr__own_machine(world->host);
    memcpy(mine->place.host, world->host, strnlen(world->host, sizeof mine->place.host - 1));
    c->period_ns = (int64_t)dtr__opt_number(&world->options, DTR__OPT_CONTROL_MS) * MS;
    c->silence_s = dtr__opt_seconds(&world->options, DTR__OPT_NODE_SILENCE);
    if (c->period_ns == 0) {
        return;
    }
    struct epoll_event e = { .events = EPOLLIN }, woken = { .events = EPOLLIN, .data.ptr = c };
    if (!listen_on(c, interface, mine, why, cap)) {
        return;
    }
    dtr__private_fd_begin();
    c->epoll = dtr__private_fd_end(epoll_create1(EPOLL_CLOEXEC));
    c->wake = c->epoll >= 0 ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    bool fine = c->wake >= 0 && epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->wake, &woken) == 0;
    for (int i = 0; i < c->ports.n_listeners && fine; i++) {
        fine = epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->ports.listener[i], &e) == 0;
    }
    if (!fine) {
        snprintf(why, cap, "its descriptors cannot be made: %s", strerror(errno));
    } else if (!dtr__proof_random(c->key, sizeof c->key)) {
        snprintf(why, cap, "the kernel has no random numbers: %s", strerror(errno));
    } else {
        mine->offer.takes_part = true;
    }
}

void dtr__control_close_sockets(dtr__control *c) {
    dtr__ports_close(&c->ports);
    if (c->epoll >= 0) {
        dtr__private_fd_close(c->epoll);
    }
    c->epoll = -1;
}

static bool make_tables(const dtr_world *world, dtr__control *c) {
    size_t n = (size_t)world->size, local = (size_t)world->local_size;
    c->offer = calloc(n, sizeof *c->offer);
    c->received = calloc(n, sizeof *c->received);
    c->boards = calloc(local, sizeof *c->boards);
    c->read = calloc(2 * local, sizeof *c->read);
    c->asked = c->read != NULL ? c->read + local : NULL;
    c->sent = calloc(local * dtr__board_n_wants(world->size), sizeof *c->sent);
    c->sent_votes = calloc(local * DTR__VOTE_ENTRIES, sizeof *c->sent_votes);
    c->node = calloc((size_t)world->node_count, sizeof *c->node);
    c->notes = calloc(n, sizeof *c->notes);
    if (c->offer == NULL || c->received == NULL || c->boards == NULL || c->read == NULL ||
        c->sent == NULL || c->sent_votes == NULL || c->node == NULL || c->notes == NULL) {
        return false;
    }
    for (int r = world->size - 1; r >= 0; r--) {
        c->node[world->node_of[r]].n_ranks++;
        c->node[world->node_of[r]].lowest = r;
    }
    return true;
}

/* Collective over the node: where all have a board that the others can see, they share them. */
static dtr_status share_boards(dtr_world *world, dtr__control *c) {
    size_t nbytes = dtr__board_bytes(world->size, world->node_count);
    dtr_status s = DTR_OK;
    void *const *each = dtr__arena_share(world, nbytes, &s);
    c->alone = each == NULL;
    c->board = each == NULL ? calloc(1, nbytes) : each[world->local_rank];
    if (c->board != NULL) {
        dtr__board_init(c->board, world->size, world->node_count);
    }
    for (int i = 0; i < world->local_size && each != NULL; i++) {
        c->boards[i] = i != world->local_rank ? each[i] : NULL;
    }
    return s;
}

static bool is_same_place(const location *a, const location *b) {
    return a->machine == b->machine && a->n_addresses == b->n_addresses && a->any == b->any &&
           memcmp(a->address, b->address, sizeof a->address) == 0 &&
           strncmp(a->host, b->host, sizeof a->host) == 0;
}

/* Each place once, in the memory in which they came. */
static void keep_offers(const dtr_world *world, dtr__control *c) {
    int n = 0;
    c->place = (location *)c->received;
    for (int r = 0; r < world->size; r++) {
        const introduction one = c->received[r];
        const int lowest = c->node[world->node_of[r]].lowest;
        c->offer[r] = one.offer;
        c->offer[r].place = lowest < r ? c->offer[lowest].place : -1;
        if (lowest == r || !is_same_place(&one.place, &c->place[c->offer[r].place])) {
            c->offer[r].place = n;
            c->place[n] = one.place;
            c->place[n++].host[sizeof one.place.host - 1] = '\0';
        }
    }
    location *less = realloc(c->received, (size_t)n * sizeof *less);
    c->place = less != NULL ? less : c->place;
    c->received = NULL;
}

/* Everybody learns where everybody is, and the key by which they know each other. */
static dtr_status exchange(dtr_world *world, dtr__control *c, const introduction *mine) {
    DTR_TRY(dtr__exchange_broadcast(dtr__members_of(world), c->key, DTR__KEY_BYTES, 0));
    DTR_TRY(dtr__exchange_allgather(dtr__members_of(world), mine, c->received, sizeof *mine));
    keep_offers(world, c);
    return share_boards(world, c);
}

/* How ranks prove who they are: alike on all, which is decided over MPI and so by nobody else. */
static void choose_proof(dtr_world *world, dtr__control *c) {
    int without = -1;
    for (int r = world->size - 1; r >= 0; r--) {
        without = c->offer[r].hmac ? without : r;
    }
    c->hmac = without < 0;
    if (!c->hmac && world->rank == 0) {
        DTR_WARN(world,
                 "the key of the control plane between the nodes travels in the clear, because "
                 "rank %d's libdtr was built without nettle, which has HMAC: whoever reads that "
                 "network can take part. Build with nettle, or do without by DTR_CONTROL_MS=0",
                 without);
    }
}

/* One rank without sockets, or with the switch off, means none for all: half a plane would take
 * silence for health. */
static void judge(dtr_world *world, dtr__control *c, const char *why) {
    bool all = true;
    for (int r = 0; r < world->size; r++) {
        all = all && c->offer[r].takes_part;
    }
    if (all) {
        choose_proof(world, c);
    } else {
        dtr__control_close_sockets(c);
    }
    if (why[0] != '\0') {
        DTR_WARN(world,
                 "no control plane between the nodes: %s. What ranks of other nodes do, and that a "
                 "whole node has died, is not seen",
                 why);
    }
}

dtr_status dtr__control_open(dtr_world *world) {
    dtr__error_context ctx = { .world = world };
    if (world->node_count == 1) {
        return DTR_OK;
    }
    char why[128] = "";
    introduction mine;
    memset(&mine, 0, sizeof mine);
    dtr__control *c = calloc(1, sizeof *c);
    if (c != NULL) {
        c->epoll = c->wake = -1;
        pthread_mutex_init(&c->lock, NULL);
        world->control.plane = c;
        prepare(world, c, &mine, why, sizeof why);
    }
    dtr_status s = c == NULL || !make_tables(world, c)
                       ? DTR_FAIL(&ctx, DTR_ERR_NOMEM,
                                  "no memory for the control plane of %d ranks", world->size)
                       : DTR_OK;
    DTR_TRY(dtr__agree_status(dtr__members_of(world), s, "world creation"));
    DTR_TRY(exchange(world, c, &mine));
    DTR_REQUIRE(c->board != NULL, &ctx, DTR_ERR_NOMEM, "no memory for the reports of %d ranks",
                world->size);
    judge(world, c, why);
    return DTR_OK;
}

void dtr__control_free_links(dtr__control *c) {
    while (c->links != NULL) {
        dtr__link *next = c->links->next;
        dtr__link_free(c->links);
        c->links = next;
    }
}

void dtr__control_close(dtr_world *world) {
    dtr__control *c = world->control.plane;
    if (c == NULL) {
        return;
    }
    dtr__control_free_links(c);
    dtr__control_close_sockets(c);
    dtr__facts_free(c);
    if (c->wake >= 0) {
        close(c->wake);
    }
    if (c->alone) {
        free(c->board);
    } else if (c->board != NULL) {
        dtr__arena_free(world, c->board);
    }
    free(c->offer);
    free(c->place);
    free(c->received);
    free((void *)c->boards);
    free(c->read);
    free(c->sent);
    free(c->question);
    free(c->sent_votes);
    free(c->node);
    free(c->notes);
    pthread_mutex_destroy(&c->lock);
    free(c);
    world->control.plane = NULL;
}

/* ---- any thread ---- */

void dtr__control_ended(dtr_world *world) {
    if (world->control.plane != NULL) {
        atomic_store(&world->control.plane->ended, true);
    }
}

bool dtr__control_serves(const dtr_world *world) {
    return world->control.plane != NULL && atomic_load(&world->control.plane->serves);
}

void dtr__control_wake(const dtr_world *world) {
    const uint64_t one = 1;
    if (dtr__control_serves(world)) { /* full: it is awake */
        (void)!write(world->control.plane->wake, &one, sizeof one);
    }
}

bool dtr__control_report_of(const dtr_world *world, int world_rank, dtr__rank_report *out) {
    const dtr__control *c = world->control.plane;
    dtr__rank_report d;
    bool found = false;
    for (int i = 0; c != NULL && i < world->local_size; i++) {
        const dtr__board *b = i == world->local_rank ? c->board : c->boards[i];
        if (b != NULL && dtr__board_get(b, world_rank, &d) &&
            (!found || d.seen_ns > out->seen_ns)) {
            *out = d;
            found = true;
        }
    }
    return found;
}

bool dtr__control_where(const dtr_world *world, int world_rank, const char **host, uint32_t *pid) {
    const dtr__control *c = world->control.plane;
    if (c == NULL) {
        return false;
    }
    *host = dtr__control_place(world, world_rank)->host;
    *pid = c->offer[world_rank].pid;
    return true;
}
