/* The peer of dtr-ddp-bench: what a program does by hand, one MPI_Allreduce per bucket. It leaves
 * out the division by the number of ranks, as such a program folds it into its learning rate. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "ddp_bench.h"

void peer_open(mpi_peer *p, const dtr_plan *plan, size_t n_params, bool view) {
    p->n = dtr_plan_bucket_count(plan);
    p->buckets = bench_memory(p->n * sizeof *p->buckets);
    p->left = bench_memory(p->n * sizeof *p->left);
    p->bucket_of = bench_memory(n_params * sizeof *p->bucket_of);
    p->slot = bench_memory(n_params * sizeof *p->slot);
    p->grad = bench_memory(n_params * sizeof *p->grad);
    for (size_t k = 0; k < p->n; k++) {
        const dtr_plan_bucket *from = dtr_plan_get_bucket(plan, k);
        size_t size = dtr_dtype_size(from->dtype);
        mpi_bucket *to = &p->buckets[k];
        *to = (mpi_bucket){ NULL, from->nbytes / size, from->n_slots };
        to->data = bench_memory(to->count * sizeof *to->data);
        for (size_t s = 0; s < from->n_slots; s++) {
            const dtr_plan_slot *slot = &from->slots[s];
            p->bucket_of[slot->param] = k;
            p->slot[slot->param] = to->data + slot->offset / size;
            p->grad[slot->param] =
                view ? p->slot[slot->param] : bench_memory(slot->nbytes / size * sizeof(float));
        }
    }
}

void peer_close(mpi_peer *p, size_t n_params, bool view) {
    for (size_t i = 0; !view && p->grad != NULL && i < n_params; i++) {
        free(p->grad[i]);
    }
    for (size_t k = 0; k < p->n; k++) {
        free(p->buckets[k].data);
    }
    free(p->buckets);
    free(p->left);
    free(p->bucket_of);
    free((void *)p->slot);
    free((void *)p->grad);
    *p = (mpi_peer){ 0 };
}

void peer_begin(mpi_peer *p) {
    for (size_t k = 0; k < p->n; k++) {
        p->left[k] = p->buckets[k].n_slots;
    }
    p->next = 0;
}

static void reduce_complete(mpi_peer *p) {
    for (; p->next < p->n && p->left[p->next] == 0; p->next++) {
        MPI_Allreduce(MPI_IN_PLACE, p->buckets[p->next].data, (int)p->buckets[p->next].count,
                      MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
}

void peer_ready(mpi_peer *p, const model *m, size_t i, bool at_once) {
    if (p->grad[i] != p->slot[i]) {
        memcpy(p->slot[i], p->grad[i], m->params[i].numel * sizeof(float));
    }
    p->left[p->bucket_of[i]]--;
    if (at_once) {
        reduce_complete(p);
    }
}

void peer_end(mpi_peer *p, const model *m) {
    reduce_complete(p);
    for (size_t i = 0; i < m->n; i++) {
        if (p->grad[i] != p->slot[i]) {
            memcpy(p->grad[i], p->slot[i], m->params[i].numel * sizeof(float));
        }
    }
}
