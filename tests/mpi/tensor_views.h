/* Tensors in guarded memory with a choice of layouts, read and written by logical index. */
#ifndef TENSOR_VIEWS_H
#define TENSOR_VIEWS_H

#include <dtr/tensor.h>

#include "data.h"
#include "harness.h"

/* DENSE; every second element (column 0 of an array with two columns); dimensions reversed in
 * memory, with a gap of one element after each run. */
typedef enum layout { DENSE, COLUMN, REVERSED, N_LAYOUTS } layout;

typedef struct view {
    unsigned char *memory; /* poisoned with 0xA5 */
    size_t nbytes;
    dtr_tensor *t;
} view;

view view_new(dtr_dtype d, layout l, int ndim, const int64_t *shape);
void view_free(view *v);
/* Element k in row-major order; complex numbers are (x, -x). */
void view_set(const view *v, size_t k, double x);
double view_get(const view *v, size_t k);
/* Is everything between the elements still poison? With `whole`, the elements, too. */
bool view_gaps_ok(const view *v, bool whole);

#define SHAPE(...)      \
    (const int64_t[]) { \
        __VA_ARGS__     \
    }

/* One call, blocking or with a work that is waited for; all ranks agree on the status. */
#define RUN(async, status, call)                                        \
    do {                                                                \
        dtr_work *run_work = NULL, **work = (async) ? &run_work : NULL; \
        dtr_status run_s = (call);                                      \
        if (run_s == DTR_OK) {                                          \
            run_s = dtr_work_wait(run_work, -1);                        \
        }                                                               \
        dtr_work_release(run_work);                                     \
        th_status(__FILE__, __LINE__, #call, run_s, (status));          \
    } while (0)

#endif
