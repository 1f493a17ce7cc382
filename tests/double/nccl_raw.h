/* A communicator of the NCCL stand-in and its stream, for tests of the stand-in by itself. */
#ifndef DTR_NCCL_RAW_H
#define DTR_NCCL_RAW_H

#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>

#include "fake_cuda.h"
#include "harness.h"

static cudaStream_t stream;
static ncclComm_t comm;

static inline void nap(void) {
    struct timespec t = { 0, 200000 };
    nanosleep(&t, NULL);
}

/* The result of a call, after it has left the state "in progress". */
static inline ncclResult_t settled(ncclComm_t c, ncclResult_t r) {
    while (r == ncclInProgress) {
        nap();
        ncclResult_t asked = ncclCommGetAsyncError(c, &r);
        if (asked != ncclSuccess) {
            return asked;
        }
    }
    return r;
}

static inline ncclUniqueId common_id(void) {
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    if (th_rank() == 0) {
        TH_CHECK(ncclGetUniqueId(&id) == ncclSuccess, "ncclGetUniqueId");
    }
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    return id;
}

static inline ncclResult_t init(ncclComm_t *c, int blocking) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    *c = NULL;
    ncclUniqueId id = common_id();
    return ncclCommInitRankConfig(c, th_size(), id, th_rank(), &config);
}

static inline void begin(int blocking) {
    TH_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess,
             "stream");
    ncclResult_t r = settled(comm, init(&comm, blocking));
    TH_ALL(r == ncclSuccess, "init: %d %s", (int)r, ncclGetLastError(NULL));
}

static inline void finish(void) {
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    ncclResult_t r = settled(comm, ncclCommFinalize(comm));
    TH_CHECK(r == ncclSuccess, "finalize: %d", (int)r);
    TH_CHECK(ncclCommDestroy(comm) == ncclSuccess, "destroy");
    cudaStreamDestroy(stream);
    TH_AGREE();
}

static inline void *device(size_t nbytes) {
    void *p = NULL;
    TH_CHECK(cudaMalloc(&p, nbytes > 0 ? nbytes : 1) == cudaSuccess, "cudaMalloc");
    return p;
}

#endif /* DTR_NCCL_RAW_H */
