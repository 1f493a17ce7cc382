/* A hash map from addresses (never 0) to pointers. Not thread-safe; a zeroed struct is empty. */
#ifndef DTR_RT_MAP_H
#define DTR_RT_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dtr__map {
    struct dtr__map_entry {
        uintptr_t key; /* 0: free */
        void *value;
    } * entry;
    size_t capacity, size; /* capacity is 0 or a power of two */
} dtr__map;

bool dtr__map_put(dtr__map *m, uintptr_t key, void *value); /* false: no memory; key must be new */
void *dtr__map_get(const dtr__map *m, uintptr_t key);       /* NULL: not there */
void *dtr__map_take(dtr__map *m, uintptr_t key);            /* removes; NULL: not there */
/* Walk: *at starts at 0; false at the end. The map must not change meanwhile. */
bool dtr__map_next(const dtr__map *m, size_t *at, uintptr_t *key, void **value);
void dtr__map_free(dtr__map *m); /* the table, not the values */

static inline size_t dtr__map_size(const dtr__map *m) {
    return m->size;
}

#endif /* DTR_RT_MAP_H */
