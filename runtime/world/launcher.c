/* Processes that were started together and found no other: a launcher whose way of connecting ranks
 * this MPI does not speak leaves N worlds of one rank, each of which runs to its end. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher.h"

#define OWN_MPIRUN "start it with the mpirun of that MPI"
#define SRUN_MPI \
    "give srun --mpi=pmix or --mpi=pmi2 (srun --mpi=list shows what there is), or " OWN_MPIRUN

/* What launchers leave in the environment. `may_nest`: it may have started another launcher, whose
 * variables then count. The variable that `inside` names must be there too, and without the one
 * that `better` names. */
static const struct {
    const char *size, *rank, *inside, *better, *name, *cure;
    bool at_least, may_nest;
} known[] = {
    { "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", NULL, NULL, "mpirun of Open MPI", OWN_MPIRUN,
      false, false },
    { "PMI_SIZE", "PMI_RANK", NULL, NULL, "a launcher with PMI, such as mpiexec of MPICH",
      OWN_MPIRUN, false, false },
    { "MPI_LOCALNRANKS", "PMI_RANK", NULL, "PMI_SIZE", "mpiexec of MPICH or Intel MPI", OWN_MPIRUN,
      true, false },
    { "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", NULL, NULL, "mpirun of MVAPICH", OWN_MPIRUN,
      false, false },
    { "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", NULL, NULL, "jsrun", OWN_MPIRUN, false, false },
    { "FLUX_JOB_SIZE", "FLUX_TASK_RANK", NULL, NULL, "flux run",
      "give flux run -o pmi=pmix or -o pmi=pmi2, or " OWN_MPIRUN, false, true },
    { "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_ID", NULL, "srun", SRUN_MPI, false,
      true },
    { "SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "srun", SRUN_MPI,
      false, true },
};
enum { N_KNOWN = sizeof known / sizeof known[0] };

/* -1: it is not there, or no number of processes. */
static int number(const char *name) {
    const char *text = name != NULL ? getenv(name) : NULL;
    char *end = NULL;
    long n = text != NULL && isdigit((unsigned char)text[0]) ? strtol(text, &end, 10) : -1;
    return n >= 0 && n <= 100000000 && *end == '\0' ? (int)n : -1;
}

/* The shells of a batch job and of salloc are in steps with special numbers, beyond what is taken
 * for a number here, if they are in one. */
static int count_of(int i) {
    bool there = known[i].inside == NULL || number(known[i].inside) >= 0;
    bool better = known[i].better != NULL && number(known[i].better) >= 0;
    return there && !better ? number(known[i].size) : -1;
}

/* A launcher that says what MPI found is the one that MPI listened to, whatever is left of others
 * around it. */
dtr__launcher dtr__launcher_find(int size) {
    dtr__launcher found = { .rank = -1 };
    bool near = false;
    for (int i = 0; i < N_KNOWN; i++) {
        int n = known[i].may_nest && near ? -1 : count_of(i);
        near = near || (n >= 0 && !known[i].may_nest);
        if (n == size && !known[i].at_least) {
            return (dtr__launcher){ .rank = -1 };
        }
        if (n > size && n > found.count) {
            found = (dtr__launcher){ .variable = known[i].size,
                                     .name = known[i].name,
                                     .cure = known[i].cure,
                                     .count = n,
                                     .rank = number(known[i].rank),
                                     .at_least = known[i].at_least };
        }
    }
    int rank = number("PMIX_RANK");
    if (found.variable == NULL && !near && rank >= size) {
        found = (dtr__launcher){ .variable = "PMIX_RANK",
                                 .name = "a launcher with PMIx",
                                 .cure = OWN_MPIRUN,
                                 .count = rank + 1,
                                 .rank = rank - size, /* of those who can tell */
                                 .at_least = true };
    }
    return found;
}

/* ---- the world's side ---- */

/* "Open MPI v4.1.4", "MPICH Version: 4.0.2" */
static void library_name(char *text, size_t cap) {
    char whole[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;
    if (MPI_Get_library_version(whole, &n) != MPI_SUCCESS) {
        n = 0;
    }
    whole[n] = '\0';
    whole[strcspn(whole, ",\n\r")] = '\0';
    for (char *c = whole; *c != '\0'; c++) {
        *c = isspace((unsigned char)*c) ? ' ' : *c;
    }
    snprintf(text, cap, "%.100s", whole[0] != '\0' ? whole : "an MPI without a name");
}

/* A spawned process is in a world of those that were spawned with it. */
static dtr__launcher find_here(int *size) {
    MPI_Comm parent = MPI_COMM_NULL;
    if (MPI_Comm_size(MPI_COMM_WORLD, size) != MPI_SUCCESS ||
        MPI_Comm_get_parent(&parent) != MPI_SUCCESS || parent != MPI_COMM_NULL) {
        return (dtr__launcher){ .rank = -1 };
    }
    return dtr__launcher_find(*size);
}

static const char *describe(const dtr__launcher *l, int size, char *text, size_t cap) {
    char library[128];
    library_name(library, sizeof library);
    snprintf(text, cap,
             "%s has started %s%d processes (%s), but MPI_COMM_WORLD has %d: this MPI, %s, has not "
             "understood the launcher, and each process would compute alone; %s",
             l->name, l->at_least ? "at least " : "", l->count, l->variable, size, library,
             l->cure);
    return text;
}

dtr_status dtr__launcher_check(const dtr_world *w) {
    enum { ERROR = 1 };
    char text[640];
    int size = 0;
    if (w->mpi.inbox != NULL || dtr__opt_number(&w->options, DTR__OPT_LAUNCHER_CHECK) != ERROR) {
        return DTR_OK;
    }
    dtr__launcher l = find_here(&size);
    DTR_REQUIRE(l.variable == NULL, NULL, DTR_ERR_STATE,
                "%s (an error because of DTR_LAUNCHER_CHECK=error)",
                describe(&l, size, text, sizeof text));
    return DTR_OK;
}

void dtr__launcher_warn(const dtr_world *w) {
    enum { WARN = 0 };
    char text[640];
    int size = 0;
    if (w->mpi.inbox != NULL || w->rank != 0 || w->serial != 1 ||
        dtr__opt_number(&w->options, DTR__OPT_LAUNCHER_CHECK) != WARN) {
        return;
    }
    dtr__launcher l = find_here(&size);
    if (l.variable != NULL && l.rank <= 0) {
        DTR_WARN(w, "%s. DTR_LAUNCHER_CHECK=error refuses such a world, off ends this warning",
                 describe(&l, size, text, sizeof text));
    }
}
