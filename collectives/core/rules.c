/* What each kind of call is, and the description of a checked one: fingerprint, label, factor. */
#include <string.h>

#include "core/check.h"
#include "core/team.h"
#include "kernels/kernels.h"
#include "kernels/kernels_set.h"
#include "kernels/user_ops.h"

const dtr__rule dtr__rules[DTR__K_COUNT] = {
#define DTR__OP(KIND, name, family, slot, ...) \
    [DTR__K_##KIND] = { .reduces = DTR__##family == DTR__REDUCTION, __VA_ARGS__ },
#include "core/ops.def"
};

bool dtr__keeps_rank_order(const dtr_group *g, const dtr__call *c) {
    const bool is_integer = c->dtype <= DTR_I64 || (c->dtype >= DTR_U16 && c->dtype <= DTR_U64);
    return dtr__op_is_user(c->op) ? g->asked.deterministic || !dtr__user_op_commutes(c->op)
                                  : g->asked.deterministic && !is_integer;
}

/* ---- where blocks lie ---- */

/* What all ranks agree on is the count of a block where only the root knows the whole. */
dtr__blocks dtr__blocks_in(const dtr__call *c, int size) {
    const bool out = dtr__rules[c->kind].agreed == AGREE_OUT;
    return (dtr__blocks){ c->in_counts, out ? c->out_count : c->in_count / (size_t)size };
}

dtr__blocks dtr__blocks_out(const dtr__call *c, int size) {
    const dtr__rule *rule = &dtr__rules[c->kind];
    const bool in = rule->blocks == OUT_BLOCKS && !rule->arrays;
    return (dtr__blocks){ c->out_counts, in ? c->in_count : c->out_count / (size_t)size };
}

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
        h = dtr__mix(h, dtr__op_is_user(r->op) ? dtr__user_op_agreed(r->op) : (uint64_t)r->op);
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
    const int sources = dtr__n_sources(r->kind, k->group->rank, k->group->size);
    c->divisor = r->divisor > 0 ? r->divisor : sources > 0 ? sources : 1;
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
