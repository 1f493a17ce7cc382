/* To be preloaded on a machine with a GPU, where tests of label double run that ask the stand-in
 * what was called, hold an event or have a call fail: this library is between them and the real
 * CUDA runtime and does so. It sees what goes through the runtime's dynamic library, so neither
 * NCCL's own calls nor calls of NCCL. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

#define API __attribute__((visibility("default")))

enum { LINES = 1 << 16, MOST_HELD = 8 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static char text[LINES];
static size_t used;
static cudaEvent_t held[MOST_HELD];
static size_t blocks;       /* of device memory */
static char fails[64];      /* "name:nth:code" of DTR_FAKE_CUDA_ERR, as the stand-in reads it */
static unsigned fails_seen; /* calls of that name since it was read */

/* ---- what tests ask ---- */

API void dtr_fake_cuda_log_start(void) {
    pthread_mutex_lock(&lock);
    used = 0;
    text[0] = '\0';
    pthread_mutex_unlock(&lock);
}

API const char *dtr_fake_cuda_log_text(void) {
    return text;
}

API int dtr_fake_cuda_log_count(const char *what) {
    int n = 0;
    if (strncmp(what, "nccl", 4) == 0 || strncmp(what, "CTAs", 4) == 0) {
        return -1;
    }
    pthread_mutex_lock(&lock);
    for (const char *line = text, *end; *line != '\0'; line = end + 1) {
        end = strchr(line, '\n');
        const char *at = strstr(line, what);
        n += at != NULL && at < end;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

API size_t dtr_fake_cuda_live(const char *what) {
    return strcmp(what, "device") == 0 ? blocks : 0;
}

API size_t dtr_fake_cuda_hidden_syncs(void) {
    return 0;
}

API void dtr_fake_cuda_reload(void) {
    const char *now = getenv("DTR_FAKE_CUDA_ERR");
    pthread_mutex_lock(&lock);
    snprintf(fails, sizeof fails, "%s", now != NULL ? now : "");
    fails_seen = 0;
    pthread_mutex_unlock(&lock);
}

static int place_of(cudaEvent_t event) {
    int k = 0;
    while (k < MOST_HELD && held[k] != event) {
        k++;
    }
    return k;
}

API int dtr_fake_cuda_hold(void *event, int hold) {
    pthread_mutex_lock(&lock);
    const int k = place_of(hold ? NULL : event);
    if (k < MOST_HELD) {
        held[k] = hold ? event : NULL;
    }
    pthread_cond_broadcast(&let_go);
    pthread_mutex_unlock(&lock);
    return k < MOST_HELD ? 0 : -1;
}

/* ---- between the program and CUDA ---- */

/* A line of the log; the error that the call is to give instead, or cudaSuccess. */
static cudaError_t called(const char *function, const char *detail) {
    unsigned nth, code;
    char name[sizeof fails];
    cudaError_t e = cudaSuccess;
    pthread_mutex_lock(&lock);
    if (used + 200 < sizeof text) {
        used += (size_t)snprintf(text + used, 200, "%s %s\n", function, detail);
    }
    if (sscanf(fails, "%63[^:]:%u:%u", name, &nth, &code) == 3 && strcmp(name, function) == 0 &&
        ++fails_seen == nth) {
        e = (cudaError_t)code;
    }
    pthread_mutex_unlock(&lock);
    return e;
}

static void *next(const char *function) {
    void *f = dlsym(RTLD_NEXT, function);
    if (f == NULL) {
        fprintf(stderr, "watch: no %s behind this library\n", function);
        abort();
    }
    return f;
}

#define INSTEAD(function, types, arguments, detail) \
    cudaError_t e = called(#function, detail);      \
    if (e != cudaSuccess) {                         \
        return e;                                   \
    }                                               \
    e = ((cudaError_t(*) types)next(#function))arguments

API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    INSTEAD(cudaStreamSynchronize, (cudaStream_t), (stream), "");
    return e;
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    INSTEAD(cudaEventSynchronize, (cudaEvent_t), (event), "");
    return e;
}

API cudaError_t cudaDeviceSynchronize(void) {
    INSTEAD(cudaDeviceSynchronize, (void), (), "");
    return e;
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    INSTEAD(cudaStreamWaitEvent, (cudaStream_t, cudaEvent_t, unsigned), (stream, event, flags), "");
    return e;
}

static void counted(int more) {
    pthread_mutex_lock(&lock);
    blocks += (size_t)more;
    pthread_mutex_unlock(&lock);
}

API cudaError_t cudaMalloc(void **p, size_t nbytes) {
    INSTEAD(cudaMalloc, (void **, size_t), (p, nbytes), "");
    counted(e == cudaSuccess);
    return e;
}

API cudaError_t cudaFree(void *p) {
    INSTEAD(cudaFree, (void *), (p), "");
    counted(e == cudaSuccess && p != NULL ? -1 : 0);
    return e;
}

API cudaError_t cudaHostAlloc(void **p, size_t nbytes, unsigned flags) {
    INSTEAD(cudaHostAlloc, (void **, size_t, unsigned), (p, nbytes, flags), "");
    return e;
}

API cudaError_t cudaHostRegister(void *p, size_t nbytes, unsigned flags) {
    INSTEAD(cudaHostRegister, (void *, size_t, unsigned), (p, nbytes, flags), "");
    return e;
}

API cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments,
                                 size_t shared, cudaStream_t stream) {
    const char *name = "";
    (void)cudaFuncGetName(&name, f);
    INSTEAD(cudaLaunchKernel, (const void *, dim3, dim3, void **, size_t, cudaStream_t),
            (f, grid, block, arguments, shared, stream), name);
    return e;
}

/* On a thread of CUDA's, which other streams do not wait for. */
static void await(void *event) {
    pthread_mutex_lock(&lock);
    while (place_of(event) < MOST_HELD) {
        pthread_cond_wait(&let_go, &lock);
    }
    pthread_mutex_unlock(&lock);
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    const int keep = place_of(event) < MOST_HELD;
    pthread_mutex_unlock(&lock);
    if (keep) {
        cudaLaunchHostFunc(stream, await, event);
    }
    char to[40];
    snprintf(to, sizeof to, "stream=%p", (void *)stream);
    INSTEAD(cudaEventRecord, (cudaEvent_t, cudaStream_t), (event, stream), to);
    return e;
}
