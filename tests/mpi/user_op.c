/* Operators of the program: every reducing call, with operators that commute and that do not, small
 * and large, in rows from one place, in place, in plain and in shared memory, blocking, with a work
 * and in a scope. */
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/tensor.h>

#include "kinds.h"
#include "user_ops.h"

enum { MANY = 8 }; /* ranks */

/* ---- one call ---- */

typedef enum way { BLOCKING, ASYNC, SCOPE, WAYS } way;
typedef struct variant {
    kind k;
    const sort *s;
    dtr_op op;
    size_t count, shift;
    dtr_mem mem;
    way way;
    bool in_place;
} variant;

static size_t counts[MANY];

/* Of the operator whose turn it is: the own input, and the result over all ranks, over those up to
 * this one, and over those below it. */
static struct {
    size_t n;
    char *input, *result[3];
} data;

static void make_input(char *to, const sort *s, int r, size_t n) {
    for (size_t k = 0; k < n; k++) {
        element(to + k * dtr_dtype_size(s->dtype), s, r, k);
    }
}

static void make_data(const sort *s, size_t n) {
    const size_t nbytes = (n + 1) * dtr_dtype_size(s->dtype);
    const int of[] = { th_size(), th_rank() + 1, th_rank() };
    char *sum = malloc(nbytes), *next = malloc(nbytes);
    data.n = n;
    data.input = malloc(nbytes);
    make_input(data.input, s, th_rank(), n);
    make_input(sum, s, 0, n);
    for (int r = 0; r < th_size(); r++) {
        if (r > 0) {
            make_input(next, s, r, n);
            s->fn(sum, next, n, s->dtype, &mark);
        }
        for (int i = 0; i < 3; i++) {
            if (r + 1 == of[i] || r == 0) {
                data.result[i] = r == 0 ? malloc(nbytes) : data.result[i];
                memcpy(data.result[i], sum, nbytes);
            }
        }
    }
    free(sum);
    free(next);
}

static void free_data(void) {
    free(data.input);
    for (int i = 0; i < 3; i++) {
        free(data.result[i]);
    }
}

static size_t block(const variant *v, int j) {
    return v->k == REDUCE_SCATTERV ? v->count * (size_t)((j + 1) % 3) : v->count;
}

/* Where the own block begins in the input, and how long that is. */
static size_t lay_out(const variant *v, size_t *all) {
    size_t own = 0;
    *all = 0;
    for (int j = 0; j < th_size(); j++) {
        counts[j] = block(v, j);
        own = j == th_rank() ? *all : own;
        *all += counts[j];
    }
    if (v->k != REDUCE_SCATTER && v->k != REDUCE_SCATTERV) {
        own = 0;
        *all = v->count;
    }
    return own;
}

static int root_of(const variant *v) {
    return (int)(v->count % (size_t)th_size());
}

static dtr_status start(const variant *v, dtr_buffer in, dtr_buffer out, dtr_work **w) {
    dtr_group *g = th_group();
    switch (v->k) {
    case REDUCE:
        return dtr_reduce(g, in, out, v->op, root_of(v), NULL, w);
    case SCAN:
        return dtr_scan(g, in, out, v->op, NULL, w);
    case EXSCAN:
        return dtr_exscan(g, in, out, v->op, NULL, w);
    case REDUCE_SCATTER:
        return dtr_reduce_scatter(g, in, out, v->op, NULL, w);
    case REDUCE_SCATTERV:
        return dtr_reduce_scatterv(g, in, counts, out, v->op, NULL, w);
    default:
        return dtr_allreduce(g, in, out, v->op, NULL, w);
    }
}

/* In a scope with a small one of the same operator, which may travel with it. */
static dtr_status run_in_scope(const variant *v, dtr_buffer in, dtr_buffer out) {
    _Alignas(16) unsigned char x[2][16], want[16];
    const size_t size = dtr_dtype_size(v->s->dtype);
    element(x[0], v->s, th_rank(), 5);
    dtr_status s = dtr_coalesce_begin(th_group());
    s = s == DTR_OK ? start(v, in, out, NULL) : s;
    s = s == DTR_OK ? dtr_allreduce(th_group(), dtr_cpu(x[0], 1, v->s->dtype),
                                    dtr_cpu(x[1], 1, v->s->dtype), v->op, NULL, NULL)
                    : s;
    s = s == DTR_OK ? dtr_coalesce_end(th_group(), NULL) : s;
    expected(want, v->s, th_size(), 5);
    TH_CHECK(memcmp(x[1], want, size) == 0, "the neighbour in the scope is wrong");
    return s;
}

static dtr_status run(const variant *v, dtr_buffer in, dtr_buffer out) {
    dtr_work *w = NULL;
    if (v->way == SCOPE) {
        return run_in_scope(v, in, out);
    }
    dtr_status s = start(v, in, out, v->way == ASYNC ? &w : NULL);
    s = s == DTR_OK ? dtr_work_wait(w, -1) : s;
    (void)dtr_work_release(w);
    return s;
}

/* Three times where it is small, as a call that comes again. */
static void call(const variant *v) {
    const dtr_dtype d = v->s->dtype;
    const size_t size = dtr_dtype_size(d);
    size_t all, own = lay_out(v, &all), n_out = block(v, th_rank());
    const bool takes = v->k != REDUCE || root_of(v) == th_rank();
    const bool keeps = !takes || sources(v->k, th_rank(), th_size()) == 0;
    const char *result = data.result[v->k == SCAN ? 1 : v->k == EXSCAN ? 2 : 0] + own * size;
    th_buf in = th_buf_new(all, d, v->mem, v->shift), out = th_buf_new(n_out, d, v->mem, v->shift);
    char *from = in.data, *to = v->in_place ? from + own * size : out.data;
    for (int i = 0; i < (v->count < 1000 ? 3 : 1); i++) {
        memcpy(from, data.input, all * size);
        TH_IS(run(v, dtr_cpu(from, all, d), dtr_cpu(to, n_out, d)), DTR_OK);
        TH_CHECK(th_buf_ok(&in, false) && th_buf_ok(&out, v->in_place || keeps) &&
                     (keeps || memcmp(to, result, n_out * size) == 0),
                 "%s of %zu, operator of %s, way %d, memory %d, in place %d, call %d",
                 kind_names[v->k], n_out, dtr_dtype_name(d), (int)v->way, (int)v->mem, v->in_place,
                 i);
        const size_t end = v->in_place && !keeps ? own : all,
                     behind = v->in_place ? own + n_out : all;
        TH_CHECK(memcmp(from, data.input, end * size) == 0 &&
                     memcmp(from + behind * size, data.input + behind * size,
                            (all - behind) * size) == 0,
                 "%s of %zu changed its input", kind_names[v->k], n_out);
    }
    th_buf_free(&in);
    th_buf_free(&out);
    TH_CHECK(wrong == NULL, "the operator was given %s", wrong);
}

/* ---- all calls ---- */

static const kind kinds[] = { REDUCE, ALLREDUCE, SCAN, EXSCAN, REDUCE_SCATTER, REDUCE_SCATTERV };
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static void all_of(const size_t *lengths, int n, int ways) {
    for (int i = 0; i < SORTS; i++) {
        variant v = { .s = &sorts[i], .op = op_of(th_world(), &sorts[i]) };
        make_data(&sorts[i], lengths[n - 1] * 2 * (size_t)th_size());
        TH_AGREE();
        for (int j = 0; j < n * N_KINDS * ways * 4; j++) {
            v.k = kinds[j % N_KINDS];
            v.way = (way)(j / N_KINDS % ways);
            v.in_place = j / N_KINDS / ways % 2 != 0;
            v.mem = j / N_KINDS / ways / 2 % 2 != 0 ? DTR_MEM_SHARED : DTR_MEM_DEFAULT;
            v.count = lengths[j / N_KINDS / ways / 4];
            v.shift = v.count % 2 != 0 ? dtr_dtype_size(v.s->dtype) / 2 : 0;
            call(&v);
        }
        TH_IS(dtr_op_free(th_world(), v.op), DTR_OK);
        free_data();
        TH_AGREE();
    }
}

START_TEST(small) {
    static const size_t lengths[] = { 0, 1, 2, 31, 200 };
    all_of(lengths, 5, WAYS);
}
END_TEST

START_TEST(large) {
    static const size_t lengths[] = { 3001, 40000 };
    all_of(lengths, TH_SANITIZED ? 1 : 2, 2);
}
END_TEST

/* Halves of the group, backwards: group ranks count. */
START_TEST(subgroups) {
    dtr_op op = op_of(th_world(), &sorts[AFFINE]);
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), th_rank() % 2, -th_rank(), NULL, &g));
    dtr_i64_index mine = { 3 + th_rank(), th_rank() }, got = { -1, -1 }, want = { 0, 0 };
    for (int i = 0; i < 4; i++) {
        TH_IS(dtr_allreduce(g, dtr_cpu(&mine, 1, DTR_I64_INDEX), dtr_cpu(&got, 1, DTR_I64_INDEX),
                            op, NULL, NULL),
              DTR_OK);
    }
    for (int r = 0; r < dtr_group_size(g); r++) {
        const int of = dtr_group_world_rank(g, r);
        const dtr_i64_index x = { 3 + of, of };
        want = r == 0 ? x : affine(want, x);
    }
    TH_ALL(got.value == want.value && got.index == want.index, "%lld x + %lld",
           (long long)got.value, (long long)got.index);
    TH_OK(dtr_group_destroy(g));
    TH_OK(dtr_op_free(th_world(), op));
}
END_TEST

/* A strided tensor, and rows, which are added only. */
START_TEST(tensors) {
    enum { ROWS = 40 };
    uint32_t x[ROWS][2];
    const int64_t shape[] = { ROWS }, strides[] = { 2 };
    dtr_op op = op_of(th_world(), &sorts[GCD]);
    dtr_tensor *t = NULL, *sum_rows = NULL, *sum = NULL;
    for (size_t k = 0; k < ROWS; k++) {
        element(&x[k][0], &sorts[GCD], th_rank(), k);
        x[k][1] = 7;
    }
    TH_IS(dtr_tensor_from_buffer(dtr_cpu(x, (size_t)2 * ROWS, DTR_U32), 1, shape, strides, NULL,
                                 NULL, &t),
          DTR_OK);
    TH_IS(dtr_tensor_allreduce(th_group(), t, op, NULL, NULL), DTR_OK);
    for (size_t k = 0; k < ROWS; k++) {
        uint32_t want = 0;
        expected(&want, &sorts[GCD], th_size(), k);
        TH_CHECK(x[k][0] == want && x[k][1] == 7, "row %zu is %u, %u", k, x[k][0], x[k][1]);
    }
    TH_AGREE();
    dtr_tensor *index = NULL;
    int64_t first = 0;
    const int64_t one[] = { 1 };
    TH_IS(dtr_tensor_from_buffer(dtr_cpu(&first, 1, DTR_I64), 1, one, NULL, NULL, NULL, &index),
          DTR_OK);
    dtr_tensor_release(t);
    TH_IS(dtr_tensor_from_buffer(dtr_cpu(x, 1, DTR_U32), 1, one, NULL, NULL, NULL, &t), DTR_OK);
    TH_IS(dtr_sparse_allreduce(th_group(), index, t, 1, op, NULL, &sum_rows, &sum, NULL),
          DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("user op");
    dtr_tensor_release(t);
    dtr_tensor_release(index);
    TH_OK(dtr_op_free(th_world(), op));
}
END_TEST

/* Whatever mode the program has set, on the caller's thread as on others. */
START_TEST(rounding) {
    variant v = { .k = ALLREDUCE, .s = &sorts[AFFINE], .op = op_of(th_world(), &sorts[AFFINE]) };
    fesetround(FE_UPWARD);
    for (int i = 0; i < 4; i++) {
        static _Alignas(16) dtr_i64_index x[2000], y[2000];
        dtr_buffer in = dtr_cpu(x, i % 2 == 0 ? 1 : 2000, DTR_I64_INDEX), out = in;
        out.data = y;
        v.way = i < 2 ? BLOCKING : ASYNC;
        TH_IS(run(&v, in, out), DTR_OK);
    }
    fesetround(FE_TONEAREST);
    TH_ALL(wrong == NULL, "the operator was given %s", wrong);
    TH_OK(dtr_op_free(th_world(), v.op));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "user_op", 300);
    th_add(tc, small, 0, MANY);
    th_add(tc, large, 0, MANY);
    th_add(tc, subgroups, 0, 0);
    th_add(tc, tensors, 0, 0);
    th_add(tc, rounding, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "user_op", make);
}
