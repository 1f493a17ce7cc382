/* dtr-doctor: reads the flight recorders that the ranks of a job have left, or are writing, and
 * says what is wrong. */
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

const char doctor_program[] = "dtr-doctor";

static const char usage[] =
    "usage: dtr-doctor\n"
    "       dtr-doctor [--json] [--last N] [--trace OUT.json] [--html OUT.html] FOLDER|FILE...\n"
    "       dtr-doctor --watch [--interval S] FOLDER|FILE...\n"
    "       dtr-doctor --trigger FOLDER|FILE...\n"
    "       dtr-doctor --version\n"
    "\n"
    "Without arguments the jobs whose recordings are on this host, the newest first.\n"
    "\n"
    "  FOLDER        where the recordings are (DTR_RECORDER_DIR, or dtr-<uid>-<job> in TMPDIR or\n"
    "                /tmp); of a job on several hosts give the folders of all of them\n"
    "  --json        for programs\n"
    "  --last N      the newest N operations of every rank too\n"
    "  --trace OUT   write a trace for chrome://tracing or Perfetto\n"
    "  --html OUT    write the report, with a picture of the newest operations, as one page\n"
    "  --watch       look at the job until it has ended, and print a line when something was "
    "found\n"
    "                wrong twice, or is so no longer\n"
    "  --interval S  look every S seconds, 0.1 to 3600 (2)\n"
    "  --trigger     ask the ranks that run on this host to write dumps, beside their recordings\n"
    "\n"
    "Exit status: 0 no problem found (or with --watch none at the end), 1 problems, 2 wrong "
    "options,\n"
    "nothing could be read or written. Works on a running job as well, without MPI, and sees a\n"
    "rank's process only on the host it runs on. dtr-top shows a running job as it goes on.\n";

typedef struct settings {
    bool json, trigger, watch, every_named, last_named;
    size_t last;
    double every_s;
    const char *trace, *html;
} settings;

/* ---- output ---- */

static void print_healthy(const doctor_job *job) {
    printf("no problem found: %d ranks", job->size);
    const dtr__record *last =
        job->rank[0].rec != NULL ? dtr__recording_last(job->rank[0].rec, true) : NULL;
    if (last != NULL) {
        char title[256];
        printf("; rank 0 has finished %s, called at %s",
               dtr__recording_title(job->rank[0].rec, last, title, sizeof title),
               doctor_site(last));
    }
    if (job->slowest >= 0) {
        printf("; last into most operations is rank %d (%.0f %% of %llu, median lag %.3f ms)",
               job->slowest, 100 * job->slowest_share, (unsigned long long)job->slowest_of,
               1e3 * job->slowest_lag_s);
    }
    printf("\n");
}

static int trigger(const doctor_job *job) {
    int asked = 0;
    for (int i = 0; i < job->size; i++) {
        asked += job->rank[i].rec != NULL && job->rank[i].here && doctor_trigger(job->rank[i].rec);
    }
    if (asked == 0) {
        fprintf(stderr, "dtr-doctor: no rank of this job runs on this host\n");
    }
    return asked > 0 ? 0 : 2;
}

static int report(doctor_job *job, const settings *set) {
    doctor_find(job);
    if ((set->trace != NULL && !doctor_write_trace(job, set->trace)) ||
        (set->html != NULL && !doctor_write_html(job, set->html))) {
        return 2;
    }
    if (set->json) {
        doctor_print_json(job, set->last, stdout);
        return job->n_problems > 0;
    }
    doctor_print_job(job, stdout);
    for (size_t i = 0; i < job->n_problems; i++) {
        printf("%s\n", job->problem[i].text);
    }
    if (job->n_problems == 0) {
        print_healthy(job);
    }
    doctor_print_table(job, stdout);
    if (set->last > 0) {
        doctor_print_last(job, set->last, stdout);
    }
    return job->n_problems > 0;
}

/* ---- arguments ---- */

static bool parse_number(const char *text, size_t *n) {
    char *end = NULL;
    errno = 0;
    unsigned long long value =
        text != NULL && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    *n = (size_t)value;
    return end != NULL && *end == '\0' && errno == 0;
}

/* One option, and how many arguments it is; 0: it is none. */
static int parse_one(char **arg, settings *set) {
    if (strcmp(*arg, "--json") == 0) {
        set->json = true;
    } else if (strcmp(*arg, "--trigger") == 0) {
        set->trigger = true;
    } else if (strcmp(*arg, "--watch") == 0) {
        set->watch = true;
    } else if (strcmp(*arg, "--last") == 0 && parse_number(arg[1], &set->last)) {
        set->last_named = true;
        return 2;
    } else if (strcmp(*arg, "--interval") == 0 && doctor_number(arg[1], 0.1, 3600, &set->every_s)) {
        set->every_named = true;
        return 2;
    } else if (strcmp(*arg, "--trace") == 0 && arg[1] != NULL) {
        set->trace = arg[1];
        return 2;
    } else if (strcmp(*arg, "--html") == 0 && arg[1] != NULL) {
        set->html = arg[1];
        return 2;
    } else {
        return 0;
    }
    return 1;
}

/* NULL: they go together. */
static const char *contradiction(const settings *set) {
    const bool written = set->json || set->last_named || set->trace != NULL || set->html != NULL;
    return set->watch && (written || set->trigger) ? "--watch goes with --interval only"
           : set->trigger && written               ? "--trigger goes with no other option"
           : set->every_named && !set->watch       ? "--interval is for --watch"
                                                   : NULL;
}

static const doctor_need needs[] = { { "--last", "a number of operations" },
                                     { "--interval", "a number of seconds from 0.1 to 3600" },
                                     { "--trace", "a file to write" },
                                     { "--html", "a file to write" } };

/* What follows the options; NULL after saying what is wrong. */
static char **parse(char **arg, settings *set) {
    while (*arg != NULL && strncmp(*arg, "--", 2) == 0) {
        const int n = parse_one(arg, set);
        if (n == 0) {
            doctor_refuse(*arg, needs, sizeof needs / sizeof needs[0]);
            fputs(usage, stderr);
            return NULL;
        }
        arg += n;
    }
    const char *wrong = contradiction(set);
    if (wrong != NULL || *arg == NULL) {
        fprintf(stderr, "dtr-doctor: %s\n%s", wrong != NULL ? wrong : "which folder?", usage);
        return NULL;
    }
    return arg;
}

int main(int argc, char **argv) {
    settings set = { .every_s = 2 };
    doctor_job job = { 0 };
    int code = 2;
    if (doctor_asks_no_job(argc, argv, usage, "says what is wrong with one", &code)) {
        return code;
    }
    char **path = parse(argv + 1, &set);
    if (path != NULL && doctor_read_first(&job, path)) {
        code = set.trigger ? trigger(&job)
               : set.watch ? doctor_watch(&job, path, set.every_s)
                           : report(&job, &set);
    }
    doctor_forget(&job);
    return code;
}
