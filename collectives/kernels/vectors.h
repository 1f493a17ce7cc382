/* Vectors of one instruction set, VECTOR_BYTES long, in the compiler's generic vector notation;
 * included first by kernels_<set>.c. */
#ifndef DTR_VECTORS_H
#define DTR_VECTORS_H

#include "loops.h"

#define DEFINE_VECTOR(name, C, nbytes) typedef C name __attribute__((vector_size(nbytes)));
DEFINE_VECTOR(u8_v, uint8_t, VECTOR_BYTES)
DEFINE_VECTOR(i8_v, int8_t, VECTOR_BYTES)
DEFINE_VECTOR(u16_v, uint16_t, VECTOR_BYTES)
DEFINE_VECTOR(i16_v, int16_t, VECTOR_BYTES)
DEFINE_VECTOR(u32_v, uint32_t, VECTOR_BYTES)
DEFINE_VECTOR(i32_v, int32_t, VECTOR_BYTES)
DEFINE_VECTOR(u64_v, uint64_t, VECTOR_BYTES)
DEFINE_VECTOR(i64_v, int64_t, VECTOR_BYTES)
DEFINE_VECTOR(f32_v, float, VECTOR_BYTES)
DEFINE_VECTOR(f64_v, double, VECTOR_BYTES)
DEFINE_VECTOR(half_v, uint16_t, VECTOR_BYTES / 2) /* as many 16-bit elements as f32_v has lanes */

/* Lanes of x where the mask (all ones or zero per lane) is set, of y elsewhere. */
#define SELECT(U, mask, x, y) (((U)(mask) & (U)(x)) | (~(U)(mask) & (U)(y)))

#endif /* DTR_VECTORS_H */
