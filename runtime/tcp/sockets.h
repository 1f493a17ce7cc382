/* Sockets between hosts, which never block, and the ports at which a rank can be reached. */
#ifndef DTR_RT_SOCKETS_H
#define DTR_RT_SOCKETS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each is -1 with errno, or *failure, where there is none; closed by dtr__private_fd_close. */
int dtr__socket_accept(int listener, struct in6_addr *address);
int dtr__socket_dial(const struct in6_addr *address, uint16_t port, int *failure);
/* Listens on that address, or on any (NULL) of both families where there are two, on any port. */
int dtr__socket_listen(const struct in6_addr *address, uint16_t *port);

/* `silence_s`: after how long without an answer of its host the kernel gives a connection up. */
void dtr__socket_tune(int fd, double silence_s);
/* What has come of a dialed connection, as errno; 0: it is there. */
int dtr__socket_error(int fd);
/* Addresses of this host's interfaces that are up, without loopback and those that are good for one
 * link only; IPv4 first, as IPv6 writes it. Only that interface if one is named, be it loopback's.
 * Returns how many. */
int dtr__socket_addresses(const char *interface, struct in6_addr *address, int most);
struct in6_addr dtr__socket_ipv4(in_addr_t address); /* ::ffff:a.b.c.d */

enum { DTR__ADDRESSES = 6 };
/* What a rank listens on: all addresses (`any`), loopback's among them, at port[0], or those of the
 * interface that is named and no other. */
typedef struct dtr__ports {
    struct in6_addr address[DTR__ADDRESSES];
    uint16_t port[DTR__ADDRESSES];
    int n, n_listeners, listener[DTR__ADDRESSES];
    bool any;
} dtr__ports;
/* False, and why; what has been opened is closed by dtr__ports_close in any case. */
bool dtr__ports_open(dtr__ports *p, const char *interface, char *why, size_t cap);
void dtr__ports_close(dtr__ports *p);
/* Equal where loopback leads from one process to the other. */
uint64_t dtr__own_machine(const char *host);

#endif /* DTR_RT_SOCKETS_H */
