/* Where an operation was called from: noted by the macros of dtr/coll.h, else its return address.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "coll_internal.h"

/* Set and taken on every call, so it must be cheap: no call to find the thread's block. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
    const char *file;
    int line;
} noted;

/* The call this thread is inside of that starts operations of its own; address NULL: none. What has
 * no place of its own was called from there. */
static _Thread_local __attribute__((tls_model("initial-exec"))) dtr__place held;

static void forget(void) {
    noted.file = held.file;
    noted.line = held.line;
}

/* A place of its own is told by its line alone. */
static void *address_of(void *return_address) {
    bool inside = held.address != NULL && noted.file == held.file && noted.line == held.line;
    return inside ? held.address : return_address;
}

void dtr_call_site(const char *file, int line) {
    noted.file = file;
    noted.line = line;
}

void dtr__call_site_take(dtr__call *c, void *return_address) {
    c->file = noted.file;
    c->line = noted.line;
    c->return_address = address_of(return_address);
    forget();
}

dtr__place dtr__call_site_hold(void *return_address) {
    dtr__place before = held;
    held = (dtr__place){ noted.file, noted.line, address_of(return_address) };
    return before;
}

dtr__place dtr__call_site_held(void) {
    return held;
}

dtr__place dtr__call_site_hold_at(const dtr__place *at) {
    dtr__place before = held;
    held = *at;
    forget();
    return before;
}

void dtr__call_site_unhold(const dtr__place *before) {
    held = *before;
    forget();
}

bool dtr__call_site_is(const dtr__call *c, void *return_address) {
    return c->file == noted.file &&
           (c->file != NULL ? c->line == noted.line
                            : c->return_address == address_of(return_address));
}

void dtr__call_site_drop(void) {
    forget();
}

static const char *base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

const char *dtr__call_site_text(const dtr__call *c, char *text, size_t cap) {
    Dl_info info;
    if (c->file != NULL) {
        snprintf(text, cap, "%s:%d", base(c->file), c->line);
    } else if (c->return_address != NULL && dladdr(c->return_address, &info) != 0 &&
               info.dli_fname != NULL) {
        snprintf(text, cap, "%s+0x%zx", base(info.dli_fname),
                 (size_t)((const char *)c->return_address - (const char *)info.dli_fbase));
    } else {
        snprintf(text, cap, "%p", c->return_address);
    }
    return text;
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
    uintptr_t key = c->file != NULL ? (uintptr_t)c->line : (uintptr_t)c->return_address >> 2;
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
