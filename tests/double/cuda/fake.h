/* Shared by the files of the stand-in for the CUDA runtime. */
#ifndef DTR_FAKE_H
#define DTR_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "../fake_cuda.h"
#include "../fake_order.h"

#define API DTR_FAKE_API
enum { FAKE_DEVICES = 8, FAKE_FAULTS = 8 };

/* ---- settings, faults, log, trace (fake_settings.c) ---- */

typedef struct fake_fault {
    char name[64];
    long nth;
    int code;  /* 0: never return */
    long seen; /* calls so far; settings lock */
} fake_fault;

/* Written by dtr_fake_cuda_reload only, which tests call while nothing runs. */
typedef struct fake_settings {
    int n_devices, driver, n_faults;
    int capability; /* 90 for 9.0 */
    size_t memory;
    char uuid[64];
    char ptx[512]; /* the library with the kernels' PTX; "": their bodies in C run */
    bool strict;
    unsigned delay_us, seed;
    double cost_bytes_per_s, cost_latency_s;
    fake_fault faults[FAKE_FAULTS];
} fake_settings;
const fake_settings *fake_set(void);

/* Every entry point begins with this: log, injected fault, and whether there is a device at all. */
cudaError_t fake_enter(const char *function, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Also for calls that work without a device. */
cudaError_t fake_enter_any(const char *function, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Notes an error of this thread, for cudaGetLastError, and returns it. */
cudaError_t fake_result(cudaError_t e);
void fake_trace(int stream, const char *name, int64_t begin_ns, int64_t end_ns);
int64_t fake_now_ns(void);
void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void fake_settings_once(void);

/* ---- contexts (fake_context.c) ---- */

int fake_device(void); /* current one of this thread */
void fake_choose(int device);
/* Makes a context current where the function needs one and the thread has none. */
void fake_context_enter(const char *function);

/* ---- memory (fake_memory.c) ---- */

typedef enum fake_class { FAKE_PAGEABLE, FAKE_PINNED, FAKE_DEVICE } fake_class;
/* Where an address lies; `device` gets the owner of device memory. */
fake_class fake_classify(const void *p, int *device);
size_t fake_blocks(bool pinned, bool print); /* live ones */
/* The block, pinned ones too, that holds an address or ends there, where the memory is, and what is
 * known of it as dtr_fake_cuda_known has it. */
bool fake_block_at(const void *p, const char **begin, size_t *nbytes, void **alias,
                   unsigned char **known);

/* ---- streams (fake_stream.c) ---- */

typedef struct fake_stream fake_stream;
/* The stream behind a handle, the default one of the current device for NULL; NULL: no such. */
fake_stream *fake_stream_of(cudaStream_t handle);
int fake_stream_device(const fake_stream *s);
/* In strict mode, work in the default stream ends the process. */
void fake_stream_strict(const fake_stream *s, const char *work);
bool fake_stream_is_default(const fake_stream *s);
/* A stream that captures keeps the task for the graph, which runs copies of its `nbytes` long
 * argument; 0: it has none that could be copied. */
cudaError_t fake_push(fake_stream *s, const char *name, void (*run)(void *arg), void *arg,
                      size_t nbytes);
void fake_drain(fake_stream *s); /* until what was pushed before has run */
void fake_drain_device(int device);
void fake_cost(int64_t begin_ns, size_t nbytes); /* sleeps for the rest of what the model says */

/* ---- capture (fake_capture.c) ---- */

/* What a call that may ruin captures of other streams returns; the capture is invalid then. */
cudaError_t fake_capture_enter(const char *function);
/* The same for a look at a stream or event. */
cudaError_t fake_capture_stream_use(const char *function, const fake_stream *s);
cudaError_t fake_capture_event_use(const char *function, const void *event);
/* False: the stream runs what it is given. */
bool fake_capture_push(fake_stream *s, const char *name, void (*run)(void *arg), void *arg,
                       size_t nbytes);
bool fake_capture_record(const fake_stream *s, const void *event);
/* True: nothing is left to do but to return *e. */
bool fake_capture_wait(fake_stream *s, const void *event, bool recorded, cudaError_t *e);

/* ---- objects of graphs (fake_objects.c) ---- */

typedef struct fake_held fake_held;             /* what a graph holds, NULL: nothing */
void fake_hold(fake_held **list, void *object); /* takes over a reference */
void fake_hold_same(fake_held **list, const fake_held *from);
void fake_let_go(fake_held *list);

/* ---- kernels (fake_kernels.c) ---- */

typedef struct fake_kernel {
    const char *name;
    size_t nbytes; /* of the one argument */
    void (*body)(const void *argument, unsigned tid, unsigned n_threads);
} fake_kernel;
const fake_kernel *fake_kernel_named(const char *name);
bool fake_kernels_of_others(void); /* whether there are some, of other objects than libdtr_cuda */

/* ---- kernels as nvcc compiles them (fake_ptx.c) ---- */

struct ptx_kernel;
/* What PTX says the kernel does; NULL: the setting does not ask for it, or it is of another object
 * than libdtr_cuda. */
const struct ptx_kernel *fake_ptx_named(const char *name);
void fake_ptx_run(const struct ptx_kernel *k, const void *argument, unsigned blocks,
                  unsigned threads);

#endif /* DTR_FAKE_H */
