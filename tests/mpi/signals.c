/* Signals in the library's threads : those that an instruction raises are the program's, others are
 * not theirs. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "harness.h"
#include "threads.h"

enum { PAGE = 4096, PAGES = 4, FLOATS = PAGES * PAGE / (int)sizeof(float) };

static char *tracked;
static _Atomic int written[PAGES];
static struct sigaction before;

/* Notes the page and lets the write go on. */
static void on_write(int number, siginfo_t *info, void *context) {
    char *at = info->si_addr;
    if (at < tracked || at >= tracked + (ptrdiff_t)PAGES * PAGE) {
        sigaction(SIGSEGV, &before, NULL); /* a true fault comes again */
        return;
    }
    (void)number;
    (void)context;
    int page = (int)((at - tracked) / PAGE);
    atomic_fetch_add(&written[page], 1);
    mprotect(tracked + (ptrdiff_t)page * PAGE, PAGE, PROT_READ | PROT_WRITE);
}

static void ended(dtr_work *w, dtr_status s, void *arg) {
    (void)w;
    atomic_store((_Atomic int *)arg, s == DTR_OK ? 1 : -1);
}

/* A program that notes which pages are written: an asynchronous operation writes one that is
 * protected, in the progress thread where there is one. */
START_TEST(write_tracking) {
    static float x[FLOATS];
    struct sigaction track = { .sa_sigaction = on_write, .sa_flags = SA_SIGINFO };
    dtr_work *w = NULL;
    _Atomic int over = 0;
    tracked = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
    float *y = (float *)tracked;
    for (int k = 0; k < FLOATS; k++) {
        x[k] = (float)(th_rank() + k % 5);
    }
    sigaction(SIGSEGV, &track, &before);
    mprotect(tracked, (size_t)PAGES * PAGE, PROT_READ);
    TH_IS(dtr_allreduce(th_group(), dtr_cpu(x, FLOATS, DTR_F32), dtr_cpu(y, FLOATS, DTR_F32),
                        DTR_SUM, NULL, &w),
          DTR_OK);
    TH_IS(dtr_work_on_complete(w, ended, (void *)&over), DTR_OK);
    while (strcmp(th_thread_level(), "multiple") == 0 && atomic_load(&over) == 0) {
        th_sleep(0.001); /* the caller moves nothing */
    }
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    sigaction(SIGSEGV, &before, NULL);
    TH_CHECK(atomic_load(&over) == 1, "the operation failed");
    for (int p = 0; p < PAGES; p++) {
        TH_CHECK(atomic_load(&written[p]) >= 1, "no write of page %d was noted", p);
    }
    for (int k = 0; k < FLOATS; k++) {
        float want = (float)(th_size() * (th_size() - 1) / 2 + th_size() * (k % 5));
        TH_CHECK(y[k] == want, "element %d is %g", k, (double)y[k]);
    }
    munmap(tracked, (size_t)PAGES * PAGE);
    TH_AGREE();
}
END_TEST

/* The mask that the kernel shows of the thread of that name; 0: there is none. */
static uint64_t blocked(const char *name) {
    uint64_t mask = 0;
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        char path[300], line[128], is[32] = "";
        unsigned long long bits = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
        while (f != NULL && fgets(line, sizeof line, f) != NULL) {
            (void)sscanf(line, "Name: %31s", is);
            if (sscanf(line, "SigBlk: %llx", &bits) == 1 && strcmp(is, name) == 0) {
                mask = bits;
            }
        }
        if (f != NULL) {
            fclose(f);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return mask;
}

static bool has(uint64_t mask, int number) {
    return (mask >> (number - 1) & 1) != 0;
}

START_TEST(masks_of_threads) {
    static const char *const names[] = { "dtr-progress", "dtr-watchdog" };
    static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
    static const int foreign[] = { SIGTERM, SIGINT, SIGUSR1, SIGCHLD, SIGALRM, SIGPROF };
    for (int i = strcmp(th_thread_level(), "multiple") == 0 ? 0 : 1; i < 2; i++) {
        uint64_t mask = blocked(names[i]);
        for (double end = th_now() + 20; has(mask, SIGSEGV) && th_now() < end; th_sleep(0.001)) {
            mask = blocked(names[i]); /* a thread begins with all of them blocked */
        }
        TH_CHECK(mask != 0, "there is no thread %s", names[i]);
        for (int k = 0; k < 6; k++) {
            TH_CHECK(!has(mask, own[k]), "%s blocks signal %d", names[i], own[k]);
            TH_CHECK(has(mask, foreign[k]), "%s takes signal %d", names[i], foreign[k]);
        }
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "signals", 120);
    th_add(tc, masks_of_threads, 1, 0);
    th_add(tc, write_tracking, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "signals", make);
}
