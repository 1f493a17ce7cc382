/* What soak does to itself: groups that a second thread aborts in the middle of operations, helpers
 * that ranks fork, and ranks that are stopped for a while. None of it may change a byte of what is
 * not lent, or of a result. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "soak.h"

enum { RESTING_MOST = 16, REST_OPERATIONS = 40, CHILDREN_MOST = 4 };
enum { RESTING_BYTE = 0x5a };

static void nap_us(unsigned us) {
    struct timespec t = { us / 1000000, (long)(us % 1000000) * 1000 };
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

/* ---- memory that is the program's own again ---- */

static struct {
    unsigned char *data;
    size_t nbytes;
    uint64_t until; /* operation */
    char title[120];
} resting[RESTING_MOST]; /* oldest first */
static int n_resting;

static void check_resting(void) {
    for (size_t i = 0; i < resting[0].nbytes; i++) {
        if (resting[0].data[i] != RESTING_BYTE) {
            fail("%s: byte %zu of %zu was written after the end of its group", resting[0].title, i,
                 resting[0].nbytes);
        }
    }
    must(dtr_free(world, resting[0].data), "dtr_free");
    memmove(&resting[0], &resting[1], sizeof resting[0] * (size_t)--n_resting);
}

void soak_look_at_resting(uint64_t operation) {
    while (n_resting > 0 && resting[0].until <= operation) {
        check_resting();
    }
}

static void rest(void *data, size_t nbytes, uint64_t now, const char *title) {
    if (n_resting == RESTING_MOST) {
        check_resting();
    }
    memset(data, RESTING_BYTE, nbytes);
    resting[n_resting].data = data;
    resting[n_resting].nbytes = nbytes;
    resting[n_resting].until = now + REST_OPERATIONS;
    snprintf(resting[n_resting++].title, sizeof resting[0].title, "%s", title);
}

/* ---- aborts ---- */

typedef struct aborted {
    dtr_group *group;
    int size, me;
    size_t count;
    unsigned salt, delay_us;
    float *in, *out;
    uint64_t done;
    char title[120];
} aborted;

static void *abort_later(void *arg) {
    const aborted *a = arg;
    nap_us(a->delay_us);
    must(dtr_group_abort(a->group, "the soak says so"), "dtr_group_abort");
    return NULL;
}

static int given(const aborted *a, int r, size_t k) {
    return (int)((7 * (k % 17) + 13 * (size_t)r + a->salt) % 17) - 8;
}

static void check_sum(const aborted *a) {
    for (size_t k = 0; k < a->count; k++) {
        int want = 0;
        for (int r = 0; r < a->size; r++) {
            want += given(a, r, k);
        }
        if (a->out[k] != (float)want) {
            fail("%s, operation %llu of the group: element %zu is %g, not %d", a->title,
                 (unsigned long long)a->done, k, (double)a->out[k], want);
        }
    }
}

static dtr_status sum_once(const aborted *a, bool async) {
    dtr_work *w = NULL;
    dtr_status s =
        dtr_allreduce(a->group, dtr_cpu(a->in, a->count, DTR_F32),
                      dtr_cpu(a->out, a->count, DTR_F32), DTR_SUM, NULL, async ? &w : NULL);
    if (async && s == DTR_OK) {
        s = dtr_work_wait(w, -1);
        must(dtr_work_release(w), "dtr_work_release");
    }
    return s;
}

/* Until the abort comes. What has ended before it is right. */
static void sum_until_aborted(aborted *a, bool async) {
    for (;;) {
        dtr_status s = sum_once(a, async);
        if (s == DTR_ERR_ABORTED) {
            return;
        }
        must(s, a->title);
        a->done++;
        check_sum(a);
        memset(a->out, 0, a->count * sizeof *a->out);
    }
}

static float *take(size_t count, bool shared) {
    void *p = NULL;
    dtr_device cpu = { DTR_CPU, 0 };
    must(
        dtr_alloc(world, cpu, shared ? DTR_MEM_SHARED : DTR_MEM_DEFAULT, count * sizeof(float), &p),
        "dtr_alloc");
    return p;
}

static void work_of_member(aborted *a, bool shared, bool async, bool aborts, uint64_t now,
                           bool keeps) {
    const size_t nbytes = a->count * sizeof(float);
    pthread_t other;
    a->in = take(a->count, shared);
    a->out = take(a->count, shared);
    for (size_t k = 0; k < a->count; k++) {
        a->in[k] = (float)given(a, a->me, k);
    }
    if (aborts && pthread_create(&other, NULL, abort_later, a) != 0) {
        fail("no thread");
    }
    sum_until_aborted(a, async);
    if (aborts) {
        (void)pthread_join(other, NULL);
    }
    must(dtr_group_destroy(a->group), "dtr_group_destroy");
    if (keeps) {
        rest(a->in, nbytes, now, a->title);
        rest(a->out, nbytes, now, a->title);
    } else { /* whoever gets this memory next finds a write of somebody else's */
        must(dtr_free(world, a->in), "dtr_free");
        must(dtr_free(world, a->out), "dtr_free");
    }
}

void soak_abort(uint64_t now) {
    static const char *const backends[] = { "cpu:auto", "cpu:auto", "cpu:auto", "cpu:mpi" };
    static const unsigned upto[] = { 16, 4096, 262144, 2 << 20 };
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    aborted a = { .group = NULL };
    int ranks[RANKS_MOST];
    o.backend = backends[below(&plan, 4)];
    for (int r = 0; r < size && a.size < RANKS_MOST; r++) {
        if (below(&plan, 4) != 0 || r == size - 1) {
            ranks[a.size++] = r;
        }
    }
    a.count = 1 + below(&plan, upto[below(&plan, 4)]);
    a.salt = below(&plan, 17);
    const int who = (int)below(&plan, (unsigned)a.size);
    const bool shared = below(&plan, 3) != 0, async = below(&plan, 2) == 0;
    const bool keeps = below(&plan, 2) == 0;
    a.delay_us = below(&plan, 30000);
    snprintf(a.title, sizeof a.title, "aborted sum of %zu f32%s, %d members, %s%s", a.count,
             shared ? ", shared" : "", a.size, o.backend, async ? ", asynchronous" : "");
    must(dtr_group_create(world, ranks, a.size, &o, &a.group), "dtr_group_create");
    if (a.group != NULL) {
        a.me = dtr_group_rank(a.group);
        work_of_member(&a, shared, async, who == a.me, now, keeps);
    }
}

/* ---- forks ---- */

static struct {
    pid_t pid;
    int way;
} children[CHILDREN_MOST];

enum { CHILD_LEAVES, CHILD_EXITS, CHILD_EXECS, CHILD_CALLS, CHILD_WAYS };

static void live_as_child(int way) {
    char name[] = "true", *const argv[] = { name, NULL };
    if (way == CHILD_EXECS) {
        (void)execvp("true", argv);
        _exit(9);
    }
    nap_us(1000);
    if (way == CHILD_CALLS) { /* all of its handles are dead */
        dtr_status s = dtr_barrier(dtr_world_group(world), NULL, NULL);
        _exit(s == DTR_ERR_STATE ? 0 : 8);
    }
    if (way == CHILD_EXITS) {
        exit(0);
    }
    _exit(0);
}

static void reap(int i, int flags) {
    int status = 0;
    if (children[i].pid != 0 && waitpid(children[i].pid, &status, flags) == children[i].pid) {
        children[i].pid = 0;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fail("a forked child (way %d) ended with status %#x", children[i].way,
                 (unsigned)status);
        }
    }
}

static void fork_child(int way) {
    int i = 0;
    while (i < CHILDREN_MOST && children[i].pid != 0) {
        i++;
    }
    if (i == CHILDREN_MOST) {
        reap(--i, 0);
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        live_as_child(way);
    }
    if (pid < 0) {
        fail("fork: %s", strerror(errno));
    }
    children[i].pid = pid;
    children[i].way = way;
}

void soak_fork(void) {
    char line[16] = "";
    const int way = (int)below(&mine, CHILD_WAYS + 2);
    for (int i = 0; i < CHILDREN_MOST; i++) {
        reap(i, WNOHANG);
    }
    if (way == CHILD_WAYS) {
        if (system("exit 3") != 3 << 8) {
            fail("system() says something else");
        }
    } else if (way == CHILD_WAYS + 1) {
        FILE *p = popen("echo here", "r");
        if (p == NULL || fgets(line, sizeof line, p) == NULL || strcmp(line, "here\n") != 0 ||
            pclose(p) != 0) {
            fail("popen() gave '%s'", line);
        }
    } else {
        fork_child(way);
    }
}

/* ---- stops ---- */

static int orders = -1;

/* Before MPI starts: a process of its own, which stops this rank for so many milliseconds. */
void soak_start_stopper(void) {
    int there[2];
    if (pipe(there) != 0) {
        fail("pipe: %s", strerror(errno));
    }
    pid_t rank_pid = getpid(), pid = fork();
    if (pid == 0) {
        uint32_t ms;
        close(there[1]);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (read(there[0], &ms, sizeof ms) == (ssize_t)sizeof ms) {
            (void)kill(rank_pid, SIGSTOP);
            nap_us(1000 * ms);
            (void)kill(rank_pid, SIGCONT);
        }
        _exit(0);
    }
    close(there[0]);
    orders = pid > 0 ? there[1] : -1;
}

void soak_stop(void) {
    const uint32_t ms = below(&mine, 8) == 0 ? 300 + below(&mine, 700) : 1 + below(&mine, 60);
    (void)!write(orders, &ms, sizeof ms); /* it comes at some time of what follows */
}

void soak_faults_end(void) {
    soak_look_at_resting(UINT64_MAX);
    for (int i = 0; i < CHILDREN_MOST; i++) {
        reap(i, 0);
    }
    close(orders);
}
