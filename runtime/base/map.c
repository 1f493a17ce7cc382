/* Open addressing with linear probing; removal moves later entries back, so there are no
 * tombstones. */
#include "base/map.h"

#include <stdlib.h>

static size_t home(const dtr__map *m, uintptr_t key) {
    uint64_t h = ((uint64_t)key >> 6) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(h >> 20) & (m->capacity - 1);
}

/* Index of the key, or of the free entry where it would go. */
static size_t find(const dtr__map *m, uintptr_t key) {
    size_t i = home(m, key);
    while (m->entry[i].key != 0 && m->entry[i].key != key) {
        i = (i + 1) & (m->capacity - 1);
    }
    return i;
}

static bool grow(dtr__map *m) {
    dtr__map bigger = { .capacity = m->capacity == 0 ? 64 : m->capacity * 2, .size = m->size };
    bigger.entry = calloc(bigger.capacity, sizeof *bigger.entry);
    if (bigger.entry == NULL) {
        return false;
    }
    for (size_t i = 0; i < m->capacity; i++) {
        if (m->entry[i].key != 0) {
            bigger.entry[find(&bigger, m->entry[i].key)] = m->entry[i];
        }
    }
    free(m->entry);
    *m = bigger;
    return true;
}

bool dtr__map_put(dtr__map *m, uintptr_t key, void *value) {
    if (m->size * 2 >= m->capacity && !grow(m)) {
        return false;
    }
    m->entry[find(m, key)] = (struct dtr__map_entry){ key, value };
    m->size++;
    return true;
}

void *dtr__map_get(const dtr__map *m, uintptr_t key) {
    return m->capacity == 0 ? NULL : m->entry[find(m, key)].value;
}

void *dtr__map_take(dtr__map *m, uintptr_t key) {
    if (m->capacity == 0) {
        return NULL;
    }
    size_t hole = find(m, key), mask = m->capacity - 1;
    void *value = m->entry[hole].value;
    if (m->entry[hole].key == 0) {
        return NULL;
    }
    for (size_t i = (hole + 1) & mask; m->entry[i].key != 0; i = (i + 1) & mask) {
        /* Entry i may move into the hole unless its home lies cyclically in (hole, i]. */
        if (((i - home(m, m->entry[i].key)) & mask) >= ((i - hole) & mask)) {
            m->entry[hole] = m->entry[i];
            hole = i;
        }
    }
    m->entry[hole] = (struct dtr__map_entry){ 0 };
    m->size--;
    return value;
}

bool dtr__map_next(const dtr__map *m, size_t *at, uintptr_t *key, void **value) {
    while (*at < m->capacity) {
        const struct dtr__map_entry *e = &m->entry[(*at)++];
        if (e->key != 0) {
            *key = e->key;
            *value = e->value;
            return true;
        }
    }
    return false;
}

void dtr__map_free(dtr__map *m) {
    free(m->entry);
    *m = (dtr__map){ 0 };
}
