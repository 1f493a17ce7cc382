/* What the files of dtr-doctor and dtr-top share: the recordings of one world side by side, and
 * what is wrong. */
#ifndef DTR_DOCTOR_H
#define DTR_DOCTOR_H

#include <stdio.h>

#include "diagnosis/dump.h"

extern const char doctor_program[]; /* "dtr-doctor" or "dtr-top" */

typedef struct doctor_rank {
    dtr__recording *rec; /* NULL: no file */
    bool here;           /* written on this host: its process can be looked at */
    bool alive;          /* here, and the process runs */
    bool lost;           /* the error of a rank that went on says that this one has died */
    char state;          /* of the process, as in /proc; 'T' is stopped */
    int64_t last_sign;   /* ns since 1970: newest time in the recording */
    double last_share;   /* of the operations it took part in, those it was last into; < 0: none */
    double lag_s;        /* behind the median rank then, median */
} doctor_rank;

typedef struct doctor_problem {
    int order; /* most causal first */
    char text[1024];
} doctor_problem;

/* Causes before what follows from them. */
enum {
    DOCTOR_SENTENCES = 64, /* of a job, and places in the order of each kind */
    DOCTOR_DIED = 0,
    DOCTOR_DISAGREE,
    DOCTOR_DIFFER,
    DOCTOR_OPPOSITE,
    DOCTOR_STUCK,
    DOCTOR_ABSENT,
    DOCTOR_STOPPED,
    DOCTOR_PARTNER,
    DOCTOR_FAILED,
    DOCTOR_SLOW,
    DOCTOR_ENDED,
    DOCTOR_FILES
};

typedef struct doctor_job {
    uint64_t id;
    int size;
    doctor_rank *rank; /* [size] */
    int64_t now;       /* ns since 1970: present while a rank lives, else the newest sign */
    int n_read;
    doctor_problem *problem;
    size_t n_problems;
    /* The rank that was last into most operations of all, -1: too few operations to say. */
    int slowest;
    double slowest_share, slowest_lag_s;
    uint64_t slowest_of;
} doctor_job;

/* A monotonic time of a rank in ns since 1970; 0 stays 0. */
static inline int64_t doctor_time(const dtr__recording *r, int64_t mono) {
    return mono == 0 ? 0 : mono + (r->head.real_ns - r->head.mono_ns);
}

/* The other way round: what a time since 1970 is on the rank's own clock. */
static inline int64_t doctor_own_time(const dtr__recording *r, int64_t ns) {
    return ns - (r->head.real_ns - r->head.mono_ns);
}

/* doctor_read.c: reads the files and folders, NULL at the end; the newest job of those, or where
 * job->id is set that one, and then it says nothing of what it cannot read. False: nothing of it is
 * there. The first also says that. */
bool doctor_read(doctor_job *job, char *const *path);
bool doctor_read_first(doctor_job *job, char *const *path);
void doctor_forget(doctor_job *job);     /* all but its id */
bool doctor_runs(const doctor_job *job); /* some rank does, as far as can be seen */
int64_t doctor_clock(void);              /* ns since 1970 */
/* An option's value; false: it is no number from `least` to `most`. */
bool doctor_number(const char *text, double least, double most, double *value);
/* Says what an option that was not taken needs, else that there is no such option. */
typedef struct doctor_need {
    const char *option, *value;
} doctor_need;
void doctor_refuse(const char *option, const doctor_need *needs, size_t n);

void doctor_problem_add(doctor_job *job, int order, const char *fmt, ...) DTR_PRINTF(3, 4);
void doctor_find(doctor_job *job);      /* all problems, sorted (doctor_find.c) */
void doctor_find_lost(doctor_job *job); /* ranks that others have seen die */
void doctor_find_slow(doctor_job *job);
/* doctor_look.c: the records of a group's members */
typedef struct doctor_member {
    int world_rank; /* -1: not known */
    const dtr__recording *rec;
    uint32_t id;      /* of the group on that rank */
    uint64_t highest; /* newest collective number */
} doctor_member;
typedef struct doctor_group {
    uint64_t uid;
    char name[64];
    int size;
    doctor_member *member;
} doctor_group;
/* All groups that any rank knows; the caller frees with doctor_groups_free. */
doctor_group *doctor_groups(const doctor_job *job, size_t *n);
void doctor_groups_free(doctor_group *g, size_t n);
/* The member's record of collective number `seq`; NULL: not there. */
const dtr__record *doctor_record(const doctor_member *m, uint64_t seq);
/* The member `self` has a message whose other end has not been called yet. */
bool doctor_unmatched(const doctor_group *g, int self, const dtr__record *r);
/* The rank's open operation, NULL: none; on[world rank]: it waits for that one there. */
const dtr__record *doctor_waits(const doctor_job *job, int rank, const doctor_group *groups,
                                size_t n, bool *on);
const char *doctor_state(const doctor_rank *k); /* in a word; it has a recording */
/* "rank 2 (host a, pid 17)", "ranks 0, 2-5"; what a rank is doing; where it was called */
const char *doctor_who(const doctor_job *job, int rank, char *text, size_t cap);
const char *doctor_ranks(const bool *in, int size, char *text, size_t cap);
const char *doctor_doing(const doctor_job *job, int rank, char *text, size_t cap);
const char *doctor_site(const dtr__record *r);

/* doctor_trigger.c: asks a live rank of this host for a dump; false: it does not run */
bool doctor_trigger(const dtr__recording *r);
/* Raises a word of its recording's header, which is `word` bytes from its beginning; the new value,
 * 0, with errno: it does not run (ESRCH), or cannot be written to. Prints nothing. */
uint32_t doctor_raise(const dtr__recording *r, size_t word);

/* doctor_list.c: the jobs on this host, what the program does with one, and the exit status; the
 * job that a report is about */
int doctor_list(const char *what);
/* True: the arguments name no job but ask for help or the version, or there are none, which asks
 * for the list; it has been answered, and *code is the exit status. */
bool doctor_asks_no_job(int argc, char **argv, const char *usage, const char *what, int *code);
void doctor_print_job(const doctor_job *job, FILE *to);

/* doctor_print.c; doctor_trace.c, which says why it failed */
void doctor_print_table(const doctor_job *job, FILE *to);
void doctor_print_last(const doctor_job *job, size_t n, FILE *to);
void doctor_print_json(const doctor_job *job, size_t last, FILE *to);
bool doctor_write_trace(const doctor_job *job, const char *path);
bool doctor_write_html(const doctor_job *job, const char *path); /* doctor_html.c; so does it */

/* doctor_watch.c: looks every `every_s` until the job has ended; the exit status */
int doctor_watch(doctor_job *job, char *const *path, double every_s);

#endif /* DTR_DOCTOR_H */
