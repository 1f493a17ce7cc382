/* The public calls of dtr/coll.h: each describes what it was given and goes through one entry. */
#define DTR_NO_CALL_SITE
#include "coll_internal.h"

#define HERE __builtin_return_address(0)

dtr_status dtr_broadcast(dtr_group *group, dtr_buffer buf, int root,
                         const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_BROADCAST,
                       .root = root,
                       .in = buf,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_reduce(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op, int root,
                      const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_REDUCE,
                       .op = op,
                       .root = root,
                       .in = in,
                       .out = out,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_allreduce(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                         const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_ALLREDUCE,
                       .op = op,
                       .in = in,
                       .out = out,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_allgather(dtr_group *group, dtr_buffer in, dtr_buffer out,
                         const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = {
        .kind = DTR__K_ALLGATHER, .in = in, .out = out, .options = options, .return_address = HERE
    };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_allgatherv(dtr_group *group, dtr_buffer in, dtr_buffer out, const size_t *counts,
                          const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_ALLGATHERV,
                       .in = in,
                       .out = out,
                       .out_counts = counts,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_gather(dtr_group *group, dtr_buffer in, dtr_buffer out, int root,
                      const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_GATHER,
                       .root = root,
                       .in = in,
                       .out = out,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_gatherv(dtr_group *group, dtr_buffer in, dtr_buffer out, const size_t *counts,
                       int root, const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_GATHERV,
                       .root = root,
                       .in = in,
                       .out = out,
                       .out_counts = counts,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_scatter(dtr_group *group, dtr_buffer in, dtr_buffer out, int root,
                       const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_SCATTER,
                       .root = root,
                       .in = in,
                       .out = out,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_scatterv(dtr_group *group, dtr_buffer in, const size_t *counts, dtr_buffer out,
                        int root, const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_SCATTERV,
                       .root = root,
                       .in = in,
                       .in_counts = counts,
                       .out = out,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_reduce_scatter(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                              const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_REDUCE_SCATTER,
                       .op = op,
                       .in = in,
                       .out = out,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_reduce_scatterv(dtr_group *group, dtr_buffer in, const size_t *counts,
                               dtr_buffer out, dtr_op op, const dtr_coll_options *options,
                               dtr_work **work) {
    dtr__request r = { .kind = DTR__K_REDUCE_SCATTERV,
                       .op = op,
                       .in = in,
                       .in_counts = counts,
                       .out = out,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_alltoall(dtr_group *group, dtr_buffer in, dtr_buffer out,
                        const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = {
        .kind = DTR__K_ALLTOALL, .in = in, .out = out, .options = options, .return_address = HERE
    };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_alltoallv(dtr_group *group, dtr_buffer in, const size_t *in_counts, dtr_buffer out,
                         const size_t *out_counts, const dtr_coll_options *options,
                         dtr_work **work) {
    dtr__request r = { .kind = DTR__K_ALLTOALLV,
                       .in = in,
                       .in_counts = in_counts,
                       .out = out,
                       .out_counts = out_counts,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_barrier(dtr_group *group, const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_BARRIER, .options = options, .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_send(dtr_group *group, dtr_buffer buf, int peer, int tag,
                    const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_SEND,
                       .root = peer,
                       .tag = tag,
                       .in = buf,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_recv(dtr_group *group, dtr_buffer buf, int peer, int tag,
                    const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = { .kind = DTR__K_RECV,
                       .root = peer,
                       .tag = tag,
                       .in = buf,
                       .options = options,
                       .return_address = HERE };
    return dtr__coll_issue(group, &r, work);
}

dtr_status dtr_batch_p2p(dtr_group *group, const dtr_p2p *ops, size_t n,
                         const dtr_coll_options *options, dtr_work **work) {
    dtr__request r = {
        .kind = DTR__K_BATCH, .batch = ops, .n_batch = n, .options = options, .return_address = HERE
    };
    return dtr__coll_issue(group, &r, work);
}
