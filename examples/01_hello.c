/* Every rank brings four numbers; every rank gets their sums. Run: mpirun -n 2 ./hello */
#include <stdio.h>

#include <dtr/dtr.h>

int main(void) {
    dtr_world *world = NULL;
    if (dtr_world_create(NULL, &world) != DTR_OK) {
        fprintf(stderr, "%s\n", dtr_last_error_message());
        return 1;
    }
    int rank = dtr_world_rank(world), size = dtr_world_size(world);
    float mine[4] = { 1, 10, 100, (float)rank }, sum[4];

    dtr_status status = dtr_allreduce(dtr_world_group(world), dtr_cpu(mine, 4, DTR_F32),
                                      dtr_cpu(sum, 4, DTR_F32), DTR_SUM, NULL, NULL);
    if (status == DTR_OK) {
        printf("rank %d of %d: %g %g %g %g\n", rank, size, sum[0], sum[1], sum[2], sum[3]);
    } else {
        fprintf(stderr, "%s\n", dtr_last_error_message());
    }
    dtr_world_destroy(world);
    return status == DTR_OK ? 0 : 1;
}
