/* Reading the recordings of a job, once or again and again. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "doctor.h"

typedef struct files {
    dtr__recording **all;
    size_t n, capacity;
    bool silent;
} files;

int64_t doctor_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool doctor_number(const char *text, double least, double most, double *value) {
    char *end = NULL;
    const bool plain = text != NULL && ((*text >= '0' && *text <= '9') || *text == '.');
    *value = plain ? strtod(text, &end) : 0;
    return plain && *end == '\0' && *value >= least && *value <= most;
}

void doctor_refuse(const char *option, const doctor_need *needs, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(option, needs[i].option) == 0) {
            fprintf(stderr, "%s: %s needs %s\n", doctor_program, option, needs[i].value);
            return;
        }
    }
    fprintf(stderr, "%s: cannot make sense of \"%s\"\n", doctor_program, option);
}

/* ---- files ---- */

static void read_one(files *f, const char *path) {
    char why[200];
    dtr__recording *r = dtr__recording_load(path, why, sizeof why);
    if (r == NULL) {
        if (!f->silent) {
            fprintf(stderr, "%s: %s cannot be used: %s\n", doctor_program, path, why);
        }
        return;
    }
    if (f->n == f->capacity) {
        size_t capacity = f->capacity * 2 + 16;
        dtr__recording **more = realloc(f->all, capacity * sizeof(dtr__recording *));
        if (more == NULL) {
            fprintf(stderr, "%s: no memory for %s\n", doctor_program, path);
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
        if (!f->silent) {
            fprintf(stderr, "%s: %s: %s\n", doctor_program, folder, strerror(errno));
        }
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

/* False: it is a copy of the same file, or a damaged one. */
static bool place(doctor_job *job, dtr__recording *r, const char *here) {
    doctor_rank *k = &job->rank[r->head.world_rank];
    uint64_t start = 0;
    if (k->rec != NULL || r->head.world_size != job->size) {
        return false;
    }
    k->rec = r;
    k->here = strcmp(r->head.host, here) == 0;
    k->alive = k->here && dtr__process_look(r->head.pid, &start, &k->state) &&
               start == r->head.pid_start && k->state != 'Z' &&
               atomic_load(&r->head.phase) != DTR__PHASE_CLOSED;
    k->last_sign = newest_sign(r);
    job->n_read++;
    return true;
}

/* The job that is looked at, or at first the newest one. */
static const dtr__recording *choose(const files *f, uint64_t id) {
    const dtr__recording *chosen = NULL;
    for (size_t i = 0; i < f->n; i++) {
        const uint64_t of = f->all[i]->head.job_id;
        if ((id == 0 || of == id) && (chosen == NULL || of > chosen->head.job_id)) {
            chosen = f->all[i];
        }
    }
    return chosen;
}

/* What belongs to other jobs is left out with one line. */
static void place_all(doctor_job *job, files *f) {
    size_t others = 0;
    char here[64] = "";
    bool any_alive = false;
    (void)gethostname(here, sizeof here - 1);
    for (size_t i = 0; i < f->n; i++) {
        const bool own = f->all[i]->head.job_id == job->id;
        others += !own;
        if (own && place(job, f->all[i], here)) {
            f->all[i] = NULL; /* it is the job's now */
        }
    }
    for (int i = 0; i < job->size; i++) {
        const doctor_rank *k = &job->rank[i];
        any_alive = any_alive || k->alive;
        job->now = k->last_sign > job->now ? k->last_sign : job->now;
    }
    job->now = any_alive ? doctor_clock() : job->now;
    if (others > 0 && !f->silent) {
        fprintf(stderr, "%s: %zu recordings of earlier worlds are left out\n", doctor_program,
                others);
    }
}

bool doctor_read(doctor_job *job, char *const *path) {
    files f = { .silent = job->id != 0 };
    doctor_forget(job);
    for (; *path != NULL; path++) {
        read_argument(&f, *path);
    }
    const dtr__recording *chosen = choose(&f, job->id);
    if (chosen != NULL) {
        job->id = chosen->head.job_id;
        job->size = chosen->head.world_size;
        job->rank = calloc((size_t)job->size, sizeof *job->rank);
    }
    if (job->rank != NULL) {
        place_all(job, &f);
        doctor_find_lost(job);
    }
    for (size_t i = 0; i < f.n; i++) {
        dtr__recording_free(f.all[i]);
    }
    free(f.all);
    return job->n_read > 0;
}

bool doctor_read_first(doctor_job *job, char *const *path) {
    const bool found = doctor_read(job, path);
    if (!found) {
        fprintf(stderr, "%s: no recording could be read\n", doctor_program);
    }
    return found;
}

void doctor_forget(doctor_job *job) {
    for (int i = 0; job->rank != NULL && i < job->size; i++) {
        dtr__recording_free(job->rank[i].rec);
    }
    free(job->rank);
    free(job->problem);
    *job = (doctor_job){ .id = job->id };
}

bool doctor_runs(const doctor_job *job) {
    const int64_t silence = INT64_C(10000000000), now = doctor_clock();
    for (int i = 0; i < job->size; i++) {
        const doctor_rank *k = &job->rank[i];
        if (k->rec != NULL && !k->lost && atomic_load(&k->rec->head.phase) != DTR__PHASE_CLOSED &&
            (k->here ? k->alive : now - k->last_sign < silence)) {
            return true;
        }
    }
    return false;
}
