/* Works made of other works: their parts are run by the whole's own backend. */
#include <stdio.h>

#include "engine.h"
#include "fence.h"

void dtr__work_drop(dtr_work *w) {
    w->finish = NULL;
    atomic_store_explicit(&w->refs, 1, memory_order_relaxed);
    dtr__work_unref(w);
}

int dtr__score_asked(const dtr_group *g, const dtr__call *call, const char **why) {
    (void)g;
    (void)call;
    (void)why;
    return 1;
}

dtr_status dtr__part_make(dtr_group *g, const dtr__call *c, dtr_work **part) {
    dtr__request r = { .kind = c->kind };
    dtr__call empty = *c;
    int backend = 0;
    DTR_TRY(dtr__choose_backend(g, c, &backend));
    DTR_TRY(dtr__work_make(g, 1, part));
    empty.in_count = 0; /* the user's input has been looked at */
    dtr_status s = dtr__work_describe(*part, g, &empty, &r, backend, false);
    (*part)->call.in_count = c->in_count;
    (*part)->seq = (*part)->issue = (*part)->record = 0;
    if (s < 0) {
        dtr__work_unref(*part);
    }
    return s;
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
        s = dtr__fence_status(part);
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
    dtr__error_copy *cause = dtr__error_save();
    b->cancel(g, state, w);
    (void)dtr__error_restore(cause, s);
    dtr__error_copy_free(cause);
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
