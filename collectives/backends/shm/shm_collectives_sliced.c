/* A staged allreduce by slices. If every rank reduced the whole chunk out of all staging buffers,
 * that would be as many times as many reads as there are ranks; here each reduces the slice with
 * its number. The result lies where that slice of its own input did, in its own staging buffer,
 * which nobody else reads before; it says so, and all copy the finished slices out. */
#include "kernels/kernels.h"
#include "shm_internal.h"

/* Of so few, to read what all have takes no longer than the second round of flags, and the results
 * that are copied once more. */
enum { FEW_RANKS = 4 };

bool dtr__shm_slices_fit(const dtr_group *g, const dtr__call *c) {
    const size_t nbytes = c->in_count * dtr_dtype_size(c->dtype);
    const uint64_t beyond = g->size > FEW_RANKS ? (uint64_t)(g->size - FEW_RANKS) : 0;
    return c->kind == DTR__K_ALLREDUCE && nbytes > DTR__SHM_INLINE &&
           nbytes * beyond >= g->world->tune.value[DTR__TUNE_SLICES];
}

/* Bytes of chunk `k`. */
static size_t bytes_of(const dtr__shm_op *op, const dtr__call *c, size_t k) {
    const size_t left = c->in_count * op->size - k * op->step;
    return left < op->step ? left : op->step;
}

/* Reduce the own slice of the next chunk if it is there from all; *moved bytes. */
static bool make_slice(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t *moved) {
    dtr__shm_op *op = &s->op;
    const void *from[DTR__SHM_MAX_RANKS];
    double factors[DTR__SHM_MAX_RANKS];
    const size_t nbytes = bytes_of(op, c, op->made), at = dtr__shm_slice_at(g, nbytes, g->rank),
                 n = dtr__shm_slice_at(g, nbytes, g->rank + 1) - at;
    for (int r = 0; r < g->size && n > 0; r++) {
        const unsigned char *chunk = dtr__shm_source(g, s, c, r, op->made);
        if (chunk == NULL) {
            return false;
        }
        from[r] = chunk + at;
        factors[r] = c->op == DTR_PREMUL_SUM ? dtr__shm_detail_of(s, r)->premul : 1;
    }
    if (n > 0) { /* into the cache for the others, who fetch it from there */
        void *to[2] = { dtr__shm_staged(g, s, c, g->rank, op->made) + at,
                        (unsigned char *)c->out + op->made * op->step + at };
        dtr__reduce_piece(to, 2, from, g->size, n / op->size, c->dtype, dtr__kernel_op(g, c),
                          c->divisor, c->op == DTR_PREMUL_SUM ? factors : NULL,
                          dtr__shm_streams(g, c->kind, c->out_count * op->size)
                              ? DTR__NONTEMPORAL_OTHERS
                              : DTR__NONTEMPORAL_NONE);
    }
    if (dtr__shm_has_withdrawn(s->boards[g->rank], DTR__SHM_BUFFERS)) {
        return false; /* the program may have changed its data while it was read */
    }
    atomic_store_explicit(&s->me->reduced, dtr__shm_mark(op->n, op->made), memory_order_release);
    op->made++;
    *moved += n * (size_t)g->size;
    return true;
}

bool dtr__shm_slices_pull(const dtr_group *g, dtr__shm_state *s, const dtr__call *c,
                          size_t *moved) {
    dtr__shm_op *op = &s->op;
    const bool stream = dtr__shm_streams(g, c->kind, c->out_count * op->size);
    while (op->made < op->chunks_in && op->made < op->pulled + 2 && make_slice(g, s, c, moved)) {
    }
    const size_t nbytes = bytes_of(op, c, op->pulled);
    for (; op->copied < g->size; op->copied++) { /* starts behind oneself */
        const int r = (g->rank + op->copied) % g->size;
        const size_t at = dtr__shm_slice_at(g, nbytes, r),
                     n = dtr__shm_slice_at(g, nbytes, r + 1) - at;
        if (n == 0) {
            continue;
        }
        if (atomic_load_explicit(&s->rank[r]->reduced, memory_order_acquire) <
            dtr__shm_mark(op->n, op->pulled)) {
            return false;
        }
        if (r != g->rank) { /* the own one is there */
            (stream ? dtr__copy_nontemporal
                    : dtr__copy)((char *)c->out + op->pulled * op->step + at,
                                 dtr__shm_staged(g, s, c, r, op->pulled) + at, n);
            *moved += n;
        }
    }
    op->copied = 0;
    return true;
}
