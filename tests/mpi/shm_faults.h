/* The calls by which ranks come to shared memory, made to fail: linked with --wrap, so that only
 * the library's own calls are concerned. */
#ifndef SHM_FAULTS_H
#define SHM_FAULTS_H

#include <stdbool.h>
#include <stdio.h>

/* errno of each call, 0: it works. */
typedef struct shm_faults {
    int memfd_create, shm_open, ftruncate, pwrite, mmap, fallocate, process_vm_readv, madvise;
    int readv_works;                     /* so many calls of process_vm_readv before it fails */
    bool die_after_shm_open;             /* SIGKILL while the name is there */
    void (*before_readv)(size_t nbytes); /* called by process_vm_readv before it reads */
} shm_faults;
extern shm_faults shm_faults_now;

/* The last name that this process has made in /dev/shm, as a path; "" for none. */
extern char shm_faults_name[80];
/* Where all of them are written, NULL: nowhere. */
extern FILE *shm_faults_note;

#endif /* SHM_FAULTS_H */
