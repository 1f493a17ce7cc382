/* Rules of calls and handles that no other test shows: what is refused with which words on every
 * backend, what is copied, what is sent when nothing need be. */
#include <fenv.h>
#include <locale.h>
#include <mpi.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "core/op.h"
#include "harness.h"
#include "threads.h"
#include "world/world.h"

static dtr_buffer f32s(float *x, size_t n) {
    return dtr_cpu(x, n, DTR_F32);
}

/* ---- messages of this process: MPI's profiling names let a program stand in between ---- */

static atomic_int messages;

int MPI_Isend(const void *buf, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    atomic_fetch_add(&messages, 1);
    return PMPI_Isend(buf, count, type, to, tag, comm, request);
}

int MPI_Issend(const void *buf, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
               MPI_Request *request) {
    atomic_fetch_add(&messages, 1);
    return PMPI_Issend(buf, count, type, to, tag, comm, request);
}

/* DBG14: ranks of one node that agree send nothing; T97: neither does a rank alone. */
START_TEST(DBG14_T97_no_messages) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    float x = 1, y = 0;
    dtr_work *w;
    o.backend = th_size() == 1 ? "cpu:self" : "cpu:shm";
    TH_OK(dtr_group_split(th_group(), 0, 0, &o, &g));
    th_good_allreduce(g);
    int sent = 1, before = 0;
    for (int attempt = 0; attempt < 3 && sent > 0;
         attempt++) { /* notifications of other groups may go out */
        before = messages;
        for (int i = 0; i < 1000; i++) {
            bool async = i % 10 == 0;
            w = NULL;
            TH_IS(dtr_allreduce(g, f32s(&x, 1), f32s(&y, 1), DTR_SUM, NULL, async ? &w : NULL),
                  DTR_OK);
            TH_IS(dtr_work_wait(w, -1), DTR_OK);
            TH_IS(dtr_work_release(w), DTR_OK);
        }
        uint64_t all[64];
        th_gather_u64((uint64_t)(messages - before), all);
        sent = 0;
        for (int r = 0; r < th_size(); r++) {
            sent += (int)all[r];
        }
    }
    TH_CHECK(sent == 0, "%d messages", sent);
    TH_CHECK(y == (float)th_size(), "the sum is %g", y);
    TH_AGREE();
    before = messages;
    TH_OK(dtr_group_destroy(g));
    TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g));
    TH_ALL(th_size() == 1 || th_rank() == 0 || messages > before, "messages are not seen at all");
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* COL5 */
START_TEST(COL5_two_pairs) {
    int64_t in[2] = { 1 + 2 * th_rank(), 2 + 2 * th_rank() }, out[2] = { 0, 0 };
    TH_OK(dtr_allreduce(th_group(), dtr_cpu(in, 2, DTR_I64), dtr_cpu(out, 2, DTR_I64), DTR_SUM,
                        NULL, NULL));
    TH_CHECK(out[0] == 4 && out[1] == 6, "{1,2} and {3,4} give {%lld,%lld}", (long long)out[0],
             (long long)out[1]);
    TH_AGREE();
}
END_TEST

/* ---- one rank ---- */

/* COL6, T97: every operator is the identity; PREMUL_SUM multiplies. */
START_TEST(COL6_one_rank) {
    for (int op = DTR_SUM; op <= DTR_PREMUL_SUM; op++) {
        dtr_dtype d = op >= DTR_BAND && op <= DTR_BXOR ? DTR_I32 : DTR_F32;
        union {
            float f[4];
            int32_t i[4];
        } in, out;
        dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
        o.premul = 0.5;
        for (int k = 0; k < 4; k++) {
            if (d == DTR_F32) {
                in.f[k] = (float)(3 - 2 * k);
            } else {
                in.i[k] = 3 - 2 * k;
            }
        }
        memset(&out, 0, sizeof out);
        dtr_buffer from = dtr_cpu(&in, 4, d), to = dtr_cpu(&out, 4, d);
        for (int call = 0; call < 3; call++) {
            TH_IS(call == 0   ? dtr_allreduce(th_group(), from, to, (dtr_op)op, &o, NULL)
                  : call == 1 ? dtr_reduce(th_group(), from, to, (dtr_op)op, 0, &o, NULL)
                              : dtr_reduce_scatter(th_group(), from, to, (dtr_op)op, &o, NULL),
                  DTR_OK);
            for (int k = 0; k < 4; k++) {
                bool same = d == DTR_I32 ? out.i[k] == in.i[k]
                                         : out.f[k] == in.f[k] * (op == DTR_PREMUL_SUM ? 0.5F : 1);
                TH_CHECK(same, "operator %d, call %d, element %d", op, call, k);
            }
        }
    }
    TH_AGREE();
}
END_TEST

/* ---- refusals ---- */

enum { BAD = 9, ROOM = 64 };

/* Bad call k, the same on all ranks; counts are right but for the fault. */
static dtr_status bad_call(dtr_group *g, int k, const char **word) {
    static float x[ROOM], y[ROOM];
    size_t counts[16], more[16], n = (size_t)th_size();
    for (size_t i = 0; i < n; i++) {
        counts[i] = 2;
    }
    switch (k) {
    case 0: /* COL29 */
        *word = "split evenly";
        return dtr_alltoall(g, f32s(x, 2 * n + 1), f32s(y, 2 * n + 1), NULL, NULL);
    case 1: /* COL12: a wrong sum */
        *word = "add up to";
        return dtr_allgatherv(g, f32s(x, 2), f32s(y, 2 * n + 1), counts, NULL, NULL);
    case 2: /* COL12: a wrong own count */
        *word = "of this rank is 2";
        return dtr_allgatherv(g, f32s(x, 3), f32s(y, 2 * n), counts, NULL, NULL);
    case 3: /* COL25 */
        *word = "of this rank is 2";
        return dtr_reduce_scatterv(g, f32s(x, 2 * n), counts, f32s(y, 1), DTR_SUM, NULL, NULL);
    case 4: /* COL30 */
        *word = "add up to";
        return dtr_alltoallv(g, f32s(x, 2 * n - 1), counts, f32s(y, 2 * n), counts, NULL, NULL);
    case 5:
        *word = "add up to";
        return dtr_alltoallv(g, f32s(x, 2 * n), NULL, f32s(y, 2 * n - 1), counts, NULL, NULL);
    case 6: /* COL30: what it gives itself and takes from itself */
        *word = "for itself";
        memcpy(more, counts, sizeof more);
        more[th_rank()] = 3;
        return dtr_alltoallv(g, f32s(x, 2 * n), counts, f32s(y, 2 * n + 1), more, NULL, NULL);
    case 7: /* A4, A5 */
        *word = "it must have";
        return dtr_allgather(g, f32s(x, 2), f32s(y, 2 * n - 1), NULL, NULL);
    default:
        *word = "same count";
        return dtr_allreduce(g, f32s(x, 2), f32s(y, 3), DTR_SUM, NULL, NULL);
    }
}

/* CHK11, nccl:B7: one place above the backends, so that all say the same. */
START_TEST(CHK11_COL12_COL25_COL29_COL30_counts) {
    static const char *const backends[] = { "cpu:mpi", "cpu:shm", "cpu:hier", "cpu:self" };
    static char said[BAD][512];
    for (int b = 0; b < 4; b++) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        dtr_group *g = NULL;
        o.backend = backends[b];
        o.name = "counts";
        if (b == 3 && th_size() > 1) {
            continue;
        }
        dtr_status made = dtr_group_split(th_group(), 0, 0, &o, &g);
        TH_ALL(made == DTR_OK || b > 0, "%s: %s", backends[b], dtr_last_error_message());
        if (made != DTR_OK) {
            continue; /* one node, or several */
        }
        for (int k = th_size() == 1; k < BAD; k++) { /* one rank divides everything */
            const char *word;
            TH_IS(bad_call(g, k, &word), DTR_ERR_SHAPE);
            TH_MESSAGE(word);
            const char *text = dtr_last_error_message();
            if (b == 0) {
                snprintf(said[k], sizeof said[k], "%s", text);
            }
            TH_CHECK(strcmp(said[k], text) == 0, "%s says \"%s\", not \"%s\"", backends[b], text,
                     said[k]);
        }
        th_good_allreduce(g);
        TH_OK(dtr_group_destroy(g));
    }
}
END_TEST

/* COL9, CHK14, C5, nccl:B12: both buffers of a call on one device, which the group must serve. */
START_TEST(COL9_CHK14_devices) {
    float x = 1, y = 2;
    dtr_buffer host = f32s(&x, 1), cuda = f32s(&y, 1), beyond = f32s(&y, 1);
    cuda.device = (dtr_device){ DTR_CUDA, 0 };
    beyond.device = (dtr_device){ DTR_CUDA, 99 };
    TH_IS(dtr_allreduce(th_group(), host, cuda, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
    TH_IS(dtr_allreduce(th_group(), cuda, host, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
    TH_IS(dtr_broadcast(th_group(), beyond, 0, NULL, NULL), DTR_ERR_DEVICE);
    TH_MESSAGE("cuda:99");
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), host, host, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_broadcast(th_group(), beyond, 0, NULL, NULL), DTR_ERR_DEVICE);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_ERR_DEVICE);
    TH_CHECK(x == 1 && y == 2, "a buffer was written");
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* ---- handles ---- */

static void once(dtr_work *w, dtr_status s, void *arg) {
    (void)w;
    atomic_fetch_add((atomic_int *)arg, s == DTR_OK ? 1 : 100);
}

static void use_handle(dtr_work *w, const char *what, bool collective) {
    atomic_int calls = 0;
    bool done = false;
    TH_IS(dtr_work_on_complete(w, once, &calls), DTR_OK);
    TH_IS(dtr_work_synchronize(w, -1), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_wait(w, 0), DTR_OK);
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(done && calls == 1, "%s: done %d, %d calls", what, done, calls);
    TH_CHECK(dtr_work_seq(w) > 0 && (!collective || dtr_work_seq(w) == dtr_group_seq(th_group())),
             "%s has number %d", what, (int)dtr_work_seq(w));
    TH_CHECK(dtr_work_source(w) == -1, "%s has source %d", what, dtr_work_source(w));
    TH_IS(dtr_work_release(w), DTR_OK);
}

/* WRK2, WRK3, T17: single, coalesced and batched calls have one type of handle. */
START_TEST(WRK2_WRK3_T17_handles) {
    int n = th_size(), next = (th_rank() + 1) % n, last = (th_rank() + n - 1) % n;
    float x = 1, y = 0, a = (float)th_rank(), b = -1;
    dtr_p2p ops[] = { { true, f32s(&a, 1), next, 3 }, { false, f32s(&b, 1), last, 3 } };
    dtr_work *w = NULL;
    TH_IS(dtr_allreduce(th_group(), f32s(&x, 1), f32s(&y, 1), DTR_SUM, NULL, &w), DTR_OK);
    use_handle(w, "an allreduce", true);
    TH_IS(dtr_batch_p2p(th_group(), ops, 2, NULL, &w), DTR_OK);
    use_handle(w, "a batch", false);
    for (int twice = 0; twice < 2; twice++) {
        TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
        TH_IS(dtr_allreduce(th_group(), f32s(&x, 1), f32s(&y, 1), DTR_SUM, NULL, NULL), DTR_OK);
        TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
        TH_IS(dtr_coalesce_end(th_group(), &w), DTR_OK);
        use_handle(w, "a scope", true);
    }
    TH_ALL(y == (float)n && b == (float)last, "values %g and %g", y, b);
}
END_TEST

/* The newest record of an allreduce. */
static dtr__record newest(dtr_world *w) {
    enum { MOST = 4096 };
    static dtr__record all[MOST];
    dtr__record found = { 0 };
    size_t n = dtr__rec_read(w, all, MOST);
    for (size_t i = 0; i < n; i++) {
        found = all[i].kind == DTR__K_ALLREDUCE ? all[i] : found;
    }
    return found;
}

static void limited(dtr_group *g, double own_s, double want_s) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    char label[] = "as it was";
    float x = 1;
    dtr_work *w;
    o.timeout_s = own_s;
    o.label = label;
    TH_IS(dtr_allreduce(g, f32s(&x, 1), f32s(&x, 1), DTR_SUM, &o, &w), DTR_OK);
    memset(label, 'x', sizeof label - 1);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    dtr__record r = newest(th_world());
    double limit = (double)(r.deadline - r.t_issued) * 1e-9;
    TH_CHECK(limit > want_s - 1 && limit < want_s + 40, "limit %g s, not %g", limit, want_s);
    TH_CHECK(strcmp(r.label, "as it was") == 0, "label \"%s\"", r.label);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}

/* ENU15: the label is copied. T06, nccl:K8: limits of call and group, read from the recorder. */
START_TEST(ENU15_T06_labels_and_limits) {
    dtr_group *g[2] = { NULL, NULL };
    const double limits[2] = { 50, 230 };
    for (int i = 0; i < 2; i++) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        dtr_group_info info = { .struct_size = sizeof info };
        o.timeout_s = limits[i];
        TH_OK(dtr_group_split(th_group(), 0, 0, &o, &g[i]));
        TH_IS(dtr_group_get_info(g[i], &info), DTR_OK);
        TH_ALL(info.timeout_cpu_s == limits[i], "the group says %g s", info.timeout_cpu_s);
        limited(g[0], 0, 50);
    }
    limited(g[1], 100, 100);
    limited(g[1], 0, 230);
    for (int i = 0; i < 2; i++) {
        TH_OK(dtr_group_destroy(g[i]));
    }
}
END_TEST

/* ---- byte strings at DTR_DEBUG=detail ---- */

static uint64_t gave, got;

static void keep_hash(void *arg, int level, const char *line) {
    const char *hash = strstr(line, "1234 bytes, hash ");
    (void)arg;
    (void)level;
    if (hash != NULL) {
        uint64_t h = strtoull(hash + strlen("1234 bytes, hash "), NULL, 16);
        *(strstr(line, ": gave string") != NULL ? &gave : &got) = h;
    }
}

/* OBJ3: both sides log length and hash, and they are equal. */
START_TEST(OBJ3_hashes_are_logged) {
    enum { NBYTES = 1234 };
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    static unsigned char text[NBYTES];
    dtr_bytes in = { text, NBYTES }, out = { NULL, 0 };
    uint64_t all[64];
    gave = got = 0;
    o.keep_mpi = true;
    o.log_fn = keep_hash;
    setenv("DTR_DEBUG", "detail", 1);
    TH_OK(dtr_world_create(&o, &w));
    unsetenv("DTR_DEBUG");
    for (int i = 0; i < NBYTES; i++) {
        text[i] = (unsigned char)(i * 7);
    }
    TH_IS(dtr_broadcast_bytes(dtr_world_group(w), th_rank() == 0 ? &in : NULL, 1, 0, NULL,
                              th_rank() == 0 ? NULL : &out),
          DTR_OK);
    th_gather_u64(th_rank() == 0 ? gave : got, all);
    for (int r = 0; r < th_size(); r++) {
        TH_CHECK(all[r] != 0 && all[r] == all[0], "rank %d logged %llx, rank 0 %llx", r,
                 (unsigned long long)all[r], (unsigned long long)all[0]);
    }
    dtr_bytes_free(&out, 1);
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* ---- what a world leaves behind ---- */

enum { SIGNALS = 65 };

typedef struct process {
    struct sigaction action[SIGNALS];
    int rounding, variables;
    unsigned floats; /* flush to zero and its neighbours */
    mode_t mask;
    char locale[64];
} process;

static process process_now(void) {
    process p;
    memset(&p, 0, sizeof p);
    for (int i = 1; i < SIGNALS; i++) {
        (void)sigaction(i, NULL, &p.action[i]);
    }
    p.rounding = fegetround();
    while (environ[p.variables] != NULL) {
        p.variables++;
    }
#ifdef __x86_64__
    p.floats = _mm_getcsr() & ~0x3fU; /* but what has happened so far */
#endif
    p.mask = umask(0);
    (void)umask(p.mask);
    snprintf(p.locale, sizeof p.locale, "%s", setlocale(LC_ALL, NULL));
    return p;
}

static void same_process(const process *a, const process *b, const char *when) {
    for (int i = 1; i < SIGNALS; i++) {
        TH_CHECK(a->action[i].sa_handler == b->action[i].sa_handler &&
                     a->action[i].sa_flags == b->action[i].sa_flags,
                 "%s: signal %d is handled in another way", when, i);
    }
    TH_CHECK(a->rounding == b->rounding && a->floats == b->floats, "%s: rounding", when);
    TH_CHECK(a->mask == b->mask, "%s: umask", when);
    TH_CHECK(a->variables == b->variables, "%s: %d variables, not %d", when, b->variables,
             a->variables);
    TH_CHECK(strcmp(a->locale, b->locale) == 0, "%s: locale %s", when, b->locale);
}

/* T01: what belongs to the process is as it was while a world lives and after it. */
START_TEST(T01_no_side_effects) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    const process before = process_now();
    const int threads = th_threads("");
    o.keep_mpi = true;
    TH_OK(dtr_world_create(&o, &w));
    th_good_allreduce(dtr_world_group(w));
    const process during = process_now();
    TH_OK(dtr_world_destroy(w));
    const process after = process_now();
    same_process(&before, &during, "while it lives");
    same_process(&before, &after, "afterwards");
    while (th_threads("") > threads) { /* one that was joined may still be listed */
        th_sleep(0.001);
    }
    TH_AGREE();
}
END_TEST

/* T04: groups come and go; what they had of the world's memory is given back. */
START_TEST(T04_groups_come_and_go) {
    enum { N = 10 * 10 };
    size_t used = 0;
    const int count = dtr_world_group_count(th_world());
    for (int round = 0; round < 3; round++) {
        dtr_group *g[2] = { NULL, NULL };
        for (int i = 0; i < 2; i++) {
            TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g[i]));
        }
        for (int k = 0; k < 3 * 2; k++) {
            float x[N];
            for (int i = 0; i < N; i++) {
                x[i] = 1;
            }
            TH_IS(dtr_allreduce(g[k % 2], f32s(x, N), f32s(x, N), DTR_SUM, NULL, NULL), DTR_OK);
            TH_CHECK(x[0] == (float)th_size() && x[N - 1] == (float)th_size(), "%g", (double)x[0]);
        }
        for (int i = 0; i < 2; i++) {
            TH_OK(dtr_group_destroy(g[i]));
        }
        const size_t now = dtr__arena_used(th_world());
        used = round == 0 ? now : used; /* what the first one needs may stay for the next */
        TH_CHECK(now == used, "%zu bytes of node-shared memory, %zu after the first", now, used);
    }
    TH_CHECK(dtr_world_group_count(th_world()) == count, "a group is left");
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "rules", 110);
    th_add(tc, DBG14_T97_no_messages, 0, 64);
    th_add(tc, COL5_two_pairs, 2, 2);
    th_add(tc, COL6_one_rank, 1, 1);
    th_add(tc, CHK11_COL12_COL25_COL29_COL30_counts, 0, 16);
    th_add(tc, COL9_CHK14_devices, 0, 0);
    th_add(tc, WRK2_WRK3_T17_handles, 0, 0);
    th_add(tc, ENU15_T06_labels_and_limits, 0, 0);
    th_add(tc, OBJ3_hashes_are_logged, 2, 64);
    th_add(tc, T01_no_side_effects, 0, 0);
    th_add(tc, T04_groups_come_and_go, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "rows_rules", make);
}
