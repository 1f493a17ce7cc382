/** @file
 * Which samples of a data set a rank reads: all ranks of a data-parallel group share out the
 * samples of each epoch, in an order shuffled anew for every epoch. Nothing is communicated and no
 * list is kept: the order is a function of seed, epoch and number of samples that every rank
 * computes for the samples it asks for, so a data set of any length costs a few hundred bytes.
 *
 * Sample j of an epoch goes to rank j mod size, for j = 0, 1, ... Where the number of samples is no
 * multiple of the size, the epoch is filled up with samples from the beginning of its order, so
 * that all ranks read equally many; with drop_last its last few samples are left out instead.
 *
 * @par The order
 * Position j < n of an epoch holds sample P(j), where P is a permutation of 0..n-1 that is the same
 * on every machine and stays the same in later versions. All numbers have 64 bits and wrap; M(x) is
 * x ^= x >> 30, x *= 0xbf58476d1ce4e5b9, x ^= x >> 27, x *= 0x94d049bb133111eb, x ^= x >> 31 (the
 * output function of SplitMix64), and G is 0x9e3779b97f4a7c15. The key is K = M(M(seed + G) +
 * epoch), the keys of rounds 0 to 11 are k[i] = M(K + (i + 1) G). With b the least number for which
 * n <= 2^b, j is cut into its lower b / 2 bits and the upper rest. Even rounds replace the upper
 * part by upper ^ M(lower + k[i]), odd ones the lower part by lower ^ M(upper + k[i]), each cut to
 * its number of bits (a Feistel network). While the result is n or more, it goes through the rounds
 * again. */
#ifndef DTR_SAMPLER_H
#define DTR_SAMPLER_H

#include <dtr/status.h>

DTR_BEGIN_DECLS

typedef struct dtr_sampler dtr_sampler;

/** Options of dtr_sampler_create; zero means the default. */
typedef struct dtr_sampler_options {
    size_t struct_size; /**< set by DTR_SAMPLER_OPTIONS_INIT */
    uint64_t seed;      /**< of the order; the same on all ranks */
    bool sequential;    /**< no shuffling: position j holds sample j */
    bool drop_last; /**< leave out the last n mod size samples, in place of reading some twice */
} dtr_sampler_options;
#ifdef __cplusplus
#define DTR_SAMPLER_OPTIONS_INIT \
    { sizeof(dtr_sampler_options), 0, false, false }
#else
#define DTR_SAMPLER_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_sampler_options) }
#endif

/** How far an epoch has been read, the same on all ranks after equally many samples: plain data
 * for a checkpoint. */
typedef struct dtr_sampler_state {
    size_t struct_size; /**< set by DTR_SAMPLER_STATE_INIT */
    uint64_t n_samples, seed, epoch;
    uint64_t consumed; /**< samples of the epoch that all ranks together have read */
} dtr_sampler_state;
#ifdef __cplusplus
#define DTR_SAMPLER_STATE_INIT \
    { sizeof(dtr_sampler_state), 0, 0, 0, 0 }
#else
#define DTR_SAMPLER_STATE_INIT \
    { .struct_size = sizeof(dtr_sampler_state) }
#endif

/** Make a sampler of `n_samples` samples for rank `rank` of `size`: those of the data-parallel
 * group. It stands at the beginning of epoch 0. `options` may be NULL. One thread at a time uses
 * it.
 *  @collective no, but all ranks must make it alike
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (no samples, or more than 2^62; a rank or size out of range; NULL; options),
 * DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_sampler_create(uint64_t n_samples, int rank, int size,
                                      const dtr_sampler_options *options, dtr_sampler **sampler);

/** Go to the beginning of an epoch. Every epoch has its own order.
 *  @collective no, but all ranks must set it alike
 *  @blocking no  @gpu no  @errors DTR_ERR_ARG (handle)  @since 0.1 */
DTR_API dtr_status dtr_sampler_set_epoch(dtr_sampler *sampler, uint64_t epoch);

/** Write this rank's next samples, at most `max` of them, to `indices` and their number to `*n`. It
 * is less than `max` at the end of the epoch only, and 0 behind it, until dtr_sampler_set_epoch.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (handle, NULL)  @since 0.1 */
DTR_API dtr_status dtr_sampler_next(dtr_sampler *sampler, size_t max, uint64_t *indices, size_t *n);

/** Samples that each rank reads in a whole epoch; 0 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.2 */
DTR_API uint64_t dtr_sampler_count(const dtr_sampler *sampler);

/** Samples that this rank has yet to read in this epoch; 0 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API uint64_t dtr_sampler_left(const dtr_sampler *sampler);

/** Write down where the sampler stands; only the leading struct_size bytes of `state` are written.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (handle, NULL, struct_size 0)  @since 0.1 */
DTR_API dtr_status dtr_sampler_get_state(const dtr_sampler *sampler, dtr_sampler_state *state);

/** Go on where the sampler that gave `state` stood, also at another number of ranks: the samples of
 * its epoch that no rank had read are shared out among the ranks of this one. Its seed and epoch
 * are taken over.
 *  @collective no, but all ranks must set it alike
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (handle, NULL, struct_size too small, more consumed than there are),
 * DTR_ERR_MISMATCH (another number of samples)
 *  @since 0.1 */
DTR_API dtr_status dtr_sampler_set_state(dtr_sampler *sampler, const dtr_sampler_state *state);

/** Free a sampler. NULL is DTR_OK.
 *  @collective no  @blocking no  @gpu no  @errors DTR_ERR_ARG (handle)  @since 0.1 */
DTR_API dtr_status dtr_sampler_destroy(dtr_sampler *sampler);

DTR_END_DECLS

#endif /* DTR_SAMPLER_H */
