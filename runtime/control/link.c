/* Sockets of the control plane. Nothing blocks: what a socket does not take is queued, what it does
 * not have yet is waited for by epoll. */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/private_fd.h"

/* ---- making ---- */

/* Takes over `fd`. */
static dtr__link *new_link(int fd, int epoll, double silence_s, uint32_t events) {
    dtr__link *l = calloc(1, sizeof *l);
    struct epoll_event e = { .events = events };
    e.data.ptr = l;
    if (l == NULL || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) != 0) {
        int code = errno;
        dtr__private_fd_close(fd);
        free(l);
        errno = code;
        return NULL;
    }
    dtr__socket_tune(fd, silence_s);
    l->fd = fd;
    l->epoll = epoll;
    l->rank = l->claimed = -1;
    l->since_ns = l->received_ns = dtr__now_ns();
    return l;
}

dtr__link *dtr__link_accept(int listener, int epoll, double silence_s) {
    struct in6_addr from;
    const int fd = dtr__socket_accept(listener, &from);
    dtr__link *l = fd >= 0 ? new_link(fd, epoll, silence_s, EPOLLIN) : NULL;
    if (l != NULL) {
        l->address = from;
    }
    return l;
}

dtr__link *dtr__link_dial(const struct in6_addr *address, uint16_t port, int epoll,
                          double silence_s, int *failure) {
    const int fd = dtr__socket_dial(address, port, failure);
    if (fd < 0) {
        return NULL;
    }
    *failure = ENOMEM;
    dtr__link *l = new_link(fd, epoll, silence_s, EPOLLIN | EPOLLOUT);
    if (l != NULL) {
        *failure = 0;
        l->address = *address;
        l->dialed = l->connecting = l->waits_to_write = true;
    }
    return l;
}

/* ---- ending ---- */

void dtr__link_close(dtr__link *l, int failure) {
    if (l->fd >= 0) {
        /* A child between fork and exec may have it too: it does not leave epoll by itself then. */
        (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, l->fd, NULL);
        dtr__private_fd_close(l->fd);
        l->fd = -1;
        l->failure = failure;
    }
}

void dtr__link_free(dtr__link *l) {
    dtr__link_close(l, 0);
    free(l->out);
    free(l);
}

void dtr__link_connected(dtr__link *l) {
    const int code = dtr__socket_error(l->fd);
    if (code != 0) {
        dtr__link_close(l, code);
    } else {
        l->connecting = false;
    }
}

/* ---- sending ---- */

static void want_to_write(dtr__link *l, bool want) {
    if (l->waits_to_write != want) {
        struct epoll_event e = { .events = EPOLLIN | (want ? EPOLLOUT : 0) };
        e.data.ptr = l;
        l->waits_to_write = epoll_ctl(l->epoll, EPOLL_CTL_MOD, l->fd, &e) == 0 ? want : !want;
    }
}

/* A failure of the socket is found by the next read, which may find a last message first. */
void dtr__link_flush(dtr__link *l) {
    size_t sent = 0;
    while (l->fd >= 0 && !l->connecting && sent < l->n_out) {
        ssize_t n = send(l->fd, l->out + sent, l->n_out - sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) {
            sent = errno != EAGAIN && errno != EWOULDBLOCK ? l->n_out : sent;
            break;
        }
        sent += n > 0 ? (size_t)n : 0;
    }
    if (sent > 0) {
        memmove(l->out, l->out + sent, l->n_out - sent);
        l->n_out -= sent;
    }
    if (l->fd >= 0 && !l->connecting) {
        want_to_write(l, l->n_out > 0);
    }
}

static bool reserve(dtr__link *l, size_t nbytes) {
    size_t wanted = l->n_out + nbytes, cap = l->cap_out > 0 ? l->cap_out : 4096;
    while (cap < wanted) {
        cap *= 2;
    }
    if (wanted > DTR__WIRE_QUEUE) {
        return false;
    }
    char *out = cap != l->cap_out ? realloc(l->out, cap) : l->out;
    if (out == NULL) {
        return false;
    }
    l->out = out;
    l->cap_out = cap;
    return true;
}

void dtr__link_send(dtr__link *l, dtr__wire_kind kind, const void *data, size_t nbytes) {
    const dtr__wire_head head = { .nbytes = (uint32_t)nbytes, .kind = (uint32_t)kind };
    if (l->fd < 0 || !reserve(l, sizeof head + nbytes)) {
        return;
    }
    memcpy(l->out + l->n_out, &head, sizeof head);
    if (nbytes > 0) {
        memcpy(l->out + l->n_out + sizeof head, data, nbytes);
    }
    l->n_out += sizeof head + nbytes;
    dtr__link_flush(l);
}

/* ---- receiving ---- */

/* Hand over the whole messages at the front; false when the bytes there are none. */
static bool take_messages(dtr__link *l, dtr__link_take take, void *arg) {
    size_t at = 0;
    dtr__wire_head head;
    bool sane = true;
    while (l->fd >= 0 && l->n_in - at >= sizeof head) {
        memcpy(&head, l->in + at, sizeof head);
        sane = head.nbytes <= DTR__WIRE_MOST && head.kind >= DTR__WIRE_HELLO &&
               head.kind <= DTR__WIRE_LEAVE && l->greeted == (head.kind > DTR__WIRE_PROOF);
        if (!sane || l->n_in - at - sizeof head < head.nbytes) {
            break;
        }
        l->received_ns = dtr__now_ns();
        take(arg, l, (dtr__wire_kind)head.kind, l->in + at + sizeof head, head.nbytes);
        at += sizeof head + head.nbytes;
    }
    memmove(l->in, l->in + at, l->n_in - at);
    l->n_in -= at;
    return sane;
}

void dtr__link_read(dtr__link *l, dtr__link_take take, void *arg) {
    while (l->fd >= 0 && !l->connecting) {
        ssize_t n = recv(l->fd, l->in + l->n_in, sizeof l->in - l->n_in, 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        if (n <= 0) {
            dtr__link_close(l, n < 0 ? errno : 0);
            return;
        }
        l->n_in += (size_t)n;
        if (!take_messages(l, take, arg)) {
            /* Not from us: no more of it. A rank that sends this is not taken for dead. */
            l->left = true;
            dtr__link_close(l, EPROTO);
        }
    }
}
