/* Writing a file whole or not at all, and reading one that may have been cut. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/tensor_file.h"
#include "kernels/kernels.h"

/* ---- writing ---- */

/* The file that `path` means, symbolic links followed; NULL when out of memory. */
static char *real_place(const char *path) {
    char *real = realpath(path, NULL);
    return real != NULL ? real : strdup(path);
}

static dtr_status open_temp(dtr__file_out *f, mode_t mode) {
    size_t cap = strlen(f->path) + 64;
    f->temp = malloc(cap);
    if (f->temp == NULL) {
        return DTR_FAIL(NULL, DTR_ERR_NOMEM, "out of memory for a file name");
    }
    for (int attempt = 0; attempt < 1000; attempt++) {
        snprintf(f->temp, cap, "%s.tmp.%ld.%d", f->path, (long)getpid(), attempt);
        f->fd = open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd >= 0) {
            if (mode != 0) {
                (void)fchmod(f->fd, mode); /* keep the replaced file's; its owner may refuse */
            }
            return DTR_OK;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    return DTR_FAIL_ERRNO(NULL, DTR_ERR_IO, "cannot create %s", f->temp);
}

dtr_status dtr__file_create(const char *path, dtr__file_out *f) {
    *f = (dtr__file_out){ .fd = -1 };
    DTR_REQUIRE(path != NULL && path[0] != '\0', NULL, DTR_ERR_ARG,
                "path is %s; a file name is needed", path == NULL ? "NULL" : "empty");
    struct stat st;
    bool exists = stat(path, &st) == 0;
    DTR_REQUIRE(!exists || S_ISREG(st.st_mode), NULL, DTR_ERR_IO,
                "%s exists and is no regular file; saving would replace it", path);
    f->path = real_place(path);
    dtr_status s = f->path == NULL ? DTR_FAIL(NULL, DTR_ERR_NOMEM, "out of memory for a file name")
                                   : open_temp(f, exists ? st.st_mode & 0777 : 0);
    if (s < 0) {
        free(f->temp);
        free(f->path);
        *f = (dtr__file_out){ .fd = -1 };
    }
    return s;
}

dtr_status dtr__file_write(dtr__file_out *f, const void *data, size_t nbytes) {
    const char *from = data;
    while (nbytes > 0) {
        ssize_t n = write(f->fd, from, nbytes);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return DTR_FAIL_ERRNO(NULL, DTR_ERR_IO, "cannot write %s", f->temp);
        }
        from += n;
        nbytes -= (size_t)n;
    }
    return DTR_OK;
}

dtr_status dtr__file_write_tensor(dtr__file_out *f, const dtr_tensor *t) {
    size_t nbytes = t->numel * dtr_dtype_size(t->dtype);
    const bool gaps = t->dtype == DTR_F32_INDEX; /* whose bytes need not be set */
    if (t->contiguous && !gaps) {
        return dtr__file_write(f, t->data, nbytes);
    }
    dtr_tensor *copy = NULL;
    DTR_TRY(dtr__tensor_new(t->dtype, t->ndim, t->shape, &copy));
    dtr__tensor_copy_raw(copy, t);
    dtr__copy_clean(copy->data, copy->data, copy->numel, copy->dtype);
    dtr_status s = dtr__file_write(f, copy->data, nbytes);
    dtr_tensor_release(copy);
    return s;
}

/* Make the rename itself durable. Some file systems cannot, and the data is safe without. */
static void sync_folder(const char *path) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (n >= sizeof(folder)) {
        return;
    }
    memcpy(folder, path, n);
    memcpy(folder + n, n == 0 ? "." : "", n == 0 ? 2 : 1);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

dtr_status dtr__file_finish(dtr__file_out *f, dtr_status status) {
    if (status >= 0 && fsync(f->fd) != 0) {
        status = DTR_FAIL_ERRNO(NULL, DTR_ERR_IO, "cannot write %s to disk", f->temp);
    }
    if (close(f->fd) != 0 && status >= 0) {
        status = DTR_FAIL_ERRNO(NULL, DTR_ERR_IO, "cannot write %s", f->temp);
    }
    if (status >= 0 && rename(f->temp, f->path) != 0) {
        status = DTR_FAIL_ERRNO(NULL, DTR_ERR_IO, "cannot rename %s to %s", f->temp, f->path);
    }
    if (status < 0) {
        (void)unlink(f->temp);
    } else {
        sync_folder(f->path);
    }
    free(f->temp);
    free(f->path);
    *f = (dtr__file_out){ .fd = -1 };
    return status;
}

/* ---- reading ---- */

dtr_status dtr__file_open(const char *path, int *fd, uint64_t *nbytes) {
    DTR_REQUIRE(path != NULL && path[0] != '\0', NULL, DTR_ERR_ARG,
                "path is %s; a file name is needed", path == NULL ? "NULL" : "empty");
    /* Not to hang on a pipe without a writer; regular files do not care. */
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0) {
        return DTR_FAIL_ERRNO(NULL, DTR_ERR_IO, "cannot open %s", path);
    }
    struct stat st;
    dtr_status s = DTR_OK;
    if (fstat(opened, &st) != 0) {
        s = DTR_FAIL_ERRNO(NULL, DTR_ERR_IO, "cannot look at %s", path);
    } else if (!S_ISREG(st.st_mode)) {
        s = DTR_FAIL(NULL, DTR_ERR_IO, "%s is no regular file", path);
    }
    if (s < 0) {
        close(opened);
        return s;
    }
    *fd = opened;
    *nbytes = (uint64_t)st.st_size;
    return DTR_OK;
}

dtr_status dtr__file_read(int fd, const char *path, uint64_t offset, void *data, size_t nbytes) {
    char *to = data;
    while (nbytes > 0) {
        ssize_t n = pread(fd, to, nbytes, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return DTR_FAIL_ERRNO(NULL, DTR_ERR_IO, "cannot read %s", path);
        }
        DTR_REQUIRE(n > 0, NULL, DTR_ERR_IO, "%s ends at byte %llu, %zu bytes too early", path,
                    (unsigned long long)offset, nbytes);
        to += n;
        offset += (uint64_t)n;
        nbytes -= (size_t)n;
    }
    return DTR_OK;
}

dtr_status dtr__file_damaged(const char *path, const char *format, const char *file, int line,
                             const char *fmt, ...) {
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return dtr__error_set(NULL, DTR_ERR_IO, file, line, "%s is damaged or no %s file: %s", path,
                          format, text);
}

void dtr__bool_clean(void *data, dtr_dtype dtype, size_t count) {
    unsigned char *b = data;
    for (size_t i = 0; dtype == DTR_BOOL && i < count; i++) {
        b[i] = b[i] != 0;
    }
}
