/* Calls with arguments of any value: a status, never a crash or a hang, and a text with every
 * error. One rank, so that nothing waits for others. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/dtr.h>

#include "fuzz.h"
#include "fuzz_calls.h"

enum { ROOM = 64, CALLS_MAX = 24 }; /* elements of 16 bytes; calls per input */

dtr_world *world;
dtr_group *group;
static unsigned char memory[3][ROOM * 16];
static size_t counts[4] = { 1, 2, 3, 4 };

/* ---- values out of the input ---- */

static const uint8_t *input, *input_end;

unsigned byte(void) {
    return input < input_end ? *input++ : 0;
}
unsigned pick(unsigned n) {
    return byte() % n;
}

/* Mostly sound, now and then far out. */
int number(int sound) {
    static const int odd[] = { -1, 1, 2, -2, 1000, INT32_MAX, INT32_MIN, 15 };
    unsigned b = byte();
    return b < 160 ? (int)(b % (unsigned)sound) : odd[b % 8];
}

/* A count that memory has room for, or one that no pair of buffers can share. */
static size_t count(void) {
    unsigned b = byte();
    return b < 200 ? b % ROOM : b < 230 ? 4 : 0;
}

dtr_buffer buffer(void) {
    dtr_buffer b = dtr_cpu(memory[pick(3)], count(), (dtr_dtype)number(14));
    switch (byte()) {
    case 250:
        b.data = NULL;
        break;
    case 251:
        b.data = NULL;
        b.count = SIZE_MAX / (1 + pick(20));
        break;
    case 252:
        b.device.type = (dtr_device_type)number(2);
        break;
    case 253:
        b.device.index = number(1);
        break;
    case 254:
        b.data = (char *)b.data + 1;
        b.count = b.count > 1 ? b.count - 1 : 0;
        break;
    default:
        break;
    }
    return b;
}

double seconds(void) {
    static const double odd[] = { -1, NAN, -INFINITY, 1e-9, 0, 0.001, -1e300, -0.0 };
    unsigned b = byte();
    return b < 200 ? 0 : odd[b % 8];
}

const dtr_coll_options *options(void) {
    static dtr_coll_options o;
    static double factor = 2; /* as large as the largest element's real part */
    if (pick(4) == 0) {
        return NULL;
    }
    o = (dtr_coll_options)DTR_COLL_OPTIONS_INIT;
    o.timeout_s = seconds();
    o.premul = pick(3);
    o.premul_device = pick(8) == 0 ? &factor : NULL;
    o.label = pick(3) == 0 ? "a label that is longer than what a record keeps of it" : "short";
    o.flags = pick(32) == 0 ? 0x80000000u : 0;
    o.struct_size = pick(16) == 0 ? (size_t)number(200) : o.struct_size;
    o.struct_size = o.struct_size > sizeof o ? sizeof o : o.struct_size;
    return &o;
}

dtr_op operator_of(void) {
    return pick(8) == 0 ? own_operator : (dtr_op)number(17);
}

/* ---- calls ---- */

void judge(dtr_status s) {
    if (s < 0 && (dtr_last_error_message()[0] == '\0' || dtr_status_name(s)[0] != 'D')) {
        fprintf(stderr, "fuzz: status %d without a text\n", (int)s);
        abort();
    }
}

static void ended(dtr_work *w, dtr_status s, void *arg) {
    (void)dtr_work_seq(w);
    (void)dtr_work_duration(w);
    judge(s);
    (void)arg;
}

/* A handle: looked at and let go, complete or not. */
static void finish(dtr_work *w) {
    bool done = false;
    if (pick(4) == 0) {
        judge(dtr_work_on_complete(w, pick(8) == 0 ? NULL : ended, NULL));
        judge(dtr_work_synchronize(w, w == NULL ? seconds() : 1e-6));
        judge(dtr_work_wait_stream(w, NULL));
        (void)dtr_work_source(w);
        (void)dtr_work_seq(w);
        (void)dtr_work_duration(w);
    }
    if (w == NULL) {
        return;
    }
    dtr_work *several[2] = { pick(4) == 0 ? NULL : w, w };
    size_t index = 0;
    (void)dtr_work_test(w, &done);
    if (pick(8) == 0) {
        judge(dtr_work_wait_all(pick(8) == 0 ? NULL : several, pick(3), done ? seconds() : 1e-6));
        judge(dtr_work_wait_any(pick(8) == 0 ? NULL : several, pick(3), done ? seconds() : 1e-6,
                                pick(8) == 0 ? NULL : &index));
    }
    if (done || pick(2) == 0) {
        judge(dtr_work_wait(w, done ? -1 : 1e-6));
    }
    judge(dtr_work_release(w));
}

static dtr_status collective(dtr_group *g, dtr_work **w) {
    dtr_buffer a = buffer(), b = pick(3) == 0 ? buffer() : a;
    const size_t *n = pick(4) == 0 ? NULL : counts + pick(4), *m = pick(4) == 0 ? NULL : counts;
    const dtr_coll_options *o = options();
    switch (pick(16)) {
    case 13:
        return dtr_scan(g, a, b, operator_of(), o, w);
    case 14:
        return dtr_exscan(g, a, b, operator_of(), o, w);
    case 0:
        return dtr_broadcast(g, a, number(1), o, w);
    case 1:
        return dtr_reduce(g, a, b, operator_of(), number(1), o, w);
    case 2:
        return dtr_allreduce(g, a, b, operator_of(), o, w);
    case 3:
        return dtr_allgather(g, a, b, o, w);
    case 4:
        return dtr_allgatherv(g, a, b, n, o, w);
    case 5:
        return dtr_gather(g, a, b, number(1), o, w);
    case 6:
        return dtr_gatherv(g, a, b, n, number(1), o, w);
    case 7:
        return dtr_scatter(g, a, b, number(1), o, w);
    case 8:
        return dtr_scatterv(g, a, n, b, number(1), o, w);
    case 9:
        return dtr_reduce_scatter(g, a, b, operator_of(), o, w);
    case 10:
        return dtr_reduce_scatterv(g, a, n, b, operator_of(), o, w);
    case 11:
        return dtr_alltoall(g, a, b, o, w);
    case 12:
        return dtr_alltoallv(g, a, n, b, m, o, w);
    default:
        return dtr_barrier(g, o, w);
    }
}

static dtr_status point_to_point(dtr_group *g, dtr_work **w) {
    dtr_p2p ops[3];
    for (int i = 0; i < 3; i++) {
        ops[i] = (dtr_p2p){ pick(2) == 0, buffer(), number(1), number(100) };
    }
    switch (pick(3)) {
    case 0:
        return dtr_send(g, buffer(), number(1), number(100), options(), w);
    case 1:
        return dtr_recv(g, buffer(), number(1), number(100), options(), w);
    default:
        return dtr_batch_p2p(g, pick(8) == 0 ? NULL : ops, pick(4), options(), w);
    }
}

static dtr_status exact_sums(dtr_group *g) {
    double sum = 0, *out = pick(16) == 0 ? NULL : &sum;
    const dtr_buffer a = buffer();
    switch (pick(3)) {
    case 0:
        return dtr_sum(g, a, options(), out);
    case 1:
        return dtr_dot(g, a, pick(3) == 0 ? buffer() : a, options(), out);
    default:
        return dtr_norm2(g, a, options(), out);
    }
}

static dtr_status strings(dtr_group *g) {
    dtr_bytes in = { memory[0], pick(64) }, out = { NULL, 0 };
    size_t n = (size_t)number(2);
    n = n > 1 ? 1 : n;
    dtr_status s;
    int source = 0;
    switch (pick(6)) {
    case 4:
        return dtr_send_bytes(g, pick(8) == 0 ? NULL : &in, n, number(1), number(100), options());
    case 5:
        s = dtr_recv_bytes(g, n, number(1), number(100), options(), pick(8) == 0 ? NULL : &out,
                           pick(2) == 0 ? NULL : &source);
        break;
    case 0:
        s = dtr_broadcast_bytes(g, &in, n, number(1), options(), &out);
        break;
    case 1:
        s = dtr_allgather_bytes(g, in, options(), &out);
        break;
    case 2:
        s = dtr_gather_bytes(g, in, number(1), options(), &out);
        break;
    default:
        s = dtr_scatter_bytes(g, pick(8) == 0 ? NULL : &in, n, number(1), options(), &out);
        break;
    }
    dtr_bytes_free(&out, 1);
    return s;
}

static void in_a_scope(dtr_group *g) {
    dtr_work *w = NULL, *whole = NULL;
    judge(dtr_coalesce_begin(g));
    for (unsigned i = pick(4); i > 0; i--) {
        judge(pick(3) == 0 ? point_to_point(g, NULL) : collective(g, NULL));
    }
    judge(collective(g, &w));
    judge(dtr_coalesce_end(g, pick(4) == 0 ? NULL : &whole));
    if (pick(4) == 0) {
        judge(dtr_coalesce_end(g, NULL));
    }
    finish(w);
    finish(whole);
}

static dtr_status grouping(void) {
    static const char *const texts[] = {
        NULL, "", "a", "cpu:mpi", "cpu:auto", "gpu;", ":::", "a/b"
    };
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *made = NULL;
    const int ranks[] = { number(1), number(1) };
    o.timeout_s = seconds();
    o.name = pick(4) == 0 ? texts[pick(8)] : NULL;
    o.tag = pick(8) == 0 ? texts[pick(8)] : NULL;
    o.backend = pick(2) == 0 ? texts[pick(8)] : NULL;
    o.has_device = pick(8) == 0;
    o.device.type = (dtr_device_type)number(2);
    o.nan_check = number(2);
    o.reproducible = pick(2) == 0;
    o.flags = pick(32) == 0 ? 0x40000000u : 0;
    dtr_status s;
    switch (pick(3)) {
    case 0:
        s = dtr_group_create(world, pick(8) == 0 ? NULL : ranks, number(3) % 3, &o, &made);
        break;
    case 1:
        s = dtr_group_split(group, number(2), number(100), &o, &made);
        break;
    default:
        s = dtr_group_subgroups(group, number(3), &o, &made, NULL);
        break;
    }
    judge(pick(2) == 0 ? dtr_group_destroy(made) : dtr_group_release(made));
    return s;
}

static dtr_status tensors(void) {
    int64_t shape[4], strides[4];
    double all = 16;
    int ndim = number(4);
    ndim = ndim > 4 && ndim < 70 ? 4 : ndim;
    for (int i = 0; i < 4; i++) {
        shape[i] = number(4);
        strides[i] = number(5);
        all *= i < ndim && shape[i] > 1 ? (double)shape[i] : 1;
    }
    if (all > 1e6 && all < 1e15) { /* neither small nor refused: it would only take memory */
        return DTR_OK;
    }
    dtr_tensor *t = NULL, *view = NULL;
    dtr_status s;
    if (pick(2) == 0) {
        s = dtr_tensor_empty(world, (dtr_dtype)number(14), (dtr_device){ DTR_CPU, number(1) },
                             (dtr_mem)number(3), ndim, shape, &t);
    } else {
        s = dtr_tensor_from_buffer(buffer(), ndim, shape, pick(2) == 0 ? NULL : strides, NULL, NULL,
                                   &t);
    }
    if (t != NULL && dtr_tensor_numel(t) <= 256) {
        int64_t other[2] = { number(8), number(8) };
        judge(pick(2) == 0 ? dtr_tensor_reshape(t, pick(3), other, &view)
                           : dtr_tensor_narrow(t, number(4), number(4), number(4), &view));
        dtr_tensor_release(view);
        view = NULL;
        judge(dtr_tensor_transpose(t, number(3), number(3), &view));
        judge(dtr_tensor_fill(view != NULL ? view : t, 1, NULL));
        judge(dtr_tensor_allreduce(group, t, operator_of(), options(), NULL));
    }
    dtr_tensor_release(view);
    dtr_tensor_release(t);
    return s;
}

static void bucketing(void) {
    int64_t shape[1] = { 1 + (int64_t)pick(8) };
    dtr_param p[3];
    dtr_ddp *ddp = NULL;
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    memset(p, 0, sizeof p);
    for (int i = 0; i < 3; i++) {
        p[i].name = pick(8) == 0 ? "same" : i == 0 ? "a" : i == 1 ? "b" : NULL;
        p[i].flags = pick(8) == 0 ? byte() : 0;
        if (pick(8) != 0) {
            judge(dtr_tensor_empty(world, (dtr_dtype)(DTR_F16 + pick(4)),
                                   (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1, shape,
                                   &p[i].value));
        }
    }
    o.bucket_cap_bytes = pick(3) == 0 ? byte() : 0;
    o.find_unused = pick(2) == 0;
    o.static_graph = pick(4) == 0;
    o.grad_as_bucket_view = pick(2) == 0;
    o.timeout_s = seconds() == 0 ? 0 : NAN;
    o.flags = pick(32) == 0 ? 0x40000000u : 0;
    judge(dtr_ddp_create(group, p, pick(4), &o, &ddp));
    for (int i = 0; i < 6 && ddp != NULL; i++) {
        switch (pick(5)) {
        case 0:
            judge(dtr_ddp_forward_begin(ddp));
            break;
        case 1:
            judge(dtr_ddp_forward_end(ddp, counts, pick(2)));
            break;
        case 2:
            judge(dtr_ddp_backward_end(ddp, NULL));
            break;
        case 3:
            judge(dtr_ddp_set_sync(ddp, pick(2) == 0));
            break;
        default:
            judge(dtr_ddp_grad_ready(ddp, (size_t)number(4), NULL));
            break;
        }
    }
    judge(dtr_ddp_destroy(ddp));
    for (int i = 0; i < 3; i++) {
        dtr_tensor_release(p[i].value);
    }
}

/* ---- the target ---- */

static void quiet(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    (void)line;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.log_fn = quiet;
    setenv("DTR_RECORDER_DIR", "none", 1);
    if (dtr_world_create(&o, &world) != DTR_OK) {
        fprintf(stderr, "fuzz: %s\n", dtr_last_error_message());
        exit(1);
    }
    return 0;
}

size_t fuzz_seeds(void) {
    return 5;
}

uint8_t *fuzz_seed(size_t i, size_t *nbytes) {
    uint8_t *data = malloc(256);
    *nbytes = 256;
    for (size_t k = 0; data != NULL && k < 256; k++) {
        data[k] = (uint8_t)(k * (2 * i + 37) + i + (k * k) / 7);
    }
    return data;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    input = data;
    input_end = data + nbytes;
    if (group == NULL) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        o.timeout_s = 0.002; /* a receive that nobody serves */
        judge(dtr_group_split(dtr_world_group(world), 0, 0, &o, &group));
    }
    for (int i = 0; i < CALLS_MAX && input < input_end; i++) {
        dtr_work *w = NULL;
        dtr_work **handle = pick(2) == 0 ? NULL : &w;
        dtr_group *g = pick(32) == 0 ? NULL : group;
        switch (pick(12)) {
        case 8:
            fuzz_calls_tensors(g, handle);
            break;
        case 9:
            fuzz_calls_modules(g);
            break;
        case 10:
            fuzz_calls_runtime(g);
            break;
        case 11:
            in_a_scope(g);
            break;
        case 0:
            judge(point_to_point(g, handle));
            break;
        case 1:
            judge(pick(2) == 0 ? strings(g) : exact_sums(g));
            break;
        case 2:
            judge(grouping());
            break;
        case 3:
            judge(tensors());
            break;
        case 4:
            bucketing();
            break;
        default:
            judge(collective(g, handle));
            break;
        }
        finish(w);
    }
    judge(dtr_group_abort(group, "the next input gets a new one"));
    judge(dtr_group_destroy(group));
    group = NULL;
    return 0;
}
