/* Where the blocks of a call lie. */
#include <stdint.h>

#include "core/call.h"
#include "unit.h"

/* NCO18, nccl:X17: counts and offsets beyond 32 bits, equal and not. */
START_TEST(NCO18_large_offsets) {
    const size_t large = (size_t)INT32_MAX + 5;
    size_t counts[] = { large, 0, 3, 2 * large, 1 };
    dtr__blocks equal = { NULL, large }, given = { counts, 0 };
    for (int i = 0; i < 1000; i++) {
        ck_assert_uint_eq(dtr__block_offset(&equal, i), (uint64_t)large * (uint64_t)i);
        ck_assert_uint_eq(dtr__block_count(&equal, i), large);
    }
    uint64_t at = 0;
    for (int i = 0; i < 5; i++) {
        ck_assert_uint_eq(dtr__block_offset(&given, i), at);
        ck_assert_uint_eq(dtr__block_count(&given, i), counts[i]);
        at += counts[i];
    }
    dtr__call all = { .kind = DTR__K_ALLTOALL, .in_count = 8 * large, .out_count = 8 * large };
    dtr__blocks in = dtr__blocks_in(&all, 8), out = dtr__blocks_out(&all, 8);
    ck_assert_uint_eq(dtr__block_offset(&in, 7), 7 * large);
    ck_assert_uint_eq(dtr__block_offset(&out, 7), 7 * large);
    all = (dtr__call){ .kind = DTR__K_ALLTOALLV, .in_counts = counts };
    in = dtr__blocks_in(&all, 5);
    ck_assert_uint_eq(dtr__block_offset(&in, 4), 3 * large + 3);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("blocks");
    tcase_add_test(tc, NCO18_large_offsets);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("blocks", make);
}
