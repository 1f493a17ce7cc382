/* Row-sparse allreduce: the public call, its checks, and handing it to the engine. */
#include <stdio.h>
#include <string.h>

#include "api/issue.h"
#include "collectives/tensor_sparse.h"
#include "core/call_site.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "kernels/operators.h"
#include "tensor_coll.h"

#define ENTRY "dtr_sparse_allreduce"

typedef struct args {
    dtr_tensor *indices, *values;
    int64_t n_rows;
    dtr_op op;
    uint64_t tag_word;
    dtr_tensor **out_indices, **out_values;
    dtr_device device;   /* of the tensors */
    dtr_tensor *host[2]; /* what stands for them when that is not the host */
} args;

/* ---- checks, in the order of dtr/coll.h ---- */

static dtr_status check_pointers(const dtr__tensor_call *c, const args *a) {
    DTR_TRY(dtr__tensor_check(a->indices, "indices"));
    DTR_TRY(dtr__tensor_check(a->values, "values"));
    DTR_REFUSE_IF(a->out_indices == NULL || a->out_values == NULL, c, DTR_ERR_ARG,
                  "%s is NULL; it says where to put the result",
                  a->out_indices == NULL ? "out_indices" : "out_values");
    return DTR_OK;
}

static dtr_status check_device_and_layout(const dtr__tensor_call *c, const dtr_tensor *t,
                                          const dtr_tensor *other, const char *name) {
    const dtr_group *g = c->group;
    DTR_REFUSE_IF(t->device.type != DTR_CPU && !g->backends.takes_devices, c, DTR_ERR_DEVICE,
                  "%s is on cuda:%d, and the group has no backend for CUDA buffers: its "
                  "backends are \"%s\"",
                  name, t->device.index, g->backends.asked);
    DTR_REFUSE_IF(t->device.type != other->device.type || t->device.index != other->device.index, c,
                  DTR_ERR_DEVICE, "indices and values are on different devices");
    DTR_REFUSE_IF(!t->contiguous, c, DTR_ERR_LAYOUT,
                  "%s is not contiguous; call dtr_tensor_contiguous first", name);
    return DTR_OK;
}

static dtr_status check_types(const dtr__tensor_call *c, const args *a) {
    DTR_REFUSE_IF(a->indices->dtype != DTR_I64, c, DTR_ERR_DTYPE,
                  "indices is %s; row numbers are i64", dtr_dtype_name(a->indices->dtype));
    DTR_REFUSE_IF(a->op != DTR_SUM && a->op != DTR_AVG, c, DTR_ERR_UNSUPPORTED,
                  "op is %s; sparse rows can be summed and averaged", dtr__op_name(a->op));
    DTR_REFUSE_IF(!dtr_op_supports(a->op, a->values->dtype), c, DTR_ERR_DTYPE,
                  "op %s is not defined for dtype %s", dtr__op_name(a->op),
                  dtr_dtype_name(a->values->dtype));
    return DTR_OK;
}

static dtr_status check_shapes(const dtr__tensor_call *c, const args *a) {
    char text[DTR__SHAPE_TEXT];
    const dtr_tensor *i = a->indices, *v = a->values;
    DTR_REFUSE_IF(i->ndim != 1, c, DTR_ERR_SHAPE,
                  "indices has shape %s; it must have one dimension",
                  dtr__shape_text(i->ndim, i->shape, text));
    DTR_REFUSE_IF(v->ndim < 1 || v->shape[0] != i->shape[0], c, DTR_ERR_SHAPE,
                  "values has shape %s; its dimension 0 must be the %lld entries of indices",
                  dtr__shape_text(v->ndim, v->shape, text), (long long)i->shape[0]);
    DTR_REFUSE_IF(a->n_rows < 0, c, DTR_ERR_ARG,
                  "n_rows is %lld; it is the number of rows of the dense tensor",
                  (long long)a->n_rows);
    return DTR_OK;
}

static dtr_status check_rows(const dtr__tensor_call *c, const args *a) {
    const dtr_tensor *i = a->indices;
    const int64_t *row = (const int64_t *)(const void *)i->data;
    for (size_t k = 0; k < i->numel; k++) {
        DTR_REFUSE_IF(row[k] < 0 || row[k] >= a->n_rows, c, DTR_ERR_ARG,
                      "indices[%zu] is %lld; row numbers are 0..%lld", k, (long long)row[k],
                      (long long)a->n_rows - 1);
    }
    return DTR_OK;
}

/* Handle, scope and arguments; describes the call. */
static dtr_status check(dtr__tensor_call *c, const args *a, bool blocking, dtr__call *call) {
    dtr_group *g = c->group;
    dtr__error_context ctx = { g->world, ENTRY, g->name };
    DTR_TRY(dtr__scope_refuse(g, ENTRY));
    DTR_REQUIRE(!blocking || !dtr__in_callback(g->world), &ctx, DTR_ERR_STATE,
                ENTRY
                " on group '%s' blocks, and this thread is inside a completion callback of the "
                "same world; ask for a work",
                g->name);
    /* Of the options only those that every operation has matter: checked like a barrier's. */
    dtr__request r = { .kind = DTR__K_BARRIER,
                       .options = c->r.options,
                       .name = dtr__kind_name(DTR__K_SPARSE_ALLREDUCE) };
    DTR_TRY(dtr__coll_check(g, &r, blocking, call));
    DTR_REFUSE_IF((unsigned)a->op >= DTR__N_OPS && !dtr_op_supports(a->op, DTR_U8), c, DTR_ERR_ARG,
                  "op is %d, which is no dtr_op (0..%d)", (int)a->op, DTR__N_OPS - 1);
    DTR_TRY(check_pointers(c, a));
    DTR_TRY(check_device_and_layout(c, a->indices, a->values, "indices"));
    DTR_TRY(check_device_and_layout(c, a->values, a->indices, "values"));
    DTR_TRY(check_types(c, a));
    return check_shapes(c, a);
}

/* ---- tensors on a device ---- */

static dtr_status to_host(const dtr_tensor *t, void *stream, dtr_tensor **host) {
    DTR_TRY(dtr__tensor_new(t->dtype, t->ndim, t->shape, host));
    return dtr_tensor_copy(*host, t, stream);
}

/* Rows travel through host memory. Waits for the stream: the indices must be looked at before the
 * call has a number. */
static dtr_status stage(const dtr__tensor_call *c, args *a) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    a->device = a->values->device;
    if (a->device.type == DTR_CPU) {
        return DTR_OK;
    }
    if (c->r.options != NULL) {
        DTR_TRY(dtr__options_copy(c->r.options, &o, sizeof(o), "dtr_coll_options"));
    }
    DTR_TRY(to_host(a->indices, o.stream, &a->host[0]));
    DTR_TRY(to_host(a->values, o.stream, &a->host[1]));
    a->indices = a->host[0];
    a->values = a->host[1];
    return DTR_OK;
}

/* ---- issue ---- */

static void describe(dtr__sparse_op *op, const args *a) {
    const dtr_tensor *v = a->values;
    *op = (dtr__sparse_op){ .indices = (const int64_t *)(const void *)a->indices->data,
                            .values = v->data,
                            .dtype = v->dtype,
                            .op = a->op,
                            .row = 1,
                            .out_indices = a->out_indices,
                            .out_values = a->out_values,
                            .device = a->device,
                            .host = { a->host[0], a->host[1] } };
    op->own.nnz = v->shape[0];
    op->own.op = a->op;
    op->own.dtype = v->dtype;
    op->own.n_rows = a->n_rows;
    op->own.tag_word = a->tag_word;
    op->own.rows.ndim = v->ndim - 1;
    for (int d = 1; d < v->ndim; d++) {
        op->own.rows.shape[d - 1] = v->shape[d];
        op->row *= (size_t)v->shape[d];
    }
}

/* As every asynchronous call: the engine and the caller each have a reference. */
static dtr_status start(dtr__tensor_call *t, const args *a, dtr__call *c, dtr_work **work) {
    dtr_group *g = t->group;
    dtr__sparse_op asked;
    describe(&asked, a);
    dtr__call_site_take(c, t->r.return_address);
    snprintf(asked.own.site, sizeof(asked.own.site), "%s", dtr__call_site_cached(c));
    c->kind = DTR__K_SPARSE_ALLREDUCE;
    c->dtype = a->values->dtype;
    c->op = a->op;
    c->in = a->values->data;
    c->out = NULL;
    c->in_count = a->values->numel;
    c->out_count = 0;
    c->fingerprint = dtr__mix(0, DTR__K_SPARSE_ALLREDUCE); /* the heads tell what must agree */
    dtr__sparse_op *op = dtr__sparse_new(g, &asked);
    DTR_REFUSE_IF(op == NULL, t, DTR_ERR_NOMEM, "out of memory for the operation");
    dtr_status s = dtr__composite_issue(g, c, &dtr__backend_sparse, &op->staged.composite,
                                        asked.own.site, work);
    if (s < 0) {
        op->staged.composite.free(&op->staged.composite);
    }
    return s;
}

static dtr_status check_and_start(dtr_group *group, args *a, const dtr_coll_options *options,
                                  dtr_work **work, void *return_address) {
    dtr__tensor_call c = { .entry = ENTRY,
                           .group = group,
                           .r = { .options = options, .return_address = return_address } };
    dtr__call call;
    dtr_work *own = NULL;
    dtr_status s = dtr__tensor_begin(group, ENTRY, work);
    if (s == DTR_OK) {
        s = check(&c, a, work == NULL, &call);
    }
    if (s == DTR_OK) {
        s = stage(&c, a);
    }
    if (s == DTR_OK) {
        s = check_rows(&c, a);
    }
    if (s != DTR_OK) {
        dtr__call_site_drop();
        return s;
    }
    DTR_TRY(start(&c, a, &call, work != NULL ? work : &own));
    if (work != NULL) {
        return DTR_OK;
    }
    dtr__work_block(own);
    s = dtr__work_result(own);
    dtr__work_unref(own);
    return s;
}

static dtr_status sparse_allreduce(dtr_group *group, args a, const dtr_coll_options *options,
                                   dtr_work **work, void *return_address) {
    dtr_status s = check_and_start(group, &a, options, work, return_address);
    dtr_tensor_release(a.host[0]);
    dtr_tensor_release(a.host[1]);
    return s;
}

dtr_status dtr_sparse_allreduce(dtr_group *group, dtr_tensor *indices, dtr_tensor *values,
                                int64_t n_rows, dtr_op op, const dtr_coll_options *options,
                                dtr_tensor **out_indices, dtr_tensor **out_values,
                                dtr_work **work) {
    const args a = { indices, values, n_rows, op, 0, out_indices, out_values, { 0 }, { 0 } };
    return DTR_TRACED(dtr__group_trace(group), ENTRY, group->name,
                      sparse_allreduce(group, a, options, work, __builtin_return_address(0)));
}

dtr_status dtr__sparse_allreduce(dtr_group *group, dtr_tensor *indices, dtr_tensor *values,
                                 int64_t n_rows, dtr_op op, const dtr_coll_options *options,
                                 uint64_t tag_word, dtr_tensor **out_indices,
                                 dtr_tensor **out_values, dtr_work **work) {
    const args a = { indices, values, n_rows, op, tag_word, out_indices, out_values, { 0 }, { 0 } };
    return sparse_allreduce(group, a, options, work, __builtin_return_address(0));
}
