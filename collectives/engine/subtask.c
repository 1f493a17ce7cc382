/* Works made of other works: their parts are run by the whole's own backend. */
#include <stdio.h>

#include "core/team.h"
#include "engine/engine.h"
#include "engine/stream_dependency.h"

void dtr__work_drop(dtr_work *w) {
    w->finish = NULL;
    atomic_store_explicit(&w->refs, 1, memory_order_relaxed);
    dtr__work_unref(w);
}

dtr_status dtr__part_make(dtr_group *g, const dtr__call *c, dtr_work **part) {
    dtr__request r = { .kind = c->kind };
    dtr__call empty = *c;
    int backend = 0;
    DTR_TRY(dtr__choose_backend(g, c, &backend));
    DTR_TRY(dtr__work_make(g, 1, part));
    empty.in_count = 0; /* the user's input has been checked */
    dtr_status s = dtr__work_describe(*part, g, &empty, &r, backend, false);
    (*part)->call.in_count = c->in_count;
    (*part)->seq = (*part)->issue = (*part)->report.record = 0;
    if (s < 0) {
        dtr__work_unref(*part);
    }
    return s;
}

static dtr_status free_deferred(dtr__finish *finish, dtr_status status) {
    dtr__composite *c = (dtr__composite *)((char *)finish - offsetof(dtr__composite, finish));
    c->free(c);
    return status;
}

void dtr__composite_defer(dtr_group *g, dtr_work *whole) {
    dtr__composite *c = whole->composite;
    if (!c->complete) {
        c->finish = (dtr__finish){ .fn = free_deferred, .next = g->engine->deferred };
        g->engine->deferred = &c->finish;
        whole->composite = NULL;
    }
}

dtr_status dtr__composite_issue(dtr_group *g, const dtr__call *c, const dtr__backend *b,
                                dtr__composite *composite, const char *site, dtr_work **work) {
    dtr__request r = { .kind = c->kind };
    dtr_work *w = NULL;
    DTR_TRY(dtr__work_make(g, 2, &w));
    (void)dtr__work_describe(w, g, c, &r, 0, false); /* fails for calls with arrays only */
    w->backend = b;
    w->backend_state = NULL;
    w->composite = composite;
    if (!dtr__work_admit(g, w, site, false)) {
        w->composite = NULL;
        dtr__work_drop(w);
        return dtr__group_broken(g);
    }
    *work = w;
    dtr__work_hand_over(g, w);
    return DTR_OK;
}

dtr_status dtr__part_move(dtr_group *g, dtr_work *whole, dtr_work *part, bool *done) {
    dtr_status s;
    *done = false;
    if (part->started) {
        part->moved = false;
        s = part->backend->progress(g, part->backend_state, part, done);
    } else {
        part->started = part->moved = true;
        dtr__work_mark(part, DTR__REC_STARTED, DTR_OK);
        s = dtr__stream_dependency_status(part);
        s = s == DTR_OK ? part->backend->start(g, part->backend_state, part, done) : s;
    }
    whole->moved = whole->moved || part->moved || *done;
    if (s < 0) {
        dtr__work_mark(part, DTR__REC_FAILED, s);
        atomic_store_explicit(&part->ended, 1, memory_order_relaxed);
    }
    return s;
}

void dtr__work_give_up(dtr_group *g, const dtr__backend *b, void *state, dtr_work *w,
                       dtr_status s) {
    DTR_CLEAN_UP(s, dtr__failure_of(g->world)->record(g, s), b->cancel(g, state, w));
}

void dtr__part_cancel(dtr_group *g, dtr_work *part) {
    if (part->started && !dtr__part_ended(part) && part->backend->cancel != NULL) {
        part->backend->cancel(g, part->backend_state, part);
    }
    if (!dtr__part_ended(part)) {
        dtr__work_mark(part, DTR__REC_FAILED,
                       (dtr_status)atomic_load_explicit(&g->status, memory_order_relaxed));
    }
    atomic_store_explicit(&part->ended, 1, memory_order_relaxed);
}

const char *dtr__part_waits_for(dtr_group *g, dtr_work *part, bool named, char *text, size_t cap) {
    char title[256] = "", why[256] = "";
    if (part->started && part->backend->waits_for != NULL) {
        (void)part->backend->waits_for(g, part->backend_state, part, why, sizeof why);
    }
    if (!named) {
        snprintf(text, cap, "%s", why);
        return text;
    }
    snprintf(text, cap, "%s is unfinished%s%s", dtr__work_title(part, title, sizeof title),
             why[0] != '\0' ? ": " : "", why);
    return text;
}
