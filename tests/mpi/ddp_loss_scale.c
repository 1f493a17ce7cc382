/* The loss scale: steps that all ranks leave out because one has met NaN or infinity, and steps
 * that have the same bits as those without it. */
#include <dtr/loss_scale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"

enum { N = 5, LARGEST = 1000 };
static const size_t sizes[N] = { 300, 7, LARGEST, 64, 513 };
static const dtr_dtype types[] = { DTR_F32, DTR_F16, DTR_BF16, DTR_F64 };
enum { TYPES = sizeof types / sizeof types[0] };

/* A module with its optimizer, whole or sharded. */
typedef struct unit {
    synth s;
    dtr_ddp *ddp;
    dtr_zero *zero;
    dtr_optim *optim;
    dtr_loss_scale *scale;
} unit;

static unit unit_new(dtr_dtype d, bool sharded, double max_norm, const dtr_loss_scale_options *so) {
    unit u = { .s = synth_new(N, sizes, d) };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_optim_options oo = DTR_OPTIM_OPTIONS_INIT;
    o.bucket_cap_bytes = 2048;
    o.first_bucket_bytes = 256;
    oo.rule = DTR_OPTIM_ADAMW;
    oo.rate = 0.01;
    oo.weight_decay = 0.1;
    oo.max_norm = max_norm;
    for (size_t i = 0; i < N; i++) {
        for (size_t k = 0; k < sizes[i]; k++) {
            th_set(dtr_tensor_data(u.s.params[i].value), d, k, (double)(k % 23) / 16 - 0.5, 0);
        }
    }
    u.ddp = ddp_new(&u.s, &o);
    if (sharded) {
        TH_OK(dtr_zero_create(u.ddp, NULL, &u.zero));
    }
    TH_OK(dtr_optim_create(u.ddp, u.zero, &oo, &u.optim));
    TH_OK(dtr_loss_scale_create(u.ddp, so, &u.scale));
    return u;
}

static void unit_free(unit *u) {
    TH_OK(dtr_loss_scale_destroy(u->scale));
    TH_OK(dtr_optim_destroy(u->optim));
    TH_OK(dtr_zero_destroy(u->zero));
    TH_OK(dtr_ddp_destroy(u->ddp));
    synth_free(&u->s);
}

/* Gradients of a loss that was multiplied by `factor`; on rank `victim` one element is `bad`. */
static void backward(const unit *u, int step, double factor, int victim, size_t where, double bad) {
    float mine[LARGEST];
    for (size_t i = N; i-- > 0;) {
        th_rng g = { (uint64_t)(1 + th_rank() * 100 + step * 10 + (int)i) };
        void *grad = dtr_tensor_data(dtr_ddp_grad(u->ddp, i));
        th_random_floats(mine, DTR_F32, sizes[i], &g, -6, 0);
        for (size_t k = 0; k < sizes[i]; k++) {
            th_set(grad, u->s.dtype, k, (double)mine[k] * factor, 0);
        }
        if (i == where && th_rank() == victim) {
            th_set(grad, u->s.dtype, (size_t)step % sizes[i], bad, 0);
        }
        TH_IS(dtr_ddp_grad_ready(u->ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(u->ddp, NULL), DTR_OK);
}

static double value_of(const unit *u) {
    return dtr_loss_scale_value(u->scale);
}

static void expect_scale(const unit *u, double value, uint64_t good, uint64_t skipped) {
    dtr_loss_scale_state s = DTR_LOSS_SCALE_STATE_INIT;
    TH_IS(dtr_loss_scale_get_state(u->scale, &s), DTR_OK);
    TH_CHECK(value_of(u) == value && s.value == value && s.good == good && s.skipped == skipped,
             "scale %g, %llu good, %llu skipped; want %g, %llu, %llu", s.value,
             (unsigned long long)s.good, (unsigned long long)s.skipped, value,
             (unsigned long long)good, (unsigned long long)skipped);
}

/* Parameters and the optimizer's state on this rank, one behind the other. */
typedef struct snapshot {
    size_t nbytes;
    unsigned char bytes[(4 + 3 * 8) * 4 * LARGEST];
} snapshot;

static void add_bytes(snapshot *s, const void *data, size_t nbytes) {
    ck_assert_uint_le(s->nbytes + nbytes, sizeof s->bytes);
    memcpy(s->bytes + s->nbytes, data, nbytes);
    s->nbytes += nbytes;
}

static void take_snapshot(const unit *u, snapshot *s) {
    s->nbytes = 0;
    for (size_t i = 0; i < N; i++) {
        add_bytes(s, dtr_tensor_data(u->s.params[i].value), sizes[i] * dtr_dtype_size(u->s.dtype));
    }
    for (size_t k = 0; k < dtr_optim_state_count(u->optim); k++) {
        dtr_zero_state st;
        TH_IS(dtr_optim_state(u->optim, k, &st), DTR_OK);
        add_bytes(s, st.data.data, st.data.count * dtr_dtype_size(st.data.dtype));
    }
}

static snapshot before, after;

static bool unchanged(const unit *u) {
    take_snapshot(u, &after);
    return after.nbytes == before.nbytes && memcmp(after.bytes, before.bytes, before.nbytes) == 0;
}

static dtr_loss_scale_options short_interval(void) {
    dtr_loss_scale_options o = DTR_LOSS_SCALE_OPTIONS_INIT;
    o.initial = 64;
    o.interval = 3;
    return o;
}

/* ---- steps left out ---- */

static void leave_out(dtr_dtype d, bool sharded, int victim, size_t where, double bad) {
    dtr_loss_scale_options o = short_interval();
    unit u = unit_new(d, sharded, 0, &o);
    bool stepped = false;
    backward(&u, 0, value_of(&u), -1, 0, 0);
    TH_OK(dtr_loss_scale_step(u.scale, u.optim, &stepped));
    TH_CHECK(stepped && dtr_optim_steps(u.optim) == 1, "a good step was left out");
    expect_scale(&u, 64, 1, 0);
    take_snapshot(&u, &before);
    backward(&u, 1, value_of(&u), victim, where, bad);
    TH_OK(dtr_loss_scale_step(u.scale, u.optim, &stepped));
    TH_CHECK(!stepped && dtr_optim_steps(u.optim) == 1, "%s of rank %d in p%zu: stepped",
             isnan(bad) ? "NaN" : "infinity", victim, where);
    TH_CHECK(unchanged(&u), "%s, sharded %d: a step left out has changed something",
             dtr_dtype_name(d), sharded);
    expect_scale(&u, 32, 0, 1);
    TH_AGREE();
    for (int step = 2; step < 5; step++) { /* the third good one lets it grow */
        backward(&u, step, value_of(&u), -1, 0, 0);
        TH_OK(dtr_loss_scale_step(u.scale, u.optim, step == 3 ? NULL : &stepped));
        expect_scale(&u, step == 4 ? 64 : 32, step == 4 ? 0 : (uint64_t)(step - 1), 1);
    }
    TH_CHECK(stepped && dtr_optim_steps(u.optim) == 4, "%llu steps",
             (unsigned long long)dtr_optim_steps(u.optim));
    TH_CHECK(!unchanged(&u), "good steps have changed nothing");
    TH_AGREE();
    unit_free(&u);
}

START_TEST(one_rank_makes_all_leave_out) {
    for (int k = 0; k < 2 * TYPES; k++) {
        for (size_t where = 0; where < N; where += 2) {
            leave_out(types[k / 2], k % 2, (int)where % th_size(), where,
                      where == 2   ? (double)NAN
                      : where == 0 ? INFINITY
                                   : -INFINITY);
        }
    }
}
END_TEST

/* Ranks whose averages differ, by a hook that does not average: only the victim sees infinity. */
static dtr_status keep_own(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)state;
    *work = NULL;
    return dtr_ddp_bucket_set_result(b, dtr_ddp_bucket_buffer(b));
}

START_TEST(only_one_rank_sees_it) {
    dtr_loss_scale_options o = short_interval();
    for (int victim = 0; victim < th_size(); victim++) {
        unit u = unit_new(DTR_F32, false, 0, &o);
        bool stepped = true, finite = true;
        TH_OK(dtr_ddp_register_hook(u.ddp, keep_own, NULL, "keep_own"));
        take_snapshot(&u, &before);
        backward(&u, 0, 1, victim, 2, INFINITY);
        TH_OK(dtr_loss_scale_step(u.scale, u.optim, &stepped));
        TH_CHECK(!stepped && unchanged(&u), "victim %d: stepped", victim);
        backward(&u, 1, 1, victim, 2, (double)NAN);
        TH_OK(dtr_loss_scale_unscale(u.scale, &finite));
        TH_CHECK(!finite, "victim %d: finite", victim);
        TH_OK(dtr_loss_scale_update(u.scale));
        expect_scale(&u, 16, 0, 2);
        TH_AGREE();
        unit_free(&u);
    }
}
END_TEST

/* ---- the same steps ---- */

typedef enum way { STEP, UNSCALE, BY_HAND } way;

/* A powers of two divides out exactly: plain steps, and those with a scale that changes. */
static void same_as_plain(dtr_dtype d, bool sharded, double max_norm, way how) {
    dtr_loss_scale_options o = short_interval();
    unit plain = unit_new(d, sharded, max_norm, &o), scaled = unit_new(d, sharded, max_norm, &o);
    for (int step = 0; step < 8; step++) {
        bool good = false;
        backward(&plain, step, 1, -1, 0, 0);
        TH_OK(dtr_optim_step(plain.optim));
        backward(&scaled, step, value_of(&scaled), -1, 0, 0);
        if (how != STEP) {
            TH_OK(dtr_loss_scale_unscale(scaled.scale, &good));
            TH_CHECK(good, "not finite");
        }
        if (how != BY_HAND) {
            TH_OK(dtr_loss_scale_step(scaled.scale, scaled.optim, &good));
            TH_CHECK(good, "left out");
        } else {
            TH_OK(dtr_optim_step(scaled.optim));
            TH_OK(dtr_loss_scale_update(scaled.scale));
        }
        take_snapshot(&plain, &before);
        TH_ALL(unchanged(&scaled), "%s, sharded %d, max_norm %g, way %d: step %d differs",
               dtr_dtype_name(d), sharded, max_norm, (int)how, step);
    }
    expect_scale(&scaled, 256, 2, 0);
    TH_AGREE();
    unit_free(&plain);
    unit_free(&scaled);
}

START_TEST(powers_of_two_divide_out) {
    for (int k = 0; k < 2 * TYPES; k++) {
        const dtr_dtype d = types[k / 2];
        if (d != DTR_F16) { /* what it loses without a scale is the next test */
            same_as_plain(d, k % 2, 0, STEP);
            same_as_plain(d, k % 2, 0.5, STEP);
            same_as_plain(d, k % 2, 0.5, UNSCALE);
            same_as_plain(d, k % 2, 0, BY_HAND);
        }
    }
}
END_TEST

/* What the scale is for: gradients below the least number of f16 move parameters all the same. */
START_TEST(small_gradients_survive) {
    for (int sharded = 0; sharded < 2; sharded++) {
        dtr_loss_scale_options o = DTR_LOSS_SCALE_OPTIONS_INIT;
        o.initial = 1 << 20;
        for (int with = 0; with < 2; with++) {
            unit u = unit_new(DTR_F16, sharded, 0, &o);
            const double tiny = 0x1p-30 * (with ? value_of(&u) : 1);
            for (size_t i = N; i-- > 0;) {
                for (size_t k = 0; k < sizes[i]; k++) {
                    th_set(dtr_tensor_data(dtr_ddp_grad(u.ddp, i)), DTR_F16, k, tiny, 0);
                }
                TH_IS(dtr_ddp_grad_ready(u.ddp, i, NULL), DTR_OK);
            }
            TH_OK(dtr_ddp_backward_end(u.ddp, NULL));
            TH_OK(with ? dtr_loss_scale_step(u.scale, u.optim, NULL) : dtr_optim_step(u.optim));
            dtr_zero_state m;
            size_t moved = 0, wrong = 0;
            TH_IS(dtr_optim_state(u.optim, 0, &m), DTR_OK);
            for (size_t k = 0; k < m.data.count; k++) { /* the first moment; padding has none */
                const double is = ((const float *)m.data.data)[k] / (0.1 * 0x1p-30);
                moved += is != 0;
                wrong += is != 0 && !(is > 0.9999 && is < 1.0001);
            }
            TH_CHECK((moved > 0) == (with != 0) && wrong == 0,
                     "sharded %d, with a scale %d: %zu of %zu moments, %zu wrong", sharded, with,
                     moved, m.data.count, wrong);
            TH_AGREE();
            unit_free(&u);
        }
    }
}
END_TEST

/* ---- bounds, state and refusals ---- */

START_TEST(stays_within_its_bounds) {
    dtr_loss_scale_options o = short_interval();
    o.initial = 8;
    o.least = 4;
    o.most = 12;
    o.interval = 1;
    unit u = unit_new(DTR_F32, false, 0, &o);
    const double bad[] = { 1, 1, INFINITY, INFINITY, INFINITY, 1 };
    const double want[] = { 12, 12, 6, 4, 4, 8 };
    for (int step = 0; step < 6; step++) {
        backward(&u, step, 1, 0, 0, bad[step]);
        TH_OK(dtr_loss_scale_step(u.scale, u.optim, NULL));
        TH_ALL(value_of(&u) == want[step], "step %d: %g, want %g", step, value_of(&u), want[step]);
    }
    unit_free(&u);
}
END_TEST

START_TEST(goes_on_where_it_stood) {
    dtr_loss_scale_options o = short_interval();
    unit u = unit_new(DTR_F32, true, 0, &o);
    for (int step = 0; step < 4; step++) {
        backward(&u, step, 1, 0, 0, step == 1 ? INFINITY : 1);
        TH_OK(dtr_loss_scale_step(u.scale, u.optim, NULL));
    }
    dtr_loss_scale_state s = DTR_LOSS_SCALE_STATE_INIT, cut = { .struct_size = 16, .good = 77 };
    dtr_loss_scale *other = NULL;
    TH_OK(dtr_loss_scale_get_state(u.scale, &s));
    TH_OK(dtr_loss_scale_get_state(u.scale, &cut));
    TH_CHECK(cut.value == 32 && cut.good == 77, "more was written than there is place for");
    TH_OK(dtr_loss_scale_create(u.ddp, &o, &other));
    TH_OK(dtr_loss_scale_set_state(other, &s));
    TH_OK(dtr_loss_scale_destroy(u.scale));
    u.scale = other;
    expect_scale(&u, 32, 2, 1);
    backward(&u, 4, 1, -1, 0, 0);
    TH_OK(dtr_loss_scale_step(u.scale, u.optim, NULL));
    expect_scale(&u, 64, 0, 1);
    TH_AGREE();
    unit_free(&u);
}
END_TEST

/* Ranks with other scales are told so, all of them, and nothing has happened. */
START_TEST(scales_must_be_alike) {
    dtr_loss_scale_options o = short_interval();
    for (int sharded = 0; sharded < 2; sharded++) {
        unit u = unit_new(DTR_F32, sharded, 0, &o);
        dtr_loss_scale_state s = DTR_LOSS_SCALE_STATE_INIT;
        bool finite = false;
        s.value = th_rank() == th_size() - 1 ? 128 : 64;
        TH_OK(dtr_loss_scale_set_state(u.scale, &s));
        take_snapshot(&u, &before);
        backward(&u, 0, 1, -1, 0, 0);
        TH_STATUS(dtr_loss_scale_step(u.scale, u.optim, NULL), DTR_ERR_MISMATCH);
        TH_STATUS(dtr_loss_scale_unscale(u.scale, &finite), DTR_ERR_MISMATCH);
        TH_MESSAGE("another number on another rank");
        TH_CHECK(unchanged(&u), "something has changed");
        s.value = 64;
        TH_OK(dtr_loss_scale_set_state(u.scale, &s));
        TH_OK(dtr_loss_scale_step(u.scale, u.optim, NULL));
        TH_CHECK(!unchanged(&u), "nothing has changed");
        TH_AGREE();
        unit_free(&u);
    }
}
END_TEST

static void bad_options(dtr_ddp *ddp, size_t at, double x, const char *word) {
    dtr_loss_scale_options o = DTR_LOSS_SCALE_OPTIONS_INIT;
    dtr_loss_scale *l = NULL;
    memcpy((char *)&o + at, &x, sizeof x);
    TH_IS(dtr_loss_scale_create(ddp, &o, &l), DTR_ERR_ARG);
    TH_MESSAGE(word);
    TH_CHECK(l == NULL, "output written");
}

START_TEST(refusals) {
    dtr_loss_scale_options o = short_interval();
    unit u = unit_new(DTR_F16, false, 0, &o), other = unit_new(DTR_F32, false, 0, &o);
    dtr_loss_scale_state s = DTR_LOSS_SCALE_STATE_INIT;
    bool finite = false;
    bad_options(u.ddp, offsetof(dtr_loss_scale_options, initial), -1, "initial is -1");
    bad_options(u.ddp, offsetof(dtr_loss_scale_options, growth), 1, "growth is 1");
    bad_options(u.ddp, offsetof(dtr_loss_scale_options, backoff), 1, "backoff is 1");
    bad_options(u.ddp, offsetof(dtr_loss_scale_options, least), 1e40, "least is 1e+40");
    bad_options(u.ddp, offsetof(dtr_loss_scale_options, most), 100, "initial is 65536");
    bad_options(u.ddp, offsetof(dtr_loss_scale_options, most), (double)NAN, "most is");
    TH_IS(dtr_loss_scale_create(NULL, NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_loss_scale_create(u.ddp, NULL, NULL), DTR_ERR_ARG);
    TH_CHECK(dtr_loss_scale_value(NULL) == 1, "a value of nothing");
    TH_IS(dtr_loss_scale_destroy(NULL), DTR_OK);
    TH_IS(dtr_loss_scale_update(NULL), DTR_ERR_ARG);
    TH_IS(dtr_loss_scale_update(u.scale), DTR_ERR_STATE);
    TH_IS(dtr_loss_scale_unscale(u.scale, NULL), DTR_ERR_ARG);
    TH_IS(dtr_loss_scale_step(u.scale, other.optim, NULL), DTR_ERR_ARG);
    TH_IS(dtr_loss_scale_step(u.scale, u.optim, NULL), DTR_ERR_STATE); /* no averages yet */
    s.value = 0.5;
    TH_IS(dtr_loss_scale_set_state(u.scale, &s), DTR_ERR_ARG);
    s.value = (double)NAN;
    TH_IS(dtr_loss_scale_set_state(u.scale, &s), DTR_ERR_ARG);
    s.struct_size = 8;
    TH_IS(dtr_loss_scale_set_state(u.scale, &s), DTR_ERR_ARG);
    TH_AGREE();
    backward(&u, 0, 1, -1, 0, 0);
    TH_IS(dtr_loss_scale_unscale(u.scale, &finite), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("f16");
    TH_OK(dtr_loss_scale_step(u.scale, u.optim, NULL));
    backward(&other, 0, 1, -1, 0, 0);
    TH_OK(dtr_loss_scale_unscale(other.scale, &finite));
    TH_STATUS(dtr_loss_scale_unscale(other.scale, &finite), DTR_ERR_STATE);
    TH_OK(dtr_loss_scale_step(other.scale, other.optim, &finite));
    TH_CHECK(finite, "left out");
    TH_AGREE();
    unit_free(&u);
    unit_free(&other);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "loss_scale", 300);
    th_add(tc, one_rank_makes_all_leave_out, 1, 0);
    th_add(tc, only_one_rank_sees_it, 1, 0);
    th_add(tc, powers_of_two_divide_out, 1, 0);
    th_add(tc, small_gradients_survive, 1, 0);
    th_add(tc, stays_within_its_bounds, 1, 0);
    th_add(tc, goes_on_where_it_stood, 1, 0);
    th_add(tc, scales_must_be_alike, 2, 0);
    th_add(tc, refusals, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_loss_scale", make);
}
