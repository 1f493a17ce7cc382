/* A program that starts and ends MPI by itself and lends dtr a communicator of its own. */
#include <stdio.h>

#include <dtr/coll.h>
#include <dtr/mpi.h>

int main(int argc, char **argv) {
    int level = 0, rank = 0, size = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm backwards;
    MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &backwards);

    dtr_world *world = NULL;
    dtr_status status = dtr_world_create_from_comm(backwards, NULL, &world);
    MPI_Comm_free(&backwards);
    int64_t mine = rank, all[64] = { 0 };
    bool right = !DTR_FAILED(status) && size <= 64 && dtr_world_rank(world) == size - 1 - rank;
    if (!DTR_FAILED(status)) {
        status = dtr_allgather(dtr_world_group(world), dtr_cpu(&mine, 1, DTR_I64),
                               dtr_cpu(all, (size_t)size, DTR_I64), NULL, NULL);
    }
    if (DTR_FAILED(status)) {
        fprintf(stderr, "rank %d: %s\n", rank, dtr_last_error_message());
    }
    for (int i = 0; i < size && i < 64; i++) {
        right = right && all[i] == size - 1 - i;
    }
    right = !DTR_FAILED(dtr_world_destroy(world)) && right && !DTR_FAILED(status);
    printf("consumer: rank %d of %d, thread level %d, %s\n", rank, size, level,
           right ? "right" : "WRONG");
    MPI_Finalize(); /* still ours to call */
    return right ? 0 : 1;
}
