/* The jobs whose recordings are on this host, and the line that says which job a report is about.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <dtr/version.h>

#include "doctor.h"
#include "recorder/evidence.h"

typedef struct listed {
    uint64_t job;
    uid_t owner;
    int size, running, died, failed, stopped; /* size 0: nothing can be read */
    int64_t started_ns;
    char folder[4096], command[256];
} listed;

static const char *time_text(int64_t ns, char *text, size_t cap) {
    time_t t = (time_t)(ns / 1000000000);
    struct tm utc;
    if (gmtime_r(&t, &utc) == NULL || strftime(text, cap, "%Y-%m-%d %H:%M:%S", &utc) == 0) {
        snprintf(text, cap, "-");
    }
    return text;
}

/* ---- reading ---- */

static void add_rank(listed *l, int fd, const dtr__rec_header *h) {
    uint32_t phase = atomic_load(&h->phase);
    uint64_t start = 0;
    char state = '?';
    bool used = dtr__evidence_in_use(fd, h);
    (void)dtr__process_look(h->pid, &start, &state);
    l->running += used;
    l->stopped += used && start == h->pid_start && (state == 'T' || state == 't');
    l->died += !used && phase < DTR__PHASE_DESTROYING;
    l->failed += atomic_load(&h->failure.version) != 0;
    l->size = h->world_size;
    if (l->started_ns == 0 || h->world_rank == 0) {
        l->started_ns = h->real_ns;
        snprintf(l->command, sizeof l->command, "%s", h->command);
    }
}

static void read_files(listed *l, dtr__rec_header *h) {
    DIR *d = opendir(l->folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        const char *end = strrchr(e->d_name, '.');
        int fd = end != NULL && strcmp(end, ".rec") == 0
                     ? openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
                     : -1;
        if (fd >= 0 && dtr__evidence_head(fd, h)) {
            add_rank(l, fd, h);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
}

static listed *read_base(const char *base, listed *all, size_t *n) {
    dtr__rec_header *h = malloc(sizeof *h);
    DIR *d = h != NULL ? opendir(base) : NULL;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        struct stat st;
        uint64_t job;
        uid_t uid;
        if (!dtr__evidence_name(e->d_name, &uid, &job) ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(st.st_mode)) {
            continue;
        }
        listed *more = realloc(all, (*n + 1) * sizeof *all);
        if (more == NULL) {
            break;
        }
        all = more;
        listed *l = &all[(*n)++];
        *l = (listed){ .job = job, .owner = st.st_uid };
        snprintf(l->folder, sizeof l->folder, "%s/%s", base, e->d_name);
        read_files(l, h);
    }
    if (d != NULL) {
        closedir(d);
    }
    free(h);
    return all;
}

/* ---- output ---- */

static const char *state_of(const listed *l) {
    return l->size == 0      ? "?"
           : l->stopped > 0  ? "stopped"
           : l->running == 0 ? (l->died > 0     ? "died"
                                : l->failed > 0 ? "failed"
                                                : "ended")
           : l->died > 0     ? "rank died"
           : l->failed > 0   ? "failing"
                             : "running";
}

static int newest_first(const void *a, const void *b) {
    const listed *x = a, *y = b;
    return x->job < y->job ? 1 : x->job > y->job ? -1 : strcmp(x->folder, y->folder);
}

static void print_row(const listed *l) {
    const struct passwd *user = getpwuid(l->owner);
    char name[32], when[32] = "-", ranks[16] = "-";
    snprintf(name, sizeof name, "%u", (unsigned)l->owner);
    if (l->size > 0) {
        time_text(l->started_ns, when, sizeof when);
        snprintf(ranks, sizeof ranks, "%d", l->size);
    }
    printf("%-12s %5s  %-19s  %-9s  %s  %s\n", user != NULL ? user->pw_name : name, ranks, when,
           state_of(l), l->folder, l->size > 0 ? l->command : "(cannot be read)");
}

int doctor_list(const char *what) {
    const char *base = dtr__evidence_base();
    size_t n = 0;
    listed *all = read_base(base, NULL, &n);
    bool both = strcmp(base, "/tmp") != 0;
    all = both ? read_base("/tmp", all, &n) : all;
    if (n == 0) {
        fprintf(stderr,
                "%s: no recordings in %s%s; those of jobs with DTR_RECORDER_DIR are in the folder "
                "that it names: %s FOLDER\n",
                doctor_program, base, both ? " and /tmp" : "", doctor_program);
        free(all);
        return 2;
    }
    qsort(all, n, sizeof *all, newest_first);
    printf("%-12s %5s  %-19s  %-9s  folder, command\n", "user", "ranks", "started, UTC", "state");
    for (size_t i = 0; i < n; i++) {
        print_row(&all[i]);
    }
    printf("\n%s FOLDER %s. Not listed: what DTR_RECORDER_DIR has put elsewhere.\n", doctor_program,
           what);
    free(all);
    return 0;
}

void doctor_print_job(const doctor_job *job, FILE *to) {
    const dtr__recording *r = NULL;
    char when[32];
    for (int i = job->size - 1; i >= 0; i--) {
        r = job->rank[i].rec != NULL ? job->rank[i].rec : r;
    }
    if (r != NULL) {
        fprintf(to, "job %016llx, %d rank%s, started %s UTC: %s\n", (unsigned long long)job->id,
                job->size, job->size == 1 ? "" : "s", time_text(r->head.real_ns, when, sizeof when),
                r->head.command);
    }
}

bool doctor_asks_no_job(int argc, char **argv, const char *usage, const char *what, int *code) {
    if (argc == 1) {
        *code = doctor_list(what);
        return true;
    }
    const bool help = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
    if (argc != 2 || (!help && strcmp(argv[1], "--version") != 0)) {
        return false;
    }
    fputs(help ? usage : dtr_version_string(), stdout);
    fputs(help ? "" : "\n", stdout);
    *code = 0;
    return true;
}
