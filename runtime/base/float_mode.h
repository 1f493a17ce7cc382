/* The floating-point mode in which the library computes: to nearest even, denormals kept, no traps.
 * It is the same on every thread, so that results have the same bits wherever they are made,
 * whatever mode the program has set. Entering costs a look at a register; it is written only where
 * the caller's mode is another one, and then put back with the exception flags it had. In the mode
 * that programs begin with, flags that the arithmetic raises stay raised in the calling thread.
 *
 * What is computed between enter and leave must be in memory on both sides, or in a function of its
 * own that is not inlined: compilers move arithmetic on variables across. */
#ifndef DTR_RT_FLOAT_H
#define DTR_RT_FLOAT_H

#include <stdint.h>

#if defined(__x86_64__)
enum {
    DTR__MXCSR_FLAGS = 0x3f,     /* exceptions that have happened */
    DTR__MXCSR_DEFAULT = 0x1f80, /* all masked, to nearest, no FTZ, no DAZ */
    DTR__X87_MODE = 0x0f3f,      /* masks, precision, rounding */
    DTR__X87_DEFAULT = 0x037f
};
typedef uint32_t dtr__float_mode;

static inline dtr__float_mode dtr__float_enter(void) {
    uint32_t was;
    __asm__ volatile("stmxcsr %0" : "=m"(was) : : "memory");
    if (__builtin_expect((was & ~(uint32_t)DTR__MXCSR_FLAGS) != DTR__MXCSR_DEFAULT, 0)) {
        const uint32_t fixed = DTR__MXCSR_DEFAULT;
        __asm__ volatile("ldmxcsr %0" : : "m"(fixed) : "memory");
    }
    return was;
}

static inline void dtr__float_leave(dtr__float_mode was) {
    if (__builtin_expect((was & ~(uint32_t)DTR__MXCSR_FLAGS) != DTR__MXCSR_DEFAULT, 0)) {
        __asm__ volatile("ldmxcsr %0" : : "m"(was) : "memory");
    } else {
        __asm__ volatile("" : : : "memory");
    }
}

/* Where long double is computed with. */
static inline uint16_t dtr__float_enter_long(void) {
    uint16_t was;
    __asm__ volatile("fnstcw %0" : "=m"(was) : : "memory");
    if ((was & DTR__X87_MODE) != (DTR__X87_DEFAULT & DTR__X87_MODE)) {
        const uint16_t fixed = DTR__X87_DEFAULT;
        __asm__ volatile("fldcw %0" : : "m"(fixed) : "memory");
    }
    return was;
}

/* A flag that is raised would trap as soon as its trap is on again. */
static inline void dtr__float_leave_long(uint16_t was) {
    if ((was & DTR__X87_MODE) != (DTR__X87_DEFAULT & DTR__X87_MODE)) {
        __asm__ volatile("fnclex\n\tfldcw %0" : : "m"(was) : "memory");
    }
}

#elif defined(__aarch64__)
typedef struct dtr__float_mode {
    uint64_t mode, flags; /* FPCR, FPSR */
} dtr__float_mode;

static inline dtr__float_mode dtr__float_enter(void) {
    dtr__float_mode was = { 0, 0 };
    __asm__ volatile("mrs %0, fpcr" : "=r"(was.mode) : : "memory");
    if (__builtin_expect(was.mode != 0, 0)) {
        __asm__ volatile("mrs %0, fpsr\n\tmsr fpcr, xzr" : "=r"(was.flags) : : "memory");
    }
    return was;
}

static inline void dtr__float_leave(dtr__float_mode was) {
    if (__builtin_expect(was.mode != 0, 0)) {
        __asm__ volatile("msr fpsr, %1\n\tmsr fpcr, %0"
                         :
                         : "r"(was.mode), "r"(was.flags)
                         : "memory");
    } else {
        __asm__ volatile("" : : : "memory");
    }
}

static inline uint16_t dtr__float_enter_long(void) {
    return 0; /* in software, in the mode of the others */
}
static inline void dtr__float_leave_long(uint16_t was) {
    (void)was;
}

#else
#include <fenv.h>
typedef fenv_t dtr__float_mode;

static inline dtr__float_mode dtr__float_enter(void) {
    fenv_t was;
    (void)fegetenv(&was);
    (void)fesetenv(FE_DFL_ENV);
    return was;
}
static inline void dtr__float_leave(dtr__float_mode was) {
    (void)fesetenv(&was);
}
static inline uint16_t dtr__float_enter_long(void) {
    return 0;
}
static inline void dtr__float_leave_long(uint16_t was) {
    (void)was;
}
#endif

#endif /* DTR_RT_FLOAT_H */
