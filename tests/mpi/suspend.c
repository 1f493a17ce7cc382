/* A job that is stopped as a whole for longer than its limits, and goes on, as batch systems do it
 * (reliability: DL2, FI3). A process of its own, made before MPI starts, stops and wakes the ranks.
 */
#include <errno.h>
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "groups_common.h"
#include "harness.h"

enum { RANKS_MOST = 64, N = 100000 };
#define LIMIT_S 3.0
#define STOP_S 4.5

/* ---- who stops the ranks ---- */

typedef struct order {
    int n;     /* ranks, 0: end */
    int apart; /* ms between the first half and the others, when stopping and waking */
    double seconds;
    uint64_t pid[RANKS_MOST];
} order;

static int orders = -1, answers = -1;

static void send_all(const order *o, int from, int to, int sig) {
    for (int i = from; i < to; i++) {
        (void)kill((pid_t)o->pid[i], sig);
    }
}

static void serve(int in, int out) {
    order o;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(in, &o, sizeof o) == (ssize_t)sizeof o && o.n > 0) {
        const int half = o.apart > 0 ? o.n / 2 : o.n;
        for (int sig = SIGSTOP, i = 0; i < 2; i++, sig = SIGCONT) {
            send_all(&o, 0, half, sig);
            th_sleep(o.apart * 1e-3);
            send_all(&o, half, o.n, sig);
            th_sleep(i == 0 ? o.seconds : 0);
        }
        (void)!write(out, "", 1);
    }
    _exit(0);
}

static void start_server(void) {
    int there[2], back[2];
    if (pipe(there) != 0 || pipe(back) != 0) {
        abort();
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(there[1]);
        close(back[0]);
        serve(there[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    orders = there[1];
    answers = back[0];
}

/* On the last rank: all ranks of the job, this one too, and back when it is over. */
static void stop_all(const uint64_t *pid, int apart) {
    order o = { .n = th_size(), .apart = apart, .seconds = STOP_S };
    char byte;
    memcpy(o.pid, pid, sizeof o.pid[0] * (size_t)th_size());
    TH_CHECK(write(orders, &o, sizeof o) == (ssize_t)sizeof o, "write: %s", strerror(errno));
    while (read(answers, &byte, 1) < 0 && errno == EINTR) {
    }
}

/* ---- ways to wait ---- */

static float data[N];

static void sum(dtr_group *g, bool async, size_t n) {
    dtr_buffer b = dtr_cpu(data, n, DTR_F32);
    dtr_work *w = NULL;
    for (size_t i = 0; i < n; i++) {
        data[i] = (float)(th_rank() + 1);
    }
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, async ? &w : NULL), DTR_OK);
    if (async) {
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    const float want = (float)(th_size() * (th_size() + 1) / 2);
    for (size_t i = 0; i < n; i++) {
        if (data[i] != want) {
            TH_CHECK(false, "element %zu is %g", i, (double)data[i]);
            break;
        }
    }
}

static void call_small(dtr_group *g) {
    sum(g, false, 2);
}

static void call_large(dtr_group *g) {
    sum(g, false, N);
}

static void wait_async(dtr_group *g) {
    sum(g, true, N);
}

/* A limit of the wait's own. */
static void wait_with_limit(dtr_group *g) {
    dtr_work *w = NULL;
    TH_IS(dtr_barrier(g, NULL, &w), DTR_OK);
    TH_IS(dtr_work_wait(w, LIMIT_S), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
}

static void create_group(dtr_group *g) {
    dtr_group_options o = options(LIMIT_S, NULL);
    dtr_group *made = NULL;
    TH_IS(dtr_group_split(g, 0, th_rank(), &o, &made), DTR_OK);
    if (made != NULL) {
        TH_IS(dtr_group_destroy(made), DTR_OK);
    }
}

static void monitor(dtr_group *g) {
    TH_IS(dtr_monitored_barrier(g, LIMIT_S, true, NULL, NULL), DTR_OK);
}

static const struct {
    const char *name;
    void (*run)(dtr_group *g);
} ways[] = {
    { "a small call", call_small },
    { "a large call", call_large },
    { "a wait", wait_async },
    { "a wait with a limit", wait_with_limit },
    { "the creation of a group", create_group },
    { "a monitored barrier", monitor },
};
enum { WAYS = sizeof ways / sizeof ways[0] };

/* All but the last rank wait in it while all are stopped. */
static void suspended(int way, int apart) {
    uint64_t pid[RANKS_MOST] = { 0 };
    dtr_group_options o = options(LIMIT_S, NULL);
    dtr_group *g = NULL;
    th_gather_u64((uint64_t)getpid(), pid);
    TH_OK(dtr_group_split(dtr_world_group(th_world()), 0, th_rank(), &o, &g));
    ways[way].run(g);
    th_barrier();
    if (th_rank() == th_size() - 1) {
        th_sleep(0.3); /* the others are inside; it would pass as well if not */
        stop_all(pid, apart);
    }
    ways[way].run(g);
    TH_CHECK(dtr_group_status(g) == DTR_OK, "after %s: %s", ways[way].name,
             dtr_status_name(dtr_group_status(g)));
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}

START_TEST(DL2_stopped_as_a_whole) {
    suspended(_i, 0);
}
END_TEST

/* Some are stopped a little earlier, and go on a little earlier. */
START_TEST(DL2_stopped_one_after_another) {
    suspended(_i, 1000);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "suspend", 200);
    tcase_add_loop_test(tc, DL2_stopped_as_a_whole, 0, WAYS);
    tcase_add_loop_test(tc, DL2_stopped_one_after_another, 0, 2);
}

int main(int argc, char **argv) {
    start_server();
    int status = th_main(argc, argv, "suspend", make);
    const order end = { .n = 0 };
    (void)!write(orders, &end, sizeof end);
    return status;
}
