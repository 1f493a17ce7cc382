/* Writes files for those that must not wait for a file system: the watchdog beats on while a dump
 * hangs on a server that is gone. One thread per world, started by the first file. */
#ifndef DTR_RT_WRITER_H
#define DTR_RT_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct dtr__writer dtr__writer;
typedef enum dtr__written {
    DTR__WRITTEN_DUMP,
    DTR__WRITTEN_METRICS,
    DTR__WRITTEN_REMOTE_RANKS,
    DTR__WRITTEN_KINDS
} dtr__written;

dtr__writer *dtr__writer_new(void); /* NULL: no memory */
/* Ends the thread once it has written what it has. After `limit_s` it is left to itself, and false
 * is returned; what it uses then stays until it comes back. NULL is fine. */
bool dtr__writer_close(dtr__writer *w, double limit_s);

/* Hand over the content of a file (dtr__replace_file), which takes the place of one of the kind
 * that has not been begun. `bytes` belongs to the writer from here on. Returns the number of this
 * file. */
uint64_t dtr__writer_put(dtr__writer *w, dtr__written kind, const char *path, mode_t mode,
                         char *bytes, size_t nbytes);
/* 0: the file of that number, or a later one of its kind, has been written; the errno of its
 * failure; or EINPROGRESS after `limit_s`. */
int dtr__writer_wait(dtr__writer *w, dtr__written kind, uint64_t number, double limit_s);

#endif /* DTR_RT_WRITER_H */
