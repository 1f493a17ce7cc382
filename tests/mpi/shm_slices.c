/* Staged allreduces by slices of the shm backend: the same bits as when every rank reduces the
 * whole in the order of ranks (COL3), around the bounds of chunks and slices, for all types and
 * operators. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "harness.h"
#include "settings.h"

enum { MOST = 40000, CHUNK = 16 << 10 }; /* of chunk=4K: four times as long for such calls */

static dtr_world *whole; /* every rank reduces all of it */

static float uneven(int rank, size_t k) {
    return 1.0F / (float)(1 + (k * 7 + (size_t)rank * 3) % 1000);
}

/* Against sums in the order of ranks, which no other order has the bits of. */
static void sum_uneven(dtr_world *w, const char *how, float *in, float *out, size_t n) {
    size_t wrong = 0;
    for (size_t k = 0; k < n; k++) {
        in[k] = uneven(th_rank(), k);
    }
    TH_IS(dtr_allreduce(dtr_world_group(w), dtr_cpu(in, n, DTR_F32), dtr_cpu(out, n, DTR_F32),
                        DTR_SUM, NULL, NULL),
          DTR_OK);
    for (size_t k = 0; k < n; k++) {
        float sum = uneven(0, k);
        for (int r = 1; r < th_size(); r++) {
            sum += uneven(r, k);
        }
        wrong += memcmp(&sum, &out[k], sizeof sum) != 0;
    }
    TH_CHECK(wrong == 0, "%s, %zu elements: %zu are wrong", how, n, wrong);
}

/* Ranks come late in turn, so that the others wait in every step. */
static void all_sizes(dtr_world *w, const char *how) {
    static const size_t sizes[] = {
        2049,          CHUNK / 4 - 1,          CHUNK / 4,      CHUNK / 4 + 1, CHUNK / 2 - 15,
        CHUNK / 2 + 1, CHUNK / 2 + 16 * 7 - 1, CHUNK + 16 * 3, MOST - 3
    };
    const size_t room = (MOST + 4) * sizeof(float);
    void *in = malloc(room), *out = malloc(room), *shared_in = NULL, *shared_out = NULL;
    TH_OK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, room, &shared_in));
    TH_OK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, room, &shared_out));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const bool odd = th_rank() == (int)i % th_size();
        if (odd) {
            th_sleep(0.001);
        }
        sum_uneven(w, how, in, out, sizes[i]);
        sum_uneven(w, how, in, in, sizes[i]);
        sum_uneven(w, how, (float *)in + 1 + odd, (float *)out + 2, sizes[i]);
        sum_uneven(w, how, shared_in, out, sizes[i]);
        sum_uneven(w, how, odd ? shared_in : in, odd ? shared_out : out, sizes[i]);
        sum_uneven(w, how, odd ? in : shared_in, odd ? in : shared_in, sizes[i]);
        sum_uneven(w, how, shared_in, shared_out, sizes[i]);
    }
    TH_AGREE();
    dtr_free(w, shared_in);
    dtr_free(w, shared_out);
    free(in);
    free(out);
}

START_TEST(bits_at_every_size) {
    static const char *const ways[][2] = {
        { "slices=0,chunk=4K", "off" },
        { "slices=0,chunk=4K,stage_nontemporal=1,stream=1", "off" },
        { "slices=0,chunk=4K,cma_reduce=1,cma_piece=4K", "auto" },
        { "slices=0,zero_copy=never", "off" },
        { "slices=never,chunk=4K", "off" }
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        dtr_world *w = TH_WORLD_WITH(NULL, "DTR_TUNE", ways[i][0], "DTR_CMA", ways[i][1]);
        all_sizes(w, ways[i][0]);
        TH_OK(dtr_world_destroy(w));
    }
}
END_TEST

/* Random values, whose sums have other bits in any other order, where the type has them. */
static void compare(dtr_world *w, dtr_dtype d, dtr_op op, size_t n, bool in_place) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    unsigned char *in = malloc(n * 16), *out = malloc(n * 16), *want = malloc(n * 16);
    th_rng g = { (uint64_t)th_rank() + 1 };
    o.premul = op == DTR_PREMUL_SUM ? 0.5 + th_rank() : 0;
    th_fill(in, d, op, 0, n, th_rank(), th_size());
    if (d == DTR_F16 || d == DTR_BF16 || d == DTR_F32 || d == DTR_F64) {
        th_random_floats(in, d, n, &g, -3, 3);
    }
    TH_IS(
        dtr_allreduce(dtr_world_group(whole), dtr_cpu(in, n, d), dtr_cpu(want, n, d), op, &o, NULL),
        DTR_OK);
    unsigned char *to = in_place ? in : out;
    TH_IS(dtr_allreduce(dtr_world_group(w), dtr_cpu(in, n, d), dtr_cpu(to, n, d), op, &o, NULL),
          DTR_OK);
    const size_t at = th_differs(to, want, d, n);
    TH_CHECK(at == n, "%s, operator %d, %zu elements: number %zu differs", dtr_dtype_name(d),
             (int)op, n, at);
    free(in);
    free(out);
    free(want);
}

START_TEST(bits_of_every_type) {
    whole = TH_WORLD_WITH(NULL, "DTR_TUNE", "slices=never,chunk=4K", "DTR_CMA", "off");
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_TUNE", "slices=0,chunk=4K", "DTR_CMA", "off");
    for (size_t i = 0; i < sizeof th_all_dtypes / sizeof th_all_dtypes[0]; i++) {
        const dtr_dtype d = th_all_dtypes[i];
        for (size_t k = 0; k < sizeof th_all_ops / sizeof th_all_ops[0]; k++) {
            if (dtr_op_supports(th_all_ops[k], d)) {
                compare(w, d, th_all_ops[k], 2 * CHUNK / dtr_dtype_size(d) + 333, k % 2 == 1);
                compare(w, d, th_all_ops[k], 2 * CHUNK / dtr_dtype_size(d) + 1, k % 2 == 0);
            }
        }
    }
    TH_OK(dtr_world_destroy(w));
    TH_OK(dtr_world_destroy(whole));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "slices", 60);
    th_add(tc, bits_at_every_size, 0, 0);
    th_add(tc, bits_of_every_type, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "shm_slices", make);
}
