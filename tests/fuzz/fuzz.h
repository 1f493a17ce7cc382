/* Fuzz targets in libFuzzer's form. With clang and DTR_FUZZ=ON they are libFuzzer programs; always
 * they are also tests, in which standalone.c feeds the seeds and mutations of them, the same ones
 * in every run. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* Good inputs to begin with: the number of them, and one of them, malloc'ed. In each target, for
 * standalone.c and for `PROGRAM --seeds FOLDER`. */
size_t fuzz_seeds(void);
uint8_t *fuzz_seed(size_t i, size_t *nbytes);

/* Name of a file that holds these bytes, until the next call. In memory. */
const char *fuzz_file(const uint8_t *data, size_t nbytes);
/* A whole file; NULL when it cannot be read. */
uint8_t *fuzz_read(const char *path, size_t *nbytes);

#endif /* FUZZ_H */
