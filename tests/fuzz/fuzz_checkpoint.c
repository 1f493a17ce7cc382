/* The index of a sharded checkpoint with tensors and text of the program, damaged in any way,
 * beside the files of a sound one: read, and replaced. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dtr/dtr.h>

#include "fuzz.h"

enum { N = 40 };
static dtr_world *world;
static dtr_ddp *ddp;
static dtr_zero *zero;
static dtr_optim *optim;
static dtr_named_tensor kept = { .name = "kept" };
static float state[N + 16];
static char folder[64], path[80], replaced[80];

/* Files that begin so; "": all. */
static void remove_files(const char *stem) {
    char name[400];
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] != '.' && strncmp(e->d_name, stem, strlen(stem)) == 0) {
            snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
            unlink(name);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
}

static void remove_folder(void) {
    remove_files("");
    rmdir(folder);
}

static void must(dtr_status s) {
    if (s != DTR_OK) {
        fprintf(stderr, "fuzz: %s\n", dtr_last_error_message());
        exit(1);
    }
}

static dtr_zero_state moments(void) {
    return (dtr_zero_state){ "m.f32", DTR_F32,
                             dtr_cpu(state, dtr_zero_shard_count(zero, DTR_F32), DTR_F32) };
}

static dtr_optim_extra extra_of(dtr_bytes *own) {
    static const dtr_text_pair pairs[] = { { "run", "7" }, { "host", "" } };
    dtr_optim_extra x = DTR_OPTIM_EXTRA_INIT;
    x.own = own;
    x.tensors = &kept;
    x.n_tensors = 1;
    x.metadata = pairs;
    x.n_metadata = 2;
    return x;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    dtr_param p = { .name = "w" };
    strcpy(folder, "/tmp/dtr-fuzz-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        exit(1);
    }
    atexit(remove_folder);
    snprintf(path, sizeof path, "%s/index.json", folder);
    snprintf(replaced, sizeof replaced, "%s/other.json", folder);
    must(dtr_world_create(NULL, &world));
    must(dtr_tensor_empty(world, DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1,
                          (const int64_t[]){ N }, &p.value));
    must(dtr_tensor_fill(p.value, 1, NULL));
    must(dtr_ddp_create(dtr_world_group(world), &p, 1, NULL, &ddp));
    must(dtr_zero_create(ddp, NULL, &zero));
    dtr_optim_options o = DTR_OPTIM_OPTIONS_INIT;
    o.momentum = 0.9;
    must(dtr_optim_create(ddp, zero, &o, &optim));
    must(dtr_tensor_clone(p.value, &kept.tensor));
    dtr_tensor_release(p.value);
    return 0;
}

size_t fuzz_seeds(void) {
    return 1;
}

uint8_t *fuzz_seed(size_t i, size_t *nbytes) {
    char bytes[] = "own";
    dtr_bytes own = { bytes, sizeof bytes };
    const dtr_optim_extra x = extra_of(&own);
    (void)i;
    if (dtr_optim_save_extra(optim, path, &x) != DTR_OK) { /* built without jansson */
        return calloc(1, *nbytes = 16);
    }
    return fuzz_read(path, nbytes);
}

static void write_index(const char *name, const uint8_t *data, size_t nbytes) {
    FILE *f = fopen(name, "wb");
    if (f == NULL || fwrite(data, 1, nbytes, f) != nbytes || fclose(f) != 0) {
        abort();
    }
}

/* A new checkpoint takes its place in no time, and no file of the other one goes. */
static void replace(const uint8_t *data, size_t nbytes) {
    const dtr_zero_state m = moments();
    write_index(replaced, data, nbytes);
    if (dtr_zero_save(zero, replaced, &m, 1, 7) < 0 ||
        dtr_zero_load(zero, replaced, &m, 1, NULL) < 0) {
        abort();
    }
    remove_files("other.json");
}

/* Metadata is whole, and nothing has come where the load has failed. */
static void load_extra(void) {
    dtr_bytes own = { NULL, 0 };
    const dtr_optim_extra x = extra_of(&own);
    dtr_status s = dtr_optim_load_extra(optim, path, &x);
    if (s < 0 && (dtr_last_error_message()[0] == '\0' || own.data != NULL)) {
        abort();
    }
    dtr_bytes_free(&own, 1);
    const char *key;
    for (size_t k = 0; (key = dtr_optim_metadata_key(optim, k)) != NULL; k++) {
        if (dtr_optim_metadata(optim, key) == NULL) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    const dtr_zero_state m = moments();
    uint64_t step = 99;
    write_index(path, data, nbytes);
    load_extra();
    dtr_status s = dtr_zero_load(zero, path, &m, 1, &step);
    if (s < 0 && (dtr_last_error_message()[0] == '\0' || step != 99)) {
        abort();
    }
    if (s != DTR_ERR_UNSUPPORTED && nbytes % 8 == 0) { /* it takes long */
        replace(data, nbytes);
    }
    return 0;
}
