/* Where an operation was called from: noted by the macros of dtr/coll.h, else its return address.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/call.h"
#include "core/call_site.h"
#include "recorder/hash.h"

_Thread_local __attribute__((tls_model("initial-exec"))) dtr__call_site dtr__call_site_noted,
    dtr__call_site_around;

void dtr_call_site(const char *file, int line) {
    dtr__call_site_noted.file = file;
    dtr__call_site_noted.line = line;
}

/* ---- texts ---- */

static const char *base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* A number that is cut would be another number, so the name is what gives way. */
static const char *put(char *text, size_t cap, const char *name, const char *number) {
    size_t n = strlen(name), digits = strlen(number);
    if (n + digits < cap) {
        snprintf(text, cap, "%s%s", name, number);
    } else if (digits + 1 < cap) {
        snprintf(text, cap, "%.*s~%s", (int)(cap - digits - 2), name, number);
    } else {
        snprintf(text, cap, "~");
    }
    return text;
}

/* ---- places given at run time ----
 * Whoever notes a call site holds the pointer alone, some for ever, as the fast path does. So a
 * text that may go away is kept once, for all threads, and never freed. */

enum { BUCKETS = 256, NAMES_MOST = 1 << 16, NAME_MOST = 255 };

typedef struct kept {
    struct kept *next;
    char text[NAME_MOST + 1];
} kept;

static _Atomic(kept *) names[BUCKETS];
static atomic_int n_names;

static const char *find(const kept *from, const kept *end, const char *text) {
    for (; from != end; from = from->next) {
        if (strcmp(from->text, text) == 0) {
            return from->text;
        }
    }
    return NULL;
}

/* NULL: there is no room. */
static const char *keep(const char *text) {
    _Atomic(kept *) *bucket = &names[dtr__hash_bytes(text, strlen(text)) % BUCKETS];
    kept *seen = atomic_load_explicit(bucket, memory_order_acquire), *end = NULL;
    const char *known = find(seen, NULL, text);
    if (known != NULL || atomic_load_explicit(&n_names, memory_order_relaxed) >= NAMES_MOST) {
        return known;
    }
    kept *own = malloc(sizeof *own);
    if (own == NULL) {
        return NULL;
    }
    strcpy(own->text, text);
    do {
        known = find(seen, end, text);
        if (known != NULL) {
            free(own);
            return known;
        }
        own->next = end = seen;
    } while (!atomic_compare_exchange_weak_explicit(bucket, &seen, own, memory_order_acq_rel,
                                                    memory_order_acquire));
    atomic_fetch_add_explicit(&n_names, 1, memory_order_relaxed);
    return own->text;
}

void dtr_call_site_copy(const char *file, int line) {
    static _Thread_local const char *last;
    char text[NAME_MOST + 1];
    if (file == NULL) {
        dtr_call_site(NULL, 0);
        return;
    }
    put(text, sizeof text, base(file), "");
    if (last == NULL || strcmp(last, text) != 0) {
        last = keep(text);
    }
    dtr_call_site(last, line);
}

void dtr__call_site_take(dtr__call *c, void *return_address) {
    c->file = dtr__call_site_noted.file;
    c->line = dtr__call_site_noted.line;
    c->return_address = dtr__call_site_address(return_address);
    dtr__call_site_drop();
}

const char *dtr__call_site_peek(void *return_address, char *text, size_t cap) {
    dtr__call c = { .file = dtr__call_site_noted.file,
                    .line = dtr__call_site_noted.line,
                    .return_address = dtr__call_site_address(return_address) };
    return dtr__call_site_text(&c, text, cap);
}

dtr__call_site dtr__call_site_hold(void *return_address) {
    dtr__call_site before = dtr__call_site_around;
    dtr__call_site_around = (dtr__call_site){ dtr__call_site_noted.file, dtr__call_site_noted.line,
                                              dtr__call_site_address(return_address) };
    return before;
}

dtr__call_site dtr__call_site_held(void) {
    return dtr__call_site_around;
}

dtr__call_site dtr__call_site_hold_at(const dtr__call_site *at) {
    dtr__call_site before = dtr__call_site_around;
    dtr__call_site_around = *at;
    dtr__call_site_drop();
    return before;
}

void dtr__call_site_unhold(const dtr__call_site *before) {
    dtr__call_site_around = *before;
    dtr__call_site_drop();
}

const char *dtr__call_site_text(const dtr__call *c, char *text, size_t cap) {
    char number[24];
    Dl_info info;
    if (c->file != NULL) {
        snprintf(number, sizeof number, ":%d", c->line);
        return put(text, cap, base(c->file), c->line != 0 ? number : "");
    }
    if (c->return_address != NULL && dladdr(c->return_address, &info) != 0 &&
        info.dli_fname != NULL) {
        snprintf(number, sizeof number, "+0x%zx",
                 (size_t)((const char *)c->return_address - (const char *)info.dli_fbase));
        return put(text, cap, base(info.dli_fname), number);
    }
    snprintf(number, sizeof number, "%p", c->return_address);
    return put(text, cap, "", number);
}

/* The recorder's form is needed for every operation: the last few sites of a thread are kept. */
enum { SITES = 8, SITE_BYTES = 48 };
static _Thread_local struct {
    const char *file;
    int line;
    void *address;
    char text[SITE_BYTES];
} sites[SITES];

const char *dtr__call_site_cached(const dtr__call *c) {
    uintptr_t key = c->file == NULL ? (uintptr_t)c->return_address >> 2
                    : c->line != 0  ? (uintptr_t)c->line
                                    : (uintptr_t)c->file >> 4;
    unsigned slot = (unsigned)(key ^ key >> 5) % SITES;
    if (sites[slot].file != c->file || sites[slot].line != c->line ||
        sites[slot].address != (c->file != NULL ? NULL : c->return_address)) {
        sites[slot].file = c->file;
        sites[slot].line = c->line;
        sites[slot].address = c->file != NULL ? NULL : c->return_address;
        dtr__call_site_text(c, sites[slot].text, SITE_BYTES);
    }
    return sites[slot].text;
}
