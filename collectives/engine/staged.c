/* Running works whose parts come in stages. */
#include "engine/staged.h"

#include <stdlib.h>
#include <string.h>

#include "core/team.h"

static void free_parts(dtr__staged *s) {
    for (size_t i = 0; i < s->n_parts; i++) {
        dtr__work_unref(s->parts[i]);
    }
    s->n_parts = s->left = 0;
}

static void staged_free(dtr__composite *self) {
    dtr__staged *s = (dtr__staged *)self;
    free_parts(s);
    free(s->parts);
    s->free(s);
}

void dtr__staged_init(dtr__staged *s, dtr_group *g,
                      dtr_status (*next)(dtr_work *whole, dtr__staged *self, bool *done),
                      void (*free)(dtr__staged *self)) {
    *s = (dtr__staged){ .composite = { .defer_finish = dtr__composite_defer, .free = staged_free },
                        .group = g,
                        .next = next,
                        .free = free,
                        .source = -1 };
}

static dtr_status need_capacity(const dtr_work *whole, dtr__staged *s) {
    if (s->n_parts < s->cap_parts) {
        return DTR_OK;
    }
    char title[256];
    dtr__error_context ctx = dtr__work_context(whole);
    size_t cap = s->cap_parts * 2 + 4;
    dtr_work **parts = realloc(s->parts, cap * sizeof(dtr_work *));
    DTR_REQUIRE(parts != NULL, &ctx, DTR_ERR_NOMEM, "%s: no memory for %zu parts",
                dtr__work_title(whole, title, sizeof title), cap);
    s->parts = parts;
    s->cap_parts = cap;
    return DTR_OK;
}

dtr_status dtr__staged_add(const dtr_work *whole, dtr__staged *s, dtr__call c) {
    const dtr__call *site = &whole->call;
    dtr_work *part = NULL;
    DTR_TRY(need_capacity(whole, s));
    c.premul = 1;
    c.timeout_s = site->timeout_s;
    c.file = site->file;
    c.line = site->line;
    c.return_address = site->return_address;
    memcpy(c.label, site->label, sizeof c.label);
    c.fingerprint = dtr__mix(site->fingerprint, s->stage << 32 | s->n_parts);
    DTR_TRY(dtr__part_make(s->group, &c, &part));
    part->seq = whole->seq;
    part->issue = whole->issue;
    s->parts[s->n_parts++] = part;
    s->left++;
    return DTR_OK;
}

static dtr_status move_parts(dtr_group *g, dtr_work *whole, dtr__staged *s) {
    for (size_t i = 0; s->left > 0 && i < s->n_parts; i++) {
        dtr_work *part = s->parts[i];
        bool done = false;
        if (dtr__part_ended(part)) {
            continue;
        }
        DTR_TRY(dtr__part_move(g, whole, part, &done));
        if (done) {
            atomic_store_explicit(&part->ended, 1, memory_order_relaxed);
            s->left--;
        } else if (!dtr__kind_is_p2p(part->call.kind)) {
            break;
        }
    }
    return DTR_OK;
}

static dtr_status move(dtr_group *g, dtr_work *whole, dtr__staged *s, bool *done) {
    DTR_TRY(move_parts(g, whole, s));
    while (s->left == 0 && !*done) {
        if (s->n_parts > 0) {
            s->source = atomic_load_explicit(&s->parts[0]->source, memory_order_relaxed);
        }
        free_parts(s);
        DTR_TRY(s->next(whole, s, done));
        s->stage++;
        DTR_TRY(move_parts(g, whole, s));
    }
    return DTR_OK;
}

dtr_status dtr__staged_progress(dtr_group *g, void *state, dtr_work *whole, bool *done) {
    dtr__staged *s = (dtr__staged *)whole->composite;
    dtr_status status = move(g, whole, s, done);
    if (status < 0) {
        dtr__work_give_up(g, whole->backend, state, whole, status);
        *done = false;
    } else if (*done) {
        s->composite.complete = true;
    }
    return status;
}

void dtr__staged_cancel(dtr_group *g, void *state, dtr_work *whole) {
    dtr__staged *s = (dtr__staged *)whole->composite;
    (void)state;
    for (size_t i = 0; s != NULL && i < s->n_parts; i++) {
        dtr__part_cancel(g, s->parts[i]);
    }
}

const char *dtr__staged_waits_for(dtr_group *g, void *state, dtr_work *whole, char *text,
                                  size_t cap) {
    const dtr__staged *s = (const dtr__staged *)whole->composite;
    (void)state;
    for (size_t i = 0; s != NULL && i < s->n_parts; i++) {
        if (!dtr__part_ended(s->parts[i])) {
            return dtr__part_waits_for(g, s->parts[i], false, text, cap);
        }
    }
    return "";
}
