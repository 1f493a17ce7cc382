/* Gradients that are lists of rows, of a module on a CUDA device. They travel as those of the host
 * do. dtr_ddp_grad_ready brings them here and waits for them, because their number decides what
 * travels: on a stream of their own, so that it waits for these gradients only. The result goes
 * back behind the stream of backward_end, for which nobody waits. The memory of both ways stays
 * with the parameter: giving some back would wait for everything that the device has been given. */
#include <stdlib.h>

#include "device.h"

/* Of a sparse parameter; its own thread's in grad_ready, then backward_end's. */
struct dtr__ddp_rows {
    dtr_tensor *here;  /* pinned: rows that have come, then the result that goes */
    dtr_tensor *there; /* the newest result */
    void *stored;      /* event: that has left `here` */
    bool leaving;      /* nobody has waited for it */
};

static size_t bytes_of(const dtr_tensor *t) {
    return t->numel * dtr_dtype_size(t->dtype);
}

dtr_status dtr__ddp_rows_open(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    for (size_t i = 0; i < ddp->n; i++) {
        dtr__ddp_param *p = &ddp->params[i];
        if (!p->sparse) {
            continue;
        }
        if (g->rows_stream == NULL) {
            DTR_CUDA_TRY(g->ops->stream_new(g->index, false, &g->rows_stream), DTR_ERR_CUDA);
        }
        p->staging = calloc(1, sizeof *p->staging);
        DTR_REQUIRE(p->staging != NULL, NULL, DTR_ERR_NOMEM, "no memory for the rows of '%s'",
                    p->name);
        DTR_CUDA_TRY(g->ops->event_new(g->index, false, &p->staging->stored), DTR_ERR_CUDA);
    }
    return DTR_OK;
}

/* The host may write to `here`. */
static dtr_status wait_until_stored(dtr_ddp *ddp, struct dtr__ddp_rows *staging) {
    const dtr__ddp_gpu *g = ddp->gpu;
    if (staging->leaving) {
        DTR_CUDA_TRY(g->ops->stream_wait(g->index, g->rows_stream, staging->stored), DTR_ERR_CUDA);
        DTR_CUDA_TRY(g->ops->stream_synchronize(g->index, g->rows_stream), DTR_ERR_CUDA);
        staging->leaving = false;
    }
    return DTR_OK;
}

void dtr__ddp_rows_close(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    for (size_t i = 0; i < ddp->n && g != NULL; i++) {
        struct dtr__ddp_rows *staging = ddp->params[i].staging;
        if (staging == NULL) {
            continue;
        }
        (void)wait_until_stored(ddp, staging);
        dtr_tensor_release(staging->here);
        dtr_tensor_release(staging->there);
        if (staging->stored != NULL) {
            (void)g->ops->event_free(g->index, staging->stored);
        }
        free(staging);
        ddp->params[i].staging = NULL;
    }
    if (g != NULL && g->rows_stream != NULL) {
        (void)g->ops->stream_free(g->index, g->rows_stream);
        g->rows_stream = NULL;
    }
}

/* ---- memory ---- */

/* Memory for that many bytes, and more for the next time. */
static dtr_status make_staging(dtr_ddp *ddp, dtr_device where, dtr_mem kind, size_t nbytes,
                               dtr_tensor **staging) {
    int64_t count = (int64_t)(nbytes + nbytes / 2 + DTR__PLAN_ALIGN);
    dtr_tensor_release(*staging);
    *staging = NULL;
    return dtr_tensor_empty(ddp->world, DTR_U8, where, kind, 1, &count, staging);
}

static dtr_status staging_here(dtr_ddp *ddp, struct dtr__ddp_rows *staging, size_t nbytes) {
    const dtr_device cpu = { DTR_CPU, 0 };
    if (staging->here != NULL && staging->here->numel >= nbytes) {
        return DTR_OK;
    }
    DTR_TRY(wait_until_stored(ddp, staging));
    return make_staging(ddp, cpu, DTR_MEM_PINNED, nbytes, &staging->here);
}

/* Does the program hold results of the step before? They are its own then. */
static bool is_held(dtr_ddp *ddp, const dtr__ddp_param *p) {
    const dtr__storage *s = p->staging->there->storage;
    int own = 1;
    bool held = false;
    pthread_mutex_lock(&ddp->lock);
    for (int k = 0; k < 2; k++) {
        const dtr_tensor *t = k == 0 ? p->rows : p->row_values;
        if (t != NULL && t->storage == s) {
            held = held || atomic_load(&t->refs) > 1;
            own++;
        }
    }
    pthread_mutex_unlock(&ddp->lock);
    return held || atomic_load(&s->refs) > own;
}

static dtr_status staging_there(dtr_ddp *ddp, const dtr__ddp_param *p, size_t nbytes) {
    struct dtr__ddp_rows *staging = p->staging;
    return staging->there != NULL && staging->there->numel >= nbytes && !is_held(ddp, p)
               ? DTR_OK
               : make_staging(ddp, ddp->device, DTR_MEM_DEFAULT, nbytes, &staging->there);
}

/* A tensor like `t` in its memory. */
static dtr_status view_like(const dtr_tensor *staging, size_t at, const dtr_tensor *t,
                            dtr_tensor **view) {
    DTR_TRY(dtr__tensor_view(staging, (ptrdiff_t)at, t->ndim, t->shape, NULL, view));
    (*view)->dtype = t->dtype;
    return DTR_OK;
}

static dtr_status view_both(const dtr_tensor *staging, const dtr_tensor *rows,
                            const dtr_tensor *values, dtr_tensor **out_rows,
                            dtr_tensor **out_values) {
    DTR_TRY(view_like(staging, 0, rows, out_rows));
    dtr_status s = view_like(staging, dtr__plan_round(bytes_of(rows)), values, out_values);
    if (s < 0) {
        dtr_tensor_release(*out_rows);
        *out_rows = NULL;
    }
    return s;
}

/* ---- both ways ---- */

static dtr_status copy(const dtr_ddp *ddp, void *to, const void *from, size_t nbytes,
                       dtr__copy_kind kind, void *stream) {
    if (nbytes > 0) {
        DTR_CUDA_TRY(ddp->gpu->ops->copy(ddp->at.device, to, from, nbytes, kind, stream),
                     DTR_ERR_CUDA);
    }
    return DTR_OK;
}

dtr_status dtr__ddp_rows_fetch(dtr_ddp *ddp, dtr__ddp_param *p, const dtr_tensor *from_rows,
                               const dtr_tensor *from_values, dtr_tensor **rows,
                               dtr_tensor **values) {
    const dtr__ddp_gpu *g = ddp->gpu;
    struct dtr__ddp_rows *staging = p->staging;
    size_t at = dtr__plan_round(bytes_of(from_rows));
    DTR_TRY(staging_here(ddp, staging, at + bytes_of(from_values)));
    if (staging->leaving) {
        DTR_CUDA_TRY(g->ops->stream_wait(g->index, g->rows_stream, staging->stored), DTR_ERR_CUDA);
    }
    DTR_TRY(dtr__ddp_device_wait_for_feeds(ddp, &ddp->buckets[p->bucket].feeds, g->rows_stream));
    DTR_TRY(copy(ddp, staging->here->data, from_rows->data, bytes_of(from_rows), DTR__COPY_TO_HOST,
                 g->rows_stream));
    DTR_TRY(copy(ddp, staging->here->data + at, from_values->data, bytes_of(from_values),
                 DTR__COPY_TO_HOST, g->rows_stream));
    DTR_CUDA_TRY(g->ops->stream_synchronize(g->index, g->rows_stream), DTR_ERR_CUDA);
    staging->leaving = false;
    return view_both(staging->here, from_rows, from_values, rows, values);
}

dtr_status dtr__ddp_rows_store(dtr_ddp *ddp, const dtr__ddp_param *p, const dtr_tensor *from_rows,
                               const dtr_tensor *from_values, dtr_tensor **rows,
                               dtr_tensor **values) {
    const dtr__ddp_gpu *g = ddp->gpu;
    struct dtr__ddp_rows *staging = p->staging;
    size_t at = dtr__plan_round(bytes_of(from_rows)), nbytes = at + bytes_of(from_values);
    DTR_TRY(wait_until_stored(ddp, staging)); /* where this rank gave no rows in this step */
    DTR_TRY(staging_here(ddp, staging, nbytes));
    DTR_TRY(staging_there(ddp, p, nbytes));
    memcpy(staging->here->data, from_rows->data, bytes_of(from_rows));
    memcpy(staging->here->data + at, from_values->data, bytes_of(from_values));
    DTR_TRY(copy(ddp, staging->there->data, staging->here->data, nbytes, DTR__COPY_TO_DEVICE,
                 ddp->out.stream));
    DTR_CUDA_TRY(g->ops->event_record(g->index, staging->stored, ddp->out.stream), DTR_ERR_CUDA);
    staging->leaving = true;
    return view_both(staging->there, from_rows, from_values, rows, values);
}
