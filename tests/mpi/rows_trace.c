/* DTR_TRACE: one line per public call that may communicate, refused ones included (ENV15), and one
 * per step of a module (ddp LG6, LG1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "one_step.h"

enum { LINES = 64 };

typedef struct line {
    int rank, level;
    char call[64], on[256], status[32];
    double us;
} line;

static size_t read_trace(const char *path, line *l) {
    char text[600];
    size_t n = 0;
    FILE *f = fopen(path, "r");
    while (f != NULL && n < LINES && fgets(text, sizeof text, f) != NULL) {
        double at;
        long thread;
        int got =
            sscanf(text, "%lf\t%d\t%ld\t%d\t%63[^\t]\t%255[^\t]\t%31[^\t]\t%lf", &at, &l[n].rank,
                   &thread, &l[n].level, l[n].call, l[n].on, l[n].status, &l[n].us);
        TH_CHECK(got == 8, "%d fields in: %s", got, text);
        n++;
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

static void calls(dtr_world *w) {
    float x = 1, y = 0;
    dtr_buffer in = dtr_cpu(&x, 1, DTR_F32), out = dtr_cpu(&y, 1, DTR_F32);
    dtr_bytes strings[64], mine = { &x, sizeof x };
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    o.name = "traced";
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, &o, &g));
    TH_IS(dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL), DTR_OK);
    out.count = 2;
    TH_IS(dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL), DTR_ERR_SHAPE);
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
    TH_IS(dtr_allgather_bytes(g, mine, NULL, strings), DTR_OK);
    dtr_bytes_free(strings, (size_t)th_size());
    TH_IS(dtr_monitored_barrier(g, -1, true, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_broadcast(g, in, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(g, NULL), DTR_OK);
    th_one_step(g, true);
    TH_IS(dtr_group_abort(g, "the end"), DTR_OK);
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_ABORTED);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}

static const struct {
    const char *call, *on, *status;
} expected[] = {
    { "dtr_world_create", "-", "DTR_OK" },
    { "dtr_group_split", "", "DTR_OK" },
    { "dtr_allreduce", "traced", "DTR_OK" },
    { "dtr_allreduce", "traced", "DTR_ERR_SHAPE" },
    { "dtr_barrier", "traced", "DTR_OK" },
    { "dtr_allgather_bytes", "traced", "DTR_OK" },
    { "dtr_monitored_barrier", "traced", "DTR_OK" },
    { "dtr_broadcast", "traced", "DTR_OK" },
    { "dtr_coalesce_end", "traced", "DTR_OK" },
    { "dtr_tensor_allreduce", "traced", "DTR_OK" },
    { "dtr_ddp_create", "traced", "DTR_OK" },
    { "dtr_ddp_grad_ready", "", "DTR_ERR_ARG" },
    { "dtr_ddp_grad_ready", "", "DTR_OK" },
    { "dtr_ddp_backward_end", "", "DTR_OK" },
    { "dtr_ddp_destroy", "", "DTR_OK" },
    { "dtr_group_abort", "traced", "DTR_OK" },
    { "dtr_barrier", "traced", "DTR_ERR_ABORTED" },
    { "dtr_group_destroy", "traced", "DTR_OK" },
    { "dtr_world_destroy", "-", "DTR_OK" },
};

/* ENV15: in order, each once; what the library itself calls inside has a level above 0. */
START_TEST(ENV15_LG6_a_line_per_call) {
    static line l[LINES];
    char pattern[256], path[300];
    const char *tmp = getenv("TMPDIR");
    snprintf(pattern, sizeof pattern, "%s/dtr-rows-trace-%%p.%%r", tmp != NULL ? tmp : "/tmp");
    snprintf(path, sizeof path, "%s/dtr-rows-trace-%d.%d", tmp != NULL ? tmp : "/tmp",
             (int)getpid(), th_rank());
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    o.keep_mpi = true;
    setenv("DTR_TRACE", pattern, 1);
    TH_OK(dtr_world_create(&o, &w));
    unsetenv("DTR_TRACE");
    calls(w);
    TH_OK(dtr_world_destroy(w));
    size_t n = read_trace(path, l), at = 0, steps = 0;
    const size_t wanted = sizeof expected / sizeof expected[0];
    for (size_t i = 0; i < n; i++) {
        TH_CHECK(l[i].rank == th_rank() && l[i].us >= 0, "line %zu: rank %d, %g us", i, l[i].rank,
                 l[i].us);
        if (strcmp(l[i].call, "ddp_step") == 0) {
            steps++;
            TH_CHECK(strstr(l[i].on, "step 1: 32 bytes, 1 buckets, ") != NULL, "the step says %s",
                     l[i].on);
        } else if (l[i].level == 0 && at < wanted) {
            TH_CHECK(strcmp(l[i].call, expected[at].call) == 0 &&
                         strcmp(l[i].status, expected[at].status) == 0,
                     "call %zu is %s %s, not %s %s", at, l[i].call, l[i].status, expected[at].call,
                     expected[at].status);
            TH_CHECK(expected[at].on[0] == '\0' || strcmp(l[i].on, expected[at].on) == 0,
                     "call %zu, %s, is on %s", at, l[i].call, l[i].on);
            at++;
        } else {
            TH_CHECK(l[i].level > 0, "one call too many: %s", l[i].call);
        }
    }
    TH_CHECK(at == wanted && steps == 1, "%zu of %zu calls, %zu steps", at, wanted, steps);
    (void)unlink(path);
    TH_AGREE();
}
END_TEST

/* A file that cannot be made: one warning, and everything works. */
START_TEST(ENV15_no_file) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    o.keep_mpi = true;
    o.log_fn = NULL;
    setenv("DTR_TRACE", "/nowhere/at/all/%r", 1);
    setenv("DTR_LOG_FILE", "/dev/null", 1);
    TH_OK(dtr_world_create(&o, &w));
    unsetenv("DTR_LOG_FILE");
    unsetenv("DTR_TRACE");
    th_good_allreduce(dtr_world_group(w));
    TH_OK(dtr_world_destroy(w));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "trace", 110);
    th_add(tc, ENV15_LG6_a_line_per_call, 0, 64);
    th_add(tc, ENV15_no_file, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "rows_trace", make);
}
