/* Byte strings: the public calls, their checks, and waiting for the result. */
#define DTR_NO_CALL_SITE
#include "bytes.h"

#include <stdlib.h>
#include <string.h>

void dtr_bytes_free(dtr_bytes *list, size_t n) {
    for (size_t i = 0; list != NULL && i < n; i++) {
        free(list[i].data);
        list[i] = (dtr_bytes){ NULL, 0 };
    }
}

/* ---- checks ---- */

static dtr_status check_strings(const dtr_group *g, const char *kind, const dtr_bytes *in,
                                size_t n) {
    dtr__error_context ctx = { g->world, kind, g->name };
    size_t total = 0;
    DTR_REQUIRE(in != NULL || n == 0, &ctx, DTR_ERR_ARG, "%s on group '%s': in is NULL and n %zu",
                kind, g->name, n);
    for (size_t i = 0; i < n; i++) {
        DTR_REQUIRE(in[i].data != NULL || in[i].nbytes == 0, &ctx, DTR_ERR_ARG,
                    "%s on group '%s': in[%zu].data is NULL and its nbytes %zu", kind, g->name, i,
                    in[i].nbytes);
    }
    for (size_t i = 0; i < n; i++) {
        DTR_REQUIRE(
            !__builtin_add_overflow(total, in[i].nbytes, &total), &ctx, DTR_ERR_OVERFLOW,
            "%s on group '%s': the lengths of the strings add up to more than memory can hold "
            "(entry %zu has %zu bytes)",
            kind, g->name, i, in[i].nbytes);
    }
    return DTR_OK;
}

static dtr__kind most_like(dtr__kind kind) {
    switch (kind) {
    case DTR__K_ALLGATHER_BYTES:
        return DTR__K_BARRIER;
    case DTR__K_SEND_BYTES:
        return DTR__K_SEND;
    case DTR__K_RECV_BYTES:
        return DTR__K_RECV;
    default:
        return DTR__K_BROADCAST;
    }
}

/* Options, root or peer, tag: as the call on buffers that is most like it. */
static dtr_status check_head(const dtr_group *g, const dtr__bytes_op *op,
                             const dtr_coll_options *options, dtr__call *c) {
    dtr__request r = { .kind = most_like(op->kind),
                       .root = op->root,
                       .tag = op->tag,
                       .in = dtr_cpu(NULL, 0, DTR_U8),
                       .options = options,
                       .name = dtr__kind_name(op->kind) };
    return dtr__coll_check(g, &r, true, c);
}

static dtr_status check_out(const dtr_group *g, const dtr__bytes_op *op, const dtr_bytes *out) {
    const char *kind = dtr__kind_name(op->kind);
    dtr__error_context ctx = { g->world, kind, g->name };
    bool root = op->root == g->rank, needed = true;
    if (op->kind == DTR__K_GATHER_BYTES) {
        DTR_REQUIRE(root || out == NULL, &ctx, DTR_ERR_ARG,
                    "%s on group '%s': out is given, but this rank (%d) is not the root (%d); give "
                    "NULL",
                    kind, g->name, g->rank, op->root);
        needed = root;
    } else if (op->kind == DTR__K_BROADCAST_BYTES) {
        needed = !root && op->n > 0;
    } else if (op->kind == DTR__K_SEND_BYTES) {
        needed = false;
    } else if (op->kind == DTR__K_RECV_BYTES) {
        needed = op->n > 0;
    }
    DTR_REQUIRE(!needed || out != NULL, &ctx, DTR_ERR_ARG,
                "%s on group '%s': out is NULL; it needs one entry per string", kind, g->name);
    return DTR_OK;
}

static dtr_status check(const dtr_group *g, const dtr__bytes_op *op,
                        const dtr_coll_options *options, const dtr_bytes *out, dtr__call *c) {
    const char *kind = dtr__kind_name(op->kind);
    dtr__error_context ctx = { g->world, kind, g->name };
    bool root = op->root == g->rank;
    bool reads = op->kind == DTR__K_RECV_BYTES                                            ? false
                 : op->kind == DTR__K_BROADCAST_BYTES || op->kind == DTR__K_SCATTER_BYTES ? root
                                                                                          : true;
    DTR_TRY(check_head(g, op, options, c));
    DTR_REQUIRE(op->kind != DTR__K_SCATTER_BYTES || !root || op->n == (size_t)g->size, &ctx,
                DTR_ERR_ARG, "%s on group '%s': n is %zu; the root gives one string per rank, %d",
                kind, g->name, op->n, g->size);
    if (reads) {
        DTR_TRY(check_strings(g, kind, op->in, op->n));
    }
    return check_out(g, op, out);
}

/* ---- running ---- */

static dtr_status may_block(dtr_group *g, dtr__kind kind) {
    const char *entry = dtr__kind_entry(kind);
    dtr_status s = dtr__group_check(g, entry);
    if (s != DTR_OK) {
        return s;
    }
    dtr__notices_visit(g->world);
    if (atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
        return dtr__group_broken(g);
    }
    DTR_TRY(dtr__group_ending(g, entry));
    DTR_TRY(dtr__scope_refuse(g, entry));
    dtr__error_context ctx = { g->world, dtr__kind_name(kind), g->name };
    DTR_REQUIRE(
        !dtr__in_callback(g->world), &ctx, DTR_ERR_STATE,
        "%s on group '%s' blocks, and this thread is inside a completion callback of the same "
        "world",
        entry, g->name);
    return DTR_OK;
}

static dtr_status start(dtr_group *g, dtr__bytes_op *op, dtr__call *c, dtr_work **out) {
    dtr_work *w;
    dtr__request r = { .kind = op->kind };
    char site[64];
    c->kind = op->kind;
    c->tag = op->kind == DTR__K_SEND_BYTES || op->kind == DTR__K_RECV_BYTES ? op->tag : -1;
    c->root = op->kind == DTR__K_ALLGATHER_BYTES ? -1 : op->root;
    c->dtype = DTR_U8;
    c->in = c->out = NULL;
    c->in_count = c->out_count = 0;
    c->fingerprint = dtr__mix(c->fingerprint, (uint64_t)op->kind);
    DTR_TRY(dtr__work_make(g, 2, &w));
    (void)dtr__work_describe(w, g, c, &r, 0, false);
    for (size_t i = 0; op->in != NULL && i < op->n; i++) {
        w->call.in_count += op->in[i].nbytes;
    }
    w->backend = &dtr__backend_bytes;
    w->backend_state = NULL;
    w->composite = &op->composite;
    memcpy(site, dtr__call_site_cached(c), 48);
    if (!dtr__work_admit(g, w, site, false)) {
        w->composite = NULL;
        atomic_store_explicit(&w->refs, 1, memory_order_relaxed);
        dtr__work_unref(w);
        return dtr__group_broken(g);
    }
    dtr__work_hand_over(g, w);
    *out = w;
    return DTR_OK;
}

static const dtr__bytes_op *op_of(const dtr_work *w) {
    return (const dtr__bytes_op *)w->composite;
}

/* Checks and runs the described call; on success its strings are moved to `out`. */
static dtr_status run_here(dtr_group *g, const dtr__bytes_op *asked,
                           const dtr_coll_options *options, dtr_bytes *out, int *source,
                           void *return_address) {
    dtr__call c, site;
    dtr_work *w = NULL;
    dtr__call_site_take(&site, return_address);
    dtr_status s = may_block(g, asked->kind);
    if (s != DTR_OK) {
        return s;
    }
    DTR_TRY(check(g, asked, options, out, &c));
    c.file = site.file;
    c.line = site.line;
    c.return_address = site.return_address;
    dtr__error_context ctx = { g->world, dtr__kind_name(asked->kind), g->name };
    dtr__bytes_op *op = dtr__bytes_new(g, asked);
    DTR_REQUIRE(op != NULL, &ctx, DTR_ERR_NOMEM, "no memory for a %s on group '%s'",
                dtr__kind_name(asked->kind), g->name);
    op->wants_out = out != NULL;
    s = start(g, op, &c, &w);
    if (s < 0) {
        op->composite.free(&op->composite);
        return s;
    }
    dtr__work_block(w);
    s = dtr__work_result(w);
    if (s == DTR_OK) {
        const dtr__bytes_op *done = op_of(w);
        for (size_t i = 0; i < done->n_got; i++) {
            out[i] = done->got[i];
            done->got[i] = (dtr_bytes){ NULL, 0 };
        }
        if (source != NULL) {
            *source = done->source;
        }
    }
    dtr__work_unref(w);
    return s;
}

static dtr_status run(dtr_group *g, const dtr__bytes_op *asked, const dtr_coll_options *options,
                      dtr_bytes *out, int *source, void *return_address) {
    return DTR_TRACED(dtr__group_trace(g), dtr__kind_entry(asked->kind), g->name,
                      run_here(g, asked, options, out, source, return_address));
}

#define HERE __builtin_return_address(0)

dtr_status dtr_broadcast_bytes(dtr_group *group, const dtr_bytes *in, size_t n, int root,
                               const dtr_coll_options *options, dtr_bytes *out) {
    dtr__bytes_op op = { .kind = DTR__K_BROADCAST_BYTES, .in = in, .n = n, .root = root };
    if (group != NULL && group->rank != root) {
        op.in = NULL;
    }
    return run(group, &op, options, out, NULL, HERE);
}

dtr_status dtr_allgather_bytes(dtr_group *group, dtr_bytes in, const dtr_coll_options *options,
                               dtr_bytes *out) {
    dtr__bytes_op op = { .kind = DTR__K_ALLGATHER_BYTES, .in = &in, .own = in, .n = 1, .root = -1 };
    return run(group, &op, options, out, NULL, HERE);
}

dtr_status dtr_gather_bytes(dtr_group *group, dtr_bytes in, int root,
                            const dtr_coll_options *options, dtr_bytes *out) {
    dtr__bytes_op op = { .kind = DTR__K_GATHER_BYTES, .in = &in, .own = in, .n = 1, .root = root };
    return run(group, &op, options, out, NULL, HERE);
}

dtr_status dtr_scatter_bytes(dtr_group *group, const dtr_bytes *in, size_t n, int root,
                             const dtr_coll_options *options, dtr_bytes *out) {
    dtr__bytes_op op = { .kind = DTR__K_SCATTER_BYTES, .in = in, .n = n, .root = root };
    if (group != NULL && group->rank != root) {
        op.in = NULL;
        op.n = 0;
    }
    return run(group, &op, options, out, NULL, HERE);
}

dtr_status dtr_send_bytes(dtr_group *group, const dtr_bytes *in, size_t n, int peer, int tag,
                          const dtr_coll_options *options) {
    dtr__bytes_op op = { .kind = DTR__K_SEND_BYTES, .in = in, .n = n, .root = peer, .tag = tag };
    return run(group, &op, options, NULL, NULL, HERE);
}

dtr_status dtr_recv_bytes(dtr_group *group, size_t n, int peer, int tag,
                          const dtr_coll_options *options, dtr_bytes *out, int *source) {
    dtr__bytes_op op = { .kind = DTR__K_RECV_BYTES, .n = n, .root = peer, .tag = tag };
    return run(group, &op, options, out, source, HERE);
}
