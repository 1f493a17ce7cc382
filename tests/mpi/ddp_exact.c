/* The same bits everywhere, and nothing done twice: deterministic groups, gradients that lie in
 * their buckets, steps and messages that allocate nothing. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"
#include "world/world.h"

/* ---- every allocation of the process is counted while `counting` ---- */

static atomic_bool counting;
static atomic_size_t allocations;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang_analyzer__)
#define COUNTS 1
static void count(void) {
    if (atomic_load_explicit(&counting, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    }
}
/* The C library's own names of its allocator. NOLINTBEGIN */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n) {
    count();
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
    count();
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
    count();
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t align, size_t n) {
    count();
    return __libc_memalign(align, n);
}
int posix_memalign(void **p, size_t align, size_t n) {
    count();
    *p = __libc_memalign(align, n);
    return *p != NULL ? 0 : ENOMEM;
}
/* NOLINTEND */
#else
#define COUNTS 0
#endif

enum { N = 8, STEPS = 20 };
static const size_t sizes[N] = { 1000, 3, 70, 4097, 1, 64, 900, 129 };

/* Steps 4 to 23 of a module: how often anybody allocated on this rank. */
static size_t allocations_of(const dtr_ddp_options *o, dtr_dtype d) {
    synth s = synth_new(N, sizes, d);
    dtr_ddp *ddp = ddp_new(&s, o);
    for (int step = 0; step < 4 + STEPS; step++) {
        for (size_t i = 0; i < N; i++) {
            synth_write(ddp, &s, i, step, false);
        }
        if (step == 4) {
            th_barrier();
            atomic_store(&allocations, 0);
            atomic_store(&counting, true);
        }
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        for (size_t i = N; i-- > 0;) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    }
    atomic_store(&counting, false);
    size_t n = atomic_load(&allocations);
    synth_check_all(ddp, &s, 3 + STEPS, th_size());
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
    return n;
}

/* Copies and casts, views, unused parameters, static graphs: with all of them. */
START_TEST(steady_state) {
    atomic_store(&allocations, 0);
    atomic_store(&counting, true);
    char *volatile one = malloc(10);
    free(one);
    atomic_store(&counting, false);
    TH_ALL(atomic_load(&allocations) > 0, "allocations are not seen");
    for (int form = 0; form < 6; form++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = 4000;
        o.grad_as_bucket_view = form == 1;
        o.has_reduce_dtype = form == 2;
        o.reduce_dtype = DTR_F64;
        o.find_unused = form == 3;
        o.static_graph = form == 4;
        o.flags = form == 5 ? DTR_DDP_PER_PARAM : 0;
        size_t n = 1;
        for (int again = 0; again < 3 && n > 0; again++) { /* MPI's threads allocate now and then */
            uint64_t all[16];
            th_gather_u64(allocations_of(&o, DTR_F32), all);
            n = 0;
            for (int r = 0; r < th_size(); r++) {
                n += all[r];
            }
        }
        TH_ALL(n == 0, "form %d: %zu allocations in %d steps", form, n, STEPS);
    }
}
END_TEST

/* H3, K11: backward writes into the bucket, and the average appears there: nothing moves, and every
 * rank of the node reads the others' gradients where they were written. The ways of reducing are
 * counted: where everything lies, and through copies in the backend's own memory. */
static atomic_size_t in_place_pulls, staged_chunks;
bool __real_dtr__shm_zero_pull(const dtr_group *g, void *s, const void *c, size_t budget,
                               bool *moved);
bool __wrap_dtr__shm_zero_pull(const dtr_group *g, void *s, const void *c, size_t budget,
                               bool *moved);
bool __wrap_dtr__shm_zero_pull(const dtr_group *g, void *s, const void *c, size_t budget,
                               bool *moved) {
    atomic_fetch_add(&in_place_pulls, 1);
    return __real_dtr__shm_zero_pull(g, s, c, budget, moved);
}
bool __real_dtr__shm_stage_chunk(dtr_group *g, void *s, const void *c, void *post);
bool __wrap_dtr__shm_stage_chunk(dtr_group *g, void *s, const void *c, void *post);
bool __wrap_dtr__shm_stage_chunk(dtr_group *g, void *s, const void *c, void *post) {
    atomic_fetch_add(&staged_chunks, 1);
    return __real_dtr__shm_stage_chunk(g, s, c, post);
}

typedef struct places {
    dtr_ddp *ddp;
    size_t outside, buckets, crooked, plain;
} places;

static dtr_status look(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    places *p = state;
    dtr_buffer buffer = dtr_ddp_bucket_buffer(b);
    const char *lo = buffer.data, *hi = lo + buffer.count * dtr_dtype_size(buffer.dtype);
    for (size_t k = 0; k < dtr_ddp_bucket_param_count(b); k++) {
        size_t i = dtr_ddp_bucket_param(b, k, NULL, NULL);
        const char *g = (const char *)grad_of(p->ddp, i);
        p->outside += g < lo || g >= hi;
    }
    p->crooked += (uintptr_t)lo % 64 != 0;
    int owner;
    uint64_t offset;
    p->plain += !dtr__arena_find(th_world(), lo, (size_t)(hi - lo), &owner, &offset);
    p->buckets++;
    return dtr_allreduce(dtr_ddp_bucket_group(b), buffer, buffer, DTR_AVG, NULL, work);
}

START_TEST(in_place) {
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.grad_as_bucket_view = true;
    o.bucket_cap_bytes = 4000;
    dtr_ddp *ddp = ddp_new(&s, &o);
    places p = { .ddp = ddp };
    TH_OK(dtr_ddp_register_hook(ddp, look, &p, "look"));
    const float *at[N] = { NULL };
    for (int step = 0; step < 4; step++) {
        synth_good_step(ddp, &s, step);
        for (size_t i = 0; i < N; i++) {
            TH_CHECK(step < 2 || grad_of(ddp, i) == at[i], "gradient %zu has moved", i);
            at[i] = grad_of(ddp, i);
        }
    }
    TH_ALL(p.outside == 0 && p.buckets >= 8, "%zu gradients outside of %zu buckets", p.outside,
           p.buckets);
    TH_ALL(p.crooked == 0, "%zu of %zu buckets do not begin at 64 bytes", p.crooked, p.buckets);
    TH_ALL(p.plain == 0 || !dtr__arena_usable(th_world()),
           "%zu of %zu buckets are not in node-shared memory", p.plain, p.buckets);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* Averages of buckets with views and without: no chunk is staged, as it is of plain memory. */
START_TEST(read_in_place) {
    enum { LONG = 200000 };
    float *plain = calloc(LONG, sizeof *plain);
    atomic_store(&staged_chunks, 0);
    for (int k = 0; k < 2; k++) {
        TH_IS(dtr_allreduce(th_group(), dtr_cpu(plain, LONG, DTR_F32),
                            dtr_cpu(plain, LONG, DTR_F32), DTR_SUM, NULL, NULL),
              DTR_OK);
    }
    TH_ALL(atomic_load(&staged_chunks) > 0, "staging is not seen");
    free(plain);
    for (int view = 0; view < 2; view++) {
        synth s = synth_equal(3, LONG / 2);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.grad_as_bucket_view = view == 1;
        o.bucket_cap_bytes = LONG;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (int step = 0; step < 4; step++) {
            th_barrier();
            atomic_store(&in_place_pulls, 0);
            atomic_store(&staged_chunks, 0);
            synth_good_step(ddp, &s, step);
            size_t pulls = atomic_load(&in_place_pulls), staged = atomic_load(&staged_chunks);
            TH_CHECK(pulls >= 3 && (staged == 0 || step == 0), /* the rebuild sends an order */
                     "view %d, step %d: 3 buckets were read in place %zu times, staged %zu", view,
                     step, pulls, staged);
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* ---- deterministic groups ---- */

/* Random gradients over many binades: any other order of adding gives other bits. */
static void random_gradients(dtr_ddp *ddp, dtr_dtype d, int step) {
    for (size_t i = 0; i < N; i++) {
        th_rng g = { (uint64_t)(1 + th_rank()) * 1000 + (uint64_t)step * 100 + i };
        th_random_floats(dtr_tensor_data(dtr_ddp_grad(ddp, i)), d, sizes[i], &g, -4, 4);
    }
}

/* All gradients of three steps on a deterministic group, one behind the other. */
static void run(const char *backend, dtr_dtype d, const dtr_ddp_options *o, char *out) {
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    dtr_ddp *ddp = NULL;
    go.backend = backend;
    go.deterministic = true;
    go.timeout_s = 100;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), &go, &g));
    synth s = synth_new(N, sizes, d);
    TH_OK(dtr_ddp_create(g, s.params, N, o, &ddp));
    for (int step = 0; step < 3; step++) {
        random_gradients(ddp, d, step);
        for (size_t k = 0; k < N; k++) { /* another order on every rank */
            TH_IS(dtr_ddp_grad_ready(ddp, (k + (size_t)th_rank()) % N, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        for (size_t i = 0; i < N; i++) {
            size_t nbytes = sizes[i] * dtr_dtype_size(d);
            memcpy(out, dtr_tensor_data(dtr_ddp_grad(ddp, i)), nbytes);
            out += nbytes;
        }
    }
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    TH_OK(dtr_group_destroy(g));
    synth_free(&s);
}

static uint64_t hash(const char *p, size_t n) {
    uint64_t h = 14695981039346656037u;
    for (size_t k = 0; k < n; k++) {
        h = (h ^ (unsigned char)p[k]) * 1099511628211u;
    }
    return h;
}

/* Equal from run to run, on all ranks, between backends, with views, with other buckets (H1c), and
 * parameter by parameter (I13). */
START_TEST(same_bits) {
    const dtr_dtype types[] = { DTR_F32, DTR_BF16, DTR_F64 };
    for (int t = 0; t < 3; t++) {
        size_t total = 0;
        for (size_t i = 0; i < N; i++) {
            total += 3 * sizes[i] * dtr_dtype_size(types[t]);
        }
        char *first = malloc(total), *other = malloc(total);
        uint64_t hashes[64];
        for (int form = 0; form < 7; form++) {
            dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
            o.bucket_cap_bytes = form == 4 ? 1 : 4000;
            o.grad_as_bucket_view = form == 3;
            o.flags = form >= 5 ? DTR_DDP_PER_PARAM : 0;
            const char *backend = form == 2 || form == 6 ? "cpu:mpi" : NULL; /* NULL: shm here */
            run(backend, types[t], &o, form == 0 ? first : other);
            bool equal = form == 0 || memcmp(first, other, total) == 0;
            TH_ALL(equal, "%s, form %d: other bits", dtr_dtype_name(types[t]), form);
        }
        th_gather_u64(hash(first, total), hashes);
        for (int r = 1; r < th_size(); r++) {
            TH_CHECK(hashes[r] == hashes[0], "rank %d has other bits than rank 0", r);
        }
        TH_AGREE();
        free(first);
        free(other);
    }
}
END_TEST

/* A small message that is taken out of its channel before its receive is called. */
START_TEST(early_messages) {
    enum { ROUNDS = 24, WARM = 4 };
    atomic_store(&allocations, 0);
    for (int round = 0; round < ROUNDS; round++) {
        int32_t x[2] = { round, -round }, y[2] = { 0, 0 };
        for (int tag = 0; tag < 2 && th_rank() == 1; tag++) {
            TH_IS(dtr_send(th_group(), dtr_cpu(&x[tag], 1, DTR_I32), 0, tag, NULL, NULL), DTR_OK);
        }
        th_barrier();
        atomic_store(&counting, round >= WARM);
        for (int tag = 1; tag >= 0 && th_rank() == 0; tag--) {
            TH_IS(dtr_recv(th_group(), dtr_cpu(&y[tag], 1, DTR_I32), 1, tag, NULL, NULL), DTR_OK);
        }
        atomic_store(&counting, false);
        TH_CHECK(th_rank() != 0 || (y[0] == round && y[1] == -round), "round %d: %d and %d", round,
                 y[0], y[1]);
        th_barrier();
    }
    TH_ALL(atomic_load(&allocations) == 0, "%zu allocations", atomic_load(&allocations));
}
END_TEST

static void add_tests(Suite *s) {
    TCase *tc = th_case(s, "exactness", 100);
    if (COUNTS) {
        th_add(tc, steady_state, 0, 0);
        th_add(tc, early_messages, 2, 0);
    } else {
        th_skip("steady_state", "sanitizers have their own allocator");
    }
    th_add(tc, in_place, 0, 0);
    if (dtr__arena_usable(th_world())) {
        th_add(tc, read_in_place, 2, 0);
    } else {
        th_skip("read_in_place", "no node-shared memory here");
    }
    th_add(tc, same_bits, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_exact", add_tests);
}
