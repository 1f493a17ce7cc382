/* Thresholds between the ways in which ranks of a node exchange data: built-in values, over them
 * what is found out about this node (whether its kernel copies fast), over that what a file says
 * for this node (DTR_TUNE_FILE, written by dtr-bench --tune), over that DTR_TUNE. Local rank 0
 * reads them for its node, so all ranks of a node have the same. */
#ifndef DTR_RT_TUNE_H
#define DTR_RT_TUNE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <dtr/status.h>

enum { DTR__TUNE_INLINE_MAX = 128 << 10 }; /* a receive has room for as much */

typedef enum dtr__tune_key {
#define X(id, name, def, least, most, help) DTR__TUNE_##id,
#include "base/tune.def"
#undef X
    DTR__TUNE_COUNT
} dtr__tune_key;

typedef struct dtr__tune {
    uint64_t value[DTR__TUNE_COUNT];
} dtr__tune;

/* Collective over the node: local rank 0 reads the thresholds for all; its error is its own. */
dtr_status dtr__tune_open(dtr_world *world);

void dtr__tune_defaults(dtr__tune *t);
/* "name=SIZE,name=SIZE" over what `t` holds; unchanged on failure. */
dtr_status dtr__tune_list(const char *text, dtr__tune *t);
/* A whole file, checked from end to end; the sections for this CPU model and number of local ranks
 * go over `t`, *sections says how many there were. `name` is for messages, which give the line. */
dtr_status dtr__tune_text(const char *name, const char *text, size_t nbytes, const char *cpu,
                          int ranks, dtr__tune *t, int *sections);
/* Writes a file that dtr__tune_text reads. */
void dtr__tune_write(FILE *to, const char *cpu, int ranks, const dtr__tune *t);
/* Whether this node has network devices that write into remote memory; `classes` is /sys/class. */
bool dtr__tune_fabric(const char *classes);
/* The CPU's model name, without quotes and control characters; "unknown" where nothing says it. */
void dtr__tune_cpu(char *model, size_t cap);

#endif /* DTR_RT_TUNE_H */
