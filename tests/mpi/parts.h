/* Test cases of a program that are in files of their own. */
#ifndef TH_PARTS_H
#define TH_PARTS_H

#include "harness.h"

void ddp_basic_states(TCase *tc);
void ddp_misc_statistics(TCase *tc);
void ddp_unused_alone(TCase *tc);
void shm_ways_channels(TCase *tc);

#endif /* TH_PARTS_H */
