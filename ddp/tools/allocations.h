/* Counts calls of malloc and its relatives in this process, libraries included. */
#ifndef DTR_TOOLS_ALLOCATIONS_H
#define DTR_TOOLS_ALLOCATIONS_H

#include <stdbool.h>
#include <stdint.h>

bool allocations_counted(void); /* false where this build cannot see them */
uint64_t allocations(void);     /* so far, all threads */

#endif /* DTR_TOOLS_ALLOCATIONS_H */
