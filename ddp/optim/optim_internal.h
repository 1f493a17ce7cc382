/* What an optimizer is inside. */
#ifndef DTR_OPTIM_INTERNAL_H
#define DTR_OPTIM_INTERNAL_H

#define DTR_NO_CALL_SITE
#include <dtr/optim.h>

#include "kernels/optim_numbers.h"
#include "step_device.h"
#include "zero/zero.h"

enum { DTR__OPTIM_ARRAYS = 3 }; /* first and second moment, master copy */

/* Elements begin..end of a shard do not decay. */
typedef struct dtr__optim_range {
    size_t begin, end;
} dtr__optim_range;

/* The state of the parameters of one type. */
typedef struct dtr__optim_part {
    size_t count;
    bool wide;                      /* arrays of double, else of float */
    void *array[DTR__OPTIM_ARRAYS]; /* NULL where the rule has none */
    /* On a device: whose memory they are, and what a step launches. */
    dtr_tensor *memory[DTR__OPTIM_ARRAYS];
    dtr__stretches *table;
    dtr__optim_range *undecayed; /* ascending, apart from each other */
    size_t n_undecayed;
} dtr__optim_part;

struct dtr_optim {
    uint64_t magic;
    dtr_ddp *ddp;
    dtr_zero *zero; /* NULL: whole */
    dtr_optim_options o;
    uint64_t steps;
    double grad_factor; /* of the step under way: what averages are multiplied by */
    dtr__optim_part part[DTR__ZERO_TYPES];
    size_t *begin; /* whole: [ddp->n] where the state of a parameter begins in its part */
    char names[DTR__OPTIM_ARRAYS * 4][16];
    dtr_zero_state states[DTR__OPTIM_ARRAYS * 4];
    size_t n_states;
    dtr__texts metadata; /* of the checkpoint that was loaded last */
};

#define DTR__OPTIM_MAGIC UINT64_C(0x6474725f6f707469)

dtr_status dtr__optim_check(const dtr_optim *optim, const char *entry);
/* A step with averages that are `scale` times too large. */
dtr_status dtr__optim_step(dtr_optim *optim, double scale, const char *entry);

/* Parameters that a step changes: those with a gradient of their own, in a bucket or delayed. */
static inline bool dtr__optim_has(const dtr_ddp *ddp, size_t i) {
    const dtr__ddp_param *p = &ddp->params[i];
    return p->same_as == i && (p->trainable || p->delayed);
}

#endif /* DTR_OPTIM_INTERNAL_H */
