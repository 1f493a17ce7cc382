/** @file
 * Bucket plans: which parameter's gradient lies in which bucket, at which offset.
 *
 * A plan is data, computed by a pure function of its arguments: no communication, no state, the
 * same on every rank that gives the same arguments. Parameters are added in the given order, each
 * to the open bucket of its key (dtype, device); a bucket closes once its bytes have reached its
 * limit, so buckets overshoot and no parameter is split. Buckets are numbered in the order of
 * closing, the ones left open follow in first-seen order of their keys. Offsets and bucket sizes
 * are rounded up to 64 bytes; limits count bytes without that padding. */
#ifndef DTR_PLAN_H
#define DTR_PLAN_H

#include <dtr/device.h>
#include <dtr/dtype.h>

DTR_BEGIN_DECLS

typedef struct dtr_plan dtr_plan;

/** Flags of dtr_plan_compute and of dtr_ddp_options. */
enum {
    DTR_DDP_SUM = 1,        /**< sum over the ranks, no division (options only) */
    DTR_DDP_PER_PARAM = 2,  /**< one blocking average per parameter, in index order, at the end of
                               backward: the reference mode (options only) */
    DTR_DDP_SMALL_LAST = 4, /**< plan with the order reversed, then reverse the list of buckets: the
                               buckets with small limits come last */
    DTR_DDP_CHECK_NAN = 8,  /**< a NaN in a gradient is an error (options only) */
    DTR_DDP_LATE_ERRORS = 16 /**< errors of other ranks are known one step later, and on a CUDA
                                device the host waits for none of them (dtr/ddp.h; options only) */
};

/** What a plan needs to know of a parameter. */
typedef struct dtr_plan_param {
    const char *name; /**< copied; NULL: "" */
    size_t numel;
    dtr_dtype dtype; /**< of the bucket that will hold it */
    dtr_device device;
    bool sparse; /**< gets a bucket of its own, limit 0 */
} dtr_plan_param;

/** Where a parameter lies in its bucket. */
typedef struct dtr_plan_slot {
    size_t param;  /**< index into the params given */
    size_t offset; /**< bytes from the start of the bucket, a multiple of 64 */
    size_t nbytes; /**< without padding */
} dtr_plan_slot;

/** One bucket of a plan. */
typedef struct dtr_plan_bucket {
    const dtr_plan_slot *slots;
    size_t n_slots;
    size_t nbytes; /**< with padding, a multiple of 64 */
    size_t limit;  /**< bytes at which it closed or would have closed; 0: sparse or explicit */
    dtr_dtype dtype;
    dtr_device device;
} dtr_plan_bucket;

/** Compute a plan. `order` is a permutation of 0..n-1 (NULL: ascending). A key's k-th bucket closes
 * at limits[k] bytes, the last limit repeats; n_limits 0 means {1 MiB, 25 MiB}. n == 0 gives a plan
 * without buckets.
 *  @collective no  @blocking no
 *  @gpu no; devices are compared, never touched
 *  @errors DTR_ERR_ARG (NULL, order no permutation, unknown flag),
 * DTR_ERR_DTYPE (not in the enum), DTR_ERR_OVERFLOW, DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_plan_compute(const dtr_plan_param *params, size_t n, const size_t *order,
                                    const size_t *limits, size_t n_limits, uint32_t flags,
                                    dtr_plan **plan);

/** Make a plan from lists of parameter indices, one list of lens[b] entries per bucket.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG when a bucket is empty, a parameter is listed twice or not at all, a
 * bucket mixes dtypes or devices, or a sparse parameter shares its bucket; the rest as
 * dtr_plan_compute
 *  @since 0.1 */
DTR_API dtr_status dtr_plan_explicit(const dtr_plan_param *params, size_t n,
                                     const size_t *const *buckets, const size_t *lens,
                                     size_t n_buckets, dtr_plan **plan);

/** Number of buckets, 0 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.2 */
DTR_API size_t dtr_plan_bucket_count(const dtr_plan *plan);

/** Bucket b, valid as long as the plan; NULL when out of range.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const dtr_plan_bucket *dtr_plan_get_bucket(const dtr_plan *plan, size_t b);

/** Print the plan as a table, one line per bucket. Returns the length of the whole text without its
 * final NUL; at most cap bytes are written, NUL included, as snprintf does.
 *  @collective no  @blocking no  @gpu no  @errors none; 0 for NULL  @since 0.1 */
DTR_API size_t dtr_plan_print(const dtr_plan *plan, char *text, size_t cap);

/** Hash of names, dtypes, device types, sizes, offsets, limits and their order; 0 for NULL. Equal
 * plans have equal hashes on every rank.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API uint64_t dtr_plan_hash(const dtr_plan *plan);

/** Free a plan that the program has made; those of a module belong to it. NULL is DTR_OK.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.2 */
DTR_API dtr_status dtr_plan_destroy(dtr_plan *plan);

DTR_END_DECLS

#endif /* DTR_PLAN_H */
