/* Kernels as nvcc compiled them: their PTX, made C by ptx/ptx_to_c.py, in a library of its own.
 * Warps run in lockstep, blocks and threads one after the other from the last to the first. What a
 * card would not forgive ends the process: an access that is misaligned or outside of every block,
 * memory that nobody has written or that two threads use with nothing between (fake_shadow.c), a
 * warp or block whose threads wait in different places. */
#include "fake.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_shadow.h"

enum { WARP = 32, SHARED = 48 * 1024, THREADS = 1024, KERNELS = 512 };

/* ---- the library ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const ptx_kernel *all; /* constant after `once`; an empty name ends it */
static _Atomic unsigned ran[KERNELS];

static void open_library(void) {
    void *library = dlopen(fake_set()->ptx, RTLD_NOW | RTLD_LOCAL);
    all = library != NULL ? dlsym(library, "ptx_kernels") : NULL;
    if (all == NULL) {
        fake_die("DTR_FAKE_CUDA_PTX: %s", dlerror());
    }
    for (size_t n = 0; all[n].name != NULL; n++) {
        if (n == KERNELS - 1) {
            fake_die("%s: more than %d kernels", fake_set()->ptx, KERNELS - 1);
        }
    }
}

const ptx_kernel *fake_ptx_named(const char *name) {
    if (fake_set()->ptx[0] == '\0' || strncmp(name, "dtr_kernel_", 11) != 0) {
        return NULL;
    }
    pthread_once(&once, open_library);
    for (const ptx_kernel *k = all; k->name != NULL; k++) {
        if (strcmp(k->name, name) == 0) {
            return k;
        }
    }
    fake_die("%s has no kernel %s", fake_set()->ptx, name);
}

API const char *dtr_fake_cuda_ptx_ran(unsigned number, unsigned *times) {
    if (fake_set()->ptx[0] == '\0') {
        return NULL;
    }
    pthread_once(&once, open_library);
    for (unsigned k = 0; k < number; k++) {
        if (all[k].name == NULL) {
            return NULL;
        }
    }
    *times = atomic_load(&ran[number]);
    return all[number].name;
}

static void die(const ptx_thread *t, const char *what, const char *why) {
    fake_die("%s, block %u, thread %u, %s: %s", t->launch->kernel->name, t->block, t->number, what,
             why);
}

/* A block's threads. */
typedef struct block {
    ptx_launch launch; /* first: threads know only this */
    ptx_thread thread[THREADS];
} block;

/* ---- warps and blocks ---- */

static bool same_place(const ptx_thread *a, const ptx_thread *b) {
    return a->state == b->state && a->at == b->at;
}

/* Exchanges values by lane numbers that differ in b, as shfl.sync.bfly does. */
static void exchange(ptx_thread *lane, unsigned n) {
    uint32_t value[WARP];
    for (unsigned i = 0; i < n; i++) {
        value[i] = lane[i].value;
    }
    for (unsigned i = 0; i < n; i++) {
        ptx_thread *t = &lane[i];
        if (t->state != PTX_SHUFFLE) {
            continue;
        }
        for (unsigned j = 0; j < WARP; j++) {
            if ((t->members >> j & 1) != 0 && (j >= n || !same_place(t, &lane[j]))) {
                die(t, t->what, "not all lanes that it names are here");
            }
        }
        const uint32_t segment = t->c >> 8 & 31, last = (i & segment) | (t->c & 31 & ~segment);
        const uint32_t from = i ^ (t->b & 31);
        if ((t->members >> i & 1) == 0 || (from <= last && (t->members >> from & 1) == 0)) {
            die(t, t->what, "a lane that it does not name");
        }
        t->in_range = from <= last;
        t->value = value[t->in_range ? from : i];
    }
    for (unsigned i = 0; i < n; i++) {
        lane[i].state = lane[i].state == PTX_SHUFFLE ? PTX_RUNS : lane[i].state;
    }
}

/* Until each thread of the warp has ended or waits for the block. */
static void run_warp(ptx_thread *lane, unsigned n) {
    bool again = true;
    while (again) {
        for (unsigned i = n; i-- > 0;) {
            if (lane[i].state == PTX_RUNS) {
                lane[i].state = lane[i].launch->kernel->run(&lane[i]);
            }
        }
        again = false;
        for (unsigned i = 0; i < n; i++) {
            again = again || lane[i].state == PTX_SHUFFLE;
        }
        if (again) {
            exchange(lane, n);
        }
    }
    for (unsigned i = 1; i < n; i++) {
        if (!same_place(&lane[0], &lane[i]) && lane[i].state != PTX_DONE) {
            die(&lane[i], lane[i].what, "the lanes of a warp wait in different places");
        }
    }
}

/* False: all have ended. */
static bool pass_barrier(block *b) {
    unsigned ended = 0;
    const unsigned n = b->launch.threads;
    for (unsigned i = 0; i < n; i++) {
        ended += b->thread[i].state == PTX_DONE;
    }
    for (unsigned i = 0; ended < n && i < n; i++) {
        ptx_thread *t = &b->thread[i];
        if (t->state == PTX_BARRIER && (ended > 0 || t->id != b->thread[0].id)) {
            die(t, t->what, "not all threads of the block come to this barrier");
        }
        t->state = PTX_RUNS;
    }
    fake_shadow_barrier(b->launch.shadow);
    return ended < n;
}

static void run_block(block *b, unsigned char *registers) {
    const unsigned n = b->launch.threads, bytes = b->launch.kernel->registers;
    memset(registers, 0xA5, (size_t)n * bytes);
    for (unsigned i = 0; i < n; i++) {
        b->thread[i].state = PTX_RUNS;
        b->thread[i].at = 0;
        b->thread[i].registers = registers + (size_t)i * bytes;
    }
    do {
        for (unsigned w = (n + WARP - 1) / WARP; w-- > 0;) {
            run_warp(&b->thread[w * WARP], n - w * WARP < WARP ? n - w * WARP : WARP);
        }
    } while (pass_barrier(b));
}

void fake_ptx_run(const ptx_kernel *k, const void *argument, unsigned blocks, unsigned threads) {
    block *b = calloc(1, sizeof *b);
    unsigned char *registers =
        aligned_alloc(16, ((size_t)threads * k->registers + 16) & ~(size_t)15);
    if (b == NULL || registers == NULL || threads > k->n_threads || k->shared > SHARED) {
        fake_die("%s: %u threads of a block, %u bytes of shared memory", k->name, threads,
                 k->shared);
    }
    atomic_fetch_add(&ran[k - all], 1);
    b->launch = (ptx_launch){ .kernel = k,
                              .argument = argument,
                              .blocks = blocks,
                              .threads = threads,
                              .shadow = fake_shadow_open(blocks, k->shared),
                              .global = fake_shadow_global,
                              .shared = fake_shadow_shared,
                              .die = die };
    for (unsigned at = blocks; at-- > 0;) {
        fake_shadow_block(b->launch.shadow, at);
        for (unsigned i = threads; i-- > 0;) {
            b->thread[i].launch = &b->launch;
            b->thread[i].block = at;
            b->thread[i].number = i;
            if (k->registers == 0) {
                (void)k->run(&b->thread[i]);
            }
        }
        if (k->registers > 0) {
            run_block(b, registers);
        }
    }
    fake_shadow_close(b->launch.shadow);
    free(registers);
    free(b);
}
