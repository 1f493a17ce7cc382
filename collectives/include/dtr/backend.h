/** @file
 * Backends of one's own. Experimental: this header may change between minor versions.
 *
 * A backend is a table of functions that a world knows under a name; groups of that world whose
 * backend text names it ("cpu:toy") use it. The library checks arguments, numbers and records the
 * operations and keeps their limits; the backend moves the data. Its functions are called by one
 * thread at a time per group, which may be a library thread, and must not block. A status they
 * return is the operation's; an error breaks the group. */
#ifndef DTR_BACKEND_H
#define DTR_BACKEND_H

#include <dtr/coll.h>

DTR_BEGIN_DECLS

/** Bits of a device mask. */
enum { DTR_BACKEND_CPU = 1u << DTR_CPU, DTR_BACKEND_CUDA = 1u << DTR_CUDA };

/** What a backend is told when a group is made. Pointers live as long as the group, those to
 * options as long as the call. */
typedef struct dtr_backend_args {
    size_t struct_size; /**< of the library's struct: fields beyond it are not there */
    const char *group_name;
    int rank, size;
    const int *world_ranks; /**< [size] */
    double timeout_s;       /**< INFINITY: none */
    dtr_device device;
    const dtr_group_options *options; /**< of the creation, as the caller gave them */
    /** Small key-value exchange among the members, for this group and device type. put: keys of 1
     * to 63 bytes, values up to 4096; the newest value of a key counts. get: waits up to timeout_s
     * seconds (DTR_ERR_TIMEOUT; dtr/status.h), copies at most cap bytes and sets *nbytes to the
     * value's length. Both take `exchange`. Only inside create. */
    void *exchange;
    dtr_status (*put)(void *exchange, const char *key, const void *value, size_t nbytes);
    dtr_status (*get)(void *exchange, const char *key, void *value, size_t cap, size_t *nbytes,
                      double timeout_s);
} dtr_backend_args;

/** One checked operation, as in dtr/coll.h, with the overlaps of `in` and `out` that its page
 * allows. Buffers and arrays live until the operation ends. */
typedef struct dtr_backend_call {
    size_t struct_size;
    dtr_buffer in, out; /**< equal where the call has one buffer */
    dtr_op op;          /**< built in: those of dtr_op_create are refused before */
    int root;           /**< or peer; DTR_ANY_SOURCE; -1: none */
    int tag;
    const size_t *in_counts, *out_counts; /**< of the v-forms, else NULL */
    const dtr_p2p *batch;
    size_t n_batch;
    double premul;
    uint64_t seq; /**< as dtr_work_seq */
    const char *label;
} dtr_backend_call;

/** Start an operation. *request stays NULL: it is complete. Else it is given to test until that
 * says done, or to cancel. */
typedef dtr_status (*dtr_backend_start)(void *state, const dtr_backend_call *call, void **request);

/** An empty slot of an operation means that the backend cannot do it: DTR_ERR_UNSUPPORTED. */
typedef struct dtr_backend_ops {
    size_t struct_size; /**< set by DTR_BACKEND_OPS_INIT */
    /** Make the state of one group; its members do so together. Required. */
    dtr_status (*create)(const dtr_backend_args *args, void **state);
    /** The rest is optional. */
    void (*destroy)(void *state);
    /** Whether an operation of that name ("allreduce") can be served as described: > 0. */
    int (*can)(void *state, const char *operation, const dtr_backend_call *call);
    /** Needed by operations that leave a request. *source: where a receive came from. */
    dtr_status (*test)(void *state, void *request, bool *done, int *source);
    /** Give up a request: limit, abort, destroy. */
    void (*cancel)(void *state, void *request);
    /** A failure outside any operation; asked for whenever an operation is tested. */
    dtr_status (*error)(void *state);
    dtr_backend_start broadcast, reduce, allreduce, allgather, allgatherv, gather, gatherv, scatter,
        scatterv, reduce_scatter, reduce_scatterv, alltoall, alltoallv, barrier, send, recv,
        recv_any, batch;
    /** Coalescing scopes (dtr_coalesce_begin), both or neither: the operations of a scope are all
     * started between these two, none waits for another or is packed with it, and the backend may
     * leave all work to the second. *request of coalesce_end then stands for the operations that
     * left none of their own. It is called after a failed start, too. A scope with a barrier, and
     * any without these functions, runs its operations as if they were called by themselves. */
    dtr_status (*coalesce_begin)(void *state);
    dtr_status (*coalesce_end)(void *state, void **request);
    /** As create, for a group whose members all belong to `parent`, which this backend serves, too:
     * in dtr_group_split and dtr_group_subgroups. Without it create is called. No other function is
     * called with `parent` meanwhile. */
    dtr_status (*split)(void *parent, const dtr_backend_args *args, void **state);
    dtr_backend_start scan, exscan; /**< AVG divides by the number of ranks that are added up */
} dtr_backend_ops;
#ifdef __cplusplus
#define DTR_BACKEND_OPS_INIT                                                                       \
    {                                                                                              \
        sizeof(dtr_backend_ops), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
            0, 0, 0, 0, 0, 0, 0                                                                    \
    }
#else
#define DTR_BACKEND_OPS_INIT \
    { .struct_size = sizeof(dtr_backend_ops) }
#endif

/** Make a backend known to a world under a name (1 to 15 of a-z, digits, '_' or '-', any case),
 * for the device types in the mask. The table is copied; the registration ends with the world.
 * Groups that exist do not change.
 *  @collective no, but all ranks that create a group with it must have registered it
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL, name, no create, one of the coalesce functions without the other,
 * empty or unknown mask), DTR_ERR_STATE (the name exists, built in or registered), DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_backend_register(dtr_world *world, const char *name,
                                        const dtr_backend_ops *ops, uint32_t device_mask);

DTR_END_DECLS

#endif /* DTR_BACKEND_H */
