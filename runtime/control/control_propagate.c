/* What nodes send each other of votes (control/vote.h), on the watchdog thread. */
#include <string.h>

#include "control_internal.h"

/* ---- sending ---- */

/* Every vote of this node's ranks that is new. All nodes that have members answer with their own; a
 * new connection gets what there is. */
void dtr__control_propagate_votes(dtr_world *world, dtr__control *c) {
    for (int i = 0; i < world->local_size * DTR__VOTE_ENTRIES; i++) {
        dtr__vote v;
        const uint64_t number = dtr__vote_to_propagate(world, i / DTR__VOTE_ENTRIES,
                                                       i % DTR__VOTE_ENTRIES, c->sent_votes[i], &v);
        if (number == 0) {
            continue;
        }
        c->sent_votes[i] = number;
        for (dtr__link *l = c->links; l != NULL; l = l->next) {
            if (l->greeted) {
                dtr__link_send(l, DTR__WIRE_VOTE, &v, dtr__vote_bytes(&v));
            }
        }
    }
}

/* ---- receiving ---- */

static bool has_members(const dtr_world *world, uint64_t uid) {
    bool found = false;
    for (int i = 0; i < world->local_size && !found; i++) {
        dtr__recording *r = dtr__peer_glance(world, world->local_world[i]);
        found = r != NULL && dtr__recording_group_uid(r, uid) != NULL;
        dtr__recording_free(r);
    }
    return found;
}

/* In a free place, else in that of the oldest. */
static void keep_early(dtr__control *c, const dtr__failure_record *v, int from) {
    early_record *at = &c->early[0];
    for (int i = 0; i < DTR__FAILURE_RECORDS; i++) {
        early_record *e = &c->early[i];
        if (e->until_ns != 0 && e->record.uid == v->uid && e->node == from) {
            return;
        }
        at = e->until_ns < at->until_ns ? e : at;
    }
    *at = (early_record){ *v, from, dtr__now_ns() + EARLY_NS };
}

void dtr__control_receive_early(dtr_world *world, dtr__control *c, int64_t now) {
    for (int i = 0; i < DTR__FAILURE_RECORDS; i++) {
        early_record *e = &c->early[i];
        bool here = e->until_ns != 0 && has_members(world, e->record.uid);
        if (here) {
            dtr__failure_record_receive(world, e->node, &e->record);
        }
        e->until_ns = here || now >= e->until_ns ? 0 : e->until_ns;
    }
}

static void receive_failure(dtr_world *world, int from, const dtr__failure_record *v) {
    if (v->status >= 0 || v->origin < 0 || v->origin >= world->size || v->failed_rank < 0 ||
        v->failed_rank > world->size) {
        return;
    }
    if (has_members(world, v->uid)) {
        dtr__failure_record_receive(world, from, v);
    } else {
        keep_early(world->control.plane, v, from);
    }
}

void dtr__control_receive_vote(dtr_world *world, const dtr__link *l, const void *data,
                               size_t nbytes) {
    dtr__vote v = { .uid = 0 };
    if (nbytes <= offsetof(dtr__vote, text) || nbytes > sizeof v) {
        return;
    }
    memcpy(&v, data, nbytes);
    v.native_text[sizeof v.native_text - 1] = v.text[sizeof v.text - 1] = '\0';
    v.put_ns = l->received_ns - v.put_ns;
    v.remote = 1;
    if (v.uid != 0 && v.step == DTR__FAILURE_STEP) {
        receive_failure(world, world->node_of[l->rank], &v);
    } else if (v.uid != 0 && v.status <= 0 && dtr__control_theirs(world, l, v.origin)) {
        dtr__vote_receive(world, &v);
    }
}
