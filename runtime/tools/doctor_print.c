/* The table of ranks, the newest records, and the same as JSON. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

enum { INDENT = 81 }; /* of further lines in the table */

/* The ranks that have not entered its open operation. */
static const char *waits_for(const doctor_job *job, int rank, const doctor_group *groups, size_t n,
                             bool *on, char *text, size_t cap) {
    size_t at = 0;
    snprintf(text, cap, "-");
    (void)doctor_waits(job, rank, groups, n, on);
    for (int i = 0; i < job->size && at + 16 < cap; i++) {
        if (on[i]) {
            at += (size_t)snprintf(text + at, cap - at, at == 0 ? "%d" : ",%d", i);
        }
    }
    return text;
}

static void print_operation(const dtr__recording *r, const dtr__record *rec, char *text,
                            size_t cap) {
    char title[200];
    if (rec == NULL) {
        snprintf(text, cap, "-");
    } else {
        snprintf(text, cap, "%s at %s", dtr__recording_title(r, rec, title, sizeof title),
                 doctor_site(rec));
    }
}

/* Where DTR_RECORDER_STACK=1 has kept it. */
static void print_stack(const dtr__recording *r, const dtr__record *rec, FILE *to) {
    char stack[640];
    if (dtr__recording_stack(r, rec, stack, sizeof stack)[0] != '\0') {
        fprintf(to, "%*s from: %s\n", INDENT, "", stack);
    }
}

void doctor_print_table(const doctor_job *job, FILE *to) {
    size_t n = 0;
    doctor_group *groups = doctor_groups(job, &n);
    bool *on = calloc((size_t)job->size, sizeof *on);
    fprintf(to, "\n%5s  %-16s %8s  %-8s %8s %7s %8s  %-10s  %s\n", "rank", "host", "pid", "state",
            "quiet s", "last in", "by ms", "waits for", "operations");
    for (int i = 0; on != NULL && i < job->size; i++) {
        const doctor_rank *k = &job->rank[i];
        char last[320], current[320], whom[64], share[16] = "-", lag[16] = "-";
        if (k->rec == NULL) {
            fprintf(to, "%5d  no recording\n", i);
            continue;
        }
        print_operation(k->rec, dtr__recording_last(k->rec, true), last, sizeof last);
        print_operation(k->rec, dtr__recording_open(k->rec), current, sizeof current);
        if (k->last_share >= 0) {
            snprintf(share, sizeof share, "%.0f %%", 100 * k->last_share);
        }
        if (k->last_share > 0) {
            snprintf(lag, sizeof lag, "%.1f", 1e3 * k->lag_s);
        }
        fprintf(to, "%5d  %-16s %8u  %-8s %8.1f %7s %8s  %-10s  last: %s\n", i, k->rec->head.host,
                k->rec->head.pid, doctor_state(k), (double)(job->now - k->last_sign) * 1e-9, share,
                lag, waits_for(job, i, groups, n, on, whom, sizeof whom), last);
        if (strcmp(current, "-") != 0) {
            fprintf(to, "%*s now: %s\n", INDENT, "", current);
            print_stack(k->rec, dtr__recording_open(k->rec), to);
        }
        const char *inside = "";
        const double still = dtr__recording_stuck(k->rec, &inside);
        if (still > 0) {
            fprintf(to, "%*s in: %s of the progress thread since %.1f s\n", INDENT + 1, "",
                    inside[0] != '\0' ? inside : "a callback or reduction", still);
        }
    }
    free(on);
    doctor_groups_free(groups, n);
}

static const char *const states[] = { "?", "issued", "enqueued", "started", "finished", "failed" };

static const char *state_of(const dtr__record *rec) {
    return dtr__record_captured(rec) ? "captured" : states[rec->state];
}

void doctor_print_last(const doctor_job *job, size_t n, FILE *to) {
    fprintf(to, "\n%5s  %10s  %-9s %14s %12s  %s\n", "rank", "number", "state", "issued, s ago",
            "took, ms", "operation");
    for (int i = 0; i < job->size; i++) {
        const dtr__recording *r = job->rank[i].rec;
        for (size_t k = r == NULL          ? 0
                        : r->n_records > n ? r->n_records - n
                                           : 0;
             r != NULL && k < r->n_records; k++) {
            const dtr__record *rec = &r->records[k];
            char text[320];
            double ago = (double)(job->now - doctor_time(r, rec->t_issued)) * 1e-9;
            double took = (double)(rec->t_finished - rec->t_issued) * 1e-6;
            print_operation(r, rec, text, sizeof text);
            fprintf(to, "%5d  %10" PRIu64 "  %-9s %14.6f %12.3f  %s\n", i, rec->number,
                    state_of(rec), ago, rec->t_finished != 0 ? took : 0.0, text);
            print_stack(r, rec, to);
        }
    }
}

/* ---- JSON ---- */

static void print_member(const char *name, const char *text, FILE *to) {
    fprintf(to, ",\"%s\":", name);
    dtr__json_string(to, text);
}

static void json_record(const dtr__recording *r, const dtr__record *rec, FILE *to) {
    char title[256], stack[640];
    fprintf(to, "{\"number\":%" PRIu64 ",\"seq\":%" PRIu64 ",\"state\":\"%s\",\"status\":%d",
            rec->number, dtr__record_seq(rec), state_of(rec), (int)rec->status);
    fprintf(to, ",\"issued_ns\":%" PRId64 ",\"started_ns\":%" PRId64 ",\"finished_ns\":%" PRId64,
            doctor_time(r, rec->t_issued), doctor_time(r, rec->t_started),
            doctor_time(r, rec->t_finished));
    fprintf(to, ",\"nbytes\":%" PRIu64 ",\"fingerprint\":\"%016" PRIx64 "\",\"thread\":%u",
            rec->nbytes, rec->fingerprint, rec->thread);
    print_member("operation", dtr__recording_title(r, rec, title, sizeof title), to);
    print_member("label", rec->label, to);
    print_member("site", rec->site, to);
    if (dtr__recording_stack(r, rec, stack, sizeof stack)[0] != '\0') {
        print_member("stack", stack, to);
    }
    if (rec->hash_in != 0 || rec->hash_out != 0) {
        fprintf(to, ",\"hash_in\":\"%016" PRIx64 "\",\"hash_out\":\"%016" PRIx64 "\"", rec->hash_in,
                rec->hash_out);
    }
    putc('}', to);
}

static void json_rank(const doctor_job *job, int rank, size_t last, FILE *to) {
    const doctor_rank *k = &job->rank[rank];
    const dtr__recording *r = k->rec;
    fprintf(to, "{\"rank\":%d", rank);
    if (r == NULL) {
        fprintf(to, ",\"state\":\"no recording\"}");
        return;
    }
    print_member("state", doctor_state(k), to);
    print_member("host", r->head.host, to);
    print_member("file", r->path, to);
    print_member("library", r->head.library, to);
    print_member("settings", r->head.settings, to);
    print_member("command", r->head.command, to);
    if (atomic_load(&r->head.failure.version) != 0) {
        print_member("failure", r->head.failure.text, to);
    }
    if (atomic_load(&r->head.local.version) != 0) {
        print_member("refused", r->head.local.text, to);
    }
    fprintf(to, ",\"pid\":%u,\"quiet_s\":%.3f,\"records\":%zu,\"unreadable\":%zu", r->head.pid,
            (double)(job->now - k->last_sign) * 1e-9, r->n_records, r->torn);
    if (k->last_share >= 0) {
        fprintf(to, ",\"last_share\":%.3f,\"lag_s\":%.6f", k->last_share, k->lag_s);
    }
    const char *inside = "";
    const double still = dtr__recording_stuck(r, &inside);
    if (still > 0) {
        fprintf(to, ",\"progress_still_s\":%.3f", still);
        print_member("progress_inside", inside, to);
    }
    const dtr__record *ended = dtr__recording_last(r, true), *open = dtr__recording_open(r);
    if (ended != NULL) {
        fprintf(to, ",\"last\":");
        json_record(r, ended, to);
    }
    if (open != NULL) {
        fprintf(to, ",\"current\":");
        json_record(r, open, to);
    }
    fprintf(to, ",\"newest\":[");
    for (size_t i = r->n_records > last ? r->n_records - last : 0, n = 0; i < r->n_records; i++) {
        fputs(n++ > 0 ? "," : "", to);
        json_record(r, &r->records[i], to);
    }
    fprintf(to, "]}");
}

void doctor_print_json(const doctor_job *job, size_t last, FILE *to) {
    fprintf(to,
            "{\"job\":\"%016" PRIx64 "\",\"ranks_expected\":%d,\"ranks_read\":%d,\"problems\":[",
            job->id, job->size, job->n_read);
    for (size_t i = 0; i < job->n_problems; i++) {
        fputs(i > 0 ? "," : "", to);
        dtr__json_string(to, job->problem[i].text);
    }
    fprintf(to, "],\"slowest\":{\"rank\":%d,\"share\":%.3f,\"lag_s\":%.6f},\"ranks\":[",
            job->slowest, job->slowest_share, job->slowest_lag_s);
    for (int i = 0; i < job->size; i++) {
        fputs(i > 0 ? ",\n" : "\n", to);
        json_rank(job, i, last, to);
    }
    fprintf(to, "\n]}\n");
}
