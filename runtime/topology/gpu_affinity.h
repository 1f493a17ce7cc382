/* Which GPU a rank takes where the program names none. */
#ifndef DTR_RT_NEAREST_H
#define DTR_RT_NEAREST_H

#include <stdint.h>

/* Where a GPU is plugged in. */
typedef struct dtr__pci {
    int domain, bus, device;
} dtr__pci;

enum { DTR__DISTANCE_UNKNOWN = 255 }; /* or unknown */
/* distance[i]: steps in the tree of caches, memories and packages from the cores that this process
 * is bound to, to GPU i. */
void dtr__gpu_affinity_read(const dtr__pci *gpus, int n, uint8_t *distance);
/* Of the devices with the fewest users the nearest, of equal ones the first; -1: n is 0. */
int dtr__nearest_pick(const int *users, const uint8_t *distance, int n);

#endif /* DTR_RT_NEAREST_H */
