/* The collectives on tensors: what each of them says about its shapes, and the public calls. */
#include "core/team.h"
#include "tensor_coll.h"

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
    DTR_REFUSE_IF(!stacked && !joined, c, DTR_ERR_SHAPE,
                  "%s has shape %s (%zu elements), which is not %lld times %s of shape %s (%zu "
                  "elements), neither joined along dimension 0 nor stacked",
                  big->name, dtr__shape_text(b->ndim, b->shape, big_text), b->numel, (long long)n,
                  small->name, dtr__shape_text(s->ndim, s->shape, small_text), s->numel);
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
    DTR_REFUSE_IF(t->ndim == 0 || t->shape[0] % c->group->size != 0, c, DTR_ERR_SHAPE,
                  "%s has shape %s; dimension 0 cannot be split evenly over %d ranks", s->name,
                  dtr__shape_text(t->ndim, t->shape, text), c->group->size);
    return DTR_OK;
}

static dtr_status shapes_alltoall(dtr__tensor_call *c) {
    DTR_TRY(check_even_rows(c, &c->in));
    char a[DTR__SHAPE_TEXT], b[DTR__SHAPE_TEXT];
    const dtr_tensor *in = c->in.part[0], *out = c->out.part[0];
    DTR_REFUSE_IF(!dtr__same_shape(in, out), c, DTR_ERR_SHAPE,
                  "in has shape %s, but out has %s; they must be the same",
                  dtr__shape_text(in->ndim, in->shape, a),
                  dtr__shape_text(out->ndim, out->shape, b));
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
        DTR_REFUSE_IF(__builtin_add_overflow(sum, take, &sum), c, DTR_ERR_OVERFLOW,
                      "the sum of %s overflows at entry %zu (%zu)", rows_name, i, take);
        counts[i] = take * row; /* at most numel once the sum is right */
    }
    DTR_REFUSE_IF(sum != length, c, DTR_ERR_SHAPE,
                  "%s add up to %zu rows, but dimension 0 of %s has %zu", rows_name, sum, s->name,
                  length);
    return DTR_OK;
}

static dtr_status shapes_alltoallv(dtr__tensor_call *c) {
    char a[DTR__SHAPE_TEXT], b[DTR__SHAPE_TEXT];
    const dtr_tensor *in = c->in.part[0], *out = c->out.part[0];
    DTR_REFUSE_IF(in->ndim == 0 || out->ndim == 0 || !same_rows(in, 1, out, 1), c, DTR_ERR_SHAPE,
                  "in has shape %s and out %s; both need a dimension 0 and the same sizes "
                  "after it",
                  dtr__shape_text(in->ndim, in->shape, a),
                  dtr__shape_text(out->ndim, out->shape, b));
    c->r.in_counts = c->counts;
    c->r.out_counts = c->counts + c->group->size;
    DTR_TRY(row_counts(c, &c->in, c->in_rows, "in_rows", c->counts));
    return row_counts(c, &c->out, c->out_rows, "out_rows", c->counts + c->group->size);
}

/* ---- shapes of lists of one tensor per rank ---- */

static void list_counts(const dtr__side *s, size_t *counts) {
    for (size_t i = 0; i < s->n; i++) {
        counts[i] = s->part[i]->numel;
    }
}

/* The list's entry of this rank has the shape of the single tensor. */
static dtr_status check_own(const dtr__tensor_call *c, const dtr__side *list,
                            const dtr__side *single) {
    char a[DTR__SHAPE_TEXT], b[DTR__SHAPE_TEXT];
    if (list->n == 0) {
        return DTR_OK; /* rooted, and not the root */
    }
    const dtr_tensor *own = list->part[c->group->rank], *t = single->part[0];
    DTR_REFUSE_IF(!dtr__same_shape(own, t), c, DTR_ERR_SHAPE,
                  "%s[%d], this rank's entry, has shape %s, but %s has %s; they must be the "
                  "same",
                  list->name, c->group->rank, dtr__shape_text(own->ndim, own->shape, a),
                  single->name, dtr__shape_text(t->ndim, t->shape, b));
    return DTR_OK;
}

static dtr_status shapes_out_list(dtr__tensor_call *c) {
    list_counts(&c->out, c->counts);
    c->r.out_counts = c->out.n > 0 ? c->counts : NULL;
    return check_own(c, &c->out, &c->in);
}

static dtr_status shapes_in_list(dtr__tensor_call *c) {
    list_counts(&c->in, c->counts);
    c->r.in_counts = c->in.n > 0 ? c->counts : NULL;
    return check_own(c, &c->in, &c->out);
}

static dtr_status shapes_lists(dtr__tensor_call *c) {
    size_t n = (size_t)c->group->size;
    list_counts(&c->in, c->counts);
    list_counts(&c->out, c->counts + n);
    c->r.in_counts = c->counts;
    c->r.out_counts = c->counts + n;
    return DTR_OK;
}

/* ---- the calls ---- */

static size_t n_ranks(const dtr_group *group) {
    int n = dtr_group_size(group);
    return n > 0 ? (size_t)n : 0;
}

#define ONE(tensor) \
    { #tensor, &(tensor), 1, false, false }
#define AT_ROOT(tensor) \
    { #tensor, &(tensor), 1, false, true }
#define LIST(tensors) \
    { #tensors, tensors, n_ranks(group), true, false }
#define LIST_AT_ROOT(tensors) \
    { #tensors, tensors, n_ranks(group), true, true }

/* The call in whose function it stands, of a kind, with what else is to be set of it. */
#define CALL(of_kind, ...)                                                                 \
    dtr__tensor_coll(&(dtr__tensor_call){ .entry = __func__,                               \
                                          .group = group,                                  \
                                          .r.kind = (of_kind),                             \
                                          .r.options = options,                            \
                                          .r.return_address = __builtin_return_address(0), \
                                          __VA_ARGS__ },                                   \
                     work)

dtr_status dtr_tensor_broadcast(dtr_group *group, dtr_tensor *tensor, int root,
                                const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_BROADCAST, .in = ONE(tensor), .reads = root == dtr_group_rank(group),
                .writes = root != dtr_group_rank(group), .r.root = root);
}

dtr_status dtr_tensor_reduce(dtr_group *group, dtr_tensor *tensor, dtr_op op, int root,
                             const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_REDUCE, .in = ONE(tensor), .reads = true,
                .writes = root == dtr_group_rank(group), .r.op = op, .r.root = root);
}

dtr_status dtr_tensor_allreduce(dtr_group *group, dtr_tensor *tensor, dtr_op op,
                                const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_ALLREDUCE, .in = ONE(tensor), .reads = true, .writes = true, .r.op = op);
}

dtr_status dtr_tensor_send(dtr_group *group, dtr_tensor *tensor, int peer, int tag,
                           const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_SEND, .in = ONE(tensor), .reads = true, .r.root = peer, .r.tag = tag);
}

dtr_status dtr_tensor_recv(dtr_group *group, dtr_tensor *tensor, int peer, int tag,
                           const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_RECV, .in = ONE(tensor), .writes = true, .r.root = peer, .r.tag = tag);
}

dtr_status dtr_tensor_allgather(dtr_group *group, dtr_tensor *in, dtr_tensor *out,
                                const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_ALLGATHER, .in = ONE(in), .out = ONE(out), .shapes = shapes_gather);
}

dtr_status dtr_tensor_gather(dtr_group *group, dtr_tensor *in, dtr_tensor *out, int root,
                             const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_GATHER, .in = ONE(in), .out = AT_ROOT(out), .r.root = root,
                .shapes = shapes_gather);
}

dtr_status dtr_tensor_scatter(dtr_group *group, dtr_tensor *in, dtr_tensor *out, int root,
                              const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_SCATTER, .in = AT_ROOT(in), .out = ONE(out), .r.root = root,
                .shapes = shapes_scatter);
}

dtr_status dtr_tensor_reduce_scatter(dtr_group *group, dtr_tensor *in, dtr_tensor *out, dtr_op op,
                                     const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_REDUCE_SCATTER, .in = ONE(in), .out = ONE(out), .r.op = op,
                .shapes = shapes_scatter);
}

dtr_status dtr_tensor_alltoall(dtr_group *group, dtr_tensor *in, dtr_tensor *out,
                               const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_ALLTOALL, .in = ONE(in), .out = ONE(out), .shapes = shapes_alltoall);
}

dtr_status dtr_tensor_alltoallv(dtr_group *group, dtr_tensor *in, const size_t *in_rows,
                                dtr_tensor *out, const size_t *out_rows,
                                const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_ALLTOALLV, .in = ONE(in), .out = ONE(out), .in_rows = in_rows,
                .out_rows = out_rows, .shapes = shapes_alltoallv);
}

dtr_status dtr_tensor_allgather_list(dtr_group *group, dtr_tensor *in, dtr_tensor *const *outs,
                                     const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_ALLGATHERV, .in = ONE(in), .out = LIST(outs), .shapes = shapes_out_list);
}

dtr_status dtr_tensor_gather_list(dtr_group *group, dtr_tensor *in, dtr_tensor *const *outs,
                                  int root, const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_GATHERV, .in = ONE(in), .out = LIST_AT_ROOT(outs), .r.root = root,
                .shapes = shapes_out_list);
}

dtr_status dtr_tensor_scatter_list(dtr_group *group, dtr_tensor *const *ins, dtr_tensor *out,
                                   int root, const dtr_coll_options *options, dtr_work **work) {
    return CALL(DTR__K_SCATTERV, .in = LIST_AT_ROOT(ins), .out = ONE(out), .r.root = root,
                .shapes = shapes_in_list);
}

dtr_status dtr_tensor_reduce_scatter_list(dtr_group *group, dtr_tensor *const *ins, dtr_tensor *out,
                                          dtr_op op, const dtr_coll_options *options,
                                          dtr_work **work) {
    return CALL(DTR__K_REDUCE_SCATTERV, .in = LIST(ins), .out = ONE(out), .r.op = op,
                .shapes = shapes_in_list);
}

dtr_status dtr_tensor_alltoall_list(dtr_group *group, dtr_tensor *const *ins,
                                    dtr_tensor *const *outs, const dtr_coll_options *options,
                                    dtr_work **work) {
    return CALL(DTR__K_ALLTOALLV, .in = LIST(ins), .out = LIST(outs), .shapes = shapes_lists);
}
