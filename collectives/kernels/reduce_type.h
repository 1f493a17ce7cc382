/* The reduction of one element type; included by kernels_body.h once per type with
 *   T                    name of the type
 *   ELEM                 an element as it lies in memory
 *   SUM                  a vector of elements as they are summed
 *   COMBINE(op, a, b)    one step; op is a constant
 *   OPS(X)               X(op) for every operator that needs a loop of its own
 *   MEAN(s, divisor)     the division of AVG, if OPS names it
 *   DIVIDE               instead: a function that divides many sums (elements, how many, divisor)
 * and, where elements are not summed as they are stored,
 *   RAW                  a vector of as many elements, as stored
 *   DECODE(r), ENCODE(s) between RAW and SUM
 *   REAL                 type of a factor
 *   SCALE(s, factor)     the product of PREMUL_SUM
 * One vector of sums stays in a register while the sources are gone through, so each source is read
 * once and each destination written once, after all sources have been read. */
#ifndef RAW
#define RAW SUM
#define DECODE(r) (r)
#define ENCODE(s) (s)
#define REAL ELEM
#endif
#ifndef SCALE
#define SCALE(s, factor) ((s) * (factor))
#endif
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

/* Elements [at, at + m) of source i, m at most one vector. */
static ALWAYS_INLINE SUM CAT(term_, T)(const void *const *src, int i, size_t at, size_t m,
                                       const dtr_op op, const double *factors) {
    RAW raw;
    load_part(&raw, sizeof raw, (const ELEM *)src[i] + at, m * sizeof(ELEM));
    SUM term = DECODE(raw);
    if (op == DTR_PREMUL_SUM) {
        term = SCALE(term, (REAL)factors[i]);
    }
    return term;
}

static ALWAYS_INLINE void CAT(block_, T)(void *const *dst, int n_dst, const void *const *src, int n,
                                         size_t at, size_t m, const dtr_op op, int divisor,
                                         const double *factors, const bool nontemporal) {
    SUM sum = CAT(term_, T)(src, 0, at, m, op, factors);
    for (int i = 1; i < n; i++) {
        const SUM term = CAT(term_, T)(src, i, at, m, op, factors);
        sum = COMBINE(op, sum, term);
    }
#ifdef MEAN
    if (op == DTR_AVG) {
        sum = MEAN(sum, divisor);
    }
#else
    (void)divisor;
#endif
    const RAW out = ENCODE(sum);
    store_part((ELEM *)dst[0] + at, m * sizeof(ELEM), &out, sizeof out);
    for (int j = 1; j < n_dst; j++) {
        if (nontemporal) {
            store_nontemporal((ELEM *)dst[j] + at, &out, sizeof out);
        } else {
            store_part((ELEM *)dst[j] + at, m * sizeof(ELEM), &out, sizeof out);
        }
    }
}

/* All whole vectors; how many elements those are. */
static ALWAYS_INLINE size_t CAT(whole_, T)(void *const *dst, int n_dst, const void *const *src,
                                           int n, const dtr__reduce_job *job, size_t count,
                                           const dtr_op op, const bool nontemporal) {
    enum { LANES = sizeof(RAW) / sizeof(ELEM) };
    const int divisor = job->divisor;
    size_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        CAT(block_, T)(dst, n_dst, src, n, at, LANES, op, divisor, job->factors, nontemporal);
    }
    return at;
}

static ALWAYS_INLINE void CAT(blocks_, T)(const dtr__reduce_job *job, size_t count,
                                          const dtr_op op) {
    size_t at = 0;
    const int n = job->n, n_dst = job->n_dst;
    const void *const pair[2] = { job->src[0], job->src[n - 1] };
    void *const dst[2] = { job->dst[0], job->dst[n_dst - 1] };
    if (n == 2 && n_dst == 1) {
        at = CAT(whole_, T)(dst, 1, pair, 2, job, count, op, false);
    } else if (n == 2 && n_dst == 2 && job->nontemporal) {
        at = CAT(whole_, T)(dst, 2, pair, 2, job, count, op, true);
    } else if (n == 2 && n_dst == 2) {
        at = CAT(whole_, T)(dst, 2, pair, 2, job, count, op, false);
    } else if (job->nontemporal) {
        at = CAT(whole_, T)(job->dst, n_dst, job->src, n, job, count, op, true);
    } else {
        at = CAT(whole_, T)(job->dst, n_dst, job->src, n, job, count, op, false);
    }
    if (at < count) {
        CAT(block_, T)
        (job->dst, n_dst, job->src, n, at, count - at, op, job->divisor, job->factors, false);
    }
}

#ifdef DIVIDE
/* Sums of a tile, divided where they lie, then written: all sources of a tile have been read. */
static void CAT(averages_, T)(const dtr__reduce_job *job, size_t count) {
    enum { LANES = sizeof(RAW) / sizeof(ELEM) };
    _Alignas(64) ELEM tile[DTR__TILE];
    for (size_t at = 0; at < count; at += DTR__TILE) {
        const size_t n = count - at < DTR__TILE ? count - at : DTR__TILE;
        for (size_t k = 0; k < n; k += LANES) {
            const size_t m = n - k < LANES ? n - k : LANES;
            SUM sum = CAT(term_, T)(job->src, 0, at + k, m, DTR_SUM, NULL);
            for (int i = 1; i < job->n; i++) {
                sum = sum + CAT(term_, T)(job->src, i, at + k, m, DTR_SUM, NULL);
            }
            store_part(tile + k, m * sizeof(ELEM), &sum, sizeof sum);
        }
        leave_vectors();
        DIVIDE(tile, n, job->divisor);
        for (int j = 0; j < job->n_dst; j++) {
            memcpy((ELEM *)job->dst[j] + at, tile, n * sizeof(ELEM));
        }
    }
}
#endif

static void CAT(reduce_, T)(const dtr__reduce_job *job, size_t count) {
#define CASE(op)                         \
    case op:                             \
        CAT(blocks_, T)(job, count, op); \
        break;
    switch (job->op) {
        OPS(CASE)
#ifdef DIVIDE
    case DTR_AVG:
        CAT(averages_, T)(job, count);
        break;
#endif
    default:
        break;
    }
#undef CASE
    if (job->nontemporal) {
        fence_nontemporal();
    }
    leave_vectors();
}

#undef CAT
#undef CAT_
#undef T
#undef ELEM
#undef RAW
#undef SUM
#undef REAL
#undef DECODE
#undef ENCODE
#undef SCALE
#undef COMBINE
#undef MEAN
#undef DIVIDE
#undef OPS
