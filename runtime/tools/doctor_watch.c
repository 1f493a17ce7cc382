/* Looking at a job until it has ended: a line when something is wrong, or is so no longer. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "doctor.h"

enum { KEY = 320, LINE = 1024 };

/* What is wrong first of all, which is one thing as long as the key stays. */
typedef struct finding {
    char key[KEY], text[LINE]; /* "": nothing is wrong */
} finding;

/* A sentence as far as it stays the same while what it says lasts. */
static void name_problem(const doctor_problem *p, finding *f) {
    static const char *const ends[] = {
        "; ", ": ", ", called at", ", last sign", ", as the first", " on ranks"
    };
    size_t n = strlen(p->text);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const char *at = strstr(p->text, ends[i]);
        n = at != NULL && (size_t)(at - p->text) < n ? (size_t)(at - p->text) : n;
    }
    snprintf(f->key, sizeof f->key, "%d %.*s", p->order / DOCTOR_SENTENCES, (int)n, p->text);
    snprintf(f->text, sizeof f->text, "%s", p->text);
}

/* Files that are gone are those of ranks that have left, unless they were never there. */
static finding look(doctor_job *job, int most_read) {
    finding f = { "", "" };
    doctor_find(job);
    for (size_t i = 0; i < job->n_problems && f.key[0] == '\0'; i++) {
        const doctor_problem *p = &job->problem[i];
        if (p->order / DOCTOR_SENTENCES != DOCTOR_FILES || job->n_read == most_read) {
            name_problem(p, &f);
        }
    }
    return f;
}

static void say(const char *what, const char *text) {
    char when[16] = "";
    time_t t = time(NULL);
    struct tm utc;
    if (gmtime_r(&t, &utc) != NULL) {
        (void)strftime(when, sizeof when, "%H:%M:%S", &utc);
    }
    printf("%s UTC %s%s\n", when, what, text);
    fflush(stdout); /* to a file or pipe too */
}

static void rest(double s) {
    struct timespec t = { (time_t)s, (long)((s - (double)(time_t)s) * 1e9) };
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

static void say_change(const finding *was, const finding *is) {
    if (is->key[0] != '\0') {
        say("", is->text);
    } else {
        say("over: ", strchr(was->key, ' ') + 1);
    }
}

static bool same(const finding *a, const finding *b) {
    return strcmp(a->key, b->key) == 0;
}

/* Ranks are read one after the other, so that of a job that runs well one may seem to miss in an
 * operation: what is seen once only is nothing, and one look without what is known does not end it.
 */
int doctor_watch(doctor_job *job, char *const *path, double every_s) {
    const finding none = { "", "" };
    finding known = none, before = none;
    int most_read = job->n_read, other = 0; /* looks in a row without what is known */
    for (bool there = true, runs = true; runs;) {
        runs = there && doctor_runs(job);
        most_read = job->n_read > most_read ? job->n_read : most_read;
        const finding now = there ? look(job, most_read) : none;
        const finding is = !runs || same(&now, &before) ? now : none;
        other = same(&is, &known) ? 0 : other + 1;
        if (other > 1 || (other == 1 && (!runs || is.key[0] != '\0'))) {
            say_change(&known, &is);
            known = is;
            other = 0;
        }
        before = now;
        if (runs) {
            rest(every_s);
            there = doctor_read(job, path);
        }
    }
    say("the job has ended", known.key[0] != '\0' ? " with that" : "");
    return known.key[0] != '\0';
}
