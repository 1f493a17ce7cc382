/* Groups on the stand-ins for CUDA and NCCL: set up with a device of their own, split from their
 * parent, what they say of themselves, and coalescing scopes of device buffers. */
#include <stdio.h>
#include <string.h>

#include <dtr/backend.h>
#include <dtr/mpi.h>
#include <dtr/tensor.h>

#include "harness.h"
#include "nccl_data.h"

enum { MANY = 50 };

static dtr_group_options bound(const char *name) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.name = name;
    o.device = gpu;
    o.has_device = true;
    return o;
}

static dtr_group *make(const dtr_group_options *o) {
    dtr_group *g = NULL;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), o, &g), DTR_OK);
    TH_AGREE();
    return g;
}

static dtr_group_stats stats_of(const dtr_group *g) {
    dtr_group_stats s = DTR_GROUP_STATS_INIT;
    TH_IS(dtr_group_get_stats(g, &s), DTR_OK);
    return s;
}

static int inits(void) {
    return dtr_fake_cuda_log_count("ncclCommInitRankConfig rank");
}

static int splits(void) {
    return dtr_fake_cuda_log_count("ncclCommSplit rank");
}

/* nccl:C10, nccl:C12, nccl:D13, nccl:B10, nccl:D21, groups:INI15, reliability:N14: the communicator
 * is there before the first collective. nccl:C1: a group without a device made none. */
START_TEST(C10_connect) {
    int many = th_size() > 1;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.name = "later";
    dtr_group *g = make(&o);
    dtr_fake_cuda_log_start();
    TH_IS(dtr_group_connect(g, gpu), DTR_OK);
    TH_IS(dtr_group_connect(g, gpu), DTR_OK);
    TH_CHECK(inits() == many, "%d communicators", inits());
    TH_CHECK(stats_of(g).comms_by_init == (uint64_t)many, "made by init");
    TH_CHECK(dtr_group_seq(g) == 0, "it took a number");
    TH_AGREE();
    allreduce_good(g);
    TH_CHECK(inits() == many, "%d communicators", inits());
    TH_IS(dtr_group_connect(g, (dtr_device){ DTR_CUDA, 77 }), DTR_ERR_DEVICE);
    TH_IS(dtr_group_connect(g, (dtr_device){ DTR_CPU, 0 }), DTR_OK);
    TH_IS(dtr_group_connect(NULL, gpu), DTR_NOT_MEMBER);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
    o = bound("early");
    dtr_fake_cuda_log_start();
    g = make(&o);
    TH_CHECK(inits() == many, "%d communicators inside creation", inits());
    allreduce_good(g);
    TH_CHECK(inits() == many, "%d communicators", inits());
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* groups:INI15, nccl:D24: what fails of a device fails in creation, on all ranks; the name is free
 * again. */
START_TEST(INI15_failed_creation) {
    int last = th_size() - 1;
    char rank[16];
    dtr_group *g = NULL;
    dtr_group_options o = bound("again");
    snprintf(rank, sizeof rank, "%d", last);
    fault("DTR_FAKE_NCCL_INIT_FAIL_RANK", rank);
    dtr_status s = dtr_group_create(th_world(), NULL, th_size(), &o, &g);
    TH_CHECK(th_rank() == last ? s == DTR_ERR_NCCL : s < 0, "%s", dtr_status_name(s));
    TH_MESSAGE("injected failure of init");
    TH_CHECK(g == NULL, "there is a group");
    TH_CHECK(dtr_world_find_group(th_world(), "again") == NULL, "the name is taken");
    th_barrier();
    fault("DTR_FAKE_NCCL_INIT_FAIL_RANK", NULL);
    TH_AGREE();
    g = make(&o);
    allreduce_good(g);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* The communicator has the group's ranks in the group's order: what its first one sends arrives. */
static void order_good(dtr_group *g) {
    dtr_buffer b = filled(100, (float)(1 + dtr_group_rank(g)));
    TH_IS(dtr_broadcast(g, b, 0, NULL, NULL), DTR_OK);
    check(b, 1, 1, "broadcast of the first rank");
    drop(b);
}

/* nccl:F1, nccl:F2, nccl:F3, nccl:F4, nccl:F5, nccl:F8, groups:NEW21, groups:NEW22,
 * collectives:NCO14: groups of a connected parent are split from it by all its ranks, with and
 * without a group of their own; those of another are made afresh. */
START_TEST(F1_split) {
    dtr_group_options o = bound("parent"), half = DTR_GROUP_OPTIONS_INIT;
    dtr_group *parent = make(&o), *child = NULL;
    int rank = th_rank(), last = th_size() - 1;
    int color = rank == last ? DTR_COLOR_NONE : 0;
    dtr_fake_cuda_log_start();
    TH_IS(dtr_group_split(parent, color, -rank, &half, &child), DTR_OK);
    int many = th_size() > 2; /* one rank needs none */
    TH_CHECK((child == NULL) == (rank == last), "who has a group");
    TH_CHECK(splits() == 1 && inits() == 0, "%s", dtr_fake_cuda_log_text());
    if (child != NULL) {
        TH_CHECK(dtr_group_rank(child) == last - 1 - rank, "the order is the key's");
        TH_CHECK(stats_of(child).comms_by_split == (uint64_t)many, "made by split");
        TH_CHECK(stats_of(child).comms_by_init == 0, "made by init");
        allreduce_good(child);
        order_good(child);
        TH_CHECK(inits() == 0, "%d communicators more", inits());
    }
    TH_AGREE();
    TH_IS(dtr_group_destroy(child), DTR_OK);
    TH_AGREE();
    TH_IS(dtr_group_split(parent, rank % 2, -rank, &half, &child), DTR_OK); /* two groups at once */
    allreduce_good(child);
    order_good(child);
    TH_AGREE();
    TH_OK(dtr_group_destroy(child));
    half.backend = "cpu:auto,cuda:stage"; /* nobody needs NCCL */
    dtr_fake_cuda_log_start();
    TH_IS(dtr_group_split(parent, 0, 0, &half, &child), DTR_OK);
    TH_CHECK(splits() == 0, "a split for stage");
    TH_AGREE();
    TH_OK(dtr_group_destroy(child));
    TH_OK(dtr_group_destroy(parent));
    parent = make(NULL); /* not connected */
    o = bound("fresh");
    TH_IS(dtr_group_split(parent, 0, 0, &o, &child), DTR_OK);
    TH_CHECK(splits() == 0 && inits() == 1, "%s", dtr_fake_cuda_log_text());
    allreduce_good(child);
    TH_AGREE();
    TH_OK(dtr_group_destroy(child));
    TH_OK(dtr_group_destroy(parent));
}
END_TEST

/* nccl:R5, reliability:N8, reliability:N14, reliability:S3. */
START_TEST(R5_drain_and_numbers) {
    dtr_group *g = make(NULL);
    cudaStream_t stream;
    cudaEvent_t open;
    dtr_group_stats s = stats_of(g);
    TH_CHECK(s.issued.seq == 0 && strcmp(s.issued.kind, "") == 0, "issued %s", s.issued.kind);
    TH_IS(dtr_group_drain(g, 0), DTR_OK);
    allreduce_good(g);
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.stream = stream;
    dtr_work *w = NULL;
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, stream);
    TH_IS(dtr_broadcast(g, b, 0, &o, &w), DTR_OK);
    TH_IS(dtr_group_drain(g, 0), DTR_IN_PROGRESS);
    s = stats_of(g);
    TH_CHECK(s.issued.seq == 2 && strcmp(s.issued.kind, "broadcast") == 0 && s.issued.count_in == N,
             "issued %s #%d", s.issued.kind, (int)s.issued.seq);
    TH_CHECK(s.finished.seq < 2, "finished %s #%d", s.finished.kind, (int)s.finished.seq);
    dtr_fake_cuda_hold(open, 0);
    TH_IS(dtr_group_drain(g, -1), DTR_OK);
    bool done = false;
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(done, "unfinished after the drain");
    s = stats_of(g);
    TH_CHECK(s.finished.seq == 2 && s.errors == 0 && s.helpers_left == 0, "finished #%d",
             (int)s.finished.seq);
    TH_IS(dtr_group_get_stats(g, NULL), DTR_ERR_ARG);
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_group_drain(g, -1), DTR_ERR_STATE);
    TH_IS(dtr_coalesce_end(g, NULL), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
    drop(b);
    TH_AGREE();
    TH_OK(dtr_group_abort(g, "enough"));
    TH_IS(dtr_group_drain(g, -1), DTR_ERR_ABORTED);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* nccl:V2, nccl:V3, nccl:V6, nccl:D6, nccl:L1, collectives:COA1, COA14: one native group, after the
 * communicator; the streams wait for all of it, and nobody before its end. */
START_TEST(V6_one_native_group) {
    int many = th_size() > 1;
    dtr_group *g = make(NULL);
    dtr_buffer a = filled(N, 1), b = filled(2 * N, 2), c = filled(N, (float)th_rank());
    dtr_work *w = NULL, *whole = NULL;
    dtr_fake_cuda_log_start();
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_allreduce(g, a, a, DTR_SUM, NULL, &w), DTR_OK);
    TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL), DTR_OK);
    TH_IS(dtr_broadcast(g, c, th_size() - 1, NULL, NULL), DTR_OK);
    TH_CHECK(dtr_fake_cuda_log_count("nccl") == 0, "%s", dtr_fake_cuda_log_text());
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_STATE);
    TH_CHECK(dtr_group_seq(g) == 0, "a number inside");
    TH_IS(dtr_coalesce_end(g, &whole), DTR_OK);
    TH_CHECK(w == whole && dtr_work_seq(w) == 1 && dtr_group_seq(g) == 1, "one number");
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(dtr_fake_cuda_log_count("Synchronize") == 0, "the host waited for the device");
    const char *log = dtr_fake_cuda_log_text();
    const char *init = strstr(log, "ncclCommInitRankConfig"),
               *start = strstr(log, "ncclGroupStart");
    TH_CHECK(!many || (init != NULL && start != NULL && init < start), "%s", log);
    TH_CHECK(dtr_fake_cuda_log_count("ncclGroupEnd depth 0") == many, "%s", log);
    check(a, 1, (float)th_size(), "sum");
    check(b, 2, 1, "max");
    check(c, (float)(th_size() - 1), 1, "broadcast");
    TH_IS(dtr_work_synchronize(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_work_release(whole), DTR_OK);
    drop(a);
    drop(b);
    drop(c);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* Calls of all sorts, some of which NCCL lacks. */
static dtr_status call_number(dtr_group *g, int i, dtr_buffer b) {
    dtr_buffer whole = { b.data, b.count, DTR_I32, gpu };
    return i % 10 == 9  ? dtr_allreduce(g, whole, whole, DTR_BXOR, NULL, NULL)
           : i % 3 == 2 ? dtr_broadcast(g, b, i % th_size(), NULL, NULL)
                        : dtr_allreduce(g, b, b, i % 2 ? DTR_SUM : DTR_AVG, NULL, NULL);
}

/* nccl:V10, nccl:V11, nccl:V13, collectives:COA4, COA7, COA9: fifty buffers of all sorts, what NCCL
 * lacks among them, messages and a barrier: as the calls alone. */
START_TEST(V11_mixed) {
    int size = th_size(), next = (th_rank() + 1) % size, before = (th_rank() + size - 1) % size;
    dtr_buffer one[MANY], all[MANY];
    dtr_group *g = th_group();
    for (int i = 0; i < MANY; i++) {
        one[i] = filled((size_t)(i * i % 700 + 1), (float)(i % 5));
        all[i] = filled((size_t)(i * i % 700 + 1), (float)(i % 5));
    }
    dtr_buffer in = device_f32(N), out = filled(N, (float)th_rank());
    dtr_buffer blocks = filled(4 * (size_t)size, 1);
    for (int i = 0; i < MANY; i++) {
        TH_IS(call_number(g, i, one[i]), DTR_OK);
    }
    TH_AGREE();
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    for (int i = 0; i < MANY; i++) {
        TH_IS(call_number(g, i, all[i]), DTR_OK);
        if (i == 20 && size > 1) {
            TH_IS(dtr_send(g, out, next, 0, NULL, NULL), DTR_OK);
            TH_IS(dtr_recv(g, in, before, 0, NULL, NULL), DTR_OK);
            TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
            TH_IS(dtr_alltoall(g, blocks, blocks, NULL, NULL), DTR_OK);
        }
    }
    dtr_work *w = NULL;
    TH_IS(dtr_coalesce_end(g, &w), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    for (int i = 0; i < MANY; i++) {
        float x[700], y[700];
        get(x, one[i]);
        get(y, all[i]);
        TH_CHECK(memcmp(x, y, one[i].count * sizeof x[0]) == 0, "buffer %d differs", i);
        drop(one[i]);
        drop(all[i]);
    }
    if (size > 1) {
        check(in, (float)before, 1, "ring");
    }
    drop(in);
    drop(out);
    drop(blocks);
    TH_AGREE();
}
END_TEST

/* nccl:V3, nccl:V8, nccl:B4, collectives:COA12, COA16, COA18: calls are checked where they are
 * made; a bad one ends the scope and nothing starts; the group is fine. */
START_TEST(V8_bad_call) {
    cudaStream_t stream;
    dtr_group *g = th_group();
    dtr_buffer a = filled(N, 1), b = filled(N, 1);
    float host[4] = { 0 };
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    o.stream = stream;
    uint64_t seq = dtr_group_seq(g);
    for (int bad = 0; bad < 3; bad++) {
        dtr_status want = bad == 0 ? DTR_ERR_DEVICE : DTR_ERR_ARG;
        dtr_work *w = NULL;
        dtr_fake_cuda_log_start();
        TH_IS(dtr_coalesce_begin(g), DTR_OK);
        TH_IS(dtr_allreduce(g, a, a, DTR_SUM, NULL, &w), DTR_OK);
        dtr_buffer h = dtr_cpu(host, 4, DTR_F32);
        dtr_status s = bad == 0   ? dtr_allreduce(g, h, h, DTR_SUM, NULL, NULL)
                       : bad == 1 ? dtr_allreduce(g, b, b, DTR_SUM, &o, NULL)
                                  : dtr_allreduce(g, a, b, DTR_SUM, NULL, NULL);
        TH_IS(s, want);
        TH_MESSAGE("call 2 of the coalescing scope");
        TH_IS(dtr_work_wait(w, -1), DTR_ERR_ABORTED);
        TH_IS(dtr_coalesce_end(g, NULL), want);
        TH_IS(dtr_work_release(w), DTR_OK);
        TH_CHECK(dtr_fake_cuda_log_count("nccl") == 0, "%s", dtr_fake_cuda_log_text());
        TH_AGREE();
    }
    TH_CHECK(dtr_group_seq(g) == seq, "the sequence moved");
    cudaStreamDestroy(stream);
    drop(a);
    drop(b);
    TH_AGREE();
    allreduce_good(g);
    TH_AGREE();
}
END_TEST

/* nccl:V8, nccl:G5, collectives:NCP11, NCP14: a launch that fails on one rank breaks the group; no
 * native group stays open.
 */
START_TEST(V8_failed_launch) {
    int last = th_size() - 1;
    dtr_group *g = make(NULL);
    allreduce_good(g);
    TH_IS(dtr_group_drain(g, -1), DTR_OK); /* its end has been seen, or it would fail too */
    dtr_buffer a = filled(N, 1), b = filled(N, 1);
    TH_AGREE();
    fault_on_culprit("DTR_FAKE_NCCL_ERR", "ncclGroupEnd:1:3");
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_allreduce(g, a, a, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_OK);
    th_barrier(); /* the notification may reach the others in the next call */
    dtr_work *w = NULL;
    dtr_status s = dtr_coalesce_end(g, &w);
    TH_CHECK(th_rank() != last || (s == DTR_ERR_NCCL && w == NULL), "%s", dtr_status_name(s));
    s = s == DTR_OK ? dtr_work_synchronize(w, -1) : s;
    TH_CHECK(s < 0, "%s", dtr_status_name(s));
    TH_MESSAGE("ncclGroupEnd");
    fault("DTR_FAKE_NCCL_ERR", NULL);
    TH_IS(dtr_work_release(w), DTR_OK);
    th_barrier();
    TH_CHECK(stats_of(g).errors == 1, "errors counted: %d", (int)stats_of(g).errors);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    drop(a);
    drop(b);
    TH_AGREE();
    allreduce_good(th_group());
    TH_AGREE();
}
END_TEST

/* nccl:A11: what was made for the calls of a scope is given back; nccl:V5. */
START_TEST(A11_factors_in_a_scope) {
    int many = th_size() > 1;
    dtr_buffer a = filled(N, 1), b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    o.premul = 2;
    allreduce_good(th_group());
    dtr_fake_cuda_log_start();
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), a, a, DTR_PREMUL_SUM, &o, NULL), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_PREMUL_SUM, &o, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    check(a, 1, 2 * (float)th_size(), "twice the sum");
    check(b, 1, 2 * (float)th_size(), "twice the sum");
    TH_CHECK(dtr_fake_cuda_log_count("ncclRedOpCreatePreMulSum type") == 2 * many, "created");
    TH_CHECK(dtr_fake_cuda_log_count("ncclRedOpDestroy") == 2 * many, "not destroyed");
    drop(a);
    drop(b);
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), &w), DTR_OK);
    TH_IS(dtr_work_wait(w, 0), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- rows of groups.md and collectives.md ---- */

/* groups:GRP20, collectives:OBJ18: byte strings, barriers and creation of a group for device
 * buffers alone travel on the host: nothing is copied, nothing is asked of NCCL. */
START_TEST(GRP20_on_the_host) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_bytes all[16], mine = { &(char){ (char)th_rank() }, 1 };
    o.backend = "cuda:nccl";
    allreduce_good(th_group());
    dtr_fake_cuda_log_start();
    dtr_group *g = make(&o);
    TH_IS(dtr_allgather_bytes(g, mine, NULL, all), DTR_OK);
    TH_IS(dtr_monitored_barrier(g, -1, true, NULL, NULL), DTR_OK);
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
    TH_CHECK(dtr_fake_cuda_log_count("cudaMemcpy") == 0 && dtr_fake_cuda_log_count("nccl") == 0,
             "%s", dtr_fake_cuda_log_text());
    for (int i = 0; i < th_size(); i++) {
        TH_CHECK(all[i].nbytes == 1 && *(char *)all[i].data == (char)i, "string of rank %d", i);
    }
    dtr_bytes_free(all, (size_t)th_size());
    allreduce_good(g);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* groups:GRP23: a group without a device of its own has the world's, by which it is split. */
START_TEST(GRP23_the_worlds_device) {
    dtr_world_options wo = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    dtr_group *g = NULL;
    wo.keep_mpi = wo.has_device = true;
    wo.device = gpu;
    TH_OK(dtr_world_create(&wo, &w));
    dtr_fake_cuda_log_start();
    TH_IS(dtr_group_create(w, NULL, th_size(), NULL, &g), DTR_OK);
    TH_CHECK(splits() == (th_size() > 1) && inits() == 0, "%s", dtr_fake_cuda_log_text());
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}
END_TEST

static int toys[2]; /* made, ended */

static dtr_status toy_create(const dtr_backend_args *a, void **state) {
    (void)a;
    *state = &toys[toys[0]++];
    return DTR_OK;
}

static void toy_destroy(void *state) {
    toys[1] += state != NULL;
}

/* groups:CFG12: chosen for both device types, a backend is made once and ended once. */
START_TEST(CFG12_one_instance) {
    dtr_backend_ops ops = DTR_BACKEND_OPS_INIT;
    dtr_world *w = NULL;
    ops.create = toy_create;
    ops.destroy = toy_destroy;
    TH_OK(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w));
    TH_IS(dtr_backend_register(w, "toy", &ops, DTR_BACKEND_CPU | DTR_BACKEND_CUDA), DTR_OK);
    static const char *const texts[] = { "toy", "cpu:toy,cuda:toy" };
    for (int i = 0; i < 2; i++) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        dtr_group *g = NULL;
        o.backend = texts[i];
        toys[0] = toys[1] = 0;
        TH_IS(dtr_group_create(w, NULL, th_size(), &o, &g), DTR_OK);
        TH_CHECK(toys[0] == 1 && toys[1] == 0, "%s: made %d, ended %d", texts[i], toys[0], toys[1]);
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_CHECK(toys[0] == 1 && toys[1] == 1, "%s: made %d, ended %d", texts[i], toys[0], toys[1]);
    }
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* Row 2 from all, row 5 + rank from each, twice; on the device or the host. */
static void sparse_rows(dtr_device where, dtr_op op, bool async, dtr_tensor **oi, dtr_tensor **ov,
                        cudaStream_t stream) {
    const dtr_device cpu = { DTR_CPU, 0 };
    const int64_t n = 3, shape[] = { 3, 2 };
    dtr_tensor *i = NULL, *v = NULL, *hi = NULL, *hv = NULL;
    TH_IS(dtr_tensor_empty(th_world(), DTR_I64, cpu, DTR_MEM_DEFAULT, 1, &n, &hi), DTR_OK);
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, cpu, DTR_MEM_DEFAULT, 2, shape, &hv), DTR_OK);
    TH_IS(dtr_tensor_empty(th_world(), DTR_I64, where, DTR_MEM_DEFAULT, 1, &n, &i), DTR_OK);
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, where, DTR_MEM_DEFAULT, 2, shape, &v), DTR_OK);
    for (int k = 0; k < 3; k++) {
        ((int64_t *)dtr_tensor_data(hi))[k] = k == 1 ? 2 : 5 + th_rank();
        ((float *)dtr_tensor_data(hv))[2 * k] = 1.0F / (float)(3 + th_rank() + k);
        ((float *)dtr_tensor_data(hv))[2 * k + 1] = (float)(th_rank() - k);
    }
    TH_IS(dtr_tensor_copy(i, hi, stream), DTR_OK);
    TH_IS(dtr_tensor_copy(v, hv, stream), DTR_OK);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    o.stream = stream;
    TH_IS(dtr_sparse_allreduce(th_group(), i, v, 30, op, &o, oi, ov, async ? &w : NULL), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    dtr_tensor_release(i);
    dtr_tensor_release(v);
    dtr_tensor_release(hi);
    dtr_tensor_release(hv);
}

static bool same_bits(dtr_tensor *there, dtr_tensor *here, dtr_dtype d) {
    dtr_tensor *copy = NULL;
    const size_t nbytes = dtr_tensor_numel(here) * dtr_dtype_size(d);
    TH_IS(dtr_tensor_empty(th_world(), d, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT,
                           dtr_tensor_ndim(there), dtr_tensor_shape(there), &copy),
          DTR_OK);
    TH_IS(dtr_tensor_copy(copy, there, NULL), DTR_OK);
    const bool same = dtr_tensor_numel(copy) == dtr_tensor_numel(here) &&
                      memcmp(dtr_tensor_data(copy), dtr_tensor_data(here), nbytes) == 0;
    dtr_tensor_release(copy);
    return same;
}

/* collectives:SPA7: rows of the device give on it what those of the host give there; indices are
 * looked at before the call has a number. */
START_TEST(SPA7_sparse_rows) {
    cudaStream_t stream;
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    for (int k = 0; k < 4; k++) {
        dtr_tensor *i = NULL, *v = NULL, *hi = NULL, *hv = NULL;
        const dtr_op op = k / 2 == 0 ? DTR_SUM : DTR_AVG;
        dtr_fake_cuda_log_start();
        sparse_rows(gpu, op, k % 2, &i, &v, stream);
        TH_CHECK(dtr_fake_cuda_log_count("stream=(nil)") == 0, "DB3, the default stream: %s",
                 dtr_fake_cuda_log_text());
        sparse_rows((dtr_device){ DTR_CPU, 0 }, op, k % 2, &hi, &hv, NULL);
        TH_AGREE();
        TH_CHECK(dtr_tensor_device(i).type == DTR_CUDA && dtr_tensor_device(v).type == DTR_CUDA &&
                     dtr_tensor_ndim(v) == 2 &&
                     dtr_tensor_shape(v)[0] == (int64_t)dtr_tensor_numel(i),
                 "where the rows are");
        TH_CHECK(same_bits(i, hi, DTR_I64) && same_bits(v, hv, DTR_F32), "form %d", k);
        uint64_t seq = dtr_group_seq(th_group());
        dtr_tensor *none = NULL;
        TH_IS(dtr_sparse_allreduce(th_group(), i, v, 5, op, NULL, &none, &none, NULL), DTR_ERR_ARG);
        TH_MESSAGE("indices[1] is 5");
        TH_IS(dtr_sparse_allreduce(th_group(), i, hv, 30, op, NULL, &none, &none, NULL),
              DTR_ERR_DEVICE);
        TH_CHECK(none == NULL && dtr_group_seq(th_group()) == seq, "a refused call was counted");
        dtr_tensor_release(i);
        dtr_tensor_release(v);
        dtr_tensor_release(hi);
        dtr_tensor_release(hv);
        TH_AGREE();
    }
    cudaStreamDestroy(stream);
}
END_TEST

/* Sums of a reproducible group go to the host, where they are exact; a backend text with nccl alone
 * refuses them, and nothing else. */
START_TEST(sums_of_reproducible_groups) {
    const float value = th_rank() == 0 ? 1 : 0x1p-24F;
    const float want = 1 + (float)(th_size() / 2) * 0x1p-23F; /* even with 1, 2 and 4 ranks */
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.reproducible = true;
    dtr_group *g = make(&o);
    dtr_buffer b = device_f32(1);
    float got = 0;
    put(b, &value);
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_OK);
    get(&got, b);
    TH_CHECK(th_size() == 2 ? got == 1 : got == (th_size() == 1 ? 1 : want), "sum %a", (double)got);
    TH_AGREE();
    end_group(g);
    o.backend = "cuda:nccl";
    g = make(&o);
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("the group is reproducible");
    TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL), DTR_OK);
    TH_AGREE();
    end_group(g);
    drop(b);
}
END_TEST

static void suite(Suite *s) {
    TCase *tc = th_case(s, "nccl groups", 110);
    th_add(tc, C10_connect, 1, 0);
    th_add(tc, INI15_failed_creation, 2, 0);
    th_add(tc, F1_split, 2, 0);
    th_add(tc, R5_drain_and_numbers, 1, 0);
    th_add(tc, V6_one_native_group, 1, 0);
    th_add(tc, V11_mixed, 1, 0);
    th_add(tc, V8_bad_call, 1, 0);
    th_add(tc, V8_failed_launch, 2, 0);
    th_add(tc, A11_factors_in_a_scope, 1, 0);
    th_add(tc, GRP20_on_the_host, 1, 16);
    th_add(tc, GRP23_the_worlds_device, 1, 0);
    th_add(tc, CFG12_one_instance, 1, 0);
    th_add(tc, SPA7_sparse_rows, 1, 0);
    th_add(tc, sums_of_reproducible_groups, 1, 4);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl groups", suite);
}
