/* Training that was interrupted and goes on from a checkpoint ends with the same bits as training
 * that was not, in every mode: optimizers, clipping, loss scale, batches added up, parameters
 * averaged apart, hooks that remember, 16-bit parameters and averages, and groups that keep an
 * order. The data comes from a sampler and a random generator, whose places are in the checkpoint.
 */
#include <dtr/hooks.h>
#include <dtr/loss_scale.h>
#include <dtr/sampler.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data.h"
#include "ddp_trainee.h"

enum { N = TRAINEE_PARAMS, SAMPLES = 61, BATCH = 2, STOP = 4, END = 8, DELAYED = 1 };

typedef struct mode {
    const char *name;
    dtr_optim_options optim;
    dtr_dtype dtype; /* of parameters; 0: f32 */
    bool zero;       /* sharded, too */
    bool scaled, delayed, reduce_bf16, ordered, exact;
    int accumulate;
    bool hook;
    dtr_ddp_builtin which;
} mode;

#define INIT .struct_size = sizeof(dtr_optim_options), .rate = 0.01
#define MOMENTUM \
    { INIT, .momentum = 0.9 }
#define NESTEROV \
    { INIT, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1 }
#define CLIPPED \
    { INIT, .momentum = 0.9, .max_norm = 0.5 }
#define ADAM \
    { INIT, .rule = DTR_OPTIM_ADAM, .weight_decay = 0.1 }
#define ADAMW \
    { INIT, .rule = DTR_OPTIM_ADAMW, .weight_decay = 0.1, .decay_min_ndim = 2 }

static const mode modes[] = {
    { .name = "SGD", .optim = { INIT }, .zero = true },
    { .name = "momentum", .optim = MOMENTUM, .zero = true },
    { .name = "Nesterov", .optim = NESTEROV, .zero = true },
    { .name = "Adam", .optim = ADAM, .zero = true },
    { .name = "AdamW", .optim = ADAMW, .zero = true },
    { .name = "clipping", .optim = CLIPPED, .zero = true },
    { .name = "f16 parameters", .optim = ADAMW, .dtype = DTR_F16, .zero = true },
    { .name = "bf16 parameters", .optim = MOMENTUM, .dtype = DTR_BF16, .zero = true },
    { .name = "f64 parameters", .optim = ADAMW, .dtype = DTR_F64, .zero = true },
    { .name = "loss scale", .optim = ADAMW, .scaled = true, .zero = true },
    { .name = "f16, loss scale and clipping",
      .optim = CLIPPED,
      .dtype = DTR_F16,
      .scaled = true,
      .zero = true },
    { .name = "batches added up", .optim = ADAMW, .accumulate = 3, .zero = true },
    { .name = "bf16 averages", .optim = ADAMW, .reduce_bf16 = true, .zero = true },
    { .name = "a deterministic group", .optim = ADAMW, .ordered = true, .zero = true },
    { .name = "a reproducible group", .optim = MOMENTUM, .exact = true, .zero = true },
    { .name = "delayed parameters", .optim = MOMENTUM, .delayed = true },
    { .name = "hook fp16", .optim = ADAMW, .hook = true, .which = DTR_HOOK_FP16 },
    { .name = "hook q8", .optim = ADAMW, .hook = true, .which = DTR_HOOK_Q8 },
    { .name = "hook powersgd", .optim = MOMENTUM, .hook = true, .which = DTR_HOOK_POWERSGD },
    { .name = "hook bf16, loss scale, batches added up, clipping",
      .optim = CLIPPED,
      .hook = true,
      .which = DTR_HOOK_BF16,
      .scaled = true,
      .accumulate = 2 },
    { .name = "hook q8, batches added up, clipping, a reproducible group",
      .optim = CLIPPED,
      .hook = true,
      .which = DTR_HOOK_Q8,
      .accumulate = 2,
      .exact = true },
};
enum { MODES = sizeof modes / sizeof modes[0] };

/* Everything that a run needs to go on. */
typedef struct run {
    const mode *m;
    trainee t;
    dtr_loss_scale *scale;
    dtr_sampler *sampler;
    th_rng random;
    dtr_tensor *mean; /* of parameter 2 over the steps, which the program keeps */
} run;

static dtr_group *group_of(const mode *m) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    o.deterministic = m->ordered;
    o.reproducible = m->exact;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), &o, &g));
    return g;
}

/* from: the values of before, by which loaded ones can be told. */
static run run_new(dtr_group *g, const mode *m, bool sharded, int from) {
    static const size_t delayed[] = { DELAYED };
    run r = { .m = m, .random = { (uint64_t)(th_rank() + 100 * from) } };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_loss_scale_options so = DTR_LOSS_SCALE_OPTIONS_INIT;
    const int64_t numel = (int64_t)trainee_numel(2);
    o.bucket_cap_bytes = 4096;
    o.first_bucket_bytes = 256;
    o.has_reduce_dtype = m->reduce_bf16;
    o.reduce_dtype = DTR_BF16;
    o.delayed = delayed;
    o.n_delayed = m->delayed;
    o.delayed_trigger = 0;
    o.has_delayed_trigger = m->delayed;
    r.t = trainee_make(g, m->dtype != 0 ? m->dtype : DTR_F32, sharded, &o, &m->optim, from);
    if (m->hook) {
        dtr_hook_options ho = DTR_HOOK_OPTIONS_INIT;
        ho.start_iteration = 2;
        ho.rank = 2;
        TH_IS(dtr_ddp_register_builtin_hook(r.t.ddp, m->which, &ho), DTR_OK);
    }
    so.initial = 1024;
    so.interval = 2;
    TH_IS(dtr_loss_scale_create(r.t.ddp, &so, &r.scale), DTR_OK);
    TH_IS(dtr_sampler_create(SAMPLES, th_rank(), th_size(), NULL, &r.sampler), DTR_OK);
    TH_IS(dtr_tensor_empty(th_world(), DTR_F64, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1,
                           &numel, &r.mean),
          DTR_OK);
    TH_IS(dtr_tensor_fill(r.mean, from, NULL), DTR_OK);
    return r;
}

static void run_free(run *r) {
    dtr_tensor_release(r->mean);
    TH_IS(dtr_sampler_destroy(r->sampler), DTR_OK);
    TH_IS(dtr_loss_scale_destroy(r->scale), DTR_OK);
    trainee_free(&r->t);
}

/* ---- training ---- */

/* A batch's number, which decides its gradients together with what the generator says. */
static uint64_t next_batch(run *r) {
    uint64_t indices[BATCH], seed = th_next(&r->random);
    size_t n = 0;
    TH_IS(dtr_sampler_next(r->sampler, BATCH, indices, &n), DTR_OK);
    if (n == 0) {
        dtr_sampler_state s = DTR_SAMPLER_STATE_INIT;
        TH_IS(dtr_sampler_get_state(r->sampler, &s), DTR_OK);
        TH_IS(dtr_sampler_set_epoch(r->sampler, s.epoch + 1), DTR_OK);
        TH_IS(dtr_sampler_next(r->sampler, BATCH, indices, &n), DTR_OK);
    }
    for (size_t k = 0; k < n; k++) {
        seed = seed * 31 + indices[k];
    }
    return seed;
}

/* Numbers whose sums depend on their order; with a loss scale one step finds infinity. */
static void backward(run *r, int step, bool last, bool add) {
    static float mine[4097];
    const dtr_dtype d = r->t.s.dtype;
    th_rng g = { next_batch(r) };
    const double factor = r->m->scaled ? dtr_loss_scale_value(r->scale) : 1;
    TH_IS(dtr_ddp_set_sync(r->t.ddp, last), DTR_OK);
    for (size_t i = N; i-- > 0;) {
        void *grad = dtr_tensor_data(dtr_ddp_grad(r->t.ddp, i));
        const size_t n = trainee_numel(i);
        th_random_floats(mine, DTR_F32, n, &g, -6, 0);
        for (size_t k = 0; k < n; k++) {
            const double was = add ? th_get(grad, d, k, false) : 0;
            th_set(grad, d, k, was + (double)mine[k] * factor, 0);
        }
        if (r->m->scaled && (step == 1 || step == STOP) && i == 4 && th_rank() == 0) {
            th_set(grad, d, 7, INFINITY, 0);
        }
        if (!r->m->delayed || i != DELAYED) {
            TH_IS(dtr_ddp_grad_ready(r->t.ddp, i, NULL), DTR_OK);
        }
    }
    TH_IS(dtr_ddp_backward_end(r->t.ddp, NULL), DTR_OK);
}

static void train(run *r, int first, int end) {
    const int parts = r->m->accumulate > 0 ? r->m->accumulate : 1;
    for (int step = first; step < end; step++) {
        for (int part = 0; part < parts; part++) {
            backward(r, step, part == parts - 1, part > 0);
        }
        bool stepped = true;
        if (r->m->scaled) {
            TH_IS(dtr_loss_scale_step(r->scale, r->t.optim, &stepped), DTR_OK);
        } else {
            TH_IS(dtr_optim_step(r->t.optim), DTR_OK);
        }
        const void *value = dtr_tensor_data(r->t.s.params[2].value);
        double *mean = dtr_tensor_data(r->mean);
        for (size_t k = 0; k < trainee_numel(2); k++) {
            mean[k] = 0.9 * mean[k] + 0.1 * th_get(value, r->t.s.dtype, k, false);
        }
    }
}

/* ---- stopping and going on ---- */

/* A rank's own bytes; what its hook remembers is behind them. */
typedef struct own_data {
    dtr_sampler_state data;
    dtr_loss_scale_state scale;
    th_rng random;
} own_data;

static void stop(run *r, const char *path, const dtr_optim_extra *given) {
    static char memory[1 << 20];
    own_data own = { .data = DTR_SAMPLER_STATE_INIT,
                     .scale = DTR_LOSS_SCALE_STATE_INIT,
                     .random = r->random };
    dtr_bytes hook = { NULL, 0 };
    dtr_optim_extra extra = *given;
    TH_IS(dtr_sampler_get_state(r->sampler, &own.data), DTR_OK);
    TH_IS(dtr_loss_scale_get_state(r->scale, &own.scale), DTR_OK);
    if (r->m->hook) {
        TH_IS(dtr_ddp_hook_state(r->t.ddp, &hook), DTR_OK);
    }
    dtr_bytes bytes = { memory, sizeof own + hook.nbytes };
    TH_CHECK(bytes.nbytes <= sizeof memory, "the hook has %zu bytes", hook.nbytes);
    TH_AGREE();
    memcpy(memory, &own, sizeof own);
    if (hook.nbytes > 0) {
        memcpy(memory + sizeof own, hook.data, hook.nbytes);
    }
    extra.own = &bytes;
    TH_IS(dtr_optim_save_extra(r->t.optim, path, &extra), DTR_OK);
    dtr_bytes_free(&hook, 1);
}

static void go_on(run *r, const char *path, const dtr_optim_extra *given) {
    own_data own;
    dtr_bytes got = { NULL, 0 };
    dtr_optim_extra extra = *given;
    extra.own = &got;
    TH_OK(dtr_optim_load_extra(r->t.optim, path, &extra));
    TH_ALL(got.nbytes >= sizeof own, "%zu bytes", got.nbytes);
    memcpy(&own, got.data, sizeof own);
    r->random = own.random;
    TH_IS(dtr_sampler_set_state(r->sampler, &own.data), DTR_OK);
    TH_IS(dtr_loss_scale_set_state(r->scale, &own.scale), DTR_OK);
    if (r->m->hook) {
        const dtr_bytes hook = { (char *)got.data + sizeof own, got.nbytes - sizeof own };
        TH_IS(dtr_ddp_set_hook_state(r->t.ddp, hook), DTR_OK);
    }
    dtr_bytes_free(&got, 1);
    const char *name = dtr_optim_metadata(r->t.optim, "mode");
    TH_CHECK(name != NULL && strcmp(name, r->m->name) == 0, "metadata is %s",
             name != NULL ? name : "NULL");
}

static dtr_optim_extra extra_of(const run *r, dtr_named_tensor *tensor, dtr_text_pair *pair) {
    dtr_optim_extra extra = DTR_OPTIM_EXTRA_INIT;
    *tensor = (dtr_named_tensor){ "mean", r->mean };
    *pair = (dtr_text_pair){ "mode", r->m->name };
    extra.tensors = tensor;
    extra.n_tensors = 1;
    extra.metadata = pair;
    extra.n_metadata = 1;
    return extra;
}

static void compare(const run *a, const run *b, const char *what) {
    dtr_loss_scale_state x = DTR_LOSS_SCALE_STATE_INIT, y = x;
    trainee_compare(&a->t, &b->t, what);
    TH_CHECK(memcmp(dtr_tensor_data(a->mean), dtr_tensor_data(b->mean),
                    trainee_numel(2) * sizeof(double)) == 0,
             "%s: the program's tensor differs", what);
    TH_CHECK(a->random.s == b->random.s, "%s: another place in random numbers", what);
    TH_IS(dtr_loss_scale_get_state(a->scale, &x), DTR_OK);
    TH_IS(dtr_loss_scale_get_state(b->scale, &y), DTR_OK);
    TH_CHECK(x.value == y.value && x.good == y.good && x.skipped == y.skipped &&
                 (x.skipped == 2) == a->m->scaled,
             "%s: the loss scale is %g after %llu, %llu left out", what, y.value,
             (unsigned long long)y.good, (unsigned long long)y.skipped);
}

static void interrupt(const mode *m, bool sharded) {
    char path[80], what[120];
    dtr_named_tensor tensor;
    dtr_text_pair pair;
    trainee_path(path, sizeof path, "resume");
    snprintf(what, sizeof what, "%s, %s", m->name, sharded ? "sharded" : "whole");
    (void)trainee_files(path, true);
    dtr_group *g = group_of(m);
    run at_once = run_new(g, m, sharded, 0);
    train(&at_once, 0, END);
    run first = run_new(g, m, sharded, 0);
    train(&first, 0, STOP);
    dtr_optim_extra extra = extra_of(&first, &tensor, &pair);
    stop(&first, path, &extra);
    run_free(&first);
    run second = run_new(g, m, sharded, 5);
    extra = extra_of(&second, &tensor, &pair);
    go_on(&second, path, &extra);
    train(&second, STOP, END);
    compare(&at_once, &second, what);
    TH_AGREE();
    run_free(&at_once);
    run_free(&second);
    TH_OK(dtr_group_destroy(g));
    (void)trainee_files(path, true);
}

START_TEST(a_resumed_run_has_the_same_bits) {
    for (int k = 0; k < MODES; k++) {
        interrupt(&modes[k], false);
        if (modes[k].zero) {
            interrupt(&modes[k], true);
        }
    }
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp resume", 200);
    th_add(tc, a_resumed_run_has_the_same_bits, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp resume", make);
}
