/* The clock of limits, over a clock of the system that the test sets (reliability: DL2). */
#include <time.h>

#include "unit.h"
#include "world/world.h"

#define SECOND INT64_C(1000000000)

int our_gettime(clockid_t id, struct timespec *t) __asm__("__wrap_clock_gettime");

static int64_t time_ns = 1000 * SECOND;

int our_gettime(clockid_t id, struct timespec *t) {
    (void)id;
    t->tv_sec = time_ns / SECOND;
    t->tv_nsec = time_ns % SECOND;
    return 0;
}

/* So long, looked at as often as a watchdog does. */
static void run_for(int64_t ns) {
    for (const int64_t end = time_ns + ns; time_ns < end;) {
        time_ns += 100000000;
        (void)dtr__now();
    }
}

static void is_about(double got, double want) {
    ck_assert_msg(got > want - 0.2 && got < want + 0.2, "%g, not %g", got, want);
}

START_TEST(DL2_a_stop_is_left_out) {
    const double before = dtr__now();
    run_for(10 * SECOND);
    is_about(dtr__now() - before, 10);
    const int64_t stamp = time_ns;
    const double then = dtr__now();
    time_ns += 3600 * SECOND;
    is_about(dtr__now() - before, 10);
    run_for(5 * SECOND);
    is_about(dtr__now() - before, 15);
    is_about(dtr__now_at(stamp), then);
    is_about((double)dtr__hidden_since(stamp) * 1e-9, 3600);
    is_about((double)dtr__hidden_since(time_ns) * 1e-9, 0);
    is_about((double)(dtr__monotonic_at(dtr__now()) - time_ns) * 1e-9, 0);
}
END_TEST

START_TEST(DL2_many_stops_are_left_out) {
    const int64_t stamp = time_ns;
    const double before = dtr__now();
    for (int i = 0; i < 10; i++) {
        time_ns += 60 * SECOND;
        (void)dtr__now();
        run_for(SECOND);
    }
    is_about(dtr__now() - before, 10);
    is_about(dtr__now_at(stamp), before);
}
END_TEST

/* A watchdog that looks rarely is no stop. */
START_TEST(DL2_a_slow_watchdog_is_no_stop) {
    dtr__clock_watched(5 * SECOND);
    const double before = dtr__now();
    for (int i = 0; i < 10; i++) {
        time_ns += 6 * SECOND;
        (void)dtr__now();
    }
    is_about(dtr__now() - before, 60);
    time_ns += 11 * SECOND;
    is_about(dtr__now() - before, 60);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("clock");
    tcase_add_test(tc, DL2_a_stop_is_left_out);
    tcase_add_test(tc, DL2_many_stops_are_left_out);
    tcase_add_test(tc, DL2_a_slow_watchdog_is_no_stop);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime clock", make);
}
