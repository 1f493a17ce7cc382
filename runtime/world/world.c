/* The world below its groups: opening it so that all ranks succeed or all fail, closing it, and
 * what it knows. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <dtr/version.h>

#include "bootstrap/bootstrap.h"
#include "control/control.h"
#include "control/peers.h"
#include "control/vote.h"
#include "diagnosis/dump.h"
#include "diagnosis/metrics.h"
#include "diagnosis/stragglers.h"
#include "diagnosis/watchdog.h"
#include "diagnosis/writer.h"
#include "launcher.h"
#include "memory/device.h"
#include "world/nodes.h"
#include "world/world.h"

enum { TAG_UB_NEEDED = 196607 };

/* ---- handles: a destroyed world stays readable, so that using it is an error and no crash. Its
 * memory serves the next world of the process. ---- */

typedef struct shell {
    dtr_world world; /* first: a dtr_world * is a shell * */
    struct shell *next;
} shell;

static pthread_mutex_t shells_lock = PTHREAD_MUTEX_INITIALIZER;
static shell *shells; /* of destroyed worlds; shells_lock */

static dtr_world *new_handle(void) {
    pthread_mutex_lock(&shells_lock);
    shell *s = shells;
    shells = s != NULL ? s->next : NULL;
    pthread_mutex_unlock(&shells_lock);
    if (s == NULL) {
        s = malloc(sizeof *s);
    }
    if (s != NULL) {
        memset(s, 0, sizeof *s);
        s->world.mpi.comm = s->world.mpi.node_comm = MPI_COMM_NULL;
    }
    return s != NULL ? &s->world : NULL;
}

static void retire_handle(dtr_world *world) {
    shell *s = (shell *)world;
    memset(s, 0, sizeof *s);
    world->magic = DTR__WORLD_GONE;
    world->rank = world->size = world->local_rank = world->local_size = -1;
    world->node = world->node_count = -1;
    pthread_mutex_lock(&shells_lock);
    s->next = shells;
    shells = s;
    pthread_mutex_unlock(&shells_lock);
}

/* ---- opening, first half: what one rank can judge alone ---- */

static dtr_status check_options(const dtr_world_options *given, dtr_world_options *o) {
    DTR_TRY(dtr__options_copy(given, o, sizeof *o, "dtr_world_options"));
    DTR_TRY(dtr__options_limit(NULL, "dtr_world_options", &o->timeout_s));
    DTR_REQUIRE(o->flags == 0, NULL, DTR_ERR_ARG,
                "dtr_world_options.flags is 0x%x, but no flag is defined: leave it 0",
                (unsigned)o->flags);
    if (o->has_device) {
        DTR_TRY(dtr__device_check(o->device, "dtr_world_options.device"));
    }
    return DTR_OK;
}

/* The environment, then the code on top. */
static dtr_status read_settings(dtr_world *w, const dtr_world_options *o) {
    DTR_TRY(dtr__options_read(&w->options));
    if (o->timeout_s > 0) {
        DTR_TRY(dtr__options_set_seconds(&w->options, DTR__OPT_TIMEOUT, o->timeout_s));
    }
    if (o->backend != NULL) {
        DTR_TRY(dtr__options_set(&w->options, DTR__OPT_BACKEND, o->backend));
    }
    bool set = w->options.value[DTR__OPT_TIMEOUT].origin != DTR__FROM_DEFAULT;
    w->timeout_s = set ? dtr__opt_seconds(&w->options, DTR__OPT_TIMEOUT) : 0;
    w->device = o->has_device ? o->device : (dtr_device){ DTR_CPU, 0 };
    w->bound = o->has_device;
    w->mpi.keep = o->keep_mpi;
    return DTR_OK;
}

static dtr_status make_tables(dtr_world *w) {
    size_t n = (size_t)w->size;
    w->node_of = malloc(n * sizeof *w->node_of);
    w->local_rank_of = malloc(n * sizeof *w->local_rank_of);
    w->local_world = malloc(n * sizeof *w->local_world);
    DTR_REQUIRE(w->node_of != NULL && w->local_rank_of != NULL && w->local_world != NULL, NULL,
                DTR_ERR_NOMEM, "no memory for the rank tables of %d ranks", w->size);
    return DTR_OK;
}

static dtr_status check_tags(dtr_world *w) {
    int *tag_ub, found = 0;
    DTR_MPI(NULL, MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_ub, &found));
    w->mpi.tag_ub = found ? *tag_ub : 32767;
    DTR_REQUIRE(w->mpi.tag_ub >= TAG_UB_NEEDED, NULL, DTR_ERR_UNSUPPORTED,
                "this MPI's tags end at %d; the library needs at least %d", w->mpi.tag_ub,
                TAG_UB_NEEDED);
    return DTR_OK;
}

static dtr_status prepare(const dtr_world_options *given, dtr_world **out, dtr_world_options *o,
                          dtr_world *w) {
    DTR_REQUIRE(w != NULL, NULL, DTR_ERR_NOMEM, "no memory for a world");
    DTR_REQUIRE(out != NULL, NULL, DTR_ERR_ARG, "dtr_world_create: world is NULL");
    DTR_TRY(check_options(given, o));
    DTR_REQUIRE((o->bootstrap != NULL) == (w->mpi.inbox != NULL), NULL, DTR_ERR_ARG,
                "dtr_world_options.bootstrap is for dtr_world_create; the ranks of a communicator "
                "know each other");
    DTR_TRY(read_settings(w, o));
    if (w->mpi.inbox == NULL) {
        DTR_TRY(dtr__launcher_check(w));
        DTR_TRY(check_tags(w));
    }
    return make_tables(w);
}

/* ---- opening, second half: all ranks are here ---- */

/* A number that no other world of this machine's user has. */
static uint64_t own_id(void) {
    struct timespec now;
    uint64_t random = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random) {
        random = (uint64_t)getpid();
    }
    return (uint64_t)now.tv_sec << 32 | ((random ^ (uint64_t)now.tv_nsec) & UINT32_MAX);
}

static dtr_status look_around(dtr_world *w) {
    dtr__error_context ctx = { .world = w };
    DTR_MPI(&ctx, MPI_Comm_set_errhandler(w->mpi.node_comm, MPI_ERRORS_RETURN));
    DTR_MPI(&ctx, MPI_Comm_rank(w->mpi.node_comm, &w->local_rank));
    DTR_MPI(&ctx, MPI_Comm_size(w->mpi.node_comm, &w->local_size));
    return DTR_OK;
}

/* DTR_NODE_RANKS makes several nodes of a host; its CPUs have been counted. */
static dtr_status cut_host(dtr_world *w) {
    dtr__error_context ctx = { .world = w };
    int most = (int)dtr__opt_number(&w->options, DTR__OPT_NODE_RANKS);
    if (most == 0) {
        return DTR_OK;
    }
    MPI_Comm host = w->mpi.node_comm;
    w->mpi.node_comm = MPI_COMM_NULL;
    int code = MPI_Comm_split(host, w->local_rank / most, w->local_rank, &w->mpi.node_comm);
    MPI_Comm_free(&host);
    if (code != MPI_SUCCESS) {
        return dtr__error_mpi(&ctx, code, "MPI_Comm_split", __FILE__, __LINE__);
    }
    return look_around(w);
}

/* The ranks of this host, as MPI finds them. */
static dtr_status split_by_host(dtr_world *w) {
    dtr__error_context ctx = { .world = w };
    DTR_MPI(&ctx, MPI_Comm_split_type(w->mpi.comm, MPI_COMM_TYPE_SHARED, w->rank, MPI_INFO_NULL,
                                      &w->mpi.node_comm));
    return look_around(w);
}

/* Without MPI: it has been found out. */
static void take_places(dtr_world *w, const int *ranks, int n) {
    w->local_size = n;
    for (int i = 0; i < n; i++) {
        w->local_world[i] = ranks[i];
        w->local_rank = ranks[i] == w->rank ? i : w->local_rank;
    }
}

static dtr_status find_places(dtr_world *w, void *scratch) {
    if (w->mpi.inbox != NULL) {
        int n = 0;
        const int *ranks = dtr__inbox_host(w->mpi.inbox, &n);
        take_places(w, ranks, n);
        DTR_TRY(dtr__wait_open(w, scratch));
        ranks = dtr__inbox_members(w->mpi.inbox, &n);
        take_places(w, ranks, n);
    } else {
        DTR_TRY(split_by_host(w));
        DTR_TRY(dtr__wait_open(w, scratch));
        DTR_TRY(cut_host(w));
    }
    dtr__rank_facts mine, *facts = scratch;
    memset(&mine, 0, sizeof mine); /* its gap is sent too */
    mine.leader = w->rank;
    mine.id = own_id();
    DTR_TRY(dtr__exchange_broadcast(dtr__members_of_node(w), &mine.leader, sizeof mine.leader, 0));
    DTR_TRY(dtr__exchange_allgather(dtr__members_of(w), &mine, facts, sizeof mine));
    w->job_id = facts[0].id;
    dtr__number_nodes(w, facts);
    return DTR_OK;
}

static dtr_status open_parts(dtr_world *w, const dtr_world_options *o) {
    DTR_TRY(dtr__log_open(w, o));
    DTR_TRY(dtr__trace_open(w));
    DTR_TRY(dtr__metrics_open(w));
    w->diagnosis.writer = dtr__writer_new();
    DTR_REQUIRE(w->diagnosis.writer != NULL, NULL, DTR_ERR_NOMEM,
                "no memory for the writer of files");
    DTR_TRY(dtr__memory_open(w));
    DTR_TRY(dtr__recorder_open(w));
    DTR_TRY(dtr__dump_open(w));
    return dtr__progress_open(w, &dtr__recorder_header(w)->progress_beat);
}

static void warn_unknown(void *world, const char *name, const char *nearest) {
    DTR_WARN((const dtr_world *)world,
             "%s is no setting of this library and has no effect; did "
             "you mean %s? (dtr-info --options lists all)",
             name, nearest);
}

static void close_writer(dtr_world *w) {
    const double limit_s = 5;
    if (!dtr__writer_close(w->diagnosis.writer, limit_s)) {
        DTR_WARN(w,
                 "a dump or the metrics of this rank could not be written within %g s: does the "
                 "file system hang? The thread that writes is left to itself",
                 limit_s);
    }
    w->diagnosis.writer = NULL;
}

/* Ends everything local and, while MPI lives, the communicators. */
static dtr_status dismantle(dtr_world *w, bool mpi_alive) {
    dtr_status s = DTR_OK;
    dtr__progress_close(w);
    dtr__rec_progress_moves(w);
    close_writer(w);
    dtr__memory_close(w);
    dtr__votes_close(w);
    dtr__control_close(w);
    dtr__cma_close(w);
    dtr__arena_close(w);
    dtr__dump_close(w);
    dtr__peers_close(w);
    dtr__recorder_close(w);
    dtr__metrics_close(w);
    dtr__trace_close(w);
    dtr__log_close(w);
    MPI_Comm *const comms[] = { &w->mpi.node_comm, &w->mpi.comm };
    for (size_t i = 0; mpi_alive && i < sizeof comms / sizeof comms[0]; i++) {
        if (*comms[i] != MPI_COMM_NULL && atomic_load(&w->mpi.kept)) {
            dtr__mpi_keep(w, comms[i]);
        }
        int code = dtr__mpi_free(comms[i]);
        if (code != MPI_SUCCESS && s == DTR_OK) {
            s = dtr__error_mpi(NULL, code, "MPI_Comm_free", __FILE__, __LINE__);
        }
    }
    dtr__inbox_free(w->mpi.inbox);
    free(w->node_of);
    free(w->local_rank_of);
    free(w->local_world);
    dtr__options_free(&w->options);
    retire_handle(w);
    return s;
}

/* `s` is what this rank thinks so far; every rank of the world comes here. */
static dtr_status open_together(dtr_world *w, const dtr_world_options *o, dtr_status s) {
    static const char what[] = "world creation";
    enum { PER_RANK = DTR__WAIT_SCRATCH };
    _Static_assert(sizeof(dtr__rank_facts) <= PER_RANK, "the scratch memory serves both");
    void *scratch = malloc((size_t)w->size * PER_RANK);
    if (s == DTR_OK && scratch == NULL) {
        s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "no memory for the facts of %d ranks", w->size);
    }
    s = dtr__agree_status(dtr__members_of(w), s, what);
    if (s == DTR_OK) {
        s = dtr__agree_settings(w);
        if (s == DTR_OK) {
            s = find_places(w, scratch);
        }
        if (s == DTR_OK) {
            s = open_parts(w, o);
        }
        s = dtr__agree_status(dtr__members_of(w), s, what);
    }
    free(scratch);
    if (s == DTR_OK) {
        s = dtr__tune_open(w);
        DTR_KEEP_FIRST(s, dtr__peers_open(w));
        DTR_KEEP_FIRST(s, dtr__arena_open(w));
        DTR_KEEP_FIRST(s, dtr__cma_open(w));
        DTR_KEEP_FIRST(s, dtr__control_open(w));
        DTR_KEEP_FIRST(s, dtr__votes_open(w));
        s = dtr__agree_status(dtr__members_of(w), s, what);
    }
    return s;
}

/* What is read before the ranks have found each other: how long a rank waits for the others to
 * come, as an operation would, but the ranks of a job do not start all at once; and what
 * is said of nodes. What cannot be read is refused later. */
typedef struct early {
    double limit_s;
    dtr__options env;
    bool has_env;
    const dtr_bootstrap *bootstrap;
} early;

static early read_early(const dtr_world_options *given) {
    enum { LEAST_S = 60, DEFAULT_S = 1800 };
    dtr_world_options o;
    early e = { .limit_s = 0 };
    if (dtr__options_copy(given, &o, sizeof o, "dtr_world_options") == DTR_OK) {
        e.limit_s = o.timeout_s;
        e.bootstrap = o.bootstrap;
    }
    e.has_env = dtr__options_read(&e.env) == DTR_OK;
    if (e.has_env) {
        e.limit_s = e.limit_s > 0 ? e.limit_s : dtr__opt_seconds(&e.env, DTR__OPT_TIMEOUT);
    }
    e.limit_s = e.limit_s > 0 ? e.limit_s : DEFAULT_S;
    e.limit_s = e.limit_s > LEAST_S ? e.limit_s : LEAST_S;
    return e;
}

/* A duplicate of `comm` with errors returned, and this rank in it. */
static dtr_status duplicate(MPI_Comm comm, double limit_s, MPI_Comm *dup, int *rank, int *size) {
    int inter = 0;
    DTR_MPI(NULL, MPI_Comm_test_inter(comm, &inter));
    DTR_REQUIRE(!inter, NULL, DTR_ERR_ARG,
                "the communicator is an inter-communicator; a world needs an intra-communicator "
                "(MPI_Intercomm_merge makes one)");
    DTR_TRY(dtr__mpi_await_all(comm, limit_s));
    DTR_MPI(NULL, MPI_Comm_dup(comm, dup));
    DTR_MPI(NULL, MPI_Comm_set_errhandler(*dup, MPI_ERRORS_RETURN));
    DTR_MPI(NULL, MPI_Comm_rank(*dup, rank));
    DTR_MPI(NULL, MPI_Comm_size(*dup, size));
    return DTR_OK;
}

/* The facts of a world that go with how its ranks have found each other. */
static dtr_status find_by_mpi(MPI_Comm comm, double limit_s, dtr_world *w) {
    DTR_TRY(dtr__mpi_acquire(comm == MPI_COMM_NULL, &w->mpi.thread_level, &w->mpi.own, &w->serial));
    MPI_Comm from = comm == MPI_COMM_NULL ? MPI_COMM_WORLD : comm;
    dtr_status s = duplicate(from, limit_s, &w->mpi.comm, &w->rank, &w->size);
    if (s == DTR_OK) {
        s = dtr__agree_version(dtr__members_over(w->mpi.comm, w->rank, w->size), DTR_VERSION);
    }
    if (s != DTR_OK) {
        DTR_CLEAN_UP(s, dtr__mpi_free(&w->mpi.comm), dtr__mpi_release(false));
    }
    return s;
}

static dtr_status find_by_bootstrap(const early *e, dtr_world *w) {
    dtr__bootstrap_settings set = { .limit_s = e->limit_s, .interface = "", .silence_s = 10 };
    if (e->has_env) {
        set.most = (int)dtr__opt_number(&e->env, DTR__OPT_NODE_RANKS);
        set.interface = dtr__opt_text(&e->env, DTR__OPT_CONTROL_INTERFACE);
        set.silence_s = dtr__opt_seconds(&e->env, DTR__OPT_NODE_SILENCE);
    }
    DTR_TRY(dtr__bootstrap_open(e->bootstrap, &set, &w->mpi.inbox));
    w->mpi.tcp = dtr__inbox_tcp(w->mpi.inbox);
    w->mpi.exchange = &dtr__exchange_over_inbox;
    w->rank = e->bootstrap->rank;
    w->size = e->bootstrap->size;
    w->mpi.thread_level = MPI_THREAD_MULTIPLE; /* as no call is one of MPI */
    w->serial = dtr__mpi_pass();
    return DTR_OK;
}

static dtr_status leave_mpi(const dtr_world *found, bool finish) {
    return found->mpi.inbox != NULL ? DTR_OK : dtr__mpi_release(finish);
}

/* A rank whose arguments are bad, or that has no memory, comes along as far as the agreement:
 * nobody may be left waiting for it. MPI stays initialised after a failure, so that the program can
 * try again; the next world that is destroyed ends it. */
dtr_status dtr__world_open(MPI_Comm comm, const dtr_world_options *o, dtr_world **world) {
    dtr_world found = { .mpi = { .comm = MPI_COMM_NULL, .node_comm = MPI_COMM_NULL } };
    dtr_world_options own_options;
    DTR_TRY(dtr__fork_check("a new world"));
    early e = read_early(o);
    const dtr_status come = comm == MPI_COMM_NULL && e.bootstrap != NULL
                                ? find_by_bootstrap(&e, &found)
                                : find_by_mpi(comm, e.limit_s, &found);
    if (e.has_env) {
        dtr__options_free(&e.env);
    }
    DTR_TRY(come);
    dtr_world *w = new_handle();
    if (w == NULL) {
        dtr_status s = prepare(o, world, &own_options, w);
        s = dtr__agree_status(dtr__members_of(&found), s, "world creation");
        dtr__mpi_free(&found.mpi.comm);
        dtr__inbox_free(found.mpi.inbox);
        leave_mpi(&found, false);
        return s;
    }
    dtr__fork_watch(found.rank);
    *w = found;
    if (gethostname(w->host, sizeof w->host - 1) != 0) {
        strcpy(w->host, "?");
    }
    dtr_status s = open_together(w, &own_options, prepare(o, world, &own_options, w));
    if (s != DTR_OK) {
        dismantle(w, true);
        leave_mpi(&found, false);
        return s;
    }
    w->magic = DTR__WORLD_MAGIC;
    if (w->rank == 0) {
        dtr__options_unknown(warn_unknown, w);
    }
    dtr__launcher_warn(w);
    DTR_INFO(w, "world of %d ranks on %d nodes; this is local rank %d of %d on %s", w->size,
             w->node_count, w->local_rank, w->local_size, w->host);
    *world = w;
    return DTR_OK;
}

dtr_status dtr__world_close(dtr_world *world) {
    const bool alive = dtr__ranks_reachable(world), over_mpi = world->mpi.inbox == NULL;
    bool finish = !world->mpi.keep;
    if (finish && world->mpi.own && dtr__ranks_failed(world) > 0) {
        DTR_WARN(world, "a rank has died, so MPI_Finalize could wait for ever and is left out");
        finish = false;
    }
    dtr__stragglers_report(world);
    dtr__metrics_last(world);
    dtr_status s = dismantle(world, alive);
    if (over_mpi) {
        DTR_KEEP_FIRST(s, dtr__mpi_release(finish));
    }
    if (!alive) {
        s = DTR_FAIL(NULL, DTR_ERR_STATE,
                     "MPI was finalised before dtr_world_destroy: this rank's part of the world is "
                     "freed, but the ranks have not parted in order; destroy worlds first");
    }
    return s;
}

void dtr__world_abandon(dtr_world *world) {
    const char *inside = dtr__progress_inside(world);
    DTR_WARN(world,
             "the progress thread is still inside %.*s: what it uses is left in place, and "
             "MPI_Finalize is left out",
             inside != NULL ? (int)strcspn(inside, "(") : 10,
             inside != NULL ? inside : "an unknown call");
    dtr__watchdog_stop(world);
    dtr__rec_phase(world, DTR__PHASE_ABANDONED);
    dtr__metrics_last(world);
    dtr__progress_forget(world);
    world->magic = DTR__WORLD_GONE;
    (void)leave_mpi(world, false);
}

/* ---- queries ---- */

int dtr_world_rank(const dtr_world *world) {
    return world == NULL ? -1 : world->rank;
}

int dtr_world_size(const dtr_world *world) {
    return world == NULL ? -1 : world->size;
}

int dtr_world_local_rank(const dtr_world *world) {
    return world == NULL ? -1 : world->local_rank;
}

int dtr_world_local_size(const dtr_world *world) {
    return world == NULL ? -1 : world->local_size;
}

int dtr_world_node(const dtr_world *world) {
    return world == NULL ? -1 : world->node;
}

int dtr_world_node_count(const dtr_world *world) {
    return world == NULL ? -1 : world->node_count;
}

dtr_device dtr_world_device(const dtr_world *world) {
    return world == NULL ? (dtr_device){ DTR_CPU, 0 } : world->device;
}
