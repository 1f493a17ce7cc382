/* Families of element types. */
#ifndef DTR_BASE_DTYPE_H
#define DTR_BASE_DTYPE_H

#include <dtr/dtype.h>

enum { DTR__N_DTYPES = DTR_I64_INDEX + 1 };

static inline bool dtr__is_unsigned(dtr_dtype d) {
    return d == DTR_U8 || (d >= DTR_U16 && d <= DTR_U64);
}

/* Whole numbers, of which bool is none. */
static inline bool dtr__is_integer(dtr_dtype d) {
    return (d >= DTR_U8 && d <= DTR_I64) || dtr__is_unsigned(d);
}

static inline bool dtr__is_float(dtr_dtype d) {
    return d >= DTR_F8E4M3 && d <= DTR_F64;
}

/* A value and its index, which is no number. */
static inline bool dtr__is_pair(dtr_dtype d) {
    return d >= DTR_F32_INDEX && d <= DTR_I64_INDEX;
}

#endif /* DTR_BASE_DTYPE_H */
