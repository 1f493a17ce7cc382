/* What the files of process groups share: the world's list of groups, making and unmaking a group's
 * local part, and the choice of backends. */
#ifndef DTR_GROUPS_H
#define DTR_GROUPS_H

#include "agreement/agree.h"
#include "agreement/key_value.h"
#include "backends/user/user_backend.h"
#include "core/backend.h"
#include "core/team.h"
#include "engine/engine.h"
#include "failure/failure.h"
#include "failure/notify.h"

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
    bool deterministic, reproducible, listed;
    int nan_check;
} dtr__group_spec;

/* ---- all groups of a world (group_world.c) ---- */
/* The world's own group, names, tombstones. */
dtr_status dtr__groups_open(dtr_world *world);
dtr_status dtr__groups_close(dtr_world *world, bool mpi_alive, const void *return_address);

/* Duplicate a group for a layer above (same members, own communicator, not listed, no name used).
 * Collective. */
dtr_status dtr__group_dup(dtr_group *group, const char *name, dtr_group **dup);
/* The unlisted group of this node's ranks, made by the first call. Collective over the node. */
dtr_status dtr__group_of_node(dtr_world *world, dtr_group **node);

/* ---- local part of a group (group.c) ---- */
/* Memory, texts and the choice of backends; no communication. */
dtr_status dtr__group_new(dtr_world *world, const dtr__group_spec *spec, dtr_group **group);
/* Backend state over group->comm and the engine; undoes itself on failure. Local. */
dtr_status dtr__group_connect(dtr_group *group);
/* The reverse: backends, engine, communicator (MPI is left alone when it is not `mpi_alive`).
 * DTR_ERR_TIMEOUT as from dtr__engine_close, with `left_s` for its patience: the group stays. */
dtr_status dtr__group_disconnect(dtr_group *group, bool mpi_alive, double left_s);
void dtr__group_free(dtr_group *group);
/* Agree with the other members that this is its end, or the world's if it is the world's own group;
 * `drained` is the outcome of this rank's draining. */
dtr_status dtr__agree_to_end(dtr_group *group, dtr_status drained, double limit_s);
/* Take a listed group apart on this rank; the handle becomes a tombstone. Where a thread hangs in
 * it (DTR_ERR_TIMEOUT) the rank's other groups end as if its heartbeat had stopped. */
dtr_status dtr__group_take_down(dtr_group *group, double left_s);
/* The same of one that its members let go of at times of their own: communicators are only retired.
 */
dtr_status dtr__group_take_down_apart(dtr_group *group, double left_s);
/* Wait until the other members have let go of it and nothing of theirs is unfinished. */
dtr_status dtr__group_await_released(dtr_group *group, double limit_s);
/* Take down what all members have let go of, and what has broken. Not from callbacks. */
void dtr__groups_sweep(dtr_world *world);
/* Whose communicators this rank could free in an agreement of these ranks, and free those that it
 * came to. */
void dtr__retired_offer(dtr_world *world, const int *world_ranks, int n, dtr__entry *entry);
void dtr__retired_free_agreed(dtr_world *world, const dtr__outcome *out);
/* A place for the communicators of a group that ends now, and into the world's list with it. */
void dtr__retire_begin(dtr_group *group);
void dtr__retire_end(dtr_group *group);
/* Free all, in the same order on all ranks: the world ends. */
void dtr__retired_free_all(dtr_world *world, bool mpi_alive);
/* Leave of it what a tombstone needs. */
void dtr__group_strip(dtr_group *group);
/* Into and out of the world's list; out of it the group is a tombstone. */
void dtr__group_list(dtr_group *group);
void dtr__group_unlist(dtr_group *group);

/* ---- backends (select.c) ---- */
/* A parsed backend text. For each device type: no entry, "auto", or the name of a backend. */
enum { DTR__DEVICE_TYPES = 2 };
typedef struct dtr__selection {
    char name[DTR__DEVICE_TYPES][DTR__BACKEND_NAME]; /* "": nothing for that device */
} dtr__selection;

/* Syntax only: DTR_ERR_ARG. Names are not looked up. */
dtr_status dtr__select_parse(const dtr__error_context *ctx, const char *text, dtr__selection *out);
/* Whether every name of a text is known, built in and serves its device: DTR_ERR_UNSUPPORTED with
 * the list of names otherwise. */
dtr_status dtr__select_known(const dtr__error_context *ctx, const char *text);
/* Parse group->backends.asked and fill the group's candidates and backend_chosen;
 * DTR_ERR_UNSUPPORTED where a name is unknown, not built in, or cannot serve this group. */
dtr_status dtr__select(dtr_group *group);
/* Set the text of what was chosen from group->backends.table[0]. */
dtr_status dtr__select_describe(dtr_group *group);

/* ---- look-ups; gs->lock is held ---- */
dtr_group *dtr__find_name(dtr__groups *gs, const char *name);
dtr_group *dtr__find_tagged(dtr__groups *gs, const char *tag, const int *world_ranks, int n);

/* Built-in limits of an operation where nobody set one, by the device that serves it. */
#define DTR__TIMEOUT_CPU 1800.0
#define DTR__TIMEOUT_CUDA 600.0
static inline double dtr__world_limit(const dtr_world *world, double built_in) {
    return world->timeout_s > 0 ? world->timeout_s : built_in;
}
/* What the callers of a creation must agree on: the text in lower case, and whether the registered
 * names in it are registered here. */
void dtr__select_agreed_text(const dtr_world *world, const char *text, char *out, size_t cap);
/* A name that the library knows, and the device that it serves. It stays known where its backend is
 * not part of the build, so that the message can say so. */
typedef struct dtr__known_backend {
    const char *name;
    dtr_device_type device;
    const dtr__backend *backend;
    bool in_build;
    /* Of backends of devices, while a group is made, by all members: whether it can serve the
     * group, on all of them or on none; else `why`. NULL: as its score of the group says. */
    dtr_status (*serves)(dtr_group *g, char *why, size_t cap, bool *serves);
} dtr__known_backend;
const dtr__known_backend *dtr__select_at(int i); /* NULL past the table's end */
void dtr__user_backends_free(dtr__user_backend *list);

#define DTR__DEFAULT_BACKENDS "cpu:auto,cuda:auto"

#endif /* DTR_GROUPS_H */
