/* Segments in address order, free ones also in one list per power of two: taking tries the lists
 * from the request's own size upwards, giving merges with free neighbours. */
#include "heap.h"

#include <stdlib.h>

#include "base/map.h"

enum { GRAIN = 64, BINS = 64 };

typedef struct segment {
    uint64_t at, nbytes;
    bool used;
    struct segment *prev, *next;         /* by address */
    struct segment *bin_prev, *bin_next; /* free ones of one size class; bin_next also chains spares
                                          */
} segment;

struct dtr__heap {
    segment *first;
    segment *bin[BINS];
    segment *spare; /* unused notes */
    dtr__map used;  /* offset -> segment */
    uint64_t used_bytes;
};

static int bin_of(uint64_t nbytes) {
    return 63 - __builtin_clzll(nbytes);
}

static void bin_add(dtr__heap *h, segment *s) {
    segment **head = &h->bin[bin_of(s->nbytes)];
    s->used = false;
    s->bin_prev = NULL;
    s->bin_next = *head;
    if (*head != NULL) {
        (*head)->bin_prev = s;
    }
    *head = s;
}

static void bin_remove(dtr__heap *h, segment *s) {
    if (s->bin_prev != NULL) {
        s->bin_prev->bin_next = s->bin_next;
    } else {
        h->bin[bin_of(s->nbytes)] = s->bin_next;
    }
    if (s->bin_next != NULL) {
        s->bin_next->bin_prev = s->bin_prev;
    }
}

static void put_spare(dtr__heap *h, segment *s) {
    s->bin_next = h->spare;
    h->spare = s;
}

static segment *get_spare(dtr__heap *h) {
    segment *s = h->spare;
    h->spare = s->bin_next;
    return s;
}

/* At least two notes: what one take may need. Keeps take from failing half-way. */
static bool reserve_spares(dtr__heap *h) {
    int have = 0;
    for (const segment *s = h->spare; s != NULL && have < 2; s = s->bin_next) {
        have++;
    }
    for (; have < 2; have++) {
        segment *s = calloc(1, sizeof *s);
        if (s == NULL) {
            return false;
        }
        put_spare(h, s);
    }
    return true;
}

dtr__heap *dtr__heap_new(uint64_t begin, uint64_t end) {
    dtr__heap *h = calloc(1, sizeof *h);
    segment *all = calloc(1, sizeof *all);
    if (h == NULL || all == NULL || end <= begin) {
        free(h);
        free(all);
        return NULL;
    }
    all->at = begin;
    all->nbytes = end - begin;
    h->first = all;
    bin_add(h, all);
    return h;
}

void dtr__heap_delete(dtr__heap *h) {
    if (h == NULL) {
        return;
    }
    for (segment *s = h->first, *next; s != NULL; s = next) {
        next = s->next;
        free(s);
    }
    for (segment *s = h->spare, *next; s != NULL; s = next) {
        next = s->bin_next;
        free(s);
    }
    dtr__map_free(&h->used);
    free(h);
}

/* A free segment that holds nbytes at an aligned offset, which becomes *at. */
static segment *find_free(dtr__heap *h, uint64_t nbytes, uint64_t align, uint64_t *at) {
    for (int bin = bin_of(nbytes); bin < BINS; bin++) {
        for (segment *s = h->bin[bin]; s != NULL; s = s->bin_next) {
            uint64_t aligned = (s->at + align - 1) & ~(align - 1);
            if (aligned >= s->at && aligned - s->at <= s->nbytes &&
                s->nbytes - (aligned - s->at) >= nbytes) {
                *at = aligned;
                return s;
            }
        }
    }
    return NULL;
}

/* Cut `s` at offset `at`: a new free segment behind it takes the rest. */
static void split(dtr__heap *h, segment *s, uint64_t at) {
    segment *rest = get_spare(h);
    *rest = (segment){ .at = at, .nbytes = s->at + s->nbytes - at, .prev = s, .next = s->next };
    if (s->next != NULL) {
        s->next->prev = rest;
    }
    s->next = rest;
    s->nbytes = at - s->at;
    bin_add(h, rest);
}

bool dtr__heap_take(dtr__heap *h, uint64_t nbytes, uint64_t align, uint64_t *offset) {
    uint64_t at, want = nbytes == 0 ? GRAIN : (nbytes + GRAIN - 1) & ~(uint64_t)(GRAIN - 1);
    if (want < nbytes || !reserve_spares(h)) {
        return false;
    }
    segment *s = find_free(h, want, align, &at);
    /* The note of the block is made first, for the segment that will hold it. */
    segment *holder = s == NULL || at == s->at ? s : h->spare;
    if (s == NULL || !dtr__map_put(&h->used, (uintptr_t)at, holder)) {
        return false;
    }
    bin_remove(h, s);
    if (at > s->at) {
        split(h, s, at);
        bin_add(h, s);
        s = s->next;
        bin_remove(h, s);
    }
    if (s->nbytes > want) {
        split(h, s, at + want);
    }
    s->used = true;
    h->used_bytes += want;
    *offset = at;
    return true;
}

/* `s` swallows its right neighbour; neither is in a list. */
static void merge_right(dtr__heap *h, segment *s) {
    segment *gone = s->next;
    s->nbytes += gone->nbytes;
    s->next = gone->next;
    if (s->next != NULL) {
        s->next->prev = s;
    }
    put_spare(h, gone);
}

uint64_t dtr__heap_give(dtr__heap *h, uint64_t offset) {
    segment *s = dtr__map_take(&h->used, (uintptr_t)offset);
    if (s == NULL) {
        return 0;
    }
    uint64_t nbytes = s->nbytes;
    h->used_bytes -= nbytes;
    if (s->next != NULL && !s->next->used) {
        bin_remove(h, s->next);
        merge_right(h, s);
    }
    if (s->prev != NULL && !s->prev->used) {
        s = s->prev;
        bin_remove(h, s);
        merge_right(h, s);
    }
    bin_add(h, s);
    return nbytes;
}

uint64_t dtr__heap_size_of(const dtr__heap *h, uint64_t offset) {
    const segment *s = dtr__map_get(&h->used, (uintptr_t)offset);
    return s != NULL ? s->nbytes : 0;
}

uint64_t dtr__heap_used(const dtr__heap *h) {
    return h->used_bytes;
}
