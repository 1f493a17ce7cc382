/* Every rank brings four numbers; every rank gets their sums. Run: mpirun -n 2 ./hello */
#include <stdio.h>

#include <dtr/dtr.h>

int main(void) {
    dtr_world *world = NULL;
    if (DTR_FAILED(dtr_world_create(NULL, &world))) {
        fprintf(stderr, "%s\n", dtr_last_error_message());
        return 1;
    }
    int rank = dtr_world_rank(world), size = dtr_world_size(world);
    const float mine[4] = { 1, 10, 100, (float)rank };
    float sum[4];

    dtr_status status = dtr_allreduce(dtr_world_group(world), dtr_cpu_in(mine, 4, DTR_F32),
                                      dtr_cpu(sum, 4, DTR_F32), DTR_SUM, NULL, NULL);
    if (!DTR_FAILED(status)) {
        printf("rank %d of %d: %g %g %g %g\n", rank, size, sum[0], sum[1], sum[2], sum[3]);
    } else {
        fprintf(stderr, "%s\n", dtr_last_error_message());
    }
    dtr_world_destroy(world);
    return DTR_FAILED(status) ? 1 : 0;
}
