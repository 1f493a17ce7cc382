/* A stream of a GPU with what is queued on it: products of cuBLAS and the kernels of kernels.h. No
 * call but gpu_wait waits. After one that failed the rest do nothing, so that it is enough to look
 * at `failed` at the end of a step. */
#ifndef GPT_GPU_H
#define GPT_GPU_H

#include <stdbool.h>

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Places in the stream that the host waits for. */
typedef enum gpu_mark { GPU_TOKENS_READ, GPU_LOSS_THERE, GPU_N_MARKS } gpu_mark;

typedef struct gpu {
    void *stream; /* a cudaStream_t */
    void *blas;
    void *event[GPU_N_MARKS];
    const char *failed; /* NULL: nothing so far */
} gpu;

/* Row by row, each `stride` numbers behind the one before; of several matrices each is `apart`
 * numbers behind the one before. */
typedef struct gpu_matrix {
    float *data;
    int rows, columns, stride;
    bool turned; /* use its transpose */
    long apart;
} gpu_matrix;

void gpu_open(gpu *g, int device);
void gpu_close(gpu *g);
/* c = scale * a * b for `count` matrices. */
void gpu_multiply(gpu *g, int count, float scale, gpu_matrix a, gpu_matrix b, gpu_matrix c);
void gpu_run(gpu *g, gpt_kernel which, gpt_args args);
void gpu_set_mark(gpu *g, gpu_mark mark);
/* Until what was queued before the mark is done; at once where none was set. */
void gpu_wait(gpu *g, gpu_mark mark);

#ifdef __cplusplus
}
#endif

#endif /* GPT_GPU_H */
