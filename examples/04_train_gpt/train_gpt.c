/* Train a small transformer with overlapped gradient reduction: each rank takes its shard of every
 * batch, backward reports gradients as they become final, DDP averages them in buckets meanwhile.
 * Run: mpirun -n 2 ./train_gpt --verify */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dtr/dtr.h>

#include "checkpoint.h"
#include "corpus.h"
#include "gpt.h"
#include "options.h"

typedef struct trainer {
    train_options options;
    dtr_world *world;
    dtr_group *group;
    int rank, size;
    corpus text;
    gpt *model;
    dtr_param *params; /* one per model parameter, tensors over the model's memory */
    dtr_ddp *ddp;
    float *m, *v; /* AdamW state */
    uint8_t *input, *target;
    long step;        /* steps done */
    float *reference; /* losses of the one-rank run, [verify] on rank 0 */
    double worst;     /* largest relative difference seen against it */
    double start, comm_s, exposed_s, loss_sum, loss_n;
    dtr_status failed; /* of a call inside backward */
} trainer;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Warm up over 20 steps, then a cosine down to a tenth. */
static float rate_at(const train_options *o, long step) {
    double warm = fmin(1.0, (double)(step + 1) / 20.0);
    double done = fmin(1.0, (double)step / (double)o->steps);
    return (float)((double)o->rate * warm * (0.55 + 0.45 * cos(3.14159265358979 * done)));
}

static void load_batch(const trainer *t, long step, int first, int count, uint8_t *input,
                       uint8_t *target) {
    int context = t->options.model.context;
    for (int i = 0; i < count; i++) {
        corpus_sequence(&t->text, t->options.seed, step, first + i, context, input + i * context,
                        target + i * context);
    }
}

/* ---- the same training on one rank, for comparison ---- */

static void not_told(void *arg, size_t param) {
    (void)arg;
    (void)param;
}

/* Losses of the first `verify` steps with the global batch on this rank alone. */
static bool train_alone(trainer *t) {
    const train_options *o = &t->options;
    int batch = o->batch * t->size;
    gpt *g = gpt_create(o->model, batch, o->seed);
    size_t count = g != NULL ? gpt_count(g) : 0, bytes = (size_t)batch * (size_t)o->model.context;
    float *state = calloc(3 * count, sizeof *state);
    uint8_t *input = malloc(2 * bytes);
    t->reference = calloc((size_t)o->verify, sizeof *t->reference);
    bool ok = g != NULL && state != NULL && input != NULL && t->reference != NULL;
    if (ok) {
        float *grad = state;
        for (size_t i = 0; i < g->n_params; i++) {
            g->params[i].grad = grad;
            grad += g->params[i].count;
        }
    }
    for (long step = 0; ok && step < o->verify; step++) {
        load_batch(t, step, 0, batch, input, input + bytes);
        t->reference[step] = gpt_forward(g, input, input + bytes);
        gpt_backward(g, input, input + bytes, not_told, NULL);
        gpt_adamw(g, state + count, state + 2 * count, step + 1, rate_at(o, step));
    }
    free(input);
    free(state);
    gpt_free(g);
    return ok;
}

/* ---- set-up ---- */

static dtr_status make_params(trainer *t) {
    gpt *g = t->model;
    t->params = calloc(g->n_params, sizeof *t->params);
    if (t->params == NULL) {
        return DTR_ERR_NOMEM;
    }
    for (size_t i = 0; i < g->n_params; i++) {
        gpt_param *p = &g->params[i];
        t->params[i].name = p->name;
        dtr_status s = dtr_tensor_from_buffer(dtr_cpu(p->value, p->count, DTR_F32), p->ndim,
                                              p->shape, NULL, NULL, NULL, &t->params[i].value);
        if (s != DTR_OK) {
            return s;
        }
    }
    return DTR_OK;
}

/* Memory of this rank. False when there is too little. */
static bool make_model(trainer *t) {
    const train_options *o = &t->options;
    size_t bytes = (size_t)o->batch * (size_t)o->model.context;
    t->model = gpt_create(o->model, o->batch, o->seed);
    if (t->model == NULL) {
        return false;
    }
    t->m = calloc(gpt_count(t->model), sizeof *t->m);
    t->v = calloc(gpt_count(t->model), sizeof *t->v);
    t->input = malloc(bytes);
    t->target = malloc(bytes);
    return t->m != NULL && t->v != NULL && t->input != NULL && t->target != NULL;
}

/* All ranks learn whether any of them failed, so that none goes on alone. */
static bool all_well(const trainer *t, bool mine) {
    uint8_t ok = mine;
    dtr_status s = dtr_allreduce(t->group, dtr_cpu(&ok, 1, DTR_BOOL), dtr_cpu(&ok, 1, DTR_BOOL),
                                 DTR_MIN, NULL, NULL);
    return s == DTR_OK && ok;
}

static bool prepare(trainer *t) {
    char why[512] = "out of memory";
    bool ok = corpus_load(&t->text, t->options.data, why, sizeof why) == 0;
    if (ok && t->text.size <= (size_t)t->options.model.context) {
        snprintf(why, sizeof why, "%s has %zu bytes; --context %d needs more", t->options.data,
                 t->text.size, t->options.model.context);
        ok = false;
    }
    ok = ok && make_model(t);
    if (ok && t->options.checkpoint != NULL) {
        ok =
            checkpoint_load(t->options.checkpoint, t->model, t->m, t->v, &t->step, why, sizeof why);
    }
    if (!ok) {
        fprintf(stderr, "train_gpt: rank %d: %s\n", t->rank, why);
    }
    return all_well(t, ok);
}

static dtr_status wrap(trainer *t) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.grad_as_bucket_view = true; /* backward writes straight into the buckets */
    o.bucket_cap_bytes =
        512 * 1024; /* a small model: several buckets, so that reduction starts early */
    o.first_bucket_bytes = 128 * 1024;
    dtr_status s = make_params(t);
    return s != DTR_OK ? s : dtr_ddp_create(t->group, t->params, t->model->n_params, &o, &t->ddp);
}

/* ---- training ---- */

static void grad_ready(void *arg, size_t param) {
    trainer *t = arg;
    dtr_status s = dtr_ddp_grad_ready(t->ddp, param, NULL);
    if (t->failed == DTR_OK) {
        t->failed = s;
    }
}

/* Mean loss over all ranks, which is the loss of the global batch. */
static dtr_status global_loss(const trainer *t, float mine, float *loss) {
    *loss = mine;
    return dtr_allreduce(t->group, dtr_cpu(loss, 1, DTR_F32), dtr_cpu(loss, 1, DTR_F32), DTR_AVG,
                         NULL, NULL);
}

static dtr_status train_step(trainer *t, float *loss) {
    gpt *g = t->model;
    const train_options *o = &t->options;
    load_batch(t, t->step, t->rank * o->batch, o->batch, t->input, t->target);
    float mine = gpt_forward(g, t->input, t->target);
    for (size_t i = 0; i < g->n_params;
         i++) { /* the buckets move once, when DDP has learned the ready order */
        g->params[i].grad = dtr_tensor_data(dtr_ddp_grad(t->ddp, i));
    }
    t->failed = DTR_OK;
    gpt_backward(g, t->input, t->target, grad_ready, t);
    dtr_status s = dtr_ddp_backward_end(t->ddp, NULL);
    if (t->failed != DTR_OK || s != DTR_OK) {
        return t->failed != DTR_OK ? t->failed : s;
    }
    gpt_adamw(g, t->m, t->v, t->step + 1, rate_at(o, t->step));
    t->step++;
    return global_loss(t, mine, loss);
}

/* One line per twentieth of the way: launchers give ranks a terminal of their own, so redrawing a
 * line in place would spoil every log. The loss is the mean since the last line. */
static void show(trainer *t, long first, float loss, bool last) {
    static const char full[] = "##############################";
    dtr_ddp_stats stats = { .struct_size = sizeof stats };
    if (dtr_ddp_get_stats(t->ddp, &stats) == DTR_OK) {
        t->comm_s += stats.last.comm_s;
        t->exposed_s += stats.last.exposed_comm_s;
    }
    long every = t->options.steps / 20 > 0 ? t->options.steps / 20 : 1;
    t->loss_sum += (double)loss;
    t->loss_n++;
    if (t->rank != 0 || !(last || t->step == first + 1 || t->step % every == 0)) {
        return;
    }
    double done = (double)(t->step - first), s = now() - t->start;
    double tokens = done * t->size * t->options.batch * t->options.model.context;
    printf(
        "[%-30.*s] step %ld/%ld  loss %.3f  %6.0f tokens/s  comm %.2f ms/step, exposed %.2f ms\n",
        (int)(30 * t->step / t->options.steps), full, t->step, t->options.steps,
        t->loss_sum / t->loss_n, tokens / s, 1e3 * t->comm_s / done, 1e3 * t->exposed_s / done);
    fflush(stdout);
    t->loss_sum = t->loss_n = 0;
}

/* Rank 0 compares with its own run alone. */
static void compare(trainer *t, float loss) {
    if (t->rank == 0 && t->step <= t->options.verify) {
        float want = t->reference[t->step - 1];
        t->worst = fmax(t->worst, fabs((double)(loss - want)) / (double)want);
    }
}

static bool save(const trainer *t) {
    char why[512] = "";
    bool ok = t->rank != 0 || checkpoint_save(t->options.checkpoint, t->model, t->m, t->v, t->step,
                                              why, sizeof why);
    if (!ok) {
        fprintf(stderr, "train_gpt: %s\n", why);
    }
    return all_well(t, ok);
}

static bool train(trainer *t) {
    const train_options *o = &t->options;
    long first = t->step, last = o->stop_at > 0 && o->stop_at < o->steps ? o->stop_at : o->steps;
    t->start = now();
    while (t->step < last) {
        float loss = 0;
        dtr_status s = train_step(t, &loss);
        if (s != DTR_OK) {
            fprintf(stderr, "train_gpt: rank %d, step %ld: %s: %s\n", t->rank, t->step,
                    dtr_status_name(s), dtr_last_error_message());
            return false;
        }
        compare(t, loss);
        show(t, first, loss, t->step == last);
        if (o->checkpoint != NULL && o->save_every > 0 && t->step % o->save_every == 0 &&
            !save(t)) {
            return false;
        }
    }
    return o->checkpoint == NULL || save(t);
}

/* ---- after training ---- */

/* Every rank sees every rank's hash of its parameters. */
static bool same_parameters(const trainer *t) {
    int64_t mine = (int64_t)gpt_hash(t->model), *all = calloc((size_t)t->size, sizeof *all);
    bool same =
        all != NULL && dtr_allgather(t->group, dtr_cpu(&mine, 1, DTR_I64),
                                     dtr_cpu(all, (size_t)t->size, DTR_I64), NULL, NULL) == DTR_OK;
    for (int r = 0; same && r < t->size; r++) {
        same = all[r] == mine;
    }
    if (t->rank == 0) {
        printf("parameters on %d ranks: %s (hash %016llx)\n", t->size,
               same ? "bitwise equal" : "DIFFERENT", (unsigned long long)mine);
    }
    free(all);
    return same;
}

static bool verified(const trainer *t) {
    if (t->rank != 0 || t->options.verify == 0) {
        return true;
    }
    const double limit = 2e-3; /* float sums in another order, amplified over the steps */
    bool ok = t->worst <= limit;
    printf("verify: %ld steps on %d ranks against one rank with the same global batch: largest "
           "relative loss difference "
           "%.1e (limit %.0e): %s\n",
           t->options.verify, t->size, t->worst, limit, ok ? "agrees" : "DISAGREES");
    return ok;
}

static void sample(const trainer *t) {
    if (t->rank != 0 || t->options.sample == 0) {
        return;
    }
    static const char prompt[] = "The ";
    size_t filled = sizeof prompt - 1, length = filled + (size_t)t->options.sample;
    uint8_t *text = calloc(length + 1, 1);
    if (text != NULL) {
        memcpy(text, prompt, filled);
        gpt_sample(t->model, text, filled, length, 0.7f, t->options.seed);
        printf("sample: %s\n", (char *)text);
    }
    free(text);
}

static void introduce(const trainer *t) {
    if (t->rank == 0) {
        printf("train_gpt: %zu parameters in %zu arrays, %d ranks x batch %d x context %d, %zu "
               "bytes of text from %d "
               "file%s, %s\n",
               gpt_count(t->model), t->model->n_params, t->size, t->options.batch,
               t->options.model.context, t->text.size, t->text.files, t->text.files == 1 ? "" : "s",
               gpt_matmul_name());
        if (t->step > 0) {
            printf("resumed from %s at step %ld\n", t->options.checkpoint, t->step);
        }
        fflush(stdout);
    }
}

static bool run(trainer *t) {
    if (!prepare(t)) {
        return false;
    }
    introduce(t);
    if (t->step > 0) {
        t->options.verify = 0; /* the reference starts at step 0 */
    }
    if (t->options.verify > t->options.steps) {
        t->options.verify = t->options.steps;
    }
    if (!all_well(t, t->rank != 0 || t->options.verify == 0 || train_alone(t))) {
        return false;
    }
    dtr_status s = wrap(t);
    if (s != DTR_OK) {
        fprintf(stderr, "train_gpt: rank %d: %s: %s\n", t->rank, dtr_status_name(s),
                dtr_last_error_message());
        return false;
    }
    if (!train(t)) {
        return false;
    }
    bool same = same_parameters(t), agrees = all_well(t, verified(t));
    sample(t);
    return same && agrees;
}

static void clean_up(trainer *t) {
    dtr_ddp_destroy(t->ddp);
    for (size_t i = 0; t->params != NULL && i < t->model->n_params; i++) {
        dtr_tensor_release(t->params[i].value);
    }
    free(t->params);
    gpt_free(t->model);
    corpus_free(&t->text);
    free(t->m);
    free(t->v);
    free(t->input);
    free(t->target);
    free(t->reference);
}

int main(int argc, char **argv) {
    trainer t = { 0 };
    if (dtr_world_create(NULL, &t.world) != DTR_OK) {
        fprintf(stderr, "train_gpt: %s\n", dtr_last_error_message());
        return 1;
    }
    t.group = dtr_world_group(t.world);
    t.rank = dtr_world_rank(t.world);
    t.size = dtr_world_size(t.world);
    int parsed = train_options_parse(&t.options, argc, argv, t.rank == 0);
    bool ok = parsed == 0 && run(&t);
    clean_up(&t);
    dtr_world_destroy(t.world);
    return parsed == 1 ? 0 : parsed == 2 ? 2 : ok ? 0 : 1;
}
