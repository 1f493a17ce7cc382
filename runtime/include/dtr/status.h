/** @file
 * Status codes, error classes and the thread's last error.
 *
 * Every function returns a dtr_status or a value; the few that return a handle and can fail say so.
 * 0 is success, positive means "nothing done, and that is no failure", negative is an error. The
 * class of a status says how much the error broke. A handle that is destroyed or none is
 * DTR_ERR_STATE or DTR_ERR_ARG everywhere, also where @errors does not say so.
 *
 * @par Time limits
 * Every timeout_s, of a call or in options, is in seconds and means:
 *   - positive: that long; INFINITY: no limit;
 *   - negative: as if none were given: of an operation that of its group, of a group that of its
 *     world, of a world DTR_TIMEOUT;
 *   - 0: of a call that waits, look once and do not wait; in options, which begin as zeros, as if
 *     none were given;
 *   - not a number: DTR_ERR_ARG. */
#ifndef DTR_STATUS_H
#define DTR_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <dtr/export.h>

DTR_BEGIN_DECLS

typedef struct dtr_world dtr_world;
typedef struct dtr_group dtr_group;
typedef struct dtr_work dtr_work;
typedef struct dtr_tensor dtr_tensor;
typedef struct dtr_ddp dtr_ddp;
typedef struct dtr_ddp_bucket dtr_ddp_bucket;
typedef struct dtr_zero dtr_zero;

typedef enum dtr_status {
    DTR_OK = 0,
    DTR_NOT_MEMBER = 1,  /**< the group handle is NULL: this process is not in it */
    DTR_IN_PROGRESS = 2, /**< polled before completion */
    DTR_ERR_ARG = -1,
    DTR_ERR_DTYPE = -2,
    DTR_ERR_DEVICE = -3,
    DTR_ERR_SHAPE = -4,
    DTR_ERR_LAYOUT = -5,
    DTR_ERR_RANK = -6,
    DTR_ERR_STATE = -7,
    DTR_ERR_UNSUPPORTED = -8,
    DTR_ERR_OVERFLOW = -9,
    DTR_ERR_NOMEM = -10,
    DTR_ERR_IO = -11,
    DTR_ERR_MISMATCH = -12, /**< ranks disagree on the operation */
    DTR_ERR_TIMEOUT = -13,
    DTR_ERR_ABORTED = -14,
    DTR_ERR_REMOTE = -15, /**< a peer failed or died */
    DTR_ERR_GRAPH = -16,  /**< DDP: the set of used parameters changed */
    DTR_ERR_NAN = -17,
    DTR_ERR_MPI = -20,
    DTR_ERR_CUDA = -21,
    DTR_ERR_NCCL = -22,
    DTR_ERR_SYSTEM = -23,
    DTR_ERR_INTERNAL = -24
} dtr_status;

/** Whether a status is an error. What is positive is none: the group was NULL here
 * (DTR_NOT_MEMBER), the work is unfinished (DTR_IN_PROGRESS). */
#define DTR_FAILED(status) ((status) < 0)

/** What an error broke: nothing (ARG: the call was refused), this operation, this group on all its
 * ranks, or the process: after that no call can succeed any more, as after some errors of CUDA. */
typedef enum dtr_error_class {
    DTR_CLASS_NONE,
    DTR_CLASS_ARG,
    DTR_CLASS_OP,
    DTR_CLASS_GROUP,
    DTR_CLASS_PROCESS
} dtr_error_class;

/** Where a native error code comes from. */
typedef enum dtr_native {
    DTR_NATIVE_NONE,
    DTR_NATIVE_ERRNO,
    DTR_NATIVE_MPI,
    DTR_NATIVE_CUDA,
    DTR_NATIVE_NCCL
} dtr_native;

/** The last error of a thread. Texts are never NULL and live until the thread's next error. */
typedef struct dtr_error {
    size_t struct_size; /**< set by DTR_ERROR_INIT */
    dtr_status status;
    dtr_error_class blast;
    const char *message; /**< complete: cause, values, what to do */
    const char *file;    /**< the line that decided the error */
    int line;
    const char *operation; /**< "allreduce", "" outside an operation */
    const char *group;     /**< name of the group, "" when none */
    uint64_t seq;          /**< sequence number of the operation in its group, 0 when none */
    int world_rank;        /**< -1 when no world is involved */
    const char *host;
    dtr_native native;
    int native_code;
    const char *native_text;
} dtr_error;
#define DTR_ERROR_INIT                                                                            \
    {                                                                                             \
        sizeof(dtr_error), DTR_OK, DTR_CLASS_NONE, "", "", 0, "", "", 0, -1, "", DTR_NATIVE_NONE, \
            0, ""                                                                                 \
    }

/** Name of a status as written in the source, "DTR_ERR_TIMEOUT"; "DTR_ERR_?" for a value that is
 * none.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const char *dtr_status_name(dtr_status s);

/** One sentence saying what a status means.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const char *dtr_status_text(dtr_status s);

/** One sentence saying what usually helps, "" where there is nothing to do.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const char *dtr_status_hint(dtr_status s);

/** What an error of this status breaks where the function that returned it says nothing else;
 * DTR_CLASS_NONE for 0 and positive values. dtr_error.blast also knows errors of CUDA that broke
 * the process.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_error_class dtr_status_class(dtr_status s);

/** Message of this thread's last error, "" when there was none; valid until the thread's next
 * error.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const char *dtr_last_error_message(void);

/** Copy this thread's last error record into `out`, whose struct_size says how much of it the
 * caller knows.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG when out is NULL or its struct_size is 0 (the record is left alone)
 *  @since 0.1 */
DTR_API dtr_status dtr_last_error(dtr_error *out);

DTR_END_DECLS

#endif /* DTR_STATUS_H */
