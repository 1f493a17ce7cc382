/* Folders with the recordings of earlier jobs. Nobody else removes them, and a job that fails again
 * and again would fill /tmp, which often is memory. Names in a shared /tmp are not trusted: folders
 * are opened by descriptor, without following links, and looked at before anything is removed. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "evidence.h"

enum {
    OPEN_FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
    OPEN_FILE = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
    FRESH_S = 3600 /* what has no readable recording may be about to get one */
};

bool dtr__evidence_name(const char *name, uid_t *uid, uint64_t *job) {
    unsigned user = 0;
    unsigned long long id = 0;
    char again[64];
    if (sscanf(name, "dtr-%u-%16llx", &user, &id) != 2) {
        return false;
    }
    snprintf(again, sizeof again, "dtr-%u-%016llx", user, id);
    *uid = (uid_t)user;
    *job = id;
    return strcmp(name, again) == 0;
}

const char *dtr__evidence_base(void) {
    const char *tmp = secure_getenv("TMPDIR");
    return tmp != NULL && tmp[0] == '/' ? tmp : "/tmp";
}

bool dtr__evidence_head(int fd, dtr__rec_header *h) {
    if (pread(fd, h, sizeof *h, 0) != (ssize_t)sizeof *h || h->magic != DTR__RECORDING_MAGIC ||
        h->version != DTR__RECORDING_VERSION) {
        return false;
    }
    h->host[sizeof h->host - 1] = h->command[sizeof h->command - 1] = '\0';
    return true;
}

/* The lock also shows processes that cannot be seen from here, in another container. */
bool dtr__evidence_in_use(int fd, const dtr__rec_header *h) {
    char here[sizeof h->host] = "", state = '?';
    uint64_t start = 0;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK;
    }
    (void)flock(fd, LOCK_UN);
    return gethostname(here, sizeof here - 1) == 0 && strcmp(here, h->host) == 0 &&
           dtr__process_look(h->pid, &start, &state) && start == h->pid_start && state != 'Z';
}

static bool is_fresh(int fd) {
    struct stat st;
    return fstat(fd, &st) != 0 || st.st_mtime > time(NULL) - FRESH_S;
}

static bool is_recording(const char *name) {
    const char *end = strrchr(name, '.');
    return end != NULL && strcmp(end, ".rec") == 0;
}

/* A stream over the folder that leaves its descriptor open. */
static DIR *list(int folder) {
    int again = openat(folder, ".", OPEN_FOLDER);
    DIR *d = again >= 0 ? fdopendir(again) : NULL;
    if (d == NULL && again >= 0) {
        close(again);
    }
    return d;
}

static bool file_in_use(int folder, const char *name) {
    dtr__rec_header *h = malloc(sizeof *h);
    int fd = h != NULL ? openat(folder, name, OPEN_FILE) : -1;
    bool used = true; /* what cannot be looked at stays */
    if (fd >= 0) {
        used = dtr__evidence_head(fd, h) ? dtr__evidence_in_use(fd, h) : is_fresh(fd);
        close(fd);
    }
    free(h);
    return used;
}

static bool folder_in_use(int folder) {
    DIR *d = list(folder);
    size_t n = 0;
    bool used = d == NULL;
    for (struct dirent *e; !used && (e = readdir(d)) != NULL;) {
        if (is_recording(e->d_name)) {
            n++;
            used = file_in_use(folder, e->d_name);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return used || (n == 0 && is_fresh(folder));
}

/* The library's own files; a folder with others in it stays. */
static bool empty_and_remove(int base, const char *name, int folder) {
    DIR *d = list(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, "dtr-", 4) == 0) {
            (void)unlinkat(folder, e->d_name, 0);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return unlinkat(base, name, AT_REMOVEDIR) == 0;
}

/* -1: another's, or no folder. */
static int open_own(int base, const char *name) {
    struct stat st;
    int folder = openat(base, name, OPEN_FOLDER);
    if (folder >= 0 && (fstat(folder, &st) != 0 || st.st_uid != getuid())) {
        close(folder);
        folder = -1;
    }
    return folder;
}

static int newer_first(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return *x < *y ? 1 : *x > *y ? -1 : 0;
}

/* Numbers of this user's jobs, newest first: they begin with the time of their start. */
static uint64_t *own_jobs(int base, size_t *n) {
    uint64_t *jobs = NULL, job;
    size_t capacity = 0;
    uid_t uid;
    DIR *d = list(base);
    *n = 0;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (!dtr__evidence_name(e->d_name, &uid, &job) || uid != getuid()) {
            continue;
        }
        if (*n == capacity) {
            uint64_t *more = realloc(jobs, (capacity + 64) * sizeof *jobs);
            if (more == NULL) {
                break;
            }
            jobs = more;
            capacity += 64;
        }
        jobs[(*n)++] = job;
    }
    if (d != NULL) {
        closedir(d);
    }
    if (*n > 0) {
        qsort(jobs, *n, sizeof *jobs, newer_first);
    }
    return jobs;
}

int dtr__evidence_age(const char *base, uint64_t keep) {
    int fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC), gone = 0;
    size_t n = 0;
    uint64_t ended = 0;
    uint64_t *jobs = fd >= 0 ? own_jobs(fd, &n) : NULL;
    for (size_t i = keep < n ? 0 : n; i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "dtr-%u-%016llx", (unsigned)getuid(),
                 (unsigned long long)jobs[i]);
        int folder = open_own(fd, name);
        if (folder >= 0 && !folder_in_use(folder) && ++ended > keep) {
            gone += empty_and_remove(fd, name, folder);
        }
        if (folder >= 0) {
            close(folder);
        }
    }
    free(jobs);
    if (fd >= 0) {
        close(fd);
    }
    return gone;
}
