/* What all nodes must know goes from neighbour to neighbour: that a rank has failed, a reason for
 * dumps, and the votes on a step or a failure, merged. Who learns something new tells all of its
 * neighbours, so every node learns it though some die meanwhile, and nothing goes round for ever:
 * what is known already is not passed on. A new connection gets all there is. */
#include "facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUED_MOST = 256 << 10 }; /* bytes; the rest when the connection has taken them */

/* ---- the list ---- */

static void unlink_fact(fact_list *fs, fact *f) {
    *(f->older != NULL ? &f->older->newer : &fs->oldest) = f->newer;
    *(f->newer != NULL ? &f->newer->older : &fs->newest) = f->older;
}

static void link_newest(fact_list *fs, fact *f) {
    f->older = fs->newest;
    f->newer = NULL;
    *(fs->newest != NULL ? &fs->newest->newer : &fs->oldest) = f;
    fs->newest = f;
}

/* What is not to be sent yet comes before all versions. */
static void link_oldest(fact_list *fs, fact *f) {
    f->newer = fs->oldest;
    f->older = NULL;
    *(fs->oldest != NULL ? &fs->oldest->older : &fs->newest) = f;
    fs->oldest = f;
}

fact *dtr__facts_add(dtr__control *c, fact_kind kind, size_t n_words) {
    fact *f = calloc(1, sizeof *f + n_words * sizeof f->word[0]);
    if (f != NULL) {
        f->kind = kind;
        c->facts.n_sums += kind == FACT_SUM;
        link_oldest(&c->facts, f);
    }
    return f;
}

void dtr__facts_remove(dtr__control *c, fact *f) {
    c->facts.n_sums -= f->kind == FACT_SUM;
    unlink_fact(&c->facts, f);
    free(f);
}

void dtr__facts_changed(dtr__control *c, fact *f) {
    unlink_fact(&c->facts, f);
    link_newest(&c->facts, f);
    f->version = ++c->facts.version;
}

void dtr__facts_free(dtr__control *c) {
    while (c->facts.oldest != NULL) {
        dtr__facts_remove(c, c->facts.oldest);
    }
}

/* ---- failures and dumps ---- */

void dtr__facts_add_failure(dtr__control *c, int rank, bool own) {
    fact *f = dtr__facts_add(c, FACT_FAILURE, 0);
    if (f != NULL) {
        f->rank = rank;
        f->own = own;
        dtr__facts_changed(c, f);
    }
}

bool dtr__facts_add_dump(dtr__control *c, const char *cause) {
    for (const fact *f = c->facts.oldest; f != NULL; f = f->newer) {
        if (f->kind == FACT_DUMP &&
            strncmp(dtr__fact_cause(f), cause, DTR__WIRE_DUMP_TEXT - 1) == 0) {
            return false;
        }
    }
    fact *f = dtr__facts_add(c, FACT_DUMP, DTR__WIRE_DUMP_TEXT / sizeof(uint64_t));
    if (f != NULL) {
        snprintf(dtr__fact_cause(f), DTR__WIRE_DUMP_TEXT, "%s", cause);
        dtr__facts_changed(c, f);
    }
    return true;
}

/* ---- sending ---- */

static void send_failure(const dtr_world *world, dtr__link *l, const fact *f) {
    const dtr__control *c = world->control.plane;
    const uint32_t lost = c->notes[f->rank].lost;
    int rank = f->rank;
    dtr_status s = DTR_OK;
    const char *text = lost != 0 ? dtr__board_failure(c->board, lost - 1, &rank, &s) : NULL;
    dtr__wire_rank_failure d = { .rank = f->rank, .own = f->own };
    d.status = (int32_t)(text != NULL ? s : dtr__rank_failure_status(world, f->rank));
    snprintf(d.text, sizeof d.text, "%s", text != NULL ? text : dtr__rank_failure(world, f->rank));
    dtr__link_send(l, DTR__WIRE_RANK_FAILURE, &d, sizeof d);
}

static void send_fact(const dtr_world *world, dtr__link *l, const fact *f) {
    if (f->kind == FACT_FAILURE) {
        send_failure(world, l, f);
    } else if (f->kind == FACT_DUMP) {
        dtr__link_send(l, DTR__WIRE_DUMP, dtr__fact_cause(f), DTR__WIRE_DUMP_TEXT);
    } else {
        dtr__facts_send_sum(world, l, f);
    }
}

/* Neighbours that live are all connected and speak. */
static bool is_healthy(const dtr__control *c, int64_t now) {
    bool healthy = c->n_out == 0;
    for (int i = 0; i < c->n_near && healthy; i++) {
        const dtr__link *l = c->node[c->near[i]].link;
        healthy = l != NULL && l->fd >= 0 && !dtr__control_is_silent(c, l, now);
    }
    return healthy;
}

/* A sum is not sent to who gets all that is new in it from others. */
static bool concerns(const dtr_world *world, const dtr__link *l, const fact *f) {
    const dtr__votes *vs = world->control.votes;
    const bool by_rank = dtr__fact_sum(f)->vote.step != DTR__FAILURE_STEP;
    const int to = world->node_of[l->rank];
    for (int w = 0; w < vs->voter_words; w++) {
        for (uint64_t left = dtr__fact_fresh(vs, f)[w]; left != 0; left &= left - 1) {
            const int voter = 64 * w + __builtin_ctzll(left);
            const int from = by_rank ? world->node_of[voter] : voter;
            if (dtr__ring_passes_on(world->node_count, from, world->node, to)) {
                return true;
            }
        }
    }
    return false;
}

/* What its other side does not take is not queued without end: it gets the newest of each fact once
 * it does. */
static void spread_to(const dtr_world *world, const dtr__control *c, dtr__link *l, bool healthy) {
    const fact *f = c->facts.newest;
    if (!l->greeted || l->left || l->n_out > 0 || l->sent == c->facts.version) {
        return;
    }
    while (f->older != NULL && f->older->version > l->sent) {
        f = f->older;
    }
    for (; f != NULL && l->n_out < QUEUED_MOST; f = f->newer) {
        if (f->version <= l->sent) {
            continue;
        }
        if (f->kind != FACT_SUM || !healthy || l->sent < f->before || concerns(world, l, f)) {
            send_fact(world, l, f);
        }
        l->sent = f->version;
    }
}

/* Votes go along the trees of the ring, and to all neighbours where not all is well and, in case
 * that it is elsewhere, with the next period. */
void dtr__facts_spread(const dtr_world *world, dtr__control *c) {
    if (c->facts.spread == c->facts.version) {
        for (dtr__link *l = c->facts.newest != NULL ? c->links : NULL; l != NULL; l = l->next) {
            spread_to(world, c, l, false); /* those that were behind */
        }
        return;
    }
    const bool healthy = is_healthy(c, dtr__now_ns());
    for (dtr__link *l = c->links; l != NULL; l = l->next) {
        spread_to(world, c, l, healthy);
    }
    for (fact *f = c->facts.newest; f != NULL && f->version > c->facts.spread; f = f->older) {
        f->before = f->version;
        f->sent_all = healthy ? f->sent_all : f->version;
        if (f->kind == FACT_SUM) {
            memset(dtr__fact_fresh(world->control.votes, f), 0,
                   (size_t)world->control.votes->voter_words * sizeof(uint64_t));
        }
    }
    c->facts.spread = c->facts.version;
}
