/* Checkpoints of an optimizer: an index in JSON and one safetensors file per rank, whose tensors
 * are stretches of parameters and of their state, named "ARRAY/PARAMETER@FIRST". So any number of
 * ranks with any bucket plan finds what it needs, and so does a whole optimizer in the files of a
 * sharded one. Rank 0 writes the arrays of a whole one; other ranks have files there as far as one
 * of them has bytes of the program to keep. Tensors of the program are in rank 0's file, whole, as
 * "program/NAME", its text is in the index. */
#ifndef DTR_ZERO_FILE_H
#define DTR_ZERO_FILE_H

#include "zero/zero.h"

#define DTR__ZERO_VALUES "value" /* the array of the parameters themselves */
#define DTR__ZERO_OWN "program"  /* bytes of the program, no stretch of anything */
#define DTR__ZERO_TENSOR "program/%s"
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

/* Whether a file beside the index `stem` has such a name, of any rank of any number. */
bool dtr__zero_is_shard(const char *name, const char *stem, uint64_t token);

dtr_status dtr__zero_index_write(const dtr__share *sh, const char *path, uint64_t token,
                                 uint64_t step, int ranks, const dtr_zero_state *states, size_t n,
                                 const dtr_optim_extra *extra);
dtr_status dtr__zero_index_read(const char *path, dtr__zero_index *index);
/* DTR_ERR_MISMATCH naming the first parameter, array or tensor that differs from the module's. */
dtr_status dtr__zero_index_check(const dtr__zero_index *index, const dtr__share *sh,
                                 const dtr_zero_state *states, size_t n,
                                 const dtr_optim_extra *extra);
dtr_status dtr__zero_index_texts(const dtr__zero_index *index, dtr__texts *texts);
bool dtr__zero_is_utf8(const char *text);
void dtr__zero_index_free(dtr__zero_index *index);

/* Arguments of save and load, as far as one rank can judge. */
dtr_status dtr__zero_check_states(const dtr__share *sh, const char *entry, const char *path,
                                  const dtr_zero_state *states, size_t n);
/* And that what load and slice fill may be written. */
dtr_status dtr__zero_check_writable(const char *entry, const dtr_zero_state *states, size_t n);
/* What a file says about a tensor's contents. */
uint64_t dtr__zero_piece_hash(const void *data, size_t nbytes);

/* ---- zero_extra.c ---- */
/* dtr_optim_extra of a call, as far as one rank can judge; `given` may be NULL. `write`: the call
 * writes files, else into the tensors. */
dtr_status dtr__extra_check(const char *entry, const dtr_optim_extra *given, bool write,
                            dtr_optim_extra *x);
/* Types, shapes and names in one number; and text. */
uint64_t dtr__extra_tensors_hash(const dtr_optim_extra *x);
uint64_t dtr__extra_metadata_hash(const dtr_optim_extra *x);
/* Contiguous tensors of the same contents, and hashes of these: what is written. */
typedef struct dtr__packed {
    size_t n;
    dtr_tensor **tensors;
    uint64_t *hashes;
} dtr__packed;
dtr_status dtr__packed_make(const dtr_optim_extra *x, dtr__packed *p);
void dtr__packed_free(dtr__packed *p);

/* ---- zero_share.c ---- */
bool dtr__share_has(const dtr__share *sh, size_t i); /* parameter i is in checkpoints */
/* What this rank has of parameter i: `at` is its place in the arrays of the parameter's type. */
bool dtr__share_piece(const dtr__share *sh, size_t i, dtr__zero_piece *p);
size_t dtr__share_count(const dtr__share *sh, dtr_dtype param_dtype); /* elements of arrays */
/* The order of a parameter's elements in files, which decides what a stretch is. */
void dtr__share_strides(const dtr__ddp_param *p, int64_t *strides);
typedef struct dtr__share_order {
    dtr_tensor *files; /* a tensor without memory in that order */
    dtr_tensor *rows;  /* by rows, where a whole state lies otherwise than in files; else NULL */
} dtr__share_order;
dtr_status dtr__share_order_make(const dtr__share *sh, size_t i, dtr__share_order *o);
void dtr__share_order_free(dtr__share_order *o);
/* A piece of a state, between its array and packed memory in that order. */
void dtr__share_read_state(const dtr__share_order *o, const dtr_buffer *data,
                           const dtr__zero_piece *p, void *to);
void dtr__share_write_state(const dtr__share_order *o, const dtr_buffer *data,
                            const dtr__zero_piece *p, const void *from);

#endif /* DTR_ZERO_FILE_H */
