/* The public calls of dtr/coll.h: each describes what it was given and goes through one entry. */
#define DTR_NO_CALL_SITE
#include "coll_internal.h"

#define HERE __builtin_return_address(0)

/* Every field is spelled out: clearing the whole first costs as much as a small call's checks. */
#define REQUEST(r, kind_, in_, out_, options_) \
    dtr__request r;                            \
    r.kind = (kind_);                          \
    r.op = DTR_SUM;                            \
    r.root = r.tag = 0;                        \
    r.in = (in_);                              \
    r.out = (out_);                            \
    r.in_counts = r.out_counts = NULL;         \
    r.batch = NULL;                            \
    r.n_batch = 0;                             \
    r.options = (options_);                    \
    r.tag_word = 0;                            \
    r.divisor = 0;                             \
    r.finish = NULL;                           \
    r.name = NULL;                             \
    r.touched = NULL;                          \
    r.n_touched = 0;                           \
    r.return_address = HERE

static const dtr_buffer none;

static inline dtr_status issue(dtr_group *group, const dtr__request *r, dtr_work **work) {
    return DTR_TRACED(dtr__group_trace(group), dtr__kind_entry(r->kind), group->name,
                      dtr__coll_issue(group, r, work));
}

dtr_status dtr_broadcast(dtr_group *group, dtr_buffer buf, int root,
                         const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_BROADCAST, buf, none, options);
    r.root = root;
    return issue(group, &r, work);
}

dtr_status dtr_reduce(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op, int root,
                      const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_REDUCE, in, out, options);
    r.op = op;
    r.root = root;
    return issue(group, &r, work);
}

dtr_status dtr_allreduce(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                         const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_ALLREDUCE, in, out, options);
    r.op = op;
    return issue(group, &r, work);
}

dtr_status dtr_allgather(dtr_group *group, dtr_buffer in, dtr_buffer out,
                         const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_ALLGATHER, in, out, options);
    return issue(group, &r, work);
}

dtr_status dtr_allgatherv(dtr_group *group, dtr_buffer in, dtr_buffer out, const size_t *counts,
                          const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_ALLGATHERV, in, out, options);
    r.out_counts = counts;
    return issue(group, &r, work);
}

dtr_status dtr_gather(dtr_group *group, dtr_buffer in, dtr_buffer out, int root,
                      const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_GATHER, in, out, options);
    r.root = root;
    return issue(group, &r, work);
}

dtr_status dtr_gatherv(dtr_group *group, dtr_buffer in, dtr_buffer out, const size_t *counts,
                       int root, const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_GATHERV, in, out, options);
    r.root = root;
    r.out_counts = counts;
    return issue(group, &r, work);
}

dtr_status dtr_scatter(dtr_group *group, dtr_buffer in, dtr_buffer out, int root,
                       const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_SCATTER, in, out, options);
    r.root = root;
    return issue(group, &r, work);
}

dtr_status dtr_scatterv(dtr_group *group, dtr_buffer in, const size_t *counts, dtr_buffer out,
                        int root, const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_SCATTERV, in, out, options);
    r.root = root;
    r.in_counts = counts;
    return issue(group, &r, work);
}

dtr_status dtr_reduce_scatter(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                              const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_REDUCE_SCATTER, in, out, options);
    r.op = op;
    return issue(group, &r, work);
}

dtr_status dtr_reduce_scatterv(dtr_group *group, dtr_buffer in, const size_t *counts,
                               dtr_buffer out, dtr_op op, const dtr_coll_options *options,
                               dtr_work **work) {
    REQUEST(r, DTR__K_REDUCE_SCATTERV, in, out, options);
    r.op = op;
    r.in_counts = counts;
    return issue(group, &r, work);
}

dtr_status dtr_alltoall(dtr_group *group, dtr_buffer in, dtr_buffer out,
                        const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_ALLTOALL, in, out, options);
    return issue(group, &r, work);
}

dtr_status dtr_alltoallv(dtr_group *group, dtr_buffer in, const size_t *in_counts, dtr_buffer out,
                         const size_t *out_counts, const dtr_coll_options *options,
                         dtr_work **work) {
    REQUEST(r, DTR__K_ALLTOALLV, in, out, options);
    r.in_counts = in_counts;
    r.out_counts = out_counts;
    return issue(group, &r, work);
}

dtr_status dtr_barrier(dtr_group *group, const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_BARRIER, none, none, options);
    return issue(group, &r, work);
}

dtr_status dtr_send(dtr_group *group, dtr_buffer buf, int peer, int tag,
                    const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_SEND, buf, none, options);
    r.root = peer;
    r.tag = tag;
    return issue(group, &r, work);
}

dtr_status dtr_recv(dtr_group *group, dtr_buffer buf, int peer, int tag,
                    const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_RECV, buf, none, options);
    r.root = peer;
    r.tag = tag;
    return issue(group, &r, work);
}

dtr_status dtr_batch_p2p(dtr_group *group, const dtr_p2p *ops, size_t n,
                         const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_BATCH, none, none, options);
    r.batch = ops;
    r.n_batch = n;
    return issue(group, &r, work);
}
