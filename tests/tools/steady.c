/* A job to look at: trains a module of one parameter until the file STOP is there, and ends then.
 * steady STOP; a rank whose group has broken waits for that too, and ends with status 1. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <dtr/coll.h>
#include <dtr/ddp.h>
#include <dtr/group.h>
#include <dtr/world.h>

enum { NUMEL = 4096, LIMIT_S = 300, MS = 1000000 };

static time_t limit; /* of a test that has lost it */

static bool asked(const char *stop) {
    return access(stop, F_OK) == 0 || time(NULL) > limit;
}

static void pause_ms(long ms) {
    const struct timespec t = { 0, ms * MS };
    nanosleep(&t, NULL);
}

static dtr_status step(dtr_ddp *ddp, dtr_group *group, int32_t *stop) {
    dtr_status s = dtr_ddp_grad_ready(ddp, 0, NULL);
    pause_ms(5); /* the backward pass goes on */
    s = s == DTR_OK ? dtr_ddp_backward_end(ddp, NULL) : s;
    dtr_coll_options o = { .struct_size = sizeof o, .label = "stop" };
    dtr_buffer b = dtr_cpu(stop, 1, DTR_I32);
    return s == DTR_OK ? dtr_allreduce(group, b, b, DTR_MAX, &o, NULL) : s;
}

int main(int argc, char **argv) {
    dtr_world *world = NULL;
    dtr_tensor *weight = NULL;
    dtr_ddp *ddp = NULL;
    const int64_t shape[1] = { NUMEL };
    dtr_status s = dtr_world_create(NULL, &world);
    s = s == DTR_OK ? dtr_tensor_empty(world, DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT,
                                       1, shape, &weight)
                    : s;
    s = s == DTR_OK ? dtr_tensor_fill(weight, 0, NULL) : s;
    dtr_param p = { "weight", weight, NULL, 0 };
    s = s == DTR_OK ? dtr_ddp_create(dtr_world_group(world), &p, 1, NULL, &ddp) : s;
    limit = time(NULL) + LIMIT_S;
    for (int32_t stop = 0; s == DTR_OK && stop == 0 && argc > 1;) {
        stop = asked(argv[1]);
        s = step(ddp, dtr_world_group(world), &stop);
    }
    if (s != DTR_OK) {
        fprintf(stderr, "%s: %s\n", dtr_status_name(s), dtr_last_error_message());
    }
    while (s != DTR_OK && argc > 1 && !asked(argv[1])) {
        pause_ms(5);
    }
    (void)dtr_ddp_destroy(ddp);
    dtr_tensor_release(weight);
    (void)dtr_world_destroy(world);
    return s != DTR_OK;
}
