/* Worlds at the public interface, under a caller's MPI: several at once, on any communicator, and
 * what they refuse. */
#include <mpi.h>
#include <pthread.h>

#include <dtr/mpi.h>

#include "groups_common.h"

static dtr_world *world_on(MPI_Comm comm, const dtr_world_options *o) {
    dtr_world *w = NULL;
    TH_IS(dtr_world_create_from_comm(comm, o, &w), DTR_OK);
    return w;
}

static void good(dtr_world *w) {
    int64_t in = 1, out = 0;
    TH_IS(dtr_allreduce(dtr_world_group(w), dtr_cpu(&in, 1, DTR_I64), dtr_cpu(&out, 1, DTR_I64),
                        DTR_SUM, NULL, NULL),
          DTR_OK);
    TH_CHECK(out == dtr_world_size(w), "%lld of %d", (long long)out, dtr_world_size(w));
}

/* INI2, nccl:C7: they do not mix. */
START_TEST(INI2_two_worlds) {
    for (int first = 0; first < 2; first++) {
        dtr_world *w[2] = { world_on(MPI_COMM_WORLD, NULL), world_on(MPI_COMM_WORLD, NULL) };
        TH_CHECK(w[0] != w[1] && dtr_world_group(w[0]) != dtr_world_group(w[1]),
                 "handles"); /* ENU11 */
        for (int i = 0; i < 6; i++) {
            good(w[i % 2]);
        }
        TH_CHECK(dtr_group_seq(dtr_world_group(w[0])) == 3, "own sequence numbers");
        dtr_group *g = NULL;
        TH_IS(dtr_group_create(w[1], NULL, th_size(), NULL, &g), DTR_OK);
        TH_CHECK(strcmp(dtr_group_name(g), "1") == 0, "own names");
        TH_CHECK(dtr_world_find_group(w[0], "1") == NULL, "a group of the other world");
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_IS(dtr_world_destroy(w[first]), DTR_OK);
        good(w[1 - first]);
        TH_IS(dtr_world_destroy(w[1 - first]), DTR_OK);
        TH_AGREE();
    }
    th_good_allreduce(th_group());
}
END_TEST

START_TEST(INI3_cycles_under_the_callers_mpi) {
    for (int i = 0; i < 3; i++) {
        dtr_world *w = world_on(MPI_COMM_WORLD, NULL);
        good(w);
        TH_IS(dtr_world_destroy(w), DTR_OK);
        int finalised = 1;
        MPI_Finalized(&finalised);
        TH_CHECK(!finalised, "INI24: the caller's MPI was finalised");
        TH_AGREE();
    }
}
END_TEST

/* INI6, nccl:C7: ranks of the communicator become world ranks, beside a world with others; INI27:
 * it may be freed at once. */
START_TEST(INI6_reversed_communicator) {
    MPI_Comm reversed;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -th_rank(), &reversed);
    dtr_world *w = world_on(reversed, NULL);
    MPI_Comm_free(&reversed);
    TH_CHECK(dtr_world_rank(w) == th_size() - 1 - th_rank() && dtr_world_size(w) == th_size(),
             "rank %d", dtr_world_rank(w));
    int32_t x = dtr_world_rank(w) == 0 ? 77 : 0;
    TH_IS(dtr_broadcast(dtr_world_group(w), dtr_cpu(&x, 1, DTR_I32), 0, NULL, NULL), DTR_OK);
    TH_CHECK(x == 77, "got %d", x);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* Half of the ranks have a world of their own. */
START_TEST(INI6_part_of_the_ranks) {
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, th_rank() % 2, 0, &half);
    dtr_world *w = world_on(half, NULL);
    good(w);
    dtr_group *g = NULL;
    TH_IS(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    MPI_Comm_free(&half);
    TH_AGREE();
}
END_TEST

START_TEST(INI27_bad_communicators) {
    dtr_world *w = (dtr_world *)UNTOUCHED;
    TH_IS(dtr_world_create_from_comm(MPI_COMM_NULL, NULL, &w), DTR_ERR_ARG);
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, NULL), DTR_ERR_ARG);
    if (th_size() >= 2) {
        MPI_Comm half, inter;
        int side = th_rank() == 0 ? 0 : 1;
        MPI_Comm_split(MPI_COMM_WORLD, side, 0, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, side == 0 ? 1 : 0, 5, &inter);
        TH_IS(dtr_world_create_from_comm(inter, NULL, &w), DTR_ERR_ARG);
        MPI_Comm_free(&inter);
        MPI_Comm_free(&half);
    }
    TH_CHECK(w == (dtr_world *)UNTOUCHED, "output touched");
    TH_AGREE();
}
END_TEST

START_TEST(INI14_devices) {
    const dtr_device bad[] = { { DTR_CUDA, 99 }, { DTR_CUDA, -1 }, { DTR_CPU, 1 } };
    dtr_world *w = (dtr_world *)UNTOUCHED;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.has_device = true;
    for (int i = 0; i < 3; i++) {
        o.device = bad[i];
        TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_ERR_DEVICE);
    }
    TH_CHECK(w == (dtr_world *)UNTOUCHED, "output touched");
    TH_AGREE();
    o.device = (dtr_device){ DTR_CPU, 0 };
    w = world_on(MPI_COMM_WORLD, &o);
    TH_CHECK(dtr_world_device(w).type == DTR_CPU, "device");
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(ENV11_options) {
    dtr_world *w = (dtr_world *)UNTOUCHED;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.timeout_s = NAN;
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_ERR_ARG);
    o.timeout_s = 0;
    o.backend = "cpu:mpi:x"; /* CFG3 */
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_ERR_ARG);
    o.backend = "cpu:nope"; /* CFG5 */
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("self, ");
    o.backend = NULL;
    o.struct_size = 0; /* Y1 */
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_ERR_ARG);
    TH_CHECK(w == (dtr_world *)UNTOUCHED, "output touched");
    TH_AGREE();
}
END_TEST

/* A new group takes the world's timeout and backend, its own options win (ENV12, ENV16). */
START_TEST(ENV12_world_options_are_inherited) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.timeout_s = 100.5;
    o.backend = "CPU:mpi";
    dtr_world *w = world_on(MPI_COMM_WORLD, &o);
    dtr_group_options own = options(300, NULL);
    own.backend = "cpu:auto";
    dtr_group *a = NULL, *b = NULL;
    TH_IS(dtr_group_create(w, NULL, th_size(), NULL, &a), DTR_OK);
    TH_IS(dtr_group_create(w, NULL, th_size(), &own, &b), DTR_OK);
    dtr_group_info i = info_of(a), j = info_of(b), k = info_of(dtr_world_group(w));
    TH_CHECK(i.timeout_cpu_s == 100.5 && i.timeout_cuda_s == 100.5 && k.timeout_cpu_s == 100.5,
             "%g and %g", i.timeout_cpu_s, i.timeout_cuda_s);
    TH_CHECK(j.timeout_cpu_s == 300 && j.timeout_cuda_s == 300, "%g", j.timeout_cpu_s);
    TH_CHECK(strcmp(i.backend_asked, "cpu:mpi") == 0 && strcmp(i.backend, "cpu:mpi") == 0,
             "asked %s, chosen %s", i.backend_asked, i.backend);
    TH_CHECK(strcmp(j.backend_asked, "cpu:auto") == 0, "asked %s", j.backend_asked);
    TH_IS(dtr_group_destroy(b), DTR_OK);
    TH_IS(dtr_group_destroy(a), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* The innermost of call, group and world decides when a peer is given up (ENV8, nccl:K8). */
START_TEST(ENV8_innermost_limit) {
    const double limits[3][3] = { { 0.4, 0, 0 }, { 600, 0.3, 0 }, { 600, 600, 0.2 } };
    for (int i = 0; i < 3; i++) {
        dtr_world_options wo = DTR_WORLD_OPTIONS_INIT;
        wo.timeout_s = limits[i][0];
        dtr_world *w = world_on(MPI_COMM_WORLD, &wo);
        dtr_group_options go = options(limits[i][1], NULL);
        dtr_coll_options co = DTR_COLL_OPTIONS_INIT;
        co.timeout_s = limits[i][2];
        dtr_group *g = th_hasty_group(w, &go);
        char limit[24];
        snprintf(limit, sizeof limit, "%g s", limits[i][i]);
        th_barrier();
        if (th_rank() != th_size() - 1) {
            TH_IS(dtr_barrier(g, &co, NULL), DTR_ERR_TIMEOUT);
            TH_MESSAGE(limit);
        }
        th_barrier();
        TH_IS(dtr_group_destroy(g), DTR_OK);
        (void)dtr_world_destroy(w); /* has a short limit too */
        TH_AGREE();
    }
}
END_TEST

START_TEST(ENV1_world_creation_synchronises) {
    th_barrier();
    if (th_rank() == 0) {
        th_sleep(0.2);
    }
    double came = th_now();
    dtr_world *w = world_on(MPI_COMM_WORLD, NULL);
    double left = th_now();
    TH_CHECK(left >= th_latest(came), "returned before the last rank came");
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- INI13: plain values, from any thread ---- */

static void *ask(void *world) {
    const dtr_world *w = world;
    bool right = dtr_world_rank(w) == th_rank() && dtr_world_size(w) == th_size() &&
                 dtr_world_local_rank(w) >= 0 && dtr_world_local_size(w) >= 1 &&
                 dtr_world_node(w) >= 0 && dtr_world_node_count(w) >= 1 &&
                 dtr_world_device(w).type == DTR_CPU;
    return right ? world : NULL;
}

START_TEST(INI13_queries) {
    pthread_t t;
    void *right = NULL;
    pthread_create(&t, NULL, ask, th_world());
    pthread_join(t, &right);
    TH_CHECK(right != NULL, "from another thread");
    TH_CHECK(dtr_world_rank(NULL) == -1 && dtr_world_size(NULL) == -1 &&
                 dtr_world_local_rank(NULL) == -1 && dtr_world_local_size(NULL) == -1 &&
                 dtr_world_node(NULL) == -1 && dtr_world_node_count(NULL) == -1,
             "of NULL");
    TH_CHECK(dtr_world_device(NULL).type == DTR_CPU && dtr_world_device(NULL).index == 0, "device");
    TH_AGREE();
}
END_TEST

/* INI24: library traffic never meets the caller's, also with wildcards posted. */
START_TEST(INI24_the_callers_messages_are_his) {
    char box[4096];
    MPI_Request r;
    int flag = 1;
    MPI_Irecv(box, sizeof box, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &r);
    dtr_group *g = made(NULL, th_size(), NULL);
    for (int i = 0; i < 100; i++) {
        int64_t in = 1, out = 0;
        TH_IS(dtr_allreduce(g, dtr_cpu(&in, 1, DTR_I64), dtr_cpu(&out, 1, DTR_I64), DTR_SUM, NULL,
                            NULL),
              DTR_OK);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    MPI_Test(&r, &flag, MPI_STATUS_IGNORE);
    TH_CHECK(!flag, "a message of the library was taken by the caller's receive");
    if (!flag) {
        MPI_Cancel(&r);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_world", 60);
    th_add(tc, INI2_two_worlds, 1, 0);
    th_add(tc, INI3_cycles_under_the_callers_mpi, 1, 0);
    th_add(tc, INI6_reversed_communicator, 1, 0);
    th_add(tc, INI6_part_of_the_ranks, 2, 0);
    th_add(tc, INI27_bad_communicators, 1, 0);
    th_add(tc, INI14_devices, 1, 0);
    th_add(tc, ENV11_options, 1, 0);
    th_add(tc, ENV12_world_options_are_inherited, 1, 0);
    th_add(tc, ENV8_innermost_limit, 2, 0);
    th_add(tc, ENV1_world_creation_synchronises, 2, 0);
    th_add(tc, INI13_queries, 1, 0);
    th_add(tc, INI24_the_callers_messages_are_his, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_world", make);
}
