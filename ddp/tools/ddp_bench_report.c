/* The table and the JSON of dtr-ddp-bench. */
#include <dtr/version.h>

#include "ddp_bench.h"
#include "measure.h"
#include "measure_cuda.h"

static const char *const compute_names[] = { "device", "cpu", "none" };
/* Below this a step's exposed time is the clock's and the scheduler's noise; ratios use it as
 * floor. */
static const double FLOOR_S = 1e-4;

/* As asked for: which one serves device memory follows from it, call by call. */
static const char *backend(const ddp_bench *b) {
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    bench_require(dtr_group_get_info(b->group, &info), "dtr_group_get_info");
    return info.backend_asked;
}

static double host_s(const ddp_bench *b) {
    return measure_median(b->host, b->o->steps);
}

void report_head(const ddp_bench *b) {
    char mpi[128], cpu[128];
    measure_mpi_name(mpi, sizeof mpi);
    measure_cpu_name(cpu, sizeof cpu);
    printf("# %s; %s; %s\n", dtr_version_string(), mpi, cpu);
    printf("# %s: %zu tensors, %zu elements, %.1f MiB; %d ranks on %d node(s); gradients %s, "
           "hook %s, reduced in %s\n",
           b->o->model, b->model.n, b->model.numel, (double)b->model.numel * 4 / (1 << 20), b->size,
           dtr_world_node_count(b->world), b->o->view ? "in the buckets" : "copied to the buckets",
           b->o->hook, b->o->has_reduce_dtype ? dtr_dtype_name(b->o->reduce_dtype) : "f32");
    if (b->o->cuda) {
        printf("# on %s through %s; times of the device by events, of the host until the calls had "
               "returned\n",
               measure_cuda->name(), backend(b));
    }
    printf("# peer: MPI_Allreduce in place of the same buckets in f32, not divided; 'mpi after' "
           "backward, 'mpi inline' as each bucket is complete\n"
           "# time: median over steps of the slowest rank; exposed: over the same backward without "
           "communication, median of paired differences\n"
           "# hidden: share of the sync alone that is not exposed; ratio: of sync times per round, "
           "median; of exposed times, at least %.1f ms each\n",
           FLOOR_S * 1e3);
    printf("#%4s %-9s %-11s %10s %10s %8s %8s %9s %-11s %10s %7s\n", "run", "phase", "who", "time",
           "exposed", "hidden", "algbw", "#wrong", "peer", "peer", "ratio");
    printf("#%4s %-9s %-11s %10s %10s %8s %8s %9s %-11s %10s %7s\n", "", "", "", "(ms)", "(ms)",
           "(%)", "(GB/s)", "", "", "(ms)", "");
}

static double median(const ddp_bench *b, phase p, who w) {
    return measure_median(b->samples[p][w], b->o->steps);
}

static double exposed(const ddp_bench *b, who w) {
    double e = measure_difference(b->samples[PHASE_BACKWARD][w],
                                  b->samples[PHASE_BACKWARD][WHO_NONE], b->o->steps);
    return e > 0 ? e : 0;
}

static double hidden(const ddp_bench *b, who w) {
    double alone = median(b, PHASE_SYNC, w == WHO_INLINE ? WHO_MPI : w), e = exposed(b, w);
    return e >= alone ? 0 : 1 - e / alone;
}

static double exposed_ratio(const ddp_bench *b, who peer) {
    double theirs = exposed(b, peer), ours = exposed(b, WHO_DTR);
    return (theirs > FLOOR_S ? theirs : FLOOR_S) / (ours > FLOOR_S ? ours : FLOOR_S);
}

static double sync_ratio(const ddp_bench *b) {
    return measure_ratio(b->samples[PHASE_SYNC][WHO_MPI], b->samples[PHASE_SYNC][WHO_DTR],
                         b->o->steps);
}

static void print_wrong(const ddp_bench *b) {
    if (b->checked) {
        printf(" %9zu", b->wrong[WHO_DTR]);
    } else {
        printf(" %9s", "-");
    }
}

static void print_sync(const ddp_bench *b, int run) {
    double t = median(b, PHASE_SYNC, WHO_DTR);
    printf("%5d %-9s %-11s %10.3f %10s %8s %8.2f", run, "sync", "dtr", t * 1e3, "-", "-",
           (double)b->model.numel * 4 / t * 1e-9);
    print_wrong(b);
    if (b->o->peer) {
        printf(" %-11s %10.3f %7.2f", "mpi", median(b, PHASE_SYNC, WHO_MPI) * 1e3, sync_ratio(b));
    }
    printf("\n");
}

/* The peer's column shows its exposed time here. */
static void print_backward(const ddp_bench *b, int run, who peer, const char *name) {
    double t = median(b, PHASE_BACKWARD, WHO_DTR);
    printf("%5d %-9s %-11s %10.3f %10.3f %8.1f %8.2f", run, "backward", "dtr", t * 1e3,
           exposed(b, WHO_DTR) * 1e3, 100 * hidden(b, WHO_DTR),
           (double)b->model.numel * 4 / t * 1e-9);
    print_wrong(b);
    if (b->o->peer) {
        printf(" %-11s %10.3f %7.2f", name, exposed(b, peer) * 1e3, exposed_ratio(b, peer));
    }
    printf("\n");
}

void report_run(const ddp_bench *b, int run) {
    print_sync(b, run);
    if (b->o->compute != COMPUTE_NONE) {
        print_backward(b, run, WHO_MPI, "mpi after");
        if (b->o->peer) {
            print_backward(b, run, WHO_INLINE, "mpi inline");
        }
        printf("# backward of %.1f ms %s compute, alone %.1f ms; the module's own figures: "
               "communication %.2f ms, exposed %.2f ms per step, all phases\n",
               b->compute_s * 1e3, compute_names[b->o->compute],
               median(b, PHASE_BACKWARD, WHO_NONE) * 1e3, b->stats.average.comm_s * 1e3,
               b->stats.average.exposed_comm_s * 1e3);
    }
    printf("# %zu buckets, %zu collectives per step; %.1f MiB copied into them, %.1f MiB back",
           b->stats.last.buckets, b->stats.last.collectives,
           (double)b->stats.copied_in_bytes / (1 << 20),
           (double)b->stats.copied_out_bytes / (1 << 20));
    if (b->allocations >= 0) {
        printf("; %.1f allocations per steady step", b->allocations);
    }
    printf("\n");
    if (b->o->cuda) {
        printf("# a step costs the host %.1f us, %.2f us per tensor\n", host_s(b) * 1e6,
               host_s(b) * 1e6 / (double)b->model.n);
    }
    if (b->o->gauge) {
        measure_print_gauge(b->gauge[0], b->gauge[1], b->calm);
    }
    fflush(stdout);
}

static void json_backward(FILE *to, const ddp_bench *b) {
    fprintf(to,
            ",\n   \"compute\": \"%s\", \"compute_ms\": %.4f, \"alone_ms\": %.4f, "
            "\"backward_ms\": %.4f, \"exposed_ms\": %.4f, \"hidden\": %.4f",
            compute_names[b->o->compute], b->compute_s * 1e3,
            median(b, PHASE_BACKWARD, WHO_NONE) * 1e3, median(b, PHASE_BACKWARD, WHO_DTR) * 1e3,
            exposed(b, WHO_DTR) * 1e3, hidden(b, WHO_DTR));
    if (b->o->peer) {
        fprintf(to,
                ", \"mpi_after_exposed_ms\": %.4f, \"mpi_inline_exposed_ms\": %.4f, "
                "\"exposed_ratio_after\": %.4f, \"exposed_ratio_inline\": %.4f",
                exposed(b, WHO_MPI) * 1e3, exposed(b, WHO_INLINE) * 1e3, exposed_ratio(b, WHO_MPI),
                exposed_ratio(b, WHO_INLINE));
    }
}

static void json_device(FILE *to, const ddp_bench *b) {
    fprintf(to, ", \"device\": ");
    measure_json_text(to, measure_cuda->name());
    fprintf(to, ", \"backend\": ");
    measure_json_text(to, backend(b));
}

static void json_head(FILE *to, const ddp_bench *b) {
    char text[128];
    fprintf(to, "{\"tool\": \"dtr-ddp-bench\", \"version\": ");
    measure_json_text(to, dtr_version_string());
    measure_mpi_name(text, sizeof text);
    fprintf(to, ", \"mpi\": ");
    measure_json_text(to, text);
    measure_cpu_name(text, sizeof text);
    fprintf(to, ", \"cpu\": ");
    measure_json_text(to, text);
    if (b->o->cuda) {
        json_device(to, b);
    }
    fprintf(to, ",\n \"model\": ");
    measure_json_text(to, b->o->model);
    fprintf(to,
            ", \"tensors\": %zu, \"elements\": %zu, \"ranks\": %d, \"nodes\": %d, "
            "\"bucket_view\": %s, \"hook\": \"%s\", \"reduce_dtype\": \"%s\", \"steps\": %d,\n"
            " \"runs\": [",
            b->model.n, b->model.numel, b->size, dtr_world_node_count(b->world),
            b->o->view ? "true" : "false", b->o->hook,
            b->o->has_reduce_dtype ? dtr_dtype_name(b->o->reduce_dtype) : "f32", b->o->steps);
}

void report_json(FILE *to, const ddp_bench *b, int run) {
    if (run == 1) {
        json_head(to, b);
    }
    fprintf(to, "%s\n  {\"run\": %d, \"buckets\": %zu, \"collectives\": %zu, \"sync_ms\": %.4f",
            run == 1 ? "" : ",", run, b->stats.last.buckets, b->stats.last.collectives,
            median(b, PHASE_SYNC, WHO_DTR) * 1e3);
    if (b->o->cuda) {
        fprintf(to, ", \"host_us\": %.3f, \"host_us_per_tensor\": %.4f", host_s(b) * 1e6,
                host_s(b) * 1e6 / (double)b->model.n);
    }
    if (b->o->peer) {
        fprintf(to, ", \"mpi_sync_ms\": %.4f, \"sync_ratio\": %.4f",
                median(b, PHASE_SYNC, WHO_MPI) * 1e3, sync_ratio(b));
    }
    if (b->checked) {
        fprintf(to, ", \"wrong\": %zu", b->wrong[WHO_DTR]);
    }
    fprintf(to, ", \"copied_in_bytes\": %zu, \"copied_out_bytes\": %zu", b->stats.copied_in_bytes,
            b->stats.copied_out_bytes);
    if (b->allocations >= 0) {
        fprintf(to, ", \"allocations_per_step\": %.1f", b->allocations);
    }
    if (b->o->compute != COMPUTE_NONE) {
        json_backward(to, b);
    }
    fprintf(to, ",\n   \"gauge_gbs\": [%.3f, %.3f], \"void\": %s}", b->gauge[0] * 1e-9,
            b->gauge[1] * 1e-9, b->calm ? "false" : "true");
    if (run == b->o->runs) {
        fprintf(to, "\n ]\n}\n");
    }
}
