/* All arithmetic of the example: matrix products and the kernels of kernels.h, on the CPU or, with
 * cuBLAS, on a CUDA device. Work is queued in order on `stream`; on the CPU it is done at once. */
#ifndef MLP_ARITH_H
#define MLP_ARITH_H

#include <stdbool.h>

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mlp_matrix {
    const float *data;
    int rows, columns;
    bool turned; /* use its transpose */
} mlp_matrix;

typedef struct mlp_arith {
    const char *name;
    void *stream;  /* a cudaStream_t; NULL on the CPU */
    void *library; /* of the device: the handle of cuBLAS */
    /* c = a * b, all row by row. The functions return NULL or what went wrong. */
    const char *(*multiply)(struct mlp_arith *m, mlp_matrix a, mlp_matrix b, float *c);
    const char *(*run)(struct mlp_arith *m, mlp_kernel which, const mlp_args *args);
    const char *(*wait)(struct mlp_arith *m);
    void (*close)(struct mlp_arith *m);
} mlp_arith;

void mlp_arith_cpu(mlp_arith *m);
/* Of libmlp_cuda, which is loaded where there is a device. */
const char *mlp_arith_cuda(mlp_arith *m, int device);
typedef const char *mlp_arith_open(mlp_arith *m, int device);

#ifdef __cplusplus
}
#endif

#endif /* MLP_ARITH_H */
