/* What the variables of launchers say of the number of processes (INI1, INI3). */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "world/launcher.h"

static const char *const names[] = {
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_SIZE",
    "PMI_RANK",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_SIZE",
    "JSM_NAMESPACE_RANK",
    "FLUX_JOB_SIZE",
    "FLUX_TASK_RANK",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
    "SLURM_STEP_ID",
    "SLURM_NTASKS",
    "PMIX_RANK",
};

/* "A=1 B=2" is all the environment there is of launchers. */
static dtr__launcher look(const char *env, int size) {
    char text[512];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        unsetenv(names[i]);
    }
    strcpy(text, env);
    for (char *at = text, *one; (one = strtok_r(at, " ", &at)) != NULL;) {
        char *value = strchr(one, '=');
        *value = '\0';
        setenv(one, value + 1, 1);
    }
    return dtr__launcher_find(size);
}

START_TEST(fewer_than_were_started) {
    static const struct {
        const char *env;
        int size;
        const char *variable; /* NULL: all is well */
        int count, rank;
    } of[] = {
        { "", 1, NULL, 0, 0 },
        { "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2", 1, "OMPI_COMM_WORLD_SIZE", 4, 2 },
        { "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 PMIX_RANK=2", 4, NULL, 0, 0 },
        { "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2", 8, NULL, 0, 0 },
        { "PMI_SIZE=3 PMI_RANK=0 MPI_LOCALNRANKS=2", 1, "PMI_SIZE", 3, 0 },
        { "PMI_SIZE=3 PMI_RANK=0 MPI_LOCALNRANKS=3", 3, NULL, 0, 0 },
        { "MPI_LOCALNRANKS=2", 1, "MPI_LOCALNRANKS", 2, -1 },
        { "MPI_LOCALNRANKS=2", 2, NULL, 0, 0 },
        /* One launcher inside of the other's processes: MPI has listened to the inner one. */
        { "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 PMI_SIZE=1 PMI_RANK=0", 1, NULL, 0, 0 },
        { "MV2_COMM_WORLD_SIZE=5 MV2_COMM_WORLD_RANK=4", 1, "MV2_COMM_WORLD_SIZE", 5, 4 },
        { "JSM_NAMESPACE_SIZE=6 JSM_NAMESPACE_RANK=0", 2, "JSM_NAMESPACE_SIZE", 6, 0 },
        { "FLUX_JOB_SIZE=2 FLUX_TASK_RANK=1", 1, "FLUX_JOB_SIZE", 2, 1 },
        /* A step of srun. */
        { "SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 SLURM_PROCID=3", 1,
          "SLURM_STEP_NUM_TASKS", 4, 3 },
        { "SLURM_NTASKS=8 SLURM_STEP_ID=0 SLURM_PROCID=0", 1, "SLURM_NTASKS", 8, 0 },
        { "SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 SLURM_PROCID=3", 4, NULL, 0, 0 },
        /* The shell of a batch job, that of salloc, and an mpirun started there. */
        { "SLURM_NTASKS=8 SLURM_PROCID=0", 1, NULL, 0, 0 },
        { "SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=4294967290 SLURM_PROCID=0", 1, NULL,
          0, 0 },
        { "SLURM_NTASKS=8 SLURM_PROCID=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0", 2, NULL, 0,
          0 },
        /* mpirun has started its daemons by srun, on more hosts than it has processes. */
        { "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 SLURM_PROCID=1 OMPI_COMM_WORLD_SIZE=2 "
          "OMPI_COMM_WORLD_RANK=1",
          2, NULL, 0, 0 },
        { "SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=64 SLURM_STEP_ID=0 SLURM_PROCID=1", 32, NULL, 0, 0 },
        { "PMIX_RANK=3", 1, "PMIX_RANK", 4, 2 },
        { "PMIX_RANK=0", 1, NULL, 0, 0 },
        { "PMIX_RANK=3", 4, NULL, 0, 0 },
        { "PMI_SIZE=many", 1, NULL, 0, 0 },
        { "PMI_SIZE=-4", 1, NULL, 0, 0 },
        { "PMI_SIZE=4x", 1, NULL, 0, 0 },
        { "PMI_SIZE=99999999999999999999", 1, NULL, 0, 0 },
    };
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        dtr__launcher l = look(of[i].env, of[i].size);
        if (of[i].variable == NULL) {
            ck_assert_msg(l.variable == NULL, "%s: %s", of[i].env, l.variable);
            continue;
        }
        ck_assert_msg(l.variable != NULL && strcmp(l.variable, of[i].variable) == 0, "%s: %s",
                      of[i].env, l.variable != NULL ? l.variable : "nothing");
        ck_assert_msg(l.count == of[i].count && l.rank == of[i].rank, "%s: %d, rank %d", of[i].env,
                      l.count, l.rank);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("runtime_launcher");
    TCase *tc = tcase_create("launcher");
    tcase_add_test(tc, fewer_than_were_started);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
