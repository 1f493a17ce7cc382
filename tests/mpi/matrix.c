/* Every collective x dtype x operator with exact data (T120), sizes (T121), alignment (T122), in
 * place (T125), empty buffers (T05): with and without a work, in default and node-shared memory
 * (HR12). With DTR_TEST_DEVICE=cuda the buffers lie on a device and are written by copies on a
 * stream that are under way when the call comes, and read by copies on it as soon as the wait is
 * over (nccl:G4, nccl:J2, nccl:ST1, nccl:ST2, nccl:ST3, nccl:ST6). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kinds.h"
#include "matrix_device.h"

/* One call to make and check. count is the block size of equal forms; v-forms derive theirs from
 * it. */
typedef struct variant {
    kind k;
    dtr_dtype d;
    dtr_op op;
    size_t count, shift;
    unsigned
        empty; /* v-forms: the ranks whose block is empty, a bit each; 0: as the forms derive */
    int root;
    bool async, in_place;
    dtr_mem mem;
} variant;

static bool takes_in_place(kind k) {
    return k != BROADCAST;
}

static bool is_v(kind k) {
    return k == ALLGATHERV || k == GATHERV || k == SCATTERV || k == REDUCE_SCATTERV;
}

/* Block sizes: v-forms scale (3j + 1) mod 5, which leaves block 3 empty. */
static size_t block(const variant *v, int j) {
    if (v->empty != 0 && is_v(v->k)) {
        return (v->empty >> j) % 2 == 1 ? 0 : v->count;
    }
    return is_v(v->k) ? v->count * (size_t)((3 * j + 1) % 5) : v->count;
}

static size_t before(const variant *v, int j) {
    size_t sum = 0;
    for (int i = 0; i < j; i++) {
        sum += block(v, i);
    }
    return sum;
}

/* alltoallv: what r sends to j. */
static size_t pair(const variant *v, int r, int j) {
    if (v->empty != 0 && v->k == ALLTOALLV) {
        return (v->empty >> (r + 2 * j) % th_size()) % 2 == 1 ? 0 : v->count;
    }
    return v->k == ALLTOALLV ? v->count * (size_t)((r + 2 * j) % 4) : v->count;
}

typedef struct sizes {
    size_t in, out;
} sizes;

static sizes sizes_of(const variant *v) {
    int W = th_size(), r = th_rank();
    size_t all = before(v, W), mine = block(v, r), to = 0, from = 0;
    bool root = r == v->root;
    switch (v->k) {
    case ALLGATHER:
    case ALLGATHERV:
        return (sizes){ mine, all };
    case GATHER:
    case GATHERV:
        return (sizes){ mine, root ? all : 0 };
    case SCATTER:
    case SCATTERV:
        return (sizes){ root ? all : 0, mine };
    case REDUCE_SCATTER:
    case REDUCE_SCATTERV:
        return (sizes){ all, mine };
    case ALLTOALL:
    case ALLTOALLV:
        for (int j = 0; j < W; j++) {
            to += pair(v, r, j);
            from += pair(v, j, r);
        }
        return (sizes){ to, from };
    case REDUCE:
        return (sizes){ v->count, root ? v->count : 0 };
    default:
        return (sizes){ v->count, v->count };
    }
}

static void *at(void *base, dtr_dtype d, size_t k) {
    return (char *)base + k * dtr_dtype_size(d);
}

/* Input of rank r: exact data for reductions, block data (of rank r, block b) for movement. */
static void fill(const variant *v, void *in, int r) {
    int W = th_size();
    if (reduces(v->k)) {
        th_fill(in, v->d, v->op, 0, sizes_of(v).in, r, W);
        return;
    }
    size_t done = 0;
    switch (v->k) {
    case SCATTER:
    case SCATTERV:
        for (int j = 0; r == v->root && j < W; j++) {
            th_fill_block(at(in, v->d, before(v, j)), v->d, block(v, j), r, j);
        }
        break;
    case ALLTOALL:
    case ALLTOALLV:
        for (int j = 0; j < W; j++) {
            th_fill_block(at(in, v->d, done), v->d, pair(v, r, j), r, j);
            done += pair(v, r, j);
        }
        break;
    default:
        th_fill_block(in, v->d, v->k == BROADCAST ? v->count : block(v, r), r, 0);
    }
}

static void expect(const variant *v, void *want) {
    int W = th_size(), r = th_rank();
    size_t done = 0;
    switch (v->k) {
    case BROADCAST:
        th_fill_block(want, v->d, v->count, v->root, 0);
        break;
    case REDUCE:
        if (r != v->root) {
            break;
        }
        /* fallthrough */
    case ALLREDUCE:
    case SCAN:
    case EXSCAN:
        th_expect_prefix(want, v->d, v->op, 0, v->count, sources(v->k, r, W), W);
        break;
    case REDUCE_SCATTER:
    case REDUCE_SCATTERV:
        th_expect(want, v->d, v->op, before(v, r), block(v, r), W);
        break;
    case SCATTER:
    case SCATTERV:
        th_fill_block(want, v->d, block(v, r), v->root, r);
        break;
    case ALLTOALL:
    case ALLTOALLV:
        for (int j = 0; j < W; j++) {
            th_fill_block(at(want, v->d, done), v->d, pair(v, j, r), j, r);
            done += pair(v, j, r);
        }
        break;
    default: /* gathers */
        for (int j = 0; sizes_of(v).out > 0 && j < W; j++) {
            th_fill_block(at(want, v->d, before(v, j)), v->d, block(v, j), j, 0);
        }
    }
}

static dtr_status start(const variant *v, dtr_group *g, dtr_buffer in, dtr_buffer out,
                        dtr_work **work) {
    int W = th_size(), r = th_rank();
    size_t counts[16], to[16], from[16];
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.premul = v->op == DTR_PREMUL_SUM && reduces(v->k) ? 0.5 : 0;
    o.label = kind_names[v->k];
    o.stream = in.device.type != DTR_CPU ? stream : NULL;
    for (int j = 0; j < W; j++) {
        counts[j] = block(v, j);
        to[j] = pair(v, r, j);
        from[j] = pair(v, j, r);
    }
    switch (v->k) {
    case BROADCAST:
        return dtr_broadcast(g, r == v->root ? in : out, v->root, &o, work);
    case REDUCE:
        return dtr_reduce(g, in, out, v->op, v->root, &o, work);
    case ALLREDUCE:
        return dtr_allreduce(g, in, out, v->op, &o, work);
    case SCAN:
        return dtr_scan(g, in, out, v->op, &o, work);
    case EXSCAN:
        return dtr_exscan(g, in, out, v->op, &o, work);
    case ALLGATHER:
        return dtr_allgather(g, in, out, &o, work);
    case ALLGATHERV:
        return dtr_allgatherv(g, in, out, counts, &o, work);
    case GATHER:
        return dtr_gather(g, in, out, v->root, &o, work);
    case GATHERV:
        return dtr_gatherv(g, in, out, r == v->root ? counts : NULL, v->root, &o, work);
    case SCATTER:
        return dtr_scatter(g, in, out, v->root, &o, work);
    case SCATTERV:
        return dtr_scatterv(g, in, r == v->root ? counts : NULL, out, v->root, &o, work);
    case REDUCE_SCATTER:
        return dtr_reduce_scatter(g, in, out, v->op, &o, work);
    case REDUCE_SCATTERV:
        return dtr_reduce_scatterv(g, in, counts, out, v->op, &o, work);
    case ALLTOALL:
        return dtr_alltoall(g, in, out, &o, work);
    default:
        return dtr_alltoallv(g, in, to, out, from, &o, work);
    }
}

static void describe(const variant *v, char *text, size_t cap) {
    snprintf(text, cap, "%s %s op %d count %zu shift %zu root %d%s%s%s", kind_names[v->k],
             dtr_dtype_name(v->d), (int)v->op, v->count, v->shift, v->root,
             v->async ? " async" : "", v->in_place ? " in place" : "",
             v->mem == DTR_MEM_SHARED ? " shared" : "");
}

/* Where in and out lie: apart, or in place as the overlap table allows. */
static void place(const variant *v, th_buf *big, th_buf *small, void **in, void **out) {
    sizes n = sizes_of(v);
    *big = th_buf_new(v->in_place ? (n.in > n.out ? n.in : n.out) : n.in, v->d, v->mem, v->shift);
    *small = th_buf_new(v->in_place ? 0 : n.out, v->d, v->mem, v->shift);
    *in = big->data;
    *out = v->in_place ? big->data : small->data;
    void **own = n.in < n.out ? in : out; /* the shorter one is this rank's block of the other */
    if (v->in_place && v->k != ALLTOALLV && n.in != n.out) {
        *own = at(big->data, v->d, before(v, th_rank()));
    }
}

/* What NCCL has for certain; of the rest what DTR_BACKEND=cuda:nccl alone does not serve is refused
 * before anything moves (nccl:A13). */
static bool nccl_has(const variant *v) {
    static const dtr_dtype types[] = { DTR_I8,  DTR_U8,  DTR_I32,  DTR_U32, DTR_I64,
                                       DTR_U64, DTR_F16, DTR_BF16, DTR_F32, DTR_F64 };
    bool known = false;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        known = known || v->d == types[i];
    }
    return v->k != SCAN && v->k != EXSCAN &&
           (!reduces(v->k) ||
            (known && (v->op == DTR_SUM || v->op == DTR_PROD || v->op == DTR_MIN ||
                       v->op == DTR_MAX || v->op == DTR_AVG || v->op == DTR_PREMUL_SUM)));
}

static int n_refused;

static bool is_refused(const variant *v, dtr_status s, const th_buf *small) {
    const bool yes = s == DTR_ERR_UNSUPPORTED && nccl_is_alone() && !nccl_has(v);
    TH_CHECK(!yes || th_buf_ok(small, true), "a refused call has written");
    n_refused += yes;
    return yes;
}

static void run(const variant *v) {
    char what[160];
    describe(v, what, sizeof what);
    sizes n = sizes_of(v);
    th_buf big, small;
    void *in = NULL, *out = NULL;
    place(v, &big, &small, &in, &out);
    fill(v, in, th_rank());
    void *want = malloc(n.out * dtr_dtype_size(v->d) + 1),
         *keep = malloc(n.in * dtr_dtype_size(v->d) + 1);
    expect(v, want);
    memcpy(keep, in, n.in * dtr_dtype_size(v->d));
    dtr_work *work = NULL;
    mirror a = mirror_new(&big), b = mirror_new(&small);
    dtr_status s = start(v, th_group(), located(in, n.in, v->d, &a, &b),
                         located(out, n.out, v->d, &a, &b), v->async ? &work : NULL);
    TH_CHECK(s == DTR_OK || is_refused(v, s, &small), "%s: %s: %s", what, dtr_status_name(s),
             dtr_last_error_message());
    if (v->async && s == DTR_OK) {
        s = dtr_work_wait(work, -1);
        TH_CHECK(s == DTR_OK, "%s: wait: %s: %s", what, dtr_status_name(s),
                 dtr_last_error_message());
        dtr_work_release(work);
    }
    mirror_end(&a);
    mirror_end(&b);
    const void *got = v->k == BROADCAST && th_rank() == v->root ? in : out;
    size_t bad = s == DTR_OK
                     ? matrix_differs(got, want, v->d, n.out, reduces(v->k) && v->op == DTR_AVG)
                     : n.out;
    TH_CHECK(bad == n.out, "%s: element %zu is %g, want %g", what, bad,
             th_get(got, v->d, bad, false), th_get(want, v->d, bad, false));
    bool kept = !v->in_place || v->k == SCATTER || v->k == SCATTERV; /* its block is the result */
    TH_CHECK(!kept || th_differs(in, keep, v->d, n.in) == n.in, "%s: the input was written", what);
    TH_CHECK(th_buf_ok(&big, false) && th_buf_ok(&small, false), "%s: guard words were overwritten",
             what);
    TH_CHECK(v->k != BROADCAST || th_rank() != v->root || v->in_place || th_buf_ok(&small, true),
             "%s: broadcast wrote at the root", what);
    free(want);
    free(keep);
    th_buf_free(&big);
    th_buf_free(&small);
}

static void run_forms(variant v) {
    for (int form = 0; form < (device != NULL ? 4 : 8); form++) {
        v.async = form & 1;
        v.in_place = form & 2;
        v.mem = form & 4 ? DTR_MEM_SHARED : DTR_MEM_DEFAULT;
        if (!v.in_place || takes_in_place(v.k)) {
            run(&v);
        }
    }
}

/* T120, T23, T36, nccl:A1, nccl:A7, nccl:A9: reducing calls, every legal pair; illegal ones give
 * DTR_ERR_DTYPE alike on all ranks. */
START_TEST(every_dtype_and_op) {
    for (size_t d = 0; d < TH_DTYPES; d++) {
        for (size_t o = 0; o < TH_OPS; o++) {
            variant v = {
                .d = th_all_dtypes[d], .op = th_all_ops[o], .count = 67, .root = th_size() - 1
            };
            for (v.k = 0; v.k < COLLECTIVES_WITH_DATA; v.k++) {
                if (!reduces(v.k)) {
                    continue;
                }
                if (dtr_op_supports(v.op, v.d)) {
                    run_forms(v);
                } else {
                    char a[1100] = { 0 }, b[16 * 1100];
                    sizes n = sizes_of(&v);
                    uint64_t seq = dtr_group_seq(th_group());
                    dtr_status s =
                        start(&v, th_group(), (dtr_buffer){ b, n.in, v.d, { DTR_CPU, 0 } },
                              (dtr_buffer){ a, n.out, v.d, { DTR_CPU, 0 } }, NULL);
                    TH_CHECK(s == DTR_ERR_DTYPE && seq == dtr_group_seq(th_group()), "%s op %d: %s",
                             dtr_dtype_name(v.d), (int)v.op, dtr_status_name(s));
                }
            }
        }
    }
    if (n_refused > 0 && th_rank() == 0) {
        printf("%d calls that NCCL alone does not have were refused\n", n_refused);
    }
    TH_AGREE();
}
END_TEST

/* COL1, COL15, COL36, T32, T33, T35: movement takes every dtype. */
START_TEST(every_dtype_moves) {
    for (size_t d = 0; d < TH_DTYPES; d++) {
        variant v = { .d = th_all_dtypes[d], .count = 13, .root = th_size() / 2 };
        for (v.k = 0; v.k < COLLECTIVES_WITH_DATA; v.k++) {
            if (!reduces(v.k)) {
                run_forms(v);
            }
        }
    }
    TH_AGREE();
}
END_TEST

START_TEST(every_root) { /* COL1, COL10, COL19, COL22, T27 */
    static const kind rooted[] = { BROADCAST, REDUCE, GATHER, GATHERV, SCATTER, SCATTERV };
    for (size_t i = 0; i < sizeof rooted / sizeof rooted[0]; i++) {
        for (int root = 0; root < th_size(); root++) {
            run_forms((variant){
                .k = rooted[i], .d = DTR_F32, .op = DTR_SUM, .count = 100, .root = root });
        }
    }
    TH_AGREE();
}
END_TEST

/* T121; crosses the thresholds between algorithms. 0 elements are in nothing_at_all, 16 Mi in
 * largest_size. */
static void sizes_up_to(size_t most) {
    static const size_t counts[] = { 1,    2,     3,     7,      8,       9,      63,
                                     64,   65,    255,   513,    1023,    1024,   1025,
                                     4099, 16384, 65537, 300001, 1048576, 1300003 };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0] && counts[i] <= most; i++) {
        variant v = { .d = DTR_F32, .op = DTR_SUM, .count = counts[i], .root = 0 };
        for (v.k = 0; v.k < COLLECTIVES_WITH_DATA; v.k++) {
            size_t cost = v.k <= EXSCAN ? 1 : (size_t)th_size();
            if (counts[i] * cost <= most) {
                v.async = !v.async;
                v.mem = i % 2 == 0 ? DTR_MEM_DEFAULT : DTR_MEM_SHARED;
                run(&v);
                v.in_place = takes_in_place(v.k);
                v.mem = i % 2 == 1 ? DTR_MEM_DEFAULT : DTR_MEM_SHARED;
                run(&v);
                v.in_place = false;
            }
        }
        TH_AGREE();
    }
}

START_TEST(every_size) {
    sizes_up_to(device != NULL ? (size_t)1 << 16
                : TH_SANITIZED ? (size_t)1 << 17
                               : (size_t)4 << 20);
}
END_TEST

/* T121: 16 Mi + 3 elements, of a byte: in 4 they would take gigabytes on one machine. Calls that
 * have a block per rank have so many in all. */
START_TEST(largest_size) {
    const size_t most = ((size_t)16 << (TH_SANITIZED ? 14 : 20)) + 3;
    for (int k = 0; k < COLLECTIVES_WITH_DATA; k++) {
        variant v = { .k = (kind)k, .d = DTR_U8, .op = DTR_SUM, .root = th_size() - 1 };
        v.count = k <= EXSCAN ? most : most / (size_t)th_size() + 1;
        v.async = k % 2 == 0;
        run(&v);
        v.in_place = takes_in_place(v.k);
        v.mem = DTR_MEM_SHARED;
        v.async = !v.async;
        run(&v);
        TH_AGREE();
    }
}
END_TEST

START_TEST(odd_alignment) { /* T122 */
    static const dtr_dtype some[] = { DTR_U8, DTR_F16, DTR_F32, DTR_C128 };
    for (size_t d = 0; d < 4; d++) {
        for (size_t shift = 1; shift <= 3; shift++) {
            variant v = {
                .d = some[d], .op = DTR_SUM, .count = 1001, .shift = shift * dtr_dtype_size(some[d])
            };
            for (v.k = 0; v.k < COLLECTIVES_WITH_DATA; v.k++) {
                v.mem = shift == 2 ? DTR_MEM_SHARED : DTR_MEM_DEFAULT;
                run(&v);
            }
        }
    }
    TH_AGREE();
}
END_TEST

START_TEST(nothing_at_all) { /* T05, COL39 */
    uint64_t seq = dtr_group_seq(th_group());
    for (size_t d = 0; d < TH_DTYPES; d++) {
        variant v = { .d = th_all_dtypes[d], .op = DTR_MAX };
        for (v.k = 0; v.k < COLLECTIVES_WITH_DATA; v.k++) {
            v.op = dtr_op_supports(DTR_SUM, v.d) ? DTR_SUM : DTR_MINLOC;
            for (int async = 0; async < 2; async++) {
                dtr_work *work = NULL;
                dtr_buffer none = { NULL, 0, v.d, { DTR_CPU, 0 } };
                TH_IS(start(&v, th_group(), none, none, async ? &work : NULL), DTR_OK);
                TH_IS(dtr_work_wait(work, -1), DTR_OK);
                TH_IS(dtr_work_release(work), DTR_OK);
                seq++;
            }
        }
    }
    TH_CHECK(dtr_group_seq(th_group()) == seq, "seq %llu, want %llu",
             (unsigned long long)dtr_group_seq(th_group()), (unsigned long long)seq);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* T33, COL39, CHK1: blocks of some ranks, or of all but one, are empty and their buffers NULL. */
START_TEST(nothing_on_some_ranks) {
    static const kind some[] = { ALLGATHERV, GATHERV, SCATTERV, REDUCE_SCATTERV, ALLTOALLV };
    unsigned all = (1U << th_size()) - 1;
    const unsigned empty[] = { 1, 2, 5, 10, 1U << (th_size() - 1), all - 1, all - 4, all };
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        for (size_t e = 0; e < sizeof empty / sizeof empty[0]; e++) {
            for (int root = 0; root<th_size(); root += th_size()> 1 ? th_size() - 1 : 1) {
                run_forms((variant){ .k = some[i],
                                     .d = DTR_I32,
                                     .op = DTR_SUM,
                                     .count = 1 + e % 2 * 1000,
                                     .empty = empty[e],
                                     .root = root });
            }
        }
    }
    TH_AGREE();
}
END_TEST

/* T126: many operations of many sizes and kinds under way at once, waited in reverse. */
START_TEST(mixed_sizes_outstanding) {
    enum { N = 64 };
    variant v[N];
    th_buf in[N], out[N];
    dtr_work *work[N];
    th_rng g = { 42 };
    for (int i = 0; i < N; i++) {
        v[i] = (variant){ .k = (kind)(th_next(&g) % COLLECTIVES_WITH_DATA),
                          .d = DTR_I32,
                          .op = DTR_SUM,
                          .root = i % th_size() };
        v[i].count = (size_t)1 << th_next(&g) % 17;
        v[i].mem = i % 3 == 0 ? DTR_MEM_SHARED : DTR_MEM_DEFAULT;
        place(&v[i], &in[i], &out[i], &(void *){ NULL }, &(void *){ NULL });
        fill(&v[i], in[i].data, th_rank());
    }
    for (int i = 0; i < N; i++) {
        sizes n = sizes_of(&v[i]);
        work[i] = NULL;
        TH_IS(start(&v[i], th_group(), dtr_cpu(in[i].data, n.in, DTR_I32),
                    dtr_cpu(out[i].data, n.out, DTR_I32), &work[i]),
              DTR_OK);
    }
    for (int i = N - 1; i >= 0; i--) {
        sizes n = sizes_of(&v[i]);
        TH_IS(dtr_work_wait(work[i], -1), DTR_OK);
        TH_IS(dtr_work_release(work[i]), DTR_OK);
        void *want = malloc(n.out * 4 + 1);
        expect(&v[i], want);
        const void *got = v[i].k == BROADCAST && th_rank() == v[i].root ? in[i].data : out[i].data;
        TH_CHECK(th_differs(got, want, DTR_I32, n.out) == n.out, "operation %d (%s) is wrong", i,
                 kind_names[v[i].k]);
        free(want);
        th_buf_free(&in[i]);
        th_buf_free(&out[i]);
    }
    TH_AGREE();
}
END_TEST

static void *keep_busy(void *stop) {
    while (!atomic_load((atomic_bool *)stop)) {
    }
    return NULL;
}

/* COL3, T125: in place, a result must not overwrite what a slower rank has yet to read. Busy
 * threads beside the odd ranks stop them at any point of the exchange. */
START_TEST(in_place_with_slow_ranks) {
    enum { THREADS = 3 };
    pthread_t thread[THREADS];
    atomic_bool stop = false;
    int n = th_rank() % 2 == 1 ? THREADS : 0;
    for (int i = 0; i < n; i++) {
        pthread_create(&thread[i], NULL, keep_busy, &stop);
    }
    for (int i = 0; i < 5; i++) { /* 4 MiB: where the peers' memory is read, if it is at all */
        run(&(variant){
            .k = (const kind[]){ REDUCE_SCATTER, ALLREDUCE, SCAN, EXSCAN, ALLTOALLV }[i % 5],
            .d = DTR_F32,
            .op = DTR_SUM,
            .count = TH_SANITIZED ? 100001 : 1048579,
            .async = i % 2 == 0,
            .in_place = true });
    }
    atomic_store(&stop, true);
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
    }
    TH_AGREE();
}
END_TEST

static bool only_largest; /* "largest" as argument */

static void make(Suite *s) {
    TCase *tc = th_case(s, "matrix", 200);
    if (only_largest) {
        th_add(tc, largest_size, 1, 0);
        return;
    }
    th_add(tc, every_dtype_and_op, 1, 0);
    th_add(tc, every_dtype_moves, 1, 0);
    th_add(tc, every_root, 1, 0);
    th_add(tc, every_size, 1, 4);
    th_add(tc, odd_alignment, 1, 0);
    th_add(tc, nothing_on_some_ranks, 1, 0);
    if (device != NULL) {
        return;
    }
    th_add(tc, nothing_at_all, 1, 0);
    th_add(tc, mixed_sizes_outstanding, 1, 0);
    th_add(tc, in_place_with_slow_ranks, 2, 4);
}

int main(int argc, char **argv) {
    only_largest = argc > 1 && strcmp(argv[1], "largest") == 0;
    if (!find_device()) {
        return 1;
    }
    return th_main(argc, argv, "matrix", make);
}
