/* What C made of PTX by ptx_to_c.py works with, and what runs it (cuda/fake_ptx.c). Registers are
 * bits; an instruction takes them as what its type says. */
#ifndef DTR_PTX_H
#define DTR_PTX_H

#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct ptx_thread ptx_thread;

/* Why a thread returns: it has ended, or waits for its warp or its block. */
typedef enum ptx_state { PTX_DONE, PTX_RUNS, PTX_SHUFFLE, PTX_BARRIER } ptx_state;

typedef struct ptx_kernel {
    const char *name;
    unsigned nbytes;    /* of the argument */
    unsigned n_threads; /* of a block, at most */
    unsigned shared;    /* bytes */
    unsigned registers; /* bytes that are kept while a thread waits; 0: none ever does */
    ptx_state (*run)(ptx_thread *t);
} ptx_kernel;

/* What an instruction does to memory. A volatile load is atomic. */
typedef enum ptx_use { PTX_READ, PTX_WRITE, PTX_ATOMIC } ptx_use;

/* What a launch's threads have in common; they run one at a time. */
typedef struct ptx_launch {
    const ptx_kernel *kernel;
    const unsigned char *argument;
    uint32_t blocks, threads;
    struct fake_shadow *shadow; /* cuda/fake_shadow.h */
    /* Where the bytes are; a bad access ends the process. */
    void *(*global)(ptx_thread *t, uint64_t address, unsigned size, ptx_use use, const char *what);
    void *(*shared)(ptx_thread *t, uint64_t address, unsigned size, ptx_use use, const char *what);
    void (*die)(const ptx_thread *t, const char *what, const char *why);
} ptx_launch;

struct ptx_thread {
    ptx_launch *launch;
    uint32_t block, number;
    ptx_state state;
    int at;                        /* where it goes on */
    const char *what;              /* it waits in this instruction */
    uint32_t value, b, c, members; /* operands of a shuffle; value becomes the result */
    uint32_t id;                   /* of a barrier */
    bool in_range;
    void *registers;
};

/* ---- memory ---- */

static inline void *ptx_global(ptx_thread *t, uint64_t a, unsigned size, ptx_use use,
                               const char *what) {
    return t->launch->global(t, a, size, use, what);
}

static inline void *ptx_shared(ptx_thread *t, uint64_t a, unsigned size, ptx_use use,
                               const char *what) {
    return t->launch->shared(t, a, size, use, what);
}

/* The argument, or a thread's own memory. */
static inline void *ptx_within(ptx_thread *t, const void *memory, unsigned nbytes, uint64_t a,
                               unsigned size, const char *what) {
    if (a % size != 0 || a > nbytes || size > nbytes - a) {
        t->launch->die(t, what, "outside of the argument or of local memory, or misaligned");
    }
    return (unsigned char *)(uintptr_t)memory + a;
}

/* A thread's own memory; a byte of `known` is 1 once that of `memory` was written. */
static inline void *ptx_local(ptx_thread *t, unsigned char *memory, unsigned char *known,
                              unsigned nbytes, uint64_t a, unsigned size, ptx_use use,
                              const char *what) {
    void *at = ptx_within(t, memory, nbytes, a, size, what);
    for (uint64_t i = a; i < a + size; i++) {
        if (use != PTX_WRITE && known[i] != 1) {
            t->launch->die(t, what, "reads local memory which nobody has written");
        }
        known[i] = 1;
    }
    return at;
}

#define PTX_DEFINE_BITS(bits)                                                    \
    static inline uint##bits##_t ptx_load##bits(const void *from, unsigned i) {  \
        uint##bits##_t v;                                                        \
        memcpy(&v, (const unsigned char *)from + i * sizeof v, sizeof v);        \
        return v;                                                                \
    }                                                                            \
    static inline void ptx_store##bits(void *to, unsigned i, uint##bits##_t v) { \
        memcpy((unsigned char *)to + i * sizeof v, &v, sizeof v);                \
    }
PTX_DEFINE_BITS(8)
PTX_DEFINE_BITS(16)
PTX_DEFINE_BITS(32)
PTX_DEFINE_BITS(64)

/* ---- floats ---- */

static inline float ptx_f32(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
static inline double ptx_f64(uint64_t bits) {
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
/* Of 32 bits every NaN that is computed is this one; of 64 the CPU's rules are near enough. */
static inline uint32_t ptx_of_f32(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return v != v ? 0x7fffffffu : bits;
}
static inline uint64_t ptx_of_f64(double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* A NaN is less than and greater than nothing, and -0 is less than 0. */
#define PTX_DEFINE_LEAST(name, type, less)                                           \
    static inline type ptx_##name(type a, type b) {                                  \
        if (a != a || b != b) {                                                      \
            return a != a ? b : a;                                                   \
        }                                                                            \
        return a == b ? (less(signbit(a), signbit(b)) ? a : b) : less(b, a) ? a : b; \
    }
#define PTX_GREATER(a, b) ((a) > (b))
#define PTX_LESS(a, b) ((a) < (b))
PTX_DEFINE_LEAST(min_f32, float, PTX_GREATER)
PTX_DEFINE_LEAST(min_f64, double, PTX_GREATER)
PTX_DEFINE_LEAST(max_f32, float, PTX_LESS)
PTX_DEFINE_LEAST(max_f64, double, PTX_LESS)

/* To a whole number: what is too large or too small becomes the nearest there is, NaN becomes 0. */
#define PTX_DEFINE_WHOLE(name, type, low, past)                                                    \
    static inline type ptx_whole_##name(double v) {                                                \
        return v != v      ? 0                                                                     \
               : v < (low) ? (type)(low)                                                           \
               : v >= (past)                                                                       \
                   ? (type)((type) ~(type)0 > 0 ? ~(type)0 : ~((type)1 << (8 * sizeof(type) - 1))) \
                   : (type)v;                                                                      \
    }
PTX_DEFINE_WHOLE(u16, uint16_t, 0.0, 0x1p16)
PTX_DEFINE_WHOLE(u32, uint32_t, 0.0, 0x1p32)
PTX_DEFINE_WHOLE(u64, uint64_t, 0.0, 0x1p64)
PTX_DEFINE_WHOLE(s16, int16_t, -0x1p15, 0x1p15)
PTX_DEFINE_WHOLE(s32, int32_t, -0x1p31, 0x1p31)
PTX_DEFINE_WHOLE(s64, int64_t, -0x1p63, 0x1p63)

/* ---- whole numbers ---- */

/* Shifts by more than the width leave nothing, or the sign. */
#define PTX_DEFINE_SHIFTS(bits)                                                           \
    static inline uint##bits##_t ptx_shl##bits(uint##bits##_t v, uint32_t n) {            \
        return n < bits ? (uint##bits##_t)(v << n) : 0;                                   \
    }                                                                                     \
    static inline uint##bits##_t ptx_shr_u##bits(uint##bits##_t v, uint32_t n) {          \
        return n < bits ? (uint##bits##_t)(v >> n) : 0;                                   \
    }                                                                                     \
    static inline int##bits##_t ptx_shr_s##bits(int##bits##_t v, uint32_t n) {            \
        return (int##bits##_t)(v >> (n < bits ? n : bits - 1));                           \
    }                                                                                     \
    static inline int##bits##_t ptx_div_s##bits(int##bits##_t a, int##bits##_t b) {       \
        return b == -1 ? (int##bits##_t)(0 - (uint##bits##_t)a) : (int##bits##_t)(a / b); \
    }
PTX_DEFINE_SHIFTS(16)
PTX_DEFINE_SHIFTS(32)
PTX_DEFINE_SHIFTS(64)

#define PTX_DEFINE_FIELDS(bits)                                                                 \
    static inline uint##bits##_t ptx_bfi##bits(uint##bits##_t a, uint##bits##_t b, uint32_t at, \
                                               uint32_t n) {                                    \
        const uint##bits##_t all = ptx_shl##bits(1, n & 255) - 1;                               \
        const uint##bits##_t mask =                                                             \
            ptx_shl##bits((n & 255) >= bits ? (uint##bits##_t) ~0 : all, at & 255);             \
        return (b & ~mask) | (ptx_shl##bits(a, at & 255) & mask);                               \
    }                                                                                           \
    static inline uint##bits##_t ptx_bfe_u##bits(uint##bits##_t a, uint32_t at, uint32_t n) {   \
        const uint##bits##_t all = ptx_shl##bits(1, n & 255) - 1;                               \
        return ptx_shr_u##bits(a, at & 255) & ((n & 255) >= bits ? (uint##bits##_t) ~0 : all);  \
    }
PTX_DEFINE_FIELDS(32)
PTX_DEFINE_FIELDS(64)

/* Bytes of two words in another order; bit 3 of a choice spreads the byte's sign. */
static inline uint32_t ptx_prmt(uint32_t a, uint32_t b, uint32_t choices) {
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t v = 0;
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t choice = choices >> (4 * i) & 15;
        uint32_t byte = (uint32_t)(both >> (8 * (choice & 7))) & 255;
        byte = (choice & 8) == 0 ? byte : byte & 128 ? 255 : 0;
        v |= byte << (8 * i);
    }
    return v;
}

#endif /* DTR_PTX_H */
