/* Gradients that are lists of rows. Such a parameter has a bucket of its own without memory; what
 * travels are the rows themselves, or, where all ranks have named the same rows beforehand, a dense
 * block of just these. They keep the gradient's own type: reduce_dtype is for dense ones. */
#include <stdlib.h>

#include "collectives/tensor_sparse.h"
#include "core/call.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "reducer_internal.h"

/* ---- checks ---- */

static dtr_status sparse_param(dtr_ddp *ddp, const char *entry, size_t i, dtr__ddp_param **p) {
    DTR_TRY(dtr__ddp_check(ddp, entry));
    DTR_TRY(dtr__ddp_trainable_index(ddp, entry, &i));
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    if (!ddp->params[i].sparse) {
        return dtr__ddp_failed(
            ddp, DTR_FAIL(&ctx, DTR_ERR_ARG,
                          "%s: parameter '%s' (%zu) was not created with DTR_PARAM_SPARSE", entry,
                          ddp->params[i].name, i));
    }
    *p = &ddp->params[i];
    return DTR_OK;
}

static bool is_where(const dtr_ddp *ddp, const dtr_tensor *t) {
    return t->device.type == ddp->device.type && t->device.index == ddp->device.index;
}

static dtr_status check_kinds(const dtr_ddp *ddp, const dtr__ddp_param *p, const char *entry,
                              const dtr_tensor *rows, const dtr_tensor *values) {
    DTR_TRY(dtr__tensor_check(rows, "indices"));
    DTR_TRY(dtr__tensor_check(values, "values"));
    dtr_dtype want = dtr__ddp_grad_dtype(ddp, p);
    DTR_REQUIRE(rows->dtype == DTR_I64, NULL, DTR_ERR_DTYPE,
                "%s: '%s': indices is %s; row numbers are i64", entry, p->name,
                dtr_dtype_name(rows->dtype));
    DTR_REQUIRE(values->dtype == want, NULL, DTR_ERR_DTYPE,
                "%s: '%s': values is %s, its gradient %s", entry, p->name,
                dtr_dtype_name(values->dtype), dtr_dtype_name(want));
    DTR_REQUIRE(is_where(ddp, rows) && is_where(ddp, values), NULL, DTR_ERR_DEVICE,
                "%s: '%s': %s must be %s, as the parameter is", entry, p->name,
                is_where(ddp, rows) ? "values" : "indices",
                dtr__ddp_on_device(ddp) ? "on the module's CUDA device" : "in host memory");
    DTR_REQUIRE(rows->contiguous && values->contiguous, NULL, DTR_ERR_LAYOUT,
                "%s: '%s': %s is not contiguous; call dtr_tensor_contiguous first", entry, p->name,
                rows->contiguous ? "values" : "indices");
    return DTR_OK;
}

/* The first row number that the parameter has not; rows->numel: all are good. */
static size_t find_bad_row(const dtr__ddp_param *p, const dtr_tensor *rows) {
    const int64_t *row = (const int64_t *)(const void *)rows->data;
    size_t k = 0;
    while (k < rows->numel && row[k] >= 0 && row[k] < p->value->shape[0]) {
        k++;
    }
    return k;
}

static dtr_status check_rows(const dtr_ddp *ddp, const dtr__ddp_param *p, const char *entry,
                             const dtr_tensor *rows, const dtr_tensor *values) {
    char got[DTR__SHAPE_TEXT], of[DTR__SHAPE_TEXT];
    DTR_TRY(check_kinds(ddp, p, entry, rows, values));
    DTR_REQUIRE(rows->ndim == 1, NULL, DTR_ERR_SHAPE,
                "%s: '%s': indices has shape %s; it must have one dimension", entry, p->name,
                dtr__shape_text(rows->ndim, rows->shape, got));
    bool fits = values->ndim == p->value->ndim && values->shape[0] == rows->shape[0];
    for (int d = 1; fits && d < values->ndim; d++) {
        fits = values->shape[d] == p->value->shape[d];
    }
    DTR_REQUIRE(fits, NULL, DTR_ERR_SHAPE,
                "%s: '%s': values has shape %s; it must be %lld rows of the parameter, which is %s",
                entry, p->name, dtr__shape_text(values->ndim, values->shape, got),
                (long long)rows->shape[0], dtr__shape_text(p->value->ndim, p->value->shape, of));
    size_t bad = dtr__ddp_on_device(ddp) ? rows->numel : find_bad_row(p, rows); /* seen later */
    DTR_REQUIRE(bad == rows->numel, NULL, DTR_ERR_ARG,
                "%s: '%s': indices[%zu] is %lld; its rows are 0..%lld", entry, p->name, bad,
                (long long)((const int64_t *)(const void *)rows->data)[bad],
                (long long)p->value->shape[0] - 1);
    return DTR_OK;
}

/* Before the parameter is ready only. lock held. */
static dtr_status check_open(dtr_ddp *ddp, const dtr__ddp_param *p, const char *entry) {
    int state = atomic_load(&ddp->state);
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    DTR_REQUIRE(state != DTR__DDP_BUSY &&
                    (state != DTR__DDP_REDUCING || atomic_load(&p->mark) == DTR__MARK_OPEN),
                &ctx, DTR_ERR_STATE, "%s: %s, and '%s' has been reported or settled in it", entry,
                dtr__ddp_state_name(state), p->name);
    return DTR_OK;
}

/* ---- what the caller gives and takes ---- */

static void hold(dtr_tensor **place, dtr_tensor *t) {
    if (t != NULL) {
        dtr_tensor_retain(t);
    }
    dtr_tensor_release(*place);
    *place = t;
}

/* Another gradient; lock held. The old one is released without it: that may wait for a device. */
static void put_in(dtr__ddp_param *p, dtr_tensor *rows, dtr_tensor *values, dtr_tensor *old[2]) {
    old[0] = p->rows;
    old[1] = p->row_values;
    p->rows = p->row_values = NULL;
    hold(&p->rows, rows);
    hold(&p->row_values, values);
}

static void let_go(dtr_tensor *pair[2]) {
    hold(&pair[0], NULL);
    hold(&pair[1], NULL);
}

dtr_status dtr_ddp_set_sparse_grad(dtr_ddp *ddp, size_t i, dtr_tensor *indices,
                                   dtr_tensor *values) {
    static const char entry[] = "dtr_ddp_set_sparse_grad";
    dtr__ddp_param *p = NULL;
    dtr_tensor *old[2] = { NULL, NULL };
    DTR_TRY(sparse_param(ddp, entry, i, &p));
    pthread_mutex_lock(&ddp->lock);
    dtr_status s = check_open(ddp, p, entry);
    if (s == DTR_OK) {
        s = check_rows(ddp, p, entry, indices, values);
    }
    if (s == DTR_OK) {
        put_in(p, indices, values, old);
        p->rows_given = true;
    }
    pthread_mutex_unlock(&ddp->lock);
    let_go(old);
    return dtr__ddp_result(ddp, s);
}

dtr_status dtr_ddp_sparse_grad(dtr_ddp *ddp, size_t i, dtr_tensor **indices, dtr_tensor **values) {
    static const char entry[] = "dtr_ddp_sparse_grad";
    dtr__ddp_param *p = NULL;
    DTR_TRY(sparse_param(ddp, entry, i, &p));
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    dtr_status s = DTR_OK;
    pthread_mutex_lock(&ddp->lock);
    if (indices == NULL || values == NULL) {
        s = DTR_FAIL(&ctx, DTR_ERR_ARG, "%s: %s is NULL; it says where to put the tensor", entry,
                     indices == NULL ? "indices" : "values");
    } else if (p->rows == NULL) {
        s = DTR_FAIL(&ctx, DTR_ERR_STATE, "%s: '%s' (%zu) has no gradient yet", entry, p->name, i);
    } else {
        *indices = p->rows;
        *values = p->row_values;
    }
    pthread_mutex_unlock(&ddp->lock);
    return dtr__ddp_result(ddp, s);
}

static dtr_status check_agreed(const dtr__ddp_param *p, const char *entry, const int64_t *rows,
                               size_t n) {
    DTR_REQUIRE(rows != NULL || n == 0, NULL, DTR_ERR_ARG, "%s: '%s': rows is NULL, n is %zu",
                entry, p->name, n);
    for (size_t k = 0; k < n; k++) {
        DTR_REQUIRE(rows[k] >= 0 && rows[k] < p->value->shape[0], NULL, DTR_ERR_ARG,
                    "%s: '%s': rows[%zu] is %lld; its rows are 0..%lld", entry, p->name, k,
                    (long long)rows[k], (long long)p->value->shape[0] - 1);
        DTR_REQUIRE(k == 0 || rows[k] > rows[k - 1], NULL, DTR_ERR_ARG,
                    "%s: '%s': rows[%zu] is %lld after %lld; list each row once, ascending", entry,
                    p->name, k, (long long)rows[k], (long long)rows[k - 1]);
    }
    return DTR_OK;
}

dtr_status dtr_ddp_set_sparse_rows(dtr_ddp *ddp, size_t i, const int64_t *rows, size_t n) {
    static const char entry[] = "dtr_ddp_set_sparse_rows";
    dtr__ddp_param *p = NULL;
    DTR_TRY(sparse_param(ddp, entry, i, &p));
    if (dtr__ddp_joined(ddp)) {
        return dtr__ddp_refuse(ddp, entry,
                               "during a join ranks that have joined could not know the rows");
    }
    pthread_mutex_lock(&ddp->lock);
    dtr_status s = check_open(ddp, p, entry);
    if (s == DTR_OK) {
        s = check_agreed(p, entry, rows, n);
    }
    int64_t *copy = s == DTR_OK && rows != NULL ? malloc((n + 1) * sizeof *copy) : NULL;
    if (s == DTR_OK && rows != NULL && copy == NULL) {
        s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "%s: no memory for %zu row numbers", entry, n);
    }
    if (s == DTR_OK) {
        if (n > 0 && copy != NULL) {
            memcpy(copy, rows, n * sizeof *copy);
        }
        free(p->agreed);
        p->agreed = copy;
        p->n_agreed = n;
    }
    pthread_mutex_unlock(&ddp->lock);
    return dtr__ddp_result(ddp, s);
}

/* ---- one iteration ---- */

/* Every row of this rank must be among the agreed ones. */
static bool is_listed(const dtr__ddp_param *p, int64_t row, size_t *at) {
    size_t lo = 0, hi = p->n_agreed;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (p->agreed[mid] < row) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    *at = lo;
    return lo < p->n_agreed && p->agreed[lo] == row;
}

/* What the host's rows were asked when they were given. */
static dtr_status judge_numbers(dtr_ddp *ddp, size_t i, const dtr_tensor *rows) {
    const dtr__ddp_param *p = &ddp->params[i];
    size_t bad = find_bad_row(p, rows);
    return bad == rows->numel
               ? DTR_OK
               : dtr__ddp_note(ddp, DTR_ERR_ARG, i,
                               "parameter '%s' (%zu): indices[%zu] of rank %d is %lld; its rows "
                               "are 0..%lld",
                               p->name, i, bad, ddp->rank,
                               (long long)((const int64_t *)(const void *)rows->data)[bad],
                               (long long)p->value->shape[0] - 1);
}

static dtr_status judge(dtr_ddp *ddp, size_t i, const dtr_tensor *rows, const dtr_tensor *values) {
    const dtr__ddp_param *p = &ddp->params[i];
    size_t at;
    DTR_TRY(judge_numbers(ddp, i, rows));
    const int64_t *row = (const int64_t *)(const void *)rows->data;
    for (size_t k = 0; p->agreed != NULL && k < rows->numel; k++) {
        if (!is_listed(p, row[k], &at)) {
            return dtr__ddp_note(ddp, DTR_ERR_STATE, i,
                                 "parameter '%s' (%zu): row %lld of rank %d is not among the %zu "
                                 "given to dtr_ddp_set_sparse_rows",
                                 p->name, i, (long long)row[k], ddp->rank, p->n_agreed);
        }
    }
    size_t n = values->numel;
    size_t nan =
        ddp->set.flags & DTR_DDP_CHECK_NAN ? dtr__find_nan(values->data, n, values->dtype) : n;
    if (nan < n) {
        return dtr__ddp_note(ddp, DTR_ERR_NAN, i,
                             "the gradient of parameter '%s' (%zu) has a NaN on rank %d (value %zu "
                             "of its rows)",
                             p->name, i, ddp->rank, nan);
    }
    return DTR_OK;
}

/* The rows of parameter i as the host can read them: on a device a copy, for which it waits. */
static dtr_status read_rows(dtr_ddp *ddp, size_t i, dtr_tensor **rows, dtr_tensor **values) {
    dtr__ddp_param *p = &ddp->params[i];
    if (!dtr__ddp_on_device(ddp)) {
        hold(rows, p->rows);
        hold(values, p->row_values);
        return DTR_OK;
    }
    dtr_status s = dtr__ddp_rows_fetch(ddp, p, p->rows, p->row_values, rows, values);
    (void)dtr__ddp_note_last(ddp, s, i);
    return s;
}

/* A hook sees the rows themselves. */
static void contribute(dtr_ddp *ddp, const dtr__ddp_param *p, dtr_tensor *rows,
                       dtr_tensor *values) {
    dtr_ddp_bucket *b = &ddp->buckets[p->bucket];
    hold(&b->in_rows, ddp->strategy->hooked ? p->rows : rows);
    hold(&b->in_values, ddp->strategy->hooked ? p->row_values : values);
}

/* From here on nobody may give others: the parameter is marked. */
dtr_status dtr__ddp_sparse_put(dtr_ddp *ddp, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    dtr_tensor *rows = NULL, *values = NULL;
    pthread_mutex_lock(&ddp->lock);
    bool given = p->rows_given;
    pthread_mutex_unlock(&ddp->lock);
    if (!given) {
        return dtr__ddp_note(ddp, DTR_ERR_STATE, i,
                             "parameter '%s' (%zu) was not ready on rank %d: it became ready "
                             "without rows; call dtr_ddp_set_sparse_grad before",
                             p->name, i, ddp->rank);
    }
    dtr_status s = read_rows(ddp, i, &rows, &values);
    s = s == DTR_OK ? judge(ddp, i, rows, values) : s;
    if (s == DTR_OK) {
        contribute(ddp, p, rows, values);
    }
    hold(&rows, NULL);
    hold(&values, NULL);
    return s;
}

/* Called with and without the lock. What lies on a device is there behind what the module's stream
 * holds now. */
void dtr__ddp_sparse_put_unused(dtr_ddp *ddp, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    dtr_tensor *rows = NULL, *values = NULL;
    if (p->rows == NULL || p->agreed != NULL || !atomic_load(&p->defined)) {
        return;
    }
    dtr__ddp_device_feed(ddp, &ddp->buckets[p->bucket].feeds, i, ddp->at.stream);
    if (read_rows(ddp, i, &rows, &values) == DTR_OK && judge_numbers(ddp, i, rows) == DTR_OK) {
        contribute(ddp, p, rows, values);
    }
    hold(&rows, NULL);
    hold(&values, NULL);
}

static dtr_status no_rows(const dtr_ddp *ddp, const dtr__ddp_param *p, dtr_tensor **rows,
                          dtr_tensor **values) {
    const dtr_device cpu = { DTR_CPU, 0 }, where = ddp->strategy->hooked ? ddp->device : cpu;
    int64_t shape[DTR_MAX_NDIM];
    memcpy(shape, p->value->shape, (size_t)p->value->ndim * sizeof shape[0]);
    shape[0] = 0;
    DTR_TRY(dtr_tensor_empty(ddp->world, DTR_I64, where, DTR_MEM_DEFAULT, 1, shape, rows));
    return dtr_tensor_empty(ddp->world, dtr__ddp_grad_dtype(ddp, p), where, DTR_MEM_DEFAULT,
                            p->value->ndim, shape, values);
}

dtr_status dtr__ddp_sparse_input(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    return b->in_rows == NULL ? no_rows(ddp, b->sparse, &b->in_rows, &b->in_values) : DTR_OK;
}

/* The agreed rows as one block, this rank's rows added up in it. */
static dtr_status make_block(const dtr_ddp *ddp, dtr_ddp_bucket *b) {
    const dtr__ddp_param *p = b->sparse;
    int64_t shape[DTR_MAX_NDIM];
    dtr_tensor *rows = NULL, *values = NULL;
    memcpy(shape, p->value->shape, (size_t)p->value->ndim * sizeof shape[0]);
    shape[0] = (int64_t)p->n_agreed;
    DTR_TRY(dtr__tensor_new(DTR_I64, 1, shape, &b->out_rows));
    DTR_TRY(dtr__tensor_new(dtr__ddp_grad_dtype(ddp, p), p->value->ndim, shape, &b->out_values));
    size_t row = p->n_agreed > 0 ? b->out_values->numel / p->n_agreed : 0;
    size_t nbytes = row * dtr_dtype_size(b->out_values->dtype);
    if (p->n_agreed * nbytes > 0) {
        memcpy(b->out_rows->data, p->agreed, p->n_agreed * sizeof p->agreed[0]);
        memset(b->out_values->data, 0, p->n_agreed * nbytes);
    }
    DTR_TRY(dtr__sparse_merge((const int64_t *)(const void *)b->in_rows->data, b->in_values->data,
                              b->in_rows->numel, row, b->in_values->dtype, DTR_SUM, 1,
                              p->value->ndim - 1, p->value->shape + 1, &rows, &values));
    const int64_t *number = (const int64_t *)(const void *)rows->data;
    for (size_t k = 0, at; k < rows->numel; k++) {
        if (is_listed(p, number[k], &at) && nbytes > 0) {
            memcpy(b->out_values->data + at * nbytes, values->data + k * nbytes, nbytes);
        }
    }
    dtr_tensor_release(rows);
    dtr_tensor_release(values);
    return DTR_OK;
}

/* The list is part of what must agree. */
static dtr_status launch_block(dtr_ddp *ddp, dtr_ddp_bucket *b, dtr_work **work) {
    const dtr__ddp_param *p = b->sparse;
    DTR_TRY(make_block(ddp, b));
    uint64_t rows = dtr__hash_bytes(DTR__HASH_START, p->agreed, p->n_agreed * sizeof p->agreed[0]);
    dtr_buffer block = dtr_tensor_buffer(b->out_values);
    dtr__request r = dtr__ddp_average(ddp, block);
    r.tag_word = dtr__ddp_tag(ddp, b->index) ^ rows;
    return dtr__ddp_issue_on(ddp, ddp->group, &r, b->label, work);
}

dtr_status dtr__ddp_sparse_launch(dtr_ddp *ddp, dtr_ddp_bucket *b, dtr_work **work) {
    DTR_TRY(dtr__ddp_sparse_input(ddp, b));
    if (b->sparse->agreed != NULL && !ddp->it.shadow) {
        return launch_block(ddp, b, work);
    }
    dtr_coll_options o = dtr__ddp_options(ddp, b->label);
    bool sum = (ddp->set.flags & DTR_DDP_SUM) != 0 || ddp->it.divisor != 0;
    dtr_call_site(__FILE__, __LINE__);
    return dtr__sparse_allreduce(ddp->group, b->in_rows, b->in_values, b->sparse->value->shape[0],
                                 sum ? DTR_SUM : DTR_AVG, &o, dtr__ddp_tag(ddp, b->index),
                                 &b->out_rows, &b->out_values, work);
}

/* The result becomes the gradient. */
void dtr__ddp_sparse_take(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    dtr__ddp_param *p = b->sparse;
    if (b->out_rows == NULL || ddp->it.shadow) {
        return;
    }
    bool summed = !ddp->strategy->hooked && p->agreed == NULL && ddp->it.divisor != 0 &&
                  (ddp->set.flags & DTR_DDP_SUM) == 0;
    if (summed) {
        (void)dtr_tensor_scale(b->out_values, dtr__quotient(1, ddp->it.divisor), NULL);
    }
    if (!is_where(ddp, b->out_values)) {
        if (atomic_load(&ddp->errors.bad)) {
            return; /* its rows may still be on their way into the memory that the result needs */
        }
        dtr_tensor *there[2] = { NULL, NULL };
        dtr_status s =
            dtr__ddp_rows_store(ddp, p, b->out_rows, b->out_values, &there[0], &there[1]);
        if (s < 0) {
            dtr__ddp_note_last(ddp, s, (size_t)(p - ddp->params));
            return;
        }
        hold(&b->out_rows, there[0]);
        hold(&b->out_values, there[1]);
        let_go(there);
    }
    dtr_tensor *old[2];
    pthread_mutex_lock(&ddp->lock);
    put_in(p, b->out_rows, b->out_values, old);
    pthread_mutex_unlock(&ddp->lock);
    let_go(old);
}

size_t dtr__ddp_sparse_bytes(const dtr_ddp_bucket *b) {
    return b->in_rows == NULL ? 0
                              : b->in_rows->numel * sizeof(int64_t) +
                                    b->in_values->numel * dtr_dtype_size(b->in_values->dtype);
}

void dtr__ddp_sparse_bucket_free(dtr_ddp_bucket *b) {
    hold(&b->in_rows, NULL);
    hold(&b->in_values, NULL);
    hold(&b->out_rows, NULL);
    hold(&b->out_values, NULL);
}

void dtr__ddp_sparse_rearm(dtr_ddp *ddp) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        dtr__ddp_param *p = ddp->buckets[b].sparse;
        if (p == NULL) {
            continue;
        }
        dtr__ddp_sparse_bucket_free(&ddp->buckets[b]);
        pthread_mutex_lock(&ddp->lock);
        free(p->agreed);
        p->agreed = NULL;
        p->n_agreed = 0;
        p->rows_given = p->rows_given && !ddp->it.sync; /* without sync the caller adds up */
        pthread_mutex_unlock(&ddp->lock);
    }
}

/* ---- in hooks ---- */

dtr_status dtr_ddp_bucket_sparse(const dtr_ddp_bucket *bucket, dtr_tensor **indices,
                                 dtr_tensor **values) {
    static const char entry[] = "dtr_ddp_bucket_sparse";
    DTR_REQUIRE(bucket != NULL && indices != NULL && values != NULL, NULL, DTR_ERR_ARG,
                "%s: %s is NULL", entry,
                bucket == NULL    ? "bucket"
                : indices == NULL ? "indices"
                                  : "values");
    DTR_REQUIRE(bucket->sparse != NULL && bucket->in_rows != NULL, NULL, DTR_ERR_ARG,
                "%s: bucket %zu %s", entry, bucket->index,
                bucket->sparse == NULL ? "holds dense gradients, use dtr_ddp_bucket_buffer"
                                       : "has not been launched");
    *indices = bucket->in_rows;
    *values = bucket->in_values;
    return DTR_OK;
}

dtr_status dtr_ddp_bucket_set_sparse_result(dtr_ddp_bucket *bucket, dtr_tensor *indices,
                                            dtr_tensor *values) {
    static const char entry[] = "dtr_ddp_bucket_set_sparse_result";
    DTR_REQUIRE(bucket != NULL, NULL, DTR_ERR_ARG, "%s: bucket is NULL", entry);
    DTR_REQUIRE(bucket->running, NULL, DTR_ERR_STATE,
                "%s: bucket %zu: only its hook, while it runs, may call this", entry,
                bucket->index);
    DTR_REQUIRE(bucket->sparse != NULL, NULL, DTR_ERR_STATE,
                "%s: bucket %zu holds dense gradients, use dtr_ddp_bucket_set_result", entry,
                bucket->index);
    DTR_TRY(check_rows(bucket->ddp, bucket->sparse, entry, indices, values));
    hold(&bucket->out_rows, indices);
    hold(&bucket->out_values, values);
    return DTR_OK;
}
