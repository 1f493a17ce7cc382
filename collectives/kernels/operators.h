/* The operators of reductions: which there are, how they are called, on which types they work, and
 * what one step of each computes. A new operator is its enumerator in dtr/coll.h, and here a line
 * of the list, its place among the loops, and its expression. */
#ifndef DTR_OPERATORS_H
#define DTR_OPERATORS_H

#include <dtr/coll.h>

enum {
    DTR__ON_BOOL = 1,
    DTR__ON_INT = 2,
    DTR__ON_F8 = 4,
    DTR__ON_FLOAT = 8,
    DTR__ON_COMPLEX = 16,
    DTR__ON_PAIR = 32
};
#define DTR__ON_REAL (DTR__ON_INT | DTR__ON_F8 | DTR__ON_FLOAT)

/* What combined with any element gives that element: a number (bool: false and true), all bits set,
 * or the number above or below all others (pairs: with the largest index). */
typedef enum dtr__identity {
    DTR__IS_ZERO,
    DTR__IS_ONE,
    DTR__IS_ONES,
    DTR__IS_HIGHEST,
    DTR__IS_LOWEST
} dtr__identity;

/* X(OP, name, types, identity), in the order of dtr_op. */
#define DTR__OPERATORS(X)                                               \
    X(SUM, sum, DTR__ON_BOOL | DTR__ON_REAL | DTR__ON_COMPLEX, IS_ZERO) \
    X(AVG, avg, DTR__ON_REAL | DTR__ON_COMPLEX, IS_ZERO)                \
    X(PROD, prod, DTR__ON_BOOL | DTR__ON_REAL, IS_ONE)                  \
    X(MIN, min, DTR__ON_BOOL | DTR__ON_REAL, IS_HIGHEST)                \
    X(MAX, max, DTR__ON_BOOL | DTR__ON_REAL, IS_LOWEST)                 \
    X(BAND, band, DTR__ON_BOOL | DTR__ON_INT, IS_ONES)                  \
    X(BOR, bor, DTR__ON_BOOL | DTR__ON_INT, IS_ZERO)                    \
    X(BXOR, bxor, DTR__ON_BOOL | DTR__ON_INT, IS_ZERO)                  \
    X(PREMUL_SUM, premul_sum, DTR__ON_FLOAT | DTR__ON_COMPLEX, IS_ZERO) \
    X(LAND, land, DTR__ON_BOOL | DTR__ON_INT, IS_ONE)                   \
    X(LOR, lor, DTR__ON_BOOL | DTR__ON_INT, IS_ZERO)                    \
    X(LXOR, lxor, DTR__ON_BOOL | DTR__ON_INT, IS_ZERO)                  \
    X(MINLOC, minloc, DTR__ON_PAIR, IS_HIGHEST)                         \
    X(MAXLOC, maxloc, DTR__ON_PAIR, IS_LOWEST)
#define DTR__ONE_OPERATOR(OP, name, types, identity) +1
enum { DTR__N_OPS = 0 DTR__OPERATORS(DTR__ONE_OPERATOR) };
#undef DTR__ONE_OPERATOR

/* X(op) for each operator that has a loop of its own on whole numbers, floats, bits, and truth. */
#define INT_OPS(X) X(DTR_SUM) X(DTR_PROD) X(DTR_MIN) X(DTR_MAX)
#define FLOAT_OPS(X) INT_OPS(X) X(DTR_AVG) X(DTR_PREMUL_SUM)
#define BIT_OPS(X) X(DTR_BAND) X(DTR_BOR) X(DTR_BXOR)
#define LOGICAL_OPS(X) X(DTR_LAND) X(DTR_LOR) X(DTR_LXOR)

/* One step on vectors; op is a constant. Signed integers are added and multiplied as unsigned,
 * where wrapping is defined, and compared as what they are. */
#define INT_COMBINE(U, S, op, a, b)                       \
    ((op) == DTR_PROD  ? (a) * (b)                        \
     : (op) == DTR_MIN ? SELECT(U, (S)(b) < (S)(a), b, a) \
     : (op) == DTR_MAX ? SELECT(U, (S)(b) > (S)(a), b, a) \
                       : (a) + (b))

/* MIN and MAX: any NaN gives NaN, equal values (-0 and +0) the earlier. */
#define NAN_LANES(f) ((f) != (f))
#define FLOAT_COMBINE(F, U, op, a, b)                                   \
    ((op) == DTR_PROD  ? (a) * (b)                                      \
     : (op) == DTR_MIN ? (F)SELECT(U, ((b) < (a)) | NAN_LANES(b), b, a) \
     : (op) == DTR_MAX ? (F)SELECT(U, ((b) > (a)) | NAN_LANES(b), b, a) \
                       : (a) + (b))

/* Of elements of 0 and 1 SUM is or, PROD is and. */
#define BIT_COMBINE(op, a, b)                                                             \
    ((op) == DTR_SUM || (op) == DTR_MAX || (op) == DTR_BOR || (op) == DTR_LOR ? (a) | (b) \
     : (op) == DTR_BXOR || (op) == DTR_LXOR                                   ? (a) ^ (b) \
                                                                              : (a) & (b))

static inline bool dtr__is_bitwise(dtr_op op) {
    return op == DTR_BAND || op == DTR_BOR || op == DTR_BXOR;
}

static inline bool dtr__is_logical(dtr_op op) {
    return op == DTR_LAND || op == DTR_LOR || op == DTR_LXOR;
}

#endif
