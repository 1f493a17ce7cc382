/* Parameter lists, in the order in which a program would register them. */
#include "model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool add(model *m, const char *name, int ndim, const int64_t *shape) {
    if (m->n == m->cap) {
        size_t cap = m->cap == 0 ? 256 : 2 * m->cap;
        model_param *more = realloc(m->params, cap * sizeof *more);
        if (more == NULL) {
            return false;
        }
        m->params = more;
        m->cap = cap;
    }
    model_param *p = &m->params[m->n++];
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->ndim = ndim;
    p->numel = 1;
    for (int i = 0; i < ndim; i++) {
        p->shape[i] = shape[i];
        p->numel *= (size_t)shape[i];
    }
    m->numel += p->numel;
    return true;
}

static bool add1(model *m, const char *prefix, const char *name, int64_t a) {
    char full[MODEL_NAME];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return add(m, full, 1, &a);
}

static bool add2(model *m, const char *prefix, const char *name, int64_t a, int64_t b) {
    char full[MODEL_NAME];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return add(m, full, 2, (int64_t[]){ a, b });
}

/* ---- GPT-2 with 124 million parameters: 12 layers of width 768, output tied to the embedding ----
 */

static bool add_norm(model *m, const char *prefix, int64_t width) {
    return add1(m, prefix, "weight", width) && add1(m, prefix, "bias", width);
}

static bool gpt2_layer(model *m, int layer, int64_t d) {
    static const struct {
        const char *name;
        int in, out; /* in multiples of the width */
    } linear[] = { { "attn.c_attn.", 1, 3 },
                   { "attn.c_proj.", 1, 1 },
                   { "mlp.c_fc.", 1, 4 },
                   { "mlp.c_proj.", 4, 1 } };
    bool ok = true;
    char prefix[64];
    for (int half = 0; half < 2; half++) {
        snprintf(prefix, sizeof prefix, "h.%d.ln_%d.", layer, half + 1);
        ok = ok && add_norm(m, prefix, d);
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            snprintf(prefix, sizeof prefix, "h.%d.%s", layer, linear[i].name);
            ok = ok && add2(m, prefix, "weight", linear[i].in * d, linear[i].out * d) &&
                 add1(m, prefix, "bias", linear[i].out * d);
        }
    }
    return ok;
}

static bool gpt2(model *m) {
    enum { WIDTH = 768, LAYERS = 12, TOKENS = 50257, CONTEXT = 1024 };
    bool ok = add2(m, "wte.", "weight", TOKENS, WIDTH) && add2(m, "wpe.", "weight", CONTEXT, WIDTH);
    for (int i = 0; i < LAYERS; i++) {
        ok = ok && gpt2_layer(m, i, WIDTH);
    }
    return ok && add_norm(m, "ln_f.", WIDTH);
}

/* ---- ResNet-50 ---- */

/* A convolution without bias and the batch normalisation after it. */
static bool add_conv(model *m, const char *conv, const char *norm, int64_t out, int64_t in,
                     int64_t window) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "%sweight", conv);
    return add(m, name, 4, (int64_t[]){ out, in, window, window }) && add_norm(m, norm, out);
}

static bool resnet_block(model *m, int stage, int block, int64_t *channels) {
    int64_t width = (int64_t)64 << (stage - 1), out = 4 * width, in = *channels;
    const int64_t outs[] = { width, width, out }, ins[] = { in, width, width };
    bool ok = true;
    char conv[64], norm[64];
    for (int i = 0; i < 3; i++) {
        snprintf(conv, sizeof conv, "layer%d.%d.conv%d.", stage, block, i + 1);
        snprintf(norm, sizeof norm, "layer%d.%d.bn%d.", stage, block, i + 1);
        ok = ok && add_conv(m, conv, norm, outs[i], ins[i], i == 1 ? 3 : 1);
    }
    if (block == 0) { /* the shortcut changes the number of channels */
        snprintf(conv, sizeof conv, "layer%d.0.downsample.0.", stage);
        snprintf(norm, sizeof norm, "layer%d.0.downsample.1.", stage);
        ok = ok && add_conv(m, conv, norm, out, in, 1);
    }
    *channels = out;
    return ok;
}

static bool resnet50(model *m) {
    static const int blocks[] = { 3, 4, 6, 3 };
    int64_t channels = 64;
    bool ok = add_conv(m, "conv1.", "bn1.", channels, 3, 7);
    for (int stage = 1; stage <= 4; stage++) {
        for (int block = 0; block < blocks[stage - 1]; block++) {
            ok = ok && resnet_block(m, stage, block, &channels);
        }
    }
    return ok && add2(m, "fc.", "weight", 1000, channels) && add1(m, "fc.", "bias", 1000);
}

/* ---- from a file ---- */

/* The sizes after the name; -1 where one is no number from 1 on or there are too many. */
static int parse_shape(char *text, int64_t *shape) {
    int n = 0;
    for (char *word = strtok(text, " \tx,"); word != NULL; word = strtok(NULL, " \tx,")) {
        char *end = NULL;
        long long v = strtoll(word, &end, 10);
        if (n == MODEL_DIMS || end == word || *end != '\0' || v < 1 || v > ((long long)1 << 40)) {
            return -1;
        }
        shape[n++] = v;
    }
    return n;
}

static bool parse_line(model *m, char *line, int number, const char *path, char *error,
                       size_t cap) {
    int64_t shape[MODEL_DIMS] = { 0 };
    line[strcspn(line, "#\r\n")] = '\0';
    line += strspn(line, " \t");
    size_t length = strcspn(line, " \t");
    char *rest = line + length + (line[length] != '\0');
    if (length == 0) {
        return true;
    }
    line[length] = '\0';
    int ndim = parse_shape(rest, shape);
    if (length >= MODEL_NAME || ndim < 0) {
        snprintf(error, cap,
                 "%s, line %d: expected a name of up to %d characters and up to %d sizes from 1 on",
                 path, number, MODEL_NAME - 1, MODEL_DIMS);
        return false;
    }
    if (!add(m, line, ndim, shape)) {
        snprintf(error, cap, "%s, line %d: no memory", path, number);
        return false;
    }
    return true;
}

static bool from_file(const char *path, model *m, char *error, size_t cap) {
    char line[1024];
    bool ok = true;
    FILE *from = fopen(path, "r");
    if (from == NULL) {
        snprintf(error, cap, "model %s: neither gpt2, resnet50 nor a readable file: %s", path,
                 strerror(errno));
        return false;
    }
    for (int number = 1; ok && fgets(line, sizeof line, from) != NULL; number++) {
        ok = parse_line(m, line, number, path, error, cap);
    }
    fclose(from);
    if (ok && m->n == 0) {
        snprintf(error, cap, "model %s: no parameter in the file", path);
        ok = false;
    }
    return ok;
}

bool model_open(const char *name, model *m, char *error, size_t cap) {
    *m = (model){ 0 };
    bool known = strcmp(name, "gpt2") == 0 || strcmp(name, "resnet50") == 0;
    bool ok = !known ? from_file(name, m, error, cap) : name[0] == 'g' ? gpt2(m) : resnet50(m);
    if (!ok) {
        if (known) {
            snprintf(error, cap, "model %s: no memory", name);
        }
        model_close(m);
    }
    return ok;
}

void model_close(model *m) {
    free(m->params);
    *m = (model){ 0 };
}
