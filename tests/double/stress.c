/* A thousand operations at once on device memory, for every root (tests: T11, T13, T20, T26, T29,
 * T31; values of section 2.5). */
#include <stdint.h>
#include <stdlib.h>

#include "device_data.h"

typedef enum kind { BROADCAST, ALLREDUCE, ALLGATHER, REDUCE, SCATTER, GATHER, KINDS } kind;

enum { ROUNDS = TH_SANITIZED ? 60 : 1000 };

static bool rooted(kind k) {
    return k >= REDUCE;
}

static dtr_buffer at(int64_t *device, size_t n) {
    return (dtr_buffer){ device, n, DTR_I64, gpu };
}

static dtr_status start(kind k, int64_t *in, int64_t *out, int root, dtr_work **w) {
    const size_t W = (size_t)th_size(), at_root = th_rank() == root ? W : 0;
    dtr_group *g = th_group();
    switch (k) {
    case BROADCAST:
        return dtr_broadcast(g, at(out, 1), root, NULL, w);
    case ALLREDUCE:
        return dtr_allreduce(g, at(in, 1), at(out, 1), DTR_SUM, NULL, w);
    case ALLGATHER:
        return dtr_allgather(g, at(in, 1), at(out, W), NULL, w);
    case REDUCE:
        return dtr_reduce(g, at(in, 1), at(out, 1), DTR_SUM, root, NULL, w);
    case SCATTER:
        return dtr_scatter(g, at(in, at_root), at(out, 1), root, NULL, w);
    default:
        return dtr_gather(g, at(in, 1), at(out, at_root), root, NULL, w);
    }
}

/* Element j of the output of operation i; -1: as it was. */
static int64_t want(kind k, int64_t i, int j, int root) {
    const int64_t W = th_size(), sum = i * W + W * (W - 1) / 2;
    const bool here = th_rank() == root;
    switch (k) {
    case BROADCAST:
        return j == 0 ? i * W + root : -1;
    case ALLREDUCE:
        return j == 0 ? sum : -1;
    case REDUCE:
        return j == 0 && here ? sum : -1;
    case SCATTER:
        return j == 0 ? i + root : -1;
    default:
        return k == ALLGATHER || here ? i + j : -1;
    }
}

static int64_t *on_device(size_t n) {
    void *p = NULL;
    TH_OK(dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, n * sizeof(int64_t), &p));
    return p;
}

/* All are started before any is waited for; of allgather the handles are let go at once, and a
 * barrier comes after them. */
static void stress(kind k) {
    const size_t W = (size_t)th_size(), roots = rooted(k) ? W : 1, n = ROUNDS * roots, all = n * W;
    int64_t *in = malloc(all * sizeof *in), *out = malloc(all * sizeof *out);
    int64_t *there[2] = { on_device(all), on_device(all) };
    dtr_work **works = calloc(n, sizeof *works), *last = NULL;
    for (size_t t = 0; t < n; t++) {
        const int64_t i = (int64_t)(t / roots);
        for (size_t j = 0; j < W; j++) {
            in[t * W + j] = i + th_rank();
            out[t * W + j] = k == BROADCAST && j == 0 ? i * (int64_t)W + th_rank() : -1;
        }
    }
    TH_CHECK(cudaMemcpy(there[0], in, all * sizeof *in, cudaMemcpyHostToDevice) == cudaSuccess &&
                 cudaMemcpy(there[1], out, all * sizeof *in, cudaMemcpyHostToDevice) == cudaSuccess,
             "copy to the device");
    TH_AGREE();
    for (size_t t = 0; t < n; t++) {
        const int root = (int)((rooted(k) ? t : t / roots) % W);
        TH_IS(start(k, there[0] + t * W, there[1] + t * W, root, &works[t]), DTR_OK);
        if (k == ALLGATHER) {
            TH_IS(dtr_work_release(works[t]), DTR_OK);
        }
    }
    TH_IS(dtr_barrier(th_group(), NULL, &last), DTR_OK);
    for (size_t t = 0; t < n && k != ALLGATHER; t++) {
        TH_IS(dtr_work_synchronize(works[t], -1), DTR_OK);
        TH_IS(dtr_work_release(works[t]), DTR_OK);
    }
    TH_IS(dtr_work_synchronize(last, -1), DTR_OK);
    TH_IS(dtr_work_release(last), DTR_OK);
    TH_CHECK(cudaDeviceSynchronize() == cudaSuccess &&
                 cudaMemcpy(out, there[1], all * sizeof *in, cudaMemcpyDeviceToHost) == cudaSuccess,
             "copy from the device");
    for (size_t e = 0; e < all; e++) {
        const size_t t = e / W;
        const int root = (int)((rooted(k) ? t : t / roots) % W);
        const int64_t right = want(k, (int64_t)(t / roots), (int)(e % W), root);
        TH_CHECK(out[e] == right, "kind %d, operation %zu gave %lld, not %lld", k, t,
                 (long long)out[e], (long long)right);
    }
    TH_IS(dtr_free(th_world(), there[0]), DTR_OK);
    TH_IS(dtr_free(th_world(), there[1]), DTR_OK);
    free(in);
    free(out);
    free(works);
    TH_AGREE();
}

START_TEST(T11_T13_T20_T26_T29_T31_a_thousand_at_once) {
    for (kind k = BROADCAST; k < KINDS; k++) {
        stress(k);
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "stress", 200);
    th_add(tc, T11_T13_T20_T26_T29_T31_a_thousand_at_once, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "stress on the device", make);
}
