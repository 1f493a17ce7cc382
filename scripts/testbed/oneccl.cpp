// Collectives of MPI_COMM_WORLD by oneCCL, loaded with LD_PRELOAD, so that dtr-bench measures
// oneCCL in MPI's place: sums of floats, and bytes that are moved. Everything else stays MPI's.
#include <mpi.h>

#include <cstdint>
#include <oneapi/ccl.hpp>
#include <vector>

namespace {

bool inside = false; // what oneCCL itself calls is MPI's

const ccl::communicator &world() {
    static ccl::communicator *made = nullptr; // never destroyed: MPI has ended by then
    if (made == nullptr) {
        int rank = 0, size = 1;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        ccl::init();
        ccl::kvs::address_type address;
        ccl::shared_ptr_class<ccl::kvs> store;
        if (rank == 0) {
            store = ccl::create_main_kvs();
            address = store->get_address();
        }
        PMPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
        store = rank == 0 ? store : ccl::create_kvs(address);
        made = new ccl::communicator(ccl::create_communicator(size, rank, store));
    }
    return *made;
}

// Ends a call of oneCCL, which may itself call MPI meanwhile.
template <typename Call> int run(Call call) {
    inside = true;
    call(world()).wait();
    inside = false;
    return MPI_SUCCESS;
}

bool is_ours(MPI_Comm comm) {
    return !inside && comm == MPI_COMM_WORLD;
}

bool is_sum(MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    return is_ours(comm) && type == MPI_FLOAT && op == MPI_SUM;
}

// oneCCL takes the data itself in place of MPI_IN_PLACE.
const float *input(const void *in, const void *out) {
    return static_cast<const float *>(in == MPI_IN_PLACE ? out : in);
}

size_t bytes(int count, MPI_Datatype type) {
    int each = 0;
    MPI_Type_size(type, &each);
    return static_cast<size_t>(count) * static_cast<size_t>(each);
}

// Two buffers, as oneCCL wants them.
bool is_plain(const void *in, MPI_Comm comm) {
    return is_ours(comm) && in != MPI_IN_PLACE;
}

const uint8_t *from(const void *in) {
    return static_cast<const uint8_t *>(in);
}

uint8_t *to(void *out) {
    return static_cast<uint8_t *>(out);
}

} // namespace

using World = const ccl::communicator &;

extern "C" int MPI_Allreduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op,
                             MPI_Comm comm) {
    if (!is_sum(type, op, comm)) {
        return PMPI_Allreduce(in, out, n, type, op, comm);
    }
    return run([=](World w) {
        return ccl::allreduce(input(in, out), static_cast<float *>(out), static_cast<size_t>(n),
                              ccl::reduction::sum, w);
    });
}

extern "C" int MPI_Reduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op, int root,
                          MPI_Comm comm) {
    if (!is_sum(type, op, comm)) {
        return PMPI_Reduce(in, out, n, type, op, root, comm);
    }
    return run([=](World w) {
        return ccl::reduce(input(in, out), static_cast<float *>(out), static_cast<size_t>(n),
                           ccl::reduction::sum, root, w);
    });
}

extern "C" int MPI_Reduce_scatter_block(const void *in, void *out, int n, MPI_Datatype type,
                                        MPI_Op op, MPI_Comm comm) {
    if (!is_sum(type, op, comm) || !is_plain(in, comm)) {
        return PMPI_Reduce_scatter_block(in, out, n, type, op, comm);
    }
    return run([=](World w) {
        return ccl::reduce_scatter(input(in, out), static_cast<float *>(out),
                                   static_cast<size_t>(n), ccl::reduction::sum, w);
    });
}

extern "C" int MPI_Bcast(void *data, int n, MPI_Datatype type, int root, MPI_Comm comm) {
    if (!is_ours(comm)) {
        return PMPI_Bcast(data, n, type, root, comm);
    }
    return run([=](World w) { return ccl::broadcast(to(data), bytes(n, type), root, w); });
}

extern "C" int MPI_Allgather(const void *in, int n, MPI_Datatype type, void *out, int n_out,
                             MPI_Datatype type_out, MPI_Comm comm) {
    if (!is_plain(in, comm)) {
        return PMPI_Allgather(in, n, type, out, n_out, type_out, comm);
    }
    int size = 1;
    MPI_Comm_size(comm, &size);
    const std::vector<size_t> each(static_cast<size_t>(size), bytes(n, type));
    return run([&](World w) { return ccl::allgatherv(from(in), each[0], to(out), each, w); });
}

extern "C" int MPI_Alltoall(const void *in, int n, MPI_Datatype type, void *out, int n_out,
                            MPI_Datatype type_out, MPI_Comm comm) {
    if (!is_plain(in, comm)) {
        return PMPI_Alltoall(in, n, type, out, n_out, type_out, comm);
    }
    return run([=](World w) { return ccl::alltoall(from(in), to(out), bytes(n, type), w); });
}
