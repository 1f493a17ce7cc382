/* The public ways to make groups. Each checks its own arguments, says which ranks take part and
 * which group this rank goes to, and leaves the rest to group_create.c. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/nccl/nccl_calls.h"
#include "group/groups.h"
#include "group_make.h"

/* ---- lists ---- */

dtr_status dtr__check_list(const dtr__creation *c, const char *which, const int *ranks, int n,
                           bool *taken) {
    dtr__error_context ctx = { .world = c->world, .operation = c->entry };
    int size = c->world->size;
    DTR_REQUIRE(n > 0, &ctx, DTR_ERR_ARG, "%s: %s has %d entries, it needs at least one", c->entry,
                which, n);
    DTR_REQUIRE(n <= size, &ctx, DTR_ERR_ARG,
                "%s: %s has %d entries, more than the world's %d ranks", c->entry, which, n, size);
    DTR_REQUIRE(ranks != NULL, &ctx, DTR_ERR_ARG, "%s: %s is NULL although it has %d entries",
                c->entry, which, n);
    for (int i = 0; i < n; i++) {
        DTR_REQUIRE(ranks[i] >= 0 && ranks[i] < size, &ctx, DTR_ERR_RANK,
                    "%s: entry %d of %s is %d, world ranks are 0 to %d", c->entry, i, which,
                    ranks[i], size - 1);
        DTR_REQUIRE(!taken[ranks[i]], &ctx, DTR_ERR_ARG,
                    "%s: rank %d, entry %d of %s, is there more than once", c->entry, ranks[i], i,
                    which);
        taken[ranks[i]] = true;
    }
    return DTR_OK;
}

static int find_rank(const int *ranks, int n, int rank) {
    for (int i = 0; i < n; i++) {
        if (ranks[i] == rank) {
            return i;
        }
    }
    return -1;
}

static void print_list(FILE *to, const int *ranks, int n) {
    for (int i = 0; i < n; i++) {
        fprintf(to, "%s%d", i > 0 ? "," : "{", ranks[i]);
    }
    fputc('}', to);
}

static dtr_status no_memory(const dtr__creation *c) {
    dtr__error_context ctx = { .world = c->world, .operation = c->entry };
    return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "%s: no memory for lists of %d ranks", c->entry,
                    c->world->size);
}

/* "{3,1}" for one list, "{{0,2},{1}}" for several; the caller frees it. */
static dtr_status lists_text(const dtr__creation *c, const int *const *lists, const int *lens,
                             int n_lists, char **text) {
    size_t nbytes = 0;
    FILE *to = open_memstream(text, &nbytes);
    if (to == NULL) {
        return no_memory(c);
    }
    for (int i = 0; i < n_lists; i++) {
        fputs(n_lists == 1 ? "" : i > 0 ? "," : "{", to);
        print_list(to, lists[i], lens[i]);
    }
    fputs(n_lists == 1 ? "" : "}", to);
    return fclose(to) == 0 ? DTR_OK : no_memory(c);
}

static dtr_status need_result(const dtr__creation *c, const void *result, const char *name) {
    dtr__error_context ctx = { .world = c->world, .operation = c->entry };
    DTR_REQUIRE(result != NULL, &ctx, DTR_ERR_ARG, "%s: %s is NULL, the result has no place",
                c->entry, name);
    return DTR_OK;
}

/* ---- dtr_group_create ---- */

static dtr_status create_list(dtr__creation *c, const int *ranks, int n, dtr_group **group) {
    char *text = NULL;
    c->list_set = dtr__hash_set(ranks, n);
    bool member = find_rank(ranks, n, c->world->rank) >= 0;
    if (c->o.local_sync) {
        if (!member) {
            *group = NULL;
            return DTR_OK;
        }
        c->scope = ranks;
        c->n_scope = n;
    }
    if (member) {
        c->index = 0;
        c->members = ranks;
        c->n_members = n;
    }
    DTR_TRY(lists_text(c, &ranks, &n, 1, &text));
    dtr_status s = dtr__create(c, text, group);
    free(text);
    return s;
}

static dtr_status group_create(dtr_world *world, const int *world_ranks, int n,
                               const dtr_group_options *options, dtr_group **group) {
    DTR_TRY(dtr__world_check(world));
    dtr__creation c;
    DTR_TRY(dtr__creation_begin(&c, world, NULL, "dtr_group_create", options));
    dtr__error_context ctx = { .world = world, .operation = c.entry };
    DTR_REQUIRE(world_ranks != NULL || n == world->size, &ctx, DTR_ERR_ARG,
                "dtr_group_create: world_ranks is NULL and n is %d; NULL stands for all ranks and "
                "needs n = %d",
                n, world->size);
    const int *ranks = world_ranks != NULL ? world_ranks : c.inherit->world_ranks;
    bool *taken = calloc((size_t)world->size, sizeof(bool));
    if (taken == NULL) {
        return no_memory(&c);
    }
    dtr_status s = dtr__check_list(&c, "the list", ranks, n, taken);
    free(taken);
    DTR_TRY(s);
    DTR_TRY(need_result(&c, group, "group"));
    return create_list(&c, ranks, n, group);
}

dtr_status dtr_group_create(dtr_world *world, const int *world_ranks, int n,
                            const dtr_group_options *options, dtr_group **group) {
    return DTR_TRACED(dtr__trace_of(world), "dtr_group_create", "",
                      group_create(world, world_ranks, n, options, group));
}

/* ---- dtr_group_split ---- */

/* A call on a group: membership first, which gives who is not in it no result, and a broken group
 * answers with what broke it. */
static dtr_status check_parent(dtr_group *parent, const char *entry, dtr_group **result) {
    dtr_status s = dtr__group_check(parent, entry);
    if (s == DTR_NOT_MEMBER && result != NULL) {
        *result = NULL;
    }
    if (s != DTR_OK) {
        return s;
    }
    dtr__notifier_visit_now(parent->world);
    s = (dtr_status)atomic_load(&parent->status);
    return s != DTR_OK ? dtr__error_restore(parent->error, s) : DTR_OK;
}

static dtr_status group_split(dtr_group *parent, int color, int key,
                              const dtr_group_options *options, dtr_group **group) {
    dtr_status s = check_parent(parent, "dtr_group_split", group);
    if (s != DTR_OK) {
        return s;
    }
    dtr__creation c;
    char desc[DTR__NAME_SIZE + 32];
    DTR_TRY(dtr__creation_begin(&c, parent->world, parent, "dtr_group_split", options));
    DTR_TRY(need_result(&c, group, "group"));
    c.by_color = true;
    c.index = color < 0 ? -1 : color;
    c.key = (int64_t)key * ((int64_t)1 << 32) + parent->rank;
    if (c.desc == NULL) {
        snprintf(desc, sizeof(desc), "%s:split:%d", parent->name, color);
        c.desc = desc;
    }
    return dtr__create(&c, "by colour", group);
}

dtr_status dtr_group_split(dtr_group *parent, int color, int key, const dtr_group_options *options,
                           dtr_group **group) {
    return DTR_TRACED(dtr__group_trace(parent), "dtr_group_split", parent->name,
                      group_split(parent, color, key, options, group));
}

/* ---- several groups by one call ---- */

/* "name.INDEX" for this rank's group; the longest one must fit. */
static dtr_status number_name(dtr__creation *c, int n_groups) {
    dtr__error_context ctx = { .world = c->world, .operation = c->entry };
    if (c->o.name == NULL) {
        return DTR_OK;
    }
    int longest = snprintf(NULL, 0, "%s.%d", c->o.name, n_groups - 1);
    DTR_REQUIRE(longest < DTR__NAME_SIZE, &ctx, DTR_ERR_ARG,
                "%s: the name \"%s\" is too long to be numbered: \"%s.%d\" has %d bytes, names "
                "have at most %d",
                c->entry, c->o.name, c->o.name, n_groups - 1, longest, DTR__NAME_SIZE - 1);
    c->name[0] = '\0';
    if (c->index >= 0) {
        snprintf(c->name, sizeof(c->name), "%.*s.%d", DTR__NAME_SIZE - 12, c->o.name, c->index);
    }
    return DTR_OK;
}

static dtr_status check_chunks(const dtr__creation *c, int asked, int size) {
    dtr__error_context ctx = { .world = c->world, .operation = c->entry, .group = c->parent->name };
    int n = c->parent->size;
    DTR_REQUIRE(asked >= 0, &ctx, DTR_ERR_ARG,
                "%s: size is %d, it must be positive, or 0 for the number of CUDA devices",
                c->entry, asked);
    DTR_REQUIRE(size > 0, &ctx, DTR_ERR_ARG,
                "%s: size is 0, which means the number of CUDA devices, and there is none; for "
                "one group per node split by dtr_world_node",
                c->entry);
    DTR_REQUIRE(size <= n, &ctx, DTR_ERR_ARG,
                "%s: size is %d, the parent group \"%s\" has only %d ranks", c->entry, size,
                c->parent->name, n);
    DTR_REQUIRE(n % size == 0, &ctx, DTR_ERR_ARG,
                "%s: size is %d, which does not divide the %d ranks of the parent group \"%s\"",
                c->entry, size, n, c->parent->name);
    return DTR_OK;
}

static dtr_status group_subgroups(dtr_group *parent, int size, const dtr_group_options *options,
                                  dtr_group **mine, int *index) {
    dtr_status s = check_parent(parent, "dtr_group_subgroups", mine);
    if (s != DTR_OK) {
        return s;
    }
    dtr__creation c;
    char text[48];
    DTR_TRY(dtr__creation_begin(&c, parent->world, parent, "dtr_group_subgroups", options));
    int chunk = size != 0 ? size : dtr_device_count(DTR_CUDA);
    DTR_TRY(check_chunks(&c, size, chunk));
    DTR_TRY(need_result(&c, mine, "mine"));
    c.index = parent->rank / chunk;
    c.members = parent->world_ranks + (size_t)c.index * (size_t)chunk;
    c.n_members = chunk;
    c.desc = c.desc != NULL ? c.desc : parent->label.desc;
    DTR_TRY(number_name(&c, parent->size / chunk));
    snprintf(text, sizeof(text), "chunks of %d", chunk);
    DTR_TRY(dtr__create(&c, text, mine));
    if (index != NULL) {
        *index = c.index;
    }
    return DTR_OK;
}

dtr_status dtr_group_subgroups(dtr_group *parent, int size, const dtr_group_options *options,
                               dtr_group **mine, int *index) {
    return DTR_TRACED(dtr__group_trace(parent), "dtr_group_subgroups", parent->name,
                      group_subgroups(parent, size, options, mine, index));
}

static dtr_status check_lists(const dtr__creation *c, const int *const *lists, const int *lens,
                              int n_lists) {
    dtr__error_context ctx = { .world = c->world, .operation = c->entry };
    DTR_REQUIRE(n_lists > 0, &ctx, DTR_ERR_ARG, "%s: n_lists is %d, there must be at least one",
                c->entry, n_lists);
    DTR_REQUIRE(lists != NULL && lens != NULL, &ctx, DTR_ERR_ARG,
                "%s: %s is NULL although n_lists is %d", c->entry, lists == NULL ? "lists" : "lens",
                n_lists);
    bool *taken = calloc((size_t)c->world->size, sizeof(bool));
    if (taken == NULL) {
        return no_memory(c);
    }
    dtr_status s = DTR_OK;
    for (int i = 0; i < n_lists && s == DTR_OK; i++) {
        char which[32];
        snprintf(which, sizeof(which), "list %d", i);
        s = dtr__check_list(c, which, lists[i], lens[i], taken);
    }
    free(taken);
    return s;
}

static dtr_status group_subgroups_by_list(dtr_world *world, const int *const *lists,
                                          const int *lens, int n_lists,
                                          const dtr_group_options *options, dtr_group **mine,
                                          int *index) {
    DTR_TRY(dtr__world_check(world));
    dtr__creation c;
    char *text = NULL;
    DTR_TRY(dtr__creation_begin(&c, world, NULL, "dtr_group_subgroups_by_list", options));
    DTR_TRY(check_lists(&c, lists, lens, n_lists));
    DTR_TRY(need_result(&c, mine, "mine"));
    for (int i = 0; i < n_lists && c.index < 0; i++) {
        if (find_rank(lists[i], lens[i], world->rank) >= 0) {
            c.index = i;
            c.members = lists[i];
            c.n_members = lens[i];
        }
    }
    DTR_TRY(number_name(&c, n_lists));
    DTR_TRY(lists_text(&c, lists, lens, n_lists, &text));
    dtr_status s = dtr__create(&c, text, mine);
    free(text);
    if (s >= 0 && index != NULL) {
        *index = c.index;
    }
    return s;
}

dtr_status dtr_group_subgroups_by_list(dtr_world *world, const int *const *lists, const int *lens,
                                       int n_lists, const dtr_group_options *options,
                                       dtr_group **mine, int *index) {
    return DTR_TRACED(dtr__trace_of(world), "dtr_group_subgroups_by_list", "",
                      group_subgroups_by_list(world, lists, lens, n_lists, options, mine, index));
}

/* ---- duplicates ---- */

dtr_status dtr__group_dup(dtr_group *group, const char *name, dtr_group **dup) {
    DTR_TRY(check_parent(group, "duplication of a group", NULL));
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.name = name;
    o.backend = group->backends.asked;
    o.device = group->device;
    o.has_device = group->asked.bound;
    o.deterministic = group->asked.deterministic;
    o.reproducible = group->asked.reproducible;
    o.nan_check = group->asked.nan_check;
    dtr__nccl_limits(group, &o);
    dtr__creation c;
    DTR_TRY(dtr__creation_begin(&c, group->world, group, "duplication", &o));
    c.index = 0;
    c.members = group->world_ranks;
    c.n_members = group->size;
    c.desc = group->label.desc;
    c.unlisted = true;
    return dtr__create(&c, "all members", dup);
}

/* ---- the ranks of the node ---- */

static dtr_status make_node_group(dtr_world *world, dtr_group **node) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.name = "node";
    o.backend = "cpu:auto";
    o.local_sync = true;
    dtr__creation c;
    DTR_TRY(dtr__creation_begin(&c, world, NULL, "dtr_node_barrier", &o));
    c.unlisted = true;
    return create_list(&c, world->local_world, world->local_size, node);
}

dtr_status dtr__group_of_node(dtr_world *world, dtr_group **node) {
    dtr__groups *gs = world->groups;
    dtr_group *g = atomic_load_explicit(&gs->node, memory_order_acquire);
    if (g == NULL) {
        DTR_TRY(make_node_group(world, &g));
        atomic_store_explicit(&gs->node, g, memory_order_release);
    }
    *node = g;
    return DTR_OK;
}
