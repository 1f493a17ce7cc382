/* What the files of dtr-top share: a line per rank, and the table of them. */
#ifndef DTR_TOP_H
#define DTR_TOP_H

#include "diagnosis/remote_ranks.h"
#include "doctor.h"

typedef enum top_key {
    TOP_HELD,
    TOP_RANK,
    TOP_STATE,
    TOP_STEPS,
    TOP_OPERATIONS,
    TOP_GB,
    TOP_EXPOSED,
    TOP_LAST,
    TOP_LAG,
    TOP_KEYS
} top_key;

typedef struct top_row {
    int rank;
    const dtr__recording *rec;      /* NULL: on another host; then: */
    const dtr__remote_rank *remote; /* as its node has reported it */
    double age_s;                   /* of the report; < 0: the recording was read, or none came */
    const char *host;
    uint32_t pid;
    int node;
    const char *state;
    char operation[256]; /* open, else the last one; of another host in a sentence */
    const char *site;    /* called there */
    bool open;           /* it is under way */
    double since_s;      /* it began, or ended; < 0: there is none */
    dtr__rates rates;
    double last_share, lag_s; /* as the doctor's; last_share < 0: not known */
    int held;                 /* ranks that wait for this one */
    double held_s;            /* for how long, summed up */
    char waits_for[64];       /* "2", "0,3" or "-" */
    bool *waits;              /* [size] the same */
} top_row;

typedef struct top_table {
    doctor_job job;
    double window_s; /* rates are over so long */
    top_row *row;    /* [n], in the order that was asked for */
    size_t n;
    dtr__remote_ranks *remote; /* of ranks without a recording here; NULL: nothing is known */
    top_key key;
    bool reversed;
    bool *waits; /* what the rows' point to */
} top_table;

/* top_remote.c: what a rank of this host knows of those of other hosts, waiting `wait_s` for it at
 * most. */
void top_ask(top_table *t, double wait_s);
/* A row of one of those, and who waits for whom between hosts. */
void top_remote_row(const top_table *t, const dtr__remote_rank *r, top_row *row);
void top_remote_waits(top_table *t);

/* top_rows.c: makes the rows of job and remote, in order; false: no memory */
bool top_rows(top_table *t);
void top_sort(top_table *t);
double top_holds_up(const top_row *r); /* the more, the more others wait for it */
void top_forget(top_table *t);         /* all that was read, but for the job's id */
const char *top_key_name(top_key k);
bool top_key_find(const char *name, top_key *k);

/* top_print.c: lines of the table. A row is cut after `cap` - 1 characters, all of them printable.
 */
void top_head(char *text, size_t cap);
void top_line(const top_row *r, char *text, size_t cap);
void top_summary(const top_table *t, char *text, size_t cap);
/* What cannot be seen from here; "": nothing. */
void top_unseen(const top_table *t, char *text, size_t cap);
void top_print(const top_table *t, FILE *to);
void top_print_json(const top_table *t, FILE *to);

/* top_screen.c: the live view until it is quit; the exit status */
int top_screen(top_table *t, char *const *path, double every_s);

#endif /* DTR_TOP_H */
