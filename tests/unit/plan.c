/* The bucket plan against its goldens, its rules on random models, its hash and its refusals. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/plan.h>

#include "data.h"
#include "unit.h"

#define MIB ((size_t)1 << 20)

static dtr_plan_param f32(size_t numel) {
    return (dtr_plan_param){ "p", numel, DTR_F32, { DTR_CPU, 0 }, false };
}

static dtr_plan_param f64(size_t numel) {
    return (dtr_plan_param){ "p", numel, DTR_F64, { DTR_CPU, 0 }, false };
}

/* "0,2|1,3" and the limits "400,400" of a plan. */
static void describe(const dtr_plan *plan, char *members, char *limits) {
    *members = *limits = '\0';
    for (size_t b = 0; b < dtr_plan_bucket_count(plan); b++) {
        const dtr_plan_bucket *k = dtr_plan_get_bucket(plan, b);
        for (size_t s = 0; s < k->n_slots; s++) {
            members += sprintf(members, "%s%zu", s > 0 ? "," : b > 0 ? "|" : "", k->slots[s].param);
        }
        limits += sprintf(limits, "%s%zu", b > 0 ? "," : "", k->limit);
    }
}

static void expect(const dtr_plan_param *params, size_t n, bool reversed, const size_t *limits,
                   size_t n_limits, uint32_t flags, const char *want, const char *want_limits) {
    size_t order[16];
    for (size_t i = 0; i < n; i++) {
        order[i] = n - 1 - i;
    }
    dtr_plan *plan = NULL;
    ck_assert_int_eq(
        dtr_plan_compute(params, n, reversed ? order : NULL, limits, n_limits, flags, &plan),
        DTR_OK);
    char members[256], used[256];
    describe(plan, members, used);
    ck_assert_str_eq(members, want);
    ck_assert_str_eq(used, want_limits);
    dtr_plan_destroy(plan);
}

#define LIMITS(...) \
    ((size_t[]){ __VA_ARGS__ }), (sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t))

/* T80: g1-g5 in the order given (A2, A3, A8, A9). */
START_TEST(goldens_in_order) {
    dtr_plan_param g1[] = { f32(100), f32(200), f32(100), f32(50) };
    expect(g1, 4, false, LIMITS(400), 0, "0|1|2|3", "400,400,400,400");
    dtr_plan_param g2[] = { f32(50), f64(25), f32(50), f64(25), f32(50), f64(25) };
    expect(g2, 6, false, LIMITS(400), 0, "0,2|1,3|4|5", "400,400,400,400");
    expect(g2, 6, false, LIMITS(200, 400), 0, "0|1|2,4|3,5", "200,200,400,400");
    dtr_plan_param g3[] = { f32(10), f32(10), f32(10), f32(10) };
    expect(g3, 4, false, LIMITS(40, 80), 0, "0|1,2|3", "40,80,80");
    dtr_plan_param g4[10];
    for (int i = 0; i < 10; i++) {
        g4[i] = f32(6 * MIB / 4);
    }
    expect(g4, 10, false, LIMITS(MIB, 25 * MIB), 0, "0|1,2,3,4,5|6,7,8,9",
           "1048576,26214400,26214400");
    expect(g4, 10, false, NULL, 0, 0, "0|1,2,3,4,5|6,7,8,9", "1048576,26214400,26214400");
    dtr_plan_param g5[] = { f32(10), f32(10), f32(10) };
    g5[1].sparse = true;
    expect(g5, 3, false, LIMITS(1000), 0, "1|0,2", "0,1000");
}
END_TEST

/* T80: g6-g9 are first plans, in reversed order. */
START_TEST(goldens_reversed) {
    dtr_plan_param net[] = { f32(20), f32(500), f32(200) };
    expect(net, 3, true, LIMITS(1048, 1048), 0, "2,1|0", "1048,1048");
    expect(net, 3, true, LIMITS(MIB, 25 * MIB), 0, "2,1,0", "1048576");
    dtr_plan_param g7[10];
    for (int i = 0; i < 10; i++) {
        g7[i] = f32(6 * MIB / 4);
    }
    expect(g7, 10, true, LIMITS(MIB, 25 * MIB), 0, "9|8,7,6,5,4|3,2,1,0",
           "1048576,26214400,26214400");
    expect(g7, 10, true, LIMITS(MIB, 25 * MIB), DTR_DDP_SMALL_LAST, "6,7,8,9|1,2,3,4,5|0",
           "26214400,26214400,1048576");
    dtr_plan_param g8[] = { f32(50), f64(25), f32(50), f64(25), f32(50), f64(25) };
    expect(g8, 6, true, LIMITS(200, 400), 0, "5|4|3,1|2,0", "200,200,400,400");
    dtr_plan_param g9[] = { f32(100), f32(200), f32(100), f32(50) };
    expect(g9, 4, true, LIMITS(400, 400), 0, "3,2|1|0", "400,400,400");
}
END_TEST

/* g6, A12: offsets and sizes are rounded up to 64 bytes, slots keep their own. */
START_TEST(offsets) {
    dtr_plan_param net[] = { f32(20), f32(500), f32(200) };
    size_t order[] = { 2, 1, 0 }, limits[] = { 1048, 1048 };
    dtr_plan *plan = NULL;
    ck_assert_int_eq(dtr_plan_compute(net, 3, order, limits, 2, 0, &plan), DTR_OK);
    const dtr_plan_bucket *b = dtr_plan_get_bucket(plan, 0);
    ck_assert_uint_eq(b->slots[0].offset, 0);
    ck_assert_uint_eq(b->slots[0].nbytes, 800);
    ck_assert_uint_eq(b->slots[1].offset, 832);
    ck_assert_uint_eq(b->slots[1].nbytes, 2000);
    ck_assert_uint_eq(b->nbytes, 2880);
    b = dtr_plan_get_bucket(plan, 1);
    ck_assert_uint_eq(b->slots[0].offset, 0);
    ck_assert_uint_eq(b->nbytes, 128);
    ck_assert_ptr_null(dtr_plan_get_bucket(plan, 2));
    dtr_plan_destroy(plan);

    ck_assert_int_eq(dtr_plan_compute(net, 3, order, NULL, 0, 0, &plan), DTR_OK);
    b = dtr_plan_get_bucket(plan, 0);
    ck_assert_uint_eq(b->slots[2].offset, 2880);
    ck_assert_uint_eq(b->nbytes, 3008);
    dtr_plan_destroy(plan);
}
END_TEST

START_TEST(empty_things) {
    dtr_plan *plan = NULL;
    ck_assert_int_eq(dtr_plan_compute(NULL, 0, NULL, NULL, 0, 0, &plan), DTR_OK);
    ck_assert_uint_eq(dtr_plan_bucket_count(plan), 0);
    dtr_plan_destroy(plan);
    dtr_plan_param none[] = { f32(0), f32(3), f32(0) }; /* A13 */
    ck_assert_int_eq(dtr_plan_compute(none, 3, NULL, NULL, 0, 0, &plan), DTR_OK);
    const dtr_plan_bucket *b = dtr_plan_get_bucket(plan, 0);
    ck_assert_uint_eq(b->n_slots, 3);
    ck_assert_uint_eq(b->slots[0].nbytes, 0);
    ck_assert_uint_eq(b->slots[2].offset, 64);
    ck_assert_uint_eq(b->nbytes, 64);
    ck_assert_int_eq(dtr_plan_destroy(plan), DTR_OK);
    ck_assert_int_eq(dtr_plan_destroy(NULL), DTR_OK);
    ck_assert_uint_eq(dtr_plan_bucket_count(NULL), 0);
    ck_assert_uint_eq(dtr_plan_hash(NULL), 0);
    ck_assert_uint_eq(dtr_plan_print(NULL, NULL, 0), 0);
}
END_TEST

/* T43, A1: a device has its own buckets. */
START_TEST(two_devices) {
    dtr_plan_param p[6];
    for (int i = 0; i < 6; i++) {
        p[i] = f32(10);
        p[i].device = (dtr_device){ DTR_CUDA, i % 2 };
    }
    expect(p, 6, false, LIMITS(80), 0, "0,2|1,3|4|5", "80,80,80,80");
}
END_TEST

/* T81, T82, A11: explicit plans. */
START_TEST(explicit_plans) {
    dtr_plan_param p[] = { f64(20), f32(40), f32(16) };
    const size_t first[] = { 0 }, rest[] = { 1, 2 }, one[] = { 1 }, mixed[] = { 0, 1 },
                 two[] = { 2 }, far[] = { 3 };
    dtr_plan *plan = NULL;
    ck_assert_int_eq(
        dtr_plan_explicit(p, 3, (const size_t *[]){ first, rest }, (size_t[]){ 1, 2 }, 2, &plan),
        DTR_OK);
    char members[64], limits[64];
    describe(plan, members, limits);
    ck_assert_str_eq(members, "0|1,2");
    ck_assert_uint_eq(dtr_plan_get_bucket(plan, 1)->slots[1].offset, 192);
    dtr_plan_destroy(plan);

    dtr_plan_param same[] = { f32(20), f32(40), f32(16) };
    const size_t all[] = { 0, 1, 2 };
    ck_assert_int_eq(
        dtr_plan_explicit(same, 3, (const size_t *[]){ all }, (size_t[]){ 3 }, 1, &plan), DTR_OK);
    dtr_plan_destroy(plan);

    plan = NULL;
    struct {
        const size_t *lists[3];
        size_t lens[3], n;
        const char *word;
    } bad[] = {
        { { mixed, two }, { 2, 1 }, 2, "mixes" },
        { { first, rest, one }, { 1, 2, 0 }, 3, "empty" },
        { { first, rest, one }, { 1, 2, 1 }, 3, "twice" },
        { { first, one }, { 1, 1 }, 2, "no bucket" },
        { { first, rest, far }, { 1, 2, 1 }, 3, "is 3" },
    };
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        ck_assert_int_eq(dtr_plan_explicit(p, 3, bad[k].lists, bad[k].lens, bad[k].n, &plan),
                         DTR_ERR_ARG);
        ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), bad[k].word));
        ck_assert_ptr_null(plan);
    }
    same[1].sparse = true;
    ck_assert_int_eq(
        dtr_plan_explicit(same, 3, (const size_t *[]){ all }, (size_t[]){ 3 }, 1, &plan),
        DTR_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "sparse"));
    same[1].sparse = false;
    same[1].device = (dtr_device){ DTR_CUDA, 1 };
    ck_assert_int_eq(
        dtr_plan_explicit(same, 3, (const size_t *[]){ all }, (size_t[]){ 3 }, 1, &plan),
        DTR_ERR_ARG);
}
END_TEST

START_TEST(refusals) {
    dtr_plan_param p[] = { f32(1), f32(2) };
    dtr_plan *plan = NULL;
    size_t limit = 1;
    ck_assert_int_eq(dtr_plan_compute(p, 2, NULL, NULL, 0, 0, NULL), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_plan_compute(NULL, 2, NULL, NULL, 0, 0, &plan), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_plan_compute(p, 2, NULL, NULL, 1, 0, &plan), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_plan_compute(p, 2, NULL, &limit, 1, 0x100, &plan), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_plan_compute(p, 2, (size_t[]){ 0, 0 }, &limit, 1, 0, &plan), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_plan_compute(p, 2, (size_t[]){ 0, 2 }, &limit, 1, 0, &plan), DTR_ERR_ARG);
    p[1].dtype = (dtr_dtype)99;
    ck_assert_int_eq(dtr_plan_compute(p, 2, NULL, &limit, 1, 0, &plan), DTR_ERR_DTYPE);
    p[1] = f32(SIZE_MAX / 4);
    ck_assert_int_eq(dtr_plan_compute(p, 2, NULL, &limit, 1, 0, &plan), DTR_ERR_OVERFLOW);
    p[1] = f32(SIZE_MAX / 2);
    ck_assert_int_eq(dtr_plan_compute(p, 2, NULL, &limit, 1, 0, &plan), DTR_ERR_OVERFLOW);
    ck_assert_ptr_null(plan);
}
END_TEST

enum { MODEL_MAX = 60 };

static size_t random_model(th_rng *g, dtr_plan_param *p, size_t *order) {
    static const dtr_dtype dtypes[] = { DTR_F32, DTR_F16, DTR_F64, DTR_BF16 };
    size_t n = 1 + th_next(g) % MODEL_MAX;
    for (size_t i = 0; i < n; i++) {
        p[i] = f32(th_next(g) % 8 == 0 ? 0 : th_next(g) % 3000);
        p[i].dtype = dtypes[th_next(g) % 4];
        p[i].device.index = (int)(th_next(g) % 2);
        p[i].sparse = th_next(g) % 10 == 0;
        order[i] = i;
    }
    for (size_t i = n; i > 1; i--) {
        size_t j = th_next(g) % i, t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
    return n;
}

static size_t own_bytes(const dtr_plan_bucket *b, size_t n_slots) {
    size_t bytes = 0;
    for (size_t s = 0; s < n_slots; s++) {
        bytes += b->slots[s].nbytes;
    }
    return bytes;
}

/* Does another dense bucket of the same key follow? */
static bool key_goes_on(const dtr_plan *plan, size_t b, const dtr_plan_param *params) {
    const dtr_plan_bucket *k = dtr_plan_get_bucket(plan, b);
    for (size_t c = b + 1; c < dtr_plan_bucket_count(plan); c++) {
        const dtr_plan_bucket *o = dtr_plan_get_bucket(plan, c);
        if (o->dtype == k->dtype && o->device.index == k->device.index &&
            !params[o->slots[0].param].sparse) {
            return true;
        }
    }
    return false;
}

static void check_bucket(const dtr_plan *plan, size_t b, const dtr_plan_param *params, int *seen) {
    const dtr_plan_bucket *k = dtr_plan_get_bucket(plan, b);
    size_t end = 0;
    ck_assert_uint_gt(k->n_slots, 0);
    for (size_t s = 0; s < k->n_slots; s++) {
        const dtr_plan_param *p = &params[k->slots[s].param];
        ck_assert_uint_eq(k->slots[s].offset % 64, 0);
        ck_assert_uint_ge(k->slots[s].offset, end);
        ck_assert_uint_eq(k->slots[s].nbytes, p->numel * dtr_dtype_size(p->dtype));
        ck_assert(p->dtype == k->dtype && p->device.index == k->device.index);
        ck_assert(!p->sparse || (k->n_slots == 1 && k->limit == 0));
        end = k->slots[s].offset + k->slots[s].nbytes;
        seen[k->slots[s].param]++;
    }
    ck_assert_uint_eq(k->nbytes % 64, 0);
    ck_assert(k->nbytes >= end && k->nbytes < end + 64);
    if (!params[k->slots[0].param].sparse) {
        ck_assert_uint_lt(own_bytes(k, k->n_slots - 1), k->limit);
        ck_assert(own_bytes(k, k->n_slots) >= k->limit || !key_goes_on(plan, b, params));
    }
}

/* T84, and the same plan again gives the same hash (A5). */
START_TEST(properties) {
    th_rng g = { 7 };
    for (int round = 0; round < 1000; round++) {
        dtr_plan_param params[MODEL_MAX];
        size_t order[MODEL_MAX];
        size_t n = random_model(&g, params, order);
        size_t limits[] = { 1 + th_next(&g) % 9000, 1 + th_next(&g) % 30000 };
        dtr_plan *plan = NULL, *again = NULL;
        ck_assert_int_eq(dtr_plan_compute(params, n, order, limits, 2, 0, &plan), DTR_OK);
        int seen[MODEL_MAX] = { 0 };
        for (size_t b = 0; b < dtr_plan_bucket_count(plan); b++) {
            check_bucket(plan, b, params, seen);
        }
        for (size_t i = 0; i < n; i++) {
            ck_assert_int_eq(seen[i], 1);
        }
        ck_assert_int_eq(dtr_plan_compute(params, n, order, limits, 2, 0, &again), DTR_OK);
        ck_assert_uint_eq(dtr_plan_hash(plan), dtr_plan_hash(again));
        dtr_plan_destroy(plan);
        dtr_plan_destroy(again);
    }
}
END_TEST

static uint64_t hash_of(const dtr_plan_param *p, size_t n, const size_t *order,
                        const size_t *limits, size_t n_limits) {
    dtr_plan *plan = NULL;
    ck_assert_int_eq(dtr_plan_compute(p, n, order, limits, n_limits, 0, &plan), DTR_OK);
    uint64_t h = dtr_plan_hash(plan);
    dtr_plan_destroy(plan);
    return h;
}

/* T85, A15. */
START_TEST(hash_sees_every_change) {
    dtr_plan_param p[] = { f32(16), f32(32), f32(48) };
    p[1].name = "q";
    size_t limits[] = { 1000 }, other[] = { 1001 }, swapped[] = { 1, 0, 2 };
    uint64_t h = hash_of(p, 3, NULL, limits, 1);
    ck_assert_uint_ne(h, 0);
    ck_assert_uint_eq(h, hash_of(p, 3, (size_t[]){ 0, 1, 2 }, limits, 1));
    ck_assert_uint_ne(h, hash_of(p, 3, NULL, other, 1));
    ck_assert_uint_ne(h, hash_of(p, 3, swapped, limits, 1));
    ck_assert_uint_ne(h, hash_of(p, 2, NULL, limits, 1));
    p[1].name = "r";
    ck_assert_uint_ne(h, hash_of(p, 3, NULL, limits, 1));
    p[1].name = "q";
    p[2].numel = 49; /* same padded size */
    ck_assert_uint_ne(h, hash_of(p, 3, NULL, limits, 1));
    p[2] = f64(24); /* same bytes */
    ck_assert_uint_ne(h, hash_of(p, 3, NULL, limits, 1));
    p[2] = f32(48);
    ck_assert_uint_eq(h, hash_of(p, 3, NULL, limits, 1));
}
END_TEST

/* Length and cut as snprintf. */
START_TEST(print) {
    dtr_plan_param p[] = { f32(20), f32(500), f32(200) };
    p[0].name = "fc1";
    p[1].name = "fc2";
    p[2].name = "fc3";
    size_t order[] = { 2, 1, 0 }, limits[] = { 1048 };
    dtr_plan *plan = NULL;
    ck_assert_int_eq(dtr_plan_compute(p, 3, order, limits, 1, 0, &plan), DTR_OK);
    char text[1024], cut[20];
    size_t n = dtr_plan_print(plan, text, sizeof text);
    ck_assert_uint_eq(n, strlen(text));
    ck_assert_ptr_nonnull(strstr(text, "fc3(0) fc2(832)\n"));
    ck_assert_ptr_nonnull(strstr(text, "2800"));
    ck_assert_uint_eq(dtr_plan_print(plan, NULL, 0), n);
    ck_assert_uint_eq(dtr_plan_print(plan, cut, sizeof cut), n);
    ck_assert_uint_eq(strlen(cut), sizeof cut - 1);
    ck_assert_int_eq(strncmp(cut, text, sizeof cut - 1), 0);
    dtr_plan_destroy(plan);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("plan");
    tcase_add_test(tc, goldens_in_order);
    tcase_add_test(tc, goldens_reversed);
    tcase_add_test(tc, offsets);
    tcase_add_test(tc, empty_things);
    tcase_add_test(tc, two_devices);
    tcase_add_test(tc, explicit_plans);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, properties);
    tcase_add_test(tc, hash_sees_every_change);
    tcase_add_test(tc, print);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("plan", make);
}
