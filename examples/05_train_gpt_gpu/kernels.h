/* What each thread of the kernels does. nvcc compiles these bodies into kernels (gpu.cu); a test
 * without a GPU compiles them as C. They are made for reading: a thread takes whole numbers of
 * `items`, which are elements, or rows where a row has to be summed. */
#ifndef GPT_KERNELS_H
#define GPT_KERNELS_H

#include <math.h>

#ifdef __CUDACC__
#define GPT_BODY static __device__ __forceinline__
#else
#define GPT_BODY static inline
#endif
#ifndef GPT_AT /* where a test finds the bytes of a device address */
#define GPT_AT(p) (p)
#endif

/* X(name): all of them. */
#define GPT_FORWARD(X) X(embed) X(norm) X(bias) X(gelu) X(softmax) X(loss)
#define GPT_BACK(X) X(token_back) X(position_back) X(norm_back) X(gelu_back) X(softmax_back)
#define GPT_KERNELS(X) GPT_FORWARD(X) GPT_BACK(X)

#define GPT_ENUM(name) GPT_##name,
typedef enum gpt_kernel { GPT_KERNELS(GPT_ENUM) GPT_N_KERNELS } gpt_kernel;
#undef GPT_ENUM

/* One argument for all of them. Matrices have rows of `columns` numbers. */
typedef struct gpt_args {
    float *y, *z;              /* what is written, or changed */
    const float *x, *a, *b;    /* what is read: see each body */
    float *mean, *rstd;        /* of each row */
    const unsigned char *byte; /* of each row: token or target */
    long items, columns, rows;
    float scale;
} gpt_args;

#define GPT_EACH(i) for (long i = tid; i < g->items; i += threads)

/* y = row `byte` of x + row of a, which has one for each of `rows` positions. */
GPT_BODY void gpt_embed(const gpt_args *g, long tid, long threads) {
    float *y = (float *)GPT_AT(g->y);
    const float *token = (const float *)GPT_AT(g->x), *position = (const float *)GPT_AT(g->a);
    const unsigned char *byte = (const unsigned char *)GPT_AT(g->byte);
    GPT_EACH(i) {
        long r = i / g->columns, c = i % g->columns;
        y[i] = token[byte[r] * g->columns + c] + position[r % g->rows * g->columns + c];
    }
}

/* y: for each token the sum of its rows of x. In the order of the rows, and so the same each time,
 * as atomic additions would not be. */
GPT_BODY void gpt_token_back(const gpt_args *g, long tid, long threads) {
    float *y = (float *)GPT_AT(g->y);
    const float *x = (const float *)GPT_AT(g->x);
    const unsigned char *byte = (const unsigned char *)GPT_AT(g->byte);
    GPT_EACH(i) {
        long token = i / g->columns, c = i % g->columns;
        float sum = 0;
        for (long r = 0; r < g->rows; r++) {
            sum += byte[r] == token ? x[r * g->columns + c] : 0;
        }
        y[i] = sum;
    }
}

/* y: for each position the sum of its rows of x, one in every sequence. */
GPT_BODY void gpt_position_back(const gpt_args *g, long tid, long threads) {
    float *y = (float *)GPT_AT(g->y);
    const float *x = (const float *)GPT_AT(g->x);
    GPT_EACH(i) {
        float sum = 0;
        for (long at = i; at < g->rows * g->columns; at += g->items) {
            sum += x[at];
        }
        y[i] = sum;
    }
}

/* y = (x - mean) * rstd * a + b for each row. */
GPT_BODY void gpt_norm(const gpt_args *g, long tid, long threads) {
    float *y = (float *)GPT_AT(g->y), *mean = (float *)GPT_AT(g->mean),
          *rstd = (float *)GPT_AT(g->rstd);
    const float *x = (const float *)GPT_AT(g->x), *gain = (const float *)GPT_AT(g->a),
                *bias = (const float *)GPT_AT(g->b);
    GPT_EACH(r) {
        const float *in = x + r * g->columns;
        float m = 0, var = 0;
        for (long c = 0; c < g->columns; c++) {
            m += in[c];
        }
        m /= (float)g->columns;
        for (long c = 0; c < g->columns; c++) {
            var += (in[c] - m) * (in[c] - m);
        }
        float s = 1.0f / sqrtf(var / (float)g->columns + 1e-5f);
        for (long c = 0; c < g->columns; c++) {
            y[r * g->columns + c] = (in[c] - m) * s * gain[c] + bias[c];
        }
        mean[r] = m;
        rstd[r] = s;
    }
}

/* b is the gradient of a norm whose input was x and whose gain is a: y is that of the input, added
 * to what is there where `scale` is not 0, and z each number's part of that of the gain. */
GPT_BODY void gpt_norm_back(const gpt_args *g, long tid, long threads) {
    float *y = (float *)GPT_AT(g->y), *z = (float *)GPT_AT(g->z);
    const float *mean = (const float *)GPT_AT(g->mean), *rstd = (const float *)GPT_AT(g->rstd);
    const float *x = (const float *)GPT_AT(g->x), *gain = (const float *)GPT_AT(g->a),
                *slope = (const float *)GPT_AT(g->b);
    GPT_EACH(r) {
        long at = r * g->columns;
        float sum = 0, dot = 0, m = mean[r], s = rstd[r];
        for (long c = 0; c < g->columns; c++) {
            float xhat = (x[at + c] - m) * s;
            sum += slope[at + c] * gain[c];
            dot += slope[at + c] * gain[c] * xhat;
            z[at + c] = slope[at + c] * xhat;
        }
        sum /= (float)g->columns;
        dot /= (float)g->columns;
        for (long c = 0; c < g->columns; c++) {
            float d = (slope[at + c] * gain[c] - sum - (x[at + c] - m) * s * dot) * s;
            y[at + c] = g->scale != 0 ? y[at + c] + d : d;
        }
    }
}

/* y += a of each column, and x where there is one. */
GPT_BODY void gpt_bias(const gpt_args *g, long tid, long threads) {
    float *y = (float *)GPT_AT(g->y);
    const float *bias = (const float *)GPT_AT(g->a);
    const float *x = g->x != 0 ? (const float *)GPT_AT(g->x) : 0;
    GPT_EACH(i) {
        y[i] += bias[i % g->columns] + (x != 0 ? x[i] : 0);
    }
}

/* The tanh approximation; 0.7978845608 is sqrt(2 / pi). */
GPT_BODY float gpt_gelu_tanh(float x) {
    return tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
}

GPT_BODY void gpt_gelu(const gpt_args *g, long tid, long threads) {
    float *y = (float *)GPT_AT(g->y);
    const float *x = (const float *)GPT_AT(g->x);
    GPT_EACH(i) {
        y[i] = 0.5f * x[i] * (1.0f + gpt_gelu_tanh(x[i]));
    }
}

/* The gradient y goes on through the slope at x. */
GPT_BODY void gpt_gelu_back(const gpt_args *g, long tid, long threads) {
    float *y = (float *)GPT_AT(g->y);
    const float *x = (const float *)GPT_AT(g->x);
    GPT_EACH(i) {
        float t = gpt_gelu_tanh(x[i]);
        float inner = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x[i] * x[i]);
        y[i] *= 0.5f * (1.0f + t) + 0.5f * x[i] * (1.0f - t * t) * inner;
    }
}

/* Rows of scores become probabilities. Row r is of position r % columns, which sees those up to
 * itself. */
GPT_BODY void gpt_softmax(const gpt_args *g, long tid, long threads) {
    float *scores = (float *)GPT_AT(g->y);
    GPT_EACH(r) {
        float *y = scores + r * g->columns, top = y[0], sum = 0;
        long seen = r % g->columns + 1;
        for (long c = 1; c < seen; c++) {
            top = y[c] > top ? y[c] : top;
        }
        for (long c = 0; c < seen; c++) {
            y[c] = expf(y[c] - top);
            sum += y[c];
        }
        for (long c = 0; c < g->columns; c++) {
            y[c] = c < seen ? y[c] / sum : 0;
        }
    }
}

/* Rows y of gradients of probabilities x become gradients of what was scaled by `scale`. */
GPT_BODY void gpt_softmax_back(const gpt_args *g, long tid, long threads) {
    float *slopes = (float *)GPT_AT(g->y);
    const float *probabilities = (const float *)GPT_AT(g->x);
    GPT_EACH(r) {
        float *y = slopes + r * g->columns, sum = 0;
        const float *p = probabilities + r * g->columns;
        for (long c = 0; c < g->columns; c++) {
            sum += y[c] * p[c];
        }
        for (long c = 0; c < g->columns; c++) {
            y[c] = p[c] * (y[c] - sum) * g->scale;
        }
    }
}

/* y holds scores of classes: the loss z of each row is -log(probability of its byte), and y becomes
 * the gradient of `scale` times the sum of the losses. */
GPT_BODY void gpt_loss(const gpt_args *g, long tid, long threads) {
    float *scores = (float *)GPT_AT(g->y), *loss = (float *)GPT_AT(g->z);
    const unsigned char *target = (const unsigned char *)GPT_AT(g->byte);
    GPT_EACH(r) {
        float *y = scores + r * g->columns, top = y[0], sum = 0;
        for (long c = 1; c < g->columns; c++) {
            top = y[c] > top ? y[c] : top;
        }
        for (long c = 0; c < g->columns; c++) {
            sum += expf(y[c] - top);
        }
        loss[r] = logf(sum) + top - y[target[r]];
        for (long c = 0; c < g->columns; c++) {
            float p = expf(y[c] - top) / sum;
            y[c] = g->scale * (c == target[r] ? p - 1 : p);
        }
    }
}

#endif /* GPT_KERNELS_H */
