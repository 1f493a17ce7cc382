/* Submitting a work: backend, description, number and record, then the queue or, in a blocking
 * caller, the end. */
#include "core/team.h"
#include "engine.h"
#include "kernels/user_ops.h"
#include "wait.h"

enum { PASSES_PER_VISIT = 64 }; /* between two visits to the notifier */

int dtr__backend_score(const dtr__backend *b, const dtr_group *g, const dtr__call *c,
                       const char **why) {
    if ((b->kinds >> c->kind & 1) == 0) {
        *why = "it has no such operation";
        return 0;
    }
    return b->score != NULL ? b->score(g, c, why) : 1;
}

dtr_status dtr__choose_backend(const dtr_group *g, const dtr__call *c, int *best) {
    int best_score = 0;
    const char *why = NULL, *reason = NULL;
    for (int i = 0; i < g->backends.n; i++) {
        int score = dtr__backend_score(g->backends.table[i], g, c, &why);
        if (score > best_score) {
            best_score = score;
            *best = i;
        } else if (score == 0 && reason == NULL) {
            reason = why;
        }
    }
    if (best_score == 0) {
        dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
        return DTR_FAIL(&ctx, DTR_ERR_UNSUPPORTED,
                        "%s on group '%s': no backend of '%s' can serve it%s%s",
                        dtr__kind_name(c->kind), g->name, g->backends.chosen,
                        reason != NULL ? ": " : "", reason != NULL ? reason : "");
    }
    return DTR_OK;
}

/* Freed by another thread since the call was checked. */
static dtr_status take_op(dtr_work *w, const dtr__call *c) {
    dtr__error_context ctx = dtr__work_context(w);
    w->memory.holds_op = dtr__user_op_take(c->op);
    DTR_REQUIRE(w->memory.holds_op, &ctx, DTR_ERR_ARG,
                "%s on group '%s': the operator has been freed", dtr__kind_name(c->kind),
                w->group->name);
    return DTR_OK;
}

void dtr__work_give_held_op(dtr_work *w) {
    w->memory.holds_op = false;
    dtr__user_op_give(w->call.op);
}

void dtr__work_reopen(dtr_work *w) {
    const double limit = w->call.timeout_s;
    w->started = false;
    atomic_store_explicit(&w->ended, 0, memory_order_relaxed);
    atomic_store_explicit(&w->done, 0, memory_order_relaxed);
    atomic_store_explicit(&w->source, -1, memory_order_relaxed);
    atomic_store_explicit(&w->limit.seconds, limit, memory_order_relaxed);
    atomic_store_explicit(&w->limit.deadline, dtr__now_at(w->call.issued_ns) + limit,
                          memory_order_relaxed);
}

static void fill(dtr_work *w, dtr_group *g, const dtr__call *c, int backend, bool inlined) {
    w->group = g;
    w->world = g->world;
    if (c != &w->call) {
        w->call = *c;
    }
    w->backend = g->backends.table[backend];
    w->backend_state = g->backends.state[backend];
    w->status = DTR_OK;
    w->error = NULL;
    w->request = NULL;
    w->memory.like = NULL;
    w->callbacks = NULL;
    w->paired = false;
    atomic_store_explicit(&w->run.linked, false, memory_order_relaxed);
    w->input.status = DTR_OK;
    w->composite = NULL;
    w->memory.holds_op = false;
    w->scope.part = w->scope.parts = 0;
    w->scope.nbytes = 0;
    atomic_store_explicit(&w->scope.recording, DTR__RECORDING_NOT, memory_order_relaxed);
    w->inline_call = inlined;
    if (w->call.issued_ns == 0) {
        w->call.issued_ns = dtr__stamp_ns();
    }
    dtr__work_reopen(w);
}

void dtr__work_describe_again(dtr_work *w, dtr_group *g, const dtr__call *c, int backend) {
    w->finish = NULL;
    w->input.hash = 0;
    fill(w, g, c, backend, false);
}

dtr_status dtr__work_describe(dtr_work *w, dtr_group *g, const dtr__call *c, const dtr__request *r,
                              int backend, bool inlined) {
    w->finish = r->finish;
    fill(w, g, c, backend, inlined);
    w->input.hash = g->world->recording.hashes ? dtr__work_hash_in(g, c) : 0;
    if (c->device.type == DTR_CPU && dtr__wants_nan_check(g, c)) {
        dtr__work_look_for_nan(w, c);
    }
    if (dtr__op_is_user(c->op)) {
        DTR_TRY(take_op(w, c));
    }
    if (c->in_counts == NULL && c->out_counts == NULL && c->n_batch == 0) {
        return DTR_OK;
    }
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    if (!dtr__work_own_arrays(w, g->size)) {
        dtr__work_give_op(w);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM,
                        "%s on group '%s': out of memory for the list of operations or counts",
                        dtr__kind_name(c->kind), g->name);
    }
    return DTR_OK;
}

dtr_status dtr__work_make(dtr_group *g, int refs, dtr_work **w) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    *w = dtr__work_new(g->engine->pool, refs);
    DTR_REQUIRE(*w != NULL, &ctx, DTR_ERR_NOMEM,
                "out of memory for an operation of group '%s' (%zu bytes)", g->name,
                sizeof(dtr_work));
    return DTR_OK;
}

/* ---- numbers and lists ---- */

static void list(dtr__queue *works, dtr_work *w) {
    w->next = NULL;
    w->prev = works->tail;
    *(works->tail != NULL ? &works->tail->next : &works->head) = w;
    works->tail = w;
}

static void queue(dtr__queue *incoming, dtr_work *w) {
    w->run.next = NULL;
    *(incoming->tail != NULL ? &incoming->tail->run.next : &incoming->head) = w;
    incoming->tail = w;
}

/* What is to be queued counts as active before it has its numbers: a repeated call
 * (api/fast_path.c), which takes its own without the queue's lock, sees it there if it comes later,
 * or is waited for (engine/progress_lock.h). Inline calls hold it. */
static void number(dtr_group *g, dtr_work *w) {
    _Atomic uint64_t *counter = dtr__kind_is_p2p(w->call.kind) ? &g->count.p2p_seq : &g->count.seq;
    if (!w->inline_call) {
        atomic_fetch_add_explicit(&g->engine->active, 1, memory_order_seq_cst);
        dtr__progress_lock_wait_numbered(g->world, g->engine->progress);
    }
    w->seq = atomic_fetch_add_explicit(counter, 1, memory_order_acq_rel) + 1;
    w->issue = atomic_fetch_add_explicit(&g->engine->issued, 1, memory_order_acq_rel) + 1;
}

bool dtr__work_list(dtr_group *g, dtr_work *w) {
    pthread_mutex_lock(&g->engine->queue_lock);
    bool open = atomic_load_explicit(&g->status, memory_order_relaxed) == DTR_OK;
    if (open) {
        list(&g->engine->works, w);
        atomic_fetch_add_explicit(&g->engine->open_works, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    return open;
}

bool dtr__work_admit(dtr_group *g, dtr_work *w, const char *site, bool listed) {
    pthread_mutex_lock(&g->engine->queue_lock);
    bool open = atomic_load_explicit(&g->status, memory_order_relaxed) == DTR_OK;
    if (open) {
        number(g, w);
        dtr__work_write_record(w, site, 0);
        if (!listed) {
            list(&g->engine->works, w);
            if (!w->inline_call) {
                atomic_fetch_add_explicit(&g->engine->open_works, 1, memory_order_relaxed);
            }
        }
        if (w->finish != NULL) {
            w->finish->taken = true;
        }
        if (w->composite != NULL && w->composite->number != NULL) {
            w->composite->number(w);
        } else if (w->input.status != DTR_OK) {
            dtr__work_write_nan_error(w, w);
        }
        if (!w->inline_call) {
            queue(&g->engine->incoming, w);
        }
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    return open;
}

bool dtr__work_admit_captured(dtr_group *g, dtr_work *w, const char *site) {
    pthread_mutex_lock(&g->engine->queue_lock);
    bool open = atomic_load_explicit(&g->status, memory_order_relaxed) == DTR_OK;
    if (open) {
        w->inline_call = true; /* it does not become active */
        number(g, w);
        w->inline_call = false;
        dtr__work_write_record(w, site, DTR__REC_CAPTURED);
        dtr__work_mark(w, DTR__REC_ENQUEUED, DTR_OK);
        atomic_store_explicit(&w->scope.recording, DTR__RECORDING_GRAPH, memory_order_release);
        atomic_store_explicit(&w->ended, 1, memory_order_relaxed);
        atomic_store_explicit(&w->done, 1, memory_order_release);
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    return open;
}

/* ---- running ---- */

/* Progress lock held; it is given away for callbacks and, where this thread is the only one that
 * moves things, for other groups. False: another thread has taken it meanwhile, which may be stuck
 * with it, so that the work was waited for without. */
bool dtr__work_finish_inline(dtr_group *g, dtr_work *w) {
    bool help = !dtr__progress_has_thread(g->world);
    dtr__backoff backoff = { 0 };
    for (unsigned n = 1; w->run.linked; n++) {
        dtr__queue called = { NULL, NULL };
        bool moved = dtr__group_pass(g, &called);
        if (n % PASSES_PER_VISIT == 0) {
            dtr__failure_of(g->world)->poll(g->world, &called);
        }
        bool others = help && n % DTR__PASSES_PER_HELP == 0 && w->run.linked;
        if (called.head != NULL || others) {
            dtr__progress_lock_release(g->engine->progress);
            dtr__callbacks_run(&called);
            if (others) {
                dtr__progress_poll_all(g->world);
            }
            if (!dtr__progress_lock_try(g->engine->progress)) {
                dtr__work_block(w);
                return false;
            }
        }
        if (moved) {
            backoff = (dtr__backoff){ 0 };
        } else if (w->run.linked) {
            dtr__backoff_pause(g->world, &backoff);
        }
    }
    if (!dtr__work_is_done(w)) { /* another thread has ended it, and is telling the program so */
        dtr__progress_lock_release(g->engine->progress);
        dtr__work_block(w);
        return false;
    }
    return true;
}

dtr_status dtr__work_run_numbered(dtr_group *g, dtr_work *w, bool *held) {
    *held = true;
    atomic_store_explicit(&w->refs, 2, memory_order_relaxed);
    pthread_mutex_lock(&g->engine->queue_lock);
    bool open = atomic_load_explicit(&g->status, memory_order_relaxed) == DTR_OK;
    if (open) {
        list(&g->engine->works, w);
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    if (!open) {
        if (w->started) {
            w->backend->cancel(g, w->backend_state, w);
        }
        dtr_status s = dtr__group_broken(g);
        dtr__work_mark(w, DTR__REC_FAILED, s);
        atomic_store_explicit(&w->refs, 1, memory_order_relaxed);
        return s;
    }
    if (w->started) {
        dtr__group_enter_started(g, w);
    } else {
        dtr__group_enter(g, w);
    }
    *held = dtr__work_finish_inline(g, w);
    return dtr__work_result(w);
}

void dtr__work_keep_spare(dtr_group *g, dtr_work *w, bool held) {
    dtr__work_give_op(w); /* of a call that was refused after it was described */
    if (held && g->engine->spare == NULL && w->error == NULL) {
        g->engine->spare = w;
    } else {
        dtr__work_unref(w);
    }
}

dtr_status dtr__work_go_on(dtr_group *g, dtr_work *w) {
    dtr__queue called = { NULL, NULL };
    atomic_store_explicit(&w->refs, 2, memory_order_relaxed);
    if (!dtr__work_list(g, w)) {
        if (w->started) {
            w->backend->cancel(g, w->backend_state, w);
        }
        dtr__progress_lock_release(g->engine->progress);
        const dtr_status s = dtr__group_broken(g);
        dtr__work_set_apart(w);
        dtr__work_mark(w, DTR__REC_FAILED, s);
        atomic_store_explicit(&w->refs, 1, memory_order_relaxed);
        dtr__work_unref(w);
        return s;
    }
    atomic_fetch_add_explicit(&g->engine->active, 1, memory_order_seq_cst);
    dtr__group_enter_started(g, w);
    if (!w->started) {
        dtr__group_start_new(g, &called);
    }
    dtr__progress_lock_release(g->engine->progress);
    if (called.head != NULL) {
        dtr__callbacks_run(&called);
    }
    if (!atomic_load_explicit(&w->ended, memory_order_acquire)) {
        dtr__progress_wake_soon(g->world);
    }
    return DTR_OK;
}

void dtr__work_hand_over(dtr_group *g, const dtr_work *w) {
    if (dtr__progress_lock_try(g->engine->progress)) {
        dtr__queue called = { NULL, NULL };
        dtr__group_start_new(g, &called);
        dtr__progress_lock_release(g->engine->progress);
        dtr__callbacks_run(&called);
    }
    if (!atomic_load_explicit(&w->ended, memory_order_acquire)) {
        /* A thread that cannot move it need not come at once: it looks after the work's limit. Nor
         * need one that would take this core. */
        const bool can =
            w->backend->without_mpi || g->world->mpi.thread_level == MPI_THREAD_MULTIPLE;
        (can && g->world->cpus.n > 1 ? dtr__progress_wake : dtr__progress_wake_soon)(g->world);
    }
}
