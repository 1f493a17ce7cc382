/* Where in the program a call was made. */
#ifndef DTR_CORE_CALL_SITE_H
#define DTR_CORE_CALL_SITE_H

#include "core/call.h"

/* take: what dtr_call_site noted, else the return address. is:
 * whether take would give what `c` has. text: "train.c:88", or "libfoo.so+0x1f2c"; where that is
 * too long for `cap` the name is cut and ends with '~', and the number is whole. */
void dtr__call_site_take(dtr__call *c, void *return_address);
const char *dtr__call_site_text(const dtr__call *c, char *text, size_t cap);
const char *dtr__call_site_cached(const dtr__call *c); /* 48 bytes, of this thread, soon reused */
/* The text of what take would give; nothing is taken. */
const char *dtr__call_site_peek(void *return_address, char *text, size_t cap);

/* At the start of a public function that starts operations of its own: until it returns, those of
 * this thread were called from where it was called. Inside of another such function, that one's
 * place stays. */
typedef struct dtr__call_site {
    const char *file; /* NULL: known by the address only */
    int line;
    void *address;
} dtr__call_site;
dtr__call_site dtr__call_site_hold(void *return_address);
/* For what a call has another thread, or a callback, start later: its place, and to be inside it.
 */
dtr__call_site dtr__call_site_held(void);
dtr__call_site dtr__call_site_hold_at(const dtr__call_site *at);
void dtr__call_site_unhold(const dtr__call_site *before);

/* Set and looked at on every call, so it must be cheap: no call to find the thread's block. Noted
 * by dtr_call_site, its address unused; and of the call this thread is inside of that starts
 * operations of its own, address NULL: none. What has no place of its own was called from there. */
extern _Thread_local __attribute__((tls_model("initial-exec"))) dtr__call_site dtr__call_site_noted,
    dtr__call_site_around;
/* A call site that the caller named is known by its line alone. */
static inline void *dtr__call_site_address(void *return_address) {
    const bool inside = dtr__call_site_around.address != NULL &&
                        dtr__call_site_noted.file == dtr__call_site_around.file &&
                        dtr__call_site_noted.line == dtr__call_site_around.line;
    return inside ? dtr__call_site_around.address : return_address;
}
static inline bool dtr__call_site_is(const dtr__call *c, void *return_address) {
    return c->file == dtr__call_site_noted.file &&
           (c->file != NULL ? c->line == dtr__call_site_noted.line
                            : c->return_address == dtr__call_site_address(return_address));
}
static inline void dtr__call_site_drop(void) {
    dtr__call_site_noted.file = dtr__call_site_around.file;
    dtr__call_site_noted.line = dtr__call_site_around.line;
}
#define DTR_HOLD_CALL_SITE                                                                    \
    __attribute__((cleanup(dtr__call_site_unhold), unused)) dtr__call_site dtr_site_before_ = \
        dtr__call_site_hold(__builtin_return_address(0))

#endif /* DTR_CORE_CALL_SITE_H */
