/* World creation where one rank has other settings, or another version of the library: the same
 * error on every rank, naming the setting, each value and its ranks, and nobody is left behind. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/mpi.h>

#include "harness.h"
#include "world/world.h"

static dtr_world *const untouched = (dtr_world *)(intptr_t)64;

static int last(void) {
    return th_size() - 1;
}

/* Create a world with `name` set to `value` on this rank (NULL: not set). */
static dtr_status create(const char *name, const char *value, const char *backend, dtr_world **w) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.backend = backend;
    if (value != NULL) {
        setenv(name, value, 1);
    }
    dtr_status s = dtr_world_create_from_comm(MPI_COMM_WORLD, &o, w);
    if (value != NULL) {
        unsetenv(name);
    }
    return s;
}

static void same_text_everywhere(void) {
    char mine[1024], first[1024];
    snprintf(mine, sizeof mine, "%s", dtr_last_error_message());
    memcpy(first, mine, sizeof first);
    MPI_Bcast(first, (int)sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
    TH_CHECK(strcmp(mine, first) == 0, "rank 0 says \"%s\", this rank \"%s\"", first, mine);
}

static void works(dtr_world *w) {
    int64_t in = 1, out = 0;
    TH_IS(dtr_allreduce(dtr_world_group(w), dtr_cpu(&in, 1, DTR_I64), dtr_cpu(&out, 1, DTR_I64),
                        DTR_SUM, NULL, NULL),
          DTR_OK);
    TH_CHECK(out == th_size(), "the sum is %lld", (long long)out);
    TH_IS(dtr_world_destroy(w), DTR_OK);
}

static void refused(const char *name, const char *value, const char *backend) {
    char culprit[64], usual[64], others[64] = "on rank 0";
    const bool odd = th_rank() == last();
    dtr_world *w = untouched;
    dtr_status s = create(name, odd ? value : NULL, odd ? backend : NULL, &w);
    TH_IS(s, DTR_ERR_MISMATCH);
    TH_CHECK(w == untouched, "the output was touched");
    snprintf(culprit, sizeof culprit, "\"%s\" on rank %d", value != NULL ? value : backend, last());
    snprintf(usual, sizeof usual, th_size() > 2 ? "\" on ranks 0, 1" : "\" on rank 0");
    snprintf(others, sizeof others, "%s must be the same on all ranks", name);
    TH_MESSAGE(culprit);
    TH_MESSAGE(usual);
    TH_MESSAGE(others);
    same_text_everywhere();
    TH_AGREE();
}

/* Settings in which the ranks would wait for each other in different places; CFG16. */
START_TEST(a_setting_differs) {
    refused("DTR_DEBUG", "detail", NULL);
    refused("DTR_BACKEND", "cpu:mpi", NULL);
    refused("DTR_BACKEND", NULL, "cpu:mpi");
    refused("DTR_NODE_RANKS", "1", NULL);
    dtr_world *w = NULL; /* nobody is stranded */
    TH_OK(create("DTR_DEBUG", "info", NULL, &w));
    works(w);
    TH_AGREE();
}
END_TEST

/* More values than a message names. */
START_TEST(all_differ) {
    char value[16];
    dtr_world *w = untouched;
    snprintf(value, sizeof value, "%d", th_rank() + 1);
    TH_STATUS(create("DTR_NODE_RANKS", value, NULL, &w), DTR_ERR_MISMATCH);
    TH_MESSAGE("\"1\" on rank 0; \"2\" on rank 1");
    TH_MESSAGE(th_size() > 4 ? "others on" : "DTR_NODE_RANKS");
    same_text_everywhere();
    TH_AGREE();
}
END_TEST

/* The same in other words, in code on one rank and in the environment of another. */
START_TEST(same_meaning) {
    const bool odd = th_rank() == last();
    dtr_world *w = NULL;
    TH_OK(create("DTR_BACKEND", odd ? "CPU:mpi" : "cpu:MPI", NULL, &w));
    works(w);
    TH_OK(create("DTR_BACKEND", odd ? "cpu:mpi" : NULL, odd ? NULL : "cpu:mpi", &w));
    works(w);
    TH_OK(create("DTR_DEBUG", odd ? "OFF" : NULL, NULL, &w));
    works(w);
    TH_AGREE();
}
END_TEST

/* What each rank may have for itself. */
START_TEST(may_differ) {
    static const char *const own[][2] = {
        { "DTR_TIMEOUT", "333" },       { "DTR_LOG", "error" },          { "DTR_NAN_CHECK", "1" },
        { "DTR_CMA", "off" },           { "DTR_KERNELS", "scalar" },     { "DTR_ARENA", "200MiB" },
        { "DTR_PROGRESS_THREAD", "0" }, { "DTR_RECORDER_ENTRIES", "64" }
    };
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        dtr_world *w = NULL;
        TH_OK(create(own[i][0], th_rank() == last() ? own[i][1] : NULL, NULL, &w));
        works(w);
    }
    TH_AGREE();
}
END_TEST

START_TEST(version_differs) {
    const dtr__members all = dtr__members_over(MPI_COMM_WORLD, th_rank(), th_size());
    TH_OK(dtr__agree_version(all, 10203));
    TH_STATUS(dtr__agree_version(all, th_rank() == last() ? 20304 : 10203), DTR_ERR_MISMATCH);
    TH_MESSAGE("different versions");
    TH_MESSAGE("\"1.2.3\" on rank");
    TH_MESSAGE("\"2.3.4\" on rank");
    same_text_everywhere();
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "alike", 110);
    th_add(tc, a_setting_differs, 2, 0);
    th_add(tc, all_differ, 2, 0);
    th_add(tc, same_meaning, 2, 0);
    th_add(tc, may_differ, 2, 0);
    th_add(tc, version_differs, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "world_alike", make);
}
