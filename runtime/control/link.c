/* Sockets of the control plane. Nothing blocks: what a socket does not take is queued, what it does
 * not have yet is waited for by epoll. */
#include "link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/private_fd.h"

/* ---- making ---- */

/* A stopped process keeps its connection, because its kernel answers; a host that is gone loses it
 * after `silence_s`. */
static void set_options(int fd, double silence_s) {
    const int on = 1;
    double most = silence_s < 86400 ? silence_s : 86400;
    unsigned silence_ms = (unsigned)(most * 1000);
    int idle = 1, each = (int)(most / 5) > 0 ? (int)(most / 5) : 1, probes = 5;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &each, sizeof each);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms);
}

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
    set_options(fd, silence_s);
    l->fd = fd;
    l->epoll = epoll;
    l->rank = l->claimed = -1;
    l->since_ns = l->received_ns = dtr__now_ns();
    return l;
}

static int new_socket(int family) {
    dtr__private_fd_begin();
    return dtr__private_fd_end(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

struct in6_addr dtr__link_ipv4(in_addr_t address) {
    struct in6_addr a = { .s6_addr = { [10] = 0xff, [11] = 0xff } };
    memcpy(&a.s6_addr[12], &address, sizeof address);
    return a;
}

/* Of either family. */
static struct in6_addr plain_address(const struct sockaddr *of) {
    struct in6_addr address;
    if (of->sa_family == AF_INET) {
        struct sockaddr_in four;
        memcpy(&four, of, sizeof four);
        address = dtr__link_ipv4(four.sin_addr.s_addr);
    } else {
        struct sockaddr_in6 six;
        memcpy(&six, of, sizeof six);
        address = six.sin6_addr;
    }
    return address;
}

/* The other way round, in the family that the address belongs to. Returns the length. */
static socklen_t socket_address(const struct in6_addr *address, uint16_t port,
                                struct sockaddr_storage *out) {
    memset(out, 0, sizeof *out);
    if (IN6_IS_ADDR_V4MAPPED(address)) {
        struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(port) };
        memcpy(&four.sin_addr, &address->s6_addr[12], sizeof four.sin_addr);
        memcpy(out, &four, sizeof four);
        return sizeof four;
    }
    struct sockaddr_in6 six = { .sin6_family = AF_INET6,
                                .sin6_port = htons(port),
                                .sin6_addr = *address };
    memcpy(out, &six, sizeof six);
    return sizeof six;
}

dtr__link *dtr__link_accept(int listener, int epoll, double silence_s) {
    struct sockaddr_storage from = { .ss_family = AF_UNSPEC };
    socklen_t nbytes = sizeof from;
    dtr__private_fd_begin();
    int fd = dtr__private_fd_end(
        accept4(listener, (struct sockaddr *)&from, &nbytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    dtr__link *l = fd >= 0 ? new_link(fd, epoll, silence_s, EPOLLIN) : NULL;
    if (l != NULL) {
        l->address = plain_address((const struct sockaddr *)&from);
    }
    return l;
}

static bool begin_connect(int fd, const struct in6_addr *address, uint16_t port) {
    struct sockaddr_storage to;
    socklen_t nbytes = socket_address(address, port, &to);
    return connect(fd, (const struct sockaddr *)&to, nbytes) == 0 || errno == EINPROGRESS;
}

dtr__link *dtr__link_dial(const struct in6_addr *address, uint16_t port, int epoll,
                          double silence_s, int *failure) {
    int fd = new_socket(IN6_IS_ADDR_V4MAPPED(address) ? AF_INET : AF_INET6);
    if (fd < 0 || !begin_connect(fd, address, port)) {
        *failure = errno;
        if (fd >= 0) {
            dtr__private_fd_close(fd);
        }
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

static int listen_on(const struct in6_addr *address, bool both, uint16_t *port) {
    const int only = both ? 0 : 1;
    struct sockaddr_storage at;
    socklen_t nbytes = socket_address(address, 0, &at);
    const bool six = at.ss_family == AF_INET6;
    int fd = new_socket(at.ss_family);
    if (fd < 0) {
        return -1;
    }
    if ((six && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only) != 0) ||
        bind(fd, (const struct sockaddr *)&at, nbytes) != 0 || listen(fd, 256) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &nbytes) != 0) {
        int code = errno;
        dtr__private_fd_close(fd);
        errno = code;
        return -1;
    }
    *port = ntohs(six ? ((const struct sockaddr_in6 *)&at)->sin6_port
                      : ((const struct sockaddr_in *)&at)->sin_port);
    return fd;
}

int dtr__link_listen(const struct in6_addr *address, uint16_t *port) {
    const struct in6_addr four = dtr__link_ipv4(htonl(INADDR_ANY)), six = IN6ADDR_ANY_INIT;
    if (address != NULL) {
        return listen_on(address, false, port);
    }
    int fd = listen_on(&six, true, port);
    return fd >= 0 ? fd : listen_on(&four, false, port); /* a kernel without IPv6 */
}

static bool address_of(const struct sockaddr *of, int family, struct in6_addr *address) {
    if (of == NULL || of->sa_family != family) {
        return false;
    }
    *address = plain_address(of);
    return !IN6_IS_ADDR_LINKLOCAL(address);
}

int dtr__link_addresses(const char *interface, struct in6_addr *address, int most) {
    const int families[] = { AF_INET, AF_INET6 };
    struct ifaddrs *all = NULL;
    int n = 0;
    if (getifaddrs(&all) != 0) {
        return 0;
    }
    for (int f = 0; f < 2; f++) {
        for (const struct ifaddrs *a = all; a != NULL && n < most; a = a->ifa_next) {
            bool named = interface[0] == '\0' ? (a->ifa_flags & IFF_LOOPBACK) == 0
                                              : strcmp(interface, a->ifa_name) == 0;
            bool usable = (a->ifa_flags & IFF_UP) != 0 && named;
            n += usable && address_of(a->ifa_addr, families[f], &address[n]);
        }
    }
    freeifaddrs(all);
    return n;
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
    int code = 0;
    socklen_t nbytes = sizeof code;
    if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &code, &nbytes) != 0) {
        code = errno;
    }
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
