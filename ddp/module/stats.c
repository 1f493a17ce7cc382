/* What a module reports of itself to the program. */
#include "module.h"

static dtr_ddp_stats snapshot(const dtr_ddp *ddp) {
    const dtr__ddp_counters *c = &ddp->stats.count;
    return (dtr_ddp_stats){
        .steps = c->steps,
        .local_steps = c->local_steps,
        .forwards = c->forwards,
        .rebuilds = c->rebuilds,
        .shadow_steps = c->shadow_steps,
        .errors = c->errors,
        .buckets = ddp->n_buckets,
        .unused_bytes = c->unused_bytes,
        .last = c->last,
        .average = c->average,
        .can_set_static_graph = c->steps > 0 && ddp->reducer->used_set_constant,
        .has_error = c->has_error,
        .hook = ddp->hook != NULL ? ddp->hook->name : "",
        .error = c->error,
        .description = ddp->stats.description != NULL ? ddp->stats.description : "",
        .copied_in_bytes = c->copied_in_bytes,
        .copied_out_bytes = c->copied_out_bytes,
        .timed_steps = c->timed,
        .bucket_memory =
            ddp->gpu != NULL && ddp->gpu->registration != NULL ? ddp->gpu->registration : "",
    };
}

dtr_status dtr_ddp_get_stats(const dtr_ddp *ddp, dtr_ddp_stats *stats) {
    DTR_TRY(dtr__fork_check("dtr_ddp_get_stats"));
    DTR_REQUIRE(ddp != NULL && ddp->magic == DTR__DDP_MAGIC, NULL, DTR_ERR_ARG,
                "dtr_ddp_get_stats: ddp is %s", ddp == NULL ? "NULL" : "no module");
    DTR_REQUIRE(stats != NULL, NULL, DTR_ERR_ARG, "dtr_ddp_get_stats: stats is NULL");
    DTR_REQUIRE(stats->struct_size >= sizeof stats->struct_size, NULL, DTR_ERR_ARG,
                "dtr_ddp_get_stats: stats->struct_size is %zu; initialise the struct with "
                "DTR_DDP_STATS_INIT",
                stats->struct_size);
    dtr_ddp *d = (dtr_ddp *)(uintptr_t)ddp; /* the lock is no part of what is read */
    dtr__ddp_timing_collect(d);
    pthread_mutex_lock(&d->stats.lock);
    dtr_ddp_stats all = snapshot(ddp);
    pthread_mutex_unlock(&d->stats.lock);
    size_t given = stats->struct_size;
    all.struct_size = given;
    memset(stats, 0, given);
    memcpy(stats, &all, given < sizeof all ? given : sizeof all);
    return DTR_OK;
}

const dtr_plan *dtr_ddp_plan(const dtr_ddp *ddp) {
    return ddp != NULL && ddp->magic == DTR__DDP_MAGIC ? ddp->plan : NULL;
}
