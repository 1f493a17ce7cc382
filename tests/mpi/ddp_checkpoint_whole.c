/* Checkpoints of optimizers whose state is whole, beside those of sharded ones, and the program's
 * own bytes in both. */
#include <dtr/optim.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ddp_trainee.h"

/* Written by one form, read by the other and by its own, then trained on: the same bits as without
 * an interruption. */
static void round_trip(dtr_dtype d, bool from_sharded) {
    char path[80], way[60];
    trainee_path(path, sizeof path, "whole.a");
    (void)trainee_files(path, true);
    trainee t = trainee_new(th_group(), d, from_sharded, 4096, 0);
    trainee_train(&t, 0, 3);
    for (int k = 0; k < 2; k++) { /* the second replaces the first */
        TH_OK(dtr_optim_save(t.optim, path));
    }
    const size_t files = trainee_files(path, false),
                 want = from_sharded ? (size_t)th_size() + 1 : 2;
    TH_CHECK(files == want, "%zu files, want %zu", files, want);
    trainee into[2];
    for (int sharded = 0; sharded < 2; sharded++) {
        into[sharded] = trainee_new(th_group(), d, sharded, 1 << 20, 5);
        trainee_train(&into[sharded], 0, 1);
        TH_OK(dtr_optim_load(into[sharded].optim, path));
        snprintf(way, sizeof way, "%s, sharded %d to %d", dtr_dtype_name(d), from_sharded, sharded);
        trainee_compare(&t, &into[sharded], way);
        TH_AGREE();
    }
    trainee_train(&t, 3, 2);
    for (int sharded = 0; sharded < 2; sharded++) {
        trainee_train(&into[sharded], 3, 2);
        snprintf(way, sizeof way, "%s, sharded %d to %d, trained on", dtr_dtype_name(d),
                 from_sharded, sharded);
        trainee_compare(&t, &into[sharded], way);
        trainee_free(&into[sharded]);
    }
    TH_AGREE();
    trainee_free(&t);
    (void)trainee_files(path, true);
}

START_TEST(both_forms_read_both) {
    const dtr_dtype types[] = { DTR_F32, DTR_F16, DTR_F64 };
    for (int k = 0; k < 6; k++) {
        round_trip(types[k / 2], k % 2);
    }
}
END_TEST

/* ---- the program's bytes ---- */

/* Rank r gives 10 r + 1 bytes. */
static size_t fill_own(char *bytes, int rank, int round) {
    const size_t n = (size_t)rank * 10 + 1;
    for (size_t k = 0; k < n; k++) {
        bytes[k] = (char)(rank * 31 + round * 7 + (int)k);
    }
    return n;
}

static void expect_own(const dtr_bytes *got, int rank, int round, const char *what) {
    char want[100];
    const size_t n = rank < 0 ? 0 : fill_own(want, rank, round);
    TH_CHECK(got->nbytes == n && (n == 0 || memcmp(got->data, want, n) == 0),
             "%s: %zu bytes, want those %zu of rank %d", what, got->nbytes, n, rank);
}

/* givers: so many ranks give bytes. */
static void own_bytes(bool sharded, int givers) {
    char path[80], bytes[100];
    dtr_bytes got = { NULL, 0 };
    const int me = th_rank(), last = th_size() - 1;
    trainee_path(path, sizeof path, "whole.b");
    (void)trainee_files(path, true);
    trainee t = trainee_new(th_group(), DTR_F32, sharded, 4096, 0);
    trainee_train(&t, 0, 1);
    const dtr_bytes own = { bytes, me < givers ? fill_own(bytes, me, 1) : 0 };
    TH_OK(dtr_optim_save_with(t.optim, path, own));
    const int files = sharded ? th_size() : givers > 0 ? givers : 1;
    TH_CHECK(trainee_files(path, false) == (size_t)files + 1, "not %d files", files);
    TH_OK(dtr_optim_load_with(t.optim, path, &got));
    expect_own(&got, me % files < givers ? me % files : -1, 1, "all ranks");
    dtr_bytes_free(&got, 1);
    TH_OK(dtr_optim_load(t.optim, path)); /* who does not ask for them */
    /* A save that is refused on one rank leaves the old one as it is, bytes too. */
    trainee_train(&t, 1, 1);
    const dtr_bytes bad = { me == last ? NULL : bytes, me == last ? 5 : fill_own(bytes, me, 2) };
    TH_STATUS(dtr_optim_save_with(t.optim, path, bad), DTR_ERR_ARG);
    TH_MESSAGE("the program's data is NULL");
    TH_OK(dtr_optim_load_with(t.optim, path, &got));
    TH_CHECK(dtr_optim_steps(t.optim) == 1, "another checkpoint");
    expect_own(&got, me % files < givers ? me % files : -1, 1, "after a refusal");
    dtr_bytes_free(&got, 1);
    trainee_free(&t);
    dtr_group *alone = NULL; /* one rank of fewer gets those of its own number */
    TH_OK(dtr_group_split(th_group(), me, 0, NULL, &alone));
    trainee one = trainee_new(alone, DTR_F32, !sharded, 4096, 0);
    TH_IS(dtr_optim_load_with(one.optim, path, &got), DTR_OK);
    expect_own(&got, givers > 0 ? 0 : -1, 1, "alone");
    dtr_bytes_free(&got, 1);
    trainee_free(&one);
    TH_OK(dtr_group_destroy(alone));
    (void)trainee_files(path, true);
}

START_TEST(bytes_of_the_program) {
    for (int sharded = 0; sharded < 2; sharded++) {
        own_bytes(sharded, th_size());
        own_bytes(sharded, 1);
        own_bytes(sharded, 0);
    }
    TH_IS(dtr_optim_load_with(NULL, "x", NULL), DTR_ERR_ARG);
    TH_IS(dtr_optim_save(NULL, "x"), DTR_ERR_ARG);
    TH_AGREE();
}
END_TEST

/* Rank 0's file says what is wrong, and nothing changes on any rank. */
START_TEST(a_damaged_file_is_named) {
    char path[80], pattern[200];
    glob_t found;
    trainee_path(path, sizeof path, "whole.c");
    (void)trainee_files(path, true);
    trainee t = trainee_new(th_group(), DTR_F32, false, 4096, 0);
    trainee same = trainee_new(th_group(), DTR_F32, false, 4096, 0);
    trainee_train(&t, 0, 2);
    trainee_train(&same, 0, 2);
    TH_OK(dtr_optim_save(t.optim, path));
    if (th_rank() == 0) {
        snprintf(pattern, sizeof pattern, "%s.*", path);
        TH_CHECK(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc == 1 &&
                     truncate(found.gl_pathv[0], 5000) == 0,
                 "cannot cut the file");
        globfree(&found);
    }
    th_barrier();
    trainee_train(&t, 2, 1);
    trainee_train(&same, 2, 1);
    TH_STATUS(dtr_optim_load(t.optim, path), DTR_ERR_IO);
    TH_MESSAGE("0-of-1.safetensors");
    trainee_compare(&same, &t, "after a refused load");
    TH_AGREE();
    trainee_free(&t);
    trainee_free(&same);
    (void)trainee_files(path, true);
}
END_TEST

/* Parameters that are averaged apart, and a frozen one, which is in no checkpoint. */
START_TEST(delayed_parameters) {
    enum { PARTS = 4 };
    static const size_t parts[PARTS] = { 40, 50, 60, 70 }, late[] = { 1, 2 };
    char path[80];
    trainee_path(path, sizeof path, "whole.d");
    (void)trainee_files(path, true);
    synth s = synth_new(PARTS, parts, DTR_F32);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_ddp *ddp = NULL;
    dtr_optim *optim = NULL;
    dtr_optim_options oo = DTR_OPTIM_OPTIONS_INIT;
    float before[PARTS];
    o.delayed = late;
    o.n_delayed = 2;
    o.delayed_trigger = 0;
    o.has_delayed_trigger = true;
    oo.momentum = 0.9;
    s.params[3].flags = DTR_PARAM_FROZEN;
    TH_OK(dtr_ddp_create(th_group(), s.params, PARTS, &o, &ddp));
    TH_OK(dtr_optim_create(ddp, NULL, &oo, &optim));
    for (size_t i = 0; i < PARTS; i++) {
        before[i] = (float)i + 0.5F;
        TH_IS(dtr_tensor_fill(s.params[i].value, before[i], NULL), DTR_OK);
    }
    TH_OK(dtr_optim_save(optim, path));
    for (size_t i = 0; i < PARTS; i++) {
        TH_IS(dtr_tensor_fill(s.params[i].value, -1, NULL), DTR_OK);
    }
    TH_OK(dtr_optim_load(optim, path));
    for (size_t i = 0; i < PARTS; i++) {
        const float *is = dtr_tensor_data(s.params[i].value), want = i == 3 ? -1 : before[i];
        TH_CHECK(is[0] == want && is[parts[i] - 1] == want, "p%zu is %g, want %g", i, (double)is[0],
                 (double)want);
    }
    TH_AGREE();
    TH_OK(dtr_optim_destroy(optim));
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
    (void)trainee_files(path, true);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp checkpoint whole", 200);
    th_add(tc, both_forms_read_both, 1, 0);
    th_add(tc, bytes_of_the_program, 1, 0);
    th_add(tc, a_damaged_file_is_named, 1, 0);
    th_add(tc, delayed_parameters, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp checkpoint whole", make);
}
