/* What the loops over users' memory need from the compiler. */
#ifndef DTR_LOOPS_H
#define DTR_LOOPS_H

#include <stdint.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Before a loop: its iterations do not depend on each other, although pointers may be equal. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Elements as they lie in memory: users' buffers need not be aligned. */
#define DEFINE_ELEMENT(name, C) typedef C name##_t __attribute__((aligned(1), may_alias));
DEFINE_ELEMENT(u8, uint8_t)
DEFINE_ELEMENT(i8, int8_t)
DEFINE_ELEMENT(u16, uint16_t)
DEFINE_ELEMENT(i16, int16_t)
DEFINE_ELEMENT(i32, int32_t)
DEFINE_ELEMENT(i64, int64_t)
DEFINE_ELEMENT(u32, uint32_t)
DEFINE_ELEMENT(u64, uint64_t)
DEFINE_ELEMENT(f32, float)
DEFINE_ELEMENT(f64, double)

#endif /* DTR_LOOPS_H */
