/* Blocking until a work is over, all of several, or any of them. */
#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "core/team.h"
#include "engine/engine.h"
#include "engine/turn.h"
#include "recorder/counters.h"
#include "wait.h"

enum { WAITS_WITHOUT_CLOCK = 64 }; /* loops of a waiter for each reading of the clock */
static const double LET_GO_S = 1;

/* While a caller counts as a waiter its group stays, and the progress thread leaves it alone. */
static void begin_waiting(const dtr_work *w) {
    atomic_fetch_add_explicit(&w->group->engine->waiters, 1, memory_order_relaxed);
}

static void end_waiting(const dtr_work *w) {
    atomic_fetch_sub_explicit(&w->group->engine->waiters, 1, memory_order_release);
}

/* The caller may free the buffers of a failed work then. */
static void await_stop(const dtr_work *w) {
    dtr_group *g = w->group;
    for (int i = 0; w->status < 0 && i < g->backends.served; i++) {
        if (g->backends.table[i]->await_stop != NULL) {
            g->backends.table[i]->await_stop(g, g->backends.state[i]);
        }
    }
}

void dtr__work_let_go(dtr_work *w) {
    if (w->status >= 0 || !atomic_load_explicit(&w->run.linked, memory_order_acquire) ||
        !dtr__log_may_wait()) { /* the watchdog calls no MPI */
        return;
    }
    dtr_group *g = w->group;
    dtr__backoff backoff = { 0 };
    begin_waiting(w);
    for (double end = dtr__now() + LET_GO_S; dtr__now() < end;) {
        if (!atomic_load_explicit(&w->run.linked, memory_order_acquire)) {
            break;
        }
        if (!dtr__group_try_pass(g)) {
            dtr__backoff_pause(g->world, &backoff);
        }
    }
    end_waiting(w);
}

static void poll_world(dtr_world *world) {
    if (!dtr__progress_has_thread(world)) {
        dtr__progress_poll_all(world);
    }
}

/* Of worlds that differ from `own` and have no thread, whose ranks may wait for this one. */
static void help_others(const dtr_world *own, dtr_work *const *works, size_t n) {
    const dtr_world *last = own;
    for (size_t i = 0; i < n; i++) {
        const dtr_work *w = works[i];
        if (w == NULL || dtr__work_is_done(w) || w->world == last) {
            continue;
        }
        begin_waiting(w);
        if (!dtr__work_is_done(w)) {
            poll_world(w->world);
            last = w->world;
        }
        end_waiting(w);
    }
}

void dtr__work_block_among(dtr_work *w, dtr_work *const *others, size_t n_others) {
    dtr_group *g = w->group;
    dtr__backoff backoff = { 0 };
    begin_waiting(w);
    for (unsigned n = 1; !dtr__work_is_done(w); n++) {
        bool moved = dtr__group_try_pass(g);
        if (n % DTR__PASSES_PER_HELP == 0) {
            poll_world(g->world);
            help_others(g->world, others, n_others);
        }
        if ((n > 64 * WAITS_WITHOUT_CLOCK || n % WAITS_WITHOUT_CLOCK == 0) &&
            dtr__work_expired(w, dtr__now()) && dtr__work_expire(w)) {
            continue;
        }
        if (moved) {
            backoff = (dtr__backoff){ 0 };
        } else {
            if (n % WAITS_WITHOUT_CLOCK == 0) {
                dtr__failure_of(g->world)->visit(g->world);
            }
            dtr__backoff_pause(g->world, &backoff);
        }
    }
    await_stop(w);
    end_waiting(w);
    dtr__work_let_go(w);
}

void dtr__work_block(dtr_work *w) {
    dtr__work_block_among(w, NULL, 0);
}

/* ---- several works ---- */

/* As many as have not ended well are listed; of more the whole list is looked through each time. */
enum { FEW = 64 };

typedef struct several {
    dtr_work *const *works; /* those that matter, which are all or, in their order, some */
    size_t n;
    dtr_work *const *given; /* by the program */
    size_t n_given;
    const char *entry;
    double timeout_s, began;
    size_t first; /* that is not NULL, or n */
    size_t open;  /* those before it have ended well */
    bool plain;   /* they are of one group, in host memory, and can be waited for */
} several;

/* A handle of something that has ended well, so that there is nothing to wait for or to refuse. */
static bool is_well(const dtr_work *w) {
    return w != NULL && w->magic == DTR__WORK_MAGIC && dtr__work_is_done(w) &&
           w->status == DTR_OK &&
           atomic_load_explicit(&w->scope.recording, memory_order_relaxed) == DTR__RECORDING_NOT;
}

/* The first from there on of which more is to be asked, or n. */
static size_t next_other(const several *all, size_t from) {
    from = from < all->open ? all->open : from;
    while (from < all->n && is_well(all->works[from])) {
        from++;
    }
    return from;
}

static several several_of(dtr_work *const *works, size_t n, double timeout_s, const char *entry) {
    several s = { works, n, works, n, entry, timeout_s, dtr__now(), 0, 0, false };
    while (works != NULL && s.first < n && works[s.first] == NULL) {
        s.first++;
    }
    return s;
}

static bool is_plain(const dtr_work *w, const dtr_group *g) {
    return w != NULL && w->magic == DTR__WORK_MAGIC && w->group == g &&
           w->call.device.type == DTR_CPU &&
           atomic_load_explicit(&w->scope.recording, memory_order_acquire) == DTR__RECORDING_NOT;
}

/* Only the others matter to who waits for all. */
static void leave_out_well(several *all, dtr_work *few[FEW]) {
    size_t n = 0;
    bool plain = true;
    for (size_t i = 0; all->works != NULL && i < all->n; i++) {
        dtr_work *w = all->works[i];
        if (is_well(w)) {
            continue;
        }
        if (n == FEW) {
            all->open = next_other(all, 0);
            return;
        }
        plain = plain && (n == 0 ? w != NULL && is_plain(w, w->group) : is_plain(w, few[0]->group));
        few[n++] = w;
    }
    if (all->works != NULL) {
        all->works = few;
        all->n = n;
        all->plain = plain && n > 0;
    }
}

static size_t place_of(const several *all, const dtr_work *w) {
    size_t i = 0;
    while (all->given[i] != w) {
        i++;
    }
    return i;
}

/* Everything that can be refused is, before any of them is waited for. */
static dtr_status check(const several *all) {
    const char *entry = all->entry;
    DTR_TRY(dtr__fork_check(entry));
    DTR_REQUIRE(all->works != NULL || all->n == 0, NULL, DTR_ERR_ARG,
                "%s: works is NULL, and n is %zu; give an array of n handles", entry, all->n);
    DTR_TRY(dtr__limit_check(NULL, entry, all->timeout_s));
    if (all->plain) {
        return DTR_OK;
    }
    for (size_t i = 0; (i = next_other(all, i)) < all->n; i++) {
        const dtr_work *w = all->works[i];
        DTR_REQUIRE(w == NULL || w->magic == DTR__WORK_MAGIC, NULL, DTR_ERR_ARG,
                    "%s: works[%zu] is no work, or has been released", entry, place_of(all, w));
    }
    for (size_t i = 0; (i = next_other(all, i)) < all->n; i++) {
        const dtr_work *w = all->works[i];
        if (w != NULL && !dtr__work_is_captured(w) && !dtr__work_is_final(w)) {
            DTR_TRY(dtr__work_check_recorded(w, entry));
        }
    }
    return DTR_OK;
}

static bool is_unfinished(const dtr_work *w) {
    return w != NULL && !dtr__work_is_captured(w) && !dtr__work_is_final(w);
}

/* Those that are under way when one of them begins to be waited for. */
static dtr_status prepare_all(const several *all, bool *worlds_differ) {
    const dtr_world *first = NULL;
    if (all->plain && all->timeout_s < 0 && !dtr__in_callback(all->works[0]->world)) {
        return DTR_OK;
    }
    for (size_t i = 0; all->timeout_s != 0 && (i = next_other(all, i)) < all->n; i++) {
        const dtr_work *w = all->works[i];
        if (is_unfinished(w)) {
            DTR_TRY(w->call.device.type == DTR_CPU ? dtr__work_check_callback(w, all->entry)
                                                   : DTR_OK);
            *worlds_differ = *worlds_differ || (first != NULL && first != w->world);
            first = w->world;
        }
    }
    for (size_t i = 0; i < all->n && all->timeout_s > 0; i++) {
        dtr_work *w = all->works[i];
        if (is_unfinished(w)) {
            dtr__work_set_limit(w, all->timeout_s, dtr__work_limit_counts_from(w, false));
        }
    }
    return DTR_OK;
}

/* One after the other: whoever is not waited for yet is moved by the progress thread of its world
 * or, where there is none, by the wait. */
static dtr_status wait_all(const several *all) {
    bool worlds_differ = false, unfinished = false;
    dtr_status failed = DTR_OK;
    dtr__error_copy *cause = NULL;
    DTR_TRY(check(all));
    DTR_TRY(prepare_all(all, &worlds_differ));
    const dtr_work *held = all->plain ? all->works[0] : NULL;
    if (held != NULL) {
        begin_waiting(held); /* between two works, too */
    }
    for (size_t i = 0; (i = next_other(all, i)) < all->n; i++) {
        dtr_work *w = all->works[i];
        const dtr__waiter how = { .entry = all->entry,
                                  .stream = dtr__work_own_stream(w),
                                  .others = worlds_differ ? all->works : NULL,
                                  .n_others = worlds_differ ? all->n : 0 };
        dtr_status s = dtr__work_wait(w, all->timeout_s == 0 ? 0 : -1, &how);
        unfinished = unfinished || s == DTR_IN_PROGRESS;
        if (s < 0 && failed == DTR_OK) {
            failed = s;
            cause = dtr__error_save();
        }
    }
    if (held != NULL) {
        end_waiting(held);
    }
    if (unfinished) { /* an earlier one may still fail */
        dtr__error_copy_free(cause);
        return DTR_IN_PROGRESS;
    }
    return failed < 0 ? dtr__error_put_back(cause, failed) : DTR_OK;
}

/* ---- any of several ---- */

static bool find_final(const several *any, size_t *index) {
    for (size_t i = 0; i < any->n; i++) {
        if (any->works[i] != NULL && dtr__work_is_final(any->works[i])) {
            *index = i;
            return true;
        }
    }
    return false;
}

/* One pass of each group, where its works lie side by side. */
static bool pass_groups(const several *any) {
    const dtr_group *last = NULL;
    bool moved = false;
    for (size_t i = 0; i < any->n; i++) {
        const dtr_work *w = any->works[i];
        if (w != NULL && !dtr__work_is_done(w) && w->group != last) {
            last = w->group;
            moved = dtr__group_try_pass(w->group) || moved;
        }
    }
    return moved;
}

static void end_waiting_any(const several *any, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const dtr_work *w = any->works[i];
        if (w != NULL) {
            dtr_world *world = w->world;
            end_waiting(w);
            if (world->turn != NULL) {
                dtr__turn_end(world);
            }
        }
    }
}

static dtr_status begin_waiting_any(const several *any) {
    for (size_t i = 0; i < any->n; i++) {
        const dtr_work *w = any->works[i];
        if (w == NULL) {
            continue;
        }
        dtr_status s = dtr__work_check_callback(w, any->entry);
        s = s == DTR_OK ? dtr__work_take_turn(w, any->entry) : s;
        if (s < 0) {
            end_waiting_any(any, i);
            return s;
        }
        begin_waiting(w);
    }
    return DTR_OK;
}

/* Their own limits hold while any is waited for, unless the wait may last longer. */
static void extend_limits(const several *any) {
    const double end = any->began + any->timeout_s;
    for (size_t i = 0; i < any->n && any->timeout_s > 0; i++) {
        dtr_work *w = any->works[i];
        if (w != NULL && atomic_load_explicit(&w->limit.deadline, memory_order_relaxed) < end) {
            dtr__work_set_limit(w, any->timeout_s, any->began);
        }
    }
}

static void look_at_limits(const several *any) {
    const double now = dtr__now();
    const bool over = any->timeout_s > 0 && now >= any->began + any->timeout_s;
    size_t index;
    for (size_t i = 0; i < any->n && !find_final(any, &index); i++) {
        dtr_work *w = any->works[i];
        if (w == NULL) {
            continue;
        }
        if (over) {
            dtr__work_set_limit(w, any->timeout_s, any->began);
        }
        if (dtr__work_expired(w, now)) {
            (void)dtr__work_expire(w);
        }
    }
}

static void help_any(const several *any) {
    const dtr_world *last = NULL;
    for (size_t i = 0; i < any->n; i++) {
        if (any->works[i] != NULL && any->works[i]->world != last) {
            last = any->works[i]->world;
            poll_world(any->works[i]->world);
            dtr__failure_of(last)->visit(any->works[i]->world);
        }
    }
}

/* None is over yet. The caller counts as a waiter of all of them. */
static void block_any(const several *any, size_t *index) {
    const dtr_world *world = any->works[any->first]->world;
    dtr__backoff backoff = { 0 };
    for (unsigned n = 1; !find_final(any, index); n++) {
        bool moved = pass_groups(any);
        if (n % DTR__PASSES_PER_HELP == 0) {
            help_any(any);
        }
        if (n > 64 * WAITS_WITHOUT_CLOCK || n % WAITS_WITHOUT_CLOCK == 0) {
            look_at_limits(any);
        }
        if (moved) {
            backoff = (dtr__backoff){ 0 };
        } else {
            dtr__backoff_pause(world, &backoff);
        }
    }
    await_stop(any->works[*index]);
}

static dtr_status wait_any(const several *any, size_t *index) {
    size_t found = 0;
    DTR_TRY(check(any));
    DTR_REQUIRE(any->first < any->n, NULL, DTR_ERR_ARG,
                "%s: none of the %zu entries is a work, so none can end", any->entry, any->n);
    DTR_REQUIRE(index != NULL, NULL, DTR_ERR_ARG, "%s: index is NULL", any->entry);
    for (size_t i = 0; i < any->n; i++) {
        if (any->works[i] != NULL && dtr__work_is_captured(any->works[i])) {
            return dtr__work_refuse_captured(any->works[i], any->entry);
        }
    }
    bool over = find_final(any, &found);
    if (!over) {
        (void)pass_groups(any);
        over = find_final(any, &found);
    }
    if (!over && any->timeout_s == 0) {
        return DTR_IN_PROGRESS;
    }
    if (!over) {
        dtr_world *world = any->works[any->first]->world;
        DTR_TRY(begin_waiting_any(any));
        extend_limits(any);
        const bool counts = world->recording.counters != NULL;
        const int64_t began = counts ? dtr__now_ns() : 0;
        block_any(any, &found);
        if (counts) {
            dtr__count_waited(world, dtr__now_ns() - began);
        }
        end_waiting_any(any, any->n);
    }
    *index = found;
    dtr__work_let_go(any->works[found]);
    return dtr__work_result(any->works[found]);
}

/* ---- without the host ---- */

bool dtr__work_order_stream(dtr_work *w, void *stream, dtr_status *s) {
    if (dtr__work_is_final(w)) {
        *s = dtr__work_result(w);
        return true;
    }
    *s = DTR_OK;
    return w->call.device.type != DTR_CPU && w->backend->stream_wait != NULL &&
           w->backend->stream_wait(w, stream, s);
}

/* ---- dtr/work.h ---- */

static dtr__trace *trace_of(const several *some) {
    const bool any = some->given != NULL && some->first < some->n_given;
    return any ? dtr__work_trace(some->given[some->first]) : NULL;
}

static const char *traced(const several *some, char text[32]) {
    snprintf(text, 32, "%zu works", some->n_given);
    return text;
}

dtr_status dtr_work_wait_all(dtr_work *const *works, size_t n, double timeout_s) {
    dtr_work *few[FEW];
    several all = several_of(works, n, timeout_s, "dtr_work_wait_all");
    leave_out_well(&all, few);
    return DTR_TRACED(trace_of(&all), all.entry, traced(&all, (char[32]){ "" }), wait_all(&all));
}

dtr_status dtr_work_wait_any(dtr_work *const *works, size_t n, double timeout_s, size_t *index) {
    const several any = several_of(works, n, timeout_s, "dtr_work_wait_any");
    return DTR_TRACED(trace_of(&any), any.entry, traced(&any, (char[32]){ "" }),
                      wait_any(&any, index));
}
