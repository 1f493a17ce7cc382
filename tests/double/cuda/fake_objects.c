/* Objects of the program that graphs hold: called back when the last graph that holds one is gone,
 * a while later and from a thread of its own, as CUDA does it. */
#include "fake.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef struct object {
    _Atomic unsigned refs;
    cudaHostFn_t destroy;
    void *arg;
} object;

struct fake_held {
    fake_held *next;
    object *what;
};

static void *destroy_main(void *arg) {
    object o = *(object *)arg;
    free(arg);
    dtr_fake_cuda_delay();
    o.destroy(o.arg);
    return NULL;
}

static void unref(object *o, unsigned n) {
    pthread_t thread;
    if (atomic_fetch_sub(&o->refs, n) != n) {
        return;
    }
    if (pthread_create(&thread, NULL, destroy_main, o) != 0) {
        fake_die("cannot start the thread that destroys an object");
    }
    pthread_detach(thread);
}

void fake_hold(fake_held **list, void *what) {
    fake_held *h = malloc(sizeof *h);
    if (h == NULL) {
        fake_die("no memory for an object of a graph");
    }
    *h = (fake_held){ *list, what };
    *list = h;
}

void fake_hold_same(fake_held **list, const fake_held *from) {
    for (; from != NULL; from = from->next) {
        atomic_fetch_add(&from->what->refs, 1);
        fake_hold(list, from->what);
    }
}

void fake_let_go(fake_held *list) {
    for (fake_held *h = list, *next; h != NULL; h = next) {
        next = h->next;
        unref(h->what, 1);
        free(h);
    }
}

API cudaError_t cudaUserObjectCreate(cudaUserObject_t *out, void *arg, cudaHostFn_t destroy,
                                     unsigned refs, unsigned flags) {
    cudaError_t e = fake_enter("cudaUserObjectCreate", "flags=%u", flags);
    object *o = e == cudaSuccess && refs > 0 && flags == cudaUserObjectNoDestructorSync
                    ? malloc(sizeof *o)
                    : NULL;
    if (o == NULL) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidValue);
    }
    atomic_init(&o->refs, refs);
    o->destroy = destroy;
    o->arg = arg;
    *out = (cudaUserObject_t)(void *)o;
    return cudaSuccess;
}

API cudaError_t cudaUserObjectRelease(cudaUserObject_t o, unsigned n) {
    cudaError_t e = fake_enter("cudaUserObjectRelease", "%s", "");
    if (e == cudaSuccess) {
        unref((object *)(void *)o, n);
    }
    return fake_result(e);
}
