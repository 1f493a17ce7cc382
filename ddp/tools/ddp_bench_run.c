/* The steps of dtr-ddp-bench: both phases, contenders in turn, one sample of each per round. */
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "allocations.h"
#include "ddp_bench.h"
#include "measure.h"

void bench_require(dtr_status s, const char *what) {
    if (s < 0) {
        fprintf(stderr, "dtr-ddp-bench: %s: %s: %s\n", what, dtr_status_name(s),
                dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
}

void *bench_memory(size_t nbytes) {
    void *p = calloc(nbytes > 0 ? nbytes : 1, 1);
    if (p == NULL) {
        fprintf(stderr, "dtr-ddp-bench: no memory for %zu bytes\n", nbytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    return p;
}

/* ---- compute ---- */

static volatile double sink; /* keeps the compiler from dropping the arithmetic */

void bench_arithmetic(double loops) {
    double a = 1, b = 1, c = 1, d = 1;
    for (uint64_t i = (uint64_t)loops; i > 0;
         i--) { /* stays in registers: no memory traffic of its own */
        a = a * 0.999 + 0.001;
        b = b * 0.998 + 0.002;
        c = c * 0.997 + 0.003;
        d = d * 0.996 + 0.004;
    }
    sink = a + b + c + d;
}

/* Work, not time: ranks that share cores must take longer. */
static double calibrate(void) {
    enum { LOOPS = 4000000, TIMES = 3 };
    double best = 1;
    for (int i = 0; i < TIMES; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = measure_now();
        bench_arithmetic(LOOPS);
        double rate = LOOPS / measure_slowest(measure_now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static void sleep_until(double when) {
    double whole = floor(when);
    struct timespec t = { (time_t)whole, (long)(1e9 * (when - whole)) };
    while (measure_now() < when && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {
    }
}

/* The part of backward that ends with the gradient of parameter i. A device has been given all its
 * work before and goes on whatever the host does, so its moments are fixed from the start. */
static void compute(const ddp_bench *b, double start, size_t before, size_t numel) {
    double all = (double)b->model.numel;
    if (b->compute_s <= 0 || b->o->compute == COMPUTE_NONE) {
        return;
    }
    if (b->o->compute == COMPUTE_DEVICE) {
        sleep_until(start + b->compute_s * ((double)(before + numel) / all));
    } else {
        bench_arithmetic(b->compute_s * b->loops_per_s * ((double)numel / all));
    }
}

/* ---- data: small whole numbers, whose sums and means are exact where ranks are a power of two
 * ---- */

static float value(int rank, size_t i, int step) {
    return (float)((i + (size_t)(3 * rank + step)) % 5);
}

static void fill(float *to, size_t n, int rank, int step) {
    enum { HEAD = 640 }; /* a multiple of the pattern's length */
    size_t head = n < HEAD ? n : HEAD;
    for (size_t i = 0; i < head; i++) {
        to[i] = value(rank, i, step);
    }
    for (size_t done = head; done < n; done += head) {
        memcpy(to + done, to, (n - done < head ? n - done : head) * sizeof *to);
    }
}

static float *gradient(const ddp_bench *b, who w, size_t i) {
    return w == WHO_DTR ? dtr_tensor_data(dtr_ddp_grad(b->ddp, i)) : b->peer.grad[i];
}

static void fill_all(const ddp_bench *b, who w, int step) {
    for (size_t i = 0; w != WHO_NONE && i < b->model.n; i++) {
        size_t n = b->model.params[i].numel;
        fill(b->o->cuda ? b->pinned : gradient(b, w, i), n, b->rank, step);
        if (b->o->cuda) {
            device_write(b, gradient(b, w, i), b->pinned, n);
        }
    }
}

static size_t check_all(const ddp_bench *b, who w, int step) {
    unsigned long long wrong = 0, all = 0;
    float want[5], divisor = w == WHO_DTR ? (float)b->size : 1;
    for (size_t k = 0; k < 5; k++) {
        want[k] = 0;
        for (int r = 0; r < b->size; r++) {
            want[k] += value(r, k, step);
        }
        want[k] /= divisor;
    }
    for (size_t i = 0; i < b->model.n; i++) {
        const float *got = gradient(b, w, i);
        if (b->o->cuda) {
            device_read(b, b->pinned, got, b->model.params[i].numel);
            got = b->pinned;
        }
        for (size_t k = 0; k < b->model.params[i].numel; k++) {
            wrong += !(fabsf(got[k] - want[k % 5]) <= 1e-5F * want[k % 5]);
        }
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    return (size_t)all;
}

/* ---- one step ---- */

static double step(ddp_bench *b, who w, double *host) {
    size_t n = b->model.n, before = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    uint64_t allocated = allocations();
    if (b->o->cuda) {
        double took = device_step(b, w, host);
        b->allocated += allocations() - allocated;
        return took;
    }
    double start = measure_now();
    if (w == WHO_MPI || w == WHO_INLINE) {
        peer_begin(&b->peer);
    }
    for (size_t k = n; k-- > 0;) { /* the last parameter's gradient is final first */
        compute(b, start, before, b->model.params[k].numel);
        before += b->model.params[k].numel;
        if (w == WHO_DTR) {
            bench_require(dtr_ddp_grad_ready(b->ddp, k, NULL), "dtr_ddp_grad_ready");
        } else if (w != WHO_NONE) {
            peer_ready(&b->peer, &b->model, k, w == WHO_INLINE);
        }
    }
    if (w == WHO_DTR) {
        bench_require(dtr_ddp_backward_end(b->ddp, NULL), "dtr_ddp_backward_end");
    } else if (w != WHO_NONE) {
        peer_end(&b->peer, &b->model);
    }
    double took = measure_now() - start;
    b->allocated += allocations() - allocated; /* not those of the measuring itself */
    return measure_slowest(took);
}

static bool takes_part(const ddp_bench *b, phase p, who w) {
    if (w == WHO_MPI) {
        return b->o->peer;
    }
    return p == PHASE_SYNC ? w == WHO_DTR : w != WHO_INLINE || b->o->peer;
}

static void run_phase(ddp_bench *b, phase p) {
    for (int round = 0; round < b->o->steps; round++) {
        for (int k = 0; k < WHO_COUNT; k++) {
            who w = (who)((k + round) % WHO_COUNT);
            if (takes_part(b, p, w)) {
                fill_all(b, w, round); /* fresh data, outside of the timing */
                double host = 0;
                b->samples[p][w][round] = step(b, w, &host);
                if (p == PHASE_SYNC && w == WHO_DTR) {
                    b->host[round] = host;
                }
            }
        }
    }
}

/* Warm-up: the first step rebuilds the plan, after which the peer's buckets are laid out like it.
 */
static void warm_up(ddp_bench *b) {
    b->compute_s = 0;
    for (int i = 0; i < b->o->warmup; i++) {
        fill_all(b, WHO_DTR, i);
        step(b, WHO_DTR, &(double){ 0 });
        b->wrong[WHO_DTR] = b->checked ? check_all(b, WHO_DTR, i) : 0;
    }
    if (b->o->peer && b->peer.buckets == NULL) {
        peer_open(&b->peer, dtr_ddp_plan(b->ddp), b->model.n, b->o->view);
    }
    for (int i = 0; b->o->peer && i < 2; i++) {
        fill_all(b, WHO_MPI, i);
        step(b, i == 0 ? WHO_MPI : WHO_INLINE, &(double){ 0 });
        b->wrong[i == 0 ? WHO_MPI : WHO_INLINE] = check_all(b, WHO_MPI, i);
    }
}

static void count_allocations(ddp_bench *b) {
    enum { STEPS = 5 };
    b->allocations = -1;
    if (!allocations_counted()) {
        return;
    }
    b->allocated = 0;
    for (int i = 0; i < STEPS; i++) {
        step(b, WHO_DTR, &(double){ 0 });
    }
    b->allocations = measure_slowest((double)b->allocated / STEPS);
}

void bench_run(ddp_bench *b) {
    b->gauge[0] = b->o->gauge ? measure_gauge() : 0;
    warm_up(b);
    count_allocations(b);
    run_phase(b, PHASE_SYNC);
    b->compute_s = b->o->compute_s;
    if (b->compute_s < 0) {
        double dtr = measure_median(b->samples[PHASE_SYNC][WHO_DTR], b->o->steps);
        double mpi = b->o->peer ? measure_median(b->samples[PHASE_SYNC][WHO_MPI], b->o->steps) : 0;
        b->compute_s = dtr > mpi ? dtr : mpi; /* the slowest rank's, so equal on all */
    }
    if (b->o->compute != COMPUTE_NONE) {
        run_phase(b, PHASE_BACKWARD);
    }
    b->stats = (dtr_ddp_stats){ .struct_size = sizeof b->stats };
    bench_require(dtr_ddp_get_stats(b->ddp, &b->stats), "dtr_ddp_get_stats");
    b->gauge[1] = b->o->gauge ? measure_gauge() : 0;
    b->calm = !b->o->gauge || measure_calm(b->gauge[0], b->gauge[1]);
}

/* ---- set up ---- */

static void make_params(ddp_bench *b) {
    b->params = bench_memory(b->model.n * sizeof *b->params);
    for (size_t i = 0; i < b->model.n; i++) {
        const model_param *p = &b->model.params[i];
        b->params[i].name = p->name;
        bench_require(dtr_tensor_empty(b->world, DTR_F32, b->device, DTR_MEM_DEFAULT, p->ndim,
                                       p->shape, &b->params[i].value),
                      p->name);
    }
}

void bench_open(ddp_bench *b, const ddp_bench_options *o, dtr_world *w) {
    dtr_ddp_options d = DTR_DDP_OPTIONS_INIT;
    b->o = o;
    b->world = w;
    b->group = dtr_world_group(w);
    b->rank = dtr_world_rank(w);
    b->size = dtr_world_size(w);
    b->checked = o->builtin <= (int)DTR_HOOK_BF16;
    b->loops_per_s = o->compute == COMPUTE_CPU ? calibrate() : 0;
    b->host = bench_memory((size_t)o->steps * sizeof *b->host);
    b->device = (dtr_device){ DTR_CPU, 0 };
    if (o->cuda) {
        device_open(b);
    }
    make_params(b);
    d.bucket_cap_bytes = o->bucket_bytes;
    d.first_bucket_bytes = o->first_bytes;
    d.grad_as_bucket_view = o->view;
    d.no_init_sync = true; /* values are never looked at */
    d.has_reduce_dtype = o->has_reduce_dtype;
    d.reduce_dtype = o->reduce_dtype;
    bench_require(dtr_ddp_create(b->group, b->params, b->model.n, &d, &b->ddp), "dtr_ddp_create");
    if (o->builtin >= 0) {
        bench_require(dtr_ddp_register_builtin_hook(b->ddp, (dtr_ddp_builtin)o->builtin, NULL),
                      "dtr_ddp_register_builtin_hook");
    }
    for (int p = 0; p < PHASES; p++) {
        for (int k = 0; k < WHO_COUNT; k++) {
            b->samples[p][k] = bench_memory((size_t)o->steps * sizeof(double));
        }
    }
}

void bench_close(ddp_bench *b) {
    bench_require(dtr_ddp_destroy(b->ddp), "dtr_ddp_destroy");
    for (size_t i = 0; i < b->model.n; i++) {
        dtr_tensor_release(b->params[i].value);
    }
    free(b->params);
    free(b->host);
    if (b->o->cuda) {
        device_close(b);
    }
    peer_close(&b->peer, b->model.n, b->o->view);
    for (int p = 0; p < PHASES; p++) {
        for (int k = 0; k < WHO_COUNT; k++) {
            free(b->samples[p][k]);
        }
    }
}
