/* Who gives the processor away in a wait: the library, or MPI where it does so by itself. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "world/world.h"

/* The linker turns NAME into __wrap_NAME, and __real_NAME into NAME, in the library's own calls. */
int __real_sched_yield(void);
int __wrap_sched_yield(void);

static _Thread_local int yields;

int __wrap_sched_yield(void) {
    yields++;
    return __real_sched_yield();
}

/* What MPI itself says of its setting. */
static bool said_by_mpi(void) {
    int level, index = -1, count = 0, value[16] = { 0 };
    MPI_T_cvar_handle handle;
    MPI_T_init_thread(MPI_THREAD_SINGLE, &level);
    if (MPI_T_cvar_get_index("mpi_yield_when_idle", &index) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
        MPI_T_cvar_read(handle, value);
        MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
    return value[0] != 0;
}

START_TEST(what_mpi_does_is_known) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    const char *told = getenv("OMPI_MCA_mpi_yield_when_idle");
    MPI_Get_library_version(version, &length);
    if (strncmp(version, "Open MPI", 8) != 0) {
        TH_CHECK(!th_world()->cpus.mpi_yields, "it is taken to yield: %s", version);
    } else if (told != NULL) {
        TH_CHECK(th_world()->cpus.mpi_yields == (atoi(told) != 0), "told %s, found %d", told,
                 th_world()->cpus.mpi_yields);
    } else {
        TH_CHECK(th_world()->cpus.mpi_yields == said_by_mpi(), "MPI says %d, found %d",
                 said_by_mpi(), th_world()->cpus.mpi_yields);
    }
    TH_AGREE();
}
END_TEST

/* Between two looks at somebody who has yielded nobody yields again; that it takes long is seen all
 * the same. */
START_TEST(once_is_enough) {
    enum { STEPS = 100 };
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
        dtr__backoff b = { .elsewhere = elsewhere };
        int taken = 0;
        yields = 0;
        while (taken < STEPS && !dtr__backoff_due(NULL, &b)) {
            taken++;
        }
        TH_CHECK(yields == (elsewhere ? 0 : taken), "%d yields in %d steps", yields, taken);
        while (!dtr__backoff_due(NULL, &b)) {
        }
        TH_CHECK(!elsewhere || yields == 0, "%d yields until it is due", yields);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "waiting", 30);
    th_add(tc, what_mpi_does_is_known, 0, 0);
    th_add(tc, once_is_enough, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "waiting", make);
}
