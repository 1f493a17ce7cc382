/* Clock, medians, memory gauge and numbers for the measuring programs. */
#include <dtr/version.h>

#include "measure.h"

#include <getopt.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

double measure_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double *samples_for(int n) {
    double *values = malloc((size_t)n * sizeof *values);
    if (values == NULL) {
        fprintf(stderr, "no memory for %d samples\n", n);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    return values;
}

static double median_and_free(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, ascending);
    double m = n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
    free(values);
    return m;
}

double measure_median(const double *values, int n) {
    double *copy = samples_for(n);
    memcpy(copy, values, (size_t)n * sizeof *copy);
    return median_and_free(copy, n);
}

static double paired(const double *a, const double *b, int n, bool ratio) {
    double *both = samples_for(n);
    for (int i = 0; i < n; i++) {
        both[i] = ratio ? a[i] / b[i] : a[i] - b[i];
    }
    return median_and_free(both, n);
}

double measure_ratio(const double *above, const double *below, int n) {
    return paired(above, below, n, true);
}

double measure_difference(const double *a, const double *b, int n) {
    return paired(a, b, n, false);
}

double measure_slowest(double mine) {
    double slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static volatile float sink; /* keeps the compiler from dropping the sums */

double measure_gauge(void) {
    enum { BYTES = 256 << 20, TIMES = 3 };
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    size_t n = BYTES / sizeof(float) / (size_t)size;
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
    double best = 0;
    if (a == NULL || b == NULL) {
        fprintf(stderr, "no memory for the gauge: 2 x %zu bytes\n", n * sizeof *a);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    for (size_t i = 0; i < n; i++) {
        a[i] = 1;
        b[i] = (float)(i & 7);
    }
    for (int k = 0; k < TIMES; k++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = measure_now();
        for (size_t i = 0; i < n; i++) {
            a[i] += b[i];
        }
        double rate =
            3.0 * (double)n * sizeof(float) * size / measure_slowest(measure_now() - start);
        best = rate > best ? rate : best;
    }
    sink = a[n / 2];
    free(a);
    free(b);
    return best;
}

bool measure_calm(double before, double after) {
    bool calm = after < 1.2 * before && before < 1.2 * after;
    MPI_Bcast(&calm, 1, MPI_C_BOOL, 0, MPI_COMM_WORLD);
    return calm;
}

void measure_print_gauge(double before, double after, bool calm) {
    printf("# memory gauge (a += b, all ranks): %.1f GB/s before, %.1f after%s\n", before * 1e-9,
           after * 1e-9, calm ? "" : ": VOID, the machine was not quiet");
}

bool measure_parse_size(const char *text, size_t *out) {
    static const char units[] = "kKmMgG";
    char *end = NULL;
    double v = strtod(text, &end);
    const char *unit = end != text && *end != '\0' ? strchr(units, *end) : NULL;
    if (end == text || !(v >= 0) || v > 1e15) {
        return false;
    }
    if (unit != NULL) {
        v *= (double)((size_t)1 << (10 * (1 + (unit - units) / 2)));
        end++;
    }
    *out = (size_t)v;
    return *end == '\0' || strcasecmp(end, "iB") == 0 || strcasecmp(end, "B") == 0;
}

bool measure_parse_count(const char *text, int least, int *out) {
    char *end = NULL;
    long v = strtol(text, &end, 10);
    if (end == text || *end != '\0' || v < least || v > 1000000) {
        return false;
    }
    *out = (int)v;
    return true;
}

bool measure_speaks(void) {
    static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                         "SLURM_PROCID" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *rank = getenv(names[i]);
        if (rank != NULL) {
            return strcmp(rank, "0") == 0;
        }
    }
    return true;
}

int measure_word(const char *text, const char *const *words) {
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(text, words[i]) == 0) {
            return i;
        }
    }
    return -1;
}

static bool take(const measure_option *o, void *options, const char *text) {
    void *to = (char *)options + o->at;
    int i = o->words != NULL ? measure_word(text, o->words) : 0;
    switch (o->kind) {
    case MEASURE_SET:
    case MEASURE_CLEAR:
        *(bool *)to = o->kind == MEASURE_SET;
        return true;
    case MEASURE_TEXT:
        *(const char **)to = text;
        return true;
    case MEASURE_SIZE:
        return measure_parse_size(text, to) && *(size_t *)to >= (size_t)o->least;
    case MEASURE_COUNT:
        return measure_parse_count(text, o->least, to);
    case MEASURE_WORD:
        *(int *)to = i;
        return i >= 0;
    case MEASURE_SECOND:
        *(bool *)to = i == 1;
        return i >= 0;
    case MEASURE_OTHER:
        return o->take(options, text);
    }
    return false;
}

/* What getopt_long wants to know: `which` of an option is its place from 1000 on, or its short
 * name. */
enum { PLACE = 1000, HELP = 'h', VERSION = 999 };
static void for_getopt(const measure_option *o, struct option *table, char *short_names) {
    for (int i = 0; o[i].name != NULL; i++) {
        bool value = o[i].kind != MEASURE_SET && o[i].kind != MEASURE_CLEAR;
        *table++ = (struct option){ o[i].name, value, NULL, PLACE + i };
        if (o[i].short_name != 0) {
            *short_names++ = o[i].short_name;
            *short_names = ':';
            short_names += value;
        }
    }
    *table++ = (struct option){ "version", 0, NULL, VERSION };
    *table++ = (struct option){ "help", 0, NULL, HELP };
    *table = (struct option){ NULL, 0, NULL, 0 };
    memcpy(short_names, "h", 2);
}

static const measure_option *option_of(const measure_command *c, int which) {
    const measure_option *o = c->options;
    while (which < PLACE && o->short_name != which) {
        o++;
    }
    return which < PLACE ? o : &o[which - PLACE];
}

int measure_parse(const measure_command *c, void *to, int argc, char **argv, bool loud) {
    struct option table[MEASURE_OPTIONS + 3];
    char short_names[2 * MEASURE_OPTIONS + 2];
    int which = 0;
    for_getopt(c->options, table, short_names);
    opterr = loud;
    while ((which = getopt_long(argc, argv, short_names, table, NULL)) != -1) {
        if (which == HELP || which == VERSION) {
            if (loud) {
                fputs(which == HELP ? c->help : dtr_version_string(), stdout);
                fputs(which == HELP ? "" : "\n", stdout);
            }
            return 0;
        }
        const measure_option *o = which != '?' ? option_of(c, which) : NULL;
        if (o == NULL || !take(o, to, optarg)) {
            if (loud && o != NULL) {
                fprintf(stderr, "%s: --%s does not take \"%s\"; see --help\n", c->program, o->name,
                        optarg);
            }
            return 2;
        }
    }
    return -1;
}

int measure_status(const char *program, bool strict, bool talk, size_t wrong, bool calm) {
    if (talk && wrong > 0) {
        fprintf(stderr, "%s: WRONG: %zu elements of results were not what they must be\n", program,
                wrong);
    }
    return !strict ? 0 : wrong > 0 ? 1 : calm ? 0 : 3;
}

void measure_mpi_name(char *name, size_t cap) {
    char all[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(all, &length);
    snprintf(name, cap, "%.*s", (int)strcspn(all, ",\n"), all);
    for (char *c = name; *c != '\0'; c++) { /* MPICH separates name and number by tabs */
        *c = *c == '\t' ? ' ' : *c;
    }
}

void measure_json_text(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            fprintf(to, "\\%c", c);
        } else if (c < ' ') {
            fprintf(to, "\\u%04x", c);
        } else {
            fputc(c, to);
        }
    }
    fputc('"', to);
}

void measure_cpu_name(char *name, size_t cap) {
    char line[256];
    FILE *from = fopen("/proc/cpuinfo", "r");
    snprintf(name, cap, "unknown");
    while (from != NULL && fgets(line, sizeof line, from) != NULL) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value != NULL) {
            value += 1 + strspn(value + 1, " ");
            snprintf(name, cap, "%.*s", (int)strcspn(value, "\n"), value);
            break;
        }
    }
    if (from != NULL) {
        fclose(from);
    }
}
