/* Tensors with memory of a world, shared references, and strided tensors inside coalescing scopes.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/tensor_internal.h"
#include "tensor_views.h"

#include "world/world.h"

static int W, r;
static const dtr_device cpu = { DTR_CPU, 0 };

START_TEST(memory_of_every_kind) {
    static const dtr_mem kinds[] = { DTR_MEM_DEFAULT, DTR_MEM_PINNED, DTR_MEM_SHARED };
    size_t used = 0;
    for (int i = 0; i < 6; i++) { /* the second time round nothing new may be held */
        dtr_tensor *t = NULL, *x = NULL, *c = NULL;
        int where = -1;
        uint64_t offset;
        TH_IS(dtr_tensor_empty(th_world(), DTR_F32, cpu, kinds[i % 3], 2, SHAPE(40, 50), &t),
              DTR_OK);
        TH_CHECK((uintptr_t)dtr_tensor_data(t) % 64 == 0, "not aligned");
        TH_IS(dtr_tensor_fill(t, r + 1, NULL), DTR_OK);
        TH_IS(dtr_tensor_transpose(t, 0, 1, &x), DTR_OK);
        TH_IS(dtr_tensor_contiguous(x, &c), DTR_OK); /* same kind as the original */
        bool shared = dtr__arena_find(th_world(), dtr_tensor_data(c), 8000, &where, &offset);
        TH_CHECK(shared == (kinds[i % 3] == DTR_MEM_SHARED && dtr__arena_usable(th_world())),
                 "kind %d: shared %d", i, shared);
        dtr_tensor_release(t);
        RUN(i == 1, DTR_OK, dtr_tensor_allreduce(th_group(), x, DTR_SUM, NULL, work));
        RUN(i == 0, DTR_OK, dtr_tensor_allreduce(th_group(), c, DTR_SUM, NULL, work));
        double want = W * (W + 1) / 2.0 * 44.721359549995796, norm = 0;
        TH_IS(dtr_tensor_norm(x, NULL, &norm), DTR_OK);
        TH_CHECK(norm > want * 0.999999 && norm < want * 1.000001, "norm %g", norm);
        TH_IS(dtr_tensor_norm(c, NULL, &norm), DTR_OK);
        TH_CHECK(norm > want * 0.999999 && norm < want * 1.000001, "norm %g", norm);
        dtr_tensor_release(x);
        dtr_tensor_release(c);
        TH_AGREE();
        used = i == 2 ? dtr__arena_used(th_world()) : used;
    }
    TH_CHECK(dtr__arena_used(th_world()) == used, "shared memory was not given back");
    dtr_tensor *none = NULL;
    dtr_device odd = { DTR_CPU, 1 }, gpu = { DTR_CUDA, 1000 };
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, odd, DTR_MEM_DEFAULT, 0, NULL, &none),
          DTR_ERR_DEVICE);
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, gpu, DTR_MEM_DEFAULT, 0, NULL, &none),
          DTR_ERR_DEVICE);
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, cpu, (dtr_mem)9, 0, NULL, &none), DTR_ERR_ARG);
    TH_IS(dtr_tensor_empty(th_world(), (dtr_dtype)99, cpu, DTR_MEM_DEFAULT, 0, NULL, &none),
          DTR_ERR_DTYPE);
    TH_IS(dtr_tensor_empty(th_world(), DTR_U8, cpu, DTR_MEM_DEFAULT, 1, SHAPE((int64_t)1 << 46),
                           &none),
          DTR_ERR_NOMEM);
    TH_MESSAGE("70368744177664");
    TH_IS(dtr_tensor_empty(th_world(), DTR_U8, cpu, DTR_MEM_DEFAULT, 1, SHAPE(1), NULL),
          DTR_ERR_ARG);
    TH_CHECK(none == NULL, "output written");
    TH_IS(dtr_tensor_empty(th_world(), DTR_U8, cpu, DTR_MEM_SHARED, 1, SHAPE(0), &none), DTR_OK);
    dtr_tensor_release(none);
    TH_AGREE();
}
END_TEST

/* ---- tensors and the ends of worlds ---- */

static void end_world(dtr_world **w) {
    TH_IS(dtr_world_destroy(*w), DTR_OK);
    *w = NULL;
    TH_AGREE();
}

static double last_of(const dtr_tensor *t) {
    float f = 0;
    memcpy(&f, (const char *)dtr_tensor_data(t) + 4 * (dtr_tensor_numel(t) - 1), sizeof f);
    return f;
}

/* A base with a view, a view alone and a base alone, of each kind, read, copied, reduced in the
 * next world and released there; nothing is said of them at the end of theirs. */
START_TEST(tensors_outlive_their_world) {
    static const dtr_mem kinds[] = { DTR_MEM_DEFAULT, DTR_MEM_PINNED, DTR_MEM_SHARED };
    enum { KINDS = 3 };
    dtr_tensor *base[KINDS], *lone[KINDS], *turned[KINDS], *kept[KINDS];
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    o.keep_mpi = true;
    TH_OK(dtr_world_create(&o, &w));
    for (int i = 0; i < KINDS; i++) {
        dtr_tensor *t = NULL;
        TH_IS(dtr_tensor_empty(w, DTR_F32, cpu, kinds[i], 2, SHAPE(30, 40), &base[i]), DTR_OK);
        TH_IS(dtr_tensor_empty(w, DTR_F32, cpu, kinds[i], 1, SHAPE(70), &lone[i]), DTR_OK);
        TH_IS(dtr_tensor_empty(w, DTR_F32, cpu, kinds[i], 2, SHAPE(20, 50), &t), DTR_OK);
        TH_IS(dtr_tensor_fill(base[i], 1 + r, NULL), DTR_OK);
        TH_IS(dtr_tensor_fill(lone[i], 2 + r, NULL), DTR_OK);
        TH_IS(dtr_tensor_fill(t, 3 + r, NULL), DTR_OK);
        TH_IS(dtr_tensor_transpose(base[i], 0, 1, &turned[i]), DTR_OK);
        TH_IS(dtr_tensor_narrow(t, 0, 5, 5, &kept[i]), DTR_OK);
        dtr_tensor_release(t);
    }
    TH_AGREE();
    end_world(&w);
    TH_OK(dtr_world_create(&o, &w));
    for (int i = 0; i < KINDS; i++) {
        dtr_tensor *c = NULL;
        TH_CHECK(last_of(base[i]) == 1 + r && last_of(lone[i]) == 2 + r &&
                     last_of(kept[i]) == 3 + r,
                 "kind %d: %g %g %g", i, last_of(base[i]), last_of(lone[i]), last_of(kept[i]));
        TH_IS(dtr_tensor_contiguous(turned[i], &c), DTR_OK);
        TH_CHECK(c != NULL && last_of(c) == 1 + r, "kind %d: the copy has %g", i, last_of(c));
        dtr_tensor_release(c);
        dtr_tensor_release(base[i]);
        TH_IS(dtr_tensor_allreduce(dtr_world_group(w), turned[i], DTR_SUM, NULL, NULL), DTR_OK);
        TH_CHECK(last_of(turned[i]) == W * (W + 1) / 2.0, "kind %d: sum %g", i, last_of(turned[i]));
        dtr_tensor_release(turned[i]);
        dtr_tensor_release(lone[i]);
        TH_AGREE();
    }
    end_world(&w);
    for (int i = 0; i < KINDS; i++) {
        TH_CHECK(last_of(kept[i]) == 3 + r, "kind %d: %g", i, last_of(kept[i]));
        dtr_tensor_release(kept[i]);
    }
    TH_AGREE();
}
END_TEST

/* ---- references from many threads ---- */

static void count_free(void *data, void *arg) {
    (void)data;
    atomic_fetch_add((_Atomic int *)arg, 1);
}

static void *use_tensor(void *arg) {
    dtr_tensor *t = arg;
    for (int i = 0; i < 2000; i++) {
        dtr_tensor *one = NULL;
        if (dtr_tensor_narrow(t, 0, i % 8, 1, &one) == DTR_OK) {
            dtr_tensor_release(dtr_tensor_retain(one));
            dtr_tensor_release(one);
        }
        dtr_tensor_release(dtr_tensor_retain(t));
    }
    dtr_tensor_release(t);
    return NULL;
}

START_TEST(references_from_many_threads) {
    enum { N = 4 };
    float data[8];
    _Atomic int freed = 0;
    pthread_t threads[N];
    dtr_tensor *t = NULL;
    TH_IS(dtr_tensor_from_buffer(dtr_cpu(data, 8, DTR_F32), 1, SHAPE(8), NULL, count_free, &freed,
                                 &t),
          DTR_OK);
    for (int i = 0; i < N; i++) {
        pthread_create(&threads[i], NULL, use_tensor, dtr_tensor_retain(t));
    }
    dtr_tensor_release(t);
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
    }
    TH_ALL(freed == 1, "memory freed %d times", freed);
}
END_TEST

/* ---- scopes ---- */

START_TEST(strided_tensors_in_a_scope) {
    view a = view_new(DTR_F32, COLUMN, 2, SHAPE(2, 2)),
         b = view_new(DTR_I64, REVERSED, 2, SHAPE(3, 2));
    view in = view_new(DTR_F32, COLUMN, 1, SHAPE(2)),
         out = view_new(DTR_F32, REVERSED, 2, SHAPE(W, 2));
    for (size_t k = 0; k < 6; k++) {
        view_set(&b, k, (double)k * r);
    }
    for (size_t k = 0; k < 4; k++) {
        view_set(&a, k, (double)k + r);
    }
    view_set(&in, 0, 2 * r);
    view_set(&in, 1, 2 * r + 1);
    dtr_work *part = NULL, *whole = NULL;
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_tensor_allreduce(th_group(), a.t, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_tensor_allgather(th_group(), in.t, out.t, NULL, &part), DTR_OK);
    TH_IS(dtr_tensor_broadcast(th_group(), b.t, W - 1, NULL, NULL), DTR_OK);
    TH_CHECK(view_get(&a, 1) == 1 + r, "written before the end of the scope");
    TH_IS(dtr_coalesce_end(th_group(), &whole), DTR_OK);
    TH_IS(dtr_work_wait(whole, -1), DTR_OK);
    TH_IS(dtr_work_wait(part, -1), DTR_OK);
    dtr_work_release(whole);
    dtr_work_release(part);
    for (size_t k = 0; k < 4; k++) {
        TH_CHECK(view_get(&a, k) == W * (double)k + W * (W - 1) / 2.0, "allreduce %zu", k);
    }
    for (size_t k = 0; k < 6; k++) {
        TH_CHECK(view_get(&b, k) == (double)k * (W - 1), "broadcast %zu", k);
    }
    for (size_t k = 0; k < (size_t)(2 * W); k++) {
        TH_CHECK(view_get(&out, k) == (double)k, "allgather %zu", k);
    }
    TH_CHECK(view_gaps_ok(&a, false) && view_gaps_ok(&b, false) && view_gaps_ok(&out, false),
             "gaps written");
    TH_AGREE();
    /* A bad call ends it all: nothing is filled, nothing leaks. */
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_tensor_allreduce(th_group(), a.t, DTR_MAX, NULL, NULL), DTR_OK);
    TH_IS(dtr_tensor_allgather(th_group(), in.t, b.t, NULL, NULL), DTR_ERR_DTYPE);
    TH_IS(dtr_coalesce_end(th_group(), &whole), DTR_ERR_DTYPE);
    TH_CHECK(view_get(&a, 1) == W + W * (W - 1) / 2.0, "filled by a scope that was given up");
    th_good_allreduce(th_group());
    /* So does one tensor in place twice, strided though it is (COA18). */
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_tensor_allreduce(th_group(), a.t, DTR_MAX, NULL, NULL), DTR_OK);
    TH_IS(dtr_tensor_allreduce(th_group(), a.t, DTR_MAX, NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_coalesce_end(th_group(), &whole), DTR_ERR_ARG);
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_broadcast_coalesced(th_group(), &a.t, 1, 0, 0), DTR_ERR_STATE);
    TH_IS(dtr_tensor_allreduce(th_group(), a.t, DTR_MAX, NULL, NULL), DTR_ERR_STATE);
    TH_IS(dtr_coalesce_end(th_group(), &whole), DTR_ERR_STATE);
    th_good_allreduce(th_group());
    view_free(&a);
    view_free(&b);
    view_free(&in);
    view_free(&out);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    W = th_size();
    r = th_rank();
    TCase *tc = th_case(s, "tensor_memory", 60);
    th_add(tc, memory_of_every_kind, 1, 0);
    th_add(tc, tensors_outlive_their_world, 1, 0);
    th_add(tc, references_from_many_threads, 1, 0);
    th_add(tc, strided_tensors_in_a_scope, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "tensor_memory", make);
}
