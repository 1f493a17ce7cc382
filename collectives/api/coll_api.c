/* The public calls of dtr/coll.h: each describes what it was given and goes through one entry. */
#include "api/issue.h"
#include "api_internal.h"
#include "core/call.h"
#include "core/call_site.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "failure/notify.h"
#include "group/groups.h"

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

dtr_status dtr_scan(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                    const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_SCAN, in, out, options);
    r.op = op;
    return issue(group, &r, work);
}

dtr_status dtr_exscan(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                      const dtr_coll_options *options, dtr_work **work) {
    REQUEST(r, DTR__K_EXSCAN, in, out, options);
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

static dtr_status node_barrier(dtr_world *world, void *return_address) {
    REQUEST(r, DTR__K_BARRIER, none, none, NULL);
    r.return_address = return_address;
    dtr_group *node = NULL;
    dtr_status s = dtr__world_check(world);
    s = s == DTR_OK ? dtr__group_of_node(world, &node) : s;
    if (s != DTR_OK) {
        dtr__call_site_drop();
        return s;
    }
    /* A backend that sends messages orders nothing but them. */
    atomic_thread_fence(memory_order_release);
    s = dtr__coll_issue(node, &r, NULL);
    atomic_thread_fence(memory_order_acquire);
    return s;
}

dtr_status dtr_node_barrier(dtr_world *world) {
    return DTR_TRACED(dtr__trace_of(world), "dtr_node_barrier", "", node_barrier(world, HERE));
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

dtr_status dtr__may_block_in(dtr_group *g, const char *entry, const char *operation) {
    dtr_status s = dtr__group_check(g, entry);
    if (s != DTR_OK) {
        return s;
    }
    dtr__error_context ctx = { g->world, operation, g->name };
    dtr__notifier_visit(g->world);
    if (atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
        return dtr__group_broken(g);
    }
    DTR_TRY(dtr__group_closing(g, entry));
    DTR_TRY(dtr__scope_refuse(g, entry));
    DTR_REQUIRE(!dtr__in_callback(g->world), &ctx, DTR_ERR_STATE,
                "%s on group '%s' blocks, and this thread is inside a completion callback of the "
                "same world",
                entry, g->name);
    return DTR_OK;
}

dtr_status dtr__may_block(dtr_group *g, dtr__kind kind) {
    return dtr__may_block_in(g, dtr__kind_entry(kind), dtr__kind_name(kind));
}
