/* NCCL of this process: looked for once, behind the table of functions that libdtr_cuda gives. */
#include <pthread.h>
#include <stdio.h>

#include <dtr/nccl.h>

#include "memory/device.h"
#include "nccl_calls.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dtr__nccl_library found;

static void load(void) {
    const dtr__nccl_ops *ops = dtr__cuda_symbol(DTR__NCCL_SYMBOL);
    const char *why = NULL;
    if (dtr__cuda_get()->state != DTR__CUDA_OK) {
        why = "there is no usable CUDA device";
    } else if (ops == NULL) {
        why = "libdtr_cuda was built without NCCL";
    } else if (ops->abi != DTR__NCCL_ABI) {
        why = "libdtr_cuda belongs to another version of libdtr";
    } else {
        why = ops->load(&found.version);
    }
    found.ops = why == NULL ? ops : NULL;
    snprintf(found.reason, sizeof found.reason, "%s", why != NULL ? why : "");
}

const dtr__nccl_library *dtr__nccl_get(void) {
    pthread_once(&once, load);
    return &found;
}

uint64_t dtr_nccl_version(void) {
    uint64_t v = (uint64_t)dtr__nccl_get()->version;
    return v >= 10000 ? v / 10000 << 32 | v / 100 % 100 << 16 | v % 100
                      : v / 1000 << 32 | v / 100 % 10 << 16 | v % 100;
}

const char *dtr__nccl_version_text(int v, char text[16]) {
    int major = v >= 10000 ? v / 10000 : v / 1000;
    int minor = v >= 10000 ? v / 100 % 100 : v / 100 % 10;
    if (v <= 0) {
        return "of unknown version";
    }
    snprintf(text, 16, "%d.%d.%d", major, minor, v % 100);
    return text;
}
