/* Byte strings: the public calls, their checks, and waiting for the result. */
#include "byte_strings.h"
#include "api_internal.h"
#include "core/call_site.h"
#include "core/message.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/turn.h"

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

/* Options, root or peer, tag: as the call on buffers that is most like it. */
static dtr_status check_head(const dtr_group *g, const dtr__bytes_op *op,
                             const dtr_coll_options *options, dtr__call *c) {
    dtr__request r = { .kind = op->kind == DTR__K_ALLGATHER_BYTES ? DTR__K_BARRIER
                               : op->kind == DTR__K_SEND_BYTES    ? DTR__K_SEND
                               : op->kind == DTR__K_RECV_BYTES    ? DTR__K_RECV
                                                                  : DTR__K_BROADCAST,
                       .root = op->root,
                       .tag = op->tag,
                       .in = dtr_cpu(NULL, 0, DTR_U8),
                       .options = options,
                       .name = dtr__kind_name(op->kind) };
    return dtr__coll_check(g, &r, true, c);
}

/* In the order of dtr/coll.h. `in` is NULL where it is not read. */
static dtr_status check(const dtr_group *g, const dtr__bytes_op *op,
                        const dtr_coll_options *options, const dtr_bytes *out, dtr__call *c) {
    const char *kind = dtr__kind_name(op->kind);
    dtr__error_context ctx = { g->world, kind, g->name };
    bool root = op->root == g->rank, gather = op->kind == DTR__K_GATHER_BYTES;
    bool reads = op->kind == DTR__K_BROADCAST_BYTES || op->kind == DTR__K_SCATTER_BYTES
                     ? root
                     : op->kind != DTR__K_RECV_BYTES;
    bool fills = gather                               ? root
                 : op->kind == DTR__K_BROADCAST_BYTES ? !root && op->n > 0
                 : op->kind == DTR__K_RECV_BYTES      ? op->n > 0
                                                      : op->kind != DTR__K_SEND_BYTES;
    DTR_TRY(check_head(g, op, options, c));
    DTR_REQUIRE(op->kind != DTR__K_SCATTER_BYTES || !root || op->n == (size_t)g->size, &ctx,
                DTR_ERR_ARG, "%s on group '%s': n is %zu; the root gives one string per rank, %d",
                kind, g->name, op->n, g->size);
    if (reads) {
        DTR_TRY(check_strings(g, kind, op->in, op->n));
    }
    DTR_REQUIRE(!gather || root || out == NULL, &ctx, DTR_ERR_ARG,
                "%s on group '%s': out is given, but this rank (%d) is not the root (%d); give "
                "NULL",
                kind, g->name, g->rank, op->root);
    DTR_REQUIRE(!fills || out != NULL, &ctx, DTR_ERR_ARG,
                "%s on group '%s': out is NULL; it needs one entry per string", kind, g->name);
    return DTR_OK;
}

/* ---- running ---- */

static dtr_status start(dtr_group *g, dtr__bytes_op *op, dtr__call *c, dtr_work **out) {
    char site[64];
    c->kind = op->kind;
    c->tag = op->kind == DTR__K_SEND_BYTES || op->kind == DTR__K_RECV_BYTES ? op->tag : -1;
    c->root = op->kind == DTR__K_ALLGATHER_BYTES ? -1 : op->root;
    c->dtype = DTR_U8;
    c->in = c->out = NULL;
    c->in_count = c->out_count = 0;
    c->fingerprint = dtr__mix(c->fingerprint, (uint64_t)op->kind);
    for (size_t i = 0; op->in != NULL && i < op->n; i++) {
        c->in_count += op->in[i].nbytes;
    }
    memcpy(site, dtr__call_site_cached(c), 48);
    return dtr__composite_issue(g, c, &dtr__backend_bytes, &op->staged.composite, site, out);
}

/* The strings that have come become the caller's; of no peer, empty ones. */
static void give(dtr__bytes_op *op, size_t n, int from, dtr_bytes *out, int *source) {
    for (size_t i = 0; out != NULL && i < n; i++) {
        out[i] = op != NULL ? op->got[i] : (dtr_bytes){ NULL, 0 };
    }
    if (op != NULL) {
        op->n_got = 0;
    }
    if (source != NULL) {
        *source = from;
    }
}

/* Checks and runs the described call; on success its strings are moved to `out`. */
static dtr_status run_here(dtr_group *g, const dtr__bytes_op *asked,
                           const dtr_coll_options *options, dtr_bytes *out, int *source,
                           void *return_address) {
    dtr__call c, site;
    dtr_work *w = NULL;
    dtr__call_site_take(&site, return_address);
    dtr_status s = dtr__may_block(g, asked->kind);
    if (s != DTR_OK) {
        return s;
    }
    DTR_TRY(check(g, asked, options, out, &c));
    if (dtr__p2p_is_nothing(&c)) {
        give(NULL, asked->n, DTR_PEER_NONE, out, source);
        return DTR_OK;
    }
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
        op->staged.composite.free(&op->staged.composite);
        return s;
    }
    dtr__work_block(w);
    s = dtr__work_result(w);
    if (s == DTR_OK) {
        op = (dtr__bytes_op *)w->composite;
        give(op, op->n_got, op->source, out, source);
    }
    dtr__work_unref(w);
    return s;
}

static dtr_status run_in_turn(dtr_group *g, const dtr__bytes_op *asked,
                              const dtr_coll_options *options, dtr_bytes *out, int *source,
                              void *return_address) {
    dtr_world *world = g != NULL && g->magic == DTR__GROUP_MAGIC ? g->world : NULL;
    char site[64];
    if (world == NULL || world->turn == NULL) {
        return run_here(g, asked, options, out, source, return_address);
    }
    DTR_TRY(dtr__turn_begin(world, dtr__kind_entry(asked->kind),
                            dtr__call_site_peek(return_address, site, sizeof site)));
    dtr_status s = run_here(g, asked, options, out, source, return_address);
    dtr__turn_end(world);
    return s;
}

static dtr_status run(dtr_group *g, const dtr__bytes_op *asked, const dtr_coll_options *options,
                      dtr_bytes *out, int *source, void *return_address) {
    return DTR_TRACED(dtr__group_trace(g), dtr__kind_entry(asked->kind), g->name,
                      run_in_turn(g, asked, options, out, source, return_address));
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
