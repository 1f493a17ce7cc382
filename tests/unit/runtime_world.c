/* Opening and closing worlds under mpirun, below the groups.
 *
 *   test_runtime_world caller LEVEL   the program initialises MPI at a thread level
 *   test_runtime_world library        the library does
 *
 * A main of its own: the harness would have made a world before the first test. Checks note a
 * failure and go on, so that no rank leaves the others in a collective. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "threads.h"
#include "world/world.h"

static int failures, me, n_ranks;

#define CHECK(cond)                                                                          \
    do {                                                                                     \
        if (!(cond)) {                                                                       \
            failures++;                                                                      \
            fprintf(stderr, "rank %d: %s:%d: %s (last error: %s)\n", me, __FILE__, __LINE__, \
                    #cond, dtr_last_error_message());                                        \
        }                                                                                    \
    } while (0)

static bool said(const char *word) {
    return strstr(dtr_last_error_message(), word) != NULL;
}

static const dtr_device cpu = { DTR_CPU, 0 };

/* ---- log lines ---- */

typedef struct lines {
    pthread_mutex_t lock;
    int n, bad_prefix;
    char last[512], wanted[64];
    int matching;
} lines;

static void keep(void *arg, int level, const char *line) {
    lines *l = arg;
    char prefix[32];
    (void)level;
    snprintf(prefix, sizeof prefix, "[rank%d]: ", me);
    pthread_mutex_lock(&l->lock);
    l->n++;
    l->bad_prefix += strncmp(line, prefix, strlen(prefix)) != 0 || strchr(line, '\n') != NULL;
    l->matching += strstr(line, l->wanted) != NULL;
    snprintf(l->last, sizeof l->last, "%s", line);
    pthread_mutex_unlock(&l->lock);
}

static lines new_lines(const char *wanted) {
    lines l = { .lock = PTHREAD_MUTEX_INITIALIZER };
    snprintf(l.wanted, sizeof l.wanted, "%s", wanted);
    return l;
}

/* ---- threads ---- */

/* A joined thread may stay visible in /proc for a moment. */
static bool no_progress_threads(void) {
    for (int i = 0; i < 2000 && th_threads("dtr-progress") > 0; i++) {
        usleep(1000);
    }
    return th_threads("dtr-progress") == 0;
}

/* ---- cases under the caller's MPI ---- */

static void facts(int level) {
    dtr_world *w = NULL;
    CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &w) == DTR_OK);
    CHECK(dtr_world_rank(w) == me && dtr_world_size(w) == n_ranks);
    CHECK(dtr_world_device(w).type == DTR_CPU);
    CHECK(w->mpi.thread_level == level && !w->mpi.own && w->timeout_s == 0);
    CHECK(dtr__progress_has_thread(w) == (level == MPI_THREAD_MULTIPLE));
    CHECK(th_threads("dtr-progress") == 1); /* below MPI_THREAD_MULTIPLE it only helps */
    CHECK(w->local_world[w->local_rank] == me && w->node_of[me] == w->node);
    CHECK(w->local_rank_of[me] == w->local_rank && w->local_size <= n_ranks);
    CHECK(dtr_world_node(w) < dtr_world_node_count(w));
    CHECK(dtr__world_check(w) == DTR_OK);
    CHECK(dtr__world_close(w) == DTR_OK);
    CHECK(dtr__world_check(w) == DTR_ERR_STATE && said("destroyed"));
    CHECK(dtr_world_rank(w) == -1);
    CHECK(no_progress_threads());
    CHECK(dtr__mpi_alive());
}

/* INI6, INI24, INI27: a reversed communicator, freed at once, beside a wildcard receive. */
static void callers_communicator(void) {
    int stray = -1;
    MPI_Request any;
    MPI_Irecv(&stray, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any);
    MPI_Comm reversed;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -me, &reversed);
    dtr_world *w = NULL;
    CHECK(dtr__world_open(reversed, NULL, &w) == DTR_OK);
    MPI_Comm_free(&reversed);
    CHECK(dtr_world_rank(w) == n_ranks - 1 - me);
    for (int i = 0; i < 100; i++) {
        CHECK(dtr__agree_status(dtr__members_of(w), DTR_OK, "test") == DTR_OK);
    }
    int matched = 1;
    MPI_Test(&any, &matched, MPI_STATUS_IGNORE);
    CHECK(!matched);
    MPI_Cancel(&any);
    MPI_Wait(&any, MPI_STATUS_IGNORE);
    CHECK(dtr__world_close(w) == DTR_OK);
}

static void inter_communicator(void) {
    if (n_ranks < 2) {
        return;
    }
    MPI_Comm half, inter;
    int side = me % 2;
    MPI_Comm_split(MPI_COMM_WORLD, side, me, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - side, 7, &inter);
    dtr_world *w = NULL;
    CHECK(dtr__world_open(inter, NULL, &w) == DTR_ERR_ARG && w == NULL && said("inter"));
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
}

/* INI26: the last rank fails alone; it keeps its status, the others name it and quote it. */
static void fails_on_one(const dtr_world_options *bad, const char *variable, const char *value,
                         dtr_status status, const char *word) {
    const int culprit = n_ranks - 1;
    dtr_world *const untouched = (dtr_world *)(intptr_t)64, *w = untouched;
    char name[32];
    snprintf(name, sizeof name, "rank %d", culprit);
    if (me == culprit && variable != NULL) {
        setenv(variable, value, 1);
    }
    dtr_status s = dtr__world_open(MPI_COMM_WORLD, me == culprit ? bad : NULL, &w);
    if (variable != NULL) {
        unsetenv(variable);
    }
    CHECK(s == (me == culprit ? status : DTR_ERR_REMOTE));
    CHECK(w == untouched);
    CHECK(said(word) && (me == culprit || (said(name) && said(dtr_status_name(status)))));
    CHECK(no_progress_threads());
}

static void one_rank_fails(void) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.timeout_s = NAN;
    fails_on_one(&o, NULL, NULL, DTR_ERR_ARG, "timeout_s");
    o.timeout_s = 0;
    o.flags = 4;
    fails_on_one(&o, NULL, NULL, DTR_ERR_ARG, "flags");
    o.flags = 0;
    o.struct_size = 0;
    fails_on_one(&o, NULL, NULL, DTR_ERR_ARG, "DTR_WORLD_OPTIONS_INIT");
    o.struct_size = sizeof o;
    o.has_device = true; /* INI14 */
    const dtr_device bad[] = {
        { DTR_CUDA, 0 }, { DTR_CUDA, 99 }, { DTR_CUDA, -1 }, { DTR_CPU, 1 }
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        o.device = bad[i];
        fails_on_one(&o, NULL, NULL, DTR_ERR_DEVICE, bad[i].type == DTR_CUDA ? "no CUDA" : "CPU");
    }
    fails_on_one(NULL, "DTR_DEBUG", "on", DTR_ERR_ARG, "DTR_DEBUG is \"on\"");
    fails_on_one(NULL, "DTR_TIMEOUT", "-3", DTR_ERR_ARG, "DTR_TIMEOUT");
    dtr_world *w = NULL; /* nobody is stranded */
    CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &w) == DTR_OK);
    CHECK(dtr__world_close(w) == DTR_OK);
    if (me == 0) { /* one rank without a place for the handle */
        CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, NULL) == DTR_ERR_ARG);
    } else {
        CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &w) == DTR_ERR_REMOTE && said("rank 0"));
    }
}

/* INI2, INI3: worlds side by side, ended in either order, again and again. */
static void several_worlds(void) {
    for (int i = 0; i < 6; i++) {
        dtr_world *a = NULL, *b = NULL;
        CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &a) == DTR_OK);
        CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &b) == DTR_OK);
        CHECK(a != b && a->serial != b->serial);
        CHECK(dtr__agree_status(dtr__members_of(b), DTR_OK, "b") == DTR_OK);
        CHECK(dtr__agree_status(dtr__members_of(a), DTR_OK, "a") == DTR_OK);
        void *p = NULL;
        CHECK(dtr_alloc(a, cpu, DTR_MEM_SHARED, 100, &p) == DTR_OK);
        CHECK(dtr_free(b, p) == DTR_ERR_ARG);
        CHECK(dtr_free(a, p) == DTR_OK);
        CHECK(dtr__world_close(i % 2 == 0 ? a : b) == DTR_OK);
        CHECK(dtr__world_check(i % 2 == 0 ? b : a) == DTR_OK);
        CHECK(dtr__world_close(i % 2 == 0 ? b : a) == DTR_OK);
    }
}

/* ENV8, ENV11, ENV16, reliability:T24, T25: where the world's timeout and backend come from. */
static void timeouts(void) {
    static const struct {
        const char *environment;
        double code, wanted;
    } rows[] = { { NULL, 0, 0 }, { "2.5", 0, 2.5 },      { "2.5", 1.5, 1.5 },
                 { NULL, 7, 7 }, { "inf", 0, INFINITY }, { "3", INFINITY, INFINITY } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].environment != NULL) {
            setenv("DTR_TIMEOUT", rows[i].environment, 1);
        }
        dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
        o.timeout_s = rows[i].code;
        dtr_world *w = NULL;
        CHECK(dtr__world_open(MPI_COMM_WORLD, &o, &w) == DTR_OK);
        unsetenv("DTR_TIMEOUT");
        CHECK(w->timeout_s == rows[i].wanted);
        CHECK(dtr__world_close(w) == DTR_OK);
    }
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.backend = "cpu:self";
    setenv("DTR_BACKEND", "cpu:mpi", 1);
    dtr_world *w = NULL;
    CHECK(dtr__world_open(MPI_COMM_WORLD, &o, &w) == DTR_OK);
    CHECK(strcmp(dtr__opt_text(&w->options, DTR__OPT_BACKEND), "cpu:self") == 0);
    CHECK(dtr__world_close(w) == DTR_OK);
    CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &w) == DTR_OK);
    CHECK(strcmp(dtr__opt_text(&w->options, DTR__OPT_BACKEND), "cpu:mpi") == 0);
    unsetenv("DTR_BACKEND");
    CHECK(dtr__world_close(w) == DTR_OK);
}

/* ENV14, ENV17, INI8, reliability:S1 */
static void logging(void) {
    lines l = new_lines("DTR_DEBGU");
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.log_fn = keep;
    o.log_arg = &l;
    dtr_world *w = NULL;
    setenv("DTR_DEBGU", "detail", 1);
    setenv("DTR_FAKE_CUDA_MEM", "1", 1);
    setenv("RANK", "99", 1);
    setenv("WORLD_SIZE", "77", 1);
    setenv("LOCAL_RANK", "5", 1);
    CHECK(dtr__world_open(MPI_COMM_WORLD, &o, &w) == DTR_OK);
    unsetenv("DTR_DEBGU");
    unsetenv("DTR_FAKE_CUDA_MEM");
    CHECK(dtr_world_rank(w) == me && dtr_world_size(w) == n_ranks);
    CHECK(l.matching == (me == 0) && l.n == (me == 0) && l.bad_prefix == 0);
    CHECK(me != 0 || strstr(l.last, "DTR_DEBUG") != NULL);
    DTR_INFO(w, "not at this level");
    CHECK(l.n == (me == 0));
    DTR_WARN(w, "two\nlines");
    CHECK(strstr(l.last, "warning: two lines") != NULL && l.bad_prefix == 0);

    snprintf(l.wanted, sizeof l.wanted, "not given back");
    void *p = NULL;
    CHECK(dtr_alloc(w, cpu, DTR_MEM_SHARED, 1000, &p) == DTR_OK);
    CHECK(dtr_alloc(w, cpu, DTR_MEM_PINNED, 1000, &p) == DTR_OK);
    CHECK(dtr__world_close(w) == DTR_OK);
    CHECK(l.matching == (me == 0) + 1); /* one warning for both blocks */
}

/* reliability:S1, T16 */
static void log_file(void) {
    char pattern[64], path[80], line[256] = "", wanted[64];
    snprintf(pattern, sizeof pattern, "/tmp/dtr-test-log-%%r-%%p");
    snprintf(path, sizeof path, "/tmp/dtr-test-log-%d-%d", me, (int)getpid());
    snprintf(wanted, sizeof wanted, "[rank%d]: warning: to the file\n", me);
    setenv("DTR_LOG_FILE", pattern, 1);
    dtr_world *w = NULL;
    CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &w) == DTR_OK);
    unsetenv("DTR_LOG_FILE");
    DTR_WARN(w, "to the file");
    CHECK(dtr__world_close(w) == DTR_OK);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL && fgets(line, sizeof line, f) != NULL && strcmp(line, wanted) == 0);
    if (f != NULL) {
        fclose(f);
    }
    unlink(path);
}

/* ---- memory ---- */

static void peers_read(dtr_world *w, size_t count) {
    int *p = dtr__arena_alloc(w, count * sizeof *p, 64), owner = -1;
    uint64_t offset = 0, offsets[64] = { 0 };
    CHECK(p != NULL);
    for (size_t i = 0; p != NULL && i < count; i++) {
        p[i] = me * 1000 + (int)i;
    }
    CHECK(dtr__arena_find(w, p, count * sizeof *p, &owner, &offset) && owner == w->local_rank);
    MPI_Allgather(&offset, 1, MPI_UINT64_T, offsets, 1, MPI_UINT64_T, w->mpi.node_comm);
    for (int r = 0; r < w->local_size; r++) {
        const int *q = dtr__arena_at(w, r, offsets[r]);
        CHECK(q[0] == w->local_world[r] * 1000);
        CHECK(q[count - 1] == w->local_world[r] * 1000 + (int)count - 1);
        CHECK(dtr__arena_find(w, q + 1, 4, &owner, &offset) && owner == r);
        CHECK(offset == offsets[r] + 4);
    }
    MPI_Barrier(w->mpi.node_comm);
    dtr__arena_free(w, p);
    CHECK(dtr__arena_used(w) == 0);
}

static void arena_limits(dtr_world *w) {
    int owner, mine = 0;
    uint64_t offset;
    CHECK(!dtr__arena_find(w, &mine, sizeof mine, &owner, &offset));
    CHECK(!dtr__arena_find(w, NULL, 0, &owner, &offset));
    CHECK(!dtr__arena_find(w, (void *)UINTPTR_MAX, 1, &owner, &offset));
    const char *start = dtr__arena_at(w, 0, 0);
    CHECK(dtr__arena_find(w, start, 64, &owner, &offset) && owner == 0 && offset == 0);
    CHECK(!dtr__arena_find(w, start - 1, 64, &owner, &offset));
    CHECK(!dtr__arena_find(w, start, (size_t)1 << 60, &owner, &offset));
}

static void many_blocks(dtr_world *w, dtr_mem kind) {
    enum { N = 200 };
    unsigned char *block[N];
    for (int i = 0; i < N; i++) {
        size_t n = (size_t)(i * 7919 % 200000);
        CHECK(dtr_alloc(w, cpu, kind, n, (void **)&block[i]) == DTR_OK);
        CHECK((uintptr_t)block[i] % (n >= 65536 ? 4096 : 64) == 0);
        memset(block[i], i, n);
    }
    for (int i = 0; i < N; i++) {
        int k = i * 37 % N;
        size_t n = (size_t)(k * 7919 % 200000);
        CHECK(n == 0 || (block[k][0] == (unsigned char)k && block[k][n - 1] == (unsigned char)k));
        CHECK(dtr_free(w, block[k]) == DTR_OK);
        CHECK(dtr_free(w, block[k]) == DTR_ERR_ARG);
    }
    void *big = NULL;
    CHECK(dtr_alloc(w, cpu, kind, (size_t)5 << 20, &big) == DTR_OK);
    CHECK((uintptr_t)big % ((size_t)2 << 20) == 0);
    memset(big, 1, (size_t)5 << 20);
    CHECK(dtr_free(w, big) == DTR_OK);
    CHECK(dtr_free(w, NULL) == DTR_OK);
    void *p = &p;
    CHECK(dtr_alloc(w, cpu, kind, (size_t)1 << 58, &p) == DTR_ERR_NOMEM && p == &p);
    CHECK(said("288230376151711744"));
    CHECK(kind != DTR_MEM_SHARED || !dtr__arena_usable(w) || said("DTR_ARENA"));
    CHECK(dtr_alloc(w, cpu, kind, SIZE_MAX, &p) == DTR_ERR_NOMEM);
    CHECK(dtr_alloc(w, cpu, kind, 1, NULL) == DTR_ERR_ARG);
    CHECK(dtr_alloc(w, cpu, (dtr_mem)9, 1, &p) == DTR_ERR_ARG && p == &p);
    CHECK(dtr_alloc(w, (dtr_device){ DTR_CUDA, 0 }, kind, 1, &p) == DTR_ERR_DEVICE && p == &p);
    CHECK(said("no CUDA"));
    CHECK(dtr_alloc(w, (dtr_device){ DTR_CPU, 1 }, kind, 1, &p) == DTR_ERR_DEVICE);
}

static void memory(void) {
    lines l = new_lines("no node-shared memory");
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.log_fn = keep;
    o.log_arg = &l;
    dtr_world *w = NULL;
    setenv("DTR_ARENA", "300MiB", 1);
    CHECK(dtr__world_open(MPI_COMM_WORLD, &o, &w) == DTR_OK);
    unsetenv("DTR_ARENA");
    const unsigned ways[] = { DTR__ARENA_UNNAMED, DTR__ARENA_NAMED, 0 };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        dtr__arena_close(w);
        CHECK(dtr__arena_open_ways(w, ways[i]) == DTR_OK);
        CHECK(dtr__arena_usable(w) == (ways[i] != 0));
        if (ways[i] != 0) {
            peers_read(w, 100);
            peers_read(w, 1000000);
            arena_limits(w);
        }
        many_blocks(w, DTR_MEM_SHARED);
        const size_t used = dtr__arena_used(w); /* by the table of blocks, which does not shrink */
        many_blocks(w, DTR_MEM_SHARED);
        CHECK(dtr__arena_used(w) == used && used < 64 << 10);
    }
    CHECK(l.matching == (w->local_rank == 0)); /* once per node, for the case without any way */
    many_blocks(w, DTR_MEM_DEFAULT);
    many_blocks(w, DTR_MEM_PINNED);
    CHECK(dtr__world_close(w) == DTR_OK);
}

/* A freed block gives its pages back: the next owner of the range sees zeros. */
static void pages_return(void) {
    dtr_world *w = NULL;
    CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &w) == DTR_OK);
    unsigned char *p = NULL, *q = NULL;
    const size_t n = (size_t)1 << 20;
    CHECK(dtr_alloc(w, cpu, DTR_MEM_SHARED, n, (void **)&p) == DTR_OK);
    memset(p, 7, n);
    CHECK(dtr_free(w, p) == DTR_OK);
    CHECK(dtr_alloc(w, cpu, DTR_MEM_SHARED, n, (void **)&q) == DTR_OK);
    CHECK(q != p || !dtr__arena_usable(w) || (q[0] == 0 && q[n - 1] == 0));
    CHECK(dtr_free(w, q) == DTR_OK);
    CHECK(dtr__world_close(w) == DTR_OK);
}

/* INI27: the caller finalises MPI first. */
/* Blocks of each kind, read and written after their world. */
static void outlives(void) {
    enum { BYTES = 100000 };
    lines l = new_lines("not given back");
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.log_fn = keep;
    o.log_arg = &l;
    dtr_world *w = NULL;
    int other = 0;
    char *block[3] = { NULL };
    CHECK(dtr__world_open(MPI_COMM_WORLD, &o, &w) == DTR_OK);
    for (int i = 0; i < 3; i++) {
        dtr_mem kind = i == 0 ? DTR_MEM_DEFAULT : i == 1 ? DTR_MEM_PINNED : DTR_MEM_SHARED;
        CHECK(dtr_alloc(w, cpu, kind, BYTES, (void **)&block[i]) == DTR_OK);
        CHECK(dtr_free(NULL, block[i]) == DTR_ERR_ARG && said("the world is NULL"));
        CHECK(dtr_retain(w, block[i]) == DTR_OK && dtr_retain(w, block[i]) == DTR_OK);
        memset(block[i], i + 1, BYTES);
    }
    CHECK(dtr_retain(w, &other) == DTR_ERR_ARG && said("not a live pointer"));
    void *freed = NULL;
    for (int i = 0; i < 2; i++) { /* while the world lives: without it, and as ever */
        CHECK(dtr_alloc(w, cpu, DTR_MEM_SHARED, BYTES, &freed) == DTR_OK);
        CHECK(dtr_retain(w, freed) == DTR_OK);
        CHECK(dtr_free(i == 0 ? NULL : w, freed) == DTR_OK);
        CHECK(dtr_free(NULL, freed) == DTR_ERR_ARG);
        CHECK(dtr_free(w, freed) == DTR_ERR_ARG);
    }
    CHECK(dtr__world_close(w) == DTR_OK);
    CHECK(l.matching == 0);
    CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &w) == DTR_OK); /* another one in between */
    for (int i = 0; i < 3; i++) {
        size_t same = 0;
        while (same < BYTES && block[i][same] == i + 1) {
            same++;
        }
        CHECK(same == BYTES);
        memset(block[i], 7, BYTES);
        CHECK(dtr_free(w, block[i]) == DTR_ERR_ARG);
        CHECK(dtr_free(NULL, block[i]) == DTR_OK);
        CHECK(dtr_free(NULL, block[i]) == DTR_ERR_ARG);
    }
    CHECK(dtr__world_close(w) == DTR_OK);
}

static void finalized_first(void) {
    dtr_world *w = NULL;
    CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &w) == DTR_OK);
    MPI_Finalize();
    CHECK(!dtr__mpi_alive());
    CHECK(dtr__world_close(w) == DTR_ERR_STATE && said("MPI was finalised before"));
    CHECK(no_progress_threads());
    w = NULL;
    CHECK(dtr__world_open(MPI_COMM_WORLD, NULL, &w) == DTR_ERR_STATE && w == NULL);
    CHECK(dtr__world_open(MPI_COMM_NULL, NULL, &w) == DTR_ERR_STATE && said("finalised"));
}

static int caller(const char *level_name) {
    static const char *const names[] = { "single", "funneled", "serialized", "multiple" };
    static const int levels[] = { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                                  MPI_THREAD_MULTIPLE };
    int level = 0;
    while (level < 3 && strcmp(level_name, names[level]) != 0) {
        level++;
    }
    dtr_world *w = NULL; /* INI27: from a communicator, before MPI is there */
    CHECK(dtr__world_open(MPI_COMM_SELF, NULL, &w) == DTR_ERR_STATE && w == NULL);
    int provided;
    MPI_Init_thread(NULL, NULL, levels[level], &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    facts(provided);
    callers_communicator();
    inter_communicator();
    one_rank_fails();
    several_worlds();
    timeouts();
    logging();
    log_file();
    memory();
    pages_return();
    outlives();
    finalized_first();
    return failures != 0;
}

/* ---- MPI started by the library: INI1, INI3 ---- */

static int library(void) {
    dtr_world *w = NULL, *second = NULL;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.timeout_s = NAN; /* a failure first: MPI stays usable */
    CHECK(dtr__world_open(MPI_COMM_NULL, &o, &w) == DTR_ERR_ARG && w == NULL);
    o.timeout_s = 0;
    o.keep_mpi = true;
    for (int i = 0; i < 3; i++) {
        CHECK(dtr__world_open(MPI_COMM_NULL, &o, &w) == DTR_OK);
        me = dtr_world_rank(w);
        CHECK(w->mpi.own && w->mpi.thread_level == MPI_THREAD_MULTIPLE);
        CHECK(dtr__world_close(w) == DTR_OK);
        CHECK(dtr__mpi_alive());
    }
    CHECK(dtr__world_open(MPI_COMM_NULL, NULL, &w) == DTR_OK);
    CHECK(dtr__world_open(MPI_COMM_NULL, NULL, &second) == DTR_OK);
    CHECK(dtr__world_close(w) == DTR_OK);
    CHECK(dtr__mpi_alive()); /* the second still needs it */
    CHECK(dtr__world_close(second) == DTR_OK);
    CHECK(!dtr__mpi_alive());
    w = NULL;
    CHECK(dtr__world_open(MPI_COMM_NULL, NULL, &w) == DTR_ERR_STATE && w == NULL);
    CHECK(said("keep_mpi"));
    return failures != 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "caller") == 0) {
        return caller(argv[2]);
    }
    return argc == 2 && strcmp(argv[1], "library") == 0 ? library() : 2;
}
