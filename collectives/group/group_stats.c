/* What a group has done on this rank, and waiting until it has done what was asked of it. */
#include <stdlib.h>
#include <string.h>

#include "backends/nccl/nccl_calls.h"
#include "core/op.h"
#include "core/work.h"
#include "engine/engine.h"
#include "group/groups.h"

/* ---- numbers ---- */

static dtr_op_mark mark_of(const dtr__record *r) {
    bool known = r->kind < DTR__K_COUNT;
    return (dtr_op_mark){ .seq = r->seq != 0 ? r->seq : r->p2p_seq,
                          .kind = known ? dtr__kind_name((dtr__kind)r->kind) : "",
                          .count_in = (size_t)r->count_in,
                          .count_out = (size_t)r->count_out };
}

/* An operation of the program: neither a call inside another one nor a step of the library. */
static bool counts(const dtr__record *r, const dtr_group *g) {
    return r->group == g->id && (r->flags & DTR__REC_MEMBER) == 0 &&
           (r->seq != 0 || r->p2p_seq != 0);
}

/* Records are in the order of their issue. False: none of the group is among them. */
static bool read_marks(const dtr_group *g, size_t most, dtr_group_stats *s) {
    dtr__record *r = malloc(most * sizeof *r);
    size_t n = r != NULL ? dtr__rec_read(g->world, r, most) : 0;
    int64_t ended = 0;
    for (size_t i = 0; i < n; i++) {
        if (!counts(&r[i], g)) {
            continue;
        }
        s->issued = mark_of(&r[i]);
        if (r[i].t_started != 0 || r[i].state == DTR__REC_FINISHED) {
            s->started = s->issued;
        }
        if (r[i].state == DTR__REC_FINISHED && r[i].t_finished >= ended) {
            s->finished = s->issued;
            ended = r[i].t_finished;
        }
    }
    free(r);
    return s->finished.seq != 0;
}

static void fill_marks(const dtr_group *g, dtr_group_stats *s) {
    enum { FEW = 128, ALL = 8192 };
    s->issued.kind = s->started.kind = s->finished.kind = "";
    if (g->world->recorder != NULL && !read_marks(g, FEW, s)) {
        (void)read_marks(g, ALL, s);
    }
    uint64_t seq = atomic_load(&g->count.seq);
    if (s->issued.seq == 0 && seq > 0) { /* written over: the number is known all the same */
        s->issued.seq = seq;
    }
}

dtr_status dtr_group_get_stats(const dtr_group *group, dtr_group_stats *stats) {
    dtr_status s = dtr__group_check(group, "dtr_group_get_stats");
    if (s != DTR_OK) {
        return s;
    }
    dtr__error_context ctx = { .world = group->world,
                               .operation = "dtr_group_get_stats",
                               .group = group->name };
    DTR_REQUIRE(stats != NULL, &ctx, DTR_ERR_ARG, "dtr_group_get_stats: stats is NULL");
    DTR_REQUIRE(stats->struct_size != 0, &ctx, DTR_ERR_ARG,
                "dtr_group_get_stats: stats->struct_size is 0; begin with DTR_GROUP_STATS_INIT");
    dtr_group_stats all = { .struct_size = stats->struct_size,
                            .errors = atomic_load(&group->count.errors),
                            .comms_by_split = atomic_load(&group->count.comms_by_split),
                            .comms_by_init = atomic_load(&group->count.comms_by_init),
                            .helpers_left = dtr__nccl_helpers(group) };
    dtr__nccl_memory_stats(group, &all.blocks_registered, &all.blocks_windows);
    fill_marks(group, &all);
    memcpy(stats, &all, all.struct_size < sizeof(all) ? all.struct_size : sizeof(all));
    return DTR_OK;
}

/* ---- waiting ---- */

static bool unfinished(dtr_group *g, char *title, size_t cap) {
    pthread_mutex_lock(&g->engine->queue_lock);
    const dtr_work *first = g->engine->works.head;
    if (first != NULL) {
        dtr__work_title(first, title, cap);
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    return first != NULL ||
           atomic_load_explicit(&g->engine->open_works, memory_order_acquire) > 0 ||
           atomic_load_explicit(&g->engine->active, memory_order_acquire) > 0;
}

static dtr_status check_drain(const dtr_group *g, double timeout_s) {
    dtr__error_context ctx = { .world = g->world,
                               .operation = "dtr_group_drain",
                               .group = g->name };
    DTR_TRY(dtr__limit_check(&ctx, "dtr_group_drain", timeout_s));
    DTR_REQUIRE(!dtr__in_callback(g->world), &ctx, DTR_ERR_STATE,
                "dtr_group_drain of group '%s' inside a completion callback of its world would "
                "wait for itself",
                g->name);
    DTR_REQUIRE(atomic_load_explicit(&g->calls.scope, memory_order_acquire) == NULL, &ctx,
                DTR_ERR_STATE,
                "dtr_group_drain: a coalescing scope of group '%s' is open, whose work cannot end "
                "before dtr_coalesce_end",
                g->name);
    return DTR_OK;
}

static dtr_status group_drain(dtr_group *g, double timeout_s) {
    char title[256] = "a callback";
    dtr_status s = dtr__group_check(g, "dtr_group_drain");
    if (s != DTR_OK) {
        return s;
    }
    DTR_TRY(check_drain(g, timeout_s));
    double limit = timeout_s >= 0 ? timeout_s : g->timeout_s, end = dtr__now() + limit;
    dtr__backoff backoff = { 0 };
    while (unfinished(g, title, sizeof title)) {
        if (dtr__group_try_pass(g)) {
            backoff = (dtr__backoff){ 0 };
            continue;
        }
        if (timeout_s == 0) {
            return DTR_IN_PROGRESS;
        }
        bool healthy = atomic_load_explicit(&g->status, memory_order_acquire) == DTR_OK;
        if (healthy && dtr__now() >= end) {
            dtr__error_context ctx = { .world = g->world,
                                       .operation = "dtr_group_drain",
                                       .group = g->name };
            (void)DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                           "dtr_group_drain: group '%s' has unfinished operations on rank %d after "
                           "%g s; the oldest: %s",
                           g->name, g->rank, limit, title);
            dtr__group_break(g, DTR_ERR_TIMEOUT);
        }
        dtr__notifier_visit(g->world);
        dtr__progress_poll_all(g->world);
        dtr__backoff_pause(g->world, &backoff);
    }
    return atomic_load(&g->status) == DTR_OK ? DTR_OK : dtr__group_broken(g);
}

dtr_status dtr_group_drain(dtr_group *group, double timeout_s) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_group_drain", group->name,
                      group_drain(group, timeout_s));
}
