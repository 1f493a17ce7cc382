/* What a world says about itself while it runs and at its end: who came last. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/mpi.h>
#include <dtr/work.h>

#include "groups_common.h"

enum { LINES = 64 };
static char lines[LINES][512];
static atomic_int n_lines;

static void keep(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    int at = atomic_fetch_add(&n_lines, 1);
    if (at < LINES) {
        snprintf(lines[at], sizeof lines[at], "%s", line);
    }
}

/* The line with both texts, NULL: none. */
static const char *line_with(const char *a, const char *b) {
    int n = atomic_load(&n_lines);
    for (int i = 0; i < n && i < LINES; i++) {
        if (strstr(lines[i], a) != NULL && strstr(lines[i], b) != NULL) {
            return lines[i];
        }
    }
    return NULL;
}

/* A world of its own with a setting from the environment. */
static dtr_world *world_with(const char *name, const char *value) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    o.log_fn = keep;
    atomic_store(&n_lines, 0);
    setenv(name, value, 1);
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_OK);
    unsetenv(name);
    return w;
}

/* ---- arrivals: who was last, from the recorders, at level info ---- */

enum { ROUNDS = 12, FEW = 3 };

/* `late` enters when all others have issued theirs, whatever holds them up. */
static void enter_last(dtr_group *g, int late) {
    float x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_F32);
    dtr_work *w = NULL;
    if (th_rank() != late) {
        TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, &w), DTR_OK);
    }
    th_barrier();
    if (th_rank() == late) {
        th_sleep(0.0005);
        TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL), DTR_OK);
    } else {
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
}

START_TEST(arrivals_name_the_late_ranks) {
    dtr_world *w = world_with("DTR_LOG", "info");
    int most = th_size() - 1, sometimes = 0;
    for (int i = 0; i < ROUNDS + FEW; i++) {
        enter_last(dtr_world_group(w), i < ROUNDS ? most : sometimes);
    }
    TH_IS(dtr_world_destroy(w), DTR_OK);
    char want[2][96];
    snprintf(want[0], sizeof want[0], "rank %d was last into %d of its %d, median ", most, ROUNDS,
             ROUNDS + FEW);
    snprintf(want[1], sizeof want[1], "rank %d was last into %d of its %d, median ", sometimes, FEW,
             ROUNDS + FEW);
    const char *first = line_with("arrivals: ", want[0]);
    const char *second = line_with("arrivals: ", want[1]);
    if (th_rank() == 0) { /* one rank of a node says it, the latest first */
        TH_CHECK(first != NULL, "no line with \"%s\" among %d", want[0], atomic_load(&n_lines));
        TH_CHECK(second != NULL && second > first, "no later line with \"%s\"", want[1]);
    } else {
        TH_CHECK(line_with("arrivals", "") == NULL, "said by another rank too");
    }
    TH_AGREE();
}
END_TEST

START_TEST(arrivals_are_silent_by_default) {
    dtr_world *w = world_with("DTR_LOG", "warn");
    enter_last(dtr_world_group(w), 0);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_ALL(line_with("arrivals", "") == NULL, "%s", line_with("arrivals", ""));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "watch", 60);
    th_add(tc, arrivals_name_the_late_ranks, 2, 0);
    th_add(tc, arrivals_are_silent_by_default, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "watch", make);
}
