/* What ranks read of a data set: the properties of sharing out and of the order, and the order
 * itself. */
#include <dtr/sampler.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

static dtr_sampler *make_one(uint64_t n, int rank, int size, dtr_sampler_options o) {
    dtr_sampler *s = NULL;
    ck_assert_int_eq(dtr_sampler_create(n, rank, size, &o, &s), DTR_OK);
    return s;
}

static dtr_sampler_options options(uint64_t seed, bool sequential, bool drop_last) {
    dtr_sampler_options o = DTR_SAMPLER_OPTIONS_INIT;
    o.seed = seed;
    o.sequential = sequential;
    o.drop_last = drop_last;
    return o;
}

/* The whole order of an epoch; the caller frees it. */
static uint64_t *order(uint64_t n, uint64_t seed, uint64_t epoch) {
    dtr_sampler *s = make_one(n, 0, 1, options(seed, false, false));
    uint64_t *all = malloc(n * sizeof *all);
    size_t got = 0;
    ck_assert_int_eq(dtr_sampler_set_epoch(s, epoch), DTR_OK);
    ck_assert_uint_eq(dtr_sampler_count(s), n);
    ck_assert_int_eq(dtr_sampler_next(s, n, all, &got), DTR_OK);
    ck_assert_uint_eq(got, n);
    ck_assert_int_eq(dtr_sampler_destroy(s), DTR_OK);
    return all;
}

static void expect_permutation(const uint64_t *all, uint64_t n) {
    unsigned char *seen = calloc(n, 1);
    for (uint64_t j = 0; j < n; j++) {
        ck_assert_uint_lt(all[j], n);
        ck_assert_int_eq(seen[all[j]]++, 0);
    }
    free(seen);
}

START_TEST(every_sample_once) {
    for (uint64_t n = 1; n < 300; n++) {
        uint64_t *all = order(n, n / 7, n % 5);
        expect_permutation(all, n);
        free(all);
    }
    const uint64_t large[] = { 4095, 4096, 4097, 65536, 65537, 1000003 };
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        uint64_t *all = order(large[i], 1, i);
        expect_permutation(all, large[i]);
        free(all);
    }
}
END_TEST

/* Sample k of rank r is number k size + r of the order: the beginning of it once more where ranks
 * would have fewer, or none of the last few. Read in batches of changing length. */
static void expect_shares(uint64_t n, int size, bool drop, bool sequential) {
    uint64_t *all = order(n, 42, 3),
             share = drop ? n / (uint64_t)size : (n + (uint64_t)size - 1) / (uint64_t)size;
    for (int r = 0; r < size; r++) {
        dtr_sampler *s = make_one(n, r, size, options(42, sequential, drop));
        uint64_t k = 0, some[7];
        size_t got = 0;
        ck_assert_int_eq(dtr_sampler_set_epoch(s, 3), DTR_OK);
        ck_assert_uint_eq(dtr_sampler_count(s), share);
        for (size_t max = 1; k < share; max = max % 7 + 1) {
            ck_assert_uint_eq(dtr_sampler_left(s), share - k);
            ck_assert_int_eq(dtr_sampler_next(s, max, some, &got), DTR_OK);
            ck_assert_uint_eq(got, max < share - k ? max : share - k);
            for (size_t i = 0; i < got; i++, k++) {
                const uint64_t j = (k * (uint64_t)size + (uint64_t)r) % n;
                ck_assert_uint_eq(some[i], sequential ? j : all[j]);
            }
        }
        ck_assert_int_eq(dtr_sampler_next(s, 7, some, &got), DTR_OK);
        ck_assert_uint_eq(got, 0);
        ck_assert_int_eq(dtr_sampler_destroy(s), DTR_OK);
    }
    free(all);
}

START_TEST(ranks_share_the_order) {
    const uint64_t ns[] = { 1, 2, 3, 10, 63, 64, 65, 1000, 1001 };
    const int sizes[] = { 1, 2, 3, 4, 7, 100 };
    for (size_t i = 0; i < sizeof ns / sizeof ns[0]; i++) {
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            for (int way = 0; way < 4; way++) {
                expect_shares(ns[i], sizes[k], way & 1, way & 2);
            }
        }
    }
}
END_TEST

START_TEST(orders_differ) {
    enum { N = 1000 };
    uint64_t *first = order(N, 7, 0);
    for (uint64_t k = 1; k < 50; k++) {
        uint64_t *epoch = order(N, 7, k), *seed = order(N, 7 + k, 0), same[2] = { 0, 0 };
        for (int j = 0; j < N; j++) {
            same[0] += epoch[j] == first[j];
            same[1] += seed[j] == first[j];
        }
        ck_assert_uint_lt(same[0], 12); /* 1 is expected of random ones */
        ck_assert_uint_lt(same[1], 12);
        free(epoch);
        free(seed);
    }
    uint64_t *again = order(N, 7, 0);
    ck_assert_int_eq(memcmp(first, again, N * sizeof *first), 0);
    free(first);
    free(again);
}
END_TEST

/* Every sample comes at every position equally often, and so does every pair of neighbours; the
 * numbers are the same in each run. Of 6000 draws from six boxes one holds 1000, give or take 29.
 */
START_TEST(orders_are_even) {
    enum { EPOCHS = 6000, LEAST = 3, MOST = 9 };
    for (uint64_t n = LEAST; n <= MOST; n++) {
        static int at[MOST][MOST], next[MOST][MOST];
        memset(at, 0, sizeof at);
        memset(next, 0, sizeof next);
        for (uint64_t e = 0; e < EPOCHS; e++) {
            uint64_t *all = order(n, 11, e);
            for (uint64_t j = 0; j < n; j++) {
                at[j][all[j]]++;
                next[all[j]][all[(j + 1) % n]]++;
            }
            free(all);
        }
        for (uint64_t j = 0; j < n; j++) {
            for (uint64_t i = 0; i < n; i++) {
                ck_assert_int_lt(abs(at[j][i] - EPOCHS / (int)n), 200);
                ck_assert(i == j || abs(next[j][i] - EPOCHS / ((int)n - 1)) < 200);
            }
        }
    }
}
END_TEST

/* The order is a promise to those who resume a run with a later version: see dtr/sampler.h. */
START_TEST(orders_stay) {
    const uint64_t ten[] = { 5, 9, 3, 4, 1, 7, 8, 2, 6, 0 },
                   thousand[] = { 564, 949, 270, 990, 571, 127, 169, 820, 862, 128 };
    uint64_t *a = order(10, 0, 0), *b = order(1000, 12345, 6);
    ck_assert_int_eq(memcmp(a, ten, sizeof ten), 0);
    ck_assert_int_eq(memcmp(b, thousand, sizeof thousand), 0);
    free(a);
    free(b);
}
END_TEST

/* Marks what a rank reads until the end of its epoch. */
static void read_rest(dtr_sampler *s, int *times) {
    uint64_t one = 0;
    for (size_t got = 1; got == 1;) {
        ck_assert_int_eq(dtr_sampler_next(s, 1, &one, &got), DTR_OK);
        times[one] += (int)got;
    }
}

/* Stopped after `k` samples of each rank, at `size` ranks, and resumed at `size_after`: the same
 * size reads what was left, sample by sample; another one every sample that nobody had read. */
static void expect_resumed(uint64_t n, int size, uint64_t k, int size_after, bool drop) {
    int times[64] = { 0 };
    uint64_t some[64], rest[64];
    dtr_sampler_state state = DTR_SAMPLER_STATE_INIT;
    for (int r = 0; r < size; r++) {
        dtr_sampler *s = make_one(n, r, size, options(5, false, drop));
        size_t got = 0, left = 0;
        ck_assert_int_eq(dtr_sampler_set_epoch(s, 9), DTR_OK);
        ck_assert_int_eq(dtr_sampler_next(s, k, some, &got), DTR_OK);
        for (size_t i = 0; i < got; i++) {
            times[some[i]]++;
        }
        dtr_sampler_state own = DTR_SAMPLER_STATE_INIT;
        ck_assert_int_eq(dtr_sampler_get_state(s, &own), DTR_OK);
        ck_assert(r == 0 || memcmp(&own, &state, sizeof own) == 0);
        state = own;
        ck_assert_int_eq(dtr_sampler_next(s, 64, rest, &left), DTR_OK);
        dtr_sampler *same = make_one(n, r, size, options(99, false, drop));
        ck_assert_int_eq(dtr_sampler_set_state(same, &own), DTR_OK);
        ck_assert_uint_eq(dtr_sampler_left(same), left);
        ck_assert_int_eq(dtr_sampler_next(same, 64, some, &got), DTR_OK);
        ck_assert_uint_eq(got, left);
        ck_assert_int_eq(memcmp(some, rest, left * sizeof rest[0]), 0);
        ck_assert_int_eq(dtr_sampler_set_epoch(same, 10), DTR_OK); /* a whole one again */
        ck_assert_uint_eq(dtr_sampler_left(same), dtr_sampler_count(same));
        (void)dtr_sampler_destroy(s);
        (void)dtr_sampler_destroy(same);
    }
    for (int r = 0; r < size_after; r++) {
        dtr_sampler *s = make_one(n, r, size_after, options(0, false, drop));
        ck_assert_int_eq(dtr_sampler_set_state(s, &state), DTR_OK);
        read_rest(s, times);
        (void)dtr_sampler_destroy(s);
    }
    int missing = 0;
    for (uint64_t i = 0; i < n; i++) {
        missing += times[i] == 0;
        ck_assert(!drop || times[i] <= 1);
    }
    ck_assert_int_le(missing, (drop ? size_after - 1 : 0));
}

START_TEST(resumes_anywhere) {
    for (uint64_t n = 1; n <= 40; n += 3) {
        for (int size = 1; size <= 4; size++) {
            for (uint64_t k = 0; k <= n / (uint64_t)size + 1; k++) {
                for (int after = 1; after <= 5; after += 2) {
                    expect_resumed(n, size, k, after, false);
                    expect_resumed(n, size, k, after, true);
                }
            }
        }
    }
}
END_TEST

/* A data set whose list of indices would take 8 GB, and the longest there can be. */
START_TEST(needs_no_list) {
    const uint64_t ns[] = { 1000000007, UINT64_C(1) << 62 };
    enum { READ = 5000 };
    static uint64_t got[READ];
    for (int i = 0; i < 2; i++) {
        dtr_sampler *s = make_one(ns[i], 2, 3, options(1, false, false));
        dtr_sampler_state state = DTR_SAMPLER_STATE_INIT;
        size_t n = 0, low = 0;
        ck_assert_int_eq(dtr_sampler_next(s, READ, got, &n), DTR_OK);
        ck_assert_uint_eq(n, READ);
        for (int k = 0; k < READ; k++) {
            ck_assert_uint_lt(got[k], ns[i]);
            low += got[k] < ns[i] / 2;
        }
        ck_assert(low > READ / 2 - 200 && low < READ / 2 + 200); /* the same in each run */
        ck_assert_int_eq(dtr_sampler_get_state(s, &state), DTR_OK);
        state.consumed = ns[i] - 1; /* the last sample, and two from the beginning */
        ck_assert_int_eq(dtr_sampler_set_state(s, &state), DTR_OK);
        ck_assert_int_eq(dtr_sampler_next(s, READ, got, &n), DTR_OK);
        ck_assert_uint_eq(n, 1);
        ck_assert_int_eq(dtr_sampler_destroy(s), DTR_OK);
    }
}
END_TEST

START_TEST(refusals) {
    dtr_sampler *s = NULL;
    dtr_sampler_options o = DTR_SAMPLER_OPTIONS_INIT;
    dtr_sampler_state state = DTR_SAMPLER_STATE_INIT;
    uint64_t one;
    size_t n = 77;
    ck_assert_int_eq(dtr_sampler_create(0, 0, 1, NULL, &s), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_sampler_create((UINT64_C(1) << 62) + 1, 0, 1, NULL, &s), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_sampler_create(10, 2, 2, NULL, &s), DTR_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "rank 2 of size 2"));
    ck_assert_int_eq(dtr_sampler_create(10, -1, 2, NULL, &s), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_sampler_create(10, 0, 0, NULL, &s), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_sampler_create(10, 0, 1, NULL, NULL), DTR_ERR_ARG);
    o.struct_size = 0;
    ck_assert_int_eq(dtr_sampler_create(10, 0, 1, &o, &s), DTR_ERR_ARG);
    ck_assert_ptr_null(s);
    ck_assert_int_eq(dtr_sampler_set_epoch(NULL, 1), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_sampler_next(NULL, 1, &one, &n), DTR_ERR_ARG);
    ck_assert_uint_eq(dtr_sampler_count(NULL) + dtr_sampler_left(NULL), 0);
    ck_assert_int_eq(dtr_sampler_destroy(NULL), DTR_OK);
    ck_assert_int_eq(dtr_sampler_create(10, 0, 1, NULL, &s), DTR_OK);
    ck_assert_int_eq(dtr_sampler_next(s, 1, NULL, &n), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_sampler_next(s, 1, &one, NULL), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_sampler_next(s, 0, NULL, &n), DTR_OK);
    ck_assert_uint_eq(n, 0);
    ck_assert_int_eq(dtr_sampler_get_state(s, NULL), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_sampler_set_state(s, NULL), DTR_ERR_ARG);
    state.n_samples = 11;
    ck_assert_int_eq(dtr_sampler_set_state(s, &state), DTR_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "of 11 samples, the sampler of 10"));
    state.n_samples = 10;
    state.consumed = 11;
    ck_assert_int_eq(dtr_sampler_set_state(s, &state), DTR_ERR_ARG);
    state.struct_size = 8;
    ck_assert_int_eq(dtr_sampler_set_state(s, &state), DTR_ERR_ARG);
    ck_assert_uint_eq(dtr_sampler_left(s), 10);
    ck_assert_int_eq(dtr_sampler_destroy(s), DTR_OK);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("sampler");
    tcase_add_test(tc, every_sample_once);
    tcase_add_test(tc, ranks_share_the_order);
    tcase_add_test(tc, orders_differ);
    tcase_add_test(tc, orders_are_even);
    tcase_add_test(tc, orders_stay);
    tcase_add_test(tc, resumes_anywhere);
    tcase_add_test(tc, needs_no_list);
    tcase_add_test(tc, refusals);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("sampler", make);
}
