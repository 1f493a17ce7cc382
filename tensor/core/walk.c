/* Visiting strided tensors run by run, and moving runs to and from packed memory. */
#include <stdlib.h>
#include <string.h>

#include "core/walk.h"

/* Where the two tensors are dense in different dimensions (a transposed copy), tiles of this many
 * elements keep both in cache. */
enum { TILE_INNER = 64, TILE_OUTER = 32 };

typedef dtr__dims walk; /* dimension 0 is the run */

static void swap_dims(walk *w, int i, int j) {
    int64_t size = w->size[i];
    ptrdiff_t a_step = w->a_step[i], b_step = w->b_step[i];
    w->size[i] = w->size[j];
    w->a_step[i] = w->a_step[j];
    w->b_step[i] = w->b_step[j];
    w->size[j] = size;
    w->a_step[j] = a_step;
    w->b_step[j] = b_step;
}

/* Run a dimension backwards, so that a's step is positive. */
static void turn(walk *w, int d) {
    w->a += w->a_step[d] * (ptrdiff_t)(w->size[d] - 1);
    w->a_step[d] = -w->a_step[d];
    if (w->b != NULL) {
        w->b += w->b_step[d] * (ptrdiff_t)(w->size[d] - 1);
        w->b_step[d] = -w->b_step[d];
    }
}

/* Sorted by a's step, then b's. */
static void collect(walk *w, const dtr_tensor *a, const dtr_tensor *b) {
    ptrdiff_t a_size = (ptrdiff_t)dtr_dtype_size(a->dtype);
    ptrdiff_t b_size = b != NULL ? (ptrdiff_t)dtr_dtype_size(b->dtype) : 0;
    for (int d = a->ndim - 1; d >= 0; d--) {
        if (a->shape[d] == 1) {
            continue;
        }
        int at = w->ndim++;
        w->size[at] = a->shape[d];
        w->a_step[at] = (ptrdiff_t)a->strides[d] * a_size;
        w->b_step[at] = b != NULL ? (ptrdiff_t)b->strides[d] * b_size : 0;
        if (w->a_step[at] < 0) {
            turn(w, at);
        }
        for (; at > 0 && (w->a_step[at - 1] > w->a_step[at] ||
                          (w->a_step[at - 1] == w->a_step[at] &&
                           labs(w->b_step[at - 1]) > labs(w->b_step[at])));
             at--) {
            swap_dims(w, at, at - 1);
        }
    }
    if (w->ndim == 0) {
        *w = (walk){ .ndim = 1, .size = { 1 }, .a = w->a, .b = w->b };
        w->a_step[0] = a_size;
        w->b_step[0] = b_size;
    }
}

static void merge(walk *w) {
    int to = 0;
    for (int d = 1; d < w->ndim; d++) {
        if (w->a_step[d] == w->a_step[to] * (ptrdiff_t)w->size[to] &&
            w->b_step[d] == w->b_step[to] * (ptrdiff_t)w->size[to]) {
            w->size[to] *= w->size[d];
        } else if (++to != d) {
            w->size[to] = w->size[d];
            w->a_step[to] = w->a_step[d];
            w->b_step[to] = w->b_step[d];
        }
    }
    w->ndim = to + 1;
}

dtr__dims dtr__walk_dims(const dtr_tensor *a, const dtr_tensor *b) {
    walk w = { .a = a->data, .b = b != NULL ? b->data : NULL };
    collect(&w, a, b);
    merge(&w);
    return w;
}

/* Put the dimension in which b is dense next to the one in which a is. */
static void choose_tiles(walk *w) {
    int dense = 0;
    for (int d = 1; d < w->ndim; d++) {
        if (labs(w->b_step[d]) < labs(w->b_step[dense])) {
            dense = d;
        }
    }
    if (w->b != NULL && dense != 0) {
        swap_dims(w, 1, dense);
        w->tiled = true;
    }
}

static void run_tiles(const walk *w, char *a, char *b, dtr__run_fn fn, void *arg) {
    for (int64_t i = 0; i < w->size[1]; i += TILE_OUTER) {
        int64_t i_end = i + TILE_OUTER < w->size[1] ? i + TILE_OUTER : w->size[1];
        for (int64_t j = 0; j < w->size[0]; j += TILE_INNER) {
            int64_t n = w->size[0] - j < TILE_INNER ? w->size[0] - j : TILE_INNER;
            for (int64_t k = i; k < i_end; k++) {
                fn(arg, a + w->a_step[1] * k + w->a_step[0] * j, w->a_step[0],
                   b + w->b_step[1] * k + w->b_step[0] * j, w->b_step[0], (size_t)n);
            }
        }
    }
}

void dtr__walk(const dtr_tensor *ta, const dtr_tensor *tb, dtr__run_fn fn, void *arg) {
    if (ta->numel == 0) {
        return;
    }
    walk w = dtr__walk_dims(ta, tb);
    choose_tiles(&w);
    int inner = w.tiled ? 2 : 1; /* dimensions handled by one step of the loop below */
    int64_t index[DTR_MAX_NDIM] = { 0 };
    for (;;) {
        if (w.tiled) {
            run_tiles(&w, w.a, w.b, fn, arg);
        } else {
            fn(arg, w.a, w.a_step[0], w.b, w.b_step[0], (size_t)w.size[0]);
        }
        int d = inner;
        for (; d < w.ndim; d++) {
            bool wrap = ++index[d] == w.size[d];
            int64_t move = wrap ? -(w.size[d] - 1) : 1;
            w.a += w.a_step[d] * (ptrdiff_t)move;
            w.b = w.b != NULL ? w.b + w.b_step[d] * (ptrdiff_t)move : NULL;
            if (!wrap) {
                break;
            }
            index[d] = 0;
        }
        if (d >= w.ndim) {
            return;
        }
    }
}

/* ---- runs ---- */

/* One loop per element size: the compiler turns the memcpy of a constant size into one load and
 * store without an alignment assumption. */
#define RUN_LOOP(size, to, to_step, from, from_step)                                          \
    for (size_t i = 0; i < n; i++) {                                                          \
        memcpy((to) + (ptrdiff_t)i * (to_step), (from) + (ptrdiff_t)i * (from_step), (size)); \
    }
static void move_run(char *dst, ptrdiff_t dst_step, const char *src, ptrdiff_t src_step, size_t n,
                     size_t size) {
    switch (size) {
    case 1:
        RUN_LOOP(1, dst, dst_step, src, src_step);
        break;
    case 2:
        RUN_LOOP(2, dst, dst_step, src, src_step);
        break;
    case 4:
        RUN_LOOP(4, dst, dst_step, src, src_step);
        break;
    case 8:
        RUN_LOOP(8, dst, dst_step, src, src_step);
        break;
    default:
        RUN_LOOP(16, dst, dst_step, src, src_step);
        break;
    }
}

void dtr__gather_run(char *packed, const char *src, ptrdiff_t step, size_t n, size_t size) {
    move_run(packed, (ptrdiff_t)size, src, step, n, size);
}

void dtr__scatter_run(char *dst, ptrdiff_t step, const char *packed, size_t n, size_t size) {
    move_run(dst, step, packed, (ptrdiff_t)size, n, size);
}
