/* The file of thresholds that DTR_TUNE_FILE names, and the list of DTR_TUNE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/dtr.h>

#include "base/tune.h"
#include "fuzz.h"

static const char CPU[] = "Some CPU 9000";

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    return 0;
}

size_t fuzz_seeds(void) {
    return 2;
}

/* A file as it is written, and a list. */
uint8_t *fuzz_seed(size_t i, size_t *nbytes) {
    char *text = NULL;
    FILE *f = open_memstream(&text, nbytes);
    if (f == NULL) {
        return NULL;
    }
    if (i == 0) {
        dtr__tune t;
        dtr__tune_defaults(&t);
        dtr__tune_write(f, CPU, 2, &t);
    } else {
        fputs("zero_copy=4KiB,cma_piece=65536,chunk=1MiB", f);
    }
    fclose(f);
    return (uint8_t *)text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    dtr__tune t, before;
    int sections = 0;
    dtr__tune_defaults(&t);
    before = t;
    char *text = malloc(nbytes + 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, nbytes);
    text[nbytes] = '\0';
    dtr_status s = dtr__tune_text("the file", text, nbytes, CPU, 2, &t, &sections);
    if (s < 0 && (memcmp(&t, &before, sizeof t) != 0 || dtr_last_error_message()[0] == '\0')) {
        abort();
    }
    before = t;
    s = dtr__tune_list(text, &t);
    if (s < 0 && memcmp(&t, &before, sizeof t) != 0) {
        abort();
    }
    free(text);
    return 0;
}
