/* Operations: the kinds of ops.def, their families and names. */
#ifndef DTR_CORE_OP_H
#define DTR_CORE_OP_H

#include <stdbool.h>
#include <stdint.h>

#include <dtr/coll.h>

/* The kinds of operations, see ops.def. */
typedef enum dtr__kind {
#define DTR__OP(KIND, ...) DTR__K_##KIND,
#define DTR__OP_MADE(KIND, ...) DTR__K_##KIND,
#include "core/ops.def"
    DTR__K_COUNT
} dtr__kind;
typedef enum dtr__family { DTR__DATA, DTR__REDUCTION, DTR__MESSAGE } dtr__family;
#define DTR__KIND_BIT(KIND) (UINT64_C(1) << DTR__K_##KIND)
_Static_assert(DTR__K_COUNT <= 64, "sets of kinds are bits of a word");

const char *dtr__kind_name(dtr__kind k);  /* "reduce_scatterv" */
const char *dtr__kind_entry(dtr__kind k); /* "dtr_reduce_scatterv" */
const char *dtr__op_name(dtr_op op);      /* "premul_sum"; also of what dtr__op_code gives */

/* An operator in records and in what ranks compare, one byte that is alike on all of them: one of
 * the program as DTR__RECORDING_USER_OP says, by the number that its world has given it. */
unsigned dtr__op_code(dtr_op op);

#define DTR__OP(KIND, name, family, ...) \
    | (DTR__##family == DTR__REDUCTION ? DTR__KIND_BIT(KIND) : 0)
static const uint64_t dtr__kinds_reducing = 0
#include "core/ops.def"
    ;
#define DTR__OP(KIND, name, family, ...) | (DTR__##family == DTR__MESSAGE ? DTR__KIND_BIT(KIND) : 0)
#define DTR__OP_MADE(KIND, name, family) | (DTR__##family == DTR__MESSAGE ? DTR__KIND_BIT(KIND) : 0)
static const uint64_t dtr__kinds_p2p = 0
#include "core/ops.def"
    ;

#define DTR__OP_MADE(KIND, ...) | DTR__KIND_BIT(KIND)
static const uint64_t dtr__kinds_made = 0
#include "core/ops.def"
    ;

/* Made of others: no backend is handed one. */
static inline bool dtr__kind_is_made(dtr__kind k) {
    return (dtr__kinds_made >> k & 1) != 0;
}

static inline bool dtr__kind_is_p2p(dtr__kind k) {
    return (dtr__kinds_p2p >> k & 1) != 0;
}

static inline bool dtr__kind_reduces(dtr__kind k) {
    return (dtr__kinds_reducing >> k & 1) != 0;
}

#endif /* DTR_CORE_OP_H */
