/* What the stand-in for the CUDA runtime offers besides CUDA's own calls: to the stand-in for NCCL
 * and to tests that run on nothing else. No CUDA header is needed. */
#ifndef DTR_FAKE_CUDA_H
#define DTR_FAKE_CUDA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef DTR_FAKE_WEAK
/* Programs that run on the real libraries too see NULL there: dtr_fake_cuda_reload == NULL. */
#define DTR_FAKE_API __attribute__((visibility("default"), weak))
#else
#define DTR_FAKE_API __attribute__((visibility("default")))
#endif

/* ---- for the other stand-in ---- */

/* Host alias of a device range; NULL when [dev, dev + nbytes) is not live memory of the stand-in.
 */
DTR_FAKE_API void *dtr_fake_cuda_host(const void *dev, size_t nbytes);
/* For each byte of a device range whether somebody has written it, which who writes through
 * dtr_fake_cuda_host sets; NULL where it is not kept: without DTR_FAKE_CUDA_PTX, and where kernels
 * of other objects write without being seen. */
DTR_FAKE_API unsigned char *dtr_fake_cuda_known(const void *dev, size_t nbytes);
/* Append a task to a stream: run(arg) on the stream's worker, in order. `name` (a literal) shows in
 * trace and log. 0 or a cudaError. The NULL stream ends the process in strict mode. */
DTR_FAKE_API int dtr_fake_cuda_enqueue(void *stream, const char *name, void (*run)(void *arg),
                                       void *arg, size_t nbytes);
/* Takes a block of device memory away at once, also from tasks that have yet to use it, which then
 * fault: cudaFree without its wait for the device. */
DTR_FAKE_API int dtr_fake_cuda_unmap(void *dev);
/* Whether a task would be kept for a graph, which runs copies of its malloc'ed argument of
 * `nbytes`. */
DTR_FAKE_API int dtr_fake_cuda_capturing(void *stream);
/* So many more kernels that wait for other ranks are launched and have not ended. While there are
 * some, a call that may wait for the device gets a line in the log that says so. */
DTR_FAKE_API void dtr_fake_cuda_kernels(int more);
/* GPU identity of the current device, as cudaGetDeviceProperties gives it. */
DTR_FAKE_API void dtr_fake_cuda_uuid(unsigned char uuid[16]);
/* One line into the call log; does nothing while no log is kept. */
DTR_FAKE_API void dtr_fake_cuda_log(const char *function, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A random delay up to DTR_FAKE_CUDA_DELAY_US. Workers of streams do it before every task by
 * themselves; this is for threads that another library starts. */
DTR_FAKE_API void dtr_fake_cuda_delay(void);

/* A kernel of another object than libdtr_cuda: what one of `n_threads` threads does. The argument
 * is one struct of `nbytes`, the name a literal. */
DTR_FAKE_API void dtr_fake_cuda_kernel(const char *name, size_t nbytes,
                                       void (*body)(const void *argument, unsigned tid,
                                                    unsigned n_threads));

/* For the stand-in of the driver: primary contexts of devices, -1 where none is current. 0 or an
 * error of CUDA. */
DTR_FAKE_API int dtr_fake_cuda_context_open(int device);
DTR_FAKE_API int dtr_fake_cuda_context_current(int *device);
DTR_FAKE_API int dtr_fake_cuda_context_push(int device);
DTR_FAKE_API int dtr_fake_cuda_context_pop(int *device);

/* ---- for tests ---- */

/* Whether this process has made the context of a device. */
DTR_FAKE_API int dtr_fake_cuda_context(int device);

/* Read the DTR_FAKE_CUDA_* variables again and count calls from zero. */
DTR_FAKE_API void dtr_fake_cuda_reload(void);
/* How many threads are in a call that DTR_FAKE_CUDA_HANG keeps. */
DTR_FAKE_API int dtr_fake_cuda_hanging(void);
/* Keep a call log from here on, empty at first. */
DTR_FAKE_API void dtr_fake_cuda_log_start(void);
/* The log so far, one call a line; valid until the next call of log_start or log_text. */
DTR_FAKE_API const char *dtr_fake_cuda_log_text(void);
/* How many lines hold the text; -1 for calls of NCCL on a GPU, where tests/gpu/watch.c keeps the
 * log. */
DTR_FAKE_API int dtr_fake_cuda_log_count(const char *text);
/* While an event is held, records of it do not complete, and what waits for it waits. */
DTR_FAKE_API int dtr_fake_cuda_hold(void *event, int hold);
/* Live device blocks, pinned host blocks, streams, events. */
DTR_FAKE_API size_t
dtr_fake_cuda_live(const char *what /* "device", "pinned", "stream", "event" */);
/* Calls so far that have ruined a capture, as a GPU would have done it. */
DTR_FAKE_API int dtr_fake_cuda_disturbed(void);
/* Runs a kernel of libdtr_cuda at once, on this thread: as DTR_FAKE_CUDA_PTX has it, or its body in
 * C. -1: there is none of that name. */
DTR_FAKE_API int dtr_fake_cuda_run(const char *name, const void *argument, unsigned blocks,
                                   unsigned threads, int ptx);
/* The name of a kernel, by number, that DTR_FAKE_CUDA_PTX has, and how often its PTX ran; NULL:
 * there are no more, or the variable is not set. */
DTR_FAKE_API const char *dtr_fake_cuda_ptx_ran(unsigned number, unsigned *times);
/* Asynchronous copies with pageable memory so far: each makes the host wait. */
DTR_FAKE_API size_t dtr_fake_cuda_hidden_syncs(void);

#ifdef __cplusplus
}
#endif

#endif /* DTR_FAKE_CUDA_H */
