/* The engine on a GPU: gpt.c's passes in the same order, as products and kernels on one stream. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "parts.h"

enum { VALUES, ACTIVATIONS, ONES, LOSS, BYTES, LOSS_HERE, BYTES_HERE, N_TENSORS };

struct engine_own {
    gpu gpu;
    gpt *host;                     /* initial values; those of engine_fetch */
    gpt there;                     /* the model whose memory is the GPU's */
    gpt_activations act;           /* likewise */
    float *dprob;                  /* as block_act.prob */
    dtr_tensor *tensor[N_TENSORS]; /* those with HERE are in pinned host memory */
    int rows;
    dtr_status failed; /* of a call of the library */
};

static void keep(struct engine_own *o, dtr_status s) {
    o->failed = DTR_FAILED(o->failed) ? o->failed : s;
}

static float *floats(const struct engine_own *o, int which) {
    return dtr_tensor_data(o->tensor[which]);
}

/* ---- set-up ---- */

/* The device of the world, or one that the ranks of a node share out. */
static bool choose_device(engine *e, dtr_world *world) {
    int n = dtr_device_count(DTR_CUDA);
    e->device = dtr_world_device(world);
    if (e->device.type != DTR_CUDA && n > 0) {
        e->device = (dtr_device){ DTR_CUDA, dtr_world_local_rank(world) % n };
    }
    return n > 0;
}

static void make_tensor(const engine *e, dtr_world *world, int which, dtr_dtype type,
                        size_t count) {
    const dtr_device cpu = { DTR_CPU, 0 };
    const int64_t shape[] = { (int64_t)count };
    bool here = which == LOSS_HERE || which == BYTES_HERE;
    keep(e->own, dtr_tensor_empty(world, type, here ? cpu : e->device,
                                  here ? DTR_MEM_PINNED : DTR_MEM_DEFAULT, 1, shape,
                                  &e->own->tensor[which]));
}

/* Parameters to the GPU, or back. */
static void copy_values(engine *e, bool back) {
    struct engine_own *o = e->own;
    dtr_tensor *here = NULL;
    const size_t count = gpt_count(o->host);
    const int64_t shape[] = { (int64_t)count };
    keep(o, dtr_tensor_from_buffer(dtr_cpu(o->host->memory, count, DTR_F32), 1, shape, NULL, NULL,
                                   NULL, &here));
    if (o->failed == DTR_OK) {
        keep(o, dtr_tensor_copy(back ? here : o->tensor[VALUES], back ? o->tensor[VALUES] : here,
                                e->stream));
    }
    dtr_tensor_release(here);
}

static void make_memory(engine *e, dtr_world *world) {
    struct engine_own *o = e->own;
    const gpt_config *c = &o->there.config;
    size_t rows = (size_t)o->rows, used = gpt_lay_out(&o->act, &o->there, NULL);
    size_t probs = rows * (size_t)c->heads * (size_t)c->context;
    make_tensor(e, world, VALUES, DTR_F32, gpt_count(o->host));
    make_tensor(e, world, ACTIVATIONS, DTR_F32, used + probs);
    make_tensor(e, world, ONES, DTR_F32, rows);
    make_tensor(e, world, LOSS, DTR_F32, rows);
    make_tensor(e, world, BYTES, DTR_U8, 2 * rows);
    make_tensor(e, world, LOSS_HERE, DTR_F32, rows);
    make_tensor(e, world, BYTES_HERE, DTR_U8, 2 * rows);
    if (o->failed != DTR_OK) {
        return;
    }
    gpt_lay_out(&o->act, &o->there, floats(o, ACTIVATIONS));
    o->dprob = floats(o, ACTIVATIONS) + used;
    keep(o, dtr_tensor_fill(o->tensor[ONES], 1, e->stream));
    copy_values(e, false);
    for (size_t i = 0; i < o->there.n_params; i++) {
        o->there.params[i] = o->host->params[i];
        o->there.params[i].value = floats(o, VALUES) + (o->host->params[i].value - o->host->memory);
    }
    gpu_set_mark(&o->gpu, GPU_LOSS_THERE); /* dtr_ddp_create wants values that are complete */
    gpu_wait(&o->gpu, GPU_LOSS_THERE);
}

bool engine_open(engine *e, dtr_world *world, gpt_config config, int batch, uint64_t seed,
                 char *why, size_t cap) {
    struct engine_own *o = calloc(1, sizeof *o);
    *e = (engine){ .own = o };
    if (o == NULL || (o->host = gpt_create(config, 1, seed)) == NULL) {
        snprintf(why, cap, "out of memory");
        return false;
    }
    if (!choose_device(e, world)) {
        snprintf(why, cap, "no usable GPU (dtr-info says why); train_gpt trains on the CPU");
        return false;
    }
    gpu_open(&o->gpu, e->device.index);
    e->stream = o->gpu.stream;
    o->rows = batch * config.context;
    o->there = *o->host;
    o->there.batch = batch;
    o->there.params = calloc(o->host->n_params, sizeof *o->there.params);
    o->act.block = calloc((size_t)config.layers, sizeof *o->act.block);
    if (o->there.params == NULL || o->act.block == NULL) {
        keep(o, DTR_ERR_NOMEM);
    } else if (o->gpu.failed == NULL) {
        make_memory(e, world);
    }
    e->model = &o->there;
    snprintf(why, cap, "%s", o->gpu.failed != NULL ? o->gpu.failed : dtr_last_error_message());
    return o->gpu.failed == NULL && o->failed == DTR_OK;
}

void engine_close(engine *e) {
    struct engine_own *o = e->own;
    if (o == NULL) {
        return;
    }
    for (int i = 0; i < N_TENSORS; i++) {
        dtr_tensor_release(o->tensor[i]);
    }
    gpu_close(&o->gpu);
    free(o->act.block);
    free(o->there.params);
    gpt_free(o->host);
    free(o);
}

const char *engine_name(void) {
    return "cuBLAS on GPUs";
}

/* ---- the layers ---- */

static gpu_matrix matrix(float *data, int rows, int columns) {
    return (gpu_matrix){ data, rows, columns, columns, false, 0 };
}

static gpu_matrix turned(gpu_matrix m) {
    m.turned = true;
    return m;
}

/* Sums of columns: the gradient of a bias. */
static void sums(struct engine_own *o, float *out, float *x, int columns) {
    gpu_multiply(&o->gpu, 1, 1.0f, matrix(floats(o, ONES), 1, o->rows), matrix(x, o->rows, columns),
                 matrix(out, 1, columns));
}

/* Weight and bias are p[0] and p[1]; `beside`, unless NULL, is added. */
static void linear(struct engine_own *o, float *out, float *x, const gpt_param *p,
                   const float *beside, int from, int to) {
    gpu_multiply(&o->gpu, 1, 1.0f, matrix(x, o->rows, from), turned(matrix(p[0].value, to, from)),
                 matrix(out, o->rows, to));
    gpu_run(
        &o->gpu, GPT_bias,
        (gpt_args){
            .y = out, .a = p[1].value, .x = beside, .items = (long)o->rows * to, .columns = to });
}

static void linear_back(struct engine_own *o, float *dx, float *dout, float *x, gpt_param *p,
                        int from, int to) {
    gpu_matrix slope = matrix(dout, o->rows, to), in = matrix(x, o->rows, from);
    gpu_multiply(&o->gpu, 1, 1.0f, slope, matrix(p[0].value, to, from), matrix(dx, o->rows, from));
    gpu_multiply(&o->gpu, 1, 1.0f, turned(slope), in, matrix(p[0].grad, to, from));
    sums(o, p[1].grad, dout, to);
}

/* Gain and bias are p[0] and p[1]. */
static void norm(struct engine_own *o, float *out, float *mean, float *rstd, const float *x,
                 const gpt_param *p) {
    gpu_run(&o->gpu, GPT_norm,
            (gpt_args){ .y = out,
                        .mean = mean,
                        .rstd = rstd,
                        .x = x,
                        .a = p[0].value,
                        .b = p[1].value,
                        .items = o->rows,
                        .columns = o->there.config.width });
}

static void norm_back(struct engine_own *o, bool add, float *dx, float *dout, const float *x,
                      float *mean, float *rstd, gpt_param *p) {
    float *part = o->act.dwide; /* free here */
    int c = o->there.config.width;
    gpu_run(&o->gpu, GPT_norm_back,
            (gpt_args){ .y = dx,
                        .z = part,
                        .mean = mean,
                        .rstd = rstd,
                        .x = x,
                        .a = p[0].value,
                        .b = dout,
                        .items = o->rows,
                        .columns = c,
                        .scale = add ? 1 : 0 });
    sums(o, p[0].grad, part, c);
    sums(o, p[1].grad, dout, c);
}

static void gelu(struct engine_own *o, gpt_kernel which, float *y, const float *x) {
    gpu_run(&o->gpu, which,
            (gpt_args){ .y = y, .x = x, .items = 4L * o->rows * o->there.config.width });
}

/* ---- attention ---- */

/* The heads of one sequence in an array with rows of `stride`, from its column `at` on. */
static gpu_matrix heads(const struct engine_own *o, float *data, int seq, int stride, int at) {
    const gpt_config *c = &o->there.config;
    int size = c->width / c->heads;
    return (gpu_matrix){ data + (size_t)seq * (size_t)c->context * (size_t)stride + at,
                         c->context,
                         size,
                         stride,
                         false,
                         size };
}

/* Query, key or value (0, 1, 2). */
static gpu_matrix part_of(const struct engine_own *o, float *qkv, int seq, int which) {
    int c = o->there.config.width;
    return heads(o, qkv, seq, 3 * c, which * c);
}

/* A matrix for each head: what each position takes of each. */
static gpu_matrix scores(const struct engine_own *o, float *data, int seq) {
    const gpt_config *c = &o->there.config;
    long apart = (long)c->context * c->context;
    return (gpu_matrix){
        data + seq * c->heads * apart, c->context, c->context, c->context, false, apart
    };
}

static gpt_args score_rows(const struct engine_own *o, float *y, const float *x) {
    const gpt_config *c = &o->there.config;
    const int size = c->width / c->heads;
    return (gpt_args){ .y = y,
                       .x = x,
                       .items = (long)o->rows * c->heads,
                       .columns = c->context,
                       .scale = 1.0f / sqrtf((float)size) };
}

static void attention(struct engine_own *o, const block_act *b) {
    int n = o->there.config.heads, width = o->there.config.width;
    gpt_args rows = score_rows(o, b->prob, NULL);
    for (int s = 0; s < o->there.batch; s++) {
        gpu_multiply(&o->gpu, n, rows.scale, part_of(o, b->qkv, s, 0),
                     turned(part_of(o, b->qkv, s, 1)), scores(o, b->prob, s));
    }
    gpu_run(&o->gpu, GPT_softmax, rows);
    for (int s = 0; s < o->there.batch; s++) {
        gpu_multiply(&o->gpu, n, 1.0f, scores(o, b->prob, s), part_of(o, b->qkv, s, 2),
                     heads(o, b->mix, s, width, 0));
    }
}

static void attention_back(struct engine_own *o, float *dqkv, float *dout, const block_act *b) {
    int n = o->there.config.heads, width = o->there.config.width;
    for (int s = 0; s < o->there.batch; s++) {
        gpu_matrix slope = heads(o, dout, s, width, 0);
        gpu_multiply(&o->gpu, n, 1.0f, slope, turned(part_of(o, b->qkv, s, 2)),
                     scores(o, o->dprob, s));
        gpu_multiply(&o->gpu, n, 1.0f, turned(scores(o, b->prob, s)), slope,
                     part_of(o, dqkv, s, 2));
    }
    gpu_run(&o->gpu, GPT_softmax_back, score_rows(o, o->dprob, b->prob));
    for (int s = 0; s < o->there.batch; s++) {
        gpu_matrix slope = scores(o, o->dprob, s);
        gpu_multiply(&o->gpu, n, 1.0f, slope, part_of(o, b->qkv, s, 1), part_of(o, dqkv, s, 0));
        gpu_multiply(&o->gpu, n, 1.0f, turned(slope), part_of(o, b->qkv, s, 0),
                     part_of(o, dqkv, s, 1));
    }
}

/* ---- the passes ---- */

static void block_forward(struct engine_own *o, int layer, float *out) {
    const gpt_param *p = gpt_block_params(&o->there, layer);
    block_act *b = &o->act.block[layer];
    int c = o->there.config.width;
    norm(o, b->norm1, b->mean1, b->rstd1, b->in, p + NORM1_G);
    linear(o, b->qkv, b->norm1, p + QKV_W, NULL, c, 3 * c);
    attention(o, b);
    linear(o, b->mid, b->mix, p + PROJ_W, b->in, c, c);
    norm(o, b->norm2, b->mean2, b->rstd2, b->mid, p + NORM2_G);
    linear(o, b->fc, b->norm2, p + FC_W, NULL, c, 4 * c);
    gelu(o, GPT_gelu, b->gelu, b->fc);
    linear(o, out, b->gelu, p + OUT_W, b->mid, 4 * c, c);
}

/* Tokens and targets behind each other, through pinned memory: the host goes on at once. */
static void send_bytes(engine *e, const uint8_t *tokens, const uint8_t *target) {
    struct engine_own *o = e->own;
    uint8_t *here = dtr_tensor_data(o->tensor[BYTES_HERE]);
    gpu_wait(&o->gpu, GPU_TOKENS_READ);
    memcpy(here, tokens, (size_t)o->rows);
    memcpy(here + o->rows, target, (size_t)o->rows);
    keep(o, dtr_tensor_copy(o->tensor[BYTES], o->tensor[BYTES_HERE], e->stream));
    gpu_set_mark(&o->gpu, GPU_TOKENS_READ);
}

void engine_forward(engine *e, const uint8_t *tokens, const uint8_t *target) {
    struct engine_own *o = e->own;
    gpt_activations *a = &o->act;
    const gpt_config *config = &o->there.config;
    const gpt_param *p = o->there.params, *tail = gpt_block_params(&o->there, config->layers);
    const uint8_t *bytes = dtr_tensor_data(o->tensor[BYTES]);
    send_bytes(e, tokens, target);
    gpu_run(&o->gpu, GPT_embed,
            (gpt_args){ .y = a->block[0].in,
                        .x = p[TOKEN].value,
                        .a = p[POSITION].value,
                        .byte = bytes,
                        .items = (long)o->rows * config->width,
                        .columns = config->width,
                        .rows = config->context });
    for (int l = 0; l < config->layers; l++) {
        block_forward(o, l, l + 1 < config->layers ? a->block[l + 1].in : a->last_in);
    }
    norm(o, a->last, a->mean, a->rstd, a->last_in, tail + LAST_G);
    linear(o, a->logits, a->last, tail + HEAD_W, NULL, config->width, GPT_VOCAB);
    gpu_run(&o->gpu, GPT_loss,
            (gpt_args){ .y = a->logits,
                        .z = floats(o, LOSS),
                        .byte = bytes + o->rows,
                        .items = o->rows,
                        .columns = GPT_VOCAB,
                        .scale = 1.0f / (float)o->rows });
    keep(o, dtr_tensor_copy(o->tensor[LOSS_HERE], o->tensor[LOSS], e->stream));
    gpu_set_mark(&o->gpu, GPU_LOSS_THERE);
}

dtr_status engine_loss(engine *e, float *loss) {
    struct engine_own *o = e->own;
    double sum = 0;
    gpu_wait(&o->gpu, GPU_LOSS_THERE);
    if (o->gpu.failed != NULL) {
        fprintf(stderr, "train_gpt_gpu: %s\n", o->gpu.failed);
        return DTR_ERR_CUDA;
    }
    for (int r = 0; r < o->rows; r++) {
        sum += (double)floats(o, LOSS_HERE)[r];
    }
    *loss = (float)(sum / o->rows);
    return o->failed;
}

static void block_back(struct engine_own *o, int layer, const gpt_reporter *to) {
    gpt_param *p = gpt_block_params(&o->there, layer);
    gpt_activations *a = &o->act;
    block_act *b = &a->block[layer];
    int c = o->there.config.width;
    linear_back(o, a->dwide, a->dx, b->gelu, p + OUT_W, 4 * c, c);
    gpt_report(to, p + OUT_W);
    gelu(o, GPT_gelu_back, a->dwide, b->fc);
    linear_back(o, a->dmid, a->dwide, b->norm2, p + FC_W, c, 4 * c);
    gpt_report(to, p + FC_W);
    norm_back(o, true, a->dx, a->dmid, b->mid, b->mean2, b->rstd2, p + NORM2_G);
    gpt_report(to, p + NORM2_G);
    linear_back(o, a->dmid, a->dx, b->mix, p + PROJ_W, c, c);
    gpt_report(to, p + PROJ_W);
    attention_back(o, a->dqkv, a->dmid, b);
    linear_back(o, a->dmid, a->dqkv, b->norm1, p + QKV_W, c, 3 * c);
    gpt_report(to, p + QKV_W);
    norm_back(o, true, a->dx, a->dmid, b->in, b->mean1, b->rstd1, p + NORM1_G);
    gpt_report(to, p + NORM1_G);
}

static void embed_back(struct engine_own *o) {
    int c = o->there.config.width;
    gpt_param *p = o->there.params;
    gpt_args args = {
        .x = o->act.dx, .byte = dtr_tensor_data(o->tensor[BYTES]), .columns = c, .rows = o->rows
    };
    args.y = p[POSITION].grad;
    args.items = (long)p[POSITION].count;
    gpu_run(&o->gpu, GPT_position_back, args);
    args.y = p[TOKEN].grad;
    args.items = (long)p[TOKEN].count;
    gpu_run(&o->gpu, GPT_token_back, args);
}

/* The loss has left its gradient in the logits. */
void engine_backward(engine *e, gpt_ready ready, void *arg) {
    struct engine_own *o = e->own;
    gpt_activations *a = &o->act;
    gpt_reporter to = { ready, arg, &o->there };
    int c = o->there.config.width, layers = o->there.config.layers;
    gpt_param *tail = gpt_block_params(&o->there, layers);
    linear_back(o, a->dmid, a->logits, a->last, tail + HEAD_W, c, GPT_VOCAB);
    gpt_report(&to, tail + HEAD_W);
    norm_back(o, false, a->dx, a->dmid, a->last_in, a->mean, a->rstd, tail + LAST_G);
    gpt_report(&to, tail + LAST_G);
    for (int l = layers; l-- > 0;) {
        block_back(o, l, &to);
    }
    embed_back(o);
    gpt_report(&to, o->there.params + TOKEN);
}

gpt *engine_fetch(engine *e) {
    copy_values(e, true);
    return e->own->failed == DTR_OK ? e->own->host : NULL;
}
