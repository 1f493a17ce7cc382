/* Copies and fills. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

typedef struct copy {
    void *to;
    const void *from;
    size_t nbytes;
    unsigned char *known;            /* of `to`, as dtr_fake_cuda_known has it */
    const unsigned char *known_from; /* NULL: all of it was written */
    char staged[];
} copy;

static void run_copy(void *arg) {
    const copy *c = arg;
    int64_t begin = fake_now_ns();
    memmove(c->to, c->from, c->nbytes);
    if (c->known != NULL && c->known_from != NULL) {
        memmove(c->known, c->known_from, c->nbytes);
    } else if (c->known != NULL) {
        memset(c->known, 1, c->nbytes);
    }
    fake_cost(begin, c->nbytes);
    free(arg);
}

typedef struct side {
    fake_class class;
    void *at; /* what the worker uses; NULL: not inside one live block */
    unsigned char *known;
} side;

static side look(const void *p, size_t nbytes) {
    int device = -1;
    side s = { .class = fake_classify(p, &device), .at = (void *)(uintptr_t)p };
    if (s.class == FAKE_DEVICE) {
        s.at = dtr_fake_cuda_host(p, nbytes);
        s.known = dtr_fake_cuda_known(p, nbytes);
    }
    return s;
}

/* The direction must be what the addresses say. */
static bool kind_fits(enum cudaMemcpyKind kind, bool to_device, bool from_device) {
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    case cudaMemcpyDefault:
        return true;
    }
    return false;
}

static size_t hidden_syncs; /* atomic */

API size_t dtr_fake_cuda_hidden_syncs(void) {
    return __atomic_load_n(&hidden_syncs, __ATOMIC_RELAXED);
}

/* Pageable memory is copied aside before the call returns, and to the device later: what is not
 * ordered behind the copy must not use the result then. */
static cudaError_t copy_in(fake_stream *s, void *to, const void *from, size_t nbytes,
                           enum cudaMemcpyKind kind, bool wait) {
    if (nbytes == 0) {
        return cudaSuccess;
    }
    side dst = look(to, nbytes), src = look(from, nbytes);
    if (!kind_fits(kind, dst.class == FAKE_DEVICE, src.class == FAKE_DEVICE)) {
        return cudaErrorInvalidMemcpyDirection;
    }
    bool pageable = dst.class == FAKE_PAGEABLE || src.class == FAKE_PAGEABLE;
    bool staged =
        src.class == FAKE_PAGEABLE && dst.class == FAKE_DEVICE && !dtr_fake_cuda_capturing(s);
    copy *c = dst.at != NULL && src.at != NULL ? malloc(sizeof *c + (staged ? nbytes : 0)) : NULL;
    if (c == NULL) {
        return cudaErrorInvalidValue;
    }
    *c = (copy){ dst.at, src.at, nbytes, dst.known, src.known };
    if (staged) {
        c->from = memcpy(c->staged, src.at, nbytes);
    }
    if (staged && wait) {
        fake_drain(s);
    }
    fake_push(s, "copy", run_copy, c, sizeof *c);
    if (pageable && !wait) {
        __atomic_add_fetch(&hidden_syncs, 1, __ATOMIC_RELAXED);
        dtr_fake_cuda_log("hidden-sync", "nbytes=%zu", nbytes);
    }
    if ((pageable || wait) && !staged) {
        fake_drain(s);
    }
    return cudaSuccess;
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t nbytes, enum cudaMemcpyKind kind,
                                cudaStream_t stream) {
    cudaError_t e = fake_enter("cudaMemcpyAsync", "to=%p from=%p nbytes=%zu kind=%d stream=%p", to,
                               from, nbytes, (int)kind, (void *)stream);
    fake_stream *s = e == cudaSuccess ? fake_stream_of(stream) : NULL;
    if (s == NULL) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidResourceHandle);
    }
    fake_stream_strict(s, "an asynchronous copy");
    return fake_result(copy_in(s, to, from, nbytes, kind, false));
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t nbytes, enum cudaMemcpyKind kind) {
    cudaError_t e =
        fake_enter("cudaMemcpy", "to=%p from=%p nbytes=%zu kind=%d", to, from, nbytes, (int)kind);
    if (e == cudaSuccess) {
        e = copy_in(fake_stream_of(NULL), to, from, nbytes, kind, true);
    }
    return fake_result(e);
}

typedef struct fill {
    void *at;
    int byte;
    size_t nbytes;
    unsigned char *known;
} fill;

static void run_fill(void *arg) {
    fill f = *(fill *)arg;
    free(arg);
    int64_t begin = fake_now_ns();
    memset(f.at, f.byte, f.nbytes);
    if (f.known != NULL) {
        memset(f.known, 1, f.nbytes);
    }
    fake_cost(begin, f.nbytes);
}

static cudaError_t fill_in(fake_stream *s, void *at, int byte, size_t nbytes) {
    if (nbytes == 0) {
        return cudaSuccess;
    }
    side dst = look(at, nbytes);
    fill *f = dst.class != FAKE_PAGEABLE && dst.at != NULL ? malloc(sizeof *f) : NULL;
    if (f == NULL) {
        return cudaErrorInvalidValue;
    }
    *f = (fill){ dst.at, byte, nbytes, dst.known };
    return fake_push(s, "fill", run_fill, f, sizeof *f);
}

API cudaError_t cudaMemsetAsync(void *at, int byte, size_t nbytes, cudaStream_t stream) {
    cudaError_t e = fake_enter("cudaMemsetAsync", "at=%p byte=%d nbytes=%zu stream=%p", at, byte,
                               nbytes, (void *)stream);
    fake_stream *s = e == cudaSuccess ? fake_stream_of(stream) : NULL;
    if (s == NULL) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidResourceHandle);
    }
    fake_stream_strict(s, "a fill");
    return fake_result(fill_in(s, at, byte, nbytes));
}

API cudaError_t cudaMemset(void *at, int byte, size_t nbytes) {
    cudaError_t e = fake_enter("cudaMemset", "at=%p byte=%d nbytes=%zu", at, byte, nbytes);
    if (e == cudaSuccess) {
        fake_stream *s = fake_stream_of(NULL);
        e = fill_in(s, at, byte, nbytes);
        fake_drain(s);
    }
    return fake_result(e);
}
