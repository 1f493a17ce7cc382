/* Matrix products: OpenBLAS on one thread per rank, or a blocked loop. */
#include "gpt.h"

#include <string.h>

#ifdef GPT_HAVE_OPENBLAS

#include <cblas.h>

void gpt_matmul(bool trans_a, bool trans_b, int m, int n, int k, const float *a, const float *b,
                float beta, float *out) {
    static bool set;
    if (!set) { /* ranks already use all cores */
        openblas_set_num_threads(1);
        set = true;
    }
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                trans_b ? CblasTrans : CblasNoTrans, m, n, k, 1.0f, a, trans_a ? m : k, b,
                trans_b ? k : n, beta, out, n);
}

const char *gpt_matmul_name(void) {
    return "OpenBLAS";
}

#else

enum { TILE = 64 };

static int smaller(int a, int b) {
    return a < b ? a : b;
}

/* out[tile][tile] += a[tile][..] b[..][tile]; the tile of b is laid out row by row so that the
 * inner loop is a vector one. */
static void tile_product(int rows, int cols, int depth, const float *a, int a_row, int a_col,
                         const float *b, float *out, int n) {
    for (int i = 0; i < rows; i++) {
        float *row = out + (size_t)i * (size_t)n;
        for (int p = 0; p < depth; p++) {
            float x = a[(size_t)i * (size_t)a_row + (size_t)p * (size_t)a_col];
            const float *from = b + (size_t)p * TILE;
            for (int j = 0; j < cols; j++) {
                row[j] += x * from[j];
            }
        }
    }
}

void gpt_matmul(bool trans_a, bool trans_b, int m, int n, int k, const float *a, const float *b,
                float beta, float *out) {
    if (beta == 0.0f) {
        memset(out, 0, (size_t)m * (size_t)n * sizeof *out);
    }
    int a_row = trans_a ? 1 : k, a_col = trans_a ? m : 1, b_row = trans_b ? 1 : n,
        b_col = trans_b ? k : 1;
    float tile[TILE * TILE];
    for (int p = 0; p < k; p += TILE) {
        for (int j = 0; j < n; j += TILE) {
            int depth = smaller(TILE, k - p), cols = smaller(TILE, n - j);
            for (int q = 0; q < depth; q++) {
                for (int c = 0; c < cols; c++) {
                    tile[q * TILE + c] =
                        b[(size_t)(p + q) * (size_t)b_row + (size_t)(j + c) * (size_t)b_col];
                }
            }
            for (int i = 0; i < m; i += TILE) {
                tile_product(smaller(TILE, m - i), cols, depth,
                             a + (size_t)i * (size_t)a_row + (size_t)p * (size_t)a_col, a_row,
                             a_col, tile, out + (size_t)i * (size_t)n + j, n);
            }
        }
    }
}

const char *gpt_matmul_name(void) {
    return "own blocked loop";
}

#endif
