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
    c->received = calloc(n, sizeof *c->received);
    c->numbered = calloc((size_t)world->node_count, sizeof *c->numbered);
    c->directory.part = calloc(local, sizeof *c->directory.part);
    c->boards = calloc(local, sizeof *c->boards);
    c->read = calloc(2 * local, sizeof *c->read);
    c->asked = c->read != NULL ? c->read + local : NULL;
    c->sent = calloc(local * dtr__board_n_wants(world->size), sizeof *c->sent);
    c->sent_votes = calloc(local * DTR__VOTE_ENTRIES, sizeof *c->sent_votes);
    c->node = calloc((size_t)world->node_count, sizeof *c->node);
    c->notes = calloc(n, sizeof *c->notes);
    return c->received != NULL && c->numbered != NULL && c->directory.part != NULL &&
           c->boards != NULL && c->read != NULL && c->sent != NULL && c->sent_votes != NULL &&
           c->node != NULL && c->notes != NULL;
}

/* Who takes part, from what all have said. */
typedef struct census {
    bool all;
    int without_hmac; /* the lowest rank, -1: none */
} census;

static census count(const dtr_world *world, const introduction *all) {
    census found = { true, -1 };
    for (int r = world->size - 1; r >= 0; r--) {
        found.all = found.all && all[r].offer.takes_part;
        found.without_hmac = all[r].offer.hmac ? found.without_hmac : r;
    }
    return found;
}

/* Collective over the node: where all have memory that the others can see, they keep one directory
 * together and see each other's boards; behind a board is a part of the directory. */
static dtr_status share_memory(dtr_world *world, dtr__control *c) {
    const size_t board = (dtr__board_bytes(world->size, world->node_count) + 63) / 64 * 64;
    dtr__directory *d = &c->directory;
    const size_t shared =
        dtr__directory_plan(d, world, c->received, c->numbered, world->local_size);
    dtr_status s = DTR_OK;
    void *const *each = dtr__arena_share(world, board + shared, &s);
    DTR_TRY(s);
    c->alone = each == NULL;
    if (c->alone) {
        memset(c->numbered, 0, (size_t)world->node_count * sizeof *c->numbered);
        const size_t whole = dtr__directory_plan(d, world, c->received, c->numbered, 1);
        c->board = calloc(1, board + whole);
        DTR_REQUIRE(c->board != NULL, NULL, DTR_ERR_NOMEM, "no memory for the reports of %d ranks",
                    world->size);
        d->part[0] = (char *)c->board + board;
    } else {
        c->board = each[world->local_rank];
    }
    dtr__board_init(c->board, world->size, world->node_count);
    for (int i = 0; i < world->local_size && !c->alone; i++) {
        c->boards[i] = i != world->local_rank ? each[i] : NULL;
        d->part[i] = (char *)each[i] + board;
    }
    dtr__directory_write(d, world, c->received, c->numbered, c->alone ? 0 : world->local_rank);
    return DTR_OK;
}

/* Everybody learns where everybody is, and the key by which they know each other. */
static dtr_status exchange(dtr_world *world, dtr__control *c, const introduction *mine,
                           census *found) {
    DTR_TRY(dtr__exchange_broadcast(dtr__members_of(world), c->key, DTR__KEY_BYTES, 0));
    DTR_TRY(dtr__exchange_allgather(dtr__members_of(world), mine, c->received, sizeof *mine));
    *found = count(world, c->received);
    dtr_status s = share_memory(world, c);
    free(c->received);
    free(c->numbered);
    c->received = NULL;
    c->numbered = NULL;
    return dtr__agree_status(dtr__members_of_node(world), s, "world creation");
}

/* How ranks prove who they are: alike on all, which is decided over MPI and so by nobody else. */
static void choose_proof(dtr_world *world, dtr__control *c, int without) {
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
static void judge(dtr_world *world, dtr__control *c, census found, const char *why) {
    if (found.all) {
        choose_proof(world, c, found.without_hmac);
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
    census found;
    DTR_TRY(exchange(world, c, &mine, &found));
    judge(world, c, found, why);
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
    free(c->received);
    free(c->numbered);
    free((void *)c->directory.part);
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
    *pid = dtr__control_offer(world, world_rank)->pid;
    return true;
}
