/* Running a call on byte strings: stages of parts. Lengths first, then memory, then contents:
 * packed into one message when they are short, else each string straight from and to its own
 * memory. */
#include "bytes.h"
#include "declare.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t MAGIC = UINT64_C(0x6474722062797465);

/* ---- memory ---- */

static void free_parts(dtr__bytes_op *op) {
    for (size_t i = 0; i < op->n_parts; i++) {
        dtr__work_unref(op->parts[i]);
    }
    op->n_parts = op->left = 0;
}

static void free_op(dtr__composite *self) {
    dtr__bytes_op *op = (dtr__bytes_op *)self;
    free_parts(op);
    dtr_bytes_free(op->got, op->n_got);
    free(op->got);
    free(op->lengths);
    free(op->counts);
    free(op->pack);
    free(op->parts);
    free(op);
}

static dtr_status free_late(dtr__finish *finish, dtr_status status) {
    free_op((dtr__composite *)((char *)finish - offsetof(dtr__bytes_op, finish)));
    return status;
}

static void keep_late(dtr_group *g, dtr_work *whole) {
    dtr__bytes_op *op = (dtr__bytes_op *)whole->composite;
    if (op->complete) {
        return;
    }
    op->finish = (dtr__finish){ .fn = free_late, .next = g->late };
    g->late = &op->finish;
    whole->composite = NULL;
}

dtr__bytes_op *dtr__bytes_new(dtr_group *g, const dtr__bytes_op *asked) {
    dtr__bytes_op *op = malloc(sizeof *op);
    if (op != NULL) {
        *op = *asked;
        op->composite = (dtr__composite){ NULL, keep_late, free_op };
        op->group = g;
        op->source = -1;
        if (asked->in == &asked->own || asked->kind == DTR__K_ALLGATHER_BYTES ||
            asked->kind == DTR__K_GATHER_BYTES) {
            op->in = &op->own;
        }
    }
    return op;
}

static dtr_status no_memory(const dtr_work *whole, uint64_t nbytes) {
    char title[256];
    dtr__error_context ctx = dtr__work_context(whole);
    return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "%s: no memory for strings of %" PRIu64 " bytes in all",
                    dtr__work_title(whole, title, sizeof title), nbytes);
}

/* `n` lengths that a part fills in. */
static dtr_status need_lengths(const dtr_work *whole, dtr__bytes_op *op, size_t n) {
    op->n_lengths = n;
    op->lengths = calloc(n + 1, sizeof *op->lengths);
    return op->lengths != NULL ? DTR_OK : no_memory(whole, n * sizeof *op->lengths);
}

static dtr_status add_up(const dtr_work *whole, dtr__bytes_op *op) {
    op->total = 0;
    for (size_t i = 0; i < op->n_lengths; i++) {
        if (__builtin_add_overflow(op->total, op->lengths[i], &op->total) ||
            op->total > SIZE_MAX / 2) {
            return no_memory(whole, op->lengths[i]);
        }
    }
    return DTR_OK;
}

/* Entries for the strings lengths[first..first+n), with memory of exactly their lengths. */
static dtr_status need_entries(const dtr_work *whole, dtr__bytes_op *op, size_t first, size_t n) {
    op->got = calloc(n + 1, sizeof *op->got);
    if (op->got == NULL) {
        return no_memory(whole, n * sizeof *op->got);
    }
    op->n_got = n;
    for (size_t i = 0; i < n; i++) {
        size_t nbytes = (size_t)op->lengths[first + i];
        op->got[i].nbytes = nbytes;
        if (nbytes > 0 && (op->got[i].data = malloc(nbytes)) == NULL) {
            return no_memory(whole, op->total);
        }
    }
    return DTR_OK;
}

static dtr_status need_pack(const dtr_work *whole, dtr__bytes_op *op) {
    op->pack = malloc((size_t)op->total + 1);
    return op->pack != NULL ? DTR_OK : no_memory(whole, op->total);
}

static void copy(void *to, const void *from, size_t nbytes) {
    if (to != NULL && from != NULL) {
        memcpy(to, from, nbytes);
    }
}

static void pack_strings(char *pack, const dtr_bytes *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        copy(pack, list[i].data, list[i].nbytes);
        pack += list[i].nbytes;
    }
}

static void unpack_strings(const char *pack, const dtr_bytes *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        copy(list[i].data, pack, list[i].nbytes);
        pack += list[i].nbytes;
    }
}

/* ---- parts ---- */

static dtr_status add_part(const dtr_work *whole, dtr__bytes_op *op, dtr__call *c) {
    if (op->n_parts == op->cap_parts) {
        size_t cap = op->cap_parts * 2 + 4;
        dtr_work **parts = realloc(op->parts, cap * sizeof *parts);
        if (parts == NULL) {
            return no_memory(whole, cap * sizeof *parts);
        }
        op->parts = parts;
        op->cap_parts = cap;
    }
    const dtr__call *site = &whole->call;
    c->premul = 1;
    c->timeout_s = site->timeout_s;
    c->file = site->file;
    c->line = site->line;
    c->return_address = site->return_address;
    memcpy(c->label, site->label, sizeof c->label);
    c->fingerprint = dtr__mix(site->fingerprint, (uint64_t)op->stage << 32 | op->n_parts);
    dtr_work *part;
    DTR_TRY(dtr__part_make(op->group, c, &part));
    part->seq = whole->seq;
    part->issue = whole->issue;
    op->parts[op->n_parts++] = part;
    op->left++;
    return DTR_OK;
}

static dtr_status add_broadcast(const dtr_work *whole, dtr__bytes_op *op, void *data, size_t count,
                                dtr_dtype dtype, int root) {
    dtr__call c = { .kind = DTR__K_BROADCAST,
                    .dtype = dtype,
                    .root = root,
                    .tag = -1,
                    .in = data,
                    .out = data,
                    .in_count = count,
                    .out_count = count };
    return add_part(whole, op, &c);
}

static dtr_status add_message(const dtr_work *whole, dtr__bytes_op *op, bool send, const void *data,
                              size_t count, dtr_dtype dtype, int peer, int tag) {
    dtr__call c = { .kind = send ? DTR__K_SEND : DTR__K_RECV,
                    .dtype = dtype,
                    .root = peer,
                    .tag = tag,
                    .in = data,
                    .out = (void *)data,
                    .in_count = count,
                    .out_count = count };
    return add_part(whole, op, &c);
}

/* One number of every rank, at the root or (root -1) everywhere, or the other way round. */
static dtr_status add_numbers(const dtr_work *whole, dtr__bytes_op *op, dtr__kind kind,
                              uint64_t *own, uint64_t *all, int root) {
    size_t n = (size_t)op->group->size;
    bool here = root < 0 || root == op->group->rank, scatter = kind == DTR__K_SCATTER;
    dtr__call c = { .kind = kind,
                    .dtype = DTR_I64,
                    .root = root,
                    .tag = -1,
                    .in = scatter ? (here ? all : NULL) : own,
                    .out = scatter ? own : (here ? all : NULL),
                    .in_count = scatter ? (here ? n : 0) : 1,
                    .out_count = scatter ? 1 : (here ? n : 0) };
    return add_part(whole, op, &c);
}

/* Each string of a list as a message of its own; empty ones do not travel. */
static dtr_status add_strings(const dtr_work *whole, dtr__bytes_op *op, bool send,
                              const dtr_bytes *list, size_t n, int peer, int tag) {
    for (size_t i = 0; i < n; i++) {
        if (list[i].nbytes > 0) {
            DTR_TRY(add_message(whole, op, send, list[i].data, list[i].nbytes, DTR_U8, peer, tag));
        }
    }
    return DTR_OK;
}

/* ---- broadcast ---- */

static dtr_status mismatch(const dtr_work *whole, int rank, uint64_t n, int other,
                           uint64_t other_n) {
    char title[256];
    dtr__error_context ctx = dtr__work_context(whole);
    return DTR_FAIL(&ctx, DTR_ERR_MISMATCH,
                    "%s: rank %d gives n = %" PRIu64 ", rank %d n = %" PRIu64
                    "; all sides must give the same number of strings",
                    dtr__work_title(whole, title, sizeof title), rank, n, other, other_n);
}

static dtr_status broadcast_contents(const dtr_work *whole, dtr__bytes_op *op) {
    bool root = op->root == op->group->rank;
    DTR_TRY(add_up(whole, op));
    if (op->wants_out) {
        DTR_TRY(need_entries(whole, op, 0, op->n));
    }
    const dtr_bytes *list = root ? op->in : op->got;
    if (op->total > DTR__BYTES_PACK) {
        for (size_t i = 0; i < op->n; i++) {
            if (list[i].nbytes > 0) {
                DTR_TRY(add_broadcast(whole, op, list[i].data, list[i].nbytes, DTR_U8, op->root));
            }
        }
        return DTR_OK;
    }
    if (op->total == 0) {
        return DTR_OK;
    }
    DTR_TRY(need_pack(whole, op));
    if (root) {
        pack_strings(op->pack, op->in, op->n);
    }
    return add_broadcast(whole, op, op->pack, (size_t)op->total, DTR_U8, op->root);
}

static dtr_status broadcast_stage(const dtr_work *whole, dtr__bytes_op *op, bool *done) {
    int size = op->group->size;
    bool root = op->root == op->group->rank;
    switch (op->stage) {
    case 0: /* does everybody mean the same n? */
        op->head[0] = op->n;
        DTR_TRY(need_lengths(whole, op, (size_t)size));
        return add_numbers(whole, op, DTR__K_ALLGATHER, &op->head[0], op->lengths, -1);
    case 1:
        for (int i = 0; i < size; i++) {
            if (op->lengths[i] != op->lengths[op->root]) {
                return mismatch(whole, op->root, op->lengths[op->root], i, op->lengths[i]);
            }
        }
        free(op->lengths);
        DTR_TRY(need_lengths(whole, op, op->n));
        for (size_t i = 0; root && i < op->n; i++) {
            op->lengths[i] = op->in[i].nbytes;
        }
        return op->n > 0 ? add_broadcast(whole, op, op->lengths, op->n, DTR_I64, op->root) : DTR_OK;
    case 2:
        return broadcast_contents(whole, op);
    default:
        if (op->wants_out) {
            if (op->pack != NULL) {
                unpack_strings(op->pack, op->got, op->n_got);
            } else if (root) {
                for (size_t i = 0; i < op->n_got; i++) {
                    copy(op->got[i].data, op->in[i].data, op->in[i].nbytes);
                }
            }
        }
        *done = true;
        return DTR_OK;
    }
}

/* ---- allgather ---- */

static dtr_status allgather_contents(const dtr_work *whole, dtr__bytes_op *op) {
    size_t n = (size_t)op->group->size;
    int me = op->group->rank;
    DTR_TRY(add_up(whole, op));
    DTR_TRY(need_entries(whole, op, 0, n));
    if (op->total > DTR__BYTES_PACK) { /* straight into each entry */
        for (size_t i = 0; i < n; i++) {
            void *data = (int)i == me ? op->in->data : op->got[i].data;
            if (op->lengths[i] > 0) {
                DTR_TRY(add_broadcast(whole, op, data, (size_t)op->lengths[i], DTR_U8, (int)i));
            }
        }
        copy(op->got[me].data, op->in->data, op->in->nbytes);
        return DTR_OK;
    }
    if (op->total == 0) {
        return DTR_OK;
    }
    DTR_TRY(need_pack(whole, op));
    op->counts = calloc(n, sizeof *op->counts);
    if (op->counts == NULL) {
        return no_memory(whole, n * sizeof *op->counts);
    }
    for (size_t i = 0; i < n; i++) {
        op->counts[i] = (size_t)op->lengths[i];
    }
    dtr__call c = { .kind = DTR__K_ALLGATHERV,
                    .dtype = DTR_U8,
                    .root = -1,
                    .tag = -1,
                    .in = op->in->data,
                    .out = op->pack,
                    .in_count = op->in->nbytes,
                    .out_count = (size_t)op->total,
                    .out_counts = op->counts };
    return add_part(whole, op, &c);
}

static dtr_status allgather_stage(const dtr_work *whole, dtr__bytes_op *op, bool *done) {
    switch (op->stage) {
    case 0:
        op->head[0] = op->in->nbytes;
        DTR_TRY(need_lengths(whole, op, (size_t)op->group->size));
        return add_numbers(whole, op, DTR__K_ALLGATHER, &op->head[0], op->lengths, -1);
    case 1:
        return allgather_contents(whole, op);
    default:
        if (op->pack != NULL) {
            unpack_strings(op->pack, op->got, op->n_got);
        }
        *done = true;
        return DTR_OK;
    }
}

/* ---- gather, scatter ---- */

static dtr_status gather_stage(const dtr_work *whole, dtr__bytes_op *op, bool *done) {
    int me = op->group->rank, root = op->root;
    *done = op->stage > 1;
    if (op->stage == 0) {
        op->head[0] = op->in->nbytes;
        DTR_TRY(need_lengths(whole, op, me == root ? (size_t)op->group->size : 0));
        return add_numbers(whole, op, DTR__K_GATHER, &op->head[0], op->lengths, root);
    }
    if (op->stage > 1) {
        return DTR_OK;
    }
    if (me != root) {
        return add_strings(whole, op, true, op->in, 1, root, DTR__TAG_PARTS);
    }
    DTR_TRY(add_up(whole, op));
    DTR_TRY(need_entries(whole, op, 0, (size_t)op->group->size));
    for (int i = 0; i < op->group->size; i++) {
        if (i != me) {
            DTR_TRY(add_strings(whole, op, false, &op->got[i], 1, i, DTR__TAG_PARTS));
        }
    }
    copy(op->got[me].data, op->in->data, op->in->nbytes);
    return DTR_OK;
}

static dtr_status scatter_stage(const dtr_work *whole, dtr__bytes_op *op, bool *done) {
    int me = op->group->rank, root = op->root;
    *done = op->stage > 1;
    if (op->stage == 0) {
        DTR_TRY(need_lengths(whole, op, (size_t)op->group->size));
        for (size_t i = 0; me == root && i < op->n; i++) {
            op->lengths[i] = op->in[i].nbytes;
        }
        return add_numbers(whole, op, DTR__K_SCATTER, &op->head[0], op->lengths, root);
    }
    if (op->stage > 1) {
        return DTR_OK;
    }
    op->lengths[0] = op->head[0]; /* the root's own list is in `in` */
    op->n_lengths = 1;
    DTR_TRY(add_up(whole, op));
    DTR_TRY(need_entries(whole, op, 0, 1));
    if (me != root) {
        return add_strings(whole, op, false, op->got, 1, root, DTR__TAG_PARTS);
    }
    for (int i = 0; i < op->group->size; i++) {
        if (i != me) {
            DTR_TRY(add_strings(whole, op, true, &op->in[i], 1, i, DTR__TAG_PARTS));
        }
    }
    copy(op->got[0].data, op->in[me].data, op->in[me].nbytes);
    return DTR_OK;
}

/* ---- send, receive ---- */

/* Lengths when there are several strings, then contents. */
static dtr_status add_body(const dtr_work *whole, dtr__bytes_op *op, bool send,
                           const dtr_bytes *list, int peer) {
    int tag = DTR__TAG_BYTES_BODY | op->tag;
    if (op->n > 1 && op->total <= DTR__BYTES_PACK) {
        if (op->total == 0) {
            return DTR_OK;
        }
        DTR_TRY(need_pack(whole, op));
        if (send) {
            pack_strings(op->pack, list, op->n);
        }
        return add_message(whole, op, send, op->pack, (size_t)op->total, DTR_U8, peer, tag);
    }
    return add_strings(whole, op, send, list, op->n, peer, tag);
}

static dtr_status send_stage(const dtr_work *whole, dtr__bytes_op *op, bool *done) {
    if (op->stage > 0) {
        *done = true;
        return DTR_OK;
    }
    DTR_TRY(need_lengths(whole, op, op->n));
    for (size_t i = 0; i < op->n; i++) {
        op->lengths[i] = op->in[i].nbytes;
    }
    DTR_TRY(add_up(whole, op));
    op->head[0] = MAGIC;
    op->head[1] = op->n;
    op->head[2] = op->total;
    op->head[3] = 0;
    DTR_TRY(add_message(whole, op, true, op->head, 4, DTR_I64, op->root, DTR__TAG_BYTES | op->tag));
    if (op->n > 1) {
        DTR_TRY(add_message(whole, op, true, op->lengths, op->n, DTR_I64, op->root,
                            DTR__TAG_BYTES_BODY | op->tag));
    }
    return add_body(whole, op, true, op->in, op->root);
}

static dtr_status recv_stage(const dtr_work *whole, dtr__bytes_op *op, bool *done) {
    switch (op->stage) {
    case 0:
        return add_message(whole, op, false, op->head, 4, DTR_I64, op->root,
                           DTR__TAG_BYTES | op->tag);
    case 1: /* the rest comes from whom the header came from */
        op->source = atomic_load_explicit(&op->parts[0]->source, memory_order_relaxed);
        free_parts(op);
        if (op->head[1] != op->n) {
            return mismatch(whole, op->source, op->head[1], op->group->rank, op->n);
        }
        DTR_TRY(need_lengths(whole, op, op->n));
        if (op->n > 1) {
            return add_message(whole, op, false, op->lengths, op->n, DTR_I64, op->source,
                               DTR__TAG_BYTES_BODY | op->tag);
        }
        op->lengths[0] = op->head[2];
        return DTR_OK;
    case 2:
        DTR_TRY(add_up(whole, op));
        DTR_TRY(need_entries(whole, op, 0, op->n));
        return add_body(whole, op, false, op->got, op->source);
    default:
        if (op->pack != NULL) {
            unpack_strings(op->pack, op->got, op->n_got);
        }
        *done = true;
        return DTR_OK;
    }
}

/* ---- at DTR_DEBUG=detail ---- */

static void log_string(const dtr_work *whole, const char *way, size_t i, const dtr_bytes *b) {
    char title[256];
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t k = 0; k < b->nbytes; k++) {
        h = (h ^ ((const unsigned char *)b->data)[k]) * UINT64_C(0x100000001b3);
    }
    dtr__log_line(whole->world, DTR_LOG_DEBUG, "%s: %s string %zu: %zu bytes, hash %016" PRIx64,
                  dtr__work_title(whole, title, sizeof title), way, i, b->nbytes, h);
}

static void log_strings(const dtr_work *whole, const dtr__bytes_op *op) {
    if (!dtr__at_detail(whole->world)) {
        return;
    }
    for (size_t i = 0; op->in != NULL && i < op->n; i++) {
        log_string(whole, "gave", i, &op->in[i]);
    }
    for (size_t i = 0; i < op->n_got; i++) {
        log_string(whole, "got", i, &op->got[i]);
    }
}

/* ---- backend ---- */

static dtr_status next_stage(const dtr_work *whole, dtr__bytes_op *op, bool *done) {
    if (op->kind != DTR__K_RECV_BYTES || op->stage != 1) {
        free_parts(op);
    }
    switch (op->kind) {
    case DTR__K_BROADCAST_BYTES:
        return broadcast_stage(whole, op, done);
    case DTR__K_ALLGATHER_BYTES:
        return allgather_stage(whole, op, done);
    case DTR__K_GATHER_BYTES:
        return gather_stage(whole, op, done);
    case DTR__K_SCATTER_BYTES:
        return scatter_stage(whole, op, done);
    case DTR__K_SEND_BYTES:
        return send_stage(whole, op, done);
    default:
        return recv_stage(whole, op, done);
    }
}

/* Point to point parts all at once, collectives one after another. */
static dtr_status move_parts(dtr_group *g, dtr_work *whole, dtr__bytes_op *op) {
    for (size_t i = 0; op->left > 0 && i < op->n_parts; i++) {
        dtr_work *part = op->parts[i];
        bool done = false;
        if (dtr__part_ended(part)) {
            continue;
        }
        DTR_TRY(dtr__part_move(g, whole, part, &done));
        if (done) {
            atomic_store_explicit(&part->ended, 1, memory_order_relaxed);
            op->left--;
        } else if (!dtr__kind_is_p2p(part->call.kind)) {
            break;
        }
    }
    return DTR_OK;
}

static dtr_status move(dtr_group *g, dtr_work *whole, dtr__bytes_op *op, bool *done) {
    DTR_TRY(move_parts(g, whole, op));
    while (op->left == 0 && !*done) {
        DTR_TRY(next_stage(whole, op, done));
        op->stage++;
        DTR_TRY(move_parts(g, whole, op));
    }
    return DTR_OK;
}

static void cancel(dtr_group *g, void *state, dtr_work *whole) {
    dtr__bytes_op *op = (dtr__bytes_op *)whole->composite;
    (void)state;
    for (size_t i = 0; op != NULL && i < op->n_parts; i++) {
        dtr__part_cancel(g, op->parts[i]);
    }
}

static dtr_status progress(dtr_group *g, void *state, dtr_work *whole, bool *done) {
    dtr__bytes_op *op = (dtr__bytes_op *)whole->composite;
    dtr_status s = move(g, whole, op, done);
    if (s < 0) {
        dtr__work_give_up(g, &dtr__backend_bytes, state, whole, s);
        *done = false;
    } else if (*done) {
        op->complete = true;
        log_strings(whole, op);
    }
    return s;
}

static const char *waits_for(dtr_group *g, void *state, dtr_work *whole, char *text, size_t cap) {
    const dtr__bytes_op *op = (const dtr__bytes_op *)whole->composite;
    (void)state;
    for (size_t i = 0; op != NULL && i < op->n_parts; i++) {
        if (!dtr__part_ended(op->parts[i])) {
            return dtr__part_waits_for(g, op->parts[i], false, text, cap);
        }
    }
    return "";
}

const dtr__backend dtr__backend_bytes = { .name = "bytes",
                                          .device = DTR_CPU,
                                          .start = progress,
                                          .progress = progress,
                                          .cancel = cancel,
                                          .waits_for = waits_for };
