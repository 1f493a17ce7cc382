/* The portable form of a sharded state: whole tensors, one per parameter. */
#include <stdlib.h>

#include "core/call.h"
#include "core/call_site.h"
#include "device/device.h"
#include "zero.h"
#include "zero_file.h"

/* Where the parameters are. On a device copies take whole stretches. */
static dtr_status check_place(const dtr_ddp *ddp, const char *entry, const dtr_tensor *full,
                              size_t i) {
    const dtr__ddp_param *p = &ddp->params[i];
    if (!dtr__ddp_on_device(ddp)) {
        return dtr__tensor_check_cpu(full, "full");
    }
    DTR_TRY(dtr__tensor_check(full, "full"));
    DTR_REQUIRE(full->device.type == DTR_CUDA && full->device.index == ddp->at.device, NULL,
                DTR_ERR_DEVICE,
                "%s: the module's parameters are on cuda:%d, full[%zu] for '%s' is elsewhere",
                entry, ddp->at.device, i, p->name);
    return DTR_OK;
}

static dtr_status check_layout(const dtr_ddp *ddp, const char *entry, const dtr_tensor *full,
                               size_t i) {
    const dtr__ddp_param *p = &ddp->params[i];
    DTR_REQUIRE(!dtr__ddp_on_device(ddp) || dtr__zero_stretch(full, p->slot, 0) != NULL ||
                    full->numel == 0,
                NULL, DTR_ERR_UNSUPPORTED,
                "%s: full[%zu] for '%s' is on a CUDA device and lies otherwise than the parameter; "
                "give one with its strides, without gaps",
                entry, i, p->name);
    return DTR_OK;
}

static dtr_status check(const dtr_zero *z, const char *entry, const dtr_zero_state *st,
                        dtr_tensor *const *full, size_t n) {
    const dtr_ddp *ddp = z->ddp;
    DTR_REQUIRE(st != NULL && full != NULL, NULL, DTR_ERR_ARG, "%s: %s is NULL", entry,
                st == NULL ? "state" : "full");
    DTR_REQUIRE(n == ddp->n, NULL, DTR_ERR_ARG,
                "%s: n is %zu: give one tensor, or NULL, for each of the %zu parameters", entry, n,
                ddp->n);
    size_t want = dtr_zero_shard_count(z, st->param_dtype);
    DTR_REQUIRE(st->data.count == want && (st->data.data != NULL || want == 0), NULL, DTR_ERR_SHAPE,
                "%s: the state has %zu elements at %p, the shard of %s parameters %zu", entry,
                st->data.count, st->data.data, dtr_dtype_name(st->param_dtype), want);
    const dtr_device at = st->data.device;
    DTR_REQUIRE(want == 0 || (at.type == ddp->device.type &&
                              (at.type == DTR_CPU || at.index == ddp->device.index)),
                NULL, DTR_ERR_DEVICE, "%s: the state is not where the parameters are", entry);
    for (size_t i = 0; i < n; i++) {
        const dtr__ddp_param *p = &ddp->params[i];
        if (full[i] == NULL || p->bucket == DTR__NONE || p->value->dtype != st->param_dtype) {
            continue;
        }
        DTR_TRY(check_place(ddp, entry, full[i], i));
        DTR_TRY(dtr__tensor_check_writable(full[i], "full"));
        char a[DTR__SHAPE_TEXT], b[DTR__SHAPE_TEXT];
        DTR_REQUIRE(dtr__same_shape(full[i], p->value), NULL, DTR_ERR_SHAPE,
                    "%s: parameter '%s' (%zu) has shape %s, full[%zu] %s", entry, p->name, i,
                    dtr__shape_text(p->value->ndim, p->value->shape, a), i,
                    dtr__shape_text(full[i]->ndim, full[i]->shape, b));
        DTR_REQUIRE(full[i]->dtype == st->data.dtype, NULL, DTR_ERR_DTYPE,
                    "%s: the state is %s, full[%zu] for '%s' is %s", entry,
                    dtr_dtype_name(st->data.dtype), i, p->name, dtr_dtype_name(full[i]->dtype));
        DTR_TRY(check_layout(ddp, entry, full[i], i));
    }
    return DTR_OK;
}

static dtr_status gather_bucket(dtr_zero *z, size_t b, const dtr_zero_state *st, char *memory,
                                dtr_tensor *const *full) {
    dtr_ddp *ddp = z->ddp;
    const dtr_plan_bucket *plan = ddp->buckets[b].plan;
    const dtr__zero_bucket *zb = &z->buckets[b];
    size_t size = dtr_dtype_size(st->data.dtype), unit = dtr_dtype_size(plan->dtype);
    char *mine = (char *)st->data.data + zb->first * size;
    dtr__request r = {
        .kind = DTR__K_ALLGATHER,
        .root = -1,
        .in = { mine, zb->slice, st->data.dtype, ddp->device },
        .out = { memory, zb->slice * (size_t)ddp->size, st->data.dtype, ddp->device },
    };
    DTR_TRY(dtr__ddp_issue(ddp, &r, ddp->buckets[b].label, DTR__PART_ZERO, NULL));
    dtr__zero_copies c = { ddp, ddp->buckets[b].pieces, 0 };
    DTR_TRY(dtr__ddp_device_lead(ddp, ddp->out.stream));
    for (size_t k = 0; k < plan->n_slots; k++) {
        size_t i = plan->slots[k].param;
        if (full[i] != NULL) {
            dtr__zero_copy_from(&c, full[i], ddp->params[i].slot, 0, full[i]->numel,
                                memory + plan->slots[k].offset / unit * size);
        }
    }
    DTR_TRY(dtr__zero_copies_end(&c));
    return dtr__ddp_device_follow(ddp, ddp->out.stream); /* the memory is used again */
}

/* Room for the largest bucket of the state's type, where the parameters are. */
static dtr_status make_memory(const dtr_zero *z, const dtr_zero_state *st, dtr_tensor **memory) {
    const dtr_ddp *ddp = z->ddp;
    size_t longest = 0;
    for (size_t b = 0; b < z->n_buckets; b++) {
        longest = z->buckets[b].slice > longest ? z->buckets[b].slice : longest;
    }
    const int64_t count = (int64_t)(longest * (size_t)ddp->size);
    return dtr_tensor_empty(ddp->world, st->data.dtype, ddp->device, DTR_MEM_DEFAULT, 1, &count,
                            memory);
}

static dtr_status zero_gather(dtr_zero *z, const dtr_zero_state *st, dtr_tensor *const *full,
                              size_t n) {
    static const char entry[] = "dtr_zero_gather";
    DTR_TRY(dtr__zero_check(z, entry));
    DTR_TRY(dtr__zero_begin(z, entry));
    dtr_ddp *ddp = z->ddp;
    dtr_tensor *memory = NULL;
    dtr_status mine = check(z, entry, st, full, n);
    mine = mine == DTR_OK ? make_memory(z, st, &memory) : mine;
    mine = mine == DTR_OK ? dtr__ddp_device_follow(ddp, ddp->out.stream) : mine;
    dtr_status s = dtr__zero_agree_last(ddp, mine, entry);
    for (size_t b = 0; b < z->n_buckets && s == DTR_OK; b++) {
        if (z->buckets[b].dtype == st->param_dtype) {
            s = gather_bucket(z, b, st, memory->data, full);
        }
    }
    dtr_status done = dtr__ddp_device_synchronize(ddp);
    dtr_tensor_release(memory);
    return dtr__zero_end(z, s == DTR_OK ? done : s);
}

dtr_status dtr_zero_gather(dtr_zero *z, const dtr_zero_state *st, dtr_tensor *const *full,
                           size_t n) {
    DTR_HOLD_CALL_SITE;
    return DTR_ZERO_TRACED(z, "dtr_zero_gather", zero_gather(z, st, full, n));
}

dtr_status dtr_zero_slice(dtr_zero *z, dtr_tensor *const *full, size_t n,
                          const dtr_zero_state *st) {
    static const char entry[] = "dtr_zero_slice";
    DTR_TRY(dtr__zero_check(z, entry));
    dtr_status s = check(z, entry, st, full, n);
    s = s == DTR_OK ? dtr__zero_check_writable(entry, st, 1) : s;
    if (s < 0) {
        return dtr__ddp_failed(z->ddp, s);
    }
    size_t size = dtr_dtype_size(st->data.dtype);
    for (size_t b = 0; b < z->n_buckets && s == DTR_OK; b++) {
        const dtr__zero_bucket *zb = &z->buckets[b];
        dtr__zero_copies c = { z->ddp, z->ddp->buckets[b].pieces, 0 };
        dtr__zero_piece p;
        bool counts = zb->dtype == st->param_dtype;
        for (size_t k = 0; counts && dtr__zero_next(z, b, z->ddp->rank, &k, &p);) {
            if (full[p.param] != NULL) {
                dtr__zero_copy_to(&c, full[p.param], z->ddp->params[p.param].slot, p.from, p.count,
                                  (char *)st->data.data + (zb->first + p.at) * size);
            }
        }
        s = dtr__zero_copies_end(&c);
    }
    /* Then nobody has to know on which stream. */
    s = s == DTR_OK ? dtr__ddp_device_follow(z->ddp, z->ddp->out.stream) : s;
    s = s == DTR_OK ? dtr__ddp_device_synchronize(z->ddp) : s;
    return dtr__ddp_result(z->ddp, s);
}
