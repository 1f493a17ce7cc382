/* Worlds over some ranks of a job, of which the others know nothing: they are in no call of the
 * library, nor of MPI, while such a world is made, used and ended. A rank that fails says so and
 * exits with 1. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include <dtr/coll.h>
#include <dtr/mpi.h>

static int failures, rank, size;

static void check(bool ok, const char *what, int line) {
    if (!ok) {
        printf("rank %d, line %d: failed: %s; last error: %s\n", rank, line, what,
               dtr_last_error_message());
        fflush(stdout);
        failures++;
    }
}
#define CHECK(cond) check((cond), #cond, __LINE__)

/* Every rank's number goes round; blocks of the node's ranks are read where they lie. */
static void use(dtr_world *w, int me, int n) {
    dtr_group *g = dtr_world_group(w), *half = NULL;
    int64_t in = me + 1, out = 0, from = -1;
    dtr_buffer one = dtr_cpu(&in, 1, DTR_I64), sum = dtr_cpu(&out, 1, DTR_I64);
    CHECK(dtr_world_rank(w) == me && dtr_world_size(w) == n);
    CHECK(dtr_allreduce(g, one, sum, DTR_SUM, NULL, NULL) == DTR_OK && out == n * (n + 1) / 2);
    CHECK(dtr_barrier(g, NULL, NULL) == DTR_OK);
    dtr_p2p ring[] = { { true, one, (me + 1) % n, 3 },
                       { false, dtr_cpu(&from, 1, DTR_I64), (me + n - 1) % n, 3 } };
    CHECK(dtr_batch_p2p(g, ring, 2, NULL, NULL) == DTR_OK && from == (me + n - 1) % n + 1);
    CHECK(dtr_group_split(g, me % 2, me, NULL, &half) == DTR_OK);
    const int64_t odd = n / 2;
    CHECK(dtr_allreduce(half, one, sum, DTR_SUM, NULL, NULL) == DTR_OK &&
          out == (me % 2 == 1 ? odd * (odd + 1) : (n - odd) * (n - odd)));
    CHECK(dtr_group_destroy(half) == DTR_OK);

    int64_t *mine = NULL;
    CHECK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, 8, (void **)&mine) == DTR_OK);
    *mine = 100 + me;
    CHECK(dtr_node_barrier(w) == DTR_OK);
    for (int k = 0; k < dtr_world_local_size(w); k++) {
        const int64_t *theirs = dtr_peer_pointer(w, mine, k);
        CHECK(theirs != NULL && *theirs - k == *mine - dtr_world_local_rank(w));
    }
    CHECK(dtr_node_barrier(w) == DTR_OK);
    CHECK(dtr_free(w, mine) == DTR_OK);
}

/* A world of the ranks `first`, `first` + `step` and so on up to `last`, by those alone. */
static void world_of(int first, int last, int step) {
    MPI_Group all, some;
    MPI_Comm comm = MPI_COMM_NULL;
    int range[1][3] = { { first, last, step } };
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_range_incl(all, 1, range, &some);
    MPI_Comm_create_group(MPI_COMM_WORLD, some, 17 + first, &comm);
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    dtr_world *w = NULL;
    dtr_status s = dtr_world_create_from_comm(comm, NULL, &w);
    CHECK(s == DTR_OK);
    MPI_Comm_free(&comm);
    if (s == DTR_OK) {
        use(w, (rank - first) / step, (last - first) / step + 1);
        CHECK(dtr_world_destroy(w) == DTR_OK);
    }
}

int main(int argc, char **argv) {
    int level = 0, finalised = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != size - 1) {
        world_of(0, size - 2, 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0) { /* the last one's first; ranks of the world are not those of the job */
        world_of(1, size - 1, 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 3; i++) { /* two at a time, which do not wait for each other */
        world_of(rank % 2, size - 1 - (size - 1 - rank) % 2, 2);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalized(&finalised);
    CHECK(!finalised);
    MPI_Finalize();
    if (rank == 0 && failures == 0) {
        printf("ok\n");
    }
    return failures != 0;
}
