/* Comparing what ranks say of an operation by their recordings, and by the reports of other nodes:
 * for backends that find out by themselves only when a message does not fit, if ever. */
#include <stdlib.h>
#include <string.h>

#include "compare_pairs.h"
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

bool dtr__is_compared(dtr__kind kind) {
    return kind <= DTR__K_BARRIER || kind == DTR__K_COALESCED;
}

bool dtr__recall(dtr_group *g, uint64_t seq, dtr_work *like, char *site) {
    dtr__said said;
    if (!dtr__peer_said(g->world, g->world->rank, g->uid, seq, &said) ||
        said.kind >= DTR__K_COUNT || !dtr__is_compared((dtr__kind)said.kind)) {
        return false;
    }
    like->call = (dtr__call){ .kind = (dtr__kind)said.kind,
                              .dtype = (dtr_dtype)(said.dtype_op & 15),
                              .op = (dtr_op)(said.dtype_op >> 4),
                              .root = said.root,
                              .tag = -1,
                              .in_count = (size_t)said.count_in,
                              .out_count = (size_t)said.count_out,
                              .fingerprint = said.fingerprint };
    like->group = g;
    like->world = g->world;
    like->seq = seq;
    memcpy(site, said.site, sizeof said.site);
    return true;
}

dtr_status dtr__find_odd(const dtr_work *w) {
    dtr_group *g = w->group;
    DTR_TRY(dtr__pairs_find_odd(g));
    dtr__declaration *all = calloc((size_t)g->size, sizeof *all);
    dtr_status s = DTR_OK;
    int missing;
    if (all == NULL || dtr__kind_is_p2p(w->call.kind)) {
        free(all);
        return DTR_OK;
    }
    uint64_t seq = w->seq > DTR__LOOK_BACK ? w->seq - DTR__LOOK_BACK : 1;
    for (; seq < w->seq && s == DTR_OK; seq++) {
        dtr_work like = { 0 };
        char site[sizeof all->site] = "";
        if (dtr__recall(g, seq, &like, site) && dtr__compare(&like, all, &missing)) {
            memcpy(all[g->rank].site, site, sizeof site);
            s = dtr__disagreement(&like, all, true);
        }
    }
    if (s == DTR_OK && dtr__is_compared(w->call.kind) && dtr__compare(w, all, &missing)) {
        s = dtr__disagreement(w, all, true);
    }
    free(all);
    return s;
}
