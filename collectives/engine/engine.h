/* What the engine's files share: the memory of works, ending them, and moving a group. */
#ifndef DTR_ENGINE_H
#define DTR_ENGINE_H

#include "core/backend.h"
#include "core/call.h"
#include "core/work.h"
#include "progress_lock.h"

struct dtr__callback {
    struct dtr__callback *next;
    void (*fn)(dtr_work *, dtr_status, void *);
    void *arg;
};

/* The worlds whose callbacks a thread is inside, innermost first. */
typedef struct dtr__callback_frame {
    const dtr_world *world;
    struct dtr__callback_frame *outer;
} dtr__callback_frame;

/* Memory of a group's works. It outlives the group while a handle is held, and with it the error
 * that broke the group, which all its works share. */
struct dtr__pool {
    _Atomic int refs;         /* the group's and one per work */
    _Atomic(dtr_work *) idle; /* given back, linked by next; without a lock, taken all at once */
    _Atomic int n_idle;       /* about */
    pthread_mutex_t lock;
    dtr_work *taken; /* out of `idle`, for the next ones; lock */
    dtr__error_copy *broken;
};

/* The engine's part of a group. queue_lock guards works, incoming, callbacks and counters; a thread
 * holds it briefly, and it calls only `withdraw` and `stop` of a backend under it. The progress
 * lock guards the running lists, backend state and requests; its holder moves the group. Order:
 * progress lock before queue_lock. */
typedef struct dtr__group_engine {
    dtr__progress_lock *progress; /* progress_lock, or that of the world's own group, which all
                                     groups share below MPI_THREAD_MULTIPLE */
    dtr__progress_lock progress_lock;
    _Atomic int active; /* works in incoming and the running lists, inline calls excepted */
    dtr__queue collectives, p2p; /* running, in issue order, first collective under way */
    dtr_work *spare;             /* kept for the next blocking call; progress lock */
    _Atomic uint64_t issued;     /* works of this rank */
    dtr_group *group;
    pthread_mutex_t queue_lock;
    dtr__queue works;    /* all unfinished works, issue order; queue_lock */
    dtr__queue incoming; /* issued, not yet taken into a running list, by run.next; queue_lock */
    struct {
        void (*fn)(dtr_group *, const dtr_op_report *, void *); /* NULL: none */
        void *arg;
    } hook;                 /* dtr_group_on_complete; queue_lock */
    int running;            /* active works that are in the running lists; progress lock */
    int bound;              /* those of the lists whose backend may call MPI, or the program: below
                               MPI_THREAD_MULTIPLE the progress thread asks each; progress lock */
    _Atomic int open_works; /* issued asynchronously, or reported: callbacks not yet run */
    dtr_work *p2p_unstarted, *p2p_cursor; /* first not started; next to be polled; progress lock */
    double next_deadline;                 /* no running work expires before; progress lock */
    atomic_bool sooner;                   /* a work's limit was shortened since it was found */
    uint32_t passes;                      /* that moved nothing; progress lock */
    uint32_t pass;                        /* number of the current one; progress lock */
    bool open;                            /* progress lock */
    dtr__queue later;       /* ended, to be reported by a thread of the program; queue_lock */
    _Atomic bool has_later; /* there is one */
    _Atomic int waiters;    /* callers that poll this group: the progress thread leaves it alone */
    dtr__pool *pool;
    dtr__poller poller;
    dtr__finish *deferred; /* last steps of failed works, run by dtr__engine_close; queue_lock */
    /* Changes when a member on this node reports a failure, NULL: none can; constant. And what it
     * was when that was last looked at; progress lock. */
    const _Atomic uint64_t *failures;
    uint64_t failures_seen;
} dtr__group_engine;

dtr__pool *dtr__pool_new(void);
void dtr__pool_close(dtr__pool *pool);              /* gives the group's reference back */
dtr_work *dtr__work_new(dtr__pool *pool, int refs); /* NULL: out of memory */
void dtr__work_unref(dtr_work *w);
/* Those that have been given back, which are the caller's then, linked by next; one out of such a
 * list, or a new one where it is empty; and the end of a list. */
dtr_work *dtr__works_take_idle(dtr__group_engine *e);
static inline dtr_work *dtr__work_begin_life(dtr_work *w, int refs) {
    w->magic = DTR__WORK_MAGIC;
    atomic_store_explicit(&w->refs, refs, memory_order_relaxed);
    return w;
}
static inline dtr_work *dtr__work_take_from(dtr__group_engine *e, dtr_work **list) {
    dtr_work *w = *list;
    if (w == NULL) {
        return dtr__work_new(e->pool, 1);
    }
    *list = w->next;
    return dtr__work_begin_life(w, 1);
}
void dtr__works_free(dtr_work *list);
/* Copy the counts or batch of the work's call into its own storage. False: out of memory. */
bool dtr__work_own_arrays(dtr_work *w, int size);
/* Reserve space for counts per rank, or for a batch of `n`, so that copying them cannot fail.
 * False: out of memory. */
bool dtr__work_reserve_counts(dtr_work *w, int size);
bool dtr__work_reserve_batch(dtr_work *w, size_t n);

/* End a work: final status and error (taken over unless it is the pool's), out of engine->works.
 * Works with callbacks are put on `called` for dtr__callbacks_run, the others are done at once.
 * False when somebody else has ended it. Any thread; queue_lock not held. */
bool dtr__work_end(dtr_work *w, dtr_status s, dtr__error_copy *error, dtr__queue *called);
/* The part of it under queue_lock, for ending many at once, at one time: *now, 0 until it is looked
 * at. True: it is done, and the caller has to take it off open_works. */
bool dtr__work_end_locked(dtr_work *w, dtr_status s, dtr__error_copy *error, dtr__queue *called,
                          int64_t *now);
/* Bytes of the larger of input and output, of a batch or a scope of all its calls. */
size_t dtr__work_nbytes(const dtr_work *w);
/* Tell the program of a work that has ended (engine/hook.c). No lock held. */
void dtr__hook_run(dtr_work *w);
/* A callback of the program: blocking calls on this world are refused inside of it. */
void dtr__callback_begin(dtr__callback_frame *frame, const dtr_world *world);
void dtr__callback_end(const dtr__callback_frame *frame);
/* No lock held. */
void dtr__callbacks_run(const dtr__queue *called);

/* Final status with the work's error as this thread's last one. The work is done. */
dtr_status dtr__work_result(const dtr_work *w);

enum { DTR__PASSES_PER_HELP = 8 }; /* between two polls of other groups where there is no thread */

/* Start what may start; progress lock held. True when something did. */
bool dtr__group_start_new(dtr_group *g, dtr__queue *called);
/* Put a work straight into its running list, behind everything issued; progress lock held. */
void dtr__group_enter(dtr_group *g, dtr_work *w);
/* The same for one that has been started, before anything else of the group: ahead of all. */
void dtr__group_enter_started(dtr_group *g, dtr_work *w);
/* Move everything of the group once; progress lock held. Returns whether anything moved. */
bool dtr__group_pass(dtr_group *g, dtr__queue *called);
/* Try for the progress lock and pass; callbacks run before it returns. */
bool dtr__group_try_pass(dtr_group *g);
int dtr__group_poll(dtr__poller *poller); /* the progress thread's way in */
/* Poll a work whose limit has passed a last time; unless it has ended, fail it and the group with
 * it. False: not yet, because other nodes are being asked who is missing; wait, and call it again.
 * Progress lock not held. */
bool dtr__work_expire(dtr_work *w);
static inline bool dtr__work_expired(const dtr_work *w, double now) {
    return now >= atomic_load_explicit(&w->limit.deadline, memory_order_relaxed) &&
           !atomic_load_explicit(&w->ended, memory_order_acquire);
}
/* Break with this thread's last error, without asking other ranks: every unfinished work ends. The
 * first caller wins. */
void dtr__group_release_all(dtr_group *g, dtr_status s, dtr__queue *called);

/* The parts of issuing (engine/submit.c). describe fills a new work; admit gives it
 * its numbers and, unless it runs inline, queues it, false when the group is broken; `listed`: it
 * is in engine->works already; hand_over starts what may start and wakes the progress thread. */
dtr_status dtr__work_make(dtr_group *g, int refs, dtr_work **w);
dtr_status dtr__work_describe(dtr_work *w, dtr_group *g, const dtr__call *c, const dtr__request *r,
                              int backend, bool inlined);
/* Of a message that came before with the same arguments, but for its buffer. */
void dtr__work_describe_again(dtr_work *w, dtr_group *g, const dtr__call *c, int backend);
/* It is not over, its call is what it was, but for the buffer, the issue time and the limit. */
void dtr__work_reopen(dtr_work *w);
bool dtr__work_list(dtr_group *g, dtr_work *w); /* into engine->works only, counted as open */
bool dtr__work_admit(dtr_group *g, dtr_work *w, const char *site, bool listed);
/* A call that a graph keeps: it takes its number and a record, and nothing watches it. */
bool dtr__work_admit_captured(dtr_group *g, dtr_work *w, const char *site);
void dtr__work_hand_over(dtr_group *g, const dtr_work *w);
/* A message that has its numbers and its record and is not over, begun or not. Progress lock held,
 * which it gives back. On failure the group is broken and the work gone. */
dtr_status dtr__work_go_on(dtr_group *g, dtr_work *w);
void dtr__work_write_record(dtr_work *w, const char *site, unsigned flags);
void dtr__work_fill_record(const dtr_work *w, const char *site, unsigned flags, dtr__record *r);
/* Run a work inline that has its numbers and its record, for a blocking caller, which alone has it.
 * Progress lock held; *held: still held afterwards, because a thread that is stuck may have it. */
dtr_status dtr__work_run_numbered(dtr_group *g, dtr_work *w, bool *held);
/* Move the group until the work, which is in a running list, has ended. Progress lock held; the
 * function releases it for callbacks and, where no other thread makes progress, for other groups.
 * False: another thread has taken it meanwhile. */
bool dtr__work_finish_inline(dtr_group *g, dtr_work *w);
/* Keep the work for the next blocking call, if the progress lock is held. */
void dtr__work_keep_spare(dtr_group *g, dtr_work *w, bool held);
/* Numbers of the records of a batch's entries, kept behind its list. */
static inline uint64_t *dtr__batch_records(const dtr_work *w) {
    return (uint64_t *)(w->call.batch + w->call.n_batch);
}
/* One more record per entry of a batch, like `r` otherwise. */
void dtr__batch_write_records(dtr_world *world, const dtr__record *r, const dtr_p2p *batch,
                              size_t n, uint64_t *numbers);
/* State and time in the record, and in those of a batch's entries. */
void dtr__work_mark(const dtr_work *w, dtr__rec_state state, dtr_status status);
/* Its end, at the time that its report says if it has a handle. */
void dtr__work_mark_end(dtr_work *w, dtr_status s);
/* One that follows others in the recording gets a record of its own, so that its failure may be
 * noted. queue_lock held once it is listed. */
void dtr__work_set_apart(dtr_work *w);
/* All of a group's do, so that the run may end; progress lock held, queue_lock not. */
void dtr__works_set_apart(dtr_group *g);
/* The output's hash into the record, where wanted: the transfer is complete, the last step not. */
void dtr__work_hash_out(const dtr_work *w);
uint64_t dtr__work_hash_in(const dtr_group *g, const dtr__call *c);
/* Whether to check inputs of such a call for NaN on this rank. */
bool dtr__wants_nan_check(const dtr_group *g, const dtr__call *c);
/* Check the input for NaN where that is wanted, and note the result in w->input. */
void dtr__work_look_for_nan(dtr_work *w, const dtr__call *c);
void dtr__work_write_nan_error(dtr_work *w, const dtr_work *culprit);
/* The same found later, on a device or in memory it went through; the first one counts. */
void dtr__work_found_nan(dtr_work *w, size_t at);
/* How gladly a backend serves a checked call, 0 and *why where it does not. */
int dtr__backend_score(const dtr__backend *b, const dtr_group *g, const dtr__call *c,
                       const char **why);
/* The candidate with the highest score, the first of equals; DTR_ERR_UNSUPPORTED: there is none. */
dtr_status dtr__choose_backend(const dtr_group *g, const dtr__call *c, int *best);
/* queue_lock held: the last steps of a failed work go to engine->deferred. */
void dtr__work_defer_finish(dtr_group *g, dtr_work *w);

/* An operator of the program may be freed once every work that was described with it has given it
 * back, with its end, or as the part of another one. */
void dtr__work_give_held_op(dtr_work *w);
static inline void dtr__work_give_op(dtr_work *w) {
    if (w->memory.holds_op) {
        dtr__work_give_held_op(w);
    }
}
/* A described work that got no number: its last step stays the caller's. */
void dtr__work_drop(dtr_work *w);

/* ---- works made of other works, their parts (engine/subtask.c) ----
 * The whole has a backend of its own that runs the parts; only the whole is in the engine's lists.
 * First member of what describes it. */
struct dtr__composite {
    void (*number)(dtr_work *whole); /* NULL, or called when the whole has its number; queue_lock */
    /* NULL, or last steps of parts, and memory that the transport may still touch, go to
     * engine->deferred; queue_lock. */
    void (*defer_finish)(dtr_group *g, dtr_work *whole);
    void (*free)(struct dtr__composite *self); /* with the work, if it is still there */
    /* Of a scope: whether one of its calls uses this memory. */
    bool (*uses)(const dtr_work *whole, const void *block, size_t nbytes);
    void (*sizes)(const dtr_work *whole,
                  dtr__record *r); /* NULL, or adds up what its record says */
    /* For dtr__composite_defer. */
    bool complete; /* nothing touches its memory any more; progress lock */
    dtr__finish finish;
};
/* A defer_finish: one that is not complete is freed with the group's deferred last steps. */
void dtr__composite_defer(dtr_group *g, dtr_work *whole);
/* A work of parts is issued: `c` describes what was asked for, `site` is where. On failure the
 * composite stays the caller's; on success the engine and the caller each have a reference. */
dtr_status dtr__composite_issue(dtr_group *g, const dtr__call *c, const dtr__backend *b,
                                dtr__composite *composite, const char *site, dtr_work **work);
/* A part with a described call, which decides the backend. Its input is not checked for NaN. */
dtr_status dtr__part_make(dtr_group *g, const dtr__call *c, dtr_work **part);
/* The backend cancels a work that failed with `s`; its error stays the thread's last one. */
void dtr__work_give_up(dtr_group *g, const dtr__backend *b, void *state, dtr_work *w, dtr_status s);
/* Start or poll a part, and end a failed one. Progress lock held. */
dtr_status dtr__part_move(dtr_group *g, dtr_work *whole, dtr_work *part, bool *done);
void dtr__part_cancel(dtr_group *g, dtr_work *part);
static inline bool dtr__part_ended(const dtr_work *part) {
    return atomic_load_explicit(&part->ended, memory_order_relaxed) != 0;
}
/* What an unfinished part waits for, with its title where `named`. */
const char *dtr__part_waits_for(dtr_group *g, dtr_work *part, bool named, char *text, size_t cap);

/* Block until `w` is done. */
void dtr__work_block(dtr_work *w);
/* Make `stream` of the work's device wait for it, and the host for nothing. False: only the host
 * can wait, and nothing was done; else *s is as dtr_work_wait_stream returns it. */
bool dtr__work_order_stream(dtr_work *w, void *stream, dtr_status *s);

/* True on a thread that is inside a completion callback of this world, or inside an operator of
 * the program, of any: it must not block. */
bool dtr__in_callback(const dtr_world *world);

/* ---- a group from its creation to its end ---- */
/* Break a group: every unfinished work ends with `s` and the calling thread's error record. The
 * first break wins. Any thread, no lock of the group held. dtr_group_abort is made of it. */
void dtr__group_break(dtr_group *group, dtr_status s);

/* Engine side of a group's life, for group creation and destruction. open: the group's facts and
 * backends are ready; `world_group` is the world's own (the group itself when it is that).
 * Operations are legal from then on. drain: finish everything issued and all callbacks, at most
 * `limit_s` seconds; then the group is aborted and the result DTR_ERR_TIMEOUT. On a broken group it
 * only cleans up. close: after drain; cancels what is left, and no thread touches the group any
 * more; DTR_ERR_TIMEOUT where one is still inside it after `limit_s`: the group stays as it is, and
 * the world can only be abandoned unless that thread comes back. Handles of works stay valid.
 * patience: how long to wait for such a thread, of which `left_s` are left of a healthy group's
 * limit. */
dtr_status dtr__engine_open(dtr_group *group, dtr_group *world_group);
dtr_status dtr__engine_drain(dtr_group *group, double limit_s);
dtr_status dtr__engine_close(dtr_group *group, double limit_s);
/* Nothing of the group is unfinished and no thread is inside it: a look, which may say no while
 * another thread has the progress lock. Of a group whose end has begun, yes is final. */
bool dtr__engine_at_rest(dtr_group *group);
double dtr__engine_patience(const dtr_group *group, double left_s);

/* Whether a pass is to ask CUDA for an event: always where a thread waits, which makes the passes
 * then; else, on the progress thread, only now and then, as each question takes a lock of CUDA's
 * that launches need. *asked_ns: of the last one, 0: none yet. */
bool dtr__event_due(const dtr_world *world, int64_t *asked_ns);

#endif /* DTR_ENGINE_H */
