/* Deterministic groups: the bits of a plain loop over the ranks in order, on every backend. */
#include "data.h"
#include "groups_common.h"

enum { COUNT = 3001 };

/* Element k of rank r: numbers of very different size, so that the order of additions shows. */
static void inputs(float *x, int r) {
    th_rng g = { 1000 + (uint64_t)r };
    th_random_floats(x, DTR_F32, COUNT, &g, -12, 12);
}

static void check_f32(dtr_group *g, const char *backend) {
    float *x = malloc(sizeof(float) * COUNT * 3), *y = x + COUNT, *want = y + COUNT;
    inputs(want, 0);
    for (int r = 1; r < th_size(); r++) {
        inputs(y, r);
        for (int k = 0; k < COUNT; k++) {
            want[k] = want[k] + y[k];
        }
    }
    for (int again = 0; again < 3; again++) {
        inputs(x, th_rank());
        memset(y, 0, sizeof(float) * COUNT);
        TH_IS(dtr_allreduce(g, dtr_cpu(x, COUNT, DTR_F32), dtr_cpu(y, COUNT, DTR_F32), DTR_SUM,
                            NULL, NULL),
              DTR_OK);
        size_t at = th_differs(y, want, DTR_F32, COUNT);
        TH_CHECK(at == COUNT, "f32 on %s: element %zu is %a, in rank order %a", backend, at,
                 (double)y[at % COUNT], (double)want[at % COUNT]);
    }
    free(x);
    TH_AGREE();
}

/* bf16 accumulates in float32 in rank order and is rounded once. */
static void check_bf16(dtr_group *g, const char *backend) {
    uint16_t *x = malloc(sizeof(uint16_t) * COUNT * 3), *y = x + COUNT, *want = y + COUNT;
    float *sum = calloc(COUNT, sizeof(float));
    for (int r = 0; r < th_size(); r++) {
        th_rng rng = { 2000 + (uint64_t)r };
        th_random_floats(x, DTR_BF16, COUNT, &rng, -6, 6);
        for (size_t k = 0; k < COUNT; k++) {
            float v = (float)th_get(x, DTR_BF16, k, false);
            sum[k] = r == 0 ? v : sum[k] + v;
        }
    }
    for (size_t k = 0; k < COUNT; k++) {
        th_set(want, DTR_BF16, k, (double)sum[k], 0);
    }
    th_rng rng = { 2000 + (uint64_t)th_rank() };
    th_random_floats(x, DTR_BF16, COUNT, &rng, -6, 6);
    memset(y, 0, sizeof(uint16_t) * COUNT);
    TH_IS(dtr_allreduce(g, dtr_cpu(x, COUNT, DTR_BF16), dtr_cpu(y, COUNT, DTR_BF16), DTR_SUM, NULL,
                        NULL),
          DTR_OK);
    size_t at = th_differs(y, want, DTR_BF16, COUNT);
    TH_CHECK(at == COUNT, "bf16 on %s: element %zu is 0x%04x, in rank order 0x%04x", backend, at,
             y[at % COUNT], want[at % COUNT]);
    free(sum);
    free(x);
    TH_AGREE();
}

/* Several ranks of one node are for shm, nodes of several ranks for hier; the others serve any
 * group. */
static bool serves(const char *backend) {
    const int nodes = dtr_world_node_count(th_world());
    return strcmp(backend, "cpu:shm") == 0    ? nodes == 1 && th_size() > 1
           : strcmp(backend, "cpu:hier") == 0 ? nodes > 1 && nodes < th_size()
                                              : true;
}

START_TEST(NEW39_deterministic) {
    const char *backends[] = { "cpu:mpi", "cpu:shm", "cpu:hier", "cpu:auto" };
    for (int i = 0; i < 4; i++) {
        dtr_group_options o = options(0, NULL);
        o.backend = backends[i];
        o.deterministic = true;
        dtr_group *g = NULL;
        dtr_status s = dtr_group_create(th_world(), NULL, th_size(), &o, &g);
        TH_CHECK(s == (serves(backends[i]) ? DTR_OK : DTR_ERR_UNSUPPORTED), "%s gave %s: %s",
                 backends[i], dtr_status_name(s), dtr_last_error_message());
        TH_AGREE();
        if (s == DTR_OK) {
            check_f32(g, backends[i]);
            check_bf16(g, backends[i]);
        }
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

/* T124: sums of the usual groups have the same bits on all ranks and in every run. */
START_TEST(T124_same_bits_every_time) {
    const dtr_dtype types[] = { DTR_F32, DTR_BF16, DTR_F16 };
    for (int i = 0; i < 3; i++) {
        uint32_t x[COUNT], y[COUNT], first[COUNT];
        const size_t nbytes = COUNT * dtr_dtype_size(types[i]);
        th_rng rng = { 3000 + (uint64_t)(16 * i + th_rank()) };
        th_random_floats(x, types[i], COUNT, &rng, -6, 6);
        for (int again = 0; again < 20; again++) {
            memset(y, 0, nbytes);
            TH_IS(dtr_allreduce(th_group(), dtr_cpu(x, COUNT, types[i]),
                                dtr_cpu(y, COUNT, types[i]), DTR_SUM, NULL, NULL),
                  DTR_OK);
            if (again == 0) {
                memcpy(first, y, nbytes);
                TH_IS(dtr_broadcast(th_group(), dtr_cpu(first, COUNT, types[i]), 0, NULL, NULL),
                      DTR_OK);
            }
            TH_CHECK(memcmp(first, y, nbytes) == 0, "%s, run %d: not the bits of rank 0's first",
                     dtr_dtype_name(types[i]), again);
        }
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_exact", 60);
    th_add(tc, NEW39_deterministic, 1, 0);
    th_add(tc, T124_same_bits_every_time, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_exact", make);
}
