/* dtr-doctor: reads the flight recorders that the ranks of a job have left, or are writing, and
 * says what is wrong. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <dtr/version.h>

#include "doctor.h"

static const char usage[] =
    "usage: dtr-doctor\n"
    "       dtr-doctor [--json] [--last N] [--trace OUT.json] FOLDER|FILE...\n"
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
    "  --trigger     ask the ranks that run on this host to write dumps, beside their recordings\n"
    "\n"
    "Exit status: 0 no problem found, 1 problems, 2 nothing could be read. Works on a running job\n"
    "as well, without MPI, and sees a rank's process only on the host it runs on.\n";

typedef struct settings {
    bool json, trigger;
    size_t last;
    const char *trace;
} settings;

typedef struct files {
    dtr__recording **all;
    size_t n, capacity;
    int unreadable;
} files;

/* ---- reading ---- */

static void read_one(files *f, const char *path) {
    char why[200];
    dtr__recording *r = dtr__recording_load(path, why, sizeof why);
    if (r == NULL) {
        fprintf(stderr, "dtr-doctor: %s cannot be used: %s\n", path, why);
        f->unreadable++;
        return;
    }
    if (f->n == f->capacity) {
        size_t capacity = f->capacity * 2 + 16;
        dtr__recording **more = realloc(f->all, capacity * sizeof(dtr__recording *));
        if (more == NULL) {
            fprintf(stderr, "dtr-doctor: no memory for %s\n", path);
            dtr__recording_free(r);
            return;
        }
        f->all = more;
        f->capacity = capacity;
    }
    f->all[f->n++] = r;
}

static void read_folder(files *f, const char *folder) {
    DIR *d = opendir(folder);
    if (d == NULL) {
        fprintf(stderr, "dtr-doctor: %s: %s\n", folder, strerror(errno));
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        const char *end = strrchr(e->d_name, '.');
        char path[4096];
        int n = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (end != NULL && strcmp(end, ".rec") == 0 && n < (int)sizeof path) {
            read_one(f, path);
        }
    }
    closedir(d);
}

static void read_argument(files *f, const char *path) {
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        read_folder(f, path);
    } else {
        read_one(f, path);
    }
}

/* ---- one job of what was read ---- */

static int64_t newest_sign(const dtr__recording *r) {
    int64_t newest = r->head.mono_ns, beat = atomic_load(&r->head.beat_ns);
    newest = beat > newest ? beat : newest;
    for (size_t i = 0; i < r->n_records; i++) {
        const dtr__record *rec = &r->records[i];
        newest = rec->t_issued > newest ? rec->t_issued : newest;
        newest = rec->t_finished > newest ? rec->t_finished : newest;
    }
    return doctor_time(r, newest);
}

static void place(doctor_job *job, dtr__recording *r, const char *here) {
    doctor_rank *k = &job->rank[r->head.world_rank];
    uint64_t start = 0;
    if (k->rec != NULL || r->head.world_size != job->size) {
        return; /* a copy of the same file, or a damaged one */
    }
    k->rec = r;
    k->here = strcmp(r->head.host, here) == 0;
    k->alive = k->here && dtr__process_look(r->head.pid, &start, &k->state) &&
               start == r->head.pid_start && k->state != 'Z' &&
               atomic_load(&r->head.phase) != DTR__PHASE_CLOSED;
    k->last_sign = newest_sign(r);
    job->n_read++;
}

/* The newest job of those read; what belongs to others is left out with one line. */
static bool choose(const files *f, doctor_job *job) {
    const dtr__recording *newest = NULL;
    size_t others = 0;
    char here[64] = "";
    bool any_alive = false;
    for (size_t i = 0; i < f->n; i++) {
        if (newest == NULL || f->all[i]->head.job_id > newest->head.job_id) {
            newest = f->all[i];
        }
    }
    if (newest == NULL) {
        return false;
    }
    job->id = newest->head.job_id;
    job->size = newest->head.world_size;
    job->rank = calloc((size_t)job->size, sizeof *job->rank);
    if (job->rank == NULL || gethostname(here, sizeof here - 1) != 0) {
        return false;
    }
    for (size_t i = 0; i < f->n; i++) {
        if (f->all[i]->head.job_id == job->id) {
            place(job, f->all[i], here);
        } else {
            others++;
        }
    }
    for (int i = 0; i < job->size; i++) {
        const doctor_rank *k = &job->rank[i];
        any_alive = any_alive || k->alive;
        job->now = k->last_sign > job->now ? k->last_sign : job->now;
    }
    if (any_alive) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        job->now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    if (others > 0) {
        fprintf(stderr, "dtr-doctor: %zu recordings of earlier worlds are left out\n", others);
    }
    return job->n_read > 0;
}

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
    if (set->trace != NULL && !doctor_write_trace(job, set->trace)) {
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

/* What follows the options; NULL after saying what is wrong. */
static char **parse(char **arg, settings *set) {
    for (; *arg != NULL && strncmp(*arg, "--", 2) == 0; arg++) {
        if (strcmp(*arg, "--json") == 0) {
            set->json = true;
        } else if (strcmp(*arg, "--trigger") == 0) {
            set->trigger = true;
        } else if (strcmp(*arg, "--last") == 0 && parse_number(arg[1], &set->last)) {
            arg++;
        } else if (strcmp(*arg, "--trace") == 0 && arg[1] != NULL) {
            set->trace = *++arg;
        } else {
            fprintf(stderr, "dtr-doctor: cannot make sense of \"%s\"\n%s", *arg, usage);
            return NULL;
        }
    }
    if (*arg == NULL) {
        fprintf(stderr, "dtr-doctor: which folder?\n%s", usage);
        return NULL;
    }
    return arg;
}

int main(int argc, char **argv) {
    settings set = { 0 };
    files f = { 0 };
    doctor_job job = { 0 };
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts(dtr_version_string());
        return 0;
    }
    if (argc == 1) {
        return doctor_list();
    }
    char **path = parse(argv + 1, &set);
    if (path == NULL) {
        return 2;
    }
    for (; *path != NULL; path++) {
        read_argument(&f, *path);
    }
    int code = 2;
    if (choose(&f, &job)) {
        code = set.trigger ? trigger(&job) : report(&job, &set);
    } else {
        fprintf(stderr, "dtr-doctor: no recording could be read\n");
    }
    for (size_t i = 0; i < f.n; i++) {
        dtr__recording_free(f.all[i]);
    }
    free(f.all);
    free(job.rank);
    free(job.problem);
    return code;
}
