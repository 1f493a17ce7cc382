/* dtr-bench --device cuda: samples of calls on device memory, and the same calls of NCCL. */
#include "bench.h"

#ifndef DTR_BENCH_CUDA

const bench_device_ops *const bench_device = NULL;

#else

#include <math.h>

#include "bench_cuda.h"
#include "measure_cuda.h"

/* Calls before the clocks stop and the stream is emptied: queues are finite. */
enum { AT_ONCE = 512 };

static struct {
    bool peer, paired; /* NCCL was asked for; it can be had */
    dtr_coll_options options;
} cuda;

static void device_compute(double seconds) {
    long n = lround(seconds / measure_cuda->copy_s());
    measure_cuda->compute(seconds > 0 && n == 0 ? 1 : n);
}

static void device_open(dtr_world *w, dtr_device d, bool peer) {
    measure_cuda->open("dtr-bench", d.index);
    cuda.options = (dtr_coll_options)DTR_COLL_OPTIONS_INIT;
    cuda.options.stream = measure_cuda->stream();
    cuda.peer = peer;
    cuda.paired = peer && bench_nccl_open(dtr_world_rank(w), dtr_world_size(w));
}

static void device_close(void) {
    bench_nccl_close();
    measure_cuda->close();
}

static const char *device_name(void) {
    return measure_cuda->name();
}

static const char *device_peer(void) {
    return cuda.peer ? bench_nccl_text() : "none";
}

static bool device_has_peer(const bench_case *c) {
    return cuda.paired && bench_nccl_has(c);
}

static void device_call(const bench_case *c, const contender *who) {
    bench_nccl_call(c, who, measure_cuda->stream());
}

static void device_upload(const bench_case *c, const contender *who) {
    measure_cuda->upload(who->in, who->fresh, c->in_count * dtr_dtype_size(who->dtype));
    measure_cuda->synchronize();
}

static void device_download(const bench_case *c, const contender *who) {
    bool in = c->in_place || c->kind == BENCH_BROADCAST;
    measure_cuda->download(who->back, in ? who->in : who->out,
                           c->out_count * dtr_dtype_size(who->dtype));
    measure_cuda->synchronize();
}

static void device_sample(const bench_case *c, const contender *who, dtr_group *g, int calls,
                          double seconds[3]) {
    seconds[0] = seconds[1] = seconds[2] = 0;
    for (int done = 0; done < calls; done += AT_ONCE) {
        measure_cuda->begin();
        double start = measure_now();
        for (int i = done; i < calls && i < done + AT_ONCE; i++) {
            bench_call(c, who, g);
        }
        seconds[0] += measure_now() - start;
        measure_cuda->end();
        measure_cuda->synchronize();
        seconds[2] += measure_now() - start;
        seconds[1] += measure_cuda->elapsed();
    }
}

static const dtr_coll_options *device_options(void) {
    return &cuda.options;
}

static const bench_device_ops ops = {
    .open = device_open,
    .close = device_close,
    .name = device_name,
    .peer = device_peer,
    .has_peer = device_has_peer,
    .call = device_call,
    .upload = device_upload,
    .download = device_download,
    .sample = device_sample,
    .compute = device_compute,
    .options = device_options,
};
const bench_device_ops *const bench_device = &ops;

#endif
