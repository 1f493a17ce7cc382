/* What hands out memory, without MPI: the table of addresses, the division of an arena, and the
 * table of its blocks by number. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "memory/heap.h"
#include "memory/numbers.h"
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

/* ---- blocks by number ---- */

/* A table and the memory behind it that it grows into. Block k lies at 64 k. */
typedef struct numbered {
    dtr__numbers *n;
    uint64_t end;
} numbered;

static numbered new_numbered(void) {
    return (numbered){ calloc(1, 1 << 20), sizeof(dtr__numbers) };
}

static void put_number(numbered *b, uint64_t number) {
    const size_t more = dtr__numbers_grow(b->n);
    if (more > 0) {
        ck_assert_uint_le(b->end + more, 1 << 20);
        memset((char *)b->n + b->end, 0xff, more); /* as memory that was used before */
        dtr__numbers_move(b->n, b->end);
        b->end += more;
    }
    dtr__numbers_put(b->n, number, 64 * number, 64);
}

START_TEST(numbers_against_array) {
    enum { LIVE = 1500, STEPS = 40000 };
    static uint64_t live[LIVE];
    numbered b = new_numbered();
    uint64_t last = 0, at = 77, nbytes = 77;
    ck_assert(!dtr__numbers_find(b.n, 1, &at, &nbytes));
    dtr__numbers_drop(b.n, 1);
    dtr__numbers_drop_range(b.n, 0, 100);
    for (int step = 0; step < STEPS; step++) {
        uint64_t *one = &live[next_random() % (step < STEPS / 4 ? 60 : LIVE)];
        if (*one != 0) {
            dtr__numbers_drop(b.n, *one);
            ck_assert(!dtr__numbers_find(b.n, *one, &at, &nbytes));
            *one = 0;
        } else {
            *one = ++last;
            put_number(&b, *one);
        }
        const uint64_t other = live[next_random() % LIVE];
        ck_assert(other == 0 || dtr__numbers_find(b.n, other, &at, &nbytes));
        ck_assert(other == 0 || (at == 64 * other && nbytes == 64));
    }
    ck_assert_uint_gt(last, STEPS / 4);
    ck_assert(!dtr__numbers_find(b.n, last + 1, &at, &nbytes));
    uint64_t gone = 0;
    for (int i = 0; i < LIVE && gone == 0; i++) {
        gone = live[i];
    }
    dtr__numbers_drop_range(b.n, 64 * gone + 63, 64 * gone + 64); /* its last byte */
    for (int i = 0; i < LIVE; i++) {
        ck_assert(live[i] == 0 ||
                  dtr__numbers_find(b.n, live[i], &at, &nbytes) == (live[i] != gone));
    }
    free(b.n);
}
END_TEST

/* Four blocks stay while others come and go and the table grows: a reader finds each of the four
 * every time, and no other at a wrong place. */
typedef struct reading {
    const dtr__numbers *n;
    _Atomic uint64_t last, looked, wrong, missing;
    atomic_bool end;
} reading;

static void *read_on(void *arg) {
    reading *r = arg;
    while (!atomic_load(&r->end)) {
        uint64_t at = 0, nbytes = 0;
        for (uint64_t k = 1; k <= 4; k++) {
            const bool found = dtr__numbers_find(r->n, k, &at, &nbytes);
            atomic_fetch_add(&r->missing, !found);
            atomic_fetch_add(&r->wrong, found && at != 64 * k);
        }
        const uint64_t last = atomic_load(&r->last);
        for (uint64_t k = last > 200 ? last - 200 : 5; k < last + 20; k++) {
            const bool found = dtr__numbers_find(r->n, k, &at, &nbytes);
            atomic_fetch_add(&r->wrong, found && (at != 64 * k || nbytes != 64));
        }
        atomic_fetch_add(&r->looked, 1);
    }
    return NULL;
}

START_TEST(numbers_while_they_change) {
    enum { ROUNDS = 300 };
    uint64_t last = 4, first = 5;
    numbered b = new_numbered();
    reading r = { .n = b.n };
    pthread_t reader;
    for (uint64_t k = 1; k <= 4; k++) {
        put_number(&b, k);
    }
    ck_assert_int_eq(pthread_create(&reader, NULL, read_on, &r), 0);
    for (int i = 0; i < ROUNDS || atomic_load(&r.looked) < 50; i++) {
        for (int k = 0; k < 100; k++) {
            put_number(&b, ++last);
            atomic_store(&r.last, last);
        }
        while (last - first > (uint64_t)(i % 7) * 200) {
            dtr__numbers_drop(b.n, first++);
        }
    }
    atomic_store(&r.end, true);
    pthread_join(reader, NULL);
    ck_assert_uint_eq(atomic_load(&r.missing), 0);
    ck_assert_uint_eq(atomic_load(&r.wrong), 0);
    ck_assert_uint_gt(b.end, sizeof(dtr__numbers)); /* it did grow */
    free(b.n);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("memory");
    tcase_add_test(tc, map_against_array);
    tcase_add_test(tc, heap_against_list);
    tcase_add_test(tc, heap_refuses);
    tcase_add_test(tc, numbers_against_array);
    tcase_add_test(tc, numbers_while_they_change);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime memory", make);
}
