/* What the engine's files share: the memory of works, ending them, and moving a group. */
#ifndef DTR_ENGINE_H
#define DTR_ENGINE_H

#include "coll_internal.h"

struct dtr__callback {
    struct dtr__callback *next;
    void (*fn)(dtr_work *, dtr_status, void *);
    void *arg;
};

/* Memory of a group's works. It outlives the group while a handle is held, and with it the error
 * that broke the group, which all its works share. */
struct dtr__pool {
    _Atomic int refs; /* the group's and one per work that is not in `free` */
    pthread_mutex_t lock;
    dtr_work *free; /* linked by next; lock */
    int n_free;     /* lock */
    bool closed;    /* the group is gone: nothing is kept; lock */
    dtr__error_copy *broken;
};

dtr__pool *dtr__pool_new(void);
void dtr__pool_close(dtr__pool *pool);              /* gives the group's reference back */
dtr_work *dtr__work_new(dtr__pool *pool, int refs); /* NULL: out of memory */
void dtr__work_unref(dtr_work *w);
/* Copy the counts or batch of `c` into the work's own storage. False: out of memory. */
bool dtr__work_own_arrays(dtr_work *w, int size);
/* Room for `n` counts per rank or for a batch of `n`, so that copying them cannot fail. False: out
 * of memory. */
bool dtr__work_reserve_counts(dtr_work *w, int size);
bool dtr__work_reserve_batch(dtr_work *w, size_t n);

/* End a work: final status and error (taken over unless it is the pool's), out of group->works.
 * Works with callbacks are put on `called` for dtr__callbacks_run, the others are done at once.
 * False when somebody else has ended it. Any thread; queue_lock not held. */
bool dtr__work_end(dtr_work *w, dtr_status s, dtr__error_copy *error, dtr__queue *called);
/* The part of it under queue_lock, for ending many at once. */
void dtr__work_end_locked(dtr_work *w, dtr_status s, dtr__error_copy *error, dtr__queue *called);
/* No lock held. */
void dtr__callbacks_run(const dtr__queue *called);

/* Final status with the work's error as this thread's last one. The work is done. */
dtr_status dtr__work_result(const dtr_work *w);

enum { DTR__PASSES_PER_HELP = 8 }; /* between two looks at other groups where there is no thread */

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
/* Take a last look at a work whose limit has passed; unless it has ended, fail it and the group
 * with it. Progress lock not held. */
void dtr__work_expire(dtr_work *w);
/* Break with this thread's last error, once all members agree on what broke it (verdict.c), which
 * may be what another one found: at once on one node, after a second at most between several. The
 * progress lock may be held. */
void dtr__group_break_with(dtr_group *g, dtr_status s, dtr__queue *called);
/* The same without asking anybody: every unfinished work ends. The first wins. */
void dtr__group_release_all(dtr_group *g, dtr_status s, dtr__queue *called);

/* The parts of issuing (coll_issue.c) that scopes share. describe fills a new work; admit gives it
 * its numbers and, unless it runs inline, queues it, false when the group is broken; `listed`: it
 * is in group->works already; hand_over starts what may start and wakes the progress thread. */
dtr_status dtr__work_make(dtr_group *g, int refs, dtr_work **w);
dtr_status dtr__work_describe(dtr_work *w, dtr_group *g, const dtr__call *c, const dtr__request *r,
                              int backend, bool inlined);
bool dtr__work_list(dtr_group *g, dtr_work *w); /* into group->works only, counted as open */
bool dtr__work_admit(dtr_group *g, dtr_work *w, const char *site, bool listed);
/* A call that a graph keeps: it takes its number and a record, and nothing watches it. */
bool dtr__work_admit_captured(dtr_group *g, dtr_work *w, const char *site);
void dtr__work_hand_over(dtr_group *g, const dtr_work *w);
void dtr__work_write_record(dtr_work *w, const char *site, unsigned flags);
void dtr__work_fill_record(const dtr_work *w, const char *site, unsigned flags, dtr__record *r);
/* Run a work inline that has its numbers and its record, in a blocking caller who alone has it.
 * Progress lock held; afterwards as *held says, because a thread that is stuck may have it. */
dtr_status dtr__work_run_numbered(dtr_group *g, dtr_work *w, bool *held);
/* It may serve the next blocking call, if the progress lock is held. */
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
/* The output's hash into the record, where wanted: the transfer is complete, the last step not. */
void dtr__work_hash_out(const dtr_work *w);
void dtr__work_write_nan_error(dtr_work *w, const dtr_work *culprit);
dtr_status dtr__choose_backend(const dtr_group *g, const dtr__call *c, int *best);
dtr_status dtr__group_broken(const dtr_group *g); /* the error that broke it, as this thread's */
/* queue_lock held: the last steps of a failed work go to group->late. */
void dtr__work_keep_late(dtr_group *g, dtr_work *w);

/* A described work that got no number: its last step stays the caller's. */
void dtr__work_drop(dtr_work *w);
/* The score of a backend that is chosen elsewhere. */
int dtr__score_asked(const dtr_group *g, const dtr__call *call, const char **why);

uint64_t dtr__mix(uint64_t h, uint64_t v); /* of fingerprints */

/* ---- works made of other works, their parts (coll_parts.c) ----
 * The whole has a backend of its own that runs the parts; only the whole is in the engine's lists.
 * First member of what describes it. */
struct dtr__composite {
    void (*number)(dtr_work *whole); /* NULL, or called when the whole has its number; queue_lock */
    /* Last steps of parts, and memory that the transport may still touch, go to group->late;
     * queue_lock. */
    void (*keep_late)(dtr_group *g, dtr_work *whole);
    void (*free)(struct dtr__composite *self); /* with the work, if it is still there */
};
/* A part with a described call, whose backend is chosen by it. Input is not looked at. */
dtr_status dtr__part_make(dtr_group *g, const dtr__call *c, dtr_work **part);
/* The backend cancels a work that failed with `s`, whose record stays the thread's last error. */
void dtr__work_give_up(dtr_group *g, const dtr__backend *b, void *state, dtr_work *w, dtr_status s);
/* Start or poll a part; progress lock. A failed one is ended. */
dtr_status dtr__part_move(dtr_group *g, dtr_work *whole, dtr_work *part, bool *done);
void dtr__part_cancel(dtr_group *g, dtr_work *part);
static inline bool dtr__part_ended(const dtr_work *part) {
    return atomic_load_explicit(&part->ended, memory_order_relaxed) != 0;
}
/* What an unfinished part waits for, with its title where `named`. */
const char *dtr__part_waits_for(dtr_group *g, dtr_work *part, bool named, char *text, size_t cap);

/* Coalescing scopes (coll_scope.c). record: a call while a scope is open. drop: what a scope left
 * open at the group's end comes to. */
dtr_status dtr__scope_record(dtr_group *g, dtr__scope *scope, const dtr__request *r,
                             dtr_work **work);
void dtr__scope_drop(dtr_group *g);

/* Block until `w` is done. */
void dtr__work_block(dtr_work *w);

#endif /* DTR_ENGINE_H */
