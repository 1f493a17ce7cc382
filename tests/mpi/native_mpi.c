/* dtr_group_mpi_comm: a communicator with the members of a group, for the program's own messages.
 */
#include <mpi.h>
#include <string.h>

#include <dtr/mpi.h>

#include "harness.h"

static int32_t x, y;

static dtr_buffer one(int32_t *p) {
    return dtr_cpu(p, 1, DTR_I32);
}

/* Ranks of the communicator are those of the group, here the other way round. */
START_TEST(members_in_group_order) {
    dtr_group *g = NULL;
    MPI_Comm comm = MPI_COMM_NULL, same = MPI_COMM_NULL, again = MPI_COMM_NULL;
    int rank = -1, size = -1, equal = -1, sum = 0;
    TH_OK(dtr_group_split(th_group(), 0, -th_rank(), NULL, &g));
    TH_OK(dtr_group_mpi_comm(g, &comm));
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    TH_CHECK(rank == dtr_group_rank(g) && size == dtr_group_size(g), "rank %d of %d", rank, size);
    TH_CHECK(rank == th_size() - 1 - th_rank(), "the order is that of the world");
    TH_OK(dtr_group_mpi_comm(g, &again));
    TH_CHECK(comm == again, "the second call makes another one");
    TH_OK(dtr_group_mpi_comm(th_group(), &same));
    MPI_Comm_compare(comm, same, &equal);
    TH_CHECK(equal == (th_size() > 1 ? MPI_SIMILAR : MPI_CONGRUENT), "compared: %d", equal);
    const int mine = rank + 1;
    TH_CHECK(MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS, "it fails");
    TH_CHECK(sum == size * (size + 1) / 2, "sum %d", sum);
    TH_CHECK(MPI_Send(&mine, 1, MPI_INT, size + 7, 0, comm) != MPI_SUCCESS,
             "a bad rank is no error");
    TH_AGREE();
    th_good_allreduce(g);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* The program's messages and the library's, with equal tags, do not meet. */
START_TEST(both_at_once) {
    enum { TAG = 3, TIMES = 20 };
    const int next = (th_rank() + 1) % th_size(), before = (th_rank() + th_size() - 1) % th_size();
    MPI_Comm comm = MPI_COMM_NULL;
    dtr_work *early[2] = { NULL, NULL };
    x = 1;
    TH_IS(dtr_recv(th_group(), one(&y), before, TAG, NULL, &early[0]), DTR_OK);
    TH_OK(dtr_group_mpi_comm(th_group(), &comm)); /* with an operation under way */
    for (int i = 0; i < TIMES; i++) {
        int32_t mine = 100 * th_rank() + i, got = -1, sum = 1;
        dtr_work *w = NULL;
        TH_IS(dtr_allreduce(th_group(), one(&sum), one(&sum), DTR_SUM, NULL, &w), DTR_OK);
        MPI_Sendrecv(&mine, 1, MPI_INT32_T, next, TAG, &got, 1, MPI_INT32_T, before, TAG, comm,
                     MPI_STATUS_IGNORE);
        TH_CHECK(got == 100 * before + i, "turn %d: the program got %d", i, got);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_CHECK(sum == th_size(), "turn %d: sum %d", i, sum);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_IS(dtr_send(th_group(), one(&x), next, TAG, NULL, &early[1]), DTR_OK);
    TH_IS(dtr_work_wait_all(early, 2, -1), DTR_OK);
    TH_CHECK(y == 1, "the library got %d", y);
    TH_IS(dtr_work_release(early[0]), DTR_OK);
    TH_IS(dtr_work_release(early[1]), DTR_OK);
    TH_AGREE();
}
END_TEST

static void in_callback(dtr_work *w, dtr_status s, void *arg) {
    MPI_Comm comm = MPI_COMM_NULL;
    (void)w;
    (void)s;
    *(dtr_status *)arg = dtr_group_mpi_comm(th_group(), &comm);
}

START_TEST(refusals) {
    MPI_Comm comm = MPI_COMM_WORLD;
    dtr_group *g = NULL;
    dtr_work *w = NULL;
    dtr_status inside = DTR_OK;
    TH_IS(dtr_group_mpi_comm(NULL, &comm), DTR_NOT_MEMBER);
    TH_CHECK(comm == MPI_COMM_NULL, "no member has a communicator");
    TH_IS(dtr_group_mpi_comm(th_group(), NULL), DTR_ERR_ARG);
    TH_MESSAGE("comm is NULL");
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_group_mpi_comm(th_group(), &comm), DTR_ERR_STATE);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_ERR_STATE);
    TH_IS(dtr_barrier(th_group(), NULL, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, in_callback, &inside), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(inside == DTR_ERR_STATE, "in a callback: %s", dtr_status_name(inside));
    TH_OK(dtr_group_mpi_comm(th_group(), &comm)); /* none of them has left anybody behind */
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
    TH_OK(dtr_group_mpi_comm(g, &comm));
    TH_IS(dtr_group_abort(g, "broken"), DTR_OK);
    TH_IS(dtr_group_mpi_comm(g, &comm), DTR_ERR_ABORTED);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
    TH_IS(dtr_group_mpi_comm(g, &comm), DTR_ERR_STATE);
    TH_AGREE();
}
END_TEST

/* Rank 0 does something else, or nothing: an error for all, and no rank is left inside MPI. */
START_TEST(not_all_come) {
    for (int other = 0; other < 2; other++) {
        dtr_group *g = NULL;
        MPI_Comm comm = MPI_COMM_SELF;
        dtr_status s = DTR_OK;
        TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
        TH_IS(dtr_group_set_timeout(g, other ? 20 : 0.5), DTR_OK);
        if (th_rank() != 0) {
            s = dtr_group_mpi_comm(g, &comm);
            TH_CHECK(s == (other ? DTR_ERR_MISMATCH : DTR_ERR_TIMEOUT), "%s", dtr_status_name(s));
            TH_MESSAGE(other ? "disagree" : "dtr_group_mpi_comm"); /* of the rank that found it */
        } else if (other) {
            TH_IS(dtr_allreduce(g, one(&x), one(&y), DTR_SUM, NULL, NULL), DTR_ERR_MISMATCH);
        }
        TH_CHECK(comm == MPI_COMM_SELF, "a failed call has written *comm");
        th_barrier();
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "native_mpi", 120);
    th_add(tc, members_in_group_order, 0, 0);
    th_add(tc, both_at_once, 0, 0);
    th_add(tc, refusals, 0, 0);
    th_add(tc, not_all_come, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "native_mpi", make);
}
