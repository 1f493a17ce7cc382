/* Ranks without a launcher: children of this process that find each other through a folder of
 * files, one per key. */
#ifndef BOOTSTRAP_STORE_H
#define BOOTSTRAP_STORE_H

#include <dtr/world.h>

typedef struct store {
    char folder[128];
    double patience_s;      /* get gives up then, whatever it is told; 0: it does not */
    const char *die_at_key; /* get of a key with that end kills this process */
    const char *spoil_key;  /* get of a key with that end has a second number of -1 */
} store;

/* A folder of its own for each. */
void store_new(store *s);
void store_remove(const store *s);
dtr_bootstrap store_bootstrap(store *s, const char *prefix, int rank, int size);

/* Runs fn(rank, n, arg) in n children, each with a limit of two minutes: how many have not ended
 * with 0, nor by SIGKILL. `stopped`: a rank that stops itself, and is killed when the others have
 * ended; -1: none. */
int store_run(int n, int stopped, void (*fn)(int rank, int n, void *arg), void *arg);

#define EXPECT(cond, ...)                                                             \
    do {                                                                              \
        if (!(cond)) {                                                                \
            fprintf(stderr, "%s:%d: rank %d: %s: ", __FILE__, __LINE__, rank, #cond); \
            fprintf(stderr, __VA_ARGS__);                                             \
            fprintf(stderr, " (last error: %s)\n", dtr_last_error_message());         \
            _exit(1);                                                                 \
        }                                                                             \
    } while (0)
#define EXPECT_OK(call)                                                        \
    do {                                                                       \
        const dtr_status expect_ = (call);                                     \
        EXPECT(expect_ == DTR_OK, "%s = %s", #call, dtr_status_name(expect_)); \
    } while (0)
#define EXPECT_TEXT(part) \
    EXPECT(strstr(dtr_last_error_message(), part) != NULL, "no \"%s\" in it", part)

#endif /* BOOTSTRAP_STORE_H */
