/* What the files of process groups share: the world's list of groups, making and unmaking a group's
 * local part, and the choice of backends. */
#ifndef DTR_GROUPS_H
#define DTR_GROUPS_H

#include "coll_internal.h"
#include "custom.h"
#include "exchange.h"
#include "meet.h"
#include "monitor.h"
#include "notice.h"

/* The groups of one world on this rank. `lock` guards everything but `creation` and `meetings`,
 * which belong to whoever holds `creation`: one creation or destruction at a time. Order: creation
 * before lock. */
struct dtr__groups {
    pthread_mutex_t lock, creation;
    dtr_group *first, *last;     /* live, in creation order, the unlisted ones included */
    dtr_group *gone, *last_gone; /* destroyed and still recognised, oldest first; linked by next */
    int n_gone;
    dtr_group *own;   /* the world's */
    uint64_t counter; /* number of the newest unnamed group these callers have agreed on */
    uint32_t last_id;
    dtr__meetings *meetings;
    dtr__notices *notices;           /* its own lock */
    dtr__exchange *exchange;         /* its own lock */
    dtr__custom *customs;            /* registered backends; they stay until the world ends */
    dtr__monitors *monitors;         /* its own lock */
    struct dtr__gpus *gpus;          /* of all ranks; constant */
    struct dtr__nccl_blocks *blocks; /* of device memory, that NCCL is told of; NULL: it is not */
    _Atomic int helpers;             /* of destroyed groups, left behind inside NCCL */
    int64_t status_ns;               /* of the next status line; the watchdog's */
    /* Of the thread that ends the world (ending.c). */
    char ending_at[128]; /* call site; "": the world goes on */
    int64_t ending_look_ns;
    dtr__error_copy *ending_error;
};

/* What a new group is to be, as this rank sees it. Texts are borrowed. */
typedef struct dtr__group_spec {
    const int *world_ranks;
    int size;
    const char *name, *desc, *tag, *backend;
    const dtr_group_options *options; /* as the caller gave them, for registered backends, */
    const dtr_group *parent;          /* ... and so is this, or NULL */
    uint64_t uid;
    double timeout_cpu_s, timeout_cuda_s;
    dtr_device device;
    bool bound; /* the device was named by the caller */
    bool deterministic, is_world, listed;
    int nan_check;
} dtr__group_spec;

/* ---- local part of a group (group.c) ---- */
/* Memory, texts and the choice of backends; no communication. */
dtr_status dtr__group_new(dtr_world *world, const dtr__group_spec *spec, dtr_group **group);
/* Backend state over group->comm and the engine; undoes itself on failure. Local. */
dtr_status dtr__group_connect(dtr_group *group);
/* The reverse: backends, engine, communicator (MPI is left alone when it is not `mpi_alive`).
 * DTR_ERR_TIMEOUT as from dtr__engine_close, with `left_s` for its patience: the group stays. */
dtr_status dtr__group_disconnect(dtr_group *group, bool mpi_alive, double left_s);
void dtr__group_free(dtr_group *group);
/* Take a listed group apart on this rank; the handle becomes a tombstone. Where a thread hangs in
 * it (DTR_ERR_TIMEOUT) the rank's other groups end as if its heartbeat had stopped. */
dtr_status dtr__group_take_down(dtr_group *group, double left_s);
/* Leave of it what a tombstone needs. */
void dtr__group_strip(dtr_group *group);
/* Into and out of the world's list; out of it the group is a tombstone. */
void dtr__group_list(dtr_group *group);
void dtr__group_unlist(dtr_group *group);

/* ---- backends (select.c) ---- */
/* A parsed backend text. For each device type: no entry, "auto", or the name of a backend. */
enum { DTR__DEVICE_TYPES = 2, DTR__BACKEND_NAME = 16 };
typedef struct dtr__selection {
    char name[DTR__DEVICE_TYPES][DTR__BACKEND_NAME]; /* "": nothing for that device */
} dtr__selection;

/* Syntax only: DTR_ERR_ARG. Names are not looked up. */
dtr_status dtr__select_parse(const dtr__error_context *ctx, const char *text, dtr__selection *out);
/* Whether every name of a text is known, built in and serves its device: DTR_ERR_UNSUPPORTED with
 * the list of names otherwise. */
dtr_status dtr__select_known(const dtr__error_context *ctx, const char *text);
/* Parse group->backend_asked and fill the group's candidates and backend_chosen;
 * DTR_ERR_UNSUPPORTED where a name is unknown, not built in, or cannot serve this group. */
dtr_status dtr__select(dtr_group *group);
/* Set the text of what was chosen from group->backend[0]. */
dtr_status dtr__select_describe(dtr_group *group);

/* ---- look-ups; gs->lock is held ---- */
dtr_group *dtr__find_name(dtr__groups *gs, const char *name);
dtr_group *dtr__find_tagged(dtr__groups *gs, const char *tag, const int *world_ranks, int n);

/* Built-in limits of an operation where nobody set one, by the device that serves it. */
#define DTR__TIMEOUT_CPU 1800.0
#define DTR__TIMEOUT_CUDA 600.0
/* What the callers of a creation must agree on: the text in lower case, and whether the registered
 * names in it are registered here. */
void dtr__select_agreed_text(const dtr_world *world, const char *text, char *out, size_t cap);
/* The table of names, entry i: false past its end; *backend NULL where it is not in this build. */
bool dtr__select_at(int i, const char **name, dtr_device_type *device,
                    const dtr__backend **backend);
bool dtr__select_is_builtin(const char *name); /* part of this build or not */

#define DTR__DEFAULT_BACKENDS "cpu:auto,cuda:auto"

#endif /* DTR_GROUPS_H */
