/* How errors are decided, recorded and passed on. The function that decides an error writes the
 * message with DTR_FAIL; callers only propagate with DTR_TRY. */
#ifndef DTR_RT_ERROR_H
#define DTR_RT_ERROR_H

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <dtr/status.h>

/* What an error belongs to; any member may be zero. Texts are copied. */
typedef struct dtr__error_context {
    const dtr_world *world;
    const char *operation;
    const char *group;
    uint64_t seq;
    dtr_native native;
    int native_code;
    const char *native_text; /* NULL: looked up from native and native_code */
} dtr__error_context;

/* Write this thread's last-error record and return `s`. `ctx` may be NULL. */
dtr_status dtr__error_set(const dtr__error_context *ctx, dtr_status s, const char *file, int line,
                          const char *fmt, ...) DTR_PRINTF(5, 6);

/* A heap copy of this thread's record that another thread can restore: how a progress thread hands
 * an error to a waiter. NULL when out of memory; dtr__error_restore(NULL, s) then leaves a message
 * made from the status alone. */
typedef struct dtr__error_copy dtr__error_copy;
dtr__error_copy *dtr__error_save(void);
dtr_status dtr__error_restore(const dtr__error_copy *copy, dtr_status s);
void dtr__error_copy_free(dtr__error_copy *copy);
/* After what was done meanwhile: an error `s` is this thread's last one again; the copy is freed.
 */
dtr_status dtr__error_put_back(dtr__error_copy *copy, dtr_status s);
dtr_status dtr__error_last(void); /* of this thread; DTR_OK: none */
/* Its message; "" for NULL. */
const char *dtr__error_copy_text(const dtr__error_copy *copy);

/* This is for clang-tidy, which cannot see it: a failure is not DTR_OK, and outputs are set by
 * DTR_OK. */
#ifdef __clang_analyzer__
#define DTR__FAILED(call, status) ((call), (status))
#define DTR__BAD(status) ((status) != DTR_OK)
#else
#define DTR__FAILED(call, status) (call)
#define DTR__BAD(status) ((status) < 0)
#endif

/* Save the current record around cleanup calls, so that they cannot overwrite the first cause. */
#define DTR_FAIL(ctx, status, ...) \
    DTR__FAILED(dtr__error_set((ctx), (status), __FILE__, __LINE__, __VA_ARGS__), (status))

/* Native errors: errno (call before anything can change it) and MPI return codes. `what` names the
 * call. */
dtr_status dtr__error_errno(const dtr__error_context *ctx, dtr_status s, const char *file, int line,
                            const char *fmt, ...) DTR_PRINTF(5, 6);
#define DTR_FAIL_ERRNO(ctx, status, ...) \
    DTR__FAILED(dtr__error_errno((ctx), (status), __FILE__, __LINE__, __VA_ARGS__), (status))
dtr_status dtr__error_mpi(const dtr__error_context *ctx, int mpi_code, const char *call,
                          const char *file, int line);

/* Return on any negative status. Positive ones are results, not failures, and pass through the
 * variable. */
#define DTR_TRY(expr)                    \
    do {                                 \
        dtr_status try_status_ = (expr); \
        if (DTR__BAD(try_status_)) {     \
            return try_status_;          \
        }                                \
    } while (0)

/* Clean up by statements that may fail too: an error `s` stays this thread's last one. */
#define DTR_CLEAN_UP(s, ...)                                             \
    do {                                                                 \
        const dtr_status failed_ = (s);                                  \
        dtr__error_copy *kept_ = failed_ < 0 ? dtr__error_save() : NULL; \
        __VA_ARGS__;                                                     \
        (void)dtr__error_put_back(kept_, failed_);                       \
    } while (0)

/* In cleanup: remember the first failure only. */
#define DTR_KEEP_FIRST(var, expr)         \
    do {                                  \
        dtr_status keep_status_ = (expr); \
        if ((var) == DTR_OK) {            \
            (var) = keep_status_;         \
        }                                 \
    } while (0)

/* While the progress thread is inside a native call its name stands here, so that the watchdog can
 * tell where it hangs; NULL in other threads. */
extern _Thread_local _Atomic(const char *) *dtr__inside_at
    __attribute__((visibility("hidden"), tls_model("initial-exec")));
static inline void dtr__inside(const char *name) {
    if (dtr__inside_at != NULL) {
        atomic_store_explicit(dtr__inside_at, name, memory_order_relaxed);
    }
}
static inline int dtr__left(int code) {
    dtr__inside(NULL);
    return code;
}
/* The code that fn(...) returns. */
#define DTR_INSIDE(fn, ...) DTR_INSIDE_AS(#fn, fn(__VA_ARGS__))
#define DTR_INSIDE_AS(name, call) (dtr__inside(name), dtr__left(call))

/* MPI call that must succeed: converts the code and returns DTR_ERR_MPI. Only in files that include
 * <mpi.h>. */
#define DTR_MPI(ctx, call)                                                                  \
    do {                                                                                    \
        int mpi_code_ = DTR_INSIDE_AS(#call, call);                                         \
        if (mpi_code_ != MPI_SUCCESS) {                                                     \
            return DTR__FAILED(dtr__error_mpi((ctx), mpi_code_, #call, __FILE__, __LINE__), \
                               DTR_ERR_MPI);                                                \
        }                                                                                   \
    } while (0)

#define DTR_REQUIRE(cond, ctx, status, ...)                \
    do {                                                   \
        if (!(cond)) {                                     \
            return DTR_FAIL((ctx), (status), __VA_ARGS__); \
        }                                                  \
    } while (0)

/* Copy a caller's options struct (NULL: defaults) into a zeroed struct of `known` bytes.
 * A struct_size that no version can have (0, not a multiple of 8), or non-zero bytes beyond what
 * this build knows, is DTR_ERR_ARG naming `type`. */
dtr_status dtr__options_copy(const void *given, void *own, size_t known, const char *type);

/* A time limit as dtr/status.h says: of a call that waits, and of options, where a negative one
 * becomes 0, not given. `what` names the call, or the struct. */
dtr_status dtr__limit_check(const dtr__error_context *ctx, const char *what, double timeout_s);
dtr_status dtr__options_limit(const dtr__error_context *ctx, const char *what, double *timeout_s);

#endif /* DTR_RT_ERROR_H */
