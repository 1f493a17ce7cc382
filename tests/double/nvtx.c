/* DTR_NVTX (ddp I14): public calls and buckets are ranges that end, and without the setting there
 * are none. A library in a profiler's place counts them. */
#include <dlfcn.h>
#include <stdlib.h>

#include <dtr/ddp.h>
#include <dtr/tensor.h>

#include "harness.h"
#include "nvtx_count.h"

static unsigned (*count)(char kind, const char *text);

/* Two steps of two parameters, each in a bucket of its own; the gradients are the buckets. */
static void steps(dtr_world *w) {
    const int64_t shape[] = { 8 };
    dtr_param p[2] = { { "a", NULL, NULL, 0 }, { "b", NULL, NULL, 0 } };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_ddp *ddp = NULL;
    o.first_bucket_bytes = o.bucket_cap_bytes = 32;
    for (int i = 0; i < 2; i++) {
        TH_IS(dtr_tensor_empty(w, DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1, shape,
                               &p[i].value),
              DTR_OK);
        TH_IS(dtr_tensor_fill(p[i].value, 1, NULL), DTR_OK);
    }
    TH_OK(dtr_ddp_create(dtr_world_group(w), p, 2, &o, &ddp));
    for (int step = 0; step < 2; step++) {
        for (size_t i = 2; i-- > 0;) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_OK(dtr_ddp_backward_end(ddp, NULL));
    }
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_tensor_release(p[0].value);
    dtr_tensor_release(p[1].value);
}

static void job(bool on) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    float x = 1, y = 0;
    o.keep_mpi = true;
    setenv("DTR_NVTX", on ? "1" : "0", 1);
    TH_OK(dtr_world_create(&o, &w));
    TH_OK(dtr_allreduce(dtr_world_group(w), dtr_cpu(&x, 1, DTR_F32), dtr_cpu(&y, 1, DTR_F32),
                        DTR_SUM, NULL, NULL));
    steps(w);
    TH_OK(dtr_world_destroy(w));
}

START_TEST(I14_ranges_of_calls_and_buckets) {
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *library = path != NULL ? dlopen(path, RTLD_NOW) : NULL;
    TH_ALL(library != NULL, "no library to count ranges: %s", path != NULL ? dlerror() : "no path");
    *(void **)&count = dlsym(library, "nvtx_count_of");
    TH_ALL(count != NULL, "nothing counts");
    job(true);
    unsigned pushed = count(NVTX_PUSH, ""), buckets = count(NVTX_START, "ddp_bucket ");
    TH_CHECK(count(NVTX_PUSH, "dtr_allreduce world") == 1, "one allreduce, %u ranges",
             count(NVTX_PUSH, "dtr_allreduce world"));
    TH_CHECK(count(NVTX_PUSH, "dtr_ddp_backward_end") == 2, "two steps, %u ranges",
             count(NVTX_PUSH, "dtr_ddp_backward_end"));
    TH_CHECK(pushed == count(NVTX_POP, ""), "%u ranges begun, %u ended", pushed,
             count(NVTX_POP, ""));
    TH_CHECK(buckets == 4, "two steps of two buckets, %u ranges", buckets);
    TH_CHECK(count(NVTX_END, "a range") == buckets, "%u buckets begun, %u ended", buckets,
             count(NVTX_END, "a range"));
    job(false);
    TH_CHECK(count(NVTX_PUSH, "") == pushed && count(NVTX_START, "") == buckets,
             "ranges without DTR_NVTX: %u and %u, before %u and %u", count(NVTX_PUSH, ""),
             count(NVTX_START, ""), pushed, buckets);
    TH_AGREE();
    unsetenv("DTR_NVTX");
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nvtx", 120);
    th_add(tc, I14_ranges_of_calls_and_buckets, 2, 2);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nvtx", make);
}
