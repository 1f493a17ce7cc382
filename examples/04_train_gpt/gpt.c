/* The model: parameters, forward, backward, optimizer, sampling. */
#include "gpt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"
#include "parts.h"

uint64_t gpt_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double uniform(uint64_t *state) {
    return ((double)(gpt_random(state) >> 11) + 0.5) * 0x1p-53;
}

static float normal(uint64_t *state) {
    return (float)(sqrt(-2 * log(uniform(state))) * cos(6.283185307179586 * uniform(state)));
}

/* ---- parameters ---- */

static void describe(gpt_param *p, const char *name, int64_t rows, int64_t cols) {
    snprintf(p->name, sizeof p->name, "%s", name);
    p->ndim = cols == 0 ? 1 : 2;
    p->shape[0] = rows;
    p->shape[1] = cols;
    p->count = (size_t)(rows * (cols == 0 ? 1 : cols));
}

static void describe_block(gpt_param *p, int layer, int64_t c) {
    static const struct {
        const char *name;
        int rows, cols; /* in widths; 0: a vector */
    } parts[PER_BLOCK] = { { "norm1.gain", 1, 0 },       { "norm1.bias", 1, 0 },
                           { "attn.qkv.weight", 3, 1 },  { "attn.qkv.bias", 3, 0 },
                           { "attn.proj.weight", 1, 1 }, { "attn.proj.bias", 1, 0 },
                           { "norm2.gain", 1, 0 },       { "norm2.bias", 1, 0 },
                           { "mlp.fc.weight", 4, 1 },    { "mlp.fc.bias", 4, 0 },
                           { "mlp.out.weight", 1, 4 },   { "mlp.out.bias", 1, 0 } };
    for (int i = 0; i < PER_BLOCK; i++) {
        char name[sizeof p->name];
        snprintf(name, sizeof name, "h.%d.%s", layer, parts[i].name);
        describe(p + i, name, parts[i].rows * c, parts[i].cols * c);
    }
}

static void describe_all(gpt *g) {
    int64_t c = g->config.width;
    gpt_param *p = g->params;
    describe(p + TOKEN, "token.weight", GPT_VOCAB, c);
    describe(p + POSITION, "position.weight", g->config.context, c);
    for (int l = 0; l < g->config.layers; l++) {
        describe_block(p + EMBEDDINGS + l * PER_BLOCK, l, c);
    }
    p += EMBEDDINGS + g->config.layers * PER_BLOCK;
    describe(p + LAST_G, "norm.gain", c, 0);
    describe(p + LAST_B, "norm.bias", c, 0);
    describe(p + HEAD_W, "head.weight", GPT_VOCAB, c);
    describe(p + HEAD_B, "head.bias", GPT_VOCAB, 0);
}

static bool ends_with(const char *text, const char *end) {
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

static void initialise(gpt *g, uint64_t seed) {
    float residual = 1.0f / sqrtf(2.0f * (float)g->config.layers);
    for (size_t i = 0; i < g->n_params; i++) {
        gpt_param *p = &g->params[i];
        bool gain = ends_with(p->name, ".gain"), weight = p->ndim == 2;
        bool scaled = ends_with(p->name, "proj.weight") || ends_with(p->name, "out.weight");
        for (size_t k = 0; k < p->count; k++) {
            p->value[k] = gain     ? 1.0f
                          : weight ? 0.02f * (scaled ? residual : 1.0f) * normal(&seed)
                                   : 0.0f;
        }
    }
}

/* ---- activations: one allocation, cut into pieces ---- */

typedef struct cutter {
    float *memory; /* NULL: only measure */
    size_t used;   /* floats */
} cutter;

static float *cut(cutter *at, size_t count) {
    float *piece = at->memory != NULL ? at->memory + at->used : NULL;
    at->used += (count + 15) / 16 * 16;
    return piece;
}

size_t gpt_lay_out(gpt_activations *a, const gpt *g, float *memory) {
    cutter at = { memory, 0 };
    size_t rows = (size_t)g->batch * (size_t)g->config.context, c = (size_t)g->config.width;
    size_t probs = rows * (size_t)g->config.heads * (size_t)g->config.context;
    for (int l = 0; l < g->config.layers; l++) {
        block_act *b = &a->block[l];
        float **narrow[] = { &b->in, &b->norm1, &b->mix, &b->mid, &b->norm2 };
        for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++) {
            *narrow[i] = cut(&at, rows * c);
        }
        float **column[] = { &b->mean1, &b->rstd1, &b->mean2, &b->rstd2 };
        for (size_t i = 0; i < sizeof column / sizeof column[0]; i++) {
            *column[i] = cut(&at, rows);
        }
        b->qkv = cut(&at, rows * 3 * c);
        b->prob = cut(&at, probs);
        b->fc = cut(&at, rows * 4 * c);
        b->gelu = cut(&at, rows * 4 * c);
    }
    a->last_in = cut(&at, rows * c);
    a->last = cut(&at, rows * c);
    a->mean = cut(&at, rows);
    a->rstd = cut(&at, rows);
    a->logits = cut(&at, rows * GPT_VOCAB);
    a->dx = cut(&at, rows * c);
    a->dmid = cut(&at, rows * c);
    a->dwide = cut(&at, rows * 4 * c);
    a->dqkv = cut(&at, rows * 3 * c);
    a->dprob = cut(&at, (size_t)g->config.context);
    return at.used;
}

static gpt_activations *activations_create(const gpt *g) {
    gpt_activations *a = calloc(1, sizeof *a);
    if (a == NULL) {
        return NULL;
    }
    a->block = calloc((size_t)g->config.layers, sizeof *a->block);
    if (a->block != NULL) {
        size_t nbytes = gpt_lay_out(a, g, NULL) * sizeof(float);
        a->memory = aligned_alloc(64, nbytes);
        if (a->memory != NULL) {
            memset(a->memory, 0, nbytes);
            gpt_lay_out(a, g, a->memory);
        }
    }
    return a;
}

gpt *gpt_create(gpt_config config, int batch, uint64_t seed) {
    gpt *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return NULL;
    }
    g->config = config;
    g->batch = batch;
    g->n_params = (size_t)(EMBEDDINGS + config.layers * PER_BLOCK + TAIL);
    g->params = calloc(g->n_params, sizeof *g->params);
    if (g->params != NULL) {
        describe_all(g);
        g->memory = malloc(gpt_count(g) * sizeof *g->memory);
        g->act = activations_create(g);
    }
    if (g->memory == NULL || g->act == NULL || g->act->memory == NULL) {
        gpt_free(g);
        return NULL;
    }
    float *at = g->memory;
    for (size_t i = 0; i < g->n_params; i++) {
        g->params[i].value = at;
        at += g->params[i].count;
    }
    initialise(g, seed);
    return g;
}

void gpt_free(gpt *g) {
    if (g == NULL) {
        return;
    }
    if (g->act != NULL) {
        free(g->act->memory);
        free(g->act->block);
        free(g->act);
    }
    free(g->memory);
    free(g->params);
    free(g);
}

size_t gpt_count(const gpt *g) {
    size_t n = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        n += g->params[i].count;
    }
    return n;
}

/* ---- forward ---- */

static attention_shape shape_of(const gpt *g) {
    return (attention_shape){ g->batch, g->config.context, g->config.heads, g->config.width };
}

static void embed(const gpt *g, const uint8_t *tokens, float *out) {
    size_t c = (size_t)g->config.width;
    for (int r = 0; r < g->batch * g->config.context; r++) {
        const float *token = g->params[TOKEN].value + (size_t)tokens[r] * c;
        const float *position = g->params[POSITION].value + (size_t)(r % g->config.context) * c;
        for (size_t i = 0; i < c; i++) {
            out[(size_t)r * c + i] = token[i] + position[i];
        }
    }
}

static void add(float *to, const float *from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        to[i] += from[i];
    }
}

static void block_forward(const gpt *g, int layer, float *out) {
    const gpt_param *p = gpt_block_params(g, layer);
    block_act *b = &g->act->block[layer];
    int rows = g->batch * g->config.context, c = g->config.width;
    norm_forward(b->norm1, b->mean1, b->rstd1, b->in, p[NORM1_G].value, p[NORM1_B].value, rows, c);
    linear_forward(b->qkv, b->norm1, p[QKV_W].value, p[QKV_B].value, rows, c, 3 * c);
    attention_forward(b->mix, b->prob, b->qkv, shape_of(g));
    linear_forward(b->mid, b->mix, p[PROJ_W].value, p[PROJ_B].value, rows, c, c);
    add(b->mid, b->in, (size_t)rows * (size_t)c);
    norm_forward(b->norm2, b->mean2, b->rstd2, b->mid, p[NORM2_G].value, p[NORM2_B].value, rows, c);
    linear_forward(b->fc, b->norm2, p[FC_W].value, p[FC_B].value, rows, c, 4 * c);
    gelu_forward(b->gelu, b->fc, rows * 4 * c);
    linear_forward(out, b->gelu, p[OUT_W].value, p[OUT_B].value, rows, 4 * c, c);
    add(out, b->mid, (size_t)rows * (size_t)c);
}

/* Probabilities (after loss_forward) or logits of every position. */
static void run_forward(const gpt *g, const uint8_t *tokens) {
    gpt_activations *a = g->act;
    int layers = g->config.layers, rows = g->batch * g->config.context, c = g->config.width;
    const gpt_param *tail = gpt_block_params(g, layers);
    embed(g, tokens, layers > 0 ? a->block[0].in : a->last_in);
    for (int l = 0; l < layers; l++) {
        block_forward(g, l, l + 1 < layers ? a->block[l + 1].in : a->last_in);
    }
    norm_forward(a->last, a->mean, a->rstd, a->last_in, tail[LAST_G].value, tail[LAST_B].value,
                 rows, c);
    linear_forward(a->logits, a->last, tail[HEAD_W].value, tail[HEAD_B].value, rows, c, GPT_VOCAB);
}

float gpt_forward(gpt *g, const uint8_t *tokens, const uint8_t *target) {
    run_forward(g, tokens);
    return loss_forward(g->act->logits, target, g->batch * g->config.context, GPT_VOCAB);
}

/* ---- backward ---- */

static void block_backward(const gpt *g, int layer, const gpt_reporter *to) {
    gpt_param *p = gpt_block_params(g, layer);
    gpt_activations *a = g->act;
    block_act *b = &a->block[layer];
    int rows = g->batch * g->config.context, c = g->config.width;
    linear_backward(a->dwide, p[OUT_W].grad, p[OUT_B].grad, a->dx, b->gelu, p[OUT_W].value, rows,
                    4 * c, c);
    gpt_report(to, p + OUT_W);
    gelu_backward(a->dwide, a->dwide, b->fc, rows * 4 * c);
    linear_backward(a->dmid, p[FC_W].grad, p[FC_B].grad, a->dwide, b->norm2, p[FC_W].value, rows, c,
                    4 * c);
    gpt_report(to, p + FC_W);
    norm_backward(a->dx, p[NORM2_G].grad, p[NORM2_B].grad, a->dmid, b->mid, b->mean2, b->rstd2,
                  p[NORM2_G].value, rows, c);
    gpt_report(to, p + NORM2_G);
    linear_backward(a->dmid, p[PROJ_W].grad, p[PROJ_B].grad, a->dx, b->mix, p[PROJ_W].value, rows,
                    c, c);
    gpt_report(to, p + PROJ_W);
    attention_backward(a->dqkv, a->dprob, a->dmid, b->prob, b->qkv, shape_of(g));
    linear_backward(a->dmid, p[QKV_W].grad, p[QKV_B].grad, a->dqkv, b->norm1, p[QKV_W].value, rows,
                    c, 3 * c);
    gpt_report(to, p + QKV_W);
    norm_backward(a->dx, p[NORM1_G].grad, p[NORM1_B].grad, a->dmid, b->in, b->mean1, b->rstd1,
                  p[NORM1_G].value, rows, c);
    gpt_report(to, p + NORM1_G);
}

static void embed_backward(const gpt *g, const uint8_t *tokens) {
    size_t c = (size_t)g->config.width;
    const float *dx = g->act->dx;
    memset(g->params[TOKEN].grad, 0, g->params[TOKEN].count * sizeof(float));
    memset(g->params[POSITION].grad, 0, g->params[POSITION].count * sizeof(float));
    for (int r = 0; r < g->batch * g->config.context; r++) {
        add(g->params[TOKEN].grad + (size_t)tokens[r] * c, dx + (size_t)r * c, c);
        add(g->params[POSITION].grad + (size_t)(r % g->config.context) * c, dx + (size_t)r * c, c);
    }
}

void gpt_backward(gpt *g, const uint8_t *tokens, const uint8_t *target, gpt_ready ready,
                  void *arg) {
    gpt_activations *a = g->act;
    gpt_reporter to = { ready, arg, g };
    int rows = g->batch * g->config.context, c = g->config.width;
    gpt_param *tail = gpt_block_params(g, g->config.layers);
    loss_backward(a->logits, target, rows, GPT_VOCAB);
    linear_backward(a->dmid, tail[HEAD_W].grad, tail[HEAD_B].grad, a->logits, a->last,
                    tail[HEAD_W].value, rows, c, GPT_VOCAB);
    gpt_report(&to, tail + HEAD_W);
    memset(a->dx, 0, (size_t)rows * (size_t)c * sizeof *a->dx);
    norm_backward(a->dx, tail[LAST_G].grad, tail[LAST_B].grad, a->dmid, a->last_in, a->mean,
                  a->rstd, tail[LAST_G].value, rows, c);
    gpt_report(&to, tail + LAST_G);
    for (int l = g->config.layers - 1; l >= 0; l--) {
        block_backward(g, l, &to);
    }
    embed_backward(g, tokens);
    gpt_report(&to, g->params + TOKEN);
}

/* ---- optimizer, sampling, hash ---- */

void gpt_clip(gpt *g, float max_norm) {
    double sum = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        for (size_t k = 0; k < g->params[i].count; k++) {
            sum += (double)g->params[i].grad[k] * (double)g->params[i].grad[k];
        }
    }
    double norm = sqrt(sum);
    for (size_t i = 0; i < g->n_params && norm > (double)max_norm; i++) {
        for (size_t k = 0; k < g->params[i].count; k++) {
            g->params[i].grad[k] *= (float)((double)max_norm / norm);
        }
    }
}

void gpt_adamw(gpt *g, float *m, float *v, long step, float rate) {
    const float beta1 = 0.9f, beta2 = 0.95f, decay = 0.01f;
    float fix1 = 1.0f - powf(beta1, (float)step), fix2 = 1.0f - powf(beta2, (float)step);
    size_t at = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        gpt_param *p = &g->params[i];
        float shrink = p->ndim == 2 ? rate * decay : 0.0f;
        for (size_t k = 0; k < p->count; k++, at++) {
            float d = p->grad[k];
            m[at] = beta1 * m[at] + (1.0f - beta1) * d;
            v[at] = beta2 * v[at] + (1.0f - beta2) * d * d;
            p->value[k] -=
                rate * (m[at] / fix1) / (sqrtf(v[at] / fix2) + 1e-8f) + shrink * p->value[k];
        }
    }
}

static uint8_t pick(float *scores, float temperature, uint64_t *random) {
    float top = scores[0], sum = 0;
    for (int i = 1; i < GPT_VOCAB; i++) {
        top = scores[i] > top ? scores[i] : top;
    }
    for (int i = 0; i < GPT_VOCAB; i++) {
        scores[i] = expf((scores[i] - top) / temperature);
        sum += scores[i];
    }
    float left = (float)uniform(random) * sum;
    for (int i = 0; i < GPT_VOCAB; i++) {
        left -= scores[i];
        if (left <= 0) {
            return (uint8_t)i;
        }
    }
    return ' ';
}

void gpt_sample(gpt *g, uint8_t *text, size_t filled, size_t length, float temperature,
                uint64_t seed) {
    int batch = g->batch;
    size_t context = (size_t)g->config.context;
    g->batch = 1; /* the activations have room for more; one sequence is enough */
    uint8_t *window = calloc(context, 1);
    for (size_t at = filled; window != NULL && at < length; at++) {
        size_t n = at < context ? at : context;
        memcpy(window, text + at - n, n);
        run_forward(g, window);
        text[at] = pick(g->act->logits + (n - 1) * GPT_VOCAB, temperature, &seed);
    }
    free(window);
    g->batch = batch;
}

uint64_t gpt_hash(const gpt *g) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    const unsigned char *bytes = (const unsigned char *)g->memory;
    for (size_t i = 0, n = gpt_count(g) * sizeof(float); i < n; i++) {
        h = (h ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return h;
}
