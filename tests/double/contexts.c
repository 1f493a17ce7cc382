/* Contexts: a rank makes that of its own device and no other, whichever thread calls and whatever
 * it calls first, and no thread is left on another device than before (nccl:GP3). The ranks see the
 * same four GPUs and have one each. */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <dtr/dtr.h>
#include <dtr/mpi.h>

#include "fake_cuda.h"
#include "harness.h"
#include "recorder/recording.h"
#include "settings.h"

enum { GPUS = 4, N = 700 };

static dtr_device own(void) {
    return dtr_world_device(th_world());
}

static void check_contexts(const char *after) {
    int now = -1;
    for (int d = 0; d < GPUS; d++) {
        TH_CHECK(dtr_fake_cuda_context(d) == 0 || d == own().index,
                 "after %s: a context on cuda:%d, this rank has cuda:%d", after, d, own().index);
    }
    TH_CHECK(cudaGetDevice(&now) == cudaSuccess && now == 0, "after %s: cuda:%d is current", after,
             now);
}

static void use_memory(void) {
    void *pinned = NULL, *p = NULL;
    TH_IS(dtr_alloc(th_world(), (dtr_device){ DTR_CPU, 0 }, DTR_MEM_PINNED, N, &pinned), DTR_OK);
    check_contexts("dtr_alloc of pinned memory");
    TH_IS(dtr_free(th_world(), pinned), DTR_OK);
    check_contexts("dtr_free of pinned memory");
    TH_IS(dtr_alloc(th_world(), own(), DTR_MEM_DEFAULT, N, &p), DTR_OK);
    check_contexts("dtr_alloc");
    TH_IS(dtr_free(th_world(), p), DTR_OK);
    check_contexts("dtr_free");
}

static void use_group(dtr_group *g, const char *name) {
    dtr_work *w = NULL;
    void *p = NULL;
    TH_IS(dtr_alloc(th_world(), own(), DTR_MEM_DEFAULT, N * sizeof(float), &p), DTR_OK);
    dtr_buffer b = { p, N, DTR_F32, own() };
    TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, &w), DTR_OK);
    check_contexts(name);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_synchronize(w, -1), DTR_OK);
    check_contexts("waiting");
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_group_drain(g, -1), DTR_OK);
    TH_IS(dtr_free(th_world(), p), DTR_OK);
    check_contexts(name);
}

static void use_tensor(void) {
    dtr_tensor *t = NULL;
    double norm = 0;
    const int64_t n = N;
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, own(), DTR_MEM_DEFAULT, 1, &n, &t), DTR_OK);
    TH_IS(dtr_tensor_fill(t, 0, NULL), DTR_OK);
    TH_IS(dtr_tensor_norm(t, NULL, &norm), DTR_OK);
    dtr_tensor_release(t);
    check_contexts("tensors");
}

static void *use_all(void *group) {
    use_memory();
    use_group(group, "operations");
    use_tensor();
    return NULL;
}

static void in_a_thread(void *(*fn)(void *), void *arg) {
    pthread_t t;
    bool started = pthread_create(&t, NULL, fn, arg) == 0;
    TH_CHECK(started, "no thread");
    if (started) {
        pthread_join(t, NULL);
    }
}

/* Lines of the log at level info that begin with the device and its versions. */
static void count_versions(void *arg, int level, const char *line) {
    char want[64];
    snprintf(want, sizeof want, "cuda:%d ", own().index);
    const char *at = strstr(line, want);
    *(int *)arg += level == DTR_LOG_INFO && at != NULL &&
                   strstr(at, ", capability 9.0, driver ") != NULL && strstr(at, ", CUDA ") != NULL;
}

/* Device and versions begin every report: in the recording, which is read when it is too late to
 * ask, and once in the log. */
START_TEST(versions_are_recorded) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    int lines = 0;
    o.log_fn = count_versions;
    o.log_arg = &lines;
    for (int info = 0; info < 2; info++) {
        dtr_world *w = TH_WORLD_WITH(&o, "DTR_LOG", info ? "info" : "warn");
        TH_CHECK(lines == info, "%d lines of versions", lines);
        TH_IS(dtr_world_destroy(w), DTR_OK);
    }
    const char *text = strstr(dtr__recorder_header(th_world())->settings, "GPU=cuda:"), *end;
    char want[64];
    snprintf(want, sizeof want, "GPU=cuda:%d ", own().index);
    TH_CHECK(text != NULL && strncmp(text, want, strlen(want)) == 0, "%s",
             dtr__recorder_header(th_world())->settings);
    end = text != NULL ? strchr(text, '\n') : NULL;
    const char *const parts[] = { ", capability 9.0, driver ", "CUDA ", "NCCL ", "built with" };
    for (int i = 0; i < 4 && end != NULL; i++) {
        const char *part = strstr(text, parts[i]);
        TH_CHECK(part != NULL && part < end, "no '%s' in %s", parts[i], text);
    }
    TH_AGREE();
}
END_TEST

START_TEST(GP3_each_rank_has_its_device) {
    uint64_t all[GPUS];
    th_gather_u64((uint64_t)own().index, all);
    for (int i = 0; i < GPUS; i++) {
        TH_CHECK(own().type == DTR_CUDA && (i == th_rank() || (int)all[i] != own().index),
                 "ranks %d and %d have cuda:%d", i, th_rank(), own().index);
    }
    check_contexts("making the world");
    TH_CHECK(dtr_fake_cuda_context(own().index) == 0, "making a world has made a context");
    TH_AGREE();
}
END_TEST

static void count_warnings(void *arg, int level, const char *line) {
    (void)level;
    *(int *)arg += strstr(line, "is bound to") != NULL;
}

/* One warning a node, of the first rank that is bound to too few CPUs, when a GPU is used. */
START_TEST(few_cpus_are_warned_of) {
    static const char *const ways[] = { "cpu:auto,cuda:nccl", "cpu:auto,cuda:stage" };
    cpu_set_t before, one;
    CPU_ZERO(&one);
    TH_CHECK(sched_getaffinity(0, sizeof before, &before) == 0, "affinity");
    int first = 0;
    while (!CPU_ISSET(first, &before)) {
        first++;
    }
    CPU_SET(first, &one);
    const bool bound = sysconf(_SC_NPROCESSORS_ONLN) > 1;
    TH_CHECK(sched_setaffinity(0, sizeof one, &one) == 0, "affinity");
    for (int i = 0; i < 2; i++) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        dtr_world_options wo = DTR_WORLD_OPTIONS_INIT;
        dtr_world *w = NULL;
        dtr_group *g = NULL, *second = NULL;
        int warned = 0;
        wo.log_fn = count_warnings;
        wo.log_arg = &warned;
        TH_OK(dtr_world_create_from_comm(MPI_COMM_WORLD, &wo, &w));
        o.backend = ways[i];
        TH_OK(dtr_group_create(w, NULL, th_size(), &o, &g));
        TH_OK(dtr_group_create(w, NULL, th_size(), &o, &second));
        for (int k = 0; k < 3; k++) {
            void *p = NULL;
            TH_OK(dtr_alloc(w, own(), DTR_MEM_DEFAULT, N, &p));
            dtr_buffer b = { p, N, DTR_U8, own() };
            TH_OK(dtr_broadcast(k == 0 ? g : second, b, 0, NULL, NULL));
            TH_OK(dtr_free(w, p));
        }
        const int want = bound && th_rank() == 0;
        TH_CHECK(warned == want, "%s: %d warnings", ways[i], warned);
        TH_AGREE();
        TH_OK(dtr_group_destroy(second));
        TH_OK(dtr_group_destroy(g));
        TH_OK(dtr_world_destroy(w));
    }
    TH_CHECK(sched_setaffinity(0, sizeof before, &before) == 0, "affinity");
    TH_AGREE();
}
END_TEST

/* nccl and stage, from a thread that never chose a device, and from this one. */
START_TEST(GP3_one_context) {
    static const char *const ways[] = { "cpu:auto,cuda:nccl", "cpu:auto,cuda:stage" };
    for (int i = 0; i < 2; i++) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        dtr_group *g = NULL;
        o.backend = ways[i];
        TH_OK(dtr_group_create(th_world(), NULL, th_size(), &o, &g));
        check_contexts("making a group");
        in_a_thread(use_all, g);
        use_all(g);
        TH_AGREE();
        TH_OK(dtr_group_destroy(g));
        check_contexts("the end of a group");
    }
    TH_CHECK(dtr_fake_cuda_context(own().index) == 1, "cuda:%d was used", own().index);
    TH_AGREE();
}
END_TEST

/* A thread that chose another device finds that again. */
static void *on_its_own_device(void *other) {
    int chosen = *(const int *)other, now = -1;
    void *p = NULL;
    TH_CHECK(cudaSetDevice(chosen) == cudaSuccess, "cudaSetDevice");
    TH_IS(dtr_alloc(th_world(), own(), DTR_MEM_DEFAULT, N, &p), DTR_OK);
    TH_IS(dtr_free(th_world(), p), DTR_OK);
    TH_CHECK(cudaGetDevice(&now) == cudaSuccess && now == chosen, "cuda:%d is current, not %d", now,
             chosen);
    return NULL;
}

START_TEST(GP3_the_programs_choice) {
    int other = (own().index + 1) % GPUS;
    in_a_thread(on_its_own_device, &other);
    for (int d = 0; d < GPUS; d++) {
        TH_CHECK(dtr_fake_cuda_context(d) == (d == own().index || d == other),
                 "cuda:%d has %d contexts", d, dtr_fake_cuda_context(d));
    }
    TH_AGREE();
}
END_TEST

/* A stream of another device is the caller's mistake: refused before the call has a number, and the
 * group goes on. */
START_TEST(ARG_stream_of_another_device) {
    static const char *const ways[] = { "cpu:auto,cuda:nccl", "cpu:auto,cuda:stage" };
    cudaStream_t stream;
    TH_CHECK(cudaSetDevice((own().index + 1) % GPUS) == cudaSuccess, "cudaSetDevice");
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    for (int i = 0; i < 2; i++) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        dtr_coll_options co = DTR_COLL_OPTIONS_INIT;
        dtr_group *g = NULL;
        void *p = NULL;
        o.backend = ways[i];
        co.stream = stream;
        TH_OK(dtr_group_create(th_world(), NULL, th_size(), &o, &g));
        TH_IS(dtr_alloc(th_world(), own(), DTR_MEM_DEFAULT, N * sizeof(float), &p), DTR_OK);
        dtr_buffer b = { p, N, DTR_F32, own() };
        TH_IS(dtr_allreduce(g, b, b, DTR_MAX, &co, NULL), DTR_ERR_ARG);
        TH_MESSAGE("another device");
        TH_CHECK(dtr_group_seq(g) == 0, "it took a number");
        TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL), DTR_OK);
        TH_IS(dtr_group_drain(g, -1), DTR_OK);
        TH_IS(dtr_free(th_world(), p), DTR_OK);
        TH_AGREE();
        TH_OK(dtr_group_destroy(g));
    }
    TH_CHECK(cudaStreamDestroy(stream) == cudaSuccess, "stream");
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "contexts", 110);
    th_add(tc, versions_are_recorded, GPUS, GPUS);
    th_add(tc, GP3_each_rank_has_its_device, GPUS, GPUS);
    th_add(tc, GP3_one_context, GPUS, GPUS);
    th_add(tc, few_cpus_are_warned_of, GPUS, GPUS);
    th_add(tc, GP3_the_programs_choice, GPUS, GPUS); /* from here on with contexts of others */
    th_add(tc, ARG_stream_of_another_device, GPUS, GPUS);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "contexts", make);
}
