/* The backend of groups of one rank: every collective is the identity (but premul_sum multiplies
 * and logical operators give 0 and 1), and a message meets its own receive. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/self/self.h"
#include "base/dtype.h"
#include "core/backend.h"
#include "core/call.h"
#include "core/call_site.h"
#include "core/check.h"
#include "core/message.h"
#include "core/team.h"
#include "core/work.h"
#include "kernels/kernels.h"
#include "kernels/operators.h"

/* One message end that waits for the other. */
typedef struct end {
    struct end *next;
    dtr_work *work;
    struct pending *pending;
    dtr_buffer buf;
    int tag;
    bool is_send;
} end;

/* A send, receive or batch: how many of its ends have not met theirs, and all of them. Kept in
 * work->request. */
typedef struct pending {
    size_t left;
    end ends[];
} pending;

typedef struct state {
    end *waiting; /* sends and receives that have not met, in issue order; group's progress lock */
} state;

static int score(const dtr_group *group, const dtr__call *call, const char **why) {
    (void)call;
    if (group->size == 1) {
        return 100;
    }
    if (why != NULL) {
        *why = "serves groups of one rank only";
    }
    return 0;
}

static dtr_status open_state(dtr_group *group, void **out) {
    dtr__error_context ctx = { .world = group->world, .group = group->name };
    state *s = calloc(1, sizeof *s);
    DTR_REQUIRE(s != NULL, &ctx, DTR_ERR_NOMEM, "out of memory for group '%s'", group->name);
    *out = s;
    return DTR_OK;
}

static void close_state(dtr_group *group, void *s) {
    (void)group;
    free(s);
}

static void identity(const dtr__call *c) {
    size_t nbytes = c->in_count * dtr_dtype_size(c->dtype);
    if (c->out == NULL || nbytes == 0) {
        return;
    }
    if (dtr__n_sources(c->kind, 0, 1) == 0) {
        dtr__fill_identity(c->out, c->out_count, c->out_count, c->dtype, c->op);
    } else if (dtr__kind_reduces(c->kind) && c->op == DTR_PREMUL_SUM) {
        dtr__premul(c->out, c->in, c->in_count, c->dtype, c->premul);
    } else if (dtr__kind_reduces(c->kind) &&
               (dtr__is_logical(c->op) || dtr__is_pair(c->dtype))) { /* what is true becomes 1 */
        dtr__reduce(c->out, &c->in, 1, c->in_count, c->dtype, c->op, 1, NULL);
    } else if (c->out != c->in) {
        memmove(c->out, c->in, nbytes);
    }
}

/* ---- point to point ---- */

static dtr_status mismatch(const end *a, const end *b) {
    const end *send = a->is_send ? a : b, *recv = a->is_send ? b : a;
    char sender[128], receiver[128];
    dtr__error_context ctx = dtr__work_context(recv->work);
    return DTR_FAIL(
        &ctx, DTR_ERR_MISMATCH,
        "group '%s', rank 0 to itself, tag %d: the send has %s x %zu (called at %s), the "
        "receive %s x %zu (called at %s); dtype and count must be equal",
        recv->work->group->name, recv->tag, dtr_dtype_name(send->buf.dtype), send->buf.count,
        dtr__call_site_text(&send->work->call, sender, sizeof sender),
        dtr_dtype_name(recv->buf.dtype), recv->buf.count,
        dtr__call_site_text(&recv->work->call, receiver, sizeof receiver));
}

static dtr_status transfer(end *a, end *b) {
    const end *send = a->is_send ? a : b, *recv = a->is_send ? b : a;
    if (send->buf.dtype != recv->buf.dtype || send->buf.count != recv->buf.count) {
        return mismatch(a, b);
    }
    if (send->buf.count > 0) {
        memmove(recv->buf.data, send->buf.data, send->buf.count * dtr_dtype_size(send->buf.dtype));
    }
    atomic_store_explicit(&recv->work->source, 0, memory_order_relaxed);
    a->pending->left--;
    b->pending->left--;
    return DTR_OK;
}

/* The oldest waiting counterpart takes part, else this end waits. */
static dtr_status pair_up(state *s, end *e) {
    end **at = &s->waiting;
    while (*at != NULL && ((*at)->is_send == e->is_send || (*at)->tag != e->tag)) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        end *other = *at;
        *at = other->next;
        return transfer(e, other);
    }
    e->next = NULL;
    *at = e;
    return DTR_OK;
}

static void forget(state *s, dtr_work *w) {
    for (end **at = &s->waiting; *at != NULL;) {
        if ((*at)->work == w) {
            *at = (*at)->next;
        } else {
            at = &(*at)->next;
        }
    }
    free(w->request);
    w->request = NULL;
}

static dtr_status progress(dtr_group *group, void *self, dtr_work *w, bool *done) {
    (void)group;
    pending *p = w->request;
    if (p->left == 0) {
        forget(self, w);
        *done = true;
    }
    return DTR_OK;
}

static dtr_status start_p2p(state *s, dtr_work *w, bool *done) {
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(&w->call, &single, &n);
    pending *p = malloc(sizeof *p + n * sizeof p->ends[0]);
    dtr__error_context ctx = dtr__work_context(w);
    DTR_REQUIRE(p != NULL, &ctx, DTR_ERR_NOMEM, "out of memory for %zu messages", n);
    p->left = n;
    w->request = p;
    for (size_t i = 0; i < n; i++) {
        p->ends[i] = (end){ NULL, w, p, ops[i].buf, ops[i].tag, ops[i].is_send };
        dtr_status status = pair_up(s, &p->ends[i]);
        if (status < 0) {
            forget(s, w);
            return status;
        }
    }
    return progress(w->group, s, w, done);
}

static dtr_status start(dtr_group *group, void *self, dtr_work *w, bool *done) {
    (void)group;
    if (dtr__kind_is_p2p(w->call.kind)) {
        return start_p2p(self, w, done);
    }
    identity(&w->call);
    *done = true;
    return DTR_OK;
}

static void cancel(dtr_group *group, void *self, dtr_work *w) {
    (void)group;
    forget(self, w);
}

static const char *waits_for(dtr_group *group, void *self, dtr_work *w, char *text, size_t cap) {
    const state *s = self;
    (void)group;
    for (const end *e = s->waiting; e != NULL; e = e->next) {
        if (e->work == w) {
            snprintf(text, cap, "this rank has not called a %s with tag %d that meets it",
                     e->is_send ? "receive" : "send", e->tag);
            return text;
        }
    }
    return "";
}

const dtr__backend dtr__backend_self = { .name = "self",
                                         .kinds = DTR__KINDS_BASIC,
                                         .device = DTR_CPU,
                                         .without_mpi = true,
                                         .score = score,
                                         .open = open_state,
                                         .close = close_state,
                                         .start = start,
                                         .progress = progress,
                                         .cancel = cancel,
                                         .waits_for = waits_for };
