/* Many stretches of device memory moved in one launch: what is gathered into one block before it
 * travels, and given back from it afterwards. */
#include <string.h>

#include "core/tensor_device.h"
#include "cuda/device_kernels.h"
#include "memory/device.h"

/* ---- which kernel ---- */

#define MANY(to, from) \
    [DTR__KERNEL_TYPE_##to][DTR__KERNEL_TYPE_##from] = DTR__KERNEL_few_##to##_from_##from,
#define MANY_FROM(from, c) MANY(f16, from) MANY(bf16, from) MANY(f32, from) MANY(f64, from)
static const int kernels[DTR__KERNEL_N_TYPES][DTR__KERNEL_N_TYPES] = { DTR__KERNEL_TYPES(
    MANY_FROM) };

int dtr__kernel_type(dtr_dtype d) {
    switch (dtr__real_of(d)) {
    case DTR_F16:
        return DTR__KERNEL_TYPE_f16;
    case DTR_BF16:
        return DTR__KERNEL_TYPE_bf16;
    case DTR_F32:
        return DTR__KERNEL_TYPE_f32;
    case DTR_F64:
        return DTR__KERNEL_TYPE_f64;
    default:
        return -1;
    }
}

/* How the pieces of one pair of types are moved. */
typedef struct way {
    int kernel;     /* for a small table; the one behind it takes a large one */
    size_t unit;    /* of the kernel's elements in one of the piece's */
    uint32_t chunk; /* elements of the kernel */
} way;

static bool same_kind(const dtr__piece *a, const dtr__piece *b) {
    return a->to_type == b->to_type && a->from_type == b->from_type;
}

static dtr_status find_way(const dtr__piece *p, double scale, way *w) {
    int to = dtr__kernel_type(p->to_type), from = dtr__kernel_type(p->from_type);
    if (p->to_type == p->from_type && scale == 1) {
        *w = (way){ DTR__KERNEL_few_bytes, dtr_dtype_size(p->to_type), DTR__CHUNK_BYTES };
        return DTR_OK;
    }
    DTR_REQUIRE(to >= 0 && from >= 0 &&
                    dtr__is_complex(p->to_type) == dtr__is_complex(p->from_type),
                NULL, DTR_ERR_UNSUPPORTED,
                "no conversion of %s to %s in device memory; there is one among f16, bf16, f32 and "
                "f64",
                dtr_dtype_name(p->from_type), dtr_dtype_name(p->to_type));
    *w = (way){ kernels[to][from], dtr__reals_in(p->to_type), DTR__CHUNK };
    return DTR_OK;
}

/* ---- tables ---- */

static dtr_status launch(int device, const way *w, const dtr__many_head *head,
                         const dtr__stretch *s, void *stream) {
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    unsigned blocks = dtr__device_blocks((uint64_t)s[head->n - 1].end * DTR__KERNEL_THREADS);
    if (head->n > DTR__FEW) {
        dtr__most_args a;
        a.head = *head;
        memcpy(a.stretch, s, head->n * sizeof *s);
        DTR_CUDA_TRY(ops->launch(device, w->kernel + 1, &a, blocks, stream), DTR_ERR_CUDA);
        return DTR_OK;
    }
    dtr__few_args a;
    a.head = *head;
    memcpy(a.stretch, s, head->n * sizeof *s);
    DTR_CUDA_TRY(ops->launch(device, w->kernel, &a, blocks, stream), DTR_ERR_CUDA);
    return DTR_OK;
}

/* All pieces of the kind of `like`; those before it are of other kinds. */
static dtr_status move_kind(int device, const dtr__piece *like, const dtr__piece *end, double scale,
                            void *stream) {
    dtr__stretch s[DTR__MOST];
    dtr__many_head head = { .alpha = scale };
    way w;
    DTR_TRY(find_way(like, scale, &w));
    for (const dtr__piece *p = like; p < end; p++) {
        if (!same_kind(p, like) || p->count == 0) {
            continue;
        }
        while (
            !dtr__stretch_put(s, &head.n, DTR__MOST, w.chunk, p->to, p->from, p->count * w.unit)) {
            DTR_TRY(launch(device, &w, &head, s, stream));
            head.n = 0;
        }
    }
    return head.n > 0 ? launch(device, &w, &head, s, stream) : DTR_OK;
}

dtr_status dtr__device_move_many(int device, const dtr__piece *pieces, size_t n, double scale,
                                 void *stream) {
    for (size_t k = 0; k < n; k++) {
        bool first = true;
        for (size_t j = 0; j < k && first; j++) {
            first = !same_kind(&pieces[j], &pieces[k]);
        }
        if (first) {
            DTR_TRY(move_kind(device, &pieces[k], pieces + n, scale, stream));
        }
    }
    return DTR_OK;
}
