/** @file
 * Element types. */
#ifndef DTR_DTYPE_H
#define DTR_DTYPE_H

#include <dtr/status.h>

DTR_BEGIN_DECLS

/** Bool elements are bytes 0 or 1. F8E4M3 is the "fn" form (no infinity, NaN 0x7f); F8E5M2 is
 * IEEE-like. C64 is a pair of float32 (real, imaginary), C128 a pair of float64. An I has a
 * sign, a U has none. */
typedef enum dtr_dtype {
    DTR_BOOL,
    DTR_U8,
    DTR_I8,
    DTR_I16,
    DTR_I32,
    DTR_I64,
    DTR_F8E4M3,
    DTR_F8E5M2,
    DTR_F16,
    DTR_BF16,
    DTR_F32,
    DTR_F64,
    DTR_C64,
    DTR_C128,
    DTR_U16,
    DTR_U32,
    DTR_U64,
    DTR_F32_INDEX, /**< dtr_f32_index, and so on */
    DTR_F64_INDEX,
    DTR_I64_INDEX
} dtr_dtype;

/** @name Pairs
 * A value and where it was found, for DTR_MINLOC and DTR_MAXLOC. They move, are viewed, copied and
 * saved like other elements, but are no numbers: nothing is converted to them or computed with
 * them. Bytes that lie between value and index may be left unset; results of reductions have zero
 * there.
 * @{ */
typedef struct dtr_f32_index {
    float value;
    int64_t index;
} dtr_f32_index;
typedef struct dtr_f64_index {
    double value;
    int64_t index;
} dtr_f64_index;
typedef struct dtr_i64_index {
    int64_t value;
    int64_t index;
} dtr_i64_index;
/** @} */

/** Size of one element in bytes; 0 for a value outside the enum.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API size_t dtr_dtype_size(dtr_dtype d);

/** Short lower-case name, "bf16"; "?" for a value outside the enum.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const char *dtr_dtype_name(dtr_dtype d);

DTR_END_DECLS

#endif /* DTR_DTYPE_H */
