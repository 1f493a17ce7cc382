#include "matrix_device.h"

#include <math.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const dtr__device_ops *device;
void *stream;

bool find_device(void) {
    char why[DTR__CUDA_TEXT];
    const char *where = getenv("DTR_TEST_DEVICE");
    if (where == NULL || strcmp(where, "cuda") != 0) {
        return true;
    }
    device = dtr__cuda_get()->ops;
    if (device == NULL || device->stream_new(0, false, &stream) != 0) {
        fprintf(stderr, "DTR_TEST_DEVICE=cuda: %s\n", dtr__cuda_text(why));
        return false;
    }
    return true;
}

bool nccl_is_alone(void) {
    const char *backend = getenv("DTR_BACKEND");
    return device != NULL && backend != NULL && strstr(backend, "cuda:nccl") != NULL;
}

static void cuda(int code, const char *what) {
    TH_CHECK(code == 0, "%s: %s", what, device->error_text(code));
}

mirror mirror_new(th_buf *b) {
    mirror m = { b, NULL, NULL };
    if (device != NULL) {
        cuda(device->pinned_alloc(0, b->total, &m.pinned), "pinned_alloc");
        cuda(device->alloc(0, b->total, &m.there), "alloc");
        memcpy(m.pinned, b->base, b->total);
        cuda(device->copy(0, m.there, m.pinned, b->total, DTR__COPY_TO_DEVICE, stream), "copy");
    }
    return m;
}

void mirror_end(const mirror *m) {
    if (device != NULL) {
        cuda(device->copy(0, m->pinned, m->there, m->host->total, DTR__COPY_TO_HOST, stream),
             "copy");
        cuda(device->stream_synchronize(0, stream), "synchronize");
        memcpy(m->host->base, m->pinned, m->host->total);
        cuda(device->free(0, m->there), "free");
        cuda(device->pinned_free(0, m->pinned), "pinned_free");
    }
}

dtr_buffer located(void *p, size_t count, dtr_dtype d, const mirror *a, const mirror *b) {
    if (count == 0) {
        return (dtr_buffer){ NULL, 0, d, { device != NULL ? DTR_CUDA : DTR_CPU, 0 } };
    }
    const unsigned char *byte = p;
    const mirror *m = byte >= a->host->base && byte <= a->host->base + a->host->total ? a : b;
    if (device == NULL) {
        return dtr_cpu(p, count, d);
    }
    return (dtr_buffer){ (char *)m->there + (byte - m->host->base), count, d, { DTR_CUDA, 0 } };
}

/* NCCL multiplies by 1/ranks before it adds, and rounds all that in the type (nccl:A2): how far an
 * average may be from the exact one, where 1/ranks is no power of two. No term is beyond 8. */
static double slack(dtr_dtype d) {
    static const int bits[] = { [DTR_F16] = 11, [DTR_BF16] = 8, [DTR_F32] = 24,
                                [DTR_F64] = 53, [DTR_C64] = 24, [DTR_C128] = 53 };
    const bool rounds = device != NULL && nccl_is_alone() && (th_size() & (th_size() - 1)) != 0;
    const int of = rounds && (size_t)d < sizeof bits / sizeof bits[0] ? bits[d] : 0;
    return of > 0 ? ldexp(8.0 * (th_size() + 1), -of) : 0;
}

size_t matrix_differs(const void *got, const void *want, dtr_dtype d, size_t count, bool average) {
    const double most = average ? slack(d) : 0;
    size_t k = th_differs(got, want, d, count);
    while (most > 0 && k < count &&
           fabs(th_get(got, d, k, false) - th_get(want, d, k, false)) <= most &&
           fabs(th_get(got, d, k, true) - th_get(want, d, k, true)) <= most) {
        k++;
    }
    return k;
}
