/* A plan as text and as a hash. */
#include "ddp_text.h"
#include "plan/plan.h"

static size_t unpadded(const dtr_plan_bucket *b) {
    size_t nbytes = 0;
    for (size_t k = 0; k < b->n_slots; k++) {
        nbytes += b->slots[k].nbytes;
    }
    return nbytes;
}

size_t dtr_plan_print(const dtr_plan *plan, char *text, size_t cap) {
    if (plan == NULL) {
        return 0;
    }
    dtr__text t = { text, text != NULL ? cap : 0, 0 };
    dtr__text_add(&t, "%6s %-7s %-7s %12s %12s %12s  %s\n", "bucket", "dtype", "device", "bytes",
                  "padded", "limit", "parameters (offset)");
    for (size_t b = 0; b < plan->n_buckets; b++) {
        const dtr_plan_bucket *k = &plan->buckets[b];
        char device[32];
        snprintf(device, sizeof device, "%s:%d", k->device.type == DTR_CPU ? "cpu" : "cuda",
                 k->device.index);
        dtr__text_add(&t, "%6zu %-7s %-7s %12zu %12zu %12zu ", b, dtr_dtype_name(k->dtype), device,
                      unpadded(k), k->nbytes, k->limit);
        for (size_t s = 0; s < k->n_slots; s++) {
            dtr__text_add(&t, " %s(%zu)", plan->names[k->slots[s].param], k->slots[s].offset);
        }
        dtr__text_add(&t, "\n");
    }
    return t.len;
}

uint64_t dtr_plan_hash(const dtr_plan *plan) {
    if (plan == NULL) {
        return 0;
    }
    uint64_t h = dtr__hash_u64(DTR__HASH_START, plan->n_buckets);
    for (size_t b = 0; b < plan->n_buckets; b++) {
        const dtr_plan_bucket *k = &plan->buckets[b];
        h = dtr__hash_u64(h, k->n_slots);
        h = dtr__hash_u64(h, k->nbytes);
        h = dtr__hash_u64(h, k->limit);
        h = dtr__hash_u64(h, (uint64_t)k->dtype);
        h = dtr__hash_u64(h, (uint64_t)k->device.type);
        for (size_t s = 0; s < k->n_slots; s++) {
            h = dtr__hash_text(h, plan->names[k->slots[s].param]);
            h = dtr__hash_u64(h, k->slots[s].param);
            h = dtr__hash_u64(h, k->slots[s].offset);
            h = dtr__hash_u64(h, k->slots[s].nbytes);
        }
    }
    return h != 0 ? h : 1; /* 0 stands for "no plan" */
}
