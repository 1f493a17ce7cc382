/* A communicator that is split from the parent group's while the group is made: all ranks of the
 * parent take part, those that go to no group of NCCL too. */
#include <stdio.h>

#include "core/team.h"
#include "engine/engine.h"
#include "failure/notify.h"
#include "nccl_internal.h"

typedef struct splitting {
    dtr__nccl_comm *parent, *child; /* child: NULL where this rank gets none */
    dtr_group *group;               /* the child, else the parent */
    double began, limit_s;
    dtr__backoff backoff;
} splitting;

bool dtr__nccl_can_split(const dtr_group *g, int device) {
    struct dtr__nccl *n = dtr__nccl_of(g);
    if (n == NULL || n->ops == NULL || atomic_load(&g->status) != DTR_OK) {
        return false;
    }
    const dtr__nccl_comm *c = dtr__nccl_comm_find(n, device, -1, -1);
    return c != NULL && !c->local && c->ready && atomic_load(&c->aborted) == 0;
}

static dtr_status broken(const splitting *s) {
    const dtr_group *parent = s->parent->group;
    return dtr__group_broken(atomic_load(&s->group->status) != DTR_OK ? s->group : parent);
}

static dtr_status rest(splitting *s) {
    dtr_group *parent = s->parent->group;
    DTR_TRY(dtr__nccl_pause(parent, &s->backoff));
    if (atomic_load(&s->group->status) != DTR_OK) {
        return broken(s);
    }
    if (dtr__now() - s->began >= s->limit_s) {
        dtr__error_context ctx = { .world = parent->world, .group = s->group->name };
        return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                        "group '%s': NCCL has not split the communicator of group '%s' for cuda:%d "
                        "within %g s, which needs all its %d ranks; NCCL_DEBUG=INFO shows what it "
                        "waits for",
                        s->group->name, parent->name, s->parent->device, s->limit_s, parent->size);
    }
    return DTR_OK;
}

static dtr_status settle(splitting *s, dtr__nccl_comm *c, int code) {
    int busy = c->ops->in_progress;
    while (code == busy) {
        if (!dtr__nccl_poll(c, &code)) {
            return broken(s);
        }
        if (code == busy) {
            DTR_TRY(rest(s));
        }
    }
    return code == 0 ? DTR_OK : dtr__nccl_failed(c, NULL, "ncclCommSplit", code);
}

static int split_off(dtr__nccl_comm *p) {
    return p->ops->split(p->device, p->handle, p->apart.color, p->apart.key, &p->split,
                         &p->apart.into->apart.config);
}

static dtr_status run(splitting *s, int color, int key) {
    dtr__nccl_comm *p = s->parent, *c = s->child;
    p->apart.color = c != NULL ? color : -1;
    p->apart.key = key;
    if (c != NULL) {
        c->apart.config = c->owner->config;
    }
    int busy = p->ops->in_progress;
    int code = dtr__nccl_make_apart(p, c != NULL ? c : p, split_off);
    if (code != 0 && code != busy) {
        return dtr__nccl_failed(p, NULL, "ncclCommSplit", code);
    }
    DTR_TRY(settle(s, p, busy)); /* the child's handle is there when the parent is ready again */
    if (c == NULL) {
        return DTR_OK;
    }
    pthread_mutex_lock(&c->lock);
    c->handle = p->split;
    p->split = NULL;
    pthread_mutex_unlock(&c->lock);
    return settle(s, c, busy);
}

/* The child's place among its group's communicators; its group is known to this thread alone. */
static dtr_status prepare(splitting *s, dtr_group *child, int device) {
    struct dtr__nccl *n = child != NULL ? dtr__nccl_of(child) : NULL;
    if (n == NULL || n->ops == NULL || n->copies) {
        return DTR_OK;
    }
    s->group = child;
    return dtr__nccl_comm_of(n, device, -1, -1, &s->child);
}

/* turn of the parent held. */
static dtr_status split(splitting *s, int color) {
    dtr_group *parent = s->parent->group;
    dtr_group *child = s->child != NULL ? s->group : NULL;
    char label[40];
    snprintf(label, sizeof label, "cuda:%d, %d ranks, split", s->parent->device,
             child != NULL ? child->size : 0);
    uint64_t record = child != NULL ? dtr__nccl_record(child, s->parent->device, label) : 0;
    dtr_status status = run(s, color, child != NULL ? child->rank : parent->rank);
    if (status == DTR_OK && child != NULL) {
        s->child->ready = true;
        dtr__nccl_blocks_join(s->child);
        atomic_fetch_add(&child->count.comms_by_split, 1);
        dtr__nccl_log_made(s->child, "split", 0, dtr__now() - s->began);
    }
    dtr__rec_mark(parent->world, record, status < 0 ? DTR__REC_FAILED : DTR__REC_FINISHED, status);
    return status;
}

dtr_status dtr__nccl_split(dtr_group *parent, int device, dtr_group *child, int color) {
    splitting s = { .parent = dtr__nccl_comm_find(dtr__nccl_of(parent), device, -1, -1),
                    .group = parent,
                    .began = dtr__now(),
                    .limit_s = dtr__nccl_init_limit(child != NULL ? child : parent) };
    dtr_status made = prepare(&s, child, device); /* a failure here must not keep the others */
    dtr__error_copy *cause = made < 0 ? dtr__error_save() : NULL;
    dtr_status status = dtr__nccl_take_turn(s.parent->owner);
    if (status == DTR_OK) {
        status = split(&s, color);
        pthread_mutex_unlock(&s.parent->owner->turn);
    }
    if (status < 0) { /* not all ranks have left the parent's communicator alike */
        if (s.child != NULL) {
            dtr__nccl_abort(s.child);
        }
        dtr__group_break(parent, status);
        if (s.group != parent) {
            (void)dtr__error_restore(parent->error, status);
            dtr__group_break(s.group, status);
        }
        status = dtr__group_broken(parent);
    }
    return made < 0 ? dtr__error_put_back(cause, made) : status;
}
