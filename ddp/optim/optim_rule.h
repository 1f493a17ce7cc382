/* The rules over arrays for one type of arithmetic, as in kernels/optim_rule.h. Included once for
 * each. Every element is computed on its own, so its bits do not depend on where it lies. */
#include "kernels/optim_rule.h"

static NAME(dtr__numbers) NAME(numbers_of)(const dtr_optim *o) {
    double t = (double)o->steps;
    return (NAME(dtr__numbers)){
        .rate = (REAL)o->o.rate,
        .momentum = (REAL)o->o.momentum,
        .beta1 = (REAL)o->o.beta1,
        .beta2 = (REAL)o->o.beta2,
        .rest1 = (REAL)(1 - o->o.beta1),
        .rest2 = (REAL)(1 - o->o.beta2),
        .fix1 = (REAL)(1 - pow(o->o.beta1, t)),
        .fix2 = (REAL)(1 - pow(o->o.beta2, t)),
        .epsilon = (REAL)o->o.epsilon,
    };
}

static void NAME(sgd)(const NAME(dtr__numbers) * c, REAL decay, bool nesterov, REAL *p,
                      const REAL *g, REAL *m, size_t n) {
    REAL none = 0;
    for (size_t k = 0; k < n; k++) {
        NAME(sgd_one)(c, decay, m != NULL, nesterov, p + k, g[k], m != NULL ? m + k : &none);
    }
}

static void NAME(adam)(const NAME(dtr__numbers) * c, REAL decay, bool apart, REAL *p, const REAL *g,
                       REAL *m, REAL *v, size_t n) {
    for (size_t k = 0; k < n; k++) {
        NAME(adam_one)(c, decay, apart, p + k, g[k], m + k, v + k);
    }
}

static void NAME(run)(const dtr_optim *o, bool decays, REAL *p, const REAL *g, REAL *m, REAL *v,
                      size_t n) {
    const NAME(dtr__numbers) c = NAME(numbers_of)(o);
    const REAL decay = decays ? (REAL)o->o.weight_decay : 0;
    if (o->o.rule == DTR_OPTIM_SGD) {
        NAME(sgd)(&c, decay, o->o.nesterov, p, g, m, n);
    } else {
        NAME(adam)(&c, decay, o->o.rule == DTR_OPTIM_ADAMW, p, g, m, v, n);
    }
}
