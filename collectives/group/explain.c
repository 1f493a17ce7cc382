/* dtr-info --why: which backend a group would take for a call, and what each of them says about it.
 * The group is made up: nothing is opened and MPI is not started. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/nccl/nccl_calls.h"
#include "base/dtype.h"
#include "core/nodes.h"
#include "engine/engine.h"
#include "group/device_select.h"
#include "group/explain.h"
#include "group/groups.h"
#include "kernels/operators.h"

enum { MOST_RANKS = 65536 };

typedef struct question {
    dtr__kind kind;
    dtr_dtype dtype;
    size_t nbytes;
    int ranks, nodes;
    dtr_op op;
    bool shared, deterministic, cuda, one_gpu;
} question;

static int refuse(const char *what, const char *text, const char *expected) {
    fprintf(stderr, "dtr-info --why: %s \"%s\": expected %s\n", what, text, expected);
    return 2;
}

/* ---- the words ---- */

static bool find_kind(const char *text, dtr__kind *kind) {
    for (int k = 0; k < DTR__K_COUNT; k++) {
        *kind = (dtr__kind)k;
        if (!dtr__kind_is_made(*kind) && *kind != DTR__K_BATCH &&
            strcmp(dtr__kind_name(*kind), text) == 0) {
            return true;
        }
    }
    return false;
}

static bool find_op(const char *text, dtr_op *op) {
    for (int o = 0; o < DTR__N_OPS; o++) {
        *op = (dtr_op)o;
        if (strcmp(dtr__op_name(*op), text) == 0) {
            return true;
        }
    }
    return false;
}

static bool find_dtype(const char *text, dtr_dtype *dtype) {
    for (int d = DTR_BOOL; d < DTR__N_DTYPES; d++) {
        *dtype = (dtr_dtype)d;
        if (strcmp(dtr_dtype_name(*dtype), text) == 0) {
            return true;
        }
    }
    return false;
}

/* 512, 4K, 4KB, 4KiB, 25M, 1GiB: K, M and G are powers of 1024. */
static bool read_size(const char *text, size_t *nbytes) {
    static const char units[] = "KMG";
    char *end = NULL;
    unsigned long long v = strtoull(text, &end, 10);
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    int shift = unit != NULL ? 10 * (int)(unit - units + 1) : 0;
    end += unit != NULL;
    *nbytes = (size_t)v << shift;
    return end != text && text[0] != '-' && v < (1ULL << 40) &&
           (*end == '\0' || strcmp(end, "B") == 0 || (unit != NULL && strcmp(end, "iB") == 0));
}

static bool read_number(const char *text, int *out) {
    char *end = NULL;
    long v = strtol(text, &end, 10);
    *out = (int)v;
    return end != text && *end == '\0' && v >= 1 && v <= MOST_RANKS;
}

static int read_option(question *q, const char *name, const char *value) {
    if (strcmp(name, "--ranks") == 0) {
        return read_number(value, &q->ranks) ? 0 : refuse(name, value, "1 to 65536");
    }
    if (strcmp(name, "--nodes") == 0) {
        return read_number(value, &q->nodes) ? 0 : refuse(name, value, "1 to 65536");
    }
    if (strcmp(name, "--memory") == 0) {
        q->shared = strcmp(value, "shared") == 0;
        q->cuda = strcmp(value, "cuda") == 0;
        return q->shared || q->cuda || strcmp(value, "plain") == 0
                   ? 0
                   : refuse(name, value, "shared, plain or cuda");
    }
    if (strcmp(name, "--op") == 0) {
        return find_op(value, &q->op) ? 0 : refuse(name, value, "sum, avg, prod, min, max, band");
    }
    return refuse("the option", name,
                  "--op NAME, --ranks N, --nodes N, --memory NAME, --one-gpu or --deterministic");
}

static int read_question(question *q, int n, char **arg) {
    *q = (question){ .ranks = 2, .nodes = 1 };
    if (n < 3) {
        fprintf(stderr, "dtr-info --why: expected CALL DTYPE SIZE, as in allreduce bf16 4MiB\n");
        return 2;
    }
    if (!find_kind(arg[0], &q->kind)) {
        return refuse("the call", arg[0], "allreduce, broadcast, alltoallv, send, ...");
    }
    if (!find_dtype(arg[1], &q->dtype)) {
        return refuse("the type", arg[1], "f32, bf16, i64, ...");
    }
    if (!read_size(arg[2], &q->nbytes)) {
        return refuse("the size", arg[2], "bytes, as 512, 4KiB or 25M");
    }
    for (int i = 3; i < n; i++) {
        bool deterministic = strcmp(arg[i], "--deterministic") == 0;
        bool one_gpu = strcmp(arg[i], "--one-gpu") == 0, alone = deterministic || one_gpu;
        int status = alone ? 0 : read_option(q, arg[i], i + 1 < n ? arg[i + 1] : "");
        q->deterministic |= deterministic;
        q->one_gpu |= one_gpu;
        i += !alone;
        if (status != 0) {
            return status;
        }
    }
    return q->nodes <= q->ranks ? 0 : refuse("--nodes", "more than ranks", "a rank on every node");
}

/* ---- the answer ---- */

/* The ranks are dealt out in blocks, as launchers do. */
static void make_up(const question *q, dtr_world *w, dtr_group *g, int *node_of, int *ranks) {
    static char memory; /* nodes are taken to be able to share some */
    w->size = g->size = q->ranks;
    w->node_count = q->nodes;
    w->memory.arena = (dtr__arena *)(void *)&memory;
    for (int r = 0; r < q->ranks; r++) {
        node_of[r] = (int)((long)r * q->nodes / q->ranks);
        ranks[r] = r;
    }
    w->node_of = node_of;
    g->world = w;
    g->world_ranks = ranks;
    g->asked.deterministic = q->deterministic;
    snprintf(g->name, sizeof g->name, "asked about");
}

static void print_question(const question *q, const char *text) {
    const char *memory = q->cuda ? "CUDA" : q->shared ? "node-shared" : "plain";
    printf("%s %s%s%s of %zu bytes (%zu elements), %s memory, %d rank%s on %d node%s%s; backend "
           "\"%s\"\n",
           dtr__kind_name(q->kind), q->op != DTR_SUM ? dtr__op_name(q->op) : "",
           q->op != DTR_SUM ? " " : "", dtr_dtype_name(q->dtype), q->nbytes,
           q->nbytes / dtr_dtype_size(q->dtype), memory, q->ranks, q->ranks > 1 ? "s" : "",
           q->nodes, q->nodes > 1 ? "s" : "", q->deterministic ? ", deterministic" : "", text);
}

/* One line; returns the score. */
static int print_backend(dtr_group *g, const dtr__call *call, const dtr__backend *b, bool asked) {
    const char *why = NULL;
    int score = b->score(g, NULL, &why);
    score = score > 0 ? dtr__backend_score(b, g, call, &why) : 0;
    printf("  %-6s %6d  %s%s%s\n", b->name, score, score > 0 ? "can serve it" : "cannot: ",
           why == NULL ? ""
           : score > 0 ? ", as mpi does: "
                       : "",
           why == NULL ? "" : why);
    if (!asked && score > 0) {
        printf("                 but the backend text names another\n");
    }
    return asked ? score : 0;
}

static int answer(const question *q, dtr_group *g, const char *text) {
    size_t count = q->nbytes / dtr_dtype_size(q->dtype);
    dtr__call call = { .kind = q->kind,
                       .dtype = q->dtype,
                       .op = q->op,
                       .divisor = q->ranks,
                       .in_count = count,
                       .out_count = count };
    dtr__selection sel;
    if (dtr__select_parse(NULL, text, &sel) < 0) {
        fprintf(stderr, "dtr-info --why: %s\n", dtr_last_error_message());
        return 2;
    }
    const char *wanted = sel.name[DTR_CPU], *best = NULL;
    bool free_choice = strcmp(wanted, "auto") == 0;
    int best_score = 0;
    print_question(q, text);
    if (q->cuda) {
        return dtr__device_explain(g, &call, sel.name[DTR_CUDA], q->one_gpu);
    }
    printf("  backend  score\n");
    const dtr__known_backend *k;
    for (int i = 0; (k = dtr__select_at(i)) != NULL; i++) {
        bool asked = free_choice || strcmp(wanted, k->name) == 0;
        int score = k->device == DTR_CPU ? print_backend(g, &call, k->backend, asked) : 0;
        if (score > best_score) {
            best_score = score;
            best = k->name;
        }
    }
    if (best == NULL) {
        printf("none is chosen: the call would be refused with DTR_ERR_UNSUPPORTED\n");
        return 1;
    }
    bool near = strcmp(best, "shm") == 0 || strcmp(best, "hier") == 0;
    printf("%s is chosen: %s%s\n", best,
           free_choice ? "of those that can, it has the highest score" : "it is named",
           !near       ? ""
           : q->shared ? "; on one node it works in the buffers themselves"
                       : "; dtr_alloc's DTR_MEM_SHARED would save copies on one node");
    return 0;
}

void dtr__print_nccl(void) {
    char version[16], built[16];
    const dtr__nccl_library *l = dtr__nccl_get();
    if (l->ops != NULL) {
        printf("NCCL            %s (built with %s)\n", dtr__nccl_version_text(l->version, version),
               dtr__nccl_version_text(l->ops->built, built));
    } else {
        printf("NCCL            not available: %s\n", l->reason);
    }
}

static int out_of_memory(const question *q) {
    fprintf(stderr, "dtr-info --why: out of memory for %d ranks\n", q->ranks);
    return 1;
}

int dtr__why(int n_arg, char **arg) {
    question q;
    int status = read_question(&q, n_arg, arg);
    if (status != 0) {
        return status;
    }
    dtr_world *w = calloc(1, sizeof *w);
    dtr_group *g = calloc(1, sizeof *g);
    int *node_of = calloc((size_t)q.ranks, sizeof *node_of);
    int *ranks = calloc((size_t)q.ranks, sizeof *ranks);
    if (w == NULL || g == NULL || node_of == NULL || ranks == NULL) {
        status = out_of_memory(&q);
    } else if (dtr__options_read(&w->options) < 0) {
        fprintf(stderr, "dtr-info: %s\n", dtr_last_error_message());
        status = 1;
    } else {
        make_up(&q, w, g, node_of, ranks);
        status = dtr__nodes_new(g, &g->backends.nodes)
                     ? answer(&q, g, dtr__opt_text(&w->options, DTR__OPT_BACKEND))
                     : out_of_memory(&q);
        dtr__options_free(&w->options);
    }
    free(w);
    free(g != NULL ? g->backends.nodes : NULL);
    free(g);
    free(node_of);
    free(ranks);
    return status;
}
