/* train away|busy|count|kind|root|release: twenty averages of gradients, and in the seventeenth
 * rank 2 does what its argument says. For the messages that pages show; what a rank is told it
 * prints. "busy" lasts until there is a file "go". */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <dtr/dtr.h>

enum { N = 1024, LAST = 20, ODD = 17 };

static float grad[N + 1];

/* Rank 1 leaves a group of two that rank 0 goes on using. */
static dtr_status release(dtr_group *all) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *pairs = NULL;
    dtr_status status = DTR_OK;
    o.name = "pairs";
    dtr_group_split(all, dtr_group_rank(all) / 2, 0, &o, &pairs);
    for (int i = 0; i < 4; i++) {
        dtr_barrier(pairs, NULL, NULL);
    }
    if (dtr_group_rank(pairs) == 1) {
        dtr_group_release(pairs);
        return DTR_OK;
    }
    status = dtr_barrier(pairs, NULL, NULL);
    dtr_group_release(pairs);
    return status;
}

static dtr_status step(dtr_group *all, const char *odd) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_buffer all_of_it = dtr_cpu(grad, N, DTR_F32);
    o.label = "grad.3";
    if (strcmp(odd, "away") == 0) {
        sleep(2);
    } else if (strcmp(odd, "busy") == 0) {
        while (access("go", F_OK) != 0) {
            nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
        }
    } else if (strcmp(odd, "count") == 0) {
        all_of_it = dtr_cpu(grad, N + 1, DTR_F32);
    } else if (strcmp(odd, "kind") == 0) {
        return dtr_broadcast(all, all_of_it, 0, NULL, NULL);
    }
    return dtr_allreduce(all, all_of_it, all_of_it, DTR_AVG, &o, NULL);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    dtr_world *world = NULL;
    dtr_status status = dtr_world_create(NULL, &world);
    int rank = status == DTR_OK ? dtr_world_rank(world) : 0;
    if (status == DTR_OK && strcmp(what, "root") == 0) {
        status =
            dtr_broadcast(dtr_world_group(world), dtr_cpu(grad, N, DTR_F32), rank == 1, NULL, NULL);
    } else if (status == DTR_OK && strcmp(what, "release") == 0) {
        status = release(dtr_world_group(world));
    }
    for (int i = 1; i <= LAST && !DTR_FAILED(status); i++) {
        status = step(dtr_world_group(world), rank == 2 && i == ODD ? what : "");
    }
    if (DTR_FAILED(status)) {
        printf("%s\n", dtr_last_error_message());
    }
    dtr_world_destroy(world);
    return 0;
}
