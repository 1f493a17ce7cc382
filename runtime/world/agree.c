/* What all ranks of a world must have alike: the library's version, and the settings whose help
 * says so. Compared at world creation before anything depends on them, because ranks that differ
 * would wait for each other in different places. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <dtr/version.h>

#include "world/world.h"

enum { VALUE_CAP = 96, DISTINCT = 4, RANKS_NAMED = 4 };

/* One value, and who has it. */
typedef struct camp {
    char value[VALUE_CAP];
    char ranks[RANKS_NAMED * 12]; /* the first few, "0, 1, 5" */
    int n;
} camp;

static uint64_t hash_text(const char *text) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *text != '\0'; text++) {
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    }
    return h;
}

static void add_rank(camp *c, int rank) {
    size_t at = strlen(c->ranks);
    if (c->n < RANKS_NAMED) {
        snprintf(c->ranks + at, sizeof c->ranks - at, "%s%d", c->n > 0 ? ", " : "", rank);
    }
    c->n++;
}

static void say_camp(const camp *c, char *text, size_t cap) {
    char more[32] = "";
    if (c->n > RANKS_NAMED) {
        snprintf(more, sizeof more, " and %d more", c->n - RANKS_NAMED);
    }
    size_t at = strlen(text);
    snprintf(text + at, cap - at, "%s\"%s\" on rank%s %s%s", at > 0 ? "; " : "", c->value,
             c->n > 1 ? "s" : "", c->ranks, more);
}

/* Every rank says its value in turn, so that nobody needs memory for all of them. */
static dtr_status gather_camps(dtr__members m, const char *mine, char *text, size_t cap) {
    camp camps[DISTINCT] = { { .n = 0 } };
    int n = 0, others = 0;
    for (int r = 0; r < m.size; r++) {
        char value[VALUE_CAP] = "";
        snprintf(value, sizeof value, "%s", r == m.rank ? mine : "");
        DTR_TRY(dtr__exchange_broadcast(m, value, VALUE_CAP, r));
        value[VALUE_CAP - 1] = '\0';
        int k = 0;
        while (k < n && strcmp(camps[k].value, value) != 0) {
            k++;
        }
        if (k == DISTINCT) {
            others++;
            continue;
        }
        if (k == n) {
            memcpy(camps[n++].value, value, sizeof value);
        }
        add_rank(&camps[k], r);
    }
    text[0] = '\0';
    for (int k = 0; k < n; k++) {
        say_camp(&camps[k], text, cap);
    }
    if (others > 0) {
        size_t at = strlen(text);
        snprintf(text + at, cap - at, "; others on %d more", others);
    }
    return DTR_OK;
}

/* Index of the first entry in which ranks differ, -1: none. Lowest and highest in one message,
 * however many ranks there are. */
static dtr_status first_difference(dtr__members m, const uint64_t *mine, int n, int *where) {
    uint64_t bounds[2 * DTR__OPT_COUNT], all[2 * DTR__OPT_COUNT];
    for (int i = 0; i < n; i++) {
        bounds[2 * i] = mine[i];
        bounds[2 * i + 1] = ~mine[i];
    }
    DTR_TRY(dtr__exchange_min(m, bounds, all, 2 * n));
    *where = -1;
    for (int i = 0; i < n && *where < 0; i++) {
        *where = all[2 * i] != ~all[2 * i + 1] ? i : -1;
    }
    return DTR_OK;
}

dtr_status dtr__agree_version(dtr__members m, int version) {
    const uint64_t mine = (uint64_t)version;
    int where;
    DTR_TRY(first_difference(m, &mine, 1, &where));
    if (where < 0) {
        return DTR_OK;
    }
    char value[VALUE_CAP], text[DISTINCT * 2 * VALUE_CAP];
    snprintf(value, sizeof value, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    DTR_TRY(gather_camps(m, value, text, sizeof text));
    return DTR_FAIL(NULL, DTR_ERR_MISMATCH,
                    "the ranks run different versions of the library: %s; all must load the same",
                    text);
}

static void lower_case(char *text) {
    for (; *text != '\0'; text++) {
        *text = (char)tolower((unsigned char)*text);
    }
}

dtr_status dtr__agree_settings(const dtr_world *world) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_create" };
    uint64_t mine[DTR__OPT_COUNT];
    for (int i = 0; i < DTR__OPT_COUNT; i++) {
        char value[256];
        mine[i] = 0;
        if (dtr__opt_alike((dtr__opt)i)) {
            dtr__opt_canonical(&world->options, (dtr__opt)i, value, sizeof value);
            lower_case(value);
            mine[i] = hash_text(value);
        }
    }
    int where;
    DTR_TRY(first_difference(dtr__members_of(world), mine, DTR__OPT_COUNT, &where));
    if (where < 0) {
        return DTR_OK;
    }
    const dtr__opt id = (dtr__opt)where;
    char text[DISTINCT * 2 * VALUE_CAP];
    DTR_TRY(gather_camps(dtr__members_of(world), dtr__opt_text(&world->options, id), text,
                         sizeof text));
    return DTR_FAIL(&ctx, DTR_ERR_MISMATCH,
                    "world creation: %s must be the same on all ranks, but is %s: give all the "
                    "same environment and the same dtr_world_options",
                    dtr__opt_name(id), text);
}
