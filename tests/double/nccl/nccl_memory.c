/* NCCL's own memory, and memory that communicators are told of. Stricter than NCCL: memory that is
 * registered twice, or is gone when it is deregistered, is a mistake here. */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "double_nccl.h"

typedef struct note {
    struct note *next;
    const struct ncclComm *comm; /* NULL: memory of ncclMemAlloc */
    bool window, local;          /* local: a window that only this rank has, which serves no call */
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

static note *note_new(const struct ncclComm *c, bool window, void *ptr, size_t nbytes) {
    note *n = malloc(sizeof *n);
    if (n != NULL) {
        *n = (note){ NULL, c, window, false, ptr, nbytes };
    }
    return n;
}

static void note_link(note *n) {
    fake_lock(&lock);
    n->next = notes;
    notes = n;
    fake_unlock(&lock);
}

static ncclResult_t note_add(const struct ncclComm *c, void *ptr, size_t nbytes, note **made) {
    *made = note_new(c, false, ptr, nbytes);
    if (*made == NULL) {
        return ncclSystemError;
    }
    note_link(*made);
    return ncclSuccess;
}

/* Whether a note of a communicator overlaps the memory. */
static bool known(const struct ncclComm *c, bool window, const char *ptr, size_t nbytes) {
    fake_lock(&lock);
    const note *n = notes;
    while (n != NULL && (n->comm != c || n->window != window || n->ptr >= ptr + nbytes ||
                         ptr >= n->ptr + n->nbytes)) {
        n = n->next;
    }
    fake_unlock(&lock);
    return n != NULL;
}

/* The note that has all of the memory; c == NULL: of ncclMemAlloc, else a window. */
static bool find_around(const struct ncclComm *c, const char *ptr, size_t nbytes, note *found) {
    fake_lock(&lock);
    const note *n = notes;
    while (n != NULL && (n->comm != c || (c != NULL && (!n->window || n->local)) || ptr < n->ptr ||
                         ptr + nbytes > n->ptr + n->nbytes)) {
        n = n->next;
    }
    if (n != NULL) {
        *found = *n;
    }
    fake_unlock(&lock);
    return n != NULL;
}

bool dn_in_window(const struct ncclComm *c, const void *ptr, size_t nbytes) {
    note found;
    return find_around(c, ptr, nbytes, &found);
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

void dn_notes_end(const struct ncclComm *c, const char *function, bool aborted) {
    int left = 0;
    fake_lock(&lock);
    for (note **at = &notes, *n; (n = *at) != NULL;) {
        if (n->comm == c) {
            *at = n->next;
            left += !(aborted && n->window);
            free(n);
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
    const size_t granule = (size_t)2 << 20; /* of the device's memory, as with NCCL */
    if (cudaMalloc(ptr, (size + granule - 1) / granule * granule) != cudaSuccess) {
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
    return dtr_fake_cuda_unmap(ptr) == 0 ? ncclSuccess : ncclUnhandledCudaError;
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
    if (known(comm, false, ptr, size)) {
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

/* ---- windows ---- */

typedef struct window_call {
    struct ncclComm *comm;
    note *made;
    dn_extent extent;
    ncclWindow_t *out;
} window_call;

/* All ranks come here; each has compared all extents before the first can leave. */
static void *window_main(void *arg) {
    window_call w = *(window_call *)arg;
    free(arg);
    struct ncclComm *c = w.comm;
    dn_rank *r = c->shared->rank;
    r[c->rank].window = w.extent;
    bool good = dn_control_barrier(c), same = true;
    for (int i = 0; i < c->nranks && good; i++) {
        const dn_extent *e = &r[i].window;
        if (e->nbytes != w.extent.nbytes || e->offset != w.extent.offset ||
            e->number != w.extent.number || e->flags != w.extent.flags) {
            dn_set_error(c,
                         "ncclCommWindowRegister: rank %d has %llu bytes at offset %llu, flags %d; "
                         "rank %d has %llu at %llu, %d",
                         c->rank, (unsigned long long)w.extent.nbytes,
                         (unsigned long long)w.extent.offset, w.extent.flags, i,
                         (unsigned long long)e->nbytes, (unsigned long long)e->offset, e->flags);
            same = false;
        }
    }
    good = good && dn_control_barrier(c); /* nobody posts the next before all have read */
    if (good && same) {
        *w.out = (ncclWindow_t)(void *)w.made;
        note_link(w.made);
        return NULL;
    }
    free(w.made);
    if (good) {
        dtr_fake_cuda_log("ncclCommWindowRegister", "mistake: the ranks differ");
        dn_fail(c, ncclInvalidArgument);
    }
    return NULL;
}

static int setting(const char *name, int otherwise) {
    const char *v = getenv(name);
    return v == NULL || v[0] == '\0' ? otherwise : atoi(v);
}

/* What NCCL asks for before the ranks share a window: its own switches, and one node. */
static bool is_symmetric(const struct ncclComm *c) {
    bool same = true;
    for (int i = 1; i < c->nranks; i++) {
        same = same && c->shared->rank[i].host == c->shared->rank[0].host;
    }
    return same && setting("NCCL_WIN_ENABLE", 1) != 0 && setting("NCCL_CUMEM_ENABLE", 1) != 0 &&
           setting("NCCL_P2P_DISABLE", 0) == 0;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                    int flags) {
    DN_ENTER("ncclCommWindowRegister");
    dn_since("ncclCommWindowRegister", 22703);
    note block;
    ncclResult_t r = dn_check_comm(comm, "ncclCommWindowRegister");
    if (r != ncclSuccess) {
        return dn_group_failed(r);
    }
    if (win == NULL || size == 0 || (flags & ~NCCL_WIN_COLL_SYMMETRIC) != 0) {
        dn_set_error(comm, "ncclCommWindowRegister: invalid argument, flags %d", flags);
        return dn_group_failed(ncclInvalidArgument);
    }
    if (!find_around(NULL, buff, size, &block)) {
        return dn_group_failed(
            mistake(comm, "ncclCommWindowRegister", "is not memory of ncclMemAlloc", buff));
    }
    if (known(comm, true, buff, size)) {
        return dn_group_failed(
            mistake(comm, "ncclCommWindowRegister", "is in a window already", buff));
    }
    *win = NULL;
    dtr_fake_cuda_log("ncclCommWindowRegister", "rank %d device %d ptr %p bytes %zu flags %d",
                      comm->rank, comm->device, buff, size, flags);
    if (setting("DTR_FAKE_NCCL_NO_WINDOW", 0) != 0) {
        return ncclSuccess;
    }
    window_call *w = malloc(sizeof *w);
    note *n =
        note_new(comm, true, buff, size); /* here: the thread has no order with who frees it */
    if (w == NULL || n == NULL) {
        free(w);
        free(n);
        return dn_group_failed(ncclSystemError);
    }
    if (!is_symmetric(comm)) { /* no word of that to the caller, as with NCCL */
        free(w);
        n->local = true;
        *win = (ncclWindow_t)(void *)n;
        note_link(n);
        return ncclSuccess;
    }
    *w = (window_call){
        comm, n, { size, (uint64_t)((char *)buff - block.ptr), ++comm->windows, flags }, win
    };
    return dn_start(comm, window_main, w);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
    DN_ENTER("ncclCommWindowDeregister");
    dn_since("ncclCommWindowDeregister", 22703);
    note taken;
    ncclResult_t r = dn_check_live(comm, "ncclCommWindowDeregister");
    if (r != ncclSuccess || win == NULL) {
        return r;
    }
    if (!note_take(comm, win, NULL, &taken) || !taken.window) {
        return mistake(comm, "ncclCommWindowDeregister", "is no window of this communicator", win);
    }
    if (dtr_fake_cuda_host(taken.ptr, taken.nbytes) == NULL) {
        return mistake(comm, "ncclCommWindowDeregister", "was freed before", taken.ptr);
    }
    dtr_fake_cuda_log("ncclCommWindowDeregister", "rank %d ptr %p", comm->rank, (void *)taken.ptr);
    return ncclSuccess;
}
