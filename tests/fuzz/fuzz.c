#include "fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

const char *fuzz_file(const uint8_t *data, size_t nbytes) {
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 ||
        (nbytes > 0 && pwrite(fd, data, nbytes, 0) != (ssize_t)nbytes)) {
        perror("fuzz: no file in memory");
        exit(1);
    }
    return path;
}

uint8_t *fuzz_read(const char *path, size_t *nbytes) {
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    if (f != NULL && fseek(f, 0, SEEK_END) == 0) {
        *nbytes = (size_t)ftell(f);
        data = malloc(*nbytes + 1);
        rewind(f);
        if (data != NULL && fread(data, 1, *nbytes, f) != *nbytes) {
            free(data);
            data = NULL;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return data;
}
