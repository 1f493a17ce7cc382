/* What the tests of groups share. */
#ifndef GROUPS_COMMON_H
#define GROUPS_COMMON_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

/* Literal list of world ranks and its length. */
#define LIST(...) (int[]){ __VA_ARGS__ }, (int)(sizeof((int[]){ __VA_ARGS__ }) / sizeof(int))

static inline dtr_group_options options(double timeout_s, const char *name) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.timeout_s = timeout_s;
    o.name = name;
    return o;
}

/* A group that must come out: NULL on ranks that are not listed. */
static inline dtr_group *made(const int *ranks, int n, const dtr_group_options *o) {
    dtr_group *g = NULL;
    TH_IS(dtr_group_create(th_world(), ranks, n, o, &g), DTR_OK);
    return g;
}

/* The number that the next unnamed group will have: one more than that of a group made for it. */
static inline unsigned long next_number(void) {
    dtr_group *g = made(NULL, th_size(), NULL);
    unsigned long number = strtoul(dtr_group_name(g), NULL, 10);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    return number + 1;
}

static inline bool is_named(const dtr_group *g, unsigned long number) {
    char text[24];
    snprintf(text, sizeof text, "%lu", number);
    return strcmp(dtr_group_name(g), text) == 0;
}

static inline dtr_group_info info_of(const dtr_group *g) {
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    TH_IS(dtr_group_get_info(g, &info), DTR_OK);
    return info;
}

/* Something that is no group, to see whether an output was touched. */
#define UNTOUCHED ((dtr_group *)(uintptr_t)64)

#endif /* GROUPS_COMMON_H */
