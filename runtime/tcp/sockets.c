/* Sockets between hosts: making them, and where others can reach them. Nothing blocks. */
#include "tcp/sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/private_fd.h"

/* A stopped process keeps its connection, because its kernel answers; a host that is gone loses it
 * after `silence_s`. */
void dtr__socket_tune(int fd, double silence_s) {
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

static int new_socket(int family) {
    dtr__private_fd_begin();
    return dtr__private_fd_end(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

struct in6_addr dtr__socket_ipv4(in_addr_t address) {
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
        address = dtr__socket_ipv4(four.sin_addr.s_addr);
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

static bool begin_connect(int fd, const struct in6_addr *address, uint16_t port) {
    struct sockaddr_storage to;
    socklen_t nbytes = socket_address(address, port, &to);
    return connect(fd, (const struct sockaddr *)&to, nbytes) == 0 || errno == EINPROGRESS;
}

int dtr__socket_accept(int listener, struct in6_addr *address) {
    struct sockaddr_storage from = { .ss_family = AF_UNSPEC };
    socklen_t nbytes = sizeof from;
    dtr__private_fd_begin();
    int fd = dtr__private_fd_end(
        accept4(listener, (struct sockaddr *)&from, &nbytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd >= 0) {
        *address = plain_address((const struct sockaddr *)&from);
    }
    return fd;
}

int dtr__socket_dial(const struct in6_addr *address, uint16_t port, int *failure) {
    int fd = new_socket(IN6_IS_ADDR_V4MAPPED(address) ? AF_INET : AF_INET6);
    if (fd >= 0 && begin_connect(fd, address, port)) {
        return fd;
    }
    *failure = errno;
    if (fd >= 0) {
        dtr__private_fd_close(fd);
    }
    return -1;
}

int dtr__socket_error(int fd) {
    int code = 0;
    socklen_t nbytes = sizeof code;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &nbytes) == 0 ? code : errno;
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

int dtr__socket_listen(const struct in6_addr *address, uint16_t *port) {
    const struct in6_addr four = dtr__socket_ipv4(htonl(INADDR_ANY)), six = IN6ADDR_ANY_INIT;
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

int dtr__socket_addresses(const char *interface, struct in6_addr *address, int most) {
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

/* ---- all of a rank's ports ---- */

bool dtr__ports_open(dtr__ports *p, const char *interface, char *why, size_t cap) {
    *p = (dtr__ports){ .any = interface[0] == '\0' };
    p->n = dtr__socket_addresses(interface, p->address, DTR__ADDRESSES);
    if (p->n == 0 && !p->any) {
        snprintf(why, cap, "the interface of DTR_CONTROL_INTERFACE=%.60s has no address here",
                 interface);
        return false;
    }
    for (int i = 0; i < (p->any ? 1 : p->n); i++) {
        int fd = dtr__socket_listen(p->any ? NULL : &p->address[i], &p->port[i]);
        if (fd < 0) {
            snprintf(why, cap, "its socket cannot be made: %s", strerror(errno));
            return false;
        }
        p->listener[p->n_listeners++] = fd;
    }
    for (int i = 1; p->any && i < DTR__ADDRESSES; i++) {
        p->port[i] = p->port[0];
    }
    return true;
}

void dtr__ports_close(dtr__ports *p) {
    while (p->n_listeners > 0) {
        dtr__private_fd_close(p->listener[--p->n_listeners]);
    }
}

static uint64_t mix(uint64_t h, const void *data, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i++) {
        h = (h ^ ((const unsigned char *)data)[i]) * UINT64_C(1099511628211);
    }
    return h;
}

uint64_t dtr__own_machine(const char *host) {
    struct stat st;
    uint64_t h = mix(UINT64_C(14695981039346656037), host, strlen(host));
    if (stat("/proc/self/ns/net", &st) == 0) {
        h = mix(mix(h, &st.st_ino, sizeof st.st_ino), &st.st_dev, sizeof st.st_dev);
    }
    return h;
}
