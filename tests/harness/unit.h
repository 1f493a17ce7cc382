/* Main of a suite without MPI. */
#ifndef TH_UNIT_H
#define TH_UNIT_H

#include <check.h>

int th_unit_main(const char *suite, void (*make)(Suite *s));

#endif /* TH_UNIT_H */
