/* Calls of gradient averaging, its plans, sharded state and optimizers with arguments of any value.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/optim.h>

#include "fuzz_calls.h"

enum { PARAMS = 3, CALLS = 12 };

/* ---- plans ---- */

static void look_at_plan(const dtr_plan *p) {
    char text[300];
    (void)dtr_plan_bucket_count(p);
    (void)dtr_plan_get_bucket(p, (size_t)number(4));
    (void)dtr_plan_hash(p);
    (void)dtr_plan_print(p, text, pick(2) == 0 ? sizeof text : pick(30));
}

static void plans(void) {
    static const size_t odd[] = { 0, 1, 1000, SIZE_MAX, SIZE_MAX / 4, 17, 64, 63 };
    dtr_plan_param p[3];
    size_t order[3], limits[3], lens[2], *const lists[2] = { order, limits };
    dtr_plan *plan = NULL;
    const size_t n = pick(4);
    for (int i = 0; i < 3; i++) {
        p[i] = (dtr_plan_param){ .name = pick(2) == 0 ? NULL : "a",
                                 .numel = odd[pick(8)],
                                 .dtype = (dtr_dtype)number(21),
                                 .device = { (dtr_device_type)number(2), number(1) },
                                 .sparse = pick(4) == 0 };
        order[i] = (size_t)number(3);
        limits[i] = pick(2) == 0 ? (size_t)i : odd[pick(8)];
    }
    lens[0] = pick(4);
    lens[1] = pick(4);
    judge(pick(2) == 0 ? dtr_plan_compute(pick(8) == 0 ? NULL : p, n, pick(2) == 0 ? NULL : order,
                                          pick(8) == 0 ? NULL : limits, pick(4), byte(),
                                          pick(16) == 0 ? NULL : &plan)
                       : dtr_plan_explicit(pick(8) == 0 ? NULL : p, n,
                                           pick(8) == 0 ? NULL : (const size_t *const *)lists,
                                           pick(8) == 0 ? NULL : lens, pick(3),
                                           pick(16) == 0 ? NULL : &plan));
    look_at_plan(plan);
    dtr_plan_destroy(plan);
}

/* ---- a module ---- */

/* Its parameters; [1] has rows as gradient. */
static dtr_tensor *value[PARAMS];

static dtr_ddp *open_module(bool with_rows) {
    static const char *const names[PARAMS] = { "a", "b", "c" };
    dtr_param p[PARAMS], buffer_of = { .name = "mean" };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_ddp *ddp = NULL;
    memset(p, 0, sizeof p);
    for (int i = 0; i < PARAMS; i++) {
        value[i] = tensor_of(DTR_F32, 2, 6, 1 + i);
        p[i] = (dtr_param){ .name = names[i], .value = value[i] };
    }
    p[1].flags = with_rows ? DTR_PARAM_SPARSE : 0;
    buffer_of.value = tensor_of(DTR_F32, 1, 3, 0);
    o.buffers = &buffer_of;
    o.n_buffers = pick(2);
    o.bucket_cap_bytes = pick(3) == 0 ? byte() : 0;
    o.find_unused = pick(4) == 0;
    o.static_graph = pick(4) == 0;
    o.grad_as_bucket_view = pick(2) == 0;
    o.has_param_dtype = pick(4) == 0;
    o.param_dtype = DTR_BF16;
    judge(dtr_ddp_create(group, p, PARAMS, &o, &ddp));
    dtr_tensor_release(buffer_of.value);
    return ddp;
}

static void close_module(dtr_ddp *ddp) {
    judge(dtr_ddp_destroy(ddp));
    for (int i = 0; i < PARAMS; i++) {
        dtr_tensor_release(value[i]);
    }
}

static size_t index_of(void) {
    unsigned b = byte();
    return b < 220 ? b % PARAMS : b < 240 ? SIZE_MAX : b;
}

/* ---- hooks ---- */

static dtr_status then(void *state, dtr_ddp_bucket *bucket, dtr_work **work) {
    (void)state;
    (void)work;
    judge(dtr_ddp_bucket_set_result(bucket, dtr_ddp_bucket_buffer(bucket)));
    return DTR_OK;
}

static void look_at_bucket(const dtr_ddp_bucket *b) {
    size_t offset, count;
    (void)dtr_ddp_bucket_index(b);
    (void)dtr_ddp_bucket_param_count(b);
    (void)dtr_ddp_bucket_is_last(b);
    (void)dtr_ddp_bucket_iteration(b);
    (void)dtr_ddp_bucket_buffer(b);
    (void)dtr_ddp_bucket_stream(b);
    (void)dtr_ddp_bucket_param(b, (size_t)number(3), &offset, pick(2) == 0 ? NULL : &count);
    (void)dtr_ddp_bucket_grad(b, (size_t)number(3));
    (void)dtr_ddp_bucket_group(b);
}

/* Runs on the thread of the caller or on the library's: the input is the caller's in both cases,
 * which waits. */
static dtr_status hook(void *state, dtr_ddp_bucket *bucket, dtr_work **work) {
    dtr_tensor *rows = NULL, *values = NULL;
    dtr_ddp_bucket *b = *(const int *)state % 16 == 0 ? NULL : bucket;
    look_at_bucket(b);
    judge(dtr_ddp_bucket_sparse(b, &rows, &values));
    switch (*(const int *)state % 4) {
    case 0:
        judge(dtr_ddp_bucket_set_sparse_result(b, rows, values));
        return DTR_OK;
    case 1:
        judge(dtr_ddp_bucket_then(b, then, NULL));
        return DTR_OK;
    case 2:
        return dtr_ddp_bucket_set_result(b, buffer());
    default:
        return dtr_allreduce(dtr_ddp_bucket_group(b), dtr_ddp_bucket_buffer(b),
                             dtr_ddp_bucket_buffer(b), DTR_SUM, NULL, work);
    }
}

static dtr_status buffer_hook(void *state, dtr_tensor *const *buffers, size_t n, dtr_work **work) {
    (void)state;
    (void)work;
    return n > 0 ? dtr_tensor_fill(buffers[0], 2, NULL) : DTR_OK;
}

static dtr_status step_one(void *state, size_t i, dtr_tensor *param, dtr_tensor *grad,
                           void *stream) {
    (void)state;
    (void)i;
    return dtr_tensor_axpy(param, -0.1, grad, stream);
}

static void hooks(dtr_ddp *ddp) {
    static int how;
    dtr_hook_options o = DTR_HOOK_OPTIONS_INIT;
    dtr_ddp_hook wrapped = NULL;
    void *state = NULL;
    dtr_bytes bytes = { NULL, 0 };
    size_t list[2] = { index_of(), index_of() };
    how = number(100) & 0xff;
    o.start_iteration = pick(3);
    o.rank = number(3);
    o.min_rate = seconds();
    o.epsilon = seconds();
    o.struct_size = pick(8) == 0 ? pick(sizeof o + 1) : o.struct_size;
    switch (pick(6)) {
    case 0:
        judge(dtr_ddp_register_hook(ddp, pick(8) == 0 ? NULL : hook, &how,
                                    pick(2) == 0 ? NULL : "mine"));
        break;
    case 1:
        judge(dtr_ddp_register_builtin_hook(ddp, (dtr_ddp_builtin)number(7),
                                            pick(2) == 0 ? NULL : &o));
        break;
    case 2: /* the state goes with the module, or is lost */
        judge(dtr_ddp_wrap_hook((dtr_dtype)number(21), pick(8) == 0 ? NULL : hook, &how, &wrapped,
                                pick(16) == 0 ? NULL : &state));
        judge(wrapped != NULL ? dtr_ddp_register_hook(ddp, wrapped, state, NULL) : DTR_OK);
        break;
    case 3:
        judge(dtr_ddp_hook_state(ddp, pick(8) == 0 ? NULL : &bytes));
        bytes.nbytes -= bytes.nbytes > 0 && pick(4) == 0;
        judge(dtr_ddp_set_hook_state(ddp, bytes));
        dtr_bytes_free(&bytes, 1);
        break;
    case 4:
        judge(dtr_ddp_register_buffer_hook(ddp, pick(8) == 0 ? NULL : buffer_hook, NULL,
                                           (dtr_ddp_when)number(2)));
        break;
    default:
        judge(dtr_ddp_set_step(ddp, pick(8) == 0 ? NULL : step_one, NULL,
                               pick(8) == 0 ? NULL : list, pick(3)));
        break;
    }
}

/* ---- steps ---- */

static void rows_of(dtr_ddp *ddp) {
    const int64_t named[2] = { number(6), number(6) };
    const int64_t count = number(4);
    dtr_tensor *rows = count >= 0 && count < 9 ? tensor_of(DTR_I64, 1, count, 0) : NULL;
    dtr_tensor *values = count >= 0 && count < 9 ? tensor_of(DTR_F32, 2, count, 2) : NULL;
    dtr_tensor *got_rows = NULL, *got_values = NULL;
    judge(dtr_ddp_set_sparse_rows(ddp, index_of(), pick(4) == 0 ? NULL : named, pick(3)));
    judge(dtr_ddp_set_sparse_grad(ddp, index_of(), rows, pick(8) == 0 ? rows : values));
    judge(dtr_ddp_sparse_grad(ddp, index_of(), pick(8) == 0 ? NULL : &got_rows, &got_values));
    dtr_tensor_release(rows);
    dtr_tensor_release(values);
}

static void look_at_module(dtr_ddp *ddp) {
    dtr_ddp_stats s = DTR_DDP_STATS_INIT;
    s.struct_size = pick(4) == 0 ? pick(sizeof s + 1) : s.struct_size;
    judge(dtr_ddp_get_stats(ddp, pick(8) == 0 ? NULL : &s));
    (void)dtr_ddp_grad(ddp, index_of());
    (void)dtr_ddp_full_grad(ddp, index_of());
    (void)dtr_ddp_param(ddp, index_of(), NULL);
    (void)dtr_ddp_grad_defined(ddp, index_of());
    (void)dtr_ddp_sync(ddp);
    look_at_plan(dtr_ddp_plan(ddp));
}

static void setting(dtr_ddp *ddp) {
    switch (pick(5)) {
    case 0:
        judge(dtr_ddp_set_eval(ddp, pick(2) == 0));
        break;
    case 1:
        judge(dtr_ddp_set_static_graph(ddp));
        break;
    case 2:
        judge(dtr_ddp_set_group(ddp, pick(8) == 0 ? NULL : group));
        break;
    case 3:
        judge(dtr_ddp_set_buffer(ddp, (size_t)number(1), pick(8) == 0 ? NULL : value[pick(3)]));
        break;
    default:
        judge(dtr_ddp_grad_clear(ddp, index_of()));
        break;
    }
}

static void join(dtr_ddp *ddp) {
    dtr_join_options o = DTR_JOIN_OPTIONS_INIT;
    o.divide_by_active = pick(2) == 0;
    o.stop_early = pick(2) == 0;
    o.disable = pick(2) == 0;
    o.struct_size = pick(8) == 0 ? pick(sizeof o + 1) : o.struct_size;
    judge(pick(2) == 0 ? dtr_ddp_join_begin(ddp, pick(4) == 0 ? NULL : &o) : dtr_ddp_join_end(ddp));
}

static void pass(dtr_ddp *ddp) {
    judge(pick(4) == 0 ? DTR_OK : dtr_ddp_forward_begin(ddp));
    judge(dtr_ddp_forward_end(ddp, NULL, 0));
    for (size_t i = 0; i < PARAMS; i++) {
        judge(dtr_ddp_grad_ready(ddp, pick(16) == 0 ? index_of() : i, NULL));
    }
    judge(dtr_ddp_check_finalized(ddp));
    judge(dtr_ddp_backward_end(ddp, NULL));
}

static void one_call(dtr_ddp *ddp) {
    switch (pick(8)) {
    case 0:
        hooks(ddp);
        break;
    case 1:
        rows_of(ddp);
        break;
    case 2:
        look_at_module(ddp);
        break;
    case 3:
        setting(ddp);
        break;
    case 4:
        join(ddp);
        break;
    case 5:
        judge(dtr_ddp_check_equal(ddp));
        break;
    default:
        pass(ddp);
        break;
    }
}

/* ---- sharded state and optimizers ---- */

static dtr_status update(void *state, size_t first, dtr_buffer param, dtr_buffer grad) {
    (void)state;
    (void)first;
    (void)grad;
    return param.count > 1000 ? DTR_ERR_INTERNAL : DTR_OK;
}

static void on_zero(dtr_zero *z) {
    static float state_of[256];
    uint64_t step = 0;
    size_t count = dtr_zero_shard_count(z, (dtr_dtype)number(21));
    count = count > 256 ? 256 : count;
    dtr_zero_state s = { pick(8) == 0 ? NULL : "m", pick(4) == 0 ? (dtr_dtype)number(21) : DTR_F32,
                         dtr_cpu(state_of, count, pick(8) == 0 ? DTR_I8 : DTR_F32) };
    const dtr_zero_state *list = pick(8) == 0 ? NULL : &s;
    switch (pick(6)) {
    case 0:
        judge(dtr_zero_step(z, pick(8) == 0 ? NULL : update, NULL));
        break;
    case 1:
        judge(dtr_zero_wait(z, index_of()));
        break;
    case 2:
        judge(dtr_zero_gather(z, list, pick(8) == 0 ? NULL : value, pick(4)));
        break;
    case 3:
        judge(dtr_zero_slice(z, pick(8) == 0 ? NULL : value, pick(4), list));
        break;
    case 4:
        judge(dtr_zero_save(z, scratch_file(), list, pick(2), byte()));
        break;
    default:
        judge(dtr_zero_load(z, scratch_file(), list, pick(2), pick(2) == 0 ? NULL : &step));
        break;
    }
}

static const char *any_text(void) {
    static const char *const texts[] = { NULL, "", "a", "b", "\xff", "w@0" };
    return texts[pick(sizeof texts / sizeof texts[0])];
}

static void on_extra(dtr_optim *o) {
    dtr_optim_extra x = DTR_OPTIM_EXTRA_INIT;
    dtr_bytes own = { NULL, 0 };
    dtr_named_tensor tensors[2];
    dtr_text_pair pairs[2];
    for (int k = 0; k < 2; k++) {
        tensors[k] = (dtr_named_tensor){ any_text(), pick(8) == 0 ? NULL : value[k] };
        pairs[k] = (dtr_text_pair){ any_text(), any_text() };
    }
    x.tensors = pick(8) == 0 ? NULL : tensors;
    x.n_tensors = pick(3);
    x.metadata = pick(8) == 0 ? NULL : pairs;
    x.n_metadata = pick(3);
    x.own = pick(2) == 0 ? NULL : &own;
    const dtr_optim_extra *given = pick(8) == 0 ? NULL : &x;
    if (pick(2) == 0) {
        judge(dtr_optim_save_extra(o, scratch_file(), given));
    } else {
        judge(dtr_optim_load_extra(o, scratch_file(), given));
        dtr_bytes_free(&own, 1);
    }
    (void)dtr_optim_metadata(o, any_text());
    (void)dtr_optim_metadata_key(o, pick(3));
}

static void on_optim(dtr_optim *o) {
    dtr_zero_state s;
    (void)dtr_optim_steps(o);
    (void)dtr_optim_state_nbytes(o);
    (void)dtr_optim_state_count(o);
    dtr_bytes own = { NULL, 0 };
    switch (pick(9)) {
    case 8:
        on_extra(o);
        break;
    case 6:
        own = (dtr_bytes){ pick(4) == 0 ? NULL : (void *)&own, pick(sizeof own) };
        judge(dtr_optim_save_with(o, scratch_file(), own));
        break;
    case 7:
        judge(dtr_optim_load_with(o, scratch_file(), pick(8) == 0 ? NULL : &own));
        dtr_bytes_free(&own, 1);
        break;
    case 0:
        judge(dtr_optim_set_rate(o, seconds()));
        break;
    case 1:
        judge(dtr_optim_set_steps(o, byte()));
        break;
    case 2:
        judge(dtr_optim_state(o, (size_t)number(2), pick(8) == 0 ? NULL : &s));
        break;
    case 3:
        judge(dtr_optim_save(o, scratch_file()));
        break;
    case 4:
        judge(dtr_optim_load(o, scratch_file()));
        break;
    default:
        judge(dtr_optim_step(o));
        break;
    }
}

static void on_loss_scale(dtr_loss_scale *l, dtr_optim *o) {
    dtr_loss_scale_state state = DTR_LOSS_SCALE_STATE_INIT;
    bool flag;
    (void)dtr_loss_scale_value(l);
    judge(dtr_loss_scale_get_state(l, pick(8) == 0 ? NULL : &state));
    switch (pick(4)) {
    case 0:
        judge(dtr_loss_scale_step(l, o, pick(2) == 0 ? NULL : &flag));
        break;
    case 1:
        judge(dtr_loss_scale_unscale(l, pick(8) == 0 ? NULL : &flag));
        break;
    case 2:
        judge(dtr_loss_scale_update(l));
        break;
    default:
        state.value = pick(2) == 0 ? seconds() : byte();
        state.struct_size = pick(8) == 0 ? pick(sizeof state + 1) : sizeof state;
        judge(dtr_loss_scale_set_state(l, pick(8) == 0 ? NULL : &state));
        break;
    }
}

static dtr_loss_scale *open_loss_scale(dtr_ddp *ddp) {
    dtr_loss_scale_options o = DTR_LOSS_SCALE_OPTIONS_INIT;
    dtr_loss_scale *l = NULL;
    o.initial = pick(4) == 0 ? seconds() : byte();
    o.growth = pick(4) == 0 ? seconds() : 0;
    o.backoff = pick(4) == 0 ? seconds() : 0;
    o.interval = pick(4);
    o.least = pick(4) == 0 ? seconds() : 0;
    o.most = pick(4) == 0 ? seconds() : 0;
    judge(dtr_loss_scale_create(ddp, pick(2) == 0 ? NULL : &o, pick(16) == 0 ? NULL : &l));
    return l;
}

static void optimizers(dtr_ddp *ddp) {
    dtr_zero_options zo = DTR_ZERO_OPTIONS_INIT;
    dtr_optim_options oo = DTR_OPTIM_OPTIONS_INIT;
    dtr_zero *zero = NULL;
    dtr_optim *optim = NULL;
    zo.flags = pick(2) == 0 ? byte() & 3 : 0;
    zo.timeout_s = seconds();
    oo.rule = (dtr_optim_rule)number(3);
    oo.rate = seconds();
    oo.momentum = seconds();
    oo.beta1 = seconds();
    oo.epsilon = seconds();
    oo.weight_decay = seconds();
    oo.max_norm = seconds();
    oo.nesterov = pick(4) == 0;
    if (pick(2) == 0) {
        judge(dtr_zero_create(ddp, pick(2) == 0 ? NULL : &zo, pick(16) == 0 ? NULL : &zero));
    }
    judge(dtr_optim_create(ddp, zero, pick(2) == 0 ? NULL : &oo, pick(16) == 0 ? NULL : &optim));
    dtr_loss_scale *scale = open_loss_scale(ddp);
    for (unsigned i = pick(CALLS); i > 0; i--) {
        double norm;
        switch (pick(6)) {
        case 5:
            on_loss_scale(scale, optim);
            break;
        case 0:
            pass(ddp);
            break;
        case 1:
            on_zero(zero);
            break;
        case 2:
            judge(dtr_ddp_clip_grad_norm(ddp, pick(8) == 0 ? NULL : zero, seconds(),
                                         pick(2) == 0 ? NULL : &norm));
            break;
        default:
            on_optim(optim);
            break;
        }
    }
    judge(dtr_loss_scale_destroy(scale));
    judge(dtr_optim_destroy(optim));
    judge(dtr_zero_destroy(zero));
}

static void samplers(void) {
    dtr_sampler *s = NULL;
    dtr_sampler_options o = DTR_SAMPLER_OPTIONS_INIT;
    dtr_sampler_state state = DTR_SAMPLER_STATE_INIT;
    uint64_t indices[8];
    size_t n = 0;
    o.seed = byte();
    o.sequential = pick(4) == 0;
    o.drop_last = pick(2) == 0;
    o.struct_size = pick(8) == 0 ? pick(sizeof o + 1) : o.struct_size;
    judge(dtr_sampler_create(pick(8) == 0 ? UINT64_MAX >> pick(64) : byte(), number(4), number(4),
                             pick(2) == 0 ? NULL : &o, pick(16) == 0 ? NULL : &s));
    judge(dtr_sampler_get_state(s, pick(8) == 0 ? NULL : &state));
    for (unsigned i = pick(CALLS); i > 0; i--) {
        judge(dtr_sampler_next(s, pick(8), pick(16) == 0 ? NULL : indices,
                               pick(16) == 0 ? NULL : &n));
        judge(pick(2) == 0 ? dtr_sampler_set_epoch(s, byte()) : DTR_OK);
        state.consumed = byte();
        state.struct_size = pick(8) == 0 ? pick(sizeof state + 1) : sizeof state;
        judge(dtr_sampler_set_state(s, pick(8) == 0 ? NULL : &state));
        (void)dtr_sampler_count(s);
        (void)dtr_sampler_left(s);
    }
    judge(dtr_sampler_destroy(s));
}

void fuzz_calls_modules(dtr_group *g) {
    const unsigned which = pick(5);
    if (which == 0) {
        plans();
        return;
    }
    if (which == 4) {
        samplers();
        return;
    }
    dtr_ddp *ddp = open_module(pick(2) == 0);
    dtr_ddp *given = g == NULL ? NULL : ddp;
    if (which == 1) {
        optimizers(given);
    }
    for (unsigned i = pick(CALLS); i > 0; i--) {
        one_call(given);
    }
    close_module(ddp);
}
