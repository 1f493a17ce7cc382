#include "ddp_trainee.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data.h"

enum { N = TRAINEE_PARAMS, ROWS = 17, COLUMNS = 23, TURNED = 2 };
static const size_t sizes[N] = { 1, 63, ROWS *COLUMNS, 65, 1000, 4097 };

size_t trainee_numel(size_t i) {
    return sizes[i];
}

static void turn(synth *s) {
    const int64_t shape[] = { COLUMNS, ROWS };
    dtr_tensor *base = NULL, *turned = NULL;
    TH_IS(dtr_tensor_empty(th_world(), s->dtype, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 2,
                           shape, &base),
          DTR_OK);
    TH_IS(dtr_tensor_transpose(base, 0, 1, &turned), DTR_OK);
    dtr_tensor_release(base);
    dtr_tensor_release(s->params[TURNED].value);
    s->params[TURNED].value = turned;
}

/* Element k in the order of memory, the same for all trainees. */
static void set_values(synth *s, int from) {
    for (size_t i = 0; i < N; i++) {
        for (size_t k = 0; k < sizes[i]; k++) {
            th_set(dtr_tensor_data(s->params[i].value), s->dtype, k,
                   (double)((k + (size_t)from) % 29) / 16 - 0.75, 0);
        }
    }
}

trainee trainee_make(dtr_group *g, dtr_dtype d, bool sharded, const dtr_ddp_options *o,
                     const dtr_optim_options *oo, int from) {
    trainee t = { .s = synth_new(N, sizes, d) };
    turn(&t.s);
    set_values(&t.s, from);
    TH_IS(dtr_ddp_create(g, t.s.params, N, o, &t.ddp), DTR_OK);
    if (sharded) {
        TH_IS(dtr_zero_create(t.ddp, NULL, &t.zero), DTR_OK);
    }
    TH_IS(dtr_optim_create(t.ddp, t.zero, oo, &t.optim), DTR_OK);
    return t;
}

trainee trainee_new(dtr_group *g, dtr_dtype d, bool sharded, size_t cap, int from) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_optim_options oo = DTR_OPTIM_OPTIONS_INIT;
    o.bucket_cap_bytes = cap;
    o.first_bucket_bytes = 256;
    oo.rule = DTR_OPTIM_ADAMW;
    oo.rate = 0.01;
    oo.weight_decay = 0.1;
    oo.decay_min_ndim = 2;
    return trainee_make(g, d, sharded, &o, &oo, from);
}

void trainee_free(trainee *t) {
    TH_IS(dtr_optim_destroy(t->optim), DTR_OK);
    TH_IS(dtr_zero_destroy(t->zero), DTR_OK);
    TH_IS(dtr_ddp_destroy(t->ddp), DTR_OK);
    synth_free(&t->s);
}

/* Gradients differ from element to element, so that a state at a wrong place shows. */
void trainee_train(const trainee *t, int first, int steps) {
    for (int step = first; step < first + steps; step++) {
        for (size_t i = N; i-- > 0;) {
            void *grad = dtr_tensor_data(dtr_ddp_grad(t->ddp, i));
            for (size_t k = 0; k < sizes[i]; k++) {
                th_set(grad, t->s.dtype, k,
                       (double)((k * 7 + i + (size_t)step * 5) % 31) / 8 - 1.875, 0);
            }
            TH_IS(dtr_ddp_grad_ready(t->ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(t->ddp, NULL), DTR_OK);
        TH_IS(dtr_optim_step(t->optim), DTR_OK);
    }
}

void trainee_compare(const trainee *a, const trainee *b, const char *what) {
    for (size_t i = 0; i < N; i++) {
        TH_CHECK(memcmp(dtr_tensor_data(a->s.params[i].value),
                        dtr_tensor_data(b->s.params[i].value),
                        sizes[i] * dtr_dtype_size(a->s.dtype)) == 0,
                 "%s: p%zu differs", what, i);
    }
    TH_CHECK(dtr_optim_steps(a->optim) == dtr_optim_steps(b->optim), "%s: %llu steps, want %llu",
             what, (unsigned long long)dtr_optim_steps(b->optim),
             (unsigned long long)dtr_optim_steps(a->optim));
}

void trainee_path(char *path, size_t cap, const char *what) {
    const char *level = getenv("DTR_TEST_THREAD_LEVEL"); /* such runs may be at the same time */
    snprintf(path, cap, "trainee.np%d%s.%s.json", th_size(), level != NULL ? level : "", what);
}

size_t trainee_files(const char *path, bool remove_them) {
    char pattern[200];
    glob_t found;
    th_barrier();
    snprintf(pattern, sizeof pattern, "%s*", path);
    size_t n = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    for (size_t k = 0; remove_them && th_rank() == 0 && k < n; k++) {
        (void)unlink(found.gl_pathv[k]);
    }
    globfree(&found);
    th_barrier();
    return n;
}
