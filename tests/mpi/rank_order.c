/* NEW39, COL45: every reduction of a deterministic group, and of an operator that does not commute,
 * has the bits of a plain loop over the ranks in order, for types that are rounded on the way and
 * for counts of one chunk and of several, also where nodes of several ranks pass sums on. */
#include "core/check.h"
#include "data.h"
#include "groups_common.h"
#include "kernels/kernels.h"

/* Not associative, so that any other order shows. */
static void thrice_and(void *inout, const void *in, size_t count, dtr_dtype dtype, void *arg) {
    uint32_t *x = inout;
    const uint32_t *y = in;
    (void)dtype;
    (void)arg;
    for (size_t k = 0; k < count; k++) {
        x[k] = 3 * x[k] + y[k];
    }
}

typedef struct sum {
    dtr_group *g;
    dtr_dtype dtype;
    dtr_op op;
    size_t count, size;
    char *all; /* inputs of all ranks */
} sum;

static const void *input_of(const sum *s, int r) {
    return s->all + (size_t)r * s->count * s->size;
}

static sum sum_of(dtr_group *g, dtr_dtype dtype, dtr_op op, size_t count) {
    const int W = dtr_group_size(g);
    sum s = { g, dtype, op, count, dtr_dtype_size(dtype), NULL };
    s.all = malloc((size_t)W * count * s.size);
    for (int r = 0; r < W; r++) {
        th_rng rng = { 4000 + (uint64_t)r };
        uint32_t *x = (uint32_t *)(void *)(uintptr_t)input_of(&s, r);
        if (dtype == DTR_U32) {
            for (size_t k = 0; k < count; k++) {
                x[k] = (uint32_t)th_next(&rng);
            }
        } else {
            const int parts = dtype == DTR_C64 ? 2 : 1;
            th_random_floats(x, parts == 2 ? DTR_F32 : dtype, count * (size_t)parts, &rng, -6, 6);
        }
    }
    return s;
}

/* Elements [at, at + n) of what rank r gets. */
static void check(const sum *s, dtr_status status, dtr__kind kind, const void *out, size_t at,
                  size_t n) {
    const int W = dtr_group_size(s->g), n_sources = dtr__n_sources(kind, dtr_group_rank(s->g), W);
    const void *src[64];
    TH_CHECK(status == DTR_OK, "%s", dtr_last_error_message());
    if (n_sources == 0 || n == 0) {
        return;
    }
    char *want = malloc(n * s->size);
    for (int i = 0; i < n_sources; i++) {
        src[i] = (const char *)input_of(s, i) + at * s->size;
    }
    dtr__reduce(want, src, n_sources, n, s->dtype, s->op, n_sources, NULL);
    const size_t differs = th_differs(out, want, s->dtype, n);
    TH_CHECK(differs == n, "kind %d, %s, op %d, %zu elements: element %zu is not in rank order",
             (int)kind, dtr_dtype_name(s->dtype), (int)s->op, s->count, differs);
    free(want);
}

/* Blocks of any length, some of none. */
static void scatter(const sum *s, char *out) {
    const int W = dtr_group_size(s->g), me = dtr_group_rank(s->g);
    size_t counts[64], at = 0, left = s->count;
    for (int i = 0; i < W; i++) {
        counts[i] = i == W - 1 ? left : i == 1 ? 0 : s->count / (size_t)W;
        at += i < me ? counts[i] : 0;
        left -= counts[i];
    }
    check(s,
          dtr_reduce_scatterv(s->g, dtr_cpu((void *)(uintptr_t)input_of(s, me), s->count, s->dtype),
                              counts, dtr_cpu(out, counts[me], s->dtype), s->op, NULL, NULL),
          DTR__K_REDUCE_SCATTERV, out, at, counts[me]);
}

static void all_kinds(dtr_group *g, dtr_dtype dtype, dtr_op op, size_t count) {
    const sum s = sum_of(g, dtype, op, count);
    const int W = dtr_group_size(g), me = dtr_group_rank(g);
    char *out = malloc(count * s.size);
    const dtr_buffer in = dtr_cpu((void *)(uintptr_t)input_of(&s, me), count, dtype),
                     to = dtr_cpu(out, count, dtype), none = dtr_cpu(NULL, 0, dtype);
    check(&s, dtr_allreduce(g, in, to, op, NULL, NULL), DTR__K_ALLREDUCE, out, 0, count);
    for (int root = 0; root<W; root += W> 1 ? W / 2 : 1) {
        check(&s, dtr_reduce(g, in, root == me ? to : none, op, root, NULL, NULL), DTR__K_REDUCE,
              out, 0, root == me ? count : 0);
    }
    scatter(&s, out);
    check(&s, dtr_scan(g, in, to, op, NULL, NULL), DTR__K_SCAN, out, 0, count);
    check(&s, dtr_exscan(g, in, to, op, NULL, NULL), DTR__K_EXSCAN, out, 0, count);
    memcpy(out, in.data, count * s.size);
    check(&s, dtr_allreduce(g, to, to, op, NULL, NULL), DTR__K_ALLREDUCE, out, 0, count);
    free(out);
    free(s.all);
    TH_AGREE();
}

static dtr_group *deterministic_group(int key) {
    dtr_group_options o = options(0, NULL);
    dtr_group *g = NULL;
    o.deterministic = true;
    TH_OK(dtr_group_split(th_group(), 0, key, &o, &g));
    return g;
}

/* The ranks of a node follow each other, or they do not. */
START_TEST(deterministic_groups) {
    static const struct {
        dtr_dtype dtype;
        dtr_op op;
    } sums[] = { { DTR_F32, DTR_SUM },  { DTR_F64, DTR_AVG },    { DTR_BF16, DTR_AVG },
                 { DTR_F16, DTR_PROD }, { DTR_F8E5M2, DTR_SUM }, { DTR_C64, DTR_SUM },
                 { DTR_F32, DTR_MAX },  { DTR_U32, DTR_SUM },    { DTR_F32, DTR_AVG } };
    for (int turned = 0; turned < 2; turned++) {
        dtr_group *g = deterministic_group(turned ? th_rank() * 5 % th_size() : 0);
        for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
            all_kinds(g, sums[i].dtype, sums[i].op, 7);
            all_kinds(g, sums[i].dtype, sums[i].op, 9001);
            all_kinds(g, sums[i].dtype, sums[i].op, 70001);
        }
        TH_OK(dtr_group_destroy(g));
    }
}
END_TEST

/* More than a chunk of each node, so that one is passed on while the next is brought together. */
START_TEST(several_chunks) {
    dtr_group *g = deterministic_group(0);
    all_kinds(g, DTR_F32, DTR_SUM, 1300001);
    all_kinds(g, DTR_BF16, DTR_SUM, 1300001);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

START_TEST(operators_that_do_not_commute) {
    dtr_op op;
    TH_OK(dtr_op_create(th_world(), thrice_and, NULL, false, &op));
    all_kinds(th_group(), DTR_U32, op, 70001);
    all_kinds(th_group(), DTR_U32, op, 600001);
    TH_OK(dtr_op_free(th_world(), op));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "rank_order", 110);
    th_add(tc, deterministic_groups, 1, 64);
    th_add(tc, several_chunks, 1, 64);
    th_add(tc, operators_that_do_not_commute, 1, 64);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "rank_order", make);
}
