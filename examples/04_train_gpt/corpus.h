/* Training text: bytes of one file, or of every file in a directory, and the slices of it that a
 * step uses. */
#ifndef CORPUS_H
#define CORPUS_H

#include <stddef.h>
#include <stdint.h>

typedef struct corpus {
    uint8_t *text;
    size_t size;
    int files;
} corpus;

/* `path` is a file or a directory (regular files directly in it, by name; links are left out).
 * Returns 0, or -1 with a message in `why`. */
int corpus_load(corpus *c, const char *path, char *why, size_t cap);
void corpus_free(corpus *c);

/* Sequence `index` of step `step`: the same for any number of ranks, so W ranks with batch B see
 * what one rank with batch W * B sees. Writes `context` inputs and the bytes that follow each. */
void corpus_sequence(const corpus *c, uint64_t seed, long step, int index, int context,
                     uint8_t *input, uint8_t *target);

#endif /* CORPUS_H */
