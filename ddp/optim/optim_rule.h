/* The rules for one type of arithmetic: REAL is float or double, NAME(x) makes names, ROOT is the
 * square root. Included once for each. Every element is computed on its own, so its bits do not
 * depend on where it lies. */

typedef struct NAME(numbers) {
    REAL rate, decay, momentum, beta1, beta2, rest1, rest2, fix1, fix2, epsilon;
} NAME(numbers);

static NAME(numbers) NAME(numbers_of)(const dtr_optim *o, bool decays) {
    double t = (double)o->steps;
    return (NAME(numbers)){
        .rate = (REAL)o->o.rate,
        .decay = decays ? (REAL)o->o.weight_decay : 0,
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

static void NAME(sgd)(const NAME(numbers) * c, bool nesterov, REAL *p, const REAL *g, REAL *m,
                      size_t n) {
    for (size_t k = 0; k < n; k++) {
        REAL d = g[k] + c->decay * p[k];
        if (m != NULL) {
            m[k] = c->momentum * m[k] + d;
            d = nesterov ? d + c->momentum * m[k] : m[k];
        }
        p[k] -= c->rate * d;
    }
}

static void NAME(adam)(const NAME(numbers) * c, bool apart, REAL *p, const REAL *g, REAL *m,
                       REAL *v, size_t n) {
    const REAL inside = apart ? 0 : c->decay, outside = apart ? c->rate * c->decay : 0;
    for (size_t k = 0; k < n; k++) {
        REAL x = p[k], d = g[k] + inside * x;
        x -= outside * x;
        m[k] = c->beta1 * m[k] + c->rest1 * d;
        v[k] = c->beta2 * v[k] + c->rest2 * d * d;
        p[k] = x - c->rate * (m[k] / c->fix1) / (ROOT(v[k] / c->fix2) + c->epsilon);
    }
}

static void NAME(run)(const dtr_optim *o, bool decays, REAL *p, const REAL *g, REAL *m, REAL *v,
                      size_t n) {
    const NAME(numbers) c = NAME(numbers_of)(o, decays);
    if (o->o.rule == DTR_OPTIM_SGD) {
        NAME(sgd)(&c, o->o.nesterov, p, g, m, n);
    } else {
        NAME(adam)(&c, o->o.rule == DTR_OPTIM_ADAMW, p, g, m, v, n);
    }
}
