/* The arithmetic on the CPU. */
#include <stddef.h>
#include <string.h>

#include "arith.h"

static float at(const mlp_matrix *m, long row, long column) {
    return m->turned ? m->data[column * m->columns + row] : m->data[row * m->columns + column];
}

static const char *multiply(mlp_arith *m, mlp_matrix a, mlp_matrix b, float *c) {
    long rows = a.turned ? a.columns : a.rows, inner = a.turned ? a.rows : a.columns;
    long columns = b.turned ? b.rows : b.columns;
    (void)m;
    memset(c, 0, (size_t)(rows * columns) * sizeof *c);
    for (long r = 0; r < rows; r++) {
        for (long k = 0; k < inner; k++) {
            float left = at(&a, r, k);
            for (long n = 0; n < columns; n++) {
                c[r * columns + n] += left * at(&b, k, n);
            }
        }
    }
    return NULL;
}

static const char *run(mlp_arith *m, mlp_kernel which, const mlp_args *args) {
#define BODY(name) [MLP_##name] = mlp_##name,
    static void (*const bodies[])(const mlp_args *, long, long) = { MLP_KERNELS(BODY) };
#undef BODY
    (void)m;
    bodies[which](args, 0, 1);
    return NULL;
}

static const char *wait(mlp_arith *m) {
    (void)m;
    return NULL;
}

static void close(mlp_arith *m) {
    (void)m;
}

void mlp_arith_cpu(mlp_arith *m) {
    *m = (mlp_arith){
        .name = "cpu", .multiply = multiply, .run = run, .wait = wait, .close = close
    };
}
