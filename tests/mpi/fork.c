/* What a forked child may do with what belongs to the rank: nothing, and it harms nothing
 * (reliability: N13, N16). */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dtr/ddp.h>
#include <dtr/mpi.h>
#include <dtr/optim.h>
#include <dtr/tensor.h>
#include <dtr/zero.h>

#include "harness.h"

enum { LIMIT_S = 60 };

static dtr_buffer f32s(float *x, size_t n) {
    return dtr_cpu(x, n, DTR_F32);
}

static float *shared(size_t n) {
    void *p = NULL;
    TH_IS(dtr_alloc(th_world(), (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, n * sizeof(float), &p),
          DTR_OK);
    return p;
}

/* One call site for repeated calls, so that they take the short way. */
static __attribute__((noinline)) dtr_status sum_small(dtr_group *g, float *x, float *y) {
    return dtr_allreduce(g, f32s(x, 2), f32s(y, 2), DTR_SUM, NULL, NULL);
}

/* ---- children ---- */

typedef struct things {
    dtr_world *world;
    dtr_group *group;
    dtr_work *open, *over;
    dtr_tensor *tensor;
    dtr_ddp *ddp;
    dtr_zero *zero;
    dtr_optim *optim;
    float *x, *y;
    int expected_rank;
} things;

static int refused(dtr_status s, const char *what, int rank) {
    char words[64];
    snprintf(words, sizeof words, "was forked from rank %d (", rank);
    if (s == DTR_ERR_STATE && strstr(dtr_last_error_message(), words) != NULL) {
        return 0;
    }
    fprintf(stderr, "child: %s gave %s: %s\n", what, dtr_status_name(s), dtr_last_error_message());
    return 1;
}
#define REFUSED(call) bad += refused((call), #call, t->expected_rank)

static int groups_refuse(const things *t) {
    int bad = 0;
    dtr_group *g = NULL;
    dtr_work *w = NULL;
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    REFUSED(sum_small(t->group, t->x, t->y));
    REFUSED(sum_small(dtr_world_group(t->world), t->x, t->y));
    REFUSED(dtr_allreduce(t->group, f32s(t->x, 4), f32s(t->y, 4), DTR_SUM, NULL, &w));
    REFUSED(dtr_barrier(t->group, NULL, NULL));
    REFUSED(dtr_send(t->group, f32s(t->x, 1), 0, 0, NULL, &w));
    REFUSED(dtr_monitored_barrier(t->group, 1, true, NULL, NULL));
    REFUSED(dtr_coalesce_begin(t->group));
    REFUSED(dtr_coalesce_end(t->group, NULL));
    REFUSED(dtr_group_split(t->group, 0, 0, NULL, &g));
    REFUSED(dtr_group_create(t->world, NULL, th_size(), NULL, &g));
    REFUSED(dtr_group_status(t->group));
    REFUSED(dtr_group_get_info(t->group, &info));
    REFUSED(dtr_group_abort(t->group, "a child"));
    REFUSED(dtr_group_drain(t->group, 1));
    REFUSED(dtr_group_destroy(t->group));
    return bad;
}

static int works_refuse(const things *t) {
    int bad = 0;
    bool done = false;
    REFUSED(dtr_work_wait(t->open, 1));
    REFUSED(dtr_work_wait(t->over, -1));
    REFUSED(dtr_work_test(t->open, &done));
    REFUSED(dtr_work_synchronize(t->open, 1));
    REFUSED(dtr_work_release(t->over));
    return bad;
}

static int modules_refuse(const things *t) {
    int bad = 0;
    dtr_tensor *copy = NULL;
    dtr_ddp_stats stats = DTR_DDP_STATS_INIT;
    REFUSED(dtr_tensor_fill(t->tensor, 1, NULL));
    REFUSED(dtr_tensor_clone(t->tensor, &copy));
    REFUSED(dtr_tensor_allreduce(t->group, t->tensor, DTR_SUM, NULL, NULL));
    REFUSED(dtr_ddp_forward_begin(t->ddp));
    REFUSED(dtr_ddp_grad_ready(t->ddp, 0, NULL));
    REFUSED(dtr_ddp_get_stats(t->ddp, &stats));
    REFUSED(dtr_optim_step(t->optim));
    REFUSED(dtr_optim_destroy(t->optim));
    REFUSED(dtr_zero_gather(t->zero, NULL, NULL, 0));
    REFUSED(dtr_zero_destroy(t->zero));
    REFUSED(dtr_ddp_destroy(t->ddp));
    dtr_tensor_release(t->tensor); /* what it says is lost, what it holds is not touched */
    return bad;
}

static void no_op(void *inout, const void *in, size_t count, dtr_dtype d, void *arg) {
    (void)inout, (void)in, (void)count, (void)d, (void)arg;
}

static int worlds_refuse(const things *t) {
    int bad = 0;
    void *p = NULL;
    dtr_world *w = NULL;
    dtr_op op = DTR_SUM;
    REFUSED(dtr_op_create(t->world, no_op, NULL, true, &op));
    REFUSED(dtr_op_free(t->world, op));
    REFUSED(dtr_free(t->world, t->x));
    REFUSED(dtr_alloc(t->world, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, 64, &p));
    REFUSED(dtr_world_dump(t->world, "a child"));
    REFUSED(dtr_world_create(NULL, &w));
    REFUSED(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w));
    REFUSED(dtr_world_destroy(t->world));
    return bad;
}

static int all_refuse(const things *t) {
    return groups_refuse(t) + works_refuse(t) + modules_refuse(t) + worlds_refuse(t);
}

/* The status of a child that has ended within the limit; -1: it hung and was killed. */
static int reap(pid_t pid) {
    int status = 0;
    for (double end = th_now() + LIMIT_S; th_now() < end; th_sleep(0.002)) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            return status;
        }
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

static int in_child(int (*act)(const things *), const things *t) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(LIMIT_S);
        exit(act(t) != 0); /* with the library's and MPI's own handlers */
    }
    return reap(pid);
}

/* ---- what the rank has ---- */

static void make_module(things *t) {
    int64_t shape[1] = { 4096 };
    static dtr_tensor *value;
    TH_OK(dtr_tensor_empty(t->world, DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, 1, shape,
                           &value));
    TH_OK(dtr_tensor_fill(value, 1, NULL));
    dtr_param param = { .name = "w", .value = value };
    dtr_optim_options o = DTR_OPTIM_OPTIONS_INIT;
    o.rule = DTR_OPTIM_ADAM;
    TH_OK(dtr_ddp_create(t->group, &param, 1, NULL, &t->ddp));
    TH_OK(dtr_zero_create(t->ddp, NULL, &t->zero));
    TH_OK(dtr_optim_create(t->ddp, t->zero, &o, &t->optim));
    t->tensor = value;
}

static void end_module(things *t) {
    TH_OK(dtr_optim_destroy(t->optim));
    TH_OK(dtr_zero_destroy(t->zero));
    TH_OK(dtr_ddp_destroy(t->ddp));
    dtr_tensor_release(t->tensor);
}

/* Fails where a child has moved a number, a post or a byte of the rank. */
static void rank_is_whole(things *t) {
    const int n = th_size();
    for (int i = 0; i < 40; i++) {
        t->x[0] = (float)(th_rank() + i);
        t->x[1] = 1;
        TH_IS(sum_small(t->group, t->x, t->y), DTR_OK);
        TH_CHECK(t->y[0] == (float)(n * (n - 1) / 2 + n * i) && t->y[1] == (float)n,
                 "round %d gave %g and %g", i, (double)t->y[0], (double)t->y[1]);
    }
    TH_AGREE();
}

/* Every public object of a rank refuses in its child, by whatever way the child came to be; the
 * rank, its peers and what they share go on. */
static void refuse_all(int (*child)(int (*)(const things *), const things *)) {
    float got = 0, other = 1;
    things t = { .world = th_world(), .group = th_group(), .x = shared(8192), .y = shared(8192) };
    t.expected_rank = th_rank();
    const int next = (th_rank() + 1) % th_size(), last = (th_rank() + th_size() - 1) % th_size();
    TH_OK(dtr_barrier(t.group, NULL, &t.over));
    TH_OK(dtr_work_wait(t.over, -1));
    make_module(&t);
    rank_is_whole(&t);
    TH_OK(dtr_recv(t.group, f32s(&got, 1), last, 5, NULL, &t.open));
    for (int k = 0; k < 8192; k++) {
        t.x[k] = (float)k;
    }
    int status = child(all_refuse, &t);
    TH_CHECK(status == 0, "the child ended with status 0x%x", (unsigned)status);
    for (int k = 0; k < 8192; k++) {
        TH_CHECK(t.x[k] == (float)k, "element %d of a shared block is %g", k, (double)t.x[k]);
    }
    TH_AGREE();
    dtr_work *sent = NULL;
    TH_OK(dtr_send(t.group, f32s(&other, 1), next, 5, NULL, &sent));
    TH_OK(dtr_work_wait(sent, -1));
    TH_OK(dtr_work_release(sent));
    TH_OK(dtr_work_wait(t.open, -1));
    TH_ALL(got == 1, "the message of before the fork is %g", (double)got);
    rank_is_whole(&t);
    TH_OK(dtr_work_release(t.open));
    TH_OK(dtr_work_release(t.over));
    end_module(&t);
    TH_OK(dtr_free(t.world, t.x));
    TH_OK(dtr_free(t.world, t.y));
    th_good_allreduce(dtr_world_group(th_world()));
}

START_TEST(every_handle_is_dead) {
    refuse_all(in_child);
}
END_TEST

/* Handlers of pthread_atfork do not see this one. */
static int in_raw_child(int (*act)(const things *), const things *t) {
    fflush(NULL);
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        alarm(LIMIT_S);
        _exit(act(t) != 0);
    }
    return reap(pid);
}

START_TEST(without_handlers) {
    refuse_all(in_raw_child);
}
END_TEST

/* ---- memory ---- */

static int write_block(const things *t) {
    signal(SIGSEGV, SIG_DFL); /* MPI's handler writes a stack */
    t->x[0] = -1;
    return 0;
}

/* Memory of the node is not there: the child ends, the rank's bytes stay. */
START_TEST(shared_memory_is_not_inherited) {
    things t = { .world = th_world(), .group = th_group(), .x = shared(16) };
    t.x[0] = 3;
    int status = in_child(write_block, &t);
    TH_CHECK(status != 0 && status != -1, "the child could write: status 0x%x", (unsigned)status);
    TH_CHECK(t.x[0] == 3, "the rank's memory holds %g", (double)t.x[0]);
    TH_AGREE();
    TH_OK(dtr_free(t.world, t.x));
}
END_TEST

/* ---- helpers under load ---- */

enum { ROUNDS = 6, LARGE = 1 << 18 };

static int nothing(const things *t) {
    (void)t;
    return 0;
}

static int call_all_groups(const things *t) {
    return groups_refuse(t) + worlds_refuse(t);
}

static void run_helpers(const things *t) {
    char line[64] = "";
    TH_CHECK(system("exit 3") == 3 << 8, "system() failed");
    FILE *p = popen("echo from a helper", "r");
    TH_CHECK(p != NULL && fgets(line, sizeof line, p) != NULL && pclose(p) == 0 &&
                 strcmp(line, "from a helper\n") == 0,
             "popen() gave '%s'", line);
    TH_CHECK(in_child(nothing, t) == 0, "a child that only exits");
    TH_CHECK(in_child(call_all_groups, t) == 0, "a child that calls");
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    TH_CHECK(reap(pid) == 0, "a child that runs a program");
}

/* Helpers come and go while operations are under way. */
START_TEST(helpers_under_load) {
    const int n = th_size();
    things t = { .world = th_world(), .group = th_group(), .x = shared(LARGE), .y = shared(LARGE) };
    t.expected_rank = th_rank();
    for (int i = 0; i < ROUNDS; i++) {
        dtr_work *w = NULL;
        for (int k = 0; k < LARGE; k++) {
            t.x[k] = (float)(th_rank() + k % 7 + i);
        }
        TH_IS(dtr_allreduce(t.group, f32s(t.x, LARGE), f32s(t.y, LARGE), DTR_SUM, NULL, &w),
              DTR_OK);
        run_helpers(&t);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
        for (int k = 0; k < LARGE; k++) {
            float want = (float)(n * (n - 1) / 2 + n * (k % 7 + i));
            TH_CHECK(t.y[k] == want, "round %d: element %d is %g", i, k, (double)t.y[k]);
        }
    }
    TH_AGREE();
    TH_OK(dtr_free(t.world, t.x));
    TH_OK(dtr_free(t.world, t.y));
}
END_TEST

typedef struct loader {
    dtr_world *world;
    dtr_group *group;
    _Atomic bool stop;
    int bad;
} loader;

/* Takes the library's locks all the time. */
static void *load(void *arg) {
    loader *l = arg;
    while (!atomic_load(&l->stop)) {
        void *p = NULL;
        float x = 1, y = 0;
        dtr_work *w = NULL;
        l->bad += dtr_alloc(l->world, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, 4096, &p) < 0;
        l->bad += dtr_allreduce(l->group, f32s(&x, 1), f32s(&y, 1), DTR_SUM, NULL, &w) < 0;
        l->bad += dtr_work_wait(w, -1) < 0 || dtr_work_release(w) < 0 || y != 1;
        l->bad += dtr_world_group_count(l->world) < 1;
        l->bad += dtr_free(l->world, p) < 0;
    }
    return NULL;
}

static int call_all_bare(const things *t) {
    things bare = *t;
    return groups_refuse(&bare) + works_refuse(&bare) + worlds_refuse(&bare);
}

/* Whatever locks other threads hold at the fork, the child's calls return. */
START_TEST(locks_held_at_fork) {
    things t = { .world = th_world(), .group = NULL, .x = shared(16), .y = shared(16) };
    t.expected_rank = th_rank();
    loader l = { .world = th_world() };
    pthread_t thread;
    TH_OK(dtr_barrier(th_group(), NULL, &t.over));
    TH_OK(dtr_work_wait(t.over, -1));
    t.open = t.over;
    TH_OK(dtr_group_split(th_group(), th_rank(), 0, NULL, &l.group));
    t.group = l.group;
    bool threads = strcmp(th_thread_level(), "multiple") == 0;
    if (threads) {
        pthread_create(&thread, NULL, load, &l);
    }
    for (int i = 0; i < 25; i++) {
        TH_CHECK(in_child(call_all_bare, &t) == 0, "child %d", i);
    }
    if (threads) {
        atomic_store(&l.stop, true);
        pthread_join(thread, NULL);
    }
    TH_ALL(l.bad == 0, "%d calls of the rank failed", l.bad);
    TH_OK(dtr_group_destroy(l.group));
    TH_OK(dtr_work_release(t.over));
    TH_OK(dtr_free(t.world, t.x));
    TH_OK(dtr_free(t.world, t.y));
    th_good_allreduce(th_group());
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "fork", 240);
    th_add(tc, every_handle_is_dead, 1, 0);
    th_add(tc, without_handlers, 1, 0);
    th_add(tc, shared_memory_is_not_inherited, 1, 0);
    th_add(tc, helpers_under_load, 1, 0);
    th_add(tc, locks_held_at_fork, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "fork", make);
}
