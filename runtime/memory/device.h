/* Devices other than the host. Everything of CUDA is behind one table of functions in a library of
 * its own, libdtr_cuda, which is loaded when a CUDA device may be used for the first time: a host
 * without GPUs needs neither it nor CUDA. */
#ifndef DTR_RT_DEVICE_H
#define DTR_RT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <dtr/device.h>

#include "base/error.h"
#include "topology/gpu_affinity.h"

typedef enum dtr__cuda_state {
    DTR__CUDA_OK,
    DTR__CUDA_NOT_BUILT,
    DTR__CUDA_NOT_LOADABLE,
    DTR__CUDA_NO_DRIVER,
    DTR__CUDA_NO_DEVICE
} dtr__cuda_state;

typedef struct dtr__device_facts {
    char name[64];
    unsigned char uuid[16];
    size_t nbytes;
    int multiprocessors, major, minor;
    dtr__pci pci;
} dtr__device_facts;

typedef enum dtr__copy_kind {
    DTR__COPY_TO_DEVICE,
    DTR__COPY_TO_HOST,
    DTR__COPY_ON_DEVICE
} dtr__copy_kind;

typedef enum dtr__capture { DTR__NO_CAPTURE, DTR__CAPTURING, DTR__CAPTURE_RUINED } dtr__capture;

/* Results are CUDA's own codes, 0 is success and error_text says what another one means. Every
 * function that is given a device makes it current and puts the caller's back, makes a context on
 * no other device, and leaves an error of an earlier call of the program alone, and captures of
 * graphs by other threads too. Streams and events are CUDA's handles; NULL is the default stream of
 * the device. Outputs are untouched on failure. */
enum { DTR__DEVICE_ABI = 13 };
typedef struct dtr__device_ops {
    int abi;          /* DTR__DEVICE_ABI of the build */
    int toolkit;      /* CUDA version of the build, as 13000 */
    const char *code; /* for which architectures there is code, as CMake names them: "80-real 90" */
    const char *(*error_text)(int code);
    int not_ready; /* code of the two queries below for "still running" */
    /* These touch no device. */
    int (*runtime_version)(int *version);
    int (*driver_version)(int *version); /* 0: no driver */
    int (*count)(int *n);
    int (*current)(int *device); /* the one that the calling thread has chosen, else 0 */
    int (*facts)(int device, dtr__device_facts *facts);
    /* Memory. Pinned memory serves all devices, and is made and freed on the given one. `owner` is
     * -1 for memory that no device owns. */
    int (*alloc)(int device, size_t nbytes, void **ptr);
    /* The same without a wait for what the device does, where it has pools of memory: for a thread
     * that is about to launch what other ranks' kernels, and so this rank's, may wait for. */
    int (*alloc_beside)(int device, size_t nbytes, void **ptr);
    int (*free)(int device, void *ptr); /* waits for the device */
    int (*pinned_alloc)(int device, size_t nbytes, void **ptr);
    int (*pinned_free)(int device, void *ptr);
    /* Whole pages of other memory of the host become pinned, and are so no longer. */
    int (*pin)(int device, void *ptr, size_t nbytes);
    int (*unpin)(int device, void *ptr);
    int (*owner)(const void *ptr, int *device);
    int (*copy)(int device, void *to, const void *from, size_t nbytes, dtr__copy_kind kind,
                void *stream);
    int (*fill)(int device, void *ptr, int byte, size_t nbytes, void *stream);
    /* A kernel by its number in cuda/device_kernels.h, with `blocks` of its 256 threads; *args is
     * copied. */
    int (*launch)(int device, int kernel, const void *args, unsigned blocks, void *stream);
    /* Streams do not wait for the default stream, nor it for them. */
    int (*stream_new)(int device, bool high_priority, void **stream);
    int (*stream_free)(int device, void *stream);
    int (*stream_query)(int device, void *stream);
    int (*stream_synchronize)(int device, void *stream);
    int (*stream_wait)(int device, void *stream, void *event);
    /* Whether what is put into the stream is kept for a graph instead of run. */
    int (*stream_capturing)(int device, void *stream, dtr__capture *capture);
    /* gone(arg) once nothing is left of the graph that the stream captures, nor of what is made of
     * it, on a thread of CUDA's, which may call nothing of CUDA; at once where this fails. */
    int (*capture_gone)(int device, void *stream, void (*gone)(void *arg), void *arg);
    int (*event_new)(int device, bool timed, void **event);
    int (*event_free)(int device, void *event);
    int (*event_record)(int device, void *event, void *stream);
    int (*event_query)(int device, void *event);
    int (*event_elapsed)(void *from, void *to, float *ms);
} dtr__device_ops;

/* The one symbol of libdtr_cuda. */
#define DTR__DEVICE_SYMBOL "dtr_cuda_device_ops"

/* What was found; looked for once in a process. */
typedef struct dtr__no_code {
    int major, minor; /* of the device, 0: it has code, or did not say */
} dtr__no_code;
enum { DTR__CODE_ASKED = 64 }; /* devices */
typedef struct dtr__cuda {
    dtr__cuda_state state;
    int count, driver, runtime; /* devices; versions as 13000, 0: not known */
    char reason[256];           /* "" when all is well or nothing was built */
    const dtr__device_ops *ops; /* NULL unless DTR__CUDA_OK */
    dtr__no_code no_code[DTR__CODE_ASKED];
} dtr__cuda;
const dtr__cuda *dtr__cuda_get(void);
/* Whether one of the architectures, "75-real 90", has code that runs on a device. */
bool dtr__cuda_has_code(const char *architectures, int major, int minor);
/* Another symbol of libdtr_cuda, for the layer above; NULL where it has none or is not loaded. */
void *dtr__cuda_symbol(const char *name);
const char *dtr__cuda_state_name(dtr__cuda_state state); /* "no driver" */
/* DTR_ERR_DEVICE, with a message beginning with `what`, unless the device exists. */
dtr_status dtr__device_check(dtr_device d, const char *what);
/* The state and its reason in one: "no driver: ..."; returns text. */
enum { DTR__CUDA_TEXT = 320 };
const char *dtr__cuda_text(char text[DTR__CUDA_TEXT]);

/* What a layer above has to do with blocks of device memory. Set while the world is made. */
typedef struct dtr__memory_hooks {
    /* Whether operations under way use memory of a device: a block that one of them uses is not
     * given back to CUDA, which would wait for the whole device, before they have ended. */
    bool (*used)(dtr_world *world, const void *block, size_t nbytes);
    /* The following four may be missing. Memory of another allocator than CUDA's, and its end;
     * NULL: it has none. */
    void *(*take)(dtr_world *world, int device, size_t nbytes);
    dtr_status (*give)(int device, void *block);
    /* A block begins, whose memory is from `take` or not; and ends, before its memory is given
     * back.
     */
    void (*begins)(dtr_world *world, int device, void *block, size_t nbytes, bool taken);
    void (*ends)(dtr_world *world, void *block, size_t nbytes);
} dtr__memory_hooks;
dtr_status dtr__memory_open(dtr_world *world);
void dtr__memory_close(dtr_world *world); /* frees what is left, with one warning */
void dtr__memory_hook(dtr_world *world, const dtr__memory_hooks *hooks);
/* The world of a block that dtr_retain was called for; NULL: it has ended. */
dtr_world *dtr__memory_world(const void *ptr);

/* DTR_OK for code 0; else `s` with CUDA's code and text in the record and the call in the
 * message. */
dtr_status dtr__cuda_status(int code, dtr_status s, const char *call, const char *file, int line);
#define DTR_CUDA_TRY(call, status)                                                                \
    do {                                                                                          \
        int cuda_code_ = (call);                                                                  \
        if (cuda_code_ != 0) {                                                                    \
            return DTR__FAILED(dtr__cuda_status(cuda_code_, (status), #call, __FILE__, __LINE__), \
                               (status));                                                         \
        }                                                                                         \
    } while (0)

#endif /* DTR_RT_DEVICE_H */
