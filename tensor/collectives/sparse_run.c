/* Running a row-sparse allreduce: every rank's head first, then all indices and rows to everybody,
 * who sum them alike. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/tensor_sparse.h"
#include "core/team.h"
#include "core/work.h"
#include "memory/device.h"

enum { HEAD_WORDS = sizeof(dtr__sparse_head) / sizeof(int64_t) };

/* ---- memory ---- */

static void drop_results(dtr__sparse_op *op) {
    dtr_tensor_release(op->result_indices);
    dtr_tensor_release(op->result_values);
    op->result_indices = op->result_values = NULL;
}

static void free_op(dtr__staged *self) {
    dtr__sparse_op *op = (dtr__sparse_op *)self;
    dtr_tensor_release(op->host[0]);
    dtr_tensor_release(op->host[1]);
    drop_results(op);
    free(op->heads);
    free(op->counts);
    free(op->all_indices);
    free(op->all_values);
    free(op);
}

/* ---- parts ---- */

static dtr_status gather_heads(const dtr_work *whole, dtr__sparse_op *op) {
    dtr__call c = { .kind = DTR__K_ALLGATHER,
                    .root = -1,
                    .tag = -1,
                    .dtype = DTR_I64,
                    .in = &op->own,
                    .out = op->heads,
                    .in_count = HEAD_WORDS,
                    .out_count = HEAD_WORDS * (size_t)op->staged.group->size };
    return dtr__staged_add(whole, &op->staged, c);
}

/* ---- do all mean the same? ---- */

/* What must be equal, in the order in which it is compared. */
enum { OP, DTYPE, N_ROWS, TAG, ROWS, N_FIELDS };
static const struct {
    size_t at, size;
} fields[N_FIELDS] = {
#define FIELD(name) \
    { offsetof(dtr__sparse_head, name), sizeof(((dtr__sparse_head *)0)->name) }
    [OP] = FIELD(op),        [DTYPE] = FIELD(dtype), [N_ROWS] = FIELD(n_rows),
    [TAG] = FIELD(tag_word), [ROWS] = FIELD(rows),
#undef FIELD
};

static void print_field(const dtr__sparse_head *h, int field, char *text, size_t cap) {
    char shape[DTR__SHAPE_TEXT];
    switch (field) {
    case OP:
        snprintf(text, cap, "op %s", dtr__op_name((dtr_op)h->op));
        break;
    case DTYPE:
        snprintf(text, cap, "dtype %s", dtr_dtype_name((dtr_dtype)h->dtype));
        break;
    case N_ROWS:
        snprintf(text, cap, "n_rows %" PRId64, h->n_rows);
        break;
    case TAG:
        snprintf(text, cap, "internal tag %#" PRIx64, h->tag_word);
        break;
    default:
        snprintf(text, cap, "rows of shape %s",
                 dtr__shape_text((int)h->rows.ndim, h->rows.shape, shape));
        break;
    }
}

static bool same_field(const dtr__sparse_head *a, const dtr__sparse_head *b, int field) {
    size_t at = fields[field].at;
    return memcmp((const char *)a + at, (const char *)b + at, fields[field].size) == 0;
}

/* The rank whose value most ranks have; of several the lowest. */
static int majority(const dtr__sparse_head *h, int n, int field) {
    int best = 0, votes = 0;
    for (int i = 0; i < n; i++) {
        int same = 0;
        for (int j = 0; j < n; j++) {
            same += same_field(&h[i], &h[j], field);
        }
        if (same > votes) {
            best = i;
            votes = same;
        }
    }
    return best;
}

static dtr_status mismatch(const dtr_work *whole, const dtr__sparse_op *op, int field, int most) {
    char title[256], good[128], bad[128], list[256] = "";
    const dtr__sparse_head *h = op->heads;
    int first = -1;
    size_t at = 0;
    for (int i = 0; i < op->staged.group->size && at < sizeof(list) - 128 - 16; i++) {
        if (!same_field(&h[i], &h[most], field)) {
            print_field(&h[i], field, bad, sizeof(bad));
            at += (size_t)snprintf(list + at, sizeof(list) - at, "%srank %d %s",
                                   first < 0 ? "" : ", ", i, bad);
            first = first < 0 ? i : first;
        }
    }
    print_field(&h[most], field, good, sizeof(good));
    dtr__error_context ctx = dtr__work_context(whole);
    return DTR_FAIL(&ctx, DTR_ERR_MISMATCH,
                    "%s: most ranks give %s (called at %.47s), but %s (called at %.47s)",
                    dtr__work_title(whole, title, sizeof(title)), good, h[most].site, list,
                    h[first].site);
}

static dtr_status compare_heads(const dtr_work *whole, const dtr__sparse_op *op) {
    int n = op->staged.group->size;
    for (int field = 0; field < N_FIELDS; field++) {
        for (int i = 1; i < n; i++) {
            if (!same_field(&op->heads[0], &op->heads[i], field)) {
                return mismatch(whole, op, field, majority(op->heads, n, field));
            }
        }
    }
    return DTR_OK;
}

/* ---- rows ---- */

static dtr_status no_memory(const dtr_work *whole, const dtr__sparse_op *op) {
    char title[256];
    dtr__error_context ctx = dtr__work_context(whole);
    return DTR_FAIL(&ctx, DTR_ERR_NOMEM,
                    "%s: out of memory for %zu rows of %zu elements from all ranks",
                    dtr__work_title(whole, title, sizeof(title)), op->total, op->row);
}

static dtr_status gather_rows(const dtr_work *whole, dtr__sparse_op *op) {
    DTR_TRY(compare_heads(whole, op));
    size_t size = dtr_dtype_size(op->dtype), elements = 0, nbytes = 0;
    bool over = false;
    for (int i = 0; i < op->staged.group->size; i++) {
        size_t nnz = (size_t)op->heads[i].nnz;
        op->counts[i] = nnz;
        over = over || __builtin_add_overflow(op->total, nnz, &op->total) ||
               __builtin_mul_overflow(nnz, op->row, &op->value_counts[i]) ||
               __builtin_mul_overflow(op->total, op->row, &elements) ||
               __builtin_mul_overflow(elements, size, &nbytes) ||
               op->total > PTRDIFF_MAX / sizeof(int64_t) || nbytes > PTRDIFF_MAX;
    }
    if (op->total == 0 && !over) {
        return DTR_OK;
    }
    op->all_indices = over ? NULL : malloc(op->total * sizeof(int64_t));
    op->all_values = over ? NULL : malloc(nbytes + 1);
    if (op->all_indices == NULL || op->all_values == NULL) {
        return no_memory(whole, op);
    }
    size_t nnz = (size_t)op->own.nnz;
    dtr__call c = { .kind = DTR__K_ALLGATHERV,
                    .root = -1,
                    .tag = -1,
                    .dtype = DTR_I64,
                    .in = op->indices,
                    .out = op->all_indices,
                    .in_count = nnz,
                    .out_count = op->total,
                    .out_counts = op->counts };
    DTR_TRY(dtr__staged_add(whole, &op->staged, c));
    if (elements == 0) {
        return DTR_OK;
    }
    c = (dtr__call){ .kind = DTR__K_ALLGATHERV,
                     .root = -1,
                     .tag = -1,
                     .dtype = op->dtype,
                     .in = op->values,
                     .out = op->all_values,
                     .in_count = nnz * op->row,
                     .out_count = elements,
                     .out_counts = op->value_counts };
    return dtr__staged_add(whole, &op->staged, c);
}

static dtr_status to_device(const dtr__sparse_op *op, dtr_tensor **t, void *stream) {
    dtr_tensor *there = NULL;
    DTR_TRY(dtr_tensor_empty(op->staged.group->world, (*t)->dtype, op->device, DTR_MEM_DEFAULT,
                             (*t)->ndim, (*t)->shape, &there));
    dtr_status s = dtr_tensor_copy(there, *t, stream);
    dtr_tensor_release(s < 0 ? there : *t);
    *t = s < 0 ? *t : there;
    return s;
}

static dtr_status place_on(dtr__sparse_op *op, const dtr__device_ops *ops, void *stream) {
    DTR_TRY(to_device(op, &op->result_indices, stream));
    DTR_TRY(to_device(op, &op->result_values, stream));
    DTR_CUDA_TRY(ops->stream_synchronize(op->device.index, stream), DTR_ERR_CUDA);
    return DTR_OK;
}

/* Results of host memory are replaced by some on the inputs' device, which are complete on return.
 * On a stream of their own: the default one would wait for the program's streams, and what they
 * hold may wait for this thread. */
static dtr_status place_results(dtr__sparse_op *op) {
    void *stream = NULL;
    if (op->device.type == DTR_CPU) {
        return DTR_OK;
    }
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    DTR_CUDA_TRY(ops->stream_new(op->device.index, false, &stream), DTR_ERR_CUDA);
    dtr_status s = place_on(op, ops, stream);
    (void)ops->stream_free(op->device.index, stream);
    return s;
}

/* The handles are written before the work ends, and not when it has failed already. */
static void deliver(dtr_work *whole, dtr__sparse_op *op) {
    pthread_mutex_lock(&op->staged.group->engine->queue_lock);
    if (!atomic_load_explicit(&whole->ended, memory_order_relaxed) &&
        whole->input.status == DTR_OK) {
        *op->out_indices = op->result_indices;
        *op->out_values = op->result_values;
        op->result_indices = op->result_values = NULL;
    }
    pthread_mutex_unlock(&op->staged.group->engine->queue_lock);
}

static dtr_status next_stage(dtr_work *whole, dtr__staged *self, bool *done) {
    dtr__sparse_op *op = (dtr__sparse_op *)self;
    dtr_status s;
    unsigned exact;
    switch (self->stage) {
    case 0:
        return gather_heads(whole, op);
    case 1:
        return gather_rows(whole, op);
    default:
        exact = op->staged.group->asked.reproducible ? DTR__EXACT : 0;
        DTR_TRY(dtr__sparse_merge(op->all_indices, op->all_values, op->total, op->row, op->dtype,
                                  (dtr_op)((unsigned)op->op | exact), op->staged.group->size,
                                  (int)op->own.rows.ndim, op->own.rows.shape, &op->result_indices,
                                  &op->result_values));
        s = place_results(op);
        if (s == DTR_OK) {
            deliver(whole, op);
        }
        drop_results(op); /* what nobody took: memory of a device must not outlive the world */
        DTR_TRY(s);
        *done = true;
        return DTR_OK;
    }
}

/* ---- making one ---- */

dtr__sparse_op *dtr__sparse_new(dtr_group *g, const dtr__sparse_op *asked) {
    dtr__sparse_op *op = malloc(sizeof(*op));
    size_t n = (size_t)g->size;
    if (op == NULL) {
        return NULL;
    }
    *op = *asked;
    dtr__staged_init(&op->staged, g, next_stage, free_op);
    for (int i = 0; i < 2 && op->host[i] != NULL; i++) {
        (void)dtr_tensor_retain(op->host[i]);
    }
    op->heads = calloc(n, sizeof(op->heads[0]));
    op->counts = calloc(2 * n, sizeof(op->counts[0]));
    op->value_counts = op->counts != NULL ? op->counts + n : NULL;
    if (op->heads == NULL || op->counts == NULL) {
        free_op(&op->staged);
        return NULL;
    }
    return op;
}

const dtr__backend dtr__backend_sparse = { .name = "sparse",
                                           .device = DTR_CPU,
                                           .start = dtr__staged_progress,
                                           .progress = dtr__staged_progress,
                                           .cancel = dtr__staged_cancel,
                                           .waits_for = dtr__staged_waits_for };
