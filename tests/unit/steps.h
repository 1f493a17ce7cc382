/* Counting steps: files under test are compiled to call a function in each basic block
 * (tests.cmake), so no clock is asked. For one file of a program. */
#ifndef STEPS_H
#define STEPS_H

#include <check.h>
#include <stddef.h>

static size_t steps;
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    steps++;
}

enum { FEW = 1 << 10, TIMES = 16, MANY = FEW * TIMES };

/* Sixteen times the ranks are at most so many times the steps; a square makes it 256 times. */
enum { MOST_TIMES = 2 * TIMES };

static size_t steps_of(void (*run)(int n), int n) {
    steps = 0;
    run(n);
    return steps;
}

static void grows_like_ranks(void (*run)(int n)) {
    const size_t few = steps_of(run, FEW), many = steps_of(run, MANY);
    ck_assert_uint_gt(few, 0);
    ck_assert_msg(many <= MOST_TIMES * few, "%zu steps for %d ranks, %zu for %d", few, FEW, many,
                  MANY);
}

#endif /* STEPS_H */
