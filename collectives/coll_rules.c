/* What each kind of call is, and the description of a checked one: fingerprint, label, factor. */
#include <string.h>

#include "coll_check.h"
#include "kernels/kernels.h"
#include "kernels/kernels_set.h"

const dtr__rule dtr__rules[DTR__K_COUNT] = {
    [DTR__K_BROADCAST] = { .one_buffer = true,
                           .rooted = true,
                           .in = EVERYWHERE,
                           .agreed = AGREE_IN },
    [DTR__K_REDUCE] = { .rooted = true,
                        .reduces = true,
                        .in = EVERYWHERE,
                        .out = AT_ROOT_ELSE_IGNORED,
                        .overlap = SAME_BUFFER,
                        .agreed = AGREE_IN },
    [DTR__K_ALLREDUCE] = { .reduces = true,
                           .in = EVERYWHERE,
                           .out = EVERYWHERE,
                           .overlap = SAME_BUFFER,
                           .agreed = AGREE_IN },
    [DTR__K_ALLGATHER] = { .in = EVERYWHERE,
                           .out = EVERYWHERE,
                           .blocks = OUT_BLOCKS,
                           .overlap = OWN_BLOCK,
                           .agreed = AGREE_IN },
    [DTR__K_ALLGATHERV] = { .arrays = true,
                            .in = EVERYWHERE,
                            .out = EVERYWHERE,
                            .blocks = OUT_BLOCKS,
                            .overlap = OWN_BLOCK,
                            .agreed = AGREE_ARRAY },
    [DTR__K_GATHER] = { .rooted = true,
                        .in = EVERYWHERE,
                        .out = AT_ROOT,
                        .blocks = OUT_BLOCKS,
                        .agreed = AGREE_IN },
    [DTR__K_GATHERV] = { .rooted = true,
                         .arrays = true,
                         .in = EVERYWHERE,
                         .out = AT_ROOT,
                         .blocks = OUT_BLOCKS },
    [DTR__K_SCATTER] = { .rooted = true,
                         .in = AT_ROOT,
                         .out = EVERYWHERE,
                         .blocks = IN_BLOCKS,
                         .agreed = AGREE_OUT },
    [DTR__K_SCATTERV] = { .rooted = true,
                          .arrays = true,
                          .in = AT_ROOT,
                          .out = EVERYWHERE,
                          .blocks = IN_BLOCKS },
    [DTR__K_REDUCE_SCATTER] = { .reduces = true,
                                .in = EVERYWHERE,
                                .out = EVERYWHERE,
                                .blocks = IN_BLOCKS,
                                .overlap = OWN_BLOCK,
                                .agreed = AGREE_OUT },
    [DTR__K_REDUCE_SCATTERV] = { .reduces = true,
                                 .arrays = true,
                                 .in = EVERYWHERE,
                                 .out = EVERYWHERE,
                                 .blocks = IN_BLOCKS,
                                 .overlap = OWN_BLOCK,
                                 .agreed = AGREE_ARRAY },
    [DTR__K_ALLTOALL] = { .in = EVERYWHERE,
                          .out = EVERYWHERE,
                          .blocks = BOTH_BLOCKS,
                          .overlap = SAME_BUFFER,
                          .agreed = AGREE_IN },
    [DTR__K_ALLTOALLV] = { .arrays = true,
                           .in = EVERYWHERE,
                           .out = EVERYWHERE,
                           .blocks = BOTH_BLOCKS },
    [DTR__K_BARRIER] = { .in = NOWHERE },
    [DTR__K_SEND] = { .one_buffer = true, .peer = true, .in = EVERYWHERE, .agreed = AGREE_IN },
    [DTR__K_RECV] = { .one_buffer = true, .peer = true, .in = EVERYWHERE, .agreed = AGREE_IN },
    [DTR__K_BATCH] = { .in = NOWHERE },
};

/* ---- what the checked call is ---- */

uint64_t dtr__mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 32;
}

static uint64_t fingerprint(const dtr__check *k) {
    const dtr__request *r = k->r;
    uint64_t h = dtr__mix(UINT64_C(0x646f74657266696e), (uint64_t)r->kind << 16 | dtype_of(k));
    if (k->rule->in != NOWHERE) {
        h = dtr__mix(h, (uint64_t)(k->in ? r->in : r->out).device.type);
    }
    if (k->rule->reduces) {
        h = dtr__mix(h, (uint64_t)r->op);
    }
    if (k->rule->rooted) {
        h = dtr__mix(h, (uint64_t)r->root);
    }
    if (k->rule->peer) {
        h = dtr__mix(h, (uint64_t)r->tag);
    }
    if (k->rule->agreed == AGREE_IN) {
        h = dtr__mix(h, r->in.count);
    } else if (k->rule->agreed == AGREE_OUT) {
        h = dtr__mix(h, r->out.count);
    } else if (k->rule->agreed == AGREE_ARRAY) {
        const size_t *counts = k->rule->blocks == IN_BLOCKS ? r->in_counts : r->out_counts;
        for (int i = 0; i < k->group->size; i++) {
            h = dtr__mix(h, counts[i]);
        }
    }
    return r->tag_word != 0 ? dtr__mix(h, r->tag_word) : h;
}

static void set_label(char *to, size_t cap, const char *label) {
    size_t n = label != NULL ? strlen(label) : 0;
    bool cut = n >= cap;
    n = cut ? cap - 1 : n;
    memcpy(to, label != NULL ? label : "", n);
    to[n] = '\0';
    if (cut) {
        to[n - 1] = '~';
    }
}

static double premul_factor(const dtr__check *k) {
    const dtr_coll_options *o = &k->options;
    if (k->r->op != DTR_PREMUL_SUM || !k->rule->reduces) {
        return 1;
    }
    if (o->premul_device == NULL) {
        return o->premul;
    }
    double factor;
    dtr__convert(&factor, DTR_F64, o->premul_device, dtr__real_part(dtype_of(k)), 1);
    return factor;
}

static dtr_device device_of(const dtr__check *k) {
    const dtr__request *r = k->r;
    if (r->kind == DTR__K_BATCH) {
        return r->n_batch > 0 ? r->batch[0].buf.device : (dtr_device){ DTR_CPU, 0 };
    }
    return k->in ? r->in.device : k->out ? r->out.device : (dtr_device){ DTR_CPU, 0 };
}

void dtr__coll_describe(const dtr__check *k, dtr__call *c) {
    const dtr__request *r = k->r;
    memset(c, 0, sizeof *c);
    c->kind = r->kind;
    c->dtype = dtype_of(k);
    c->op = k->rule->reduces ? r->op : DTR_SUM;
    c->root = k->rule->rooted || k->rule->peer ? r->root : -1;
    c->tag = k->rule->peer ? r->tag : -1;
    if (k->in) {
        c->in = r->in.data;
        c->in_count = r->in.count;
    }
    if (k->rule->one_buffer) {
        c->out = r->in.data;
        c->out_count = r->in.count;
    } else if (k->out) {
        c->out = r->out.data;
        c->out_count = r->out.count;
    }
    if (k->rule->arrays && k->in && k->out) {
        c->in_counts = (size_t *)r->in_counts;
        c->out_counts = (size_t *)r->out_counts;
    }
    c->batch = (dtr_p2p *)r->batch;
    c->n_batch = r->n_batch;
    c->divisor = r->divisor > 0 ? r->divisor : k->group->size;
    c->device = device_of(k);
    if (c->device.type == DTR_CPU) {
        c->stream = c->kind == DTR__K_BARRIER ? k->options.stream : NULL;
        c->premul = premul_factor(k);
    } else {
        bool factor = r->op == DTR_PREMUL_SUM && k->rule->reduces;
        c->stream = k->options.stream;
        c->premul = factor ? k->options.premul : 1;
        c->premul_device = factor ? k->options.premul_device : NULL;
    }
    c->timeout_s = k->options.timeout_s > 0 ? k->options.timeout_s : k->group->timeout_s;
    set_label(c->label, sizeof c->label, k->options.label);
    c->fingerprint = fingerprint(k);
}
