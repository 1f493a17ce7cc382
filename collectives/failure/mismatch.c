/* Comparing what the ranks' recordings, and the reports of other nodes, show of an operation: for
 * backends that find a mismatch only when a message does not fit, or never. */
#include <stdlib.h>
#include <string.h>

#include "control/peers.h"
#include "core/backend.h"
#include "core/call.h"
#include "core/signature.h"
#include "core/team.h"
#include "core/work.h"
#include "failure/mismatch.h"

static void from_called(const dtr__called *reported, dtr__signature *d) {
    *d = (dtr__signature){ .fingerprint = reported->fingerprint,
                           .count_in = reported->count_in,
                           .count_out = reported->count_out,
                           .kind = reported->kind,
                           .dtype = reported->dtype,
                           .op = reported->op,
                           .root = reported->root };
    memcpy(d->site, reported->site, sizeof reported->site);
}

bool dtr__compare(const dtr_work *w, dtr__signature *all, int *missing) {
    const dtr_group *g = w->group;
    bool differ = false;
    *missing = 0;
    for (int i = 0; i < g->size; i++) {
        dtr__called reported;
        if (i == g->rank) {
            dtr__signature_of_call(&w->call, &all[i]);
        } else if (dtr__peer_called(g->world, g->world_ranks[i], g->uid, w->seq, &reported, NULL) &&
                   reported.kind < DTR__K_COUNT) {
            from_called(&reported, &all[i]);
        } else {
            all[i] = (dtr__signature){ .absent = 1 };
            ++*missing;
        }
        differ = differ || (!all[i].absent && all[i].fingerprint != w->call.fingerprint);
    }
    return differ;
}

bool dtr__is_compared(dtr__kind kind) {
    return kind == DTR__K_COALESCED || !(dtr__kind_is_made(kind) || dtr__kind_is_p2p(kind));
}

bool dtr__recall(dtr_group *g, uint64_t seq, dtr_work *like, char *site) {
    dtr__called reported;
    char label[sizeof like->call.label];
    if (!dtr__peer_called(g->world, g->world->rank, g->uid, seq, &reported, label) ||
        reported.kind >= DTR__K_COUNT || !dtr__is_compared((dtr__kind)reported.kind)) {
        return false;
    }
    like->call = (dtr__call){ .kind = (dtr__kind)reported.kind,
                              .dtype = (dtr_dtype)reported.dtype,
                              .op = (dtr_op)reported.op,
                              .root = reported.root,
                              .tag = -1,
                              .in_count = (size_t)reported.count_in,
                              .out_count = (size_t)reported.count_out,
                              .fingerprint = reported.fingerprint };
    memcpy(like->call.label, label, sizeof label);
    like->group = g;
    like->world = g->world;
    like->seq = seq;
    memcpy(site, reported.site, sizeof reported.site);
    return true;
}

dtr_status dtr__backends_find_mismatch(dtr_group *g, int64_t now_ns) {
    dtr_status s = DTR_OK;
    for (int i = 0; i < g->backends.served && s == DTR_OK; i++) {
        const dtr__backend *b = g->backends.table[i];
        s = b->find_mismatch != NULL ? b->find_mismatch(g, g->backends.state[i], now_ns) : DTR_OK;
    }
    return s;
}

dtr_status dtr__find_mismatch(const dtr_work *w) {
    dtr_group *g = w->group;
    DTR_TRY(dtr__backends_find_mismatch(g, 0));
    dtr__signature *all = calloc((size_t)g->size, sizeof *all);
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
            s = dtr__mismatch(&like, all, true);
        }
    }
    if (s == DTR_OK && dtr__is_compared(w->call.kind) && dtr__compare(w, all, &missing)) {
        s = dtr__mismatch(w, all, true);
    }
    free(all);
    return s;
}
