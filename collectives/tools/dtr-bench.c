/* dtr-bench: collectives against the stock MPI call of the same build, or NCCL's, paired in one
 * run. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/mpi.h>

#include "bench.h"
#include "measure_cuda.h"

/* ---- contenders ---- */

static void *take_memory(dtr_world *w, dtr_device d, dtr_mem kind, size_t nbytes) {
    void *p = NULL;
    if (dtr_alloc(w, d, kind, nbytes, &p) != DTR_OK) {
        fprintf(stderr, "dtr-bench: %s\n", dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    if (d.type == DTR_CPU) {
        memset(p, 0, nbytes);
    }
    return p;
}

typedef struct contenders {
    contender all[BENCH_CONTENDERS];
    int n;
} contenders;

/* Adds one and returns its index. */
static int add(contenders *to, const bench_options *o, const bench_case *c, dtr_world *w,
               contender who) {
    const dtr_device cpu = { DTR_CPU, 0 };
    size_t size = dtr_dtype_size(who.dtype), rounds = (size_t)o->rounds * sizeof *who.sample;
    size_t in = c->in_count * size + 64, out = c->out_count * size + 64;
    dtr_mem kind = who.shared ? DTR_MEM_SHARED : DTR_MEM_DEFAULT;
    who.in = take_memory(w, c->device, kind, in);
    who.out = take_memory(w, c->device, kind, out);
    who.fresh = o->cuda ? take_memory(w, cpu, DTR_MEM_PINNED, in) : bench_memory(in);
    who.back = o->cuda ? take_memory(w, cpu, DTR_MEM_PINNED, in > out ? in : out) : NULL;
    who.sample = bench_memory(rounds);
    who.host = bench_memory(rounds);
    who.events = bench_memory(rounds);
    who.checked = bench_checkable(c, who.dtype);
    to->all[to->n] = who;
    return to->n++;
}

/* A contender with a row, in one kind of memory, behind the peer that it is paired with: in
 * dispatch mode its own blocking form, for reductions of types that MPI lacks its own float32, else
 * `peer`. */
static void add_with_peer(contenders *to, const bench_options *o, const bench_case *c, dtr_world *w,
                          bool shared, int peer) {
    bool own = !o->cuda && !bench_has_mpi_type(c->dtype) && bench_reduces(c->kind);
    const char *name = o->cuda ? "cuda" : shared ? "shared" : "plain";
    contender who = { .name = name,
                      .shared = shared,
                      .async = c->mode != BENCH_BLOCKING,
                      .peer = -1,
                      .dtype = c->dtype };
    contender beside = who;
    if (o->peer && c->mode == BENCH_DISPATCH) {
        beside.name = o->cuda ? "inline" : shared ? "inline shared" : "inline plain";
        beside.async = false;
        peer = add(to, o, c, w, beside);
    } else if (o->peer && own && dtr_op_supports(c->op, DTR_F32)) {
        beside.name = shared ? "shared f32" : "plain f32";
        beside.dtype = DTR_F32;
        peer = add(to, o, c, w, beside);
    }
    who.shown = true;
    who.peer = peer;
    add(to, o, c, w, who);
}

/* Stock MPI is one peer for both kinds of memory; on a device it is NCCL itself. */
static contenders gather_contenders(const bench_options *o, const bench_case *c, dtr_world *w) {
    contenders to = { .n = 0 };
    bool own = !bench_has_mpi_type(c->dtype) && bench_reduces(c->kind);
    bool nccl = o->cuda && c->mode != BENCH_OVERLAP && bench_device->has_peer(c);
    bool mpi = !o->cuda && !own && c->count <= INT_MAX / (size_t)c->size;
    int peer = -1;
    if (o->peer && c->mode != BENCH_DISPATCH && (nccl || mpi)) {
        peer = add(&to, o, c, w,
                   (contender){ .name = nccl ? "nccl" : "mpi",
                                .mpi = mpi,
                                .nccl = nccl,
                                .peer = -1,
                                .dtype = c->dtype });
    }
    if (o->plain || o->cuda) {
        add_with_peer(&to, o, c, w, false, peer);
    }
    if (o->shared && !o->cuda) {
        add_with_peer(&to, o, c, w, true, peer);
    }
    return to;
}

static void free_contenders(contenders *from, dtr_world *w, bool cuda) {
    for (int i = 0; i < from->n; i++) {
        dtr_free(w, from->all[i].in);
        dtr_free(w, from->all[i].out);
        dtr_free(w, from->all[i].back);
        if (cuda) {
            dtr_free(w, from->all[i].fresh);
        } else {
            free(from->all[i].fresh);
        }
        free(from->all[i].sample);
        free(from->all[i].host);
        free(from->all[i].events);
    }
}

/* ---- runs ---- */

/* Compute as long as the operation alone takes; what is longer than compute was not hidden. */
static void run_overlap(bench_case *c, contenders *who, int rounds, dtr_group *g) {
    double alone[BENCH_CONTENDERS] = { 0 };
    bool async[BENCH_CONTENDERS] = { false };
    c->mode = BENCH_BLOCKING;
    for (int i = 0; i < who->n; i++) {
        async[i] = who->all[i].async;
        who->all[i].async = false;
    }
    bench_run(c, who->all, who->n, rounds, g);
    for (int i = 0; i < who->n; i++) {
        who->all[i].async = async[i];
        alone[i] = measure_median(who->all[i].sample, rounds);
        c->compute_s = alone[i] > c->compute_s ? alone[i] : c->compute_s;
    }
    c->mode = BENCH_OVERLAP;
    bench_run(c, who->all, who->n, rounds, g);
    for (int i = 0; i < who->n; i++) {
        double exposed = measure_median(who->all[i].sample, rounds) - c->compute_s;
        who->all[i].hidden = exposed <= 0 ? 1 : exposed >= alone[i] ? 0 : 1 - exposed / alone[i];
    }
}

static void bench_one(bench_report *r, bench_case c, dtr_world *w) {
    bench_case_open(&c);
    contenders who = gather_contenders(r->o, &c, w);
    if (c.mode == BENCH_OVERLAP) {
        run_overlap(&c, &who, r->o->rounds, r->g);
    } else {
        bench_run(&c, who.all, who.n, r->o->rounds, r->g);
    }
    for (int i = 0; i < who.n; i++) {
        r->wrong += who.all[i].wrong;
        if (who.all[i].shown && c.rank == 0) {
            bench_report_row(r, &c, who.all, i);
        }
    }
    free_contenders(&who, w, r->o->cuda);
    bench_case_close(&c);
}

static size_t nth_size(const bench_options *o, int i, bool *more) {
    size_t bytes = o->min_bytes > 0 ? o->min_bytes : 1;
    if (o->n_sizes > 0) {
        *more = i < o->n_sizes;
        return *more ? o->sizes[i] : 0;
    }
    for (; i > 0 && bytes <= o->max_bytes; i--) {
        bytes *= (size_t)o->factor;
    }
    *more = bytes <= o->max_bytes;
    return bytes;
}

/* All sizes of one operation and type; a barrier has neither. */
static void bench_sizes(bench_report *r, bench_kind k, dtr_dtype d, dtr_world *w) {
    const bench_options *o = r->o;
    bool more = true;
    for (int i = 0; more; i++) {
        bench_case c = { .kind = k,
                         .dtype = d,
                         .op = o->op,
                         .mode = o->mode,
                         .root = o->root,
                         .calls = o->calls,
                         .bytes = nth_size(o, i, &more),
                         .read_back = o->read_back,
                         .cpu_compute = o->cpu_compute,
                         .rank = dtr_world_rank(w),
                         .size = dtr_world_size(w),
                         .device = dtr_world_device(w),
                         .options = o->cuda ? bench_device->options() : NULL };
        c.in_place = o->in_place && (k == BENCH_ALLREDUCE || k == BENCH_SCAN || k == BENCH_EXSCAN);
        if (more) {
            bench_one(r, c, w);
        }
        more = more && k != BENCH_BARRIER;
    }
}

static void bench_all(bench_report *r, dtr_world *w) {
    bool alone = dtr_world_size(w) == 1;
    for (int k = 0; k < BENCH_KINDS; k++) {
        bool first = true,
             skip = alone && (k == BENCH_SENDRECV || k == BENCH_PINGPONG || k == BENCH_WAITALL);
        for (int d = 0; r->o->kind[k] && !skip && d < BENCH_DTYPES; d++) {
            bool legal = !bench_reduces((bench_kind)k) || dtr_op_supports(r->o->op, (dtr_dtype)d);
            if (r->o->dtype[d] && legal && (first || k != BENCH_BARRIER)) {
                bench_sizes(r, (bench_kind)k, (dtr_dtype)d, w);
                first = false;
            }
        }
    }
}

/* It ends with the world. */
static dtr_group *group_of(const bench_options *o, dtr_world *w) {
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = dtr_world_group(w);
    go.deterministic = true;
    if (o->deterministic && dtr_group_create(w, NULL, dtr_world_size(w), &go, &g) != DTR_OK) {
        fprintf(stderr, "dtr-bench: %s\n", dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    return g;
}

static int run(const bench_options *o, dtr_world *w) {
    bench_report r = { .o = o, .g = group_of(o, w) };
    bool talk = dtr_world_rank(w) == 0;
    double gauge[2] = { 0, 0 };
    if (talk && o->json != NULL && (r.json = fopen(o->json, "w")) == NULL) {
        fprintf(stderr, "dtr-bench: cannot write %s\n", o->json);
    }
    int bad = talk && o->json != NULL && r.json == NULL;
    MPI_Bcast(&bad, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (bad) {
        return 2;
    }
    if (talk) {
        bench_report_head(&r, w);
    }
    gauge[0] = o->gauge ? measure_gauge() : 0;
    for (r.run = 1; r.run <= o->runs; r.run++) {
        r.row = 0;
        bench_all(&r, w);
    }
    gauge[1] = o->gauge ? measure_gauge() : 0;
    bool calm = !o->gauge || measure_calm(gauge[0], gauge[1]);
    if (talk) {
        bench_report_end(&r, gauge, calm);
    }
    if (r.json != NULL) {
        fclose(r.json);
    }
    return measure_status("dtr-bench", o->strict, talk, r.wrong, calm);
}

static int run_in_world(const bench_options *o, bool loud) {
    dtr_world *w = NULL;
    dtr_world_options wo = DTR_WORLD_OPTIONS_INIT;
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (o->root >= size) {
        if (loud) {
            fprintf(stderr, "dtr-bench: --root does not take \"%d\": there are %d ranks\n", o->root,
                    size);
        }
        return 2;
    }
    wo.device.type = o->cuda ? DTR_CUDA : DTR_CPU;
    wo.device.index = o->cuda ? measure_cuda_index(dtr_device_count(DTR_CUDA)) : 0;
    wo.has_device = true;
    if (dtr_world_create_from_comm(MPI_COMM_WORLD, &wo, &w) != DTR_OK) {
        fprintf(stderr, "dtr-bench: %s\n", dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    if (o->cuda) {
        bench_device->open(w, wo.device, o->peer);
    }
    int status = run(o, w);
    if (o->cuda) {
        bench_device->close();
    }
    dtr_world_destroy(w);
    return status;
}

int main(int argc, char **argv) {
    bench_options o = { .op = DTR_SUM,
                        .dtype[DTR_F32] = true,
                        .min_bytes = 8,
                        .max_bytes = 64 << 20,
                        .factor = 4,
                        .rounds = 21,
                        .runs = 1,
                        .threads = MPI_THREAD_MULTIPLE,
                        .plain = true,
                        .shared = true,
                        .peer = true,
                        .gauge = true };
    int rank = 0, status = bench_parse(&o, argc, argv, measure_speaks());
    if (status >= 0) {
        return status;
    }
    MPI_Init_thread(&argc, &argv, o.threads, &(int){ 0 });
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    status = o.tune != NULL ? bench_tune(&o) : run_in_world(&o, rank == 0);
    MPI_Finalize();
    return status;
}
