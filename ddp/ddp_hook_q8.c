/* The 8-bit hook: every rank codes its bucket as bytes with a scale and a zero point of its own,
 * all ranks gather all codes and average them in rank order in float32. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "ddp_hook_builtin.h"
#include "kernels/kernels.h"

enum { LEVELS = 255, BLOCK = 512 };

typedef struct code_head {
    float scale, zero; /* value = (byte - zero) * scale */
} code_head;

typedef struct coded {
    uint8_t *mine, *all; /* [count], [ranks * count] */
    code_head head, *heads;
} coded;

typedef struct q8 {
    size_t n;
    coded *bucket; /* made at the first use of each bucket */
} q8;

static void free_coded(q8 *q) {
    for (size_t b = 0; b < q->n; b++) {
        free(q->bucket[b].mine);
        free(q->bucket[b].all);
        free(q->bucket[b].heads);
    }
    free(q->bucket);
    q->bucket = NULL;
    q->n = 0;
}

static void forget(void *state) {
    free_coded(state);
}

static void drop(void *state) {
    free_coded(state);
    free(state);
}

static dtr_status no_memory(size_t count) {
    return DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory to code a bucket of %zu elements", count);
}

static dtr_status reserve(q8 *q, const dtr_ddp *ddp, size_t b, size_t count) {
    if (q->bucket == NULL) {
        q->bucket = calloc(ddp->n_buckets, sizeof *q->bucket);
        if (q->bucket == NULL) {
            return no_memory(count);
        }
        q->n = ddp->n_buckets;
    }
    coded *c = &q->bucket[b];
    if (c->mine == NULL) {
        c->mine = malloc(count + 1);
        c->all = malloc(count * (size_t)ddp->size + 1);
        c->heads = malloc((size_t)ddp->size * sizeof *c->heads);
        if (c->mine == NULL || c->all == NULL || c->heads == NULL) {
            free(c->mine);
            free(c->all);
            free(c->heads);
            *c = (coded){ 0 };
            return no_memory(count);
        }
    }
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

static dtr_status decode(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    q8 *q = state;
    const coded *c = &q->bucket[b->index];
    size_t count = b->shown.count;
    (void)work;
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
    q8 *q = state;
    size_t count = b->shown.count, bad = 0;
    float low, high;
    DTR_TRY(reserve(q, b->ddp, b->index, count));
    if (!range(b, &low, &high, &bad)) {
        char text[DTR__Q8_TEXT];
        dtr__hook_q8_text(b, bad, text);
        return DTR_FAIL(NULL, DTR_ERR_NAN, "%s", text);
    }
    coded *c = &q->bucket[b->index];
    c->head = choose(low, high);
    encode(b, c);
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
    return dtr__ddp_bucket_then_local(b, decode, q);
}

dtr_status dtr__hook_q8_make(dtr__ddp_hook *h) {
    q8 *q = calloc(1, sizeof *q);
    DTR_REQUIRE(q != NULL, NULL, DTR_ERR_NOMEM, "no memory for a hook");
    h->fn = hook;
    h->state = q;
    h->forget = forget;
    h->drop = drop;
    return DTR_OK;
}
