/* The table of dtr-top as lines of text and as JSON. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "top.h"

static const char columns[] = "%5s %-8s %5s %-8s %7s %8s %8s %7s %7s %8s  %s";

void top_head(char *text, size_t cap) {
    snprintf(text, cap, columns, "rank", "state", "holds", "waits", "step/s", "op/s", "GB/s",
             "exposed", "last in", "by ms", "operation");
}

/* "-" for what is not known. */
static const char *number(double x, int digits, const char *unit, char *text, size_t cap) {
    if (x < 0) {
        snprintf(text, cap, "-");
    } else {
        snprintf(text, cap, "%.*f%s", x >= 10000 ? 0 : digits, x, unit);
    }
    return text;
}

/* What a file holds may have anything in it, and a terminal obeys some of that. */
static void make_printable(char *text) {
    for (char *c = text; *c != '\0'; c++) {
        *c = *c < 0x20 || *c >= 0x7f ? '?' : *c;
    }
}

void top_line(const top_row *r, char *text, size_t cap) {
    char rank[16], held[16], what[512], n[6][24];
    snprintf(rank, sizeof rank, "%d", r->rank);
    snprintf(held, sizeof held, "%d", r->held);
    if (r->rec == NULL) {
        snprintf(what, sizeof what, "%s", r->operation);
    } else if (r->since_s < 0) {
        snprintf(what, sizeof what, "none yet");
    } else {
        snprintf(what, sizeof what, "%s %s at %s, %s %.1f s", r->open ? "in" : "after",
                 r->operation, r->site, r->open ? "since" : "for", r->since_s);
    }
    snprintf(text, cap, columns, rank, r->state, r->held > 0 ? held : "-", r->waits_for,
             number(r->rates.steps_per_s, 2, "", n[0], sizeof n[0]),
             number(r->rates.operations_per_s, 1, "", n[1], sizeof n[1]),
             number(r->rates.gb_per_s, 3, "", n[2], sizeof n[2]),
             number(r->rates.exposed < 0 ? -1 : 100 * r->rates.exposed, 0, " %", n[3], sizeof n[3]),
             number(r->last_share < 0 ? -1 : 100 * r->last_share, 0, " %", n[4], sizeof n[4]),
             number(r->last_share > 0 ? 1e3 * r->lag_s : -1, 1, "", n[5], sizeof n[5]), what);
    make_printable(text);
}

static int count_state(const top_table *t, const char *state) {
    int n = 0;
    for (size_t i = 0; i < t->n; i++) {
        n += strcmp(t->row[i].state, state) == 0;
    }
    return n;
}

void top_summary(const top_table *t, char *text, size_t cap) {
    static const char *const states[] = {
        "running", "stopped", "silent", "died", "ended", "unknown"
    };
    const top_row *most = NULL;
    size_t at = (size_t)snprintf(text, cap, "%d rank%s:", t->job.size, t->job.size == 1 ? "" : "s");
    const char *comma = " ";
    for (size_t i = 0; i < sizeof states / sizeof states[0] && at + 32 < cap; i++) {
        const int n = count_state(t, states[i]);
        if (n > 0) {
            at += (size_t)snprintf(text + at, cap - at, "%s%d %s", comma, n, states[i]);
            comma = ", ";
        }
    }
    for (size_t i = 0; i < t->n; i++) {
        const top_row *r = &t->row[i];
        const bool any = r->held_s > 0.05;
        most = any && (most == NULL || top_holds_up(r) > top_holds_up(most)) ? r : most;
    }
    if (most != NULL && at + 64 < cap) {
        snprintf(text + at, cap - at, "; rank %d holds up %d, for %.1f s on average", most->rank,
                 most->held, most->held_s / most->held);
    }
}

/* Nodes of whose ranks nothing is known. */
static int unseen_nodes(const top_table *t) {
    int nodes = 0, seen = 0;
    for (size_t i = 0; i < t->n; i++) {
        bool first = true;
        for (size_t k = 0; k < i; k++) {
            first = first && t->row[k].node != t->row[i].node;
        }
        seen += first;
        nodes = t->row[i].rec != NULL ? t->row[i].rec->head.node_count : nodes;
    }
    return nodes > seen ? nodes - seen : 0;
}

/* How old the oldest report of a rank of another host is; < 0: there is none. */
static double oldest_report(const top_table *t) {
    double oldest = -1;
    for (size_t i = 0; i < t->n; i++) {
        oldest = t->row[i].age_s > oldest ? t->row[i].age_s : oldest;
    }
    return oldest;
}

void top_unseen(const top_table *t, char *text, size_t cap) {
    char which[256], where[64] = "";
    bool *in = calloc((size_t)t->job.size + 1, sizeof *in);
    const double oldest = oldest_report(t);
    size_t unseen = (size_t)t->job.size - t->n;
    text[0] = '\0';
    if (oldest >= 0) {
        snprintf(text, cap, "ranks of other hosts as reported, the oldest %.1f s ago", oldest);
    }
    for (int i = 0; in != NULL && i < t->job.size; i++) {
        in[i] = true;
    }
    for (size_t i = 0; in != NULL && i < t->n; i++) {
        in[t->row[i].rank] = false;
    }
    if (in != NULL && unseen > 0) {
        const int nodes = unseen_nodes(t);
        if (nodes > 0) {
            snprintf(where, sizeof where, ", on %d other host%s", nodes, nodes == 1 ? "" : "s");
        }
        snprintf(text, cap, "not seen: %s%s; give the folders of all hosts to see all",
                 doctor_ranks(in, t->job.size, which, sizeof which), where);
    }
    free(in);
}

void top_print(const top_table *t, FILE *to) {
    char text[1024];
    doctor_print_job(&t->job, to);
    top_summary(t, text, sizeof text);
    fprintf(to, "%s\n", text);
    top_unseen(t, text, sizeof text);
    fprintf(to, "%s%s", text, text[0] != '\0' ? "\n" : "");
    top_head(text, sizeof text);
    fprintf(to, "\n%s\n", text);
    for (size_t i = 0; i < t->n; i++) {
        top_line(&t->row[i], text, sizeof text);
        fprintf(to, "%s\n", text);
    }
}

/* ---- JSON ---- */

static void put_text(FILE *to, const char *name, const char *text) {
    fprintf(to, ",\"%s\":", name);
    dtr__json_string(to, text);
}

static void put_number(FILE *to, const char *name, double x) {
    if (x < 0) {
        fprintf(to, ",\"%s\":null", name);
    } else {
        fprintf(to, ",\"%s\":%.9g", name, x);
    }
}

static void put_row(FILE *to, const top_table *t, const top_row *r) {
    fprintf(to, "{\"rank\":%d,\"pid\":%u", r->rank, r->pid);
    put_text(to, "host", r->host);
    put_text(to, "state", r->state);
    put_text(to, "operation", r->operation);
    put_text(to, "site", r->site);
    fprintf(to, ",\"in_operation\":%s", r->open ? "true" : "false");
    put_number(to, "since_s", r->since_s);
    put_number(to, "reported_s", r->age_s);
    put_number(to, "steps_per_s", r->rates.steps_per_s);
    put_number(to, "operations_per_s", r->rates.operations_per_s);
    put_number(to, "gb_per_s", r->rates.gb_per_s);
    put_number(to, "exposed_share", r->rates.exposed);
    put_number(to, "last_share", r->last_share);
    put_number(to, "lag_s", r->last_share > 0 ? r->lag_s : -1);
    fprintf(to, ",\"holds\":%d,\"holds_s\":%.6f,\"waits_for\":[", r->held, r->held_s);
    const char *comma = "";
    for (int i = 0; i < t->job.size; i++) {
        if (r->waits[i]) {
            fprintf(to, "%s%d", comma, i);
            comma = ",";
        }
    }
    fprintf(to, "]}");
}

void top_print_json(const top_table *t, FILE *to) {
    fprintf(to,
            "{\"job\":\"%016" PRIx64 "\",\"ranks_expected\":%d,\"ranks_read\":%d,\"window_s\":%g"
            ",\"sorted_by\":\"%s\",\"unseen_hosts\":%d,\"ranks\":[",
            t->job.id, t->job.size, t->job.n_read, t->window_s, top_key_name(t->key),
            unseen_nodes(t));
    for (size_t i = 0; i < t->n; i++) {
        fputs(i > 0 ? ",\n" : "\n", to);
        put_row(to, t, &t->row[i]);
    }
    fprintf(to, "\n]}\n");
}
