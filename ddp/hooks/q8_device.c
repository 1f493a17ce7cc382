/* The 8-bit hook on a CUDA device: as on the host, by kernels on the module's stream. A rank's
 * scale and zero point travel in front of its codes, in one gather. Whether a value had no code is
 * known on the device first, and backward_end waits for that. */
#include <stdlib.h>

#include "cuda/device_kernels.h"
#include "hook_builtin.h"

enum { RANGE_BLOCKS = 128, MOST_BLOCKS = 1056 };

typedef struct coded {
    dtr_tensor *mine, *all, *found; /* code of this rank and of all; three numbers of the range */
    uint64_t *pinned;               /* the same numbers on the host */
    void *event;                    /* behind their copy */
    bool open;                      /* not judged yet */
} coded;

enum { FOUND = 3, NO_CODE = 2 }; /* numbers of the range; the one of the first without a code */

static void release(const dtr_ddp *ddp, void *one) {
    const dtr__ddp_gpu *g = ddp->gpu;
    coded *c = one;
    dtr_tensor_release(c->mine);
    dtr_tensor_release(c->all);
    dtr_tensor_release(c->found);
    if (c->pinned != NULL) {
        (void)g->ops->pinned_free(g->index, c->pinned);
    }
    if (c->event != NULL) {
        (void)g->ops->event_free(g->index, c->event);
    }
    *c = (coded){ 0 };
}

/* ---- memory ---- */

static size_t code_bytes(size_t count) {
    return sizeof(dtr__q8_head) + (count + 15) / 16 * 16;
}

static dtr_status fill(const dtr_ddp *ddp, coded *c, size_t count) {
    const dtr__ddp_gpu *g = ddp->gpu;
    void *pinned = NULL;
    DTR_TRY(dtr__hook_memory(ddp, DTR_U8, code_bytes(count), &c->mine));
    DTR_TRY(dtr__hook_memory(ddp, DTR_U8, code_bytes(count) * (size_t)ddp->size, &c->all));
    DTR_TRY(dtr__hook_memory(ddp, DTR_U8, FOUND * sizeof *c->pinned, &c->found));
    DTR_CUDA_TRY(g->ops->pinned_alloc(g->index, FOUND * sizeof *c->pinned, &pinned), DTR_ERR_NOMEM);
    c->pinned = pinned;
    DTR_CUDA_TRY(g->ops->event_new(g->index, false, &c->event), DTR_ERR_CUDA);
    return DTR_OK;
}

static dtr_status reserve(dtr__hook_buckets *all, const dtr_ddp_bucket *b, coded **found) {
    coded *c = dtr__hook_bucket_state(all, b->index);
    DTR_REQUIRE(c != NULL, NULL, DTR_ERR_NOMEM, "no memory to code %zu buckets", b->ddp->n_buckets);
    dtr_status s = c->event != NULL ? DTR_OK : fill(b->ddp, c, b->shown.count);
    if (s < 0) {
        release(b->ddp, c);
    }
    *found = c;
    return s;
}

/* ---- kernels ---- */

static const struct {
    int range, encode, decode;
} kernels[] = {
#define Q8_KERNELS(t) \
    { DTR__KERNEL_q8_range_##t, DTR__KERNEL_q8_encode_##t, DTR__KERNEL_q8_decode_##t }
    [DTR_F16] = Q8_KERNELS(f16),
    [DTR_BF16] = Q8_KERNELS(bf16),
    [DTR_F32] = Q8_KERNELS(f32),
    [DTR_F64] = Q8_KERNELS(f64),
};

static dtr_status launch(const dtr_ddp *ddp, int kernel, dtr__kernel_args a, size_t most) {
    const dtr__ddp_gpu *g = ddp->gpu;
    a.groups = a.n / 16;
    size_t blocks = (a.groups + DTR__KERNEL_THREADS) / DTR__KERNEL_THREADS;
    blocks = blocks < most ? blocks : most;
    DTR_CUDA_TRY(g->ops->launch(g->index, kernel, &a, (unsigned)blocks, g->stream), DTR_ERR_CUDA);
    return DTR_OK;
}

static dtr_status encode(const dtr_ddp_bucket *b, coded *c) {
    const dtr__ddp_gpu *g = b->ddp->gpu;
    size_t nbytes = FOUND * sizeof *c->pinned;
    dtr_dtype d = b->shown.dtype;
    dtr__kernel_args range = { .y = c->found->data, .x = b->shown.data, .n = b->shown.count };
    dtr__kernel_args codes = { .y = c->mine->data, .x = b->shown.data, .n = b->shown.count };
    codes.pattern[0] = (uint64_t)(uintptr_t)c->found->data;
    DTR_CUDA_TRY(g->ops->fill(g->index, c->found->data, 0xff, nbytes, g->stream), DTR_ERR_CUDA);
    DTR_TRY(launch(b->ddp, kernels[d].range, range, RANGE_BLOCKS));
    DTR_CUDA_TRY(
        g->ops->copy(g->index, c->pinned, c->found->data, nbytes, DTR__COPY_TO_HOST, g->stream),
        DTR_ERR_CUDA);
    DTR_CUDA_TRY(g->ops->event_record(g->index, c->event, g->stream), DTR_ERR_CUDA);
    c->open = true;
    return launch(b->ddp, kernels[d].encode, codes, MOST_BLOCKS);
}

static dtr_status decode(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    const coded *c = dtr__hook_bucket_state_if(state, b->index);
    dtr__kernel_args a = { .y = b->shown.data, .n = b->shown.count };
    (void)work;
    a.x = c->all->data;
    a.pattern[0] = code_bytes(b->shown.count);
    a.pattern[1] = (uint64_t)b->ddp->size;
    return launch(b->ddp, kernels[b->shown.dtype].decode, a, MOST_BLOCKS);
}

static dtr_status hook(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    coded *c = NULL;
    DTR_TRY(reserve(state, b, &c));
    DTR_TRY(encode(b, c));
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.label = b->label;
    o.stream = dtr_ddp_bucket_stream(b);
    DTR_TRY(dtr_allgather(dtr_ddp_bucket_group(b), dtr_tensor_buffer(c->mine),
                          dtr_tensor_buffer(c->all), &o, work));
    return dtr__ddp_bucket_then_local(b, decode, state);
}

/* ---- values without a code ---- */

static dtr_status wait_for(const dtr_ddp *ddp, void *event) {
    const dtr__ddp_gpu *g = ddp->gpu;
    dtr__backoff pause = { 0 };
    int code;
    while ((code = g->ops->event_query(g->index, event)) == g->ops->not_ready) {
        DTR_TRY(dtr_group_status(ddp->group));
        dtr__backoff_pause(ddp->world, &pause);
    }
    DTR_CUDA_TRY(code, DTR_ERR_CUDA);
    return DTR_OK;
}

static void judge(dtr_ddp *ddp, void *state) {
    const dtr__hook_buckets *all = state;
    for (size_t b = 0; b < all->n; b++) {
        coded *c = dtr__hook_bucket_state_if(all, b);
        dtr_status s = c->open ? wait_for(ddp, c->event) : DTR_OK;
        if (s < 0) {
            dtr__ddp_note_last(ddp, s, DTR__NONE);
        } else if (c->open && c->pinned[NO_CODE] != UINT64_MAX) {
            char text[DTR__Q8_TEXT];
            dtr__hook_q8_text(&ddp->buckets[b], (size_t)c->pinned[NO_CODE], text);
            dtr__ddp_note_caller(ddp, DTR_ERR_NAN, DTR__NONE,
                                 "hook '%s' failed on bucket %zu on rank %d: %s", ddp->hook->name,
                                 b, ddp->rank, text);
        }
        c->open = false;
    }
}

dtr_status dtr__hook_q8_make_device(const dtr_ddp *ddp, dtr__ddp_hook *h) {
    DTR_TRY(dtr__hook_make(ddp, h, hook, sizeof(dtr__hook_buckets), sizeof(coded), release));
    h->judge = judge;
    return DTR_OK;
}
