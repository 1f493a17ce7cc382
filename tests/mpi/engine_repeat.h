/* What the tests of the short way share: the calls that bring it into use. */
#ifndef TESTS_ENGINE_REPEAT_H
#define TESTS_ENGINE_REPEAT_H

#include "harness.h"

enum { TIMES = 200, ROW = 100, MOST_RANKS = 16 };

static inline dtr_buffer i32s(int32_t *x, size_t n) {
    return dtr_cpu(x, n, DTR_I32);
}

static inline int32_t triangle(int n) {
    return n * (n + 1) / 2;
}

/* One place for all allreduces of a test: what differs is the arguments alone. */
static inline dtr_status reduce_here(dtr_group *g, dtr_buffer in, dtr_buffer out, dtr_op op,
                                     const dtr_coll_options *o) {
    return dtr_allreduce(g, in, out, op, o, NULL);
}

/* The same sum many times, so that the short way is in use. Nobody breaks the group while another
 * is in the last of them. */
static inline void warm_up(dtr_group *g) {
    for (int i = 0; i < TIMES; i++) {
        int32_t x = th_rank() + i, y = 0;
        TH_IS(reduce_here(g, i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL), DTR_OK);
        TH_CHECK(y == triangle(th_size() - 1) + i * th_size(), "sum %d is %d", i, y);
    }
    th_barrier();
}

#endif /* TESTS_ENGINE_REPEAT_H */
