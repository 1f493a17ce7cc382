/* What the public creations (create, split, subgroups, by list, duplicate) share. */
#ifndef DTR_GROUP_MAKE_H
#define DTR_GROUP_MAKE_H

#include "agreement/agree.h"
#include "group/groups.h"

enum { DTR__NAME_SIZE = sizeof(((dtr_group *)0)->name) };

/* One creation as this rank asks for it. */
typedef struct dtr__creation {
    dtr_world *world;
    dtr_group *parent;        /* NULL: the world as such */
    const dtr_group *inherit; /* whose settings serve where the options have none */
    const char *entry;        /* name of the public call */
    dtr_group_options o;
    double timeout_cpu_s, timeout_cuda_s;
    const char *backend, *desc;
    bool by_color; /* members become known only by asking everybody */
    bool unlisted;
    const int *scope; /* world ranks that take part */
    int n_scope;
    uint64_t list_set;
    int index; /* of the group this rank goes to, -1: none */
    int64_t key;
    const int *members; /* of that group; NULL: none, or not known yet */
    int n_members;
    int *owned_members, *owned_outcome;
    char name[DTR__NAME_SIZE]; /* of that group; "": to be numbered */
    char what[192];            /* for messages */
} dtr__creation;

/* Checks that all creations share, and what follows from options, parent and world. Local. */
dtr_status dtr__creation_begin(dtr__creation *c, dtr_world *world, dtr_group *parent,
                               const char *entry, const dtr_group_options *options);
/* Meet, make, confirm. `list` is the text of what is asked for, compared among the callers. A rank
 * without group gets NULL. */
dtr_status dtr__create(dtr__creation *c, const char *list, dtr_group **group);

/* Check a list of world ranks: size, range, repeats, in this order. `taken` [world size], zeroed,
 * marks the ranks seen; over several lists it finds a rank that is in two of them. `which` begins
 * "the list" in messages. */
dtr_status dtr__check_list(const dtr__creation *c, const char *which, const int *ranks, int n,
                           bool *taken);

#endif /* DTR_GROUP_MAKE_H */
