/* A trace in the format of chrome://tracing and Perfetto: a process per rank, a track per thread.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

/* A track shows slices that nest; operations of one thread may overlap otherwise, so that each goes
 * on the first row of its thread that is free. */
enum { THREADS = 64, ROWS = 16 };

typedef struct rows {
    uint32_t thread[THREADS];
    int64_t free_from[THREADS][ROWS];
    int64_t busy_until[THREADS]; /* end of the last operation of any row, 0: none yet */
    size_t n;
} rows;

static size_t thread_index(rows *all, uint32_t thread) {
    for (size_t i = 0; i < all->n; i++) {
        if (all->thread[i] == thread) {
            return i;
        }
    }
    size_t i = all->n < THREADS ? all->n++ : THREADS - 1;
    all->thread[i] = thread;
    return i;
}

static size_t take_row(int64_t *free_from, int64_t begin, int64_t end) {
    size_t row = 0;
    while (row + 1 < ROWS && free_from[row] > begin) {
        row++;
    }
    free_from[row] = end;
    return row;
}

static void name_track(FILE *to, int rank, size_t track, const char *what, const char *name) {
    fprintf(to, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,\"name\":\"%s\",\"args\":{\"name\":", rank,
            track, what);
    dtr__json_string(to, name);
    fprintf(to, "}}");
}

static double us(int64_t ns) {
    return (double)ns * 1e-3;
}

/* What lies between two operations of a thread is the program's own. */
static void write_gap(FILE *to, int rank, rows *all, size_t thread, int64_t begin, int64_t zero) {
    int64_t since = all->busy_until[thread];
    if (since != 0 && begin > since) {
        fprintf(to,
                ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%zu,\"ts\":%.3f,\"dur\":%.3f,"
                "\"cat\":\"compute\",\"name\":\"compute\"}",
                rank, thread * ROWS, us(since - zero), us(begin - since));
    }
}

/* Buckets of a gradient averaging have tracks of their own, because they overlap. */
static void write_bucket(FILE *to, int rank, const dtr__record *rec, int64_t begin, int64_t end) {
    unsigned module, bucket;
    if (sscanf(rec->label, "ddp%u.bucket%u", &module, &bucket) != 2) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        fprintf(to,
                ",\n{\"ph\":\"%c\",\"cat\":\"bucket\",\"id\":\"%d.%" PRIu64
                "\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"name\":\"ddp%u.bucket%u\"}",
                i == 0 ? 'b' : 'e', rank, rec->number, rank, us(i == 0 ? begin : end), module,
                bucket);
    }
}

/* What a layer says of its own work overlaps with operations too. */
static void write_span(FILE *to, const doctor_job *job, int rank, const dtr__rec_span *s,
                       int64_t zero) {
    const dtr__recording *r = job->rank[rank].rec;
    const int64_t at[] = { doctor_time(r, s->t_begin) - zero, doctor_time(r, s->t_end) - zero };
    for (int i = 0; i < 2; i++) {
        fprintf(to,
                ",\n{\"ph\":\"%c\",\"cat\":\"span\",\"id\":\"%d.s%" PRIu64
                "\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"args\":{\"label\":",
                i == 0 ? 'b' : 'e', rank, s->number, rank, us(at[i]));
        dtr__json_string(to, s->label);
        fprintf(to, ",\"nbytes\":%" PRIu64 "},\"name\":", s->nbytes);
        dtr__json_string(to, s->what);
        fprintf(to, "}");
    }
}

static void write_record(FILE *to, const doctor_job *job, int rank, const dtr__record *rec,
                         rows *all, int64_t zero) {
    const dtr__recording *r = job->rank[rank].rec;
    char title[256], name[64];
    int64_t begin = doctor_time(r, rec->t_issued);
    int64_t end =
        rec->t_finished != 0 ? doctor_time(r, rec->t_finished) : job->rank[rank].last_sign;
    size_t before = all->n, thread = thread_index(all, rec->thread);
    end = end < begin ? begin : end;
    size_t row = take_row(all->free_from[thread], begin, end), track = thread * ROWS + row;
    if (all->n != before) {
        snprintf(name, sizeof name, "thread %u", rec->thread);
        name_track(to, rank, track, "thread_name", name);
    } else if (row > 0) {
        snprintf(name, sizeof name, "thread %u, overlapping", rec->thread);
        name_track(to, rank, track, "thread_name", name);
    }
    write_gap(to, rank, all, thread, begin, zero);
    all->busy_until[thread] = end > all->busy_until[thread] ? end : all->busy_until[thread];
    write_bucket(to, rank, rec, begin - zero, end - zero);
    fprintf(to,
            ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%zu,\"ts\":%.3f,\"dur\":%.3f,"
            "\"cat\":\"operation\",\"name\":",
            rank, track, us(begin - zero), us(end - begin));
    dtr__json_string(to, dtr__recording_title(r, rec, title, sizeof title));
    fprintf(to, ",\"args\":{\"site\":");
    dtr__json_string(to, rec->site);
    fprintf(to, ",\"nbytes\":%" PRIu64 ",\"wait_us\":%.3f,\"status\":", rec->nbytes,
            rec->t_started != 0 ? (double)(rec->t_started - rec->t_issued) * 1e-3 : 0.0);
    dtr__json_string(to, rec->t_finished == 0 ? "not finished"
                                              : dtr_status_name((dtr_status)rec->status));
    fprintf(to, "}}");
}

static bool write_rank(FILE *to, const doctor_job *job, int rank, int64_t zero) {
    const dtr__recording *r = job->rank[rank].rec;
    char name[160];
    rows *all = calloc(1, sizeof *all);
    if (all == NULL) {
        return false;
    }
    snprintf(name, sizeof name, "rank %d (%s, pid %u)", rank, r->head.host, r->head.pid);
    name_track(to, rank, 0, "process_name", name);
    for (size_t i = 0; i < r->n_records; i++) {
        write_record(to, job, rank, &r->records[i], all, zero);
    }
    for (size_t i = 0; i < r->n_spans; i++) {
        write_span(to, job, rank, &r->spans[i], zero);
    }
    free(all);
    return true;
}

static int64_t earliest(const doctor_job *job) {
    int64_t zero = INT64_MAX;
    for (int i = 0; i < job->size; i++) {
        const dtr__recording *r = job->rank[i].rec;
        for (size_t k = 0; r != NULL && k < r->n_records; k++) {
            int64_t t = doctor_time(r, r->records[k].t_issued);
            zero = t < zero ? t : zero;
        }
        for (size_t k = 0; r != NULL && k < r->n_spans; k++) {
            int64_t t = doctor_time(r, r->spans[k].t_begin);
            zero = t < zero ? t : zero;
        }
    }
    return zero;
}

bool doctor_write_trace(const doctor_job *job, const char *path) {
    FILE *to = fopen(path, "w");
    bool fine = to != NULL;
    if (fine) {
        int64_t zero = earliest(job);
        fprintf(to, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        fprintf(to,
                "{\"ph\":\"M\",\"pid\":0,\"name\":\"job\",\"args\":{\"id\":\"%016" PRIx64 "\"}}",
                job->id);
        for (int i = 0; fine && i < job->size; i++) {
            fine = job->rank[i].rec == NULL || write_rank(to, job, i, zero);
        }
        fprintf(to, "\n]}\n");
        fine = !ferror(to) && fine;
        fine = fclose(to) == 0 && fine;
    }
    if (!fine) {
        fprintf(stderr, "dtr-doctor: cannot write %s: %s\n", path, strerror(errno));
    }
    return fine;
}
