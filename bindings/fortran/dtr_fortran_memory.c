/* Memory of the library as Fortran pointers. */
#include "dtr_fortran.h"

#define FORTRAN(signature) DTR_F_FUNCTION(void dtr_f_##signature)
#define ENDING int *stat, const CFI_cdesc_t *errmsg /* of every call */

static const dtr_device HOST = { DTR_CPU, 0 };

/* The extents that a pointer is to get, checked. Returns its bytes. */
static size_t shape_of(dtr_f_call *c, const CFI_cdesc_t *ptr, const CFI_cdesc_t *extents,
                       CFI_index_t *shape) {
    size_t nbytes = ptr->elem_len;
    const CFI_index_t given = extents->rank == 0 ? 1 : extents->dim[0].extent;
    if (!dtr_f_is_whole(extents)) {
        dtr_f_refuse(c, DTR_ERR_ARG,
                     "extents has to be an integer of 4 or 8 bytes, or a "
                     "one-dimensional array of them");
    } else if (given != ptr->rank) {
        dtr_f_refuse(c, DTR_ERR_SHAPE, "extents has %td elements, and ptr %d dimensions", given,
                     ptr->rank);
    }
    for (int i = 0; c->status == DTR_OK && i < ptr->rank; i++) {
        shape[i] = dtr_f_whole(extents, i);
        if (shape[i] < 0) {
            dtr_f_refuse(c, DTR_ERR_ARG, "extents(%d) is %td", i + 1, shape[i]);
        } else if (__builtin_mul_overflow(nbytes, (size_t)shape[i], &nbytes)) {
            dtr_f_refuse(c, DTR_ERR_OVERFLOW, "extents(%d) is %td: more bytes than there can be",
                         i + 1, shape[i]);
        }
    }
    return nbytes;
}

/* Let the program's pointer be an array at `data`, with the steps of `like` where that is given. */
static void associate(dtr_f_call *c, CFI_cdesc_t *ptr, void *data, const CFI_index_t *shape,
                      const CFI_cdesc_t *like) {
    CFI_CDESC_T(CFI_MAX_RANK) memory;
    CFI_cdesc_t *d = (CFI_cdesc_t *)&memory;
    CFI_index_t lower[CFI_MAX_RANK];
    int failed =
        CFI_establish(d, data, CFI_attribute_pointer, ptr->type, ptr->elem_len, ptr->rank, shape);
    for (int i = 0; i < ptr->rank; i++) {
        lower[i] = 1;
        if (like != NULL) {
            d->dim[i].sm = like->dim[i].sm;
        }
    }
    if (failed != CFI_SUCCESS || CFI_setpointer(ptr, d, lower) != CFI_SUCCESS) {
        dtr_f_refuse(c, DTR_ERR_INTERNAL, "the compiler's library refused to set ptr");
    }
}

FORTRAN(alloc(dtr_world *const *world, CFI_cdesc_t *ptr, const CFI_cdesc_t *extents,
              const int *kind, ENDING)) {
    dtr_f_call c;
    CFI_index_t shape[CFI_MAX_RANK];
    void *data = NULL;
    dtr_f_begin(&c, "alloc", stat, errmsg);
    ptr->base_addr = NULL;
    const size_t nbytes = shape_of(&c, ptr, extents, shape);
    const dtr_mem of = kind != NULL ? (dtr_mem)*kind : DTR_MEM_SHARED;
    DTR_F_TRY(&c, dtr_alloc(*world, HOST, of, nbytes, &data));
    if (c.status == DTR_OK) {
        associate(&c, ptr, data, shape, NULL);
    }
    dtr_f_end(&c);
}

FORTRAN(free(dtr_world *const *world, CFI_cdesc_t *ptr, ENDING)) {
    dtr_f_call c;
    dtr_f_begin(&c, "free", stat, errmsg);
    c.status = dtr_free(*world, ptr->base_addr);
    if (c.status == DTR_OK) {
        ptr->base_addr = NULL;
    }
    dtr_f_end(&c);
}

FORTRAN(peer_pointer(dtr_world *const *world, const CFI_cdesc_t *shared, const int *local_rank,
                     CFI_cdesc_t *ptr, ENDING)) {
    dtr_f_call c;
    CFI_index_t shape[CFI_MAX_RANK];
    dtr_f_begin(&c, "peer_pointer", stat, errmsg);
    ptr->base_addr = NULL;
    if (shared->rank != ptr->rank || shared->type != ptr->type) {
        dtr_f_refuse(&c, DTR_ERR_SHAPE,
                     "shared and ptr differ: %d and %d dimensions, elements of %zu and %zu bytes",
                     shared->rank, ptr->rank, shared->elem_len, ptr->elem_len);
    }
    void *there = NULL;
    if (c.status == DTR_OK) {
        there = dtr_peer_pointer(*world, shared->base_addr, *local_rank);
    }
    for (int i = 0; i < shared->rank; i++) {
        shape[i] = shared->dim[i].extent;
    }
    if (there != NULL) {
        associate(&c, ptr, there, shape, shared);
    } else if (c.status == DTR_OK) {
        dtr_error why = DTR_ERROR_INIT;
        (void)dtr_last_error(&why);
        c.status = why.status;
    }
    dtr_f_end(&c);
}
