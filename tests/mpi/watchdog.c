/* The watchdog of a world from its start to its end (reliability: N1, N2, N13, N16).
 *
 *   WORLD_CYCLES=1000 mpirun -n 2 test_watchdog    N2 in its long form; scripts/soak --worlds */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include <dtr/mpi.h>

#include "core/team.h"
#include "groups_common.h"
#include "recorder/recording.h"
#include "resident.h"
#include "threads.h"
#include "world/world.h"

/* ---- what this process has ---- */

/* A joined thread may stay in /proc for a moment; the test's own limit ends what never goes. */
static void await_threads(const char *name, int n) {
    while (th_threads(name) != n) {
        th_sleep(0.001);
    }
}

static int descriptors(void) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir != NULL && readdir(dir) != NULL) {
        n++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return n;
}

/* Of memory that is shared with others: segments and recordings. */
static int shared_mappings(void) {
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        n += strstr(line, "dtr") != NULL && strstr(line, "s ") != NULL &&
             strstr(line, "test_") == NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

static dtr_world *own_world(void (*log)(void *, int, const char *)) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    o.log_fn = log;
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_OK);
    return w;
}

static void good(dtr_group *g) {
    int64_t in = 1, out = 0;
    dtr_buffer a = dtr_cpu(&in, 1, DTR_I64), b = dtr_cpu(&out, 1, DTR_I64);
    TH_IS(dtr_allreduce(g, a, b, DTR_SUM, NULL, NULL), DTR_OK);
    TH_CHECK(out == dtr_group_size(g), "%lld members", (long long)out);
}

/* ---- N1 ---- */

START_TEST(N1_one_per_world_however_many_groups) {
    enum { GROUPS = 10 };
    dtr_group *g[GROUPS] = { NULL };
    const int before = th_threads("dtr-watchdog"), all = th_threads("");
    dtr_world *w = own_world(NULL);
    await_threads("dtr-watchdog", before + 1);
    const int with = th_threads("");
    for (int i = 0; i < GROUPS; i++) {
        TH_IS(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g[i]), DTR_OK);
        good(g[i]);
    }
    TH_CHECK(th_threads("dtr-watchdog") == before + 1, "%d watchdogs", th_threads("dtr-watchdog"));
    TH_CHECK(th_threads("") == with, "groups have threads of their own: %d, not %d", th_threads(""),
             with);
    for (int i = 0; i < GROUPS; i++) {
        TH_IS(dtr_group_destroy(g[i]), DTR_OK);
    }
    TH_IS(dtr_world_destroy(w), DTR_OK);
    await_threads("dtr-watchdog", before);
    await_threads("", all);
    TH_AGREE();
}
END_TEST

/* ---- N2 ---- */

static void cycles(int n) {
    for (int i = 0; i < n; i++) {
        dtr_world *w = own_world(NULL);
        good(dtr_world_group(w));
        TH_IS(dtr_world_destroy(w), DTR_OK);
    }
}

/* Also in the time the watchdog has for its first look: a wake-up that is lost costs the nap of
 * DTR_WATCHDOG_MS, so with a nap of minutes it costs the test. */
START_TEST(N2_worlds_come_and_go) {
    const char *asked = getenv("WORLD_CYCLES");
    const int n = asked != NULL ? atoi(asked) : 6;
    setenv("DTR_WATCHDOG_MS", "10000", 1);
    cycles(4);
    const int all = th_threads(""), fds = descriptors(), maps = shared_mappings();
    const long resident = th_resident_kib();
    cycles(n);
    unsetenv("DTR_WATCHDOG_MS");
    await_threads("", all);
    const long grown = th_resident_kib() - resident;
    if (th_rank() == 0 && asked != NULL) {
        printf("%d worlds: threads %d to %d, descriptors %d to %d, shared mappings %d to %d, "
               "resident %+ld KiB\n",
               n, all, th_threads(""), fds, descriptors(), maps, shared_mappings(), grown);
    }
    TH_CHECK(descriptors() == fds, "%d descriptors, not %d", descriptors(), fds);
    TH_CHECK(shared_mappings() == maps, "%d mappings, not %d", shared_mappings(), maps);
    TH_CHECK(asked == NULL || grown < 4096 + 20L * n, "resident memory grew by %ld KiB", grown);
    TH_AGREE();
}
END_TEST

/* ---- N13: who is busy with a dump or a line of the log holds up nobody ---- */

static atomic_bool may_go_on, is_inside;

static void hold_up(void) {
    atomic_store(&is_inside, true);
    while (!atomic_load(&may_go_on)) {
        th_sleep(0.001);
    }
}

int wrapped_rename(const char *from, const char *to) __asm__("__wrap_rename");
int libc_rename(const char *from, const char *to) __asm__("__real_rename");

int wrapped_rename(const char *from, const char *to) {
    if (strstr(to, ".dump.json") != NULL) {
        hold_up();
    }
    return libc_rename(from, to);
}

static void hold_up_warning(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    if (strstr(line, "is unfinished since") != NULL) {
        hold_up();
    }
}

static void await_inside(void) {
    while (!atomic_load(&is_inside)) {
        th_sleep(0.001);
    }
}

/* Operations of all sorts, while the watchdog is where it was. */
static void work_on(dtr_group *g) {
    enum { WORKS = 20 };
    dtr_work *w[WORKS] = { NULL };
    float x[WORKS] = { 0 };
    for (int i = 0; i < WORKS; i++) {
        dtr_buffer b = dtr_cpu(&x[i], 1, DTR_F32);
        TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, i % 2 == 0 ? &w[i] : NULL), DTR_OK);
    }
    for (int i = 0; i < WORKS; i++) {
        TH_IS(dtr_work_wait(w[i], -1), DTR_OK);
        TH_IS(dtr_work_release(w[i]), DTR_OK);
    }
}

/* A world in whose folder a dump hangs. */
static dtr_world *hanging_world(char folder[64]) {
    strcpy(folder, "/tmp/dtr-test-watchdog-XXXXXX");
    TH_CHECK(th_rank() != 0 || mkdtemp(folder) != NULL, "no folder");
    MPI_Bcast(folder, 64, MPI_CHAR, 0, MPI_COMM_WORLD);
    setenv("DTR_RECORDER_DIR", folder, 1);
    dtr_world *w = own_world(NULL);
    setenv("DTR_RECORDER_DIR", "none", 1);
    atomic_store(&is_inside, false);
    atomic_store(&may_go_on, false);
    atomic_fetch_add(&dtr__recorder_header(w)->dump_requested, 1); /* as dtr-doctor --trigger */
    await_inside();
    return w;
}

static void remove_folder(const char *folder) {
    char command[128];
    TH_AGREE();
    snprintf(command, sizeof command, "rm -r %s", folder);
    TH_ALL(th_rank() != 0 || system(command) == 0, "%s", command);
}

START_TEST(N13_issue_during_a_dump) {
    char folder[64];
    dtr_world *w = hanging_world(folder);
    work_on(dtr_world_group(w));
    TH_CHECK(!atomic_load(&may_go_on), "the dump was over");
    atomic_store(&may_go_on, true);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    remove_folder(folder);
}
END_TEST

/* The watchdog beats, and sees what else there is to see, while the file system hangs. */
START_TEST(N13_beats_during_a_dump) {
    char folder[64];
    dtr_world *w = hanging_world(folder);
    const dtr__rec_header *h = dtr__recorder_header(w);
    for (int i = 0; i < 3; i++) {
        const int64_t before = atomic_load(&h->beat_ns);
        for (double end = th_now() + 30; atomic_load(&h->beat_ns) == before && th_now() < end;) {
            th_sleep(0.001);
        }
        TH_CHECK(atomic_load(&h->beat_ns) != before, "the watchdog stands still");
    }
    TH_CHECK(atomic_load(&h->dumps) == 0, "the dump counts as written");
    atomic_store(&may_go_on, true);
    for (double end = th_now() + 30; atomic_load(&h->dumps) == 0 && th_now() < end;) {
        th_sleep(0.001);
    }
    TH_CHECK(atomic_load(&h->dumps) > 0, "the dump has not been counted");
    TH_IS(dtr_world_destroy(w), DTR_OK);
    remove_folder(folder);
}
END_TEST

/* Nor does it keep a world from ending. */
START_TEST(N13_ends_during_a_dump) {
    char folder[64];
    dtr_world *w = hanging_world(folder);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
    atomic_store(&may_go_on, true);
    await_threads("dtr-writer", 0);
    remove_folder(folder);
}
END_TEST

START_TEST(N13_issue_during_a_warning) {
    const bool late = th_rank() == th_size() - 1;
    setenv("DTR_STALL_WARN", "0.05", 1);
    setenv("DTR_WATCHDOG_MS", "10", 1);
    dtr_world *w = own_world(hold_up_warning);
    unsetenv("DTR_STALL_WARN");
    unsetenv("DTR_WATCHDOG_MS");
    dtr_group *g = dtr_world_group(w), *other = NULL;
    dtr_work *work = NULL;
    TH_IS(dtr_group_split(g, 0, 0, NULL, &other), DTR_OK);
    atomic_store(&is_inside, false);
    atomic_store(&may_go_on, false);
    if (!late) {
        TH_IS(dtr_barrier(g, NULL, &work), DTR_OK);
        await_inside();
    }
    th_barrier();
    work_on(other);
    if (late) {
        TH_IS(dtr_barrier(g, NULL, &work), DTR_OK);
    }
    TH_IS(dtr_work_wait(work, -1), DTR_OK);
    TH_IS(dtr_work_release(work), DTR_OK);
    work_on(g);
    atomic_store(&may_go_on, true);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- N16: on rank 0 another thread destroys, which waits for the others ---- */

typedef struct ender {
    dtr_world *world;
    dtr_group *group; /* NULL: the world ends */
    dtr_status status;
} ender;

static void *end_it(void *arg) {
    ender *e = arg;
    e->status = e->group != NULL ? dtr_group_destroy(e->group) : dtr_world_destroy(e->world);
    return NULL;
}

static void refused(dtr_group *g) {
    float x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_F32);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    o.timeout_s = 0.5; /* taken, it would end so, and what waits for it */
    dtr_status s = dtr_allreduce(g, b, b, DTR_SUM, &o, &w);
    TH_IS(s, DTR_ERR_STATE);
    if (s != DTR_ERR_STATE) {
        return;
    }
    TH_MESSAGE("its destruction has begun on this rank");
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_STATE);
    TH_IS(dtr_send(g, b, 1, 0, NULL, &w), DTR_ERR_STATE);
    TH_CHECK(w == NULL, "a work of a refused call");
    TH_IS(dtr_broadcast_bytes(g, &(dtr_bytes){ "x", 1 }, 1, 0, NULL, &(dtr_bytes){ NULL, 0 }),
          DTR_ERR_STATE);
    TH_IS(dtr_monitored_barrier(g, -1, false, NULL, NULL), DTR_ERR_STATE);
    TH_IS(dtr_coalesce_begin(g), DTR_ERR_STATE);
    TH_IS(dtr_group_status(g), DTR_OK);
}

static void issue_late(dtr_group *g, ender *e) {
    pthread_t thread;
    for (int i = 0; i < 5; i++) {
        good(g); /* also in its short way for repeated calls */
    }
    if (th_rank() == 0) {
        TH_CHECK(pthread_create(&thread, NULL, end_it, e) == 0, "no thread");
        while ((atomic_load(&g->aside) & DTR__CLOSING) == 0) {
            th_sleep(0.001);
        }
        refused(g);
    }
    th_barrier();
    if (th_rank() == 0) {
        pthread_join(thread, NULL);
    } else {
        (void)end_it(e);
    }
    TH_IS(e->status, DTR_OK);
    TH_AGREE();
}

START_TEST(N16_nothing_is_issued_once_destroy_has_begun) {
    ender e = { .world = own_world(NULL) };
    TH_IS(dtr_group_split(dtr_world_group(e.world), 0, 0, NULL, &e.group), DTR_OK);
    issue_late(e.group, &e);
    e.group = NULL;
    issue_late(dtr_world_group(e.world), &e);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "watchdog", 110);
    TCase *worlds = th_case(s, "worlds", getenv("WORLD_CYCLES") != NULL ? 3600 : 110);
    th_add(tc, N1_one_per_world_however_many_groups, 0, 0);
    th_add(worlds, N2_worlds_come_and_go, 0, 0);
    th_add(tc, N13_issue_during_a_dump, 0, 0);
    th_add(tc, N13_beats_during_a_dump, 0, 0);
    th_add(tc, N13_ends_during_a_dump, 0, 0);
    th_add(tc, N13_issue_during_a_warning, 2, 0);
    th_add(tc, N16_nothing_is_issued_once_destroy_has_begun, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "watchdog", make);
}
