/* A file of any content opened as safetensors, and everything in it loaded. */
#include <stdio.h>
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
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
    "\"b.c\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[16,18]}}",
    "{\"__metadata__\":{\"step\":\"7\",\"k\":\"\\u00e9\\n\"},"
    "\"x\":{\"dtype\":\"I64\",\"shape\":[0,3],\"data_offsets\":[0,0]}}",
    "{}",
};

size_t fuzz_seeds(void) {
    return sizeof headers / sizeof headers[0];
}

uint8_t *fuzz_seed(size_t i, size_t *nbytes) {
    uint64_t length = strlen(headers[i]);
    uint8_t *data = calloc(1, 512);
    if (data != NULL) {
        memcpy(data, &length, sizeof length);
        memcpy(data + sizeof length, headers[i], length);
        *nbytes = sizeof length + length + (i == 0 ? 18 : 0);
    }
    return data;
}

static void look_at(const dtr_safetensors *file, const char *name) {
    dtr_dtype dtype;
    int ndim = 0;
    dtr_tensor *t = NULL;
    dtr_status s = dtr_safetensors_describe(file, name, &dtype, &ndim, NULL);
    if (s != DTR_OK && s != DTR_ERR_UNSUPPORTED) {
        abort(); /* it is in the list */
    }
    s = dtr_safetensors_load(file, name, &t);
    if ((s == DTR_OK) != (t != NULL)) {
        abort();
    }
    dtr_tensor_release(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    dtr_safetensors *file = NULL;
    dtr_status s = dtr_safetensors_open(fuzz_file(data, nbytes), &file);
    if ((s == DTR_OK) != (file != NULL) || (s < 0 && dtr_last_error_message()[0] == '\0')) {
        abort();
    }
    if (file == NULL) {
        return 0;
    }
    for (size_t i = 0; i < dtr_safetensors_count(file); i++) {
        look_at(file, dtr_safetensors_name(file, i));
    }
    const char *key;
    for (size_t i = 0; (key = dtr_safetensors_metadata_key(file, i)) != NULL; i++) {
        if (dtr_safetensors_metadata(file, key) == NULL) {
            abort();
        }
    }
    if (dtr_safetensors_close(file) != DTR_OK) {
        abort();
    }
    return 0;
}
