/* NCCL's own memory, and memory that communicators are told of. Stricter than NCCL: memory that is
 * registered twice, or is gone when it is deregistered, is a mistake here. */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "double_nccl.h"

typedef struct note {
    struct note *next;
    const struct ncclComm *comm; /* NULL: memory of ncclMemAlloc */
    char *ptr;
    size_t nbytes;
} note;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static note *notes; /* lock */

static ncclResult_t mistake(struct ncclComm *c, const char *function, const char *what,
                            const void *ptr) {
    fprintf(stderr, "fake nccl: %s: %p %s\n", function, ptr, what);
    dtr_fake_cuda_log(function, "mistake: %p %s", ptr, what);
    dn_set_error(c, "%s: %p %s", function, ptr, what);
    return ncclInvalidUsage;
}

static ncclResult_t note_add(const struct ncclComm *c, void *ptr, size_t nbytes, note **made) {
    note *n = malloc(sizeof *n);
    if (n == NULL) {
        return ncclSystemError;
    }
    *n = (note){ NULL, c, ptr, nbytes };
    fake_lock(&lock);
    n->next = notes;
    notes = n;
    fake_unlock(&lock);
    *made = n;
    return ncclSuccess;
}

/* The first note of a communicator that overlaps the memory. */
static bool known(const struct ncclComm *c, const char *ptr, size_t nbytes) {
    fake_lock(&lock);
    const note *n = notes;
    while (n != NULL && (n->comm != c || n->ptr >= ptr + nbytes || ptr >= n->ptr + n->nbytes)) {
        n = n->next;
    }
    fake_unlock(&lock);
    return n != NULL;
}

/* Takes out the note itself, or that of memory of ncclMemAlloc; false: there is none. */
static bool note_take(const struct ncclComm *c, const void *handle, const void *ptr, note *taken) {
    fake_lock(&lock);
    note **at = &notes;
    while (*at != NULL && ((*at)->comm != c || (c != NULL ? *at != handle : (*at)->ptr != ptr))) {
        at = &(*at)->next;
    }
    note *n = *at;
    if (n != NULL) {
        *at = n->next;
        *taken = *n;
    }
    fake_unlock(&lock);
    free(n);
    return n != NULL;
}

void dn_notes_end(const struct ncclComm *c, const char *function) {
    int left = 0;
    fake_lock(&lock);
    for (note **at = &notes, *n; (n = *at) != NULL;) {
        if (n->comm == c) {
            *at = n->next;
            free(n);
            left++;
        } else {
            at = &n->next;
        }
    }
    fake_unlock(&lock);
    if (left > 0) {
        dtr_fake_cuda_log(function, "mistake: %d registrations are left", left);
    }
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size) {
    DN_ENTER("ncclMemAlloc");
    dn_since("ncclMemAlloc", 21901);
    note *n = NULL;
    if (ptr == NULL || size == 0) {
        return ncclInvalidArgument;
    }
    if (cudaMalloc(ptr, size) != cudaSuccess) {
        return ncclUnhandledCudaError;
    }
    dtr_fake_cuda_log("ncclMemAlloc", "ptr %p bytes %zu", *ptr, size);
    return note_add(NULL, *ptr, size, &n);
}

ncclResult_t ncclMemFree(void *ptr) {
    DN_ENTER("ncclMemFree");
    dn_since("ncclMemFree", 21901);
    note taken;
    if (!note_take(NULL, NULL, ptr, &taken)) {
        return mistake(NULL, "ncclMemFree", "is not memory of ncclMemAlloc", ptr);
    }
    dtr_fake_cuda_log("ncclMemFree", "ptr %p", ptr);
    return cudaFree(ptr) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void *ptr, size_t size, void **handle) {
    DN_ENTER("ncclCommRegister");
    dn_since("ncclCommRegister", 21901);
    ncclResult_t r = dn_check_comm(comm, "ncclCommRegister");
    if (r != ncclSuccess) {
        return r;
    }
    if (handle == NULL || size == 0 || dtr_fake_cuda_host(ptr, size) == NULL) {
        return mistake(comm, "ncclCommRegister", "is not memory of a device", ptr);
    }
    if (known(comm, ptr, size)) {
        return mistake(comm, "ncclCommRegister", "is registered already", ptr);
    }
    dtr_fake_cuda_log("ncclCommRegister", "rank %d device %d ptr %p bytes %zu", comm->rank,
                      comm->device, ptr, size);
    note *n = NULL;
    r = note_add(comm, ptr, size, &n);
    *handle = n;
    return r;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle) {
    DN_ENTER("ncclCommDeregister");
    dn_since("ncclCommDeregister", 21901);
    note taken;
    ncclResult_t r = dn_check_live(comm, "ncclCommDeregister");
    if (r != ncclSuccess) {
        return r;
    }
    if (!note_take(comm, handle, NULL, &taken)) {
        return mistake(comm, "ncclCommDeregister", "is no registration of this communicator",
                       handle);
    }
    if (dtr_fake_cuda_host(taken.ptr, taken.nbytes) == NULL) {
        return mistake(comm, "ncclCommDeregister", "was freed before", taken.ptr);
    }
    dtr_fake_cuda_log("ncclCommDeregister", "rank %d ptr %p", comm->rank, (void *)taken.ptr);
    return ncclSuccess;
}
