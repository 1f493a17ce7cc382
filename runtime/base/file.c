#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- numbers ---- */

static locale_t point; /* 0: there is no memory for it */
static pthread_once_t point_once = PTHREAD_ONCE_INIT;

static void make_point(void) {
    point = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

__attribute__((destructor)) static void drop_point(void) {
    if (point != (locale_t)0) {
        freelocale(point);
        point = (locale_t)0;
    }
}

locale_t dtr__point_begin(void) {
    pthread_once(&point_once, make_point);
    return uselocale(point);
}

void dtr__point_end(locale_t was) {
    (void)uselocale(was);
}

/* ---- text ---- */

bool dtr__text_begin(dtr__text *t) {
    *t = (dtr__text){ 0 };
    t->to = open_memstream(&t->bytes, &t->nbytes);
    if (t->to != NULL) {
        t->was = dtr__point_begin();
    }
    return t->to != NULL;
}

bool dtr__text_end(dtr__text *t) {
    dtr__point_end(t->was);
    bool fine = !ferror(t->to);
    fine = fclose(t->to) == 0 && fine;
    if (!fine) {
        free(t->bytes);
        t->bytes = NULL;
    }
    return fine;
}

/* ---- files ---- */

/* What a killed process has left under the first name is removed; where that belongs to somebody
 * else, other names are tried. */
static int open_new(const char *path, char *name, size_t cap) {
    enum { TRIES = 16 };
    snprintf(name, cap, "%s.new", path);
    (void)unlink(name);
    int fd = -1;
    for (int i = 0; fd < 0 && i < TRIES; i++) {
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) {
            unsigned random = 0;
            if (errno != EEXIST) {
                break;
            }
            if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) {
                random = (unsigned)i; /* the names of this loop are at least no two alike */
            }
            snprintf(name, cap, "%s.%08x.new", path, random);
        }
    }
    return fd;
}

static bool write_whole(int fd, const char *bytes, size_t nbytes) {
    while (nbytes > 0) {
        ssize_t n = write(fd, bytes, nbytes);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        bytes += n > 0 ? n : 0;
        nbytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

bool dtr__replace_file(const char *path, mode_t mode, const char *bytes, size_t nbytes) {
    char name[4096 + 32];
    if ((size_t)snprintf(name, sizeof name, "%s.%08x.new", path, 0U) >= sizeof name) {
        errno = ENAMETOOLONG;
        return false;
    }
    int fd = open_new(path, name, sizeof name);
    if (fd < 0) {
        return false;
    }
    bool fine = write_whole(fd, bytes, nbytes) && (mode == 0600 || fchmod(fd, mode) == 0);
    int code = errno;
    if (close(fd) != 0 && fine) {
        fine = false;
        code = errno;
    }
    if (fine && rename(name, path) != 0) {
        fine = false;
        code = errno;
    }
    if (!fine) {
        (void)unlink(name);
        errno = code;
    }
    return fine;
}

int dtr__append_file(const char *path) {
    const int how = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    struct stat st;
    int fd = open(path, how | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == ELOOP && lstat(path, &st) == 0) {
        if (st.st_uid == 0 || st.st_uid == geteuid()) {
            return open(path, how, 0600);
        }
        errno = ELOOP;
    }
    return fd;
}
