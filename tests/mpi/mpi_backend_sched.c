/* The collectives of the mpi backend, each algorithm forced by its thresholds, against expected
 * values: every dtype and operator, roots, in place, uneven blocks, zero counts. */
#include <math.h>

#include "kernels/kernels.h"
#include "mpi_backend_driver.h"

/* Thresholds that force each algorithm; the small sizes make many segments of little data. */
#define SMALL .reduce_ranks = 8, .staging = 4096, .message = 64, .window = 32, .segment = 64
static const struct {
    const char *name;
    dtr__mpi_tuning tuning;
    bool ring;       /* of an allgather */
    bool free_order; /* else the group is deterministic, which few algorithms serve, but of integers
                      */
} variants[] = {
    { "default", { 0 }, false, false },
    { "segments",
      { .reduce_ranks = 8,
        .staging = 16 << 10,
        .gather_ranks = 99,
        .message = 128,
        .window = 2,
        .segment = 64 },
      false,
      false },
    { "log2 rounds",
      { .reduce_direct = 1 << 20,
        .reduce_ranks = 1,
        .staging = 1 << 20,
        .gather_log = 1 << 20,
        .gather_ranks = 2,
        .message = 4096,
        .window = 1,
        .segment = 64 },
      false,
      false },
    { "ring", { SMALL, .gather_ranks = 99 }, true, false },
    { "default, free", { 0 }, false, true },
    { "doubling", { SMALL, .gather_ranks = 99, .doubling = 1 << 20 }, false, true },
    { "halves",
      { SMALL, .gather_ranks = 2, .ring = SIZE_MAX, .block = SIZE_MAX, .whole = SIZE_MAX },
      false,
      true },
    { "halves, segments",
      { SMALL, .gather_ranks = 2, .ring = SIZE_MAX, .block = SIZE_MAX },
      false,
      true },
    { "blocks round a ring", { SMALL, .gather_ranks = 99, .ring = 1 }, false, true },
};
enum {
    N_VARIANTS = sizeof variants / sizeof variants[0],
    IN_ORDER = 0,
    DEFAULT = 4,
    DOUBLING,
    HALVES
};

static driver d;

static void use_variant(int v) {
    d.state->tuning = variants[v].tuning.window == 0 ? dtr__mpi_tuning_default : variants[v].tuning;
    d.state->ring = variants[v].ring;
    d.group.asked.deterministic = !variants[v].free_order;
}

static const size_t counts[] = { 0, 1, 17, 331 };
enum { N_COUNTS = 4 };

/* One reducing call with guarded buffers; `in_place` where the caller asks. */
typedef struct reduction {
    dtr__kind kind;
    dtr_dtype dtype;
    dtr_op op;
    size_t count;   /* whole input */
    size_t *blocks; /* reduce_scatterv */
    int root;
    bool in_place;
} reduction;

static size_t offset_of(const reduction *r, int rank) {
    size_t at = 0;
    for (int i = 0; i < rank && r->blocks != NULL; i++) {
        at += r->blocks[i];
    }
    return r->blocks != NULL ? at : r->count / (size_t)th_size() * (size_t)rank;
}

static void run_reduction(const reduction *r, const char *variant) {
    bool scattered = r->kind == DTR__K_REDUCE_SCATTER || r->kind == DTR__K_REDUCE_SCATTERV;
    bool mine = r->kind != DTR__K_REDUCE || r->root == th_rank();
    size_t first = scattered ? offset_of(r, th_rank()) : 0, esize = dtr_dtype_size(r->dtype);
    size_t n = !scattered ? r->count : offset_of(r, th_rank() + 1) - first;
    th_buf in = th_buf_new(r->count, r->dtype, DTR_MEM_DEFAULT, 0);
    th_buf out = th_buf_new(n, r->dtype, DTR_MEM_DEFAULT, 0);
    void *expected = malloc(n * esize + 1), *given = malloc(r->count * esize + 1);
    th_fill(in.data, r->dtype, r->op, 0, r->count, th_rank(), th_size());
    memcpy(given, in.data, r->count * esize);
    th_expect(expected, r->dtype, r->op, first, n, th_size());

    dtr_work w;
    driver_work(&d, &w, r->kind);
    char *result = !r->in_place || !mine ? out.data : (char *)in.data + first * esize;
    w.call.dtype = r->dtype;
    w.call.op = r->op;
    w.call.root = r->root;
    w.call.in = in.data;
    w.call.out = result;
    w.call.in_count = r->count;
    w.call.out_count = mine ? n : 0;
    w.call.in_counts = r->kind == DTR__K_REDUCE_SCATTERV ? r->blocks : NULL;
    w.call.premul = r->op == DTR_PREMUL_SUM ? 0.5 : 1;
    TH_IS(driver_run(&d, &w), DTR_OK);
    size_t bad = mine ? th_differs(result, expected, r->dtype, n) : n;
    TH_CHECK(bad == n, "%s %s %s %d count %zu root %d%s: element %zu differs", variant,
             dtr__kind_name(r->kind), dtr_dtype_name(r->dtype), (int)r->op, r->count, r->root,
             r->in_place ? " in place" : "", bad);
    TH_CHECK(th_buf_ok(&in, false) && th_buf_ok(&out, !mine || (r->in_place && n != 0)),
             "%s %s: memory outside the result was written", variant, dtr__kind_name(r->kind));
    TH_CHECK((r->in_place && mine) || memcmp(given, in.data, r->count * esize) == 0,
             "%s %s %s count %zu: the input was written", variant, dtr__kind_name(r->kind),
             dtr_dtype_name(r->dtype), r->count);
    free(expected);
    free(given);
    th_buf_free(&in);
    th_buf_free(&out);
}

static void reduce_pair(dtr_dtype dtype, dtr_op op, size_t count, int v) {
    size_t n = (size_t)th_size(), blocks[64] = { 0 };
    reduction r = { .kind = DTR__K_ALLREDUCE, .dtype = dtype, .op = op, .count = count };
    for (int in_place = 0; in_place < 2; in_place++) {
        r.in_place = in_place != 0;
        r.kind = DTR__K_ALLREDUCE;
        r.count = count;
        r.blocks = NULL;
        run_reduction(&r, variants[v].name);
        r.kind = DTR__K_REDUCE;
        r.root = (int)(count % n);
        run_reduction(&r, variants[v].name);
        r.kind = DTR__K_REDUCE_SCATTER;
        r.count = count * n;
        run_reduction(&r, variants[v].name);
        r.kind = DTR__K_REDUCE_SCATTERV; /* one block empty, one twice as long */
        r.blocks = blocks;
        r.count = 0;
        for (size_t i = 0; i < n; i++) {
            blocks[i] = i == 1 ? 0 : i == 2 ? 2 * count : count + i;
            r.count += blocks[i];
        }
        run_reduction(&r, variants[v].name);
    }
}

/* COL3 COL10 COL24 COL26 COL37 COL39 COL40 COL43 COL44 COL48 */
START_TEST(reductions) {
    driver_open(&d);
    for (int v = 0; v < N_VARIANTS; v++) {
        use_variant(v);
        for (size_t i = 0; i < TH_DTYPES * TH_OPS; i++) {
            if (dtr_op_supports(th_all_ops[i % TH_OPS], th_all_dtypes[i / TH_OPS])) {
                reduce_pair(th_all_dtypes[i / TH_OPS], th_all_ops[i % TH_OPS],
                            counts[(i + (size_t)v) % 4], v);
            }
        }
        for (size_t c = 0; c < N_COUNTS; c++) {
            reduce_pair(DTR_F32, DTR_AVG, counts[c], v);
            reduce_pair(DTR_C128, DTR_PREMUL_SUM, counts[c], v);
        }
        TH_AGREE();
    }
    driver_close(&d);
}
END_TEST

/* Inputs of a rank for which the order of additions shows in the bits. */
static void random_input(void *dst, dtr_dtype dtype, size_t count, int rank) {
    th_rng g = { 77 + (uint64_t)rank };
    th_random_floats(dst, dtype, count, &g, -6, 6);
}

/* Rank 0's result is everybody's, and small types are rounded once however free the order is. */
static void check_order(const char *variant, dtr_dtype dtype, const double *expected,
                        const double *out, size_t n, bool free_order) {
    const bool wide = dtype == DTR_F32 || dtype == DTR_F64;
    double *first = malloc(n * sizeof *first);
    memcpy(first, out, n * dtr_dtype_size(dtype));
    MPI_Bcast(first, (int)(n * dtr_dtype_size(dtype)), MPI_BYTE, 0, MPI_COMM_WORLD);
    TH_CHECK(memcmp(first, out, n * dtr_dtype_size(dtype)) == 0, "%s %s: not rank 0's bits",
             variant, dtr_dtype_name(dtype));
    free(first);
    if (!free_order || !wide) {
        TH_CHECK(th_differs(out, expected, dtype, n) == n, "%s %s: not the rank-order sum", variant,
                 dtr_dtype_name(dtype));
    }
    for (size_t i = 0; i < n && wide; i++) {
        const double is = dtype == DTR_F32 ? ((const float *)(const void *)out)[i] : out[i];
        const double should =
            dtype == DTR_F32 ? ((const float *)(const void *)expected)[i] : expected[i];
        /* Each of up to 64 sums, of at most 64 x 2^7, may round otherwise. */
        TH_CHECK(fabs(is - should) < 64 * 8192 * (dtype == DTR_F32 ? 0x1p-24 : 0x1p-53),
                 "%s %s: element %zu is %a, in rank order %a", variant, dtr_dtype_name(dtype), i,
                 is, should);
    }
}

/* COL3 COL45: an algorithm that keeps the order gives the bits of the rank-order reduction, and
 * every one the same bits on all ranks. */
START_TEST(rank_order) {
    static const dtr_dtype dtypes[] = { DTR_F32, DTR_BF16, DTR_F16, DTR_F64 };
    enum { N = 3001 };
    int size = th_size();
    double *all = malloc(sizeof(double) * N * (size_t)size), expected[N], out[N];
    const void *src[64];
    driver_open(&d);
    for (size_t t = 0; t < 4; t++) {
        for (int i = 0; i < size; i++) {
            random_input(&all[i * N], dtypes[t], N, i);
            src[i] = &all[i * N];
        }
        dtr__reduce(expected, src, size, N, dtypes[t], DTR_SUM, size, NULL);
        for (int v = 0; v < N_VARIANTS; v++) {
            dtr_work w;
            use_variant(v);
            driver_work(&d, &w, DTR__K_ALLREDUCE);
            w.call.dtype = dtypes[t];
            w.call.in = src[th_rank()];
            w.call.out = out;
            w.call.in_count = w.call.out_count = N;
            TH_IS(driver_run(&d, &w), DTR_OK);
            check_order(variants[v].name, dtypes[t], expected, out, N, variants[v].free_order);
        }
        TH_AGREE();
    }
    free(all);
    driver_close(&d);
}
END_TEST

/* ---- movement ---- */

/* Elements that rank i sends rank j in each kind; `c` is the case's size. */
static size_t share(dtr__kind kind, size_t c, int i, int j) {
    switch (kind) {
    case DTR__K_ALLGATHERV:
    case DTR__K_GATHERV:
        return i == 1 ? 0 : c + (size_t)i;
    case DTR__K_SCATTERV:
        return j == 1 ? 0 : c + (size_t)j;
    case DTR__K_ALLTOALLV:
        return c == 0 ? 0 : (size_t)((i + 1) * (j + 1) % 5) * c;
    default:
        return c;
    }
}

/* Does rank i send to rank j, and what is the order of blocks? */
static bool sends(dtr__kind kind, int root, int i, int j) {
    switch (kind) {
    case DTR__K_GATHER:
    case DTR__K_GATHERV:
        return j == root;
    case DTR__K_SCATTER:
    case DTR__K_SCATTERV:
        return i == root;
    default:
        return true;
    }
}

static bool one_block(dtr__kind kind) { /* the same block goes to everybody */
    return kind == DTR__K_ALLGATHER || kind == DTR__K_ALLGATHERV || kind == DTR__K_GATHER ||
           kind == DTR__K_GATHERV;
}

typedef struct movement {
    dtr__kind kind;
    dtr_dtype dtype;
    size_t c;
    int root;
    bool in_place;
} movement;

static void run_movement(const movement *m, const char *variant) {
    int me = th_rank(), n = th_size();
    size_t give[64], take[64], n_in = 0, n_out = 0, own = 0, esize = dtr_dtype_size(m->dtype);
    for (int j = 0; j < n; j++) {
        own = j == me ? n_out : own;
        give[j] = sends(m->kind, m->root, me, j) ? share(m->kind, m->c, me, j) : 0;
        take[j] = sends(m->kind, m->root, j, me) ? share(m->kind, m->c, j, me) : 0;
        n_in += one_block(m->kind) ? 0 : give[j];
        n_out += take[j];
    }
    n_in = one_block(m->kind) ? share(m->kind, m->c, me, 0) : n_in;
    th_buf in = th_buf_new(n_in, m->dtype, DTR_MEM_DEFAULT, 0);
    th_buf out = th_buf_new(n_out, m->dtype, DTR_MEM_DEFAULT, 0);
    char *source = !m->in_place                 ? (char *)in.data
                   : m->kind == DTR__K_ALLTOALL ? (char *)out.data
                                                : (char *)out.data + own * esize;
    char *expected = malloc(n_out * esize + 1);
    size_t at_in = 0, at_out = 0;
    for (int j = 0; j < n; j++) {
        if (one_block(m->kind)) {
            th_fill_block(source, m->dtype, n_in, me, 0);
        } else {
            th_fill_block(source + at_in * esize, m->dtype, give[j], me, j);
        }
        th_fill_block(expected + at_out * esize, m->dtype, take[j], j, one_block(m->kind) ? 0 : me);
        at_in += give[j];
        at_out += take[j];
    }
    dtr_work w;
    driver_work(&d, &w, m->kind);
    w.call.dtype = m->dtype;
    w.call.root = m->root;
    w.call.in = source;
    w.call.out = out.data;
    w.call.in_count = n_in;
    w.call.out_count = n_out;
    bool uneven = m->kind == DTR__K_ALLGATHERV || m->kind == DTR__K_GATHERV ||
                  m->kind == DTR__K_SCATTERV || m->kind == DTR__K_ALLTOALLV;
    w.call.out_counts = uneven && m->kind != DTR__K_SCATTERV ? take : NULL;
    w.call.in_counts = m->kind == DTR__K_SCATTERV || m->kind == DTR__K_ALLTOALLV ? give : NULL;
    dtr_status status = driver_run(&d, &w);
    TH_CHECK(status == DTR_OK, "%s %s size %zu root %d%s: %s", variant, dtr__kind_name(m->kind),
             m->c, m->root, m->in_place ? " in place" : "", dtr_last_error_message());
    size_t bad = th_differs(out.data, expected, m->dtype, n_out);
    TH_CHECK(bad == n_out, "%s %s %s size %zu root %d%s: element %zu differs", variant,
             dtr__kind_name(m->kind), dtr_dtype_name(m->dtype), m->c, m->root,
             m->in_place ? " in place" : "", bad);
    TH_CHECK(th_buf_ok(&in, m->in_place && n_in != 0) && th_buf_ok(&out, false),
             "%s %s: memory outside the result was written", variant, dtr__kind_name(m->kind));
    free(expected);
    th_buf_free(&in);
    th_buf_free(&out);
}

/* COL11 COL13 COL14 COL19 COL22 COL33 COL34 COL39 COL40 */
START_TEST(movements) {
    static const dtr__kind kinds[] = { DTR__K_ALLGATHER, DTR__K_ALLGATHERV, DTR__K_GATHER,
                                       DTR__K_GATHERV,   DTR__K_SCATTER,    DTR__K_SCATTERV,
                                       DTR__K_ALLTOALL,  DTR__K_ALLTOALLV };
    driver_open(&d);
    for (int v = 0; v < N_VARIANTS; v++) {
        use_variant(v);
        for (size_t i = 0; i < 8 * N_COUNTS; i++) {
            movement m = { kinds[i / N_COUNTS], DTR_I32, counts[i % N_COUNTS], th_size() - 1,
                           false };
            run_movement(&m, variants[v].name);
            m.dtype = th_all_dtypes[i % TH_DTYPES];
            m.root = 0;
            /* In place on some ranks only: it is each rank's own choice. */
            m.in_place = (m.kind == DTR__K_ALLGATHER || m.kind == DTR__K_ALLGATHERV ||
                          m.kind == DTR__K_ALLTOALL) &&
                         th_rank() % 2 == 0;
            run_movement(&m, variants[v].name);
        }
        TH_AGREE();
    }
    driver_close(&d);
}
END_TEST

/* Sizes at which transfers overlap: staging banks and results are in use while others travel. */
START_TEST(large) {
    static const dtr__kind kinds[] = { DTR__K_ALLGATHER, DTR__K_GATHERV, DTR__K_SCATTERV,
                                       DTR__K_ALLTOALL, DTR__K_ALLTOALLV };
    driver_open(&d);
    for (size_t slice = 16 << 10; slice <= 64 << 10; slice *= 4) {
        d.state->tuning.message = slice;
        d.state->tuning.segment = slice / 4;
        d.group.asked.deterministic = true;
        reduce_pair(DTR_F32, DTR_SUM, 60007, 0);
        reduce_pair(DTR_F16, DTR_PREMUL_SUM, 60007, 0);
        d.group.asked.deterministic = false;
        for (int ring = 0; ring < 2; ring++) {
            d.state->tuning.ring = ring ? 1 : SIZE_MAX;
            reduce_pair(DTR_F32, DTR_SUM, 60007, 0);
            reduce_pair(DTR_F64, DTR_PREMUL_SUM, 60007, 0);
        }
        TH_AGREE();
    }
    for (size_t i = 0; i < 5; i++) {
        movement m = { kinds[i], DTR_F64, 20001, 0, false };
        run_movement(&m, "large");
        m.in_place = m.kind == DTR__K_ALLTOALL && th_rank() == 0;
        run_movement(&m, "large");
    }
    TH_AGREE();
    driver_close(&d);
}
END_TEST

/* COL1 COL2 */
START_TEST(broadcasts) {
    driver_open(&d);
    for (int v = 0; v < N_VARIANTS; v++) {
        use_variant(v);
        for (int i = 0; i < th_size() * N_COUNTS; i++) {
            int root = i / N_COUNTS;
            size_t n = counts[i % N_COUNTS];
            th_buf buf = th_buf_new(n, DTR_F64, DTR_MEM_DEFAULT, 0);
            double expected[331];
            th_fill_block(expected, DTR_F64, n, root, v);
            if (th_rank() == root) {
                memcpy(buf.data, expected, n * sizeof *expected);
            }
            dtr_work w;
            driver_work(&d, &w, DTR__K_BROADCAST);
            w.call.dtype = DTR_F64;
            w.call.root = root;
            w.call.in = w.call.out = buf.data;
            w.call.in_count = w.call.out_count = n;
            TH_IS(driver_run(&d, &w), DTR_OK);
            TH_CHECK(th_differs(buf.data, expected, DTR_F64, n) == n && th_buf_ok(&buf, false),
                     "%s broadcast of %zu from %d", variants[v].name, n, root);
            th_buf_free(&buf);
        }
        TH_AGREE();
    }
    driver_close(&d);
}
END_TEST

/* BAR1: nobody leaves before the last has entered. */
START_TEST(barriers) {
    driver_open(&d);
    for (int late = 0; late < th_size(); late++) {
        dtr_work w;
        bool done = false;
        driver_work(&d, &w, DTR__K_BARRIER);
        th_barrier();
        if (th_rank() == late) {
            th_sleep(0.02);
        }
        double entered = th_now();
        TH_IS(driver_start(&d, &w, &done), DTR_OK);
        if (!done) {
            TH_IS(driver_finish(&d, &w, &done, 1, 20), DTR_OK);
        }
        double left = th_now(), last = th_latest(entered);
        TH_ALL(left >= last, "left the barrier %g s before rank %d came", last - left, late);
    }
    driver_close(&d);
}
END_TEST

/* COL41: both sides cut alike, no piece exceeds an int, nothing is lost. */
START_TEST(pieces) {
    size_t gib = (size_t)1 << 30;
    const size_t sizes[] = { 0, 1, gib - 1, gib, gib + 1, 2 * gib + 8, 5 * gib - 3, 100 * gib + 7 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = dtr__mpi_piece_count(sizes[i]), sum = 0, at = 0;
        TH_CHECK(n == (sizes[i] == 0 ? 1 : (sizes[i] + gib - 1) / gib), "%zu pieces for %zu", n,
                 sizes[i]);
        for (size_t k = 0; k < n; k++) {
            int length = dtr__mpi_piece(sizes[i], k, &at);
            TH_CHECK(at == sum && length >= 0 && (size_t)length <= gib, "piece %zu of %zu", k,
                     sizes[i]);
            sum += (size_t)length;
        }
        TH_CHECK(sum == sizes[i], "pieces of %zu add up to %zu", sizes[i], sum);
    }
    TH_AGREE();
}
END_TEST

/* Repeated calls reuse the memory of the first. */
START_TEST(no_allocation) {
    enum { N = 5000 };
    float in[N] = { 1 }, out[N];
    const void *kept[3] = { NULL };
    driver_open(&d);
    for (int i = 0; i < 5 * N_VARIANTS; i++) {
        dtr_work w;
        use_variant(i / 5);
        driver_work(&d, &w, DTR__K_ALLREDUCE);
        w.call.dtype = DTR_F32;
        w.call.in = in;
        w.call.out = out;
        w.call.in_count = w.call.out_count = N;
        TH_IS(driver_run(&d, &w), DTR_OK);
        const dtr__mpi_sched *s = d.state->sched;
        const void *now[3] = { s->steps, s->transfers, s->staging };
        TH_CHECK(i % 5 == 0 || memcmp(now, kept, sizeof now) == 0, "call %d took new memory", i);
        memcpy(kept, now, sizeof now);
    }
    TH_AGREE();
    driver_close(&d);
}
END_TEST

/* DBG2: ranks in different calls learn of it instead of taking wrong data or ending in MPI. `who`:
 * the rank that must, because a message of the other call reaches it. */
enum { ALL = -1 };
static void disagree(dtr__kind kind, size_t count, uint64_t fingerprint, int who, int variant) {
    double in[4096] = { 0 }, out[4096] = { 0 };
    size_t rest[64] = { 0 };
    dtr_work w;
    driver_open(&d);
    use_variant(variant);
    driver_work(&d, &w, kind);
    w.call.dtype = DTR_F64;
    w.call.in = in;
    w.call.out = kind == DTR__K_BROADCAST ? in : out;
    w.call.in_count = w.call.out_count = count;
    w.call.fingerprint = fingerprint;
    for (int i = 0; i < 64; i++) {
        rest[i] = 3;
    }
    w.call.out_counts = kind == DTR__K_GATHERV ? rest : NULL;
    dtr_status status = driver_run_for(&d, &w, who >= 0 && who != th_rank() ? 0.3 : 10);
    TH_CHECK((who >= 0 && th_rank() != who) || status == DTR_ERR_MISMATCH, "%s: status %s",
             dtr__kind_name(kind), dtr_status_name(status));
    if (status == DTR_ERR_MISMATCH) {
        TH_MESSAGE("compare the calls of the two ranks");
    }
    TH_CHECK(w.request == NULL, "the work was not given up");
    TH_AGREE();
    driver_close(&d);
}

START_TEST(disagreement) {
    size_t first = th_rank() == 0;
    const int middle = (th_size() + 1) / 2; /* by halves the first to hear of rank 0 */
    disagree(DTR__K_ALLREDUCE, 40 + first, 0, ALL, IN_ORDER);
    disagree(DTR__K_ALLREDUCE, 40 + first, 0, 1, DEFAULT);
    disagree(DTR__K_ALLREDUCE, 3000 + first, 3000 + first, ALL, IN_ORDER);
    disagree(DTR__K_ALLREDUCE, 3000 + first, 3000 + first, 1, DOUBLING);
    disagree(DTR__K_ALLREDUCE, 3000 + first, 3000 + first, middle, HALVES);
    disagree(DTR__K_ALLREDUCE, 40, first, ALL, IN_ORDER); /* equal sizes: another operator, say */
    disagree(th_rank() == 0 ? DTR__K_ALLREDUCE : DTR__K_BROADCAST, 4, first, 1, DEFAULT);
    disagree(DTR__K_GATHERV, 4, 0, 0, DEFAULT); /* the root expects three of each */
}
END_TEST

/* A collective that a rank never joins is given up, and says who is missing. */
START_TEST(absent_rank) {
    float in[4] = { 1 }, out[4];
    char text[300] = "";
    driver_open(&d);
    use_variant(IN_ORDER);
    if (th_rank() != 0) {
        dtr_work w;
        bool done = false;
        driver_work(&d, &w, DTR__K_ALLREDUCE);
        w.call.dtype = DTR_F32;
        w.call.in = in;
        w.call.out = out;
        w.call.in_count = w.call.out_count = 4;
        TH_IS(driver_start(&d, &w, &done), DTR_OK);
        for (int i = 0; i < 100; i++) {
            TH_IS(dtr__backend_mpi.progress(&d.group, d.state, &w, &done), DTR_OK);
        }
        dtr__backend_mpi.waits_for(&d.group, d.state, &w, text, sizeof text);
        TH_CHECK(strstr(text, "rank 0 (world 0) has not sent its part") != NULL, "'%s'", text);
        dtr__backend_mpi.cancel(&d.group, d.state, &w);
        TH_CHECK(!done && w.request == NULL, "the work was not given up");
    }
    TH_AGREE();
    driver_close(&d);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "schedule", 60);
    th_add(tc, pieces, 1, 0);
    th_add(tc, no_allocation, 1, 0);
    th_add(tc, barriers, 1, 0);
    th_add(tc, broadcasts, 1, 0);
    th_add(tc, movements, 1, 0);
    th_add(tc, reductions, 1, 0);
    th_add(tc, rank_order, 1, 0);
    th_add(tc, large, 1, 4);
    th_add(tc, disagreement, 2, 0);
    th_add(tc, absent_rank, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "mpi_backend_sched", make);
}
