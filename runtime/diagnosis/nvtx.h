/* Ranges for NVIDIA's profilers. Their header finds the profiler by itself; without one a range
 * costs a branch. */
#ifndef DTR_RT_NVTX_H
#define DTR_RT_NVTX_H

#include <stdbool.h>
#include <stdint.h>

bool dtr__nvtx_open(void); /* false: not in this build */
/* Of this thread, one inside the other. */
void dtr__nvtx_push(const char *text);
void dtr__nvtx_pop(void);
/* From any thread to any other. */
uint64_t dtr__nvtx_start(const char *text);
void dtr__nvtx_end(uint64_t range);

#endif /* DTR_RT_NVTX_H */
