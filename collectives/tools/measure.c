/* Clock, medians, memory gauge and numbers for the measuring programs. */
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

static double *room_for(int n) {
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
    double *copy = room_for(n);
    memcpy(copy, values, (size_t)n * sizeof *copy);
    return median_and_free(copy, n);
}

double measure_ratio(const double *above, const double *below, int n) {
    double *ratio = room_for(n);
    for (int i = 0; i < n; i++) {
        ratio[i] = above[i] / below[i];
    }
    return median_and_free(ratio, n);
}

double measure_difference(const double *a, const double *b, int n) {
    double *difference = room_for(n);
    for (int i = 0; i < n; i++) {
        difference[i] = a[i] - b[i];
    }
    return median_and_free(difference, n);
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

static void say_bad_option(const measure_command *c, int which) {
    const struct option *o = c->table;
    while (o->name != NULL && o->val != which) {
        o++;
    }
    fprintf(stderr, "%s: --%s does not take \"%s\"; see --help\n", c->program,
            o->name != NULL ? o->name : "?", optarg);
}

int measure_parse(const measure_command *c, void *to, int argc, char **argv, bool loud) {
    int which = 0;
    opterr = loud;
    while ((which = getopt_long(argc, argv, c->letters, c->table, NULL)) != -1) {
        if (which == 'h') {
            if (loud) {
                fputs(c->help, stdout);
            }
            return 0;
        }
        if (which == '?' || !c->take(to, which)) {
            if (loud && which != '?') {
                say_bad_option(c, which);
            }
            return 2;
        }
    }
    return -1;
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
