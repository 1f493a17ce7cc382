/* What dtr-doctor reads: an image of a rank's flight recorder, damaged in any way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/dtr.h>

#include "fuzz.h"
#include "recorder/recording.h"

static dtr_world *world;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    setenv("DTR_RECORDER_ENTRIES", "64", 1);
    return 0;
}

size_t fuzz_seeds(void) {
    return 1;
}

/* The recorder of this process, after some operations. */
uint8_t *fuzz_seed(size_t i, size_t *nbytes) {
    (void)i;
    float x = 1;
    if (world == NULL && dtr_world_create(NULL, &world) != DTR_OK) {
        fprintf(stderr, "fuzz: %s\n", dtr_last_error_message());
        return NULL;
    }
    for (int k = 0; k < 10; k++) {
        dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
        o.label = "seed";
        dtr_buffer b = dtr_cpu(&x, 1, DTR_F32);
        (void)dtr_allreduce(dtr_world_group(world), b, b, DTR_SUM, &o, NULL);
    }
    const dtr__rec_memory *m = dtr__recorder_memory(world);
    dtr__rec_step_add(world, 1, 2e-3, 1e-3);
    if (m != NULL) {
        dtr__rec_group *g = (dtr__rec_group *)((char *)m->header + m->header->groups_at);
        dtr__rec_run run = { .words = &g->followers };
        dtr__record r = { .group = atomic_load(&g->id), .seq = 1, .t_issued = 1000 };
        (void)dtr__rec_run_begin(world, &run, 1, &r, 0);
        (void)dtr__rec_follow(world, &run, 1, 2, 2000);
    }
    uint8_t *data = m != NULL ? malloc(m->nbytes) : NULL;
    if (data != NULL) {
        memcpy(data, m->header, m->nbytes);
        *nbytes = m->nbytes;
    }
    return data;
}

static void look_at(const dtr__recording *r) {
    char text[512];
    for (size_t i = 0; i < r->n_records; i++) {
        (void)dtr__recording_title(r, &r->records[i], text, sizeof text);
        (void)dtr__recording_group(r, r->records[i].group);
    }
    for (size_t i = 0; i < r->n_groups; i++) {
        const dtr__rec_group *g = &r->groups[i];
        (void)dtr__recording_group_uid(r, g->uid);
        (void)dtr__recording_member(r, g, 0);
        (void)dtr__recording_member(r, g, g->size - 1);
        (void)dtr__recording_member(r, g, g->size);
        (void)dtr__recording_member(r, g, -1);
    }
    const dtr__rec_step *step[DTR__RECORDING_STEPS];
    for (size_t n = dtr__recording_steps(r, step); n > 0; n--) {
        if (!dtr__rec_is_time(atomic_load(&step[n - 1]->t))) {
            abort();
        }
    }
    (void)dtr__recording_last(r, true);
    (void)dtr__recording_last(r, false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    char why[256] = "";
    dtr__recording *r = dtr__recording_parse(data, nbytes, why, sizeof why);
    if (r == NULL && why[0] == '\0') {
        abort();
    }
    if (r != NULL) {
        look_at(r);
    }
    dtr__recording_free(r);
    return 0;
}
