/* Element types: size and name. */
#include <dtr/dtype.h>

static const struct {
    size_t size;
    const char *name;
} dtypes[] = {
    [DTR_BOOL] = { 1, "bool" },
    [DTR_U8] = { 1, "u8" },
    [DTR_I8] = { 1, "i8" },
    [DTR_I16] = { 2, "i16" },
    [DTR_I32] = { 4, "i32" },
    [DTR_I64] = { 8, "i64" },
    [DTR_F8E4M3] = { 1, "f8e4m3" },
    [DTR_F8E5M2] = { 1, "f8e5m2" },
    [DTR_F16] = { 2, "f16" },
    [DTR_BF16] = { 2, "bf16" },
    [DTR_F32] = { 4, "f32" },
    [DTR_F64] = { 8, "f64" },
    [DTR_C64] = { 8, "c64" },
    [DTR_C128] = { 16, "c128" },
    [DTR_U16] = { 2, "u16" },
    [DTR_U32] = { 4, "u32" },
    [DTR_U64] = { 8, "u64" },
    [DTR_F32_INDEX] = { sizeof(dtr_f32_index), "f32_index" },
    [DTR_F64_INDEX] = { sizeof(dtr_f64_index), "f64_index" },
    [DTR_I64_INDEX] = { sizeof(dtr_i64_index), "i64_index" },
};

static bool known(dtr_dtype d) {
    return (int)d >= 0 && (size_t)d < sizeof dtypes / sizeof dtypes[0];
}

size_t dtr_dtype_size(dtr_dtype d) {
    return known(d) ? dtypes[d].size : 0;
}

const char *dtr_dtype_name(dtr_dtype d) {
    return known(d) ? dtypes[d].name : "?";
}
