/* Making groups together: every creation checks its arguments alone, meets the other callers, makes
 * the group, and meets them again, so that it exists on all of its members or nowhere. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agreement/mailbox.h"
#include "backends/nccl/nccl_calls.h"
#include "core/work.h"
#include "engine/engine.h"
#include "group/device_select.h"
#include "group_make.h"

/* ---- names of things in messages ---- */

/* dtr_group_create of group "x", of {0,1} when it has no name; dtr_group_split of group "parent",
 * of group "parent" into "x". */
static void describe(dtr__creation *c, const char *list) {
    const char *name = c->o.name, *parent = c->parent != NULL ? c->parent->name : NULL;
    if (parent != NULL && name != NULL) {
        snprintf(c->what, sizeof(c->what), "%s of group \"%s\" into \"%s\"", c->entry, parent,
                 name);
    } else if (parent != NULL || name != NULL) {
        snprintf(c->what, sizeof(c->what), "%s of group \"%s\"", c->entry,
                 parent != NULL ? parent : name);
    } else {
        snprintf(c->what, sizeof(c->what), "%s of %s", c->entry, list);
    }
}

/* ---- what is agreed on ---- */

static void fill_fields(dtr__creation *c, const char *list, dtr__entry *e) {
    char call[96], backend[192];
    snprintf(call, sizeof(call), "%s%s%s%s", c->entry, c->parent != NULL ? " of group \"" : "",
             c->parent != NULL ? c->parent->name : "", c->parent != NULL ? "\"" : "");
    dtr__field_set(&e->field[DTR__FIELD_CALL], call);
    dtr__field_set(&e->field[DTR__FIELD_LIST], list);
    dtr__field_set(&e->field[DTR__FIELD_NAME], c->o.name != NULL ? c->o.name : "");
    dtr__field_set(&e->field[DTR__FIELD_TAG], c->o.tag != NULL ? c->o.tag : "");
    dtr__select_agreed_text(c->world, c->backend, backend, sizeof(backend));
    dtr__field_set(&e->field[DTR__FIELD_BACKEND], backend);
    dtr__field_set(&e->field[DTR__FIELD_LOCAL_SYNC], c->o.local_sync ? "true" : "false");
    dtr__field_set(&e->field[DTR__FIELD_DETERMINISTIC], c->o.deterministic ? "true" : "false");
    dtr__field_set(&e->field[DTR__FIELD_REPRODUCIBLE], c->o.reproducible ? "true" : "false");
}

static bool has_tag(const dtr__creation *c) {
    return c->o.tag != NULL && c->o.tag[0] != '\0';
}

/* The live group that a tag stands for on this rank, and whether a given name is taken. */
static dtr_group *look_up(dtr__creation *c, dtr__entry *e) {
    dtr__groups *gs = c->world->groups;
    dtr_group *found = NULL;
    pthread_mutex_lock(&gs->lock);
    e->counter = gs->counter;
    if (has_tag(c) && c->members != NULL) {
        found = dtr__find_tagged(gs, c->o.tag, c->members, c->n_members);
    }
    e->found = found != NULL ? found->uid : 0;
    e->name_live =
        found == NULL && !c->unlisted && c->name[0] != '\0' && dtr__find_name(gs, c->name) != NULL;
    pthread_mutex_unlock(&gs->lock);
    return found;
}

static void bring_failure(dtr__entry *e, dtr_status s) {
    e->status = (int32_t)s;
    if (s < 0) {
        snprintf(e->text, sizeof(e->text), "%s", dtr_last_error_message());
    }
}

/* ---- making ---- */

static int create_comm(dtr__creation *c, uint64_t uid, MPI_Comm *comm) {
    MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    int code = MPI_Comm_group(c->world->mpi.comm, &all);
    if (code != MPI_SUCCESS) {
        return code;
    }
    code = MPI_Group_incl(all, c->n_members, c->members, &members);
    MPI_Group_free(&all);
    if (code != MPI_SUCCESS) {
        return code;
    }
    code = MPI_Comm_create_group(c->world->mpi.comm, members, (int)(uid & 0x3fff), comm);
    MPI_Group_free(&members);
    if (code == MPI_SUCCESS) {
        MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
    }
    return code;
}

/* Only the members come here, and all of them: they have just agreed. */
static dtr_status make_comm(dtr__creation *c, uint64_t uid, MPI_Comm *comm) {
    dtr__error_context ctx = { .world = c->world, .operation = c->entry, .group = c->name };
    if (c->world->mpi.inbox != NULL) {
        return DTR_OK;
    }
    dtr__mpi_lock(c->world);
    int code = create_comm(c, uid, comm);
    dtr__mpi_unlock(c->world);
    if (code != MPI_SUCCESS) {
        return dtr__error_mpi(&ctx, code, "MPI_Comm_create_group", __FILE__, __LINE__);
    }
    return DTR_OK;
}

static dtr_status make(dtr__creation *c, uint64_t uid, dtr_group **group) {
    MPI_Comm comm = MPI_COMM_NULL;
    dtr_group *g = NULL;
    dtr__group_spec spec = {
        .world_ranks = c->members,
        .size = c->n_members,
        .name = c->name,
        .desc = c->desc,
        .tag = c->o.tag,
        .backend = c->backend,
        .options = &c->o,
        .parent = c->parent,
        .uid = uid,
        .timeout_cpu_s = c->timeout_cpu_s,
        .timeout_cuda_s = c->timeout_cuda_s,
        .device = c->o.has_device ? c->o.device : c->inherit->device,
        .bound = c->o.has_device,
        .deterministic = c->o.deterministic,
        .reproducible = c->o.reproducible,
        .listed = !c->unlisted,
        .nan_check = c->o.nan_check,
    };
    /* The communicator first: it needs all members, whatever fails on one of them afterwards. */
    DTR_TRY(make_comm(c, uid, &comm));
    dtr_status s = dtr__group_new(c->world, &spec, &g);
    if (s >= 0) {
        g->comm = comm;
        g->label.tag_refs = has_tag(c) ? 1 : 0;
        s = dtr__group_connect(g);
    }
    if (s < 0) {
        dtr__group_free(g);
        dtr__mpi_free(&comm);
        return s;
    }
    *group = g;
    return DTR_OK;
}

/* A group that failed on some rank. One that is listed broke, and what it has of NCCL is aborted:
 * not all members may have it. */
static void unmake(dtr_group *group, dtr_status s) {
    if (group == NULL) {
        return;
    }
    if (group->id == 0) {
        dtr__error_copy *why = dtr__error_save();
        if (dtr__group_disconnect(group, true, group->timeout_s) == DTR_OK) {
            dtr__group_free(group);
        }
        (void)dtr__error_put_back(why, s);
        return;
    }
    dtr__error_copy *cause = dtr__error_save();
    dtr__queue called = { NULL, NULL };
    atomic_store(&group->failure->notified, 1); /* all members know */
    dtr__group_release_all(group, s, &called);
    dtr__callbacks_run(&called);
    (void)dtr__group_take_down(group, 0);
    (void)dtr__error_put_back(cause, s);
}

/* ---- NCCL, with the group ---- */

/* The group whose communicators those of the new one may be split from: all its ranks are here. */
static dtr_group *split_parent(const dtr__creation *c) {
    dtr_group *parent = c->parent != NULL ? c->parent : dtr_world_group(c->world);
    return c->n_scope == parent->size ? parent : NULL;
}

static dtr_device device_of(const dtr__creation *c) {
    return c->o.has_device ? c->o.device : c->inherit->device;
}

/* Whether this rank could do its part of a split. */
static bool can_split(const dtr__creation *c) {
    dtr__selection sel;
    const dtr_group *parent = split_parent(c);
    dtr_device d = device_of(c);
    dtr__error_context ctx = { .world = c->world, .operation = c->entry };
    if (parent == NULL || d.type != DTR_CUDA ||
        dtr__select_parse(&ctx, c->backend, &sel) != DTR_OK) {
        return false;
    }
    const char *use = sel.name[DTR_CUDA];
    return (strcmp(use, "auto") == 0 || strcmp(use, "nccl") == 0) &&
           dtr__nccl_can_split(parent, d.index);
}

/* What of NCCL comes with creation: a split, which every caller takes part in whatever has happened
 * to its group, or the set-up of a group with a device of its own. A group hears of its failure on
 * another member only when it is listed. */
static dtr_status connect_devices(const dtr__creation *c, const dtr__outcome *out, dtr_status s,
                                  dtr_group *made) {
    bool eager = made != NULL && dtr__devices_eager(made);
    if (made != NULL && (out->split || eager)) {
        dtr__group_list(made);
    }
    if (out->split) {
        dtr_status split =
            dtr__nccl_split(split_parent(c), device_of(c).index, made, c->by_color ? c->index : 0);
        return s < 0 ? s : split;
    }
    return s >= 0 && eager ? dtr__nccl_ready(made, made->device.index) : s;
}

/* ---- the two agreements ---- */

/* A split with a tag has to know its members before it can look for a live group of them. */
static dtr_status learn_members(dtr__creation *c, const dtr__entry *entry) {
    dtr__outcome out;
    dtr__entry first = *entry;
    first.send_members = 1;
    DTR_TRY(dtr__agree(c->world, c->what, c->scope, c->n_scope, &first, NULL, &out));
    c->members = out.members;
    c->n_members = out.n_members;
    c->owned_members = out.members;
    return DTR_OK;
}

/* Made here, or failed here: all callers end alike. */
static dtr_status confirm(dtr__creation *c, const dtr__entry *entry, dtr_status s) {
    dtr__outcome out;
    dtr__entry second = *entry;
    char call[96];
    snprintf(call, sizeof(call), "%s, made", entry->field[DTR__FIELD_CALL].text);
    dtr__field_set(&second.field[DTR__FIELD_CALL], call);
    second.index = -1;
    second.name_live = 0;
    second.send_members = 0;
    memset(second.retired, 0, sizeof(second.retired));
    bring_failure(&second, s);
    return dtr__agree(c->world, c->what, c->scope, c->n_scope, &second, NULL, &out);
}

/* Give the group its name and members as agreed, and make it. */
static dtr_status make_agreed(dtr__creation *c, const dtr__outcome *out, dtr_group **group) {
    if (c->name[0] == '\0') {
        snprintf(c->name, sizeof(c->name), "%llu", (unsigned long long)out->number);
    }
    if (c->members == NULL) {
        c->members = out->members;
        c->n_members = out->n_members;
    }
    return make(c, out->uid, group);
}

static dtr_status create_met(dtr__creation *c, dtr__entry *entry, dtr_group **group) {
    dtr__groups *gs = c->world->groups;
    dtr_group *made = NULL;
    dtr__outcome out;
    if (c->by_color && has_tag(c)) {
        DTR_TRY(learn_members(c, entry));
    }
    dtr_group *found = look_up(c, entry);
    entry->can_split = can_split(c);
    entry->send_members = c->by_color && c->members == NULL;
    dtr__retired_offer(c->world, c->scope, c->n_scope, entry);
    dtr_status s = dtr__agree(c->world, c->what, c->scope, c->n_scope, entry, c->parent, &out);
    if (s < 0) {
        return s;
    }
    dtr__retired_free_agreed(c->world, &out);
    c->owned_outcome = out.members;
    if (entry->index >= 0 && !out.reuse) {
        s = make_agreed(c, &out, &made);
    }
    s = connect_devices(c, &out, s, made);
    s = confirm(c, entry, s);
    if (s < 0) {
        unmake(made, s);
        return s;
    }
    if (made != NULL && made->id == 0) {
        dtr__group_list(made);
    }
    pthread_mutex_lock(&gs->lock);
    gs->counter = out.counter;
    if (out.reuse) {
        found->label.tag_refs++;
    }
    pthread_mutex_unlock(&gs->lock);
    *group = out.reuse ? found : made;
    return DTR_OK;
}

dtr_status dtr__create(dtr__creation *c, const char *list, dtr_group **group) {
    dtr__groups *gs = c->world->groups;
    dtr__groups_sweep(c->world);
    dtr__entry *entry = calloc(1, sizeof(*entry));
    dtr__error_context ctx = { .world = c->world, .operation = c->entry };
    DTR_REQUIRE(entry != NULL, &ctx, DTR_ERR_NOMEM, "%s: no memory for the call", c->entry);
    describe(c, list);
    fill_fields(c, list, entry);
    entry->scope = dtr__hash_set(c->scope, c->n_scope);
    entry->list_set = c->list_set;
    entry->index = c->index;
    entry->key = c->key;
    entry->unnamed = c->o.name == NULL;
    entry->limit_s = c->timeout_cpu_s;
    pthread_mutex_lock(&gs->creation);
    bring_failure(entry, dtr__select_known(&ctx, c->backend));
    dtr_status s = create_met(c, entry, group);
    pthread_mutex_unlock(&gs->creation);
    free(c->owned_members);
    free(c->owned_outcome);
    free(entry);
    return s;
}

/* ---- checks that need nobody else ---- */

static dtr_status check_name(const dtr__error_context *ctx, const char *entry, const char *name) {
    if (name == NULL) {
        return DTR_OK;
    }
    size_t n = strlen(name);
    DTR_REQUIRE(n >= 1 && n < DTR__NAME_SIZE, ctx, DTR_ERR_ARG,
                "%s: name has %zu bytes, it must have 1 to %d; NULL lets the library number the "
                "group",
                entry, n, DTR__NAME_SIZE - 1);
    DTR_REQUIRE(strcmp(name, "world") != 0, ctx, DTR_ERR_ARG,
                "%s: the name \"world\" is that of the world's own group", entry);
    DTR_REQUIRE(strspn(name, "0123456789") != n, ctx, DTR_ERR_ARG,
                "%s: the name \"%s\" has digits only; such names are given by the library", entry,
                name);
    return DTR_OK;
}

static dtr_status check_device(const dtr__error_context *ctx, const char *entry,
                               const dtr_group_options *o) {
    if (!o->has_device) {
        return DTR_OK;
    }
    bool is_type = o->device.type == DTR_CPU || o->device.type == DTR_CUDA;
    int count = is_type ? dtr_device_count(o->device.type) : 0;
    const char *type = o->device.type == DTR_CUDA ? "CUDA" : "CPU";
    DTR_REQUIRE(is_type, ctx, DTR_ERR_DEVICE, "%s: device type %d does not exist", entry,
                (int)o->device.type);
    DTR_REQUIRE(o->device.index >= 0 && o->device.index < count, ctx, DTR_ERR_DEVICE,
                "%s: there is no %s device %d, this process sees %d of them", entry, type,
                o->device.index, count);
    return DTR_OK;
}

static dtr_status check_nccl(const dtr__error_context *ctx, const char *entry,
                             const dtr_group_options *o) {
    const struct {
        const char *name;
        int value, least, most;
    } rows[] = { { "nccl_min_ctas", o->nccl_min_ctas, 0, INT_MAX },
                 { "nccl_max_ctas", o->nccl_max_ctas, 0, INT_MAX },
                 { "nccl_cga_cluster", o->nccl_cga_cluster, 0, INT_MAX },
                 { "nccl_cta_policy", o->nccl_cta_policy, 0, 3 },
                 { "nccl_nvls_ctas", o->nccl_nvls_ctas, 0, INT_MAX },
                 { "nccl_traffic_class", o->nccl_traffic_class, 0, INT_MAX },
                 { "nccl_stream_priority", o->nccl_stream_priority, -1, 1 } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        DTR_REQUIRE(rows[i].value >= rows[i].least && rows[i].value <= rows[i].most, ctx,
                    DTR_ERR_ARG, "%s: %s is %d, it must be %d to %d", entry, rows[i].name,
                    rows[i].value, rows[i].least, rows[i].most);
    }
    const size_t length = o->nccl_network != NULL ? strlen(o->nccl_network) : 1;
    DTR_REQUIRE(length > 0 && length < DTR__NCCL_NETWORK, ctx, DTR_ERR_ARG,
                "%s: nccl_network has %zu bytes, it must have 1 to %d", entry, length,
                DTR__NCCL_NETWORK - 1);
    return DTR_OK;
}

static dtr_status check_options(const dtr__error_context *ctx, const char *entry,
                                dtr_group_options *o) {
    DTR_TRY(dtr__options_limit(ctx, "dtr_group_options", &o->timeout_s));
    DTR_REQUIRE(o->flags == 0, ctx, DTR_ERR_ARG, "%s: flags is 0x%x, no flag is defined", entry,
                (unsigned)o->flags);
    DTR_REQUIRE(o->nan_check >= -1 && o->nan_check <= 1, ctx, DTR_ERR_ARG,
                "%s: nan_check is %d, it must be 1 (on), -1 (off) or 0 (DTR_NAN_CHECK)", entry,
                o->nan_check);
    DTR_TRY(check_nccl(ctx, entry, o));
    DTR_TRY(check_device(ctx, entry, o));
    DTR_TRY(check_name(ctx, entry, o->name));
    dtr__selection sel;
    return o->backend != NULL ? dtr__select_parse(ctx, o->backend, &sel) : DTR_OK;
}

dtr_status dtr__creation_begin(dtr__creation *c, dtr_world *world, dtr_group *parent,
                               const char *entry, const dtr_group_options *options) {
    dtr__error_context ctx = { .world = world, .operation = entry };
    memset(c, 0, sizeof(*c));
    c->world = world;
    c->parent = parent;
    c->inherit = parent != NULL ? parent : dtr_world_group(world);
    c->entry = entry;
    DTR_REQUIRE(!dtr__in_callback(world), &ctx, DTR_ERR_STATE,
                "%s inside a completion callback: it would wait for other ranks; call it from the "
                "program's own thread",
                entry);
    DTR_REQUIRE(dtr__ranks_reachable(c->world), &ctx, DTR_ERR_STATE,
                "%s: MPI_Finalize has been called, so no rank can be reached", entry);
    DTR_TRY(dtr__options_copy(options, &c->o, sizeof(c->o), "dtr_group_options"));
    DTR_TRY(check_options(&ctx, entry, &c->o));
    double own = c->o.timeout_s;
    c->timeout_cpu_s = own > 0 ? own : c->inherit->timeout_s;
    c->timeout_cuda_s = own > 0 ? own : c->inherit->timeout_cuda_s;
    c->backend = c->o.backend != NULL ? c->o.backend : c->inherit->backends.asked;
    c->desc = c->o.desc;
    c->index = -1;
    c->scope = c->inherit->world_ranks;
    c->n_scope = c->inherit->size;
    if (c->o.name != NULL) {
        snprintf(c->name, sizeof(c->name), "%s", c->o.name);
    }
    return DTR_OK;
}
