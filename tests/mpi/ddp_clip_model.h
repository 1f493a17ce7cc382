/* A module whose averages are clipped, in any mode, and the run of one rank that it must follow. */
#ifndef DDP_CLIP_MODEL_H
#define DDP_CLIP_MODEL_H

#include <dtr/optim.h>

#include "data.h"
#include "ddp_models.h"

/* Dense parameters, then one that nobody uses, a frozen one, an ignored one, a second name of the
 * first, and in some modes an embedding. */
enum { DENSE = 5, NEVER = DENSE, FROZEN, IGNORED, ALIAS, EMBED, MOST, ROWS = 10, DIM = 3 };
enum { STEPS = 20, LONGEST = 4097, GIVEN = 4 };
static const double limit = 40, rate = 0.01;
static const dtr_device cpu = { DTR_CPU, 0 };

typedef enum who { BY_HAND, BY_ZERO, BY_OPTIM, BY_ZERO_OPTIM } who;
typedef struct mode {
    const char *name;
    who who;
    dtr_dtype value, param, reduce; /* equal to value: the option is not set */
    bool view, fixed, dynamic, strided, delayed, rows, accumulate, upward;
    uint32_t flags, zero_flags;
    int hook; /* a dtr_ddp_builtin and one more */
} mode;

typedef struct run {
    const mode *m;
    dtr_param params[MOST];
    size_t n;
    char *memory; /* of a gradient with gaps */
    dtr_ddp *ddp;
    dtr_zero *zero;
    dtr_optim *optim;
    double *value[MOST]; /* the run of one rank */
} run;

size_t clip_numel(size_t i);
double clip_rounded(dtr_dtype d, double x);
double clip_mean(const mode *m, size_t i, size_t k, int step);
void clip_backward(const run *u, int step, bool again);
run clip_run_new(const mode *m);
void clip_run_free(run *u);
dtr_status clip_on_update(void *state, size_t first, dtr_buffer param, dtr_buffer grad);
void clip_step_dense(const run *u);
double clip_step_run(const run *u);
double clip_step_alone(const run *u, int step);
void clip_check_values(const run *u, int step);
void clip_train(const mode *m, double *norms);

#endif /* DDP_CLIP_MODEL_H */
