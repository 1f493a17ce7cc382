/* How connections of the control plane begin: strangers come in, and both sides prove that they
 * know the world's key before anything else is received.
 *
 *   dialer                              listener
 *   HELLO      rank, version, nonce  ->
 *                                    <- CHALLENGE  nonce
 *   PROOF      over all of that      ->
 *                                    <- PROOF      the same by the listener
 *
 * The dialer proves first, so that nobody makes a rank compute or say anything of the key by
 * calling it. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include <dtr/version.h>

#include "control_internal.h"

/* ---- strangers ---- */

dtr__link *dtr__control_add_link(dtr__control *c, dtr__link *l) {
    if (l != NULL) {
        l->next = c->links;
        c->links = l;
        c->n_links++;
    }
    return l;
}

static bool is_stranger(const dtr__link *l) {
    return l->fd >= 0 && !l->greeted && !l->dialed;
}

/* The oldest one: who has a right to be here needs a moment only. New links are put in front. */
static void close_oldest_stranger(dtr__control *c) {
    dtr__link *oldest = NULL;
    for (dtr__link *l = c->links; l != NULL; l = l->next) {
        oldest = is_stranger(l) ? l : oldest;
    }
    if (oldest != NULL) {
        dtr__link_close(oldest, EBUSY);
    }
}

/* What waits to be accepted would wake the thread for ever while there are no descriptors. */
static void rest(dtr__control *c, int64_t now) {
    for (int i = 0; i < c->ports.n_listeners; i++) {
        (void)epoll_ctl(c->epoll, EPOLL_CTL_DEL, c->ports.listener[i], NULL);
    }
    c->rest_until_ns = now + REST_NS;
}

void dtr__control_end_rest(dtr__control *c, int64_t now) {
    struct epoll_event e = { .events = EPOLLIN };
    if (c->rest_until_ns == 0 || now < c->rest_until_ns) {
        return;
    }
    c->rest_until_ns = 0;
    for (int i = 0; i < c->ports.n_listeners; i++) {
        if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->ports.listener[i], &e) != 0 && errno != EEXIST) {
            c->rest_until_ns =
                now + REST_NS; /* the others are there, which is no error next time */
        }
    }
}

static void accept_from(const dtr_world *world, dtr__control *c, int listener, int64_t now) {
    int strangers = 0;
    for (const dtr__link *l = c->links; l != NULL; l = l->next) {
        strangers += is_stranger(l);
    }
    for (int i = 0; i < ACCEPTED_MOST; i++) {
        dtr__link *l = dtr__link_accept(listener, c->epoll, c->silence_s);
        if (l == NULL) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
                rest(c, now);
            }
            return;
        }
        (void)dtr__control_add_link(c, l);
        if (strangers++ >= STRANGERS_MOST + world->node_count) {
            close_oldest_stranger(c);
        }
    }
}

void dtr__control_accept(const dtr_world *world, dtr__control *c, int64_t now) {
    for (int i = 0; i < c->ports.n_listeners && c->rest_until_ns == 0; i++) {
        accept_from(world, c, c->ports.listener[i], now);
    }
}

/* ---- proofs ---- */

void dtr__control_send_hello(const dtr_world *world, dtr__link *l) {
    dtr__wire_hello h = { .magic = DTR__WIRE_MAGIC, .rank = world->rank, .version = DTR_VERSION };
    if (!dtr__proof_random(h.nonce, sizeof h.nonce)) {
        dtr__link_close(l, EAGAIN);
        return;
    }
    l->proof = (dtr__proof_of){
        .magic = h.magic, .version = h.version, .dialer = world->rank, .listener = l->rank
    };
    memcpy(l->proof.dialer_nonce, h.nonce, sizeof h.nonce);
    dtr__link_send(l, DTR__WIRE_HELLO, &h, sizeof h);
}

static void send_proof(const dtr_world *world, dtr__link *l, dtr__proof_role by) {
    unsigned char proof[DTR__PROOF_BYTES];
    dtr__proof_make(world->control.plane->hmac, world->control.plane->key, &l->proof, by, proof);
    dtr__link_send(l, DTR__WIRE_PROOF, proof, sizeof proof);
}

/* The listener's. */
static bool take_hello(const dtr_world *world, dtr__link *l, const void *data, size_t nbytes) {
    dtr__wire_hello h;
    if (nbytes != sizeof h || l->dialed || l->claimed >= 0) {
        return false;
    }
    memcpy(&h, data, sizeof h);
    bool known = h.magic == DTR__WIRE_MAGIC && h.version == DTR_VERSION && h.rank >= 0 &&
                 h.rank < world->size && world->node_of[h.rank] != world->node;
    if (!known || !dtr__proof_random(l->proof.listener_nonce, DTR__NONCE_BYTES)) {
        return false;
    }
    l->claimed = h.rank;
    l->proof.magic = h.magic;
    l->proof.version = h.version;
    l->proof.dialer = h.rank;
    l->proof.listener = world->rank;
    memcpy(l->proof.dialer_nonce, h.nonce, sizeof h.nonce);
    dtr__link_send(l, DTR__WIRE_CHALLENGE, l->proof.listener_nonce, DTR__NONCE_BYTES);
    return true;
}

/* The dialer's. */
static bool take_challenge(const dtr_world *world, dtr__link *l, const void *data, size_t nbytes) {
    if (nbytes != DTR__NONCE_BYTES || !l->dialed || l->claimed >= 0) {
        return false;
    }
    l->claimed = l->rank; /* there is one challenge for each HELLO */
    memcpy(l->proof.listener_nonce, data, nbytes);
    send_proof(world, l, DTR__PROOF_DIALER);
    return true;
}

static bool take_proof(const dtr_world *world, dtr__link *l, const void *data, size_t nbytes) {
    const dtr__control *c = world->control.plane;
    unsigned char want[DTR__PROOF_BYTES];
    if (nbytes != sizeof want || l->claimed < 0) {
        return false;
    }
    dtr__proof_make(c->hmac, c->key, &l->proof, l->dialed ? DTR__PROOF_LISTENER : DTR__PROOF_DIALER,
                    want);
    l->greeted = dtr__proof_equal(want, data);
    if (l->greeted && !l->dialed) {
        l->rank = l->claimed;
        send_proof(world, l, DTR__PROOF_LISTENER);
    }
    return l->greeted;
}

bool dtr__control_greet(const dtr_world *world, dtr__link *l, dtr__wire_kind kind, const void *data,
                        size_t nbytes) {
    bool fine = kind == DTR__WIRE_HELLO       ? take_hello(world, l, data, nbytes)
                : kind == DTR__WIRE_CHALLENGE ? take_challenge(world, l, data, nbytes)
                : kind == DTR__WIRE_PROOF     ? take_proof(world, l, data, nbytes)
                                              : false;
    if (!fine) {
        dtr__link_close(l, EPROTO); /* not one of us */
    }
    return fine && l->greeted;
}
