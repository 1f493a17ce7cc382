/* Asking the live ranks of a job for something: a word in their recordings, which their watchdogs
 * see. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor.h"

/* The header of a recording of this version, to be written to; NULL: it is none. */
static dtr__rec_header *map_header(const char *path) {
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *p = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size >= (off_t)sizeof(dtr__rec_header)) {
        p = mmap(NULL, sizeof(dtr__rec_header), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (fd >= 0) {
        close(fd);
    }
    dtr__rec_header *h = p != MAP_FAILED ? p : NULL;
    if (h != NULL && (h->magic != DTR__RECORDING_MAGIC || h->version != DTR__RECORDING_VERSION ||
                      h->header_bytes != sizeof *h)) {
        munmap(h, sizeof *h);
        h = NULL;
        errno = EINVAL;
    }
    return h;
}

uint32_t doctor_raise(const dtr__recording *r, size_t word) {
    uint64_t start = 0;
    char state = '?';
    if (!dtr__process_look(r->head.pid, &start, &state) || start != r->head.pid_start ||
        state == 'Z' || atomic_load(&r->head.phase) >= DTR__PHASE_DESTROYING) {
        errno = ESRCH;
        return 0;
    }
    dtr__rec_header *h = map_header(r->path);
    if (h == NULL) {
        return 0;
    }
    const uint32_t raised = atomic_fetch_add((_Atomic uint32_t *)((char *)h + word), 1) + 1;
    munmap(h, sizeof *h);
    return raised;
}

bool doctor_trigger(const dtr__recording *r) {
    if (doctor_raise(r, offsetof(dtr__rec_header, dump_requested)) == 0) {
        if (errno != ESRCH) {
            fprintf(stderr, "%s: %s cannot be written to: %s\n", doctor_program, r->path,
                    strerror(errno));
        }
        return false;
    }
    printf("asked rank %d (host %s, pid %u)\n", r->head.world_rank, r->head.host, r->head.pid);
    return true;
}
