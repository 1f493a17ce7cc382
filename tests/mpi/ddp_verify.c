/* Creating a module: what is refused, by all ranks alike even when one rank is at fault; what
 * differs between ranks is named; what is synchronised. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/tensor_internal.h"
#include "data.h"
#include "ddp_models.h"

static dtr_tensor *tensor(dtr_dtype d, int ndim, const int64_t *shape) {
    dtr_tensor *t = NULL;
    ck_assert_int_eq(dtr_tensor_empty(th_world(), d, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT,
                                      ndim, shape, &t),
                     DTR_OK);
    dtr_tensor_fill(t, 1, NULL);
    return t;
}

static dtr_tensor *vector(dtr_dtype d, int64_t n) {
    return tensor(d, 1, &n);
}

/* ---- K1-K4, K8, O1, O2, O8, O10, ER1-ER4: one rank's bad argument is everybody's error ---- */

enum { N = 3 };
typedef struct setup {
    dtr_param params[N];
    size_t n;
    dtr_ddp_options o;
    dtr_tensor *made[8]; /* what the case below has made */
    size_t n_made;
    size_t list[2];
} setup;

static dtr_tensor *keep(setup *s, dtr_tensor *t) {
    return s->made[s->n_made++] = t;
}

static void two_names(setup *s) {
    s->params[2].name = s->params[0].name;
}
static void no_name(setup *s) {
    s->params[1].name = NULL;
}
static void empty_name(setup *s) {
    s->params[1].name = "";
}
static void no_value(setup *s) {
    s->params[1].value = NULL;
}
static void integers(setup *s) {
    s->params[1].value = keep(s, vector(DTR_I32, 4));
}
static void grad_dtype(setup *s) {
    s->params[1].grad = keep(s, vector(DTR_F64, 4));
}
static void grad_shape(setup *s) {
    s->params[1].grad = keep(s, vector(DTR_F32, 5));
}
static void all_frozen(setup *s) {
    for (size_t i = 0; i < N; i++) {
        s->params[i].flags = i == 0 ? DTR_PARAM_IGNORED : DTR_PARAM_FROZEN;
    }
}
static void strange_flag(setup *s) {
    s->params[0].flags = 0x100;
}
static void option_flag(setup *s) {
    s->o.flags = 0x1000;
}
static void option_size(setup *s) {
    s->o.struct_size = 0;
}
static void delayed_half(setup *s) {
    s->o.has_delayed_trigger = true;
}
static void delayed_range(setup *s) {
    s->list[0] = N;
    s->o.delayed = s->list;
    s->o.n_delayed = 1;
    s->o.has_delayed_trigger = true;
}
static void delayed_twice(setup *s) {
    s->list[0] = s->list[1] = 1;
    s->o.delayed = s->list;
    s->o.n_delayed = 2;
    s->o.has_delayed_trigger = true;
}
static void delayed_frozen(setup *s) {
    s->params[0].flags = DTR_PARAM_FROZEN;
    s->o.delayed = s->list;
    s->o.n_delayed = 1;
    s->o.has_delayed_trigger = true;
    s->o.delayed_trigger = 1;
}
static void skip_alone(setup *s) {
    s->o.skip_unused = true;
}
static void view_cast(setup *s) {
    s->o.grad_as_bucket_view = true;
    s->o.has_reduce_dtype = true;
    s->o.reduce_dtype = DTR_F16;
}
static void integer_reduce(setup *s) {
    s->o.has_reduce_dtype = true;
    s->o.reduce_dtype = DTR_I32;
}
static void limits_half(setup *s) {
    s->o.n_plan_limits = 2;
}
static void time_no_number(setup *s) {
    s->o.timeout_s = NAN;
}
static void nothing(setup *s) {
    s->n = 0;
}
static void partial_overlap(setup *s) {
    dtr_tensor *base = keep(s, vector(DTR_F32, 10));
    ck_assert_int_eq(dtr_tensor_narrow(base, 0, 0, 6, &s->params[0].value), DTR_OK);
    ck_assert_int_eq(dtr_tensor_narrow(base, 0, 5, 5, &s->params[1].value), DTR_OK);
    keep(s, s->params[0].value);
    keep(s, s->params[1].value);
}
static void alias_flags(setup *s) {
    s->params[2].value = s->params[0].value;
    s->params[2].flags = DTR_PARAM_FROZEN;
}
static void stride_zero(setup *s) {
    static float one[1];
    int64_t shape[] = { 4 }, strides[] = { 0 };
    ck_assert_int_eq(dtr_tensor_from_buffer(dtr_cpu(one, 1, DTR_F32), 1, shape, strides, NULL, NULL,
                                            &s->params[1].value),
                     DTR_OK);
    keep(s, s->params[1].value);
}

/* Handles without a device behind them: they are looked at before anything touches memory. */
static void on_device(setup *s, size_t i, int index) {
    static float nobody[4];
    const int64_t shape[] = { 4 };
    ck_assert_int_eq(dtr__tensor_wrap(nobody, DTR_F32, (dtr_device){ DTR_CUDA, index }, 1, shape,
                                      NULL, NULL, NULL, &s->params[i].value),
                     DTR_OK);
    keep(s, s->params[i].value);
}
static void two_kinds(setup *s) {
    on_device(s, 1, 0);
}
static void two_devices(setup *s) {
    on_device(s, 0, 0);
    on_device(s, 1, 1);
}
static void device_buffer(setup *s) {
    static dtr_param buffer;
    dtr_tensor *host = s->params[2].value;
    on_device(s, 2, 0);
    buffer = (dtr_param){ "running", s->params[2].value, NULL, 0 };
    s->params[2].value = host;
    s->o.buffers = &buffer;
    s->o.n_buffers = 1;
}
static void one_on_device(setup *s) {
    on_device(s, 0, 0);
    s->n = 1;
}

static const struct {
    void (*spoil)(setup *s);
    dtr_status want;
    const char *word;
} refusals[] = {
    { two_names, DTR_ERR_ARG, "same name 'a'" },
    { no_name, DTR_ERR_ARG, "parameter 1 has no name" },
    { empty_name, DTR_ERR_ARG, "parameter 1 has no name" },
    { no_value, DTR_ERR_ARG, "'b' (1)" },
    { integers, DTR_ERR_DTYPE, "'b' (1) is i32" },
    { grad_dtype, DTR_ERR_DTYPE, "its gradient f64" },
    { grad_shape, DTR_ERR_SHAPE, "its gradient [5]" },
    { all_frozen, DTR_ERR_ARG, "trainable" },
    { strange_flag, DTR_ERR_ARG, "0x100" },
    { option_flag, DTR_ERR_ARG, "0x1000" },
    { option_size, DTR_ERR_ARG, "DTR_DDP_OPTIONS_INIT" },
    { delayed_half, DTR_ERR_ARG, "delayed" },
    { delayed_range, DTR_ERR_ARG, "delayed[0] is 3" },
    { delayed_twice, DTR_ERR_ARG, "'b' (1)" },
    { delayed_frozen, DTR_ERR_ARG, "frozen" },
    { skip_alone, DTR_ERR_ARG, "skip_unused" },
    { view_cast, DTR_ERR_STATE, "grad_as_bucket_view" },
    { integer_reduce, DTR_ERR_DTYPE, "reduce_dtype" },
    { limits_half, DTR_ERR_ARG, "plan_limits" },
    { time_no_number, DTR_ERR_ARG, "timeout_s" },
    { nothing, DTR_ERR_ARG, "parameters" },
    { partial_overlap, DTR_ERR_ARG, "overlaps" },
    { alias_flags, DTR_ERR_ARG, "flags" },
    { stride_zero, DTR_ERR_LAYOUT, "'b' (1)" },
    { two_kinds, DTR_ERR_DEVICE, "'b' (1) is on a CUDA device, 'a' on the CPU" },
    { two_devices, DTR_ERR_UNSUPPORTED, "'b' (1) is on CUDA device 1, 'a' on 0" },
    { device_buffer, DTR_ERR_DEVICE, "'running' (0) is on a CUDA device" },
    { one_on_device, DTR_ERR_DEVICE, "'a' (0) is on a CUDA device" },
};

static setup good_setup(void) {
    static const char *const names[N] = { "a", "b", "c" };
    setup s = { .n = N, .o = DTR_DDP_OPTIONS_INIT };
    for (size_t i = 0; i < N; i++) {
        s.params[i] = (dtr_param){ names[i], keep(&s, vector(DTR_F32, 4)), NULL, 0 };
    }
    return s;
}

static void free_setup(setup *s) {
    for (size_t i = 0; i < s->n_made; i++) {
        dtr_tensor_release(s->made[i]);
    }
}

START_TEST(refused) {
    for (size_t k = 0; k < sizeof refusals / sizeof refusals[0]; k++) {
        for (int bad = -1; bad < th_size(); bad += bad < 0 || th_size() < 3 ? 1 : th_size() - 1) {
            setup s = good_setup();
            if (bad < 0 || bad == th_rank()) {
                refusals[k].spoil(&s);
            }
            dtr_ddp *ddp = (dtr_ddp *)&s;
            dtr_status got = dtr_ddp_create(th_group(), s.params, s.n, &s.o, &ddp);
            TH_CHECK(got == refusals[k].want, "case %zu, bad rank %d gave %s: %s", k, bad,
                     dtr_status_name(got), dtr_last_error_message());
            TH_CHECK(ddp == (dtr_ddp *)&s, "case %zu wrote the result", k);
            char word[32];
            snprintf(word, sizeof word, "rank %d", bad < 0 ? 0 : bad);
            TH_MESSAGE(word);
            TH_MESSAGE(refusals[k].word);
            TH_AGREE();
            free_setup(&s);
        }
    }
    setup s = good_setup();
    dtr_ddp *ddp = NULL;
    TH_STATUS(dtr_ddp_create(th_group(), s.params, N, NULL, NULL), DTR_ERR_ARG);
    TH_STATUS(dtr_ddp_create(NULL, s.params, N, NULL, &ddp), DTR_NOT_MEMBER);
    TH_OK(dtr_ddp_create(th_group(), s.params, N, &s.o, &ddp));
    TH_OK(dtr_ddp_destroy(ddp));
    free_setup(&s);
}
END_TEST

/* ---- T65, V1-V4, V8, ER5: models and options that differ ---- */

static void other_shape(setup *s) {
    int64_t shape[] = { 2, 2 };
    s->params[1].value = keep(s, tensor(DTR_F32, 2, shape));
}
static void other_size(setup *s) {
    s->params[1].value = keep(s, vector(DTR_F32, 6));
}
static void other_dtype(setup *s) {
    s->params[1].value = keep(s, vector(DTR_F64, 4));
}
static void other_name(setup *s) {
    s->params[1].name = "bb";
}
static void other_order(setup *s) {
    dtr_param p = s->params[0];
    s->params[0] = s->params[1];
    s->params[1] = p;
}
static void other_flag(setup *s) {
    s->params[2].flags = DTR_PARAM_FROZEN;
}
static void one_fewer(setup *s) {
    s->n = N - 1;
}
static void other_cap(setup *s) {
    s->o.bucket_cap_bytes = (size_t)20 << 20;
}
static void other_unused(setup *s) {
    s->o.find_unused = true;
}
static void other_static(setup *s) {
    s->o.static_graph = true;
}
static void other_reduce(setup *s) {
    s->o.has_reduce_dtype = true;
    s->o.reduce_dtype = DTR_F16;
}
static void other_sum(setup *s) {
    s->o.flags = DTR_DDP_SUM;
}
static void other_limits(setup *s) {
    static const size_t limits[] = { 10, 20, 30 };
    s->o.plan_limits = limits;
    s->o.n_plan_limits = 3;
}
static void one_buffer(setup *s) {
    s->o.buffers = s->params;
    s->o.n_buffers = 1;
}
static void no_buffers(setup *s) {
    s->o.no_broadcast_buffers = true;
}
static void other_delayed(setup *s) {
    s->o.delayed = s->list;
    s->o.n_delayed = 1;
    s->o.has_delayed_trigger = true;
    s->o.delayed_trigger = 1;
}
static void sparse_flag(setup *s) {
    s->params[1].flags = DTR_PARAM_SPARSE;
}

static const struct {
    void (*change)(setup *s);
    const char *words[2];
} differences[] = {
    { other_shape, { "parameter 1 differs", "f32 [2, 2]" } },
    { other_size, { "parameter 1 differs", "f32 [6]" } },
    { other_dtype, { "parameter 1 differs", "f64 [4]" } },
    { other_name, { "parameter 1 differs", "'bb'" } },
    { other_order, { "parameter 0 differs", "'b'" } },
    { other_flag, { "parameter 2 differs", "frozen" } },
    { one_fewer, { "2", "parameters" } },
    { other_cap, { "option bucket_cap_bytes", "20971520" } },
    { other_unused, { "option find_unused", "true" } },
    { other_static, { "option static_graph", "true" } },
    { other_reduce, { "option reduce_dtype", "f16" } },
    { other_sum, { "option flags", "1" } },
    { other_limits, { "option", "limits" } },
    { one_buffer, { "1", "buffers" } },
    { no_buffers, { "option no_broadcast_buffers", "true" } },
    { other_delayed, { "option delayed", "another list" } },
    { sparse_flag, { "parameter 1 differs", "sparse" } },
};

START_TEST(different) {
    for (size_t k = 0; k < sizeof differences / sizeof differences[0]; k++) {
        for (int first = 0; first < 2; first++) {
            setup s = good_setup();
            if (th_rank() == (first ? 0 : th_size() - 1)) {
                differences[k].change(&s);
            }
            dtr_ddp *ddp = NULL;
            dtr_status got = dtr_ddp_create(th_group(), s.params, s.n, &s.o, &ddp);
            TH_CHECK(got == DTR_ERR_MISMATCH, "case %zu gave %s: %s", k, dtr_status_name(got),
                     dtr_last_error_message());
            TH_MESSAGE(differences[k].words[0]);
            TH_MESSAGE(differences[k].words[1]);
            char word[32];
            snprintf(word, sizeof word, "rank %d", first ? 1 : th_size() - 1);
            TH_MESSAGE("rank 0");
            TH_MESSAGE(word);
            TH_AGREE();
            free_setup(&s);
        }
    }
    setup s = good_setup();
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(th_group(), s.params, N, &s.o, &ddp));
    TH_OK(dtr_ddp_destroy(ddp));
    free_setup(&s);
    th_good_allreduce(th_group());
}
END_TEST

/* Strides are part of the model: the bucket's layout follows them. */
START_TEST(different_strides) {
    int64_t shape[] = { 3, 2 }, turned[] = { 2, 3 };
    dtr_tensor *base = tensor(DTR_F32, 2, th_rank() == 0 ? shape : turned), *t = NULL;
    TH_IS(th_rank() == 0 ? dtr_tensor_transpose(base, 0, 0, &t)
                         : dtr_tensor_transpose(base, 0, 1, &t),
          DTR_OK);
    dtr_param p = { "w", t, NULL, 0 };
    dtr_ddp *ddp = NULL;
    TH_IS(dtr_ddp_create(th_group(), &p, 1, NULL, &ddp), DTR_ERR_MISMATCH);
    TH_MESSAGE("strides [1, 3]");
    TH_AGREE();
    dtr_tensor_release(t);
    dtr_tensor_release(base);
}
END_TEST

/* ---- K9, I1, O16: what is synchronised ---- */

START_TEST(initial_sync) {
    for (int skip = 0; skip < 2; skip++) {
        int64_t own_shape[] = { 10, 5 + th_rank() }, grid[] = { 4, 3 };
        dtr_tensor *grids = tensor(DTR_F32, 2, grid), *column = NULL;
        TH_IS(dtr_tensor_fill(grids, 100 + th_rank(), NULL), DTR_OK);
        TH_IS(dtr_tensor_narrow(grids, 1, 1, 1, &column), DTR_OK);
        dtr_param p[] = {
            { "train", vector(DTR_F32, 5), NULL, 0 },
            { "frozen", vector(DTR_I64, 3), NULL, DTR_PARAM_FROZEN },
            { "ignored", tensor(DTR_F32, 2, own_shape), NULL, DTR_PARAM_IGNORED },
            { "column", column, NULL, 0 },
            { "empty", vector(DTR_F32, 0), NULL, 0 },
        };
        dtr_param b[] = { { "count", vector(DTR_I64, 2), NULL, 0 },
                          { "mine", vector(DTR_F32, 1 + th_rank()), NULL, DTR_PARAM_IGNORED } };
        for (int i = 0; i < 4; i++) {
            TH_IS(dtr_tensor_fill(p[i].value, 10 + th_rank(), NULL), DTR_OK);
        }
        TH_IS(dtr_tensor_fill(b[0].value, 20 + th_rank(), NULL), DTR_OK);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.no_init_sync = skip == 1;
        o.buffers = b;
        o.n_buffers = 2;
        dtr_ddp *ddp = NULL;
        TH_OK(dtr_ddp_create(th_group(), p, 5, &o, &ddp));
        float from = skip ? (float)(10 + th_rank()) : 10;
        TH_CHECK(((float *)dtr_tensor_data(p[0].value))[4] == from, "trainable");
        TH_CHECK(((int64_t *)dtr_tensor_data(p[1].value))[2] == (int64_t)from, "frozen");
        TH_CHECK(((float *)dtr_tensor_data(p[2].value))[7] == (float)(10 + th_rank()), "ignored");
        const float *g = dtr_tensor_data(grids);
        TH_CHECK(g[1] == from && g[10] == from && g[0] == (float)(100 + th_rank()) &&
                     g[2] == (float)(100 + th_rank()),
                 "strided column: %g %g %g", g[0], g[1], g[2]);
        TH_CHECK(((int64_t *)dtr_tensor_data(b[0].value))[1] == (skip ? 20 + th_rank() : 20),
                 "buffer");
        TH_IS(dtr_ddp_check_equal(ddp), skip && th_size() > 1 ? DTR_ERR_MISMATCH : DTR_OK);
        TH_AGREE();
        /* A strided parameter trains too; the gradient is packed in its slot. */
        for (size_t i = 0; i < 5; i++) {
            if (i != 1 && i != 2) {
                TH_IS(dtr_tensor_fill(dtr_ddp_grad(ddp, i), th_rank() + 1, NULL), DTR_OK);
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            }
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_CHECK(grad_of(ddp, 3)[3] == (float)(th_size() + 1) / 2, "strided gradient");
        TH_OK(dtr_ddp_destroy(ddp));
        for (int i = 0; i < 5; i++) {
            dtr_tensor_release(p[i].value);
        }
        dtr_tensor_release(b[0].value);
        dtr_tensor_release(b[1].value);
        dtr_tensor_release(grids);
    }
}
END_TEST

/* V7: one element off on one rank is named, not repaired. */
START_TEST(equality) {
    synth s = synth_equal(4, 1000);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    TH_OK(dtr_ddp_check_equal(ddp));
    float *v = dtr_tensor_data(s.params[2].value);
    if (th_rank() == 1) {
        v[999] += 1;
    }
    TH_IS(dtr_ddp_check_equal(ddp), DTR_ERR_MISMATCH);
    TH_MESSAGE("'p2' (2) differs between rank 0 and rank 1");
    TH_CHECK(v[999] == (th_rank() == 1 ? 4 : 3), "repaired");
    TH_AGREE();
    synth_good_step(ddp, &s, 0);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* K2: a shared weight enters the plan once and has one gradient. */
START_TEST(shared_weight) {
    synth s = synth_equal(3, 6);
    dtr_param p[] = { s.params[0], s.params[1], { "again", s.params[0].value, NULL, 0 } };
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(th_group(), p, 3, NULL, &ddp));
    char text[64];
    plan_text(dtr_ddp_plan(ddp), text, sizeof text);
    TH_CHECK(strcmp(text, "1,0") == 0, "plan is %s", text);
    TH_CHECK(dtr_ddp_grad(ddp, 0) == dtr_ddp_grad(ddp, 2), "two gradients");
    synth_write(ddp, &s, 0, 0, false);
    synth_write(ddp, &s, 1, 0, false);
    TH_IS(dtr_ddp_grad_ready(ddp, 2, NULL), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    synth_check(ddp, &s, 0, 0, th_size());
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* O6: on a subgroup nothing reaches the other ranks. */
START_TEST(subgroup) {
    dtr_group *pair = NULL;
    TH_OK(dtr_group_split(th_group(), th_rank() == 1 ? -1 : 0, 0, NULL, &pair));
    synth s = synth_equal(3, 50);
    dtr_ddp *ddp = NULL;
    TH_STATUS(dtr_ddp_create(pair, s.params, 3, NULL, &ddp),
              DTR_OK + (th_rank() == 1 ? DTR_NOT_MEMBER : 0));
    if (ddp != NULL) {
        int W = dtr_group_size(pair);
        for (size_t i = 0; i < 3; i++) {
            float *g = grad_of(ddp, i);
            g[49] = (float)th_rank() + 1;
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        float sum = 0;
        for (int r = 0; r < th_size(); r++) {
            sum += r == 1 ? 0 : (float)r + 1;
        }
        TH_CHECK(grad_of(ddp, 1)[49] == sum / (float)W, "%g", grad_of(ddp, 1)[49]);
        TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
    }
    TH_OK(dtr_group_destroy(pair));
    synth_free(&s);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp verify", 100);
    th_add(tc, refused, 0, 0);
    th_add(tc, different, 2, 0);
    th_add(tc, different_strides, 2, 0);
    th_add(tc, initial_sync, 0, 0);
    th_add(tc, equality, 2, 0);
    th_add(tc, shared_weight, 0, 0);
    th_add(tc, subgroup, 3, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_verify", make);
}
