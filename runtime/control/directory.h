/* Where every rank of the world is and how it can be reached: said once at world creation, constant
 * after that, and kept once by the ranks of a node together. */
#ifndef DTR_RT_DIRECTORY_H
#define DTR_RT_DIRECTORY_H

#include "base/world.h"
#include "tcp/sockets.h"

enum { ADDRESSES = DTR__ADDRESSES };

/* Where a rank is, mostly as the others of its node: kept once for all that say the same. */
typedef struct location {
    uint64_t machine; /* equal where loopback leads from one to the other */
    struct in6_addr address[ADDRESSES];
    char host[64];
    uint16_t n_addresses;
    bool any; /* listens on all addresses, loopback among them, at port[0] */
} location;

typedef struct offer {
    uint32_t pid;
    int32_t place; /* number of its location */
    bool takes_part;
    bool hmac; /* built with */
    uint16_t port[ADDRESSES];
} offer;

/* What a rank sends the others at world creation. */
typedef struct introduction {
    location place;
    offer offer;
} introduction;

typedef struct node_ranks {
    int32_t lowest, n; /* world rank; ranks */
    int32_t place;     /* of the lowest */
} node_ranks;

/* Entry i of each of its three tables is in part i % n_parts. */
typedef struct dtr__directory {
    int n_parts;
    char **part;                /* [n_parts] the offers first */
    size_t places_at, nodes_at; /* bytes */
} dtr__directory;

/* Numbers the places in what all ranks have said, and the members of each node in `nodes`, which is
 * zeroed. Returns the bytes of one part. */
size_t dtr__directory_plan(dtr__directory *d, const dtr_world *world, introduction *all,
                           node_ranks *nodes, int n_parts);
/* Fills one part, which is zeroed. */
void dtr__directory_write(const dtr__directory *d, const dtr_world *world, const introduction *all,
                          const node_ranks *nodes, int part);

static inline void *dtr__directory_at(const dtr__directory *d, size_t table, int i, size_t nbytes) {
    return d->part[i % d->n_parts] + table + (size_t)(i / d->n_parts) * nbytes;
}
static inline const offer *dtr__directory_offer(const dtr__directory *d, int rank) {
    return dtr__directory_at(d, 0, rank, sizeof(offer));
}
static inline const location *dtr__directory_place(const dtr__directory *d, int rank) {
    const int place = dtr__directory_offer(d, rank)->place;
    return dtr__directory_at(d, d->places_at, place, sizeof(location));
}
static inline const node_ranks *dtr__directory_node(const dtr__directory *d, int node_of_world) {
    return dtr__directory_at(d, d->nodes_at, node_of_world, sizeof(node_ranks));
}

#endif /* DTR_RT_DIRECTORY_H */
