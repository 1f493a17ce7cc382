/* An open hash table. A slot whose block is gone takes the next one that hashes near it, so that
 * the table grows with the blocks that live at once and not with those that ever lived. */
#include "numbers.h"

#define GONE UINT64_MAX

static dtr__number_table *table_at(const dtr__numbers *n, uint64_t offset) {
    return (dtr__number_table *)((uintptr_t)n + offset);
}

/* The writer's own view. */
static dtr__number_table *current(const dtr__numbers *n) {
    const uint64_t at = atomic_load_explicit(&n->table, memory_order_relaxed);
    return at != 0 ? table_at(n, at) : NULL;
}

/* Numbers are consecutive, and neighbours in them are best neighbours in the table. */
static dtr__number_slot *slot_of(dtr__number_table *t, uint64_t number, uint64_t step) {
    return &t->slot[(number + step) & (t->capacity - 1)];
}

static uint64_t number_in(const dtr__number_slot *s) {
    return atomic_load_explicit(&s->number, memory_order_acquire);
}

static dtr__number_slot *find(dtr__number_table *t, uint64_t number) {
    for (uint64_t step = 0; step < t->capacity; step++) {
        dtr__number_slot *s = slot_of(t, number, step);
        const uint64_t here = number_in(s);
        if (here == number || here == 0) {
            return here == number ? s : NULL;
        }
    }
    return NULL;
}

/* ---- the writer ---- */

static void fill(dtr__number_table *t, uint64_t number, uint64_t offset, uint64_t nbytes) {
    uint64_t step = 0;
    dtr__number_slot *s = slot_of(t, number, step);
    while (number_in(s) != 0 && number_in(s) != GONE) {
        s = slot_of(t, number, ++step);
    }
    /* Who sees the new place of a slot that was read before sees that its number is gone. */
    atomic_store_explicit(&s->offset, offset, memory_order_release);
    atomic_store_explicit(&s->nbytes, nbytes, memory_order_release);
    atomic_store_explicit(&s->number, number, memory_order_release);
}

size_t dtr__numbers_grow(const dtr__numbers *n) {
    const dtr__number_table *t = current(n);
    if (t == NULL || n->live < t->capacity / 2) {
        return 0;
    }
    return sizeof *t + 2 * (size_t)t->capacity * sizeof t->slot[0];
}

void dtr__numbers_move(dtr__numbers *n, uint64_t offset) {
    dtr__number_table *from = current(n), *to = table_at(n, offset);
    to->capacity = 2 * from->capacity;
    for (uint64_t i = 0; i < to->capacity; i++) {
        atomic_store_explicit(&to->slot[i].number, 0, memory_order_relaxed);
    }
    for (uint64_t i = 0; i < from->capacity; i++) {
        const dtr__number_slot *s = &from->slot[i];
        const uint64_t number = number_in(s);
        if (number != 0 && number != GONE) {
            fill(to, number, atomic_load(&s->offset), atomic_load(&s->nbytes));
        }
    }
    atomic_store_explicit(&n->table, offset, memory_order_release);
}

void dtr__numbers_put(dtr__numbers *n, uint64_t number, uint64_t offset, uint64_t nbytes) {
    if (current(n) == NULL) {
        _Static_assert(offsetof(dtr__numbers, first) == offsetof(dtr__numbers, first_capacity) +
                                                            offsetof(dtr__number_table, slot),
                       "the first table begins with its capacity");
        n->first_capacity = DTR__NUMBERS_FIRST;
        atomic_store_explicit(&n->table, offsetof(dtr__numbers, first_capacity),
                              memory_order_release);
    }
    fill(current(n), number, offset, nbytes);
    n->live++;
}

static void drop(dtr__numbers *n, dtr__number_slot *s) {
    atomic_store_explicit(&s->number, GONE, memory_order_release);
    n->live--;
}

void dtr__numbers_drop(dtr__numbers *n, uint64_t number) {
    dtr__number_slot *s = current(n) != NULL ? find(current(n), number) : NULL;
    if (s != NULL) {
        drop(n, s);
    }
}

void dtr__numbers_drop_range(dtr__numbers *n, uint64_t from, uint64_t to) {
    dtr__number_table *t = current(n);
    for (uint64_t i = 0; t != NULL && i < t->capacity; i++) {
        dtr__number_slot *s = &t->slot[i];
        const uint64_t number = number_in(s), offset = atomic_load(&s->offset);
        if (number != 0 && number != GONE && offset < to &&
            offset + atomic_load(&s->nbytes) > from) {
            drop(n, s);
        }
    }
}

/* ---- readers ---- */

/* The place of a block, unless it has gone while it was read. */
static bool read_slot(const dtr__number_slot *s, uint64_t number, uint64_t *offset,
                      uint64_t *nbytes) {
    const uint64_t at = atomic_load_explicit(&s->offset, memory_order_acquire);
    const uint64_t length = atomic_load_explicit(&s->nbytes, memory_order_acquire);
    if (number_in(s) != number) {
        return false;
    }
    *offset = at;
    *nbytes = length;
    return true;
}

bool dtr__numbers_find(const dtr__numbers *n, uint64_t number, uint64_t *offset, uint64_t *nbytes) {
    uint64_t before, at = atomic_load_explicit(&n->table, memory_order_acquire);
    bool found;
    do { /* once more where the table was left for a larger one: each time, the writer has gone on
          */
        before = at;
        const dtr__number_slot *s = at != 0 ? find(table_at(n, at), number) : NULL;
        found = s != NULL && read_slot(s, number, offset, nbytes);
        at = atomic_load_explicit(&n->table, memory_order_acquire);
    } while (at != before);
    return found;
}
