/* Communication hooks of a module. */
#ifndef DTR_DDP_HOOKS_H
#define DTR_DDP_HOOKS_H

#include "core/call_site.h"
#include "core/ddp_internal.h"
#include "device/device.h"
#include "reducer/reducer.h"

/* The communication hook of a module. */
enum { DTR__HOOK_DEPTHS = 8 };
typedef struct dtr__ddp_hook {
    dtr_ddp_hook fn;
    void *state;
    char name[64];
    /* What built-in hooks add. setup: collective, in the first hooked backward_end; forget: the
     * buckets have changed. */
    dtr_status (*setup)(dtr_ddp *ddp, void *state);
    void (*forget)(void *state);
    void (*drop)(void *state);
    void (*judge)(dtr_ddp *ddp, void *state); /* notes errors before the ranks agree on them */
    dtr_status (*save)(dtr_ddp *ddp, void *state, dtr_bytes *out);
    dtr_status (*restore)(dtr_ddp *ddp, void *state, dtr_bytes in);
    bool ready; /* set up: names are compared, the first group is there */
    dtr_group *group[DTR__HOOK_DEPTHS];
    /* pump_lock: steps of the hooks. pump_calls grows with every reason to look again. */
    pthread_mutex_t pump_lock;
    _Atomic int pump_calls, callbacks;
    size_t next[DTR__HOOK_DEPTHS]; /* buckets before it have run that step, or never will */
    _Atomic size_t launched;       /* buckets whose hook has been called */
    dtr__call_site from;           /* the call that launched the newest of them; pump_lock */
} dtr__ddp_hook;

/* ---- hook.c ---- */
/* Register a hook; `h` gives fn, state, setup, forget and drop. */
dtr_status dtr__ddp_hook_set(dtr_ddp *ddp, const char *entry, const dtr__ddp_hook *h,
                             const char *name);
/* The first time compare hooks across ranks and make the group; in backward_end. */
dtr_status dtr__ddp_hook_setup(dtr_ddp *ddp);
dtr_status dtr__ddp_hook_group_make(dtr_ddp *ddp, int depth);
/* New groups where the old ones were broken. */
dtr_status dtr__ddp_hook_renew(dtr_ddp *ddp);
/* What was learned of the old group's ranks and of the buckets goes. */
void dtr__ddp_hook_reset(dtr_ddp *ddp);
/* Nothing happens where there is no hook: its groups, its state, and last the hook itself. */
void dtr__ddp_hook_abort(dtr_ddp *ddp, const char *reason);
bool dtr__ddp_hook_is_called(const dtr_ddp *ddp); /* is a callback of a work still to run? */
void dtr__ddp_hook_groups_break(const dtr_ddp *ddp);
void dtr__ddp_hook_groups_free(dtr_ddp *ddp);
void dtr__ddp_hook_drop(dtr_ddp *ddp);
void dtr__ddp_hook_free(dtr_ddp *ddp);
/* As dtr_ddp_bucket_then for a step without collectives. */
dtr_status dtr__ddp_bucket_then_local(dtr_ddp_bucket *b, dtr_ddp_hook fn, void *state);

/* ---- hook_builtin.c ---- */
/* What registering a wrapper of dtr_ddp_wrap_hook adds to `h`. */
void dtr__ddp_hook_of_wrapper(dtr_ddp_hook fn, void *state, dtr__ddp_hook *h);

/* ---- hook_run.c ---- */
extern const dtr__ddp_strategy dtr__ddp_hook_strategy;
void dtr__ddp_hook_rearm(dtr_ddp *ddp);

#endif /* DTR_DDP_HOOKS_H */
