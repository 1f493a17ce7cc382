/* Checkpoints of a sharded optimizer: an index in JSON and one safetensors file per rank, whose
 * tensors are stretches of parameters and of their state, named "ARRAY/PARAMETER@FIRST". So any
 * number of ranks with any bucket plan finds what it needs. */
#ifndef DTR_ZERO_FILE_H
#define DTR_ZERO_FILE_H

#include "zero_internal.h"

#define DTR__ZERO_VALUES "value" /* the array of the parameters themselves */
enum { DTR__ZERO_NAME = 600 };

typedef struct dtr__zero_index {
    char *path;
    void *json;     /* the parsed text */
    uint64_t token; /* in every file of this checkpoint */
    uint64_t step;
    int ranks;
} dtr__zero_index;

/* Path of a rank's file: beside the index, under a name no other checkpoint has. Freed by the
 * caller; NULL: out of memory. */
char *dtr__zero_shard_path(const char *path, uint64_t token, int rank, int ranks);

dtr_status dtr__zero_index_write(const dtr_zero *z, const char *path, uint64_t token, uint64_t step,
                                 const dtr_zero_state *states, size_t n);
dtr_status dtr__zero_index_read(const char *path, dtr__zero_index *index);
/* DTR_ERR_MISMATCH naming the first parameter or array that differs from the module's. */
dtr_status dtr__zero_index_check(const dtr__zero_index *index, const dtr_zero *z,
                                 const dtr_zero_state *states, size_t n);
void dtr__zero_index_free(dtr__zero_index *index);

/* Arguments of save and load, as far as one rank can judge. */
dtr_status dtr__zero_check_states(const dtr_zero *z, const char *entry, const char *path,
                                  const dtr_zero_state *states, size_t n);
/* What a file says about a tensor's contents. */
uint64_t dtr__zero_piece_hash(const void *data, size_t nbytes);

#endif /* DTR_ZERO_FILE_H */
