/* How much memory the shm backend takes for a group: control blocks and staging stay within what
 * DTR_SHM_CONTROL and DTR_SHM_STAGING say, for every number of ranks of a node. */
#include "backends/shm/shm_internal.h"
#include "unit.h"

enum { KIB = 1024 };

/* The blocks of all ranks are kept exactly once, each by the rank that the others look at. */
static void covers(int size, int keeps, size_t limit) {
    const size_t one = sizeof(dtr__shm_rank), row_at = (4 * (size_t)size + 2 + 7) / 8 * 8,
                 table = (row_at + (size_t)size) * sizeof(uint64_t) + sizeof(dtr__shm_board);
    size_t blocks = 0;
    for (int r = 0; r < size; r++) {
        size_t here = dtr__shm_kept_bytes(size, keeps, r);
        ck_assert_msg(here <= limit, "%d ranks: rank %d keeps %zu bytes, %zu allowed", size, r,
                      here, limit);
        here -= table + (r == 0 ? sizeof(dtr__shm_control) : 0);
        ck_assert_uint_eq(here % one, 0);
        ck_assert_msg((here > 0) == (r % keeps == 0), "rank %d of %d", r, size);
        blocks += here / one;
    }
    ck_assert_uint_eq(blocks, (size_t)size);
}

START_TEST(control_by_default) {
    for (int size = 2; size <= DTR__SHM_MAX_RANKS; size += size < 200 ? 1 : 103) {
        const int keeps = dtr__shm_keeps(size, 0);
        ck_assert_int_ge(keeps, 1);
        covers(size, keeps, (size_t)(64 * KIB) + (size_t)(4 * KIB) * (size_t)size);
    }
    ck_assert_int_eq(dtr__shm_keeps(4, 0), 4); /* all together where they fit */
}
END_TEST

START_TEST(control_as_asked) {
    static const size_t limits[] = { 24 * KIB, 40 * KIB, 100 * KIB, 1024 * KIB };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        for (int size = 2; size <= 100; size++) {
            covers(size, dtr__shm_keeps(size, limits[i]), limits[i]);
        }
    }
    ck_assert_int_eq(dtr__shm_keeps(2, 1), 0);
    ck_assert_int_eq(dtr__shm_keeps(2, 4 * KIB), 0);
    ck_assert_int_eq(dtr__shm_keeps(2, UINT64_MAX), 2);
}
END_TEST

START_TEST(staging) {
    static const uint64_t wishes[] = { 4 * KIB, 128 * KIB, 4096 * KIB },
                          limits[] = { 256 * KIB, 1024 * KIB, 8192 * KIB, 1048576 * KIB };
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        for (size_t k = 0; k < sizeof limits / sizeof limits[0]; k++) {
            for (int size = 2; size <= DTR__SHM_MAX_RANKS; size *= 2) {
                const size_t chunk = dtr__shm_chunk_bytes(size, wishes[i], limits[k]);
                const size_t channels = (size_t)size * dtr__shm_channel_bytes(size, limits[k]);
                ck_assert_uint_le(2 * chunk + dtr__shm_bounce_bytes(limits[k]) + channels,
                                  limits[k]);
                ck_assert_uint_ge(chunk, (size_t)64 * (size_t)size);
                ck_assert_uint_ge(dtr__shm_bounce_bytes(limits[k]) / (size_t)size, 64);
                ck_assert_uint_eq(chunk % 64, 0);
            }
        }
    }
    ck_assert_uint_eq(dtr__shm_chunk_bytes(2, 128 * KIB, 8192 * KIB), 128 * KIB);
    ck_assert_uint_eq(dtr__shm_channel_bytes(2, 8192 * KIB), 512 * KIB);
    ck_assert_uint_gt(dtr__shm_channel_bytes(200, 8192 * KIB), 0);
    ck_assert_uint_gt(dtr__shm_channel_bytes(6, 256 * KIB), 0);
    ck_assert_uint_eq(dtr__shm_channel_bytes(7, 256 * KIB), 0); /* not of use any more */
}
END_TEST

/* Two chunks by the cache, two of them timed, two by non-temporal stores timed; the next trial
 * after a while. Small chunks do not count. */
static bool trial(dtr__shm_trial *t, int64_t *now, const int64_t took[6], double worth) {
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(dtr__shm_trial_nontemporal(t, *now), i >= 4);
        dtr__shm_trial_took(t, *now, *now + 1, 100, worth);
        ck_assert_int_eq(dtr__shm_trial_nontemporal(t, *now), i >= 4);
        dtr__shm_trial_took(t, *now, *now + took[i], 16 * KIB, worth);
        *now += took[i];
    }
    return dtr__shm_trial_nontemporal(t, *now);
}

START_TEST(staging_trial) {
    static const int64_t near[6] = { 90000, 90000, 90000, 1000, 90000, 1050 },
                         apart[6] = { 1000, 1000, 4000, 4000, 90000, 900 };
    dtr__shm_trial t = { 0 };
    int64_t now = 1000;
    ck_assert(trial(&t, &now, apart, 2));
    ck_assert(dtr__shm_trial_nontemporal(&t, now + 1000000));
    now += 1000000000;
    ck_assert(!trial(&t, &now, near, 2));
    ck_assert(!dtr__shm_trial_nontemporal(&t, now + 1000000));
    now += 1000000000;
    ck_assert(trial(&t, &now, apart, 2));
    now += 1000000000;
    ck_assert(trial(&t, &now, near, 0.9)); /* a little slower is good enough for results */
    now += 1000000000;
    ck_assert(!trial(&t, &now, near, 1.2));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("limits");
    tcase_add_test(tc, control_by_default);
    tcase_add_test(tc, control_as_asked);
    tcase_add_test(tc, staging);
    tcase_add_test(tc, staging_trial);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("shm_limits", make);
}
