/* What nodes tell each other of errors and words: verdicts (rt_verdict.h) and ballots
 * (rt_ballot.h). All of it on the watchdog thread. */
#include <string.h>

#include "rt_control_parts.h"

/* ---- telling ---- */

/* All nodes that have members answer with their own; a new connection hears of what there is. */
void dtr__control_tell_verdicts(dtr_world *world, dtr__control *c) {
    for (int k = 0; k < DTR__VERDICTS; k++) {
        dtr__verdict v;
        uint64_t number = dtr__verdict_to_tell(world, k, &v);
        if (number == c->told[k]) {
            continue;
        }
        c->told[k] = number;
        for (dtr__link *l = number != 0 ? c->links : NULL; l != NULL; l = l->next) {
            if (l->greeted) {
                dtr__link_send(l, DTR__WIRE_VERDICT, &v, sizeof v);
            }
        }
    }
}

/* The same of words, of all ranks of this node: each one on its own. */
void dtr__control_tell_ballots(dtr_world *world, dtr__control *c) {
    for (int i = 0; i < world->local_size * DTR__BALLOTS; i++) {
        dtr__ballot w;
        const uint64_t number =
            dtr__ballot_to_tell(world, i / DTR__BALLOTS, i % DTR__BALLOTS, c->told_ballots[i], &w);
        if (number == 0) {
            continue;
        }
        c->told_ballots[i] = number;
        for (dtr__link *l = c->links; l != NULL; l = l->next) {
            if (l->greeted) {
                dtr__link_send(l, DTR__WIRE_BALLOT, &w, dtr__ballot_bytes(&w));
            }
        }
    }
}

/* ---- hearing ---- */

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
static void keep_early(dtr__control *c, const dtr__verdict *v, int from) {
    early_verdict *at = &c->early[0];
    for (int i = 0; i < DTR__VERDICTS; i++) {
        early_verdict *e = &c->early[i];
        if (e->until_ns != 0 && e->verdict.uid == v->uid && e->node == from) {
            return;
        }
        at = e->until_ns < at->until_ns ? e : at;
    }
    *at = (early_verdict){ *v, from, dtr__now_ns() + EARLY_NS };
}

void dtr__control_take_early(dtr_world *world, dtr__control *c, int64_t now) {
    for (int i = 0; i < DTR__VERDICTS; i++) {
        early_verdict *e = &c->early[i];
        bool here = e->until_ns != 0 && has_members(world, e->verdict.uid);
        if (here) {
            dtr__verdict_heard(world, e->node, &e->verdict);
        }
        e->until_ns = here || now >= e->until_ns ? 0 : e->until_ns;
    }
}

void dtr__control_take_verdict(dtr_world *world, const dtr__link *l, const void *data,
                               size_t nbytes) {
    dtr__verdict v;
    if (nbytes != sizeof v) {
        return;
    }
    memcpy(&v, data, sizeof v);
    if (v.uid == 0 || v.status >= 0 || v.origin < 0 || v.origin >= world->size || v.lost < 0 ||
        v.lost > world->size) {
        return;
    }
    v.operation[sizeof v.operation - 1] = v.text[sizeof v.text - 1] = '\0';
    v.far = 1;
    if (has_members(world, v.uid)) {
        dtr__verdict_heard(world, world->node_of[l->rank], &v);
    } else {
        keep_early(world->control, &v, world->node_of[l->rank]);
    }
}

void dtr__control_take_ballot(dtr_world *world, const dtr__link *l, const void *data,
                              size_t nbytes) {
    dtr__ballot w = { .uid = 0 };
    if (nbytes <= offsetof(dtr__ballot, text) || nbytes > sizeof w) {
        return;
    }
    memcpy(&w, data, nbytes);
    if (w.uid != 0 && w.status <= 0 && dtr__control_theirs(world, l, w.origin)) {
        w.native_text[sizeof w.native_text - 1] = w.text[sizeof w.text - 1] = '\0';
        w.put_ns = l->heard_ns - w.put_ns;
        w.far = 1;
        dtr__ballot_heard(world, &w);
    }
}
