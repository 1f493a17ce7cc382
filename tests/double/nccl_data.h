/* What tests of the nccl backend on the stand-ins share. */
#ifndef DTR_NCCL_DATA_H
#define DTR_NCCL_DATA_H

#include "device_data.h"
#include "fake_cuda.h"

enum { N = 3000 }; /* elements of a buffer */

/* The rank that faults hit. */
static inline int culprit(void) {
    return th_size() - 1;
}

/* A setting of the stand-ins on this rank; NULL: none. */
static inline void fault(const char *name, const char *value) {
    if (value != NULL) {
        setenv(name, value, 1);
    } else {
        unsetenv(name);
    }
    dtr_fake_cuda_reload();
}

static inline void fault_on_culprit(const char *name, const char *value) {
    fault(name, th_rank() == culprit() ? value : NULL);
}

static inline void allreduce_good(dtr_group *g) {
    dtr_buffer b = filled(N, 1);
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_OK);
    check(b, 1, (float)dtr_group_size(g), "sum");
    drop(b);
}

static inline dtr_group *group_of(const char *backend, double timeout_s) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    o.backend = backend;
    o.timeout_s = timeout_s;
    if (timeout_s > 0) {
        return th_hasty_group(th_world(), &o);
    }
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_OK);
    TH_AGREE();
    return g;
}

static inline void end_group(dtr_group *g) {
    th_barrier();
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}

/* A stream that waits for an event which the test holds. */
static inline cudaStream_t held_stream(cudaEvent_t *open) {
    cudaStream_t stream;
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_CHECK(cudaEventCreateWithFlags(open, cudaEventDisableTiming) == cudaSuccess, "event");
    dtr_fake_cuda_hold(*open, 1);
    cudaEventRecord(*open, stream);
    cudaStreamWaitEvent(stream, *open, 0);
    return stream;
}

#endif /* DTR_NCCL_DATA_H */
