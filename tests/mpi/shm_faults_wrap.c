#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "shm_faults.h"

shm_faults shm_faults_now;
char shm_faults_name[80];
FILE *shm_faults_note;

/* The linker turns NAME into __wrap_NAME, and __real_NAME into NAME. */
int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __real_shm_open(const char *name, int flags, mode_t mode);
int __wrap_shm_open(const char *name, int flags, mode_t mode);
int __real_ftruncate(int fd, off_t length);
int __wrap_ftruncate(int fd, off_t length);
ssize_t __real_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __real_fallocate(int fd, int mode, off_t at, off_t n);
int __wrap_fallocate(int fd, int mode, off_t at, off_t n);
ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long n_here,
                                const struct iovec *there, unsigned long n_there,
                                unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long n_here,
                                const struct iovec *there, unsigned long n_there,
                                unsigned long flags);

int __real_madvise(void *at, size_t n, int advice);
int __wrap_madvise(void *at, size_t n, int advice);

static bool fails(int code) {
    if (code != 0) {
        errno = code;
    }
    return code != 0;
}

int __wrap_memfd_create(const char *name, unsigned flags) {
    return fails(shm_faults_now.memfd_create) ? -1 : __real_memfd_create(name, flags);
}

int __wrap_shm_open(const char *name, int flags, mode_t mode) {
    if (fails(shm_faults_now.shm_open)) {
        return -1;
    }
    int fd = __real_shm_open(name, flags, mode);
    if (fd >= 0 && (flags & O_CREAT) != 0) {
        snprintf(shm_faults_name, sizeof shm_faults_name, "/dev/shm%s", name);
        if (shm_faults_note != NULL) {
            fprintf(shm_faults_note, "%s\n", shm_faults_name);
            fflush(shm_faults_note);
        }
    }
    return fd;
}

int __wrap_ftruncate(int fd, off_t length) {
    if (shm_faults_now.die_after_shm_open && shm_faults_name[0] != '\0') {
        raise(SIGKILL);
    }
    return fails(shm_faults_now.ftruncate) ? -1 : __real_ftruncate(fd, length);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at) {
    return fails(shm_faults_now.pwrite) ? -1 : __real_pwrite(fd, data, n, at);
}

/* Only the arena maps over a place of its own. */
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    return (flags & MAP_FIXED) != 0 && fails(shm_faults_now.mmap)
               ? MAP_FAILED
               : __real_mmap(at, n, prot, flags, fd, offset);
}

int __wrap_fallocate(int fd, int mode, off_t at, off_t n) {
    return fails(shm_faults_now.fallocate) ? -1 : __real_fallocate(fd, mode, at, n);
}

int __wrap_madvise(void *at, size_t n, int advice) {
    return fails(shm_faults_now.madvise) ? -1 : __real_madvise(at, n, advice);
}

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long n_here,
                                const struct iovec *there, unsigned long n_there,
                                unsigned long flags) {
    if (shm_faults_now.before_readv != NULL) {
        shm_faults_now.before_readv(here->iov_len);
    }
    const bool works = shm_faults_now.process_vm_readv == 0 || shm_faults_now.readv_works-- > 0;
    return !works && fails(shm_faults_now.process_vm_readv)
               ? -1
               : __real_process_vm_readv(pid, here, n_here, there, n_there, flags);
}
