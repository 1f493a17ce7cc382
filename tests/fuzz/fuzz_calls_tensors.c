/* Calls on tensors, alone, in collectives and in files, with arguments of any value. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_calls.h"

enum { POOL = 7 };
static dtr_tensor *pool[POOL]; /* of one run of fuzz_calls_tensors */

dtr_tensor *tensor_of(dtr_dtype d, int ndim, int64_t a, int64_t b) {
    dtr_tensor *t = NULL;
    const int64_t shape[2] = { a, b };
    judge(dtr_tensor_empty(world, d, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, ndim, shape, &t));
    judge(dtr_tensor_fill(t, 1, NULL));
    return t;
}

static void open_pool(void) {
    pool[0] = tensor_of(DTR_F32, 2, 4, 3);
    pool[1] = NULL;
    judge(dtr_tensor_transpose(pool[0], 0, 1, &pool[1]));
    pool[2] = tensor_of(DTR_I64, 1, 4, 0);
    pool[3] = tensor_of((dtr_dtype)pick(14), 2, 4, 3);
    pool[4] = tensor_of(DTR_F64, 2, 0, 3);
    pool[5] = tensor_of(DTR_U8, 0, 0, 0);
    pool[6] = tensor_of(DTR_F32, 2, 4, 3);
}

static void close_pool(void) {
    for (int i = 0; i < POOL; i++) {
        dtr_tensor_release(pool[i]);
        pool[i] = NULL;
    }
}

/* Mostly those that go together. */
static dtr_tensor *some(void) {
    unsigned b = byte();
    return b < 120 ? pool[b % 2 * 6] : b < 250 ? pool[b % POOL] : NULL;
}

/* ---- alone ---- */

static void look_at(const dtr_tensor *t) {
    (void)dtr_tensor_data(t);
    (void)dtr_tensor_shape(t);
    (void)dtr_tensor_strides(t);
    (void)dtr_tensor_device(t);
    (void)dtr_tensor_dtype(t);
    (void)dtr_tensor_ndim(t);
    (void)dtr_tensor_numel(t);
    (void)dtr_tensor_buffer(t);
    (void)dtr_tensor_is_contiguous(t);
}

static void arithmetic(void) {
    double norm = 0;
    judge(dtr_tensor_copy(some(), some(), NULL));
    judge(dtr_tensor_axpy(some(), seconds(), some(), NULL));
    judge(dtr_tensor_scale(some(), seconds(), NULL));
    judge(dtr_tensor_norm(some(), NULL, pick(8) == 0 ? NULL : &norm));
}

static void copies(void) {
    dtr_tensor *t = NULL;
    dtr_tensor **out = pick(16) == 0 ? NULL : &t;
    judge(pick(2) == 0 ? dtr_tensor_clone(some(), out) : dtr_tensor_contiguous(some(), out));
    dtr_tensor_release(dtr_tensor_retain(t));
    dtr_tensor_release(t);
}

static void exchange(void) {
    struct DLManagedTensor *old = NULL;
    struct DLManagedTensorVersioned *new = NULL;
    dtr_tensor *t = NULL;
    judge(dtr_tensor_from_dlpack(NULL, &t));
    judge(dtr_tensor_from_dlpack_versioned(NULL, &t));
    judge(dtr_tensor_to_dlpack(some(), pick(16) == 0 ? NULL : &old));
    if (old != NULL) {
        judge(dtr_tensor_from_dlpack(old, &t));
        dtr_tensor_release(t);
        t = NULL;
    }
    judge(dtr_tensor_to_dlpack_versioned(some(), pick(16) == 0 ? NULL : &new));
    if (new != NULL) {
        judge(dtr_tensor_from_dlpack_versioned(new, &t));
        dtr_tensor_release(t);
    }
}

/* ---- files ---- */

static void in_files(void) {
    static const char *const names[] = { "a", "b", "", NULL };
    const dtr_named_tensor named[2] = { { names[pick(4)], some() }, { names[pick(4)], some() } };
    const dtr_text_pair pair = { names[pick(4)], names[pick(4)] };
    dtr_safetensors *file = NULL;
    dtr_tensor *t = NULL;
    if (pick(2) == 0) {
        judge(dtr_tensor_save_npy(some(), scratch_file()));
        judge(dtr_tensor_load_npy(scratch_file(), &t));
        dtr_tensor_release(t);
        return;
    }
    judge(dtr_safetensors_save(scratch_file(), pick(8) == 0 ? NULL : named, pick(3),
                               pick(8) == 0 ? NULL : &pair, pick(2)));
    judge(dtr_safetensors_open(scratch_file(), pick(16) == 0 ? NULL : &file));
    judge(dtr_safetensors_load_into(file, names[pick(4)], some()));
    judge(dtr_safetensors_load(file, names[pick(4)], pick(8) == 0 ? NULL : &t));
    judge(dtr_safetensors_close(file));
    dtr_tensor_release(t);
}

/* ---- collectives ---- */

static dtr_status on_one(dtr_group *g, dtr_work **w) {
    dtr_tensor *a = some(), *b = pick(4) == 0 ? a : some();
    const dtr_coll_options *o = options();
    const dtr_tensor_p2p both[2] = { { true, a, number(1), number(100) },
                                     { false, b, number(1), number(100) } };
    switch (pick(10)) {
    case 8:
        return dtr_tensor_batch_p2p(g, pick(8) == 0 ? NULL : both, 2, o, w);
    case 0:
        return dtr_tensor_broadcast(g, a, number(1), o, w);
    case 1:
        return dtr_tensor_reduce(g, a, operator_of(), number(1), o, w);
    case 2:
        return dtr_tensor_allgather(g, a, b, o, w);
    case 3:
        return dtr_tensor_gather(g, a, b, number(1), o, w);
    case 4:
        return dtr_tensor_scatter(g, a, b, number(1), o, w);
    case 5:
        return dtr_tensor_reduce_scatter(g, a, b, operator_of(), o, w);
    case 6:
        return dtr_tensor_alltoall(g, a, b, o, w);
    case 7:
        return dtr_tensor_send(g, a, number(1), number(100), o, w);
    default:
        return dtr_tensor_recv(g, a, number(1), number(100), o, w);
    }
}

static dtr_status on_lists(dtr_group *g, dtr_work **w) {
    static dtr_tensor *one[3];
    static size_t rows[2];
    for (int i = 0; i < 3; i++) {
        one[i] = some();
    }
    rows[0] = pick(6);
    rows[1] = pick(4) == 0 ? SIZE_MAX : rows[0];
    dtr_tensor *const *list = pick(8) == 0 ? NULL : one;
    const dtr_coll_options *o = options();
    switch (pick(7)) {
    case 0:
        return dtr_tensor_allgather_list(g, some(), list, o, w);
    case 1:
        return dtr_tensor_gather_list(g, some(), list, number(1), o, w);
    case 2:
        return dtr_tensor_scatter_list(g, list, some(), number(1), o, w);
    case 3:
        return dtr_tensor_reduce_scatter_list(g, list, some(), operator_of(), o, w);
    case 4:
        return dtr_tensor_alltoall_list(g, list, one + 1, o, w);
    case 5:
        return dtr_tensor_alltoallv(g, some(), pick(8) == 0 ? NULL : rows, some(), rows + 1, o, w);
    default:
        return dtr_broadcast_coalesced(g, list, pick(4), number(1), pick(100));
    }
}

static void sparse(dtr_group *g) {
    dtr_tensor *rows = NULL, *values = NULL;
    judge(dtr_sparse_allreduce(g, some(), pick(2) == 0 ? pool[0] : some(), number(8), operator_of(),
                               options(), pick(16) == 0 ? NULL : &rows,
                               pick(16) == 0 ? NULL : &values, NULL));
    dtr_tensor_release(rows);
    dtr_tensor_release(values);
}

/* The tensors live on until what was started has ended. */
void fuzz_calls_tensors(dtr_group *g, dtr_work **work) {
    dtr_work *w = NULL;
    open_pool();
    switch (pick(8)) {
    case 0:
        look_at(some());
        break;
    case 1:
        arithmetic();
        break;
    case 2:
        copies();
        break;
    case 3:
        exchange();
        break;
    case 4:
        in_files();
        break;
    case 5:
        sparse(g);
        break;
    case 6:
        judge(on_one(g, work != NULL ? &w : NULL));
        break;
    default:
        judge(on_lists(g, work != NULL ? &w : NULL));
        break;
    }
    judge(dtr_work_wait(w, -1));
    judge(dtr_work_release(w));
    close_pool();
}
