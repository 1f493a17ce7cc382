/* One call of either contender of dtr-bench: stock MPI, or this library. */
#include <stdlib.h>
#include <time.h>

#include "bench.h"

/* ---- stock MPI ---- */

static MPI_Datatype mpi_type(dtr_dtype d) {
    switch (d) {
    case DTR_U8:
        return MPI_UINT8_T;
    case DTR_U16:
        return MPI_UINT16_T;
    case DTR_U32:
        return MPI_UINT32_T;
    case DTR_U64:
        return MPI_UINT64_T;
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
    case DTR_F64_INDEX: /* as long, and the lower half of the index lies where MPI's is */
        return MPI_DOUBLE_INT;
    case DTR_I64_INDEX:
        return MPI_LONG_INT;
    default:
        return MPI_DATATYPE_NULL;
    }
}

bool bench_has_mpi_type(dtr_dtype d) {
    return mpi_type(d) != MPI_DATATYPE_NULL;
}

static MPI_Op mpi_op(
    dtr_op op) { /* the average goes without its division, and there is no premul_sum */
    static const MPI_Op ops[] = { MPI_SUM,  MPI_SUM,  MPI_PROD,   MPI_MIN,   MPI_MAX,
                                  MPI_BAND, MPI_BOR,  MPI_BXOR,   MPI_SUM,   MPI_LAND,
                                  MPI_LOR,  MPI_LXOR, MPI_MINLOC, MPI_MAXLOC };
    return ops[op];
}

/* Movement of a type that MPI lacks: in units of the same size. */
static MPI_Datatype mpi_unit(dtr_dtype d) {
    if (d >= DTR_F32_INDEX) {
        return MPI_C_DOUBLE_COMPLEX;
    }
    return bench_has_mpi_type(d) ? mpi_type(d) : dtr_dtype_size(d) == 1 ? MPI_UINT8_T : MPI_INT16_T;
}

static void ping_pong_mpi(const bench_case *c, const contender *who, MPI_Datatype t) {
    int n = (int)c->in_count, peer = c->rank ^ 1;
    if (c->rank % 2 == 0) {
        MPI_Send(who->in, n, t, peer, 0, MPI_COMM_WORLD);
        MPI_Recv(who->out, n, t, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(who->out, n, t, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(who->in, n, t, peer, 0, MPI_COMM_WORLD);
    }
}

static void reduce_mpi(const bench_case *c, const contender *who) {
    MPI_Datatype t = mpi_type(who->dtype);
    MPI_Op op = mpi_op(c->op);
    int n = (int)c->count;
    switch (c->kind) {
    case BENCH_ALLREDUCE:
        MPI_Allreduce(c->in_place ? MPI_IN_PLACE : who->in, c->in_place ? who->in : who->out, n, t,
                      op, MPI_COMM_WORLD);
        break;
    case BENCH_REDUCE:
        MPI_Reduce(who->in, who->out, n, t, op, c->root, MPI_COMM_WORLD);
        break;
    case BENCH_SCAN:
        MPI_Scan(c->in_place ? MPI_IN_PLACE : who->in, c->in_place ? who->in : who->out, n, t, op,
                 MPI_COMM_WORLD);
        break;
    case BENCH_EXSCAN:
        MPI_Exscan(c->in_place ? MPI_IN_PLACE : who->in, c->in_place ? who->in : who->out, n, t, op,
                   MPI_COMM_WORLD);
        break;
    case BENCH_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(who->in, who->out, n, t, op, MPI_COMM_WORLD);
        break;
    default:
        MPI_Reduce_scatter(who->in, who->out, c->mpi_counts, t, op, MPI_COMM_WORLD);
    }
}

static char *message(const void *data, dtr_dtype d, size_t count, size_t m) {
    return (char *)(uintptr_t)data + m * count * dtr_dtype_size(d);
}

static void wait_all_mpi(const bench_case *c, const contender *who, MPI_Datatype t) {
    MPI_Request all[2 * BENCH_MESSAGES];
    const int to = (c->rank + 1) % c->size, from = (c->rank + c->size - 1) % c->size;
    const size_t n = c->count / BENCH_MESSAGES;
    for (size_t m = 0; m < BENCH_MESSAGES; m++) {
        MPI_Irecv(message(who->out, who->dtype, n, m), (int)n, t, from, 0, MPI_COMM_WORLD,
                  &all[2 * m]);
        MPI_Isend(message(who->in, who->dtype, n, m), (int)n, t, to, 0, MPI_COMM_WORLD,
                  &all[2 * m + 1]);
    }
    MPI_Waitall(2 * BENCH_MESSAGES, all, MPI_STATUSES_IGNORE);
}

static void move_mpi(const bench_case *c, const contender *who) {
    MPI_Datatype t = mpi_unit(who->dtype);
    const int *counts = c->mpi_counts, *at = c->mpi_at;
    int n = (int)c->count, in = (int)c->in_count, out = (int)c->out_count;
    switch (c->kind) {
    case BENCH_BROADCAST:
        MPI_Bcast(who->in, n, t, c->root, MPI_COMM_WORLD);
        break;
    case BENCH_ALLGATHER:
        MPI_Allgather(who->in, n, t, who->out, n, t, MPI_COMM_WORLD);
        break;
    case BENCH_ALLGATHERV:
        MPI_Allgatherv(who->in, in, t, who->out, counts, at, t, MPI_COMM_WORLD);
        break;
    case BENCH_ALLTOALL:
        MPI_Alltoall(who->in, n, t, who->out, n, t, MPI_COMM_WORLD);
        break;
    case BENCH_ALLTOALLV:
        MPI_Alltoallv(who->in, counts, at, t, who->out, counts, at, t, MPI_COMM_WORLD);
        break;
    case BENCH_GATHER:
        MPI_Gather(who->in, n, t, who->out, n, t, c->root, MPI_COMM_WORLD);
        break;
    case BENCH_GATHERV:
        MPI_Gatherv(who->in, in, t, who->out, counts, at, t, c->root, MPI_COMM_WORLD);
        break;
    case BENCH_SCATTER:
        MPI_Scatter(who->in, n, t, who->out, n, t, c->root, MPI_COMM_WORLD);
        break;
    case BENCH_SCATTERV:
        MPI_Scatterv(who->in, counts, at, t, who->out, out, t, c->root, MPI_COMM_WORLD);
        break;
    case BENCH_SENDRECV:
        MPI_Sendrecv(who->in, n, t, (c->rank + 1) % c->size, 0, who->out, n, t,
                     (c->rank + c->size - 1) % c->size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    case BENCH_PINGPONG:
        if (in > 0) {
            ping_pong_mpi(c, who, t);
        }
        break;
    case BENCH_WAITALL:
        wait_all_mpi(c, who, t);
        break;
    default:
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* ---- this library ---- */

static void require(dtr_status s, const bench_case *c) {
    if (s != DTR_OK) {
        fprintf(stderr, "dtr-bench: %s of %zu bytes: %s: %s\n", bench_kind_name(c->kind), c->bytes,
                dtr_status_name(s), dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static dtr_status start_vector(const bench_case *c, dtr_buffer in, dtr_buffer out, dtr_group *g,
                               dtr_work **work) {
    switch (c->kind) {
    case BENCH_ALLGATHERV:
        return dtr_allgatherv(g, in, out, c->counts, c->options, work);
    case BENCH_REDUCE_SCATTERV:
        return dtr_reduce_scatterv(g, in, c->counts, out, c->op, c->options, work);
    case BENCH_ALLTOALLV:
        return dtr_alltoallv(g, in, c->counts, out, c->counts, c->options, work);
    case BENCH_GATHERV:
        return dtr_gatherv(g, in, out, c->counts, c->root, c->options, work);
    default:
        return dtr_scatterv(g, in, c->counts, out, c->root, c->options, work);
    }
}

static dtr_status start_dtr(const bench_case *c, const contender *who, dtr_group *g,
                            dtr_work **work) {
    dtr_buffer in = { who->in, c->in_count, who->dtype, c->device };
    dtr_buffer out = { c->in_place ? who->in : who->out, c->out_count, who->dtype, c->device };
    switch (c->kind) {
    case BENCH_ALLREDUCE:
        return dtr_allreduce(g, in, out, c->op, c->options, work);
    case BENCH_SCAN:
        return dtr_scan(g, in, out, c->op, c->options, work);
    case BENCH_EXSCAN:
        return dtr_exscan(g, in, out, c->op, c->options, work);
    case BENCH_REDUCE:
        return dtr_reduce(g, in, out, c->op, c->root, c->options, work);
    case BENCH_BROADCAST:
        return dtr_broadcast(g, in, c->root, c->options, work);
    case BENCH_ALLGATHER:
        return dtr_allgather(g, in, out, c->options, work);
    case BENCH_REDUCE_SCATTER:
        return dtr_reduce_scatter(g, in, out, c->op, c->options, work);
    case BENCH_ALLTOALL:
        return dtr_alltoall(g, in, out, c->options, work);
    case BENCH_GATHER:
        return dtr_gather(g, in, out, c->root, c->options, work);
    case BENCH_SCATTER:
        return dtr_scatter(g, in, out, c->root, c->options, work);
    case BENCH_SENDRECV:
        return dtr_batch_p2p(g,
                             (dtr_p2p[]){ { true, in, (c->rank + 1) % c->size, 0 },
                                          { false, out, (c->rank + c->size - 1) % c->size, 0 } },
                             2, c->options, work);
    case BENCH_BARRIER:
        return dtr_barrier(g, c->options, work);
    default:
        return start_vector(c, in, out, g, work);
    }
}

/* Device-like compute leaves the core free; CPU compute does not. */
static void compute(const bench_case *c) {
    if (c->device.type == DTR_CUDA) {
        bench_device->compute(c->compute_s);
        return;
    }
    double end = measure_now() + c->compute_s;
    if (!c->cpu_compute) {
        struct timespec t = { (time_t)c->compute_s,
                              (long)(1e9 * (c->compute_s - (double)(time_t)c->compute_s)) };
        nanosleep(&t, NULL);
    }
    while (measure_now() < end) {
    }
}

static void finish(const bench_case *c, dtr_work *work, bool computes) {
    if (computes) {
        compute(c);
    }
    if (work != NULL) {
        require(dtr_work_wait(work, -1), c);
        dtr_work_release(work);
    }
}

/* Each side starts its operation and waits for it in turn. */
static void ping_pong_dtr(const bench_case *c, const contender *who, dtr_group *g) {
    dtr_buffer in = { who->in, c->in_count, who->dtype, c->device };
    dtr_buffer out = { who->out, c->out_count, who->dtype, c->device };
    for (int turn = 0; c->in_count > 0 && turn < 2; turn++) {
        dtr_work *work = NULL, **to = who->async ? &work : NULL;
        require(turn == c->rank % 2 ? dtr_send(g, in, c->rank ^ 1, 0, c->options, to)
                                    : dtr_recv(g, out, c->rank ^ 1, 0, c->options, to),
                c);
        finish(c, work, turn == 0 && c->mode == BENCH_OVERLAP);
    }
}

static void wait_all_dtr(const bench_case *c, const contender *who, dtr_group *g) {
    dtr_work *all[2 * BENCH_MESSAGES];
    const int to = (c->rank + 1) % c->size, from = (c->rank + c->size - 1) % c->size;
    const size_t n = c->count / BENCH_MESSAGES;
    for (size_t m = 0; m < BENCH_MESSAGES; m++) {
        dtr_buffer out = { message(who->out, who->dtype, n, m), n, who->dtype, c->device };
        dtr_buffer in = { message(who->in, who->dtype, n, m), n, who->dtype, c->device };
        require(dtr_recv(g, out, from, 0, c->options, &all[2 * m]), c);
        require(dtr_send(g, in, to, 0, c->options, &all[2 * m + 1]), c);
    }
    if (c->mode == BENCH_OVERLAP) {
        compute(c);
    }
    require(dtr_work_wait_all(all, 2 * BENCH_MESSAGES, -1), c);
    for (size_t i = 0; i < 2 * BENCH_MESSAGES; i++) {
        dtr_work_release(all[i]);
    }
}

void bench_call(const bench_case *c, const contender *who, dtr_group *g) {
    dtr_work *work = NULL;
    if (who->nccl) {
        bench_device->call(c, who);
    } else if (who->mpi) {
        if (bench_reduces(c->kind)) {
            reduce_mpi(c, who);
        } else {
            move_mpi(c, who);
        }
        finish(c, NULL, c->mode == BENCH_OVERLAP);
    } else if (c->kind == BENCH_PINGPONG) {
        ping_pong_dtr(c, who, g);
    } else if (c->kind == BENCH_WAITALL) {
        wait_all_dtr(c, who, g);
    } else {
        require(start_dtr(c, who, g, who->async ? &work : NULL), c);
        finish(c, work, c->mode == BENCH_OVERLAP);
    }
}
