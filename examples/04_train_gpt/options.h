/* Command line of train_gpt. */
#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include <dtr/ddp.h>

#include "gpt.h"

typedef struct train_options {
    const char *data, *checkpoint, *resume, *hook, *curve;
    gpt_config model;
    int batch;                               /* sequences per rank and step */
    long steps, verify, save_every, stop_at; /* 0: not asked for */
    float rate;
    float clip; /* largest norm of gradients; 0: any */
    uint64_t seed;
    int sample;
    int accumulate; /* backward passes per step */
    bool zero, uneven, mixed, deterministic;
    dtr_ddp_builtin builtin; /* of --hook */
    dtr_dtype mixed_dtype;   /* of --mixed */
} train_options;

/* 0: go on; 1: help was asked for and printed; 2: bad option, message printed. Only `loud` ranks
 * print. */
int train_options_parse(train_options *o, int argc, char **argv, bool loud);

#endif /* TRAIN_OPTIONS_H */
