/* Test harness for Check under mpirun. Forking after MPI_Init is unsafe, so Check runs with
 * CK_FORK=no (HR1) and this supplies what is lost: a verdict agreed across ranks, a watchdog per
 * test, one world and one group per test.
 *
 * Rule (HR2): never assert on one rank between collectives. TH_CHECK notes a failure and goes on;
 * TH_AGREE, which every rank must call alike, asserts on all ranks when any rank has noted one.
 * TH_ALL and TH_STATUS do both. */
#ifndef TH_HARNESS_H
#define TH_HARNESS_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>

#include <dtr/coll.h>
#include <dtr/world.h>

/* Run one suite on all ranks. Initialises MPI (thread multiple, or DTR_TEST_THREAD_LEVEL: single,
 * funneled, serialized, multiple), makes the world, returns the agreed exit status (HR4). `make`
 * adds tests through th_case and th_add. */
int th_main(int argc, char **argv, const char *suite, void (*make)(Suite *s));

/* Test case with the fixture (group, barrier, counters, watchdog of limit_s seconds). */
TCase *th_case(Suite *s, const char *name, int limit_s);
/* Add a test that needs min..max ranks (0: no bound); outside it is reported as skipped on rank 0,
 * never as passed (HR6). */
void th_add_sized(TCase *tc, const char *name, const TTest *test, int min, int max);
#define th_add(tc, test, min, max) th_add_sized((tc), #test, (test), (min), (max))

/* Sanitizers multiply time and memory: tests use smaller sizes, and those that measure memory are
 * reported as skipped. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TH_SANITIZED = 1 };
#else
enum { TH_SANITIZED = 0 };
#endif
#define th_add_measured(tc, test, min, max)                          \
    (TH_SANITIZED ? th_skip(#test, "sanitizers multiply its memory") \
                  : th_add_sized((tc), #test, (test), (min), (max)))
void th_skip(const char *name, const char *why);

/* Facts of the run. th_group is a split of the world (all ranks, timeout 50 s), fresh for each
 * test. */
int th_rank(void);
int th_size(void);
dtr_world *th_world(void);
dtr_group *th_group(void);
const char *th_thread_level(void);

/* Local soft check: keeps the first failure of this rank. */
void th_note(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define TH_CHECK(cond, ...)                           \
    do {                                              \
        if (!(cond)) {                                \
            th_note(__FILE__, __LINE__, __VA_ARGS__); \
        }                                             \
    } while (0)
/* Agreed verdict over all ranks; on failure every rank leaves the test with the lowest failing
 * rank's message. */
void th_agree(const char *file, int line);
#define TH_AGREE() th_agree(__FILE__, __LINE__)
#define TH_ALL(cond, ...)            \
    do {                             \
        TH_CHECK(cond, __VA_ARGS__); \
        TH_AGREE();                  \
    } while (0)

/* Status of a call, evaluated once; the local form for calls that not all ranks make. */
void th_status(const char *file, int line, const char *call, dtr_status got, dtr_status want);
#define TH_IS(call, want) th_status(__FILE__, __LINE__, #call, (call), (want))
#define TH_STATUS(call, want) \
    do {                      \
        TH_IS(call, want);    \
        TH_AGREE();           \
    } while (0)
#define TH_OK(call) TH_STATUS(call, DTR_OK)
/* The thread's last error message contains `word`. */
void th_message_has(const char *file, int line, const char *word);
#define TH_MESSAGE(word) th_message_has(__FILE__, __LINE__, (word))

/* Outside the library, on the harness's own communicator. */
void th_barrier(void);
void th_gather_u64(uint64_t mine, uint64_t *all /* [size] */);
double th_now(void); /* CLOCK_MONOTONIC, which the ranks of one machine share */
/* The last of all ranks' instants, on every rank. Tests compare instants ("nobody left before the
 * last one had come") and do not assert how long something took: machines are slow at times. */
double th_latest(double mine);
/* Faults, and only they, have bounds: whether less than limit_s, some grace (10 s, more under
 * sanitizers), and the time in which the machine held this process up have passed since th_begin().
 * A thread that sleeps and works by turns measures how much it is held up. */
typedef struct th_start {
    double at, held;
} th_start;
th_start th_begin(void);
bool th_in_time(th_start since, double limit_s);
/* For checks that need ranks to come within a short limit: with a failed check on any rank and a
 * limit below 8 s, forgets the checks, doubles *limit_s and is true on all ranks: try again. */
bool th_patience(double *limit_s);
void th_sleep(double seconds);

/* A group of all ranks whose options have a short limit; made however slow the machine is. */
dtr_group *th_hasty_group(dtr_world *w, const dtr_group_options *o);

/* A good collective: sum of r+1 must be W(W+1)/2. Shows after an error row that no rank is stranded
 * (HR8). */
void th_good_allreduce(dtr_group *g);

/* Lines that the world logged on this rank since the last th_log_clear. */
int th_log_count(const char *containing);
void th_log_clear(void);

#endif /* TH_HARNESS_H */
