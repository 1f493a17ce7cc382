/* Names of kinds and operators, where blocks lie, and how a work is called in messages. */
#include <stdio.h>
#include <string.h>

#include "coll_internal.h"

static const char *const entries[DTR__K_COUNT] = {
    [DTR__K_BROADCAST] = "dtr_broadcast",
    [DTR__K_REDUCE] = "dtr_reduce",
    [DTR__K_ALLREDUCE] = "dtr_allreduce",
    [DTR__K_ALLGATHER] = "dtr_allgather",
    [DTR__K_ALLGATHERV] = "dtr_allgatherv",
    [DTR__K_GATHER] = "dtr_gather",
    [DTR__K_GATHERV] = "dtr_gatherv",
    [DTR__K_SCATTER] = "dtr_scatter",
    [DTR__K_SCATTERV] = "dtr_scatterv",
    [DTR__K_REDUCE_SCATTER] = "dtr_reduce_scatter",
    [DTR__K_REDUCE_SCATTERV] = "dtr_reduce_scatterv",
    [DTR__K_ALLTOALL] = "dtr_alltoall",
    [DTR__K_ALLTOALLV] = "dtr_alltoallv",
    [DTR__K_BARRIER] = "dtr_barrier",
    [DTR__K_SEND] = "dtr_send",
    [DTR__K_RECV] = "dtr_recv",
    [DTR__K_BATCH] = "dtr_batch_p2p",
    [DTR__K_COALESCED] = "dtr_coalesced",
    [DTR__K_COALESCED_P2P] = "dtr_coalesced_p2p",
    [DTR__K_BROADCAST_BYTES] = "dtr_broadcast_bytes",
    [DTR__K_ALLGATHER_BYTES] = "dtr_allgather_bytes",
    [DTR__K_GATHER_BYTES] = "dtr_gather_bytes",
    [DTR__K_SCATTER_BYTES] = "dtr_scatter_bytes",
    [DTR__K_SEND_BYTES] = "dtr_send_bytes",
    [DTR__K_RECV_BYTES] = "dtr_recv_bytes",
    [DTR__K_MONITORED_BARRIER] = "dtr_monitored_barrier",
    [DTR__K_SPARSE_ALLREDUCE] = "dtr_sparse_allreduce",
    [DTR__K_CONNECT] = "dtr_connect",
};

const char *dtr__kind_entry(dtr__kind k) {
    return (unsigned)k < DTR__K_COUNT ? entries[k] : "dtr_?";
}

const char *dtr__kind_name(dtr__kind k) {
    return dtr__kind_entry(k) + strlen("dtr_");
}

static const char *const ops[] = {
    [DTR_SUM] = "sum", [DTR_AVG] = "avg",   [DTR_PROD] = "prod",
    [DTR_MIN] = "min", [DTR_MAX] = "max",   [DTR_BAND] = "band",
    [DTR_BOR] = "bor", [DTR_BXOR] = "bxor", [DTR_PREMUL_SUM] = "premul_sum",
};

const char *dtr__op_name(dtr_op op) {
    return (unsigned)op <= DTR_PREMUL_SUM ? ops[op] : "?";
}

dtr__blocks dtr__blocks_in(const dtr__call *c, int size) {
    dtr__blocks b = { c->in_counts, 0 };
    if (c->kind == DTR__K_SCATTER || c->kind == DTR__K_REDUCE_SCATTER) {
        b.equal = c->out_count;
    } else {
        b.equal = c->in_count / (size_t)size;
    }
    return b;
}

dtr__blocks dtr__blocks_out(const dtr__call *c, int size) {
    dtr__blocks b = { c->out_counts, 0 };
    if (c->kind == DTR__K_ALLGATHER || c->kind == DTR__K_GATHER) {
        b.equal = c->in_count;
    } else {
        b.equal = c->out_count / (size_t)size;
    }
    return b;
}

dtr__error_context dtr__work_context(const dtr_work *w) {
    return (dtr__error_context){
        .world = w->world,
        .operation = dtr__kind_name(dtr__call_told(&w->call)->kind),
        .group = w->group->name,
        .seq = w->seq,
    };
}

/* Appends to text[*at], which is in front of cap, and not past it. */
static void DTR_PRINTF(4, 5) add(char *text, size_t cap, size_t *at, const char *fmt, ...) {
    size_t left = cap - *at;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text + *at, left, fmt, args); // NOLINT(clang-analyzer-valist.Uninitialized)
    va_end(args);
    *at += n < 0 ? 0 : (size_t)n < left ? (size_t)n : left - 1;
}

/* "0->2", as sender and receiver stand; of a receive "2<-0". */
static void add_ends(char *text, size_t cap, size_t *at, const dtr_work *w) {
    const dtr__call *c = dtr__call_told(&w->call);
    bool send = c->kind == DTR__K_SEND || c->kind == DTR__K_SEND_BYTES;
    add(text, cap, at, " %d%s", dtr__rank_told(w->group, w->group->rank), send ? "->" : "<-");
    if (c->root == DTR_ANY_SOURCE) {
        add(text, cap, at, "any");
    } else {
        add(text, cap, at, "%d", c->root);
    }
}

const char *dtr__work_title(const dtr_work *w, char *text, size_t cap) {
    const dtr__call *c = dtr__call_told(&w->call);
    size_t at = 0;
    text[0] = '\0';
    add(text, cap, &at, "%s #%llu", dtr__kind_name(c->kind), (unsigned long long)w->seq);
    if (c->tag >= 0) {
        add_ends(text, cap, &at, w);
    }
    if (c->n_batch > 0) {
        add(text, cap, &at, " (%zu operation%s)", c->n_batch, c->n_batch == 1 ? "" : "s");
    } else if (c->kind != DTR__K_BARRIER && c->kind != DTR__K_COALESCED) {
        add(text, cap, &at, " %s x %zu", dtr_dtype_name(c->dtype),
            c->in_count > c->out_count ? c->in_count : c->out_count);
    }
    if (dtr__kind_reduces(c->kind) || c->kind == DTR__K_SPARSE_ALLREDUCE) {
        add(text, cap, &at, " %s", dtr__op_name(c->op));
    }
    if (c->tag >= 0) {
        add(text, cap, &at, " tag %d", c->tag);
    } else if (c->root >= 0) {
        add(text, cap, &at, " root %d", c->root);
    }
    if (c->label[0] != '\0') {
        add(text, cap, &at, " '%s'", c->label);
    }
    add(text, cap, &at, " group '%s'", w->group->name);
    if (w->parts != 0) {
        add(text, cap, &at, " (call %u of %u in a scope)", w->part, w->parts);
    }
    return text;
}
