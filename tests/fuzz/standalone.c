/* Runs a fuzz target without libFuzzer: `PROGRAM [N]` gives it its seeds, every prefix length of
 * interest, and N mutations of them (20000), the same ones in every run; `PROGRAM --seeds FOLDER`
 * writes the seeds, `PROGRAM FILE...` replays files that broke it once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

enum { DEFAULT_RUNS = 20000, LARGEST_CUT = 512, HEAD = 512 /* where lengths and offsets are */ };

static uint64_t state = 88172645463325252u;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Values at which arithmetic goes wrong. */
static uint64_t odd_value(void) {
    static const uint64_t odd[] = { 0,          1,          0x7f,       0x80,
                                    0xff,       0x7fff,     0xffff,     0x7fffffff,
                                    0x80000000, 0xffffffff, INT64_MAX,  (uint64_t)INT64_MIN,
                                    UINT64_MAX, 1u << 20,   1ull << 40, '9' };
    return odd[next() % (sizeof odd / sizeof odd[0])];
}

static size_t mutate(uint8_t *data, size_t nbytes) {
    for (uint64_t n = 1 + next() % 4; n > 0 && nbytes > 0; n--) {
        size_t reach = next() % 2 == 0 && nbytes > HEAD ? HEAD : nbytes;
        size_t at = next() % reach, left = nbytes - at;
        uint64_t value = odd_value();
        size_t width = (size_t)1 << next() % 4, from = next() % nbytes;
        switch (next() % 6) {
        case 0:
            data[at] ^= (uint8_t)(1u << next() % 8);
            break;
        case 1:
            data[at] = (uint8_t)next();
            break;
        case 2:
            memcpy(data + at, &value, width < left ? width : left);
            break;
        case 3:
            nbytes = next() % 8 == 0 ? at : nbytes; /* cut off */
            break;
        case 4:
            width = next() % 16;
            width = width < left ? width : left;
            width = width < nbytes - from ? width : nbytes - from;
            memmove(data + at, data + from, width);
            break;
        default:
            memmove(data + at, data + at + 1, left - 1); /* one byte less */
            nbytes--;
            break;
        }
    }
    return nbytes;
}

static void run_mutations(size_t runs) {
    for (size_t i = 0; i < fuzz_seeds(); i++) {
        size_t nbytes = 0;
        uint8_t *seed = fuzz_seed(i, &nbytes), *copy = malloc(nbytes + 1);
        if (seed == NULL || copy == NULL) {
            fprintf(stderr, "fuzz: no seed %zu\n", i);
            exit(1);
        }
        LLVMFuzzerTestOneInput(seed, nbytes);
        for (size_t cut = 0; cut < nbytes && cut < LARGEST_CUT; cut++) {
            LLVMFuzzerTestOneInput(seed, cut);
        }
        for (size_t k = 0; k < runs / fuzz_seeds(); k++) {
            memcpy(copy, seed, nbytes);
            LLVMFuzzerTestOneInput(copy, mutate(copy, nbytes));
        }
        free(copy);
        free(seed);
    }
}

static int write_seeds(const char *folder) {
    for (size_t i = 0; i < fuzz_seeds(); i++) {
        char path[1024];
        size_t nbytes = 0;
        uint8_t *seed = fuzz_seed(i, &nbytes);
        snprintf(path, sizeof path, "%s/seed-%zu", folder, i);
        FILE *f = seed != NULL ? fopen(path, "wb") : NULL;
        if (f == NULL || fwrite(seed, 1, nbytes, f) != nbytes || fclose(f) != 0) {
            fprintf(stderr, "fuzz: cannot write %s\n", path);
            return 1;
        }
        free(seed);
    }
    return 0;
}

int main(int argc, char **argv) {
    LLVMFuzzerInitialize(&argc, &argv);
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0) {
        return write_seeds(argv[2]);
    }
    size_t runs = argc > 1 ? strtoul(argv[1], NULL, 10) : DEFAULT_RUNS;
    for (int i = 1; i < argc && runs == 0; i++) {
        size_t nbytes = 0;
        uint8_t *data = fuzz_read(argv[i], &nbytes);
        if (data != NULL) {
            LLVMFuzzerTestOneInput(data, nbytes);
        }
        free(data);
    }
    if (runs > 0) {
        run_mutations(runs);
    }
    printf("%s: no crash\n", argv[0]);
    return 0;
}
