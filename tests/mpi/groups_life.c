/* Who starts and ends MPI, case by case; a case is a whole program. Without an agreed verdict: a
 * rank that fails says so and exits with 1. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/coll.h>
#include <dtr/mpi.h>

static int failures;

static void check(bool ok, const char *what) {
    if (!ok) {
        printf("failed: %s; last error: %s\n", what, dtr_last_error_message());
        failures++;
    }
}
#define CHECK(cond) check((cond), #cond)

static bool finalised(void) {
    int flag = 0;
    MPI_Finalized(&flag);
    return flag != 0;
}

static void use(dtr_world *w) {
    int64_t in = 1, out = 0;
    CHECK(dtr_allreduce(dtr_world_group(w), dtr_cpu(&in, 1, DTR_I64), dtr_cpu(&out, 1, DTR_I64),
                        DTR_SUM, NULL, NULL) == DTR_OK);
    CHECK(out == dtr_world_size(w));
}

/* INI1, INI3: the library starts MPI and ends it with the last world, for good. */
static void library(void) {
    dtr_world *w = NULL, *second = NULL;
    CHECK(dtr_world_create(NULL, &w) == DTR_OK);
    CHECK(dtr_world_create(NULL, &second) == DTR_OK);
    use(w);
    CHECK(dtr_world_destroy(w) == DTR_OK);
    CHECK(!finalised());
    use(second);
    CHECK(dtr_world_destroy(second) == DTR_OK);
    CHECK(finalised());
    w = NULL;
    CHECK(dtr_world_create(NULL, &w) == DTR_ERR_STATE);
    CHECK(w == NULL && strstr(dtr_last_error_message(), "MPI") != NULL);
    CHECK(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w) == DTR_ERR_STATE);
}

/* INI3: keep_mpi leaves MPI running, a last world without it ends it. */
static void keep(void) {
    for (int i = 0; i < 4; i++) {
        dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
        dtr_world *w = NULL;
        o.keep_mpi = i < 3;
        CHECK(dtr_world_create(&o, &w) == DTR_OK);
        use(w);
        CHECK(dtr_world_destroy(w) == DTR_OK);
        CHECK(finalised() == (i == 3));
    }
}

/* INI27: the caller ends MPI first; destroy then frees what is local and says so. */
static void too_late(void) {
    dtr_world *w = NULL;
    dtr_group *g = NULL;
    MPI_Init(NULL, NULL);
    CHECK(dtr_world_create(NULL, &w) == DTR_OK);
    CHECK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g) == DTR_OK);
    use(w);
    MPI_Finalize();
    CHECK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g) == DTR_ERR_STATE);
    CHECK(dtr_group_destroy(g) == DTR_ERR_STATE);
    CHECK(dtr_world_destroy(w) == DTR_ERR_STATE);
    CHECK(strstr(dtr_last_error_message(), "finalised") != NULL);
    w = NULL;
    CHECK(dtr_world_create(NULL, &w) == DTR_ERR_STATE && w == NULL);
}

/* INI27, INI24: before MPI_Init there is no communicator to use. */
static void too_early(void) {
    dtr_world *w = NULL;
    CHECK(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w) == DTR_ERR_STATE && w == NULL);
    library();
}

/* ENV6: levels in any case; anything else fails world creation and names the value. */
static void debug(void) {
    const struct {
        const char *text;
        dtr_status want;
    } tries[] = { { "2", DTR_ERR_ARG },
                  { "on", DTR_ERR_ARG },
                  { "Detail", DTR_OK },
                  { "INFO", DTR_OK },
                  { "", DTR_OK } };
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
        dtr_world *w = NULL;
        o.keep_mpi = i + 1 < sizeof tries / sizeof tries[0];
        setenv("DTR_DEBUG", tries[i].text, 1);
        CHECK(dtr_world_create(&o, &w) == tries[i].want);
        CHECK(w != NULL || strstr(dtr_last_error_message(), tries[i].text) != NULL);
        CHECK(dtr_world_destroy(w) == DTR_OK);
    }
}

/* ENV16 and ENV17, under DTR_TIMEOUT=250 DTR_BACKEND=CPU:mpi DTR_DEBGU=detail, which is a typing
 * error; INI8 under a rendezvous environment of nonsense. */
static int typing_errors;
static void count_line(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    typing_errors += strstr(line, "DTR_DEBGU") != NULL && strstr(line, "DTR_DEBUG") != NULL;
}

static void environment(void) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_group_info i = DTR_GROUP_INFO_INIT;
    dtr_world *w = NULL;
    o.log_fn = count_line;
    o.keep_mpi = true;
    CHECK(dtr_world_create(&o, &w) == DTR_OK);
    use(w);
    CHECK(dtr_group_get_info(dtr_world_group(w), &i) == DTR_OK);
    CHECK(i.timeout_cpu_s == 250 && i.timeout_cuda_s == 250);
    CHECK(strcmp(i.backend_asked, "cpu:mpi") == 0 && strcmp(i.backend, "cpu:mpi") == 0);
    CHECK(typing_errors == (dtr_world_rank(w) == 0));
    CHECK(dtr_world_destroy(w) == DTR_OK);
    o.keep_mpi = false;
    o.timeout_s = 400; /* code wins */
    CHECK(dtr_world_create(&o, &w) == DTR_OK);
    CHECK(dtr_group_get_info(dtr_world_group(w), &i) == DTR_OK && i.timeout_cpu_s == 400);
    CHECK(dtr_world_destroy(w) == DTR_OK);
}

int main(int argc, char **argv) {
    const struct {
        const char *name;
        void (*run)(void);
    } cases[] = { { "library", library },     { "keep", keep },   { "too_late", too_late },
                  { "too_early", too_early }, { "debug", debug }, { "environment", environment } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            if (failures == 0) {
                printf("%s: all checks passed\n", argv[1]);
            }
            return failures != 0;
        }
    }
    printf("no such case\n");
    return 2;
}
