/* A report as one page that needs nothing else: what is wrong, the ranks, and what they did last as
 * a picture. It is well-formed XML too, so that programs can look into it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "doctor.h"

/* Of the picture, in its own units; and how many of a rank's newest operations are in it. */
enum { LEFT = 70, WIDTH = 1000, LANE = 22, BAR = 14, TOP = 8, AXIS = 34, TICKS = 6, NEWEST = 300 };

static const char head[] =
    "<!DOCTYPE html>\n"
    "<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
    "<title>dtr-doctor</title>\n<style>\n"
    "body { font: 14px/1.45 sans-serif; margin: 2em; color: #222; background: #fff }\n"
    "h1 { font-size: 1.2em } .first { font-weight: bold } .wrong li { margin: .3em 0 }\n"
    "table { border-collapse: collapse } td, th { padding: .2em .7em; text-align: left; "
    "border-bottom: 1px solid #ddd; vertical-align: top }\n"
    "td.n { text-align: right } td.op { font-family: monospace; font-size: 12px }\n"
    "svg { width: 100%; max-width: 1100px; font: 11px sans-serif }\n"
    ".over { fill: #4a7fb5 } .failed { fill: #d08a1d } .open { fill: #c23b3b }\n"
    ".lane { stroke: #ddd } .tick { stroke: #eee }\n"
    "</style></head>\n<body>\n";

/* Texts of a recording may hold anything. */
static void put(FILE *to, const char *text) {
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '<' || *c == '>' || *c == '&' || *c == '"' || *c == '\'') {
            fprintf(to, "&#%d;", *c);
        } else {
            putc(*c < 0x20 || *c >= 0x7f ? '?' : *c, to);
        }
    }
}

/* ---- the table ---- */

static void put_operation(FILE *to, const char *what, const dtr__recording *r,
                          const dtr__record *rec) {
    char title[256];
    if (rec != NULL) {
        fprintf(to, "%s", what);
        put(to, dtr__recording_title(r, rec, title, sizeof title));
        fputs(" at ", to);
        put(to, doctor_site(rec));
    }
}

static void put_rank(FILE *to, const doctor_job *job, int rank, const bool *on) {
    const doctor_rank *k = &job->rank[rank];
    if (k->rec == NULL) {
        fprintf(to, "<tr><td class=\"n\">%d</td><td colspan=\"8\">no recording</td></tr>\n", rank);
        return;
    }
    char waited[256];
    const bool waits = memchr(on, true, (size_t)job->size) != NULL;
    fprintf(to, "<tr><td class=\"n\">%d</td><td>", rank);
    put(to, k->rec->head.host);
    fprintf(to, "</td><td class=\"n\">%u</td><td>%s</td><td class=\"n\">%.1f</td>",
            k->rec->head.pid, doctor_state(k), (double)(job->now - k->last_sign) * 1e-9);
    if (k->last_share >= 0) {
        fprintf(to, "<td class=\"n\">%.0f %%</td><td class=\"n\">%.1f</td>", 100 * k->last_share,
                1e3 * k->lag_s);
    } else {
        fputs("<td class=\"n\">-</td><td class=\"n\">-</td>", to);
    }
    fprintf(to, "<td>%s</td><td class=\"op\">",
            waits ? doctor_ranks(on, job->size, waited, sizeof waited) : "-");
    put_operation(to, "last: ", k->rec, dtr__recording_last(k->rec, true));
    put_operation(to, "<br/>now: ", k->rec, dtr__recording_open(k->rec));
    fputs("</td></tr>\n", to);
}

static bool put_table(FILE *to, const doctor_job *job) {
    size_t n = 0;
    doctor_group *groups = doctor_groups(job, &n);
    bool *on = calloc((size_t)job->size, sizeof *on);
    fputs(
        "<table>\n<tr><th>rank</th><th>host</th><th>pid</th><th>state</th><th>quiet s</th><th>last "
        "in</th><th>by ms</th><th>waits for</th><th>operations</th></tr>\n",
        to);
    for (int i = 0; on != NULL && i < job->size; i++) {
        (void)doctor_waits(job, i, groups, n, on);
        put_rank(to, job, i, on);
    }
    fputs("</table>\n", to);
    const bool fine = on != NULL && groups != NULL;
    doctor_groups_free(groups, n);
    free(on);
    return fine;
}

/* ---- the picture ---- */

typedef struct extent {
    int64_t from, last, to; /* of the picture; when something last began or ended */
} extent;

static size_t first_shown(const dtr__recording *r) {
    return r->n_records > NEWEST ? r->n_records - NEWEST : 0;
}

static extent find_extent(const doctor_job *job) {
    extent e = { INT64_MAX, 0, 0 };
    for (int i = 0; i < job->size; i++) {
        const dtr__recording *r = job->rank[i].rec;
        for (size_t k = r != NULL ? first_shown(r) : 0; r != NULL && k < r->n_records; k++) {
            const int64_t begin = doctor_time(r, r->records[k].t_issued);
            const int64_t end = doctor_time(r, r->records[k].t_finished);
            e.from = begin < e.from ? begin : e.from;
            e.last = begin > e.last ? begin : e.last;
            e.last = end > e.last ? end : e.last;
        }
    }
    e.from = e.from < e.last ? e.from : e.last - 1000000;
    e.to = e.last + (e.last - e.from) / 12 + 1; /* what is under way has some place there */
    return e;
}

static double place(const extent *e, int64_t t) {
    const double share = (double)(t - e->from) / (double)(e->to - e->from);
    return LEFT + WIDTH * (share < 0 ? 0 : share > 1 ? 1 : share);
}

static void put_bar(FILE *to, const extent *e, const dtr__recording *r, const dtr__record *rec,
                    int y) {
    char title[256];
    const bool over = dtr__record_over(rec);
    const int64_t begin = doctor_time(r, rec->t_issued);
    const int64_t end = over ? doctor_time(r, rec->t_finished) : e->to;
    const double x = place(e, begin), width = place(e, end) - x;
    fprintf(to, "<rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>",
            !over             ? "open"
            : rec->status < 0 ? "failed"
                              : "over",
            x, y, width > 0.3 ? width : 0.3, BAR);
    put(to, dtr__recording_title(r, rec, title, sizeof title));
    fputs(", called at ", to);
    put(to, doctor_site(rec));
    if (over) {
        fprintf(to, ", took %.3f ms", (double)(end - begin) * 1e-6);
    }
    fputs(over ? "" : ", not finished", to);
    fputs("</title></rect>\n", to);
}

static void put_axis(FILE *to, const extent *e, int height) {
    const double unit = e->last - e->from > 2000000000 ? 1e-9 : 1e-6;
    for (int i = 0; i <= TICKS; i++) {
        const int64_t t = e->last - (e->last - e->from) / TICKS * (TICKS - i);
        const double x = place(e, t);
        fprintf(to,
                "<line class=\"tick\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%d\"/><text x=\"%.1f\" "
                "y=\"%d\" text-anchor=\"middle\">%.4g</text>\n",
                x, x, height - AXIS + 4, x, height - AXIS + 18, (double)(t - e->last) * unit);
    }
    fprintf(to, "<text x=\"%d\" y=\"%d\">%s</text>\n", LEFT, height - 2,
            unit < 1e-8 ? "seconds before something last began or ended"
                        : "milliseconds before something last began or ended");
}

static void put_picture(FILE *to, const doctor_job *job) {
    const extent e = find_extent(job);
    if (e.last == 0) {
        return;
    }
    const int height = TOP + LANE * job->n_read + AXIS;
    fprintf(to, "<svg viewBox=\"0 0 %d %d\" xmlns=\"http://www.w3.org/2000/svg\">\n",
            LEFT + WIDTH + 10, height);
    put_axis(to, &e, height);
    for (int i = 0, y = TOP; i < job->size; i++) {
        const dtr__recording *r = job->rank[i].rec;
        if (r == NULL) {
            continue;
        }
        fprintf(to,
                "<text x=\"2\" y=\"%d\">rank %d</text><line class=\"lane\" x1=\"%d\" x2=\"%d\" "
                "y1=\"%d\" y2=\"%d\"/>\n",
                y + BAR - 3, i, LEFT, LEFT + WIDTH, y + BAR / 2, y + BAR / 2);
        for (size_t k = first_shown(r); k < r->n_records; k++) {
            if (!dtr__record_captured(&r->records[k])) {
                put_bar(to, &e, r, &r->records[k], y);
            }
        }
        y += LANE;
    }
    fprintf(to,
            "</svg>\n<p>The newest operations, at most %d of each rank: <span "
            "style=\"color:#4a7fb5\">finished</span>, <span style=\"color:#d08a1d\">failed</span>, "
            "<span style=\"color:#c23b3b\">not finished</span>. When the page was made nothing had "
            "begun or ended for %.3f s.</p>\n",
            NEWEST, (double)(job->now > e.last ? job->now - e.last : 0) * 1e-9);
}

/* ---- the page ---- */

static void put_problems(FILE *to, const doctor_job *job) {
    fputs("<p class=\"first\">", to);
    put(to, job->n_problems > 0 ? job->problem[0].text : "no problem found");
    fputs("</p>\n", to);
    if (job->n_problems > 1) {
        fputs("<ul class=\"wrong\">\n", to);
        for (size_t i = 1; i < job->n_problems; i++) {
            fputs("<li>", to);
            put(to, job->problem[i].text);
            fputs("</li>\n", to);
        }
        fputs("</ul>\n", to);
    }
}

static bool put_page(FILE *to, const doctor_job *job) {
    char *line = NULL;
    size_t n = 0;
    FILE *text = open_memstream(&line, &n);
    if (text == NULL) {
        return false;
    }
    doctor_print_job(job, text);
    bool fine = fclose(text) == 0;
    if (fine) {
        line[strcspn(line, "\n")] = '\0';
        fputs(head, to);
        fputs("<h1>", to);
        put(to, line);
        fputs("</h1>\n", to);
        put_problems(to, job);
        fine = put_table(to, job);
        put_picture(to, job);
        fputs("</body></html>\n", to);
    }
    free(line);
    return fine;
}

bool doctor_write_html(const doctor_job *job, const char *path) {
    const mode_t mask = umask(0); /* it is what a shell would make of it */
    dtr__text t;
    (void)umask(mask);
    errno = ENOMEM;
    bool fine = dtr__text_begin(&t);
    if (fine) {
        fine = put_page(t.to, job);
        fine = dtr__text_end(&t) && fine;
        errno = ENOMEM;
        fine = fine && dtr__replace_file(path, 0666 & ~mask, t.bytes, t.nbytes);
        const int code = errno;
        free(t.bytes);
        errno = code;
    }
    if (!fine) {
        fprintf(stderr, "dtr-doctor: cannot write %s: %s\n", path, strerror(errno));
    }
    return fine;
}
