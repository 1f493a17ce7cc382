/* Ranks that no mpirun has started find each other through a folder: a file for each key. RANK and
 * WORLD_SIZE are what torchrun and others set; the folder is new for each run. Run:
 * folder=$(mktemp -d); for r in 0 1; do RANK=$r WORLD_SIZE=2 ./without_mpirun $folder & done; wait
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dtr/dtr.h>

/* "run/plan.0" is the file run_plan.0 of the folder. */
static void path_of(const char *folder, const char *key, const char *end, char *path, size_t cap) {
    snprintf(path, cap, "%s/%s%s", folder, key, end);
    for (char *c = path + strlen(folder) + 1; *c != '\0'; c++) {
        *c = *c == '/' ? '_' : *c;
    }
}

/* Under another name first, so that nobody reads a part of it. */
static dtr_status put(void *folder, const char *key, const void *value, size_t nbytes) {
    char path[512], part[512];
    path_of(folder, key, "", path, sizeof path);
    path_of(folder, key, ".part", part, sizeof part);
    FILE *f = fopen(part, "wb");
    if (f == NULL) {
        return DTR_ERR_IO;
    }
    const size_t written = fwrite(value, 1, nbytes, f);
    const int closed = fclose(f);
    return written == nbytes && closed == 0 && rename(part, path) == 0 ? DTR_OK : DTR_ERR_IO;
}

static dtr_status get(void *folder, const char *key, void *value, size_t cap, size_t *nbytes,
                      double timeout_s) {
    const struct timespec nap = { 0, 2000000 };
    const time_t end = time(NULL) + (time_t)timeout_s + 1;
    char path[512];
    FILE *f;
    path_of(folder, key, "", path, sizeof path);
    while ((f = fopen(path, "rb")) == NULL) {
        if (time(NULL) > end) {
            return DTR_ERR_TIMEOUT;
        }
        nanosleep(&nap, NULL);
    }
    *nbytes = fread(value, 1, cap, f);
    fclose(f);
    return DTR_OK;
}

int main(int argc, char **argv) {
    const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
    if (argc != 2 || rank == NULL || size == NULL) {
        fprintf(stderr, "usage: RANK=r WORLD_SIZE=n %s FOLDER\n", argv[0]);
        return 2;
    }
    dtr_bootstrap bootstrap = DTR_BOOTSTRAP_INIT;
    bootstrap.rank = atoi(rank);
    bootstrap.size = atoi(size);
    bootstrap.arg = argv[1];
    bootstrap.put = put;
    bootstrap.get = get;
    dtr_world_options options = DTR_WORLD_OPTIONS_INIT;
    options.bootstrap = &bootstrap;
    dtr_world *world = NULL;
    if (DTR_FAILED(dtr_world_create(&options, &world))) {
        fprintf(stderr, "%s\n", dtr_last_error_message());
        return 1;
    }
    double sum = bootstrap.rank + 1;
    const dtr_status s = dtr_allreduce(dtr_world_group(world), dtr_cpu(&sum, 1, DTR_F64),
                                       dtr_cpu(&sum, 1, DTR_F64), DTR_SUM, NULL, NULL);
    if (DTR_FAILED(s)) {
        fprintf(stderr, "%s\n", dtr_last_error_message());
    } else {
        printf("rank %d of %d: the sum is %g\n", bootstrap.rank, bootstrap.size, sum);
    }
    dtr_world_destroy(world);
    return DTR_FAILED(s) ? 1 : 0;
}
