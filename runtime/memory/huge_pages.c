/* Huge pages under large blocks of node-shared memory. Where the kernel gives them to shared memory
 * on request they come with the first touch; else it is asked to put them together, which costs
 * little while a block is new and has one page of each. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "memory/arena.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define HUGE_PAGE ((uintptr_t)2 << 20)
#define LARGEST ((size_t)1 << 30) /* more is not taken before it is used */

/* Pages are taken now: at most half of what is free. */
static bool fits(size_t nbytes) {
    struct sysinfo si;
    return nbytes <= LARGEST && sysinfo(&si) == 0 &&
           nbytes / si.mem_unit <= (si.freeram + si.bufferram) / 2;
}

int dtr__huge_back(void *ptr, size_t nbytes) {
    const uintptr_t from = ((uintptr_t)ptr + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1),
                    to = ((uintptr_t)ptr + nbytes) & ~(HUGE_PAGE - 1);
    if (from >= to || !fits(to - from)) {
        return 0;
    }
    char *at = (char *)ptr + (from - (uintptr_t)ptr);
    (void)madvise(at, to - from, MADV_HUGEPAGE); /* refused by kernels without huge pages */
    for (size_t i = 0; i < to - from; i += HUGE_PAGE) {
        ((volatile char *)at)[i] = 0;
    }
    return madvise(at, to - from, MADV_COLLAPSE) == 0 ? 0 : errno;
}

/* The word in brackets of "always [madvise] never". */
static void chosen_word(const char *path, char *word, size_t cap) {
    char line[128] = "";
    FILE *f = fopen(path, "r");
    if (f != NULL) {
        line[fread(line, 1, sizeof line - 1, f)] = '\0';
        fclose(f);
    }
    const char *open = strchr(line, '[');
    snprintf(word, cap, "%.*s", open != NULL ? (int)strcspn(open + 1, "]") : 7,
             open != NULL ? open + 1 : "unknown");
}

void dtr__huge_say(char *text, size_t cap) {
    char word[32];
    const size_t nbytes = 2 * HUGE_PAGE; /* mapped where one huge page ends and another begins */
    chosen_word("/sys/kernel/mm/transparent_hugepage/shmem_enabled", word, sizeof word);
    int fd = memfd_create("dtr-huge", MFD_CLOEXEC);
    void *p = MAP_FAILED;
    char *stretch = mmap(NULL, nbytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fd >= 0 && stretch != MAP_FAILED && ftruncate(fd, (off_t)nbytes) == 0) {
        const uintptr_t beyond = (uintptr_t)stretch % HUGE_PAGE;
        p = mmap(stretch + (beyond > 0 ? HUGE_PAGE - beyond : 0), nbytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, fd, 0);
    }
    const int code = p == MAP_FAILED ? errno : dtr__huge_back(p, nbytes);
    snprintf(text, cap, "%s (shmem_enabled is %s%s%s)",
             code == 0 ? "for large node-shared blocks" : "not for node-shared memory", word,
             code == 0 ? "" : "; collapsing: ", code == 0 ? "" : strerror(code));
    if (stretch != MAP_FAILED) {
        munmap(stretch, nbytes + HUGE_PAGE);
    }
    if (fd >= 0) {
        close(fd);
    }
}
