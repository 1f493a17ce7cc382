/* The catalogue of collectives with the values worked out by hand: tests.md 2.1 to 2.5 and rows of
 * 3.1 to 3.3; matrix.c has all types, sizes and places. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static dtr_buffer i64s(int64_t *x, size_t n) {
    return dtr_cpu(x, n, DTR_I64);
}

static dtr_buffer f32s(float *x, size_t n) {
    return dtr_cpu(x, n, DTR_F32);
}

static void finish(dtr_work *w) {
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
}

/* ---- 2.1: sixteen reductions ---- */

typedef union number {
    float f;
    int32_t i;
} number;

/* Input of rank r and the result of case c, 0 to 15. */
static dtr_op simple_case(int c, int r, dtr_dtype *d, number *in, number *want) {
    static const dtr_op ops[] = { DTR_SUM, DTR_PROD, DTR_MIN, DTR_MAX };
    int W = th_size(), j = c % 4 + (c < 8 ? 0 : 1), n = W * j - 1;
    *d = c < 4 ? DTR_F32 : DTR_I32;
    if (c < 4) {
        float product = 1;
        for (int k = 2; k <= W; k++) {
            product *= (float)k;
        }
        const float results[] = { (float)(W * (W + 1) / 2), product, 1, (float)W };
        in->f = (float)(r + 1);
        want->f = results[c];
        return ops[c];
    }
    if (c < 8) {
        in->i = r | 1 << j;
        want->i = 1 << j;
        return DTR_BAND;
    }
    in->i = want->i = 0;
    for (int m = 0; m < j; m++) {
        in->i = c < 12 ? in->i | (r * j + m) : in->i ^ (r * j + m);
    }
    if (c < 12) {
        while (want->i < n) {
            want->i = want->i * 2 + 1;
        }
        return DTR_BOR;
    }
    const int32_t folded[] = { n, 1, n + 1, 0 };
    want->i = folded[n % 4];
    return DTR_BXOR;
}

/* T12, T30. */
START_TEST(T12_simple_reductions) {
    for (int c = 0; c < 16; c++) {
        for (int root = -1; root < th_size(); root++) {
            for (int async = 0; async < 2; async++) {
                dtr_dtype d;
                number in, want, out = { .i = 0x5a5a5a5a }, kept, given;
                dtr_work *w = NULL;
                dtr_op op = simple_case(c, th_rank(), &d, &in, &want);
                dtr_buffer from = dtr_cpu(&in, 1, d), to = dtr_cpu(&out, 1, d);
                kept = out;
                given = in;
                TH_IS(root < 0
                          ? dtr_allreduce(th_group(), from, to, op, NULL, async ? &w : NULL)
                          : dtr_reduce(th_group(), from, to, op, root, NULL, async ? &w : NULL),
                      DTR_OK);
                finish(w);
                number right = root < 0 || root == th_rank() ? want : kept;
                TH_CHECK(out.i == right.i && in.i == given.i, "case %d root %d gave %x, not %x", c,
                         root, (unsigned)out.i, (unsigned)right.i);
            }
        }
    }
    TH_AGREE();
}
END_TEST

/* T14: one result over two inputs per rank, reduced here first; the result goes to both. */
START_TEST(T14_local_inputs) {
    int W = th_size(), r = th_rank();
    double product = 1;
    for (int k = 2; k <= 2 * W; k++) {
        product *= k;
    }
    const double want[] = { W * (2 * W - 1), product, 1, 2 * W };
    const dtr_op ops[] = { DTR_SUM, DTR_PROD, DTR_MIN, DTR_MAX };
    for (int c = 0; c < 4; c++) {
        double a = 2 * r + (c > 0), b = a + 1;
        const double here[] = { a + b, a * b, a, b };
        double both = here[c];
        TH_IS(dtr_allreduce(th_group(), dtr_cpu(&both, 1, DTR_F64), dtr_cpu(&both, 1, DTR_F64),
                            ops[c], NULL, NULL),
              DTR_OK);
        a = b = both;
        TH_CHECK(a == want[c] && b == want[c], "operator %d gave %g, not %g", c, a, want[c]);
    }
    TH_AGREE();
}
END_TEST

/* ---- 2.5: a thousand at once ---- */

typedef enum kind { BROADCAST, ALLREDUCE, ALLGATHER, REDUCE, SCATTER, GATHER, KINDS } kind;

enum { ROUNDS = TH_SANITIZED ? 60 : 1000 };

static bool rooted(kind k) {
    return k >= REDUCE;
}

static dtr_status start(kind k, int64_t *in, int64_t *out, int root, dtr_work **w) {
    dtr_group *g = th_group();
    size_t W = (size_t)th_size(), at_root = th_rank() == root ? W : 0;
    switch (k) {
    case BROADCAST:
        return dtr_broadcast(g, i64s(out, 1), root, NULL, w);
    case ALLREDUCE:
        return dtr_allreduce(g, i64s(in, 1), i64s(out, 1), DTR_SUM, NULL, w);
    case ALLGATHER:
        return dtr_allgather(g, i64s(in, 1), i64s(out, W), NULL, w);
    case REDUCE:
        return dtr_reduce(g, i64s(in, 1), i64s(out, 1), DTR_SUM, root, NULL, w);
    case SCATTER:
        return dtr_scatter(g, i64s(in, at_root), i64s(out, 1), root, NULL, w);
    default:
        return dtr_gather(g, i64s(in, 1), i64s(out, at_root), root, NULL, w);
    }
}

static bool is_right(kind k, const int64_t *out, int64_t i, int root) {
    int W = th_size();
    bool here = th_rank() == root;
    switch (k) {
    case BROADCAST:
        return out[0] == i * W + root;
    case REDUCE:
        return out[0] == (here ? i * W + W * (W - 1) / 2 : -1);
    case ALLREDUCE:
        return out[0] == i * W + W * (W - 1) / 2;
    case SCATTER:
        return out[0] == i + root;
    default:
        for (int j = 0; j < W; j++) {
            if (out[j] != (k == ALLGATHER || here ? i + j : -1)) {
                return false;
            }
        }
        return true;
    }
}

/* All operations are started before any is waited for;
 * allgather's handles are let go at once, and the barrier completes them. */
static void stress(kind k) {
    int W = th_size(), roots = rooted(k) ? W : 1;
    size_t n = (size_t)ROUNDS * (size_t)roots, room = (size_t)W;
    int64_t *in = malloc(n * room * sizeof *in), *out = malloc(n * room * sizeof *out);
    dtr_work **works = calloc(n, sizeof(dtr_work *));
    for (size_t t = 0; t < n; t++) {
        int64_t i = (int64_t)t / roots;
        int root = rooted(k) ? (int)(t % room) : (int)(i % W);
        for (size_t j = 0; j < room; j++) {
            in[t * room + j] = i + (k == SCATTER ? root : th_rank());
            out[t * room + j] = k == BROADCAST ? i * W + th_rank() : -1;
        }
        TH_IS(start(k, in + t * room, out + t * room, root, &works[t]), DTR_OK);
        if (k == ALLGATHER) {
            TH_IS(dtr_work_release(works[t]), DTR_OK);
        }
    }
    if (k == ALLGATHER) {
        TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
    }
    for (size_t t = 0; t < n; t++) {
        int64_t i = (int64_t)t / roots;
        int root = rooted(k) ? (int)(t % room) : (int)(i % W);
        if (k != ALLGATHER) {
            finish(works[t]);
        }
        TH_CHECK(is_right(k, out + t * room, i, root), "kind %d, operation %zu gave %lld", k, t,
                 (long long)out[t * room]);
    }
    free(in);
    free(out);
    free(works);
    TH_AGREE();
}

/* T11, T13, T20, T26, T29, T31. */
START_TEST(stress_of_a_thousand) {
    for (kind k = BROADCAST; k < KINDS; k++) {
        stress(k);
    }
}
END_TEST

/* ---- blocks ---- */

/* T19, COL14: out is the concatenation in rank order. */
START_TEST(T19_allgather_numbers) {
    for (size_t n = 1; n <= 3; n++) {
        int64_t in[3], out[3 * 16];
        for (size_t m = 0; m < n; m++) {
            in[m] = (int64_t)n * th_rank() + (int64_t)m;
        }
        TH_IS(dtr_allgather(th_group(), i64s(in, n), i64s(out, n * (size_t)th_size()), NULL, NULL),
              DTR_OK);
        for (int64_t k = 0; k < (int64_t)n * th_size(); k++) {
            TH_CHECK(out[k] == k, "element %lld is %lld", (long long)k, (long long)out[k]);
        }
    }
    TH_AGREE();
}
END_TEST

/* COA10, COA11, COL18, T21, T24: blocks of coalesced calls lie where single calls put them. */
START_TEST(COA10_COA11_coalesced_blocks) {
    enum { CALLS = 3, MOST = 225 };
    static const size_t sizes[CALLS] = { 25, 100, 225 };
    size_t W = (size_t)th_size(), all = MOST * W;
    float *rows = malloc(CALLS * all * sizeof *rows),
          *gathered = calloc(2 * CALLS * all, sizeof(float)),
          *reduced = calloc(2 * CALLS * MOST, sizeof(float));
    for (size_t k = 0; k < CALLS * all; k++) {
        rows[k] = (float)((7 * k + 13 * (size_t)th_rank()) % 17);
    }
    for (int scoped = 0; scoped < 2; scoped++) {
        dtr_work *w = NULL;
        TH_IS(scoped ? dtr_coalesce_begin(th_group()) : DTR_OK, DTR_OK);
        for (size_t c = 0; c < CALLS; c++) {
            size_t n = sizes[c], at = (size_t)scoped * CALLS + c;
            TH_IS(dtr_allgather(th_group(), f32s(rows + c * all, n),
                                f32s(gathered + at * all, n * W), NULL, NULL),
                  DTR_OK);
            TH_IS(dtr_reduce_scatter(th_group(), f32s(rows + c * all, n * W),
                                     f32s(reduced + at * MOST, n), DTR_SUM, NULL, NULL),
                  DTR_OK);
        }
        TH_IS(scoped ? dtr_coalesce_end(th_group(), &w) : DTR_OK, DTR_OK);
        finish(w);
    }
    TH_CHECK(memcmp(gathered, gathered + CALLS * all, CALLS * all * sizeof(float)) == 0,
             "coalesced allgathers differ from single ones");
    TH_CHECK(memcmp(reduced, reduced + CALLS * MOST, CALLS * MOST * sizeof(float)) == 0,
             "coalesced reduce_scatters differ from single ones");
    for (size_t c = 0; c < CALLS; c++) {
        for (size_t j = 0; j < W; j++) {
            size_t k = sizes[c] - 1;
            float want = (float)((7 * (c * all + k) + 13 * j) % 17);
            TH_CHECK(gathered[c * all + j * sizes[c] + k] == want, "call %zu, block %zu", c, j);
        }
    }
    free(rows);
    free(gathered);
    free(reduced);
    TH_AGREE();
}
END_TEST

/* ---- particular types ---- */

/* COL4, COL5, T36. */
START_TEST(COL4_by_hand) {
    int W = th_size();
    float z[2] = { (float)(2 * th_rank() + 1), (float)(2 * th_rank() + 1) }, sum[2], mean[2];
    int64_t x[2] = { 2 * th_rank() + 1, 2 * th_rank() + 2 }, y[2];
    TH_IS(dtr_allreduce(th_group(), dtr_cpu(z, 1, DTR_C64), dtr_cpu(sum, 1, DTR_C64), DTR_SUM, NULL,
                        NULL),
          DTR_OK);
    TH_IS(dtr_allreduce(th_group(), dtr_cpu(z, 1, DTR_C64), dtr_cpu(mean, 1, DTR_C64), DTR_AVG,
                        NULL, NULL),
          DTR_OK);
    TH_CHECK(sum[0] == (float)(W * W) && sum[1] == sum[0], "sum %g + %gi", sum[0], sum[1]);
    TH_CHECK(mean[0] == (float)W && mean[1] == mean[0], "mean %g + %gi", mean[0], mean[1]);
    TH_IS(dtr_allreduce(th_group(), i64s(x, 2), i64s(y, 2), DTR_SUM, NULL, NULL), DTR_OK);
    TH_CHECK(y[0] == W * W && y[1] == W * W + W, "sums %lld %lld", (long long)y[0],
             (long long)y[1]);
    TH_AGREE();
}
END_TEST

/* T35: elements travel as bits: NaN payloads and negative zero arrive as they were. */
START_TEST(T35_bool_and_bits) {
    unsigned char flags[4] = { th_rank() == 0, 0, 0, th_rank() == 0 };
    uint32_t bits[3] = { 0x7fa12345u, 0x80000000u, 0xffc00001u }, kept[3];
    memcpy(kept, bits, sizeof bits);
    TH_IS(dtr_broadcast(th_group(), dtr_cpu(flags, 4, DTR_BOOL), 0, NULL, NULL), DTR_OK);
    TH_CHECK(flags[0] == 1 && flags[1] == 0 && flags[2] == 0 && flags[3] == 1, "flags");
    memset(bits, th_rank() == 0 ? 0xff : 0, th_rank() == 0 ? 0 : sizeof bits);
    TH_IS(dtr_broadcast(th_group(), dtr_cpu(bits, 3, DTR_F32), 0, NULL, NULL), DTR_OK);
    TH_CHECK(memcmp(bits, kept, sizeof bits) == 0, "bits %x %x %x", bits[0], bits[1], bits[2]);
    TH_AGREE();
}
END_TEST

/* T96: the consumer sees the result right after the wait. */
START_TEST(T96_wait_orders_consumer) {
    int W = th_size(), r = th_rank();
    float y[4], all[4 * 16], root[4 * 16];
    dtr_work *w;
    for (int k = 0; k < 4; k++) {
        y[k] = (float)(2 * (r + 1));
    }
    TH_IS(dtr_allgather(th_group(), f32s(y, 4), f32s(all, (size_t)(4 * W)), NULL, &w), DTR_OK);
    finish(w);
    float sum = 0;
    for (int j = 0; j < W; j++) {
        sum += 2 * all[4 * j + 3];
    }
    TH_CHECK(sum == (float)(2 * W * (W + 1)), "allgather gave %g", sum);
    for (int k = 0; k < 4 * W; k++) {
        root[k] = (float)(2 + k / 4);
    }
    TH_IS(dtr_scatter(th_group(), f32s(root, r == 0 ? (size_t)(4 * W) : 0), f32s(all, 4), 0, NULL,
                      &w),
          DTR_OK);
    finish(w);
    TH_CHECK(2 * all[3] == (float)(2 * (2 + r)), "scatter gave %g", all[3]);
    for (int twice = 0; twice < 2; twice++) {
        TH_IS(dtr_allreduce(th_group(), f32s(y, 4), f32s(y, 4), DTR_SUM, NULL, &w), DTR_OK);
        finish(w);
    }
    TH_CHECK(2 * y[0] == (float)(2 * W * W * (W + 1)), "two allreduces gave %g", y[0]);
    TH_AGREE();
}
END_TEST

/* ---- groups and numbers ---- */

/* T03: two groups in turn. */
START_TEST(T03_two_groups_in_turn) {
    enum { N = 16, BIG = 10000 };
    static float x[N][N], big[4][BIG];
    dtr_group *g[2];
    dtr_work *works[N + 4];
    uint64_t before[2];
    for (int i = 0; i < 2; i++) {
        TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g[i]));
        before[i] = dtr_group_seq(g[i]);
    }
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < N; k++) {
            x[i][k] = 1;
        }
        dtr_buffer b = f32s(x[i], (size_t)i + 1);
        TH_IS(dtr_allreduce(g[i % 2], b, b, DTR_SUM, NULL, &works[i]), DTR_OK);
    }
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < BIG; k++) {
            big[i][k] = (float)th_rank();
        }
        TH_IS(dtr_broadcast(g[i % 2], f32s(big[i], BIG), 0, NULL, &works[N + i]), DTR_OK);
    }
    for (int i = 0; i < N + 4; i++) {
        finish(works[i]);
    }
    for (int i = 0; i < N; i++) {
        TH_CHECK(x[i][i] == (float)th_size(), "allreduce %d gave %g", i, x[i][i]);
    }
    for (int i = 0; i < 4; i++) {
        TH_CHECK(big[i][0] == 0 && big[i][BIG - 1] == 0, "broadcast %d gave %g", i, big[i][0]);
    }
    TH_AGREE();
    for (int i = 0; i < 2; i++) {
        TH_CHECK(dtr_group_seq(g[i]) == before[i] + 10, "the sequence moved by %d",
                 (int)(dtr_group_seq(g[i]) - before[i]));
        TH_OK(dtr_group_destroy(g[i]));
    }
}
END_TEST

/* One more allreduce on all but two ranks shows as exactly one ahead; nobody blocks. */
static void numbers(dtr_group *g, int late, int late_too) {
    uint64_t all[64], first = dtr_group_seq(g);
    int64_t x = 1, y = 0;
    dtr_work *w = NULL;
    bool behind = th_rank() == late || th_rank() == late_too;
    for (uint64_t i = 0; i < 10 && g != NULL; i++) {
        TH_IS(dtr_allreduce(g, i64s(&x, 1), i64s(&y, 1), DTR_SUM, NULL, NULL), DTR_OK);
        TH_CHECK(dtr_group_seq(g) == first + i + 1 && dtr_group_seq(g) == first + i + 1,
                 "call %d has number %d", (int)i, (int)dtr_group_seq(g));
    }
    if (g != NULL && !behind) {
        TH_IS(dtr_allreduce(g, i64s(&x, 1), i64s(&y, 1), DTR_SUM, NULL, &w), DTR_OK);
    }
    th_gather_u64(g != NULL ? dtr_group_seq(g) : 0, all);
    for (int r = 0; r < th_size(); r++) {
        bool ahead = r != late && r != late_too;
        TH_CHECK(g == NULL || all[r] == 0 || all[r] == first + 10 + ahead, "rank %d is at %d", r,
                 (int)all[r]);
    }
    if (g != NULL && behind) {
        TH_IS(dtr_allreduce(g, i64s(&x, 1), i64s(&y, 1), DTR_SUM, NULL, &w), DTR_OK);
    }
    finish(w);
    TH_CHECK(g == NULL || y == dtr_group_size(g), "the late sum is %lld", (long long)y);
    TH_AGREE();
}

/* T91, T92, T93: equal at first, also in a part of the group; then as many as calls, read at will.
 */
START_TEST(T91_sequence_numbers) {
    static const int first_three[] = { 0, 1, 2 };
    uint64_t all[64];
    th_gather_u64(dtr_group_seq(th_group()), all);
    for (int r = 0; r < th_size(); r++) {
        TH_CHECK(all[r] == all[0], "rank %d begins at %d", r, (int)all[r]);
    }
    TH_AGREE();
    numbers(th_group(), 0, 2);
    if (th_size() < 4) {
        return;
    }
    dtr_group *g = NULL;
    TH_OK(dtr_group_create(th_world(), first_three, 3, NULL, &g));
    numbers(g, 0, 2);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* T94, T95: outsiders, and the maps between ranks. */
START_TEST(T94_members_and_maps) {
    int even[16], n = 0, r = th_rank();
    for (int k = 0; k < th_size(); k += 2) {
        even[n++] = k;
    }
    dtr_group *g = NULL, *one = NULL;
    int64_t x = r, y[16] = { -1 };
    dtr_work *w = (dtr_work *)&x;
    TH_OK(dtr_group_create(th_world(), even, n, NULL, &g));
    TH_CHECK((g == NULL) == (r % 2 == 1), "rank %d has group %p", r, (void *)g);
    dtr_status want = g != NULL ? DTR_OK : DTR_NOT_MEMBER;
    TH_IS(dtr_allgather(g, i64s(&x, 1), i64s(y, (size_t)n), NULL, &w), want);
    TH_CHECK(g != NULL || (w == NULL && y[0] == -1), "an outsider's output was written");
    finish(w);
    TH_CHECK(g == NULL || y[n - 1] == even[n - 1], "gathered %lld", (long long)y[n - 1]);
    TH_IS(dtr_allreduce(g, i64s(&x, 1), i64s(y, 1), DTR_MAX, NULL, NULL), want);
    TH_CHECK(y[0] == (g != NULL ? even[n - 1] : -1), "reduced %lld", (long long)y[0]);
    TH_IS(dtr_barrier(g, NULL, NULL), want);
    TH_IS(dtr_broadcast(g, i64s(&x, 1), 0, NULL, NULL), want);
    TH_CHECK(x == (g != NULL ? 0 : r), "broadcast %lld", (long long)x);
    TH_AGREE();
    TH_OK(dtr_group_create(th_world(), (const int[]){ 1 }, 1, NULL, &one));
    TH_CHECK((one == NULL) == (r != 1), "rank %d has group %p", r, (void *)one);
    TH_CHECK(one == NULL ||
                 (dtr_group_rank_of(one, 1) == 0 && dtr_group_rank_of(one, 0) == -1 &&
                  dtr_group_world_rank(one, 0) == 1 && dtr_group_world_rank(one, 1) == -1),
             "the maps of {1}");
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
    TH_OK(dtr_group_destroy(one));
}
END_TEST

/* ---- messages ---- */

/* T07: all sends, then all receives, then the waits; by tag and by any source. */
static void everybody_to_everybody(size_t n, int how) {
    int W = th_size(), r = th_rank();
    size_t room = n * (size_t)W;
    int64_t *out = malloc(n * sizeof *out), *in = malloc(room * sizeof *in);
    dtr_work *s[16], *v[16];
    bool heard[16] = { false };
    for (size_t k = 0; k < n; k++) {
        out[k] = r;
    }
    memset(in, 0xff, room * sizeof *in);
    for (int j = 0; j < W; j++) {
        TH_IS(dtr_send(th_group(), i64s(out, n), j, how == 1 ? r : 0, NULL, &s[j]), DTR_OK);
    }
    for (int j = 0; j < W; j++) {
        TH_IS(dtr_recv(th_group(), i64s(in + n * (size_t)j, n), how == 2 ? DTR_ANY_SOURCE : j,
                       how == 1 ? j : 0, NULL, &v[j]),
              DTR_OK);
    }
    for (int j = 0; j < W; j++) {
        finish(s[j]);
    }
    for (int j = 0; j < W; j++) {
        TH_IS(dtr_work_wait(v[j], -1), DTR_OK);
        int from = dtr_work_source(v[j]);
        const int64_t *got = in + n * (size_t)j;
        size_t right = 0;
        while (right < n && got[right] == from) {
            right++;
        }
        TH_CHECK((how == 2 || from == j) && right == n, "receive %d from %d: element %zu is %lld",
                 j, from, right, (long long)got[right % n]);
        TH_CHECK(from >= 0 && from < W && !heard[from], "receive %d is the second from %d", j,
                 from);
        heard[from >= 0 && from < W ? from : 0] = true;
        TH_IS(dtr_work_release(v[j]), DTR_OK);
    }
    free(in);
    free(out);
    TH_AGREE();
}

START_TEST(T07_everybody_to_everybody) {
    for (int how = 0; how < 3; how++) {
        everybody_to_everybody(1, how);
        everybody_to_everybody(TH_SANITIZED ? 2000 : 131072, how);
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "catalogue", 110);
    th_add(tc, T12_simple_reductions, 0, 0);
    th_add(tc, T14_local_inputs, 0, 0);
    th_add(tc, stress_of_a_thousand, 0, 0);
    th_add(tc, T19_allgather_numbers, 0, 16);
    th_add(tc, COA10_COA11_coalesced_blocks, 0, 0);
    th_add(tc, COL4_by_hand, 0, 0);
    th_add(tc, T35_bool_and_bits, 0, 0);
    th_add(tc, T96_wait_orders_consumer, 0, 16);
    th_add(tc, T03_two_groups_in_turn, 0, 0);
    th_add(tc, T91_sequence_numbers, 2, 64);
    th_add(tc, T94_members_and_maps, 2, 16);
    th_add(tc, T07_everybody_to_everybody, 2, 16);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "rows_coll", make);
}
