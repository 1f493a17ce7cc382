/* Options of a module: defaults, and what is refused before any rank is asked. */
#include <math.h>
#include <stdlib.h>

#include "module.h"

enum {
    KNOWN_FLAGS = DTR_DDP_SUM | DTR_DDP_PER_PARAM | DTR_DDP_SMALL_LAST | DTR_DDP_CHECK_NAN |
                  DTR_DDP_LATE_ERRORS
};

static dtr_status check_lists(const dtr_ddp_options *o) {
    DTR_REQUIRE((o->plan_limits != NULL) == (o->n_plan_limits > 0), NULL, DTR_ERR_ARG,
                "plan_limits is %s, but n_plan_limits is %zu: give both or neither",
                o->plan_limits != NULL ? "given" : "NULL", o->n_plan_limits);
    DTR_REQUIRE(o->buffers != NULL || o->n_buffers == 0, NULL, DTR_ERR_ARG,
                "buffers is NULL for n_buffers %zu", o->n_buffers);
    DTR_REQUIRE((o->n_delayed > 0) == o->has_delayed_trigger &&
                    (o->delayed != NULL || o->n_delayed == 0),
                NULL, DTR_ERR_ARG,
                "delayed parameters need the list and the trigger: n_delayed is %zu, "
                "has_delayed_trigger is %s",
                o->n_delayed, o->has_delayed_trigger ? "true" : "false");
    return DTR_OK;
}

static dtr_status check_dtypes(const dtr_ddp_options *o) {
    DTR_REQUIRE(!o->has_param_dtype || dtr__ddp_is_float(o->param_dtype), NULL, DTR_ERR_DTYPE,
                "param_dtype %s (%d) cannot stand for parameters: use a floating-point type",
                dtr_dtype_name(o->param_dtype), (int)o->param_dtype);
    DTR_REQUIRE(!o->has_buffer_dtype || dtr__ddp_is_float(o->buffer_dtype), NULL, DTR_ERR_DTYPE,
                "buffer_dtype %s (%d) cannot stand for floating-point buffers: use a "
                "floating-point type",
                dtr_dtype_name(o->buffer_dtype), (int)o->buffer_dtype);
    if (!o->has_reduce_dtype) {
        return DTR_OK;
    }
    DTR_REQUIRE(dtr__ddp_is_float(o->reduce_dtype), NULL, DTR_ERR_DTYPE,
                "reduce_dtype %s (%d) cannot hold averages: use a floating-point type",
                dtr_dtype_name(o->reduce_dtype), (int)o->reduce_dtype);
    return DTR_OK;
}

static dtr_status make_limits(const dtr_ddp_options *o, dtr__ddp_settings *set) {
    size_t n = o->plan_limits != NULL ? o->n_plan_limits : 2;
    set->limits = malloc(n * sizeof *set->limits);
    DTR_REQUIRE(set->limits != NULL, NULL, DTR_ERR_NOMEM, "no memory for %zu plan limits", n);
    set->n_limits = n;
    if (o->plan_limits != NULL) {
        memcpy(set->limits, o->plan_limits, n * sizeof *set->limits);
        return DTR_OK;
    }
    size_t cap = o->bucket_cap_bytes > 0 ? o->bucket_cap_bytes : (size_t)25 << 20;
    size_t first = o->first_bucket_bytes > 0 ? o->first_bucket_bytes : (size_t)1 << 20;
    set->first_reduced = o->first_bucket_bytes > cap;
    set->limits[0] = first < cap ? first : cap;
    set->limits[1] = cap;
    return DTR_OK;
}

dtr_status dtr__ddp_settings_read(const dtr_ddp_options *given, dtr_ddp_options *o,
                                  dtr__ddp_settings *set) {
    DTR_TRY(dtr__options_copy(given, o, sizeof *o, "dtr_ddp_options"));
    DTR_REQUIRE((o->flags & ~(uint32_t)KNOWN_FLAGS) == 0, NULL, DTR_ERR_ARG,
                "dtr_ddp_options.flags is 0x%x; known are DTR_DDP_SUM, _PER_PARAM, _SMALL_LAST, "
                "_CHECK_NAN and _LATE_ERRORS (together 0x%x)",
                (unsigned)o->flags, (unsigned)KNOWN_FLAGS);
    DTR_TRY(dtr__options_limit(NULL, "dtr_ddp_options", &o->timeout_s));
    DTR_TRY(check_lists(o));
    DTR_REQUIRE(!o->skip_unused || o->static_graph, NULL, DTR_ERR_ARG,
                "skip_unused needs static_graph: only then is the used set known for good");
    DTR_TRY(check_dtypes(o));
    DTR_TRY(make_limits(o, set));
    set->unused_asked = o->find_unused;
    set->find_unused = o->find_unused && !o->static_graph;
    set->static_graph = o->static_graph;
    set->view = o->grad_as_bucket_view;
    set->no_init_sync = o->no_init_sync;
    set->no_buffers = o->no_broadcast_buffers;
    set->skip_unused = o->skip_unused;
    set->has_reduce_dtype = o->has_reduce_dtype;
    set->reduce_dtype = o->reduce_dtype;
    set->has_param_dtype = o->has_param_dtype;
    set->param_dtype = o->param_dtype;
    set->has_buffer_dtype = o->has_buffer_dtype;
    set->buffer_dtype = o->buffer_dtype;
    set->timeout_s = o->timeout_s;
    set->flags = o->flags;
    return DTR_OK;
}
