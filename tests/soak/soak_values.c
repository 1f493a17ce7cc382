#include "soak_values.h"

#include <string.h>

static bool is_unsigned(dtr_dtype d) {
    return d == DTR_U8;
}

/* Element k of what member r gives. */
int soak_value(const operation *o, int r, size_t k) {
    int v = (int)((7 * (k % 17) + 13 * (size_t)r + o->salt) % 17);
    return is_unsigned(o->dtype) ? v : v - 8;
}

void soak_put(const operation *o, void *data, size_t k, int v) {
    float f = (float)v;
    uint32_t bits;
    switch (o->dtype) {
    case DTR_U8:
        ((uint8_t *)data)[k] = (uint8_t)v;
        break;
    case DTR_I32:
        ((int32_t *)data)[k] = v;
        break;
    case DTR_I64:
        ((int64_t *)data)[k] = v;
        break;
    case DTR_BF16: /* whole numbers up to 256 lose nothing */
        memcpy(&bits, &f, sizeof bits);
        ((uint16_t *)data)[k] = (uint16_t)(bits >> 16);
        break;
    case DTR_F32:
        ((float *)data)[k] = f;
        break;
    default:
        ((double *)data)[k] = v;
        break;
    }
}

double soak_get(const operation *o, const void *data, size_t k) {
    uint32_t bits;
    float f;
    switch (o->dtype) {
    case DTR_U8:
        return ((const uint8_t *)data)[k];
    case DTR_I32:
        return ((const int32_t *)data)[k];
    case DTR_I64:
        return (double)((const int64_t *)data)[k];
    case DTR_BF16:
        bits = (uint32_t)((const uint16_t *)data)[k] << 16;
        memcpy(&f, &bits, sizeof f);
        return f;
    case DTR_F32:
        return ((const float *)data)[k];
    default:
        return ((const double *)data)[k];
    }
}

/* Element k reduced over all members. */
static int reduced(const operation *o, size_t k) {
    int all = soak_value(o, 0, k);
    for (int r = 1; r < o->size; r++) {
        int v = soak_value(o, r, k);
        if (o->op == DTR_SUM) {
            all += v;
        } else if (o->op == DTR_MAX) {
            all = v > all ? v : all;
        } else {
            all = v < all ? v : all;
        }
    }
    return all;
}

/* What element k of this rank's output must be. */
int soak_expected(const operation *o, size_t k) {
    size_t block = o->count > 0 ? k / o->count : 0, at = o->count > 0 ? k % o->count : 0;
    size_t own = (size_t)o->me * o->count;
    switch (o->kind) {
    case BROADCAST:
        return soak_value(o, o->root, k);
    case ALLGATHER:
    case GATHER:
        return soak_value(o, (int)block, at);
    case SCATTER:
        return soak_value(o, o->root, own + k);
    case REDUCE_SCATTER:
        return reduced(o, own + k);
    case ALLTOALL:
        return soak_value(o, (int)block, own + at);
    case RING:
        return soak_value(o, (o->me + o->size - 1) % o->size, k);
    default:
        return reduced(o, k);
    }
}
