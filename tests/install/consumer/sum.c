/* A program of somebody else: sums the ranks over dtr, which starts MPI itself. */
#include <stdio.h>

#include <dtr/coll.h>
#include <dtr/version.h>

int main(void) {
    dtr_world *world = NULL;
    if (dtr_version() != DTR_VERSION || DTR_FAILED(dtr_world_create(NULL, &world))) {
        fprintf(stderr, "cannot start (library %d): %s\n", dtr_version(), dtr_last_error_message());
        return 1;
    }
    int rank = dtr_world_rank(world), size = dtr_world_size(world);
    int64_t sum = rank + 1;
    dtr_buffer buffer = dtr_cpu(&sum, 1, DTR_I64);
    dtr_status status = dtr_allreduce(dtr_world_group(world), buffer, buffer, DTR_SUM, NULL, NULL);
    if (DTR_FAILED(status)) {
        fprintf(stderr, "rank %d: %s\n", rank, dtr_last_error_message());
    }
    bool right = !DTR_FAILED(status) && sum == (int64_t)size * (size + 1) / 2;
    printf("consumer: rank %d of %d, sum %lld\n", rank, size, (long long)sum);
    return !DTR_FAILED(dtr_world_destroy(world)) && right ? 0 : 1;
}
