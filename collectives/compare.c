/* Comparing what ranks say of an operation by their recordings, and by the reports of other nodes:
 * for backends that find out by themselves only when a message does not fit, if ever. */
#include <string.h>

#include "declare.h"
#include "rt_peers.h"

static void from_said(const dtr__said *said, dtr__declaration *d) {
    *d = (dtr__declaration){ .fingerprint = said->fingerprint,
                             .count_in = said->count_in,
                             .count_out = said->count_out,
                             .kind = said->kind,
                             .dtype = said->dtype_op & 15,
                             .op = said->dtype_op >> 4,
                             .root = said->root };
    memcpy(d->site, said->site, sizeof said->site);
}

bool dtr__compare(const dtr_work *w, dtr__declaration *all, int *missing) {
    const dtr_group *g = w->group;
    bool differ = false;
    *missing = 0;
    for (int i = 0; i < g->size; i++) {
        dtr__said said;
        if (i == g->rank) {
            dtr__declare_call(&w->call, &all[i]);
        } else if (dtr__peer_said(g->world, g->world_ranks[i], g->uid, w->seq, &said) &&
                   said.kind < DTR__K_COUNT) {
            from_said(&said, &all[i]);
        } else {
            all[i] = (dtr__declaration){ .absent = 1 };
            ++*missing;
        }
        differ = differ || (!all[i].absent && all[i].fingerprint != w->call.fingerprint);
    }
    return differ;
}
