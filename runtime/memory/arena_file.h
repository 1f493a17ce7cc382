/* The file of one rank's arena: made with or without a name, found by the others and mapped. */
#ifndef DTR_RT_ARENA_FILE_H
#define DTR_RT_ARENA_FILE_H

#include "base/world.h"

#define DTR__ARENA_GRAIN ((uint64_t)64 << 10) /* sizes of files are multiples of it */

/* How far an attempt came on this rank; the node goes by the worst. */
typedef enum outcome { NO_WAY, TOO_BIG, SHARED } outcome;

/* What a rank sends the others of its file. */
typedef struct offer {
    int pid, fd;
    uint64_t size;
    unsigned char nonce[16];
    char name[40]; /* in /dev/shm; "" for a file without a name */
    int outcome, last_size;
} offer;

outcome dtr__arena_outcome(int code); /* of an errno */
/* The k-th size to try: a quarter of the one before, down to a least one. */
uint64_t dtr__arena_file_size(const dtr_world *world, int k, bool *last);
/* Removes names in /dev/shm that a killed job has left. */
void dtr__arena_files_sweep(void);
/* A new file of that size, with the nonce by which the others recognise it; -1, and why. */
int dtr__arena_file_make(offer *o, bool named, int local_size, char *why, size_t cap);
int dtr__arena_file_open(const offer *o); /* another rank's; -1 with errno */
/* Over its place in the reserved stretch. */
outcome dtr__arena_file_map(char *at, const offer *o, int fd, bool own, char *why, size_t cap);

#endif /* DTR_RT_ARENA_FILE_H */
