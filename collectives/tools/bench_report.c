/* The table and the JSON of dtr-bench. */
#include <stdlib.h>
#include <string.h>

#include <dtr/version.h>

#include "bench.h"

void bench_header(FILE *to, const bench_options *o, const dtr_world *w) {
    static const char *const modes[] = { "blocking", "asynchronous", "overlapped with compute" };
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    MPI_Get_library_version(mpi, &length);
    mpi[strcspn(mpi, ",\n")] = '\0';
    dtr_group_get_info(dtr_world_group((dtr_world *)(uintptr_t)w), &info);
    fprintf(to, "# %s\n# %d ranks on %d node(s), backend %s, %s%s, %d rounds; peer: %s\n",
            dtr_version_string(), dtr_world_size(w), dtr_world_node_count(w), info.backend,
            modes[o->mode], o->read_back ? ", result read back" : "", o->rounds,
            o->peer ? mpi : "none");
    fprintf(to, "# time: median over rounds of the slowest rank; ratio: median over rounds of peer "
                "time / time\n");
    fprintf(to, "#%11s %12s %7s %6s %-14s %-10s %11s %8s %8s %7s %11s %7s\n", "size", "count",
            "type", "op", "call", "who", "time", "algbw", "busbw", "#wrong", "peer", "ratio");
    fprintf(to, "#%11s %12s %7s %6s %-14s %-10s %11s %8s %8s %7s %11s %7s\n", "(B)", "(elements)",
            "", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "");
}

static const char *op_name(const bench_case *c) {
    static const char *const names[] = {
        "sum", "avg", "prod", "min", "max", "band", "bor", "bxor"
    };
    return bench_reduces(c->kind) ? names[c->op] : "-";
}

void bench_print(const bench_row *r) {
    const bench_case *c = r->c;
    double t = measure_median(r->who->sample, r->rounds), algbw = (double)c->bytes / t * 1e-9;
    printf("%12zu %12zu %7s %6s %-14s %-10s %11.2f %8.2f %8.2f %7zu", c->bytes, c->count,
           dtr_dtype_name(c->dtype), op_name(c), bench_kind_name(c->kind), r->who->name, t * 1e6,
           algbw, algbw * bench_bus_factor(c), r->who->wrong);
    if (r->peer != NULL) {
        printf(" %11.2f %7.2f", measure_median(r->peer->sample, r->rounds) * 1e6,
               measure_ratio(r->peer->sample, r->who->sample, r->rounds));
    }
    if (c->mode == BENCH_OVERLAP) {
        printf("  hidden %3.0f %%", 100 * r->who->hidden);
    }
    printf("\n");
    fflush(stdout);
}

void bench_json(FILE *to, const bench_row *r, bool first) {
    const bench_case *c = r->c;
    double t = measure_median(r->who->sample, r->rounds);
    fprintf(to,
            "%s\n  {\"run\": %d, \"call\": \"%s\", \"bytes\": %zu, \"count\": %zu, \"dtype\": "
            "\"%s\", \"op\": \"%s\", "
            "\"who\": \"%s\", \"ranks\": %d, \"time_us\": %.3f, \"algbw_gbs\": %.4f, "
            "\"busbw_gbs\": %.4f, \"wrong\": %zu",
            first ? "" : ",", r->run, bench_kind_name(c->kind), c->bytes, c->count,
            dtr_dtype_name(c->dtype), op_name(c), r->who->name, c->size, t * 1e6,
            (double)c->bytes / t * 1e-9, (double)c->bytes / t * 1e-9 * bench_bus_factor(c),
            r->who->wrong);
    if (r->peer != NULL) {
        fprintf(to, ", \"peer\": \"%s\", \"peer_us\": %.3f, \"ratio\": %.4f", r->peer->name,
                measure_median(r->peer->sample, r->rounds) * 1e6,
                measure_ratio(r->peer->sample, r->who->sample, r->rounds));
    }
    if (c->mode == BENCH_OVERLAP) {
        fprintf(to, ", \"hidden\": %.4f", r->who->hidden);
    }
    fprintf(to, "}");
}
