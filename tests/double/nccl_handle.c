/* dtr_group_nccl_comm on the stand-ins: whose communicator it is, when there is one, and an
 * operation of the program on it among those of the library. */
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <dtr/nccl.h>

#include "harness.h"
#include "nccl_data.h"

/* A call that NCCL goes on with by itself. */
static ncclResult_t settled(ncclComm_t comm, ncclResult_t r) {
    while (r == ncclInProgress) {
        th_sleep(0.001);
        if (ncclCommGetAsyncError(comm, &r) != ncclSuccess) {
            return ncclInternalError;
        }
    }
    return r;
}

/* Between two sums of the library, in the order of the calls on all ranks. */
static void sum_by_nccl(dtr_group *g, ncclComm_t comm) {
    cudaStream_t stream = NULL;
    dtr_buffer b = filled(N, 1);
    allreduce_good(g);
    TH_CHECK(cudaDeviceSynchronize() == cudaSuccess, "synchronize");
    TH_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess,
             "stream");
    ncclResult_t r =
        settled(comm, ncclAllReduce(b.data, b.data, N, ncclFloat32, ncclSum, comm, stream));
    TH_CHECK(r == ncclSuccess, "ncclAllReduce: %d", (int)r);
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    check(b, 1, (float)dtr_group_size(g), "sum of the program");
    cudaStreamDestroy(stream);
    drop(b);
    allreduce_good(g);
}

START_TEST(handle_of_all_members) {
    dtr_group *g = NULL;
    void *handle = &g, *again = NULL;
    int rank = -1, size = -1;
    TH_OK(dtr_group_split(th_group(), 0, -th_rank(), NULL, &g));
    TH_IS(dtr_group_nccl_comm(NULL, gpu, &again), DTR_NOT_MEMBER);
    TH_IS(dtr_group_nccl_comm(g, gpu, NULL), DTR_ERR_ARG);
    TH_IS(dtr_group_nccl_comm(g, (dtr_device){ DTR_CUDA, 77 }, &handle), DTR_ERR_DEVICE);
    TH_IS(dtr_group_nccl_comm(g, (dtr_device){ DTR_CPU, 0 }, &handle), DTR_ERR_DEVICE);
    TH_IS(dtr_group_nccl_comm(g, gpu, &handle),
          th_size() > 1 ? DTR_ERR_STATE : DTR_ERR_UNSUPPORTED);
    TH_CHECK(handle == &g, "a refused call has written *comm");
    TH_OK(dtr_group_connect(g, gpu));
    if (th_size() == 1) { /* it needs a copy, and not NCCL */
        TH_IS(dtr_group_nccl_comm(g, gpu, &handle), DTR_ERR_UNSUPPORTED);
    } else {
        TH_IS(dtr_group_nccl_comm(g, gpu, &handle), DTR_OK);
        TH_IS(dtr_group_nccl_comm(g, gpu, &again), DTR_OK);
        TH_ALL(handle != NULL && handle == again, "two communicators");
        TH_CHECK(ncclCommUserRank(handle, &rank) == ncclSuccess, "rank");
        TH_CHECK(ncclCommCount(handle, &size) == ncclSuccess, "size");
        TH_ALL(rank == dtr_group_rank(g) && size == th_size(), "rank %d of %d", rank, size);
        sum_by_nccl(g, handle);
    }
    TH_AGREE();
    TH_IS(dtr_group_abort(g, "broken"), DTR_OK);
    TH_IS(dtr_group_nccl_comm(g, gpu, &handle), DTR_ERR_ABORTED);
    TH_AGREE();
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_group_nccl_comm(g, gpu, &handle), DTR_ERR_STATE);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl_handle", 120);
    th_add(tc, handle_of_all_members, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl_handle", make);
}
