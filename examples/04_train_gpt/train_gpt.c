/* Train a small transformer with overlapped gradient reduction: each rank takes its shard of every
 * batch, backward reports gradients as they become final, DDP averages them in buckets meanwhile.
 * Run: mpirun -n 2 ./train_gpt --verify */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <dtr/dtr.h>

#include "corpus.h"
#include "engine.h"
#include "options.h"
#include "parallel.h"

typedef struct trainer {
    train_options options;
    dtr_world *world;
    dtr_group *group;
    int rank, size;
    corpus text;
    engine engine;
    parallel p;
    FILE *curve; /* [--curve] on rank 0 */
    int part;    /* backward pass of this step, from 0 */
    uint8_t *input, *target;
    long step;        /* steps done */
    long shared;      /* steps that all ranks make, unless the time is up before */
    float *reference; /* losses of the one-rank run, [verify] on rank 0 */
    double worst;     /* largest relative difference seen against it */
    double start, comm_s, exposed_s, loss_sum, loss_n;
    dtr_status failed; /* of a call inside backward */
    bool warned;       /* some rank was: all save and end */
} trainer;

/* As sysexits.h has it for what may succeed later: the program has saved and wants to go on. */
enum { TRY_AGAIN = 75 };

/* A scheduler says so some time before it ends a job. */
static volatile sig_atomic_t time_is_up;
static void heed_warning(int number) {
    (void)number;
    time_is_up = 1;
}

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

static void not_reported(void *arg, size_t param) {
    (void)arg;
    (void)param;
}

/* Losses of the first `verify` steps with the global batch on this rank alone. */
static bool train_alone(trainer *t) {
    const train_options *o = &t->options;
    int batch = o->batch * o->accumulate * t->size;
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
        gpt_backward(g, input, input + bytes, not_reported, NULL);
        if (o->clip > 0) {
            gpt_clip(g, o->clip);
        }
        gpt_adamw(g, state + count, state + 2 * count, step + 1, rate_at(o, step));
    }
    free(input);
    free(state);
    gpt_free(g);
    return ok;
}

/* ---- set-up ---- */

static bool make_model(trainer *t, char *why, size_t cap) {
    const train_options *o = &t->options;
    size_t bytes = (size_t)o->batch * (size_t)o->model.context;
    t->input = malloc(bytes);
    t->target = malloc(bytes);
    return t->input != NULL && t->target != NULL &&
           engine_open(&t->engine, t->world, o->model, o->batch, o->seed, why, cap);
}

static bool prepare(trainer *t) {
    char why[512] = "out of memory";
    bool ok = corpus_load(&t->text, t->options.data, why, sizeof why) == 0;
    if (ok && t->text.size <= (size_t)t->options.model.context) {
        snprintf(why, sizeof why, "%s has %zu bytes; --context %d needs more", t->options.data,
                 t->text.size, t->options.model.context);
        ok = false;
    }
    ok = ok && make_model(t, why, sizeof why);
    if (ok && t->rank == 0 && t->options.curve != NULL) {
        t->curve = fopen(t->options.curve, "w");
        snprintf(why, sizeof why, "cannot write %s", t->options.curve);
        ok = t->curve != NULL;
    }
    if (!ok) {
        fprintf(stderr, "train_gpt: rank %d: %s\n", t->rank, why);
    }
    return parallel_all(&t->p, ok);
}

/* --resume must find its file, --checkpoint starts afresh without. */
static bool resume(trainer *t) {
    const train_options *o = &t->options;
    const char *path = o->resume != NULL ? o->resume : o->checkpoint;
    char why[512] = "";
    if (path == NULL) {
        return true;
    }
    bool there = parallel_all(&t->p, access(path, F_OK) == 0);
    if (!there && o->resume != NULL) {
        fprintf(stderr, "train_gpt: rank %d: --resume %s: no such file on some rank\n", t->rank,
                path);
    }
    if (!there) {
        return o->resume == NULL;
    }
    bool ok = parallel_load(&t->p, path, &t->step, why, sizeof why);
    if (!ok) {
        fprintf(stderr, "train_gpt: rank %d: %s\n", t->rank, why);
    } else if (t->rank == 0 && t->step > 0) {
        printf("resumed from %s at step %ld\n", path, t->step);
    }
    return parallel_all(&t->p, ok);
}

/* ---- training ---- */

static void grad_ready(void *arg, size_t param) {
    trainer *t = arg;
    dtr_status s = parallel_ready(&t->p, param, t->options.accumulate, t->part == 0);
    if (t->failed == DTR_OK) {
        t->failed = s;
    }
}

/* Mean loss over all ranks, which is the loss of the global batch, and whether one was warned. */
static dtr_status global_loss(trainer *t, float mine, float *loss) {
    float both[2] = { mine, time_is_up ? 1 : 0 };
    dtr_status s = dtr_allreduce(t->group, dtr_cpu(both, 2, DTR_F32), dtr_cpu(both, 2, DTR_F32),
                                 DTR_AVG, NULL, NULL);
    *loss = both[0];
    t->warned = both[1] > 0;
    return s;
}

/* Forward and backward of one batch; averaged with the last one of the step. */
static dtr_status train_part(trainer *t, float *loss) {
    const train_options *o = &t->options;
    float mine = 0;
    load_batch(t, t->step, (t->part * t->size + t->rank) * o->batch, o->batch, t->input, t->target);
    dtr_status s = dtr_ddp_set_sync(t->p.ddp, t->part == o->accumulate - 1);
    if (s == DTR_OK) {
        s = dtr_ddp_forward_begin(t->p.ddp);
    }
    if (DTR_FAILED(s)) {
        return s;
    }
    engine_forward(&t->engine, t->input, t->target);
    s = dtr_ddp_forward_end(t->p.ddp, NULL, 0);
    if (DTR_FAILED(s)) {
        return s;
    }
    parallel_point(&t->p);
    t->failed = DTR_OK;
    engine_backward(&t->engine, grad_ready, t);
    s = dtr_ddp_backward_end(t->p.ddp, t->engine.stream);
    s = DTR_FAILED(t->failed) ? t->failed : s;
    if (s == DTR_OK) {
        s = engine_loss(&t->engine, &mine);
        *loss += mine / (float)o->accumulate;
    }
    return s;
}

static dtr_status train_step(trainer *t, float *loss) {
    const train_options *o = &t->options;
    dtr_status s = DTR_OK;
    float mine = 0;
    for (t->part = 0; t->part < o->accumulate && s == DTR_OK; t->part++) {
        s = train_part(t, &mine);
    }
    if (s == DTR_OK) {
        s = dtr_optim_set_rate(t->p.optim, (double)rate_at(o, t->step));
    }
    if (s == DTR_OK) {
        s = dtr_optim_step(t->p.optim);
    }
    if (DTR_FAILED(s)) {
        return s;
    }
    t->step++;
    *loss = mine; /* ranks that have joined take no part in collectives of the program's own */
    return t->step > t->shared ? DTR_OK : global_loss(t, mine, loss);
}

/* One line per twentieth of the way: launchers give ranks a terminal of their own, so redrawing a
 * line in place would spoil every log. The loss is the mean since the last line. */
static void show(trainer *t, long first, float loss, bool last) {
    static const char full[] = "##############################";
    dtr_ddp_stats stats = DTR_DDP_STATS_INIT;
    if (dtr_ddp_get_stats(t->p.ddp, &stats) == DTR_OK) {
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
    double tokens =
        done * t->size * t->options.batch * t->options.accumulate * t->options.model.context;
    printf(
        "[%-30.*s] step %ld/%ld  loss %.3f  %6.0f tokens/s  comm %.2f ms/step, exposed %.2f ms\n",
        (int)(30 * t->step / t->options.steps), full, t->step, t->options.steps,
        t->loss_sum / t->loss_n, tokens / s, 1e3 * t->comm_s / done, 1e3 * t->exposed_s / done);
    fflush(stdout);
    t->loss_sum = t->loss_n = 0;
}

/* A line of the loss curve: nine digits tell every float. */
static void draw(const trainer *t, float loss) {
    if (t->curve != NULL) {
        fprintf(t->curve, "%ld %.9g\n", t->step, (double)loss);
    }
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
    bool ok = parallel_save(&t->p, t->options.checkpoint, why, sizeof why);
    if (!ok) {
        fprintf(stderr, "train_gpt: %s\n", why);
    }
    return parallel_all(&t->p, ok);
}

static bool report_step(const trainer *t, dtr_status s) {
    if (DTR_FAILED(s)) {
        fprintf(stderr, "train_gpt: rank %d, step %ld: %s: %s\n", t->rank, t->step,
                dtr_status_name(s), dtr_last_error_message());
    }
    return s == DTR_OK;
}

/* At the last step that all ranks make, after which [--uneven] their optimizers differ; before it
 * when the time is up, or every so many. */
static bool save_is_due(const trainer *t) {
    const train_options *o = &t->options;
    return o->checkpoint != NULL && t->step <= t->shared &&
           (t->step == t->shared || t->warned ||
            (o->save_every > 0 && t->step % o->save_every == 0));
}

static bool train(trainer *t) {
    const train_options *o = &t->options;
    const long first = t->step;
    const long last = t->shared + (o->uneven && t->shared == o->steps ? t->rank : 0);
    t->start = now();
    if (first >= t->shared && o->checkpoint != NULL && !save(t)) {
        return false;
    }
    if (o->uneven && !report_step(t, dtr_ddp_join_begin(t->p.ddp, NULL))) {
        return false;
    }
    while (t->step < last && !t->warned) {
        float loss = 0;
        if (!report_step(t, train_step(t, &loss))) {
            return false;
        }
        compare(t, loss);
        draw(t, loss);
        t->warned = t->warned && t->step < t->shared;
        show(t, first, loss, t->step == last || t->warned);
        if (save_is_due(t) && !save(t)) {
            return false;
        }
    }
    return !o->uneven || report_step(t, dtr_ddp_join_end(t->p.ddp));
}

/* ---- after training ---- */

/* Every rank sees every rank's hash of its parameters. */
static bool same_parameters(trainer *t) {
    gpt *g = engine_fetch(&t->engine);
    int64_t mine = g != NULL ? (int64_t)gpt_hash(g) : t->rank; /* without: different */
    int64_t *all = calloc((size_t)t->size, sizeof *all);
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
    /* Float sums in another order, amplified over the steps; gradients of fewer bits. */
    const double limit = t->options.hook != NULL || t->options.mixed ? 5e-2 : 2e-3;
    bool ok = t->worst <= limit;
    printf("verify: %ld steps on %d ranks against one rank with the same global batch: largest "
           "relative loss difference "
           "%.1e (limit %.0e): %s\n",
           t->options.verify, t->size, t->worst, limit, ok ? "agrees" : "DISAGREES");
    return ok;
}

static void sample(trainer *t) {
    if (t->rank != 0 || t->options.sample == 0) {
        return;
    }
    static const char prompt[] = "The ";
    size_t filled = sizeof prompt - 1, length = filled + (size_t)t->options.sample;
    uint8_t *text = calloc(length + 1, 1);
    gpt *g = engine_fetch(&t->engine);
    if (text != NULL && g != NULL) {
        memcpy(text, prompt, filled);
        gpt_sample(g, text, filled, length, 0.7f, t->options.seed);
        printf("sample: %s\n", (char *)text);
    }
    free(text);
}

/* What the options add to the plain training. */
static void introduce_options(const trainer *t) {
    const train_options *o = &t->options;
    dtr_zero_state state;
    if (o->zero && dtr_optim_state(t->p.optim, 0, &state) == DTR_OK) {
        printf("sharded optimizer: %zu bytes of state on this rank, %zu without sharding\n",
               dtr_optim_state_nbytes(t->p.optim), 2 * sizeof(float) * gpt_count(t->engine.model));
    }
    if (o->accumulate > 1) {
        printf("%d backward passes per step\n", o->accumulate);
    }
    if (o->hook != NULL || o->mixed) {
        printf("gradients are averaged in %s%s%s\n",
               o->mixed ? dtr_dtype_name(o->mixed_dtype) : "f32",
               o->hook != NULL ? ", by hook " : "", o->hook != NULL ? o->hook : "");
    }
    if (o->uneven) {
        printf("rank r trains r steps more than rank 0\n");
    }
}

static void introduce(const trainer *t) {
    if (t->rank == 0) {
        printf("train_gpt: %zu parameters in %zu arrays, %d ranks x batch %d x context %d, %zu "
               "bytes of text from %d "
               "file%s, %s\n",
               gpt_count(t->engine.model), t->engine.model->n_params, t->size, t->options.batch,
               t->options.model.context, t->text.size, t->text.files, t->text.files == 1 ? "" : "s",
               engine_name());
        introduce_options(t);
        fflush(stdout);
    }
}

static bool run(trainer *t) {
    if (!prepare(t)) {
        return false;
    }
    dtr_status s = parallel_make(&t->p, &t->engine, &t->options);
    if (DTR_FAILED(s)) {
        fprintf(stderr, "train_gpt: rank %d: %s: %s\n", t->rank, dtr_status_name(s),
                dtr_last_error_message());
    }
    if (!parallel_all(&t->p, s == DTR_OK)) {
        return false;
    }
    introduce(t);
    if (!resume(t)) {
        return false;
    }
    t->shared = t->options.steps;
    if (t->options.stop_at > 0 && t->options.stop_at < t->shared) {
        t->shared = t->options.stop_at;
    }
    if (t->step > 0) {
        t->options.verify = 0; /* the reference starts at step 0 */
    }
    if (t->options.verify > t->options.steps) {
        t->options.verify = t->options.steps;
    }
    if (!parallel_all(&t->p, t->rank != 0 || t->options.verify == 0 || train_alone(t)) ||
        !train(t)) {
        return false;
    }
    bool same = same_parameters(t), agrees = parallel_all(&t->p, verified(t));
    if (!t->warned) {
        sample(t);
    } else if (t->rank == 0) {
        printf("the time is up: saved to %s at step %ld; the same command goes on from there\n",
               t->options.checkpoint, t->step);
    }
    return same && agrees;
}

static void clean_up(trainer *t) {
    parallel_free(&t->p);
    if (t->curve != NULL) {
        fclose(t->curve);
    }
    if (t->options.deterministic) {
        dtr_group_destroy(t->group);
    }
    engine_close(&t->engine);
    corpus_free(&t->text);
    free(t->input);
    free(t->target);
    free(t->reference);
}

static bool choose_group(trainer *t) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.deterministic = true;
    if (!t->options.deterministic) {
        return true;
    }
    t->group = NULL;
    dtr_status s = dtr_group_split(dtr_world_group(t->world), 0, t->rank, &o, &t->group);
    t->p.group = t->group;
    if (DTR_FAILED(s)) {
        fprintf(stderr, "train_gpt: %s: %s\n", dtr_status_name(s), dtr_last_error_message());
    }
    return s == DTR_OK;
}

int main(int argc, char **argv) {
    trainer t = { 0 };
    if (DTR_FAILED(dtr_world_create(NULL, &t.world))) {
        fprintf(stderr, "train_gpt: %s\n", dtr_last_error_message());
        return 1;
    }
    t.p.world = t.world;
    t.group = t.p.group = dtr_world_group(t.world);
    t.rank = dtr_world_rank(t.world);
    t.size = dtr_world_size(t.world);
    int parsed = train_options_parse(&t.options, argc, argv, t.rank == 0);
    if (parsed == 0 && t.options.checkpoint != NULL) {
        signal(SIGUSR2, heed_warning);
    }
    bool ok = parsed == 0 && choose_group(&t) && run(&t);
    bool again = ok && t.warned;
    clean_up(&t);
    dtr_world_destroy(t.world);
    return parsed == 1 ? 0 : parsed == 2 ? 2 : again ? TRY_AGAIN : ok ? 0 : 1;
}
