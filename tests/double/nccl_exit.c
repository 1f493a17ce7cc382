/* What ends a process, in children. nccl:I14, collectives:NCM3, NCM5: a program that ends without
 * destroying anything: no handler of the library calls CUDA or NCCL then, and the exit code is the
 * program's. reliability:O17: a dump while a query of NCCL does not return. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <dtr/coll.h>
#include <dtr/group.h>
#include <dtr/world.h>

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

/* CUDA goes before the library's threads do, which still ask for an event then: no failure. */
static void leave_while_polling(void) {
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_world *w = NULL;
    dtr_group *g = NULL;
    dtr_work *work = NULL;
    void *p = NULL;
    cudaStream_t stream;
    cudaEvent_t open;
    const dtr_device gpu = { DTR_CUDA, 0 };
    go.backend = "cpu:auto,cuda:nccl";
    require(dtr_world_create(NULL, &w));
    require(dtr_group_create(w, NULL, 1, &go, &g));
    require(dtr_alloc(w, gpu, DTR_MEM_DEFAULT, N, &p));
    dtr_buffer b = { p, N, DTR_U8, gpu };
    require(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL));
    (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    (void)cudaEventCreateWithFlags(&open, cudaEventDisableTiming);
    (void)dtr_fake_cuda_hold(open, 1);
    (void)cudaEventRecord(open, stream);
    (void)cudaStreamWaitEvent(stream, open, 0);
    o.stream = stream;
    require(dtr_allreduce(g, b, b, DTR_MAX, &o, &work));
    (void)setenv("DTR_FAKE_CUDA_ERR", "cuCtxGetCurrent:0:4", 1);
    dtr_fake_cuda_reload();
    dtr_fake_cuda_log_start();
    while (dtr_fake_cuda_log_count("cuCtxGetCurrent") < 10 && dtr_group_status(g) == DTR_OK) {
        struct timespec t = { 0, 1000000 };
        nanosleep(&t, NULL);
    }
    _exit(dtr_group_status(g) == DTR_OK ? CODE : CODE + 6);
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
        (void)setenv("DTR_FAKE_CUDA_ERR", "cuCtxGetCurrent:0:4", 1); /* from here on every call */
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

/* The progress thread does not come back; what it hangs in is in the dump. */
static void dump_beside_a_hang(const char *folder) {
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    dtr_world *w = NULL;
    dtr_group *g = NULL;
    dtr_work *work = NULL;
    void *p = NULL;
    char look[256];
    cudaStream_t stream;
    cudaEvent_t open;
    const dtr_device gpu = { DTR_CUDA, 0 };
    (void)setenv("DTR_RECORDER_DIR", folder, 1);
    (void)setenv("DTR_FAKE_NCCL_ERR", "none:1:0", 1);
    go.backend = "cpu:auto,cuda:nccl";
    require(dtr_world_create(NULL, &w));
    require(dtr_group_create(w, NULL, 1, &go, &g));
    require(dtr_alloc(w, gpu, DTR_MEM_DEFAULT, N, &p));
    dtr_buffer b = { p, N, DTR_U8, gpu };
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    require(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL));
    (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    (void)cudaEventCreateWithFlags(&open, cudaEventDisableTiming);
    (void)dtr_fake_cuda_hold(open, 1);
    (void)cudaEventRecord(open, stream);
    (void)cudaStreamWaitEvent(stream, open, 0);
    o.stream = stream;
    require(dtr_allreduce(g, b, b, DTR_MAX, &o, &work));
    (void)setenv("DTR_FAKE_NCCL_ERR", "ncclCommGetAsyncError:1:-1", 1);
    (void)snprintf(look, sizeof look,
                   "grep -q '\"progress_inside\":\"ncclCommGetAsyncError' %s/*.dump.json", folder);
    do {
        require(dtr_world_dump(w, "look"));
    } while (system(look) != 0);
    _exit(CODE);
}

static int run(const char *what, const char *folder) {
    int status = 0;
    pid_t child = fork(); /* before MPI */
    if (child == 0 && folder != NULL) {
        dump_beside_a_hang(folder);
    } else if (child == 0 && strcmp(what, "polling") == 0) {
        leave_while_polling();
    } else if (child == 0) {
        use_and_leave(strcmp(what, "late") == 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
        WEXITSTATUS(status) != CODE) {
        fprintf(stderr, "%s: ended with %#x\n", what, (unsigned)status);
        return 1;
    }
    return 0;
}

int main(void) {
    char folder[] = "/tmp/dtr-test-exit-XXXXXX", command[128];
    int wrong = run("early", NULL) + run("late", NULL) + run("polling", NULL);
    if (mkdtemp(folder) == NULL) {
        return 1;
    }
    wrong += run("hanging", folder);
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) == 0 && wrong == 0 ? 0 : 1;
}
