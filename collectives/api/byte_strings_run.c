/* Running a call on byte strings, in stages: numbers and lengths first, then memory for what is to
 * come, then the contents. Short ones travel packed in one message, long ones each straight from
 * and to its own memory. */
#include "byte_strings.h"
#include "core/signature.h"
#include "core/team.h"
#include "core/work.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static void free_op(dtr__staged *self) {
    dtr__bytes_op *op = (dtr__bytes_op *)self;
    dtr_bytes_free(op->got, op->n_got);
    free(op->got);
    free(op->lengths);
    free(op->pack);
    free(op);
}

static dtr_status no_memory(const dtr_work *whole, uint64_t nbytes) {
    char title[256];
    dtr__error_context ctx = dtr__work_context(whole);
    return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "%s: no memory for strings of %" PRIu64 " bytes in all",
                    dtr__work_title(whole, title, sizeof title), nbytes);
}

/* `n` lengths, 0 until a part fills them in. */
static dtr_status need_lengths(const dtr_work *whole, dtr__bytes_op *op, size_t n) {
    free(op->lengths);
    op->n_lengths = n;
    op->lengths = calloc(n + 1, sizeof *op->lengths);
    return op->lengths != NULL ? DTR_OK : no_memory(whole, n * sizeof *op->lengths);
}

static void fill_lengths(dtr__bytes_op *op) {
    for (size_t i = 0; i < op->n; i++) {
        op->lengths[i] = op->in[i].nbytes;
    }
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

/* Entries for `n` strings from `first` on, with memory of exactly their lengths. */
static dtr_status need_entries(const dtr_work *whole, dtr__bytes_op *op, size_t first, size_t n) {
    op->got = calloc(n + 1, sizeof *op->got);
    if (op->got == NULL) {
        return no_memory(whole, n * sizeof *op->got);
    }
    op->first = first;
    op->n_got = n;
    for (size_t i = 0; i < n; i++) {
        size_t nbytes = op->lengths[first + i];
        op->got[i].nbytes = nbytes;
        if (nbytes > 0 && (op->got[i].data = malloc(nbytes)) == NULL) {
            return no_memory(whole, op->total);
        }
    }
    return DTR_OK;
}

/* ---- whose string goes where ---- */

typedef enum who { ROOT, RANK_I, SELF, SOURCE, EVERYBODY } who;
typedef dtr_status stage(const dtr_work *whole, dtr__bytes_op *op);

/* A kind of call: who gives string i, who takes it, and what is done one after the other. */
typedef struct plan {
    who giver, taker;
    stage *stages[4];
} plan;

static const plan *plan_of(const dtr__bytes_op *op);

/* A group rank, or -1 for everybody. */
static int rank_of(const dtr__bytes_op *op, who w, size_t i) {
    const int rank[] = { op->root, (int)i, op->staged.group->rank, op->source, -1 };
    return rank[w];
}

static int giver(const dtr__bytes_op *op, size_t i) {
    return rank_of(op, plan_of(op)->giver, i);
}

static int taker(const dtr__bytes_op *op, size_t i) {
    return rank_of(op, plan_of(op)->taker, i);
}

static bool is_message(const dtr__bytes_op *op) {
    return op->kind == DTR__K_SEND_BYTES || op->kind == DTR__K_RECV_BYTES;
}

/* String i where this rank gives it, and where it takes it; else NULL. */
static const dtr_bytes *given(const dtr__bytes_op *op, size_t i) {
    return giver(op, i) != op->staged.group->rank ? NULL : op->in == &op->own ? op->in : &op->in[i];
}

static const dtr_bytes *taken(const dtr__bytes_op *op, size_t i) {
    return i >= op->first && i - op->first < op->n_got ? &op->got[i - op->first] : NULL;
}

/* ---- parts ---- */

static dtr_status add_part(const dtr_work *whole, dtr__bytes_op *op, dtr__call c) {
    return dtr__staged_add(whole, &op->staged, c);
}

/* A broadcast or a message. */
static dtr_status add_buffer(const dtr_work *whole, dtr__bytes_op *op, dtr__kind kind,
                             dtr_dtype dtype, const void *data, size_t count, int root, int tag) {
    return add_part(whole, op,
                    (dtr__call){ .kind = kind,
                                 .dtype = dtype,
                                 .root = root,
                                 .tag = tag,
                                 .in = data,
                                 .out = (void *)data,
                                 .in_count = count,
                                 .out_count = count });
}

/* One number of every rank, at the root or (root -1) everywhere, or the other way round. */
static dtr_status add_numbers(const dtr_work *whole, dtr__bytes_op *op, dtr__kind kind, int root) {
    bool scatter = kind == DTR__K_SCATTER, here = root < 0 || root == op->staged.group->rank;
    size_t *all = here ? op->lengths : NULL;
    size_t n = here ? (size_t)op->staged.group->size : 0;
    return add_part(whole, op,
                    (dtr__call){ .kind = kind,
                                 .dtype = DTR_I64,
                                 .root = root,
                                 .tag = -1,
                                 .in = scatter ? all : op->head,
                                 .out = scatter ? op->head : all,
                                 .in_count = scatter ? n : 1,
                                 .out_count = scatter ? 1 : n });
}

static dtr__kind message_kind(const dtr__bytes_op *op) {
    return op->kind == DTR__K_SEND_BYTES ? DTR__K_SEND : DTR__K_RECV;
}

static int peer_of(const dtr__bytes_op *op) {
    return op->kind == DTR__K_SEND_BYTES ? op->root : op->source;
}

/* ---- contents ---- */

static void copy_pack(dtr__bytes_op *op, bool in) {
    char *at = op->pack;
    for (size_t i = 0; i < op->n_lengths; at += op->lengths[i++]) {
        const dtr_bytes *string = in ? given(op, i) : taken(op, i);
        if (string != NULL && op->lengths[i] > 0) {
            memcpy(in ? at : string->data, in ? string->data : at, op->lengths[i]);
        }
    }
}

/* The part that moves all contents at once. */
static dtr_status add_packed(const dtr_work *whole, dtr__bytes_op *op) {
    op->pack = malloc(op->total);
    if (op->pack == NULL) {
        return no_memory(whole, op->total);
    }
    copy_pack(op, true);
    if (op->kind == DTR__K_BROADCAST_BYTES) {
        return add_buffer(whole, op, DTR__K_BROADCAST, DTR_U8, op->pack, op->total, op->root, -1);
    }
    if (op->kind != DTR__K_ALLGATHER_BYTES) {
        return add_buffer(whole, op, message_kind(op), DTR_U8, op->pack, op->total, peer_of(op),
                          DTR__TAG_BYTES_BODY | op->tag);
    }
    return add_part(whole, op,
                    (dtr__call){ .kind = DTR__K_ALLGATHERV,
                                 .dtype = DTR_U8,
                                 .root = -1,
                                 .tag = -1,
                                 .in = op->own.data,
                                 .out = op->pack,
                                 .in_count = op->own.nbytes,
                                 .out_count = op->total,
                                 .out_counts = op->lengths });
}

/* One string, from memory to memory. */
static dtr_status add_string(const dtr_work *whole, dtr__bytes_op *op, size_t i) {
    const dtr_bytes *from = given(op, i), *to = taken(op, i);
    int me = op->staged.group->rank;
    int tag = is_message(op) ? DTR__TAG_BYTES_BODY | op->tag : DTR__TAG_PARTS;
    if (from != NULL && to != NULL) {
        memcpy(to->data, from->data, op->lengths[i]);
    }
    if (taker(op, i) < 0) {
        return add_buffer(whole, op, DTR__K_BROADCAST, DTR_U8, from != NULL ? from->data : to->data,
                          op->lengths[i], giver(op, i), -1);
    }
    if (giver(op, i) == taker(op, i)) {
        return DTR_OK;
    }
    return add_buffer(whole, op, from != NULL ? DTR__K_SEND : DTR__K_RECV, DTR_U8,
                      from != NULL ? from->data : to->data, op->lengths[i],
                      giver(op, i) == me ? taker(op, i) : giver(op, i), tag);
}

/* How many bytes there are in all is known to everybody but in gather and scatter. Empty strings do
 * not travel. */
static dtr_status add_contents(const dtr_work *whole, dtr__bytes_op *op) {
    bool all_know = op->kind != DTR__K_GATHER_BYTES && op->kind != DTR__K_SCATTER_BYTES;
    if (op->total == 0) {
        return DTR_OK;
    }
    if (all_know && op->total <= DTR__BYTES_PACK && !(is_message(op) && op->n == 1)) {
        return add_packed(whole, op);
    }
    for (size_t i = 0; i < op->n_lengths; i++) {
        if (op->lengths[i] > 0) {
            DTR_TRY(add_string(whole, op, i));
        }
    }
    return DTR_OK;
}

/* ---- stages ---- */

static dtr_status mismatch(const dtr_work *whole, int rank, uint64_t n, int other,
                           uint64_t other_n) {
    char title[256];
    dtr__error_context ctx = dtr__work_context(whole);
    return DTR_FAIL(&ctx, DTR_ERR_MISMATCH,
                    "%s: rank %d gives n = %" PRIu64 ", rank %d n = %" PRIu64
                    "; all sides must give the same number of strings",
                    dtr__work_title(whole, title, sizeof title), rank, n, other, other_n);
}

/* Broadcast: does everybody mean the same n? */
static dtr_status ask_numbers(const dtr_work *whole, dtr__bytes_op *op) {
    op->head[0] = op->n;
    DTR_TRY(need_lengths(whole, op, (size_t)op->staged.group->size));
    return add_numbers(whole, op, DTR__K_ALLGATHER, -1);
}

static dtr_status broadcast_lengths(const dtr_work *whole, dtr__bytes_op *op) {
    for (int i = 0; i < op->staged.group->size; i++) {
        if (op->lengths[i] != op->lengths[op->root]) {
            return mismatch(whole, op->root, op->lengths[op->root], i, op->lengths[i]);
        }
    }
    DTR_TRY(need_lengths(whole, op, op->n));
    if (op->root == op->staged.group->rank) {
        fill_lengths(op);
    }
    return op->n == 0
               ? DTR_OK
               : add_buffer(whole, op, DTR__K_BROADCAST, DTR_I64, op->lengths, op->n, op->root, -1);
}

/* Allgather and gather; where a rank learns nothing it knows its own. */
static dtr_status gather_lengths(const dtr_work *whole, dtr__bytes_op *op) {
    op->head[0] = op->own.nbytes;
    DTR_TRY(need_lengths(whole, op, (size_t)op->staged.group->size));
    op->lengths[op->staged.group->rank] = op->own.nbytes;
    return add_numbers(whole, op, op->root < 0 ? DTR__K_ALLGATHER : DTR__K_GATHER, op->root);
}

static dtr_status scatter_lengths(const dtr_work *whole, dtr__bytes_op *op) {
    DTR_TRY(need_lengths(whole, op, (size_t)op->staged.group->size));
    fill_lengths(op); /* n is 0 but at the root */
    return add_numbers(whole, op, DTR__K_SCATTER, op->root);
}

/* Memory for the strings that this rank gets, and the parts that bring them. */
static dtr_status move_strings(const dtr_work *whole, dtr__bytes_op *op) {
    size_t me = (size_t)op->staged.group->rank;
    bool one = op->kind == DTR__K_SCATTER_BYTES;
    if (one) {
        op->lengths[me] = op->head[0];
    }
    DTR_TRY(add_up(whole, op));
    if (op->wants_out) {
        DTR_TRY(need_entries(whole, op, one ? me : 0, one ? 1 : op->n_lengths));
    }
    return add_contents(whole, op);
}

static dtr_status add_head(const dtr_work *whole, dtr__bytes_op *op) {
    return add_buffer(whole, op, message_kind(op), DTR_I64, op->head, 2, op->root,
                      DTR__TAG_BYTES | op->tag);
}

/* The length of a single string is the total. */
static dtr_status add_lengths(const dtr_work *whole, dtr__bytes_op *op) {
    return op->n <= 1 ? DTR_OK
                      : add_buffer(whole, op, message_kind(op), DTR_I64, op->lengths, op->n,
                                   peer_of(op), DTR__TAG_BYTES_BODY | op->tag);
}

static dtr_status send_all(const dtr_work *whole, dtr__bytes_op *op) {
    DTR_TRY(need_lengths(whole, op, op->n));
    fill_lengths(op);
    DTR_TRY(add_up(whole, op));
    op->head[0] = op->n;
    op->head[1] = op->total;
    DTR_TRY(add_head(whole, op));
    DTR_TRY(add_lengths(whole, op));
    return add_contents(whole, op);
}

/* What follows a header comes from whom the header came from. */
static dtr_status receive_lengths(const dtr_work *whole, dtr__bytes_op *op) {
    if (op->head[0] != op->n) {
        return mismatch(whole, op->source, op->head[0], op->staged.group->rank, op->n);
    }
    DTR_TRY(need_lengths(whole, op, op->n));
    if (op->n == 1) {
        op->lengths[0] = op->head[1];
    }
    return add_lengths(whole, op);
}

static const plan plans[] = {
    { ROOT, EVERYBODY, { ask_numbers, broadcast_lengths, move_strings } },
    { RANK_I, EVERYBODY, { gather_lengths, move_strings } },
    { RANK_I, ROOT, { gather_lengths, move_strings } },
    { ROOT, RANK_I, { scatter_lengths, move_strings } },
    { SELF, ROOT, { send_all } },
    { SOURCE, SELF, { add_head, receive_lengths, move_strings } },
};
_Static_assert(DTR__K_RECV_BYTES - DTR__K_BROADCAST_BYTES == 5, "in the order of core/ops.def");

static const plan *plan_of(const dtr__bytes_op *op) {
    return &plans[op->kind - DTR__K_BROADCAST_BYTES];
}

/* ---- at DTR_DEBUG=detail ---- */

static void log_strings(const dtr_work *whole, const char *way, const dtr_bytes *list, size_t n) {
    char title[256];
    for (size_t i = 0; list != NULL && i < n; i++) {
        uint64_t h = UINT64_C(0xcbf29ce484222325);
        for (size_t k = 0; k < list[i].nbytes; k++) {
            h = (h ^ ((const unsigned char *)list[i].data)[k]) * UINT64_C(0x100000001b3);
        }
        dtr__log_line(whole->world, DTR_LOG_DEBUG, "%s: %s string %zu: %zu bytes, hash %016" PRIx64,
                      dtr__work_title(whole, title, sizeof title), way, i, list[i].nbytes, h);
    }
}

/* ---- backend ---- */

static dtr_status next_stage(dtr_work *whole, dtr__staged *self, bool *done) {
    dtr__bytes_op *op = (dtr__bytes_op *)self;
    stage *run = plan_of(op)->stages[self->stage];
    if (op->kind == DTR__K_RECV_BYTES && self->stage == 1) {
        op->source = self->source;
    }
    if (run != NULL) {
        return run(whole, op);
    }
    if (op->pack != NULL) {
        copy_pack(op, false);
    }
    if (dtr__at_detail(whole->world)) {
        log_strings(whole, "gave", op->in, op->n);
        log_strings(whole, "got", op->got, op->n_got);
    }
    *done = true;
    return DTR_OK;
}

dtr__bytes_op *dtr__bytes_new(dtr_group *g, const dtr__bytes_op *asked) {
    dtr__bytes_op *op = malloc(sizeof *op);
    if (op != NULL) {
        *op = *asked;
        dtr__staged_init(&op->staged, g, next_stage, free_op);
        op->source = -1;
        if (op->kind == DTR__K_ALLGATHER_BYTES || op->kind == DTR__K_GATHER_BYTES) {
            op->in = &op->own;
        }
    }
    return op;
}

const dtr__backend dtr__backend_bytes = { .name = "bytes",
                                          .device = DTR_CPU,
                                          .start = dtr__staged_progress,
                                          .progress = dtr__staged_progress,
                                          .cancel = dtr__staged_cancel,
                                          .waits_for = dtr__staged_waits_for };
