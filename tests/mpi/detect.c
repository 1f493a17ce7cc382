/* What ranks say while an operation hangs, and what settings add to the recordings (reliability:
 * DL5, DL6, N8, O15, S2, S8, P3, Q7, T4, T6, T12, T22, T26, T29, FI28; tests: FT8). No test here
 * depends on how long anything takes: lines that must come are waited for. */
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <dtr/mpi.h>
#include <dtr/work.h>

#include "flipping.h"
#include "groups_common.h"
#include "recorder/hash.h"
#include "recorder/recording.h"
#include "settings.h"

enum { LINES = 256 };
static char lines[LINES][1600];
static int n_lines;
static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER; /* guards both */

static void keep(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    pthread_mutex_lock(&lines_lock);
    if (n_lines < LINES) {
        snprintf(lines[n_lines++], sizeof lines[0], "%s", line);
    }
    pthread_mutex_unlock(&lines_lock);
}

/* How many lines have both texts; *last is the newest of them. */
static int count_lines(const char *a, const char *b, const char **last) {
    int count = 0;
    pthread_mutex_lock(&lines_lock);
    for (int i = 0; i < n_lines; i++) {
        if (strstr(lines[i], a) != NULL && strstr(lines[i], b) != NULL) {
            *last = lines[i];
            count++;
        }
    }
    pthread_mutex_unlock(&lines_lock);
    return count;
}

/* Waits for such a line; the test's own limit ends what never comes. */
static const char *await_line(const char *a, const char *b) {
    const char *line = NULL;
    while (count_lines(a, b, &line) == 0) {
        th_sleep(0.01);
    }
    return line;
}

/* A world of its own with settings from the environment: NAME, value, ..., NULL. */
static dtr_world *world_with(const char *const *set) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.log_fn = keep;
    pthread_mutex_lock(&lines_lock);
    n_lines = 0;
    pthread_mutex_unlock(&lines_lock);
    return th_world_with(&o, set);
}
#define WORLD(...) world_with((const char *const[]){ __VA_ARGS__, NULL })

/* Until the watchdog has looked at everything again, twice: what it was to say it has said. */
static void await_rounds(const dtr_world *w) {
    const dtr__rec_header *h = dtr__recorder_header(w);
    for (int i = 0; i < 3; i++) {
        const int64_t beat = atomic_load(&h->beat_ns);
        while (atomic_load(&h->beat_ns) == beat) {
            th_sleep(0.001);
        }
    }
}

static bool is_last(void) {
    return th_rank() == th_size() - 1;
}

/* ---- DL5: one warning names who has not come, and nothing else happens ---- */

START_TEST(DL5_early_warning) {
    dtr_world *w = WORLD("DTR_STALL_WARN", "0.05", "DTR_WATCHDOG_MS", "10");
    dtr_group *g = dtr_world_group(w);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    float x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_F32);
    dtr_work *work = NULL;
    char name[64];
    const char *line = NULL;
    o.label = "grad.3";
    th_good_allreduce(g);
    if (!is_last()) {
        TH_IS(dtr_allreduce(g, b, b, DTR_MAX, &o, &work), DTR_OK);
        line = await_line("'grad.3'", "is unfinished since");
        snprintf(name, sizeof name, "rank %d (host ", th_size() - 1);
        TH_CHECK(strstr(line, "warning") != NULL && strstr(line, "detect.c:") != NULL &&
                     strstr(line, "allreduce #2 ") != NULL,
                 "%s", line);
        TH_CHECK(th_size() > 5 || (strstr(line, name) != NULL &&
                                   strstr(line, "has not entered allreduce #2 ") != NULL),
                 "%s", line);
        await_rounds(w);
    }
    th_barrier();
    if (is_last()) {
        TH_IS(dtr_allreduce(g, b, b, DTR_MAX, &o, NULL), DTR_OK);
    } else {
        TH_IS(dtr_work_wait(work, -1), DTR_OK);
        TH_IS(dtr_work_release(work), DTR_OK);
        TH_CHECK(count_lines("allreduce #2 ", "is unfinished since", &line) == 1, "said again");
    }
    TH_IS(dtr_group_status(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(DL5_off) {
    dtr_world *w = WORLD("DTR_STALL_WARN", "0", "DTR_WATCHDOG_MS", "1");
    const char *line = NULL;
    dtr_work *work = NULL;
    if (!is_last()) {
        TH_IS(dtr_barrier(dtr_world_group(w), NULL, &work), DTR_OK);
        await_rounds(w);
    }
    th_barrier();
    if (is_last()) {
        TH_IS(dtr_barrier(dtr_world_group(w), NULL, NULL), DTR_OK);
    } else {
        TH_IS(dtr_work_wait(work, -1), DTR_OK);
        TH_IS(dtr_work_release(work), DTR_OK);
    }
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_ALL(count_lines("is unfinished since", "", &line) == 0, "%s", line);
}
END_TEST

/* ---- S2, T29; N8: begin and end, as the rank's page has them ---- */

START_TEST(S2_status_line) {
    dtr_world *w = WORLD("DTR_LOG", "info", "DTR_STATUS_INTERVAL", "0.05");
    dtr_group *g = NULL;
    dtr_group_options o = options(600, "rows");
    dtr_work *work = NULL;
    TH_IS(dtr_group_split(dtr_world_group(w), 0, 0, &o, &g), DTR_OK);
    th_good_allreduce(g);
    const char *line = await_line("status", "group 'rows': 0 open, last begun allreduce #1, last "
                                            "finished allreduce #1");
    TH_CHECK(strstr(line, "info") != NULL && strstr(line, "group 'world': 0 open") != NULL, "%s",
             line);
    th_barrier();
    if (!is_last()) {
        TH_IS(dtr_barrier(g, NULL, &work), DTR_OK);
        (void)await_line("status",
                         "group 'rows': 1 open, last begun barrier #2, last finished allreduce #1");
    }
    th_barrier();
    if (is_last()) {
        TH_IS(dtr_barrier(g, NULL, &work), DTR_OK);
    }
    TH_IS(dtr_work_wait(work, -1), DTR_OK);
    TH_IS(dtr_work_release(work), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- S8, nccl:K6: what broke a group is logged once per rank, in full on one of a node ---- */

START_TEST(S8_errors_are_logged_once) {
    dtr_world *w = WORLD("DTR_LOG", "error", "DTR_WATCHDOG_MS", "10");
    dtr_group *g = dtr_world_group(w);
    float x[2] = { 0 };
    const char *line = "";
    dtr_buffer b = dtr_cpu(x, is_last() ? 2 : 1, DTR_F32);
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_MISMATCH);
    TH_MESSAGE("the count of allreduce");
    await_rounds(w);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_CHECK(count_lines("error: group 'world' is broken by DTR_ERR_MISMATCH: ", "", &line) == 1,
             "%s", line);
    TH_CHECK((strstr(line, "in full on another rank") == NULL) == (th_rank() == 0), "%s", line);
    TH_CHECK(th_rank() != 0 || strstr(line, "No data was moved") != NULL, "%s", line);
    TH_AGREE();
}
END_TEST

/* ---- T12, T22: what is added to records; N8: begin and end in them ---- */

static dtr__record newest(dtr_world *w) {
    dtr__record r = { 0 };
    TH_CHECK(dtr__rec_read(w, &r, 1) == 1, "no record");
    return r;
}

START_TEST(T12_starts_are_recorded) {
    dtr_world *w = WORLD("DTR_TIMING", "yes");
    float x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_F32);
    for (int i = 0; i < 20; i++) {
        TH_IS(dtr_allreduce(dtr_world_group(w), b, b, DTR_MAX, NULL, NULL), DTR_OK);
        dtr__record r = newest(w);
        TH_CHECK(r.t_started >= r.t_issued && r.t_finished >= r.t_started && r.follower == 0,
                 "issued %lld, started %lld, finished %lld", (long long)r.t_issued,
                 (long long)r.t_started, (long long)r.t_finished);
    }
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- Q7, T4: hashes of what goes in and comes out ---- */

static char folder[64];

static void make_folder(void) {
    strcpy(folder, "/tmp/dtr-test-detect-XXXXXX");
    TH_CHECK(th_rank() != 0 || mkdtemp(folder) != NULL, "no folder");
    MPI_Bcast(folder, sizeof folder, MPI_CHAR, 0, MPI_COMM_WORLD);
}

/* Rank 0's dump, which all others may look at too. */
static char *read_dump(void) {
    static char all[1 << 17];
    char pattern[128];
    glob_t found;
    size_t n = 0;
    snprintf(pattern, sizeof pattern, "%s/*-rank0.dump.json", folder);
    if (glob(pattern, 0, NULL, &found) == 0) {
        FILE *f = fopen(found.gl_pathv[0], "r");
        n = f != NULL ? fread(all, 1, sizeof all - 1, f) : 0;
        if (f != NULL) {
            fclose(f);
        }
        globfree(&found);
    }
    all[n] = '\0';
    return all;
}

static void remove_folder(void) {
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*", folder);
    if (th_rank() == 0 && glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            unlink(found.gl_pathv[i]);
        }
        globfree(&found);
    }
    TH_CHECK(th_rank() != 0 || rmdir(folder) == 0, "something is left in %s", folder);
}

static volatile int called;

/* All allreduces of the test, seen in the recordings by where they come from. */
static dtr_status call_flipping(dtr_group *g, dtr_buffer in, dtr_buffer out) {
    dtr_status s = dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL);
    called = called + 1; /* not a jump into the library, which would leave no trace */
    return s;
}
static dtr_status (*volatile flipping)(dtr_group *, dtr_buffer, dtr_buffer) = call_flipping;

/* T22: some record's innermost frame is in the function that called. */
static bool begins_in(const char *text,
                      dtr_status (*function)(dtr_group *, dtr_buffer, dtr_buffer)) {
    static const char frame[] = "\"stack\":\"test_detect+0x";
    Dl_info info = { 0 };
    uintptr_t at = (uintptr_t)function, from;
    TH_CHECK(dladdr((void *)at, &info) != 0, "no module");
    at -= (uintptr_t)info.dli_fbase;
    while ((text = strstr(text, frame)) != NULL) {
        text += strlen(frame);
        from = (uintptr_t)strtoull(text, NULL, 16);
        if (from > at && from - at < 1024) {
            return true;
        }
    }
    return false;
}

START_TEST(Q7_outputs_that_differ_are_named) {
    make_folder();
    dtr_world *w = WORLD("DTR_HASH", "1", "DTR_RECORDER_DIR", folder, "DTR_RECORDER_STACK", "1");
    dtr_backend_ops ops = flipping_backend(is_last());
    dtr_group *g = NULL;
    dtr_group_options o = options(600, "flipping");
    float in[5] = { 1, 2, 3, 4, 5 }, out[5];
    TH_IS(dtr_backend_register(w, "flip", &ops, DTR_BACKEND_CPU), DTR_OK);
    o.backend = "cpu:flip";
    TH_IS(dtr_group_split(dtr_world_group(w), 0, 0, &o, &g), DTR_OK);
    for (int i = 0; i < 4; i++) {
        dtr_buffer a = dtr_cpu(in, 5, DTR_F32), b = dtr_cpu(out, 5, DTR_F32);
        TH_IS(flipping(g, a, b), DTR_OK);
        dtr__record r = newest(w);
        TH_CHECK(r.hash_in == dtr__hash_bytes(in, sizeof in), "call %d: another hash", i);
        TH_CHECK(r.hash_out == dtr__hash_bytes(out, sizeof out), "call %d: another hash", i);
        TH_CHECK((r.hash_in == r.hash_out) == !(i == 2 && is_last()), "call %d", i);
    }
    th_good_allreduce(dtr_world_group(w)); /* whose outputs are alike */
    th_barrier();
    if (th_rank() == 0) {
        TH_IS(dtr_world_dump(w, "look"), DTR_OK);
        char want[64], *text = read_dump(), *differ = strstr(text, "\"outputs_differ\":[\"");
        snprintf(want, sizeof want, " rank %d has ", th_size() - 1);
        TH_CHECK(differ != NULL && strstr(differ, "the outputs of allreduce #3 ") != NULL &&
                     strstr(differ, "group 'flipping'") != NULL && strstr(differ, want) != NULL,
                 "%.600s", differ != NULL ? differ : text);
        TH_CHECK(begins_in(text, flipping), "no stack: %.300s", text);
    }
    th_barrier();
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    th_barrier();
    remove_folder();
    TH_AGREE();
}
END_TEST

/* One bit anywhere makes another hash, and so does another length. */
START_TEST(Q7_every_bit_counts) {
    unsigned char block[77] = { 0 };
    uint64_t before = dtr__hash_bytes(block, sizeof block);
    for (size_t i = 0; i < 8 * sizeof block; i++) {
        block[i / 8] = (unsigned char)(1u << i % 8);
        TH_CHECK(dtr__hash_bytes(block, sizeof block) != before, "bit %zu", i);
        block[i / 8] = 0;
    }
    TH_CHECK(dtr__hash_bytes(block, 76) != before && dtr__hash_bytes(block, 0) != 0, "length");
    TH_AGREE();
}
END_TEST

/* ---- FT8: no room for dumps is one warning, and the works of other groups go on ---- */

/* Writing into files fails for this process from now on, or works again. */
static void let_files_grow(bool may) {
    struct rlimit l;
    signal(SIGXFSZ, SIG_IGN); /* EFBIG instead */
    TH_CHECK(getrlimit(RLIMIT_FSIZE, &l) == 0, "no limit");
    l.rlim_cur = may ? l.rlim_max : 0;
    TH_CHECK(setrlimit(RLIMIT_FSIZE, &l) == 0, "the limit cannot be set");
}

START_TEST(FT8_no_room_for_dumps) {
    make_folder();
    dtr_world *w = WORLD("DTR_RECORDER_DIR", folder, "DTR_WATCHDOG_MS", "10");
    dtr_group *g = NULL;
    float x[2] = { 1, 1 };
    dtr_buffer one = dtr_cpu(x, 1, DTR_F32), odd = dtr_cpu(x, is_last() ? 2 : 1, DTR_F32);
    const char *line = "";
    TH_IS(dtr_group_split(dtr_world_group(w), 0, th_rank(), NULL, &g), DTR_OK);
    let_files_grow(false);
    TH_IS(dtr_allreduce(g, odd, odd, DTR_SUM, NULL, NULL), DTR_ERR_MISMATCH);
    (void)await_line("cannot write the dump ", folder);
    atomic_fetch_add(&dtr__recorder_header(w)->dump_requested, 1); /* as dtr-doctor asks */
    await_rounds(w);
    x[0] = 1;
    TH_IS(dtr_allreduce(dtr_world_group(w), one, one, DTR_SUM, NULL, NULL), DTR_OK);
    let_files_grow(true);
    TH_CHECK(x[0] == (float)th_size(), "a sum of %g", x[0]);
    TH_CHECK(count_lines("cannot write the dump ", "", &line) == 1, "said again: %s", line);
    TH_CHECK(strstr(line, "warning") != NULL && strstr(line, strerror(EFBIG)) != NULL, "%s", line);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    th_barrier();
    remove_folder();
    TH_AGREE();
}
END_TEST

/* ---- O15: what breaks in one world is no matter of another ---- */

START_TEST(O15_worlds_dump_apart) {
    make_folder();
    dtr_world *w[2];
    for (int i = 0; i < 2; i++) {
        w[i] = WORLD("DTR_RECORDER_DIR", folder, "DTR_WATCHDOG_MS", "10");
    }
    float x[2] = { 1, 1 };
    dtr_buffer one = dtr_cpu(x, 1, DTR_F32), odd = dtr_cpu(x, is_last() ? 2 : 1, DTR_F32);
    TH_IS(dtr_allreduce(dtr_world_group(w[1]), odd, odd, DTR_SUM, NULL, NULL), DTR_ERR_MISMATCH);
    while (atomic_load(&dtr__recorder_header(w[1])->dumps) == 0) {
        th_sleep(0.001);
    }
    await_rounds(w[0]);
    TH_CHECK(atomic_load(&dtr__recorder_header(w[0])->dumps) == 0, "the other world dumped");
    TH_IS(dtr_allreduce(dtr_world_group(w[0]), one, one, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_world_destroy(w[1]), DTR_OK);
    TH_IS(dtr_world_destroy(w[0]), DTR_OK);
    th_barrier();
    remove_folder();
    TH_AGREE();
}
END_TEST

/* ---- DL6: the host waits under a limit of its own, which then is the operation's ---- */

START_TEST(DL6_limit_of_a_wait) {
    dtr_group *g = NULL;
    dtr_work *work = NULL;
    TH_IS(dtr_group_split(th_group(), 0, th_rank(), NULL, &g), DTR_OK);
    if (!is_last()) {
        TH_IS(dtr_barrier(g, NULL, &work), DTR_OK);
        TH_IS(dtr_work_synchronize(work, 0), DTR_IN_PROGRESS);
    }
    th_barrier(); /* the first limit ends the group for all */
    if (!is_last()) {
        TH_IS(dtr_work_synchronize(work, 0.02), DTR_ERR_TIMEOUT);
        TH_MESSAGE(" did not finish within 0.02 s");
        TH_IS(dtr_work_synchronize(work, -1), DTR_ERR_TIMEOUT);
        TH_IS(dtr_work_release(work), DTR_OK);
    }
    th_barrier();
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_TIMEOUT);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- FI28, T6: one rank's input is NaN; the others have a line in the log ---- */

/* One allreduce to which the last rank gives NaN. */
static void give_nan(dtr_group *g, const char *label) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    float x[4] = { 0, 0, is_last() ? NAN : 0, 0 }, y[4];
    o.label = label;
    TH_IS(dtr_allreduce(g, dtr_cpu(x, 4, DTR_F32), dtr_cpu(y, 4, DTR_F32), DTR_SUM, &o, NULL),
          is_last() ? DTR_ERR_NAN : DTR_OK);
}

/* Until all others have such a line: who is idle is told at the next call. */
static void until_told(dtr_group *g, const char *a, const char *b) {
    const char *line = NULL;
    for (int32_t all = 0; all == 0;) {
        int32_t told = is_last() || count_lines(a, b, &line) > 0;
        TH_IS(dtr_allreduce(g, dtr_cpu(&told, 1, DTR_I32), dtr_cpu(&all, 1, DTR_I32), DTR_MIN, NULL,
                            NULL),
              DTR_OK);
    }
}

START_TEST(FI28_peers_are_told_of_a_nan) {
    dtr_world *w = WORLD("DTR_NAN_CHECK", "1");
    dtr_group *g = dtr_world_group(w), *other = NULL;
    const char *line = NULL;
    char text[96];
    TH_IS(dtr_group_split(g, 0, 0, NULL, &other), DTR_OK);
    snprintf(text, sizeof text, "element 2 of the input of rank %d is NaN", th_size() - 1);
    for (int i = 0; i < 2; i++) {
        give_nan(g, "grad.3");
    }
    until_told(g, "allreduce #1 f32 x 4 sum 'grad.3'", text);
    /* Notifications of one rank come in order: a second line would be here too. */
    give_nan(other, "grad.4");
    until_told(g, "allreduce #1 f32 x 4 sum 'grad.4'", text);
    TH_IS(dtr_group_status(g), DTR_OK);
    TH_IS(dtr_group_status(other), DTR_OK);
    TH_IS(dtr_group_destroy(other), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_CHECK(is_last() || count_lines(text, "'grad.3'", &line) == 1, "said again: %s", line);
    TH_AGREE();
}
END_TEST

/* nccl:W6: messages are looked at where they are sent; a batch counts as one input. */
START_TEST(W6_nan_in_a_message) {
    dtr_world *w = WORLD("DTR_NAN_CHECK", "1");
    dtr_group *g = dtr_world_group(w);
    float x[4] = { 0, 0, is_last() ? NAN : 0, 0 }, y[4];
    char sent[4] = "abc", got[4];
    int next = (th_rank() + 1) % th_size(), before = (th_rank() + th_size() - 1) % th_size();
    dtr_buffer b = dtr_cpu(x, 4, DTR_F32), c = dtr_cpu(y, 4, DTR_F32);
    dtr_p2p ring[] = { { false, c, before, 3 },
                       { true, dtr_cpu(sent, 4, DTR_U8), next, 2 },
                       { true, b, next, 3 },
                       { false, dtr_cpu(got, 4, DTR_U8), before, 2 } };
    if (is_last()) {
        TH_IS(dtr_send(g, b, 0, 0, NULL, NULL), DTR_ERR_NAN);
    } else if (th_rank() == 0) {
        TH_IS(dtr_recv(g, c, th_size() - 1, 0, NULL, NULL), DTR_OK);
        TH_CHECK(isnan(y[2]), "it was not sent");
    }
    TH_IS(dtr_batch_p2p(g, ring, 4, NULL, NULL), is_last() ? DTR_ERR_NAN : DTR_OK);
    if (is_last()) {
        TH_MESSAGE("element 6 of the input of rank");
    }
    TH_IS(dtr_group_status(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "detect", 100);
    th_add(tc, DL5_early_warning, 2, 0);
    th_add(tc, DL5_off, 2, 0);
    th_add(tc, S2_status_line, 2, 0);
    th_add(tc, S8_errors_are_logged_once, 2, 0);
    th_add(tc, T12_starts_are_recorded, 1, 0);
    th_add(tc, Q7_outputs_that_differ_are_named, 2, 0);
    th_add(tc, Q7_every_bit_counts, 1, 0);
    th_add(tc, FT8_no_room_for_dumps, 2, 0);
    th_add(tc, O15_worlds_dump_apart, 2, 0);
    th_add(tc, DL6_limit_of_a_wait, 2, 0);
    th_add(tc, FI28_peers_are_told_of_a_nan, 2, 0);
    th_add(tc, W6_nan_in_a_message, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "detect", make);
}
