/* The device of a world whose options name none (nccl:C9, GP3): of the host's GPUs that the fewest
 * ranks have, the one nearest to the rank's cores. The stand-in has four GPUs; a file tells hwloc
 * of two packages with two of them each. */
#include <dirent.h>
#include <sched.h>
#include <stdlib.h>

#include <mpi.h>

#include <dtr/mpi.h>

#include "fake_cuda.h"
#include "harness.h"

/* All threads, because those of the harness's world run as well. */
static bool bind_to(const cpu_set_t *cpus) {
    bool good = true;
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *e = NULL;
    while (tasks != NULL && (e = readdir(tasks)) != NULL) {
        int id = atoi(e->d_name);
        good = good && (id == 0 || sched_setaffinity(id, sizeof *cpus, cpus) == 0);
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return good && tasks != NULL;
}

static int chosen(const dtr_world_options *o) {
    dtr_world *w = NULL;
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, o, &w), DTR_OK);
    dtr_device d = dtr_world_device(w);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    return d.type == DTR_CUDA ? d.index : -1;
}

/* Without a difference in distance the ranks of a host take its GPUs in turn. */
START_TEST(C9_in_turn) {
    setenv("HWLOC_SYNTHETIC", "pu:2", 1); /* whatever is plugged in here */
    dtr_fake_cuda_log_start();
    int got = chosen(NULL);
    TH_CHECK(got == th_rank() % 4, "rank %d has device %d", th_rank(), got);
    TH_CHECK(dtr_fake_cuda_log_count("cudaMalloc") == 0, "a device was used");
    TH_AGREE();
}
END_TEST

/* Even ranks run on the second package, odd ones on the first; then rank 0 names device 0, and the
 * last one finds no free GPU on its package. */
START_TEST(C9_nearest) {
    static const int near[] = { 2, 0, 3, 1 }, after_named[] = { 0, 1, 2, 3 };
    cpu_set_t all, one;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    CPU_ZERO(&one);
    CPU_SET(1 - th_rank() % 2, &one);
    int here = sched_getaffinity(0, sizeof all, &all) == 0 && CPU_ISSET(0, &all) &&
               CPU_ISSET(1, &all) && bind_to(&one);
    int everywhere = 0;
    MPI_Allreduce(&here, &everywhere, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    unsetenv("HWLOC_SYNTHETIC");
    setenv("HWLOC_XMLFILE", getenv("DTR_TEST_TOPOLOGY"), 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    int first = chosen(NULL);
    o.has_device = th_rank() == 0;
    o.device = (dtr_device){ DTR_CUDA, 0 };
    int second = chosen(&o);
    bind_to(&all);
    if (everywhere) {
        TH_CHECK(first == near[th_rank()], "rank %d has device %d", th_rank(), first);
        TH_CHECK(second == after_named[th_rank()], "rank %d has device %d beside a named one",
                 th_rank(), second);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nearest", 110);
    th_add(tc, C9_in_turn, 4, 0);
    th_add(tc, C9_nearest, 4, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nearest GPU", make);
}
