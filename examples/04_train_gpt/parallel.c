/* Module, optimizer and checkpoints of train_gpt. */
#include "parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making ---- */

static dtr_status make_params(parallel *p) {
    const gpt *g = p->engine->model;
    p->params = calloc(g->n_params, sizeof *p->params);
    if (p->params == NULL) {
        return DTR_ERR_NOMEM;
    }
    for (size_t i = 0; i < g->n_params; i++) {
        const gpt_param *param = &g->params[i];
        const dtr_buffer value = { param->value, param->count, DTR_F32, p->engine->device, 0 };
        p->params[i].name = param->name;
        dtr_status s = dtr_tensor_from_buffer(value, param->ndim, param->shape, NULL, NULL, NULL,
                                              &p->params[i].value);
        if (DTR_FAILED(s)) {
            return s;
        }
    }
    return DTR_OK;
}

static dtr_status make_module(parallel *p, const train_options *o) {
    dtr_ddp_options options = DTR_DDP_OPTIONS_INIT;
    /* Backward writes straight into the buckets, where these have its type. */
    options.grad_as_bucket_view = !o->mixed;
    options.has_reduce_dtype = o->mixed;
    options.reduce_dtype = o->mixed_dtype;
    /* A small model: several buckets, so that reduction starts early. */
    options.bucket_cap_bytes = 512 * 1024;
    options.first_bucket_bytes = 128 * 1024;
    dtr_status s =
        dtr_ddp_create(p->group, p->params, p->engine->model->n_params, &options, &p->ddp);
    if (s == DTR_OK && o->hook != NULL) {
        dtr_hook_options hook = DTR_HOOK_OPTIONS_INIT;
        hook.start_iteration = 10; /* PowerSGD: plain averages first */
        hook.rank = 4;
        s = dtr_ddp_register_builtin_hook(p->ddp, o->builtin, &hook);
    }
    return s;
}

static dtr_status make_optimizer(parallel *p, const train_options *o) {
    dtr_optim_options options = DTR_OPTIM_OPTIONS_INIT;
    options.rule = DTR_OPTIM_ADAMW;
    options.beta2 = 0.95;
    options.weight_decay = 0.01;
    options.decay_min_ndim = 2; /* matrices only */
    options.max_norm = (double)o->clip;
    dtr_status s = o->zero ? dtr_zero_create(p->ddp, NULL, &p->zero) : DTR_OK;
    return DTR_FAILED(s) ? s : dtr_optim_create(p->ddp, p->zero, &options, &p->optim);
}

static dtr_status make_scratch(parallel *p) {
    const gpt *g = p->engine->model;
    p->scratch = calloc(g->n_params, sizeof *p->scratch);
    dtr_status s = p->scratch != NULL ? DTR_OK : DTR_ERR_NOMEM;
    for (size_t i = 0; s == DTR_OK && i < g->n_params; i++) {
        s = dtr_tensor_empty(p->world, DTR_F32, p->engine->device, DTR_MEM_DEFAULT,
                             g->params[i].ndim, g->params[i].shape, &p->scratch[i]);
    }
    return s;
}

dtr_status parallel_make(parallel *p, const engine *e, const train_options *o) {
    p->engine = e;
    p->options = o;
    dtr_status s = make_params(p);
    if (s == DTR_OK) {
        s = make_module(p, o);
    }
    if (s == DTR_OK) {
        s = make_optimizer(p, o);
    }
    return s == DTR_OK && o->accumulate > 1 ? make_scratch(p) : s;
}

void parallel_free(parallel *p) {
    const size_t n = p->params != NULL ? p->engine->model->n_params : 0;
    dtr_optim_destroy(p->optim);
    dtr_zero_destroy(p->zero);
    dtr_ddp_destroy(p->ddp);
    for (size_t i = 0; i < n; i++) {
        dtr_tensor_release(p->params[i].value);
        dtr_tensor_release(p->scratch != NULL ? p->scratch[i] : NULL);
    }
    free(p->params);
    free(p->scratch);
}

/* ---- gradients ---- */

void parallel_point(const parallel *p) {
    const gpt *g = p->engine->model;
    for (size_t i = 0; i < g->n_params; i++) {
        g->params[i].grad =
            dtr_tensor_data(p->scratch != NULL ? p->scratch[i] : dtr_ddp_grad(p->ddp, i));
    }
}

dtr_status parallel_ready(const parallel *p, size_t param, int parts, bool first) {
    dtr_tensor *sum = dtr_ddp_grad(p->ddp, param);
    void *stream = p->engine->stream;
    dtr_status s = DTR_OK;
    if (p->scratch != NULL && first) {
        s = dtr_tensor_fill(sum, 0, stream);
    }
    if (p->scratch != NULL && s == DTR_OK) {
        s = dtr_tensor_axpy(sum, 1.0 / parts, p->scratch[param], stream);
    }
    return s == DTR_OK ? dtr_ddp_grad_ready(p->ddp, param, stream) : s;
}

/* ---- checkpoints ---- */

bool parallel_all(const parallel *p, bool mine) {
    uint8_t ok = mine;
    dtr_status s = dtr_allreduce(p->group, dtr_cpu(&ok, 1, DTR_BOOL), dtr_cpu(&ok, 1, DTR_BOOL),
                                 DTR_MIN, NULL, NULL);
    return s == DTR_OK && ok;
}

/* What goes with a checkpoint of parameters and optimizer: the seed, from which every rank draws
 * its samples, as text, and what this rank's hook has kept of gradients so far. */
static const char what_it_is[] = "train_gpt";
enum { SEED_TEXT = 24 };

static void seed_text(const parallel *p, char text[SEED_TEXT]) {
    snprintf(text, SEED_TEXT, "%llu", (unsigned long long)p->options->seed);
}

/* Whether what was loaded is of this training. */
static dtr_status check_metadata(const parallel *p, char *why, size_t cap) {
    const char *program = dtr_optim_metadata(p->optim, "program");
    const char *seed = dtr_optim_metadata(p->optim, "seed");
    char want[SEED_TEXT];
    seed_text(p, want);
    if (program == NULL || seed == NULL || strcmp(program, what_it_is) != 0) {
        snprintf(why, cap, "it was not written by %s", what_it_is);
        return DTR_ERR_IO;
    }
    if (strcmp(seed, want) != 0) {
        snprintf(why, cap, "it was made with --seed %s", seed);
        return DTR_ERR_MISMATCH;
    }
    return DTR_OK;
}

static bool report(dtr_status s, const char *path, char *why, size_t cap) {
    char text[400];
    snprintf(text, sizeof text, "%s", why[0] != '\0' ? why : dtr_last_error_message());
    if (s != DTR_OK) {
        snprintf(why, cap, "checkpoint %s: %s: %s", path, dtr_status_name(s), text);
    }
    return s == DTR_OK;
}

bool parallel_save(const parallel *p, const char *path, char *why, size_t cap) {
    char seed[SEED_TEXT];
    const dtr_text_pair metadata[] = { { "program", what_it_is }, { "seed", seed } };
    dtr_bytes hook = { NULL, 0 };
    dtr_optim_extra extra = DTR_OPTIM_EXTRA_INIT;
    extra.own = &hook;
    extra.metadata = metadata;
    extra.n_metadata = sizeof metadata / sizeof metadata[0];
    seed_text(p, seed);
    why[0] = '\0';
    dtr_status s = p->options->hook != NULL ? dtr_ddp_hook_state(p->ddp, &hook) : DTR_OK;
    if (!parallel_all(p, s == DTR_OK)) { /* nobody saves alone */
        s = s == DTR_OK ? DTR_ERR_REMOTE : s;
    } else {
        s = dtr_optim_save_extra(p->optim, path, &extra);
    }
    dtr_bytes_free(&hook, 1);
    return report(s, path, why, cap);
}

bool parallel_load(const parallel *p, const char *path, long *step, char *why, size_t cap) {
    dtr_bytes hook = { NULL, 0 };
    dtr_optim_extra extra = DTR_OPTIM_EXTRA_INIT;
    extra.own = &hook;
    why[0] = '\0';
    dtr_status s = dtr_optim_load_extra(p->optim, path, &extra);
    if (s == DTR_OK) {
        s = check_metadata(p, why, cap);
    }
    if (s == DTR_OK && hook.nbytes > 0 && p->options->hook != NULL) {
        s = dtr_ddp_set_hook_state(p->ddp, hook);
    }
    dtr_bytes_free(&hook, 1);
    *step = (long)dtr_optim_steps(p->optim);
    return report(s, path, why, cap);
}
