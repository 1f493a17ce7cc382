/* Of each byte of memory that a launch uses: whether anybody has written it, and who used it last.
 * The threads run one after the other, so that a race would never go wrong here: it is found by
 * what orders two uses, which is that one thread does both, or a barrier that their block passes
 * between them. A shuffle orders nothing. Atomics and volatile loads do not race with each other.
 *
 * A phase is what a block does between two barriers. A stamp is a phase and a thread's number. */
#include "fake_shadow.h"

#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREAD_BITS = 10, THREADS = 1 << THREAD_BITS, LAST_PHASE = (1 << 22) - 1 };
/* What a byte has stamps of: its last plain write, and of the reads and of the atomics since a
 * phase began two that differ, as far as there are; 0: none. Those of an earlier block stay. */
enum { WRITE, READ, ATOMIC = READ + 2, STAMPS = ATOMIC + 2 };

/* A block of the device or of pinned memory that the launch uses, or shared memory. */
typedef struct region {
    struct region *next;
    uint64_t begin, nbytes;
    unsigned char *memory;
    unsigned char *known; /* not 0: somebody has written it; NULL: that is so of all */
    uint32_t *stamp[STAMPS];
    bool any[STAMPS]; /* whether there are such stamps */
    bool shared;      /* what other blocks did to theirs is nothing to this one */
} region;

struct fake_shadow {
    uint32_t phase, first; /* now, and the first of this block */
    uint32_t *began;       /* by numbers of blocks: its first phase */
    region *regions;       /* of global memory, met last first */
    region shared;
};

/* ---- a launch ---- */

static void *some(size_t n, size_t size) {
    void *p = calloc(n > 0 ? n : 1, size);
    if (p == NULL) {
        fake_die("no memory for notes of %zu bytes", n * size);
    }
    return p;
}

static void add_stamps(region *r) {
    r->stamp[0] = some(STAMPS * r->nbytes, sizeof(uint32_t));
    for (unsigned k = 1; k < STAMPS; k++) {
        r->stamp[k] = r->stamp[0] + k * r->nbytes;
    }
}

fake_shadow *fake_shadow_open(unsigned blocks, unsigned shared_bytes) {
    fake_shadow *s = some(1, sizeof *s);
    s->began = some(blocks, sizeof *s->began);
    s->shared = (region){ .nbytes = shared_bytes, .shared = true };
    s->shared.memory = some(shared_bytes, 1);
    s->shared.known = some(shared_bytes, 1);
    add_stamps(&s->shared);
    return s;
}

void fake_shadow_close(fake_shadow *s) {
    while (s->regions != NULL) {
        region *r = s->regions;
        s->regions = r->next;
        free(r->stamp[0]);
        free(r);
    }
    free(s->shared.stamp[0]);
    free(s->shared.memory);
    free(s->shared.known);
    free(s->began);
    free(s);
}

void fake_shadow_barrier(fake_shadow *s) {
    if (s->phase == LAST_PHASE) {
        fake_die("a launch with more than %d barriers of its blocks", LAST_PHASE);
    }
    s->phase++;
}

void fake_shadow_block(fake_shadow *s, unsigned block) {
    fake_shadow_barrier(s);
    s->first = s->began[block] = s->phase;
    memset(s->shared.memory, 0xFF, s->shared.nbytes);
    memset(s->shared.known, 0, s->shared.nbytes);
}

/* ---- a use ---- */

/* What is wrong at byte i of the region; `how` is what somebody else did. */
static void bad(const ptx_thread *t, const region *r, uint64_t i, const char *what, uint32_t stamp,
                const char *how) {
    const fake_shadow *s = t->launch->shadow;
    const uint32_t phase = stamp >> THREAD_BITS, thread = stamp % THREADS;
    char where[96], why[256];
    snprintf(where, sizeof where, "%#lx, byte %lu of %lu of %s", (unsigned long)(r->begin + i),
             (unsigned long)i, (unsigned long)r->nbytes,
             r->shared ? "shared memory" : "its allocation");
    if (how == NULL) {
        snprintf(why, sizeof why, "reads %s, which nobody has written", where);
    } else if (r->shared || phase >= s->first) {
        snprintf(why, sizeof why, "%s: thread %u of the block %s without a barrier between", where,
                 thread, how);
    } else {
        unsigned block = 0; /* the one that began last before the phase: they run backwards */
        while (s->began[block] == 0 || s->began[block] > phase) {
            block++;
        }
        snprintf(why, sizeof why, "%s: thread %u of block %u %s in the same launch", where, thread,
                 block, how);
    }
    t->launch->die(t, what, why);
}

/* Whether nothing orders a use by another thread, and what I do now. */
static bool rival(const fake_shadow *s, const region *r, uint32_t stamp, uint32_t me) {
    const uint32_t phase = stamp >> THREAD_BITS;
    return stamp != 0 && stamp != me && (phase == s->phase || (!r->shared && phase < s->first));
}

static bool alike(ptx_use use, unsigned k) {
    return (use == PTX_READ && (k == READ || k == READ + 1)) || (use == PTX_ATOMIC && k >= ATOMIC);
}

static void check(const ptx_thread *t, const region *r, uint64_t at, unsigned size, ptx_use use,
                  const char *what, uint32_t me) {
    static const char *const did[STAMPS] = { "writes it", "reads it", "reads it",
                                             "uses it atomically", "uses it atomically" };
    const unsigned char *new =
        use != PTX_WRITE && r->known != NULL ? memchr(r->known + at, 0, size) : NULL;
    if (new != NULL) {
        bad(t, r, (uint64_t)(new - r->known), what, 0, NULL);
    }
    for (unsigned k = 0; k < STAMPS; k++) {
        for (uint64_t i = at; r->any[k] && !alike(use, k) && i < at + size; i++) {
            if (rival(t->launch->shadow, r, r->stamp[k][i], me)) {
                bad(t, r, i, what, r->stamp[k][i], did[k]);
            }
        }
    }
}

/* Two stamps are enough: a later use by anybody differs from one of them. What this block did in
 * earlier phases comes before all that it will do, and a stamp of an earlier block says all that
 * later blocks need to know. */
static void note(const fake_shadow *s, region *r, uint64_t i, unsigned k, uint32_t me) {
    uint32_t *one = &r->stamp[k][i], *other = &r->stamp[k + 1][i];
    const uint32_t phase = *one >> THREAD_BITS;
    if (*one == 0 || (phase < s->phase && (r->shared || phase >= s->first))) {
        *one = me;
        if (r->any[k + 1]) {
            *other = 0;
        }
    } else if (phase == s->phase && *one != me && *other == 0) {
        *other = me;
        r->any[k + 1] = true;
    }
}

static void *used(const ptx_thread *t, region *r, uint64_t at, unsigned size, ptx_use use,
                  const char *what) {
    const fake_shadow *s = t->launch->shadow;
    const uint32_t me = s->phase << THREAD_BITS | t->number;
    const unsigned k = use == PTX_WRITE ? WRITE : use == PTX_READ ? READ : ATOMIC;
    check(t, r, at, size, use, what, me);
    r->any[k] = true;
    for (uint64_t i = at; i < at + size; i++) {
        if (k == WRITE) {
            r->stamp[WRITE][i] = me;
        } else {
            note(s, r, i, k, me);
        }
    }
    if (k == WRITE && r->known != NULL) {
        memset(r->known + at, 1, size);
    }
    return r->memory + at;
}

void *fake_shadow_shared(ptx_thread *t, uint64_t address, unsigned size, ptx_use use,
                         const char *what) {
    region *r = &t->launch->shadow->shared;
    if (address % size != 0 || address > r->nbytes || size > r->nbytes - address) {
        t->launch->die(t, what, "outside of shared memory, or misaligned");
    }
    return used(t, r, address, size, use, what);
}

/* The region, which comes first in the list; NULL: none has the address. */
static region *met(fake_shadow *s, uint64_t address) {
    for (region **at = &s->regions; *at != NULL; at = &(*at)->next) {
        region *r = *at;
        if (address - r->begin < r->nbytes) {
            *at = r->next;
            r->next = s->regions;
            s->regions = r;
            return r;
        }
    }
    return NULL;
}

static region *meet(ptx_thread *t, uint64_t address, unsigned size, const char *what) {
    fake_shadow *s = t->launch->shadow;
    const char *begin = NULL;
    size_t nbytes = 0;
    void *alias = NULL;
    unsigned char *known = NULL;
    char why[160];
    if (!fake_block_at((const void *)(uintptr_t)address, &begin, &nbytes, &alias, &known)) {
        snprintf(why, sizeof why, "%u bytes at %#lx are in no memory of a card", size,
                 (unsigned long)address);
        t->launch->die(t, what, why);
    }
    region *r = some(1, sizeof *r);
    *r = (region){ .next = s->regions,
                   .begin = (uint64_t)(uintptr_t)begin,
                   .nbytes = nbytes,
                   .memory = alias,
                   .known = known };
    add_stamps(r);
    s->regions = r;
    return r;
}

void *fake_shadow_global(ptx_thread *t, uint64_t address, unsigned size, ptx_use use,
                         const char *what) {
    char why[160];
    if (address % size != 0) {
        snprintf(why, sizeof why, "%u bytes at %#lx are misaligned", size, (unsigned long)address);
        t->launch->die(t, what, why);
    }
    region *r = met(t->launch->shadow, address);
    r = r != NULL ? r : meet(t, address, size, what);
    const uint64_t at = address - r->begin;
    if (size > r->nbytes - at) {
        snprintf(why, sizeof why, "%u bytes at %lu of a block of %lu", size, (unsigned long)at,
                 (unsigned long)r->nbytes);
        t->launch->die(t, what, why);
    }
    return used(t, r, at, size, use, what);
}
