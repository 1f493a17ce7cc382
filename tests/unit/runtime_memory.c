/* What hands out memory, without MPI: the table of addresses and the division of an arena. */
#include <stdlib.h>
#include <string.h>

#include "rt_heap.h"
#include "rt_map.h"
#include "unit.h"

static uint64_t seed = 88172645463325252u;

static uint64_t next_random(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

enum { KEYS = 3000 };

START_TEST(map_against_array) {
    static int value[KEYS];
    static bool in[KEYS];
    dtr__map m = { 0 };
    size_t size = 0;
    ck_assert_ptr_null(dtr__map_get(&m, 64));
    ck_assert_ptr_null(dtr__map_take(&m, 64));
    for (int step = 0; step < 60000; step++) {
        int k = (int)(next_random() % KEYS);
        uintptr_t key = ((uintptr_t)k + 1) * 64;
        if (in[k]) {
            ck_assert_ptr_eq(dtr__map_take(&m, key), &value[k]);
            size--;
        } else {
            ck_assert(dtr__map_put(&m, key, &value[k]));
            size++;
        }
        in[k] = !in[k];
        ck_assert_uint_eq(dtr__map_size(&m), size);
        int other = (int)(next_random() % KEYS);
        ck_assert_ptr_eq(dtr__map_get(&m, ((uintptr_t)other + 1) * 64),
                         in[other] ? &value[other] : NULL);
    }
    size_t seen = 0, at = 0;
    uintptr_t key;
    void *v;
    while (dtr__map_next(&m, &at, &key, &v)) {
        ck_assert_ptr_eq(v, &value[key / 64 - 1]);
        seen++;
    }
    ck_assert_uint_eq(seen, size);
    dtr__map_free(&m);
}
END_TEST

enum { BLOCKS = 300 };
static const uint64_t begin = 4096, end = 64 << 20;

typedef struct taken {
    uint64_t at, nbytes; /* nbytes 0: none */
} taken;

static bool overlap(const taken *a, const taken *b) {
    return a->at < b->at + b->nbytes && b->at < a->at + a->nbytes;
}

/* Random takes and gives: blocks are aligned, inside, apart; at the end all is one piece again. */
START_TEST(heap_against_list) {
    dtr__heap *h = dtr__heap_new(begin, end);
    static taken block[BLOCKS];
    uint64_t used = 0;
    for (int step = 0; step < 30000; step++) {
        taken *b = &block[next_random() % BLOCKS];
        if (b->nbytes != 0) {
            ck_assert_uint_eq(dtr__heap_size_of(h, b->at), b->nbytes);
            ck_assert_uint_eq(dtr__heap_give(h, b->at), b->nbytes);
            used -= b->nbytes;
            b->nbytes = 0;
        } else {
            uint64_t nbytes = next_random() % (1u << (next_random() % 20));
            uint64_t align = UINT64_C(64) << (next_random() % 12);
            taken t = { 0, nbytes == 0 ? 64 : (nbytes + 63) / 64 * 64 };
            if (!dtr__heap_take(h, nbytes, align, &t.at)) {
                continue;
            }
            ck_assert_uint_eq(t.at % align, 0);
            ck_assert_uint_ge(t.at, begin);
            ck_assert_uint_le(t.at + t.nbytes, end);
            for (int i = 0; step % 16 == 0 && i < BLOCKS; i++) {
                ck_assert(block[i].nbytes == 0 || !overlap(&t, &block[i]));
            }
            *b = t;
            used += t.nbytes;
        }
        ck_assert_uint_eq(dtr__heap_used(h), used);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (block[i].nbytes != 0) {
            dtr__heap_give(h, block[i].at);
        }
    }
    uint64_t at;
    ck_assert_uint_eq(dtr__heap_used(h), 0);
    ck_assert(dtr__heap_take(h, end - begin, 64, &at));
    ck_assert_uint_eq(at, begin);
    ck_assert(!dtr__heap_take(h, 1, 64, &at));
    ck_assert_uint_eq(dtr__heap_give(h, begin), end - begin);
    dtr__heap_delete(h);
}
END_TEST

START_TEST(heap_refuses) {
    dtr__heap *h = dtr__heap_new(begin, end);
    uint64_t at = 77;
    ck_assert(!dtr__heap_take(h, end, 64, &at));
    ck_assert(!dtr__heap_take(h, UINT64_MAX, 64, &at));
    ck_assert(!dtr__heap_take(h, 64, UINT64_C(1) << 40, &at));
    ck_assert_uint_eq(at, 77);
    ck_assert_uint_eq(dtr__heap_give(h, 8192), 0);
    ck_assert(dtr__heap_take(h, 100, 4096, &at));
    ck_assert_uint_eq(dtr__heap_give(h, at + 64), 0);
    ck_assert_uint_eq(dtr__heap_give(h, at), 128);
    ck_assert_uint_eq(dtr__heap_give(h, at), 0);
    dtr__heap_delete(h);
    ck_assert_ptr_null(dtr__heap_new(64, 64));
    dtr__heap_delete(NULL);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("memory");
    tcase_add_test(tc, map_against_array);
    tcase_add_test(tc, heap_against_list);
    tcase_add_test(tc, heap_refuses);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime memory", make);
}
