/* Cross-memory attach: the kernel copies from a peer's memory by its address there. Whether it may
 * is for the kernel to say (same user, ptrace scope, seccomp, pid namespace), so it is tried out
 * once per world; it is used only where every rank of the node can read every other. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/exchange.h"
#include "base/log.h"
#include "base/world.h"
#include "memory/arena.h"
#include "memory/cma.h"

struct dtr__cma {
    pid_t pid[1]; /* [local size] */
};

/* What a rank lets the others read, and where. */
typedef struct probe {
    uint64_t at;
    unsigned char nonce[16];
    int pid, able; /* able 0: switched off here, or no memory */
} probe;

/* All of it, in as many calls as the kernel wants; errno on failure. */
static bool read_all(pid_t pid, void *to, uint64_t from, size_t nbytes) {
    while (nbytes > 0) {
        struct iovec here = { to, nbytes }, there = { (void *)(uintptr_t)from, nbytes };
        ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (got <= 0) {
            errno = got == 0 ? EFAULT : errno;
            return false;
        }
        to = (char *)to + got;
        from += (uint64_t)got;
        nbytes -= (size_t)got;
    }
    return true;
}

/* Local rank of the first peer that cannot be read, -1: none. The nonce tells another process of
 * the same number in another pid namespace. */
static int try_all(const dtr_world *world, const probe *all, int *code) {
    for (int i = 1; i < world->local_size; i++) {
        int r = (world->local_rank + i) % world->local_size;
        unsigned char seen[sizeof all[r].nonce] = { 0 };
        errno = 0;
        if (!read_all((pid_t)all[r].pid, seen, all[r].at, sizeof seen) ||
            memcmp(seen, all[r].nonce, sizeof seen) != 0) {
            *code = errno;
            return r;
        }
    }
    return -1;
}

/* Local rank 0 says how it is, in the words of the first rank that has a reason. */
static dtr_status say_refused(const dtr_world *world, char *why, size_t cap) {
    int mine = why[0] != '\0' ? world->local_rank : world->local_size, first = 0;
    DTR_TRY(dtr__exchange_min_of(dtr__members_of_node(world), mine, &first));
    if (first < world->local_size) {
        DTR_TRY(dtr__exchange_broadcast(dtr__members_of_node(world), why, cap, first));
    }
    if (world->local_rank == 0) {
        DTR_INFO(world, "no cross-memory attach on host %s, large plain buffers are staged: %s",
                 world->host, why);
    }
    return DTR_OK;
}

dtr_status dtr__cma_open_as(dtr_world *world, bool able) {
    const size_t n = (size_t)world->local_size;
    char why[160] = "";
    probe mine = { .pid = (int)getpid() }, *all = calloc(n, sizeof *all);
    dtr__cma *cma = calloc(1, sizeof *cma + n * sizeof cma->pid[0]);
    mine.able = able && all != NULL && cma != NULL &&
                getrandom(mine.nonce, sizeof mine.nonce, 0) == (ssize_t)sizeof mine.nonce;
    mine.at = (uint64_t)(uintptr_t)mine.nonce;
    int able_here = mine.able, all_able = 0;
    dtr_status s = dtr__exchange_min_of(dtr__members_of_node(world), able_here, &all_able);
    if (s == DTR_OK && all_able) {
        int denied = 0, refused = -1, worst = 0;
        s = dtr__exchange_allgather(dtr__members_of_node(world), &mine, all, sizeof mine);
        refused = s == DTR_OK ? try_all(world, all, &denied) : -1;
        if (refused >= 0) {
            snprintf(why, sizeof why, "rank %d reading rank %d: %s", world->rank,
                     world->local_world[refused],
                     denied != 0 ? strerror(denied) : "its memory is not visible here");
        }
        /* Nobody leaves, and `mine` stays readable, until all have tried. */
        int ok = refused < 0;
        s = s == DTR_OK ? dtr__exchange_min_of(dtr__members_of_node(world), ok, &worst) : s;
        all_able = worst;
    } else if (!able_here) {
        snprintf(why, sizeof why, "rank %d: %s", world->rank,
                 able ? "no memory" : "switched off by DTR_CMA");
    }
    if (s == DTR_OK && !all_able) {
        s = say_refused(world, why, sizeof why);
    } else if (s == DTR_OK) {
        for (size_t i = 0; i < n; i++) {
            cma->pid[i] = (pid_t)all[i].pid;
        }
        world->memory.cma = cma;
        cma = NULL;
    }
    free(cma);
    free(all);
    return s;
}

dtr_status dtr__cma_open(dtr_world *world) {
    if (world->local_size < 2 || !dtr__arena_usable(world)) {
        return DTR_OK;
    }
    return dtr__cma_open_as(world, dtr__opt_number(&world->options, DTR__OPT_CMA) == 0);
}

void dtr__cma_close(dtr_world *world) {
    free(world->memory.cma);
    world->memory.cma = NULL;
}

bool dtr__cma_usable(const dtr_world *world) {
    return world->memory.cma != NULL;
}

bool dtr__cma_reaches(const void *ptr, size_t nbytes) {
    char byte;
    const uint64_t at = (uint64_t)(uintptr_t)ptr;
    const pid_t self = getpid();
    return read_all(self, &byte, at, 1) && read_all(self, &byte, at + nbytes - 1, 1);
}

bool dtr__cma_read(const dtr_world *world, int local_rank, void *to, uint64_t from, size_t nbytes) {
    return read_all(world->memory.cma->pid[local_rank], to, from, nbytes);
}
