/* The segment of a communicator: made by whoever comes first, attached by all, without a name once
 * everybody is there. Waits yield the processor: there are often more ranks than cores. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "double_nccl.h"

#define PREFIX "dtr-fake-nccl-"

static void nap(long ns) {
    struct timespec t = { 0, ns };
    nanosleep(&t, NULL);
}

uint64_t dn_nonce(void) {
    static _Atomic uint64_t made;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t h = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    h ^= ((uint64_t)getpid() << 40) + (atomic_fetch_add(&made, 1) << 56);
    return h * UINT64_C(0x9e3779b97f4a7c15);
}

/* A rank that was killed while others had yet to come leaves its segment's name behind. */
void dn_sweep(void) {
    DIR *d = opendir("/dev/shm");
    if (d == NULL) {
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, PREFIX, strlen(PREFIX)) != 0) {
            continue;
        }
        int pid = atoi(e->d_name + strlen(PREFIX));
        if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) {
            char name[300];
            snprintf(name, sizeof name, "/%s", e->d_name);
            shm_unlink(name);
        }
    }
    closedir(d);
}

static size_t size_of(int n) {
    size_t ranks = (size_t)n;
    return sizeof(dn_shared) + ranks * (sizeof(dn_rank) + DN_SLOT) +
           ranks * ranks * sizeof(dn_mail);
}

char *dn_slot(const struct ncclComm *c, int rank) {
    return (char *)(c->shared->rank + c->nranks) + (size_t)rank * DN_SLOT;
}

dn_mail *dn_mailbox(const struct ncclComm *c, int from, int to) {
    return (dn_mail *)dn_slot(c, c->nranks) + (size_t)from * (size_t)c->nranks + (size_t)to;
}

bool dn_pause(struct ncclComm *c, unsigned turn) {
    if (atomic_load(&c->aborted)) {
        return true;
    }
    if (turn < 100) {
        sched_yield();
        return false;
    }
    nap(turn < 1000 ? 20000 : 500000);
    if (turn % 100 == 0 && dn_remote_errors() && c->shared != NULL) {
        for (int i = 0; i < c->nranks; i++) {
            const dn_rank *r = &c->shared->rank[i];
            if (atomic_load(&r->joined) && i != c->rank &&
                (atomic_load(&r->left) || (kill(r->pid, 0) != 0 && errno == ESRCH))) {
                dn_set_error(c, "rank %d: connection closed by rank %d", c->rank, i);
                dn_fail(c, ncclRemoteError);
            }
        }
    }
    return false;
}

static bool barrier(struct ncclComm *c, uint64_t *mine, bool control) {
    uint64_t phase = ++*mine;
    dn_rank *r = c->shared->rank;
    atomic_store(control ? &r[c->rank].control_phase : &r[c->rank].stream_phase, phase);
    for (int i = 0; i < c->nranks; i++) {
        _Atomic uint64_t *other = control ? &r[i].control_phase : &r[i].stream_phase;
        for (unsigned turn = 0; atomic_load(other) < phase; turn++) {
            if (dn_pause(c, turn)) {
                return false;
            }
        }
    }
    return true;
}

bool dn_stream_barrier(struct ncclComm *c) {
    return barrier(c, &c->stream_phase, false);
}
bool dn_control_barrier(struct ncclComm *c) {
    return barrier(c, &c->control_phase, true);
}

void dn_unlink(const struct ncclComm *c) {
    shm_unlink(c->name);
}

static uint64_t host_id(void) {
    char text[256] = "";
    const char *set = getenv("NCCL_HOSTID");
    if (set != NULL && set[0] != '\0') {
        snprintf(text, sizeof text, "%s", set);
    } else {
        gethostname(text, sizeof text - 1);
    }
    uint64_t h = UINT64_C(14695981039346656037);
    for (const char *p = text; *p != '\0'; p++) {
        h = (h ^ (unsigned char)*p) * UINT64_C(1099511628211);
    }
    return h;
}

/* Compared by every rank over the same facts, so all come to the same end. */
static ncclResult_t refusal(struct ncclComm *c) {
    const dn_rank *r = c->shared->rank;
    for (int i = 0; i < c->nranks; i++) {
        if (r[i].version != r[0].version) {
            dn_set_error(c, "Mismatched NCCL version detected : rank %d %d rank %d %d", 0,
                         r[0].version, i, r[i].version);
            return ncclInvalidUsage;
        }
        for (int j = 0; j < i && !dn_multi_rank(); j++) {
            if (r[i].host == r[j].host && memcmp(r[i].uuid, r[j].uuid, sizeof r[i].uuid) == 0) {
                dn_set_error(c, "Duplicate GPU detected : rank %d and rank %d both on CUDA device",
                             j, i);
                return ncclInvalidUsage;
            }
        }
    }
    return ncclSuccess;
}

static ncclResult_t map(struct ncclComm *c) {
    c->shared_size = size_of(c->nranks);
    int fd = shm_open(c->name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)c->shared_size) != 0) {
        dn_set_error(c, "segment %s: %s", c->name, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return ncclSystemError;
    }
    void *p = mmap(NULL, c->shared_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) {
        dn_set_error(c, "segment %s of %zu bytes: %s", c->name, c->shared_size, strerror(errno));
        return ncclSystemError;
    }
    c->shared = p;
    return ncclSuccess;
}

ncclResult_t dn_attach(struct ncclComm *c) {
    ncclResult_t r = map(c);
    if (r != ncclSuccess) {
        return r;
    }
    uint32_t none = 0, n = (uint32_t)c->nranks;
    if (!atomic_compare_exchange_strong(&c->shared->nranks, &none, n) && none != n) {
        dn_set_error(c, "%d ranks given here, %u elsewhere", c->nranks, none);
        return ncclInvalidArgument;
    }
    dn_rank *me = &c->shared->rank[c->rank];
    me->pid = (int32_t)getpid();
    me->version = dn_version();
    me->host = host_id();
    memcpy(me->uuid, c->uuid, sizeof me->uuid);
    if (atomic_exchange(&me->joined, 1) != 0) {
        dn_set_error(c, "rank %d joined twice", c->rank);
        return ncclInvalidUsage;
    }
    if (atomic_fetch_add(&c->shared->joined, 1) + 1 == n) {
        dn_unlink(c);
    }
    for (unsigned turn = 0; atomic_load(&c->shared->joined) < n; turn++) {
        if (dn_pause(c, turn)) {
            return ncclSystemError;
        }
    }
    return refusal(c);
}

void dn_detach(struct ncclComm *c) {
    if (c->shared == NULL) {
        return;
    }
    if (atomic_load(&c->shared->joined) < (uint32_t)c->nranks) {
        dn_unlink(c);
    }
    munmap(c->shared, c->shared_size);
    c->shared = NULL;
}
