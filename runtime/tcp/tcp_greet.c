/* How connections begin. Each side proves that it knows the world's key, the dialer first, before a
 * frame is read:
 *
 *   dialer                                   listener
 *   HELLO  magic, version, ranks, nonce  ->
 *                                        <-  nonce
 *   proof over all of that               ->
 *                                        <-  the same by the listener
 *
 * Strangers are few, and none lives long. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <dtr/version.h>

#include "base/clock.h"
#include "tcp_internal.h"

enum { STRANGERS_MOST = 64 }; /* beside one for each rank */
#define STRANGER_NS INT64_C(5000000000)
#define AGAIN_NS INT64_C(100000000) /* between tries of all addresses of a rank */
/* Ports are open before others know them: where all refuse, the process has ended. */
#define DIAL_LIMIT_NS INT64_C(10000000000)
#define REFUSED_LIMIT_NS INT64_C(1000000000)

typedef struct hello {
    uint64_t magic;
    uint32_t version;
    int32_t from, to;
    unsigned char nonce[DTR__NONCE_BYTES];
    uint32_t zero;
} hello;
_Static_assert(sizeof(hello) <= sizeof(dtr__proof_of), "it fits into a dialer's buffer");

/* ---- both ---- */

/* So little always fits into a new socket. */
static bool say(const dtr__conn *c, const void *data, size_t nbytes) {
    return send(c->fd, data, nbytes, MSG_NOSIGNAL) == (ssize_t)nbytes;
}

static bool say_proof(const dtr__tcp *t, const dtr__conn *c, dtr__proof_role by) {
    unsigned char proof[DTR__PROOF_BYTES];
    dtr__proof_make(t->hmac, t->key, &c->proof, by, proof);
    return say(c, proof, sizeof proof);
}

static bool is_proof(const dtr__tcp *t, const dtr__conn *c, dtr__proof_role by) {
    unsigned char want[DTR__PROOF_BYTES];
    dtr__proof_make(t->hmac, t->key, &c->proof, by, want);
    return dtr__proof_equal(want, (const unsigned char *)c->in);
}

/* 1: `nbytes` are here; 0: not yet; -1: the end. */
static int await(dtr__conn *c, size_t nbytes) {
    const ssize_t n = recv(c->fd, c->in + c->n_in, nbytes - c->n_in, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return 0;
    }
    c->n_in += n > 0 ? (size_t)n : 0;
    return n <= 0 ? -1 : c->n_in == nbytes;
}

static dtr__proof_of proof_of(int dialer, int listener) {
    return (dtr__proof_of){
        .magic = DTR__TCP_MAGIC, .version = DTR_VERSION, .dialer = dialer, .listener = listener
    };
}

/* ---- the listener's ---- */

static bool take_hello(const dtr__tcp *t, dtr__conn *c) {
    hello h;
    memcpy(&h, c->in, sizeof h);
    if (h.magic != DTR__TCP_MAGIC || h.version != DTR_VERSION || h.from < 0 || h.from >= t->size ||
        h.to != t->rank) {
        return false;
    }
    c->proof = proof_of(h.from, h.to);
    memcpy(c->proof.dialer_nonce, h.nonce, sizeof h.nonce);
    return dtr__proof_random(c->proof.listener_nonce, DTR__NONCE_BYTES) &&
           say(c, c->proof.listener_nonce, DTR__NONCE_BYTES);
}

/* One that came before and has brought nothing was given up by its dialer. */
static bool welcome(dtr__tcp *t, dtr__conn *c) {
    if (!is_proof(t, c, DTR__PROOF_DIALER) || !say_proof(t, c, DTR__PROOF_LISTENER)) {
        return false;
    }
    dtr__peer *p = &t->peer[c->proof.dialer];
    if (p->in != NULL && p->in->n_frames > 0) {
        return false;
    }
    if (p->in != NULL) {
        dtr__tcp_close(t, p->in);
    }
    t->n_strangers--;
    c->rank = c->proof.dialer;
    c->ready = true;
    p->in = c;
    return true;
}

static void listen_to(dtr__tcp *t, dtr__conn *c) {
    const int got = await(c, c->greeting == 0 ? sizeof(hello) : DTR__PROOF_BYTES);
    if (got == 0) {
        return;
    }
    if (got < 0 || !(c->greeting == 0 ? take_hello(t, c) : welcome(t, c))) {
        dtr__tcp_close(t, c);
        return;
    }
    c->n_in = 0;
    c->greeting++;
}

/* The oldest; new ones are put in front. */
static void close_strangers(dtr__tcp *t, int64_t now) {
    dtr__conn *oldest = NULL;
    for (dtr__conn *c = t->conns; c != NULL; c = c->next) {
        if (c->fd >= 0 && !c->dialed && !c->ready) {
            oldest = c;
            if (now - c->since_ns > STRANGER_NS) {
                dtr__tcp_close(t, c);
            }
        }
    }
    if (oldest != NULL && t->n_strangers > STRANGERS_MOST + t->size) {
        dtr__tcp_close(t, oldest);
    }
}

void dtr__tcp_accept(dtr__tcp *t, int64_t now) {
    for (int i = 0; i < t->ports.n_listeners; i++) {
        struct in6_addr from;
        const int fd = dtr__socket_accept(t->ports.listener[i], &from);
        if (fd >= 0) {
            close_strangers(t, now);
            (void)dtr__tcp_add_conn(t, fd, false, EPOLLIN);
        }
    }
}

/* ---- the dialer's ---- */

static void dial_failed(dtr__tcp *t, int rank, int code) {
    dtr__peer *p = &t->peer[rank];
    if (p->out != NULL) {
        dtr__tcp_close(t, p->out);
    }
    snprintf(p->why, sizeof p->why, "it cannot be reached: %s",
             code != 0 ? strerror(code) : "closed by the other side");
    p->address++;
    p->answers |= code != ECONNREFUSED;
    t->wanting = true;
}

static void say_hello(dtr__tcp *t, dtr__conn *c) {
    hello h = { .magic = DTR__TCP_MAGIC, .version = DTR_VERSION, .from = t->rank, .to = c->rank };
    if (!dtr__proof_random(h.nonce, sizeof h.nonce)) {
        dial_failed(t, c->rank, EAGAIN);
        return;
    }
    c->proof = proof_of(t->rank, c->rank);
    memcpy(c->proof.dialer_nonce, h.nonce, sizeof h.nonce);
    if (!say(c, &h, sizeof h)) {
        dial_failed(t, c->rank, errno);
    }
}

static void take_answer(dtr__tcp *t, dtr__conn *c) {
    const int got = await(c, c->greeting == 0 ? DTR__NONCE_BYTES : DTR__PROOF_BYTES);
    if (got == 0) {
        return;
    }
    bool fine = got > 0;
    if (fine && c->greeting == 0) {
        memcpy(c->proof.listener_nonce, c->in, DTR__NONCE_BYTES);
        fine = say_proof(t, c, DTR__PROOF_DIALER);
    } else if (fine) {
        fine = c->ready = is_proof(t, c, DTR__PROOF_LISTENER);
    }
    c->n_in = 0;
    c->greeting++;
    if (!fine) {
        dial_failed(t, c->rank, got < 0 ? 0 : EPROTO);
    } else if (c->ready) {
        dtr__tcp_write(t, c->rank);
    }
}

void dtr__tcp_greet(dtr__tcp *t, dtr__conn *c) {
    if (!c->dialed) {
        listen_to(t, c);
    } else if (!c->connecting) {
        take_answer(t, c);
    } else {
        const int code = dtr__socket_error(c->fd);
        if (code != 0) {
            dial_failed(t, c->rank, code);
            return;
        }
        c->connecting = false;
        dtr__tcp_want_to_write(t, c, false);
        say_hello(t, c);
    }
}

/* Loopback leads to ranks of the same host and network namespace only. */
static bool address_of(const dtr__tcp *t, const dtr__tcp_place *to, int i, struct in6_addr *address,
                       uint16_t *port) {
    const bool here = to->any != 0 && to->machine == t->peer[t->rank].place.machine;
    if (here && i == 0) {
        *address = dtr__socket_ipv4(htonl(INADDR_LOOPBACK));
        *port = to->port[0];
        return true;
    }
    i -= here;
    if (i >= to->n_addresses || i >= DTR__ADDRESSES) {
        return false;
    }
    *address = to->address[i];
    *port = to->port[i];
    return true;
}

static void dial(dtr__tcp *t, int rank, int64_t now) {
    dtr__peer *p = &t->peer[rank];
    struct in6_addr address;
    uint16_t port;
    int code = ENOMEM;
    p->first_ns = p->first_ns != 0 ? p->first_ns : now;
    if (!address_of(t, &p->place, p->address, &address, &port)) {
        p->address = 0;
        p->dial_ns = now + AGAIN_NS;
        if (now - p->first_ns > (p->answers ? DIAL_LIMIT_NS : REFUSED_LIMIT_NS)) {
            char why[sizeof p->why];
            memcpy(why, p->why, sizeof why);
            dtr__tcp_end_peer(t, rank, why[0] != '\0' ? why : "it has no address");
        }
        return;
    }
    const int fd = dtr__socket_dial(&address, port, &code);
    p->out = fd >= 0 ? dtr__tcp_add_conn(t, fd, true, EPOLLIN | EPOLLOUT) : NULL;
    if (p->out == NULL) {
        dial_failed(t, rank, code);
        return;
    }
    p->out->rank = rank;
    p->out->connecting = p->out->waits_to_write = true;
}

void dtr__tcp_dial(dtr__tcp *t, int64_t now) {
    bool wanting = false;
    for (int r = 0; r < t->size; r++) {
        const dtr__peer *p = &t->peer[r];
        if (p->out == NULL && p->ended_ns == 0 && dtr__tcp_has_frames(p)) {
            if (p->is_known && now >= p->dial_ns) {
                dial(t, r, now);
            }
            wanting |= p->out == NULL;
        }
    }
    t->wanting = wanting;
}
