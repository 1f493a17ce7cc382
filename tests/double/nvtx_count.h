/* What nvtx_count.c tells the test. */
#ifndef DTR_NVTX_COUNT_H
#define DTR_NVTX_COUNT_H

enum { NVTX_PUSH = 'p', NVTX_POP = 'q', NVTX_START = 's', NVTX_END = 'e' };

/* Events of a kind whose text begins like that. */
unsigned nvtx_count_of(char kind, const char *text);

#endif /* DTR_NVTX_COUNT_H */
