/* One collective on tensors: what a public call was given, and the way from there into the engine.
 */
#ifndef DTR_TENSOR_COLL_H
#define DTR_TENSOR_COLL_H

#include "core/call.h"
#include "core/tensor_internal.h"

/* The tensors on one side of a call. In list order they are the blocks of the raw buffer. */
typedef struct dtr__side {
    const char *name; /* of the parameter */
    dtr_tensor *const *part;
    size_t n;     /* 0: this rank has nothing on this side */
    bool list;    /* `part` is the caller's array and may be NULL */
    bool at_root; /* given at the root only */
} dtr__side;

typedef struct dtr__tensor_call dtr__tensor_call;
struct dtr__tensor_call {
    const char *entry; /* public name of the call */
    dtr_group *group;
    dtr__request r;     /* kind, op, root, tag, options, return address */
    dtr__side in, out;  /* out.name NULL: `in` is the only tensor */
    bool reads, writes; /* only tensor: whether its contents are sent, whether it is filled */
    /* Last look at valid tensors of one dtype: shapes; sets r.in_counts and r.out_counts of
     * v-forms, for which `counts` has room (2 * group size). */
    dtr_status (*shapes)(dtr__tensor_call *c);
    size_t *counts;
    const size_t *in_rows, *out_rows; /* dtr_tensor_alltoallv */
    bool handed_over;                 /* the engine has it: errors are its own */
};

/* Check, pack, issue; `work` as in the public calls. */
dtr_status dtr__tensor_coll(dtr__tensor_call *c, dtr_work **work);

/* The first checks of every call: handle, membership (*work becomes NULL on a rank that is none),
 * what broke the group. */
dtr_status dtr__tensor_begin(dtr_group *group, const char *entry, dtr_work **work);

/* Parts of that for calls that consist of several. Handles and lists (a side that is not this
 * rank's business is emptied); options, ops and ranks; devices, layout and overlap. */
dtr_status dtr__tensor_check_pointers(const dtr__tensor_call *c, dtr__side *s);
dtr_status dtr__tensor_check_head(dtr__tensor_call *c, bool blocking);
dtr_status dtr__tensor_check_side(const dtr__tensor_call *c, const dtr__side *s, bool written);

/* Calls of a scope must not share memory that one of them writes. Of a strided tensor, which may
 * lie between another's elements, the first and the last element are looked at. Adds at most two
 * for each tensor, and says how many. */
size_t dtr__tensor_touched(const dtr__side *s, bool writes, dtr__touch *touch);

/* As DTR_FAIL with the call and group in front of the message. */
dtr_status dtr__tensor_refuse(const dtr__tensor_call *c, dtr_status s, const char *file, int line,
                              const char *fmt, ...) DTR_PRINTF(5, 6);
#define DTR_REFUSE(c, s, ...) dtr__tensor_refuse((c), (s), __FILE__, __LINE__, __VA_ARGS__)
#define DTR_REFUSE_IF(cond, c, s, ...)                \
    do {                                              \
        if (cond) {                                   \
            return DTR_REFUSE((c), (s), __VA_ARGS__); \
        }                                             \
    } while (0)

#endif /* DTR_TENSOR_COLL_H */
