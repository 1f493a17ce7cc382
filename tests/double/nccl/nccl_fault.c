/* Settings and faults of the NCCL stand-in, all from the environment (see ../README.md). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "double_nccl.h"

static const char *setting(const char *name) {
    const char *v = getenv(name);
    return v != NULL && v[0] != '\0' ? v : NULL;
}

int dn_version(void) {
    const char *v = setting("DTR_FAKE_NCCL_VERSION");
    return v != NULL ? atoi(v) : NCCL_VERSION_CODE;
}

bool dn_multi_rank(void) {
    const char *v = setting("NCCL_MULTI_RANK_GPU_ENABLE");
    return v != NULL && atoi(v) == 1 && dn_version() >= 23003;
}

static bool is_on(const char *name) {
    const char *v = setting(name);
    return v != NULL && strcmp(v, "0") != 0;
}

bool dn_remote_errors(void) {
    return is_on("DTR_FAKE_NCCL_REMOTE_ERR");
}
bool dn_odd_ends_hang(void) {
    return is_on("DTR_FAKE_NCCL_ODD_ENDS_HANG");
}
bool dn_blocks_in_call(void) {
    return is_on("DTR_FAKE_NCCL_BLOCK_IN_CALL");
}

static bool is_rank(const char *name, int rank) {
    const char *v = setting(name);
    return v != NULL && atoi(v) == rank;
}

bool dn_init_fails(int rank) {
    return is_rank("DTR_FAKE_NCCL_INIT_FAIL_RANK", rank);
}
bool dn_init_hangs(int rank) {
    return is_rank("DTR_FAKE_NCCL_INIT_HANG_RANK", rank);
}

/* Calls that a setting is about, from its first on; another setting counts from zero. */
static int count_call(const char *text) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char before[128];
    static int calls;
    fake_lock(&lock);
    if (strncmp(before, text, sizeof before - 1) != 0) {
        snprintf(before, sizeof before, "%s", text);
        calls = 0;
    }
    int n = ++calls;
    fake_unlock(&lock);
    return n;
}

/* DTR_FAKE_NCCL_ERR=name:nth:code; code -1: the call never returns */
ncclResult_t dn_injected(const char *function) {
    const char *v = setting("DTR_FAKE_NCCL_ERR");
    size_t n = strlen(function);
    if (v == NULL || strncmp(v, function, n) != 0 || v[n] != ':') {
        return ncclSuccess;
    }
    int nth = 0, code = 0;
    if (sscanf(v + n, ":%d:%d", &nth, &code) != 2) {
        fprintf(stderr, "fake nccl: DTR_FAKE_NCCL_ERR=%s: expected name:nth:code\n", v);
        abort();
    }
    bool here = count_call(v) == nth;
    while (here && code < 0) {
        pause();
    }
    return here ? (ncclResult_t)code : ncclSuccess;
}

/* r@call, where the call is a number or a function's name */
bool dn_fault_here(dn_fault f, int rank, const dn_call *c) {
    static const char *const names[] = { "DTR_FAKE_NCCL_HANG_RANK", "DTR_FAKE_NCCL_KILL_RANK",
                                         "DTR_FAKE_NCCL_ASYNC_ERR_RANK" };
    const char *v = setting(names[f]);
    const char *at = v != NULL ? strchr(v, '@') : NULL;
    if (at == NULL || atoi(v) != rank) {
        return false;
    }
    char *end;
    unsigned long long number = strtoull(at + 1, &end, 10);
    return *end == '\0' ? number == c->number : strcmp(at + 1, c->name) == 0;
}

long dn_slow_us(int rank) {
    const char *v = setting("DTR_FAKE_NCCL_SLOW_RANK");
    const char *colon = v != NULL ? strchr(v, ':') : NULL;
    return colon != NULL && atoi(v) == rank ? atol(colon + 1) : 0;
}

void dn_since(const char *function, int version) {
    if (dn_version() < version) {
        fprintf(stderr, "fake nccl: %s called, which version %d does not have (since %d)\n",
                function, dn_version(), version);
        abort();
    }
}

static pthread_mutex_t last_lock = PTHREAD_MUTEX_INITIALIZER;
static char last[512]; /* last_lock */

void dn_set_error(struct ncclComm *c, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fake_lock(&last_lock);
    memcpy(last, text, sizeof last);
    fake_unlock(&last_lock);
    if (c != NULL) {
        fake_lock(&c->lock);
        memcpy(c->error, text, sizeof c->error);
        fake_unlock(&c->lock);
    }
    dtr_fake_cuda_log("nccl", "error: %s", text);
}

const char *ncclGetLastError(ncclComm_t comm) {
    static _Thread_local char text[512];
    pthread_mutex_t *lock = comm != NULL ? &comm->lock : &last_lock;
    fake_lock(lock);
    memcpy(text, comm != NULL ? comm->error : last, sizeof text);
    fake_unlock(lock);
    return text;
}

const char *ncclGetErrorString(ncclResult_t r) {
    switch ((int)r) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

ncclResult_t ncclGetVersion(int *version) {
    DN_ENTER("ncclGetVersion");
    if (version == NULL) {
        return ncclInvalidArgument;
    }
    *version = dn_version();
    return ncclSuccess;
}
