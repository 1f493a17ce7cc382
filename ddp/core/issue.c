/* Collectives of a module: label, deadline, tag word and stream are the same for all of them. */
#include "api/issue.h"
#include "ddp_internal.h"
#include "group/groups.h"

uint64_t dtr__ddp_tag(const dtr_ddp *ddp, uint64_t part) {
    return (uint64_t)ddp->id << 48 | (ddp->it.number & UINT32_MAX) << 16 | (part & 0xffff);
}

dtr_coll_options dtr__ddp_options(const dtr_ddp *ddp, const char *label) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = ddp->set.timeout_s;
    o.label = label;
    return o;
}

/* Part of what the ranks compare: a sum, because the group of delayed parameters has its place at
 * another time on each rank. */
static void count_issued(dtr_ddp *ddp, const dtr__request *r, const char *label) {
    const uint64_t what[] = { (uint64_t)r->kind, (uint64_t)r->in.dtype, r->in.count };
    uint64_t h = dtr__hash_bytes(DTR__HASH_START, what, sizeof what);
    atomic_fetch_add(&ddp->it.check.issued, dtr__hash_bytes(h, label, strlen(label)));
}

dtr_status dtr__ddp_issue_on(dtr_ddp *ddp, dtr_group *group, dtr__request *r, const char *label,
                             dtr_work **work) {
    dtr_coll_options o = dtr__ddp_options(ddp, label);
    o.stream = r->in.device.type != DTR_CPU ? ddp->at.stream : NULL;
    if (DTR__DDP_CHECKS) {
        count_issued(ddp, r, label);
    }
    r->options = &o;
    r->return_address = __builtin_return_address(0);
    return dtr__coll_issue(group, r, work);
}

dtr_status dtr__ddp_issue(dtr_ddp *ddp, dtr__request *r, const char *label, uint64_t part,
                          dtr_work **work) {
    r->tag_word = dtr__ddp_tag(ddp, part);
    return dtr__ddp_issue_on(ddp, ddp->group, r, label, work);
}

dtr__request dtr__ddp_average(const dtr_ddp *ddp, dtr_buffer buffer) {
    return (dtr__request){ .kind = DTR__K_ALLREDUCE,
                           .op = dtr__ddp_op(ddp),
                           .divisor = ddp->it.divisor,
                           .root = -1,
                           .in = buffer,
                           .out = buffer };
}

dtr_status dtr__ddp_gather(dtr_ddp *ddp, const void *mine, void *all, size_t nbytes,
                           const char *label, uint64_t part) {
    dtr__request r = { .kind = DTR__K_ALLGATHER,
                       .root = -1,
                       .in = dtr_cpu((void *)(uintptr_t)mine, nbytes, DTR_U8),
                       .out = dtr_cpu(all, nbytes * (size_t)ddp->size, DTR_U8) };
    return dtr__ddp_issue(ddp, &r, label, part, NULL);
}

dtr_status dtr__ddp_dup(dtr_ddp *ddp, const char *suffix, dtr_group **group) {
    char name[64];
    snprintf(name, sizeof name, "%.50s.%s", ddp->group->name, suffix);
    DTR_TRY(dtr__group_dup(ddp->group, name, group));
    (*group)->asked.nan_check = -1;
    if (ddp->set.timeout_s > 0) {
        dtr__group_set_limits(*group, ddp->set.timeout_s, (*group)->timeout_cuda_s);
    }
    return DTR_OK;
}
