/* Where the data of the faults lies, and how an operation on it is waited for. */
#include <stdlib.h>
#include <string.h>

#include "fault.h"

enum { BLOCKS = 64 };
static struct {
    const void *host;
    void *device;
} blocks[BLOCKS];

/* FAULT_DEVICE=cuda: in device memory, where no call waits for its end. */
bool on_device(void) {
    const char *v = getenv("FAULT_DEVICE");
    return v != NULL && strcmp(v, "cuda") == 0;
}

/* The memory itself, or a block of the device that stands for it. */
dtr_buffer buffer(void *host, size_t n) {
    const dtr_device gpu = { DTR_CUDA, 0 };
    int i = 0;
    if (!on_device()) {
        return dtr_cpu(host, n, DTR_F32);
    }
    while (blocks[i].host != NULL && blocks[i].host != host) {
        i++;
    }
    if (blocks[i].host == NULL &&
        dtr_alloc(world, gpu, DTR_MEM_DEFAULT, BIG * sizeof(float), &blocks[i].device) != DTR_OK) {
        exit(2);
    }
    blocks[i].host = host;
    return (dtr_buffer){ blocks[i].device, n, DTR_F32, gpu };
}

void free_blocks(void) {
    for (int i = 0; i < BLOCKS && blocks[i].host != NULL; i++) {
        (void)dtr_free(world, blocks[i].device);
    }
}

dtr_status wait_for(dtr_work *w, double limit_s) {
    return on_device() ? dtr_work_synchronize(w, limit_s) : dtr_work_wait(w, limit_s);
}

dtr_status wait_and_release(dtr_status s, dtr_work **w, double limit_s) {
    s = s == DTR_OK ? wait_for(*w, limit_s) : s;
    (void)dtr_work_release(*w);
    *w = NULL;
    return s;
}
