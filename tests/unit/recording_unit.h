/* What the tests of recordings share: a recorder without a world around it, and a folder for its
 * file. */
#ifndef TESTS_RECORDING_UNIT_H
#define TESTS_RECORDING_UNIT_H

#include "recorder/recording.h"
#include "unit.h"
#include "world/world.h"

extern char base[64]; /* the folder */
void make_base(void);
void remove_base(void);
void find_file(char *path, size_t cap); /* the one file of `base`, "": there is none */

/* Rank 2 of 5 with a recorder and nothing else. */
void open_world(dtr_world *w, const char *folder, const char *entries);
void close_world(dtr_world *w);
const char *kind_name(int k);
const char *op_name(int o);

#endif /* TESTS_RECORDING_UNIT_H */
