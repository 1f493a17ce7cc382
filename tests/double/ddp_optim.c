/* The library's optimizers on the device beside the same on the host: every byte of parameters and
 * state is the same. The same program runs over nccl and over stage (DTR_TEST_STAGE=1). */
#include <dtr/loss_scale.h>
#include <dtr/optim.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "ddp_pair.h"
#include "fake_cuda.h"

/* ---- two modules with an optimizer each ---- */

typedef struct both {
    pair p;
    dtr_tensor *shaped[2][PARAMS]; /* the same memory: one is a matrix */
    dtr_zero *zero[2];
    dtr_optim *optim[2];
} both;

static dtr_tensor *flat(dtr_tensor *t) {
    const int64_t n = (int64_t)dtr_tensor_numel(t);
    dtr_tensor *view = NULL;
    TH_IS(dtr_tensor_reshape(t, 1, &n, &view), DTR_OK);
    return view;
}

static void open_both(both *b, dtr_dtype type, const dtr_optim_options *rule, bool sharded) {
    const int64_t matrix[] = { 41, 100 };
    *b = (both){ .p = { .step = 0 } };
    TH_CHECK(cudaStreamCreateWithFlags(&b->p.stream, cudaStreamNonBlocking) == cudaSuccess,
             "stream");
    for (int side = 0; side < 2; side++) {
        dtr_param params[PARAMS];
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = o.first_bucket_bytes = 9000;
        for (int i = 0; i < PARAMS; i++) {
            dtr_tensor *t = side == DEVICE ? on_gpu(type, pair_numel[i], 0, b->p.stream)
                                           : on_host(type, pair_numel[i], DTR_MEM_DEFAULT);
            b->p.value[side][i] = t;
            write_pattern(&b->p, t, 0, i);
            TH_IS(dtr_tensor_reshape(t, i == 2 ? 2 : 1, i == 2 ? matrix : &pair_numel[i],
                                     &b->shaped[side][i]),
                  DTR_OK);
            params[i] = (dtr_param){ pair_names[i], b->shaped[side][i], NULL, 0 };
        }
        TH_IS(dtr_ddp_create(th_group(), params, PARAMS, &o, &b->p.ddp[side]), DTR_OK);
        if (sharded) {
            TH_IS(dtr_zero_create(b->p.ddp[side], NULL, &b->zero[side]), DTR_OK);
        }
        TH_IS(dtr_optim_create(b->p.ddp[side], b->zero[side], rule, &b->optim[side]), DTR_OK);
    }
}

static void close_both(both *b) {
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_optim_destroy(b->optim[side]), DTR_OK);
        TH_IS(dtr_zero_destroy(b->zero[side]), DTR_OK);
        for (int i = 0; i < PARAMS; i++) {
            dtr_tensor_release(b->shaped[side][i]); /* NULL in sharded_with */
        }
    }
    pair_close(&b->p);
}

/* Gradients with digits behind the point, other ones on each rank; `bad`: one is infinite. */
static void backward(both *b, int side, bool bad) {
    pair *m = &b->p;
    for (int i = PARAMS; i-- > 0;) {
        dtr_tensor *grad = flat(dtr_ddp_grad(m->ddp[side], (size_t)i));
        write_pattern(m, grad, th_rank(), i);
        TH_IS(
            dtr_tensor_scale(grad, bad && i == 1 ? INFINITY : 0.013 * (i + 1), stream_of(m, side)),
            DTR_OK);
        dtr_tensor_release(grad);
        TH_IS(dtr_ddp_grad_ready(m->ddp[side], (size_t)i, stream_of(m, side)), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(m->ddp[side], stream_of(m, side)), DTR_OK);
}

static void same_state(const both *b) {
    size_t n = dtr_optim_state_count(b->optim[HOST]);
    TH_CHECK(n == dtr_optim_state_count(b->optim[DEVICE]), "numbers of arrays differ");
    TH_CHECK(dtr_optim_state_nbytes(b->optim[HOST]) == dtr_optim_state_nbytes(b->optim[DEVICE]),
             "sizes differ");
    for (size_t k = 0; k < n; k++) {
        dtr_zero_state here, there;
        dtr_tensor *t = NULL, *d = NULL;
        TH_IS(dtr_optim_state(b->optim[HOST], k, &here), DTR_OK);
        TH_IS(dtr_optim_state(b->optim[DEVICE], k, &there), DTR_OK);
        TH_CHECK(there.data.device.type == DTR_CUDA, "the state of the device is elsewhere");
        const int64_t count = (int64_t)here.data.count;
        TH_IS(dtr_tensor_from_buffer(here.data, 1, &count, NULL, NULL, NULL, &t), DTR_OK);
        TH_IS(dtr_tensor_from_buffer(there.data, 1, &count, NULL, NULL, NULL, &d), DTR_OK);
        same_bytes(t, d, here.name);
        dtr_tensor_release(t);
        dtr_tensor_release(d);
    }
}

static void same_values(const both *b) {
    for (int i = 0; i < PARAMS; i++) {
        same_bytes(b->p.value[HOST][i], b->p.value[DEVICE][i], pair_names[i]);
    }
}

/* ---- rules ---- */

static dtr_optim_options rule(dtr_optim_rule r, double momentum, double decay, bool nesterov) {
    dtr_optim_options o = DTR_OPTIM_OPTIONS_INIT;
    o.rule = r;
    o.rate = 0.013;
    o.momentum = momentum;
    o.weight_decay = decay;
    o.decay_min_ndim = decay > 0 ? 2 : 0;
    o.nesterov = nesterov;
    return o;
}

/* What one step of a whole optimizer asks of CUDA: a launch, and no waiting. */
static void check_log(bool clips) {
    TH_CHECK(dtr_fake_cuda_log_count("_sgd_") + dtr_fake_cuda_log_count("_adam_") == 1, "%s",
             dtr_fake_cuda_log_text());
    TH_CHECK(dtr_fake_cuda_log_count("Synchronize") == (clips ? 1 : 0), "%s",
             dtr_fake_cuda_log_text());
    TH_CHECK(dtr_fake_cuda_log_count("cudaMalloc") + dtr_fake_cuda_log_count("cudaHostAlloc") == 0,
             "%s", dtr_fake_cuda_log_text());
}

static void compare(const dtr_optim_options *o, dtr_dtype type, bool sharded) {
    both b;
    open_both(&b, type, o, sharded);
    for (int step = 0; step < 6; step++) {
        for (int side = 0; side < 2; side++) {
            backward(&b, side, false);
            if (step == 3) {
                TH_IS(dtr_optim_set_rate(b.optim[side], 0.002), DTR_OK);
            }
            dtr_fake_cuda_log_start();
            TH_IS(dtr_optim_step(b.optim[side]), DTR_OK);
            if (side == DEVICE && step > 0 && !sharded) {
                check_log(o->max_norm > 0);
            }
        }
        same_values(&b);
        same_state(&b);
        b.p.step++;
        TH_AGREE();
    }
    close_both(&b);
}

static void compare_all(bool sharded) {
    const dtr_optim_options all[] = {
        rule(DTR_OPTIM_SGD, 0, 0.1, false),   rule(DTR_OPTIM_SGD, 0.9, 0.1, false),
        rule(DTR_OPTIM_SGD, 0.9, 0.1, true),  rule(DTR_OPTIM_ADAM, 0, 0.1, false),
        rule(DTR_OPTIM_ADAMW, 0, 0.1, false),
    };
    static const dtr_dtype types[] = { DTR_F32, DTR_F16, DTR_BF16, DTR_F64 };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        for (size_t t = 0; t < (TH_SANITIZED ? 2 : 4); t++) {
            compare(&all[k], types[t], sharded);
        }
    }
}

START_TEST(RULES_whole) {
    compare_all(false);
}
END_TEST

/* ---- clipping and scaling ---- */

START_TEST(CLIPPED_steps) {
    static const dtr_dtype types[] = { DTR_F32, DTR_BF16, DTR_F64 };
    dtr_optim_options o = rule(DTR_OPTIM_ADAMW, 0, 0.1, false);
    o.max_norm = 1.5;
    for (size_t t = 0; t < 3; t++) {
        compare(&o, types[t], false);
    }
}
END_TEST

/* A step with an element that is not finite is left out: nothing changes, nothing is counted. */
static void left_out(bool sharded) {
    dtr_optim_options o = rule(DTR_OPTIM_ADAMW, 0, 0, false);
    both b;
    o.max_norm = 1.5;
    open_both(&b, DTR_F32, &o, sharded);
    for (int step = 0; step < 3; step++) {
        for (int side = 0; side < 2; side++) {
            backward(&b, side, step == 1);
            TH_IS(dtr_optim_step(b.optim[side]), step == 1 ? DTR_ERR_NAN : DTR_OK);
            if (step == 1) {
                TH_MESSAGE("the first in parameter 'b' (1)");
                TH_IS(dtr_ddp_grad_clear(b.p.ddp[side], SIZE_MAX), DTR_OK);
            }
            TH_CHECK(dtr_optim_steps(b.optim[side]) == (step < 1 ? 1U : (unsigned)step), "counted");
        }
        same_values(&b);
        same_state(&b);
        b.p.step++;
    }
    close_both(&b);
}

START_TEST(NAN_leaves_a_step_out) {
    left_out(false);
}
END_TEST

/* Averages that are scaled are divided while they are stepped with; one that is infinite lowers the
 * scale on both sides. */
static void scaled(dtr_dtype type, bool sharded) {
    dtr_optim_options o = rule(DTR_OPTIM_ADAM, 0, 0.1, false);
    dtr_loss_scale_options so = DTR_LOSS_SCALE_OPTIONS_INIT;
    dtr_loss_scale *scale[2];
    both b;
    so.initial = 1000; /* no power of two */
    so.interval = 2;
    o.max_norm = 2.5;
    open_both(&b, type, &o, sharded);
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_loss_scale_create(b.p.ddp[side], &so, &scale[side]), DTR_OK);
    }
    for (int step = 0; step < 5; step++) {
        for (int side = 0; side < 2; side++) {
            bool stepped = false;
            backward(&b, side, step == 1);
            TH_IS(dtr_loss_scale_step(scale[side], b.optim[side], &stepped), DTR_OK);
            TH_CHECK(stepped == (step != 1), "step %d", step);
        }
        TH_CHECK(dtr_loss_scale_value(scale[0]) == dtr_loss_scale_value(scale[1]), "scales");
        same_values(&b);
        same_state(&b);
        b.p.step++;
    }
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_loss_scale_destroy(scale[side]), DTR_OK);
    }
    close_both(&b);
}

START_TEST(SCALED_steps) {
    scaled(DTR_F32, false);
    scaled(DTR_F16, false);
}
END_TEST

/* ---- the rest ---- */

/* The master copy of a parameter of 16 bits follows what others write there. */
START_TEST(MASTER_follows) {
    dtr_optim_options o = rule(DTR_OPTIM_SGD, 0.9, 0, false);
    both b;
    open_both(&b, DTR_BF16, &o, false);
    for (int step = 0; step < 4; step++) {
        for (int side = 0; side < 2; side++) {
            backward(&b, side, false);
            TH_IS(dtr_optim_step(b.optim[side]), DTR_OK);
            if (step == 1) {
                TH_IS(dtr_tensor_scale(b.p.value[side][3], 3, stream_of(&b.p, side)), DTR_OK);
            }
        }
        b.p.step++;
    }
    same_values(&b);
    same_state(&b);
    close_both(&b);
}
END_TEST

START_TEST(REFUSED_layouts) {
    const int64_t shape[] = { 6, 4 };
    dtr_tensor *t = on_gpu(DTR_F32, 24, 1, NULL), *matrix = NULL, *turned = NULL;
    dtr_ddp *ddp = NULL;
    dtr_optim *optim = NULL;
    TH_IS(dtr_tensor_reshape(t, 2, shape, &matrix), DTR_OK);
    TH_IS(dtr_tensor_transpose(matrix, 0, 1, &turned), DTR_OK);
    dtr_param p = { "turned", turned, NULL, 0 };
    TH_IS(dtr_ddp_create(th_group(), &p, 1, NULL, &ddp), DTR_OK);
    TH_IS(dtr_optim_create(ddp, NULL, NULL, &optim), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("'turned' (0) is on a CUDA device and not contiguous");
    TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
    dtr_tensor_release(turned);
    dtr_tensor_release(matrix);
    dtr_tensor_release(t);
    TH_AGREE();
}
END_TEST

/* ---- sharded ---- */

START_TEST(SHARDED_rules) {
    compare_all(true);
}
END_TEST

START_TEST(SHARDED_clipping_and_scales) {
    dtr_optim_options o = rule(DTR_OPTIM_ADAMW, 0, 0.1, false);
    o.max_norm = 1.5;
    compare(&o, DTR_F32, true);
    compare(&o, DTR_BF16, true);
    left_out(true);
    scaled(DTR_F32, true);
    scaled(DTR_F16, true);
}
END_TEST

/* Averages of another type than the parameters', in buckets and in memory of their own; gradients
 * that lie in their buckets; steps whose parameters are waited for one by one. */
static void sharded_with(const dtr_ddp_options *given, uint32_t flags) {
    dtr_optim_options rule_ = rule(DTR_OPTIM_ADAM, 0, 0.1, false);
    dtr_ddp_options o = *given;
    dtr_zero_options zo = DTR_ZERO_OPTIONS_INIT;
    both b = { .p = { .step = 0 } };
    zo.flags = flags;
    pair_open(&b.p, &o, DTR_F32);
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_zero_create(b.p.ddp[side], &zo, &b.zero[side]), DTR_OK);
        TH_IS(dtr_optim_create(b.p.ddp[side], b.zero[side], &rule_, &b.optim[side]), DTR_OK);
    }
    for (int step = 0; step < 5; step++) {
        for (int side = 0; side < 2; side++) {
            TH_IS(dtr_ddp_forward_begin(b.p.ddp[side]), DTR_OK);
            TH_IS(dtr_ddp_forward_end(b.p.ddp[side], NULL, 0), DTR_OK);
            backward(&b, side, false);
            TH_IS(dtr_optim_step(b.optim[side]), DTR_OK);
            for (size_t i = 0; i < PARAMS && flags != 0; i++) {
                TH_IS(dtr_zero_wait(b.zero[side], i), DTR_OK);
            }
        }
        same_values(&b);
        same_state(&b);
        b.p.step++;
    }
    close_both(&b);
}

START_TEST(SHARDED_ways) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    sharded_with(&o, DTR_ZERO_OVERLAP);
    o.grad_as_bucket_view = true;
    sharded_with(&o, 0);
    o.grad_as_bucket_view = false;
    o.has_reduce_dtype = true;
    o.reduce_dtype = DTR_BF16;
    sharded_with(&o, DTR_ZERO_OVERLAP);
    o.has_reduce_dtype = false;
    o.has_param_dtype = true;
    o.param_dtype = DTR_F16;
    sharded_with(&o, 0);
}
END_TEST

/* K8: whole states of the device are those of the host, and come back from whole tensors, also from
 * some of them; before there was a step, too. */
static void whole_states(dtr_dtype type, dtr_optim_rule r) {
    const dtr_optim_options o = rule(r, 0, 0.1, false);
    const dtr_dtype state_type = type == DTR_F64 ? DTR_F64 : DTR_F32;
    const int64_t matrix[] = { 41, 100 };
    dtr_tensor *full[2][PARAMS];
    both b;
    open_both(&b, type, &o, true);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < PARAMS; i++) {
            dtr_tensor *t = side == DEVICE ? on_gpu(state_type, pair_numel[i], 7, b.p.stream)
                                           : on_host(state_type, pair_numel[i], DTR_MEM_DEFAULT);
            TH_IS(dtr_tensor_fill(t, 7, stream_of(&b.p, side)), DTR_OK);
            TH_IS(dtr_tensor_reshape(t, i == 2 ? 2 : 1, i == 2 ? matrix : &pair_numel[i],
                                     &full[side][i]),
                  DTR_OK);
            dtr_tensor_release(t);
        }
    }
    TH_CHECK(cudaStreamSynchronize(b.p.stream) == cudaSuccess, "synchronize");
    for (int step = 0; step < 4; step++) {
        for (size_t k = 0; k < dtr_optim_state_count(b.optim[HOST]); k++) {
            for (int side = 0; side < 2; side++) {
                dtr_zero_state st;
                dtr_tensor *some[PARAMS];
                memcpy(some, full[side], sizeof some);
                some[step] = NULL;
                TH_IS(dtr_optim_state(b.optim[side], k, &st), DTR_OK);
                if (step > 0) { /* by the program, behind the step */
                    const int64_t count = (int64_t)st.data.count;
                    dtr_tensor *shard = NULL;
                    TH_IS(dtr_tensor_from_buffer(st.data, 1, &count, NULL, NULL, NULL, &shard),
                          DTR_OK);
                    for (int n = 0; n < 20; n++) {
                        TH_IS(dtr_tensor_scale(shard, n % 2 == 0 ? 4 : 0.5, stream_of(&b.p, side)),
                              DTR_OK);
                    }
                    dtr_tensor_release(shard);
                }
                TH_IS(dtr_zero_gather(b.zero[side], &st, some, PARAMS), DTR_OK);
                TH_IS(dtr_tensor_scale(full[side][(step + 1) % PARAMS], 2, stream_of(&b.p, side)),
                      DTR_OK);
                if (side == DEVICE && step == 0) { /* no stream of the program is known yet */
                    TH_CHECK(cudaStreamSynchronize(b.p.stream) == cudaSuccess, "synchronize");
                }
                TH_IS(dtr_zero_slice(b.zero[side], some, PARAMS, &st), DTR_OK);
            }
            for (int i = 0; i < PARAMS; i++) {
                dtr_tensor *a = flat(full[HOST][i]), *d = flat(full[DEVICE][i]);
                same_bytes(a, d, "whole state");
                dtr_tensor_release(a);
                dtr_tensor_release(d);
            }
        }
        same_state(&b);
        for (int side = 0; side < 2; side++) {
            backward(&b, side, false);
            TH_IS(dtr_optim_step(b.optim[side]), DTR_OK);
        }
        b.p.step++;
    }
    same_values(&b);
    for (int i = 0; i < 2 * PARAMS; i++) {
        dtr_tensor_release(full[i / PARAMS][i % PARAMS]);
    }
    close_both(&b);
}

START_TEST(SHARDED_whole_states) {
    whole_states(DTR_F32, DTR_OPTIM_ADAM);
    whole_states(DTR_F64, DTR_OPTIM_ADAM);
    whole_states(DTR_BF16, DTR_OPTIM_ADAMW);
}
END_TEST

/* Tensors elsewhere, and with other strides, are refused on all ranks, and nothing is written. */
START_TEST(SHARDED_whole_states_refused) {
    const dtr_optim_options o = rule(DTR_OPTIM_ADAM, 0, 0, false);
    const int64_t turned[] = { 100, 41 };
    dtr_zero_state st;
    both b;
    open_both(&b, DTR_F32, &o, true);
    dtr_tensor *full[PARAMS] = { NULL }, *t = on_gpu(DTR_F32, pair_numel[2], 7, b.p.stream),
               *matrix = NULL;
    TH_IS(dtr_optim_state(b.optim[DEVICE], 0, &st), DTR_OK);
    full[0] = on_host(DTR_F32, pair_numel[0], DTR_MEM_DEFAULT);
    TH_IS(dtr_zero_gather(b.zero[DEVICE], &st, full, PARAMS), DTR_ERR_DEVICE);
    TH_MESSAGE("full[0] for 'a' is elsewhere");
    TH_IS(dtr_zero_slice(b.zero[DEVICE], full, PARAMS, &st), DTR_ERR_DEVICE);
    dtr_tensor_release(full[0]);
    full[0] = NULL;
    TH_IS(dtr_tensor_reshape(t, 2, turned, &matrix), DTR_OK);
    TH_IS(dtr_tensor_transpose(matrix, 0, 1, &full[2]), DTR_OK);
    TH_IS(dtr_zero_gather(b.zero[DEVICE], &st, full, PARAMS), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("full[2] for 'c'");
    TH_IS(dtr_zero_slice(b.zero[DEVICE], full, PARAMS, &st), DTR_ERR_UNSUPPORTED);
    check_each(t, 7, "left alone", "c");
    dtr_tensor_release(full[2]);
    dtr_tensor_release(matrix);
    dtr_tensor_release(t);
    TH_IS(dtr_optim_state(b.optim[HOST], 0, &st), DTR_OK);
    TH_IS(dtr_zero_slice(b.zero[DEVICE], (dtr_tensor *[PARAMS]){ NULL }, PARAMS, &st),
          DTR_ERR_DEVICE);
    TH_MESSAGE("the state");
    close_both(&b);
}
END_TEST

/* A step queues work and waits for the device only where NCCL does not serve. */
START_TEST(SHARDED_without_waiting) {
    dtr_optim_options o = rule(DTR_OPTIM_ADAMW, 0, 0.1, false);
    both b;
    open_both(&b, DTR_F32, &o, true);
    for (int step = 0; step < 4; step++) {
        backward(&b, DEVICE, false);
        dtr_fake_cuda_log_start();
        TH_IS(dtr_optim_step(b.optim[DEVICE]), DTR_OK);
        TH_CHECK(dtr_fake_cuda_log_count("Synchronize") == 0 || staged(), "%s",
                 dtr_fake_cuda_log_text());
        TH_CHECK(step == 0 || dtr_fake_cuda_log_count("cudaMalloc") == 0, "%s",
                 dtr_fake_cuda_log_text());
    }
    close_both(&b);
}
END_TEST

/* ---- checkpoints ---- */

static void remove_files(void) {
    char pattern[64];
    glob_t found;
    TH_AGREE();
    snprintf(pattern, sizeof pattern, "double_ddp_optim.np%d%s.*", th_size(),
             staged() ? "-stage" : "");
    if (th_rank() == 0 && glob(pattern, 0, NULL, &found) == 0) {
        for (size_t k = 0; k < found.gl_pathc; k++) {
            (void)unlink(found.gl_pathv[k]);
        }
        globfree(&found);
    }
}

/* What one side has saved the other goes on from, and the other way round. */
static void check_files(dtr_dtype type, bool sharded) {
    dtr_optim_options o = rule(DTR_OPTIM_ADAMW, 0, 0.1, false);
    char path[2][64];
    both b;
    open_both(&b, type, &o, sharded);
    for (int side = 0; side < 2; side++) {
        snprintf(path[side], sizeof path[side], "double_ddp_optim.np%d%s.%d.json", th_size(),
                 staged() ? "-stage" : "", side); /* another run may be beside it */
    }
    for (int step = 0; step < 4; step++) {
        for (int side = 0; side < 2; side++) {
            backward(&b, side, false);
            TH_IS(dtr_optim_step(b.optim[side]), DTR_OK);
            if (step == 1) {
                TH_IS(dtr_optim_save(b.optim[side], path[side]), DTR_OK);
            }
        }
        b.p.step++;
    }
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_optim_load(b.optim[side], path[1 - side]), DTR_OK);
        TH_CHECK(dtr_optim_steps(b.optim[side]) == 2, "steps");
    }
    same_values(&b);
    same_state(&b);
    for (int side = 0; side < 2; side++) {
        backward(&b, side, false);
        TH_IS(dtr_optim_step(b.optim[side]), DTR_OK);
    }
    same_values(&b);
    same_state(&b);
    remove_files();
    close_both(&b);
}

START_TEST(CHECKPOINTS_of_either_side) {
    check_files(DTR_F32, false);
    check_files(DTR_BF16, false);
    check_files(DTR_F32, true);
    check_files(DTR_BF16, true);
}
END_TEST

static void make(Suite *s) {
    TCase *whole = th_case(s, "whole", 110);
    th_add(whole, RULES_whole, 1, 0);
    th_add(whole, CLIPPED_steps, 1, 0);
    th_add(whole, NAN_leaves_a_step_out, 1, 0);
    th_add(whole, SCALED_steps, 1, 0);
    th_add(whole, MASTER_follows, 1, 0);
    th_add(whole, REFUSED_layouts, 1, 0);
    TCase *sharded = th_case(s, "sharded", 110);
    th_add(sharded, SHARDED_rules, 1, 0);
    th_add(sharded, SHARDED_clipping_and_scales, 1, 0);
    th_add(sharded, SHARDED_ways, 1, 0);
    th_add(sharded, SHARDED_whole_states, 1, 0);
    th_add(sharded, SHARDED_whole_states_refused, 1, 0);
    th_add(sharded, SHARDED_without_waiting, 1, 0);
    TCase *files = th_case(s, "files", 110);
    th_add(files, CHECKPOINTS_of_either_side, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_optim_device", make);
}
