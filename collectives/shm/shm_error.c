/* Errors that all ranks of a group share: who finds ranks disagreeing, or gives up, says so in the
 * control block, and every other rank ends with the same status and text at its next look. */
#include <stdio.h>
#include <string.h>

#include "shm/shm_internal.h"

static const double SITE_PATIENCE_S = 0.2; /* for peers to tell where they called from */

void dtr__shm_publish(dtr_group *g, dtr__shm_state *s, dtr_status status, const char *text) {
    uint64_t none = 0;
    dtr__shm_control *control = s->control;
    if (!atomic_compare_exchange_strong(&control->broken, &none, 1)) {
        return;
    }
    control->status = status;
    control->origin = g->rank;
    snprintf(control->text, sizeof control->text, "%s", text);
    atomic_store_explicit(&control->broken, 2, memory_order_release);
}

dtr_status dtr__shm_broken(dtr_group *g, dtr__shm_state *s, const dtr_work *w) {
    dtr__shm_control *control = s->control;
    dtr__error_context ctx = dtr__work_context(w);
    dtr__backoff wait = { 0 };
    double limit = dtr__now() + SITE_PATIENCE_S;
    while (atomic_load_explicit(&control->broken, memory_order_acquire) != 2 &&
           dtr__now() < limit) {
        dtr__backoff_pause(g->world, &wait);
    }
    if (atomic_load_explicit(&control->broken, memory_order_acquire) != 2) {
        return DTR_FAIL(&ctx, DTR_ERR_REMOTE,
                        "group '%s': a rank of this node died while it reported an error", g->name);
    }
    s->agreed_break = true;
    return DTR_FAIL(&ctx, (dtr_status)control->status, "%s", control->text);
}

/* ---- ranks disagree ---- */

typedef struct field {
    const char *name;
    int64_t (*value)(const dtr__shm_post *p);
    const char *(*word)(int64_t value); /* NULL: a number */
} field;

static int64_t kind_of(const dtr__shm_post *p) {
    return p->kind;
}
static int64_t dtype_of(const dtr__shm_post *p) {
    return p->dtype;
}
static int64_t op_of(const dtr__shm_post *p) {
    return p->op;
}
static int64_t root_of(const dtr__shm_post *p) {
    return p->root;
}
static int64_t count_in_of(const dtr__shm_post *p) {
    return (int64_t)p->count_in;
}
static int64_t count_out_of(const dtr__shm_post *p) {
    return (int64_t)p->count_out;
}
static int64_t fingerprint_of(const dtr__shm_post *p) {
    return (int64_t)p->fingerprint;
}
static const char *kind_word(int64_t v) {
    return dtr__kind_name((dtr__kind)v);
}
static const char *dtype_word(int64_t v) {
    return dtr_dtype_name((dtr_dtype)v);
}
static const char *op_word(int64_t v) {
    return dtr__op_name((dtr_op)v);
}

static const field fields[] = { { "kind", kind_of, kind_word },
                                { "dtype", dtype_of, dtype_word },
                                { "op", op_of, op_word },
                                { "root", root_of, NULL },
                                { "count", count_in_of, NULL },
                                { "out count", count_out_of, NULL },
                                { "counts or tag", fingerprint_of, NULL } };

/* The value most ranks have; in a tie that of the lowest rank among the tied. */
static int64_t majority(const dtr_group *g, const dtr__shm_state *s, const field *f, int *who) {
    int best = 0;
    int64_t value = 0;
    for (int i = 0; i < g->size; i++) {
        int votes = 0;
        int64_t mine = f->value(dtr__shm_post_of(s, i));
        for (int j = 0; j < g->size; j++) {
            votes += f->value(dtr__shm_post_of(s, j)) == mine;
        }
        if (votes > best) {
            best = votes;
            value = mine;
            *who = i;
        }
    }
    return value;
}

static const char *say(const field *f, int64_t value, char *text, size_t cap) {
    if (f->word != NULL) {
        snprintf(text, cap, "%s", f->word(value));
    } else {
        snprintf(text, cap, "%lld", (long long)value);
    }
    return text;
}

static void tell_site(const dtr_group *g, dtr__shm_state *s, const dtr_work *w) {
    dtr__shm_rank *me = &s->control->rank[g->rank];
    (void)dtr__call_site_text(&w->call, me->site, sizeof me->site);
    atomic_store_explicit(&me->site_for, s->op.n, memory_order_release);
}

static const char *site_of(const dtr_group *g, const dtr__shm_state *s, int rank) {
    dtr__backoff wait = { 0 };
    double limit = dtr__now() + SITE_PATIENCE_S;
    dtr__shm_rank *r = &s->control->rank[rank];
    while (atomic_load_explicit(&r->site_for, memory_order_acquire) != s->op.n) {
        if (dtr__now() >= limit) {
            return "an unknown place";
        }
        dtr__backoff_pause(g->world, &wait);
    }
    return r->site;
}

static bool everybody_posted(const dtr_group *g, const dtr__shm_state *s) {
    for (int r = 0; r < g->size; r++) {
        if (atomic_load_explicit(&dtr__shm_post_of(s, r)->posted, memory_order_acquire) <
            dtr__shm_mark(s->op.n, 0)) {
            return false;
        }
    }
    return true;
}

/* "rank 1 (world 3)" once, and how many more. */
static int list_odd(const dtr_group *g, const dtr__shm_state *s, const field *f, int64_t value,
                    char *text, size_t cap) {
    int first = -1;
    size_t at = 0;
    for (int r = 0; r < g->size; r++) {
        if (f->value(dtr__shm_post_of(s, r)) != value) {
            first = first < 0 ? r : first;
            at += at < cap
                      ? (size_t)snprintf(text + at, cap - at, "%srank %d", at > 0 ? ", " : "", r)
                      : 0;
        }
    }
    return first;
}

static void compose(const dtr_group *g, const dtr__shm_state *s, const dtr_work *w, char *text,
                    size_t cap) {
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const field *f = &fields[i];
        char most[64], odd[64], ranks[256], title[160];
        int who = 0;
        int64_t value = majority(g, s, f, &who);
        int first = list_odd(g, s, f, value, ranks, sizeof ranks);
        if (first >= 0) {
            snprintf(text, cap,
                     "ranks of group '%s' disagree on %s: most have %s %s (rank %d, called at %s), "
                     "but %s %s %s (called "
                     "at %s). No data was moved. Here: %s",
                     g->name, dtr__kind_name(w->call.kind), f->name,
                     say(f, value, most, sizeof most), who, site_of(g, s, who), ranks,
                     strchr(ranks, ',') != NULL ? "have" : "has",
                     say(f, f->value(dtr__shm_post_of(s, first)), odd, sizeof odd),
                     site_of(g, s, first), dtr__work_title(w, title, sizeof title));
            return;
        }
    }
    snprintf(text, cap,
             "ranks of group '%s' disagree on how much goes from rank to rank in %s #%llu", g->name,
             dtr__kind_name(w->call.kind), (unsigned long long)w->seq);
}

dtr_status dtr__shm_mismatch(dtr_group *g, dtr__shm_state *s, dtr_work *w) {
    char text[1024];
    dtr__backoff wait = { 0 };
    double limit = dtr__now() + SITE_PATIENCE_S;
    tell_site(g, s, w);
    while (!everybody_posted(g, s) && dtr__now() < limit) {
        dtr__backoff_pause(g->world, &wait); /* the majority is that of all, if they come */
    }
    compose(g, s, w, text, sizeof text);
    dtr__shm_publish(g, s, DTR_ERR_MISMATCH, text);
    return dtr__shm_broken(g, s, w);
}

/* ---- ranks that have not come ---- */

const char *dtr__shm_missing(const dtr_group *g, const dtr__shm_state *s, char *text, size_t cap) {
    size_t at = 0;
    text[0] = '\0';
    bool arriving = s->op.phase <= DTR__SHM_ARRIVE;
    for (int r = 0; r < g->size && at < cap; r++) {
        const dtr__shm_rank *peer = &s->control->rank[r];
        bool late = arriving
                        ? atomic_load(&dtr__shm_post_of(s, r)->posted) < dtr__shm_mark(s->op.n, 0)
                        : atomic_load(&peer->finished) < dtr__shm_mark(s->op.n, DTR__SHM_WHOLE);
        if (late && r != g->rank) {
            at += (size_t)snprintf(text + at, cap - at, "%srank %d (world %d)", at > 0 ? ", " : "",
                                   r, g->world_ranks[r]);
        }
    }
    if (at > 0 && at < cap) {
        snprintf(text + at, cap - at,
                 arriving ? " has not entered it" : " has not finished its part");
    }
    return text;
}
