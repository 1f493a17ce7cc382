/* Command line of train_gpt. */
#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpt.h"

typedef struct train_options {
    const char *data, *checkpoint;
    gpt_config model;
    int batch;                               /* sequences per rank and step */
    long steps, verify, save_every, stop_at; /* 0: not asked for */
    float rate;
    uint64_t seed;
    int sample;
} train_options;

/* 0: go on; 1: help was asked for and printed; 2: bad option, message printed. Only `loud` ranks
 * print. */
int train_options_parse(train_options *o, int argc, char **argv, bool loud);

#endif /* TRAIN_OPTIONS_H */
