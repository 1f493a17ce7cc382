/* Names of older versions do what their present ones do. */
#include <dtr/dtr.h>
#include <string.h>

#include "ddp_models.h"

START_TEST(plan_of_a_module) {
    synth s = synth_equal(6, 100);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    char old[512] = "", now[512] = "";
    size_t n = dtr_ddp_print_plan(ddp, old, sizeof old);
    TH_CHECK(n == dtr_plan_print(dtr_ddp_plan(ddp), now, sizeof now) && n == strlen(old) &&
                 strcmp(old, now) == 0 && strstr(old, "p3") != NULL,
             "%s and %s", old, now);
    TH_CHECK(dtr_ddp_print_plan(ddp, old, 4) == n && memcmp(old, now, 3) == 0 && old[3] == '\0',
             "cut to '%.4s'", old);
    TH_CHECK(dtr_ddp_print_plan(NULL, NULL, 0) == 0, "NULL");
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* Leaks are found where the address sanitizer runs this. */
START_TEST(plan_of_the_program) {
    dtr_plan_param p = { .name = "p", .numel = 1, .dtype = DTR_F32 };
    dtr_plan *plan = NULL;
    TH_OK(dtr_plan_compute(&p, 1, NULL, NULL, 0, 0, &plan));
    TH_CHECK(dtr_plan_n_buckets(plan) == 1, "buckets");
    dtr_plan_free(plan);
    dtr_plan_free(NULL);
}
END_TEST

START_TEST(norm_of_a_tensor) {
    float values[] = { 3, -4 };
    int64_t shape[] = { 2 };
    dtr_tensor *t = NULL;
    double old = -1;
    TH_OK(dtr_tensor_from_buffer(dtr_cpu(values, 2, DTR_F32), 1, shape, NULL, NULL, NULL, &t));
    TH_IS(dtr_tensor_norm2(t, &old), DTR_OK);
    TH_CHECK(old == 5, "%g", old);
    TH_IS(dtr_tensor_norm2(NULL, &old), DTR_ERR_ARG);
    TH_IS(dtr_tensor_norm2(t, NULL), DTR_ERR_ARG);
    TH_AGREE();
    dtr_tensor_release(t);
}
END_TEST

/* A communication hook that counts the parameters of its buckets. */
static dtr_status count_params(void *state, dtr_ddp_bucket *bucket, dtr_work **work) {
    (void)work;
    *(size_t *)state += dtr_ddp_bucket_n_params(bucket);
    return dtr_ddp_bucket_set_result(bucket, dtr_ddp_bucket_buffer(bucket));
}

START_TEST(counts) {
    synth s = synth_equal(6, 100);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.first_bucket_bytes = o.bucket_cap_bytes = 800;
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_CHECK(dtr_plan_n_buckets(dtr_ddp_plan(ddp)) == 3, "buckets");
    TH_CHECK(dtr_plan_n_buckets(NULL) == 0 && dtr_ddp_bucket_n_params(NULL) == 0, "NULL");
    dtr_optim_options rule = DTR_OPTIM_OPTIONS_INIT;
    rule.rule = DTR_OPTIM_ADAMW;
    dtr_optim *optim = NULL;
    TH_OK(dtr_optim_create(ddp, NULL, &rule, &optim));
    TH_CHECK(dtr_optim_n_states(optim) == 2 && dtr_optim_n_states(NULL) == 0, "states");
    TH_OK(dtr_optim_destroy(optim));
    size_t params = 0;
    TH_IS(dtr_ddp_register_hook(ddp, count_params, &params, "count"), DTR_OK);
    synth_backward(ddp, &s, 0);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_CHECK(params == 6, "%zu parameters", params);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
    dtr_sampler *sampler = NULL;
    TH_OK(dtr_sampler_create(10, 0, 4, NULL, &sampler));
    TH_CHECK(dtr_sampler_size(sampler) == 3 && dtr_sampler_size(NULL) == 0, "samples");
    TH_OK(dtr_sampler_destroy(sampler));
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "names of older versions", 60);
    th_add(tc, plan_of_a_module, 0, 0);
    th_add(tc, plan_of_the_program, 0, 0);
    th_add(tc, norm_of_a_tensor, 0, 0);
    th_add(tc, counts, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "deprecated", make);
}
