/* The NCCL stand-in by itself, through NCCL's own calls: nccl:DB5, DB6, DB7. What it says holds for
 * the stand-in only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_raw.h"

enum { COUNT = 17000 }; /* more than one chunk of a slot for the wide types */

static void copy(void *to, const void *from, size_t nbytes, enum cudaMemcpyKind kind) {
    void *pinned = NULL;
    TH_CHECK(cudaHostAlloc(&pinned, nbytes, 0) == cudaSuccess, "cudaHostAlloc");
    if (kind == cudaMemcpyHostToDevice) {
        memcpy(pinned, from, nbytes);
    }
    void *dst = kind == cudaMemcpyHostToDevice ? to : pinned;
    const void *src = kind == cudaMemcpyHostToDevice ? pinned : from;
    TH_CHECK(cudaMemcpyAsync(dst, src, nbytes, kind, stream) == cudaSuccess, "copy");
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    if (kind == cudaMemcpyDeviceToHost) {
        memcpy(to, pinned, nbytes);
    }
    cudaFreeHost(pinned);
}

/* ---- reductions: every type and operation on small whole numbers ---- */

static const char *const types[] = { "i8",  "u8",  "i32", "u32",  "i64",    "u64",
                                     "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2" };
static const size_t sizes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };

/* The whole numbers 0..16 as bits of small floats, exact in each. */
static unsigned small_bits(int v, int mantissa, int bias) {
    int e = 0;
    if (v == 0) {
        return 0;
    }
    while (v >> (e + 1) != 0) {
        e++;
    }
    unsigned fraction = (unsigned)(v - (1 << e)) << mantissa >> e;
    return ((unsigned)(e + bias) << mantissa) | fraction;
}

static void put(char *at, ncclDataType_t t, int v) {
    float f = (float)v;
    double d = v;
    uint64_t u = (uint64_t)v;
    uint32_t bf;
    memcpy(&bf, &f, sizeof bf);
    bf >>= 16;
    unsigned half = small_bits(v, 10, 15), e4 = small_bits(v, 3, 7), e5 = small_bits(v, 2, 15);
    const void *from[] = { &u, &u, &u, &u, &u, &u, &half, &f, &d, &bf, &e4, &e5 };
    memcpy(at, from[t], sizes[t]); /* little endian */
}

/* What ranks give: 1 or 2, so that all results are small whole numbers exact in every type. */
static int given(int rank, size_t e) {
    return 1 + (int)((e + (size_t)rank) % 2);
}

static int expected(ncclRedOp_t op, size_t e) {
    int a = given(0, e);
    for (int r = 1; r < th_size(); r++) {
        int b = given(r, e);
        a = op == ncclProd  ? a * b
            : op == ncclMax ? (b > a ? b : a)
            : op == ncclMin ? (b < a ? b : a)
                            : a + b;
    }
    return a;
}

static void reduce_all(ncclDataType_t t, ncclRedOp_t op) {
    size_t n = TH_SANITIZED ? 1500 : COUNT, nbytes = n * sizes[t];
    char *in = malloc(nbytes), *out = malloc(nbytes), *want = malloc(nbytes);
    for (size_t e = 0; e < n; e++) {
        put(in + e * sizes[t], t, given(th_rank(), e));
        put(want + e * sizes[t], t, expected(op, e));
    }
    void *from = device(nbytes), *to = device(nbytes);
    copy(from, in, nbytes, cudaMemcpyHostToDevice);
    ncclResult_t r = settled(comm, ncclAllReduce(from, to, n, t, op, comm, stream));
    TH_CHECK(r == ncclSuccess, "allreduce %s: %d", types[t], (int)r);
    copy(out, to, nbytes, cudaMemcpyDeviceToHost);
    TH_CHECK(memcmp(out, want, nbytes) == 0, "allreduce of %s with operation %d", types[t],
             (int)op);
    cudaFree(from);
    cudaFree(to);
    free(in);
    free(out);
    free(want);
}

START_TEST(db5_every_type_and_op) {
    begin(1);
    for (int t = 0; t < ncclNumTypes; t++) {
        for (int op = ncclSum; op <= ncclMin; op++) {
            reduce_all((ncclDataType_t)t, (ncclRedOp_t)op);
        }
        TH_AGREE();
    }
    finish();
}
END_TEST

/* ---- all calls, both kinds of communicator, by 32 bit numbers ---- */

typedef ncclResult_t (*call_fn)(const void *in, void *out, size_t n);

static ncclResult_t call_allgather(const void *in, void *out, size_t n) {
    return ncclAllGather(in, out, n, ncclInt32, comm, stream);
}
static ncclResult_t call_scatter_sum(const void *in, void *out, size_t n) {
    return ncclReduceScatter(in, out, n, ncclInt32, ncclSum, comm, stream);
}
static ncclResult_t call_broadcast(const void *in, void *out, size_t n) {
    return ncclBroadcast(in, out, n, ncclInt32, th_size() - 1, comm, stream);
}
static ncclResult_t call_reduce(const void *in, void *out, size_t n) {
    return ncclReduce(in, out, n, ncclInt32, ncclSum, 0, comm, stream);
}
static ncclResult_t call_alltoall(const void *in, void *out, size_t n) {
    return ncclAlltoAll(in, out, n, ncclInt32, comm, stream);
}
static ncclResult_t call_gather(const void *in, void *out, size_t n) {
    return ncclGather(in, out, n, ncclInt32, 0, comm, stream);
}
static ncclResult_t call_scatter(const void *in, void *out, size_t n) {
    return ncclScatter(in, out, n, ncclInt32, 0, comm, stream);
}
/* everybody to everybody, itself included, as one group */
static ncclResult_t call_exchange(const void *in, void *out, size_t n) {
    ncclGroupStart();
    for (int i = 0; i < th_size(); i++) {
        TH_CHECK(ncclSend((const int *)in + (size_t)i * n, n, ncclInt32, i, comm, stream) ==
                     ncclSuccess,
                 "send");
        TH_CHECK(ncclRecv((int *)out + (size_t)i * n, n, ncclInt32, i, comm, stream) == ncclSuccess,
                 "recv");
    }
    return ncclGroupEnd();
}

/* Value of element e of block b that rank r gives. */
static int value(int r, int b, size_t e) {
    return r * 1000003 + b * 5077 + (int)(e % 4999);
}

static void one_call(const char *name, call_fn fn, size_t n) {
    int size = th_size(), me = th_rank();
    size_t all = (size_t)size * n, nbytes = all * sizeof(int);
    int *in = malloc(nbytes + 1), *out = malloc(nbytes + 1);
    for (size_t i = 0; i < all; i++) {
        in[i] = value(me, (int)(i / n), i % n);
    }
    void *from = device(nbytes), *to = device(nbytes);
    copy(from, in, nbytes, cudaMemcpyHostToDevice);
    ncclResult_t r = settled(comm, fn(from, to, n));
    TH_CHECK(r == ncclSuccess, "%s: %d", name, (int)r);
    copy(out, to, nbytes, cudaMemcpyDeviceToHost);
    bool blocks = fn == call_alltoall || fn == call_exchange || fn == call_allgather ||
                  (fn == call_gather && me == 0);
    bool silent = (fn == call_reduce || fn == call_gather) && me != 0;
    for (size_t i = 0; i < (blocks ? all : n) && !silent; i++) {
        int b = (int)(i / n), want = 0;
        if (fn == call_allgather || fn == call_gather) {
            want = value(b, 0, i % n);
        } else if (fn == call_alltoall || fn == call_exchange) {
            want = value(b, me, i % n);
        } else if (fn == call_broadcast) {
            want = value(size - 1, 0, i);
        } else if (fn == call_scatter) {
            want = value(0, me, i);
        } else {
            for (int s = 0; s < size; s++) {
                want += value(s, fn == call_reduce ? 0 : me, i);
            }
        }
        TH_CHECK(out[i] == want, "%s: element %zu is %d, not %d", name, i, out[i], want);
    }
    TH_CHECK(!silent || out[0] == -1, "%s: written away from the root", name);
    TH_AGREE();
    cudaFree(from);
    cudaFree(to);
    free(in);
    free(out);
}

static void every_call(void) {
    size_t n = TH_SANITIZED ? 9001 : COUNT;
    one_call("allgather", call_allgather, n);
    one_call("reduce_scatter", call_scatter_sum, n);
    one_call("broadcast", call_broadcast, n);
    one_call("reduce", call_reduce, n);
    one_call("alltoall", call_alltoall, n);
    one_call("gather", call_gather, n);
    one_call("scatter", call_scatter, n);
    one_call("exchange", call_exchange, n);
}

START_TEST(db5_every_call) {
    begin(1);
    every_call();
    finish();
}
END_TEST

START_TEST(db5_non_blocking) {
    begin(0);
    every_call();
    finish();
}
END_TEST

/* Nothing of a group runs before its end; zero elements are an operation as well. */
START_TEST(db5_group_is_deferred) {
    begin(1);
    int *p = device(64), zero = 7, got = 0;
    copy(p, &zero, sizeof zero, cudaMemcpyHostToDevice);
    ncclGroupStart();
    ncclGroupStart();
    TH_CHECK(ncclAllReduce(p, p, 1, ncclInt32, ncclSum, comm, stream) == ncclSuccess, "first");
    TH_CHECK(ncclAllReduce(NULL, NULL, 0, ncclInt32, ncclSum, comm, stream) == ncclSuccess, "none");
    TH_CHECK(ncclGroupEnd() == ncclSuccess, "inner end");
    th_barrier();
    copy(&got, p, sizeof got, cudaMemcpyDeviceToHost);
    TH_CHECK(got == 7, "ran before the end of the group: %d", got);
    TH_CHECK(ncclGroupEnd() == ncclSuccess, "outer end");
    copy(&got, p, sizeof got, cudaMemcpyDeviceToHost);
    TH_CHECK(got == 7 * th_size(), "sum %d", got);
    TH_CHECK(ncclGroupEnd() == ncclInvalidUsage, "an end without a start");
    cudaFree(p);
    finish();
}
END_TEST

/* The factor of an immediate scalar is read when the operation is made, and the operation may be
 * destroyed while the sum is still to run. */
START_TEST(db5_premultiplied) {
    begin(1);
    float factor = 0.5f, mine = (float)(2 * (th_rank() + 1)), got = 0;
    float *p = device(64);
    copy(p, &mine, sizeof mine, cudaMemcpyHostToDevice);
    ncclRedOp_t op = ncclSum;
    TH_CHECK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, comm) ==
                 ncclSuccess,
             "create");
    factor = 100;
    TH_CHECK(ncclAllReduce(p, p, 1, ncclFloat32, op, comm, stream) == ncclSuccess, "call");
    TH_CHECK(ncclRedOpDestroy(op, comm) == ncclSuccess, "destroy");
    TH_CHECK(ncclRedOpDestroy(op, comm) == ncclInvalidArgument, "destroyed twice");
    copy(&got, p, sizeof got, cudaMemcpyDeviceToHost);
    int n = th_size();
    TH_CHECK(got == (float)(n * (n + 1) / 2), "sum %g", (double)got);
    TH_CHECK(ncclAllReduce(&mine, p, 1, ncclFloat32, ncclSum, comm, stream) == ncclInvalidArgument,
             "memory of the host");
    cudaFree(p);
    finish();
}
END_TEST

/* Split by odd and even, in reversed order; the last rank stays out but takes part. */
START_TEST(db5_split) {
    begin(0);
    int me = th_rank(), size = th_size(), color = me == size - 1 ? NCCL_SPLIT_NOCOLOR : me % 2;
    ncclComm_t child = NULL;
    ncclResult_t r = ncclCommSplit(comm, color, -me, &child, NULL);
    r = settled(comm, settled(child != NULL ? child : comm, r));
    TH_ALL(r == ncclSuccess, "split: %d", (int)r);
    TH_CHECK((child == NULL) == (color < 0), "handle");
    if (child != NULL) {
        int rank = -1, count = -1, members = 0, after = 0;
        for (int i = 0; i < size - 1; i++) {
            members += i % 2 == color;
            after += i % 2 == color && i > me;
        }
        TH_CHECK(ncclCommCount(child, &count) == ncclSuccess && count == members, "count %d",
                 count);
        TH_CHECK(ncclCommUserRank(child, &rank) == ncclSuccess && rank == after, "rank %d", rank);
        TH_CHECK(ncclCommAbort(child) == ncclSuccess, "abort");
    }
    finish();
}
END_TEST

/* ---- refusals and faults ---- */

static void with_setting(const char *name, const char *text) {
    setenv(name, text, 1);
}

/* All ranks end with the code; nobody hangs. */
static void expect_init(ncclResult_t want, const char *what) {
    ncclComm_t c = NULL;
    ncclResult_t r = settled(c, init(&c, 1));
    TH_CHECK(r == want, "%s: %d, not %d", what, (int)r, (int)want);
    if (c != NULL) {
        ncclCommAbort(c);
    }
    TH_AGREE();
}

/* Of memory that it is told of, the stand-in refuses what NCCL may let pass. */
START_TEST(db5_registration) {
    void *block = NULL, *handle = NULL, *again = NULL, *plain = NULL;
    begin(0);
    TH_CHECK(ncclMemAlloc(&block, 4096) == ncclSuccess, "ncclMemAlloc");
    TH_CHECK(cudaMalloc(&plain, 4096) == cudaSuccess, "cudaMalloc");
    TH_CHECK(ncclCommRegister(comm, &block, 8, &again) == ncclInvalidUsage, "host memory");
    TH_CHECK(ncclCommRegister(comm, block, 4096, &handle) == ncclSuccess, "register");
    TH_CHECK(ncclCommRegister(comm, block, 4096, &again) == ncclInvalidUsage, "twice");
    TH_CHECK(ncclCommDeregister(comm, &block) == ncclInvalidUsage, "unknown");
    TH_CHECK(ncclCommDeregister(comm, handle) == ncclSuccess, "deregister");
    TH_CHECK(ncclCommDeregister(comm, handle) == ncclInvalidUsage, "deregister twice");
    TH_CHECK(ncclCommRegister(comm, plain, 4096, &handle) == ncclSuccess, "memory of CUDA");
    TH_CHECK(ncclMemFree(plain) == ncclInvalidUsage, "memory of CUDA freed by NCCL");
    cudaFree(plain);
    TH_CHECK(ncclCommDeregister(comm, handle) == ncclInvalidUsage, "freed before");
    TH_CHECK(ncclCommRegister(comm, block, 4096, &handle) == ncclSuccess, "register");
    dtr_fake_cuda_log_start();
    finish();
    TH_CHECK(dtr_fake_cuda_log_count("mistake: 1 registrations are left") == 1, "%s",
             dtr_fake_cuda_log_text());
    TH_CHECK(ncclMemFree(block) == ncclSuccess, "ncclMemFree");
    TH_CHECK(ncclMemFree(block) == ncclInvalidUsage, "freed twice");
    TH_AGREE();
}
END_TEST

/* A window is made by all ranks, of the same memory of NCCL's, once, and ends before its
 * communicator.
 */
START_TEST(db5_windows) {
    char *block = NULL, *plain = NULL;
    ncclWindow_t win = NULL, again = NULL;
    for (int blocking = 0; blocking < 2; blocking++) {
        begin(blocking);
        TH_CHECK(ncclMemAlloc((void **)&block, 8192) == ncclSuccess, "ncclMemAlloc");
        TH_CHECK(cudaMalloc((void **)&plain, 4096) == cudaSuccess, "cudaMalloc");
        TH_CHECK(ncclCommWindowRegister(comm, plain, 4096, &win, 0) == ncclInvalidUsage, "CUDA's");
        TH_CHECK(ncclCommWindowRegister(comm, block, 8192, &win, 64) == ncclInvalidArgument,
                 "flags");
        ncclResult_t r = ncclCommWindowRegister(comm, block, 4096, &win, NCCL_WIN_COLL_SYMMETRIC);
        TH_CHECK(r == (blocking ? ncclSuccess : ncclInProgress), "result %d", (int)r);
        TH_ALL(settled(comm, r) == ncclSuccess && win != NULL, "%s", ncclGetLastError(comm));
        TH_CHECK(ncclCommWindowRegister(comm, block, 8, &again, 0) == ncclInvalidUsage, "twice");
        TH_CHECK(ncclCommDeregister(comm, &block) == ncclInvalidUsage, "unknown");
        TH_CHECK(ncclCommWindowDeregister(comm, win) == ncclSuccess, "deregister");
        TH_CHECK(ncclCommWindowDeregister(comm, win) == ncclInvalidUsage, "deregister twice");
        int left = th_size() > 1 && th_rank() == 0;
        r = ncclCommWindowRegister(comm, block + (left ? 4096 : 0), 4096, &win, 0);
        r = settled(comm, r);
        TH_CHECK(r == (th_size() > 1 ? ncclInvalidArgument : ncclSuccess), "other places: %d",
                 (int)r);
        th_barrier();
        if (th_size() > 1) {
            ncclCommAbort(comm);
            cudaStreamDestroy(stream);
        } else {
            dtr_fake_cuda_log_start();
            finish();
            TH_CHECK(dtr_fake_cuda_log_count("mistake: 1 registrations are left") == 1, "%s",
                     dtr_fake_cuda_log_text());
        }
        TH_CHECK(ncclMemFree(block) == ncclSuccess, "ncclMemFree");
        cudaFree(plain);
        TH_AGREE();
    }
}
END_TEST

START_TEST(db6_versions) {
    int version = 0;
    with_setting("DTR_FAKE_NCCL_VERSION", "21805");
    TH_CHECK(ncclGetVersion(&version) == ncclSuccess && version == 21805, "version %d", version);
    if (th_size() > 1) {
        with_setting("DTR_FAKE_NCCL_VERSION", th_rank() == 0 ? "21805" : "22809");
        expect_init(ncclInvalidUsage, "mixed versions");
    }
    unsetenv("DTR_FAKE_NCCL_VERSION");
    TH_AGREE();
}
END_TEST

/* Two ranks on one GPU are refused, unless NCCL takes them for ranks of different hosts. */
START_TEST(db5_shared_gpu) {
    char host[32];
    snprintf(host, sizeof host, "rank%d", th_rank());
    with_setting("DTR_FAKE_CUDA_UUID", "shared");
    dtr_fake_cuda_reload();
    expect_init(ncclInvalidUsage, "shared GPU");
    TH_CHECK(strstr(ncclGetLastError(NULL), "Duplicate GPU") != NULL, "text: %s",
             ncclGetLastError(NULL));
    with_setting("NCCL_HOSTID", host);
    expect_init(ncclSuccess, "shared GPU with distinct NCCL_HOSTID");
    unsetenv("NCCL_HOSTID");
    with_setting("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    expect_init(ncclInvalidUsage, "switch of a later version");
    with_setting("DTR_FAKE_NCCL_VERSION", "23003");
    expect_init(ncclSuccess, "switch");
    unsetenv("DTR_FAKE_NCCL_VERSION");
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    unsetenv("DTR_FAKE_CUDA_UUID");
    dtr_fake_cuda_reload();
    TH_AGREE();
}
END_TEST

/* One stuck rank: every rank can abort. A mismatch: every rank learns of it and names both. */
static void broken(int stuck, bool mismatch) {
    begin(0);
    int *p = device(8 * sizeof(int));
    bool other = th_rank() == stuck;
    ncclResult_t r =
        ncclAllReduce(p, p, mismatch && other ? 2 : 1, ncclInt32, ncclSum, comm, stream);
    if (mismatch) {
        for (r = ncclSuccess; r == ncclSuccess || r == ncclInProgress; nap()) {
            ncclCommGetAsyncError(comm, &r);
        }
        TH_CHECK(r == ncclInvalidUsage, "mismatch: %d", (int)r);
        TH_CHECK(strstr(ncclGetLastError(comm), "allreduce of 2 elements") != NULL, "text: %s",
                 ncclGetLastError(comm));
    } else {
        r = settled(comm, r);
        TH_CHECK(r == ncclSuccess, "a stuck rank is no error: %d", (int)r);
    }
    th_barrier();
    TH_CHECK(cudaStreamQuery(stream) == cudaErrorNotReady, "the stream is free");
    TH_CHECK(ncclCommAbort(comm) == ncclSuccess, "abort");
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    cudaFree(p);
    cudaStreamDestroy(stream);
    TH_AGREE();
}

START_TEST(db7_hang_and_abort) {
    with_setting("DTR_FAKE_NCCL_HANG_RANK", "0@ncclAllReduce");
    broken(0, false);
    unsetenv("DTR_FAKE_NCCL_HANG_RANK");
}
END_TEST

START_TEST(db5_mismatch) {
    broken(th_size() - 1, true);
}
END_TEST

START_TEST(db7_injected_code) {
    with_setting("DTR_FAKE_NCCL_ERR", "ncclGroupEnd:1:3");
    begin(1);
    int *p = device(64);
    ncclGroupStart();
    TH_CHECK(ncclAllReduce(p, p, 1, ncclInt32, ncclSum, comm, stream) == ncclSuccess, "call");
    ncclResult_t r = ncclGroupEnd();
    TH_CHECK(r == ncclInternalError, "end of the group: %d", (int)r);
    TH_CHECK(ncclGroupEnd() == ncclInvalidUsage, "the group is still open");
    unsetenv("DTR_FAKE_NCCL_ERR");
    cudaFree(p);
    finish();
}
END_TEST

START_TEST(db7_init_fails) {
    with_setting("DTR_FAKE_NCCL_INIT_FAIL_RANK", "0");
    ncclComm_t c = NULL;
    ncclResult_t r = init(&c, 0);
    TH_CHECK(r == ncclInProgress, "init: %d", (int)r);
    r = th_rank() == 0 ? settled(c, r) : ncclSystemError;
    TH_CHECK(r == ncclSystemError, "rank 0: %d", (int)r);
    TH_AGREE();
    TH_CHECK(ncclCommAbort(c) == ncclSuccess, "abort of an init that cannot end");
    TH_CHECK(ncclCommAbort(c) == ncclInvalidArgument, "a handle that is gone");
    unsetenv("DTR_FAKE_NCCL_INIT_FAIL_RANK");
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl stand-in", 250);
    th_add(tc, db5_every_type_and_op, 1, 0);
    th_add(tc, db5_every_call, 1, 0);
    th_add(tc, db5_non_blocking, 1, 0);
    th_add(tc, db5_group_is_deferred, 1, 0);
    th_add(tc, db5_premultiplied, 1, 0);
    th_add(tc, db5_split, 2, 0);
    th_add(tc, db5_mismatch, 2, 0);
    th_add(tc, db5_shared_gpu, 2, 0);
    th_add(tc, db5_registration, 1, 0);
    th_add(tc, db5_windows, 1, 0);
    th_add(tc, db6_versions, 1, 0);
    th_add(tc, db7_hang_and_abort, 1, 0);
    th_add(tc, db7_injected_code, 1, 0);
    th_add(tc, db7_init_fails, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl_raw", make);
}
