/* Forward and backward of the layers. */
#include "layers.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "gpt.h"

void norm_forward(float *out, float *mean, float *rstd, const float *x, const float *gain,
                  const float *bias, int rows, int width) {
    for (int r = 0; r < rows; r++) {
        const float *in = x + (size_t)r * (size_t)width;
        float *to = out + (size_t)r * (size_t)width;
        float m = 0, var = 0;
        for (int c = 0; c < width; c++) {
            m += in[c];
        }
        m /= (float)width;
        for (int c = 0; c < width; c++) {
            var += (in[c] - m) * (in[c] - m);
        }
        float s = 1.0f / sqrtf(var / (float)width + 1e-5f);
        for (int c = 0; c < width; c++) {
            to[c] = (in[c] - m) * s * gain[c] + bias[c];
        }
        mean[r] = m;
        rstd[r] = s;
    }
}

void norm_backward(float *dx, float *dgain, float *dbias, const float *dout, const float *x,
                   const float *mean, const float *rstd, const float *gain, int rows, int width) {
    memset(dgain, 0, (size_t)width * sizeof *dgain);
    memset(dbias, 0, (size_t)width * sizeof *dbias);
    for (int r = 0; r < rows; r++) {
        const float *d = dout + (size_t)r * (size_t)width, *in = x + (size_t)r * (size_t)width;
        float *to = dx + (size_t)r * (size_t)width;
        float sum = 0, dot = 0, m = mean[r], s = rstd[r];
        for (int c = 0; c < width; c++) {
            float xhat = (in[c] - m) * s, g = d[c] * gain[c];
            sum += g;
            dot += g * xhat;
            dgain[c] += d[c] * xhat;
            dbias[c] += d[c];
        }
        sum /= (float)width;
        dot /= (float)width;
        for (int c = 0; c < width; c++) {
            to[c] += (d[c] * gain[c] - sum - (in[c] - m) * s * dot) * s;
        }
    }
}

/* Softmax of the first `n` of a row of scores, in place. */
static void softmax(float *row, int n) {
    float top = row[0], sum = 0;
    for (int i = 1; i < n; i++) {
        top = row[i] > top ? row[i] : top;
    }
    for (int i = 0; i < n; i++) {
        row[i] = expf(row[i] - top);
        sum += row[i];
    }
    for (int i = 0; i < n; i++) {
        row[i] /= sum;
    }
}

static float dot(const float *a, const float *b, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static void add_scaled(float *to, float by, const float *from, int n) {
    for (int i = 0; i < n; i++) {
        to[i] += by * from[i];
    }
}

/* Where the query of (sequence, position, head) lies; key and value follow one and two widths
 * later. */
static size_t query_at(attention_shape s, int seq, int pos, int head) {
    size_t row = (size_t)seq * (size_t)s.context + (size_t)pos;
    return row * 3 * (size_t)s.width + (size_t)(head * (s.width / s.heads));
}

static size_t prob_at(attention_shape s, int seq, int head, int pos) {
    size_t matrix = (size_t)seq * (size_t)s.heads + (size_t)head;
    return (matrix * (size_t)s.context + (size_t)pos) * (size_t)s.context;
}

static size_t out_at(attention_shape s, int seq, int pos, int head) {
    size_t row = (size_t)seq * (size_t)s.context + (size_t)pos;
    return row * (size_t)s.width + (size_t)(head * (s.width / s.heads));
}

static void attend_forward(float *out, float *prob, const float *qkv, attention_shape s, int seq,
                           int head, int pos) {
    int size = s.width / s.heads;
    float scale = 1.0f / sqrtf((float)size);
    const float *query = qkv + query_at(s, seq, pos, head);
    float *row = prob + prob_at(s, seq, head, pos), *to = out + out_at(s, seq, pos, head);
    for (int t = 0; t <= pos; t++) {
        row[t] = scale * dot(query, qkv + query_at(s, seq, t, head) + s.width, size);
    }
    softmax(row, pos + 1);
    memset(to, 0, (size_t)size * sizeof *to);
    for (int t = 0; t <= pos; t++) {
        add_scaled(to, row[t], qkv + query_at(s, seq, t, head) + 2 * s.width, size);
    }
}

void attention_forward(float *out, float *prob, const float *qkv, attention_shape s) {
    for (int seq = 0; seq < s.batch; seq++) {
        for (int head = 0; head < s.heads; head++) {
            for (int pos = 0; pos < s.context; pos++) {
                attend_forward(out, prob, qkv, s, seq, head, pos);
            }
        }
    }
}

static void attend_backward(float *dqkv, float *dprob, const float *dout, const float *prob,
                            const float *qkv, attention_shape s, int seq, int head, int pos) {
    int size = s.width / s.heads;
    float scale = 1.0f / sqrtf((float)size), sum = 0;
    const float *row = prob + prob_at(s, seq, head, pos), *d = dout + out_at(s, seq, pos, head);
    size_t q = query_at(s, seq, pos, head);
    for (int t = 0; t <= pos; t++) {
        size_t v = query_at(s, seq, t, head) + 2 * (size_t)s.width;
        dprob[t] = dot(d, qkv + v, size);
        add_scaled(dqkv + v, row[t], d, size);
        sum += dprob[t] * row[t];
    }
    for (int t = 0; t <= pos; t++) {
        size_t k = query_at(s, seq, t, head) + (size_t)s.width;
        float g = row[t] * (dprob[t] - sum) * scale;
        add_scaled(dqkv + q, g, qkv + k, size);
        add_scaled(dqkv + k, g, qkv + q, size);
    }
}

void attention_backward(float *dqkv, float *dprob, const float *dout, const float *prob,
                        const float *qkv, attention_shape s) {
    memset(dqkv, 0, (size_t)s.batch * (size_t)s.context * 3 * (size_t)s.width * sizeof *dqkv);
    for (int seq = 0; seq < s.batch; seq++) {
        for (int head = 0; head < s.heads; head++) {
            for (int pos = 0; pos < s.context; pos++) {
                attend_backward(dqkv, dprob, dout, prob, qkv, s, seq, head, pos);
            }
        }
    }
}

/* The tanh approximation; 0.7978845608 is sqrt(2 / pi). */
static float gelu_inner(float x) {
    return 0.7978845608f * (x + 0.044715f * x * x * x);
}

void gelu_forward(float *out, const float *x, int n) {
    for (int i = 0; i < n; i++) {
        out[i] = 0.5f * x[i] * (1.0f + tanhf(gelu_inner(x[i])));
    }
}

void gelu_backward(float *dx, const float *dout, const float *x, int n) {
    for (int i = 0; i < n; i++) {
        float t = tanhf(gelu_inner(x[i]));
        float slope = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x[i] * x[i]);
        dx[i] = dout[i] * (0.5f * (1.0f + t) + 0.5f * x[i] * (1.0f - t * t) * slope);
    }
}

void linear_forward(float *out, const float *x, const float *w, const float *bias, int rows,
                    int from, int to) {
    for (int r = 0; r < rows; r++) {
        memcpy(out + (size_t)r * (size_t)to, bias, (size_t)to * sizeof *out);
    }
    gpt_matmul(false, true, rows, to, from, x, w, 1.0f, out);
}

void linear_backward(float *dx, float *dw, float *dbias, const float *dout, const float *x,
                     const float *w, int rows, int from, int to) {
    if (dx != NULL) {
        gpt_matmul(false, false, rows, from, to, dout, w, 0.0f, dx);
    }
    gpt_matmul(true, false, to, from, rows, dout, x, 0.0f, dw);
    memset(dbias, 0, (size_t)to * sizeof *dbias);
    for (int r = 0; r < rows; r++) {
        add_scaled(dbias, 1.0f, dout + (size_t)r * (size_t)to, to);
    }
}

float loss_forward(float *logits, const uint8_t *target, int rows, int classes) {
    double sum = 0;
    for (int r = 0; r < rows; r++) {
        float *row = logits + (size_t)r * (size_t)classes;
        softmax(row, classes);
        sum -= log((double)row[target[r]] + 1e-30);
    }
    return (float)(sum / rows);
}

void loss_backward(float *logits, const uint8_t *target, int rows, int classes) {
    float by = 1.0f / (float)rows;
    for (int r = 0; r < rows; r++) {
        float *row = logits + (size_t)r * (size_t)classes;
        row[target[r]] -= 1.0f;
        for (int c = 0; c < classes; c++) {
            row[c] *= by;
        }
    }
}
