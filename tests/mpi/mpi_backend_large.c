/* COL41, OBJ22, T123: counts and strings above INT_MAX through the mpi backend, two ranks, about 9
 * GiB of memory in all; skipped where that is not free. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "harness.h"

#define HALF (((size_t)1 << 30) + 4)
#define COUNT (2 * HALF) /* 2^31 + 8 */

static dtr_group *g;
static uint8_t *in, *out;

static uint8_t at(size_t k, int rank) {
    return (uint8_t)(k * 5 + (k >> 27) * 3 + (size_t)rank * 101);
}

static void prepare(void) {
    for (size_t k = 0; k < COUNT; k++) {
        in[k] = at(k, th_rank());
    }
}

static void check(const char *what, size_t k, uint8_t want) {
    TH_CHECK(out[k] == want, "%s: element %zu is %u, not %u", what, k, out[k], want);
}

static dtr_buffer of(uint8_t *data, size_t count) {
    return dtr_cpu(data, count, DTR_U8);
}

/* OBJ22: one string above INT_MAX, and a total that is. */
static void strings(void) {
    dtr_bytes mine = { in, th_rank() == 1 ? COUNT : 3 }, got[2] = { { NULL, 0 } };
    TH_OK(dtr_gather_bytes(g, mine, 0, NULL, th_rank() == 0 ? got : NULL));
    TH_CHECK(th_rank() == 1 || (got[0].nbytes == 3 && got[1].nbytes == COUNT), "lengths");
    out = got[1].data;
    for (size_t k = 0; k < got[1].nbytes; k++) {
        check("gather_bytes", k, at(k, 1));
    }
    dtr_bytes_free(got, 2);
    TH_AGREE();
}

START_TEST(above_int_max) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    int me = th_rank(), peer = 1 - me;
    dtr_work *work[2] = { NULL, NULL };
    o.backend = "cpu:mpi";
    TH_OK(dtr_group_split(th_group(), 0, 0, &o, &g));
    in = malloc(COUNT);
    out = malloc(COUNT);
    TH_ALL(in != NULL && out != NULL, "no memory");
    prepare();

    TH_OK(dtr_allreduce(g, of(in, COUNT), of(out, COUNT), DTR_SUM, NULL, NULL));
    for (size_t k = 0; k < COUNT; k++) {
        check("allreduce", k, (uint8_t)(at(k, 0) + at(k, 1)));
    }
    TH_OK(dtr_alltoall(g, of(in, COUNT), of(out, COUNT), NULL, NULL));
    for (size_t k = 0; k < COUNT; k++) {
        check("alltoall", k, at((size_t)me * HALF + k % HALF, k < HALF ? 0 : 1));
    }
    TH_OK(dtr_allgather(g, of(in, HALF), of(out, COUNT), NULL, NULL));
    for (size_t k = 0; k < COUNT; k++) {
        check("allgather", k, at(k % HALF, k < HALF ? 0 : 1));
    }
    TH_OK(dtr_reduce_scatter(g, of(in, COUNT), of(out, HALF), DTR_MAX, NULL, NULL));
    for (size_t k = 0; k < HALF; k++) {
        uint8_t a = at((size_t)me * HALF + k, 0), b = at((size_t)me * HALF + k, 1);
        check("reduce_scatter", k, a > b ? a : b);
    }
    TH_OK(dtr_recv(g, of(out, COUNT), peer, 0, NULL, &work[0]));
    TH_OK(dtr_send(g, of(in, COUNT), peer, 0, NULL, &work[1]));
    for (int i = 0; i < 2; i++) {
        TH_OK(dtr_work_wait(work[i], -1));
        TH_OK(dtr_work_release(work[i]));
    }
    for (size_t k = 0; k < COUNT; k++) {
        check("send", k, at(k, peer));
    }
    TH_OK(dtr_broadcast(g, of(me == 1 ? in : out, COUNT), 1, NULL, NULL));
    for (size_t k = 0; k < COUNT && me == 0; k++) {
        check("broadcast", k, at(k, 1));
    }
    TH_AGREE();
    free(out);
    strings();
    free(in);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

static bool enough_memory(void) {
    double pages = (double)sysconf(_SC_AVPHYS_PAGES), page = (double)sysconf(_SC_PAGESIZE);
    FILE *f = fopen("/proc/meminfo", "r");
    char line[200];
    unsigned long kib;
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "MemAvailable: %lu kB", &kib) == 1) {
            pages = (double)kib * 1024 / page;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return pages * page > 2.5 * 2 * (double)COUNT;
}

static void make(Suite *s) {
    th_add(th_case(s, "large", 540), above_int_max, 2, 2);
}

int main(int argc, char **argv) {
    if (!enough_memory()) {
        printf("skipped: needs 11 GiB of free memory\n");
        return 77;
    }
    return th_main(argc, argv, "mpi_backend_large", make);
}
