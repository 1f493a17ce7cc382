/* Whether the kernel copies fast is found out by every world for itself; what DTR_TUNE says stays.
 */
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/tune.h"
#include "base/world.h"
#include "settings.h"

/* The linker turns NAME into __wrap_NAME, and __real_NAME into NAME, in the library's own calls. */
ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long n_here,
                                const struct iovec *there, unsigned long n_there,
                                unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long n_here,
                                const struct iovec *there, unsigned long n_there,
                                unsigned long flags);

static int times; /* a copy of this process's own memory takes so many ordinary ones */

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long n_here,
                                const struct iovec *there, unsigned long n_there,
                                unsigned long flags) {
    if (pid != getpid() || n_here != 1 || n_there != 1) {
        return __real_process_vm_readv(pid, here, n_here, there, n_there, flags);
    }
    for (int i = 0; i < times; i++) {
        memcpy(here->iov_base, there->iov_base, here->iov_len);
        __asm__ volatile("" : : "r"(here->iov_base) : "memory");
    }
    return (ssize_t)here->iov_len;
}

/* Of all members of a node, as local rank 0 has found it. */
static void expect(int slower, const char *tune, uint64_t reduce, uint64_t p2p) {
    times = slower;
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_TUNE", tune, "DTR_CMA", "auto");
    TH_CHECK(w->tune.value[DTR__TUNE_CMA_REDUCE] == reduce,
             "%d times as long, \"%s\": from %llu on", slower, tune,
             (unsigned long long)w->tune.value[DTR__TUNE_CMA_REDUCE]);
    TH_CHECK(w->tune.value[DTR__TUNE_CMA_P2P] == p2p, "%d times as long, \"%s\": from %llu on",
             slower, tune, (unsigned long long)w->tune.value[DTR__TUNE_CMA_P2P]);
    TH_OK(dtr_world_destroy(w));
    TH_AGREE();
}

START_TEST(slow_ones_are_not_used) {
    dtr__tune usual;
    dtr__tune_defaults(&usual);
    const uint64_t reduce = usual.value[DTR__TUNE_CMA_REDUCE], p2p = usual.value[DTR__TUNE_CMA_P2P];
    const bool alone = th_size() == 1;
    expect(0, "", reduce, p2p);
    expect(20, "", alone ? reduce : UINT64_MAX, alone ? p2p : UINT64_MAX);
    expect(20, "cma_p2p=1MiB", alone ? reduce : UINT64_MAX, 1 << 20);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "kernel_copies", 60);
    th_add(tc, slow_ones_are_not_used, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "kernel_copies", make);
}
