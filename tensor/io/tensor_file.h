/* Files of tensors: written whole or not at all, read with every length checked. */
#ifndef DTR_TENSOR_FILE_H
#define DTR_TENSOR_FILE_H

#include <sys/types.h>

#include "core/tensor_internal.h"

/* A file being written under a temporary name beside its place. */
typedef struct dtr__file_out {
    int fd;
    char *path, *temp;
} dtr__file_out;

/* DTR_ERR_IO naming path and errno text. A path that names something other than a regular file
 * (/dev/null, a directory) is refused, since the rename would replace it. */
dtr_status dtr__file_create(const char *path, dtr__file_out *f);
dtr_status dtr__file_write(dtr__file_out *f, const void *data, size_t nbytes);
/* The elements in row-major order. */
dtr_status dtr__file_write_tensor(dtr__file_out *f, const dtr_tensor *t);
/* End in either way: on DTR_OK flush to disk and rename into place, else remove the temporary file
 * and return `status`. */
dtr_status dtr__file_finish(dtr__file_out *f, dtr_status status);

/* A regular file opened for reading; the caller closes fd. */
dtr_status dtr__file_open(const char *path, int *fd, uint64_t *nbytes);
/* Exactly nbytes from `offset`; a file that ends before is DTR_ERR_IO. */
dtr_status dtr__file_read(int fd, const char *path, uint64_t offset, void *data, size_t nbytes);

/* DTR_ERR_IO, "PATH is damaged or no FORMAT file: " and what is wrong. */
dtr_status dtr__file_damaged(const char *path, const char *format, const char *file, int line,
                             const char *fmt, ...) DTR_PRINTF(5, 6);
#define DTR_DAMAGED(path, format, ...) \
    DTR__FAILED(dtr__file_damaged((path), (format), __FILE__, __LINE__, __VA_ARGS__), DTR_ERR_IO)
#define DTR_DAMAGED_IF(cond, path, format, ...)                \
    do {                                                       \
        if (cond) {                                            \
            return DTR_DAMAGED((path), (format), __VA_ARGS__); \
        }                                                      \
    } while (0)

/* Bytes of bool elements from elsewhere may be any number; ours are 0 or 1. */
void dtr__bool_clean(void *data, dtr_dtype dtype, size_t count);

#endif /* DTR_TENSOR_FILE_H */
