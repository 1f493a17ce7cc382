/* Text and hash helpers of the DDP layer: printf into a bounded buffer that counts on as snprintf
 * does, and a 64-bit hash over fields. */
#ifndef DTR_DDP_TEXT_H
#define DTR_DDP_TEXT_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <dtr/export.h>

typedef struct dtr__text {
    char *at; /* may be NULL when cap is 0 */
    size_t cap, len;
} dtr__text;

DTR_PRINTF(2, 3)
static inline void dtr__text_add(dtr__text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    size_t space = t->len < t->cap ? t->cap - t->len : 0;
    int n = vsnprintf(space > 0 ? t->at + t->len : NULL, space, fmt, ap);
    va_end(ap);
    t->len += n > 0 ? (size_t)n : 0;
}

/* A hash continued from `h`, eight bytes at a time; every step is a bijection of h, so one changed
 * word always shows. Fields are hashed one by one, never structs with padding. */
#define DTR__HASH_START UINT64_C(0xcbf29ce484222325)
static inline uint64_t dtr__hash_word(uint64_t h, uint64_t word) {
    h ^= word * UINT64_C(0x9e3779b185ebca87);
    return (h << 31 | h >> 33) * UINT64_C(0xc2b2ae3d27d4eb4f);
}
static inline uint64_t dtr__hash_bytes(uint64_t h, const void *data, size_t n) {
    const unsigned char *p = data;
    uint64_t word;
    h = dtr__hash_word(h, n);
    for (; n >= sizeof word; n -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        h = dtr__hash_word(h, word);
    }
    word = 0;
    for (size_t k = 0; k < n; k++) {
        word |= (uint64_t)p[k] << 8 * k;
    }
    return dtr__hash_word(h, word);
}
static inline uint64_t dtr__hash_u64(uint64_t h, uint64_t value) {
    return dtr__hash_word(h, value);
}
static inline uint64_t dtr__hash_text(uint64_t h, const char *text) {
    return dtr__hash_bytes(h, text, strlen(text));
}

#endif /* DTR_DDP_TEXT_H */
