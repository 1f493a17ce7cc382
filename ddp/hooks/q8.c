/* The 8-bit hook: every rank codes its bucket as bytes with a scale and a zero point of its own,
 * all ranks gather all codes and average them in rank order in float32. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/float_mode.h"
#include "hook_builtin.h"
#include "kernels/kernels.h"

enum { LEVELS = 255, BLOCK = 512 };

typedef struct code_head {
    float scale, zero; /* value = (byte - zero) * scale */
} code_head;

typedef struct coded {
    uint8_t *mine, *all; /* [count], [ranks * count] */
    code_head head, *heads;
} coded;

static void release(const dtr_ddp *ddp, void *one) {
    coded *c = one;
    (void)ddp;
    free(c->mine);
    free(c->all);
    free(c->heads);
    *c = (coded){ 0 };
}

static dtr_status reserve(dtr__hook_buckets *all, const dtr_ddp_bucket *b, coded **found) {
    coded *c = dtr__hook_bucket_state(all, b->index);
    size_t count = b->shown.count, size = (size_t)b->ddp->size;
    if (c != NULL && c->mine == NULL) {
        c->mine = malloc(count + 1);
        c->all = malloc(count * size + 1);
        c->heads = malloc(size * sizeof *c->heads);
        if (c->mine == NULL || c->all == NULL || c->heads == NULL) {
            release(b->ddp, c);
            c = NULL;
        }
    }
    DTR_REQUIRE(c != NULL, NULL, DTR_ERR_NOMEM, "no memory to code a bucket of %zu elements",
                count);
    *found = c;
    return DTR_OK;
}

/* The range of the values, zero included. False: something in it is not finite. */
static bool range(const dtr_ddp_bucket *b, float *low, float *high, size_t *bad) {
    float part[BLOCK];
    *low = *high = 0;
    for (size_t at = 0; at < b->shown.count; at += BLOCK) {
        size_t n = b->shown.count - at < BLOCK ? b->shown.count - at : BLOCK;
        const char *from = (const char *)b->shown.data + at * dtr_dtype_size(b->shown.dtype);
        dtr__convert(part, DTR_F32, from, b->shown.dtype, n);
        for (size_t k = 0; k < n; k++) {
            if (!isfinite(part[k])) {
                *bad = at + k;
                return false;
            }
            *low = part[k] < *low ? part[k] : *low;
            *high = part[k] > *high ? part[k] : *high;
        }
    }
    return true;
}

static code_head choose(float low, float high) {
    if (low == 0 && high == 0) {
        return (code_head){ 1, 0 };
    }
    float scale = high / LEVELS - low / LEVELS; /* the difference itself may overflow */
    scale = scale < FLT_MIN ? FLT_MIN : scale;
    return (code_head){ scale, nearbyintf(-low / scale) };
}

static void encode(const dtr_ddp_bucket *b, coded *c) {
    float part[BLOCK];
    for (size_t at = 0; at < b->shown.count; at += BLOCK) {
        size_t n = b->shown.count - at < BLOCK ? b->shown.count - at : BLOCK;
        const char *from = (const char *)b->shown.data + at * dtr_dtype_size(b->shown.dtype);
        dtr__convert(part, DTR_F32, from, b->shown.dtype, n);
        for (size_t k = 0; k < n; k++) {
            float level = nearbyintf(part[k] / c->head.scale) + c->head.zero;
            level = level < 0 ? 0 : level > LEVELS ? LEVELS : level;
            c->mine[at + k] = (uint8_t)level;
        }
    }
}

/* False: element *bad is not finite. */
static __attribute__((noinline)) bool code(const dtr_ddp_bucket *b, coded *c, size_t *bad) {
    float low, high;
    if (!range(b, &low, &high, bad)) {
        return false;
    }
    c->head = choose(low, high);
    encode(b, c);
    return true;
}

static __attribute__((noinline)) void decode_all(const coded *c, dtr_ddp_bucket *b) {
    size_t count = b->shown.count;
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        float sum[BLOCK] = { 0 };
        for (int r = 0; r < b->ddp->size; r++) {
            const uint8_t *codes = c->all + (size_t)r * count + at;
            code_head h = c->heads[r];
            for (size_t k = 0; k < n; k++) {
                sum[k] += ((float)codes[k] - h.zero) * h.scale;
            }
        }
        for (size_t k = 0; k < n; k++) {
            sum[k] /= (float)b->ddp->size;
        }
        char *to = (char *)b->shown.data + at * dtr_dtype_size(b->shown.dtype);
        dtr__convert(to, b->shown.dtype, sum, DTR_F32, n);
    }
}

static dtr_status decode(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)work;
    const dtr__float_mode mode = dtr__float_enter();
    decode_all(dtr__hook_bucket_state_if(state, b->index), b);
    dtr__float_leave(mode);
    return DTR_OK;
}

/* The parameter that element `at` of a bucket belongs to. */
static const char *name_at(const dtr_ddp_bucket *b, size_t at, size_t *i) {
    for (size_t k = 0; k < b->plan->n_slots; k++) {
        size_t offset, count;
        *i = dtr_ddp_bucket_param(b, k, &offset, &count);
        if (at >= offset && at < offset + count) {
            return b->ddp->params[*i].name;
        }
    }
    return "(padding)";
}

void dtr__hook_q8_text(const dtr_ddp_bucket *b, size_t at, char text[DTR__Q8_TEXT]) {
    size_t i = 0;
    const char *name = name_at(b, at, &i);
    snprintf(text, DTR__Q8_TEXT,
             "the gradient of parameter '%.150s' (%zu) is NaN or infinite and has no 8-bit code",
             name, i);
}

static dtr_status hook(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    size_t count = b->shown.count, bad = 0;
    coded *c = NULL;
    DTR_TRY(reserve(state, b, &c));
    const dtr__float_mode mode = dtr__float_enter();
    const bool good = code(b, c, &bad);
    dtr__float_leave(mode);
    if (!good) {
        char text[DTR__Q8_TEXT];
        dtr__hook_q8_text(b, bad, text);
        return DTR_FAIL(NULL, DTR_ERR_NAN, "%s", text);
    }
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.label = b->label;
    dtr_group *g = dtr_ddp_bucket_group(b);
    size_t size = (size_t)b->ddp->size;
    dtr_work *heads = NULL;
    DTR_TRY(dtr_allgather(g, dtr_cpu(&c->head, 2, DTR_F32), dtr_cpu(c->heads, 2 * size, DTR_F32),
                          &o, &heads));
    (void)dtr_work_release(heads); /* it ends before the next of its group */
    DTR_TRY(dtr_allgather(g, dtr_cpu(c->mine, count, DTR_U8), dtr_cpu(c->all, count * size, DTR_U8),
                          &o, work));
    return dtr__ddp_bucket_then_local(b, decode, state);
}

dtr_status dtr__hook_q8_make(const dtr_ddp *ddp, dtr__ddp_hook *h) {
    return dtr__hook_make(ddp, h, hook, sizeof(dtr__hook_buckets), sizeof(coded), release);
}
