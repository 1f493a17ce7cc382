/* What a world says about itself while it runs and at its end: who came last, dumps on request
 * (reliability: O7, O12, O13, O14, T16, T21; of N4 requests for dumps). */
#include <glob.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dtr/mpi.h>
#include <dtr/work.h>

#include "groups_common.h"
#include "settings.h"

enum { LINES = 64 };
static char lines[LINES][512];
static atomic_int n_lines;

static void keep(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    int at = atomic_fetch_add(&n_lines, 1);
    if (at < LINES) {
        snprintf(lines[at], sizeof lines[at], "%s", line);
    }
}

/* The line with both texts, NULL: none. */
static const char *line_with(const char *a, const char *b) {
    int n = atomic_load(&n_lines);
    for (int i = 0; i < n && i < LINES; i++) {
        if (strstr(lines[i], a) != NULL && strstr(lines[i], b) != NULL) {
            return lines[i];
        }
    }
    return NULL;
}

/* A world of its own with a setting from the environment. */
static dtr_world *world_with(const char *name, const char *value) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.log_fn = keep;
    atomic_store(&n_lines, 0);
    return TH_WORLD_WITH(&o, name, value);
}

/* ---- arrivals: who was last, from the recorders, at level info ---- */

enum { ROUNDS = 12, FEW = 3 };

/* `late` enters when all others have issued theirs, whatever holds them up. */
static void enter_last(dtr_group *g, int late) {
    float x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_F32);
    dtr_work *w = NULL;
    if (th_rank() != late) {
        TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, &w), DTR_OK);
    }
    th_barrier();
    if (th_rank() == late) {
        th_sleep(0.0005);
        TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL), DTR_OK);
    } else {
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
}

START_TEST(arrivals_name_the_late_ranks) {
    dtr_world *w = world_with("DTR_LOG", "info");
    int most = th_size() - 1, sometimes = 0;
    for (int i = 0; i < ROUNDS + FEW; i++) {
        enter_last(dtr_world_group(w), i < ROUNDS ? most : sometimes);
    }
    TH_IS(dtr_world_destroy(w), DTR_OK);
    char want[2][96];
    snprintf(want[0], sizeof want[0], "rank %d was last into %d of its %d, median ", most, ROUNDS,
             ROUNDS + FEW);
    snprintf(want[1], sizeof want[1], "rank %d was last into %d of its %d, median ", sometimes, FEW,
             ROUNDS + FEW);
    const char *first = line_with("arrivals: ", want[0]);
    const char *second = line_with("arrivals: ", want[1]);
    if (th_rank() == 0) { /* one rank of a node says it, the latest first */
        TH_CHECK(first != NULL, "no line with \"%s\" among %d", want[0], atomic_load(&n_lines));
        TH_CHECK(second != NULL && second > first, "no later line with \"%s\"", want[1]);
    } else {
        TH_CHECK(line_with("arrivals", "") == NULL, "said by another rank too");
    }
    TH_AGREE();
}
END_TEST

START_TEST(arrivals_are_silent_by_default) {
    dtr_world *w = world_with("DTR_LOG", "warn");
    enter_last(dtr_world_group(w), 0);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_ALL(line_with("arrivals", "") == NULL, "%s", line_with("arrivals", ""));
}
END_TEST

/* ---- dumps ---- */

static char folder[64];

/* A new folder, the same on all ranks, for the recordings of the next world. */
static void make_folder(void) {
    strcpy(folder, "/tmp/dtr-test-watch-XXXXXX");
    TH_CHECK(th_rank() != 0 || mkdtemp(folder) != NULL, "no folder");
    MPI_Bcast(folder, sizeof folder, MPI_CHAR, 0, MPI_COMM_WORLD);
    setenv("DTR_RECORDER_DIR", folder, 1);
}

/* What this rank has left there, by the end of its name; "": nothing. */
static void own_file(const char *end, char *path, size_t cap) {
    char pattern[256];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/dtr-*-rank%d%s", folder, th_rank(), end);
    path[0] = '\0';
    if (glob(pattern, 0, NULL, &found) == 0) {
        snprintf(path, cap, "%s", found.gl_pathv[0]);
        globfree(&found);
    }
}

/* Waits for this rank's dump with that text in it; the test's own limit ends what never comes. */
static char *await_dump(const char *text) {
    static char all[1 << 16];
    char path[256];
    for (;;) {
        own_file(".dump.json", path, sizeof path);
        FILE *f = path[0] != '\0' ? fopen(path, "r") : NULL;
        size_t n = f != NULL ? fread(all, 1, sizeof all - 1, f) : 0;
        all[n] = '\0';
        if (f != NULL) {
            fclose(f);
        }
        if (strstr(all, text) != NULL) {
            return all;
        }
        th_sleep(0.01);
    }
}

/* The world's end, which leaves the evidence: a named folder is the user's. */
static void end_world(dtr_world *w, bool dumped) {
    static const char *const ends[] = { ".dump.json", ".rec" };
    char path[256];
    TH_IS(dtr_world_destroy(w), DTR_OK);
    for (int i = 0; i < 2; i++) {
        own_file(ends[i], path, sizeof path);
        bool wanted = i == 1 || dumped;
        TH_CHECK((path[0] != '\0') == wanted, "%s: \"%s\"", ends[i], path);
        unlink(path);
    }
    th_barrier();
    TH_CHECK(th_rank() != 0 || rmdir(folder) == 0, "something else is left in %s", folder);
    setenv("DTR_RECORDER_DIR", "none", 1);
}

START_TEST(O7_one_rank_asks_and_all_dump) {
    make_folder();
    dtr_world *w = world_with("DTR_LOG", "warn");
    th_good_allreduce(dtr_world_group(w));
    TH_IS(dtr_world_dump(w, NULL), DTR_ERR_ARG);
    TH_IS(dtr_world_dump(NULL, ""), DTR_ERR_ARG);
    if (th_rank() == 0) {
        TH_IS(dtr_world_dump(w, "the \"loss\" is odd"), DTR_OK);
    }
    char *text = await_dump("dtr_world_dump on rank 0: the \\\"loss\\\" is odd");
    TH_CHECK(strstr(text, "\"records\":[") != NULL && strstr(text, "allreduce #1 ") != NULL,
             "no records: %.300s", text);
    th_barrier(); /* a second cause is added to the first */
    if (th_rank() == th_size() - 1) {
        TH_IS(dtr_world_dump(w, "again"), DTR_OK);
    }
    text = await_dump(": again");
    TH_CHECK(strstr(text, "is odd") != NULL, "the first cause is lost");
    th_good_allreduce(dtr_world_group(w));
    end_world(w, true);
    TH_AGREE();
}
END_TEST

START_TEST(O7_no_folder_no_dump) {
    dtr_world *w = world_with("DTR_LOG", "warn");
    TH_IS(dtr_world_dump(w, "x"), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("DTR_RECORDER_DIR");
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

static void (*handler_of(int number))(int) {
    struct sigaction a;
    sigaction(number, NULL, &a);
    return a.sa_handler;
}

static atomic_int mine;
static void count_mine(int number) {
    (void)number;
    atomic_fetch_add(&mine, 1);
}

/* T21: the handler is there while a world asks for it; the signal of one rank reaches all. */
START_TEST(T21_signal) {
    char number[8];
    signal(SIGUSR2, SIG_DFL);
    snprintf(number, sizeof number, "%d", SIGUSR2);
    make_folder();
    dtr_world *plain = world_with("DTR_LOG", "warn");
    TH_CHECK(handler_of(SIGUSR2) == SIG_DFL, "a handler that nobody asked for");
    end_world(plain, false);
    make_folder();
    dtr_world *w = world_with("DTR_DUMP_SIGNAL", number);
    TH_CHECK(handler_of(SIGUSR2) != SIG_DFL, "no handler");
    th_barrier();
    if (th_rank() == th_size() - 1) {
        raise(SIGUSR2);
    }
    snprintf(number, sizeof number, " %d", SIGUSR2);
    TH_CHECK(strstr(await_dump("signal"), number) != NULL, "another signal");
    th_good_allreduce(dtr_world_group(w));
    end_world(w, true);
    TH_CHECK(handler_of(SIGUSR2) == SIG_DFL, "the handler is left");
    TH_AGREE();
}
END_TEST

START_TEST(T21_the_programs_own_handler_stays) {
    char number[8];
    snprintf(number, sizeof number, "%d", SIGUSR2);
    signal(SIGUSR2, count_mine);
    dtr_world *w = world_with("DTR_DUMP_SIGNAL", number);
    TH_CHECK(line_with("handler", "DTR_DUMP_SIGNAL") != NULL, "no warning");
    raise(SIGUSR2);
    TH_CHECK(atomic_load(&mine) == 1 && handler_of(SIGUSR2) == count_mine, "it is gone");
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_CHECK(handler_of(SIGUSR2) == count_mine, "it is gone with the world");
    signal(SIGUSR2, SIG_DFL);
    TH_AGREE();
}
END_TEST

START_TEST(T21_signals_that_end_a_program) {
    const int bad[] = { SIGKILL, SIGSEGV };
    for (int i = 0; i < 2; i++) {
        dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
        dtr_world *w = NULL;
        char number[8];
        snprintf(number, sizeof number, "%d", bad[i]);
        setenv("DTR_DUMP_SIGNAL", number, 1);
        TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_ERR_ARG);
        TH_MESSAGE("DTR_DUMP_SIGNAL");
        TH_CHECK(w == NULL, "a world");
        unsetenv("DTR_DUMP_SIGNAL");
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "watch", 60);
    th_add(tc, arrivals_name_the_late_ranks, 2, 0);
    th_add(tc, arrivals_are_silent_by_default, 1, 0);
    th_add(tc, O7_one_rank_asks_and_all_dump, 1, 0);
    th_add(tc, O7_no_folder_no_dump, 1, 0);
    th_add(tc, T21_signal, 1, 0);
    th_add(tc, T21_the_programs_own_handler_stays, 1, 0);
    th_add(tc, T21_signals_that_end_a_program, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "watch", make);
}
