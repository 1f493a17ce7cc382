/* The thread's last-error record: fixed buffers, made by a thread's first error. They are not in
 * thread-local storage themselves, because a program that loads this library at run time has little
 * of that left. */
#include "base/error.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mpi.h"
#include "base/world.h"

enum { MESSAGE_MAX = 3072, NATIVE_MAX = 512 };

typedef struct error_record {
    dtr_status status;
    const char *file; /* literal */
    int line;
    uint64_t seq;
    int world_rank;
    dtr_native native;
    int native_code;
    char operation[48], group[64], host[64];
    char native_text[NATIVE_MAX];
    char message[MESSAGE_MAX]; /* last: a saved copy ends with its text */
} error_record;

struct dtr__error_copy {
    error_record record; /* allocated only as far as the message goes */
};

static const error_record none = { .world_rank = -1, .file = "" };
static _Thread_local error_record *thread_record; /* NULL: this thread has had no error */
static error_record shared;                       /* of threads for which there was no memory */
static pthread_key_t owned;                       /* frees `thread_record` when its thread ends */
static pthread_once_t owned_once = PTHREAD_ONCE_INIT;
static bool owned_made;

static void make_key(void) {
    owned_made = pthread_key_create(&owned, free) == 0;
}

/* The library may be unloaded before its threads end. */
__attribute__((destructor)) static void drop_key(void) {
    if (owned_made) {
        (void)pthread_key_delete(owned);
    }
}

static const error_record *last(void) {
    return thread_record != NULL ? thread_record : &none;
}

static error_record *last_to_write(void) {
    if (thread_record == NULL || thread_record == &shared) {
        error_record *made = malloc(sizeof *made);
        (void)pthread_once(&owned_once, make_key);
        if (made != NULL && !(owned_made && pthread_setspecific(owned, made) == 0)) {
            free(made);
            made = NULL;
        }
        thread_record = made != NULL ? made : &shared;
        *thread_record = none;
    }
    return thread_record;
}

static void copy_text(char *to, size_t cap, const char *from) {
    snprintf(to, cap, "%s", from == NULL ? "" : from);
}

/* MPI libraries give stacks of several lines; a message is one line. */
static void one_line(char *text) {
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' ')) {
        text[--n] = '\0';
    }
    for (char *c = text; *c != '\0'; c++) {
        if (*c == '\n' || *c == '\t' || *c == '\r') {
            *c = ' ';
        }
    }
}

/* "runtime/world/world.c" out of the path the compiler was given. */
static const char *short_file(const char *path) {
    const char *cut = path, *before = path;
    for (const char *c = path; *c != '\0'; c++) {
        if (*c == '/') {
            before = cut;
            cut = c + 1;
        }
    }
    return before;
}

static void native_text(dtr_native domain, int code, char *text, size_t cap) {
    char buffer[MPI_MAX_ERROR_STRING > 256 ? MPI_MAX_ERROR_STRING : 256];
    int length = 0;
    if (domain == DTR_NATIVE_ERRNO) {
        copy_text(text, cap, strerror_r(code, buffer, sizeof buffer));
    } else if (domain == DTR_NATIVE_MPI && dtr__mpi_alive() &&
               MPI_Error_string(code, buffer, &length) == MPI_SUCCESS) {
        copy_text(text, cap, buffer);
        one_line(text);
    } else {
        snprintf(text, cap, "code %d", code);
    }
}

static void fill_context(error_record *r, const dtr__error_context *ctx) {
    copy_text(r->operation, sizeof r->operation, ctx->operation);
    copy_text(r->group, sizeof r->group, ctx->group);
    r->seq = ctx->seq;
    if (ctx->world != NULL) {
        r->world_rank = ctx->world->rank;
        copy_text(r->host, sizeof r->host, ctx->world->host);
    }
    r->native = ctx->native;
    r->native_code = ctx->native_code;
    if (ctx->native_text != NULL) {
        copy_text(r->native_text, sizeof r->native_text, ctx->native_text);
        one_line(r->native_text);
    } else if (ctx->native != DTR_NATIVE_NONE) {
        native_text(ctx->native, ctx->native_code, r->native_text, sizeof r->native_text);
    }
}

/* Builds aside and copies at the end: the arguments may point into the present record. */
static dtr_status record(const dtr__error_context *ctx, dtr_status s, const char *file, int line,
                         const char *message) {
    error_record r;
    memset(&r, 0, offsetof(error_record, native_text));
    r.native_text[0] = '\0';
    r.status = s;
    r.file = short_file(file);
    r.line = line;
    r.world_rank = -1;
    if (ctx != NULL) {
        fill_context(&r, ctx);
    }
    if (r.host[0] == '\0' && gethostname(r.host, sizeof r.host - 1) != 0) {
        copy_text(r.host, sizeof r.host, "?");
    }
    copy_text(r.message, sizeof r.message, message);
    memcpy(last_to_write(), &r, offsetof(error_record, message) + strlen(r.message) + 1);
    return s;
}

/* vsnprintf that shows where a text was cut. */
static void format(char *text, size_t cap, const char *fmt, va_list args) {
    int n = vsnprintf(text, cap, fmt, args);
    if (n < 0) {
        copy_text(text, cap, fmt);
    } else if ((size_t)n >= cap) {
        memcpy(text + cap - 5, " ...", 5);
    }
    one_line(text);
}

dtr_status dtr__error_set(const dtr__error_context *ctx, dtr_status s, const char *file, int line,
                          const char *fmt, ...) {
    char message[MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    format(message, sizeof message, fmt, args);
    va_end(args);
    return record(ctx, s, file, line, message);
}

dtr_status dtr__error_errno(const dtr__error_context *ctx, dtr_status s, const char *file, int line,
                            const char *fmt, ...) {
    int code = errno;
    char what[MESSAGE_MAX - NATIVE_MAX], why[256], message[MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    format(what, sizeof what, fmt, args);
    va_end(args);
    native_text(DTR_NATIVE_ERRNO, code, why, sizeof why);
    snprintf(message, sizeof message, "%s: %s (errno %d)", what, why, code);
    dtr__error_context with = ctx != NULL ? *ctx : (dtr__error_context){ 0 };
    with.native = DTR_NATIVE_ERRNO;
    with.native_code = code;
    with.native_text = why;
    return record(&with, s, file, line, message);
}

dtr_status dtr__error_mpi(const dtr__error_context *ctx, int mpi_code, const char *call,
                          const char *file, int line) {
    char why[NATIVE_MAX], message[MESSAGE_MAX];
    native_text(DTR_NATIVE_MPI, mpi_code, why, sizeof why);
    size_t name = strcspn(call, "(");
    snprintf(message, sizeof message, "%.*s failed: %s", (int)(name < 64 ? name : 64), call, why);
    dtr__error_context with = ctx != NULL ? *ctx : (dtr__error_context){ 0 };
    with.native = DTR_NATIVE_MPI;
    with.native_code = mpi_code;
    with.native_text = why;
    return record(&with, DTR_ERR_MPI, file, line, message);
}

dtr__error_copy *dtr__error_save(void) {
    size_t nbytes = offsetof(error_record, message) + strlen(last()->message) + 1;
    dtr__error_copy *copy = malloc(nbytes);
    if (copy != NULL) {
        memcpy(copy, last(), nbytes);
    }
    return copy;
}

dtr_status dtr__error_restore(const dtr__error_copy *copy, dtr_status s) {
    if (s >= 0) {
        return s;
    }
    if (copy == NULL) {
        char message[512];
        snprintf(message, sizeof message, "%s: %s %s", dtr_status_name(s), dtr_status_text(s),
                 dtr_status_hint(s));
        return record(NULL, s, __FILE__, __LINE__, message);
    }
    const char *bytes = (const char *)copy;
    size_t text = strlen(bytes + offsetof(error_record, message)) + 1;
    error_record *to = last_to_write();
    memcpy(to, copy, offsetof(error_record, message) + text);
    to->status = s;
    return s;
}

void dtr__error_copy_free(dtr__error_copy *copy) {
    free(copy);
}

dtr_status dtr__error_put_back(dtr__error_copy *copy, dtr_status s) {
    if (s < 0) {
        (void)dtr__error_restore(copy, s);
    }
    dtr__error_copy_free(copy);
    return s;
}

dtr_status dtr__error_last(void) {
    dtr_error e = DTR_ERROR_INIT;
    dtr_last_error(&e);
    return e.status;
}

const char *dtr__error_copy_text(const dtr__error_copy *copy) {
    return copy != NULL ? (const char *)copy + offsetof(error_record, message) : "";
}

const char *dtr_last_error_message(void) {
    return last()->message;
}

/* After these CUDA errors every later call of the process fails too: its context is lost. */
static bool context_lost(const error_record *r) {
    enum { ILLEGAL_ADDRESS = 700, LAUNCH_TIMEOUT = 702, CONTEXT_DESTROYED = 709, ASSERT = 710 };
    enum { FIRST_KERNEL_FAULT = 714, LAST_KERNEL_FAULT = 719, ECC = 214, NVLINK = 220 };
    int c = r->native_code;
    return r->native == DTR_NATIVE_CUDA &&
           (c == ILLEGAL_ADDRESS || c == LAUNCH_TIMEOUT || c == CONTEXT_DESTROYED || c == ASSERT ||
            c == ECC || c == NVLINK || (c >= FIRST_KERNEL_FAULT && c <= LAST_KERNEL_FAULT));
}

dtr_status dtr_last_error(dtr_error *out) {
    if (out == NULL || out->struct_size == 0) {
        return DTR_ERR_ARG;
    }
    const error_record *r = last();
    dtr_error e = { .status = r->status,
                    .blast = r->status == DTR_ERR_CUDA && context_lost(r)
                                 ? DTR_CLASS_PROCESS
                                 : dtr_status_class(r->status),
                    .message = r->message,
                    .file = r->file,
                    .line = r->line,
                    .operation = r->operation,
                    .group = r->group,
                    .seq = r->seq,
                    .world_rank = r->world_rank,
                    .host = r->host,
                    .native = r->native,
                    .native_code = r->native_code,
                    .native_text = r->native_text };
    e.struct_size = out->struct_size;
    memcpy(out, &e, out->struct_size < sizeof e ? out->struct_size : sizeof e);
    return DTR_OK;
}

dtr_status dtr__options_copy(const void *given, void *own, size_t known, const char *type) {
    memset(own, 0, known);
    if (given == NULL) {
        memcpy(own, &known, sizeof known);
        return DTR_OK;
    }
    char init[64]; /* DTR_WORLD_OPTIONS_INIT */
    snprintf(init, sizeof init, "%s_INIT", type);
    for (char *c = init; *c != '\0'; c++) {
        *c = (char)toupper((unsigned char)*c);
    }
    size_t size;
    memcpy(&size, given, sizeof size);
    /* A wild size must not make us read far beyond the caller's struct, nor half a pointer of it:
     * every version's size is a multiple of its first field's. */
    DTR_REQUIRE(size >= sizeof size && size % sizeof size == 0 && size <= known + 4096, NULL,
                DTR_ERR_ARG,
                "%s.struct_size is %zu (the struct has %zu bytes): initialise the struct with %s",
                type, size, known, init);
    const unsigned char *bytes = given;
    for (size_t i = known; i < size; i++) {
        DTR_REQUIRE(bytes[i] == 0, NULL, DTR_ERR_ARG,
                    "%s sets a field that this version of the library does not know (byte %zu of "
                    "%zu; known are %zu): leave it zero, or use a newer library",
                    type, i, size, known);
    }
    memcpy(own, given, size < known ? size : known);
    memcpy(own, &known, sizeof known);
    return DTR_OK;
}

dtr_status dtr__limit_check(const dtr__error_context *ctx, const char *what, double timeout_s) {
    DTR_REQUIRE(
        !isnan(timeout_s), ctx, DTR_ERR_ARG,
        "%s: timeout_s is not a number; give seconds, INFINITY for no limit, 0 to look once, "
        "or a negative value for the operation's or group's own limit",
        what);
    return DTR_OK;
}

dtr_status dtr__options_limit(const dtr__error_context *ctx, const char *what, double *timeout_s) {
    DTR_REQUIRE(!isnan(*timeout_s), ctx, DTR_ERR_ARG,
                "%s.timeout_s is not a number; give seconds, INFINITY for no limit, or 0 or a "
                "negative value for the limit that holds without it",
                what);
    *timeout_s = *timeout_s < 0 ? 0 : *timeout_s;
    return DTR_OK;
}
