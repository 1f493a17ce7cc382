/* nccl:I14: a program that ends without destroying anything: no handler of the library calls CUDA
 * or NCCL then, and the exit code is the program's. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <dtr/coll.h>
#include <dtr/group.h>

#include "fake_cuda.h"

enum { CODE = 5, N = 100 };

/* Registered before all others, so that it comes after them. */
static void last(void) {
    if (dtr_fake_cuda_log_count("") > 0) {
        fprintf(stderr, "called at the end:\n%s", dtr_fake_cuda_log_text());
        _exit(CODE + 1);
    }
}

static void require(dtr_status s) {
    if (s != DTR_OK) {
        fprintf(stderr, "%s: %s\n", dtr_status_name(s), dtr_last_error_message());
        _exit(CODE + 2);
    }
}

static void use_and_leave(bool late) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    dtr_world *w = NULL;
    dtr_group *g = NULL;
    void *p = NULL;
    const dtr_device gpu = { DTR_CUDA, 0 };
    (void)atexit(last);
    go.backend = "cpu:auto,cuda:nccl";
    require(dtr_world_create(&o, &w));
    require(dtr_group_create(w, NULL, 1, &go, &g));
    require(dtr_alloc(w, gpu, DTR_MEM_DEFAULT, N, &p));
    dtr_fake_cuda_log_start();
    dtr_buffer b = { p, N, DTR_U8, gpu };
    require(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL));
    require(dtr_group_drain(g, -1));
    if (dtr_fake_cuda_log_count("ncclAllReduce rank") != 1) {
        _exit(CODE + 3);
    }
    if (late) {
        (void)setenv("DTR_FAKE_CUDA_ERR", "cudaGetDevice:0:4", 1); /* from here on every call */
        dtr_fake_cuda_reload();
    }
    dtr_fake_cuda_log_start();
    if (late) {
        (void)dtr_group_destroy(g);
        (void)dtr_world_destroy(w);
        _exit(dtr_fake_cuda_log_count("nccl") == 0 ? CODE : CODE + 4);
    }
    exit(CODE);
}

int main(void) {
    int wrong = 0;
    for (int late = 0; late < 2; late++) {
        int status = 0;
        pid_t child = fork(); /* before MPI */
        if (child == 0) {
            use_and_leave(late != 0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
            WEXITSTATUS(status) != CODE) {
            fprintf(stderr, "%s: ended with %#x\n", late ? "late" : "early", (unsigned)status);
            wrong = 1;
        }
    }
    return wrong;
}
