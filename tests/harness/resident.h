/* How much memory of this process is resident, for tests that nothing grows. */
#ifndef TH_RESIDENT_H
#define TH_RESIDENT_H

#include <stdio.h>
#include <unistd.h>

/* KiB; 0 where /proc does not say. Pages shared with other processes count. */
static inline long th_resident_kib(void) {
    long total = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%ld %ld", &total, &pages) != 2) {
        pages = 0;
    }
    if (f != NULL) {
        fclose(f);
    }
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

#endif /* TH_RESIDENT_H */
