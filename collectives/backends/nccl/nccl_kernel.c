/* What kernels of the library do beside NCCL's: they search inputs for NaN, and divide sums of
 * whole numbers. A check leaves a number in memory of the device, which is copied to the host
 * before the end event of the operation; nobody waits for it. */
#include <stdlib.h>

#include "base/dtype.h"
#include "core/team.h"
#include "cuda/device_nan.h"
#include "engine/engine.h"
#include "nccl_internal.h"

enum { DIVIDE_BLOCKS = 1056 };

typedef struct input {
    const void *data;
    size_t count, before; /* elements; those of the call's inputs before it */
    dtr_dtype dtype;
    dtr_work *of;
} input;

struct dtr__nccl_nan_checks {
    struct dtr__nccl_nan_checks *next; /* idle ones; pool_lock */
    size_t capacity, n, started;
    input *input;
    uint64_t *device, *host; /* the number of the first NaN, counted in parts that are floats */
};

/* ---- launching ---- */

static unsigned blocks_for(uint64_t n, unsigned most) {
    uint64_t blocks = (n + DTR__KERNEL_THREADS - 1) / DTR__KERNEL_THREADS;
    return blocks == 0 ? 1 : blocks < most ? (unsigned)blocks : most;
}

/* `n` elements of `size` bytes at `p`, as many as possible 16 bytes at a time. */
static dtr__kernel_args stretch(const void *p, uint64_t n, size_t size) {
    return (dtr__kernel_args){ .n = n, .groups = (uintptr_t)p % 16 == 0 ? n * size / 16 : 0 };
}

static int launch(const dtr__nccl_comm *c, int kernel, const dtr__kernel_args *a, unsigned most) {
    uint64_t items = a->groups > 0 ? a->groups : a->n;
    return c->cuda->launch(c->device, kernel, a, blocks_for(items, most), c->stream);
}

/* ---- averages of whole numbers ---- */

bool dtr__nccl_divides(const dtr__call *c) {
    return dtr__kind_reduces(c->kind) && c->op == DTR_AVG && dtr__is_integer(c->dtype);
}

dtr_status dtr__nccl_divide(const dtr__nccl_comm *comm, const dtr__call *c) {
    static const int kernels[] = {
        [DTR_U8] = DTR__KERNEL_divide_u8,   [DTR_I8] = DTR__KERNEL_divide_i8,
        [DTR_I32] = DTR__KERNEL_divide_i32, [DTR_I64] = DTR__KERNEL_divide_i64,
        [DTR_U32] = DTR__KERNEL_divide_u32, [DTR_U64] = DTR__KERNEL_divide_u64
    };
    if (!dtr__nccl_divides(c) || c->divisor == 1 || c->out_count == 0) {
        return DTR_OK; /* away from the root of a reduce there is no output */
    }
    dtr__kernel_args a = stretch(c->out, c->out_count, dtr_dtype_size(c->dtype));
    a.y = c->out;
    a.pattern[0] = (uint64_t)c->divisor;
    DTR_CUDA_TRY(launch(comm, kernels[c->dtype], &a, DIVIDE_BLOCKS), DTR_ERR_CUDA);
    return DTR_OK;
}

/* ---- NaN ---- */

static bool is_checked(const void *data, size_t count, dtr_dtype d) {
    return data != NULL && count > 0 && dtr__nan_formats[d].per > 0;
}

/* The inputs of a call; `to` NULL: only count them. */
static size_t inputs(const dtr_group *g, const dtr__call *c, dtr_work *of, input *to) {
    size_t n = 0, before = 0;
    if (!dtr__wants_nan_check(g, c)) {
        return 0;
    }
    if (c->kind != DTR__K_BATCH && is_checked(c->in, c->in_count, c->dtype)) {
        if (to != NULL) {
            to[n] = (input){ c->in, c->in_count, 0, c->dtype, of };
        }
        n++;
    }
    for (size_t i = 0; c->kind == DTR__K_BATCH && i < c->n_batch; i++) {
        const dtr_buffer *b = &c->batch[i].buf;
        if (c->batch[i].is_send && is_checked(b->data, b->count, b->dtype)) {
            if (to != NULL) {
                to[n] = (input){ b->data, b->count, before, b->dtype, of };
            }
            n++;
        }
        before += c->batch[i].is_send ? b->count : 0;
    }
    return n;
}

static void checks_free(const dtr__nccl_comm *c, dtr__nccl_nan_checks *l) {
    if (l->device != NULL) {
        (void)c->cuda->free(c->device, l->device);
    }
    if (l->host != NULL) {
        (void)c->cuda->pinned_free(c->device, l->host);
    }
    free(l->input);
    free(l);
}

void dtr__nccl_nan_checks_free(const dtr__nccl_comm *c) {
    for (dtr__nccl_nan_checks *l = c->nan_checks, *next; l != NULL; l = next) {
        next = l->next;
        checks_free(c, l);
    }
}

static dtr_status fill(const dtr__nccl_comm *c, dtr__nccl_nan_checks *l, size_t n) {
    enum { LEAST = 16 };
    l->capacity = n > LEAST ? 2 * n : LEAST;
    l->input = calloc(l->capacity, sizeof *l->input);
    DTR_REQUIRE(l->input != NULL, NULL, DTR_ERR_NOMEM, "out of memory for %zu NaN checks", n);
    void *device = NULL, *host = NULL;
    DTR_CUDA_TRY(c->cuda->alloc_beside(c->device, l->capacity * sizeof *l->device, &device),
                 DTR_ERR_NOMEM);
    l->device = device;
    DTR_CUDA_TRY(c->cuda->pinned_alloc(c->device, l->capacity * sizeof *l->host, &host),
                 DTR_ERR_NOMEM);
    l->host = host;
    return DTR_OK;
}

static dtr_status checks_new(const dtr__nccl_comm *c, size_t n, dtr__nccl_nan_checks **made) {
    dtr__nccl_nan_checks *l = calloc(1, sizeof *l);
    DTR_REQUIRE(l != NULL, NULL, DTR_ERR_NOMEM, "out of memory for %zu NaN checks", n);
    dtr_status s = fill(c, l, n);
    if (s < 0) {
        checks_free(c, l);
        return s;
    }
    *made = l;
    return DTR_OK;
}

/* CUDA may wait for the device while it makes pinned memory, so there is some before anything is
 * launched. */
dtr_status dtr__nccl_nan_checks_ahead(dtr__nccl_comm *c) {
    enum { AHEAD = 4 };
    const bool wanted = dtr__opt_number(&c->group->world->options, DTR__OPT_NAN_CHECK) != 0;
    for (int i = 0; i < AHEAD && wanted; i++) {
        dtr__nccl_nan_checks *l = NULL;
        DTR_TRY(checks_new(c, 1, &l));
        dtr__nccl_nan_checks_give(c, l);
    }
    return DTR_OK;
}

static dtr_status checks_take(dtr__nccl_comm *c, size_t n, dtr__nccl_nan_checks **nan_checks) {
    pthread_mutex_lock(&c->pool_lock);
    dtr__nccl_nan_checks **at = &c->nan_checks;
    while (*at != NULL && (*at)->capacity < n) {
        at = &(*at)->next;
    }
    dtr__nccl_nan_checks *l = *at;
    if (l != NULL) {
        *at = l->next;
    }
    pthread_mutex_unlock(&c->pool_lock);
    DTR_TRY(l == NULL ? checks_new(c, n, &l) : DTR_OK);
    l->n = n;
    l->started = 0;
    *nan_checks = l;
    return DTR_OK;
}

void dtr__nccl_nan_checks_give(dtr__nccl_comm *c, dtr__nccl_nan_checks *l) {
    pthread_mutex_lock(&c->pool_lock);
    l->next = c->nan_checks;
    c->nan_checks = l;
    pthread_mutex_unlock(&c->pool_lock);
}

dtr_status dtr__nccl_nan_checks_take(const dtr_group *g, dtr__nccl_comm *c, dtr_work *const *works,
                                     size_t n, dtr__nccl_nan_checks **nan_checks) {
    size_t inputs_n = 0;
    for (size_t i = 0; i < n; i++) {
        bool native = works[i]->backend == &dtr__backend_nccl;
        inputs_n += native ? inputs(g, &works[i]->call, works[i], NULL) : 0;
    }
    if (inputs_n == 0) {
        return DTR_OK;
    }
    DTR_TRY(checks_take(c, inputs_n, nan_checks));
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (works[i]->backend == &dtr__backend_nccl) {
            at += inputs(g, &works[i]->call, works[i], (*nan_checks)->input + at);
        }
    }
    return DTR_OK;
}

dtr_status dtr__nccl_nan_checks_launch(const dtr__nccl_comm *c, dtr__nccl_nan_checks *l) {
    size_t nbytes = l->n * sizeof *l->device;
    DTR_CUDA_TRY(c->cuda->fill(c->device, l->device, 0xff, nbytes, c->stream), DTR_ERR_CUDA);
    for (size_t i = 0; i < l->n; i++) {
        const input *k = &l->input[i];
        dtr__kernel_args a = dtr__nan_args(k->data, k->count, k->dtype, l->device + i);
        DTR_CUDA_TRY(launch(c, dtr__nan_formats[k->dtype].kernel, &a, DTR__NAN_BLOCKS),
                     DTR_ERR_CUDA);
    }
    DTR_CUDA_TRY(c->cuda->copy(c->device, l->host, l->device, nbytes, DTR__COPY_TO_HOST, c->stream),
                 DTR_ERR_CUDA);
    l->started = l->n;
    return DTR_OK;
}

void dtr__nccl_nan_checks_report(const dtr__nccl_nan_checks *l) {
    for (size_t i = 0; i < l->started; i++) {
        const input *k = &l->input[i];
        if (l->host[i] == UINT64_MAX) {
            continue;
        }
        dtr__work_found_nan(k->of,
                            k->before + (size_t)(l->host[i] / dtr__nan_formats[k->dtype].per));
    }
}
