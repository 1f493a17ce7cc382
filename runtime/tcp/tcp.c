/* Making and ending; connections that come and go; polls. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/private_fd.h"
#include "tcp_internal.h"

enum { EVENTS = 32 };
#define DUE_NS INT64_C(20000)
/* In which others may say why a rank's connection has ended. */
#define GRACE_NS INT64_C(3000000000)

/* ---- connections ---- */

dtr__conn *dtr__tcp_add_conn(dtr__tcp *t, int fd, bool dialed, uint32_t events) {
    const size_t cap = dialed ? sizeof(dtr__proof_of) : DTR__TCP_BUFFER;
    dtr__conn *c = calloc(1, sizeof *c + cap);
    struct epoll_event e = { .events = events };
    e.data.ptr = c;
    if (c == NULL || epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &e) != 0) {
        dtr__private_fd_close(fd);
        free(c);
        return NULL;
    }
    dtr__socket_tune(fd, t->silence_s);
    c->fd = fd;
    c->rank = -1;
    c->dialed = dialed;
    c->cap_in = cap;
    c->since_ns = dtr__now_ns();
    c->next = t->conns;
    t->conns = c;
    t->n_strangers += !dialed;
    return c;
}

void dtr__tcp_want_to_write(const dtr__tcp *t, dtr__conn *c, bool want) {
    if (c->waits_to_write != want) {
        struct epoll_event e = { .events = EPOLLIN | (want ? EPOLLOUT : 0) };
        e.data.ptr = c;
        c->waits_to_write = epoll_ctl(t->epoll, EPOLL_CTL_MOD, c->fd, &e) == 0 ? want : !want;
    }
}

/* What was being read is given up: a message that is not here as a whole never will be. */
static void drop_reading(dtr__tcp *t, dtr__conn *c) {
    if (c->into != NULL && c->into->op == NULL && !c->into->dropped) {
        dtr__tcp_forget(t, c->into);
    }
    free(c->into);
    free(c->note);
    c->into = NULL;
    c->note = NULL;
    c->op = NULL;
}

void dtr__tcp_close(dtr__tcp *t, dtr__conn *c) {
    if (c->fd < 0) {
        return;
    }
    /* A child between fork and exec may have it too: it does not leave epoll by itself then. */
    (void)epoll_ctl(t->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    dtr__private_fd_close(c->fd);
    c->fd = -1;
    t->n_closed++;
    t->n_strangers -= !c->dialed && !c->ready;
    drop_reading(t, c);
    if (c->rank >= 0) {
        dtr__peer *p = &t->peer[c->rank];
        p->out = p->out == c ? NULL : p->out;
        p->in = p->in == c ? NULL : p->in;
    }
}

static void free_closed(dtr__tcp *t) {
    for (dtr__conn **at = &t->conns; *at != NULL && t->n_closed > 0;) {
        dtr__conn *c = *at;
        if (c->fd < 0) {
            *at = c->next;
            free(c);
            t->n_closed--;
        } else {
            at = &c->next;
        }
    }
}

/* Nothing more can be sent to it; what it has sent before is still read. */
void dtr__tcp_end_peer(dtr__tcp *t, int rank, const char *why) {
    dtr__peer *p = &t->peer[rank];
    if (p->ended_ns == 0) {
        p->ended_ns = dtr__now_ns();
        snprintf(p->why, sizeof p->why, "%s", why);
    }
    if (p->out != NULL) {
        dtr__tcp_close(t, p->out);
    }
    free(p->writing.spill);
    memset(&p->writing, 0, sizeof p->writing);
    for (dtr__tcp_op *op = p->frames.first, *next; op != NULL; op = next) {
        next = op->next;
        if (op->owned) {
            dtr__op_unlink(op);
            dtr__op_done(t, op);
        }
    }
}

/* ---- polls; lock held ---- */

/* The end of the way out, or something that nobody should have said. */
static void look_at_out(dtr__tcp *t, dtr__conn *c) {
    char nothing[16];
    const ssize_t n = recv(c->fd, nothing, sizeof nothing, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return;
    }
    dtr__tcp_end_peer(t, c->rank,
                      n < 0    ? strerror(errno)
                      : n == 0 ? "closed by the other side"
                               : "it has sent what is no message of this library");
}

static void handle(dtr__tcp *t, dtr__conn *c, uint32_t events) {
    if (!c->ready) {
        dtr__tcp_greet(t, c);
    } else if (!c->dialed) {
        dtr__tcp_read(t, c);
    } else {
        if ((events & ~(uint32_t)EPOLLOUT) != 0) {
            look_at_out(t, c);
        }
        if (c->fd >= 0 && (events & EPOLLOUT) != 0) {
            dtr__tcp_write(t, c->rank);
        }
    }
}

static void poll_all(dtr__tcp *t) {
    struct epoll_event e[EVENTS];
    const int n = epoll_wait(t->epoll, e, EVENTS, 0);
    const int64_t now = dtr__now_ns();
    for (int i = 0; i < n; i++) {
        dtr__conn *c = e[i].data.ptr;
        if (c == NULL) {
            dtr__tcp_accept(t, now);
        } else if (c->fd >= 0) {
            handle(t, c, e[i].events);
        }
    }
    if (t->wanting) {
        dtr__tcp_dial(t, now);
    }
    free_closed(t);
    atomic_store_explicit(&t->polled_ns, now, memory_order_relaxed);
}

void dtr__tcp_poll(dtr__tcp *t) {
    if (pthread_mutex_trylock(&t->lock) == 0) { /* else another thread does it just now */
        poll_all(t);
        pthread_mutex_unlock(&t->lock);
    }
}

bool dtr__tcp_is_due(const dtr__tcp *t) {
    return dtr__now_ns() - atomic_load_explicit(&t->polled_ns, memory_order_relaxed) > DUE_NS;
}

/* ---- what callers ask ---- */

static int failure_of(const dtr__tcp *t, const dtr__tcp_op *op) {
    const dtr__peer *p = op->peer >= 0 ? &t->peer[op->peer] : NULL;
    return p != NULL && p->ended_ns != 0 && dtr__now_ns() - p->ended_ns > GRACE_NS ? 1 + op->peer
                                                                                   : 0;
}

static int test(dtr__tcp *t, dtr__tcp_op **at, bool moves, int *complete, dtr__tcp_arrival *a) {
    dtr__tcp_op *op = *at;
    int code = 0;
    *complete = 0;
    if (pthread_mutex_trylock(&t->lock) != 0) {
        return 0;
    }
    if (moves && op->state != DTR__OP_DONE) {
        poll_all(t);
    }
    if (op->state == DTR__OP_DONE) {
        *complete = 1;
        *a = (dtr__tcp_arrival){ op->peer, op->tag, op->got, op->cancelled };
        op->next = t->idle;
        t->idle = op;
        *at = NULL;
    } else {
        code = failure_of(t, op);
    }
    pthread_mutex_unlock(&t->lock);
    return code;
}

int dtr__tcp_test(dtr__tcp *t, dtr__tcp_op **at, int *complete, dtr__tcp_arrival *a) {
    return test(t, at, true, complete, a);
}

int dtr__tcp_look(dtr__tcp *t, dtr__tcp_op **at, int *complete, dtr__tcp_arrival *a) {
    return test(t, at, false, complete, a);
}

bool dtr__tcp_has_ended(dtr__tcp *t, int rank) {
    pthread_mutex_lock(&t->lock);
    const bool ended = t->peer[rank].ended_ns != 0;
    pthread_mutex_unlock(&t->lock);
    return ended;
}

dtr_status dtr__tcp_failed(dtr__tcp *t, const dtr__error_context *ctx, int code) {
    char why[sizeof t->peer->why], host[sizeof t->peer->place.host];
    if (code < 1) {
        return DTR_FAIL(ctx, DTR_ERR_NOMEM, "no memory for a message over TCP");
    }
    pthread_mutex_lock(&t->lock);
    const dtr__peer *p = &t->peer[code - 1];
    memcpy(why, p->why, sizeof why);
    memcpy(host, p->place.host, sizeof host);
    const unsigned pid = p->place.pid;
    pthread_mutex_unlock(&t->lock);
    return DTR_FAIL(ctx, DTR_ERR_REMOTE,
                    "the connection with rank %d (host %s, pid %u) has ended: %s", code - 1, host,
                    pid, why);
}

/* ---- making ---- */

static bool open_sockets(dtr__tcp *t, const char *interface, char *why, size_t cap) {
    struct epoll_event e = { .events = EPOLLIN };
    if (!dtr__ports_open(&t->ports, interface, why, cap)) {
        return false;
    }
    dtr__private_fd_begin();
    t->epoll = dtr__private_fd_end(epoll_create1(EPOLL_CLOEXEC));
    bool fine = t->epoll >= 0;
    for (int i = 0; i < t->ports.n_listeners && fine; i++) {
        fine = epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->ports.listener[i], &e) == 0;
    }
    snprintf(why, cap, "its descriptors cannot be made: %s", strerror(errno));
    return fine;
}

static void describe_own(dtr__tcp *t, const char *host) {
    dtr__tcp_place own;
    memset(&own, 0, sizeof own);
    own.machine = dtr__own_machine(host);
    memcpy(own.address, t->ports.address, sizeof own.address);
    memcpy(own.port, t->ports.port, sizeof own.port);
    own.n_addresses = (uint16_t)t->ports.n;
    own.any = t->ports.any;
    own.hmac = dtr__proof_has_hmac();
    own.pid = (uint32_t)getpid();
    snprintf(own.host, sizeof own.host, "%s", host);
    dtr__tcp_set_place(t, t->rank, &own);
}

dtr_status dtr__tcp_new(int rank, int size, const char *interface, const char *host,
                        double silence_s, dtr__tcp **out) {
    char why[128] = "no memory";
    dtr__tcp *t = calloc(1, sizeof *t);
    dtr__peer *peer = calloc((size_t)size, sizeof *peer);
    if (t == NULL || peer == NULL) {
        free(t);
        free(peer);
        return DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for connections to %d ranks", size);
    }
    pthread_mutex_init(&t->lock, NULL);
    t->rank = rank;
    t->size = size;
    t->silence_s = silence_s;
    t->epoll = -1;
    t->peer = peer;
    t->arrived_end = &t->arrived;
    if (!open_sockets(t, interface, why, sizeof why)) {
        dtr__tcp_free(t);
        return DTR_FAIL(NULL, DTR_ERR_SYSTEM,
                        "no connections between the nodes: rank %d cannot be reached: %s", rank,
                        why);
    }
    describe_own(t, host);
    *out = t;
    return DTR_OK;
}

const dtr__tcp_place *dtr__tcp_place_of(const dtr__tcp *t, int rank) {
    return &t->peer[rank].place;
}

void dtr__tcp_set_place(dtr__tcp *t, int rank, const dtr__tcp_place *place) {
    pthread_mutex_lock(&t->lock);
    t->peer[rank].place = *place;
    t->peer[rank].place.host[sizeof place->host - 1] = '\0';
    t->peer[rank].is_known = true;
    pthread_mutex_unlock(&t->lock);
}

void dtr__tcp_set_key(dtr__tcp *t, const unsigned char key[DTR__KEY_BYTES], bool hmac) {
    memcpy(t->key, key, DTR__KEY_BYTES);
    t->hmac = hmac;
}

void dtr__tcp_on_note(dtr__tcp *t, dtr__tcp_take take, void *arg) {
    pthread_mutex_lock(&t->lock);
    t->take_arg = arg;
    t->take = take;
    pthread_mutex_unlock(&t->lock);
}

/* ---- the end ---- */

static void free_list(dtr__op_list *list) {
    while (list->first != NULL) {
        dtr__tcp_op *op = list->first;
        dtr__op_unlink(op);
        if (op->owned) {
            free(op->data);
        }
        free(op);
    }
}

static void free_peer(dtr__peer *p) {
    free_list(&p->frames);
    free_list(&p->offered);
    free_list(&p->sending);
    free_list(&p->receiving);
    free(p->writing.spill);
}

void dtr__tcp_free(dtr__tcp *t) {
    if (t == NULL) {
        return;
    }
    const double end = dtr__now() + 0.2;
    dtr__backoff pause = { 0 };
    while (t->n_notes > 0 && dtr__now() < end) {
        dtr__tcp_poll(t);
        dtr__backoff_pause(NULL, &pause);
    }
    for (dtr__conn *c = t->conns; c != NULL; c = c->next) {
        dtr__tcp_close(t, c);
    }
    free_closed(t);
    dtr__ports_close(&t->ports);
    if (t->epoll >= 0) {
        dtr__private_fd_close(t->epoll);
    }
    for (int r = 0; r < t->size; r++) {
        free_peer(&t->peer[r]);
    }
    free_list(&t->posted);
    for (dtr__arrived *a = t->arrived, *next; a != NULL; a = next) {
        next = a->next;
        free(a);
    }
    for (dtr__tcp_op *op = t->idle, *next; op != NULL; op = next) {
        next = op->next;
        free(op);
    }
    pthread_mutex_destroy(&t->lock);
    free(t->peer);
    free(t);
}
