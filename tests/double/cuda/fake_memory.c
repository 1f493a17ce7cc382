/* Device memory: a range of addresses that faults when the host touches it, and elsewhere an alias
 * of it, which only copies and kernels use. Alias pages are open while their block lives, so that a
 * kernel that runs past a block or into a freed one faults too. Addresses are never used again. */
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/device_touch.h"

enum { PAGE = 4096 };
#define PER_DEVICE ((size_t)64 << 30)
#define ALL ((size_t)FAKE_DEVICES * PER_DEVICE)

typedef struct block {
    struct block *next;
    char *at;
    size_t nbytes;
    int device;           /* -1: pinned host memory */
    unsigned char *known; /* for each byte, whether somebody has written it; NULL: not kept */
} block;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char *devices, *aliases; /* constant after the first use */
static int backing;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;                /* lock; newest first */
static size_t next_at[FAKE_DEVICES]; /* lock; offsets in a device's range */
static size_t in_use[FAKE_DEVICES];  /* lock; bytes */

static void reserve(void) {
    backing = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (backing < 0 || ftruncate(backing, (off_t)ALL) != 0) {
        fake_die("cannot make %zu bytes of sparse backing for device memory", ALL);
    }
    devices = mmap(NULL, ALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    aliases = mmap(NULL, ALL, PROT_NONE, MAP_SHARED | MAP_NORESERVE, backing, 0);
    if (devices == MAP_FAILED || aliases == MAP_FAILED) {
        fake_die("cannot reserve %zu bytes of addresses for device memory", ALL);
    }
    (void)madvise(aliases, ALL, MADV_DONTDUMP);
}

static bool on_device(const void *p) {
    const char *c = p;
    return devices != NULL && c >= devices && c < devices + ALL;
}

static size_t whole_pages(size_t nbytes) {
    return (nbytes + PAGE - 1) / PAGE * PAGE;
}

/* The block that holds [p, p + nbytes); lock held. */
static block *find(const char *p, size_t nbytes) {
    for (block *b = blocks; b != NULL; b = b->next) {
        if (p >= b->at && p <= b->at + b->nbytes && nbytes <= (size_t)(b->at + b->nbytes - p)) {
            return b;
        }
    }
    return NULL;
}

fake_class fake_classify(const void *p, int *device) {
    if (on_device(p)) {
        *device = (int)((size_t)((const char *)p - devices) / PER_DEVICE);
        return FAKE_DEVICE;
    }
    fake_lock(&lock);
    block *b = find(p, 0);
    fake_unlock(&lock);
    *device = -1;
    return b != NULL ? FAKE_PINNED : FAKE_PAGEABLE;
}

void *fake_touch(const void *p) {
    int device;
    if (on_device(p)) {
        return aliases + ((const char *)p - devices);
    }
    if (p != NULL && fake_classify(p, &device) == FAKE_PAGEABLE) {
        fake_die("a kernel was given the address %p of pageable host memory", p);
    }
    return (void *)(uintptr_t)p;
}

bool fake_block_at(const void *p, const char **begin, size_t *nbytes, void **alias,
                   unsigned char **known) {
    fake_lock(&lock);
    const block *b = find(p, 0);
    if (b != NULL) {
        *begin = b->at;
        *nbytes = b->nbytes;
        *known = b->known;
        *alias = b->device < 0 ? b->at : aliases + (b->at - devices);
    }
    fake_unlock(&lock);
    return b != NULL;
}

API void *dtr_fake_cuda_host(const void *dev, size_t nbytes) {
    if (!on_device(dev)) {
        return NULL;
    }
    fake_lock(&lock);
    bool live = find(dev, nbytes) != NULL;
    fake_unlock(&lock);
    return live ? aliases + ((const char *)dev - devices) : NULL;
}

API unsigned char *dtr_fake_cuda_known(const void *dev, size_t nbytes) {
    fake_lock(&lock);
    const block *b = on_device(dev) ? find(dev, nbytes) : NULL;
    unsigned char *known = b != NULL ? b->known : NULL;
    known = known != NULL ? known + ((const char *)dev - b->at) : NULL;
    fake_unlock(&lock);
    return known;
}

static int kernels; /* that wait for other ranks */

API void dtr_fake_cuda_kernels(int more) {
    (void)__atomic_fetch_add(&kernels, more, __ATOMIC_RELAXED);
}

static void may_wait(const char *function) {
    if (__atomic_load_n(&kernels, __ATOMIC_RELAXED) > 0) {
        dtr_fake_cuda_log(function, "may wait for kernels that wait for other ranks");
    }
}

static block *add_block(char *at, size_t nbytes, int device) {
    block *b = malloc(sizeof *b);
    if (b == NULL) {
        fake_die("no memory for the note of a block");
    }
    *b = (block){ .next = blocks, .at = at, .nbytes = nbytes, .device = device };
    blocks = b;
    return b;
}

/* Takes the block that begins there out of the list; NULL: none. */
static block *take_block(const void *at, bool pinned) {
    for (block **b = &blocks; *b != NULL; b = &(*b)->next) {
        if ((*b)->at == at && ((*b)->device < 0) == pinned) {
            block *found = *b;
            *b = found->next;
            return found;
        }
    }
    return NULL;
}

/* *p is NULL where nothing is there, also because it failed, as seen. */
static cudaError_t device_block(void **p, size_t nbytes) {
    pthread_once(&once, reserve);
    *p = NULL;
    if (nbytes == 0) {
        return cudaSuccess;
    }
    int device = fake_device();
    size_t limit = fake_set()->memory, room = whole_pages(nbytes);
    fake_lock(&lock);
    if (nbytes > limit || in_use[device] > limit - nbytes ||
        room + PAGE > PER_DEVICE - next_at[device]) {
        fake_unlock(&lock);
        return fake_result(cudaErrorMemoryAllocation);
    }
    size_t offset = (size_t)device * PER_DEVICE + next_at[device];
    next_at[device] += room + PAGE; /* the page between two blocks is never opened */
    in_use[device] += nbytes;
    block *b = add_block(devices + offset, nbytes, device);
    if (fake_set()->ptx[0] != '\0' && !fake_kernels_of_others()) {
        b->known = calloc(nbytes, 1);
    }
    if (mprotect(aliases + offset, room, PROT_READ | PROT_WRITE) != 0) {
        fake_die("cannot open %zu bytes of device memory", room);
    }
    fake_unlock(&lock);
    memset(aliases + offset, 0xFF, room); /* NaN in every float type */
    *p = devices + offset;
    return cudaSuccess;
}

API cudaError_t cudaMalloc(void **p, size_t nbytes) {
    cudaError_t e = fake_enter("cudaMalloc", "nbytes=%zu", nbytes);
    if (e != cudaSuccess) {
        return fake_result(e);
    }
    may_wait("cudaMalloc");
    return device_block(p, nbytes);
}

/* The memory is there at once, which is more than CUDA promises. */
API cudaError_t cudaMallocAsync(void **p, size_t nbytes, cudaStream_t stream) {
    cudaError_t e = fake_enter("cudaMallocAsync", "nbytes=%zu stream=%p", nbytes, (void *)stream);
    if (e != cudaSuccess || fake_stream_of(stream) == NULL) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidResourceHandle);
    }
    return device_block(p, nbytes);
}

/* What lies between the end of a block and the end of its last page must be as it was. */
static void check_tail(const block *b, const char *alias) {
    for (size_t i = b->nbytes; i < whole_pages(b->nbytes); i++) {
        if ((unsigned char)alias[i] != 0xFF) {
            fake_die("byte %zu behind a device block of %zu bytes was written", i - b->nbytes,
                     b->nbytes);
        }
    }
}

API int dtr_fake_cuda_unmap(void *p) {
    int device = -1;
    if (fake_classify(p, &device) != FAKE_DEVICE) {
        return fake_result(cudaErrorInvalidValue);
    }
    fake_lock(&lock);
    block *b = take_block(p, false);
    if (b != NULL) {
        char *alias = aliases + (b->at - devices);
        in_use[device] -= b->nbytes;
        check_tail(b, alias);
        (void)fallocate(backing, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, alias - aliases,
                        (off_t)whole_pages(b->nbytes));
        (void)mprotect(alias, whole_pages(b->nbytes), PROT_NONE);
    }
    fake_unlock(&lock);
    free(b != NULL ? b->known : NULL);
    free(b);
    return fake_result(b != NULL ? cudaSuccess : cudaErrorInvalidValue);
}

API cudaError_t cudaFree(void *p) {
    cudaError_t e = fake_enter("cudaFree", "p=%p", p);
    if (e != cudaSuccess || p == NULL) {
        return fake_result(e);
    }
    int device = -1;
    may_wait("cudaFree");
    if (fake_classify(p, &device) == FAKE_DEVICE) {
        fake_drain_device(device);
    }
    return (cudaError_t)dtr_fake_cuda_unmap(p);
}

API cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    cudaError_t e = fake_enter("cudaMemGetInfo", "%s", "");
    if (e == cudaSuccess) {
        fake_lock(&lock);
        *total = fake_set()->memory;
        *available = *total - in_use[fake_device()];
        fake_unlock(&lock);
    }
    return fake_result(e);
}

/* ---- pinned host memory ---- */

API cudaError_t cudaHostAlloc(void **p, size_t nbytes, unsigned flags) {
    cudaError_t e = fake_enter("cudaHostAlloc", "nbytes=%zu flags=%u", nbytes, flags);
    if (e != cudaSuccess) {
        return fake_result(e);
    }
    void *at = NULL;
    may_wait("cudaHostAlloc");
    if (posix_memalign(&at, PAGE, whole_pages(nbytes > 0 ? nbytes : 1)) != 0) {
        return fake_result(cudaErrorMemoryAllocation);
    }
    memset(at, 0xFF, nbytes);
    fake_lock(&lock);
    add_block(at, nbytes, -1);
    fake_unlock(&lock);
    *p = at;
    return cudaSuccess;
}

API cudaError_t cudaMallocHost(void **p, size_t nbytes) {
    return cudaHostAlloc(p, nbytes, cudaHostAllocDefault);
}

API cudaError_t cudaFreeHost(void *p) {
    cudaError_t e = fake_enter("cudaFreeHost", "p=%p", p);
    if (e != cudaSuccess || p == NULL) {
        return fake_result(e);
    }
    may_wait("cudaFreeHost");
    for (int d = 0; d < FAKE_DEVICES; d++) {
        fake_drain_device(d);
    }
    fake_lock(&lock);
    block *b = take_block(p, true);
    fake_unlock(&lock);
    if (b == NULL) {
        return fake_result(cudaErrorInvalidValue);
    }
    free(p);
    free(b);
    return cudaSuccess;
}

/* Memory of the program, whose pages the device may use from now on; its size is one of pages. */
API cudaError_t cudaHostRegister(void *p, size_t nbytes, unsigned flags) {
    cudaError_t e = fake_enter("cudaHostRegister", "p=%p nbytes=%zu flags=%u", p, nbytes, flags);
    if (e != cudaSuccess) {
        return fake_result(e);
    }
    may_wait("cudaHostRegister");
    fake_lock(&lock);
    const bool known = find(p, nbytes) != NULL;
    if (!known && p != NULL && nbytes > 0) {
        add_block(p, nbytes, -1);
    }
    fake_unlock(&lock);
    return fake_result(known                      ? cudaErrorHostMemoryAlreadyRegistered
                       : p == NULL || nbytes == 0 ? cudaErrorInvalidValue
                                                  : cudaSuccess);
}

/* As the end of pinned memory, this may wait for all devices. */
API cudaError_t cudaHostUnregister(void *p) {
    cudaError_t e = fake_enter("cudaHostUnregister", "p=%p", p);
    if (e != cudaSuccess) {
        return fake_result(e);
    }
    may_wait("cudaHostUnregister");
    for (int d = 0; d < FAKE_DEVICES; d++) {
        fake_drain_device(d);
    }
    fake_lock(&lock);
    block *b = take_block(p, true);
    fake_unlock(&lock);
    free(b);
    return fake_result(b != NULL ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    cudaError_t e = fake_enter("cudaPointerGetAttributes", "p=%p", p);
    if (e != cudaSuccess) {
        return fake_result(e);
    }
    int device = -1;
    fake_class class = fake_classify(p, &device);
    *a = (struct cudaPointerAttributes){ .type = cudaMemoryTypeUnregistered, .device = -2 };
    if (class == FAKE_DEVICE && dtr_fake_cuda_host(p, 0) != NULL) {
        a->type = cudaMemoryTypeDevice;
        a->device = device;
        a->devicePointer = (void *)(uintptr_t)p;
    } else if (class == FAKE_PINNED) {
        a->type = cudaMemoryTypeHost;
        a->device = fake_device();
        a->hostPointer = a->devicePointer = (void *)(uintptr_t)p;
    }
    return cudaSuccess;
}

/* ---- what is left ---- */

size_t fake_blocks(bool pinned, bool print) {
    size_t n = 0;
    fake_lock(&lock);
    for (const block *b = blocks; b != NULL; b = b->next) {
        if ((b->device < 0) == pinned) {
            n++;
            if (print) {
                fprintf(stderr, "stand-in CUDA: left over: %s block %p of %zu bytes\n",
                        pinned ? "pinned" : "device", (void *)b->at, b->nbytes);
            }
        }
    }
    fake_unlock(&lock);
    return n;
}

__attribute__((destructor)) static void list_leaks(void) {
    (void)fake_blocks(false, true);
    (void)fake_blocks(true, true);
}
