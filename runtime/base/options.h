/* The table of settings: one line per DTR_* variable gives name, type, default and help. Read once
 * per world. */
#ifndef DTR_RT_OPTIONS_H
#define DTR_RT_OPTIONS_H

#include <stdio.h>

#include <dtr/status.h>

/* Index into the table; the list itself is in base/options.def: X(ID, "DTR_NAME", type, "default",
 * "help"). */
typedef enum dtr__opt {
#define X(id, name, type, def, help) DTR__OPT_##id,
#include "base/options.def"
#undef X
    DTR__OPT_COUNT
} dtr__opt;

typedef enum dtr__opt_type {
    DTR__OPT_BOOL,    /* 0/1 yes/no true/false on/off, any case */
    DTR__OPT_INT,     /* whole number >= 0, in the "LOW..HIGH:" that the help begins with */
    DTR__OPT_BYTES,   /* 4096, 64KiB, 25MiB, 1GiB; in the "LOW..HIGH:" that the help begins with */
    DTR__OPT_SECONDS, /* decimal > 0, or inf; 0 where the help says "0: off" */
    DTR__OPT_TEXT,
    DTR__OPT_ENUM /* one of the words in the help's "a|b|c:" prefix */
} dtr__opt_type;

typedef enum dtr__opt_origin { DTR__FROM_DEFAULT, DTR__FROM_ENV, DTR__FROM_CODE } dtr__opt_origin;

typedef struct dtr__opt_value {
    dtr__opt_origin origin;
    char *text; /* as given; owned */
    double seconds;
    uint64_t number; /* int, bytes, bool, index of the enum word */
} dtr__opt_value;

typedef struct dtr__options {
    dtr__opt_value value[DTR__OPT_COUNT];
} dtr__options;

/* Read the environment over the defaults. A value that does not parse is DTR_ERR_ARG naming
 * variable, value and what is accepted. */
dtr_status dtr__options_read(dtr__options *o);
void dtr__options_free(dtr__options *o);
/* Values set in code win over the environment. */
dtr_status dtr__options_set(dtr__options *o, dtr__opt id, const char *text);
dtr_status dtr__options_set_seconds(dtr__options *o, dtr__opt id, double seconds);
/* Call `warn` once for every DTR_* variable that is not in the table (DTR_FAKE_* excepted), with
 * the nearest name. */
void dtr__options_unknown(void (*warn)(void *arg, const char *name, const char *nearest),
                          void *arg);
/* dtr-info --options: name, type, default, current value, who set it, help. */
void dtr__options_print(const dtr__options *o, FILE *to);

/* NAME=value lines of the settings that are not the default, then of those that the environment has
 * for NCCL, cut to `cap`. */
void dtr__options_list(const dtr__options *o, char *text, size_t cap);

const char *dtr__opt_name(dtr__opt id);
/* Must all ranks have the same value? Its help then ends in "; the same on all ranks". */
bool dtr__opt_alike(dtr__opt id);
/* The value in one spelling: equal values give equal texts. */
void dtr__opt_canonical(const dtr__options *o, dtr__opt id, char *text, size_t cap);

/* "4096", "64KiB", "25M"; false for anything else. */
bool dtr__parse_bytes(const char *text, uint64_t *number);

static inline uint64_t dtr__opt_number(const dtr__options *o, dtr__opt id) {
    return o->value[id].number;
}
static inline double dtr__opt_seconds(const dtr__options *o, dtr__opt id) {
    return o->value[id].seconds;
}
static inline const char *dtr__opt_text(const dtr__options *o, dtr__opt id) {
    return o->value[id].text;
}

#endif /* DTR_RT_OPTIONS_H */
