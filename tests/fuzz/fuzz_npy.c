/* dtr_tensor_load_npy on any file: a tensor or an error that says why, nothing else. */
#include <stdlib.h>
#include <string.h>

#include <dtr/dtr.h>

#include "fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    return 0;
}

static const char *const headers[] = {
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
    "{'descr': '>i8', 'fortran_order': True, 'shape': (3,), }",
    "{'descr': '|b1', 'fortran_order': False, 'shape': (), }",
    "{'descr': '<c16', 'fortran_order': True, 'shape': (1, 2, 1), }",
};

size_t fuzz_seeds(void) {
    return 2 * sizeof headers / sizeof headers[0];
}

uint8_t *fuzz_seed(size_t i, size_t *nbytes) {
    const char *header = headers[i / 2];
    size_t length = strlen(header), at = 0;
    uint8_t *data = calloc(1, 256);
    if (data == NULL) {
        return NULL;
    }
    memcpy(data, "\x93NUMPY", 6);
    data[6] = (uint8_t)(1 + i % 2); /* format 1.0 has two bytes of length, 2.0 four */
    at = i % 2 == 0 ? 10 : 12;
    data[8] = (uint8_t)(length + 1);
    memcpy(data + at, header, length);
    data[at + length] = '\n';
    *nbytes = at + length + 1 + 32;
    return data;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    dtr_tensor *t = NULL;
    dtr_status s = dtr_tensor_load_npy(fuzz_file(data, nbytes), &t);
    if ((s == DTR_OK) != (t != NULL) || (s < 0 && dtr_last_error_message()[0] == '\0')) {
        abort();
    }
    if (t != NULL) {
        double norm = 0;
        (void)dtr_tensor_norm(t, NULL, &norm);
        dtr_tensor_release(t);
    }
    return 0;
}
