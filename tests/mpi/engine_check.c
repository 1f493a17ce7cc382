/* Argument checks: every call, every step of the order, faults in pairs (CHK, ENU and HR8 rows). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "harness.h"
#include "kinds.h"

/* ---- one call with everything it may be given ---- */

enum { C = 2, ROOM = 256 }; /* elements per block; of the buffers, in f64 */

typedef struct args {
    kind k;
    dtr_buffer in, out;
    const size_t *in_counts, *out_counts;
    dtr_op op;
    int root, tag;
    dtr_coll_options o, *options;
    dtr_work **work;
} args;

static double in_mem[ROOM], out_mem[ROOM];
static size_t counts[64];
static dtr_work *handle;

static bool two_sided(kind k) {
    return k != BROADCAST && k != BARRIER && k != SEND && k != RECV;
}
static bool rooted(kind k) {
    return k == BROADCAST || k == REDUCE || k == GATHER || k == GATHERV || k == SCATTER ||
           k == SCATTERV;
}
static bool p2p(kind k) {
    return k == SEND || k == RECV;
}

/* A legal call in which every rank names itself root. */
static args legal(kind k) {
    size_t n = (size_t)th_size();
    size_t in = k == SCATTER || k == SCATTERV || k == REDUCE_SCATTER || k == REDUCE_SCATTERV ||
                        k == ALLTOALL || k == ALLTOALLV
                    ? C * n
                    : C;
    size_t out = k == ALLGATHER || k == ALLGATHERV || k == GATHER || k == GATHERV ||
                         k == ALLTOALL || k == ALLTOALLV
                     ? C * n
                     : C;
    for (int i = 0; i < th_size(); i++) {
        counts[i] = C;
    }
    args a = { .k = k,
               .in = dtr_cpu(in_mem, in, DTR_F32),
               .out = dtr_cpu(out_mem, out, DTR_F32),
               .in_counts = counts,
               .out_counts = counts,
               .op = DTR_SUM,
               .root = p2p(k) ? (th_rank() + 1) % th_size() : th_rank(),
               .o = DTR_COLL_OPTIONS_INIT };
    a.work = &handle;
    return a;
}

static dtr_status call(args *a) {
    dtr_group *g = th_group();
    dtr_coll_options *o = a->options;
    switch (a->k) {
    case BROADCAST:
        return dtr_broadcast(g, a->in, a->root, o, a->work);
    case REDUCE:
        return dtr_reduce(g, a->in, a->out, a->op, a->root, o, a->work);
    case ALLREDUCE:
        return dtr_allreduce(g, a->in, a->out, a->op, o, a->work);
    case SCAN:
        return dtr_scan(g, a->in, a->out, a->op, o, a->work);
    case EXSCAN:
        return dtr_exscan(g, a->in, a->out, a->op, o, a->work);
    case ALLGATHER:
        return dtr_allgather(g, a->in, a->out, o, a->work);
    case ALLGATHERV:
        return dtr_allgatherv(g, a->in, a->out, a->out_counts, o, a->work);
    case GATHER:
        return dtr_gather(g, a->in, a->out, a->root, o, a->work);
    case GATHERV:
        return dtr_gatherv(g, a->in, a->out, a->out_counts, a->root, o, a->work);
    case SCATTER:
        return dtr_scatter(g, a->in, a->out, a->root, o, a->work);
    case SCATTERV:
        return dtr_scatterv(g, a->in, a->in_counts, a->out, a->root, o, a->work);
    case REDUCE_SCATTER:
        return dtr_reduce_scatter(g, a->in, a->out, a->op, o, a->work);
    case REDUCE_SCATTERV:
        return dtr_reduce_scatterv(g, a->in, a->in_counts, a->out, a->op, o, a->work);
    case ALLTOALL:
        return dtr_alltoall(g, a->in, a->out, o, a->work);
    case ALLTOALLV:
        return dtr_alltoallv(g, a->in, a->in_counts, a->out, a->out_counts, o, a->work);
    case BARRIER:
        return dtr_barrier(g, o, a->work);
    case SEND:
        return dtr_send(g, a->in, a->root, a->tag, o, a->work);
    case RECV:
        return dtr_recv(g, a->in, a->root, a->tag, o, a->work);
    case KINDS:
        break;
    }
    return DTR_OK;
}

/* ---- faults, in the order in which they must be reported ---- */

typedef struct fault {
    int step;
    const char *name;
    bool (*make)(args *a); /* false: this call cannot have it */
    dtr_status status;
    const char *word;
} fault;

static bool f_struct_size(args *a) {
    a->o.struct_size = 0;
    a->options = &a->o;
    return true;
}
static bool f_flags(args *a) {
    a->o.flags = 1;
    a->options = &a->o;
    return true;
}
static bool f_op(args *a) {
    a->op = (dtr_op)99;
    return reduces(a->k);
}
static bool f_in_enum(args *a) {
    a->in.dtype = (dtr_dtype)99;
    return a->k != BARRIER;
}
static bool f_out_enum(args *a) {
    a->out.dtype = (dtr_dtype)-1;
    return two_sided(a->k);
}
static bool f_device_type(args *a) {
    a->in.device.type = (dtr_device_type)7;
    return a->k != BARRIER;
}
static bool f_root_low(args *a) {
    a->root = -1;
    return rooted(a->k) || p2p(a->k);
}
static bool f_root_high(args *a) {
    a->root = th_size();
    return rooted(a->k) || p2p(a->k);
}
static bool f_tag(args *a) {
    a->tag = -1;
    return p2p(a->k);
}
static bool f_in_null(args *a) {
    a->in.data = NULL;
    return a->k != BARRIER;
}
static bool f_out_null(args *a) {
    a->out.data = NULL;
    return two_sided(a->k);
}
static bool f_read_only(args *a) {
    if (two_sided(a->k)) {
        a->out = dtr_cpu_in(out_mem, a->out.count, DTR_F32);
    } else {
        a->in = dtr_cpu_in(in_mem, a->in.count, DTR_F32);
    }
    return two_sided(a->k) || a->k == RECV; /* each rank is the root of its broadcast */
}
static bool f_counts_null(args *a) {
    bool in = a->k == SCATTERV || a->k == REDUCE_SCATTERV;
    *(in ? &a->in_counts : &a->out_counts) = NULL;
    return in || a->k == ALLGATHERV || a->k == GATHERV;
}
static bool f_cpu_index(args *a) {
    a->in.device.index = 1;
    return a->k != BARRIER;
}
static bool f_cuda(args *a) {
    a->in.device = (dtr_device){ DTR_CUDA, 0 };
    a->out.device = a->in.device;
    return a->k != BARRIER;
}
static bool f_dtypes_differ(args *a) {
    a->out.dtype = DTR_I32;
    return two_sided(a->k);
}
static bool f_op_dtype(args *a) {
    a->in.dtype = a->out.dtype = DTR_C64;
    a->op = DTR_MAX;
    return reduces(a->k);
}
static bool f_overflow(args *a) {
    a->in.count = SIZE_MAX / 2;
    return a->k != BARRIER;
}
static bool f_count(args *a) {
    a->out.count += 1;
    return two_sided(a->k) && (a->k != ALLTOALLV || th_size() > 0);
}
static bool f_overlap(args *a) {
    a->out.data = (char *)a->in.data + 1;
    return two_sided(a->k);
}

static const fault faults[] = {
    { 1, "struct_size 0", f_struct_size, DTR_ERR_ARG, "struct_size" },
    { 1, "unknown flags", f_flags, DTR_ERR_ARG, "flags" },
    { 2, "op out of range", f_op, DTR_ERR_ARG, "op is" },
    { 2, "in dtype out of range", f_in_enum, DTR_ERR_DTYPE, "dtype is 99" },
    { 2, "out dtype out of range", f_out_enum, DTR_ERR_DTYPE, "out.dtype" },
    { 2, "device type out of range", f_device_type, DTR_ERR_DEVICE, "device.type" },
    { 3, "root or peer -1", f_root_low, DTR_ERR_RANK, " is -1" },
    { 3, "root or peer W", f_root_high, DTR_ERR_RANK, "group ranks are 0.." },
    { 3, "tag -1", f_tag, DTR_ERR_ARG, "tag is -1" },
    { 4, "in NULL", f_in_null, DTR_ERR_ARG, ".data is NULL" },
    { 4, "out NULL", f_out_null, DTR_ERR_ARG, "out.data is NULL" },
    { 4, "out to read only", f_read_only, DTR_ERR_ARG, " is written" },
    { 4, "counts NULL", f_counts_null, DTR_ERR_ARG, "counts is NULL" },
    { 5, "cpu:1", f_cpu_index, DTR_ERR_DEVICE, "cpu:1" },
    { 5, "cuda:0", f_cuda, DTR_ERR_DEVICE, "cuda:0" },
    { 6, "dtypes differ", f_dtypes_differ, DTR_ERR_DTYPE, "i32" },
    { 6, "op without dtype", f_op_dtype, DTR_ERR_DTYPE, "max" },
    { 7, "overflow", f_overflow, DTR_ERR_OVERFLOW, "in has" },
    { 7, "wrong count", f_count, DTR_ERR_SHAPE, "elements" },
    { 8, "overlap", f_overlap, DTR_ERR_ARG, "overlap" },
};
enum { FAULTS = sizeof faults / sizeof faults[0] };

static const char *op_word(const args *a, const fault *f) {
    /* broadcast, send and recv have one buffer, called buf */
    if (f->make == f_overflow && !two_sided(a->k)) {
        return "buf has";
    }
    return f->word;
}

static void refused(args *a, const fault *f, const char *with) {
    dtr_work *const untouched = (dtr_work *)&in_mem;
    handle = untouched;
    uint64_t seq = dtr_group_seq(th_group());
    dtr_status s = call(a);
    const char *text = dtr_last_error_message();
    TH_CHECK(s == f->status, "call %d, %s%s: %s instead of %s: %s", a->k, f->name, with,
             dtr_status_name(s), dtr_status_name(f->status), text);
    TH_CHECK(strstr(text, op_word(a, f)) != NULL, "call %d, %s%s: \"%s\" lacks \"%s\"", a->k,
             f->name, with, text, op_word(a, f));
    TH_CHECK(handle == untouched, "call %d, %s: *work was written", a->k, f->name);
    TH_CHECK(dtr_group_seq(th_group()) == seq, "call %d, %s: the sequence moved", a->k, f->name);
}

/* HR8, section 5 of the catalogue (B1, B2, B5, C5, R1-R5, A1-A6, D1, D2, SC1-SC11, GA1-GA11, P1,
 * P2): each fault alone, on all ranks and on one rank only; the group stays usable. CHK1, CHK5,
 * CHK6, CHK14, COL47, ENU15: buffers, dtypes, ranges, devices, flags. nccl:A1, nccl:A18, nccl:B7,
 * nccl:B8, nccl:B12. */
START_TEST(single_faults) {
    for (int only_last = 0; only_last < 2; only_last++) {
        memset(in_mem, 0x11, sizeof in_mem);
        memset(out_mem, 0x22, sizeof out_mem);
        for (int k = 0; k < KINDS; k++) {
            for (int f = 0; f < FAULTS; f++) {
                args a = legal((kind)k);
                if ((!only_last || th_rank() == th_size() - 1) && faults[f].make(&a)) {
                    refused(&a, &faults[f], "");
                }
            }
        }
        for (int i = 0; i < ROOM; i++) {
            unsigned char x[8], y[8];
            memcpy(x, &in_mem[i], 8);
            memcpy(y, &out_mem[i], 8);
            TH_CHECK(x[0] == 0x11 && y[7] == 0x22, "memory was written at %d", i);
        }
        TH_AGREE();
        th_good_allreduce(th_group());
    }
}
END_TEST

/* CHK9: with two faults of different steps the earlier step is reported. */
START_TEST(fault_pairs) {
    for (int k = 0; k < KINDS; k++) {
        for (int i = 0; i < FAULTS; i++) {
            for (int j = 0; j < FAULTS; j++) {
                args a = legal((kind)k);
                bool bad_root = faults[j].make == f_root_low || faults[j].make == f_root_high;
                if (bad_root && rooted((kind)k) && k != BROADCAST) {
                    continue; /* then no rank is the root, and one side is not looked at */
                }
                if (faults[i].step < faults[j].step && faults[j].make(&a) && faults[i].make(&a)) {
                    refused(&a, &faults[i], faults[j].name);
                }
            }
        }
    }
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* ---- particular rules ---- */

/* CHK8: one-sided buffers away from the root, and missing ones at the root. */
START_TEST(one_sided_buffers) {
    int n = th_size();
    float x[64] = { 0 }, y[64] = { 0 };
    int other = (th_rank() + 1) % n;
    dtr_buffer small = dtr_cpu(x, C, DTR_F32), big = dtr_cpu(y, (size_t)(C * n), DTR_F32);
    dtr_buffer none = dtr_cpu(NULL, 0, DTR_F32), odd = { NULL, 0, (dtr_dtype)99, { 7, 7 } };
    if (n > 1) {
        TH_IS(dtr_gather(th_group(), small, big, other, NULL, NULL), DTR_ERR_ARG);
        TH_MESSAGE("not the root");
        TH_IS(dtr_scatter(th_group(), big, small, other, NULL, NULL), DTR_ERR_ARG);
        TH_MESSAGE("not the root");
    }
    TH_IS(dtr_gather(th_group(), small, none, th_rank(), NULL, NULL), DTR_ERR_ARG);
    TH_MESSAGE("must give it");
    TH_IS(dtr_scatter(th_group(), none, small, th_rank(), NULL, NULL), DTR_ERR_ARG);
    TH_MESSAGE("must give it");
    TH_AGREE();
    /* nothing else of such a buffer is looked at */
    TH_IS(dtr_gather(th_group(), small, th_rank() == 0 ? big : odd, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_scatter(th_group(), th_rank() == 0 ? big : odd, small, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_reduce(th_group(), small, th_rank() == 0 ? dtr_cpu(y, C, DTR_F32) : odd, DTR_SUM, 0,
                     NULL, NULL),
          DTR_OK);
    TH_AGREE();
}
END_TEST

/* CHK3, CHK4, X1-X13: no folding of complex and real; both types are named. */
START_TEST(complex_is_not_real) {
    double x[8] = { 0 }, y[8] = { 0 };
    const dtr_dtype pairs[][2] = {
        { DTR_C64, DTR_F32 }, { DTR_F32, DTR_C64 }, { DTR_C128, DTR_F64 }, { DTR_F64, DTR_C128 }
    };
    for (int i = 0; i < 4; i++) {
        TH_IS(dtr_allreduce(th_group(), dtr_cpu(x, 2, pairs[i][0]), dtr_cpu(y, 2, pairs[i][1]),
                            DTR_SUM, NULL, NULL),
              DTR_ERR_DTYPE);
        TH_MESSAGE(dtr_dtype_name(pairs[i][0]));
        TH_MESSAGE(dtr_dtype_name(pairs[i][1]));
    }
    TH_AGREE();
}
END_TEST

/* ENU8, ENU9, nccl:A7, nccl:A9, nccl:A18: the predicate and the calls agree for all pairs. */
START_TEST(op_table) {
    static const char *const legal_ops[TH_DTYPES] = {
        /* SUM AVG PROD MIN MAX BAND BOR BXOR PREMUL LAND LOR LXOR MINLOC MAXLOC */
        [DTR_BOOL] = "y-yyyyyy-yyy--",      [DTR_U8] = "yyyyyyyy-yyy--",
        [DTR_I8] = "yyyyyyyy-yyy--",        [DTR_I16] = "yyyyyyyy-yyy--",
        [DTR_I32] = "yyyyyyyy-yyy--",       [DTR_I64] = "yyyyyyyy-yyy--",
        [DTR_F16] = "yyyyy---y-----",       [DTR_BF16] = "yyyyy---y-----",
        [DTR_F32] = "yyyyy---y-----",       [DTR_F64] = "yyyyy---y-----",
        [DTR_F8E4M3] = "yyyyy---------",    [DTR_F8E5M2] = "yyyyy---------",
        [DTR_C64] = "yy------y-----",       [DTR_C128] = "yy------y-----",
        [DTR_U16] = "yyyyyyyy-yyy--",       [DTR_U32] = "yyyyyyyy-yyy--",
        [DTR_U64] = "yyyyyyyy-yyy--",       [DTR_F32_INDEX] = "------------yy",
        [DTR_F64_INDEX] = "------------yy", [DTR_I64_INDEX] = "------------yy",
    };
    double x[2] = { 0 }, y[2] = { 0 };
    for (int d = 0; d < TH_DTYPES; d++) {
        for (int op = 0; op < TH_OPS; op++) {
            bool want = legal_ops[d][op] == 'y';
            dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
            o.premul = 0.5;
            TH_CHECK(dtr_op_supports((dtr_op)op, (dtr_dtype)d) == want, "op %d dtype %d", op, d);
            dtr_status s = dtr_allreduce(th_group(), dtr_cpu(x, 1, (dtr_dtype)d),
                                         dtr_cpu(y, 1, (dtr_dtype)d), (dtr_op)op, &o, NULL);
            TH_CHECK(s == (want ? DTR_OK : DTR_ERR_DTYPE), "op %d dtype %d: %s", op, d,
                     dtr_status_name(s));
        }
    }
    TH_CHECK(!dtr_op_supports((dtr_op)TH_OPS, DTR_F32) &&
                 !dtr_op_supports(DTR_SUM, (dtr_dtype)TH_DTYPES),
             "values outside the enums");
    TH_AGREE();
}
END_TEST

/* ENU17: a factor must be given; a zero goes through premul_device, which wins. */
START_TEST(premul_factor) {
    float x = 2, y = 0, zero = 0;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_buffer in = dtr_cpu(&x, 1, DTR_F32), out = dtr_cpu(&y, 1, DTR_F32);
    TH_IS(dtr_allreduce(th_group(), in, out, DTR_PREMUL_SUM, NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_allreduce(th_group(), in, out, DTR_PREMUL_SUM, &o, NULL), DTR_ERR_ARG);
    TH_MESSAGE("premul");
    o.premul = th_rank() + 1;
    TH_IS(dtr_allreduce(th_group(), in, out, DTR_PREMUL_SUM, &o, NULL), DTR_OK);
    TH_CHECK(y == (float)(th_size() * (th_size() + 1)), "factors r+1 gave %g", y);
    o.premul_device = &zero;
    TH_IS(dtr_allreduce(th_group(), in, out, DTR_PREMUL_SUM, &o, NULL), DTR_OK);
    TH_ALL(y == 0, "factor zero gave %g", y);
}
END_TEST

/* ENU16, Y1: NULL, zeroed and INIT options mean the same; short ones are filled up; long tails. */
START_TEST(option_sizes) {
    float x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_F32);
    dtr_coll_options zeroed;
    memset(&zeroed, 0, sizeof zeroed);
    zeroed.struct_size = sizeof zeroed;
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_MAX, &zeroed, NULL), DTR_OK);
    zeroed.struct_size = offsetof(dtr_coll_options, premul);
    zeroed.flags = 77; /* beyond what the caller knows */
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_MAX, &zeroed, NULL), DTR_OK);
    struct {
        dtr_coll_options o;
        char tail[16];
    } longer;
    memset(&longer, 0, sizeof longer);
    longer.o.struct_size = sizeof longer;
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_MAX, &longer.o, NULL), DTR_OK);
    longer.tail[9] = 1;
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_MAX, &longer.o, NULL), DTR_ERR_ARG);
    TH_ALL(x == 1, "value %g", x);
}
END_TEST

/* CHK13: sums that overflow. */
START_TEST(sums_overflow) {
    float x[4] = { 0 };
    size_t huge[64];
    for (int i = 0; i < th_size(); i++) {
        huge[i] = SIZE_MAX / 2 + 1;
    }
    dtr_buffer b = dtr_cpu(x, 4, DTR_U8);
    dtr_status want = th_size() == 1 ? DTR_ERR_SHAPE : DTR_ERR_OVERFLOW;
    TH_IS(dtr_allgatherv(th_group(), b, b, huge, NULL, NULL), want);
    TH_IS(dtr_alltoallv(th_group(), b, huge, b, NULL, NULL, NULL), want);
    dtr_buffer wide = dtr_cpu(x, SIZE_MAX / 2 + 1, DTR_U8);
    want = th_size() == 1 ? DTR_ERR_SHAPE : DTR_ERR_OVERFLOW;
    TH_IS(dtr_allgather(th_group(), wide, b, NULL, NULL), want);
    TH_AGREE();
}
END_TEST

/* CHK2, nccl:B7: arrays are copied at the call. */
START_TEST(arrays_are_copied) {
    int n = th_size();
    int32_t x[2] = { th_rank(), th_rank() }, y[128] = { 0 };
    size_t two[64];
    dtr_work *w;
    for (int i = 0; i < n; i++) {
        two[i] = 2;
    }
    TH_IS(dtr_allgatherv(th_group(), dtr_cpu(x, 2, DTR_I32), dtr_cpu(y, (size_t)(2 * n), DTR_I32),
                         two, NULL, &w),
          DTR_OK);
    memset(two, 0xff, sizeof two);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    for (int i = 0; i < 2 * n; i++) {
        TH_CHECK(y[i] == i / 2, "element %d is %d", i, y[i]);
    }
    TH_AGREE();
}
END_TEST

/* The NaN check: the rank that gave it is told; the operation runs and the group is fine. */
START_TEST(nan_check) {
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    go.nan_check = 1;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), &go, &g));
    float x[3] = { 1, th_rank() == 0 ? NAN : 1, 1 }, y[3] = { 0 };
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.label = "grad.7";
    TH_IS(dtr_allreduce(g, dtr_cpu(x, 3, DTR_F32), dtr_cpu(y, 3, DTR_F32), DTR_SUM, &o, NULL),
          th_rank() == 0 ? DTR_ERR_NAN : DTR_OK);
    if (th_rank() == 0) {
        TH_MESSAGE("element 1");
        TH_MESSAGE("rank 0");
        TH_MESSAGE("grad.7");
    }
    TH_CHECK(y[0] == (float)th_size() && isnan(y[1]), "result %g %g", y[0], y[1]);
    TH_CHECK(dtr_group_status(g) == DTR_OK, "the group is broken");
    TH_AGREE();
    th_good_allreduce(g);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "checks", 60);
    th_add(tc, single_faults, 0, 0);
    th_add(tc, fault_pairs, 0, 0);
    th_add(tc, one_sided_buffers, 0, 0);
    th_add(tc, complex_is_not_real, 0, 0);
    th_add(tc, op_table, 0, 0);
    th_add(tc, premul_factor, 0, 0);
    th_add(tc, option_sizes, 0, 0);
    th_add(tc, sums_overflow, 0, 0);
    th_add(tc, arrays_are_copied, 0, 0);
    th_add(tc, nan_check, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_check", make);
}
