/* World, groups and works of the module. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtr_fortran.h"

#define FORTRAN(signature) DTR_F_FUNCTION(void dtr_f_##signature)
#define ENDING int *stat, const CFI_cdesc_t *errmsg /* of every call */

/* A call that is one function of the library. */
#define PLAIN(name, expression)               \
    do {                                      \
        dtr_f_call c;                         \
        dtr_f_begin(&c, #name, stat, errmsg); \
        c.status = (expression);              \
        dtr_f_end(&c);                        \
    } while (0)

static double limit(const double *timeout) {
    return timeout != NULL ? *timeout : -1;
}

/* ---- world ---- */

FORTRAN(world_create(dtr_world **world, const CFI_cdesc_t *backend, const double *timeout,
                     const CFI_cdesc_t *keep_mpi, ENDING)) {
    char text[DTR_F_TEXT];
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.backend = dtr_f_text(backend, text);
    o.timeout_s = limit(timeout);
    o.keep_mpi = dtr_f_logical(keep_mpi);
    PLAIN(world_create, dtr_world_create(&o, world));
}

FORTRAN(world_destroy(dtr_world **world, ENDING)) {
    dtr_world *ended = *world;
    *world = NULL;
    PLAIN(world_destroy, dtr_world_destroy(ended));
}

FORTRAN(world_progress(dtr_world *const *world, ENDING)) {
    PLAIN(world_progress, dtr_world_progress(*world));
}

FORTRAN(node_barrier(dtr_world *const *world, ENDING)) {
    dtr_f_site(__builtin_return_address(0));
    PLAIN(node_barrier, dtr_node_barrier(*world));
}

/* ---- groups ---- */

typedef struct group_options {
    dtr_group_options o;
    char name[DTR_F_TEXT], backend[DTR_F_TEXT];
} group_options;

#define OPTIONS                                                                 \
    const CFI_cdesc_t *name, const CFI_cdesc_t *backend, const double *timeout, \
        const CFI_cdesc_t *deterministic, const CFI_cdesc_t *reproducible

static void set_options(group_options *g, OPTIONS) {
    g->o = (dtr_group_options)DTR_GROUP_OPTIONS_INIT;
    g->o.name = dtr_f_text(name, g->name);
    g->o.backend = dtr_f_text(backend, g->backend);
    g->o.timeout_s = limit(timeout);
    g->o.deterministic = dtr_f_logical(deterministic);
    g->o.reproducible = dtr_f_logical(reproducible);
}

static dtr_status create(dtr_f_call *c, dtr_world *world, const CFI_cdesc_t *ranks,
                         const dtr_group_options *o, dtr_group **group) {
    if (ranks->rank != 1 || !dtr_f_is_whole(ranks)) {
        dtr_f_refuse(c, DTR_ERR_ARG,
                     "ranks has to be a one-dimensional array of integers of 4 or 8 "
                     "bytes");
        return c->status;
    }
    const int n = (int)ranks->dim[0].extent;
    int *list = malloc(((size_t)n + 1) * sizeof *list);
    for (int i = 0; list != NULL && i < n; i++) {
        const int64_t rank = dtr_f_whole(ranks, i);
        list[i] = rank == (int)rank ? (int)rank : -1; /* which is none either */
    }
    const dtr_status s = list != NULL ? dtr_group_create(world, list, n, o, group) : DTR_ERR_NOMEM;
    free(list);
    return s;
}

FORTRAN(group_create(dtr_world *const *world, const CFI_cdesc_t *ranks, dtr_group **group, OPTIONS,
                     ENDING)) {
    dtr_f_call c;
    group_options g;
    set_options(&g, name, backend, timeout, deterministic, reproducible);
    dtr_f_begin(&c, "group_create", stat, errmsg);
    c.status = create(&c, *world, ranks, &g.o, group);
    dtr_f_end(&c);
}

FORTRAN(group_split(dtr_group *const *parent, const int *color, dtr_group **group, const int *key,
                    OPTIONS, ENDING)) {
    group_options g;
    set_options(&g, name, backend, timeout, deterministic, reproducible);
    PLAIN(group_split, dtr_group_split(*parent, *color, key != NULL ? *key : 0, &g.o, group));
}

FORTRAN(group_destroy(dtr_group **group, ENDING)) {
    dtr_group *ended = *group;
    *group = NULL;
    PLAIN(group_destroy, dtr_group_destroy(ended));
}

FORTRAN(group_release(dtr_group **group, ENDING)) {
    dtr_group *ended = *group;
    *group = NULL;
    PLAIN(group_release, dtr_group_release(ended));
}

FORTRAN(group_abort(dtr_group *const *group, const CFI_cdesc_t *reason, ENDING)) {
    char text[DTR_F_TEXT];
    PLAIN(group_abort, dtr_group_abort(*group, dtr_f_text(reason, text)));
}

FORTRAN(group_set_timeout(dtr_group *const *group, const double *timeout, ENDING)) {
    PLAIN(group_set_timeout, dtr_group_set_timeout(*group, *timeout));
}

FORTRAN(group_drain(dtr_group *const *group, const double *timeout, ENDING)) {
    PLAIN(group_drain, dtr_group_drain(*group, limit(timeout)));
}

FORTRAN(monitored_barrier(dtr_group *const *group, const double *timeout, ENDING)) {
    dtr_f_site(__builtin_return_address(0));
    PLAIN(monitored_barrier, dtr_monitored_barrier(*group, limit(timeout), true, NULL, NULL));
}

/* ---- questions ---- */

#define ANSWER(object, what)                                              \
    DTR_F_FUNCTION(int dtr_f_##object##_##what(dtr_##object *const *h)) { \
        return (int)dtr_##object##_##what(*h);                            \
    }
ANSWER(world, rank)
ANSWER(world, size)
ANSWER(world, local_rank)
ANSWER(world, local_size)
ANSWER(world, node)
ANSWER(world, node_count)
ANSWER(group, rank)
ANSWER(group, size)
ANSWER(group, status)

DTR_F_FUNCTION(int dtr_f_group_world_rank(dtr_group *const *group, const int *group_rank)) {
    return dtr_group_world_rank(*group, *group_rank);
}

DTR_F_FUNCTION(int dtr_f_group_rank_of(dtr_group *const *group, const int *world_rank)) {
    return dtr_group_rank_of(*group, *world_rank);
}

FORTRAN(world_group(dtr_world *const *world, dtr_group **group)) {
    *group = dtr_world_group(*world);
}

/* ---- works ---- */

/* Gives back the handle of an operation that is over. What the failure said stays. */
static void end_work(dtr_f_call *c, dtr_work **work) {
    bool done = false;
    if (DTR_FAILED(c->status) && c->message[0] == '\0') {
        snprintf(c->message, sizeof c->message, "%s", dtr_last_error_message());
    }
    (void)dtr_work_test(*work, &done);
    if (done) {
        (void)dtr_work_release(*work);
        *work = NULL;
    }
}

FORTRAN(work_wait(dtr_work **work, const double *timeout, int *source, double *duration, ENDING)) {
    dtr_f_call c;
    dtr_f_begin(&c, "work_wait", stat, errmsg);
    c.status = dtr_work_wait(*work, limit(timeout));
    if (source != NULL) {
        *source = dtr_work_source(*work);
    }
    if (duration != NULL) {
        *duration = dtr_work_duration(*work);
    }
    end_work(&c, work);
    dtr_f_end(&c);
}

/* Of any kind: true is 1. */
static void set_logical(const CFI_cdesc_t *to, bool value) {
    memset(to->base_addr, 0, to->elem_len);
    ((char *)to->base_addr)[0] = value; /* little-endian, as all that the library runs on */
}

FORTRAN(work_test(dtr_work **work, CFI_cdesc_t *done, ENDING)) {
    dtr_f_call c;
    bool is_done = false;
    dtr_f_begin(&c, "work_test", stat, errmsg);
    c.status = dtr_work_test(*work, &is_done);
    set_logical(done, is_done);
    if (is_done) {
        end_work(&c, work);
    }
    dtr_f_end(&c);
}

FORTRAN(work_release(dtr_work **work, ENDING)) {
    dtr_work *left = *work;
    *work = NULL;
    PLAIN(work_release, dtr_work_release(left));
}

/* The handles of an array, which may be a section. */
static dtr_work **list_works(dtr_f_call *c, const CFI_cdesc_t *works) {
    dtr_work **list = calloc((size_t)works->dim[0].extent + 1, sizeof *list);
    if (list == NULL) {
        dtr_f_refuse(c, DTR_ERR_NOMEM, "no memory for a list of %td works", works->dim[0].extent);
    } else {
        dtr_f_pack(works, list);
    }
    return list;
}

FORTRAN(work_wait_all(const CFI_cdesc_t *works, const double *timeout, ENDING)) {
    dtr_f_call c;
    dtr_f_begin(&c, "work_wait_all", stat, errmsg);
    dtr_work **list = list_works(&c, works);
    const size_t n = (size_t)works->dim[0].extent;
    DTR_F_TRY(&c, dtr_work_wait_all(list, n, limit(timeout)));
    for (size_t i = 0; list != NULL && i < n; i++) {
        end_work(&c, &list[i]);
    }
    if (list != NULL) {
        dtr_f_unpack(list, works);
    }
    free(list);
    dtr_f_end(&c);
}

FORTRAN(work_wait_any(const CFI_cdesc_t *works, int *index, const double *timeout, ENDING)) {
    dtr_f_call c;
    dtr_f_begin(&c, "work_wait_any", stat, errmsg);
    dtr_work **list = list_works(&c, works);
    const size_t n = (size_t)works->dim[0].extent;
    size_t which = n; /* none yet */
    DTR_F_TRY(&c, dtr_work_wait_any(list, n, limit(timeout), &which));
    *index = 0;
    if (list != NULL && which < n) {
        *index = (int)which + 1;
        end_work(&c, &list[which]);
        dtr_f_unpack(list, works);
    }
    free(list);
    dtr_f_end(&c);
}
