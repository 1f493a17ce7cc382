/* Backends of the program's own: registration, selection, what they are told, and their calls. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include <dtr/backend.h>
#include <dtr/mpi.h>

#include "core/team.h"
#include "groups_common.h"

/* ---- a loopback backend that counts ---- */

static struct {
    int created, destroyed, allreduces, tests, cancelled;
    char name[64];
    int rank, size, first_world_rank;
    double timeout_s;
    char option_desc[32];
    size_t args_size;
    uint64_t got;       /* put by rank 0 under "answer" */
    dtr_status nothing; /* of asking for a key that nobody puts */
} toy;

static int a_state, never;

static dtr_status toy_create(const dtr_backend_args *a, void **state) {
    uint64_t answer = 4200 + (uint64_t)a->world_ranks[0];
    size_t nbytes = 0;
    toy.created++;
    toy.args_size = a->struct_size;
    snprintf(toy.name, sizeof toy.name, "%s", a->group_name);
    snprintf(toy.option_desc, sizeof toy.option_desc, "%s",
             a->options->desc != NULL ? a->options->desc : "");
    toy.rank = a->rank;
    toy.size = a->size;
    toy.first_world_rank = a->world_ranks[0];
    toy.timeout_s = a->timeout_s;
    if (a->rank == 0 && a->put(a->exchange, "answer", &answer, sizeof answer) < 0) {
        return DTR_ERR_SYSTEM;
    }
    dtr_status s = a->get(a->exchange, "answer", &toy.got, sizeof toy.got, &nbytes, 20);
    if (s < 0 || nbytes != sizeof toy.got) {
        return s < 0 ? s : DTR_ERR_SYSTEM;
    }
    toy.nothing = a->get(a->exchange, "no such key", &answer, sizeof answer, &nbytes, 0.2);
    *state = &a_state;
    return DTR_OK;
}

static void toy_destroy(void *state) {
    toy.destroyed += state == &a_state;
}

/* Every rank gets its own input back. */
static dtr_status toy_allreduce(void *state, const dtr_backend_call *c, void **request) {
    toy.allreduces++;
    memmove(c->out.data, c->in.data, c->in.count * dtr_dtype_size(c->in.dtype));
    *request = c->op == DTR_MAX ? state : NULL; /* MAX takes a while */
    return c->op == DTR_MIN ? DTR_ERR_SYSTEM : DTR_OK;
}

static dtr_status toy_test(void *state, void *request, bool *done, int *source) {
    (void)state;
    (void)source;
    *done = request != &never && ++toy.tests % 3 == 0;
    return DTR_OK;
}

static dtr_status toy_never(void *state, const dtr_backend_call *c, void **request) {
    (void)state;
    (void)c;
    *request = &never;
    return DTR_OK;
}

static void toy_cancel(void *state, void *request) {
    (void)state;
    toy.cancelled += request == &never;
}

static int toy_can(void *state, const char *operation, const dtr_backend_call *c) {
    (void)state;
    return strcmp(operation, "allreduce") == 0 && c->in.dtype == DTR_F64 ? 0 : 1;
}

static dtr_backend_ops toy_ops(void) {
    dtr_backend_ops o = DTR_BACKEND_OPS_INIT;
    o.create = toy_create;
    o.destroy = toy_destroy;
    o.can = toy_can;
    o.test = toy_test;
    o.cancel = toy_cancel;
    o.allreduce = toy_allreduce;
    o.send = toy_never;
    return o;
}

static dtr_world *toy_world(void) {
    dtr_world *w = NULL;
    dtr_backend_ops o = toy_ops();
    memset(&toy, 0, sizeof toy);
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w), DTR_OK);
    TH_IS(dtr_backend_register(w, "Toy", &o, DTR_BACKEND_CPU), DTR_OK);
    return w;
}

static dtr_group *toy_group(dtr_world *w, const char *backend) {
    dtr_group *g = NULL;
    dtr_group_options o = options(12, NULL);
    o.backend = backend;
    o.desc = "for the toy";
    TH_IS(dtr_group_create(w, NULL, th_size(), &o, &g), DTR_OK);
    return g;
}

/* ---- registration ---- */

START_TEST(CFG9_names_and_CFG10_masks) {
    dtr_world *w = toy_world();
    dtr_backend_ops o = toy_ops(), empty = DTR_BACKEND_OPS_INIT;
    TH_IS(dtr_backend_register(w, "mpi", &o, DTR_BACKEND_CPU), DTR_ERR_STATE);
    TH_IS(dtr_backend_register(w, "NCCL", &o, DTR_BACKEND_CPU), DTR_ERR_STATE);
    TH_IS(dtr_backend_register(w, "toy", &o, DTR_BACKEND_CPU), DTR_ERR_STATE);
    TH_MESSAGE("toy");
    TH_IS(dtr_backend_register(w, "other", &o, 0), DTR_ERR_ARG);
    TH_MESSAGE("mask");
    TH_IS(dtr_backend_register(w, "other", &o, 8), DTR_ERR_ARG);
    const char *bad[] = {
        NULL, "", "auto", "Undefined", "a:b", "a,b", "a name", "sixteen-letters-"
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        TH_IS(dtr_backend_register(w, bad[i], &o, DTR_BACKEND_CPU), DTR_ERR_ARG);
    }
    TH_IS(dtr_backend_register(w, "other", NULL, DTR_BACKEND_CPU), DTR_ERR_ARG);
    TH_IS(dtr_backend_register(w, "other", &empty, DTR_BACKEND_CPU), DTR_ERR_ARG);
    TH_IS(dtr_backend_register(NULL, "other", &o, DTR_BACKEND_CPU), DTR_ERR_ARG);
    o.struct_size = 0;
    TH_IS(dtr_backend_register(w, "other", &o, DTR_BACKEND_CPU), DTR_ERR_ARG);
    TH_CHECK(dtr_backend_available(w, "TOY") && !dtr_backend_available(w, "other"), "availability");
    TH_CHECK(!dtr_backend_available(NULL, "toy"), "NULL world: built-in ones only");
    TH_CHECK(!dtr_backend_available(th_world(), "toy"), "BKD4: another world knows it");
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- selection and what create is told ---- */

START_TEST(CFG8_calls_and_CFG11_arguments) {
    dtr_world *w = toy_world();
    dtr_group *g = toy_group(w, "CPU:toy");
    TH_CHECK(toy.created == 1 && toy.destroyed == 0, "created %d times", toy.created);
    TH_CHECK(strcmp(toy.name, dtr_group_name(g)) == 0 &&
                 strcmp(toy.option_desc, "for the toy") == 0,
             "name '%s', options '%s'", toy.name, toy.option_desc);
    TH_CHECK(toy.rank == th_rank() && toy.size == th_size() && toy.first_world_rank == 0 &&
                 toy.timeout_s == 12 && toy.args_size >= sizeof(dtr_backend_args),
             "rank, size, list, timeout or struct_size");
    TH_CHECK(toy.got == 4200, "the value of rank 0 was read as %llu", (unsigned long long)toy.got);
    TH_CHECK(toy.nothing == DTR_ERR_TIMEOUT, "STO3: %s", dtr_status_name(toy.nothing));
    TH_CHECK(strcmp(info_of(g).backend_asked, "cpu:toy") == 0 &&
                 strcmp(info_of(g).backend, "cpu:toy") == 0,
             "asked %s, chosen %s", info_of(g).backend_asked, info_of(g).backend);
    TH_AGREE();
    int32_t in = th_rank() + 5, out = 0;
    dtr_buffer a = dtr_cpu(&in, 1, DTR_I32), b = dtr_cpu(&out, 1, DTR_I32);
    TH_IS(dtr_allreduce(g, a, b, DTR_SUM, NULL, NULL), DTR_OK);
    TH_CHECK(out == in && toy.allreduces == 1, "its own input back");
    dtr_work *work = NULL;
    out = 0;
    TH_IS(dtr_allreduce(g, a, b, DTR_MAX, NULL, &work), DTR_OK); /* BKD2: test */
    TH_IS(dtr_work_wait(work, -1), DTR_OK);
    TH_IS(dtr_work_release(work), DTR_OK);
    TH_CHECK(out == in && toy.tests >= 3, "%d tests", toy.tests);
    TH_CHECK(dtr_group_seq(g) == 2, "sequence");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(toy.destroyed == 1, "destroyed %d times", toy.destroyed);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(STO4_keys_are_the_groups_own) {
    dtr_world *w = toy_world();
    int second[1] = { th_size() - 1 };
    dtr_group_options o = options(0, NULL);
    o.backend = "cpu:toy";
    dtr_group *a = NULL, *b = NULL;
    TH_IS(dtr_group_create(w, NULL, th_size(), &o, &a), DTR_OK);
    TH_CHECK(toy.got == 4200, "%llu", (unsigned long long)toy.got);
    TH_IS(dtr_group_create(w, second, 1, &o, &b), DTR_OK);
    if (b != NULL) {
        TH_CHECK(toy.got == 4200 + (uint64_t)second[0], "the value of another group");
    }
    TH_IS(dtr_group_destroy(b), DTR_OK);
    TH_IS(dtr_group_destroy(a), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(BKD1_empty_slots) {
    dtr_world *w = toy_world();
    dtr_group *g = toy_group(w, "toy");
    int32_t x = 1;
    double d = 1;
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_UNSUPPORTED);
    TH_IS(dtr_broadcast(g, dtr_cpu(&x, 1, DTR_I32), 0, NULL, NULL), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("toy");
    TH_IS(dtr_allreduce(g, dtr_cpu(&d, 1, DTR_F64), dtr_cpu(&d, 1, DTR_F64), DTR_SUM, NULL, NULL),
          DTR_ERR_UNSUPPORTED); /* BKD2: capability query */
    TH_CHECK(dtr_group_seq(g) == 0 && dtr_group_status(g) == DTR_OK, "refused, nothing broken");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(BKD2_cancel_and_failure) {
    dtr_world *w = toy_world();
    dtr_group *g = toy_group(w, "toy");
    int32_t x = 1;
    dtr_work *work = NULL;
    TH_IS(dtr_send(g, dtr_cpu(&x, 1, DTR_I32), (th_rank() + 1) % th_size(), 0, NULL, &work),
          DTR_OK);
    th_barrier(); /* the first limit ends the group for all */
    TH_IS(dtr_work_wait(work, 0.2), DTR_ERR_TIMEOUT);
    TH_IS(dtr_work_release(work), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK); /* a waiter may leave before the cancel */
    TH_CHECK(toy.cancelled == 1, "cancelled %d times", toy.cancelled);
    g = toy_group(w, "toy");
    dtr_status s =
        dtr_allreduce(g, dtr_cpu(&x, 1, DTR_I32), dtr_cpu(&x, 1, DTR_I32), DTR_MIN, NULL, NULL);
    TH_CHECK(s == DTR_ERR_SYSTEM || s == DTR_ERR_REMOTE, "%s", dtr_status_name(s));
    TH_MESSAGE("toy");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* reliability:DL3, N3: the limit of a blocking call is kept although the progress thread hangs with
 * the group's lock, which it has taken while the caller ran a callback. Sends are over when the
 * caller has begun to receive and looks at them; a receive with tag 1 hangs in the other thread. */
static struct {
    pthread_t caller;
    atomic_int begun, armed, hung, inside, go_on;
    int requests[4];
} stuck;

static dtr_status least_create(const dtr_backend_args *a, void **state) {
    (void)a;
    (void)state;
    return DTR_OK;
}

static void await(atomic_int *flag) { /* or a second, where nobody can set it */
    for (int i = 0; i < 1000 && atomic_load(flag) == 0; i++) {
        usleep(1000);
    }
}

static dtr_status stuck_start(void *state, const dtr_backend_call *c, void **request) {
    (void)state;
    *request = &stuck.requests[c->tag];
    if (c->tag == 2) {
        atomic_store(&stuck.begun, 1);
    }
    return DTR_OK;
}

static dtr_status stuck_test(void *state, void *request, bool *done, int *source) {
    (void)state;
    (void)source;
    bool caller = pthread_equal(pthread_self(), stuck.caller) != 0;
    *done = request == &stuck.requests[0] && caller && atomic_load(&stuck.begun) != 0;
    if (request == &stuck.requests[1] && !caller && atomic_load(&stuck.armed) != 0) {
        atomic_store(&stuck.inside, 1);
        atomic_store(&stuck.hung, 1);
        while (atomic_load(&stuck.go_on) == 0) {
            usleep(1000);
        }
        atomic_store(&stuck.inside, 0);
    }
    return DTR_OK;
}

static void stuck_callback(dtr_work *work, dtr_status s, void *arg) {
    (void)work;
    (void)s;
    (void)arg;
    atomic_store(&stuck.armed, 1);
    await(&stuck.hung);
}

/* A group of a world of its own, with the send that is over and the receive that hangs. */
typedef struct stuck_in {
    dtr_world *world;
    dtr_group *group;
    dtr_work *over, *hangs;
} stuck_in;

static int32_t stuck_x; /* outlives the threads that are left in a transport */

static dtr_buffer stuck_buffer(void) {
    return dtr_cpu(&stuck_x, 1, DTR_I32);
}

static stuck_in begin_stuck(void) {
    stuck_in in = { NULL, NULL, NULL, NULL };
    dtr_backend_ops ops = DTR_BACKEND_OPS_INIT;
    dtr_group_options o = options(12, NULL);
    int peer = (th_rank() + 1) % th_size();
    ops.create = least_create;
    ops.test = stuck_test;
    ops.send = ops.recv = stuck_start;
    o.backend = "stuck";
    memset(&stuck, 0, sizeof stuck);
    stuck.caller = pthread_self();
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &in.world), DTR_OK);
    TH_IS(dtr_backend_register(in.world, "stuck", &ops, DTR_BACKEND_CPU), DTR_OK);
    TH_IS(dtr_group_create(in.world, NULL, th_size(), &o, &in.group), DTR_OK);
    TH_IS(dtr_send(in.group, stuck_buffer(), peer, 0, NULL, &in.over), DTR_OK);
    TH_IS(dtr_work_on_complete(in.over, stuck_callback, NULL), DTR_OK);
    TH_IS(dtr_recv(in.group, stuck_buffer(), peer, 1, NULL, &in.hangs), DTR_OK);
    return in;
}

/* The group is healthy, and a thread is inside its transport with its lock, if there is one. */
static stuck_in hang_in_group(void) {
    stuck_in in = begin_stuck();
    TH_IS(dtr_group_set_timeout(in.group, 0.3),
          DTR_OK); /* from here on: its creation may take longer */
    bool done = false;
    atomic_store(&stuck.begun, 1);
    while (!done) {
        TH_IS(dtr_work_test(in.over, &done), DTR_OK);
    }
    return in;
}

/* Its end has a limit, and says where the thread is; `hangs` has failed before or does now. */
static void end_stuck_group(stuck_in *in) {
    bool hung = atomic_load(&stuck.hung) != 0;
    th_barrier(); /* the first limit ends the group for all */
    dtr_status s = dtr_group_destroy(in->group);
    TH_CHECK(s == DTR_ERR_TIMEOUT || !hung, "destroyed with %s", dtr_status_name(s));
    if (hung) {
        TH_MESSAGE("dtr_group_destroy");
        TH_MESSAGE("the progress thread has been inside the test function of a registered backend");
    }
    s = dtr_work_wait(in->hangs, -1);
    TH_CHECK(s == DTR_ERR_TIMEOUT || s == DTR_ERR_ABORTED, "%s", dtr_status_name(s));
    TH_IS(dtr_work_release(in->over), DTR_OK);
    TH_IS(dtr_work_release(in->hangs), DTR_OK);
}

START_TEST(DL3_limit_behind_a_stuck_thread) {
    stuck_in in = begin_stuck();
    dtr_coll_options o = { .struct_size = sizeof o, .timeout_s = 1.5 };
    th_barrier(); /* the first limit ends the group for all */
    TH_IS(dtr_recv(in.group, stuck_buffer(), (th_rank() + 1) % th_size(), 2, &o, NULL),
          DTR_ERR_TIMEOUT);
    atomic_store(&stuck.go_on, 1);
    (void)dtr_work_wait(in.over, -1); /* OK, unless this rank came too late to look at it */
    TH_IS(dtr_work_wait(in.hangs, -1), DTR_ERR_TIMEOUT);
    TH_IS(dtr_work_release(in.over), DTR_OK);
    TH_IS(dtr_work_release(in.hangs), DTR_OK);
    TH_IS(dtr_group_destroy(in.group), DTR_OK);
    TH_IS(dtr_world_destroy(in.world), DTR_OK);
    TH_AGREE();
}
END_TEST

/* The next test has the memory again. */
static void let_go(void) {
    atomic_store(&stuck.go_on, 1);
    while (atomic_load(&stuck.inside) != 0) {
        usleep(1000);
    }
}

START_TEST(DL3_destroy_behind_a_stuck_thread) {
    stuck_in in = hang_in_group();
    bool hung = atomic_load(&stuck.hung) != 0;
    end_stuck_group(&in);
    dtr_status s = dtr_group_status(dtr_world_group(in.world));
    TH_CHECK(s == DTR_ERR_TIMEOUT || !hung, "the world's own group has %s", dtr_status_name(s));
    TH_IS(dtr_world_destroy(in.world), DTR_OK); /* abandoned */
    let_go();
    TH_AGREE();
}
END_TEST

/* The calls of an open scope are dropped under the group's lock. The thread comes back in time:
 * what was left in place is freed with the world. */
START_TEST(DL3_destroy_with_an_open_scope) {
    stuck_in in = hang_in_group();
    TH_IS(dtr_coalesce_begin(in.group), DTR_OK);
    TH_IS(dtr_send(in.group, stuck_buffer(), (th_rank() + 1) % th_size(), 3, NULL, NULL), DTR_OK);
    end_stuck_group(&in);
    let_go();
    while (dtr__progress_stuck(in.world)) {
        usleep(1000);
    }
    TH_IS(dtr_world_destroy(in.world), DTR_OK);
    TH_AGREE();
}
END_TEST

/* The world ends with the group in it. */
START_TEST(DL3_world_destroy_behind_a_stuck_thread) {
    stuck_in in = hang_in_group();
    bool hung = atomic_load(&stuck.hung) != 0;
    th_barrier();
    dtr_status s = dtr_world_destroy(in.world);
    TH_CHECK(s == DTR_ERR_TIMEOUT || !hung, "destroyed with %s", dtr_status_name(s));
    TH_IS(dtr_work_release(in.over), DTR_OK);
    TH_IS(dtr_work_release(in.hangs), DTR_OK);
    let_go();
    TH_AGREE();
}
END_TEST

/* DES7: a table with the two slots that must be there, and one operation. */
START_TEST(DES7_optional_slots) {
    dtr_world *w = toy_world();
    dtr_backend_ops o = DTR_BACKEND_OPS_INIT;
    o.create = least_create;
    o.allreduce = toy_allreduce;
    TH_IS(dtr_backend_register(w, "least", &o, DTR_BACKEND_CPU | DTR_BACKEND_CUDA), DTR_OK);
    dtr_group *g = toy_group(w, "cpu:least");
    int32_t x = 3;
    TH_IS(dtr_allreduce(g, dtr_cpu(&x, 1, DTR_I32), dtr_cpu(&x, 1, DTR_I32), DTR_SUM, NULL, NULL),
          DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* A backend whose create fails on one rank: the group is made nowhere (NEW38). */
static int failing;

static dtr_status fails_on_one(const dtr_backend_args *a, void **state) {
    (void)state;
    return a->rank == failing ? DTR_ERR_NOMEM : DTR_OK;
}

static void refused_by_one(dtr_world *w) {
    dtr_group_options go = options(0, NULL);
    go.backend = "cpu:fails";
    dtr_group *g = UNTOUCHED;
    char who[32];
    snprintf(who, sizeof who, "rank %d", failing);
    TH_IS(dtr_group_create(w, NULL, th_size(), &go, &g),
          th_rank() == failing ? DTR_ERR_NOMEM : DTR_ERR_REMOTE);
    TH_MESSAGE(who);
    TH_MESSAGE("DTR_ERR_NOMEM");
    TH_CHECK(g == UNTOUCHED && dtr_world_group_count(w) == 1, "something is left");
    TH_AGREE();
}

START_TEST(NEW38_one_rank_fails) {
    dtr_world *w = toy_world();
    dtr_backend_ops o = DTR_BACKEND_OPS_INIT;
    o.create = fails_on_one;
    TH_IS(dtr_backend_register(w, "fails", &o, DTR_BACKEND_CPU), DTR_OK);
    for (failing = th_size() - 1; failing >= 0; failing--) {
        refused_by_one(w);
    }
    dtr_group *g = UNTOUCHED;
    TH_IS(dtr_group_create(w, NULL, th_size(), NULL, &g), DTR_OK);
    TH_CHECK(strcmp(dtr_group_name(g), "1") == 0, "NEW12: named %s", dtr_group_name(g));
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* CFG16: the same text, but not all ranks have registered the name. */
START_TEST(CFG16_registered_alike) {
    dtr_world *w = NULL;
    dtr_backend_ops o = toy_ops();
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w), DTR_OK);
    if (th_rank() != 0) {
        TH_IS(dtr_backend_register(w, "toy", &o, DTR_BACKEND_CPU), DTR_OK);
    }
    dtr_group_options go = options(0, NULL);
    go.backend = "cpu:toy";
    dtr_group *g = UNTOUCHED;
    TH_IS(dtr_group_create(w, NULL, th_size(), &go, &g), DTR_ERR_MISMATCH);
    TH_MESSAGE("toy not registered");
    go.backend = "cpu:unknown";
    TH_IS(dtr_group_create(w, NULL, th_size(), &go, &g), DTR_ERR_UNSUPPORTED);
    TH_CHECK(g == UNTOUCHED, "output touched");
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* CFG2 and BKD3: a group of the CPU alone has nothing for a CUDA buffer. */
START_TEST(BKD3_no_backend_for_a_device) {
    dtr_group_options o = options(0, NULL);
    o.backend = "cpu:mpi";
    dtr_group *g = made(NULL, th_size(), &o);
    float x = 1;
    dtr_buffer cuda = { &x, 1, DTR_F32, { DTR_CUDA, 0 } };
    TH_IS(dtr_allreduce(g, cuda, cuda, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_custom", 60);
    th_add(tc, CFG9_names_and_CFG10_masks, 1, 0);
    th_add(tc, CFG8_calls_and_CFG11_arguments, 1, 0);
    th_add(tc, STO4_keys_are_the_groups_own, 2, 0);
    th_add(tc, BKD1_empty_slots, 1, 0);
    th_add(tc, BKD2_cancel_and_failure, 1, 0);
    th_add(tc, DL3_limit_behind_a_stuck_thread, 2, 0);
    th_add(tc, DL3_destroy_behind_a_stuck_thread, 1, 0);
    th_add(tc, DL3_destroy_with_an_open_scope, 1, 0);
    th_add(tc, DL3_world_destroy_behind_a_stuck_thread, 1, 0);
    th_add(tc, DES7_optional_slots, 1, 0);
    th_add(tc, NEW38_one_rank_fails, 2, 0);
    th_add(tc, CFG16_registered_alike, 2, 0);
    th_add(tc, BKD3_no_backend_for_a_device, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_custom", make);
}
