/* DTR_METRICS_FILE: the numbers of a rank in the text form of Prometheus, replaced as a whole. The
 * syntax is judged as promtool does: families declared once and before their samples, names and
 * labels in their alphabets, no series twice, counters called _total. */
#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "one_step.h"

enum { TEXT = 1 << 16, LINES = 400 };

typedef struct scrape {
    char text[TEXT];
    char *line[LINES]; /* into text, ended */
    int n;
} scrape;

static bool read_scrape(const char *path, scrape *s) {
    FILE *f = fopen(path, "r");
    size_t n = f != NULL ? fread(s->text, 1, TEXT - 1, f) : 0;
    bool read = f != NULL;
    if (f != NULL) {
        fclose(f);
    }
    s->text[n] = '\0';
    s->n = 0;
    TH_CHECK(!read || (n > 0 && s->text[n - 1] == '\n'), "%s has no last line", path);
    for (char *l = strtok(s->text, "\n"); l != NULL && s->n < LINES; l = strtok(NULL, "\n")) {
        s->line[s->n++] = l;
    }
    return read;
}

/* ---- the form ---- */

static size_t name_length(const char *text) {
    size_t n = 0;
    while (isalpha((unsigned char)text[n]) || text[n] == '_' ||
           (n > 0 && isdigit((unsigned char)text[n]))) {
        n++;
    }
    return n;
}

/* Behind `{`: one or more name="value", and the brace; NULL: something else. */
static const char *skip_labels(const char *c) {
    for (;;) {
        size_t n = name_length(c);
        if (n == 0 || c[n] != '=' || c[n + 1] != '"') {
            return NULL;
        }
        c += n + 2;
        while (*c != '"' && *c != '\0') {
            c += *c == '\\' && c[1] != '\0' ? 2 : 1;
        }
        if (*c != '"') {
            return NULL;
        }
        if (c[1] == '}') {
            return c + 2;
        }
        if (c[1] != ',') {
            return NULL;
        }
        c += 2;
    }
}

/* Is `line` a sample of the family `name` of that type? */
static bool is_sample(const char *line, const char *name, const char *type) {
    size_t n = strlen(name), k = name_length(line);
    const char *more = line + n, *end = NULL;
    char *rest = NULL;
    if (k < n || strncmp(line, name, n) != 0) {
        return false;
    }
    bool plain = k == n && strcmp(type, "summary") != 0;
    bool part = strcmp(type, "summary") == 0 &&
                (strncmp(more, "_sum{", 5) == 0 || strncmp(more, "_count{", 7) == 0);
    end = line[k] == '{' ? skip_labels(line + k + 1) : NULL;
    if (end == NULL || *end != ' ') {
        return false;
    }
    double value = strtod(end + 1, &rest);
    return (plain || part) && rest != end + 1 && *rest == '\0' && value >= 0;
}

static void check_form(const scrape *s) {
    char name[128] = "", type[32] = "";
    for (int i = 0; i < s->n; i++) {
        const char *l = s->line[i];
        if (strncmp(l, "# HELP ", 7) == 0) {
            TH_CHECK(i + 1 < s->n && sscanf(l + 7, "%127s", name) == 1 &&
                         sscanf(s->line[i + 1], "# TYPE %*s %31s", type) == 1 &&
                         strstr(s->line[i + 1], name) != NULL,
                     "no type behind: %s", l);
            bool total = strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0;
            TH_CHECK((strcmp(type, "counter") == 0) == total, "%s is a %s", name, type);
            for (int k = i + 2; k < s->n; k++) {
                TH_CHECK(strcmp(s->line[k], l) != 0, "declared twice: %s", l);
            }
        } else if (strncmp(l, "# TYPE ", 7) != 0) {
            TH_CHECK(is_sample(l, name, type), "no sample of the %s %s: %s", type, name, l);
            size_t series = (size_t)(strrchr(l, ' ') - l) + 1;
            for (int k = 0; k < i; k++) {
                TH_CHECK(strncmp(s->line[k], l, series) != 0, "twice: %s", l);
            }
        }
    }
}

/* The value of the only sample that begins so and contains `label`; -1: none. */
static double value_of(const scrape *s, const char *name, const char *label) {
    char begin[128], own[32];
    snprintf(begin, sizeof begin, "%s{", name);
    snprintf(own, sizeof own, "rank=\"%d\"", th_rank());
    for (int i = 0; i < s->n; i++) {
        const char *l = s->line[i];
        if (strncmp(l, begin, strlen(begin)) == 0 && strstr(l, label) != NULL &&
            strstr(l, own) != NULL) {
            return strtod(strrchr(l, ' '), NULL);
        }
    }
    return -1;
}

/* ---- what is counted ---- */

static void work(dtr_world *w) {
    static double x[1000], y[1000];
    dtr_buffer in = dtr_cpu(x, 1000, DTR_F64), out = dtr_cpu(y, 1000, DTR_F64);
    dtr_group *g = NULL;
    dtr_work *one = NULL, *never = NULL;
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g));
    for (int i = 0; i < 20; i++) { /* the later ones go the short way */
        TH_IS(dtr_allreduce(g, in, out, DTR_MAX, NULL, NULL), DTR_OK);
    }
    TH_IS(dtr_barrier(g, NULL, &one), DTR_OK);
    TH_IS(dtr_work_wait(one, -1), DTR_OK);
    TH_IS(dtr_work_release(one), DTR_OK);
    out.count = 2;
    TH_IS(dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL), DTR_ERR_SHAPE);
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_broadcast(g, in, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_broadcast(g, dtr_cpu(y, 8, DTR_F64), 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(g, NULL), DTR_OK);
    th_one_step(g, false);
    TH_IS(dtr_recv(g, in, th_rank(), 3, NULL, &never), DTR_OK);
    TH_AGREE();
    TH_IS(dtr_group_abort(g, "the end"), DTR_OK);
    TH_IS(dtr_work_wait(never, -1), DTR_ERR_ABORTED);
    TH_IS(dtr_work_release(never), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}

static void make_path(char *path, size_t cap, const char *end) {
    const char *tmp = getenv("TMPDIR");
    snprintf(path, cap, "%s/dtr-metrics-%d%s", tmp != NULL ? tmp : "/tmp", (int)getpid(), end);
}

static atomic_int warned;

static void count_warnings(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    warned += strstr(line, "cannot write the metrics /proc/none") != NULL;
}

static dtr_world *open_world(const char *file, const char *interval) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.log_fn = count_warnings;
    dtr_world *w = NULL;
    o.keep_mpi = true;
    setenv("DTR_METRICS_FILE", file, 1);
    setenv("DTR_METRICS_INTERVAL", interval, 1);
    setenv("DTR_WATCHDOG_MS", "1", 1);
    TH_OK(dtr_world_create(&o, &w));
    unsetenv("DTR_METRICS_FILE");
    unsetenv("DTR_METRICS_INTERVAL");
    unsetenv("DTR_WATCHDOG_MS");
    return w;
}

START_TEST(numbers_of_a_rank) {
    static scrape s;
    char pattern[300], path[300], scratch[320];
    make_path(pattern, sizeof pattern, ".prom");
    /* A name without the rank gets it, unless there is only one. */
    char end[32] = ".prom";
    if (th_size() > 1) {
        snprintf(end, sizeof end, ".rank%d.prom", th_rank());
    }
    make_path(path, sizeof path, end);
    snprintf(scratch, sizeof scratch, "%s.new", path);
    dtr_world *w = open_world(pattern, "inf");
    work(w);
    TH_OK(dtr_world_destroy(w));
    TH_CHECK(read_scrape(path, &s), "no file %s", path);
    check_form(&s);
    const struct {
        const char *name, *label;
        double low, high;
    } want[] = {
        { "dtr_info", "version=\"", 1, 1 },
        { "dtr_up", "", 0, 0 },
        { "dtr_written_timestamp_seconds", "", (double)time(NULL) - 600, (double)time(NULL) + 1 },
        { "dtr_operations_total", "kind=\"coalesced\"", 1, 1 },
        { "dtr_operation_bytes_total", "kind=\"broadcast\"", 8064, 1e6 },
        { "dtr_operation_seconds_count", "kind=\"coalesced\"", 1, 1 },
        { "dtr_operations_total", "kind=\"barrier\"", 1, 1e3 },
        { "dtr_operations_total", "kind=\"allreduce\"", 20, 1e3 },
        { "dtr_operation_bytes_total", "kind=\"allreduce\"", 160000, 1e6 },
        { "dtr_operation_seconds_count", "kind=\"allreduce\"", 20, 1e3 },
        { "dtr_wait_seconds_count", "", 0, 1e3 },
        { "dtr_operation_errors_total", "DTR_ERR_ABORTED", 1, 1 },
        { "dtr_broken_groups_total", "DTR_ERR_ABORTED", 1, 1 },
        { "dtr_refused_calls_total", "", 1, 1 },
        { "dtr_dead_ranks", "", 0, 0 },
        { "dtr_ddp_steps_total", "", 1, 1 },
        { "dtr_ddp_bytes_total", "", 32, 32 },
        { "dtr_ddp_errors_total", "", -1, -1 },
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        double got = value_of(&s, want[i].name, want[i].label);
        TH_CHECK(got >= want[i].low && got <= want[i].high, "%s %s is %g", want[i].name,
                 want[i].label, got);
    }
    if (th_rank() == 0 && th_size() > 1) {
        TH_CHECK(value_of(&s, "dtr_arrivals", "of_rank=\"1\"") >= 20, "who came last is not told");
    }
    TH_CHECK(access(scratch, F_OK) != 0, "%s was left", scratch);
    unlink(path);
    TH_AGREE();
}
END_TEST

/* Whoever reads while it is being replaced sees a whole file. */
START_TEST(replaced_as_a_whole) {
    enum { READS = 300 };
    static scrape s;
    char pattern[300], path[300], end[32];
    make_path(pattern, sizeof pattern, ".%r.prom");
    snprintf(end, sizeof end, ".%d.prom", th_rank());
    make_path(path, sizeof path, end);
    dtr_world *w = open_world(pattern, "0.001");
    float x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_F32);
    for (int n = 0; n < READS;) {
        TH_IS(dtr_allreduce(dtr_world_group(w), b, b, DTR_MAX, NULL, NULL), DTR_OK);
        uint64_t all[64], mine = read_scrape(path, &s), least = 1;
        check_form(&s);
        th_gather_u64(mine, all); /* the ranks go round alike */
        for (int i = 0; i < th_size(); i++) {
            least = all[i] < least ? all[i] : least;
        }
        n += least != 0;
        if (least != 0) {
            TH_CHECK(s.n > 20 && value_of(&s, "dtr_info", "") == 1 &&
                         value_of(&s, "dtr_shared_memory_bytes", "") >= 0,
                     "only %d lines", s.n);
        }
    }
    TH_OK(dtr_world_destroy(w));
    unlink(path);
}
END_TEST

/* The scheduler's number stands with every sample, and one that would break the line is left out.
 */
START_TEST(job_of_the_scheduler) {
    static scrape s;
    static const char *const of[][3] = {
        { "SLURM_JOB_ID", "4711", "scheduler_job=\"4711\"" },
        { "PBS_JOBID", "12[3].head", "scheduler_job=\"12[3].head\"" },
        { "FLUX_JOB_ID",
          "\xc6\x92"
          "2Wb9",
          "scheduler_job=\"f2Wb9\"" },
        { "LSB_JOBID", "a\"} 1\n", NULL },
    };
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        char path[300];
        make_path(path, sizeof path, ".prom");
        setenv(of[i][0], of[i][1], 1);
        char pattern[320];
        snprintf(pattern, sizeof pattern, "%s.%%r", path);
        dtr_world *w = open_world(pattern, "inf");
        unsetenv(of[i][0]);
        TH_OK(dtr_world_destroy(w));
        snprintf(path + strlen(path), 16, ".%d", th_rank());
        TH_CHECK(read_scrape(path, &s), "no file %s", path);
        check_form(&s);
        const char *label = of[i][2] != NULL ? of[i][2] : "dtr_job=\"";
        TH_CHECK(value_of(&s, "dtr_dead_ranks", label) == 0, "%s is not told", of[i][0]);
        TH_CHECK((value_of(&s, "dtr_dead_ranks", "scheduler_job") == 0) == (of[i][2] != NULL),
                 "%s: %s", of[i][0], s.line[s.n - 1]);
        unlink(path);
    }
    TH_AGREE();
}
END_TEST

/* DTR_METRICS_KEEP=0: the file goes with a job that ended well, and stays of one in which something
 * failed. */
START_TEST(removed_at_a_clean_end) {
    static scrape s;
    for (int failed = 0; failed < 2; failed++) {
        char pattern[300], path[300], end[32];
        make_path(pattern, sizeof pattern, ".%r.prom");
        snprintf(end, sizeof end, ".%d.prom", th_rank());
        make_path(path, sizeof path, end);
        setenv("DTR_METRICS_KEEP", "0", 1);
        dtr_world *w = open_world(pattern, "0.001");
        unsetenv("DTR_METRICS_KEEP");
        double until = th_now() + 60;
        while (!read_scrape(path, &s) && th_now() < until) {
            usleep(1000);
        }
        TH_CHECK(s.n > 20 && value_of(&s, "dtr_up", "") == 1, "%s while the world is there", path);
        if (failed != 0) {
            work(w); /* a group of it is aborted */
        }
        TH_OK(dtr_world_destroy(w));
        TH_CHECK((access(path, F_OK) == 0) == (failed != 0), "%s %s", path,
                 failed != 0 ? "is gone" : "was left");
        unlink(path);
    }
    TH_AGREE();
}
END_TEST

/* FI24: a place that cannot be written is one warning, and the job goes on. */
START_TEST(no_place_to_write) {
    warned = 0;
    dtr_world *w = open_world("/proc/none/dtr.%r.prom", "0.001");
    th_good_allreduce(dtr_world_group(w));
    TH_OK(dtr_world_destroy(w));
    TH_ALL(warned == 1, "%d warnings", (int)warned);
}
END_TEST

/* T0: values that do not parse. */
START_TEST(bad_values) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    o.keep_mpi = true;
    const char *const bad[][2] = { { "DTR_METRICS_INTERVAL", "often" },
                                   { "DTR_ON_ERROR", "stop" },
                                   { "DTR_DUMP_WAIT", "-1" } };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv(bad[i][0], bad[i][1], 1);
        TH_IS(dtr_world_create(&o, &w), DTR_ERR_ARG);
        TH_MESSAGE(bad[i][0]);
        unsetenv(bad[i][0]);
        TH_AGREE();
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "metrics", 110);
    th_add(tc, numbers_of_a_rank, 0, 0);
    th_add(tc, replaced_as_a_whole, 0, 0);
    th_add(tc, job_of_the_scheduler, 0, 0);
    th_add(tc, removed_at_a_clean_end, 0, 0);
    th_add(tc, no_place_to_write, 0, 0);
    th_add(tc, bad_values, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "metrics", make);
}
