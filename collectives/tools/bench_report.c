/* The table and the JSON of dtr-bench. */
#include <stdlib.h>
#include <string.h>

#include <dtr/version.h>

#include "bench.h"

static const char *op_name(bench_kind k, dtr_op op) {
    return bench_reduces(k) ? bench_op_names[op] : "-";
}

/* The column before the peer: what it holds depends on what is measured. */
static const char *extra_name(const bench_options *o) {
    return o->mode == BENCH_OVERLAP ? "hidden" : o->mode == BENCH_DISPATCH ? "added" : "of_f32";
}

static bool has_extra(const bench_options *o) {
    bool other = false;
    if (o->cuda) {
        return o->mode == BENCH_OVERLAP;
    }
    for (int d = 0; d < BENCH_DTYPES; d++) {
        other = other || (o->dtype[d] && !bench_has_mpi_type((dtr_dtype)d));
    }
    return o->mode == BENCH_OVERLAP || o->mode == BENCH_DISPATCH || (other && o->peer);
}

static const char *extra_unit(const bench_options *o) {
    return o->mode == BENCH_OVERLAP ? "(%)" : o->mode == BENCH_DISPATCH ? "(us)" : "(time)";
}

/* Begins with what is between it and the pair before. */
static void json_pair(const bench_report *r, const char *between, const char *name,
                      const char *value) {
    fprintf(r->json, "%s\"%s\": ", between, name);
    measure_json_text(r->json, value);
}

static void json_head(const bench_report *r, dtr_world *w) {
    static const char *const modes[] = { "blocking", "async", "overlap", "dispatch" };
    char text[128];
    json_pair(r, "{\"tool\": \"dtr-bench\", ", "version", dtr_version_string());
    measure_mpi_name(text, sizeof text);
    json_pair(r, ", ", "mpi", text);
    measure_cpu_name(text, sizeof text);
    json_pair(r, ", ", "cpu", text);
    fprintf(r->json,
            ",\n \"ranks\": %d, \"nodes\": %d, \"mode\": \"%s\", \"read_back\": %s, "
            "\"in_place\": %s, \"deterministic\": %s, \"rounds\": %d, \"runs\": %d,\n",
            dtr_world_size(w), dtr_world_node_count(w), modes[r->o->mode],
            r->o->read_back ? "true" : "false", r->o->in_place ? "true" : "false",
            r->o->deterministic ? "true" : "false", r->o->rounds, r->o->runs);
    if (r->o->cuda) {
        dtr_group_info info = DTR_GROUP_INFO_INIT;
        dtr_group_get_info(r->g, &info);
        json_pair(r, " ", "device", bench_device->name());
        json_pair(r, ", ", "backend", info.backend_asked);
        json_pair(r, ", ", "peer", bench_device->peer());
        fprintf(r->json, ",\n");
    }
    fprintf(r->json, " \"rows\": [");
}

void bench_report_head(bench_report *r, dtr_world *w) {
    static const char *const modes[] = { "blocking", "asynchronous", "overlapped with compute",
                                         "asynchronous over blocking" };
    static const char *const levels[] = { "single", "funneled", "serialized", "multiple" };
    const bench_options *o = r->o;
    char mpi[128], cpu[128];
    int provided = MPI_THREAD_SINGLE;
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    measure_mpi_name(mpi, sizeof mpi);
    measure_cpu_name(cpu, sizeof cpu);
    MPI_Query_thread(&provided);
    dtr_group_get_info(r->g, &info);
    printf("# %s; %s\n", dtr_version_string(), cpu);
    printf("# %d ranks on %d node(s), backend %s%s, %s%s, %d rounds, MPI threads %s; peer: %s\n",
           dtr_world_size(w), dtr_world_node_count(w), o->cuda ? info.backend_asked : info.backend,
           o->deterministic ? ", deterministic" : "", modes[o->mode],
           o->read_back ? ", result read back" : "", o->rounds,
           levels[provided == MPI_THREAD_MULTIPLE     ? 3
                  : provided == MPI_THREAD_SERIALIZED ? 2
                  : provided == MPI_THREAD_FUNNELED   ? 1
                                                      : 0],
           o->cuda   ? bench_device->peer()
           : o->peer ? mpi
                     : "none");
    if (o->cuda) {
        printf("# device memory of %s; host: time until the calls have returned; events: between "
               "events around them;\n#   added: host time over the peer's, median over rounds\n",
               bench_device->name());
    }
    printf("# time: median over rounds of the slowest rank; ratio: median over rounds of peer "
           "time / time\n");
    printf("#%11s %12s %7s %6s %-15s %-12s %11s %8s %8s %7s", "size", "count", "type", "op", "call",
           "who", "time", "algbw", "busbw", "#wrong");
    if (o->cuda) {
        printf(" %9s %9s %8s", "host", "events", "added");
    }
    if (has_extra(o)) {
        printf(" %8s", extra_name(o));
    }
    printf(" %-8s %11s %7s\n", "peer", "peer", "ratio");
    printf("#%11s %12s %7s %6s %-15s %-12s %11s %8s %8s %7s", "(B)", "(elements)", "", "", "", "",
           "(us)", "(GB/s)", "(GB/s)", "");
    if (o->cuda) {
        printf(" %9s %9s %8s", "(us)", "(us)", "(us)");
    }
    if (has_extra(o)) {
        printf(" %8s", extra_unit(o));
    }
    printf(" %-8s %11s %7s\n", "", "(us)", "");
    if (r->json != NULL) {
        json_head(r, w);
        r->first = true;
    }
}

/* Microseconds of some samples, and those of a over b's. */
static double us(const double *samples, const bench_options *o) {
    return 1e6 * measure_median(samples, o->rounds);
}

static double added_us(const double *a, const double *b, const bench_options *o) {
    return 1e6 * measure_difference(a, b, o->rounds);
}

static void print_or_dash(bool there, int width, int digits, double v) {
    if (there) {
        printf(" %*.*f", width, digits, v);
    } else {
        printf(" %*s", width, "-");
    }
}

/* What the extra column shows; false: nothing in this row. */
static bool extra(const bench_options *o, const bench_case *c, const contender *who,
                  const contender *peer, double *value) {
    bool dispatch = o->mode == BENCH_DISPATCH && peer != NULL;
    bool f32 = !o->cuda && o->mode < BENCH_OVERLAP && peer != NULL && peer->dtype != c->dtype;
    *value = o->mode == BENCH_OVERLAP ? 100 * who->hidden
             : dispatch               ? added_us(who->sample, peer->sample, o)
             : f32                    ? measure_ratio(who->sample, peer->sample, o->rounds)
                                      : 0;
    return o->mode == BENCH_OVERLAP || dispatch || f32;
}

/* What the calls themselves cost the host, and what this library adds to NCCL's. */
static void json_device(bench_report *r, const contender *who, const contender *peer) {
    fprintf(r->json, ", \"host_us\": %.4f, \"events_us\": %.4f", us(who->host, r->o),
            us(who->events, r->o));
    if (peer != NULL) {
        fprintf(r->json,
                ", \"peer_host_us\": %.4f, \"peer_events_us\": %.4f, \"added_us\": %.4f, "
                "\"added_percent\": %.3f",
                us(peer->host, r->o), us(peer->events, r->o), added_us(who->host, peer->host, r->o),
                100 * (measure_ratio(who->host, peer->host, r->o->rounds) - 1));
    }
}

static void json_row(bench_report *r, const bench_case *c, const contender *who,
                     const contender *peer, double t) {
    double value = 0, gbs = t > 0 ? (double)c->bytes / t * 1e-9 : 0;
    fprintf(r->json,
            "%s\n  {\"run\": %d, \"call\": \"%s\", \"bytes\": %zu, \"count\": %zu, \"dtype\": "
            "\"%s\", \"op\": \"%s\", \"who\": \"%s\", \"time_us\": %.4f, \"algbw_gbs\": %.4f, "
            "\"busbw_gbs\": %.4f",
            r->first ? "" : ",", r->run, bench_kind_name(c->kind), c->bytes, c->count,
            dtr_dtype_name(c->dtype), op_name(c->kind, c->op), who->name, t * 1e6, gbs,
            gbs * bench_bus_factor(c));
    if (who->checked) {
        fprintf(r->json, ", \"wrong\": %zu", who->wrong);
    }
    if (r->o->cuda) {
        json_device(r, who, peer);
    }
    if (extra(r->o, c, who, peer, &value)) {
        fprintf(r->json, ", \"%s\": %.4f", extra_name(r->o), value);
    }
    if (peer != NULL) {
        fprintf(r->json, ", \"peer\": \"%s\", \"peer_us\": %.4f, \"ratio\": %.4f", peer->name,
                us(peer->sample, r->o), measure_ratio(peer->sample, who->sample, r->o->rounds));
    }
    fprintf(r->json, "}");
    r->first = false;
}

/* Rows come in the same order in every run. */
static void remember(bench_report *r, const bench_case *c, const contender *who,
                     const contender *peer, double t) {
    size_t runs = (size_t)r->o->runs;
    if (r->run == 1) {
        bench_result *more = realloc(r->results, (r->n_results + 1) * sizeof *more);
        if (more == NULL) {
            fprintf(stderr, "dtr-bench: no memory for the summary\n");
            MPI_Abort(MPI_COMM_WORLD, 1);
            abort();
        }
        r->results = more;
        r->results[r->n_results++] = (bench_result){ c->kind,
                                                     c->dtype,
                                                     who->name,
                                                     peer != NULL ? peer->name : NULL,
                                                     c->bytes,
                                                     bench_memory(runs * sizeof(double)),
                                                     bench_memory(runs * sizeof(double)) };
    }
    bench_result *to = &r->results[r->row++];
    to->time[r->run - 1] = t;
    to->ratio[r->run - 1] =
        peer != NULL ? measure_ratio(peer->sample, who->sample, r->o->rounds) : 0;
}

void bench_report_row(bench_report *r, const bench_case *c, const contender *all, int i) {
    const contender *who = &all[i], *peer = who->peer >= 0 ? &all[who->peer] : NULL;
    double t = measure_median(who->sample, r->o->rounds), value = 0;
    double gbs = t > 0 ? (double)c->bytes / t * 1e-9 : 0;
    printf("%12zu %12zu %7s %6s %-15s %-12s %11.2f %8.2f %8.2f", c->bytes, c->count,
           dtr_dtype_name(c->dtype), op_name(c->kind, c->op), bench_kind_name(c->kind), who->name,
           t * 1e6, gbs, gbs * bench_bus_factor(c));
    print_or_dash(who->checked, 7, 0, (double)who->wrong);
    if (r->o->cuda) {
        printf(" %9.2f %9.2f", us(who->host, r->o), us(who->events, r->o));
        print_or_dash(peer != NULL, 8, 2, peer != NULL ? added_us(who->host, peer->host, r->o) : 0);
    }
    if (has_extra(r->o)) {
        bool there = extra(r->o, c, who, peer, &value);
        print_or_dash(there, 8, 2, value);
    }
    printf(" %-8s", peer != NULL ? peer->name : "-");
    print_or_dash(peer != NULL, 11, 2, peer != NULL ? us(peer->sample, r->o) : 0);
    print_or_dash(peer != NULL, 7, 2,
                  peer != NULL ? measure_ratio(peer->sample, who->sample, r->o->rounds) : 0);
    printf("\n");
    fflush(stdout);
    remember(r, c, who, peer, t);
    if (r->json != NULL) {
        json_row(r, c, who, peer, t);
    }
}

static void span(const double *values, int n, double *low, double *high) {
    *low = *high = values[0];
    for (int i = 1; i < n; i++) {
        *low = values[i] < *low ? values[i] : *low;
        *high = values[i] > *high ? values[i] : *high;
    }
}

static void summary_row(bench_report *r, const bench_result *s, bool first) {
    int runs = r->o->runs;
    const double *values = s->peer != NULL ? s->ratio : s->time;
    double low = 0, high = 0, m = measure_median(values, runs);
    span(values, runs, &low, &high);
    double unit = s->peer != NULL ? 1 : 1e6;
    printf("# %11zu %7s %-15s %-12s %-10s %9.2f %9.2f %9.2f\n", s->bytes, dtr_dtype_name(s->dtype),
           bench_kind_name(s->kind), s->who, s->peer != NULL ? "ratio" : "time (us)", m * unit,
           low * unit, high * unit);
    if (r->json != NULL) {
        fprintf(r->json,
                "%s\n  {\"call\": \"%s\", \"bytes\": %zu, \"dtype\": \"%s\", \"who\": \"%s\", "
                "\"%s\": %.4f, \"low\": %.4f, \"high\": %.4f}",
                first ? "" : ",", bench_kind_name(s->kind), s->bytes, dtr_dtype_name(s->dtype),
                s->who, s->peer != NULL ? "ratio" : "time_us", m * unit, low * unit, high * unit);
    }
}

void bench_report_end(bench_report *r, const double *gauge, bool calm) {
    if (r->json != NULL) {
        fprintf(r->json, "\n ],\n \"summary\": [");
    }
    if (r->o->runs > 1) {
        printf("# summary of %d runs\n# %11s %7s %-15s %-12s %-10s %9s %9s %9s\n", r->o->runs,
               "size", "type", "call", "who", "", "median", "lowest", "highest");
    }
    for (size_t i = 0; i < r->n_results; i++) {
        if (r->o->runs > 1) {
            summary_row(r, &r->results[i], i == 0);
        }
        free(r->results[i].time);
        free(r->results[i].ratio);
    }
    free(r->results);
    if (r->o->gauge) {
        measure_print_gauge(gauge[0], gauge[1], calm);
    }
    printf("# %s elements: %zu\n", r->wrong > 0 ? "WRONG" : "wrong", r->wrong);
    if (r->json != NULL) {
        fprintf(r->json, "\n ],\n \"gauge_gbs\": [%.3f, %.3f], \"void\": %s, \"wrong\": %zu\n}\n",
                gauge[0] * 1e-9, gauge[1] * 1e-9, calm ? "false" : "true", r->wrong);
    }
}
