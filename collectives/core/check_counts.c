/* The checks of counts: that sizes are known, and that they fit each other and memory. */
#include "base/dtype.h"
#include "core/check.h"
#include "core/team.h"

static dtr_status check_bytes(const dtr__check *k, const dtr_buffer *b, const char *name) {
    size_t nbytes;
    if (__builtin_mul_overflow(b->count, dtr_dtype_size(b->dtype), &nbytes)) {
        REFUSE(k, DTR_ERR_OVERFLOW, "%s%s has %zu elements of %zu bytes, more than memory can hold",
               k->entry, name, b->count, dtr_dtype_size(b->dtype));
    }
    return DTR_OK;
}

static dtr_status sum_counts(const dtr__check *k, const size_t *counts, const char *name,
                             size_t *sum) {
    *sum = 0;
    for (int i = 0; i < k->group->size; i++) {
        if (__builtin_add_overflow(*sum, counts[i], sum)) {
            REFUSE(k, DTR_ERR_OVERFLOW, "the sum of %s overflows at entry %d (%zu)", name, i,
                   counts[i]);
        }
    }
    return DTR_OK;
}

/* One side consists of a block per rank, the other is this rank's (or, rooted, the root's own). */
static dtr_status check_one_block_side(const dtr__check *k, const dtr_buffer *big,
                                       const char *big_name, const dtr_buffer *small,
                                       const char *small_name, const size_t *counts) {
    size_t n = (size_t)k->group->size, sum;
    if (!k->in || !k->out) {
        return DTR_OK; /* rooted, elsewhere: the own count is free */
    }
    if (!k->rule->arrays) {
        if (__builtin_mul_overflow(small->count, n, &sum)) {
            REFUSE(k, DTR_ERR_OVERFLOW, "%s.count %zu times the group size %zu overflows",
                   small_name, small->count, n);
        }
        if (big->count != sum) {
            REFUSE(k, DTR_ERR_SHAPE,
                   "%s has %zu elements; with %zu in %s and %zu ranks it must have %zu", big_name,
                   big->count, small->count, small_name, n, sum);
        }
        return DTR_OK;
    }
    DTR_TRY(sum_counts(k, counts, "counts", &sum));
    if (small->count != counts[k->group->rank]) {
        REFUSE(k, DTR_ERR_SHAPE, "%s has %zu elements, but counts[%d] of this rank is %zu",
               small_name, small->count, k->group->rank, counts[k->group->rank]);
    }
    if (big->count != sum) {
        REFUSE(k, DTR_ERR_SHAPE, "%s has %zu elements, but the counts add up to %zu", big_name,
               big->count, sum);
    }
    return DTR_OK;
}

static dtr_status check_alltoall_side(const dtr__check *k, const dtr_buffer *b, const char *name,
                                      const size_t *counts, const char *counts_name) {
    size_t n = (size_t)k->group->size, sum;
    if (counts != NULL) {
        DTR_TRY(sum_counts(k, counts, counts_name, &sum));
        if (sum != b->count) {
            REFUSE(k, DTR_ERR_SHAPE, "%s has %zu elements, but %s add up to %zu", name, b->count,
                   counts_name, sum);
        }
    } else if (b->count % n != 0) {
        REFUSE(k, DTR_ERR_SHAPE, "%s has %zu elements, which cannot be split evenly over %zu ranks",
               name, b->count, n);
    }
    return DTR_OK;
}

/* The one pair of counts of which this rank knows both. */
static dtr_status check_own_pair(const dtr__check *k) {
    const dtr__request *r = k->r;
    const size_t n = (size_t)k->group->size;
    const dtr__blocks in = { r->in_counts, r->in.count / n },
                      out = { r->out_counts, r->out.count / n };
    const size_t gives = dtr__block_count(&in, k->group->rank),
                 takes = dtr__block_count(&out, k->group->rank);
    if (gives != takes) {
        REFUSE(k, DTR_ERR_SHAPE, "in has %zu elements of this rank (%d) for itself, and out %zu",
               gives, k->group->rank, takes);
    }
    return DTR_OK;
}

dtr_status dtr__check_counts(const dtr__check *k) {
    const dtr__request *r = k->r;
    if (k->in) {
        DTR_TRY(check_bytes(k, &r->in, dtr__check_in_name(k)));
    }
    if (k->out) {
        DTR_TRY(check_bytes(k, &r->out, "out"));
    }
    switch (k->rule->blocks) {
    case OUT_BLOCKS:
        return check_one_block_side(k, &r->out, "out", &r->in, "in", r->out_counts);
    case IN_BLOCKS:
        return check_one_block_side(k, &r->in, "in", &r->out, "out", r->in_counts);
    case BOTH_BLOCKS:
        DTR_TRY(check_alltoall_side(k, &r->in, "in", r->in_counts, "in_counts"));
        DTR_TRY(check_alltoall_side(k, &r->out, "out", r->out_counts, "out_counts"));
        if (k->rule->arrays) {
            DTR_TRY(check_own_pair(k));
        }
        break;
    case NO_BLOCKS:
        break;
    }
    if (k->in && k->out && !k->rule->arrays && r->in.count != r->out.count) {
        REFUSE(k, DTR_ERR_SHAPE, "in has %zu elements and out %zu; both must have the same count",
               r->in.count, r->out.count);
    }
    return DTR_OK;
}
