/* Steps of dtr-ddp-bench on a device: all is queued, and events in the stream tell how long it
 * took. Compute is copies in device memory on the same stream, as a backward pass's kernels are. */
#include <math.h>
#include <mpi.h>
#include <stdlib.h>

#include "ddp_bench.h"
#include "measure.h"
#include "measure_cuda.h"

void device_open(ddp_bench *b) {
    size_t most = 1;
    b->device = dtr_world_device(b->world);
    if (b->device.type != DTR_CUDA) {
        fprintf(stderr, "dtr-ddp-bench: rank %d has no CUDA device; dtr-info says why\n", b->rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    measure_cuda->open("dtr-ddp-bench", b->device.index);
    for (size_t i = 0; i < b->model.n; i++) {
        most = b->model.params[i].numel > most ? b->model.params[i].numel : most;
    }
    void *p = NULL;
    bench_require(dtr_alloc(b->world, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_PINNED,
                            most * sizeof *b->pinned, &p),
                  "pinned memory");
    b->pinned = p;
}

void device_close(ddp_bench *b) {
    bench_require(dtr_free(b->world, b->pinned), "pinned memory");
    measure_cuda->close();
}

void device_write(const ddp_bench *b, float *to, const float *from, size_t n) {
    (void)b;
    measure_cuda->upload(to, from, n * sizeof *to);
    measure_cuda->synchronize(); /* `from` is written again */
}

void device_read(const ddp_bench *b, float *to, const float *from, size_t n) {
    (void)b;
    measure_cuda->download(to, from, n * sizeof *to);
    measure_cuda->synchronize();
}

/* The part of backward after which `done` elements have their gradient; *copies: launched so far.
 */
static void compute(const ddp_bench *b, size_t before, size_t done, long *copies) {
    double all = (double)b->model.numel;
    if (b->compute_s <= 0 || b->o->compute == COMPUTE_NONE) {
        return;
    }
    if (b->o->compute == COMPUTE_CPU) {
        bench_arithmetic(b->compute_s * b->loops_per_s * ((double)(done - before) / all));
        return;
    }
    long due = lround(b->compute_s / measure_cuda->copy_s() * ((double)done / all));
    due = done == b->model.numel && due == 0 ? 1 : due;
    measure_cuda->compute(due - *copies);
    *copies = due;
}

double device_step(const ddp_bench *b, who w, double *host) {
    void *stream = measure_cuda->stream();
    size_t before = 0;
    long copies = 0;
    measure_cuda->begin();
    double start = measure_now();
    for (size_t k = b->model.n; k-- > 0;) {
        size_t done = before + b->model.params[k].numel;
        compute(b, before, done, &copies);
        before = done;
        if (w == WHO_DTR) {
            bench_require(dtr_ddp_grad_ready(b->ddp, k, stream), "dtr_ddp_grad_ready");
        }
    }
    if (w == WHO_DTR) {
        bench_require(dtr_ddp_backward_end(b->ddp, stream), "dtr_ddp_backward_end");
    }
    double returned = measure_now() - start;
    measure_cuda->end();
    measure_cuda->synchronize();
    *host = measure_slowest(returned);
    return measure_slowest(measure_cuda->elapsed());
}
