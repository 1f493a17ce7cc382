/* Collectives on one input and one output tensor. */
#include "tensor_coll.h"

#define HERE __builtin_return_address(0)

/* ---- shapes ---- */

static bool same_rows(const dtr_tensor *a, int a_from, const dtr_tensor *b, int b_from) {
    if (a->ndim - a_from != b->ndim - b_from) {
        return false;
    }
    for (int d = a_from; d < a->ndim; d++) {
        if (a->shape[d] != b->shape[d - a_from + b_from]) {
            return false;
        }
    }
    return true;
}

/* `big` holds one `small` per rank, concatenated along dimension 0 or stacked. */
static dtr_status check_blocks(const dtr__tensor_call *c, const dtr__side *big,
                               const dtr__side *small) {
    if (big->n == 0 || small->n == 0) {
        return DTR_OK; /* rooted, and not the root */
    }
    const dtr_tensor *b = big->part[0], *s = small->part[0];
    int64_t n = c->group->size, rows = 0;
    bool stacked = b->ndim == s->ndim + 1 && b->shape[0] == n && same_rows(b, 1, s, 0);
    bool joined = s->ndim > 0 && b->ndim == s->ndim && same_rows(b, 1, s, 1) &&
                  !__builtin_mul_overflow(s->shape[0], n, &rows) && b->shape[0] == rows;
    char big_text[DTR__SHAPE_TEXT], small_text[DTR__SHAPE_TEXT];
    if (!stacked && !joined) {
        return DTR_REFUSE(
            c, DTR_ERR_SHAPE,
            "%s has shape %s (%zu elements), which is not %lld times %s of shape %s (%zu "
            "elements), neither joined along dimension 0 nor stacked",
            big->name, dtr__shape_text(b->ndim, b->shape, big_text), b->numel, (long long)n,
            small->name, dtr__shape_text(s->ndim, s->shape, small_text), s->numel);
    }
    return DTR_OK;
}

static dtr_status shapes_gather(dtr__tensor_call *c) {
    return check_blocks(c, &c->out, &c->in);
}

static dtr_status shapes_scatter(dtr__tensor_call *c) {
    return check_blocks(c, &c->in, &c->out);
}

static dtr_status check_even_rows(const dtr__tensor_call *c, const dtr__side *s) {
    char text[DTR__SHAPE_TEXT];
    const dtr_tensor *t = s->part[0];
    if (t->ndim == 0 || t->shape[0] % c->group->size != 0) {
        return DTR_REFUSE(c, DTR_ERR_SHAPE,
                          "%s has shape %s; dimension 0 cannot be split evenly over %d ranks",
                          s->name, dtr__shape_text(t->ndim, t->shape, text), c->group->size);
    }
    return DTR_OK;
}

static dtr_status shapes_alltoall(dtr__tensor_call *c) {
    DTR_TRY(check_even_rows(c, &c->in));
    char a[DTR__SHAPE_TEXT], b[DTR__SHAPE_TEXT];
    const dtr_tensor *in = c->in.part[0], *out = c->out.part[0];
    if (!dtr__same_shape(in, out)) {
        return DTR_REFUSE(
            c, DTR_ERR_SHAPE, "in has shape %s, but out has %s; they must be the same",
            dtr__shape_text(in->ndim, in->shape, a), dtr__shape_text(out->ndim, out->shape, b));
    }
    return DTR_OK;
}

/* Rows of dimension 0 per rank to elements per rank. */
static dtr_status row_counts(const dtr__tensor_call *c, const dtr__side *s, const size_t *rows,
                             const char *rows_name, size_t *counts) {
    const dtr_tensor *t = s->part[0];
    size_t n = (size_t)c->group->size, sum = 0, length = (size_t)t->shape[0];
    size_t row = length == 0 ? 0 : t->numel / length;
    if (rows == NULL) {
        DTR_TRY(check_even_rows(c, s));
    }
    for (size_t i = 0; i < n; i++) {
        size_t take = rows != NULL ? rows[i] : length / n;
        if (__builtin_add_overflow(sum, take, &sum)) {
            return DTR_REFUSE(c, DTR_ERR_OVERFLOW, "the sum of %s overflows at entry %zu (%zu)",
                              rows_name, i, take);
        }
        counts[i] = take * row; /* at most numel once the sum is right */
    }
    if (sum != length) {
        return DTR_REFUSE(c, DTR_ERR_SHAPE, "%s add up to %zu rows, but dimension 0 of %s has %zu",
                          rows_name, sum, s->name, length);
    }
    return DTR_OK;
}

static dtr_status shapes_alltoallv(dtr__tensor_call *c) {
    char a[DTR__SHAPE_TEXT], b[DTR__SHAPE_TEXT];
    const dtr_tensor *in = c->in.part[0], *out = c->out.part[0];
    if (in->ndim == 0 || out->ndim == 0 || !same_rows(in, 1, out, 1)) {
        return DTR_REFUSE(c, DTR_ERR_SHAPE,
                          "in has shape %s and out %s; both need a dimension 0 and the same sizes "
                          "after it",
                          dtr__shape_text(in->ndim, in->shape, a),
                          dtr__shape_text(out->ndim, out->shape, b));
    }
    c->r.in_counts = c->counts;
    c->r.out_counts = c->counts + c->group->size;
    DTR_TRY(row_counts(c, &c->in, c->in_rows, "in_rows", c->counts));
    return row_counts(c, &c->out, c->out_rows, "out_rows", c->counts + c->group->size);
}

/* ---- one tensor, in place ---- */

static dtr__tensor_call on_one(const char *entry, dtr__kind kind, dtr_group *group,
                               dtr_tensor *const *tensor, const dtr_coll_options *options,
                               void *from) {
    return (dtr__tensor_call){ .entry = entry,
                               .group = group,
                               .r = { .kind = kind, .options = options, .return_address = from },
                               .in = { .name = "tensor", .part = tensor, .n = 1 },
                               .reads = true,
                               .writes = true };
}

static bool is_root(const dtr_group *group, int root) {
    return root == dtr_group_rank(group);
}

dtr_status dtr_tensor_broadcast(dtr_group *group, dtr_tensor *tensor, int root,
                                const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_one("dtr_tensor_broadcast", DTR__K_BROADCAST, group, &tensor, options, HERE);
    c.r.root = root;
    c.reads = is_root(group, root);
    c.writes = !c.reads;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_reduce(dtr_group *group, dtr_tensor *tensor, dtr_op op, int root,
                             const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c = on_one("dtr_tensor_reduce", DTR__K_REDUCE, group, &tensor, options, HERE);
    c.r.op = op;
    c.r.root = root;
    c.writes = is_root(group, root);
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_allreduce(dtr_group *group, dtr_tensor *tensor, dtr_op op,
                                const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_one("dtr_tensor_allreduce", DTR__K_ALLREDUCE, group, &tensor, options, HERE);
    c.r.op = op;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_send(dtr_group *group, dtr_tensor *tensor, int peer, int tag,
                           const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c = on_one("dtr_tensor_send", DTR__K_SEND, group, &tensor, options, HERE);
    c.r.root = peer;
    c.r.tag = tag;
    c.writes = false;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_recv(dtr_group *group, dtr_tensor *tensor, int peer, int tag,
                           const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c = on_one("dtr_tensor_recv", DTR__K_RECV, group, &tensor, options, HERE);
    c.r.root = peer;
    c.r.tag = tag;
    c.reads = false;
    return dtr__tensor_coll(&c, work);
}

/* ---- one in, one out ---- */

static dtr__tensor_call on_two(const char *entry, dtr__kind kind, dtr_group *group,
                               dtr_tensor *const *in, dtr_tensor *const *out,
                               const dtr_coll_options *options, void *from) {
    return (dtr__tensor_call){ .entry = entry,
                               .group = group,
                               .r = { .kind = kind, .options = options, .return_address = from },
                               .in = { .name = "in", .part = in, .n = 1 },
                               .out = { .name = "out", .part = out, .n = 1 } };
}

dtr_status dtr_tensor_allgather(dtr_group *group, dtr_tensor *in, dtr_tensor *out,
                                const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_two("dtr_tensor_allgather", DTR__K_ALLGATHER, group, &in, &out, options, HERE);
    c.shapes = shapes_gather;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_gather(dtr_group *group, dtr_tensor *in, dtr_tensor *out, int root,
                             const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_two("dtr_tensor_gather", DTR__K_GATHER, group, &in, &out, options, HERE);
    c.r.root = root;
    c.out.at_root = true;
    c.shapes = shapes_gather;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_scatter(dtr_group *group, dtr_tensor *in, dtr_tensor *out, int root,
                              const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_two("dtr_tensor_scatter", DTR__K_SCATTER, group, &in, &out, options, HERE);
    c.r.root = root;
    c.in.at_root = true;
    c.shapes = shapes_scatter;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_reduce_scatter(dtr_group *group, dtr_tensor *in, dtr_tensor *out, dtr_op op,
                                     const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_two("dtr_tensor_reduce_scatter", DTR__K_REDUCE_SCATTER, group, &in, &out, options, HERE);
    c.r.op = op;
    c.shapes = shapes_scatter;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_alltoall(dtr_group *group, dtr_tensor *in, dtr_tensor *out,
                               const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_two("dtr_tensor_alltoall", DTR__K_ALLTOALL, group, &in, &out, options, HERE);
    c.shapes = shapes_alltoall;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_alltoallv(dtr_group *group, dtr_tensor *in, const size_t *in_rows,
                                dtr_tensor *out, const size_t *out_rows,
                                const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_two("dtr_tensor_alltoallv", DTR__K_ALLTOALLV, group, &in, &out, options, HERE);
    c.in_rows = in_rows;
    c.out_rows = out_rows;
    c.shapes = shapes_alltoallv;
    return dtr__tensor_coll(&c, work);
}
