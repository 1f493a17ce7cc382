/* Collectives on lists of tensors, one per rank, that may differ in size. */
#include "tensor_coll.h"

#define HERE __builtin_return_address(0)

/* ---- lists of one tensor per rank ---- */

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
    if (!dtr__same_shape(own, t)) {
        return DTR_REFUSE(
            c, DTR_ERR_SHAPE,
            "%s[%d], this rank's entry, has shape %s, but %s has %s; they must be the "
            "same",
            list->name, c->group->rank, dtr__shape_text(own->ndim, own->shape, a), single->name,
            dtr__shape_text(t->ndim, t->shape, b));
    }
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

static dtr__side one_tensor(const char *name, dtr_tensor *const *tensor) {
    return (dtr__side){ .name = name, .part = tensor, .n = 1 };
}

static dtr__side list_of(const char *name, dtr_tensor *const *list, const dtr_group *group) {
    int n = dtr_group_size(group);
    return (dtr__side){ .name = name, .part = list, .n = n > 0 ? (size_t)n : 0, .list = true };
}

static dtr__tensor_call on_list(const char *entry, dtr__kind kind, dtr_group *group, dtr__side in,
                                dtr__side out, const dtr_coll_options *options, void *from) {
    return (dtr__tensor_call){ .entry = entry,
                               .group = group,
                               .r = { .kind = kind, .options = options, .return_address = from },
                               .in = in,
                               .out = out };
}

dtr_status dtr_tensor_allgather_list(dtr_group *group, dtr_tensor *in, dtr_tensor *const *outs,
                                     const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_list("dtr_tensor_allgather_list", DTR__K_ALLGATHERV, group, one_tensor("in", &in),
                list_of("outs", outs, group), options, HERE);
    c.shapes = shapes_out_list;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_gather_list(dtr_group *group, dtr_tensor *in, dtr_tensor *const *outs,
                                  int root, const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_list("dtr_tensor_gather_list", DTR__K_GATHERV, group, one_tensor("in", &in),
                list_of("outs", outs, group), options, HERE);
    c.r.root = root;
    c.out.at_root = true;
    c.shapes = shapes_out_list;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_scatter_list(dtr_group *group, dtr_tensor *const *ins, dtr_tensor *out,
                                   int root, const dtr_coll_options *options, dtr_work **work) {
    dtr__tensor_call c =
        on_list("dtr_tensor_scatter_list", DTR__K_SCATTERV, group, list_of("ins", ins, group),
                one_tensor("out", &out), options, HERE);
    c.r.root = root;
    c.in.at_root = true;
    c.shapes = shapes_in_list;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_reduce_scatter_list(dtr_group *group, dtr_tensor *const *ins, dtr_tensor *out,
                                          dtr_op op, const dtr_coll_options *options,
                                          dtr_work **work) {
    dtr__tensor_call c =
        on_list("dtr_tensor_reduce_scatter_list", DTR__K_REDUCE_SCATTERV, group,
                list_of("ins", ins, group), one_tensor("out", &out), options, HERE);
    c.r.op = op;
    c.shapes = shapes_in_list;
    return dtr__tensor_coll(&c, work);
}

dtr_status dtr_tensor_alltoall_list(dtr_group *group, dtr_tensor *const *ins,
                                    dtr_tensor *const *outs, const dtr_coll_options *options,
                                    dtr_work **work) {
    dtr__tensor_call c =
        on_list("dtr_tensor_alltoall_list", DTR__K_ALLTOALLV, group, list_of("ins", ins, group),
                list_of("outs", outs, group), options, HERE);
    c.shapes = shapes_lists;
    return dtr__tensor_coll(&c, work);
}
