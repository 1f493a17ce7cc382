/* The metrics of a rank: the file that a scraper reads. */
#include "diagnosis/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <dtr/version.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/world.h"
#include "control/peers.h"
#include "diagnosis/stragglers.h"
#include "diagnosis/writer.h"
#include "memory/arena.h"
#include "recorder/counters.h"
#include "recorder/recorder.h"

/* So long the watchdog stands by while they are written. */
static const double STAND_BY_S = 0.5;

enum { PATH_BYTES = 4096 };

struct dtr__metrics {
    dtr__counters counted;
    /* Of who writes: the watchdog, then who destroys the world. */
    char path[PATH_BYTES], labels[384];
    mode_t mode;     /* of the file */
    uint64_t number; /* of the newest one, to the writer */
    int64_t next_ns;
    bool warned; /* that it cannot be written */
    bool keep;   /* the file stays after a clean end */
};

static uint64_t read_count(const _Atomic uint64_t *what) {
    return atomic_load_explicit(what, memory_order_relaxed);
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
static uint64_t issued(const dtr__counted_kind *k) {
    return read_count(&k->issued);
}
static uint64_t nbytes(const dtr__counted_kind *k) {
    return read_count(&k->nbytes);
}
static uint64_t ended(const dtr__counted_kind *k) {
    return read_count(&k->ended);
}
static uint64_t ended_ns(const dtr__counted_kind *k) {
    return read_count(&k->ns);
}

static void by_kinds(FILE *to, const dtr__metrics *m, const dtr__rec_header *h, const char *name,
                     uint64_t (*of)(const dtr__counted_kind *), double unit) {
    for (int k = 0; k < DTR__RECORDING_KINDS; k++) {
        if (issued(&m->counted.kind[k]) > 0 || nbytes(&m->counted.kind[k]) > 0) {
            sample(to, m, name, "kind", h->kind[k], unit * (double)of(&m->counted.kind[k]));
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
    sample(to, m, "dtr_wait_seconds_sum", NULL, NULL,
           1e-9 * (double)read_count(&m->counted.wait_ns));
    sample(to, m, "dtr_wait_seconds_count", NULL, NULL, (double)read_count(&m->counted.waits));
}

static void by_status(FILE *to, const dtr__metrics *m, const char *name, const char *help,
                      const _Atomic uint64_t *table) {
    family(to, name, "counter", help);
    for (int i = 0; i < DTR__COUNTED_STATUSES; i++) {
        uint64_t n = read_count(&table[i]);
        if (n > 0) {
            sample(to, m, name, "status", dtr_status_name((dtr_status)-i), (double)n);
        }
    }
}

static void write_errors(FILE *to, const dtr_world *world, const dtr__metrics *m,
                         const dtr__rec_header *h) {
    by_status(to, m, "dtr_operation_errors_total", "Operations that failed.", m->counted.failed);
    by_status(to, m, "dtr_broken_groups_total", "Groups that broke.", m->counted.broken);
    family(to, "dtr_refused_calls_total", "counter", "Calls refused for their arguments or state.");
    sample(to, m, "dtr_refused_calls_total", NULL, NULL, atomic_load(&h->local.version) / 2);
    family(to, "dtr_dead_ranks", "gauge", "Ranks of the world that are known to have died.");
    sample(to, m, "dtr_dead_ranks", NULL, NULL, dtr__ranks_failed(world));
    family(to, "dtr_shared_memory_bytes", "gauge", "Node-shared memory of this rank in use.");
    sample(to, m, "dtr_shared_memory_bytes", NULL, NULL, (double)dtr__arena_used(world));
}

/* By local rank 0, of all ranks of its node. */
static void write_stragglers(FILE *to, const dtr_world *world, const dtr__metrics *m) {
    static const char *const names[] = { "dtr_arrivals", "dtr_last_arrivals",
                                         "dtr_last_arrival_lag_seconds" };
    static const char *const help[] = {
        "Of the newest collectives that the whole node has finished, those it was in.",
        "How many of dtr_arrivals the rank was the last to enter.",
        "Median lag of the rank behind the median rank where it was the last."
    };
    dtr__straggler *of = calloc((size_t)world->size, sizeof *of);
    dtr__stragglers all = { 0 };
    bool found = world->local_rank == 0 && world->local_size > 1 && of != NULL &&
                 dtr__stragglers_read(world, false, of, &all);
    for (int i = 0; found && i < 3; i++) {
        family(to, names[i], "gauge", help[i]);
        for (int k = 0; k < world->local_size; k++) {
            int rank = world->local_world[k];
            const dtr__straggler *r = &of[rank];
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
    pthread_mutex_lock(&m->counted.lock);
    for (int i = 0; i < m->counted.n_added; i++) {
        family(to, m->counted.added[i].of->name, "counter", m->counted.added[i].of->help);
        sample(to, m, m->counted.added[i].of->name, NULL, NULL, m->counted.added[i].value);
    }
    pthread_mutex_unlock(&m->counted.lock);
}

/* False with errno. */
static bool write_file(const dtr_world *world, dtr__metrics *m, bool up) {
    const dtr__rec_header *h = dtr__recorder_header(world);
    dtr__text t;
    if (!dtr__text_begin(&t)) {
        return false;
    }
    FILE *to = t.to;
    family(to, "dtr_info", "gauge", "Who writes this; always 1.");
    fprintf(to, "dtr_info{%s,host=\"%s\",pid=\"%ld\",world_size=\"%d\",version=\"%d.%d.%d\"} 1\n",
            m->labels, world->host, (long)getpid(), world->size, DTR_VERSION_MAJOR,
            DTR_VERSION_MINOR, DTR_VERSION_PATCH);
    family(to, "dtr_up", "gauge", "1 while the world is there, 0 from when it was destroyed.");
    sample(to, m, "dtr_up", NULL, NULL, up);
    family(to, "dtr_written_timestamp_seconds", "gauge", "When this file was written, Unix time.");
    sample(to, m, "dtr_written_timestamp_seconds", NULL, NULL, (double)time(NULL));
    write_operations(to, m, h);
    write_errors(to, world, m, h);
    write_stragglers(to, world, m);
    write_added(to, m);
    if (!dtr__text_end(&t)) {
        errno = ENOMEM;
        return false;
    }
    m->number = dtr__writer_put(world->diagnosis.writer, DTR__WRITTEN_METRICS, m->path, m->mode,
                                t.bytes, t.nbytes);
    int code =
        dtr__writer_wait(world->diagnosis.writer, DTR__WRITTEN_METRICS, m->number, STAND_BY_S);
    errno = code;
    return code == 0;
}

static void write_or_warn(dtr_world *world, bool up) {
    dtr__metrics *m = world->diagnosis.metrics;
    if (write_file(world, m, up)) {
        return;
    }
    int code = errno;
    if (code == EINPROGRESS) {
        code = ETIMEDOUT; /* a file system that hangs, and not the job */
    }
    if (!m->warned) {
        m->warned = true;
        DTR_WARN(world, "cannot write the metrics %s (DTR_METRICS_FILE): %s; the job goes on",
                 m->path, strerror(code));
    }
}

void dtr__metrics_round(dtr_world *world) {
    dtr__metrics *m = world->diagnosis.metrics;
    int64_t now = dtr__now_ns();
    /* One that hangs is enough. */
    bool behind = m != NULL && m->number > 0 &&
                  dtr__writer_wait(world->diagnosis.writer, DTR__WRITTEN_METRICS, m->number, 0) ==
                      EINPROGRESS;
    if (m != NULL && now >= m->next_ns && !behind) {
        double each_s = dtr__opt_seconds(&world->options, DTR__OPT_METRICS_INTERVAL);
        m->next_ns = each_s < 1e9 ? now + (int64_t)(1e9 * each_s) : INT64_MAX;
        write_or_warn(world, true);
    }
}

void dtr__metrics_last(dtr_world *world) {
    dtr__metrics *m = world->diagnosis.metrics;
    if (m == NULL) {
        return;
    }
    if (m->keep || dtr__recorder_is_evidence(world) || dtr__ranks_failed(world) > 0) {
        write_or_warn(world, false);
    } else if (m->number > 0) {
        /* The writer must be through, or it would bring the file back. */
        (void)dtr__writer_wait(world->diagnosis.writer, DTR__WRITTEN_METRICS, m->number,
                               STAND_BY_S);
        (void)unlink(m->path);
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
}

/* The job's number at the scheduler, which people know it by. Flux writes its numbers with a letter
 * beyond ASCII in front, and takes an f for it. One that a label would have to escape is left out.
 */
static void add_scheduler_job(char *labels, size_t cap) {
    static const char *const names[] = { "SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID", "LSB_JOBID" };
    static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "._-+@[]";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *job = getenv(names[i]);
        bool flux = job != NULL && strncmp(job, "\xc6\x92", 2) == 0;
        job = flux ? job + 2 : job;
        if (job != NULL && job[0] != '\0' && strlen(job) < 128 &&
            job[strspn(job, allowed)] == '\0') {
            size_t used = strlen(labels);
            snprintf(labels + used, cap - used, ",scheduler_job=\"%s%s\"", flux ? "f" : "", job);
            return;
        }
    }
}

dtr_status dtr__metrics_open(dtr_world *world) {
    const char *pattern = dtr__opt_text(&world->options, DTR__OPT_METRICS_FILE);
    if (pattern[0] == '\0') {
        return DTR_OK;
    }
    dtr__metrics *m = calloc(1, sizeof *m);
    DTR_REQUIRE(m != NULL, NULL, DTR_ERR_NOMEM, "no memory for the metrics (DTR_METRICS_FILE)");
    pthread_mutex_init(&m->counted.lock, NULL);
    choose_path(world, pattern, m);
    snprintf(m->labels, sizeof m->labels, "dtr_job=\"%016" PRIx64 "\",rank=\"%d\"", world->job_id,
             world->rank);
    add_scheduler_job(m->labels, sizeof m->labels);
    m->keep = dtr__opt_number(&world->options, DTR__OPT_METRICS_KEEP) != 0;
    m->mode = dtr__opt_number(&world->options, DTR__OPT_METRICS_PUBLIC) != 0 ? 0644 : 0600;
    world->diagnosis.metrics = m;
    world->recording.counters = &m->counted;
    return DTR_OK;
}

void dtr__metrics_close(dtr_world *world) {
    dtr__metrics *m = world->diagnosis.metrics;
    if (m != NULL) {
        world->diagnosis.metrics = NULL;
        world->recording.counters = NULL;
        pthread_mutex_destroy(&m->counted.lock);
        free(m);
    }
}
