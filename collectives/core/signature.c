/* What each rank says of an operation, and the message for ranks that do not say the same. */
#include "core/signature.h"
#include "core/call_site.h"
#include "core/team.h"
#include "core/work.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"

enum { DETAIL = 2 }; /* of off, info, detail */

bool dtr__at_detail(const dtr_world *w) {
    return dtr__opt_number(&w->options, DTR__OPT_DEBUG) == DETAIL;
}

/* Elements that only giver and taker know. */
static void pair_signatures(const dtr_work *w, int to, dtr__signature *d) {
    const dtr__call *c = &w->call;
    int me = w->group->rank;
    dtr__blocks in, out;
    switch (c->kind) {
    case DTR__K_ALLTOALLV: /* either side may have no counts and be cut equally */
        in = dtr__blocks_in(c, w->group->size);
        out = dtr__blocks_out(c, w->group->size);
        d->gives = dtr__block_count(&in, to);
        d->takes = dtr__block_count(&out, to);
        break;
    case DTR__K_GATHERV:
        d->gives = to == c->root ? c->in_count : 0;
        d->takes = me == c->root ? c->out_counts[to] : 0;
        break;
    case DTR__K_SCATTERV:
        d->gives = me == c->root ? c->in_counts[to] : 0;
        d->takes = to == c->root ? c->out_count : 0;
        break;
    default:
        break;
    }
}

void dtr__signature_of_call(const dtr__call *c, dtr__signature *d) {
    *d = (dtr__signature){ .fingerprint = c->fingerprint,
                           .count_in = c->in_count,
                           .count_out = c->out_count,
                           .kind = (int32_t)c->kind,
                           .dtype = (int32_t)c->dtype,
                           .op = (int32_t)dtr__op_code(c->op),
                           .root = c->root };
    (void)dtr__call_site_text(c, d->site, sizeof d->site);
}

void dtr__signature_of(const dtr_work *w, int to, dtr__signature *d) {
    dtr__signature_of_call(&w->call, d);
    pair_signatures(w, to, d);
}

/* ---- ranks disagree ---- */

typedef struct field {
    const char *name;
    uint64_t (*value)(const dtr__signature *d);
    const char *(*word)(uint64_t value); /* NULL: a number */
} field;

static uint64_t kind_of(const dtr__signature *d) {
    return (uint64_t)d->kind;
}
static uint64_t dtype_value(const dtr__signature *d) {
    return (uint64_t)d->dtype;
}
static uint64_t op_of(const dtr__signature *d) {
    return (uint64_t)d->op;
}
static uint64_t root_of(const dtr__signature *d) {
    return (uint64_t)d->root;
}
/* The count that must agree; 0 where none must. Asked of equal kinds only. */
static uint64_t count_of(const dtr__signature *d) {
    dtr__agreed agreed = dtr__rules[d->kind].agreed;
    return agreed == AGREE_IN ? d->count_in : agreed == AGREE_OUT ? d->count_out : 0;
}
static uint64_t rest_of(const dtr__signature *d) {
    return d->fingerprint;
}
static const char *kind_word(uint64_t v) {
    return dtr__kind_name((dtr__kind)v);
}
static const char *dtype_word(uint64_t v) {
    return dtr_dtype_name((dtr_dtype)v);
}
static const char *op_word(uint64_t v) {
    return dtr__op_name((dtr_op)v);
}

static const field fields[] = {
    { "kind", kind_of, kind_word }, { "dtype", dtype_value, dtype_word },
    { "op", op_of, op_word },       { "root", root_of, NULL },
    { "count", count_of, NULL },    { "counts, device or internal tag", rest_of, NULL }
};

/* The first rank with the value most ranks have. */
static int majority(const dtr__signature *all, int n, const field *f) {
    int best = 0, who = 0;
    for (int i = 0; i < n; i++) {
        int votes = 0;
        for (int j = 0; j < n && !all[i].absent; j++) {
            votes += !all[j].absent && f->value(&all[j]) == f->value(&all[i]);
        }
        if (votes > best) {
            best = votes;
            who = i;
        }
    }
    return who;
}

/* "rank 1, rank 3" into `text`; returns the first, -1 when all agree with `most`. */
static int list_different(const dtr_group *g, const dtr__signature *all, const field *f, int most,
                          char *text, size_t cap) {
    int first = -1;
    size_t at = 0;
    for (int r = 0; r < g->size; r++) {
        if (!all[r].absent && f->value(&all[r]) != f->value(&all[most])) {
            first = first < 0 ? r : first;
            at += at < cap ? (size_t)snprintf(text + at, cap - at, "%srank %d", at > 0 ? ", " : "",
                                              dtr__reported_rank(g, r))
                           : 0;
        }
    }
    return first;
}

static const char *say(const field *f, const dtr__signature *d, char *text, size_t cap) {
    if (f->word != NULL) {
        snprintf(text, cap, "%s", f->word(f->value(d)));
    } else {
        snprintf(text, cap, f->value == rest_of ? "fingerprint %llx" : "%llu",
                 (unsigned long long)f->value(d));
    }
    return text;
}

dtr_status dtr__mismatch(const dtr_work *w, const dtr__signature *all, bool moved) {
    const dtr_group *g = w->group;
    const field *f = fields;
    char most_text[64], mismatch_text[64], ranks[256], title[256];
    int most = majority(all, g->size, f), different;
    while ((different = list_different(g, all, f, most, ranks, sizeof ranks)) < 0 &&
           f + 1 < fields + sizeof fields / sizeof fields[0]) {
        f++;
        most = majority(all, g->size, f);
    }
    dtr__error_context ctx = dtr__work_context(w);
    return DTR_FAIL(
        &ctx, DTR_ERR_MISMATCH,
        "ranks of group '%s' disagree on the %s of %s: most have %s (rank %d, called "
        "at %s), but %s %s %s (called at %s). %s. Here: %s",
        g->name, f->name, dtr__kind_name((dtr__kind)all[most].kind),
        say(f, &all[most], most_text, sizeof most_text), dtr__reported_rank(g, most),
        all[most].site, ranks, strchr(ranks, ',') != NULL ? "have" : "has",
        different < 0 ? "?" : say(f, &all[different], mismatch_text, sizeof mismatch_text),
        different < 0 ? "?" : all[different].site,
        moved ? "The group is broken: outputs of its unfinished operations are undefined"
              : "No data was moved",
        dtr__work_title(w, title, sizeof title));
}

static dtr_status fail_pair(const dtr_work *w, int giver, const dtr__signature *gives, int taker,
                            const dtr__signature *takes) {
    char title[256];
    dtr__error_context ctx = dtr__work_context(w);
    return DTR_FAIL(&ctx, DTR_ERR_MISMATCH,
                    "rank %d gives %llu elements (called at %s) where rank %d takes %llu (called "
                    "at %s) in %s. No data was moved",
                    giver, (unsigned long long)gives->gives, gives->site, taker,
                    (unsigned long long)takes->takes, takes->site,
                    dtr__work_title(w, title, sizeof title));
}

dtr_status dtr__pair_mismatch(const dtr_work *w, int peer, const dtr__signature *theirs,
                              const dtr__signature *mine) {
    return theirs->gives != mine->takes ? fail_pair(w, peer, theirs, w->group->rank, mine)
                                        : fail_pair(w, w->group->rank, mine, peer, theirs);
}

dtr_status dtr__signatures_match(const dtr_work *w, const dtr__signature *mine,
                                 const dtr__signature *theirs) {
    const dtr_group *g = w->group;
    for (int i = 0; i < g->size; i++) {
        if (theirs[i].fingerprint != w->call.fingerprint) {
            return dtr__mismatch(w, theirs, false);
        }
    }
    for (int i = 0; i < g->size; i++) {
        if (theirs[i].gives != mine[i].takes) {
            return fail_pair(w, i, &theirs[i], g->rank, &mine[i]);
        }
        if (mine[i].gives != theirs[i].takes) {
            return fail_pair(w, g->rank, &mine[i], i, &theirs[i]);
        }
    }
    return DTR_OK;
}
