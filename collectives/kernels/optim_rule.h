/* The rules of the optimizers for one element, in one type of arithmetic: REAL is float or double,
 * NAME(x) makes names, ROOT is the square root. Included once for each, by the steps of the host
 * and by the kernels, so that both write the same bits; nothing is contracted in either. */

#ifdef __CUDACC__
#define DTR_RULE static __device__ __forceinline__
#else
#define DTR_RULE static inline
#endif

/* Without momentum *m is left alone. */
DTR_RULE void NAME(sgd_one)(const NAME(dtr__numbers) * c, REAL decay, bool momentum, bool nesterov,
                            REAL *p, REAL g, REAL *m) {
    REAL d = g + decay * *p;
    if (momentum) {
        *m = c->momentum * *m + d;
        d = nesterov ? d + c->momentum * *m : *m;
    }
    *p -= c->rate * d;
}

/* apart: weight decay is no part of the gradient (AdamW). */
DTR_RULE void NAME(adam_one)(const NAME(dtr__numbers) * c, REAL decay, bool apart, REAL *p, REAL g,
                             REAL *m, REAL *v) {
    const REAL inside = apart ? 0 : decay, outside = apart ? c->rate * decay : 0;
    REAL x = *p, d = g + inside * x;
    x -= outside * x;
    *m = c->beta1 * *m + c->rest1 * d;
    *v = c->beta2 * *v + c->rest2 * d * d;
    *p = x - c->rate * (*m / c->fix1) / (ROOT(*v / c->fix2) + c->epsilon);
}

#undef DTR_RULE
