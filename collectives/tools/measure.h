/* What the measuring programs share: clock, medians, the memory gauge, numbers on command lines. */
#ifndef DTR_MEASURE_H
#define DTR_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

double measure_now(void);
double measure_median(const double *values, int n);
/* Median over rounds of above[i] / below[i]: samples of one round are paired. */
double measure_ratio(const double *above, const double *below, int n);
/* Median over rounds of a[i] - b[i]. */
double measure_difference(const double *a, const double *b, int n);
double measure_slowest(double mine); /* maximum over all ranks, on every rank */

/* Bytes per second of a += b over 256 MiB, all ranks at once; collective. */
double measure_gauge(void);
/* Whether two gauges agree within 20 %; the same answer on every rank. */
bool measure_calm(double before, double after);
void measure_print_gauge(double before, double after, bool calm);

/* Sizes as 8, 4K, 1.5M, 2GiB; whole numbers from `least` on. false: not one. */
bool measure_parse_size(const char *text, size_t *out);
bool measure_parse_count(const char *text, int least, int *out);
/* Whether this process says what is wrong with the command line: rank 0 by the launcher's
 * variables, before MPI starts, or the only process. */
bool measure_speaks(void);
/* Index of a word in a list that ends with NULL; -1: not there. */
int measure_word(const char *text, const char *const *words);

/* What an option's value is, and the type of what lies at `at`. */
typedef enum measure_kind {
    MEASURE_SET,    /* no value: a bool becomes true, */
    MEASURE_CLEAR,  /* ... or false */
    MEASURE_TEXT,   /* const char * */
    MEASURE_SIZE,   /* size_t, at least `least` */
    MEASURE_COUNT,  /* int, at least `least` */
    MEASURE_WORD,   /* int: its place among `words` */
    MEASURE_SECOND, /* bool: the second of two `words` */
    MEASURE_OTHER   /* `take` says whether it is a value */
} measure_kind;
typedef struct measure_option {
    const char *name;
    char short_name; /* 0: none */
    measure_kind kind;
    size_t at; /* in the program's options */
    int least;
    const char *const *words;
    bool (*take)(void *to, const char *text);
} measure_option;

/* Command line of a measuring program; --help and --version are in every one. */
typedef struct measure_command {
    const char *program, *help;
    const measure_option *options; /* MEASURE_OPTIONS at most; the last has no name */
} measure_command;
enum { MEASURE_OPTIONS = 30 };
/* -1: go on at optind; else the exit status. Prints help, version and what is wrong only if loud.
 */
int measure_parse(const measure_command *c, void *to, int argc, char **argv, bool loud);

/* Exit status of a program that could measure: 0, and only if strict 1 for wrong results and 3
 * where the machine was not calm. Wrong results are reported on stderr in any case. */
int measure_status(const char *program, bool strict, bool talk, size_t wrong, bool calm);

/* The name and version of MPI, without what follows the first comma. */
void measure_mpi_name(char *name, size_t cap);
void measure_json_text(FILE *to, const char *text); /* quoted and escaped */
/* "model name" line of /proc/cpuinfo, or "unknown". */
void measure_cpu_name(char *name, size_t cap);

#endif /* DTR_MEASURE_H */
