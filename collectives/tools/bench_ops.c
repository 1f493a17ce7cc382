/* The operations of dtr-bench: sizes, the call of either contender, data and its check. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *name;
    bool reduces;
} kinds[BENCH_KINDS] = { { "allreduce", true },  { "reduce", true },         { "broadcast", false },
                         { "allgather", false }, { "reduce_scatter", true }, { "alltoall", false },
                         { "gather", false },    { "scatter", false },       { "barrier", false } };

const char *bench_kind_name(bench_kind k) {
    return kinds[k].name;
}

bool bench_reduces(bench_kind k) {
    return kinds[k].reduces;
}

/* The size column is the larger side of one rank, as in nccl-tests. */
void bench_shape(bench_case *c) {
    size_t n = c->bytes / dtr_dtype_size(c->dtype), N = (size_t)c->size,
           block = n / N > 0 ? n / N : 1;
    bool root = c->rank == c->root;
    c->in_count = c->out_count = n;
    switch (c->kind) {
    case BENCH_ALLGATHER:
        c->in_count = block;
        c->out_count = block * N;
        break;
    case BENCH_REDUCE_SCATTER:
        c->in_count = block * N;
        c->out_count = block;
        break;
    case BENCH_ALLTOALL:
        c->in_count = c->out_count = block * N;
        break;
    case BENCH_GATHER:
        c->in_count = block;
        c->out_count = root ? block * N : 0;
        break;
    case BENCH_SCATTER:
        c->in_count = root ? block * N : 0;
        c->out_count = block;
        break;
    case BENCH_REDUCE:
        c->out_count = root ? n : 0;
        break;
    case BENCH_BARRIER:
        c->in_count = c->out_count = 0;
        break;
    default:
        break;
    }
    bool blocks = c->kind >= BENCH_ALLGATHER && c->kind <= BENCH_SCATTER;
    c->count = blocks ? block : n;
    c->bytes = (blocks ? block * N : n) * dtr_dtype_size(c->dtype);
}

double bench_bus_factor(const bench_case *c) {
    double n = c->size;
    switch (c->kind) {
    case BENCH_ALLREDUCE:
        return 2 * (n - 1) / n;
    case BENCH_REDUCE:
    case BENCH_BROADCAST:
        return 1;
    default:
        return (n - 1) / n;
    }
}

/* ---- stock MPI ---- */

static MPI_Datatype mpi_type(dtr_dtype d) {
    switch (d) {
    case DTR_U8:
        return MPI_UINT8_T;
    case DTR_I8:
        return MPI_INT8_T;
    case DTR_I16:
        return MPI_INT16_T;
    case DTR_I32:
        return MPI_INT32_T;
    case DTR_I64:
        return MPI_INT64_T;
    case DTR_F32:
        return MPI_FLOAT;
    case DTR_F64:
        return MPI_DOUBLE;
    case DTR_C64:
        return MPI_C_FLOAT_COMPLEX;
    case DTR_C128:
        return MPI_C_DOUBLE_COMPLEX;
    default:
        return MPI_DATATYPE_NULL;
    }
}

bool bench_has_mpi_type(dtr_dtype d) {
    return mpi_type(d) != MPI_DATATYPE_NULL;
}

static MPI_Op mpi_op(dtr_op op) {
    static const MPI_Op ops[] = { MPI_SUM, MPI_SUM,  MPI_PROD, MPI_MIN,
                                  MPI_MAX, MPI_BAND, MPI_BOR,  MPI_BXOR };
    return ops[op];
}

static void call_mpi(const bench_case *c, const contender *who) {
    MPI_Datatype t = mpi_type(who->dtype);
    int n = (int)c->count;
    if (t == MPI_DATATYPE_NULL) { /* movement of a type that MPI lacks: as bytes */
        t = MPI_BYTE;
        n *= (int)dtr_dtype_size(who->dtype);
    }
    const void *in = c->in_place ? MPI_IN_PLACE : who->in;
    void *out = c->in_place ? who->in : who->out;
    MPI_Op op = mpi_op(c->op);
    switch (c->kind) {
    case BENCH_ALLREDUCE:
        MPI_Allreduce(in, out, n, t, op, MPI_COMM_WORLD);
        break;
    case BENCH_REDUCE:
        MPI_Reduce(who->in, who->out, n, t, op, c->root, MPI_COMM_WORLD);
        break;
    case BENCH_BROADCAST:
        MPI_Bcast(who->in, n, t, c->root, MPI_COMM_WORLD);
        break;
    case BENCH_ALLGATHER:
        MPI_Allgather(who->in, n, t, who->out, n, t, MPI_COMM_WORLD);
        break;
    case BENCH_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(who->in, who->out, n, t, op, MPI_COMM_WORLD);
        break;
    case BENCH_ALLTOALL:
        MPI_Alltoall(who->in, n, t, who->out, n, t, MPI_COMM_WORLD);
        break;
    case BENCH_GATHER:
        MPI_Gather(who->in, n, t, who->out, n, t, c->root, MPI_COMM_WORLD);
        break;
    case BENCH_SCATTER:
        MPI_Scatter(who->in, n, t, who->out, n, t, c->root, MPI_COMM_WORLD);
        break;
    default:
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* ---- this library ---- */

static dtr_status start_dtr(const bench_case *c, const contender *who, dtr_group *g,
                            dtr_work **work) {
    dtr_buffer in = dtr_cpu(who->in, c->in_count, who->dtype);
    dtr_buffer out = dtr_cpu(c->in_place ? who->in : who->out, c->out_count, who->dtype);
    switch (c->kind) {
    case BENCH_ALLREDUCE:
        return dtr_allreduce(g, in, out, c->op, NULL, work);
    case BENCH_REDUCE:
        return dtr_reduce(g, in, out, c->op, c->root, NULL, work);
    case BENCH_BROADCAST:
        return dtr_broadcast(g, in, c->root, NULL, work);
    case BENCH_ALLGATHER:
        return dtr_allgather(g, in, out, NULL, work);
    case BENCH_REDUCE_SCATTER:
        return dtr_reduce_scatter(g, in, out, c->op, NULL, work);
    case BENCH_ALLTOALL:
        return dtr_alltoall(g, in, out, NULL, work);
    case BENCH_GATHER:
        return dtr_gather(g, in, out, c->root, NULL, work);
    case BENCH_SCATTER:
        return dtr_scatter(g, in, out, c->root, NULL, work);
    default:
        return dtr_barrier(g, NULL, work);
    }
}

static void require(dtr_status s, const bench_case *c) {
    if (s != DTR_OK) {
        fprintf(stderr, "dtr-bench: %s of %zu bytes: %s: %s\n", kinds[c->kind].name, c->bytes,
                dtr_status_name(s), dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Device-like compute leaves the core free; CPU compute does not. */
static void compute(const bench_case *c) {
    double end = measure_now() + c->compute_s;
    if (!c->cpu_compute) {
        struct timespec t = { (time_t)c->compute_s,
                              (long)(1e9 * (c->compute_s - (double)(time_t)c->compute_s)) };
        nanosleep(&t, NULL);
    }
    while (measure_now() < end) {
    }
}

void bench_call(const bench_case *c, const contender *who, dtr_group *g) {
    dtr_work *work = NULL;
    if (who->mpi) {
        call_mpi(c, who);
        if (c->mode == BENCH_OVERLAP) {
            compute(c);
        }
        return;
    }
    require(start_dtr(c, who, g, c->mode == BENCH_BLOCKING ? NULL : &work), c);
    if (c->mode == BENCH_OVERLAP) {
        compute(c);
    }
    if (c->mode != BENCH_BLOCKING) {
        require(dtr_work_wait(work, -1), c);
        dtr_work_release(work);
    }
}

/* ---- data: small whole numbers, so that sums are exact in every type ---- */

static int value(int rank, size_t i, int round) {
    return (int)((i + (size_t)(rank * 3 + round)) % 5);
}

/* A few encodings of 0..4 and of sums of them are all that is needed here. */
static void put(void *data, dtr_dtype d, size_t i, int v) {
    static const uint16_t f16[] = { 0, 0x3c00, 0x4000, 0x4200, 0x4400 },
                          bf16[] = { 0, 0x3f80, 0x4000, 0x4040, 0x4080 };
    static const uint8_t e4m3[] = { 0, 0x38, 0x40, 0x44, 0x48 },
                         e5m2[] = { 0, 0x3c, 0x40, 0x42, 0x44 };
    switch (d) {
    case DTR_F16:
        ((uint16_t *)data)[i] = f16[v];
        break;
    case DTR_BF16:
        ((uint16_t *)data)[i] = bf16[v];
        break;
    case DTR_F8E4M3:
        ((uint8_t *)data)[i] = e4m3[v];
        break;
    case DTR_F8E5M2:
        ((uint8_t *)data)[i] = e5m2[v];
        break;
    case DTR_I16:
        ((int16_t *)data)[i] = (int16_t)v;
        break;
    case DTR_I32:
        ((int32_t *)data)[i] = v;
        break;
    case DTR_I64:
        ((int64_t *)data)[i] = v;
        break;
    case DTR_F32:
        ((float *)data)[i] = (float)v;
        break;
    case DTR_F64:
        ((double *)data)[i] = v;
        break;
    case DTR_C64:
        ((float *)data)[2 * i] = (float)v;
        ((float *)data)[2 * i + 1] = 0;
        break;
    case DTR_C128:
        ((double *)data)[2 * i] = v;
        ((double *)data)[2 * i + 1] = 0;
        break;
    default:
        ((uint8_t *)data)[i] = (uint8_t)(d == DTR_BOOL ? v & 1 : v);
    }
}

/* The pattern repeats every five elements: write one stretch, then copy it forward. */
void bench_fill(const bench_case *c, const contender *who, int round) {
    size_t size = dtr_dtype_size(who->dtype), n = c->in_count, head = n < 640 ? n : 640;
    for (size_t i = 0; i < head; i++) {
        put(who->in, who->dtype, i, value(c->rank, i, round));
    }
    for (size_t done = head; done < n; done += head) {
        memcpy((char *)who->in + done * size, who->in, (n - done < head ? n - done : head) * size);
    }
}

static double get(const void *data, dtr_dtype d, size_t i) {
    switch (d) {
    case DTR_BF16: {
        uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    case DTR_I8:
        return ((const int8_t *)data)[i];
    case DTR_I16:
        return ((const int16_t *)data)[i];
    case DTR_I32:
        return ((const int32_t *)data)[i];
    case DTR_I64:
        return (double)((const int64_t *)data)[i];
    case DTR_F32:
        return (double)((const float *)data)[i];
    case DTR_F64:
        return ((const double *)data)[i];
    case DTR_C64:
        return (double)((const float *)data)[2 * i];
    case DTR_C128:
        return ((const double *)data)[2 * i];
    default:
        return ((const uint8_t *)data)[i];
    }
}

static bool checkable(const bench_case *c, dtr_dtype d) {
    bool small = d == DTR_F16 || d == DTR_F8E4M3 || d == DTR_F8E5M2 || d == DTR_BOOL;
    return !small &&
           (!bench_reduces(c->kind) || c->op == DTR_SUM || c->op == DTR_MAX || c->op == DTR_MIN);
}

static double reduced(const bench_case *c, size_t i, int round) {
    double sum = 0;
    for (int r = 0; r < c->size; r++) {
        double v = value(r, i, round);
        sum = r == 0             ? v
              : c->op == DTR_MAX ? (v > sum ? v : sum)
              : c->op == DTR_MIN ? (v < sum ? v : sum)
                                 : sum + v;
    }
    return sum;
}

static double expected(const bench_case *c, size_t i, int round) {
    int from = (int)(i / c->count);
    size_t at = i % c->count, mine = (size_t)c->rank * c->count;
    switch (c->kind) {
    case BENCH_ALLREDUCE:
    case BENCH_REDUCE:
        return reduced(c, i, round);
    case BENCH_REDUCE_SCATTER:
        return reduced(c, mine + i, round);
    case BENCH_BROADCAST:
        return value(c->root, i, round);
    case BENCH_SCATTER:
        return value(c->root, mine + i, round);
    case BENCH_ALLTOALL:
        return value(from, mine + at, round);
    default:
        return value(from, at, round);
    }
}

size_t bench_check(const bench_case *c, const contender *who, int round) {
    size_t wrong = 0;
    if (c->kind == BENCH_BARRIER || !checkable(c, who->dtype)) {
        return 0;
    }
    const void *got = c->kind == BENCH_BROADCAST || c->in_place ? who->in : who->out;
    for (size_t i = 0; i < c->out_count; i++) {
        wrong += get(got, who->dtype, i) != expected(c, i, round);
    }
    return wrong;
}
