/* Samples of a rank, computed one by one: the order of an epoch is a permutation of n numbers made
 * of one of 2^b >= n by walking along its cycles, which is less than two steps on average. */
#include <dtr/sampler.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define MAGIC UINT64_C(0x6474725f73616d70)
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)
#define MOST_SAMPLES (UINT64_C(1) << 62)
enum { ROUNDS = 12 };

struct dtr_sampler {
    uint64_t magic;
    uint64_t n, rank, size; /* constant */
    bool sequential, drop_last;
    uint64_t seed, epoch;
    uint64_t key[ROUNDS]; /* of this epoch */
    /* Samples of the epoch that were read before this sampler took over, and those that this rank
     * has read since. */
    uint64_t begin, taken;
};

/* ---- the order ---- */

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static void make_keys(dtr_sampler *s) {
    const uint64_t key = mix(mix(s->seed + GOLDEN) + s->epoch);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        s->key[i] = mix(key + (i + 1) * GOLDEN);
    }
}

/* Bits that hold all numbers below n. */
static unsigned bits_for(uint64_t n) {
    return n > 1 ? 64 - (unsigned)__builtin_clzll(n - 1) : 0;
}

static uint64_t permute(const dtr_sampler *s, uint64_t j) {
    const unsigned bits = bits_for(s->n), low_bits = bits / 2;
    const uint64_t low_mask = (UINT64_C(1) << low_bits) - 1,
                   high_mask = (UINT64_C(1) << (bits - low_bits)) - 1;
    do {
        uint64_t low = j & low_mask, high = j >> low_bits;
        for (int i = 0; i < ROUNDS; i += 2) {
            high ^= mix(low + s->key[i]) & high_mask;
            low ^= mix(high + s->key[i + 1]) & low_mask;
        }
        j = high << low_bits | low;
    } while (j >= s->n);
    return j;
}

/* ---- a rank's part ---- */

/* How many of `count` samples each rank reads. */
static uint64_t share_of(const dtr_sampler *s, uint64_t count) {
    return s->drop_last ? count / s->size : (count + s->size - 1) / s->size;
}

static uint64_t sample(const dtr_sampler *s, uint64_t k) {
    const uint64_t j =
        (s->begin + k * s->size + s->rank) % s->n; /* behind the end: its beginning */
    return s->sequential ? j : permute(s, j);
}

static dtr_status check(const dtr_sampler *s, const char *entry) {
    DTR_REQUIRE(s != NULL && s->magic == MAGIC, NULL, DTR_ERR_ARG,
                "%s: the pointer %p is no sampler, or a destroyed one", entry, (const void *)s);
    return DTR_OK;
}

dtr_status dtr_sampler_create(uint64_t n_samples, int rank, int size,
                              const dtr_sampler_options *options, dtr_sampler **sampler) {
    dtr_sampler_options o;
    DTR_TRY(dtr__options_copy(options, &o, sizeof o, "dtr_sampler_options"));
    DTR_REQUIRE(n_samples >= 1 && n_samples <= MOST_SAMPLES, NULL, DTR_ERR_ARG,
                "dtr_sampler_create: n_samples is %llu; give 1 to 2^62",
                (unsigned long long)n_samples);
    DTR_REQUIRE(
        size >= 1 && rank >= 0 && rank < size, NULL, DTR_ERR_ARG,
        "dtr_sampler_create: rank %d of size %d; give a size of at least 1, and a rank from "
        "0 to below it",
        rank, size);
    DTR_REQUIRE(sampler != NULL, NULL, DTR_ERR_ARG, "dtr_sampler_create: sampler is NULL");
    dtr_sampler *s = malloc(sizeof *s);
    DTR_REQUIRE(s != NULL, NULL, DTR_ERR_NOMEM, "dtr_sampler_create: no memory for a sampler");
    *s = (dtr_sampler){ .magic = MAGIC,
                        .n = n_samples,
                        .rank = (uint64_t)rank,
                        .size = (uint64_t)size,
                        .sequential = o.sequential,
                        .drop_last = o.drop_last,
                        .seed = o.seed };
    make_keys(s);
    *sampler = s;
    return DTR_OK;
}

dtr_status dtr_sampler_set_epoch(dtr_sampler *s, uint64_t epoch) {
    DTR_TRY(check(s, "dtr_sampler_set_epoch"));
    s->epoch = epoch;
    s->begin = s->taken = 0;
    make_keys(s);
    return DTR_OK;
}

uint64_t dtr_sampler_count(const dtr_sampler *s) {
    return s != NULL ? share_of(s, s->n) : 0;
}

uint64_t dtr_sampler_left(const dtr_sampler *s) {
    return s != NULL ? share_of(s, s->n - s->begin) - s->taken : 0;
}

dtr_status dtr_sampler_next(dtr_sampler *s, size_t max, uint64_t *indices, size_t *n) {
    DTR_TRY(check(s, "dtr_sampler_next"));
    DTR_REQUIRE(n != NULL && (indices != NULL || max == 0), NULL, DTR_ERR_ARG,
                "dtr_sampler_next: %s is NULL", n == NULL ? "n" : "indices");
    const uint64_t left = dtr_sampler_left(s);
    const size_t count = max < left ? max : (size_t)left;
    for (size_t i = 0; i < count; i++) {
        indices[i] = sample(s, s->taken + i);
    }
    s->taken += count;
    *n = count;
    return DTR_OK;
}

/* ---- going on later ---- */

dtr_status dtr_sampler_get_state(const dtr_sampler *s, dtr_sampler_state *state) {
    DTR_TRY(check(s, "dtr_sampler_get_state"));
    DTR_REQUIRE(state != NULL && state->struct_size > 0, NULL, DTR_ERR_ARG,
                "dtr_sampler_get_state: state is NULL, or its struct_size 0: begin with "
                "DTR_SAMPLER_STATE_INIT");
    const uint64_t consumed = s->begin + s->taken * s->size;
    dtr_sampler_state own = { .struct_size = state->struct_size,
                              .n_samples = s->n,
                              .seed = s->seed,
                              .epoch = s->epoch,
                              .consumed = consumed < s->n ? consumed : s->n };
    memcpy(state, &own, own.struct_size < sizeof own ? own.struct_size : sizeof own);
    return DTR_OK;
}

dtr_status dtr_sampler_set_state(dtr_sampler *s, const dtr_sampler_state *state) {
    DTR_TRY(check(s, "dtr_sampler_set_state"));
    DTR_REQUIRE(state != NULL && state->struct_size >= sizeof *state, NULL, DTR_ERR_ARG,
                "dtr_sampler_set_state: state is NULL, or its struct_size too small: begin with "
                "DTR_SAMPLER_STATE_INIT");
    DTR_REQUIRE(state->n_samples == s->n, NULL, DTR_ERR_MISMATCH,
                "dtr_sampler_set_state: the state is of %llu samples, the sampler of %llu",
                (unsigned long long)state->n_samples, (unsigned long long)s->n);
    DTR_REQUIRE(state->consumed <= s->n, NULL, DTR_ERR_ARG,
                "dtr_sampler_set_state: %llu samples consumed, there are %llu",
                (unsigned long long)state->consumed, (unsigned long long)s->n);
    s->seed = state->seed;
    s->epoch = state->epoch;
    s->begin = state->consumed;
    s->taken = 0;
    make_keys(s);
    return DTR_OK;
}

dtr_status dtr_sampler_destroy(dtr_sampler *s) {
    if (s == NULL) {
        return DTR_OK;
    }
    DTR_TRY(check(s, "dtr_sampler_destroy"));
    s->magic = 0;
    free(s);
    return DTR_OK;
}
