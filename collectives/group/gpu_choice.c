/* Choosing a GPU, and finding ranks that share one, in few steps for each rank of the world: ranks
 * are compared with those of their own host, or after sorting. */
#include <stdlib.h>
#include <string.h>

#include "group/gpu_choice.h"
#include "topology/gpu_affinity.h"

static bool one_gpu(const dtr__gpu_rank *a, int da, const dtr__gpu_rank *b, int db) {
    return db >= 0 && db < DTR__GPUS && memcmp(a->uuid[da], b->uuid[db], DTR__GPU_UUID) == 0;
}

/* The nearest of the devices that the fewest ranks of the host have taken. */
static int pick(const dtr__gpu_rank *rank, const int *near, const int *taken, int n, int k) {
    const dtr__gpu_rank *a = &rank[near[k]];
    const int listed = dtr__gpus_listed(a);
    int users[DTR__GPUS] = { 0 };
    for (int i = 0; i < listed; i++) {
        for (int o = 0; o < n; o++) {
            users[i] += one_gpu(a, i, &rank[near[o]], taken[o]);
        }
    }
    return dtr__nearest_pick(users, a->distance, listed);
}

/* Ranks of a host choose in the order of the world, which all of them work out alike; what options
 * name is taken first. */
int dtr__gpu_choose(const dtr__gpu_rank *rank, int size, int me) {
    int n = 0, choice = 0;
    for (int r = 0; r < size; r++) {
        n += rank[r].host == rank[me].host;
    }
    int *near = malloc(2 * (size_t)n * sizeof *near); /* ranks of the host, and their devices */
    if (near == NULL) {
        return 0;
    }
    int *taken = near + n;
    for (int r = 0, k = 0; r < size; r++) {
        if (rank[r].host == rank[me].host) {
            near[k] = r;
            taken[k++] = rank[r].named;
        }
    }
    for (int k = 0; k < n && near[k] <= me; k++) {
        taken[k] = taken[k] == DTR__ANY_DEVICE ? pick(rank, near, taken, n, k) : taken[k];
        choice = taken[k];
    }
    free(near);
    return choice;
}

/* ---- ranks that share one ---- */

static int by_gpu(const void *x, const void *y) {
    const dtr__gpu_seat *a = x, *b = y;
    if (a->host != b->host) {
        return a->host < b->host ? -1 : 1;
    }
    const int order = memcmp(a->uuid, b->uuid, DTR__GPU_UUID);
    return order != 0 ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

void dtr__gpu_seats_sort(dtr__gpu_seat *seat, int n) {
    qsort(seat, (size_t)n, sizeof *seat, by_gpu);
}

bool dtr__gpu_one_seat(const dtr__gpu_seat *a, const dtr__gpu_seat *b) {
    return a->host == b->host && memcmp(a->uuid, b->uuid, DTR__GPU_UUID) == 0;
}

bool dtr__gpu_wanted_by_user(const dtr__gpu_seat *a, const dtr__gpu_seat *b) {
    return (a->several && b->several) ||
           (a->nccl_id != 0 && b->nccl_id != 0 && a->nccl_id != b->nccl_id);
}

int dtr__gpu_first_shared(const dtr__gpu_seat *seat, int n, bool allowed) {
    int first = -1;
    for (int i = 0; i < n; i++) {
        bool shared = first >= 0 && seat[i].rank > seat[first].rank; /* then it does not matter */
        for (int j = i + 1; j < n && !shared && dtr__gpu_one_seat(&seat[i], &seat[j]); j++) {
            if (!allowed || !dtr__gpu_wanted_by_user(&seat[i], &seat[j])) {
                first = i;
                shared = true;
            }
        }
    }
    return first;
}
