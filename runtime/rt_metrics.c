/* The metrics of a rank: counting them, and the file that a scraper reads. */
#include "rt_metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dtr/version.h>

#include "rt_internal.h"
#include "rt_late.h"
#include "rt_peers.h"

enum { STATUSES = 32, ADDED_MOST = 32, PATH_BYTES = 4096 };

typedef struct by_kind {
    _Atomic uint64_t issued, nbytes, ended, ns;
} by_kind;

typedef struct added {
    const dtr__metric *of;
    double value;
} added;

struct dtr__metrics {
    by_kind kind[DTR__RECORDING_KINDS];
    _Atomic uint64_t failed[STATUSES], broken[STATUSES]; /* by the negative of the status */
    _Atomic uint64_t waits, wait_ns;
    pthread_mutex_t lock;    /* added, n_added */
    added added[ADDED_MOST]; /* in the order in which they came first */
    int n_added;
    /* Of who writes: the watchdog, then who destroys the world. */
    char path[PATH_BYTES], scratch[PATH_BYTES + 16], labels[256];
    int64_t next_ns;
    bool said; /* that it cannot be written */
};

/* ---- counting ---- */

static void count(_Atomic uint64_t *what, uint64_t by) {
    atomic_fetch_add_explicit(what, by, memory_order_relaxed);
}

static uint64_t read_count(const _Atomic uint64_t *what) {
    return atomic_load_explicit(what, memory_order_relaxed);
}

void dtr__metrics_issued(dtr__metrics *m, const dtr__record *r) {
    /* A scope or batch counts as one operation, and its parts say how many bytes. */
    bool part = (r->flags & DTR__RECORDING_MEMBER) != 0;
    if (m != NULL && r->kind < DTR__RECORDING_KINDS) {
        count(&m->kind[r->kind].issued, part ? 0 : 1);
        count(&m->kind[r->kind].nbytes, r->nbytes);
    }
}

void dtr__metrics_ended(dtr__metrics *m, unsigned kind, int64_t ns) {
    if (m != NULL && kind < DTR__RECORDING_KINDS) {
        count(&m->kind[kind].ended, 1);
        count(&m->kind[kind].ns, ns > 0 ? (uint64_t)ns : 0);
    }
}

static void count_status(_Atomic uint64_t *table, dtr_status s) {
    if (s < 0 && -(int)s < STATUSES) {
        count(&table[-(int)s], 1);
    }
}

void dtr__metrics_failed(dtr__metrics *m, dtr_status s) {
    if (m != NULL) {
        count_status(m->failed, s);
    }
}

void dtr__metrics_broken(dtr__metrics *m, dtr_status s) {
    if (m != NULL) {
        count_status(m->broken, s);
    }
}

void dtr__metrics_waited(dtr__metrics *m, int64_t ns) {
    if (m != NULL) {
        count(&m->waits, 1);
        count(&m->wait_ns, ns > 0 ? (uint64_t)ns : 0);
    }
}

void dtr__metrics_add(const dtr_world *world, const dtr__metric *which, double value) {
    dtr__metrics *m = world->metrics;
    if (m == NULL) {
        return;
    }
    pthread_mutex_lock(&m->lock);
    int i = 0;
    while (i < m->n_added && m->added[i].of != which) {
        i++;
    }
    if (i < ADDED_MOST) {
        m->n_added = i == m->n_added ? i + 1 : m->n_added;
        m->added[i].of = which;
        m->added[i].value += value;
    }
    pthread_mutex_unlock(&m->lock);
}

/* ---- the file ---- */

static void family(FILE *to, const char *name, const char *type, const char *help) {
    fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* `label` may be NULL; it is one of ours, so nothing in `of` needs an escape. */
static void sample(FILE *to, const dtr__metrics *m, const char *name, const char *label,
                   const char *of, double value) {
    fprintf(to, "%s{%s", name, m->labels);
    if (label != NULL) {
        fprintf(to, ",%s=\"%s\"", label, of);
    }
    fprintf(to, "} %.15g\n", value);
}

/* What is written of one kind of operation: 0 where nothing has been counted. */
static uint64_t issued(const by_kind *k) {
    return read_count(&k->issued);
}
static uint64_t nbytes(const by_kind *k) {
    return read_count(&k->nbytes);
}
static uint64_t ended(const by_kind *k) {
    return read_count(&k->ended);
}
static uint64_t ended_ns(const by_kind *k) {
    return read_count(&k->ns);
}

static void by_kinds(FILE *to, const dtr__metrics *m, const dtr__rec_header *h, const char *name,
                     uint64_t (*of)(const by_kind *), double unit) {
    for (int k = 0; k < DTR__RECORDING_KINDS; k++) {
        if (issued(&m->kind[k]) > 0 || nbytes(&m->kind[k]) > 0) {
            sample(to, m, name, "kind", h->kind[k], unit * (double)of(&m->kind[k]));
        }
    }
}

static void write_operations(FILE *to, const dtr__metrics *m, const dtr__rec_header *h) {
    family(to, "dtr_operations_total", "counter",
           "Operations issued; a coalescing scope or a batch is one.");
    by_kinds(to, m, h, "dtr_operations_total", issued, 1);
    family(to, "dtr_operation_bytes_total", "counter",
           "Bytes of the larger of input and output of the operations issued.");
    by_kinds(to, m, h, "dtr_operation_bytes_total", nbytes, 1);
    family(to, "dtr_operation_seconds", "summary", "From issue to end of operations.");
    by_kinds(to, m, h, "dtr_operation_seconds_sum", ended_ns, 1e-9);
    by_kinds(to, m, h, "dtr_operation_seconds_count", ended, 1);
    family(to, "dtr_wait_seconds", "summary", "Blocked in waits for asynchronous operations.");
    sample(to, m, "dtr_wait_seconds_sum", NULL, NULL, 1e-9 * (double)read_count(&m->wait_ns));
    sample(to, m, "dtr_wait_seconds_count", NULL, NULL, (double)read_count(&m->waits));
}

static void by_status(FILE *to, const dtr__metrics *m, const char *name, const char *help,
                      const _Atomic uint64_t *table) {
    family(to, name, "counter", help);
    for (int i = 0; i < STATUSES; i++) {
        uint64_t n = read_count(&table[i]);
        if (n > 0) {
            sample(to, m, name, "status", dtr_status_name((dtr_status)-i), (double)n);
        }
    }
}

static void write_errors(FILE *to, const dtr_world *world, const dtr__metrics *m,
                         const dtr__rec_header *h) {
    by_status(to, m, "dtr_operation_errors_total", "Operations that failed.", m->failed);
    by_status(to, m, "dtr_broken_groups_total", "Groups that broke.", m->broken);
    family(to, "dtr_refused_calls_total", "counter", "Calls refused for their arguments or state.");
    sample(to, m, "dtr_refused_calls_total", NULL, NULL, atomic_load(&h->local.version) / 2);
    family(to, "dtr_dead_ranks", "gauge", "Ranks of the world that are known to have died.");
    sample(to, m, "dtr_dead_ranks", NULL, NULL, dtr__ranks_dead(world));
    family(to, "dtr_shared_memory_bytes", "gauge", "Node-shared memory of this rank in use.");
    sample(to, m, "dtr_shared_memory_bytes", NULL, NULL, (double)dtr__arena_used(world));
}

/* By local rank 0, of all ranks of its node. */
static void write_late(FILE *to, const dtr_world *world, const dtr__metrics *m) {
    static const char *const names[] = { "dtr_arrivals", "dtr_last_arrivals",
                                         "dtr_last_arrival_lag_seconds" };
    static const char *const help[] = {
        "Of the newest collectives that the whole node has finished, those it was in.",
        "How many of dtr_arrivals the rank was the last to enter.",
        "Median lag of the rank behind the median rank where it was the last."
    };
    dtr__late_rank *of = calloc((size_t)world->size, sizeof *of);
    dtr__late all = { 0 };
    bool found = world->local_rank == 0 && world->local_size > 1 && of != NULL &&
                 dtr__late_look(world, false, of, &all);
    for (int i = 0; found && i < 3; i++) {
        family(to, names[i], "gauge", help[i]);
        for (int k = 0; k < world->local_size; k++) {
            int rank = world->local_world[k];
            const dtr__late_rank *r = &of[rank];
            char text[16];
            snprintf(text, sizeof text, "%d", rank);
            sample(to, m, names[i], "of_rank", text,
                   i == 0   ? (double)r->operations
                   : i == 1 ? (double)r->last
                            : r->lag_s);
        }
    }
    free(of);
}

static void write_added(FILE *to, dtr__metrics *m) {
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n_added; i++) {
        family(to, m->added[i].of->name, "counter", m->added[i].of->help);
        sample(to, m, m->added[i].of->name, NULL, NULL, m->added[i].value);
    }
    pthread_mutex_unlock(&m->lock);
}

/* False with errno. */
static bool write_file(const dtr_world *world, dtr__metrics *m) {
    const dtr__rec_header *h = dtr__recorder_header(world);
    FILE *to = fopen(m->scratch, "we");
    if (to == NULL) {
        return false;
    }
    family(to, "dtr_info", "gauge", "Who writes this; always 1.");
    fprintf(to, "dtr_info{%s,host=\"%s\",pid=\"%ld\",world_size=\"%d\",version=\"%d.%d.%d\"} 1\n",
            m->labels, world->host, (long)getpid(), world->size, DTR_VERSION_MAJOR,
            DTR_VERSION_MINOR, DTR_VERSION_PATCH);
    write_operations(to, m, h);
    write_errors(to, world, m, h);
    write_late(to, world, m);
    write_added(to, m);
    bool fine = !ferror(to);
    return fclose(to) == 0 && fine && rename(m->scratch, m->path) == 0;
}

void dtr__metrics_write(dtr_world *world) {
    dtr__metrics *m = world->metrics;
    if (m == NULL || write_file(world, m)) {
        return;
    }
    int code = errno;
    remove(m->scratch);
    if (!m->said) {
        m->said = true;
        DTR_WARN(world, "cannot write the metrics %s (DTR_METRICS_FILE): %s; the job goes on",
                 m->path, strerror(code));
    }
}

void dtr__metrics_round(dtr_world *world) {
    dtr__metrics *m = world->metrics;
    int64_t now = dtr__now_ns();
    if (m != NULL && now >= m->next_ns) {
        double each_s = dtr__opt_seconds(&world->options, DTR__OPT_METRICS_INTERVAL);
        m->next_ns = each_s < 1e9 ? now + (int64_t)(1e9 * each_s) : INT64_MAX;
        dtr__metrics_write(world);
    }
}

/* ---- life ---- */

/* A name that is the same on all ranks gets the rank before its last dot. */
static void choose_path(const dtr_world *world, const char *pattern, dtr__metrics *m) {
    char path[PATH_BYTES - 32];
    dtr__log_expand(world, pattern, path, sizeof path);
    const char *name = strrchr(path, '/'), *dot = strrchr(name != NULL ? name : path, '.');
    bool own = strstr(pattern, "%r") != NULL || strstr(pattern, "%p") != NULL || world->size == 1;
    int before = dot != NULL ? (int)(dot - path) : (int)strlen(path);
    if (own) {
        snprintf(m->path, sizeof m->path, "%s", path);
    } else {
        snprintf(m->path, sizeof m->path, "%.*s.rank%d%s", before, path, world->rank,
                 path + before);
    }
    snprintf(m->scratch, sizeof m->scratch, "%s.new", m->path);
}

dtr_status dtr__metrics_open(dtr_world *world) {
    const char *pattern = dtr__opt_text(&world->options, DTR__OPT_METRICS_FILE);
    if (pattern[0] == '\0') {
        return DTR_OK;
    }
    dtr__metrics *m = calloc(1, sizeof *m);
    DTR_REQUIRE(m != NULL, NULL, DTR_ERR_NOMEM, "no memory for the metrics (DTR_METRICS_FILE)");
    pthread_mutex_init(&m->lock, NULL);
    choose_path(world, pattern, m);
    snprintf(m->labels, sizeof m->labels, "job=\"%016" PRIx64 "\",rank=\"%d\"", world->job_id,
             world->rank);
    world->metrics = m;
    return DTR_OK;
}

void dtr__metrics_close(dtr_world *world) {
    dtr__metrics *m = world->metrics;
    if (m != NULL) {
        world->metrics = NULL;
        pthread_mutex_destroy(&m->lock);
        free(m);
    }
}
