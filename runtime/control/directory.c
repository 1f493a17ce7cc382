/* Where every rank of the world is: dealt out among the ranks of a node, each of which keeps a
 * part that all of them read. */
#include "directory.h"

#include <string.h>

static bool is_same_place(const location *a, const location *b) {
    return a->machine == b->machine && a->n_addresses == b->n_addresses && a->any == b->any &&
           memcmp(a->address, b->address, sizeof a->address) == 0 &&
           strncmp(a->host, b->host, sizeof a->host) == 0;
}

/* Returns how many there are. */
static int number_places(const dtr_world *world, introduction *all, node_ranks *nodes) {
    int n = 0;
    for (int r = 0; r < world->size; r++) {
        node_ranks *at = &nodes[world->node_of[r]];
        const bool first = at->n++ == 0;
        if (first || !is_same_place(&all[r].place, &all[at->lowest].place)) {
            all[r].offer.place = n++;
        } else {
            all[r].offer.place = at->place;
        }
        if (first) {
            at->lowest = r;
            at->place = all[r].offer.place;
        }
    }
    return n;
}

/* Bytes that one part has of a table, whole lines. */
static size_t share(int n, int n_parts, size_t nbytes) {
    const size_t each = (size_t)((n - 1) / n_parts + 1) * nbytes;
    return (each + 63) / 64 * 64;
}

size_t dtr__directory_plan(dtr__directory *d, const dtr_world *world, introduction *all,
                           node_ranks *nodes, int n_parts) {
    const int n_places = number_places(world, all, nodes);
    d->n_parts = n_parts;
    d->places_at = share(world->size, n_parts, sizeof(offer));
    d->nodes_at = d->places_at + share(n_places, n_parts, sizeof(location));
    return d->nodes_at + share(world->node_count, n_parts, sizeof(node_ranks));
}

void dtr__directory_write(const dtr__directory *d, const dtr_world *world, const introduction *all,
                          const node_ranks *nodes, int part) {
    int n_places = 0;
    for (int r = 0; r < world->size; r++) {
        const int place = all[r].offer.place;
        if (r % d->n_parts == part) {
            *(offer *)dtr__directory_at(d, 0, r, sizeof(offer)) = all[r].offer;
        }
        if (place == n_places && n_places++ % d->n_parts == part) {
            location *to = dtr__directory_at(d, d->places_at, place, sizeof *to);
            *to = all[r].place;
            to->host[sizeof to->host - 1] = '\0';
        }
    }
    for (int n = part; n < world->node_count; n += d->n_parts) {
        *(node_ranks *)dtr__directory_at(d, d->nodes_at, n, sizeof(node_ranks)) = nodes[n];
    }
}
