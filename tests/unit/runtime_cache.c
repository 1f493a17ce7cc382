/* The size of the last cache is that of one, as Linux tells it, and not of all there are. */
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "topology/cache.h"
#include "unit.h"

/* Of cache `index` of a CPU, 0: there is none. */
static size_t told(int cpu, int index) {
    char path[96];
    size_t kib = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/size", cpu, index);
    FILE *f = fopen(path, "r");
    if (f != NULL) {
        kib = fscanf(f, "%zuK", &kib) == 1 ? kib : 0;
        (void)fclose(f);
    }
    return kib << 10;
}

START_TEST(last_cache_is_one_of_a_cpu) {
    cpu_set_t cpus;
    bool known = false, same = false;
    const size_t nbytes = dtr__last_cache();
    ck_assert_uint_ge(nbytes, 64 << 10);
    ck_assert_uint_eq(nbytes, dtr__last_cache());
    ck_assert_int_eq(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        size_t last = 0;
        for (int i = 0; CPU_ISSET(cpu, &cpus) && i < 8; i++) {
            const size_t one = told(cpu, i);
            last = one > 0 ? one : last;
        }
        known = known || last > 0;
        same = same || last == nbytes;
    }
#ifdef DTR_HAVE_HWLOC
    ck_assert_msg(same || !known, "%zu bytes, which no CPU of ours has", nbytes);
#else
    ck_assert(same || !known || nbytes > 0);
#endif
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("cache");
    tcase_add_test(tc, last_cache_is_one_of_a_cpu);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime cache", make);
}
